"""What git says: trees, differences and last changes, read apart from the export.

Owns the answers that the demo compares a lake with; must not know change files, nor use the code in
`history` that reads objects. Column by column: `path`, `blob`, `mode` and `size` of *every* row come
from `git ls-tree`; `lines`, `author` and `committed` of a sample of rows from `git cat-file` and from
`git log` for the one path.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from demo.git import Git
from demo.rows import SCHEMA, instant, name_text, path_bytes, path_text, seconds

TREE_SCHEMA = pa.schema([SCHEMA.field(name) for name in ("path", "mode", "blob", "size")])
_EXAMPLES = 5


class DiffEntry(NamedTuple):
    """A line of `git diff --raw`. Absent sides have mode `000000` and a blob of zeros.

    Attributes:
        status: `A` added, `D` deleted, `M` modified, `T` changed its type (file, link, submodule).
        path: as `path_text` spells it.
        old_mode, new_mode: six octal digits.
        old_blob, new_blob: object ids.
    """

    status: str
    path: str
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str


class TruthSide(NamedTuple):
    """The columns of a row that a difference compares."""

    path: str
    mode: str
    blob: str


@dataclass(frozen=True)
class Comparison:
    """Outcome of comparing rows with the truth.

    Attributes:
        rows: rows that were compared, of the truth or of the other side where there are more.
        missing: rows of the truth that the other side lacks or has with other values.
        surplus: rows of the other side that the truth lacks or has with other values, and repeated ones.
        examples: a few of these rows, to be printed.
    """

    rows: int
    missing: int
    surplus: int
    examples: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether not one row differs."""
        return self.missing == 0 and self.surplus == 0


def tree(git: Git, sha: str) -> pa.Table:
    """All paths of a commit by `git ls-tree -r -l`: columns path, mode, blob, size; in order of path."""
    output = git.run(["ls-tree", "-r", "-l", "-z", "--full-tree", sha])
    rows: list[tuple[str, str, str, int | None]] = []
    for entry in output.split(b"\0")[:-1]:
        about, path = entry.split(b"\t", 1)
        mode, _, blob, size = about.decode().split()
        rows.append((path_text(path), mode, blob, None if size == "-" else int(size)))
    rows.sort()
    return rows_table(rows, TREE_SCHEMA)


def diff(git: Git, a: str, b: str) -> frozenset[DiffEntry]:
    """The paths that differ between two commits, by `git diff --raw`; a rename is `D` and `A`."""
    options = ["--raw", "-z", "--no-renames", "--no-abbrev", "--no-ext-diff", "--no-textconv"]
    fields = git.run(["diff", *options, "--ignore-submodules=none", "-O/dev/null", a, b, "--"]).split(b"\0")
    entries = []
    for about, path in zip(fields[0:-1:2], fields[1::2], strict=True):
        old_mode, new_mode, old_blob, new_blob, status = about.decode().lstrip(":").split()
        entries.append(DiffEntry(status, path_text(path), old_mode, new_mode, old_blob, new_blob))
    return frozenset(entries)


def diff_of(removed: Iterable[TruthSide], added: Iterable[TruthSide]) -> frozenset[DiffEntry]:
    """Netted changes in the form of `diff`.

    A path on both sides with one mode and one blob is left out: only its author or commit time
    changed (it was changed and changed back), which `git diff` does not show.

    Args:
        removed: rows with a negative diff, at most one for a path.
        added: rows with a positive diff, at most one for a path.
    """
    old, new = ({side.path: side for side in sides} for sides in (removed, added))
    entries = []
    for path in old.keys() | new.keys():
        before, after = old.get(path), new.get(path)
        if before == after:
            continue
        zeros = "0" * len((before or after or TruthSide(path, "", "")).blob)
        a, b = before or TruthSide(path, "000000", zeros), after or TruthSide(path, "000000", zeros)
        if before is None or after is None:
            status = "A" if before is None else "D"
        else:
            status = "M" if a.mode[:3] == b.mode[:3] else "T"
        entries.append(DiffEntry(status, path, a.mode, b.mode, a.blob, b.blob))
    return frozenset(entries)


class LastChange(NamedTuple):
    """The commit of the first-parent line that last changed a path."""

    path: str
    commit: str
    author: str
    committed_s: int


def last_change(git: Git, first: str, sha: str, paths: Sequence[str]) -> list[LastChange]:
    """For each path of commit `sha`, who last changed it on the first-parent line down to `first`.

    A path that did not change since `first` counts as changed there: the export begins with it.
    One `git log` for each path.
    """
    log = ["log", "-1", "-s", "--first-parent", "-m", "--format=tformat:%H %ct %an"]
    found = []
    for path in paths:
        said = git.run([*log, sha, f"^{first}", "--", path_bytes(path)]) or git.run([*log, first, "--"])
        commit, time, author = said.rstrip(b"\n").split(b" ", 2)
        found.append(LastChange(path, commit.decode(), name_text(author), seconds(time)))
    return found


def line_count(git: Git, blob: str) -> int | None:
    """Lines of a blob, None when it is binary; reads it whole."""
    contents = git.run(["cat-file", "blob", blob])
    if b"\0" in contents[:8_000]:
        return None
    return len(contents.removesuffix(b"\n").split(b"\n")) if contents else 0


def sample(git: Git, first: str, sha: str, count: int) -> pa.Table:
    """Whole rows (columns of `SCHEMA`, in order of path) for up to `count` paths spread over a commit.

    Cost: two git processes a path.
    """
    listed = tree(git, sha).to_pylist()
    chosen = [listed[i] for i in spread(len(listed), count)]
    changed = last_change(git, first, sha, [row["path"] for row in chosen])
    rows = []
    for row, last in zip(chosen, changed, strict=True):
        lines = None if row["size"] is None else line_count(git, row["blob"])
        rows.append(
            (
                row["path"],
                row["blob"],
                row["size"],
                lines,
                row["mode"],
                last.author,
                instant(last.committed_s),
            )
        )
    return rows_table(rows, SCHEMA)


def compare(truth: pa.Table, found: pa.Table) -> Comparison:
    """Compare, row by row, the columns that `truth` has; `found` may have more, and in any order.

    Multiplicities count: a row that `found` has twice differs.
    """
    names = truth.column_names
    expected, actual = Counter(_rows(truth, names)), Counter(_rows(found, names))
    missing, surplus = expected - actual, actual - expected
    examples = [
        f"{what}: {dict(zip(names, row, strict=True))}"
        for what, rows in (("missing", missing), ("surplus", surplus))
        for row in sorted(rows, key=repr)[:_EXAMPLES]
    ]
    return Comparison(max(truth.num_rows, found.num_rows), missing.total(), surplus.total(), tuple(examples))


def compare_sample(truth: pa.Table, found: pa.Table) -> Comparison:
    """Compare the rows of a sample with those rows of `found` that have the same paths."""
    return compare(
        truth,
        found.filter(pc.is_in(found["path"].cast(pa.string()), value_set=truth["path"].combine_chunks())),
    )


def spread(n: int, k: int) -> list[int]:
    """Up to `k` different numbers below `n`, evenly spread, the first and the last among them.

    All of them when `n <= k`; only the last when `k` is 1.
    """
    if n <= k:
        return list(range(n))
    return [n - 1] if k == 1 else [round(i * (n - 1) / (k - 1)) for i in range(k)]


def pick_commits(n_commits: int, count: int = 5) -> list[int]:
    """Indexes of up to `count` commits, evenly spread, the first and the last among them."""
    return spread(n_commits, count)


def rows_table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Rows, in the order of the schema's columns, as a table."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _rows(table: pa.Table, names: list[str]) -> Iterator[tuple[object, ...]]:
    return zip(*(table[name].to_pylist() for name in names), strict=True)

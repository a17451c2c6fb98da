"""The export of Tidelake's own history that ships with the package, for a machine without its checkout.

Owns the two files in `bundled/`, their form and how they are written and read; must not know git.

`changes.jsonl.gz` holds the change files one after the other (`export` says what a line is).
`truth.json.gz` holds one JSON object, git's answers at the time when it was made:

    format   1
    cut      whether older commits were left out
    commits  [[sha, tree, author, commit time in s], ...], the window, oldest first
    checked  [index, ...]
    pair     [index, index]
    trees    {sha of each checked commit: [[path, mode, blob, size|null], ...]}
    samples  {the same: [[path, blob, size|null, lines|null, mode, author, commit time in s], ...]}
    diff     [[status, path, old mode, new mode, old blob, new blob], ...], between the pair

Nothing else is in them: no e-mail address, no message, no contents of a file.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidelake.cli.demo.export import COMMITS_PER_FILE, HistoryExport, Lines, write_lines
from tidelake.cli.demo.history import GitCommit, Progress
from tidelake.cli.demo.rows import SCHEMA, instant
from tidelake.cli.demo.truth import TREE_SCHEMA, DiffEntry, rows_table
from tidelake.errors import CorruptionError, FormatTooNew, UsageError

FORMAT = 1
CHANGES = "changes.jsonl.gz"
TRUTH = "truth.json.gz"


@dataclass(frozen=True)
class PackagedSource:
    """A `Source` that answers from the packaged export, for the commits that were checked when it was made.

    Attributes:
        directory: the folder with the two files.
        reason: why it was taken.
        commits: the window, oldest first.
        answers: the object in `truth.json.gz`.
    """

    directory: Path
    reason: str
    commits: tuple[GitCommit, ...]
    answers: dict[str, Any]

    @property
    def checked(self) -> list[int]:
        """Indexes of the commits to read as of."""
        return list(self.answers["checked"])

    @property
    def pair(self) -> tuple[int, int]:
        """Indexes of the two commits that `diff` answers for."""
        a, b = self.answers["pair"]
        return a, b

    @property
    def description(self) -> str:
        """How the report names it."""
        return "the export of Tidelake's own history in the package"

    @property
    def note(self) -> str:
        """Why it was taken."""
        return f"{self.reason}; name a git repository to use that instead"

    def write_change_files(
        self, directory: Path, progress: Progress | None = None, *, commits_per_file: int = COMMITS_PER_FILE
    ) -> HistoryExport:
        """Write the whole window as change files (see `export`) into a folder that has none."""
        return write_lines(
            self._lines(),
            directory,
            total=len(self.commits),
            cut=self.answers["cut"],
            progress=progress,
            commits_per_file=commits_per_file,
        )

    def tree(self, sha: str) -> pa.Table:
        """All paths of a checked commit: path, mode, blob, size, in order of path."""
        return rows_table([tuple(row) for row in self._answer("trees", sha)], TREE_SCHEMA)

    def sample(self, sha: str) -> pa.Table:
        """Some whole rows of a checked commit: the columns of `rows.SCHEMA`, in order of path."""
        return rows_table([(*row, instant(at_s)) for *row, at_s in self._answer("samples", sha)], SCHEMA)

    def diff(self, a: str, b: str) -> frozenset[DiffEntry]:
        """What differs between the two commits of `pair`."""
        if (a, b) != tuple(self.commits[index].sha for index in self.pair):
            raise UsageError(
                f"the packaged export does not know what differs from {a} to {b}: ask for its pair"
            )
        return frozenset(DiffEntry(*entry) for entry in self.answers["diff"])

    def _answer(self, what: str, sha: str) -> list[list[Any]]:
        if sha not in self.answers[what]:
            raise UsageError(f"the packaged export has no answers for commit {sha}: ask for a checked one")
        answer: list[list[Any]] = self.answers[what][sha]
        return answer

    def _lines(self) -> Iterator[Lines]:
        waiting = iter(self.commits)
        commit, found = next(waiting), list[str]()
        with gzip.open(self.directory / CHANGES, "rt", encoding="ascii", newline="\n") as lines:
            for line in lines:
                event = json.loads(line)
                if event is not None and event["source"]["lsn"] != commit.index:
                    yield commit, found
                    commit, found = next(waiting), []
                found.append(line.rstrip("\n"))
        yield commit, found


def open_packaged(reason: str, directory: Path | None = None) -> PackagedSource:
    """The export that ships with the package.

    Args:
        reason: why it is taken, a clause for the report.
        directory: another place than the package, for the tests.

    Raises:
        CorruptionError: a file is missing or damaged: install the package again.
        FormatTooNew: the files are of another Tidelake.
    """
    place = directory or Path(str(files("tidelake"))) / "cli" / "demo" / "bundled"
    try:
        answers = json.loads(gzip.decompress((place / TRUTH).read_bytes()))
        commits = tuple(GitCommit(index, *fields) for index, fields in enumerate(answers["commits"]))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise CorruptionError(TRUTH, str(error)) from error
    if answers["format"] > FORMAT:
        raise FormatTooNew(TRUTH, answers["format"], FORMAT)
    return PackagedSource(place, reason, commits, answers)


def write_packaged(directory: Path, lines: list[str], answers: dict[str, Any]) -> int:
    """Write the two files; the same input gives the same bytes. Returns their size together."""
    directory.mkdir(parents=True, exist_ok=True)
    truth = json.dumps({"format": FORMAT, **answers}, separators=(",", ":"))
    size_bytes = 0
    for name, text in ((CHANGES, "".join(f"{line}\n" for line in lines)), (TRUTH, truth)):
        packed = gzip.compress(text.encode("ascii"), 9, mtime=0)
        (directory / name).write_bytes(packed)
        size_bytes += len(packed)
    return size_bytes

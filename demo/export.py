r"""Change files: the history of a repository as Debezium-style JSON lines.

Owns the bytes of a change file and how it appears in a folder; must not know who reads it.

A line is one of

- a change, `{"op": "c"|"u"|"d"|"r", "before": row|null, "after": row|null, "source": source, "ts_ms": n}`,
  with the complete row on both sides. `r` (read of a snapshot) marks the first commit of a history that
  was cut off (shallow clone, limit): those rows were there before. A rename is a `d` and a `c`;
- `null` right after each `d`: the tombstone that Debezium sends for log compaction. To be skipped.
  (Spark's `from_json` reads it as a struct with all fields null, not as a null struct.);
- a heartbeat, `op` `h` with both sides null, for a commit that changes nothing: it moves time forward.

A row is `{"path", "blob", "size", "lines", "mode", "author", "committed"}` (see `rows.PathRow`),
`committed` as `2024-01-02T03:04:05Z`. A source is `{"version": "1", "connector": "git", "ts_ms", "lsn",
"commit"}`: `lsn` is the commit's index, the time of the change; both `ts_ms` are the commit time, so an
export repeats byte for byte.
Everything is ASCII (`\uNNNN`): no character of a path can end a line for any reader.

Files are `changes-<index of the first commit, 9 digits>.jsonl`, one or more whole commits each, lines in
order of `lsn`, then path, so name order is time order. After a file with highest `lsn` n, time n is complete.
A file is written under a name with a leading `.` (Spark's file source skips those), dated, then renamed.
SUBTLE: Spark's file source takes files in order of modification time, to the millisecond; files written
in one millisecond would come in any order. So each file is dated by its first commit's index, a second a
commit, ending now: strictly increasing, never in the future, and near enough to each other for
`maxFileAge` (7 days) up to 600,000 commits. It is dated before the rename, so no reader sees another date.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from demo.history import ABSENT, Blobs, GitChange, GitCommit, GitHistory, Measure, Progress
from demo.rows import SUBMODULE, PathRow, iso
from tidelake.errors import UsageError
from tidelake.shard.engine.spec import env_here

COMMITS_PER_FILE = 25
FILE_BYTES_MAX = 8 << 20
_NAME = "changes-{:09d}.jsonl"

Lines = tuple[GitCommit, list[str]]
"""A commit and its lines, without line ends; at least one line."""


@dataclass(frozen=True)
class HistoryExport:
    """What an export wrote.

    Attributes:
        commits: commits exported; times 0 to `commits - 1` are complete.
        files, bytes: change files and their size.
        creates, updates, deletes, reads: lines by `op`: `c`, `u`, `d`, `r`.
        tombstones, heartbeats: lines that carry no row.
        cut: whether the history begins with a whole tree because older commits are not there.
    """

    commits: int = 0
    files: int = 0
    bytes: int = 0
    creates: int = 0
    updates: int = 0
    deletes: int = 0
    reads: int = 0
    tombstones: int = 0
    heartbeats: int = 0
    cut: bool = False


def change_lines(history: GitHistory) -> Iterator[Lines]:
    """The lines of each commit, oldest first, in one pass.

    Memory: the live rows, the changes of one commit, and a number or two for each distinct blob.
    """
    state: dict[str, PathRow] = {}
    with history.git.conversation(["cat-file", "--batch"]) as (question, answer):
        blobs = Blobs(question, answer)
        for commit, changes in history.changes():
            wanted = [c.new_blob for c in changes if c.new_mode not in (ABSENT, SUBMODULE)]
            measures = blobs.measure(wanted)
            created = "r" if history.cut and commit.index == 0 else "c"
            yield commit, list(_commit_lines(commit, changes, measures, state, created))


def _commit_lines(
    commit: GitCommit,
    changes: list[GitChange],
    measures: dict[str, Measure],
    state: dict[str, PathRow],
    created: str,
) -> Iterator[str]:
    for change in sorted(changes, key=lambda c: c.path):
        before = state.pop(change.path, None)
        after = None if change.new_mode == ABSENT else _row(commit, change, measures.get(change.new_blob))
        if (before is not None) != (change.old_mode != ABSENT):
            raise UsageError(
                f"git reports {change.path!r} changed in {commit.sha} from a state that it never had"
            )
        if after is not None:
            state[change.path] = after
            yield _line(commit, created if before is None else "u", before, after)
        else:
            yield _line(commit, "d", before, None)
            yield "null"
    if not changes:
        yield _line(commit, "h", None, None)


def _row(commit: GitCommit, change: GitChange, measure: Measure | None) -> PathRow:
    size, lines = (None, None) if measure is None else (measure.size, measure.lines)
    return PathRow(
        change.path, change.new_blob, size, lines, change.new_mode, commit.author, commit.committed_s
    )


def _line(commit: GitCommit, op: str, before: PathRow | None, after: PathRow | None) -> str:
    ts_ms = commit.committed_s * 1000
    source = {
        "version": "1",
        "connector": "git",
        "ts_ms": ts_ms,
        "lsn": commit.index,
        "commit": commit.sha,
    }
    event = {
        "op": op,
        "before": _json_row(before),
        "after": _json_row(after),
        "source": source,
        "ts_ms": ts_ms,
    }
    return json.dumps(event, separators=(",", ":"))


def _json_row(row: PathRow | None) -> dict[str, object] | None:
    if row is None:
        return None
    return {
        "path": row.path,
        "blob": row.blob,
        "size": row.size,
        "lines": row.lines,
        "mode": row.mode,
        "author": row.author,
        "committed": iso(row.committed_s),
    }


def write_lines(
    lines: Iterable[Lines],
    directory: Path,
    *,
    total: int,
    cut: bool,
    progress: Progress | None = None,
    commits_per_file: int = COMMITS_PER_FILE,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> HistoryExport:
    """Write change files, commit by commit, into a folder that has none yet; it is made if need be.

    Args:
        lines: the commits, indexes 0, 1, 2, ... with their lines.
        directory: the landing folder.
        total: how many commits `lines` has.
        cut: goes into the report.
        progress: called after each commit.
        commits_per_file: a file is closed after so many commits ...
        file_bytes_max: ... or after the commit that brings it to so many bytes.

    Returns:
        What was written.

    Raises:
        UsageError: the folder holds change files already, or a limit is not positive.
    """
    if commits_per_file < 1 or file_bytes_max < 1:
        raise UsageError(f"a change file holds at least a commit: {commits_per_file=}, {file_bytes_max=}")
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.glob("changes-*.jsonl")):
        raise UsageError(f"{str(directory)!r} holds change files already: empty it, or name another folder")
    date_s = env_here().clock.now_ms() // 1000 - total
    ops: Counter[str] = Counter()
    done = 0
    with _Landing(directory, date_s, commits_per_file, file_bytes_max) as landing:
        for commit, of_commit in lines:
            landing.add(commit.index, of_commit)
            ops.update(line[7:8] for line in of_commit)  # `{"op":"c"`; a tombstone has no such place
            done += 1
            if progress is not None:
                progress(done, total)
        landing.finish()
    return HistoryExport(
        commits=done,
        files=landing.files,
        bytes=landing.bytes,
        creates=ops["c"],
        updates=ops["u"],
        deletes=ops["d"],
        reads=ops["r"],
        tombstones=ops[""],
        heartbeats=ops["h"],
        cut=cut,
    )


class _Landing:
    """A folder that change files land in, whole and dated in order."""

    def __init__(self, directory: Path, date_s: int, commits_per_file: int, file_bytes_max: int) -> None:
        self.files = self.bytes = 0
        self._directory, self._date_s = directory, date_s
        self._commits_max, self._bytes_max = commits_per_file, file_bytes_max
        self._file: BinaryIO | None = None
        self._first = self._commits = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Forget a file that was not finished."""
        if self._file is not None:
            self._file.close()
            self._temporary.unlink()

    @property
    def _temporary(self) -> Path:
        return self._directory / f".{_NAME.format(self._first)}.tmp"

    def add(self, index: int, lines: list[str]) -> None:
        """Write a commit; the file lands when it is full."""
        if self._file is None:
            self._first, self._commits = index, 0
            self._file = self._temporary.open("wb")
        self._file.writelines(f"{line}\n".encode("ascii") for line in lines)
        self._commits += 1
        if self._commits >= self._commits_max or self._file.tell() >= self._bytes_max:
            self.finish()

    def finish(self) -> None:
        """Let the open file land, if there is one."""
        if self._file is None:
            return
        self.files, self.bytes = self.files + 1, self.bytes + self._file.tell()
        self._file.close()
        date_s = self._date_s + self._first
        os.utime(self._temporary, (date_s, date_s))
        self._temporary.replace(self._directory / _NAME.format(self._first))
        self._file = None

"""A table's change list in the shapes that the paths of the matrix take, and the truth about it.

The truth is a count and a hash of the rows at each version. Both add up: of a difference between two
versions they are the difference of theirs. So snapshots, changes and updates are judged alike.
"""

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from content_hash import MODULUS

Row = tuple[str | None, ...]


def row_hash(row: Row) -> int:
    """The hash of a row as the data sets' page defines it."""
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    return int(hashlib.sha256(text.encode()).hexdigest()[:32], 16)


@dataclass
class Truth:
    """Rows and hash at each version."""

    rows: list[int] = field(default_factory=list)
    hash: list[int] = field(default_factory=list)

    def of(self, after: int | None, through: int) -> tuple[int, str]:
        """What a path must answer: contents at `through`, less those at `after` if it is given."""
        rows, digest = self.rows[through], self.hash[through]
        if after is not None:
            rows, digest = rows - self.rows[after], digest - self.hash[after]
        return rows, f"{digest % MODULUS:032x}"

    @classmethod
    def read(cls, folder: Path) -> "Truth":
        """That of a shared data set, which was made by other code."""
        with (folder / "truth" / "hashes.csv").open(newline="") as file:
            known = {
                line["commit"]: (int(line["rows"]), int(line["hash"], 16)) for line in csv.DictReader(file)
            }
        with (folder / "versions.csv").open(newline="") as file:
            found = [known[line["commit"]] for line in csv.DictReader(file)]
        return cls([rows for rows, _ in found], [digest for _, digest in found])


@dataclass
class History:
    """Replays changes, and writes what the paths are fed with into a folder.

    - `updates.parquet`: columns, `_time`, `_diff`.
    - `events.parquet`: columns, `_time`, `deleted`: the row after each change; values null if deleted.
    - `updates-files`, `events-files`: the same rows in files, which come one after the other.
    - `landing/*.json`: Debezium events with the whole old row; each file ends with a heartbeat.
    - `about.json`: the names of the columns, the first being the key, and the number of versions.
    """

    folder: Path
    columns: list[str]
    versions: int
    truth: Truth = field(default_factory=Truth)
    _updates: list[tuple[Any, ...]] = field(default_factory=list)
    _events: list[tuple[Any, ...]] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list)

    def replay(self, changes: Iterable[tuple[int, Row, bool]], files: int) -> "History":
        """Take changes `(version, row, deleted)` in order of version; write everything."""
        rows: dict[str | None, Row] = {}
        count = digest = 0
        waiting = list(changes)
        at = 0
        ends = {self.versions * (i + 1) // files - 1 for i in range(files)}
        (self.folder / "landing").mkdir(parents=True)
        for version in range(self.versions):
            while at < len(waiting) and waiting[at][0] == version:
                _, row, deleted = waiting[at]
                old = rows.pop(row[0], None)
                new = None if deleted else row
                if new is not None:
                    rows[row[0]] = new
                for side, diff in ((old, -1), (new, 1)):
                    if side is not None:
                        self._updates.append((*side, version, diff))
                        count, digest = count + diff, digest + diff * row_hash(side)
                self._events.append((*row, version, deleted))
                self._line(version, old, new)
                at += 1
            self.truth.rows.append(count)
            self.truth.hash.append(digest)
            if version in ends:
                self._file(version)
        self._write()
        return self

    def _line(self, version: int, old: Row | None, new: Row | None) -> None:
        def named(row: Row | None) -> dict[str, str | None] | None:
            return None if row is None else dict(zip(self.columns, row, strict=True))

        op = "c" if old is None else "d" if new is None else "u"
        event = {"op": op, "before": named(old), "after": named(new), "source": {"lsn": version}}
        self._lines.append(json.dumps(event))

    def _file(self, version: int) -> None:
        path = self.folder / "landing" / f"{version:06}.json"
        heartbeat = json.dumps({"op": "h", "source": {"lsn": version}})
        path.write_text("\n".join([*self._lines, heartbeat]) + "\n")
        os.utime(path, (1_000_000_000 + version,) * 2)
        self._lines = []

    def _write(self) -> None:
        strings = [(name, pa.string()) for name in self.columns]
        for name, rows, last in (
            ("updates", self._updates, ("_diff", pa.int64())),
            ("events", self._events, ("deleted", pa.bool_())),
        ):
            schema = pa.schema([*strings, ("_time", pa.int64()), last])
            arrays = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)]
            # Small row groups: Spark then reads in several tasks.
            table = pa.table(arrays, schema=schema)
            pq.write_table(table, self.folder / f"{name}.parquet", row_group_size=20_000)
            self._cut(table, self.folder / f"{name}-files")
        about = {"columns": self.columns, "versions": self.versions}
        (self.folder / "about.json").write_text(json.dumps(about))

    def _cut(self, table: pa.Table, folder: Path) -> None:
        """The rows as files of four intervals of time, in their order."""
        folder.mkdir()
        cuts = sorted({self.versions * i // 4 for i in range(5)})
        for number, (lower, upper) in enumerate(itertools.pairwise(cuts)):
            at = pc.and_(pc.greater_equal(table["_time"], lower), pc.less(table["_time"], upper))
            path = folder / f"{number}.parquet"
            pq.write_table(table.filter(at), path)
            os.utime(path, (1_000_000_000 + number,) * 2)


def real_history(data: Path, folder: Path, files: int, versions: int | None = None) -> History:
    """The first versions of a shared data set, or all; its truth is the one that was published with it."""
    table = pq.read_table(data / "changes.parquet").sort_by("version")
    truth = Truth.read(data)
    versions = versions or len(truth.rows)
    table = table.filter(pc.less(table["version"], versions))
    columns = [name for name in table.column_names if name not in ("version", "ts", "op")]
    rows = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    deleted = (op == "delete" for op in table.column("op").to_pylist())
    changes = zip(table.column("version").to_pylist(), rows, deleted, strict=True)
    history = History(folder, columns, versions).replay(changes, files)
    history.truth = truth
    return history


def small_history(folder: Path) -> History:
    """A few rows that come, change, go and come back, with nulls and with versions of nothing."""
    changes: list[tuple[int, Row, bool]] = []
    for version in range(20):
        if version % 5 == 3:
            continue
        for key in range(version % 3, 24, 3):
            gone = (key + version) % 7 == 0 and version > 2
            value = None if gone or key % 5 == 0 else f"{key}ü{version // 2}"
            changes.append((version, (f"k{key}", value, None if gone else str(version % 4)), gone))
    return History(folder, ["k", "v", "w"], 20).replay(_effective(changes), 4)


def _effective(changes: list[tuple[int, Row, bool]]) -> Iterable[tuple[int, Row, bool]]:
    """Leave out deletions of keys that are not there."""
    there: set[str | None] = set()
    for version, row, deleted in changes:
        if deleted and row[0] not in there:
            continue
        (there.discard if deleted else there.add)(row[0])
        yield version, row, deleted

"""Every version of two real tables, through Spark: row counts, content hashes and whole states.

The update log is made from the change lists by a window over each key (old row out, new row in), is
appended in several batches, read at every version in one job, and hashed in Spark SQL the way the
data set's own hashes were made. Then the same after a full merge.
"""

import csv
import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from content_hash import hashes

import tidelake
from tidelake.model.frontier import Frontier
from tidelake.spark import append, changes, merge, snapshot, snapshots

# Around the bad loads that the data set's page tells of, and their repairs.
DOTGOV_EVENTS = [0, 1, 22, 23, 24, 95, 96, 97, 716, 717, 974, 977, 1226, 1227, 1324, 1537, 1538]


@dataclass
class Versions:
    """A data set: its changes as a DataFrame, and the truth about each version."""

    folder: Path
    frame: Any

    def __post_init__(self) -> None:
        self.columns = [c for c in self.frame.columns if c not in ("version", "ts", "op")]
        with (self.folder / "versions.csv").open(newline="") as file:
            self.commits = [line["commit"] for line in csv.DictReader(file)]
        with (self.folder / "truth" / "hashes.csv").open(newline="") as file:
            truth = {line["commit"]: (int(line["rows"]), line["hash"]) for line in csv.DictReader(file)}
        self.truth = {i: truth[commit] for i, commit in enumerate(self.commits)}

    @property
    def schema(self) -> pa.Schema:
        key, *values = self.columns
        return pa.schema([pa.field(key, pa.string(), nullable=False), *((v, pa.string()) for v in values)])

    def updates(self) -> Any:
        """A DataFrame of updates: for each change of a key the old row with -1, the new one with +1."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        key = self.columns[0]
        row = f.struct(*self.columns)
        new = f.when(f.col("op") != "delete", row)
        old = f.lag(new).over(Window.partitionBy(key).orderBy("version"))
        time = f.col("version").cast("bigint").alias("_time")
        both = self.frame.select(time, f.array(old, new).alias("rows"))
        each = both.select("_time", f.posexplode("rows").alias("side", "row")).where("row is not null")
        return each.select("row.*", "_time", (f.col("side") * 2 - 1).cast("bigint").alias("_diff"))

    def states(self) -> dict[int, Counter[Any]]:
        """The tables that were taken from the source files, by version."""
        numbers = {commit[:12]: i for i, commit in enumerate(self.commits)}
        found = {}
        for path in sorted((self.folder / "truth").glob("state_*.parquet")):
            table = pq.read_table(path)
            assert table.column_names == self.columns
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            found[numbers[path.stem.removeprefix("state_")]] = Counter(rows)
        return found


def contents(frame: Any, columns: list[str]) -> Counter[Any]:
    table = frame.toArrow()
    rows = list(zip(*(table.column(c).to_pylist() for c in columns), strict=True))
    assert len(set(rows)) == len(rows)
    return Counter(dict(zip(rows, table.column("_diff").to_pylist(), strict=True)))


def check(spark: Any, c: tidelake.Collection, data: Versions, versions: list[int]) -> None:
    empty = (0, f"{0:032x}")
    got = dict.fromkeys(versions, empty) | hashes(snapshots(spark, c, versions), data.columns)
    wrong = {v: (got[v], data.truth[v]) for v in versions if got[v] != data.truth[v]}
    assert not wrong


def ingest(spark: Any, tmp_path: Path, data: Versions, batches: int) -> tidelake.Collection:
    from pyspark.sql import functions as f

    c = tidelake.open(tmp_path / "lake").create("c", data.schema, key=data.columns[:1])
    log = data.updates().persist()
    count = len(data.commits)
    cuts = sorted({0, count, *(count * i // batches for i in range(batches))})
    for lower, upper in itertools.pairwise(cuts):
        piece = log.where((f.col("_time") >= lower) & (f.col("_time") < upper)).coalesce(2)
        append(c, piece, lower=lower, upper=upper)
    log.unpersist()
    assert c.upper == Frontier.of(count)
    return c


def open_data(spark: Any, shared_data: Path, name: str) -> Versions:
    return Versions(shared_data / name, spark.read.parquet(str(shared_data / name / "changes.parquet")))


@pytest.mark.full
def test_sp500_at_every_version(spark: Any, tmp_path: Path, shared_data: Path) -> None:
    data = open_data(spark, shared_data, "sp500")
    c = ingest(spark, tmp_path, data, batches=5)
    every = list(range(len(data.commits)))
    for _ in range(2):
        check(spark, c, data, every)
        for version, state in data.states().items():
            assert contents(snapshot(spark, c, version), data.columns) == state
        report = merge(spark, c)
    assert not report.applied


@pytest.mark.full
def test_dotgov_at_its_remarkable_versions(spark: Any, tmp_path: Path, shared_data: Path) -> None:
    data = open_data(spark, shared_data, "dotgov")
    c = ingest(spark, tmp_path, data, batches=3)
    check(spark, c, data, DOTGOV_EVENTS)
    assert merge(spark, c).applied
    check(spark, c, data, DOTGOV_EVENTS)
    states = data.states()
    for after, through in ((95, 96), (716, 717), (95, 717)):
        delta = states[through].copy()
        delta.subtract(states[after])
        got = contents(changes(spark, c, after, through), data.columns)
        assert got == Counter({row: n for row, n in delta.items() if n})


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_dotgov_at_every_version(spark: Any, tmp_path: Path, shared_data: Path) -> None:
    data = open_data(spark, shared_data, "dotgov")
    c = ingest(spark, tmp_path, data, batches=12)
    every = list(range(len(data.commits)))
    for merged in (False, True):
        if merged:
            assert merge(spark, c).applied
        for start in range(0, len(every), 200):
            check(spark, c, data, every[start : start + 200])
        for version, state in data.states().items():
            assert contents(snapshot(spark, c, version), data.columns) == state
    assert not merge(spark, c).applied

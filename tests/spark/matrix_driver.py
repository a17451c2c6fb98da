"""A driver process of the matrix: takes every path over one history, and prints what each came to.

    matrix_driver.py '{"engine": "cluster", "master": "spark://...", "data": ..., "work": ..., "conf": {...}}'

`data` is a folder made by `matrix_data.History`. The last line of the output is JSON: path -> claims
`[after, through, rows, hash]`, of the contents at `through` less those at `after` if it is not null; or
path -> the text of an error. "workers" tells of the workers.
"""

import itertools
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from content_hash import hashes

import tidelake
from tidelake import spark as ts
from tidelake.spark.tasks import run_tasks, slots

Claim = tuple[int | None, int, int, str]
Path_ = Callable[["Stage"], list[Claim]]
NOTHING = (0, f"{0:032x}")


@dataclass
class Stage:
    """A session, a history and a lake."""

    spark: Any
    data: Path
    work: Path
    looks: int

    def __post_init__(self) -> None:
        about = json.loads((self.data / "about.json").read_text())
        self.columns: list[str] = about["columns"]
        self.versions: int = about["versions"]
        self.lake = tidelake.open(self.work / "lake")
        # Versions to look at, the first and the last among them.
        self.times = sorted({i * (self.versions - 1) // (self.looks - 1) for i in range(self.looks)})

    def create(self, name: str) -> tidelake.Collection:
        key, *values = self.columns
        fields = [pa.field(key, pa.string(), nullable=False), *((v, pa.string()) for v in values)]
        return self.lake.create(name, pa.schema(fields), key=[key])

    def frame(self, name: str) -> Any:
        return self.spark.read.parquet(str(self.data / f"{name}.parquet"))

    def pieces(self, name: str, count: int = 3) -> list[tuple[int, int, Any]]:
        """A frame cut into `count` intervals of time: lower, upper, rows."""
        frame = self.frame(name)
        cuts = sorted({self.versions * i // count for i in range(count + 1)})
        return [(a, b, frame.where(f"_time >= {a} AND _time < {b}")) for a, b in itertools.pairwise(cuts)]

    @cached_property
    def appended(self) -> tidelake.Collection:
        """The history, appended by the helper: what the paths of reading read."""
        c = self.create("appended")
        for lower, upper, rows in self.pieces("updates"):
            ts.append(c, rows, lower=lower, upper=upper)
        return c

    def contents(self, c: tidelake.Collection) -> list[Claim]:
        """What a collection has at several versions, by one job of the helpers."""
        found = hashes(ts.snapshots(self.spark, c, self.times), self.columns)
        return [(None, time, *found.get(time, NOTHING)) for time in self.times]

    def steps(self, frame: Any) -> list[Claim]:
        """What updates come to: a claim for each version, whether it has updates or not."""
        found = hashes(frame, self.columns)
        assert set(found) <= set(range(self.versions)), "updates of no version"
        return [(t - 1 if t else None, t, *found.get(t, NOTHING)) for t in range(self.versions)]

    def one(self, frame: Any, after: int | None, through: int) -> Claim:
        """What a frame of the contents at one time, or of changes through it, comes to."""
        found = hashes(frame, self.columns)
        assert set(found) <= {through}, f"times {set(found)} instead of {through}"
        return (after, through, *found.get(through, NOTHING))


def helper_append(stage: Stage) -> list[Claim]:
    return stage.contents(stage.appended)


def helper_snapshot(stage: Stage) -> list[Claim]:
    c = stage.appended
    return [stage.one(ts.snapshot(stage.spark, c, t), None, t) for t in stage.times[::4]]


def helper_changes(stage: Stage) -> list[Claim]:
    pairs = itertools.pairwise(stage.times[::4])
    return [stage.one(ts.changes(stage.spark, stage.appended, a, b), a, b) for a, b in pairs]


def helper_updates(stage: Stage) -> list[Claim]:
    return stage.steps(ts.updates(stage.spark, stage.appended, 0, stage.versions))


def helper_merge(stage: Stage) -> list[Claim]:
    c = stage.create("merged")
    for lower, upper, rows in stage.pieces("updates"):
        ts.append(c, rows, lower=lower, upper=upper, ranges=2)
    assert ts.merge(stage.spark, c).applied
    return stage.contents(c)


def ingest(stage: Stage) -> list[Claim]:
    c = stage.create("ingested")
    ts.ingest_change_files(
        stage.spark, c, stage.data / "landing", stage.work / "ingest-checkpoint", max_files_per_trigger=3
    )
    return stage.contents(c)


PATHS: dict[str, Path_] = {
    "helper append": helper_append,
    "helper snapshot": helper_snapshot,
    "helper changes": helper_changes,
    "helper updates": helper_updates,
    "helper merge": helper_merge,
    "ingest": ingest,
}


def session(engine: str, master: str, conf: dict[str, str]) -> Any:
    from pyspark.sql import SparkSession

    if engine == "local":
        return ts.local_session("matrix", "2,4", **conf)  # four attempts at a task
    if engine == "connect":
        return SparkSession.builder.remote(master).getOrCreate()
    builder = SparkSession.builder.appName("matrix").master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def about_workers(spark: Any) -> dict[str, Any]:
    """Which packages of the driver the tasks of a job could import, and how many run at once."""
    from pyspark.sql.types import StringType, StructField, StructType

    def look(_task: bytes) -> Iterator[pa.RecordBatch]:
        import importlib.util

        there = [name for name in ("pandas", "grpc", "pytest") if importlib.util.find_spec(name)]
        yield pa.RecordBatch.from_pylist([{"packages": ",".join(there)}])

    rows = run_tasks(spark, [b""] * 8, look, StructType([StructField("packages", StringType())])).collect()
    return {"packages": sorted({row.packages for row in rows}), "slots": slots(spark)}


def main(engine: str, master: str, data: str, work: str, conf: dict[str, str], looks: int) -> None:
    spark = session(engine, master, conf)
    stage = Stage(spark, Path(data), Path(work), looks)
    found: dict[str, Any] = {"workers": about_workers(spark)}
    for name, path in PATHS.items():
        try:
            found[name] = path(stage)
        except Exception as error:
            traceback.print_exc()
            found[name] = f"{type(error).__name__}: {error}"
    ts.release()
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

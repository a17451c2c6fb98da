"""A driver process of the matrix: takes every path over one history, and prints what each came to.

    matrix_driver.py '{"engine": "cluster", "master": "spark://...", "data": ..., "work": ..., "conf": {...}}'

`data` is a folder made by `matrix_data.History`. With `lake` this is the lake's URL, and driver and executors
have no disk in common: they have copies of `data`. The last line of the output is JSON: path -> claims
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
from time import monotonic
from typing import Any

import pyarrow as pa
import pyspark
from content_hash import hashes

import tidelake
from tidelake import spark as ts
from tidelake.spark.tasks import remote, run_tasks, slots
from tidelake.spark.writing.running import BYTES_MAX

IdempotencyKey = tuple[int | None, int, int, str]
Path_ = Callable[["Stage"], list[IdempotencyKey]]
NOTHING = (0, f"{0:032x}")


@dataclass
class Stage:
    """A session, a history and a lake."""

    spark: Any
    data: Path
    work: Path
    looks: int
    place_of_lake: str
    apart: bool

    def __post_init__(self) -> None:
        about = json.loads((self.data / "about.json").read_text())
        self.columns: list[str] = about["columns"]
        self.versions: int = about["versions"]
        # Of these times a micro-batch has: there are four of them.
        self.few = self.versions // 4 + 1
        # An older PySpark knows no limits.
        knows_limits = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
        self.in_steps = {"maxTimesPerTrigger": self.few} if knows_limits else {}
        self.lake = tidelake.open(self.place_of_lake)
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

    def place(self, c: tidelake.Collection) -> str:
        """As the format takes it."""
        return f"{self.place_of_lake}/{c.name}"

    def checkpoint(self, name: str) -> str:
        return str(self.work / f"{name}-checkpoint")

    def load(self, name: str, **options: Any) -> Any:
        """A batch read by the format."""
        assert self.appended
        return self.spark.read.format("tidelake").options(**options).load(f"{self.place_of_lake}/{name}")

    def source(self, name: str, **options: Any) -> Any:
        """A streaming read by the format."""
        assert self.appended
        return (
            self.spark.readStream.format("tidelake").options(**options).load(f"{self.place_of_lake}/{name}")
        )

    def arriving(self, name: str) -> Any:
        """A streaming read of the files of a frame, in order, one a micro-batch."""
        reader = self.spark.readStream.schema(self.frame(name).schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.data / f"{name}-files"))

    def streamed(self, source: Any, name: str) -> Any:
        """What a stream gives until there is no more, by way of Parquet files, or of the driver's memory."""
        if self.apart:
            stream = source.writeStream.format("memory").queryName(name).trigger(availableNow=True)
            stream.start().awaitTermination()
            return self.spark.table(name)
        place = str(self.work / f"{name}-parquet")
        stream = source.writeStream.format("parquet").option("checkpointLocation", self.checkpoint(name))
        stream.trigger(availableNow=True).start(place).awaitTermination()
        return self.spark.read.parquet(place)

    def as_updates(self, table: Any, time: int) -> Any:
        """Rows of a table, as updates of one time."""
        return table.selectExpr("*", f"{time}L AS _time", "1L AS _diff")

    @cached_property
    def appended(self) -> tidelake.Collection:
        """The history, appended by the helper: what the paths of reading read."""
        c = self.create("appended")
        for lower, upper, rows in self.pieces("updates"):
            ts.append(c, rows, lower=lower, upper=upper)
        return c

    def contents(self, c: tidelake.Collection) -> list[IdempotencyKey]:
        """What a collection has at several versions, by one job of the helpers."""
        found = hashes(ts.snapshots(self.spark, c, self.times), self.columns)
        return [(None, time, *found.get(time, NOTHING)) for time in self.times]

    def steps(self, frame: Any) -> list[IdempotencyKey]:
        """What updates come to: a claim for each version, whether it has updates or not."""
        found = hashes(frame, self.columns)
        assert set(found) <= set(range(self.versions)), "updates of no version"
        return [(t - 1 if t else None, t, *found.get(t, NOTHING)) for t in range(self.versions)]

    def one(self, frame: Any, after: int | None, through: int) -> IdempotencyKey:
        """What a frame of the contents at one time, or of changes through it, comes to."""
        found = hashes(frame, self.columns)
        assert set(found) <= {through}, f"times {set(found)} instead of {through}"
        return (after, through, *found.get(through, NOTHING))


def helper_append(stage: Stage) -> list[IdempotencyKey]:
    return stage.contents(stage.appended)


def helper_snapshot(stage: Stage) -> list[IdempotencyKey]:
    c = stage.appended
    return [stage.one(ts.snapshot(stage.spark, c, t), None, t) for t in stage.times[::4]]


def helper_changes(stage: Stage) -> list[IdempotencyKey]:
    pairs = itertools.pairwise(stage.times[::4])
    return [stage.one(ts.changes(stage.spark, stage.appended, a, b), a, b) for a, b in pairs]


def helper_updates(stage: Stage) -> list[IdempotencyKey]:
    return stage.steps(ts.updates(stage.spark, stage.appended, 0, stage.versions))


def helper_merge(stage: Stage) -> list[IdempotencyKey]:
    c = stage.create("merged")
    for lower, upper, rows in stage.pieces("updates"):
        ts.append(c, rows, lower=lower, upper=upper, ranges=2)
    assert ts.merge(stage.spark, c).applied
    return stage.contents(c)


def ingest(stage: Stage) -> list[IdempotencyKey]:
    c = stage.create("ingested")
    ts.ingest_change_files(
        stage.spark, c, stage.data / "landing", stage.work / "ingest-checkpoint", max_files_per_trigger=3
    )
    return stage.contents(c)


def format_snapshot(stage: Stage) -> list[IdempotencyKey]:
    """With multiplicities, and as a table."""
    counted = [(t, stage.load("appended", asOf=t, withDiff="true")) for t in stage.times[::4]]
    plain = [(t, stage.as_updates(stage.load("appended", asOf=t), t)) for t in stage.times[1::4]]
    return [stage.one(frame, None, t) for t, frame in (*counted, *plain)]


def format_changes(stage: Stage) -> list[IdempotencyKey]:
    pairs = itertools.pairwise(stage.times[::4])
    frames = [(a, b, stage.load("appended", after=a, through=b)) for a, b in pairs]
    return [stage.one(frame, a, b) for a, b, frame in frames]


def format_updates(stage: Stage) -> list[IdempotencyKey]:
    return stage.steps(stage.load("appended", lower=0, upper=stage.versions))


def format_change_feed(stage: Stage) -> list[IdempotencyKey]:
    feed = stage.load("appended", lower=0, changeFeed="true")
    came = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1L ELSE -1L END"
    return stage.steps(feed.selectExpr("*", "_commit_version AS _time", f"{came} AS _diff"))


def format_sql(stage: Stage) -> list[IdempotencyKey]:
    """INSERT INTO a temporary view of rows, and into one of updates; SELECT from others."""
    last = stage.versions - 1
    stage.load("appended", asOf=last).createOrReplaceTempView("contents")
    stage.frame("updates").createOrReplaceTempView("history")
    claims = []
    for name, rows, options in (("rows", "contents", ""), ("updates", "history", ", withDiff 'true'")):
        place = stage.place(stage.create(f"inserted-{name}"))
        view = "TEMPORARY VIEW {} USING tidelake OPTIONS (path '{}'{})"
        stage.spark.sql("CREATE " + view.format(f"into_{name}", place, options))
        stage.spark.sql(f"INSERT INTO into_{name} SELECT * FROM {rows}")
        stage.spark.sql("CREATE " + view.format(f"from_{name}", place, ""))
        found = stage.spark.sql(f"SELECT * FROM from_{name}")
        claims.append(stage.one(stage.as_updates(found, last), None, last))
    return claims


def format_write(stage: Stage) -> list[IdempotencyKey]:
    c = stage.create("written")
    for number, (_, _, rows) in enumerate(stage.pieces("updates")):
        for _ in range(2):  # the second time its token is in
            rows.write.format("tidelake").mode("append").option("token", f"piece {number}").save(
                stage.place(c)
            )
    return stage.contents(c)


def helper_upsert(stage: Stage, name: str = "upserted") -> list[IdempotencyKey]:
    """The events of many versions in each commit, at their own times."""
    c = stage.create(name)
    for _, _, rows in stage.pieces("events"):
        ts.upsert(c, rows, delete_column="deleted")
    return stage.contents(c)


def helper_replace(stage: Stage) -> list[IdempotencyKey]:
    """A full dump at each of several versions."""
    c = stage.create("replaced")
    for time in stage.times:
        ts.replace(c, ts.snapshot(stage.spark, stage.appended, time).drop("_time"), time=time)
    return stage.contents(c)


def format_upsert(stage: Stage) -> list[IdempotencyKey]:
    c = stage.create("upserted-format")
    options = {"envelope": "upsert", "deleteColumn": "deleted"}
    for _, _, rows in stage.pieces("events"):
        rows.write.format("tidelake").mode("append").options(**options).save(stage.place(c))
    return stage.contents(c)


def helper_backfill(stage: Stage) -> list[IdempotencyKey]:
    c = stage.create("backfilled")
    ts.backfill(c, stage.frame("updates"), ranges=3)
    return stage.contents(c)


def helper_export(stage: Stage) -> list[IdempotencyKey]:
    last, place = stage.versions - 1, str(stage.work / "exported")
    ts.export(stage.spark, stage.appended, place, as_of=last)
    return [stage.one(stage.as_updates(stage.spark.read.parquet(place), last), None, last)]


def started(stream: Any) -> Any:
    """The query: Spark waits ten seconds for the process of `foreachBatch`, a busy machine may need more."""
    from pyspark.errors import PySparkException

    for tries_left in (2, 1, 0):
        try:
            return stream.start()
        except PySparkException as error:
            if not tries_left or "failed to connect back" not in str(error):
                raise
    raise AssertionError("the last try returns or raises")


def stream_upsert(stage: Stage, name: str = "upserted-stream") -> list[IdempotencyKey]:
    c = stage.create(name)
    query = name if remote(stage.spark) else None
    take = ts.sink(c, "upsert", delete_column="deleted", query=query)
    stream = stage.arriving("events").writeStream.foreachBatch(take).trigger(availableNow=True)
    started(stream.option("checkpointLocation", stage.checkpoint(name))).awaitTermination()
    return stage.contents(c)


def stream_read(stage: Stage) -> list[IdempotencyKey]:
    """Every update, from the first time on, into Parquet files."""
    source = stage.source("appended", startingAt="[0]", withDiff="true", **stage.in_steps)
    return stage.steps(stage.streamed(source, "tailed"))


def stream_read_again(stage: Stage) -> list[IdempotencyKey]:
    """By a query that is started again after each append."""
    c = stage.create("growing")
    for lower, upper, rows in stage.pieces("updates"):
        ts.append(c, rows, lower=lower, upper=upper)
        source = stage.spark.readStream.format("tidelake").options(startingAt="[0]", withDiff="true")
        found = stage.streamed(source.load(stage.place(c)), "grown")
    return stage.steps(found)


def stream_read_in_steps(stage: Stage) -> list[IdempotencyKey]:
    """With a limit of a micro-batch."""
    source = stage.source("appended", startingAt="[0]", withDiff="true", maxTimesPerTrigger=stage.few)
    return stage.steps(stage.streamed(source, "limited"))


def stream_read_snapshot(stage: Stage) -> list[IdempotencyKey]:
    """The snapshot first; nothing comes after it here."""
    source = stage.source("appended", startingAt="snapshot", withDiff="true")
    return [stage.one(stage.streamed(source, "begun"), None, stage.versions - 1)]


def stream_write(stage: Stage) -> list[IdempotencyKey]:
    c = stage.create("streamed")
    stream = stage.arriving("updates").writeStream.format("tidelake").trigger(availableNow=True)
    stream.option("checkpointLocation", stage.checkpoint("streamed")).start(stage.place(c)).awaitTermination()
    return stage.contents(c)


def stream_sink(stage: Stage, name: str = "sunk") -> list[IdempotencyKey]:
    """By `foreachBatch`; under Connect the caller must say which query it is."""
    c = stage.create(name)
    query = name if remote(stage.spark) else None
    stream = stage.arriving("updates").writeStream.foreachBatch(ts.sink(c, "updates", query=query))
    stream = stream.option("checkpointLocation", stage.checkpoint(name)).trigger(availableNow=True)
    started(stream).awaitTermination()
    return stage.contents(c)


def stream_through(stage: Stage) -> list[IdempotencyKey]:
    """From one collection into another."""
    c = stage.create("copied")
    source = stage.source("appended", startingAt="[0]", withDiff="true", **stage.in_steps)
    stream = source.writeStream.format("tidelake").trigger(availableNow=True)
    stream.option("checkpointLocation", stage.checkpoint("copied")).start(stage.place(c)).awaitTermination()
    return stage.contents(c)


def few_rows(path: Callable[[Stage, str], list[IdempotencyKey]], name: str) -> Path_:
    """A path whose rows may come to the driver, where Spark takes them for few."""

    def taken(stage: Stage) -> list[IdempotencyKey]:
        stage.spark.conf.unset(BYTES_MAX)
        try:
            return path(stage, name)
        finally:
            stage.spark.conf.set(BYTES_MAX, "0")

    return taken


PATHS: dict[str, Path_] = {
    "helper append": helper_append,
    "helper snapshot": helper_snapshot,
    "helper changes": helper_changes,
    "helper updates": helper_updates,
    "helper merge": helper_merge,
    "ingest": ingest,
    "format snapshot": format_snapshot,
    "format changes": format_changes,
    "format updates": format_updates,
    "format change feed": format_change_feed,
    "format SQL": format_sql,
    "format write": format_write,
    "helper upsert": helper_upsert,
    "helper replace": helper_replace,
    "helper backfill": helper_backfill,
    "helper export": helper_export,
    "format upsert": format_upsert,
    "stream upsert": stream_upsert,
    "stream read": stream_read,
    "stream read, started again": stream_read_again,
    "stream read in steps": stream_read_in_steps,
    "stream read from a snapshot": stream_read_snapshot,
    "stream write": stream_write,
    "stream sink": stream_sink,
    "helper upsert of few rows": few_rows(helper_upsert, "upserted-few"),
    "stream upsert of few rows": few_rows(stream_upsert, "upserted-stream-few"),
    "stream sink of few rows": few_rows(stream_sink, "sunk-few"),
    "stream from collection to collection": stream_through,
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


def about_workers(spark: Any, machines: str | None = None) -> dict[str, Any]:
    """Which packages of the driver the tasks of a job could import, and how many run at once.

    With `machines` also what tasks see in the folder of all machines.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    def look(_task: bytes) -> Iterator[pa.RecordBatch]:
        import importlib.util
        import os

        there = [name for name in ("pandas", "grpc", "pytest") if importlib.util.find_spec(name)]
        sees = [] if machines is None else sorted(os.listdir(machines))
        yield pa.RecordBatch.from_pylist([{"packages": ",".join(there), "sees": ",".join(sees)}])

    schema = StructType([StructField("packages", StringType()), StructField("sees", StringType())])
    rows = run_tasks(spark, [b""] * 8, look, schema).collect()
    told: dict[str, Any] = {"packages": sorted({row.packages for row in rows}), "slots": slots(spark)}
    return told if machines is None else told | {"see": sorted({row.sees for row in rows})}


def main(
    engine: str,
    master: str,
    data: str,
    work: str,
    conf: dict[str, str],
    looks: int,
    paths: list[str],
    lake: str = "",
) -> None:
    spark = session(engine, master, conf)
    # The work of tasks is what is looked at, and these are few rows.
    spark.conf.set(BYTES_MAX, "0")
    stage = Stage(spark, Path(data), Path(work), looks, lake or f"{work}/lake", bool(lake))
    found: dict[str, Any] = {"workers": about_workers(spark, str(stage.data.parent) if stage.apart else None)}
    for name in paths:
        started = monotonic()
        try:
            found[name] = PATHS[name](stage)
        except Exception as error:
            traceback.print_exc()
            found[name] = f"{type(error).__name__}: {error}"[:2000]
        print(f"{name}: {monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    ts.release()
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))

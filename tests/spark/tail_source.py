"""Random histories, a stream of one, what that is to give, and its sink."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.spark import register

NAME = "größe \U0001f30a'\"`"
SCHEMA = pa.schema([pa.field("ключ", pa.int64(), nullable=False), ("v ü", pa.string())])
LOCAL_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

# Spark forgets offsets of all but the last 100 batches otherwise, and a quick machine does more in one test.
RETAINED = 1_000_000


def stream(spark, url, **options):
    """A streaming DataFrame of the collection; its rows have `_time` and `_diff`."""
    register(spark)
    reader = spark.readStream.format("tidelake").option("collection", NAME)
    for name, value in {"withDiff": True, **options}.items():
        reader = reader.option(name, value)
    return reader.load(str(url))


def to_parquet(frame, root, trigger):
    """A query of a frame into an exactly-once sink of files; its checkpoint is beside."""
    # On a local disk; half of the time of a small batch is Spark's own bookkeeping otherwise.
    frame.sparkSession.conf.set("spark.sql.streaming.checkpointFileManagerClass", LOCAL_FILES)
    frame.sparkSession.conf.set("spark.sql.streaming.minBatchesToRetain", RETAINED)
    writer = frame.writeStream.format("parquet").option("path", str(root / "out"))
    return writer.option("checkpointLocation", str(root / "checkpoint")).trigger(**trigger).start()


def run(frame, root, **trigger):
    """All that is there now; how many rows each batch had."""
    query = to_parquet(frame, root, trigger or {"availableNow": True})
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def random_updates(rng, lower, upper, count):
    """Updates of `[lower, upper)` that often meet."""
    times = [rng.randrange(lower, upper) for _ in range(count)]
    return pa.table(
        {
            "ключ": pa.array([rng.randrange(12) for _ in times], pa.int64()),
            "v ü": pa.array([rng.choice(["x", "\U0001f30a", "", None]) for _ in times], pa.string()),
            "_time": pa.array(times, pa.int64()),
            "_diff": pa.array([rng.choice([-1, 1, 1, 2]) for _ in times], pa.int64()),
        }
    )


def expected(history, snapshot_time, lower, upper):
    """Rows of a stream, once each: of a snapshot (None: there is none), and of all updates of an interval."""
    net = Counter()
    for row in pa.concat_tables(history).to_pylist():
        key, time = (row["ключ"], row["v ü"]), row["_time"]
        if snapshot_time is not None and time <= snapshot_time:
            net[*key, snapshot_time] += row["_diff"]
        elif lower <= time < upper:
            net[*key, time] += row["_diff"]
    return Counter((*row, diff) for row, diff in net.items() if diff)


def sink(root):
    """The rows of the sink that count for Spark, with the times each one appears."""
    log, found = root / "out" / "_spark_metadata", Counter()
    entries = {path.name: path for path in log.glob("[0-9]*")} if log.exists() else {}
    compacted = max((int(name.split(".")[0]) for name in entries if name.endswith(".compact")), default=-1)
    for name, path in entries.items():
        number = int(name.split(".")[0])
        if number > compacted or (number == compacted and name.endswith(".compact")):
            for line in path.read_text().splitlines()[1:]:
                table = pq.ParquetFile(root / "out" / json.loads(line)["path"].rsplit("/", 1)[1]).read()
                found.update(tuple(row.values()) for row in table.to_pylist())
    return found


def offsets(root):
    """Ends of the batches that the checkpoint knows, in order."""
    files = sorted((root / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1]) for path in files]

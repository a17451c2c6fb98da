"""Spark writes collections that are in a group as if they were alone, exactly once."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import stream_source

import tidelake
import tidelake.spark as ts
from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier

pytestmark = pytest.mark.full

TIMED = "id bigint, v string, _time bigint"
F = Frontier.of


@pytest.fixture
def lake(tmp_path: Path) -> Any:
    opened = tidelake.open(tmp_path / "lake")
    for name in ("c", "d"):
        opened.create(name, stream_source.SCHEMA, key=["id"])
    opened.seal({"c": 0, "d": 0})
    return opened


def contents(c: Any) -> list[Any]:
    rows = c.snapshot().read_all().to_pylist()
    return sorted((row["id"], row["v"], row["_diff"]) for row in rows)


def test_frames_are_written_to_a_collection_of_a_group(spark: Any, lake: Any) -> None:
    """By every way of a batch write, each with a token, twice."""
    c = lake.collection("c")
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, v string")
    for _ in range(2):
        ts.write(c, frame, token="one")
        ts.write(c, spark.createDataFrame([(1, "x")], frame.schema), "upsert", token="two")
        path = {"path": f"{c.distributed.lake_url}/c", "token": "three"}
        more = spark.createDataFrame([(3, "c")], frame.schema)
        more.write.format("tidelake").mode("append").options(**path).save()
    assert contents(c) == [(1, "x", 1), (2, "b", 1), (3, "c", 1)]
    assert c.upper == F(3) and lake.collection("d").upper == F(0)
    assert {"token:one", "token:two"} <= c.writers().keys()
    assert lake.fsck().clean


def test_many_jobs_stage_into_several_tables_that_are_sealed_at_one_instant(spark: Any, lake: Any) -> None:
    for name, key in (("c", 1), ("d", 2)):
        for token in ("day", "day", "night"):
            frame = spark.createDataFrame([(key, token, 3), (key, token, 9)], TIMED)
            ts.stage(lake.collection(name), frame, token=token)
    assert lake.seal({"c": 5, "d": 5}).uppers == {"c": F(5), "d": F(5)}
    assert contents(lake.collection("c")) == [(1, "day", 1), (1, "night", 1)]
    assert contents(lake.collection("d")) == [(2, "day", 1), (2, "night", 1)]


@pytest.mark.parametrize("delay", [None, 2])
def test_micro_batches_come_in_once(spark: Any, lake: Any, tmp_path: Path, delay: int | None) -> None:
    """Also one that is repeated by a query that does not know how far another run of it has come."""
    c = lake.collection("c")
    schema = TIMED if delay is not None else "id bigint, v string"
    rows = [(1, "a", 4), (2, "b", 9)] if delay is not None else [(1, "a"), (2, "b")]
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / "in"))
    options = {} if delay is None else {"delay": delay}
    for _ in range(2):
        stream = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
        made = ts.sink(c, "updates", query="q", **options)
        query = stream.writeStream.foreachBatch(made).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / f"check{_}")).start().awaitTermination()
        assert made.error is None
    c.seal(20)
    assert contents(c) == [(1, "a", 1), (2, "b", 1)]
    other = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    with pytest.raises(UsageError, match="belongs to"):
        ts.sink(c, "updates", query="another")(other, 0)

"""Writes through the format `tidelake`: which options lead where; `test_sink.py` tests what a write does."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from stream_source import SCHEMA, lines, put

import inside

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException

import tidelake
from tidelake.spark.reading.holds import application
from tidelake.testing import tables


@pytest.fixture
def c(tmp_path: Path) -> tidelake.Collection:
    return tidelake.open(tmp_path / "lä ke").create("größe", SCHEMA, key=["id"])


def path_of(c: tidelake.Collection) -> str:
    return f"{inside.shard(c).spec.url}/{c.name}"


def written(c: tidelake.Collection) -> dict[Any, int]:
    return dict(tables.by_time(c.updates(0, c.upper).read_all(), c.domain))


@pytest.mark.full
def test_frames_are_written_once_per_token_and_read_back(spark: Any, c: tidelake.Collection) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, None)], "id bigint, v string")
    for token in ("monday", "monday", "tuesday"):
        frame.write.format("tidelake").mode("append").option("token", token).save(path_of(c))
    assert written(c) == {((1, "a"), 0): 1, ((2, None), 0): 1, ((1, "a"), 1): 1, ((2, None), 1): 1}
    read = spark.read.format("tidelake").load(path_of(c))
    assert sorted(r.id for r in read.collect()) == [1, 1, 2, 2]
    changes = spark.read.format("tidelake").option("after", 0).load(path_of(c)).drop("_time")
    changes = changes.selectExpr("id", "v", "5L AS at")
    changes.write.format("tidelake").mode("append").options(time="at", envelope="updates").save(path_of(c))
    assert [time for (_, time), _ in written(c).items()].count(5) == 2


@pytest.mark.full
def test_options_that_a_write_does_not_take_are_refused(spark: Any, c: tidelake.Collection) -> None:
    frame = spark.createDataFrame([(1, "a")], "id bigint, v string")
    for options, reason in (
        ({"asOf": "3"}, "option 'asof' is one of batch reads, not of writes"),
        ({"tokn": "3"}, "unknown option 'tokn': did you mean token"),
        ({"writer": "w"}, "options writer and takeOver are of streams"),
        ({"takeOver": "maybe"}, "takeOver='maybe' is neither true nor false"),
        ({"orderBy": "v"}, "'updates' takes no orderBy"),
    ):
        with pytest.raises(AnalysisException, match=reason):
            frame.write.format("tidelake").mode("append").options(**options).save(path_of(c))
    assert written(c) == {}


@pytest.mark.full
def test_commits_have_the_author_and_message_of_the_options_or_the_application(
    spark: Any, c: tidelake.Collection, tmp_path: Path
) -> None:
    def last() -> tuple[str, str]:
        return c.commits(1)[0].author, c.commits(1)[0].message

    frame = spark.createDataFrame([(1, "a")], "id bigint, v string")
    options = {"author": "ann", "message": "prices", "envelope": "upsert"}
    frame.write.format("tidelake").mode("append").options(**options).save(path_of(c))
    assert last() == ("ann", "prices")
    frame.write.format("tidelake").mode("append").save(path_of(c))
    assert last() == (application(), "")
    with pytest.raises(AnalysisException, match="author has more than 255 bytes"):
        frame.write.format("tidelake").mode("append").option("author", "x" * 256).save(path_of(c))
    (tmp_path / "in").mkdir()
    put(tmp_path / "in", 1, [{"id": 2, "v": "b"}])
    query = (
        lines(spark, tmp_path / "in")
        .writeStream.format("tidelake")
        .options(message="stream", checkpointLocation=str(tmp_path / "at"))
        .trigger(availableNow=True)
        .start(path_of(c))
    )
    query.awaitTermination()
    assert last() == (application(), "stream")


@pytest.mark.full
def test_views_are_inserted_into_and_read_again(spark: Any, c: tidelake.Collection) -> None:
    path = unquote(urlsplit(path_of(c)).path)
    spark.sql(f"CREATE OR REPLACE TEMP VIEW both_ways USING tidelake OPTIONS (path '{path}', holdFor 'none')")
    spark.sql("INSERT INTO both_ways VALUES (1, 'a'), (2, 'b')")
    assert spark.sql("SELECT max(v) FROM both_ways").first()[0] == "b"
    options = f"path '{path}', withDiff 'true', envelope 'updates', late 'advance'"
    spark.sql(f"CREATE OR REPLACE TEMP VIEW inserted USING tidelake OPTIONS ({options})")
    spark.sql("INSERT INTO inserted VALUES (1, 'a', 0L, -1L)")
    assert [row["id"] for row in c.snapshot().read_all().to_pylist()] == [2]
    with pytest.raises(AnalysisException, match="option 'envelope' is one of writes, not of batch reads"):
        spark.table("inserted").collect()
    for view in ("both_ways", "inserted"):
        spark.catalog.dropTempView(view)


@pytest.mark.full
def test_streams_are_written_exactly_once(spark: Any, c: tidelake.Collection, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()

    def run(number: int, **options: Any) -> None:
        put(folder, number, [{"id": number, "v": "x"}])
        query = (
            lines(spark, folder)
            .writeStream.format("tidelake")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .options(**options)
            .trigger(availableNow=True)
            .start(path_of(c))
        )
        query.awaitTermination()

    run(0)
    run(1)
    assert {row for row, _ in written(c)} == {(0, "x"), (1, "x")} and set(written(c).values()) == {1}
    # One log write a micro-batch: the writer is not opened again.
    assert c.state().writers["spark"].epoch == 0
    with pytest.raises(Exception, match="option token is of batch writes"):
        run(2, token="t")
    with pytest.raises(Exception, match="option 'asof' is one of batch reads, not of writes"):
        run(3, asOf="1")
    assert len(written(c)) == 2

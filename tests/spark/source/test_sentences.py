"""Errors of the format: one sentence, with the names of options."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake import spark as ts
from tidelake.errors import NotYetClosed, UsageError
from tidelake.spark.source.sentences import told

pytestmark = pytest.mark.full


@told
def refusing(error: Exception) -> None:
    raise error


@told
def lazily(error: Exception) -> Any:
    yield 1
    raise error


def test_arguments_are_called_as_options_but_not_in_quotes() -> None:
    for function in (refusing, lambda error: list(lazily(error))):
        with pytest.raises(UsageError, match=r"^orderBy=3 needs oldRows; column 'as_of' is x.as_of$"):
            function(UsageError("order_by=3 needs old_rows; column 'as_of' is x.as_of"))
        with pytest.raises(NotYetClosed, match=r"wait for it \(option timeout\)"):
            function(NotYetClosed(9, 3, 0.0))
    assert "(timeout_s)" in str(NotYetClosed(9, 3, 0.0))


@pytest.mark.promise(
    "An error of the format, in a read, a write or a stream, is one sentence with the names of its "
    "options (from Spark 4.3 on)",
    rule="`spark/source/sentences.py`",
    also=["::test_arguments_are_called_as_options_but_not_in_quotes"],
)
def test_errors_of_reads_writes_and_streams_are_one_sentence(spark: Any, tmp_path: Path) -> None:
    ts.register(spark)
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", {"id": "int64"}, key=["id"])
        c.append(c.schema.empty_table())
        place, number = f"{tmp_path}/lake/c", iter(range(9))
        wrong = spark.createDataFrame([("x",)], "id string")
        wrong.write.parquet(f"{tmp_path}/wrong")

        def streamed(writer: Any, to: str | None = None) -> None:
            writer = writer.option("checkpointLocation", f"{tmp_path}/at{next(number)}")
            query = writer.trigger(availableNow=True).start(to)
            try:
                query.awaitTermination(60)
            finally:
                query.stop()

        read = spark.read.format("tidelake")
        follow, files = spark.readStream.format("tidelake"), spark.readStream.schema(wrong.schema)
        files = files.parquet(f"{tmp_path}/wrong").writeStream
        unfit = "column 'id' is string"
        for call, sentence in (
            (
                lambda: read.options(asOf=9, timeout=0).load(place).collect(),
                r"wait for it \(option timeout\)",
            ),
            (lambda: wrong.write.format("tidelake").mode("append").save(place), unfit),
            (
                lambda: streamed(follow.option("startingAt", "x").load(place).writeStream.format("noop")),
                "startingAt",
            ),
            (lambda: streamed(files.format("tidelake"), place), unfit),
        ):
            with pytest.raises(Exception, match=sentence) as raised:
                call()
            lines = str(raised.value).splitlines()
            assert "tidelake.errors." in lines[0] and "Traceback" not in str(raised.value)
        with pytest.raises(Exception, match=unfit) as raised:
            streamed(files.foreachBatch(ts.sink(c)))
        # Of the sink no frame but the one that Spark calls.
        assert str(raised.value).count("tidelake/spark") == 1

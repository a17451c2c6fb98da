"""Messages of Avro and Protobuf become events in a stream of Spark."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")

import tidelake
from tests.cdc.wire.test_decoder import ENVELOPE, EVENTS, FLAT, SCHEMA, avro
from tidelake import spark as ts
from tidelake.errors import InvalidUpdates

pytestmark = pytest.mark.spark


@pytest.fixture
def items(tmp_path: Path) -> Any:
    with tidelake.open(tmp_path / "lake") as lake:
        yield lake.create("items", SCHEMA, key=["id"])


def test_messages_of_avro_are_taken_in_by_a_stream(spark: Any, items: Any, tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(ENVELOPE))
    frame = spark.createDataFrame(
        [(avro(one), i) for i, one in enumerate(EVENTS)], "value binary, offset long"
    )
    frame.write.parquet(str(tmp_path / "topic"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "topic"))
    events = ts.decode_events(stream, tmp_path)
    assert events.columns == ["value", "offset"]
    to = ts.sink(items, envelope="debezium", time="source.lsn")
    query = events.writeStream.foreachBatch(to).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert to.error is None
    found = items.updates(0, items.upper).read_all().to_pylist()
    assert [
        (row["kind"], row["_time"], row["_diff"])
        for row in sorted(found, key=lambda r: (r["_time"], r["_diff"]))
    ] == [
        *(("b", 5, 1), ("b", 6, -1), (None, 6, 1), (None, 7, -1)),
    ]


def test_flattened_events_are_written_and_a_bad_one_is_refused(spark: Any, items: Any) -> None:
    whole = dict.fromkeys(SCHEMA.names)
    texts = [(json.dumps(whole | one),) for one in FLAT[:2]]
    frame = spark.createDataFrame(texts, "value string")
    ts.write(items, ts.decode_events(frame, flattened=True), "debezium", time="source.lsn", old_rows="stored")
    (row,) = items.snapshot().read_all().to_pylist()
    assert (row["id"], row["kind"]) == (1, "b")
    bad = ts.decode_events(spark.createDataFrame([('{"id": 1}',)], "value string"), flattened=True)
    with pytest.raises(InvalidUpdates, match=r"add\.fields=op"):
        ts.write(items, bad, "debezium", time="source.lsn", old_rows="stored")
    with pytest.raises(InvalidUpdates, match="a column 'value'"):
        ts.decode_events(frame.withColumnRenamed("value", "text"), flattened=True)


def test_messages_of_protobuf_are_taken_in_like_those_of_avro(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    from tests.cdc.wire import test_protobuf as proto

    made = proto.file()
    of = proto.classes(made)["Envelope"]
    messages = [None if one is None else proto.wire(proto.put(of(), one)) for one in proto.EVENTS]
    frame = spark.createDataFrame([(one,) for one in messages], "value binary")
    events = ts.decode_events(frame, proto.saved(tmp_path, made))
    with tidelake.open(tmp_path / "lake") as lake:
        histories = []
        for name, given in (("a", events), ("b", None)):
            to = lake.create(name, proto.SCHEMA, key=["id"])
            if given is None:
                lake.ingest([*map(proto.as_json, proto.EVENTS)], to, time="source.lsn")
            else:
                ts.write(to, given, "debezium", time="source.lsn")
            rows = to.updates(0, to.upper).read_all()
            histories.append(
                rows.sort_by([("_time", "ascending"), ("id", "ascending"), ("_diff", "ascending")])
            )
        assert histories[0].equals(histories[1]) and histories[0].num_rows == 9

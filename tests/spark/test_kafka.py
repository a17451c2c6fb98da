"""Topics of a real Kafka broker, read by Spark, into collections: each message once, at its time."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import tidelake
from tests.spark.kafka_broker import Topics
from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.spark import sink, tables_sink
from tidelake.testing import tables

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
ROW = {
    "type": "struct",
    "optional": True,
    "fields": [{"type": "int64", "field": "id"}, {"type": "string", "optional": True, "field": "v"}],
}
ENVELOPE = {
    "type": "struct",
    "fields": [{**ROW, "field": "before"}, {**ROW, "field": "after"}, {"type": "string", "field": "op"}],
}


@pytest.fixture
def topics(spark: Any, kafka_server: Any) -> Iterator[Topics]:
    found = Topics(spark, kafka_server)
    yield found
    found.close()


class Feed:
    """A table whose changes go to a topic, and the collection that follows it."""

    def __init__(self, root: Path, topics: Topics, name: str, partitions: int = 1) -> None:
        self.root, self.topics, self.name, self.partitions = root, topics, name, partitions
        self.c = tidelake.open(root / "lake").create("c", SCHEMA, key=["id"])
        self.contents: dict[int, str | None] = {}
        self.states: dict[int, dict[int, str | None]] = {}
        self.schema = False
        self.key_only = False
        topics.make(name, partitions)

    def change(
        self, time: int, id_: int, value: str | None, partition: int | None = None, stamp_s: int = 0
    ) -> None:
        """Set a row, or delete it (`None`), at a time."""
        old = self.contents.pop(id_, None)
        if value is not None:
            self.contents[id_] = value
        self.states[time] = dict(self.contents)
        if value is None and old is None:
            return
        op = "d" if value is None else "u" if old is not None else "c"
        before = None if old is None else {"id": id_} if self.key_only else {"id": id_, "v": old}
        after = None if value is None else {"id": id_, "v": value}
        if self.key_only and op == "d":
            before = None
        event = {"before": before, "after": after, "op": op, "source": {"lsn": time}, "ts_ms": 1}
        where = id_ % self.partitions if partition is None else partition
        key: object = {"id": id_}
        if self.schema:
            event = {"schema": ENVELOPE, "payload": event}
            key = {"schema": {"type": "struct", "fields": ROW["fields"][:1]}, "payload": key}
        self.send(event, where, key, stamp_s)
        if op == "d":
            self.send(None, where, key, stamp_s)

    def mark(self, time: int, partition: int, stamp_s: int = 0) -> None:
        """A message of the source's log, which changes nothing."""
        self.send({"op": "m", "source": {"lsn": time}, "ts_ms": 1}, partition, None, stamp_s)

    def send(self, event: object, partition: int, key: object, stamp_s: int) -> None:
        value = None if event is None else json.dumps(event).encode()
        text = None if key is None else json.dumps(key).encode()
        stamp_ms = 1_700_000_000_000 + stamp_s * 1000
        self.topics.send(self.name, value, text, partition, stamp_ms, {"from": b"here"})

    def run(self, source: dict[str, Any] | None = None, **options: Any) -> None:
        """Take what is there."""
        self.topics.flush()
        frame = self.topics.stream(self.name, includeHeaders="true", **(source or {}))
        self.write(frame, sink(self.c, "debezium", **{"time": "source.lsn", **options}))

    def write(self, frame: Any, to: Any) -> None:
        stream = frame.writeStream.foreachBatch(to).trigger(availableNow=True)
        query = stream.option("checkpointLocation", str(self.root / "checkpoint")).start()
        try:
            query.awaitTermination()
        except StreamingQueryException:
            if to.error is None:
                raise
            raise to.error from None

    def check(self, upto: int) -> None:
        """The contents at every closed time are those of the table."""
        assert self.c.upper == Frontier.of(upto)
        last: dict[int, str | None] = {}
        for time in range(upto):
            last = self.states.get(time, last)
            rows = self.c.snapshot(time).read_all().to_pylist()
            assert Counter({(r["id"], r["v"]): r["_diff"] for r in rows}) == Counter(last.items()), time


@pytest.mark.parametrize("old_rows", ["events", "stored"])
@pytest.mark.parametrize("schema", [False, True])
def test_messages_of_a_topic_become_the_history(
    tmp_path: Path, topics: Topics, old_rows: Any, schema: bool
) -> None:
    feed = Feed(tmp_path, topics, f"history-{old_rows}-{schema}")
    feed.schema, feed.key_only = schema, old_rows == "stored"
    for time, id_, value in [(0, 1, "a"), (1, 2, "b"), (2, 1, "c"), (2, 3, "ü"), (4, 2, None)]:
        feed.change(time, id_, value)
    feed.run(old_rows=old_rows)
    feed.check(5)
    feed.change(6, 1, None)
    feed.mark(8, 0)
    feed.run(old_rows=old_rows)
    feed.run(old_rows=old_rows)
    feed.check(9)


def test_rows_of_other_envelopes_come_from_topics(tmp_path: Path, topics: Topics) -> None:
    feed = Feed(tmp_path, topics, "rows", 2)
    for time in range(6):
        topics.send("rows", json.dumps({"id": time % 2, "v": f"{time}", "at": time}).encode(), None, time % 2)
    topics.flush()
    value = f.from_json(f.col("value").cast("string"), "id bigint, v string, at bigint")
    frame = topics.stream("rows", maxOffsetsPerTrigger=2).select(value.alias("row")).select("row.*")
    for _ in range(2):
        feed.write(frame, sink(feed.c, "upsert", time="at"))
    history = Counter(tables.by_time(feed.c.updates(0, 6).read_all(), feed.c.domain))
    assert history[((0, "4"), 4)] == 1 and history[((0, "4"), 5)] == 0
    assert {row["v"] for row in feed.c.snapshot(5).read_all().to_pylist()} == {"4", "5"}


def test_transactions_of_several_partitions_are_refused(tmp_path: Path, topics: Topics) -> None:
    feed = Feed(tmp_path, topics, "transactions", 2)
    source = {"connector": "postgresql", "lsn": 7, "sequence": '["5", "6"]', "snapshot": "false"}
    for partition in range(2):
        event = {"before": None, "after": {"id": partition, "v": "a"}, "op": "c", "source": source}
        feed.send(event, partition, None, 0)
    with pytest.raises(UsageError, match="'transactions', partition 1"):
        feed.run(time=None)
    assert feed.c.upper == Frontier.of(0)
    to = tables_sink(tidelake.open(tmp_path / "lake"), "tables", keys=["id"])
    with pytest.raises(UsageError, match="'transactions', partition 1"):
        feed.write(topics.stream("transactions"), to)


def test_transactions_of_another_topic_are_refused_in_a_later_micro_batch(
    tmp_path: Path, topics: Topics
) -> None:
    lake = tidelake.open(tmp_path / "lake")
    feed = Feed(tmp_path / "one", topics, "one-of-two")
    topics.make("other-of-two")
    sinks = [sink(feed.c, "debezium"), tables_sink(lake, "tables", names={"public.t": "t"})]
    lake.create("t", SCHEMA, key=["id"])
    for sent in ([("one-of-two", 5), ("one-of-two", 9)], [("other-of-two", 7)]):
        for topic, time in sent:
            source = {"connector": "postgresql", "lsn": time, "sequence": f'["{time}", "{time}"]'}
            source |= {"snapshot": "false", "schema": "public", "table": "t"}
            event = {"before": None, "after": {"id": time, "v": "a"}, "op": "c", "source": source}
            topics.send(topic, json.dumps(event).encode())
        topics.flush()
        refused = pytest.raises(UsageError, match="topic 'other-of-two', and before it 'one-of-two'")
        for number, to in enumerate(sinks):
            feed.root = tmp_path / str(number)
            with refused if len(sent) == 1 else nullcontext():
                feed.write(topics.stream("one-of-two,other-of-two"), to)
    for collection in (feed.c, lake["t"]):
        assert collection.upper == Frontier.of(9)
        assert [row["id"] for row in collection.snapshot().read_all().to_pylist()] == [5]

"""Topics of a real Kafka broker, read by Spark, into collections: each message once, at its time."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f

import tidelake
from tests.spark.kafka_broker import Topics
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


class Transactions(Feed):
    """A table of PostgreSQL whose changes go to a topic with several partitions, in whole transactions."""

    def commit(self, time: int, rows: dict[int, str | None]) -> None:
        """Set or delete rows in a transaction that commits at this position."""
        for number, (id_, value) in enumerate(rows.items()):
            source = {"connector": "postgresql", "schema": "public", "table": "t", "snapshot": "false"}
            source |= {"sequence": json.dumps([str(self.last), "0"]), "lsn": self.last + number + 1}
            old = self.contents.pop(id_, None)
            before = None if old is None else {"id": id_, "v": old}
            after = None if value is None else {"id": id_, "v": value}
            op = "d" if after is None else "c" if before is None else "u"
            event = {"before": before, "after": after, "op": op, "source": source}
            self.send(event, id_ % self.partitions, {"id": id_}, time)
            if value is not None:
                self.contents[id_] = value
        self.last = time
        self.states[time - 1] = dict(self.contents)

    def pass_all(self) -> None:
        """Let each partition pass the last commit."""
        source = {"connector": "postgresql", "sequence": json.dumps([str(self.last), "0"]), "lsn": self.last}
        for partition in range(self.partitions):
            self.send({"op": "m", "source": source}, partition, None, self.last)

    last = 0


def test_transactions_in_several_partitions_are_whole_and_once(tmp_path: Path, topics: Topics) -> None:
    feed = Transactions(tmp_path, topics, "spread", 3)
    other = tidelake.open(tmp_path / "lake")
    other.create("t", SCHEMA, key=["id"])
    feed.commit(10, {0: "a", 1: "b", 2: "c"})
    feed.commit(20, {0: "d", 3: "e"})
    feed.commit(30, {1: None, 2: "f", 4: "g"})
    seen: list[Any] = []
    sinks = [
        sink(feed.c, "debezium", progress=seen.append),
        tables_sink(other, "tables", names={"public.t": "t"}, progress=seen.append),
    ]

    def run(**source: Any) -> None:
        topics.flush()
        for number, to in enumerate(sinks):
            feed.root = tmp_path / f"{number}{checkpoint}"
            feed.write(topics.stream("spread", **source), to)

    checkpoint = ""
    run(maxOffsetsPerTrigger=3)
    # Partition 0 has not passed the second commit, so from that transaction on all is held back.
    feed.check(10)
    assert other["t"].upper == Frontier.of(10) and seen[-1].held > 0
    feed.pass_all()
    run(maxOffsetsPerTrigger=3)
    feed.check(30)
    # A new checkpoint begins at the first messages again: nothing is doubled.
    checkpoint, seen = "-again", []
    sinks = [
        sink(feed.c, "debezium", progress=seen.append, take_over=True),
        tables_sink(other, "tables", names={"public.t": "t"}, progress=seen.append, take_over=True),
    ]
    feed.commit(40, {0: None, 1: "h", 2: "i"})
    feed.pass_all()
    run()
    assert [one.repeated for one in seen] == [11, 11]
    feed.check(40)
    for time in (10, 20, 30, 39):
        rows = [table.snapshot(time).read_all().to_pylist() for table in (feed.c, other["t"])]
        told = [sorted((row["id"], row["v"]) for row in one) for one in rows]
        assert told[0] == told[1] and len(told[0]) > 1


def test_a_quiet_topic_is_passed_after_the_bound(tmp_path: Path, topics: Topics) -> None:
    feed = Transactions(tmp_path, topics, "busy", 2)
    topics.make("quiet", 2)
    topics.make("heartbeat")
    feed.commit(10, {0: "a", 1: "b"})
    feed.commit(20, {0: "c", 1: "d"})
    for upto, idle in ((0, None), (20, "30s")):
        for stamp_s in (100, 200):
            topics.send("heartbeat", b'{"ts_ms":1}', None, 0, 1_700_000_000_000 + stamp_s * 1000)
        topics.flush()
        feed.root = tmp_path / "checkpoint"
        options = {} if idle is None else {"idle": idle}
        feed.write(topics.stream("busy,quiet,heartbeat"), sink(feed.c, "debezium", **options))
        assert feed.c.upper == Frontier.of(10 if upto else 0)

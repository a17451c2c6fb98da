"""Transactions whose events lie in several topics and partitions, against a replay by transaction.

A micro-batch takes any number of messages of each partition, as Kafka's source does. Drivers die after a
commit, new checkpoints begin at earlier offsets, and connectors send again what they had sent last.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from feed import Feed, connect, contents, told

import tidelake
from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.cdc.times.partitions import PARTITIONS_MAX
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.reading import AS_TEXT, PLACES
from tidelake.feeds.tablelines import FewLines
from tidelake.spark import tables_sink
from tiers import rounds

IDLE_MS = 1000
COUNT = 12
ENDS, HEARTBEATS = TopicPartition("d.transaction", 0), TopicPartition("__heartbeat.d", 0)
ONE = TopicPartition("d", 0)


@dataclass
class Message:
    value: str | None
    offset: int
    stamp: int


class Log:
    """The topics of a feed: each table has one, and its keys are spread over the partitions.

    Attributes:
        dies: how probable it is that the connector dies before a message.
        one: the only topic, instead of those.
    """

    def __init__(
        self,
        seed: int,
        partitions: int,
        *,
        ends: bool = False,
        gap_ms: int = 40,
        dies: float = 0,
        one: bool = False,
    ) -> None:
        self.chance, self.dies, self.one = random.Random(seed), dies, one
        self.sent: list[tuple[TopicPartition, Any]] = []
        self.feed = Feed(seed, postgres=True)
        self.ends, self.gap_ms, self.now = ends, gap_ms, 0
        self.places: dict[TopicPartition, list[Message]] = {
            TopicPartition(f"d.public.t{table}", number): []
            for table in range(3)
            for number in range(partitions)
        }
        self.partitions = partitions
        if ends:
            self.places[ENDS] = []
        if one:
            self.places = {ONE: []}

    def deliver(self, place: TopicPartition, value: Any) -> None:
        """Send a message, and some of those before it once more if the connector dies."""
        if self.sent and self.chance.random() < self.dies:
            for again in self.sent[-self.chance.randint(1, 30) :]:
                self.send(*again)
        self.sent.append((place, value))
        self.send(place, value)

    def send(self, place: TopicPartition, value: Any) -> None:
        place = ONE if self.one else place
        self.now += self.chance.randint(0, self.gap_ms)
        messages = self.places.setdefault(place, [])
        messages.append(Message(None if value is None else json.dumps(value), len(messages), self.now))

    def transactions(self, count: int) -> None:
        """Add so many transactions."""
        start = len(self.feed.lines)
        self.feed.transactions(count)
        for number, (time, lines) in enumerate(self.feed.lines[start:], start):
            for order, line in enumerate(lines, 1):
                event = json.loads(line)
                payload = event["payload"]
                payload["transaction"] = {"id": f"{number}:{payload['source']['lsn']}", "total_order": order}
                row = payload["after"] or payload["before"]
                at = self.chance.randrange(self.partitions) if row is None else row["id"] % self.partitions
                self.deliver(TopicPartition(f"d.public.{payload['source']['table']}", at), event)
                if payload["op"] == "d":
                    self.deliver(TopicPartition(f"d.public.{payload['source']['table']}", at), None)
            if self.ends:
                told = {"status": "END", "id": f"{number}:{time + 1}", "event_count": len(lines)}
                self.deliver(ENDS, told if lines else {"status": "BEGIN", "id": f"{number}:{time + 1}"})

    def mark(self) -> None:
        """Let all partitions pass the last commit."""
        for place in self.places:
            commit = json.dumps([str(self.feed.committed), "0"])
            source = {"connector": "postgresql", "sequence": commit, "lsn": 1 << 42}
            self.send(place, {"op": "m", "source": source})


def few(taken: dict[TopicPartition, list[Message]]) -> FewLines:
    """Messages as a micro-batch."""
    rows = [(place, one) for place, messages in taken.items() for one in messages]
    given: dict[str, list[Any]] = {
        "value": [one.value for _, one in rows],
        "offset": [one.offset for _, one in rows],
        "modified": [one.stamp for _, one in rows],
        "topic": [place.topic for place, _ in rows],
        "partition": [place.partition for place, _ in rows],
    }
    kinds = {"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64(), "partition": pa.int32()}
    names = [*AS_TEXT, *PLACES]
    columns = [pa.array(given.get(name, [None] * len(rows)), kinds.get(name, pa.string())) for name in names]
    batches = [pa.RecordBatch.from_arrays(columns, names=names)] if rows else []
    return FewLines(batches)


class Reader:
    """A stream of the topics into collections, that dies and begins again."""

    def __init__(self, root: Path, log: Log, **options: Any) -> None:
        self.lake, self.log, self.options = tidelake.open(root), log, options
        self.next: dict[TopicPartition, int] = {}
        self.batch = self.checkpoint = self.repeated = self.held = 0
        self.sink = self._sink()

    def _sink(self) -> Any:
        return tables_sink(self.lake, "shop", keys=["id"], take_over=True, **self.options)

    def rewind(self, place: TopicPartition, offset: int) -> None:
        """A new checkpoint, which begins at an earlier offset."""
        self.next[place] = offset
        self.checkpoint, self.batch, self.sink = self.checkpoint + 1, 0, self._sink()

    def take(self, ends: dict[TopicPartition, int]) -> Any:
        """A micro-batch with the messages up to these offsets."""
        taken = {place: self.log.places[place][self.next.get(place, 0) : end] for place, end in ends.items()}
        planned = frozenset(self.log.places)
        given = (lambda _: few(taken), f"query-{self.checkpoint}", self.batch, "", planned)
        done = self.sink.write(*given)
        if self.log.chance.random() < 0.2:
            # The driver died after the commit, and another one repeats the micro-batch.
            self.sink = self._sink()
            assert self.sink.write(*given).already
        self.next |= ends
        self.batch += 1
        self.repeated += done.repeated
        self.held = done.held
        return done

    def some(self, places: list[TopicPartition] | None = None) -> None:
        """A micro-batch with some of the messages of some partitions."""
        chance = self.log.chance
        ends = {}
        for place, messages in self.log.places.items():
            start = self.next.get(place, 0)
            if (places is None or place in places) and chance.random() < 0.6:
                ends[place] = min(len(messages), start + chance.randint(0, 9))
        self.take(ends)

    def rest(self) -> None:
        """All that is left."""
        self.take({place: len(messages) for place, messages in self.log.places.items()})

    @property
    def closed(self) -> int:
        """Up to where times are closed."""
        if "shop" not in self.lake.list():
            return 0
        (element,) = self.lake["shop"].upper.elements
        assert {self.lake[name].upper for name in self.lake.list()} == {self.lake["shop"].upper}
        return int(element)

    def check(self, seed: int) -> int:
        """At every closed time all tables are what a replay leaves; how many transactions are closed."""
        count = 0
        for (time, _), state in zip(self.log.feed.lines, self.log.feed.states, strict=True):
            if time >= self.closed:
                break
            count += 1
            for table, rows in state.items():
                found = contents(self.lake[f"shop.public.{table}"], time)
                assert found == {key: told(row) for key, row in rows.items()}, (seed, time, table)
        return count


@pytest.mark.promise(
    "Transactions whose events lie in several topics and partitions are whole at every closed time, "
    "however each is read, with restarts and earlier offsets",
    rule="`partitions` in `cdc/times/partitions.py`",
    also=["spark/test_kafka.py::test_transactions_in_several_partitions_are_whole_and_once"],
)
@pytest.mark.parametrize("ends", [False, True])
def test_transactions_in_partitions_are_whole_however_they_are_read(tmp_path: Path, ends: bool) -> None:
    for seed in rounds(fast=1, full=20, soak=400):
        chance = random.Random(seed)
        log = Log(
            seed, 1 + seed % 3, ends=ends, dies=chance.choice([0, 0.02, 0.1]), one=chance.random() < 0.5
        )
        log.transactions(COUNT)
        reader = Reader(tmp_path / str(seed), log)
        counts = []
        for _ in range(8):
            reader.some()
            counts.append(reader.closed)
            if log.chance.random() < 0.2:
                place = log.chance.choice(list(log.places))
                reader.rewind(place, log.chance.randint(0, reader.next.get(place, 0)))
        assert counts == sorted(counts)
        reader.check(seed)
        reader.rest()
        if ends:
            assert reader.held == 0 and reader.check(seed) == COUNT
        log.mark()
        reader.rest()
        assert reader.held == 0 and reader.check(seed) == COUNT


@pytest.mark.promise(
    "A first copy of many tables over several micro-batches and partitions appears as one whole",
    rule="`_copying` in `feeds/tables.py`, `Partitions.copied`",
)
@pytest.mark.parametrize("idle", [None, "1s"])
def test_a_first_copy_in_partitions_appears_as_one_whole(tmp_path: Path, idle: str | None) -> None:
    log = Log(2, 2)
    places = list(log.places)
    for id_ in range(8):
        # The row that is marked as the last one is not in each partition.
        source = {"connector": "postgresql", "db": "d", "schema": "public", "table": "t0"}
        source |= {"lsn": 50, "sequence": '[null,"50"]', "snapshot": "last" if id_ == 7 else "true"}
        row = {"id": id_, "n": id_, "big": None}
        payload = {"op": "r", "before": None, "after": row, "source": source}
        log.send(places[id_ % 2], {"schema": connect("t0", log.feed.columns["t0"]), "payload": payload})
    reader = Reader(tmp_path, log, **({} if idle is None else {"idle": idle}))
    for ends in ({places[1]: 4}, {places[0]: 2}, {places[0]: 4}):
        reader.take(ends)
        # The register has the table, and the table is empty.
        assert reader.closed == 1 and contents(reader.lake["shop.public.t0"], 0) == {}
        (entry,) = reader.lake["shop"].snapshot().read_all().to_pylist()
        assert entry["collection"] == "shop.public.t0"
    if idle is None:
        for place in places:
            assert reader.closed == 1
            source = {"connector": "postgresql", "sequence": '["60","60"]', "lsn": 61}
            log.send(place, {"op": "m", "source": source})
            reader.take({place: len(log.places[place])})
        # What follows a copy is held back until it is in.
        assert reader.closed == 50
        reader.rest()
        assert reader.closed == 60
    else:
        log.now += IDLE_MS
        for _ in range(2):
            log.send(HEARTBEATS, {"ts_ms": log.now})
            reader.rest()
        # All of it was of the moment before.
        assert reader.closed == 50
    copied = contents(reader.lake["shop.public.t0"], 49)
    assert copied == {id_: {"id": id_, "n": id_} for id_ in range(8)}


def test_offsets_that_were_seen_are_counted_and_not_doubled(tmp_path: Path) -> None:
    log = Log(3, 2)
    log.transactions(20)
    log.mark()
    reader = Reader(tmp_path, log)
    reader.rest()
    for place, messages in list(log.places.items())[:3]:
        reader.rewind(place, 0)
        before = reader.repeated
        reader.rest()
        assert reader.repeated - before == len(messages)
    assert reader.check(3) == 20 and reader.held == 0


def test_events_of_a_key_in_several_partitions_are_in_the_order_of_the_log(tmp_path: Path) -> None:
    log = Log(1, 2)
    first, second = list(log.places)[:2]

    def event(op: str, n: int, lsn: int) -> dict[str, Any]:
        source = {"connector": "postgresql", "db": "d", "schema": "public", "table": "t0", "lsn": lsn}
        row = {"id": 1, "n": n, "big": None}
        payload = {"op": op, "before": None, "after": row, "source": source | {"sequence": '["10","0"]'}}
        return {"schema": connect("t0", log.feed.columns["t0"]), "payload": payload}

    # Partitions were added amid a transaction: the later event has the smaller offset.
    for number in range(3):
        log.send(second, event("u" if number else "c", number, 11 + number))
    log.send(first, event("u", 9, 20))
    log.feed.committed = 30
    log.mark()
    reader = Reader(tmp_path, log)
    reader.rest()
    assert contents(reader.lake["shop.public.t0"], 29) == {1: {"id": 1, "n": 9}}


def test_a_topic_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    log = Log(4, 1)
    log.transactions(10)
    log.mark()
    reader = Reader(tmp_path, log)
    reader.rest()
    place, messages = max(log.places.items(), key=lambda item: len(item[1]))
    log.places[place] = []
    log.transactions(10)
    assert log.places[place]
    reader.rewind(place, 0)
    with pytest.raises(InvalidUpdates, match=f"topic '{place.topic}', partition 0: offset 0 was seen before"):
        reader.take({place: len(messages)})
    assert reader.check(4) == 10


@pytest.mark.promise(
    "A time closes when each partition has passed it, or END events count all events before it, or "
    "a partition without messages is idle by the stated bound",
    rule="`_counted`, `_passed_by_idle`",
    also=[
        "::test_idle_partitions_are_passed_after_the_bound",
        "spark/test_kafka.py::test_a_quiet_topic_is_passed_after_the_bound",
    ],
)
def test_a_partition_without_messages_is_waited_for(tmp_path: Path) -> None:
    log = Log(5, 1)
    log.places[TopicPartition("d.public.quiet", 0)] = []
    log.transactions(10)
    reader = Reader(tmp_path, log)
    reader.rest()
    assert reader.closed == 0 and reader.held == sum(len(lines) for _, lines in log.feed.lines)
    log.mark()
    reader.rest()
    assert reader.check(5) == 10 and reader.held == 0


def test_idle_partitions_are_passed_after_the_bound(tmp_path: Path) -> None:
    for seed in rounds(fast=1, full=15, soak=300):
        log = Log(seed, 3, gap_ms=400)
        log.places[TopicPartition("d.public.quiet", 0)] = []
        log.transactions(COUNT)
        reader = Reader(tmp_path / str(seed), log, idle="1s")
        now = 0
        while now < log.now:
            now += log.chance.randint(100, 800)
            ends = {}
            for place, messages in log.places.items():
                # What was sent becomes visible within the bound.
                late = now - log.chance.randint(0, IDLE_MS - 1)
                start = reader.next.get(place, 0)
                visible = sum(one.stamp <= late for one in messages)
                if visible > start:
                    ends[place] = log.chance.randint(start + 1, visible)
            reader.take(ends)
        reader.rest()
        assert reader.check(seed) < COUNT
        log.now += 2 * IDLE_MS
        for _ in range(2):
            log.send(HEARTBEATS, {"ts_ms": log.now})
            reader.rest()
        # Nothing tells the commit of the last transaction.
        assert reader.check(seed) >= COUNT - 4, seed


@pytest.mark.promise(
    "An event of a closed time that its partition had not passed is refused, never taken for "
    "repeated; an offset that was seen is left out once more, and a topic made anew is refused",
    rule="`_check_late`, `seen_again`",
    also=[
        "::test_offsets_that_were_seen_are_counted_and_not_doubled",
        "::test_a_topic_that_was_made_anew_is_refused",
        "::test_what_a_connector_delivers_again_is_known_by_its_partition",
    ],
)
def test_an_event_that_comes_after_the_bound_is_refused(tmp_path: Path) -> None:
    log = Log(2, 2)
    log.transactions(20)
    log.mark()
    late, messages = next((place, all_) for place, all_ in log.places.items() if len(all_) > 2)
    reader = Reader(tmp_path, log, idle=0)
    reader.take({place: len(all_) for place, all_ in log.places.items() if place != late})
    closed = reader.closed
    assert closed > 0
    refused = f"topic '{late.topic}', partition {late.partition}, offset 0: a change event of .* comes late"
    with pytest.raises(InvalidUpdates, match=refused):
        reader.take({late: len(messages)})
    assert reader.closed == closed


def test_what_a_connector_delivers_again_is_known_by_its_partition(tmp_path: Path) -> None:
    log = Log(8, 2)
    log.transactions(20)
    log.mark()
    reader = Reader(tmp_path, log)
    reader.rest()
    again = {place: list(messages) for place, messages in log.places.items()}
    for place, messages in again.items():
        for one in messages:
            log.send(place, None if one.value is None else json.loads(one.value))
    for _ in range(5):
        reader.some()
    log.transactions(10)
    log.mark()
    reader.rest()
    assert reader.check(8) == 30 and reader.held == 0
    assert reader.repeated == sum(len(lines) for _, lines in log.feed.lines[:20])


def test_too_many_partitions_are_refused(tmp_path: Path) -> None:
    log = Log(9, 1)
    log.places |= {TopicPartition("d.public.wide", number): [] for number in range(PARTITIONS_MAX)}
    log.transactions(3)
    with pytest.raises(UsageError, match=f"at most {PARTITIONS_MAX} partitions"):
        Reader(tmp_path, log).rest()


@pytest.mark.parametrize("options", [{"idle": "soon"}, {"idle": -1}, {"idle": "1m", "time": "source.lsn"}])
def test_a_bound_that_is_none_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="idle="):
        tables_sink(tidelake.open(tmp_path), "shop", **options)

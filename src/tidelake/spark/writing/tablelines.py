"""The lines of a micro-batch of change events of several tables, and the work on them, table by table.

Owns where that work is done: few lines are fetched once, and this process works on several tables at once;
otherwise Spark keeps the lines with their tables on disk, and its tasks work on one table after the other.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.core.tablename import Table
from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.cdc.core.unmade import Unmade
from tidelake.cdc.debezium.decoded import Path, decode
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.routes import TableColumns, seen_in
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.overlap import mapped
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.envelopes.debezium import Debezium, lines_arrow, of_kafka, texts
from tidelake.spark.envelopes.read import AS_TEXT, DECODED, NOTE, PLACES, ReadEvents
from tidelake.spark.envelopes.storing import check_parsed, event_schema
from tidelake.spark.envelopes.surveylines import (
    ROUTED,
    SEEN,
    SURVEYED,
    TABLE,
    NumberedLines,
    RouteLines,
    seen_of,
)
from tidelake.spark.envelopes.target import Target
from tidelake.spark.uploads import Answer, total
from tidelake.spark.versions import to_arrow
from tidelake.spark.writing.heldrows import HeldRows
from tidelake.spark.writing.running import fetched, rows_of
from tidelake.spark.writing.transactions import Surveyed, seen_column

# Tables that this process works on at once: most of the time it waits for the store.
_AT_ONCE = 4
# What is looked up is read at its own upper, so no other one has to be asked for.
_ANY = Frontier.of(0)


@dataclass(frozen=True)
class TableEvents(Debezium):
    """The events of one table.

    Attributes:
        missing: columns that the source does not have any more: they may be missing, and are null.
    """

    missing: frozenset[str] = frozenset()

    def parser(self, collection: Target, lower: int = 0) -> ChangeParser:
        """As `Debezium`."""
        found = super().parser(collection, lower)
        return replace(found, optional=found.optional | self.missing, routed=True)


@dataclass(frozen=True)
class TablePlan:
    """What is to be done so that the events of a table have a collection.

    Attributes:
        table: the table.
        there: the collection; None: it is to be made.
        shape: the collection as it is then.
        envelope: how its events are read.
        columns: as in `TableTarget`.
    """

    table: Table
    there: LakeCollection | None
    shape: Unmade
    envelope: TableEvents
    columns: str | None

    def parse(self, lower: int) -> tuple[ReadEvents, pa.Schema]:
        """What reads its lines as they will be read, at an upper; with the schema of the result."""
        schema = frame_arrow(event_schema(self.shape.schema))
        return ReadEvents(self.envelope.parser(self.shape, lower), AS_TEXT, schema), schema


@dataclass(frozen=True)
class TableTarget:
    """Where the events of a table go.

    Attributes:
        table: the table.
        collection: its collection.
        envelope: how its events are read.
        columns: what the register is to say of its columns; None: the events do not tell them.
        created: the collection was created for this micro-batch.
        evolved: its columns changed for this micro-batch.
    """

    table: Table
    collection: LakeCollection
    envelope: TableEvents
    columns: str | None
    created: bool = False
    evolved: bool = False


class Lines(Protocol):
    """The lines of a micro-batch."""

    @property
    def seen(self) -> Sequence[TableColumns]:
        """What they say of their tables."""

    @property
    def keyed(self) -> bool:
        """Whether they are messages, which may have keys, and not lines of values only."""

    @property
    def taken_bytes(self) -> int | None:
        """Their size in memory; None if it is not known."""

    @property
    def placed(self) -> bool:
        """Whether they are messages of Kafka, with the columns of `PLACES`."""

    def survey(self, work: Surveyed) -> pa.Table:
        """The positions of the lines, as `work` finds them."""

    def leave_out(self, seen: Mapping[TopicPartition, int]) -> int:
        """Leave out messages of partitions up to an offset, which were seen before; how many there are."""

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The lines of no table, with the columns of `AS_TEXT`."""

    def count(self, table: Table) -> int:
        """The number of lines of a table."""

    def check(self, plan: TablePlan, lower: int) -> None:
        """Read the events of a table, as they are read when they are stored, at an upper.

        Raises:
            InvalidUpdates: an event cannot be read.
        """

    def answers(self, targets: Sequence[TableTarget]) -> list[Answer]:
        """Store the events of each table; in the order of the targets. May be repeated."""

    def close(self) -> None:
        """Give up what was kept of them."""


def lines_of(
    frame: DataFrame,
    held: HeldRows | None,
    expected_bytes: int | None,
    survey: Surveyed | None = None,
    paths: Collection[Path] = (),
) -> Lines:
    """The lines of a micro-batch.

    Args:
        frame: with columns as the envelope `debezium` takes texts.
        held: lines that were held back by the micro-batch before.
        expected_bytes: the size of the last micro-batch, used if Spark has no estimate.
        survey: the survey that will be asked for; None: none will be.
        paths: where numbers are that the envelope reads.
    """
    lines = texts(frame, placed=of_kafka(frame.schema))
    keyed = "key" in frame.columns
    few = None if held is not None and held.many else fetched(lines, expected_bytes)
    if few is not None:
        return FewLines([*([] if held is None else held.batches()), *few], keyed=keyed, paths=paths)
    if held is None:
        return SparkLines(lines, survey, keyed=keyed)
    again = held.frame(lines.sparkSession, lines.select(*AS_TEXT).schema)
    # A partition of its own, so that no batch has lines of both.
    return SparkLines(lines.unionByName(again, allowMissingColumns=True), survey, keyed=keyed)


class FewLines:
    """Lines in the memory of this process, with the columns of `AS_TEXT`; messages have those of `PLACES`."""

    def __init__(
        self, lines: Sequence[pa.RecordBatch], *, keyed: bool = False, paths: Collection[Path] = ()
    ) -> None:
        self.keyed = keyed
        numbers = NumberedLines()
        self._lines: list[tuple[pa.RecordBatch, pa.Array]] = []
        seen: dict[TableColumns, None] = {}
        for batch in lines:
            found = decode(as_bytes(batch.column("value")), paths)
            tables, told = seen_in(found, batch.column("key"))
            self._lines.append((numbers.of(batch).append_column(DECODED, found.column), tables))
            seen.update(dict.fromkeys(told))
        self.seen = list(seen)
        self.taken_bytes: int | None = sum(batch.nbytes for batch in lines)
        self.placed = any(PLACES[0] in batch.schema.names for batch in lines)

    def survey(self, work: Surveyed) -> pa.Table:
        """As `Lines`."""
        return pa.Table.from_batches(work.all(batch for batch, _ in self._lines), schema=work.found)

    def leave_out(self, seen: Mapping[TopicPartition, int]) -> int:
        """As `Lines`."""
        count: int = sum(batch.num_rows for batch, _ in self._lines)
        new = [(*lines, pa.array(~_seen(lines[0], seen))) for lines in self._lines]
        self._lines = [(batch.filter(here), tables.filter(here)) for batch, tables, here in new]
        left: int = sum(batch.num_rows for batch, _ in self._lines)
        return count - left

    def rest(self) -> Iterator[pa.RecordBatch]:
        """As `Lines`."""
        return self._of("")

    def count(self, table: Table) -> int:
        """As `Lines`."""
        return sum(batch.num_rows for batch in self._of(table.joined))

    def check(self, plan: TablePlan, lower: int) -> None:
        """As `Lines`."""
        parse, schema = plan.parse(lower)
        check_parsed(pa.Table.from_batches(parse(self._of(plan.table.joined)), schema=schema))

    def answers(self, targets: Sequence[TableTarget]) -> list[Answer]:
        """As `Lines`."""
        return list(mapped(self._answer, targets, _AT_ONCE))

    def close(self) -> None:
        """As `Lines`."""

    def _answer(self, target: TableTarget) -> Answer:
        """Store the events of one table, with the work of the tasks."""
        collection, envelope = target.collection, target.envelope
        schema = frame_arrow(event_schema(collection.schema))
        parse = ReadEvents(replace(envelope.parser(collection), late="advance"), AS_TEXT, schema)
        work = envelope.work(collection, schema.names, _ANY)
        # One batch, so that the work finds truncations before the events.
        events = pa.Table.from_batches(parse(self._of(target.table.joined)), schema=schema).combine_chunks()
        return total(pa.Table.from_batches(work(iter(events.to_batches()))))

    def _of(self, table: str) -> Iterator[pa.RecordBatch]:
        return (
            batch.select([*AS_TEXT, DECODED]).filter(pc.equal(tables, table)) for batch, tables in self._lines
        )


def _seen(batch: pa.RecordBatch, offsets: Mapping[TopicPartition, int]) -> npt.NDArray[np.bool_]:
    """Which messages have these offsets or earlier ones; none of lines without places."""
    found = np.zeros(batch.num_rows, np.bool_)
    if PLACES[0] not in batch.schema.names:
        return found
    for place, offset in offsets.items():
        here = pc.equal(batch.column("topic"), place.topic)
        here = pc.and_(here, pc.equal(batch.column("partition"), place.partition))
        there = pc.and_(here, pc.less_equal(batch.column("offset"), offset))
        found |= pc.fill_null(there, False).to_numpy(zero_copy_only=False)
    return found


class SparkLines:
    """Lines in Spark, with the columns of `AS_TEXT`, and those of `PLACES` of messages."""

    taken_bytes: int | None = None

    def __init__(self, lines: DataFrame, survey: Surveyed | None, *, keyed: bool = False) -> None:
        self.keyed = keyed
        self._survey = survey
        columns = tuple(lines.columns)
        self.placed = PLACES[0] in columns
        output = pa.schema([*lines_arrow(lines), *ROUTED])
        work = RouteLines(columns, None if survey is None else survey.packed)
        routed = lines.mapInArrow(work, frame_schema(output))
        self._kept = self._routed = routed.persist(StorageLevel.DISK_ONLY)

    @cached_property
    def seen(self) -> Sequence[TableColumns]:
        """As `Lines`. Runs a job, which decodes the lines."""
        return seen_of(row[0] for row in self._told(SEEN).distinct().collect())

    def survey(self, work: Surveyed) -> pa.Table:
        """As `Lines`. Runs a job."""
        if work == self._survey and self._kept is self._routed:
            return work.unpacked(bytes(row[0]) for row in self._told(SURVEYED).collect())
        found = self._kept.drop(*ROUTED.names).mapInArrow(work, frame_schema(work.found))
        return to_arrow(found).cast(work.found)

    def _told(self, name: str) -> DataFrame:
        return self._routed.where(f.col(name).isNotNull()).select(name)

    def leave_out(self, seen: Mapping[TopicPartition, int]) -> int:
        """As `Lines`. Runs a job."""
        is_seen = seen_column(seen)
        self._kept = self._routed.where(~is_seen)
        count: int = self._routed.where(is_seen).count()
        return count

    def rest(self) -> Iterator[pa.RecordBatch]:
        """As `Lines`."""
        return iter(to_arrow(self._of("")).to_batches())

    def count(self, table: Table) -> int:
        """As `Lines`. Runs a job."""
        return self._of(table.joined).count()

    def check(self, plan: TablePlan, lower: int) -> None:
        """As `Lines`. Runs a job."""
        parse, schema = plan.parse(lower)
        read = self._of(plan.table.joined).mapInArrow(parse, frame_schema(schema))
        check_parsed(to_arrow(read.where(f.col(NOTE).isNotNull())))

    def answers(self, targets: Sequence[TableTarget]) -> list[Answer]:
        """As `Lines`."""
        found = list(map(self._answer, targets))
        self.taken_bytes = sum(answer.taken_bytes for answer in found)
        return found

    def close(self) -> None:
        """As `Lines`."""
        self._routed.unpersist()

    def _answer(self, target: TableTarget) -> Answer:
        collection, envelope = target.collection, target.envelope
        rows = rows_of(self._of(target.table.joined), envelope, collection, by_tasks=True)
        return rows.answer(envelope.work(collection, rows.names, _ANY))

    def _of(self, table: str) -> DataFrame:
        return self._kept.where(f.col(TABLE) == table).select(*AS_TEXT)

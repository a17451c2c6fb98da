"""The lines of a micro-batch of change events of several tables, and the work on them, table by table.

Few lines are fetched once, and this process works on several tables at once; Spark has another way.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.core.tablename import Table
from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.cdc.core.unmade import Unmade
from tidelake.cdc.debezium.decoded import Path, decode
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.routes import TableColumns, seen_in
from tidelake.feeds.answers import Answer
from tidelake.feeds.debezium import Debezium, Target
from tidelake.feeds.heldrows import HeldRows
from tidelake.feeds.linefiles import LineFiles
from tidelake.feeds.places import NumberedLines
from tidelake.feeds.reading import AS_TEXT, DECODED, PLACES, ReadEvents
from tidelake.feeds.storing import check_parsed, event_schema
from tidelake.feeds.survey import Surveyed
from tidelake.lake.api.collection import Collection as LakeCollection
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.overlap import mapped

# Tables that this process works on at once: most of the time it waits for the store.
_AT_ONCE = 4
# What is looked up is read at its own upper, so no other one has to be asked for.
ANY_UPPER = Frontier.of(0)


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

    def parse(self, lower: int, schema: pa.Schema | None = None) -> ReadEvents:
        """What reads its lines as they will be read, at an upper, into other types than those of events."""
        schema = event_schema(self.shape.schema) if schema is None else schema
        return ReadEvents(self.envelope.parser(self.shape, lower), AS_TEXT, schema)


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

    def add(self, held: HeldRows) -> None:
        """Put lines before them that were held back."""

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The lines of no table, with the columns of `AS_TEXT`."""

    def count(self, table: Table) -> int:
        """The number of lines of a table."""

    def check(self, plan: TablePlan, lower: int) -> None:
        """Read the events of a table, as they are read when they are stored, at an upper."""

    def answers(self, targets: Sequence[TableTarget]) -> list[Answer]:
        """Store the events of each table; in the order of the targets. May be repeated."""

    def close(self) -> None:
        """Give up what was kept of them."""


class FewLines:
    """Lines in the memory of this process, with the columns of `AS_TEXT`; messages have those of `PLACES`."""

    def __init__(
        self, lines: Sequence[pa.RecordBatch], *, keyed: bool = False, paths: Collection[Path] = ()
    ) -> None:
        self.keyed = keyed
        self.seen: list[TableColumns] = []
        self._paths = paths
        self._lines = list(self._decoded(lines))
        self._held = LineFiles()
        self.taken_bytes: int | None = sum(batch.nbytes for batch in lines)
        self.placed = any(PLACES[0] in batch.schema.names for batch in lines)

    def _decoded(self, lines: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Lines and their tables; at the end, what they say of these comes before what was seen."""
        numbers = NumberedLines()
        seen: dict[TableColumns, None] = {}
        for batch in lines:
            found = decode(as_bytes(batch.column("value")), self._paths)
            tables, told = seen_in(found, batch.column("key"))
            seen.update(dict.fromkeys(told))
            yield numbers.of(batch).append_column(DECODED, found.column), tables
        self.seen = [*dict.fromkeys([*seen, *self.seen])]

    def survey(self, work: Surveyed) -> pa.Table:
        """As `Lines`."""
        return pa.Table.from_batches(work(batch for batch, _ in self._lines), schema=work.found)

    def leave_out(self, seen: Mapping[TopicPartition, int]) -> int:
        """As `Lines`."""
        count: int = sum(batch.num_rows for batch, _ in self._lines)
        new = [(*lines, pa.array(~seen_rows(lines[0], seen))) for lines in self._lines]
        self._lines = [(batch.filter(here), tables.filter(here)) for batch, tables, here in new]
        left: int = sum(batch.num_rows for batch, _ in self._lines)
        return count - left

    def add(self, held: HeldRows) -> None:
        """As `Lines`."""
        if not held.many:
            self._lines = [*self._decoded(held), *self._lines]
            return
        for batch, tables in self._decoded(held):
            for table in tables.unique().to_pylist():
                self._held.put(table, _of_table(batch, tables, table))

    def rest(self) -> Iterator[pa.RecordBatch]:
        """As `Lines`."""
        return self._of("")

    def count(self, table: Table) -> int:
        """As `Lines`."""
        return sum(batch.num_rows for batch in self._of(table.joined))

    def check(self, plan: TablePlan, lower: int) -> None:
        """As `Lines`."""
        for rows in plan.parse(lower)(self._of(plan.table.joined)):
            check_parsed(rows)

    def answers(self, targets: Sequence[TableTarget]) -> list[Answer]:
        """As `Lines`."""
        return list(mapped(self._answer, targets, _AT_ONCE))

    def close(self) -> None:
        """As `Lines`."""
        self._held.close()

    def _answer(self, target: TableTarget) -> Answer:
        """Store the events of one table."""
        return target.envelope.answer(target.collection, self._of(target.table.joined), ANY_UPPER)

    def _of(self, table: str) -> Iterator[pa.RecordBatch]:
        yield from self._held.of(table)
        for batch, tables in self._lines:
            yield _of_table(batch, tables, table)


def _of_table(batch: pa.RecordBatch, tables: pa.Array, table: str) -> pa.RecordBatch:
    return batch.select([*AS_TEXT, DECODED]).filter(pc.equal(tables, table))


def seen_rows(batch: pa.RecordBatch, offsets: Mapping[TopicPartition, int]) -> npt.NDArray[np.bool_]:
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

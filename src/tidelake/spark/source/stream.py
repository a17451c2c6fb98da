"""The streaming read of the format: a snapshot and all updates after it, or updates only, in micro-batches.

Owns what Spark asks of a streaming source, in terms of `tidelake.shard.reading.tail`: offsets, limits on a
batch, and partitions. The reader lives in a Python process of Spark's driver for as long as the query;
copies of it go to the workers, and read nothing but the task in a partition.

A batch from one offset to another has the same rows whenever it is run: its times are exact, and a hold,
whose id is in the checkpoint, keeps their history until Spark has said that the batch is done, or
`hold_for_s` after the query ended. A checkpoint that was left for longer is refused once history is gone.

Facts of Spark 4.3 that this is built on: `initialOffset` is called again after a restart, unless the first
batch was done, so it must name no place; `latestOffset` is called every 13 ms when idle; `commit` comes with
the next batch, never for the last; `stop` is not called when the query dies.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelake.errors import HistoryCompacted, IncompatibleSchema, UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.lake import Lake, open_lake
from tidelake.model.frontier import Frontier
from tidelake.model.query import Query, Updates
from tidelake.model.time import TIME_MAX
from tidelake.shard.reading.tail import Tail
from tidelake.shard.runs.plan import run_task
from tidelake.spark.columns import convert, frame_arrow
from tidelake.spark.source.offsets import (
    LATEST,
    SNAPSHOT,
    Begin,
    Json,
    Offset,
    Position,
    Start,
    from_json,
    to_json,
)
from tidelake.spark.tasks import one_thread
from tidelake.state.backlog import Limits

# Stored bytes of one partition, unless the machine has more cores than that makes partitions.
_TASK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class StreamRead:
    """What a query reads, as plain values.

    Attributes:
        url: of the lake.
        collection: name in it.
        start: the snapshot of the last closed time and then all updates, updates from now on only, or those
            at or beyond a frontier.
        max_rows: updates of a batch at most, but for a single time and the snapshot, which are never cut.
        max_times: distinct times of a batch at most.
        where: SQL that is true of the rows to give.
        parallelism: partitions of a batch at most; None: by size. Small batches have fewer.
        hold_for_s: how long after its end the query can be started again from its checkpoint.
        poll_s: least pause between two looks for news.
    """

    url: str
    collection: str
    start: Start = SNAPSHOT
    max_rows: int | None = None
    max_times: int | None = None
    where: str | None = None
    parallelism: int | None = None
    hold_for_s: float = 86_400.0
    poll_s: float = 0.1

    def __post_init__(self) -> None:
        for option, value in (
            ("maxRowsPerTrigger", self.max_rows),
            ("maxTimesPerTrigger", self.max_times),
            ("parallelism", self.parallelism),
        ):
            given: object = value
            if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
                raise UsageError(f"{option}={value!r} must be a whole number of at least 1")


class TaskPartition(InputPartition):
    """One key range of a batch: an encoded task."""

    def __init__(self, task: bytes) -> None:
        super().__init__(task)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a collection for one streaming query. Opens nothing before it is asked something.

    Args:
        read: what.
        schema: of the rows to give: key and value columns, the time and `_diff`, any of them left out.
    """

    def __init__(self, read: StreamRead, schema: StructType) -> None:
        self._read = read
        self._schema = schema
        self._opened: tuple[Lake, Collection] | None = None
        self._tail: Tail | None = None
        self._until: Frontier | None = None

    def initialOffset(self) -> Json:
        """Where a query starts that has no checkpoint; the same whenever it is asked. Reads no data."""
        collection = self._collection()
        self._tail_of(None)  # refuses what cannot be followed
        return to_json(Begin(collection.id, self._read.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """That there is a limit. Spark knows none by times: both are applied in `latestOffset`."""
        if self._limits.none:
            return ReadAllAvailable()
        return ReadMaxRows(TIME_MAX if self._read.max_rows is None else self._read.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is closed now is all that is read. One log scan."""
        self._until = self._collection().upper

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the batch that begins at `start`; `start` if there is nothing to read.

        At most one log scan, and that not more often than every `poll_s`; see `Tail.step`. One log write
        for the first batch.

        Raises:
            HistoryCompacted: the checkpoint, or the time to start after, is older than the history kept.
        """
        begun = self._checked(from_json(start))
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        try:
            end = self._begun(begun, limits) if isinstance(begun, Begin) else self._next(begun, limits)
        except HistoryCompacted as error:
            raise self._lost(error, begun) from error
        return start if end is None else to_json(end)

    def reportLatestOffset(self) -> Json | None:
        """The last head that was seen, for Spark's progress reports. No store call."""
        if self._tail is None or self._opened is None:
            return None
        return to_json(Position(self._opened[1].id, self._tail.hold, self._tail.known.upper))

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a batch, by key range. At most one log scan, and a log write for the first batch.

        Raises:
            HistoryCompacted: the checkpoint is older than the history kept.
            IncompatibleSchema: columns were changed so that rows do not fit the query any more.
        """
        begun, ended = self._checked(from_json(start)), self._checked(from_json(end))
        if isinstance(ended, Begin) or start == end:
            return []
        tail = self._tail_of(ended.hold)
        lower = _lower(begun, ended)
        asked: Query = tail.snapshot_of(ended.frontier) if lower is None else Updates(lower, ended.frontier)
        start_of = ended.frontier if lower is None else lower
        cores, bytes_max = self._read.parallelism or os.cpu_count() or 1, _TASK_BYTES
        try:
            plan = tail.plan(asked, start_of, cores, None if self._read.parallelism else bytes_max)
        except HistoryCompacted as error:
            raise self._lost(error, begun) from error
        if plan is None:
            return []
        self._check_columns(plan.schema)
        return [TaskPartition(task) for task in plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, sorted by key, value and time. In a worker."""
        one_thread()
        schema = self._arrow
        return (convert(batch, schema) for batch in run_task(partition.value))

    def commit(self, end: Json) -> None:
        """What was read up to `end` is not asked for again: its history may go, in a minute."""
        done = self._checked(from_json(end))
        if isinstance(done, Position):
            self._tail_of(done.hold).move(done.frontier)

    def stop(self) -> None:
        """End the signs of life. The hold stays, for whoever goes on from the checkpoint."""
        if self._tail is not None:
            self._tail.stop()
        if self._opened is not None:
            self._opened[0].close()
        self._tail = self._opened = None

    @property
    def _limits(self) -> Limits:
        return Limits(self._read.max_rows, self._read.max_times)

    @property
    def _arrow(self) -> pa.Schema:
        """What Spark demands of the batches, to the bit."""
        return to_arrow_schema(self._schema, timezone="UTC")

    def _collection(self) -> Collection:
        if self._opened is None:
            lake = open_lake(self._read.url, create=False)
            self._opened = lake, lake.collection(self._read.collection)
        return self._opened[1]

    def _tail_of(self, hold: str | None) -> Tail:
        """The tail under a hold; None: under the one that this query has, or a fresh one."""
        if self._tail is None or hold not in (None, self._tail.hold):
            collection, read = self._collection(), self._read
            if self._tail is not None:
                self._tail.stop()
            self._tail = collection.tail(
                hold,
                hold_for=read.hold_for_s,
                poll_s=read.poll_s,
                columns=self._columns(collection),
                where=read.where,
            )
        return self._tail

    def _columns(self, collection: Collection) -> list[str] | None:
        """Of the tasks: those that Spark asks for. Times and `_diff` are always there."""
        special = {*collection.domain.columns, "_diff"}
        asked = [name for name in self._schema.names if name not in special]
        return None if asked == collection.schema.names else asked

    def _checked(self, offset: Offset) -> Offset:
        """Refuse the offset of another collection."""
        collection = self._collection()
        if offset.collection != collection.id:
            raise UsageError(
                f"the query's checkpoint is of another collection that was called {collection.name!r} "
                "before: give the query a new checkpoint"
            )
        return offset

    def _begun(self, begun: Begin, limits: Limits) -> Position | None:
        """The end of the first batch."""
        tail = self._tail_of(None)
        if begun.start == SNAPSHOT:
            past = tail.begin_with_snapshot(self._until)
            return None if past is None else Position(begun.collection, tail.hold, past, SNAPSHOT)
        first = tail.begin(None if begun.start == LATEST else begun.start)
        return Position(begun.collection, tail.hold, tail.step(first, limits, self._until), first)

    def _next(self, begun: Position, limits: Limits) -> Position | None:
        tail = self._tail_of(begun.hold)
        end = tail.step(begun.frontier, limits, self._until)
        return None if end == begun.frontier else Position(begun.collection, begun.hold, end)

    def _lost(self, error: HistoryCompacted, begun: Offset) -> HistoryCompacted:
        name = self._read.collection
        if isinstance(begun, Begin):
            remedy = f"start the stream of {name!r} at a later time, or with startingAt=snapshot"
        else:
            remedy = (
                f"the hold of the query on {name!r} ended, {self._read.hold_for_s:g} s after its last sign "
                "of life (option holdFor) or because it was released, and history was folded since: start a "
                "new query, with a new checkpoint and startingAt=snapshot, into an empty sink"
            )
        return HistoryCompacted(error.asked, error.since, remedy)

    def _check_columns(self, planned: pa.Schema) -> None:
        """Refuse rows that do not fit the query: columns may have changed since it was started."""
        have = {field.name: field for field in frame_arrow(planned)}
        for field in self._arrow:
            found = have.get(field.name)
            if found is None or found.type != field.type or (found.nullable and not field.nullable):
                raise IncompatibleSchema(
                    f"column {field.name!r} of {self._read.collection!r} is {_told(found)}, and the query "
                    f"was started with {_told(field)}: start it again, from the same checkpoint"
                )


def _told(field: pa.Field | None) -> str:
    return "gone" if field is None else f"{field.type}{'' if field.nullable else ' not null'}"


def _lower(begun: Offset, ended: Position) -> Frontier | None:
    """Where the updates of a batch begin; None: it is the snapshot just before its end."""
    if isinstance(begun, Position):
        return begun.frontier
    if ended.first is None:
        raise UsageError(
            f"the query's checkpoint has no batch before {ended.frontier}, and does not say where that "
            "began: it was edited; give the query a new checkpoint"
        )
    return ended.first if isinstance(ended.first, Frontier) else None

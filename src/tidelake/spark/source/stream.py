"""The streaming read of the format: a snapshot and all updates after it, or updates only, in micro-batches.

Implements Spark's interface of a streaming source by `tidelake.shard.reading.tail`: offsets, limits on a
batch, and partitions. The reader lives in a Python process of Spark's driver for as long as the query;
copies of it go to the workers, and read only the task in a partition.

A batch between two offsets has the same rows whenever it is run: its times are exact, and a hold, whose id is
    in
the checkpoint, keeps their history until Spark has reported the batch as done, or until `hold_for_s` after
the query ended. An older checkpoint is refused once its history is gone.

This relies on facts of Spark 4.3: `initialOffset` is called again after a restart unless the first batch was
done, so it must not contain a frontier; `latestOffset` is called every 13 ms when idle; `commit` comes with
the next batch, never for the last one; `stop` is not called when the query dies.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidelake.data.answer import changefeed
from tidelake.data.answer.tablerows import repeated
from tidelake.data.ingest.convert import convert
from tidelake.errors import HistoryCompacted, IncompatibleSchema, InvalidUpdates, TidelakeError, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake, open_lake
from tidelake.model.frontier import Frontier
from tidelake.model.query import Query, Updates
from tidelake.model.schema import DIFF
from tidelake.model.time import TIME_MAX, TimeDomain
from tidelake.shard.reading.tail import Tail
from tidelake.shard.runs.plan import run_task
from tidelake.spark.source.interface import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from tidelake.spark.source.offsets import LATEST, SNAPSHOT, Begin, Json, Offset, Position, from_json, to_json
from tidelake.spark.source.options import RowShape
from tidelake.spark.source.planning import readable, timed
from tidelake.spark.source.sentences import told
from tidelake.spark.source.stream_read import StreamRead
from tidelake.spark.tasks import one_thread
from tidelake.spark.versions import arrow_schema
from tidelake.state.core.backlog import Limits

# Stored bytes of one partition; fewer if that would make fewer partitions than the machine has cores.
_TASK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class StreamTask(InputPartition):
    """One key range of a batch, as a worker gets it.

    Attributes:
        task: a task of a plan.
        shape: the form of the rows, and of their times.
        key: names of the key columns, for a change feed.
        domain: unit of the times.
    """

    task: bytes
    shape: RowShape
    key: tuple[str, ...]
    domain: TimeDomain

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with at least the columns that Spark asked for."""
        found = run_task(self.task)
        match self.shape.rows:
            case "table":
                return (piece for batch in found for piece in _arrivals(batch))
            case "updates":
                return timed(found, self.shape, self.domain)
            case "feed":
                return changefeed.change_feed(found, self.key, self.domain)


def _arrivals(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Repeat added rows as often as they are added; a removed row is an error."""
    counts = batch.column(DIFF).to_numpy()
    if len(counts) and counts.min() < 0:
        row = batch.slice(int(counts.argmin()), 1).to_pylist()[0]
        raise InvalidUpdates(
            f"a row was removed, which a stream of added rows cannot show: {str(row)[:300]}; read with "
            "option withDiff=true or changeFeed=true, with a new checkpoint, into a sink that applies changes"
        )
    return repeated(batch, counts)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a collection for one streaming query. Opens nothing before the first call.

    Args:
        read: what to read.
        schema: the columns to read: those of the shape, or the user's choice.
    """

    def __init__(self, read: StreamRead, schema: StructType) -> None:
        self._read = read
        self._schema = schema
        self._opened: tuple[Lake, Collection] | None = None
        self._tail: Tail | None = None
        self._key: tuple[str, ...] = ()
        self._until: Frontier | None = None

    @told
    def initialOffset(self) -> Json:
        """The start of a query without a checkpoint; every call returns the same. Reads no data."""
        collection = self._collection()
        self._tail_of(None)  # refuses what cannot be followed
        return to_json(Begin(collection.id, self._read.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Whether there is a limit. Spark has no limit by times: `latestOffset` applies both limits."""
        if self._limits.none:
            return ReadAllAvailable()
        return ReadMaxRows(TIME_MAX if self._read.max_rows is None else self._read.max_rows)

    @told
    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the times that are closed now. One log scan."""
        self._until = self._collection().upper

    @told
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the batch that begins at `start`; `start` if there is nothing to read.

        At most one log scan every `poll_s`; see `Tail.step`. One log write for the first batch.
        """
        begun = self._checked(from_json(start))
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        try:
            end = self._begun(begun, limits) if isinstance(begun, Begin) else self._next(begun, limits)
        except HistoryCompacted as error:
            raise self._lost(error, begun) from error
        return start if end is None else to_json(end)

    def reportLatestOffset(self) -> Json | None:
        """The newest known upper, for Spark's progress reports. No store call."""
        if self._tail is None or self._opened is None:
            return None
        return to_json(Position(self._opened[1].id, self._tail.hold, self._tail.known.upper))

    @told
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of a batch, by key range. At most one log scan, and a log write for the first batch."""
        begun, ended = self._checked(from_json(start)), self._checked(from_json(end))
        if isinstance(ended, Begin) or start == end:
            return []
        # They differ after a restart under a PySpark before 4.2: see `UnlimitedStreamReader`.
        tail = self._tail_of(begun.hold if isinstance(begun, Position) else ended.hold)
        lower = _lower(begun, ended)
        asked: Query = tail.snapshot_of(ended.frontier) if lower is None else Updates(lower, ended.frontier)
        start_of = ended.frontier if lower is None else lower
        cores, bytes_max = self._read.parallelism or os.cpu_count() or 1, _TASK_BYTES
        try:
            plan = tail.plan(asked, start_of, cores, None if self._read.parallelism else bytes_max)
        except HistoryCompacted as error:
            raise self._lost(error, ended) from error
        except IncompatibleSchema as error:
            raise IncompatibleSchema(f"{error}: start the query again, from the same checkpoint") from error
        if plan is None:
            return []
        domain, shape = self._collection().domain, self._read.shape
        return [StreamTask(task, shape, self._key, domain) for task in plan.tasks]

    @told
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, sorted by key, value and time. In a worker."""
        one_thread()
        if not isinstance(partition, StreamTask):
            raise UsageError(f"a partition is a {type(partition).__name__}, not one of this stream")
        schema = arrow_schema(self._schema)
        return (convert(batch, schema) for batch in partition.batches())

    @told
    def commit(self, end: Json) -> None:
        """Spark will not ask again for batches up to `end`: release their history, about a minute later."""
        done = self._checked(from_json(end))
        if isinstance(done, Position):
            self._tail_of(done.hold).move(done.frontier)

    def stop(self) -> None:
        """Stop renewing the hold. It lasts for `hold_for_s`, so that the query can be continued."""
        if self._tail is not None:
            self._tail.stop()
        if self._opened is not None:
            self._opened[0].close()
        self._tail = self._opened = None

    @property
    def _limits(self) -> Limits:
        return Limits(self._read.max_rows, self._read.max_times)

    def _collection(self) -> Collection:
        if self._opened is None:
            lake = open_lake(self._read.url, create=False)
            self._opened = lake, lake.collection(self._read.collection)
        return self._opened[1]

    def _tail_of(self, hold: str | None) -> Tail:
        """The tail with a given hold; None: with this query's hold, or a fresh one."""
        if self._tail is None or hold not in (None, self._tail.hold):
            collection, read = self._collection(), self._read
            if self._tail is not None:
                self._tail.stop()
            # Decide once: a running query keeps its schema, also if the collection's columns change.
            under = readable(collection, read.shape, self._schema)
            self._key = under.key
            self._tail = collection.tail(
                hold,
                hold_for=read.hold_for_s,
                poll_s=read.poll_s,
                columns=under.columns,
                where=read.shape.where,
                schema_id=under.schema_id,
            )
        return self._tail

    def _checked(self, offset: Offset) -> Offset:
        """Refuse the offset of another collection."""
        collection = self._collection()
        if offset.collection != collection.id:
            raise UsageError(
                f"the query's checkpoint is of another collection than the one that is called "
                f"{collection.name!r} now: give the query a new checkpoint"
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
        return HistoryCompacted(error.asked, error.since, remedy).of(error.unit)


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A read that cannot be: Spark shows what a reader raises, and not why there is none."""

    def __init__(self, error: TidelakeError) -> None:
        self._error = error

    @told
    def _refuse(self, *_: object) -> Any:
        raise self._error

    initialOffset: Any = _refuse
    latestOffset: Any = _refuse
    partitions: Any = _refuse
    getDefaultReadLimit: Any = _refuse
    prepareForTriggerAvailableNow: Any = _refuse
    read: Any = _refuse


class UnlimitedStreamReader(StreamReader):
    """Reads for a PySpark before 4.2, which tells neither where a batch begins nor how large it may be.

    A batch takes all times that are closed. A query that is started again learns its place only when Spark
    asks for the partitions of its first batch. So the end of that batch names a hold of this run, which keeps
    what comes after it. The hold of the run before keeps the batch, and is released once that is done.
    """

    def __init__(self, read: StreamRead, schema: StructType) -> None:
        super().__init__(read, schema)
        self._at: Position | None = None
        self._hold_before: str | None = None

    @told
    def latestOffset(self) -> Json:  # type: ignore[override]
        """The end of the next batch; that of the last one if there is nothing to read. Costs as above."""
        if self._at is None:
            begin = Begin(self._collection().id, self._read.start)
            return to_json(self._first(begin) or begin)
        try:
            return to_json(self._next(self._at, Limits()) or self._at)
        except HistoryCompacted as error:
            raise self._lost(error, self._at) from error

    @told
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """As `StreamReader`."""
        found = super().partitions(start, end)
        begun, ended = from_json(start), from_json(end)
        if isinstance(ended, Position):
            self._at = ended
            if isinstance(begun, Position) and begun.hold != ended.hold:
                self._hold_before = begun.hold
        return found

    @told
    def commit(self, end: Json) -> None:
        """As `StreamReader`."""
        done = from_json(end)
        if self._hold_before is not None and isinstance(done, Position) and done.hold != self._hold_before:
            self._tail_of(self._hold_before).release()
            self._tail = self._hold_before = None
        super().commit(end)

    def _first(self, begin: Begin) -> Position | None:
        """The end of the first batch of this run, whether the query is new or goes on."""
        try:
            return self._begun(begin, Limits())
        except HistoryCompacted:
            if not isinstance(begin.start, Frontier):
                raise
            # A query that goes on needs no history from there; that of a new one ends in `partitions`.
            tail = self._tail_of(None)
            return Position(begin.collection, tail.hold, tail.begin(), begin.start)


def _lower(begun: Offset, ended: Position) -> Frontier | None:
    """The frontier at which a batch begins; None: the batch is the snapshot just before its end."""
    if isinstance(begun, Position):
        return begun.frontier
    if ended.first is None:
        raise UsageError(
            f"the query's checkpoint has no batch before {ended.frontier}, and does not say where that "
            "began: it was edited; give the query a new checkpoint"
        )
    return ended.first if isinstance(ended.first, Frontier) else None

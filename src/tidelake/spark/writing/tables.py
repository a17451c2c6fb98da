"""Change events of many tables, as writes to the collections of one group: one commit for each micro-batch.

Owns the order of the steps. A named writer of the register numbers the micro-batches.

1. Spark decides what micro-batch n is made of.
2. Collections of new tables are created, and those of changed tables evolve. That may be repeated.
3. Each table's events become uploads, as by the envelope `debezium` with `old_rows="stored"`.
4. One transaction appends the uploads of all tables and of the register, closes the times of the whole group,
   and records number n. All of it is in, or nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from tidelake.errors import UpdateBeforeLower, UploadExpired, UpperMismatch, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.lake.arguments.spans import DurationLike
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX
from tidelake.spark.envelopes.changes import LINE, Late
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.held import Held, split, with_held
from tidelake.spark.envelopes.messages import unreadable
from tidelake.spark.envelopes.partitions import seen_again
from tidelake.spark.envelopes.places import TopicPartition
from tidelake.spark.envelopes.read import AS_TEXT, EventReader
from tidelake.spark.envelopes.timeline import Progress as HowFar
from tidelake.spark.envelopes.timeline import Timeline
from tidelake.spark.tasks import described, signed
from tidelake.spark.uploads import Answer
from tidelake.spark.writing.exactly_once import BatchSink, planned_by, planned_places, query_of
from tidelake.spark.writing.heldrows import HeldRows, HeldStore, held_rows
from tidelake.spark.writing.rejects import NumberedBatch, keep
from tidelake.spark.writing.tablelines import Lines, TableTarget, lines_of
from tidelake.spark.writing.tabletargets import Entries, TableTargets
from tidelake.spark.writing.transactions import Surveyed

DEFAULT_WRITER = "spark-tables"


@dataclass(frozen=True)
class TablesBatch:
    """What one micro-batch did.

    Attributes:
        batch: its number in the checkpoint.
        already: it was committed before; its events were not read again.
        upper: the upper of the group after it.
        by_collection: the number of change events of each collection, by name.
        events: change events read, of all tables.
        updates: rows they made, before consolidation.
        heartbeats: heartbeats, messages and transaction markers.
        tombstones: lines ignored.
        late: events whose time was closed when they were read, moved to the least open time.
        rejects: lines that could not be read, stored in the folder of rejects.
        created: collections that were created for it.
        evolved: collections whose columns changed for it.
        held: events that are held back: the commit, or the end, of their transaction is not known yet.
        repeated: events of transactions that are in the collections already, ignored.
        left_out: events of tables without a key, by table: they are in no collection.
        absent: removals of keys that had no row, as far as old rows were looked up.
    """

    batch: int
    already: bool
    upper: Frontier
    by_collection: Mapping[str, int] = field(default_factory=dict)
    events: int = 0
    updates: int = 0
    heartbeats: int = 0
    tombstones: int = 0
    late: int = 0
    rejects: int = 0
    created: tuple[str, ...] = ()
    evolved: tuple[str, ...] = ()
    held: int = 0
    repeated: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    absent: int = 0


Made = Callable[[HeldRows | None], Lines]
Progress = Callable[[TablesBatch], None]
Places: TypeAlias = frozenset[TopicPartition]


@dataclass(frozen=True)
class _Work:
    """What is committed under a number.

    Attributes:
        batch: the number.
        content: what the record says of it.
        end: close all times before it; None: close none.
        changed: what the register gets.
        read_at: as for `GroupWriter.write`.
    """

    batch: int
    content: str
    end: int | None
    changed: Entries
    read_at: int


@dataclass
class TablesSink(BatchSink[TablesBatch, GroupWriter]):
    """What `foreachBatch` calls for each micro-batch of a stream of several tables; made by `tables_sink`.

    Attributes:
        targets: finds the collections of the tables.
        writer: name of the stream's record in the register.
        take_over: whether to take over a name that another query has used.
        progress: called after each micro-batch.
    """

    targets: TableTargets
    writer: str = DEFAULT_WRITER
    take_over: bool = False
    progress: Progress | None = None

    def _take(self, frame: DataFrame, batch: int) -> TablesBatch:
        query = query_of(frame)
        title = f"tidelake: batch {batch} into the tables of {self.targets.into}"
        with described(frame.sparkSession, title), signed(frame.sparkSession):
            return self.write(
                lambda held: lines_of(frame, held, self._taken_bytes),
                query,
                batch,
                planned_by(frame, query, batch),
                planned_places(frame, query, batch),
            )

    def write(
        self, made: Made, query: str, batch: int, content: str = "", planned: Places = frozenset()
    ) -> TablesBatch:
        """Write the lines of a micro-batch, unless it is committed already.

        Args:
            made: reads the lines, and puts those before them that the micro-batch before held back.
            query: identifies the stream.
            batch: number of the micro-batch.
            content: as `planned_by`.
            planned: as `planned_places`.
        """
        register = self.targets.register
        writer = self._writer(query)
        if self._is_in(writer, batch, content):
            return TablesBatch(batch, True, register.upper)
        before = split(writer.last_content)[1]
        self._check_time(before)
        held = held_rows(register, before)
        lines = made(held)
        try:
            done = self._written(
                lines, register, writer, before, held, batch=batch, content=content, planned=planned
            )
            self._first = False
            return done
        finally:
            self._taken_bytes = lines.taken_bytes
            lines.close()

    def _open(self, query: str) -> GroupWriter:
        tables = self.targets
        writer = tables.lake.group_writer(tables.into, self.writer, owner=query, take_over=self.take_over)
        tables.load(tables.register)
        return writer

    def _check_time(self, before: Held | None) -> None:
        """Refuse a path of the time if events are held back, which have the times of their transactions."""
        if before is not None and before.any and self.targets.options.get("time") is not None:
            raise UsageError(
                "events of a transaction are held back by this writer until its commit is known: go on "
                "without time"
            )

    def _timed(
        self,
        lines: Lines,
        register: Collection,
        before: Held | None,
        held: HeldRows | None,
        planned: Places,
    ) -> tuple[Timeline | None, HowFar | None, int]:
        """The times of the transactions, how far the stream is then, and how many messages were seen before.

        No times if the events have times of their own.
        """
        if self.targets.options.get("time") is not None:
            return None, None, 0
        known = {} if before is None else before.progress.partitions
        # An empty micro-batch does not show that it is of Kafka.
        work = Surveyed.of(register, placed=lines.placed or bool(known))
        found, repeated = lines.survey(work), 0
        if lines.placed and (again := seen_again(found, known)):
            repeated = lines.leave_out(again)
            found = lines.survey(work)
        idle_ms = self._envelope().idle_ms
        # What follows a first copy is looked up in it, so the copy is closed first.
        reach = -1 if before is not None and before.progress.copying else None
        times = work.timeline(found, before, held, reach=reach, planned=planned, idle_ms=idle_ms)
        return (None, None, repeated) if times is None else (*times, repeated)

    def _envelope(self) -> Debezium:
        options = {key: value for key, value in self.targets.options.items() if value is not None}
        return Debezium(old_rows="stored", **options)  # type: ignore[arg-type]

    def _written(
        self,
        lines: Lines,
        register: Collection,
        writer: GroupWriter,
        before: Held | None,
        held: HeldRows | None,
        *,
        batch: int,
        content: str,
        planned: Places,
    ) -> TablesBatch:
        times, progress, repeated = self._timed(lines, register, before, held, planned)
        plans = self.targets.plan(lines, times)
        for plan in plans.tables:
            if plan.there is None:
                lines.check(plan, _whole(register.upper))
        targets = self.targets.make(plans)
        store = HeldStore(register, writer.name, before, first=self._first)
        while True:
            read_at = writer.join([target.collection.name for target in targets])
            answers = lines.answers(targets)
            whole = self._rest(lines, register, times)
            for answer in answers:
                whole.add(answer)
            told = content
            if progress is not None:
                told = with_held(content, store.keep(progress, whole.held))
            end, changed = self._closing(times, whole, self.targets.changed(targets, plans.left_out))
            work = _Work(batch, told, end, changed, read_at)
            done = self._appended(targets, answers, whole.rejects, writer, work)
            if done is not None:
                break
        store.committed()
        counts = {target.collection.name: a.events for target, a in zip(targets, answers, strict=True)}
        return TablesBatch(
            batch,
            False,
            done,
            counts,
            whole.events,
            whole.rows,
            whole.heartbeats,
            whole.tombstones,
            whole.late,
            len(whole.rejects),
            tuple(one.collection.name for one in targets if one.created),
            tuple(one.collection.name for one in targets if one.evolved),
            whole.held_events,
            whole.repeated + repeated,
            {str(table): lines.count(table) for table in plans.left_out},
            whole.absent,
        )

    def _closing(self, times: Timeline | None, whole: Answer, changed: Entries) -> tuple[int | None, Entries]:
        """Up to where a micro-batch closes times, and what the register gets."""
        upper = self.targets.register.upper
        if times is not None and times.copying:
            return _copying(times, upper, changed)
        end = _end(times, whole, upper)
        return end, {} if end is None else changed

    def _appended(
        self,
        targets: Sequence[TableTarget],
        answers: Sequence[Answer],
        rejects: Sequence[str],
        writer: GroupWriter,
        work: _Work,
    ) -> Frontier | None:
        """The upper after the commit; None if others wrote meanwhile."""
        register = self.targets.register
        uploads: dict[str, list[bytes]] = {}
        for target, answer in zip(targets, answers, strict=True):
            uploads[target.collection.name] = list(answer.uploads)
        kept = Answer(rejects=tuple(rejects), rejects_to=self.targets.options.get("rejects"))  # type: ignore[arg-type]
        keep(kept, register.name, NumberedBatch(register.id, writer.name, writer.owner, work.batch))
        if work.end is not None and work.changed:
            # The commit that first writes a table also says so in the register.
            at = max(work.end - 1, _whole(register.upper))
            uploads[register.name] = [self.targets.upload(register, work.changed, at)]
        try:
            done = writer.write(
                {name: given for name, given in uploads.items() if given},
                sequence=work.batch,
                content=work.content,
                upper=None if work.end is None else Frontier.of(work.end),
                read_at=work.read_at,
            )
        except (UpperMismatch, UpdateBeforeLower) as error:
            if isinstance(error, UpperMismatch) and register.upper.closed:
                raise
            register.state()
            return None
        except UploadExpired as error:
            if not error.erased:
                raise
            return None
        self.targets.add(work.changed)
        return done.upper

    def _rest(self, lines: Lines, register: Collection, times: Timeline | None) -> Answer:
        """What the lines without a table say: heartbeats, messages, transaction markers."""
        envelope = self._envelope()
        envelope = envelope if times is None else envelope.at(times)
        parser = replace(
            envelope.parser(register), schema=pa.schema([]), key=(), encodings=(), optional=frozenset()
        )
        answer = Answer(rejects_to=envelope.rejects)
        reader = EventReader(parser, AS_TEXT, answer)
        for batch in lines.rest():
            _, parsed, places = reader.read(batch)
            if parsed.events:
                at = parsed.rows.column(LINE)[0].as_py() if parsed.rows.num_rows else 0
                raise unreadable("'source' names no table, so it belongs to no collection", places.text(at))
        reader.finish()
        return answer


def _whole(upper: Frontier) -> int:
    """The time of a group's upper; 0 if it is closed."""
    return next((element for element in upper.elements if isinstance(element, int)), 0)


def _end(times: Timeline | None, answer: Answer, upper: Frontier) -> int | None:
    """Up to where a micro-batch closes times: as the transactions say, or just past its last time."""
    if times is not None and times.upper is not None and upper <= Frontier.of(times.upper):
        return times.upper
    if answer.time_upper is None:
        return None
    if answer.time_upper == TIME_MAX:
        raise UsageError(f"time {TIME_MAX} is the last there is, and closing it would end the group")
    return answer.time_upper + 1


def _copying(times: Timeline, upper: Frontier, changed: Entries) -> tuple[int, Entries]:
    """Up to where a piece of a first copy closes times, and what the register gets.

    The rows stay at their times, which are open, until the last piece closes them. The register's rows come
    in before them, if there is a time.
    """
    now = _whole(upper)
    room = now == 0 or (not times.by_clock and now + 1 < times.floor)
    return (now + 1, changed) if changed and room else (now, {})


def tables_sink(
    lake: Lake,
    into: str,
    *,
    time_unit: str = "counter",
    names: Mapping[str, str] | None = None,
    keys: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    time: str | None = None,
    late: Late = "refuse",
    order_by: str | None = None,
    encodings: str = "",
    rejects: str | None = None,
    idle: DurationLike | None = None,
    writer: str = DEFAULT_WRITER,
    take_over: bool = False,
    progress: Progress | None = None,
) -> TablesSink:
    """A function for `foreachBatch` that writes the change events of many tables, exactly once.

    Each table has a collection, `INTO.SCHEMA.TABLE`, or `INTO.DATABASE.TABLE` for sources without schemas.
    All of them are in one group: a micro-batch is one commit of all tables, which closes the same times in
    all. The collection INTO is the register: it has a row for each table, with the name of its collection,
    and with the columns as the source described them last.

    The collection of a table is created when its first event is seen, from the schema beside the payload.
    When that schema changes, the collection follows: columns are added, become wider or nullable; one that
    the source dropped stays, and is null. Another change is an error, and nothing of the micro-batch is
    committed.

    Old rows are looked up, as by the envelope `debezium` with `old_rows="stored"`: so truncations are carried
    out, and values that the source left out are those of the row before.

    Args:
        lake: the lake.
        into: name of the register.
        time_unit: `"counter"`, `"ms"` or `"us"`: what the times of new collections count.
        names: names of collections by table (`"schema.table"`), instead of the ones above. Those that exist
            must count time in this unit, and may not be in another group.
        keys: key columns of new collections, by table, or the same for all; default: those of the keys of the
            messages, if these have schemas.
        time: as for the envelope `debezium`, like the next ones.
        late: likewise.
        order_by: likewise.
        encodings: likewise, for the columns of all tables.
        rejects: likewise.
        idle: likewise.
        writer: name of the stream's record in the register. Each stream needs its own name.
        take_over: take over a name that another query, that is another checkpoint, has used.
        progress: called after each micro-batch, in the driver.

    Raises (out of the query, as text; the error itself is in `TablesSink.error`):
        InvalidUpdates: an event cannot be read. The micro-batch was not committed, all earlier ones were.
        IncompatibleSchema: a column of a table changed in a way that its collection cannot follow.
        UsageError: a table has no collection, and none can be created; or the writer name belongs to another
            checkpoint.
        WriterFenced: the same query was started elsewhere.
    """
    options: dict[str, object] = {
        "time": time,
        "late": late,
        "order_by": order_by,
        "encodings": encodings,
        "rejects": rejects,
        "idle": idle,
    }
    Debezium(old_rows="stored", **{n: v for n, v in options.items() if v is not None})  # type: ignore[arg-type]
    if time_unit == "date":
        raise UsageError("time_unit='date': change events have positions and moments, and no days: give 'ms'")
    if isinstance(keys, str):
        raise UsageError(f"keys={keys!r} is one text: give a list of columns, or a dict by table")
    tables = TableTargets(lake, into, time_unit, names or {}, keys, options)
    return TablesSink(tables, writer, take_over=take_over, progress=progress)

"""Change events of many tables, as writes to the collections of one group: one commit for each micro-batch.

Owns the order of the steps. A named writer of the register numbers the micro-batches.

1. Spark decides what micro-batch n is made of.
2. Collections of new tables are created, and those of changed tables evolve. That may be repeated.
3. Each table's events become uploads, as by the envelope `debezium` with `old_rows="stored"`.
4. One transaction appends the uploads of all tables and of the register, closes the times of the whole group,
   and records number n. All of it is in, or nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from tidelake.cdc.core.lineerrors import unreadable
from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.cdc.parse.parser import Late
from tidelake.cdc.parse.rows import LINE
from tidelake.cdc.times.heldevents import Held
from tidelake.cdc.times.partitions import seen_again
from tidelake.cdc.times.timeline import Progress as HowFar
from tidelake.cdc.times.timeline import Timeline
from tidelake.errors import UsageError
from tidelake.lake.api.lake import Lake
from tidelake.lake.arguments.spans import DurationLike
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX
from tidelake.spark.envelopes.debezium import Debezium, of_kafka
from tidelake.spark.envelopes.read import AS_TEXT, EventReader
from tidelake.spark.reports import WrittenBatch
from tidelake.spark.uploads import Answer
from tidelake.spark.writing.commit import CommitPoint, Numbered, TriedWrite, committed, open_upper
from tidelake.spark.writing.exactly_once import Progress, Sink
from tidelake.spark.writing.heldrows import HeldRows, HeldStore, held_rows
from tidelake.spark.writing.microbatch import Identity, planned_by
from tidelake.spark.writing.note import BatchNote
from tidelake.spark.writing.rejects import keep
from tidelake.spark.writing.tablelines import Lines, TableTarget, lines_of
from tidelake.spark.writing.tabletargets import Entries, Plans, TableTargets
from tidelake.spark.writing.transactions import Surveyed

DEFAULT_WRITER = "spark-tables"


Made = Callable[[HeldRows | None], Lines]


@dataclass(frozen=True)
class IntoTables:
    """Writes micro-batches of change events to the collections of their tables.

    Attributes:
        targets: finds the collections of the tables.
    """

    targets: TableTargets

    @property
    def title(self) -> str:
        """As `Into`."""
        return f"the tables of {self.targets.into}"

    @property
    def upper(self) -> Frontier:
        """As `Into`: of the register, which is that of the group."""
        return self.targets.register.upper

    def open(self, writer: str, query: str, *, take_over: bool) -> GroupWriter:
        """As `Into`."""
        tables = self.targets
        # The register is created if there is none.
        register = tables.register
        opened = tables.lake.group_writer(tables.into, writer, owner=query, take_over=take_over)
        tables.load(register)
        return opened

    def rows(
        self, frame: DataFrame, query: str, batch: int, expected_bytes: int | None
    ) -> tuple[Made, Identity]:
        """As `Into`: what reads the lines, and puts those before them that were held back before."""
        known = Identity.told(planned_by(frame, query, batch))
        options = self.targets.options
        paths = [tuple(str(one).split(".")) for one in (options.get("time"), options.get("order_by")) if one]
        survey = None
        if options.get("time") is None:
            survey = Surveyed.of(self.targets.register, placed=of_kafka(frame.schema))
        return (lambda held: lines_of(frame, held, expected_bytes, survey, paths)), known

    def finish(self, rows: Made, numbered: Numbered[GroupWriter]) -> WrittenBatch:  # noqa: ARG002
        """As `Into`."""
        return WrittenBatch(numbered.sequence, True, self.upper)

    def write(self, rows: Made, numbered: Numbered[GroupWriter]) -> WrittenBatch:
        """As `Into`."""
        register = self.targets.register
        before = BatchNote.of(numbered.writer.last_content).held
        self._check_time(before)
        held = held_rows(register, before)
        lines = rows(held)
        try:
            times, progress, repeated = self._timed(lines, before, held, numbered.planned)
            plans = self.targets.plan(lines, times)
            for plan in plans.tables:
                if plan.there is None:
                    lines.check(plan, _whole(register.upper))
            targets = self.targets.make(plans)
            store = HeldStore(register, numbered.writer.name, before, first=numbered.first)
            done = committed(_TablesWrite(self, lines, targets, plans, numbered, times, progress, store))
            store.committed()
            left_out = {str(table): lines.count(table) for table in plans.left_out}
            told = replace(done, repeated=done.repeated + repeated, left_out=left_out)
            return replace(told, taken_bytes=lines.taken_bytes)
        finally:
            lines.close()

    def envelope(self) -> Debezium:
        """How events are read of which no table is known."""
        options = {key: value for key, value in self.targets.options.items() if value is not None}
        return Debezium(old_rows="stored", **options)  # type: ignore[arg-type]

    def _check_time(self, before: Held | None) -> None:
        """Refuse a path of the time if events are held back, which have the times of their transactions."""
        if before is not None and before.any and self.targets.options.get("time") is not None:
            raise UsageError(
                "events of a transaction are held back by this writer until its commit is known: go on "
                "without time"
            )

    def _timed(
        self, lines: Lines, before: Held | None, held: HeldRows | None, planned: Collection[TopicPartition]
    ) -> tuple[Timeline | None, HowFar | None, int]:
        """The times of the transactions, how far the stream is then, and how many messages were seen before.

        No times if the events have times of their own.
        """
        if self.targets.options.get("time") is not None:
            return None, None, 0
        known = {} if before is None else before.progress.partitions
        # An empty micro-batch does not show that it is of Kafka.
        work = Surveyed.of(self.targets.register, placed=lines.placed or bool(known))
        found, repeated = lines.survey(work), 0
        if lines.placed and (again := seen_again(found, known)):
            repeated = lines.leave_out(again)
            found = lines.survey(work)
        idle_ms = self.envelope().idle_ms
        # What follows a first copy is looked up in it, so the copy is closed first.
        reach = -1 if before is not None and before.progress.copying else None
        times = work.timeline(found, before, held, reach=reach, planned=planned, idle_ms=idle_ms)
        return (None, None, repeated) if times is None else (*times, repeated)


@dataclass
class _TablesWrite(TriedWrite[WrittenBatch]):
    """One transaction of a micro-batch.

    Attributes:
        into: the tables.
        lines: the lines.
        targets: the collections of their tables.
        plans: what was planned for the tables.
        numbered: the number.
        times: the times of the transactions; None: events have times of their own.
        progress: how far the stream is then.
        store: stores the rows that are held back.
    """

    into: IntoTables
    lines: Lines
    targets: Sequence[TableTarget]
    plans: Plans
    numbered: Numbered[GroupWriter]
    times: Timeline | None
    progress: HowFar | None
    store: HeldStore

    def newest(self) -> CommitPoint:
        """As `TriedWrite`."""
        seqno = self.numbered.writer.join([target.collection.name for target in self.targets])
        return CommitPoint(open_upper(self.into.targets.register), seqno)

    def once(self, at: CommitPoint) -> WrittenBatch:
        """As `TriedWrite`."""
        tables, numbered = self.into.targets, self.numbered
        answers = self.lines.answers(self.targets)
        whole = self._rest()
        for answer in answers:
            whole.add(answer)
        note = numbered.note(whole)
        if self.progress is not None:
            note = replace(note, held=self.store.keep(self.progress, whole.held))
        end, changed = self._closing(whole, tables.changed(self.targets, self.plans.left_out), at.upper)
        uploads = {
            target.collection.name: list(answer.uploads)
            for target, answer in zip(self.targets, answers, strict=True)
        }
        register = tables.register
        keep(whole, register.name, numbered.batch(register))
        if end is not None and changed:
            # The commit that first writes a table also says so in the register.
            uploads[register.name] = [tables.upload(register, changed, max(end - 1, _whole(register.upper)))]
        done = numbered.writer.write(
            {name: given for name, given in uploads.items() if given},
            sequence=numbered.sequence,
            content=note.text,
            upper=None if end is None else Frontier.of(end),
            read_at=at.seqno,
        )
        tables.add(changed)
        counts = replace(
            whole.counted,
            by_collection={
                target.collection.name: answer.counts.events
                for target, answer in zip(self.targets, answers, strict=True)
            },
            created=[one.collection.name for one in self.targets if one.created],
            evolved=[one.collection.name for one in self.targets if one.evolved],
        )
        return WrittenBatch(numbered.sequence, False, done.upper, **counts.counts())

    def _closing(self, whole: Answer, changed: Entries, upper: Frontier) -> tuple[int | None, Entries]:
        """Up to where a micro-batch closes times, and what the register gets."""
        if self.times is not None and self.times.copying:
            return _copying(self.times, upper, changed)
        end = _end(self.times, whole, upper)
        return end, {} if end is None else changed

    def _rest(self) -> Answer:
        """What the lines without a table say: heartbeats, messages, transaction markers."""
        envelope = self.into.envelope()
        envelope = envelope if self.times is None else envelope.at(self.times)
        parser = replace(
            envelope.parser(self.into.targets.register),
            schema=pa.schema([]),
            key=(),
            encodings=(),
            optional=frozenset(),
        )
        answer = Answer(rejects_to=envelope.rejects)
        reader = EventReader(parser, AS_TEXT, answer)
        for batch in self.lines.rest():
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
) -> Sink[Any, GroupWriter]:
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

    Raises (out of the query, as text; the error itself is in `Sink.error`):
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
    return Sink(IntoTables(tables), writer, take_over, progress)

"""Change events of many tables, as writes to the collections of one group: one commit for each micro-batch.

Owns the order of the steps. A named writer of the register numbers the micro-batches.

1. The stream decides what micro-batch n is made of.
2. Collections of new tables are created, and those of changed tables evolve. That may be repeated.
3. Each table's events become uploads, as by the envelope `debezium` with `old_rows="stored"`.
4. One transaction appends the uploads of all tables and of the register, closes the times of the whole group,
   and records number n. All of it is in, or nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tidelake.cdc.core.lineerrors import unreadable
from tidelake.cdc.core.topicpartition import Reached, TopicPartition
from tidelake.cdc.parse.rows import LINE
from tidelake.cdc.times.heldevents import Held
from tidelake.cdc.times.partitions import partitions, seen_again
from tidelake.cdc.times.timeline import Progress as HowFar
from tidelake.cdc.times.timeline import Timeline
from tidelake.errors import UsageError
from tidelake.feeds.answers import Answer
from tidelake.feeds.commit import Numbered
from tidelake.feeds.heldrows import HeldRows, HeldStore, held_rows
from tidelake.feeds.loop import CommitPoint, TriedWrite, committed, open_upper
from tidelake.feeds.note import BatchNote
from tidelake.feeds.reading import AS_TEXT, EventReader
from tidelake.feeds.rejects import keep
from tidelake.feeds.reports import WrittenBatch
from tidelake.feeds.survey import Surveyed, TimedLines
from tidelake.feeds.tablelines import Lines, TableTarget
from tidelake.feeds.tabletargets import Entries, Plans, TableTargets
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.model.frontier import Frontier
from tidelake.model.time import TIME_MAX

# What reads the lines of a micro-batch, after one that held many back or not.
Made = Callable[[bool], Lines]


@dataclass(frozen=True)
class IntoTables:
    """Writes micro-batches of change events to the collections of their tables.

    Attributes:
        targets: finds the collections of the tables.
        by_offsets: messages that come again are left out by their offsets also if events have times of their
            own.
    """

    targets: TableTargets
    by_offsets: bool = False

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

    def finish(self, rows: Made, numbered: Numbered[GroupWriter]) -> WrittenBatch:  # noqa: ARG002
        """As `Into`."""
        return WrittenBatch(numbered.sequence, True, self.upper)

    def write(self, rows: Made, numbered: Numbered[GroupWriter]) -> WrittenBatch:
        """As `Into`."""
        register = self.targets.register
        before = BatchNote.of(numbered.writer.last_content).held
        self._check_time(before)
        held = held_rows(register, before)
        lines = rows(held is not None and held.many)
        try:
            times, progress, repeated = self._timed(lines, before, held, numbered.planned)
            if times is not None and times.due is not None:
                lines.add(times.due)
            plans = self.targets.plan(lines, None if times is None else times.timeline)
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

    def _check_time(self, before: Held | None) -> None:
        """Refuse a path of the time if events are held back, which have the times of their transactions."""
        if before is not None and before.any and self.targets.options.get("time") is not None:
            raise UsageError(
                "events of a transaction are held back by this writer until its commit is known: go on "
                "without time"
            )

    def _timed(
        self, lines: Lines, before: Held | None, held: HeldRows | None, planned: Collection[TopicPartition]
    ) -> tuple[TimedLines | None, HowFar | None, int]:
        """The times of the transactions, how far the stream is then, and how many messages were seen before.

        No times if the events have times of their own.
        """
        known = {} if before is None else before.progress.partitions
        if self.targets.options.get("time") is not None:
            if not self.by_offsets or not (lines.placed or known):
                return None, None, 0
            return None, *_placed(lines, known)
        # An empty micro-batch does not show that it is of Kafka.
        work = Surveyed.of(self.targets.register, placed=lines.placed or bool(known))
        found, repeated = lines.survey(work), 0
        if lines.placed and (again := seen_again(found, known)):
            repeated = lines.leave_out(again)
            found = lines.survey(work)
        idle_ms = self.targets.envelope().idle_ms
        times = work.timeline(found, before, held, planned=planned, idle_ms=idle_ms)
        return times, None if times is None else times.progress, repeated


def _placed(lines: Lines, known: Mapping[TopicPartition, Reached]) -> tuple[HowFar, int]:
    """How far the partitions are, and how many messages were seen before, which are left out."""
    work, repeated = Surveyed(None, lines.placed, timed=False), 0
    found = lines.survey(work)
    if lines.placed and (again := seen_again(found, known)):
        repeated = lines.leave_out(again)
        found = lines.survey(work)
    reached = partitions(found, known, ()) if lines.placed else None
    return HowFar("", partitions=known if reached is None else reached.known), repeated


@dataclass
class _TablesWrite(TriedWrite[WrittenBatch]):
    """One transaction of a micro-batch.

    Attributes:
        into: the tables.
        lines: the lines.
        targets: the collections of their tables.
        plans: what was planned for the tables.
        numbered: the number.
        taken: the lines, if they are those of transactions; None: events have times of their own.
        progress: how far the stream is then.
        store: stores the rows that are held back.
    """

    into: IntoTables
    lines: Lines
    targets: Sequence[TableTarget]
    plans: Plans
    numbered: Numbered[GroupWriter]
    taken: TimedLines | None
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
        whole.count(held=0 if self.taken is None else self.taken.held)
        for answer in answers:
            whole.add(answer)
        note = numbered.note(whole)
        if self.progress is not None:
            survey = b"" if self.taken is None else self.taken.survey
            note = replace(note, held=self.store.keep(self.progress, survey, whole.held))
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
            content=note.content,
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

    @property
    def times(self) -> Timeline | None:
        """The times of the transactions."""
        return None if self.taken is None else self.taken.timeline

    def _closing(self, whole: Answer, changed: Entries, upper: Frontier) -> tuple[int | None, Entries]:
        """Up to where a micro-batch closes times, and what the register gets."""
        if self.times is not None and self.times.copying:
            return _copying(self.times, upper, changed)
        end = _end(self.times, whole, upper)
        return end, {} if end is None else changed

    def _rest(self) -> Answer:
        """What the lines without a table say: heartbeats, messages, transaction markers."""
        envelope = self.into.targets.envelope()
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

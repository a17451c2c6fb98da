"""Debezium change events, one JSON text a line, as updates or as events for an upsert.

Owns the meaning of events. Must not know Spark's streams, nor how updates are stored.

    {"op": "c", "before": null, "after": {...}, "source": {"lsn": 7}}     +1 after, at time 7
    {"op": "r", ...}                                                      the same, from a first copy
    {"op": "u", "before": {...}, "after": {...}, ...}                     -1 before, +1 after
    {"op": "d", "before": {...}, "after": null, ...}                      -1 before
    {"op": "h", "source": {"lsn": 9}}                                     no rows; time has reached 9
    {"op": "m", "source": {"lsn": 9}, "message": ...}                     the same
    {"ts_ms": 9}, {"status": "END", "id": "5:9", ...}                     the same, if it has the time field
    null, blank line                                                      ignored (a tombstone of Kafka)
    {"op": "t", "source": {"lsn": 9}}                                     all rows before it are removed

An event may be wrapped in `{"schema": ..., "payload": <event>}`; then the schema says how values are
encoded. Fields of a row that the collection does not have are ignored; every column of the collection must
be present.

Old rows are taken from `before` or, with `old_rows="stored"`, from the collection: then only the key columns
are read from `before` or, if that is null, from the message's key. A change of the key removes the row of the
old key. A value that the source left out (an unchanged large one) is that of the row before. With old rows
from `before` such a value, and a truncation, are refused.

Lines are decoded once (`decoded`), and the rows of many are read at once (`blocks`). Events of which that
parser is not sure are halved, and in the end parsed line by line (`exact`).

INVARIANT: a line is either counted as tombstone, heartbeat or event, or it is an error that names the
file, the line and the reason. There is no other case.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from tidelake.cdc.core.columns import concat
from tidelake.cdc.core.events import EventLayout, Events, EventSide, Ints, RawEvents
from tidelake.cdc.core.lineerrors import as_bytes, cut, late_reason, shown, unreadable
from tidelake.cdc.core.ops import DEBEZIUM, MARKS, TRUNCATE, Terms, Unfit
from tidelake.cdc.core.outcome import Parsed, Reject
from tidelake.cdc.debezium.blocks import BlockReader, raw_events
from tidelake.cdc.debezium.connectors import connector_of
from tidelake.cdc.debezium.decoded import Decoded, decode
from tidelake.cdc.debezium.exact import Event, parse
from tidelake.cdc.debezium.rowcolumns import BadRow, chosen, joined_sides, rows_of
from tidelake.cdc.parse.rows import LEFT_OUT, LINE, ORDER, REMOVED, TIME, EventRows, truncates
from tidelake.cdc.times.positions import NONE, ROWS, positions
from tidelake.cdc.times.timeline import Timeline
from tidelake.data.json.block import halved
from tidelake.data.json.encoding import PLAIN, Encoding
from tidelake.data.json.values import check_readable
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.schema import DIFF

Late: TypeAlias = Literal["refuse", "advance"]
# Reads one event by its number; None: it is a tombstone.
Exact: TypeAlias = Callable[[int], Event | None]
OldRows: TypeAlias = Literal["events", "stored"]


def _required(name: str) -> pa.Field:
    return pa.field(name, pa.int64(), nullable=False)


@dataclass(frozen=True)
class ChangeParser:
    """Reads lines of one collection. Picklable.

    Attributes:
        schema: key and value columns.
        key: names of the key columns.
        time: path of the time in an event: names, separated by dots.
        lower: events before this time are late.
        late: `"refuse"` makes a late event an error; `"advance"` leaves it as it is, and counts it.
        old_rows: `"events"`: in `before`; `"stored"`: in the collection.
        order_by: path of the value that orders events of one time; needs `old_rows="stored"`.
        encodings: encodings of columns by name, used if there is no schema beside the payload.
        rejects: collect lines that cannot be read instead of failing.
        optional: columns that a change of the collection's schema added: they may be missing, and are null.
        earliest: an event before this time is an error: its time must be in another unit.
        timeline: the times of the events' transactions; None: events have their times.
        untimed: refuse events whose times are those of their transactions: they are not known here.
        routed: all lines are of one table, as `routes` finds it, and the keys of their messages are checked.
    """

    schema: pa.Schema
    key: tuple[str, ...] = ()
    time: str = "source.lsn"
    lower: int = 0
    late: Late = "refuse"
    old_rows: OldRows = "events"
    order_by: str | None = None
    encodings: tuple[tuple[str, Encoding], ...] = ()
    rejects: bool = False
    optional: frozenset[str] = frozenset()
    earliest: int = 0
    timeline: Timeline | None = None
    untimed: bool = False
    routed: bool = False

    def __post_init__(self) -> None:
        check_readable(self.schema)
        for what, path in (("time", self.time), ("order_by", self.order_by)):
            if path is not None and not all(path.split(".")):
                raise UsageError(f"{what}={path!r} is not a path: give names separated by dots")
        for name, options in (("late", Late), ("old_rows", OldRows)):
            if getattr(self, name) not in get_args(options):
                known = " or ".join(map(repr, get_args(options)))
                raise UsageError(f"{name}={getattr(self, name)!r} is unknown: use {known}")
        unknown = [name for name, _ in self.encodings if name not in self.schema.names]
        if unknown:
            raise UsageError(f"encodings name {unknown[0]!r}, which is no column of the collection")

    @property
    def terms(self) -> Terms:
        """How errors call what an event has."""
        return DEBEZIUM

    @property
    def refuses_second(self) -> bool | None:
        """Whether a row that gets the key of another one is refused; None: that it does is not known."""
        return None

    def origin(self, line: bytes | None) -> bytes | None:
        """A line as its source wrote it, for messages and rejects."""
        return line

    @property
    def schema_of_rows(self) -> pa.Schema:
        """The schema of `Parsed.rows`.

        Updates: the columns, `_time` and `_diff`. Events: the columns, values nullable, `_time`, `_removed`,
        `_order` (by `order_by`, 0 without), `_line` (the number of the line, from 0) and `_left_out` (the
        names of the columns whose values are to be looked up, as a JSON list; null: none).
        """
        if self.old_rows == "events":
            return pa.schema([*self.schema, _required(TIME), _required(DIFF)])
        fields = [f if f.name in self.key else f.with_nullable(True) for f in self.schema]
        removed = pa.field(REMOVED, pa.bool_(), nullable=False)
        left_out = pa.field(LEFT_OUT, pa.string())
        return pa.schema([*fields, _required(TIME), removed, _required(ORDER), _required(LINE), left_out])

    @cached_property
    def layout(self) -> EventLayout:
        """Which fields of events are read."""
        stored = self.old_rows == "stored"
        before = pa.schema([f for f in self.schema if f.name in self.key]) if stored else self.schema
        order = None if self.order_by is None else tuple(self.order_by.split("."))
        time = None if self.timeline is not None else tuple(self.time.split("."))
        return EventLayout(
            before, self.schema, time, order, stored, Encoding(inner=self.encodings), self.optional
        )

    @cached_property
    def rows(self) -> EventRows:
        """Makes rows of events."""
        return EventRows(self.schema_of_rows, self.schema.names, self.key, self.layout, self.terms)

    @cached_property
    def _blocks(self) -> BlockReader:
        return BlockReader(self.layout)

    def decoded(self, lines: pa.Array, column: pa.StructArray | None = None) -> Decoded:
        """Decode lines (binary), unless they are: then `column` is `Decoded.column`."""
        found = None if column is None else Decoded.of_column(lines, column)
        return (
            found if found is not None and found.has(self.layout.paths) else decode(lines, self.layout.paths)
        )

    def parse(
        self,
        lines: pa.Array | Decoded,
        where: Callable[[int], str],
        keys: pa.Array | None = None,
        times: Ints | None = None,
    ) -> Parsed:
        """Parse lines."""
        bad: list[Reject] = []
        given = lines if isinstance(lines, Decoded) else self.decoded(as_bytes(lines))

        def fail(at: Reject) -> None:
            line = self.origin(given.lines[at.line].as_py())
            raise unreadable(at.reason, f"{where(at.line)} line={shown(line)}")

        if self.untimed:
            self._check_untimed(given, fail)
        found = self._read(given, bad)
        if times is not None:
            found = self._timed(found, times, bad)
        return self.parsed_of(found, bad, keys, fail, given.lines)

    def _read(self, given: Decoded, bad: list[Reject]) -> Events:
        """The events in decoded lines."""
        raw, marks, heartbeats, others = raw_events(given, self.layout)
        tombstones = int((~others).sum()) - len(raw) - heartbeats
        exact = partial(self._exact, given)
        rest = np.flatnonzero(others)
        found = self.events_of(raw, rest, exact, bad, marks=marks, tombstones=tombstones)
        return replace(found, heartbeats=found.heartbeats + heartbeats - len(marks))

    def _exact(self, given: Decoded, number: int) -> Event | None:
        time = None if self.timeline is not None else self.time
        stored = self.old_rows == "stored"
        line = given.lines[number].as_py()
        return parse(line, time, self.order_by, stored, self.terms, routed=self.routed)

    def events_of(
        self, raw: RawEvents, others: Ints, exact: Exact, bad: list[Reject], *, marks: Ints, tombstones: int
    ) -> Events:
        """Read the rows of events.

        Args:
            raw: the events.
            others: numbers of further events, which are read one by one.
            exact: reads one event, by its number.
            bad: gets those that cannot be read.
            marks: times of heartbeats and messages.
            tombstones: number of tombstones.
        """

        def one_by_one(at: slice) -> Events:
            # The first bad line fails the whole batch, so that the rest need not be parsed.
            return self._one_by_one(exact, raw.lines[at if self.rejects or not bad else slice(0)], bad)

        parts = halved(lambda at: self._blocks.read(raw.slice(at)), one_by_one, len(raw))
        if bad and not self.rejects:
            others = others[others < min(reject.line for reject in bad)]
        if len(others):
            parts.append(self._one_by_one(exact, others, bad))
        found = self._joined(parts)
        return replace(
            found,
            marks=np.concatenate([marks, found.marks]),
            heartbeats=found.heartbeats + len(marks),
            tombstones=found.tombstones + tombstones,
        )

    def _check_untimed(self, lines: Decoded, fail: Callable[[Reject], None]) -> None:
        """Refuse events whose times are those of their transactions, and say what there is to do."""
        found = positions(lines)
        connector = found.connector
        if not connector:
            return
        rows = (found.roles & ROWS) > 0
        if rows.any() and (found.starts[rows] < 0).all():
            fail(Reject(int(np.flatnonzero(rows)[0]), connector_of(connector).remedy))
        raise InvalidUpdates(
            f"the times of change events of {connector!r} are those of their transactions, "
            "which one task does not know: use tidelake.spark.ingest, or foreachBatch with "
            "tidelake.spark.sink; or name the time that events have: time='source.lsn'"
        )

    def _timed(self, found: Events, times: Ints, bad: list[Reject]) -> Events:
        """The events at given times; those without one are bad."""
        found = replace(found, times=times[found.lines], marks=np.zeros(0, np.int64))
        without = found.times == NONE
        if not without.any():
            return found
        reason = (
            "not of the connector" if self.timeline is None else connector_of(self.timeline.connector).remedy
        )
        bad += [Reject(int(line), reason) for line in found.lines[without]]
        return chosen(found, ~without)

    def from_events(self, found: Events, bad: list[Reject], keys: pa.Array | None = None) -> Parsed:
        """Process events that are columns already; `bad` are the rows that could not be read."""

        def fail(at: Reject) -> None:
            raise unreadable(at.reason, f"row={at.line}")

        return self.parsed_of(found, bad, keys, fail)

    def parsed_of(
        self,
        found: Events,
        bad: list[Reject],
        keys: pa.Array | None,
        fail: Callable[[Reject], None],
        lines: pa.Array | None = None,
    ) -> Parsed:
        """The rows of events; `fail` raises the error of an event."""
        early = found.times < self.earliest
        if early.any():
            # The time field is wrong for all events: this is an error of the call, not rejects.
            at = int(np.flatnonzero(early)[0])
            fail(Reject(int(found.lines[at]), self._implausible(int(found.times[at]))))
        if len(found.marks) and int(found.marks.min()) < self.earliest:
            fail(Reject(0, self._implausible(int(found.marks.min()))))
        late = found.lines[found.times < self.lower]
        if self.late == "refuse" and len(late):
            time = int(found.times[found.times < self.lower][0])
            fail(Reject(int(late[0]), late_reason(time, self.lower)))
        stored = self.old_rows == "stored"
        if stored and keys is not None and not self.routed:
            self.rows.check_keys(found, keys, fail)
        rows = self.rows.events(found, keys, bad, lines) if stored else self.rows.updates(found)
        bad.sort(key=operator.attrgetter("line"))
        if bad and not self.rejects:
            fail(bad[0])
        # Exclude rejected events; some are rejected only above, when keys are read.
        events = ~np.isin(found.lines, [reject.line for reject in bad])
        ends = [int(times.max()) for times in (found.times[events], found.marks) if len(times)]
        return Parsed(
            rows,
            int(events.sum()),
            found.heartbeats,
            found.tombstones,
            int((found.times[events] < self.lower).sum()),
            max(ends, default=None),
            tuple(bad),
            truncates(found),
        )

    def _implausible(self, time: int) -> str:
        return (
            f"its time {time} at {self.time!r} lies before 1990: is it of another unit, such as "
            f"seconds? If it is meant, name the field: time={self.time!r}"
        )

    def _one_by_one(self, exact: Exact, numbers: Ints, bad: list[Reject]) -> Events:
        events: dict[int, Event] = {}
        tombstones = 0
        for number in numbers.tolist():
            try:
                event = exact(number)
            except Unfit as unfit:
                bad.append(Reject(number, cut(str(unfit))))
                continue
            if event is None:
                tombstones += 1
            else:
                events[number] = event
        marks = [event for event in events.values() if event.op in MARKS]
        of_rows = {number: event for number, event in events.items() if event.op not in MARKS}
        before, after = self._sides(of_rows, bad)
        return Events(
            np.array(list(of_rows), np.int64),
            np.array([event.time for event in of_rows.values()], np.int64),
            None if self.order_by is None else np.array([e.order for e in of_rows.values()], np.int64),
            before,
            after,
            np.array([event.time for event in marks if event.time is not None], np.int64),
            len(marks),
            tombstones,
            np.array([number for number, e in of_rows.items() if e.op == TRUNCATE], np.int64),
        )

    def _sides(self, events: dict[int, Event], bad: list[Reject]) -> tuple[EventSide, EventSide]:
        """The rows of events; those that cannot be read are removed from `events`."""
        while True:
            try:
                return (
                    self._side(events, "before", self.layout.before),
                    self._side(events, "after", self.layout.after),
                )
            except BadRow as row:
                del events[row.line]
                bad.append(Reject(row.line, cut(row.reason)))

    def _side(self, events: dict[int, Event], name: str, schema: pa.Schema) -> EventSide:
        sides: list[EventSide] = []
        for encoding in dict.fromkeys(event.encoding for event in events.values()):
            rows = {
                number: getattr(event, name)
                for number, event in events.items()
                if event.encoding == encoding and getattr(event, name) is not None
            }
            given = encoding if encoding != PLAIN else self.layout.encodings
            keeps, terms = self.layout.keeps(name), self.terms
            sides.append(rows_of(rows, name, schema, given, self.optional, keeps=keeps, terms=terms))
        return joined_sides(sides, schema)

    def _joined(self, parts: list[Events]) -> Events:
        before = [part.before for part in parts]
        after = [part.after for part in parts]
        orders = concat([part.orders for part in parts if part.orders is not None])
        lines = concat([part.lines for part in parts])
        order = np.argsort(lines, kind="stable")
        return Events(
            lines[order],
            concat([part.times for part in parts])[order],
            None if self.order_by is None else orders[order],
            joined_sides(before, self.layout.before),
            joined_sides(after, self.layout.after),
            concat([part.marks for part in parts]),
            sum(part.heartbeats for part in parts),
            sum(part.tombstones for part in parts),
            np.sort(concat([part.truncates for part in parts])),
        )

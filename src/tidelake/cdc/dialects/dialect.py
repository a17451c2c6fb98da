"""Change events of other tools: what a module of a tool must say, and how its messages become events.

Owns that bad messages and rejects keep the number of their line. What the fields of a tool's messages mean is
owned by the tool's module. Must not know Spark.

A message becomes one event for each row that it changes, with the rows as JSON. If it changes rows of another
table at time 9, it says that all before 9 is there. Any other message becomes nothing.

INVARIANT: a message is rejected as a whole: none of its rows is kept if one of them cannot be read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from tidelake.cdc.core.events import Ints, Mask, RawEvents
from tidelake.cdc.core.lineerrors import cut
from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.core.outcome import Reject
from tidelake.cdc.debezium.decoded import row_texts
from tidelake.cdc.debezium.messagekeys import changed
from tidelake.cdc.debezium.unavailable import PLACEHOLDER
from tidelake.cdc.dialects.fieldnumbers import MICROSECONDS, number_in
from tidelake.cdc.dialects.jsonvalues import ZERO, zero_as_null, zero_refused
from tidelake.data.json.encoding import PLAIN, Encoding
from tidelake.data.json.values import not_json
from tidelake.model.time import TIME_MAX

# A row, or a value, as JSON.
Json: TypeAlias = bytes
# A change of a row: op, old row, new row; a side that is missing is None.
Change: TypeAlias = tuple[Json, Json | None, Json | None]
Repair: TypeAlias = Callable[[Json], Json]

# The paths of what a message has of one event, for messages.
TIME_PATH, ORDER_PATH = "time", "order"
ZeroTimes: TypeAlias = Literal["refuse", "null"]
_Rows = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LEFT_OUT = msgspec.Raw(msgspec.json.encode(PLACEHOLDER))


@dataclass(frozen=True)
class Messages:
    """What some messages say; event i has the number i.

    Attributes:
        ops: what happened to each row, as an op of Debezium.
        raw: the rows, their times and orders.
        lines: for each event the number of its line, from 0, ascending.
        marks: times that are reached without rows.
        tombstones: number of tombstones.
        skipped: number of lines that say nothing.
        bad: the lines that cannot be read, ascending.
        tables: the tables whose rows changed, at most two of them.
        another_key: the first line whose table has another key than the collection; None: there is none.
    """

    ops: pa.Array
    raw: RawEvents
    lines: Ints
    marks: Ints
    tombstones: int
    skipped: int
    bad: tuple[Reject, ...]
    tables: tuple[tuple[str, ...], ...]
    another_key: Reject | None = None

    def chosen(self, which: Mask) -> "Messages":
        """Some of the events, with new numbers."""
        raw = replace(self.raw.chosen(which), lines=np.arange(int(which.sum())))
        return replace(self, ops=self.ops.filter(pa.array(which)), raw=raw, lines=self.lines[which])


@dataclass
class Message:
    """What one message says.

    Attributes:
        changes: the rows that it changes.
        time: their time.
        order: the value that orders them among others of their time.
        mark: a time that is reached without rows; None: it tells none.
        table: their table; None: it is about none.
        key: the key columns that it tells.
    """

    changes: list[Change]
    time: int = 0
    order: int = 0
    mark: int | None = None
    table: tuple[str, ...] | None = None
    key: Sequence[str] | None = None


@dataclass(frozen=True)
class Dialect(ABC):
    """How a tool writes its messages. Picklable.

    Attributes:
        time: path of the time in a message: names, separated by dots.
        order: path of the value that orders events of one key and time; None: there is none.
        unit: the unit of the collection's times.
        schema: the columns of the collection; decides how texts are repaired.
        table: the parts of the name of a table: only its events change rows; None: all are of one table.
        key: the key columns of the collection.
        stored: old rows are looked up.
        counted: columns whose times are written as numbers, see `tidelake.data.json.encoding`.
        zero_times: what MySQL's `0000-00-00` is in columns of dates and timestamps.
    """

    time: str
    order: str | None
    unit: str
    schema: pa.Schema
    table: tuple[str, ...] | None = None
    key: tuple[str, ...] = ()
    stored: bool = False
    counted: frozenset[str] = frozenset()
    zero_times: ZeroTimes = "refuse"

    # The tool's name and terms, the fields that `changes` reads, and what the times in fields count
    # (`fieldnumbers`).
    tool: ClassVar[str]
    terms: ClassVar[Terms]
    members: ClassVar[Mapping[str, Any]]
    clocks: ClassVar[Mapping[str, str]]
    # The field of the time by the unit of the collection's times, what to do if there is none for a unit, and
    # about messages that have no time there; and fields that are positions in a log, and no times of a clock.
    defaults: ClassVar[Mapping[str, str]]
    no_time: ClassVar[str]
    untimed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Whether the source may have dates without a day.
    has_zero_times: ClassVar[bool] = False
    positions: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def table_of(self, message: Any) -> tuple[str, ...]:
        """The table that a message is about, with its database or schema; empty if it is about none."""

    def key_of(self, message: Any) -> Sequence[str] | None:  # noqa: ARG002 - for those that override it
        """The key columns that a message tells of its table; None, or none, if it does not."""
        return None

    @abstractmethod
    def changes(self, message: Any) -> Iterator[Change] | None:
        """The rows that a message changes; None if it is about none.

        Raises:
            Unfit: it cannot be read.
        """

    @abstractmethod
    def on_rows(self, message: Any) -> bool:
        """Whether a message changes rows, of whatever table."""

    def first_copy(self, message: Any) -> bool:  # noqa: ARG002 - for those that override it
        """Whether the message is of a first copy of a table, whose rows may have no time."""
        return False

    def unit_of(self, message: Any, path: str) -> str | None:  # noqa: ARG002 - for those that override it
        """What the number at a path counts, a word of `fieldnumbers`; None: it is a plain number."""
        return self.clocks.get(path)

    def extra(self) -> Mapping[str, Any]:
        """Further members that are read, and their kinds."""
        return {}

    def repairs(self) -> Mapping[str, Repair]:
        """What to do with values before they are read, by column."""
        return {}

    def read(self, lines: pa.Array, encoding: Encoding = PLAIN) -> Messages:
        """Read lines (binary), one message each; rows have values of an encoding."""
        changes: list[Change] = []
        times: list[int] = []
        orders: list[int] = []
        numbers: list[int] = []
        marks: list[int] = []
        bad: list[Reject] = []
        tables: list[tuple[str, ...]] = []
        another: Reject | None = None
        skipped = tombstones = 0
        decoder = self.decoder()
        for number, line in enumerate(lines.to_pylist()):
            if line is None or line.strip() in (b"", b"null"):
                tombstones += 1
                continue
            try:
                made = self.message(line, decoder)
            except Unfit as unfit:
                bad.append(Reject(number, cut(str(unfit))))
                continue
            if made.mark is not None:
                marks.append(made.mark)
            there = bool(made.changes) or made.mark is not None
            # Without a table named, what changes no rows may be about another one.
            ours = there or self.table is not None
            key = made.key
            if key and ours and another is None and self.stored and set(key) != set(self.key):
                another = Reject(number, changed(tuple(key), self.key))
            skipped += not there
            count = len(made.changes)
            changes += made.changes
            times += [made.time] * count
            orders += [made.order] * count
            numbers += [number] * count
            if count and made.table is not None and made.table not in tables and len(tables) < 2:
                tables.append(made.table)
        raw = RawEvents(
            np.arange(len(changes)),
            np.array(times, np.int64),
            None if self.order is None else np.array(orders, np.int64),
            _texts([change[1] for change in changes]),
            _texts([change[2] for change in changes]),
            np.zeros(len(changes), np.int64),
            (encoding,),
        )
        ops = pa.array([change[0].decode() for change in changes], pa.string())
        where, reached = np.array(numbers, np.int64), np.array(marks, np.int64)
        return Messages(ops, raw, where, reached, tombstones, skipped, tuple(bad), tuple(tables), another)

    def of_another_database(self, database: str | None) -> bool:
        """Whether a statement on a database is on another one than that of the table, if that names one."""
        ours = (self.table or ())[:-1]
        return bool(ours and database) and ours != (database,)

    def row(self, row: Any) -> Json:
        """A row as it is to be read.

        Raises:
            Unfit: it is missing, or no object.
        """
        if row is None:
            raise Unfit("a row is missing")
        data = bytes(row)
        if not self._own_repairs and not (self.has_zero_times and ZERO in data):
            return data
        return self._repaired(as_object(row))

    def merged(self, row: Any, changed: Any) -> Json:
        """A row in which some values are replaced.

        Raises:
            Unfit: one of the two is no object.
        """
        return self._repaired({**as_object(row), **as_object(changed)})

    def of_columns(self, row: Mapping[str, Any]) -> Json:
        """A row of columns and values, as JSON."""
        return self._repaired(dict(row))

    def partial(self, row: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Json:
        """The new row of an update: what it leaves out stays as it was, in `before` or the stored row.

        Raises:
            Unfit: it leaves a value out, and the key changes: the stored row of the new key is another one.
        """
        old = before or {}
        row = {**old, **row}
        if not self.stored:
            return self.of_columns(row)
        left = {name: _LEFT_OUT for name in self.schema.names if name not in row and name not in self.key}
        if left and any(name in old and bytes(old[name]) != bytes(row[name]) for name in self.key):
            raise Unfit(
                f"the key changes, and the value of column {next(iter(left))!r} is left out, which only the "
                "row of the old key has: let the source write whole old rows (such as REPLICA IDENTITY FULL)"
            )
        return msgspec.json.encode(left | _Rows.decode(self.of_columns(row)))

    def _repaired(self, row: dict[str, Any]) -> Json:
        for name, repair in self._repairs.items():
            if name in row:
                try:
                    row[name] = msgspec.Raw(repair(bytes(row[name])))
                except Unfit as unfit:
                    raise Unfit(f"column {name!r}: {unfit}") from None
        return msgspec.json.encode(row)

    @cached_property
    def _own_repairs(self) -> Mapping[str, Repair]:
        return self.repairs()

    @cached_property
    def _repairs(self) -> Mapping[str, Repair]:
        found = dict(self._own_repairs)
        if self.has_zero_times:
            repair = zero_as_null if self.zero_times == "null" else zero_refused
            found |= {one.name: repair for one in self.schema if one.name not in found and _of_days(one.type)}
        return found

    def decoder(self) -> msgspec.json.Decoder[Any]:
        """What decodes the fields of messages that are read."""
        paths = [path for path in (self.time, self.order) if path is not None]
        others = dict.fromkeys((path.partition(".")[0] for path in paths), Any)
        return _decoder(tuple((others | dict(self.members) | dict(self.extra())).items()))

    def message(self, line: bytes, decoder: msgspec.json.Decoder[Any]) -> Message:
        """What a line says, by `decoder`.

        Raises:
            Unfit: it cannot be read.
        """
        message = self._decoded(decoder, line)
        table = self.table_of(message)
        if not self._is_ours(table):
            time = self._number(message, self.time, "time") if self.on_rows(message) else None
            return Message([], mark=time - 1 if time else None)
        found = self.changes(message)
        if found is None:
            return Message([], key=self.key_of(message))
        time, order = self._place(message)
        return Message(list(found), time, order, table=table, key=self.key_of(message))

    def _is_ours(self, table: tuple[str, ...]) -> bool:
        if self.table is None or not table:
            return True
        return table == self.table or self.table == table[-1:]

    def _place(self, message: Any) -> tuple[int, int]:
        """The time of a message, and its order; 0 without."""
        time = self._number(message, self.time, "time")
        if time is None and self.first_copy(message):
            time = 0
        if time is None:
            remedy = self.untimed.get(self.time, "set time to the path where messages have it")
            raise Unfit(f"no time at {self.time!r}: {remedy}")
        if self.order is None:
            return time, 0
        order = self._number(message, self.order, "order")
        if order is None:
            raise Unfit(f"no order at {self.order!r}: set order_by to the path where messages have it")
        return time, order

    def _number(self, message: Any, path: str, what: str) -> int | None:
        """The number at a path; None if there is none."""
        value = message
        for name in path.split("."):
            there = value.get(name) if isinstance(value, dict) else getattr(value, _attribute(name), None)
            if there is None:
                return None
            value = there
        clock = what == "time" and self.unit in MICROSECONDS
        value, unit = number_in(value, self.unit_of(message, path), what, path, clock=clock)
        if clock and unit is not None:
            value = value * MICROSECONDS[unit] // MICROSECONDS[self.unit]
        if not 0 <= value <= TIME_MAX:
            raise Unfit(f"the {what} at {path!r} is {value}, and not from 0 to 2^63 - 1")
        return value

    def _decoded(self, decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
        try:
            return decoder.decode(line)
        except msgspec.ValidationError as error:
            raise Unfit(f"not a message of {self.tool}: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unfit(not_json(line, error)) from None


def _texts(rows: list[Json | None]) -> pa.Array:
    return row_texts(rows, np.array([row is not None for row in rows], np.bool_))


@lru_cache(64)
def _decoder(members: tuple[tuple[str, Any], ...]) -> msgspec.json.Decoder[Any]:
    """A decoder of objects with these members, which all may be missing."""
    kinds = dict(members)
    names = {_attribute(name): name for name in kinds}
    shape = msgspec.defstruct(
        "Message", [(_attribute(name), kind, None) for name, kind in kinds.items()], rename=names
    )
    return msgspec.json.Decoder(shape)


@lru_cache(256)
def _attribute(name: str) -> str:
    """The name of a struct's attribute for a member: any text may be the name of a member."""
    return "m_" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c):x}_" for c in name)


def member(message: Any, name: str) -> Any:
    """A member of a decoded message; None if it is null or missing."""
    value = getattr(message, _attribute(name))
    if type(value) is msgspec.Raw:
        text = memoryview(value)
        return None if len(text) == 4 and bytes(text) == b"null" else value
    return value


def _of_days(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def as_object(row: Any) -> dict[str, Any]:
    """The columns of a row, and their values as JSON.

    Raises:
        Unfit: it is missing, or no object.
    """
    if row is None:
        raise Unfit("a row is missing")
    try:
        return _Rows.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unfit(f"a row is not an object: {error}") from None

"""Messages of other tools: what a module of a tool must say, and what a message means by it.

A message becomes one event for each row that it changes, with the rows as JSON. If it changes rows of another
table at time 9, it says that all before 9 is there. Any other message becomes nothing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

import msgspec
import pyarrow as pa

from tidelake.cdc.core.ops import Terms, Unfit
from tidelake.cdc.core.rawjson import MEMBERS
from tidelake.cdc.debezium.exact import value_at
from tidelake.cdc.debezium.unavailable import PLACEHOLDER
from tidelake.cdc.dialects.fieldnumbers import MICROSECONDS, POSITIONS, number_in
from tidelake.cdc.dialects.jsonvalues import ZERO, zero_as_null, zero_refused
from tidelake.data.json.values import not_json

# A row, or a value, as JSON.
Json: TypeAlias = bytes
# A change of a row: op, old row, new row; a side that is missing is None.
Change: TypeAlias = tuple[str, Json | None, Json | None]
Repair: TypeAlias = Callable[[Json], Json]
# A decoded message: its members that a dialect names, rows as JSON.
Fields: TypeAlias = Mapping[str, Any]
Names: TypeAlias = tuple[str, ...]
ZeroTimes: TypeAlias = Literal["refuse", "null"]

_LEFT_OUT = msgspec.Raw(msgspec.json.encode(PLACEHOLDER))
_REPEATS = (
    "a row of a first copy may repeat one that is there already: use old_rows='stored', which replaces it"
)


class RefusedWord(str):
    """Instead of a message's word: why the message is refused, if it is of the collection's table."""

    __slots__ = ()


@dataclass(frozen=True)
class Dialect:
    """What the fields of a tool's messages mean. A path has names, separated by dots.

    Attributes:
        tool: its name.
        op: path of the word that says what happened.
        ops: by word the op of Debezium; `r` is a row of a first copy, which may have no time.
        sides: how errors call the old and the new row.
        whole: what to do so that old rows are whole.
        members: the fields that are read, and their types for msgspec.
        rows: the rows that a message with such an op changes.
        numbers: by path what times and positions are, as `fieldnumbers` says; or what finds that out.
        defaults: the path of the time, by the unit of the collection's times.
        no_time: what to do if there is none for a unit.
        untimed: what to do if messages have no time at a path.
        table: paths of the names of the database and of the table.
        tables: the table of each change, if `table` cannot say it.
        key: path of the key columns; or what finds them.
        word: the word, if `op` cannot say it.
        no_rows: words of messages on no rows.
        removes: words of statements that remove rows without naming them.
        repairs: what makes JSON of values, by the kind of column: `boolean`, `number` or `binary`.
        has_zero_times: whether the source may have dates without a day.
        noun: what a message is called.
    """

    tool: str
    op: str
    ops: Mapping[str, str]
    sides: tuple[str, str]
    whole: str
    members: Mapping[str, Any]
    rows: Callable[["MessageReader", str, Fields], list[Change]]
    numbers: Mapping[str, str | Callable[[Fields], str]]
    defaults: Mapping[str, str]
    no_time: str
    untimed: Mapping[str, str] = field(default_factory=dict)
    table: Names = ()
    tables: Callable[[Fields], list[Names]] | None = None
    key: str | Callable[["MessageReader", Fields], Sequence[str] | None] = ""
    word: Callable[[Fields], str | None] | None = None
    no_rows: Collection[str] = ()
    removes: Collection[str] = ()
    repairs: Mapping[str, Repair] = field(default_factory=dict)
    has_zero_times: bool = False
    noun: str = "message"

    @cached_property
    def terms(self) -> Terms:
        """How errors call what an event has."""
        *words, last = self.ops
        return Terms(
            event=f"{self.noun} of {self.tool}",
            op=self.op.rpartition(".")[2],
            ops={op: word for word, op in [*self.ops.items()][::-1]},
            known=f"{', '.join(words)} and {last}",
            sides=dict(zip(("before", "after"), self.sides, strict=True)),
            whole=self.whole,
        )

    def refusal(self, word: str | None) -> str:
        """Why a message with a word that is no op is refused."""
        if isinstance(word, RefusedWord):
            return word
        if word is None:
            return f"no {self.op!r}: not a {self.terms.event}"
        if word in self.removes:
            return removes(word)
        return f"{self.terms.op} {word!r} is unknown: known are {self.terms.known}"

    def is_position(self, path: str) -> bool:
        """Whether the number at a path is a position in a log, and no time of a clock."""
        return self.numbers.get(path) in POSITIONS


class Message(NamedTuple):
    """What one message says.

    Attributes:
        changes: the rows that it changes.
        time: their time.
        order: the value that orders them among others of their time.
        mark: a time that is reached without rows; None: it tells none.
        tables: the table of each change, or one for all.
        key: the key columns that it tells.
    """

    changes: list[Change]
    time: int = 0
    order: int = 0
    mark: int | None = None
    tables: Sequence[Names] = ()
    key: Sequence[str] | None = None


@dataclass(frozen=True)
class MessageReader:
    """Reads messages of a dialect for one collection. Picklable.

    Attributes:
        dialect: what their fields mean.
        time: path of the time.
        order: path of the value that orders events of one key and time; None: there is none.
        unit: the unit of the collection's times.
        schema: the columns of the collection.
        table: the parts of the name of a table: only its events change rows; None: all are of one table.
        key: the key columns of the collection.
        stored: old rows are looked up.
        counted: columns whose times are written as numbers, see `tidelake.data.json.encoding`.
        zero_times: what MySQL's `0000-00-00` is in columns of dates and timestamps.
        several: one message may change rows of several tables.
        refuses_second: as `ChangeParser`; known if no message comes again at a later time.
    """

    dialect: Dialect
    time: str
    order: str | None
    unit: str
    schema: pa.Schema
    table: Names | None = None
    key: Names = ()
    stored: bool = False
    counted: frozenset[str] = frozenset()
    zero_times: ZeroTimes = "refuse"
    several: bool = False
    refuses_second: bool | None = None

    def read(self, lines: Iterable[bytes | None]) -> Iterator[Message | Unfit | None]:
        """What lines say: why one cannot be read, None of a tombstone."""
        paths = [path for path in (self.time, self.order) if path is not None]
        others = dict.fromkeys((path.partition(".")[0] for path in paths), Any)
        # A type checker knows no such types that are made at run time.
        members: Any = TypedDict("Members", others | dict(self.dialect.members), total=False)  # type: ignore[misc]
        decoder = msgspec.json.Decoder(members)
        for line in lines:
            if line is None or line.strip() in (b"", b"null"):
                yield None
                continue
            try:
                yield self._message(self._decoded(line, decoder))
            except Unfit as unfit:
                yield unfit

    def _decoded(self, line: bytes, decoder: msgspec.json.Decoder[Any]) -> Fields:
        try:
            found: Fields = decoder.decode(line)
        except msgspec.ValidationError as error:
            raise Unfit(f"not a message of {self.dialect.tool}: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unfit(not_json(line, error)) from None
        return found

    def _message(self, message: Fields) -> Message:
        of = self.dialect
        word = of.word(message) if of.word else value_at(message, of.op)
        word = word if isinstance(word, str) else None
        op = of.ops.get(word or "")
        tables = of.tables(message) if of.tables else self._table(message)
        ours = tables if self.table is None else [one for one in tables if self.is_ours(one)]
        if tables and not ours:
            # Statements, and rows of a first copy, have other times or none.
            time = None if op in (None, "r") else self._number(message, self.time, "time")
            return Message([], mark=time - 1 if time else None)
        table = ours[0] if ours else ()
        key = of.key(self, message) if callable(of.key) else _names(value_at(message, of.key))
        if word in of.no_rows or (not table and self._of_another_database(message)):
            return Message([], key=key)
        if op is None:
            raise Unfit(of.refusal(word))
        if not table and self.table is not None and (database := self._database(message)):
            raise Unfit(f"it names {database!r} and no table, and others are of {'.'.join(self.table)!r}")
        if op == "r" and not self.stored:
            raise Unfit(_REPEATS)
        changes: list[Change] = [("t", None, None)] if op == "t" else of.rows(self, op, message)
        time = self._number(message, self.time, "time")
        if time is None and op != "r":
            remedy = of.untimed.get(self.time, "set time to the path where messages have it")
            raise Unfit(f"no time at {self.time!r}: {remedy}")
        order = 0 if self.order is None else self._number(message, self.order, "order")
        if order is None:
            raise Unfit(f"no order at {self.order!r}: set order_by to the path where messages have it")
        return Message(changes, time or 0, order, None, tables if self.several and tables else [table], key)

    def is_ours(self, table: Names) -> bool:
        """Whether a table is that of the collection; a message that names none may be about it."""
        return self.table is None or not table or table == self.table or self.table == table[-1:]

    def row(self, row: Any) -> Json:
        """A row as it is to be read."""
        if row is None:
            raise Unfit("a row is missing")
        data = bytes(row)
        if not self._kinds and not (self.dialect.has_zero_times and ZERO in data):
            return data
        return self.of_columns(as_object(row))

    def merged(self, row: Any, changed: Any) -> Json:
        """A row in which some values are replaced. Errors as `row`."""
        return self.of_columns({**as_object(row), **as_object(changed)})

    def alone(self, op: str, row: Any) -> list[Change]:
        """The change of a row that has only one side. Errors as `row`."""
        return [(op, self.row(row), None) if op == "d" else (op, None, self.row(row))]

    def of_columns(self, row: Mapping[str, Any]) -> Json:
        """A row of columns and values, as JSON."""
        made = dict(row)
        for name, repair in self._repairs.items():
            if name in made:
                try:
                    made[name] = msgspec.Raw(repair(bytes(made[name])))
                except Unfit as unfit:
                    raise Unfit(f"column {name!r}: {unfit}") from None
        return msgspec.json.encode(made)

    def partial(self, op: str, columns: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> Change:
        """The change of rows of which the new one of an update leaves values out.

        They stay as they were, in `before` or the stored row.
        """
        old = None if before is None else self.of_columns(before)
        if op == "d" or columns is None:
            return op, old, None
        if op == "c":
            return op, None, self.of_columns(columns)
        known = before or {}
        row = {**known, **columns}
        left = {name: _LEFT_OUT for name in self.schema.names if name not in row and name not in self.key}
        if not self.stored or not left:
            return op, old, self.of_columns(row)
        if any(name in known and bytes(known[name]) != bytes(row[name]) for name in self.key):
            raise Unfit(
                f"the key changes, and the value of column {next(iter(left))!r} is left out, which only the "
                "row of the old key has: let the source write whole old rows (such as REPLICA IDENTITY FULL)"
            )
        return op, old, msgspec.json.encode(left | MEMBERS.decode(self.of_columns(row)))

    @cached_property
    def _kinds(self) -> Mapping[str, Repair]:
        """What makes JSON of the values of columns, by column."""
        kinds = {one.name: self._kind(one) for one in self.schema}
        repairs = self.dialect.repairs
        return {name: repairs[kind] for name, kind in kinds.items() if kind in repairs}

    def _kind(self, column: pa.Field) -> str:
        is_, kind = pa.types, column.type
        if is_.is_boolean(kind):
            return "boolean"
        if is_.is_integer(kind) or is_.is_floating(kind) or column.name in self.counted:
            return "number"
        return "binary" if is_.is_binary(kind) or is_.is_large_binary(kind) else ""

    @cached_property
    def _repairs(self) -> Mapping[str, Repair]:
        if not self.dialect.has_zero_times:
            return self._kinds
        zero = zero_as_null if self.zero_times == "null" else zero_refused
        days = (one for one in self.schema if pa.types.is_timestamp(one.type) or pa.types.is_date32(one.type))
        return {one.name: zero for one in days} | dict(self._kinds)

    def _table(self, message: Fields) -> list[Names]:
        database, name = [value_at(message, path) for path in self.dialect.table]
        if not isinstance(name, str) or not name:
            return []
        return [(database, name)] if isinstance(database, str) and database else [(name,)]

    def _of_another_database(self, message: Fields) -> bool:
        """Whether a message on a whole database is on another one than that of the collection's table."""
        if self.table is None or len(self.table) < 2:
            return False
        return self._database(message) not in (None, "", self.table[0])

    def _database(self, message: Fields) -> Any:
        return value_at(message, self.dialect.table[0]) if self.dialect.table else None

    def _number(self, message: Fields, path: str, what: str) -> int | None:
        """The number at a path; None if there is none."""
        value = value_at(message, path)
        if value is None:
            return None
        word = self.dialect.numbers.get(path)
        unit = self.unit if what == "time" and self.unit in MICROSECONDS else None
        return number_in(value, word(message) if callable(word) else word, f"the {what} at {path!r}", unit)


def _names(found: Any) -> Sequence[str] | None:
    """The names in a list, or of the members of an object."""
    return [name for name in found if isinstance(name, str)] if isinstance(found, dict | list) else None


def raw(message: Fields, name: str) -> Any:
    """A member that is read as JSON; None if it is null or missing."""
    value = message.get(name)
    return None if value is None or (len(memoryview(value)) == 4 and bytes(value) == b"null") else value


def as_object(row: Any) -> dict[str, Any]:
    """The columns of a row, and their values as JSON."""
    if row is None:
        raise Unfit("a row is missing")
    try:
        return MEMBERS.decode(row)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unfit(f"a row is not an object: {error}") from None


def removes(statement: str) -> str:
    """Why a statement that removes rows is refused."""
    return (
        f"{statement!r} removes rows that no message names: write what is there afterwards with the envelope "
        "'snapshot', and set the message aside with rejects=FOLDER"
    )

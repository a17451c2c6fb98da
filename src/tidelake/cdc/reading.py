"""The events of a change feed as values, without a collection, and without Spark.

Owns the call and the value. What a line means is owned by the rooms below.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import among, mask
from tidelake.cdc.core.lineerrors import cut, shown, unreadable
from tidelake.cdc.core.ops import MARKS, Unfit
from tidelake.cdc.core.tablename import Table, quoted_name
from tidelake.cdc.debezium.blocks import fitting
from tidelake.cdc.debezium.decoded import Decoded, decode
from tidelake.cdc.debezium.exact import parse, parsed_json
from tidelake.cdc.dialects.dialect import Dialect, MessageReader
from tidelake.cdc.dialects.named import DIALECTS
from tidelake.cdc.parse.routes import tables_of
from tidelake.cdc.times.positions import positions
from tidelake.cdc.wire.decoder import Decoder, Tombstones, decoder_of
from tidelake.data.json.values import Unread
from tidelake.errors import UsageError

DEBEZIUM = "debezium"
# So many lines are decoded at once.
_LINES = 8192


@dataclass(frozen=True)
class ChangeEvent:
    """One event of a change feed.

    Attributes:
        line: the number of its line, from 0.
        op: `"c"`, `"u"` or `"d"` (a row is created, updated, deleted), `"r"` (a row of a first copy), `"t"`
            (all rows of the table are removed), or `"h"` (no row: only time goes on).
        table: the table, such as `"shop.public.orders"`; empty if the line names none.
        before: the old row, as far as the line has it; None: it has none.
        after: the new row. Values are those of the line's JSON; numbers with a fraction are decimals.
        time_ms: the source's clock at the commit, in milliseconds since 1970; None: the line does not say.
        position: where its transaction stands in the log of the source; None: the line does not say.
    """

    line: int
    op: str
    table: str
    before: Mapping[str, Any] | None = field(repr=False)
    after: Mapping[str, Any] | None = field(repr=False)
    time_ms: int | None
    position: int | None


def read(
    lines: Iterable[bytes | str | None],
    dialect: str = DEBEZIUM,
    *,
    schemas: str | PathLike[str] | None = None,
    flattened: bool = False,
    tombstones: Tombstones = "refuse",
    rename: Mapping[str, str] | None = None,
) -> Iterator[ChangeEvent]:
    """The events of a change feed, one after the other.

    Some thousand lines are in memory at a time.

    Args:
        lines: one JSON text each, such as an open file, or the values of messages of Kafka; None, empty lines
            and `null` are skipped (tombstones).
        dialect: who wrote them: `"debezium"`, or another tool, such as `"maxwell"`.
        schemas: the place of the schemas of messages of Avro or Protobuf, as for
            `tidelake.spark.decode_events`, like the next three; of Debezium's events.
        flattened: likewise.
        tombstones: likewise.
        rename: likewise.

    Raises:
        InvalidUpdates: a line cannot be read; names it and the reason. The events before it were given.
        UsageError: there is no such dialect; or a schema is missing, or cannot be exact.
    """
    if dialect != DEBEZIUM and dialect not in DIALECTS:
        known = ", ".join(sorted([DEBEZIUM, *DIALECTS]))
        raise UsageError(f"there is no dialect {dialect!r}: known are {known}")
    decoder = decoder_of(schemas, flattened, tombstones, rename)
    if decoder is not None and dialect != DEBEZIUM:
        raise UsageError(f"schemas, flattened and rename are for events of Debezium, not of {dialect!r}")
    return _read(lines, None if dialect == DEBEZIUM else DIALECTS[dialect], decoder)


def _read(
    lines: Iterable[bytes | str | None], dialect: Dialect | None, decoder: Decoder | None
) -> Iterator[ChangeEvent]:
    left, start = iter(lines), 0
    while some := [_bytes(line) for line in islice(left, _LINES)]:
        if decoder is not None:
            some = decoder.values(pa.array(some, pa.binary())).to_pylist()
        yield from _of_debezium(some, start) if dialect is None else _of_tool(some, start, dialect)
        start += len(some)


def _bytes(line: bytes | str | None) -> bytes | None:
    # Halves of a character stay: such a line is then refused, as it is no UTF-8.
    return line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line


def _of_debezium(lines: list[bytes | None], start: int) -> Iterator[ChangeEvent]:
    found = decode(pa.array(lines, pa.binary()))
    places = positions(found)
    tables = tables_of(found).to_pylist()
    op = pc.struct_field(found.fields, "op")
    marks = among(op, MARKS)
    sure = found.known & (marks | fitting(op, found.before, found.after, stored=True))
    tombstones = found.known & mask(found.fields.is_null())
    ops = op.to_pylist()
    for at in np.flatnonzero(~tombstones).tolist():
        if not sure[at]:
            exact = _exactly(found, at, start)
            if exact is None:
                continue
            kind, before, after = exact
        else:
            kind = "h" if marks[at] else ops[at]
            before, after = (
                _row(side[at].as_py(), lines[at], start + at) for side in (found.before, found.after)
            )
        yield ChangeEvent(
            start + at,
            kind,
            str(Table.of(tables[at])) if tables[at] else "",
            before,
            after,
            _known(int(places.clocks[at])),
            _known(int(places.starts[at])),
        )


def _exactly(
    found: Decoded, at: int, start: int
) -> tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None] | None:
    """The op and the rows of an event that the exact parser reads; None: it is a tombstone."""
    line = found.lines[at].as_py()
    try:
        event = parse(line, None, None, True, routed=True)
    except Unfit as unfit:
        _refuse(str(unfit), line, start + at)
    if event is None:
        return None
    rows = (event.before, event.after)
    for row in rows:
        _check(row, line, start + at)
    return ("h" if event.op in MARKS else event.op), *rows


def _of_tool(lines: list[bytes | None], start: int, dialect: Dialect) -> Iterator[ChangeEvent]:
    unit = "ms" if "ms" in dialect.defaults else "counter"
    reader = MessageReader(
        dialect, dialect.defaults[unit], None, unit, pa.schema([]), stored=True, several=True
    )
    for number, (line, told) in enumerate(zip(lines, reader.read(lines), strict=True), start):
        if told is None:
            continue
        if isinstance(told, Unfit):
            _refuse(str(told), line, number)
        time_ms, position = (told.time, None) if unit == "ms" else (None, told.time)
        tables = told.tables if len(told.tables) == len(told.changes) else [*told.tables] * len(told.changes)
        for table, (op, *rows) in zip(map(quoted_name, tables), told.changes, strict=True):
            before, after = (_row(row, line, number) for row in rows)
            yield ChangeEvent(number, op, table, before, after, time_ms, position)


def _row(text: bytes | None, line: bytes | None, number: int) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        row = parsed_json(text)
    except Unfit as unfit:
        _refuse(str(unfit), line, number)
    _check(row, line, number)
    if not isinstance(row, dict):
        _refuse("a row is not an object", line, number)
    return row


def _check(value: Any, line: bytes | None, number: int) -> None:
    """Refuse values that JSON has and no program can be sure of, such as a member that is given twice."""
    if isinstance(value, Unread):
        _refuse(f"a value is {value.what}", line, number)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(inner, line, number)


def _known(value: int) -> int | None:
    return value if value >= 0 else None


def _refuse(reason: str, line: bytes | None, number: int) -> NoReturn:
    raise unreadable(cut(reason), f"line {number}: {shown(line)}") from None

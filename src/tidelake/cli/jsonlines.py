"""Rows as JSON lines, and back. Reading what was written here gives the same rows.

Owns the JSON form of every type; must not know collections. JSON has fewer types than a collection:

    date, time, timestamp   ISO-like text; a timestamp with a zone has its offset
    duration                a whole number of the column's unit
    decimal                 text, so that no digit is lost
    binary                  hexadecimal text
    NaN, infinities         the texts "NaN", "Infinity", "-Infinity"
"""

import datetime
import decimal
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from tidelake.data.answer.timecells import has_no_text, texts
from tidelake.data.json.values import exactly, not_json
from tidelake.data.kernel.types import COLUMNS_MAX, NESTED_MAX
from tidelake.errors import InvalidUpdates, UsageError

_SHOWN_MAX = 60
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FRACTION = re.compile(r"\.(\d{1,9})")
_CONTROLS = re.compile(r"[\x7f-\x9f]")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def dump(value: object) -> str:
    """Encode a value as one line of strict JSON."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    # Controls of eight bits are orders to some terminals, and JSON may have them as they are.
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def lines(batch: pa.RecordBatch) -> Iterator[str]:
    """Encode each row as a JSON object."""
    if any(map(has_no_text, batch.columns)):
        raise UsageError("a time lies outside of the years 1 to 9999, which have no text: use .parquet")
    columns = [column.to_pylist() for column in texts(batch).columns]
    for values in zip(*columns, strict=True):
        yield dump(dict(zip(batch.schema.names, values, strict=True)))


def read(path: Path, file: BinaryIO, schema: pa.Schema | None) -> pa.Table:
    """Read a file of JSON objects, one on each line; blank lines are ignored."""
    rows: list[tuple[int, dict[str, Any]]] = []
    names: dict[str, None] = {}
    for number, line in enumerate(file, 1):
        if line.strip():
            row = _object(line, f"{path} line {number}")
            rows.append((number, row))
            names.update(dict.fromkeys(row))
            if len(names) > COLUMNS_MAX:
                raise InvalidUpdates(
                    f"{path} line {number}: the rows have more than {COLUMNS_MAX:,} columns: put those "
                    "that belong together into an object or a list"
                )
    if not rows:
        raise InvalidUpdates(f"{path} holds no rows: give one JSON object a line")
    known = {} if schema is None else {field.name: field.type for field in schema}
    return pa.table({name: _column(path, rows, name, known.get(name)) for name in names})


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_float=decimal.Decimal)
    except ValueError as error:
        raise InvalidUpdates(f"{where} is {not_json(line, error)}") from error
    except ArithmeticError as error:
        raise InvalidUpdates(f"{where} has a number with too large an exponent") from error
    except RecursionError as error:
        raise InvalidUpdates(f"{where} is nested too deeply") from error
    if not isinstance(row, dict):
        raise InvalidUpdates(f"{where} is not a JSON object: give one object a line")
    for name in row:
        if not _is_text(name):
            raise InvalidUpdates(f"{where} has a column {_shown(name)}, whose name is not Unicode text")
    return row


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _column(
    path: Path, rows: Sequence[tuple[int, dict[str, Any]]], name: str, type_: pa.DataType | None
) -> pa.Array:
    values = []
    for number, row in rows:
        value = row.get(name)
        try:
            value = _guessed(value) if type_ is None else _value(value, type_)
            if type_ is not None:
                pa.scalar(value, type_)  # check it here, where the line number is known
        except (ValueError, TypeError, KeyError, ArithmeticError, pa.ArrowException) as error:
            expected = pa.float64() if type_ is None else type_  # only floats are checked in a guess
            raise InvalidUpdates(
                f"{path} line {number}: column {name!r} is {_shown(row.get(name))}, expected {expected}"
            ) from error
        except RecursionError as error:
            raise InvalidUpdates(f"{path} line {number}: column {name!r} is nested too deeply") from error
        values.append(value)
    try:
        return pa.array(values, type_)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidUpdates(f"{path}: column {name!r} cannot be given one type: {error}") from error


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, default=str)
    except (RecursionError, ValueError):
        return "a value that is nested too deeply, or a number of too many digits"
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def _value(value: Any, type_: pa.DataType) -> Any:
    """Convert a JSON value to a column's type, in a form that Arrow takes."""
    is_ = pa.types
    if value is None:
        return None
    if is_.is_struct(type_):
        if not isinstance(value, dict):
            raise TypeError("not an object")
        unknown = value.keys() - {type_.field(i).name for i in range(type_.num_fields)}
        if unknown:
            raise ValueError(f"no field {min(unknown)}")
        return {
            f.name: _value(value.get(f.name), f.type)
            for f in (type_.field(i) for i in range(type_.num_fields))
        }
    if is_.is_list(type_) or is_.is_fixed_size_list(type_):
        if not isinstance(value, list):
            raise TypeError("not a list")
        return [_value(item, type_.value_type) for item in value]
    if is_.is_floating(type_):
        return _NOT_FINITE[value] if isinstance(value, str) else _float(_number(value), type_)
    if is_.is_decimal(type_):
        return _decimal(value, type_)
    if is_.is_binary(type_) or is_.is_fixed_size_binary(type_):
        return bytes.fromhex(value)
    if is_.is_date(type_):
        return datetime.date.fromisoformat(value)
    if is_.is_time(type_) or is_.is_timestamp(type_):
        return _count(value, type_)
    if isinstance(value, decimal.Decimal):
        raise TypeError("a number with a fraction")
    return value


def _decimal(value: Any, type_: pa.DataType) -> decimal.Decimal:
    if isinstance(value, list):
        raise TypeError("a list")  # `Decimal` takes a list as sign, digits and exponent
    number = decimal.Decimal(value) if isinstance(value, str) else decimal.Decimal(_number(value))
    return exactly(number, type_)


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("a boolean")
    return value


def _float(value: Any, type_: pa.DataType) -> float:
    """Convert a number to a float type: rounded if it has a fraction or an exponent, otherwise exact."""
    held: float = pa.scalar(float(value), type_).as_py()
    if math.isinf(held) and not isinstance(value, float):  # JSON's own numbers are int or Decimal: finite
        raise ValueError("a number that is too large for the type")
    if isinstance(value, int) and held != value:
        raise ValueError("a whole number that the type does not hold")
    return held


def _count(text: str, type_: pa.DataType) -> int:
    """Convert the text of a time or timestamp to a count of the type's unit, without rounding."""
    per_second = _UNITS[type_.unit]
    found = _FRACTION.search(text)
    nanos = int(found[1].ljust(9, "0")) if found else 0
    whole = _FRACTION.sub("", text, count=1)
    if pa.types.is_time(type_):
        clock = datetime.time.fromisoformat(whole)
        if clock.tzinfo is not None:
            raise ValueError("a zone where there is none in the type")
        seconds = clock.hour * 3600 + clock.minute * 60 + clock.second
    else:
        at = datetime.datetime.fromisoformat(whole)
        if (at.tzinfo is None) != (type_.tz is None):
            raise ValueError("a zone where there is none in the type, or the reverse")
        seconds = (at.replace(tzinfo=at.tzinfo or datetime.UTC) - _EPOCH) // datetime.timedelta(seconds=1)
    fraction, rest = divmod(nanos * per_second, 10**9)
    if rest:
        raise ValueError("more digits than the type keeps")
    return seconds * per_second + fraction


def _guessed(value: Any, levels: int = NESTED_MAX) -> Any:
    """Prepare a JSON value for Arrow's type inference: fractions become floats; checks the nesting depth."""
    match value:
        case decimal.Decimal():
            return _float(value, pa.float64())
        case dict() | list() if not levels:
            raise RecursionError(f"nested more than {NESTED_MAX} levels deep")
        case dict():
            return {k: _guessed(v, levels - 1) for k, v in value.items()}
        case list():
            return [_guessed(v, levels - 1) for v in value]
        case _:
            return value


def _plain(value: object) -> object:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case decimal.Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case _:
            return value

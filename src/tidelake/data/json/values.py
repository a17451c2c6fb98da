"""JSON values as Arrow columns, strictly.

Owns which JSON value is which value of a column. A value that does not fit is refused: never a null,
never a rounded number, never a number read from a string by chance. (Spark's `from_json` puts null
wherever a type does not match, and its FAILFAST mode still accepts `"12"` for 12 and drops digits.)
It must not know events or files. It goes from value to value: `block` does the same for many lines at once.

| column | JSON |
|---|---|
| bool | `true`, `false` |
| integers | a number without fraction or exponent, in range |
| floats | a number (a whole one only if it is exact), or `"NaN"`, `"Infinity"`, `"-Infinity"` |
| decimal | a number, or a string that holds nothing else; digits that do not fit are refused |
| string | a string |
| binary | a string in base64 |
| date | days since 1970 as a number, or `"2024-12-31"` |
| timestamp | a number in the column's own unit since 1970, or ISO 8601, with an offset iff it has a zone |
| list, struct | an array; an object with all fields of the struct, further ones are ignored |

`null` is null in every column; whether that is allowed is checked by the caller and by nested fields.
A field that an object has twice has no value: it is refused where it is asked for. Other forms of a value
are `tidelake.data.json.encoding`.
"""

import base64
import binascii
import decimal
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.json.encoding import PLAIN, Encoding, Form
from tidelake.errors import UsageError

_NAMES: dict[type, str] = {
    bool: "a boolean",
    int: "a whole number",
    Decimal: "a number with a fraction",
    str: "a string",
    list: "an array",
    dict: "an object",
}
# What a string may hold that stands for a decimal.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?")
_EXACT = decimal.Context(
    prec=100, traps=[decimal.InvalidOperation, decimal.Inexact, decimal.Overflow, decimal.DivisionByZero]
)
# The units of what numbers count.
_COUNTS: tuple[Form, ...] = ("days", "s", "ms", "us", "ns")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class UnfitValue(Exception):
    """The value at `index` does not fit its column, for `reason`."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(index, reason)
        self.index, self.reason = index, reason


class Unread:
    """The place of a value that is valid JSON but not usable: a field given twice, a number too large."""

    def __init__(self, what: str) -> None:
        self.what = what


def loads(text: str) -> Any:
    """Parse JSON; fractions become `Decimal`, so that no digit is lost before the type is known.

    Fields that an object has twice, and numbers that are too large, become `Unread`: they are refused only
    where they are used.
    """
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_not_json, object_pairs_hook=_object)
    except (ValueError, ArithmeticError):
        return json.loads(
            text, parse_float=_fraction, parse_int=_whole, parse_constant=_not_json, object_pairs_hook=_object
        )


def not_json(line: bytes, error: Exception) -> str:
    """Why a line is no JSON, for messages, and what it may be instead."""
    head, tab, rest = line.partition(b"\t")
    if tab and rest.lstrip()[:1] in (b"{", b"n") and head.strip():
        return (
            "not JSON, but a key and a value with a tab between, as Kafka's console consumer writes them: "
            "read change events with format='keyed', or cut the keys off with cut -f2-"
        )
    # Only the line counts, not the lines that Python sees in it.
    at = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
    return f"not JSON: {at}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        result.update({name: Unread("given twice") for name, count in counts.items() if count > 1})
    return result


def _fraction(text: str) -> Any:
    try:
        return Decimal(text)
    except ArithmeticError:
        return Unread("a number with too large an exponent")


def _whole(text: str) -> Any:
    try:
        return int(text)
    except ValueError:  # Python refuses texts of several thousand digits.
        return Unread("a number of too many digits")


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def check_readable(schema: pa.Schema) -> None:
    """Check that all columns have a JSON form."""
    for field in schema:
        try:
            column([], field.type)
        except UnfitValue as unfit:
            raise UsageError(f"column {field.name!r} {unfit.reason}: use another type") from None


def column(values: Sequence[Any], kind: pa.DataType, encoding: Encoding = PLAIN) -> pa.Array:
    """A column of `kind` from parsed JSON values (of `loads`)."""
    reader = _reader(kind)
    if reader is None:
        raise UnfitValue(-1, f"of type {kind} cannot be read from JSON")
    try:
        if encoding.form != "plain":
            first = _first(values)
            if first is None:
                # Null is null in any form, also in one that the type has not.
                encoding = PLAIN
            else:
                _check_form(encoding, kind, first)
        return reader(values, kind, encoding)
    except UnfitValue:
        raise
    except (pa.ArrowException, ValueError, OverflowError, ArithmeticError) as error:
        raise _first_unfit(values, kind, encoding, reader, error) from error


def _first(values: Sequence[Any]) -> int | None:
    return next((i for i, value in enumerate(values) if value is not None), None)


def _check_form(encoding: Encoding, kind: pa.DataType, index: int) -> None:
    """Refuse an encoding that a column's type cannot decode: its values would be stored encoded."""
    if encoding.form not in forms(kind):
        if encoding.form == "untold":
            raise UnfitValue(
                index,
                "the schema does not tell what the number counts: let the connector write dates and times "
                "that it tells (time.precision.mode=connect), or use a column of whole numbers",
            )
        what = "decimals as bytes" if encoding.form in ("bytes", "scaled") else f"a count of {encoding.form}"
        raise UnfitValue(index, f"the source writes {what}, which is no {kind}: use a column of such a type")


def forms(kind: pa.DataType) -> tuple[Form, ...]:
    """The encodings that values of a type may have; of a whole number, it is the count itself."""
    if pa.types.is_decimal(kind):
        return ("plain", "untold", "bytes", "scaled")
    if pa.types.is_date(kind):
        return ("plain", "days")
    if pa.types.is_timestamp(kind):
        return ("plain", *_COUNTS)
    if pa.types.is_integer(kind):
        return ("plain", "untold", *_COUNTS)
    return ("plain", "untold")


Reader = Callable[[Sequence[Any], pa.DataType, Encoding], pa.Array]


def _first_unfit(
    values: Sequence[Any], kind: pa.DataType, encoding: Encoding, reader: Reader, error: Exception
) -> UnfitValue:
    """The first value that Arrow refuses; its error names none."""
    for index, value in enumerate(values):
        try:
            reader([value], kind, encoding)
        except UnicodeError:
            return UnfitValue(index, f"{_shown(value)} is not Unicode text")
        except (pa.ArrowException, ValueError, OverflowError, ArithmeticError) as reason:
            return UnfitValue(index, f"{_shown(value)} does not fit {kind}: {reason}")
    return UnfitValue(0, f"does not fit {kind}: {error}")


def _reader(kind: pa.DataType) -> Reader | None:
    types = pa.types
    pairs: tuple[tuple[Callable[[pa.DataType], bool], Reader], ...] = (
        (types.is_boolean, _booleans),
        (types.is_integer, _integers),
        (types.is_floating, _floats),
        (types.is_decimal, _decimals),
        (lambda k: types.is_string(k) or types.is_large_string(k) or k == pa.string_view(), _strings),
        (lambda k: types.is_binary(k) or types.is_large_binary(k) or k == pa.binary_view(), _binaries),
        (types.is_fixed_size_binary, _binaries),
        (types.is_date, _dates),
        (types.is_timestamp, _timestamps),
        (lambda k: types.is_list(k) or types.is_large_list(k), _lists),
        (types.is_struct, _structs),
    )
    return next((reader for fits, reader in pairs if fits(kind)), None)


def _only(values: Sequence[Any], allowed: tuple[type, ...], kind: object) -> None:
    """Check the JSON types: `bool` is not an int here, though Python says so."""
    if set(map(type, values)) <= {*allowed, type(None)}:
        return
    index, value = next((i, v) for i, v in enumerate(values) if v is not None and type(v) not in allowed)
    raise UnfitValue(index, f"{_shown(value)} is {_name(value)}, not {kind}")


def _booleans(values: Sequence[Any], kind: pa.DataType, _encoding: Encoding) -> pa.Array:
    _only(values, (bool,), kind)
    return pa.array(values, kind)


def _integers(values: Sequence[Any], kind: pa.DataType, _encoding: Encoding) -> pa.Array:
    _only(values, (int,), kind)
    return pa.array(values, kind)


def _floats(values: Sequence[Any], kind: pa.DataType, _encoding: Encoding) -> pa.Array:
    _only(values, (int, Decimal, str), kind)
    doubles = pa.array([None if v is None else _float(v, i) for i, v in enumerate(values)], pa.float64())
    if pa.types.is_float64(kind):
        return doubles
    # The nearest float: that is what a shorter decimal of a float32 stands for.
    narrow = pc.cast(doubles, kind, safe=False)
    held = narrow.cast(pa.float64())
    lost = pc.and_(pc.is_inf(held), pc.is_finite(doubles))
    if pc.any(lost).as_py():
        index = pc.index(lost, True).as_py()
        raise UnfitValue(index, f"{_shown(values[index])} is out of the range of {kind}")
    whole = pa.array([type(v) is int for v in values], pa.bool_())
    rounded = pc.fill_null(pc.and_(whole, pc.not_equal(held, doubles)), False)
    if pc.any(rounded).as_py():
        index = pc.index(rounded, True).as_py()
        raise UnfitValue(index, f"{_shown(values[index])} is no exact {kind}")
    return narrow


def _float(value: Any, index: int) -> float:
    if isinstance(value, str):
        if value not in _SPECIAL:
            raise UnfitValue(index, f"{_shown(value)} is a string, not a number")
        return _SPECIAL[value]
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number) or (isinstance(value, int) and int(number) != value):
        raise UnfitValue(index, f"{_shown(value)} is no exact double")
    return number


def _decimals(values: Sequence[Any], kind: pa.DataType, encoding: Encoding) -> pa.Array:
    if encoding.form in ("plain", "untold"):
        _only(values, (int, Decimal, str), kind)
        return pa.array([None if v is None else _decimal(v, i, kind) for i, v in enumerate(values)], kind)
    scale = kind.scale if encoding.scale is None else encoding.scale
    if encoding.form == "bytes":
        _only(values, (str,), f"the bytes of a {kind}")
        pairs = [None if v is None else (scale, v) for v in values]
    else:
        _only(values, (dict,), kind)
        pairs = [None if v is None else (v.get("scale"), v.get("value")) for v in values]
    return pa.array([None if p is None else _unscaled(*p, i, kind) for i, p in enumerate(pairs)], kind)


def _decimal(value: Any, index: int, kind: pa.DataType) -> Decimal:
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise UnfitValue(index, f"{_shown(value)} is not a decimal number")
    try:
        number = Decimal(value)
    except ArithmeticError:
        number = Decimal("NaN")
    if not number.is_finite():
        raise UnfitValue(index, f"{_shown(value)} is not a decimal number")
    try:
        return exactly(number, kind)
    except ArithmeticError as error:
        raise UnfitValue(index, f"{_shown(value)} does not fit {kind}: it has more digits") from error


def exactly(number: Decimal, kind: pa.DataType) -> Decimal:
    """The number with as many digits after the point as a decimal type has.

    Arrow must get no other: a number with dozens of digits more than its type makes it return another number,
    or crash.
    """
    return number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)


def _unscaled(scale: Any, value: Any, index: int, kind: pa.DataType) -> Decimal:
    """The decimal of a whole number in bytes and its scale."""
    if type(scale) is not int or not isinstance(value, str) or not -1000 <= scale <= 1000:
        raise UnfitValue(index, "is no object of 'scale' and 'value'")
    data = _bytes(value, index)
    if not 0 < len(data) <= 32:
        raise UnfitValue(index, f"{_shown(value)} holds {len(data)} bytes and not those of a decimal")
    number = int.from_bytes(data, "big", signed=True)
    try:
        return exactly(Decimal(number).scaleb(-scale, _EXACT), kind)
    except ArithmeticError as error:
        raise UnfitValue(index, f"{_shown(value)} does not fit {kind}: it has more digits") from error


def _strings(values: Sequence[Any], kind: pa.DataType, _encoding: Encoding) -> pa.Array:
    _only(values, (str,), kind)
    return pa.array(values, kind)


def _binaries(values: Sequence[Any], kind: pa.DataType, _encoding: Encoding) -> pa.Array:
    _only(values, (str,), kind)
    return pa.array([None if v is None else _bytes(v, i) for i, v in enumerate(values)], kind)


def _bytes(value: str, index: int) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnfitValue(index, f"{_shown(value)} is not base64: {error}") from error


def _dates(values: Sequence[Any], kind: pa.DataType, _encoding: Encoding) -> pa.Array:
    _only(values, (int, str), kind)
    days = pa.array([v if isinstance(v, int) else None for v in values], pa.int32()).cast(pa.date32())
    return _either(days, values, pa.date32()).cast(kind)


def _timestamps(values: Sequence[Any], kind: pa.DataType, encoding: Encoding) -> pa.Array:
    _only(values, (int, str), kind)
    numbers = pa.array([v if isinstance(v, int) else None for v in values], pa.int64())
    return _either(counted(numbers, kind, encoding), values, kind)


def _either(numbers: pa.Array, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The numbers; where a value is a string, what Arrow reads from it, which drops no digits."""
    if not any(isinstance(v, str) for v in values):
        return numbers
    texts = pa.array([v if isinstance(v, str) else None for v in values], pa.string())
    return pc.coalesce(texts.cast(kind), numbers)


def counted(numbers: pa.Array, kind: pa.DataType, encoding: Encoding) -> pa.Array:
    """Timestamps of `kind` from numbers in the unit of `encoding`, or in the column's own."""
    if encoding.form == "plain":
        return numbers.cast(kind)
    if encoding.form == "days":
        days = numbers.cast(pa.int32()).cast(pa.date32())
        return days.cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)
    return numbers.cast(pa.timestamp(encoding.form, kind.tz)).cast(kind)


def _lists(values: Sequence[Any], kind: pa.DataType, encoding: Encoding) -> pa.Array:
    _only(values, (list,), kind)
    owners = [i for i, v in enumerate(values) if v is not None for _ in v]
    items = [item for v in values if v is not None for item in v]
    try:
        children = _nested(items, kind.value_field, encoding.of(""))
    except UnfitValue as unfit:
        raise UnfitValue(owners[unfit.index] if owners else -1, unfit.reason) from unfit
    offsets: list[int | None] = [0]
    end = 0
    for v in values:
        end += len(v) if v is not None else 0
        offsets.append(end)
    width = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    mask = pa.array([v is None for v in values], pa.bool_())
    return make.from_arrays(pa.array(offsets, width), children, type=kind, mask=mask)


def _structs(values: Sequence[Any], kind: pa.DataType, encoding: Encoding) -> pa.Array:
    _only(values, (dict,), kind)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    present = [i for i, v in enumerate(values) if v is not None]
    places = {row: place for place, row in enumerate(present)}
    take = pa.array([places.get(i) for i in range(len(values))], pa.int64())
    children: list[pa.Array] = []
    for field in fields:
        missing = next((i for i in present if field.name not in values[i]), None)
        if missing is not None:
            raise UnfitValue(missing, f"field {field.name!r} is missing in {_shown(values[missing])}")
        try:
            inner = [values[i][field.name] for i in present]
            children.append(_nested(inner, field, encoding.of(field.name)).take(take))
        except UnfitValue as unfit:
            row = present[unfit.index] if unfit.index >= 0 else -1
            raise UnfitValue(row, f"field {field.name!r}: {unfit.reason}") from unfit
    mask = pa.array([v is None for v in values], pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _nested(values: Sequence[Any], field: pa.Field, encoding: Encoding) -> pa.Array:
    if not field.nullable and None in values:
        raise UnfitValue(values.index(None), f"null is not allowed in {field.name!r}")
    return column(values, field.type, encoding)


def _name(value: Any) -> str:
    return value.what if isinstance(value, Unread) else _NAMES.get(type(value), "a value")


def _shown(value: Any) -> str:
    if isinstance(value, Unread):
        return "a value"
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=str)
    # A lone surrogate is legal in JSON's escapes but in no message that must become UTF-8.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 60 else text[:57] + "..."

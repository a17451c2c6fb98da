"""Rows of CSV files, with nothing lost that the texts say.

Owns how texts become values, and which types undeclared columns have; must not know collections.

- Declared columns: a text that the type cannot give back is refused, such as `0012345` as a whole number, or
  a whole number that a double rounds.
- Other columns have a type only if it gives each text back: `0012345`, `1E5` and twenty digits are texts.
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tidelake.data.json import values
from tidelake.data.json.block import overlong_decimals
from tidelake.errors import InvalidUpdates

_WHOLE = r"^-?(0|[1-9][0-9]{0,18})$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[+-][0-9]{2,3})?$"
_NOT_FINITE = r"^(NaN|nan|-?inf|-?Infinity)$"
_FIXED = r"^-?(0|[1-9][0-9]*)\.[0-9]+$"
# A fraction that ends with zeros; "1.0" is how a whole number is written as a float.
_ZEROS_AT_END = r"(\.[0-9]*[1-9]0+|\.00+)(e|$)"
_ZEROS_AT_START = r"^\s*[+-]?0[0-9]"
_BOOL = r"^(true|false|True|False|TRUE|FALSE)$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_INSTANT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
_ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
# As many digits are the same after a double was made of them.
_EXACT_DIGITS = 15
_DECIMAL_DIGITS = 18
_DECIMAL_DIGITS_MAX = 38


def read(path: Path, source: Callable[[], Any], schema: pa.Schema | None) -> pa.Table:
    """Read a CSV file. An empty field is null, `""` is the empty text; `NA` and `null` are texts.

    Args:
        path: what the file is called.
        source: opens it, as pyarrow takes it.
        schema: types of the known columns; those of others, or of all if None, are guessed.

    Raises:
        InvalidUpdates: a value does not fit its column; names the column and the row.
        ArrowInvalid: the file is no CSV file, or a date or time does not fit its column.
    """
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    with pyarrow.csv.open_csv(source(), parse_options=parse) as opened:
        names = opened.schema.names
    known = {} if schema is None else {field.name: field.type for field in schema}
    as_text = {name for name in names if name not in known or _is_number(known[name])}
    convert = pyarrow.csv.ConvertOptions(
        column_types=known | dict.fromkeys(as_text, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = pyarrow.csv.read_csv(source(), parse_options=parse, convert_options=convert)
    for place, name in enumerate(table.column_names):
        if name in as_text:
            found = table.column(place)
            made = _declared(path, found, name, known[name]) if name in known else _guessed(found)
            table = table.set_column(place, name, made)
    return table


def _is_number(kind: pa.DataType) -> bool:
    is_ = pa.types
    return any(check(kind) for check in (is_.is_integer, is_.is_floating, is_.is_decimal, is_.is_duration))


def _declared(path: Path, texts: pa.ChunkedArray, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Texts as numbers of a type."""
    texts = pc.utf8_trim_whitespace(texts)
    at = pc.index(pc.match_substring_regex(texts, _ZEROS_AT_START), True).as_py()
    why = "with leading zeros, which a number loses: give the column the type string, or leave them out"
    if at < 0 and pa.types.is_decimal(kind):
        return _decimals(path, texts, name, kind)
    whole = pa.types.is_integer(kind) or pa.types.is_duration(kind)
    if at < 0 and whole:
        at = pc.index(pc.match_substring_regex(texts, r"^-?[0-9]+$"), False).as_py()
        why = "which is no whole number"
    if at < 0:
        try:
            found = texts.cast(pa.int64()).cast(kind) if pa.types.is_duration(kind) else _cast(texts, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).splitlines()[0][:300]
            raise InvalidUpdates(f"{path} cannot be read as csv: column {name!r}: {reason}") from error
        if whole:
            return found
        at = _first_changed(texts, found)
        why = f"which a {kind} does not hold: give the column another type, such as decimal128(38,0)"
    if at < 0:
        return found
    raise InvalidUpdates(
        f"{path} cannot be read as csv: column {name!r} has the invalid value {texts[at].as_py()!r} in row "
        f"{at}, {why}"
    )


def _cast(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return texts.cast(pa.float64()).cast(kind) if pa.types.is_float16(kind) else texts.cast(kind)


def _first_changed(texts: pa.ChunkedArray, found: pa.ChunkedArray) -> int:
    """The first row whose whole number was rounded, or that became infinite; -1: none."""
    number = pc.match_substring_regex(texts, r"^[+-]?[0-9]")
    # Fewer digits are always exact: 2^53, 2^24 and 2^11 are the limits.
    digits = {64: 16, 32: 8, 16: 4}[found.type.bit_width]
    is_long = pc.match_substring_regex(texts, rf"^[+-]?[0-9]{{{digits},}}$")
    suspect = pc.and_(number, pc.or_(pc.is_inf(found), is_long))
    for at in pc.indices_nonzero(pc.fill_null(suspect, False)).to_pylist():
        value = found[at].as_py()
        if math.isinf(value) or int(value) != int(texts[at].as_py()):
            return int(at)
    return -1


def _decimals(path: Path, texts: pa.ChunkedArray, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    if not overlong_decimals(texts):
        return texts.cast(kind)
    try:
        return pa.chunked_array([values.column(chunk.to_pylist(), kind) for chunk in texts.chunks], kind)
    except values.UnfitValue as unfit:
        raise InvalidUpdates(f"{path}: column {name!r}: {unfit.reason}") from unfit


def _guessed(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts as the values that they write, or as they are."""
    if texts.null_count == len(texts):
        return texts.cast(pa.null())
    kind = _kind(texts)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        # Such as the 31st of February, or more digits than the type has.
        return texts


def _kind(texts: pa.ChunkedArray) -> pa.DataType:
    """The type that gives all texts back; string if there is no other one."""
    if _all(texts, _WHOLE):
        return pa.string() if _any(texts, "^-0$") else pa.int64()
    if _all(texts, f"{_NUMBER}|{_NOT_FINITE}") and not _all(texts, _NOT_FINITE):
        return _fraction(texts)
    if _all(texts, _BOOL):
        return pa.bool_()
    if _all(texts, _DATE):
        return pa.date32()
    if _all(texts, f"{_INSTANT}({_ZONE}|$)"):
        digits = re.compile(r"\.([0-9]+)")
        longest = max((len(m[1]) for t in texts.to_pylist() if t and (m := digits.search(t))), default=0)
        unit = "s" if not longest else "us" if longest <= 6 else "ns"
        if _all(texts, _INSTANT + _ZONE):
            return pa.timestamp(unit, "UTC")
        if not _any(texts, _INSTANT + _ZONE):
            return pa.timestamp(unit)
    return pa.string()


def _fraction(texts: pa.ChunkedArray) -> pa.DataType:
    if _any(texts, _ZEROS_AT_END):
        if not _all(texts, _FIXED):
            return pa.string()
        scales = pc.unique(pc.binary_length(pc.replace_substring_regex(texts, r"^.*\.", "")).drop_null())
        digits = pc.max(pc.binary_length(pc.replace_substring_regex(texts, "[-.]", ""))).as_py()
        if len(scales) > 1 or digits > _DECIMAL_DIGITS_MAX:
            return pa.string()
        return pa.decimal128(max(_DECIMAL_DIGITS, digits), scales[0].as_py())
    long = pc.greater(
        pc.binary_length(pc.replace_substring_regex(texts, r"^-?[0.]*|\.|e.*$", "")), _EXACT_DIGITS
    )
    for text in texts.filter(long).to_pylist():
        if Decimal(repr(float(text))) != Decimal(text):
            return pa.string()
    return pa.float64()


def _all(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


def _any(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern), min_count=0).as_py())

"""Rows of CSV files, with nothing lost that the texts say.

Owns how texts become values, and which types undeclared columns have; must not know collections.

- Declared columns: a text that the type cannot give back is refused, such as `0012345` as a whole number, or
  a whole number that a double rounds.
- Other columns have a type only if it gives each text back: `0012345`, `1E5` and twenty digits are texts.
"""

import csv
import io
import math
import re
from bisect import bisect
from collections.abc import Callable, Generator, Iterable, Iterator
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tidelake.data.json import values
from tidelake.data.json.block import overlong_decimals
from tidelake.data.kernel.types import UNFIT
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
_FIELD_MAX = 2**31 - 1
_CHUNK = 1 << 20
# A line after a file, which is a record if all quotes are closed.
_AFTER = "after"
_UNFIT = (*UNFIT, values.UnfitValue)


def read(path: Path, source: Callable[[], Any], schema: pa.Schema | None) -> pa.Table:
    """Read a CSV file as `batches` does, at once; other columns than those of `schema` have types as well."""
    known = () if schema is None else schema.names
    table = pa.Table.from_batches(batches(path, source, schema))
    for place, name in enumerate(table.column_names):
        if name not in known:
            table = table.set_column(place, name, _guessed(table.column(place)))
    return table


def batches(
    path: Path, source: Callable[[], Any], schema: pa.Schema | None
) -> Generator[pa.RecordBatch, None, None]:
    """Read a CSV file; the first batch has no rows. An empty field is null, `""` the empty text, `NA` a text.

    Columns that are not in `schema` are texts.

    Raises:
        InvalidUpdates: the file is not CSV, or a text is no value of its column's type; names the line.
    """
    known = {} if schema is None else {field.name: field.type for field in schema}
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    rows = 0
    try:
        with pyarrow.csv.open_csv(source(), parse_options=parse) as opened:
            names = opened.schema.names
        if (begun := _open_quote(source)) is not None:
            raise InvalidUpdates(f"{path} line {begun} has a quote that nothing closes: the rest is no value")
        numbers = {name: kind for name, kind in known.items() if _is_number(kind)}
        convert = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()) | known | dict.fromkeys(numbers, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        with pyarrow.csv.open_csv(source(), parse_options=parse, convert_options=convert) as opened:
            for batch in chain([pa.RecordBatch.from_pylist([], opened.schema)], opened):
                made = batch
                for place, name in enumerate(names):
                    if name in numbers:
                        column = _declared(pa.chunked_array([batch.column(place)]), numbers[name])
                        made = made.set_column(place, name, column.combine_chunks())
                yield made
                rows += batch.num_rows
    except values.UnfitValue as unfit:
        line, _ = next(islice(_records(source), rows + unfit.index + 1, None))
        raise InvalidUpdates(f"{path} line {line}: column {name!r} is {unfit.reason}") from unfit
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise InvalidUpdates(f"{path} {_refused(source, str(error))}") from error


def _open_quote(source: Callable[[], Any]) -> int | None:
    """The line of a record that the end of the file cuts in a quoted value; None: there is none.

    LIMITATION: of a file with an even number of quotes it is not looked for.
    """
    count = 0
    with _opened(source) as raw:
        while chunk := raw.read(_CHUNK):
            count += chunk.count(b'"')
    if count % 2 == 0:
        return None
    line, record = 0, list[str]()
    for line, record in _records(source, [_AFTER]):  # noqa: B007
        pass
    return None if record == [_AFTER] else line


def _opened(source: Callable[[], Any]) -> Any:
    given = source()
    return given.open("rb") if isinstance(given, Path) else given


def _records(source: Callable[[], Any], more: Iterable[str] = ()) -> Iterator[tuple[int, list[str]]]:
    """The header and the rows, as Python reads them, each with the line that it begins in; and more lines."""
    line = 1
    # Arrow has read the file already, and knows no limit.
    csv.field_size_limit(_FIELD_MAX)
    with io.TextIOWrapper(_opened(source), "utf-8-sig", "replace", newline="") as text:
        reader = csv.reader(chain(text, more))
        for record in reader:
            if record:
                yield line, record
            line = reader.line_num + 1


def _refused(source: Callable[[], Any], reason: str) -> str:
    """Why Arrow refused a file, with the line if it can be told."""
    wrong = re.match(r"(?s)In CSV column #(\d+): CSV conversion error to (.*): invalid value '(.*)'", reason)
    header: list[str] = []
    for line, record in _records(source):
        if not header:
            header = record
            continue
        if len(record) != len(header):
            return f"line {line} has {len(record)} values, and the header {len(header)}"
        if wrong and record[int(wrong[1])] == wrong[3]:
            return f"line {line}: column {header[int(wrong[1])]!r} is {wrong[3]!r}, expected {wrong[2]}"
    if not header:
        return "is empty: it needs a header line"
    return f"cannot be read as csv: {reason.splitlines()[0][:300]}"


def _is_number(kind: pa.DataType) -> bool:
    is_ = pa.types
    return any(check(kind) for check in (is_.is_integer, is_.is_floating, is_.is_decimal, is_.is_duration))


def _declared(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Texts as numbers of a type."""
    texts = pc.utf8_trim_whitespace(texts)
    at = pc.index(pc.match_substring_regex(texts, _ZEROS_AT_START), True).as_py()
    why = "with leading zeros, which a number loses: give the column the type string, or leave them out"
    whole = pa.types.is_integer(kind) or pa.types.is_duration(kind)
    if at < 0 and whole:
        at = pc.index(pc.match_substring_regex(texts, r"^-?[0-9]+$"), False).as_py()
        why = "which is no whole number"
    if at < 0:
        try:
            found = _cast(texts, kind)
        except _UNFIT:
            at = bisect(range(len(texts)), 0, key=lambda end: not _casts(texts.slice(0, end + 1), kind))
            why = f"expected {kind}"
        else:
            if whole or pa.types.is_decimal(kind) or (at := _first_changed(texts, found)) < 0:
                return found
            why = f"which a {kind} does not hold: give the column another type, such as decimal128(38,0)"
    raise values.UnfitValue(at, f"{texts[at].as_py()!r}, {why}")


def _casts(texts: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        _cast(texts, kind)
    except _UNFIT:
        return False
    return True


def _cast(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_decimal(kind) and overlong_decimals(texts):
        return pa.chunked_array([values.column(chunk.to_pylist(), kind) for chunk in texts.chunks], kind)
    if pa.types.is_float16(kind) or pa.types.is_duration(kind):
        texts = texts.cast(pa.float64() if pa.types.is_float16(kind) else pa.int64())
    return texts.cast(kind)


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
        fractions = pc.replace_substring_regex(texts, r"^[^.]*(\.([0-9]+))?.*$", r"\2")
        longest = pc.max(pc.binary_length(fractions)).as_py()
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
    texts = texts.filter(long)
    # One that Arrow writes again is what the double says.
    unlike = pc.not_equal(texts.cast(pa.float64()).cast(pa.string()), texts)
    for text in texts.filter(unlike).to_pylist():
        if Decimal(repr(float(text))) != Decimal(text):
            return pa.string()
    return pa.float64()


def _all(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


def _any(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern), min_count=0).as_py())

"""Parsing command-line arguments: times, columns, and files of rows."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.cli import jsonlines, output
from tidelake.data.ingest.astable import as_table
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds import csvfile
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.lake.arguments.keys import parsed_key
from tidelake.lake.arguments.times import whole_of
from tidelake.model.instants import PER_UNIT, TimeLike, is_instant, is_now, is_zoneless
from tidelake.model.time import parts

_SNIFFED = 4096  # bytes of standard input that are looked at


def time(text: str | None, of: Collection, name: str, *, read: bool = True) -> TimeLike | None:
    """Parse a time: a whole number, several with commas for tuples or, for clocks, a date, a time or a word.

    A text without a zone is taken as UTC, and `now` in a read as the last closed time at most. Both are said
    on standard error.
    """
    if text is None:
        return None
    domain, times, given = of.domain, times_of(of), text.strip()
    whole = whole_of(given)
    if whole is not None:
        return domain.check((whole,) if isinstance(whole, int) and domain.unit == "tuple" else whole, name)
    if not is_instant(given):
        wanted = "whole numbers" if domain.unit == "tuple" else "a whole number"
        if domain.unit in PER_UNIT:
            a_date = "a date" if domain.unit == "date" else "a date and time"
            wanted += f", {a_date}, now, today, yesterday, or a time back such as -1d"
        raise UsageError(f"{name}={text!r} is not a time of unit {domain}: give {wanted}")
    needs_zone = domain.unit in PER_UNIT and not (domain.unit == "date" and ":" not in given)
    if needs_zone:
        given = in_utc(given, name)
    # Checked here, so that the message has the name that the user wrote.
    times.at(given, name)
    if not (read and is_now(given)):
        return given
    at = times.read(given, name)
    click.echo(f"{name} now: the last closed time, {domain.text(at)}", err=True)
    return at


def in_utc(given: str, name: str) -> str:
    """A text in UTC if it is a date or time that does not say its zone; said on standard error."""
    if not is_zoneless(given):
        return given
    taken = f"{given if ':' in given else f'{given} 00:00'}Z"
    click.echo(f"{name} {given} is taken as {taken}: it does not say its zone", err=True)
    return taken


def key(words: Sequence[str], of: Collection) -> tuple[object, ...]:
    """Parse the values of a key, one word for each key column. Raises as `parsed_key`."""
    return parsed_key(words, of.key, of.schema, "KEY")


def names(text: str | None) -> list[str] | None:
    """Parse names of columns, separated by commas; an empty text names none. None: all columns."""
    if text is None:
        return None
    return [name.strip() for name in text.split(",")] if text.strip() else []


def schema_of(columns: Sequence[str], keys: Sequence[str], like: Path | None) -> pa.Schema:
    """The columns of a new collection: those of a file, and NAME:TYPE words, which may say other types.

    Key columns are not nullable.
    """
    if not columns and like is None:
        raise UsageError("say which columns there are: --column NAME:TYPE for each, or --like FILE, or both")
    found = [] if like is None else _read(like, None).schema
    own = [_field(word) for word in columns]
    named = {field.name: field for field in own}
    fields = [f for f in found if not re.fullmatch(r"_diff|_time(_\d+)?", f.name)]
    there = {field.name for field in fields}
    fields = [named.get(f.name, f) for f in fields] + [f for f in own if f.name not in there]
    return pa.schema([f.with_nullable(f.nullable and f.name not in keys) for f in fields])


def _field(word: str) -> pa.Field:
    name, colon, type_ = word.partition(":")
    if not colon or not name:
        raise UsageError(f"--column {word!r} must be NAME:TYPE, such as id:int64")
    decimal = re.fullmatch(r"decimal(128|256)\((\d+),\s*(-?\d+)\)", type_)
    zoned = re.fullmatch(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([\w/+:-]+)\]", type_)
    try:
        if decimal:
            make = pa.decimal128 if decimal.group(1) == "128" else pa.decimal256
            return pa.field(name, make(int(decimal.group(2)), int(decimal.group(3))))
        if zoned:
            return pa.field(name, pa.timestamp(zoned.group(1), zoned.group(2)))
        return pa.field(name, pa.type_for_alias(type_))
    except ValueError as error:
        raise UsageError(
            f"--column {word!r}: unknown type {type_!r}; use int64, double, string, bool, date32, "
            "timestamp[us], timestamp[us, UTC], decimal128(10,2), ... or --like FILE"
        ) from error


@contextmanager
def rows(paths: Sequence[Path], into: Collection, at: TimeLike | None) -> Iterator[pa.Table]:
    """The rows of some files as one table; if `at` is given, all rows get this time.

    What the collection finds wrong with them inside the block is an error that names the files.
    """
    table = _joined(paths, into, at)
    try:
        yield table
    except InvalidUpdates as error:
        raise InvalidUpdates(f"{', '.join(map(_called, paths))}: {error}") from error


def _called(path: Path) -> str:
    return "standard input" if path == output.STREAM else str(path)


def _joined(paths: Sequence[Path], into: Collection, at: TimeLike | None) -> pa.Table:
    tables = [_read(path, into.update_schema) for path in paths]
    for path, found in zip(paths, tables, strict=True):
        if set(found.column_names) != set(tables[0].column_names):
            raise InvalidUpdates(
                f"{path} has columns {', '.join(found.column_names)}, but {paths[0]} has "
                f"{', '.join(tables[0].column_names)}: append them one by one"
            )
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise InvalidUpdates(f"the files do not fit together: {error}; append them one by one") from error
    if at is None:
        return table
    components = parts(times_of(into).at(at, "--time"))
    for column, component in zip(into.domain.columns, components, strict=True):
        if column in table.column_names:
            raise UsageError(f"--time and a column {column} in the file: leave one of them out")
        table = table.append_column(column, pa.array([component] * table.num_rows, pa.int64()))
    return table


def _read(path: Path, schema: pa.Schema | None) -> pa.Table:
    """Read one file, or standard input. Text is parsed to the types of the collection's columns."""
    data = None
    try:
        if path == output.STREAM:
            with open(0, "rb", closefd=False) as given:
                data = given.read()
            path = Path(_called(path))
        return _read_as(path, path.suffix.lower() if data is None else _suffix_of(data), data, schema)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}; check the file") from error


def _suffix_of(data: bytes) -> str:
    """What a file with these contents would end with, by its first bytes."""
    start = data[:_SNIFFED].lstrip()
    return ".parquet" if data.startswith(b"PAR1") else ".jsonl" if start.startswith(b"{") else ".csv"


def _read_as(path: Path, suffix: str, data: bytes | None, schema: pa.Schema | None) -> pa.Table:
    """Read a file of a format; `data` is what it holds, if that was read already."""
    # Nothing of Python's: a thread of Arrow's may hold it when the process ends, and must not ask for Python.
    held = None if data is None else _of_arrow(data)

    def source() -> Any:
        return path if held is None else pa.BufferReader(held)

    try:
        match suffix:
            case ".parquet":
                return as_table(pq.read_table(source()))
            case ".csv":
                return csvfile.read(path, source, schema)
            case ".jsonl" | ".ndjson" | ".json":
                with path.open("rb") if data is None else io.BytesIO(data) as file:
                    return jsonlines.read(path, file, schema)
            case _:
                raise UsageError(f"{path} has an unknown format: use .parquet, .csv or .jsonl")
    except pa.ArrowException as error:
        reason = str(error).split("\n", 1)[0][:300]
        raise InvalidUpdates(f"{path} cannot be read as {suffix[1:]}: {reason}") from error


def _of_arrow(data: bytes) -> pa.Buffer:
    """A copy in memory that Arrow owns."""
    made = pa.BufferOutputStream()
    made.write(data)
    return made.getvalue()

"""Reading what a user names on the command line: times, column lists, and files of rows."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.collection import Collection
from tidelake.model.time import Time, TimeDomain


def time(text: str | None, domain: TimeDomain, name: str) -> Time | None:
    """A time from the command line: a whole number, or several with commas for tuples."""
    if text is None:
        return None
    try:
        components = tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise UsageError(f"{name}={text!r} is not a time of unit {domain}: give whole numbers") from error
    return domain.check(components if domain.unit == "tuple" else components[0], name)


def schema_of(columns: Sequence[str], keys: Sequence[str], like: Path | None) -> pa.Schema:
    """The columns of a new collection, from NAME:TYPE words or from a file. Keys refuse nulls."""
    if bool(columns) == bool(like):
        raise UsageError("say which columns there are: either --column NAME:TYPE for each, or --like FILE")
    if like is not None:
        found = _read(like, None).schema
        fields = [field for field in found if not re.fullmatch(r"_diff|_time(_\d+)?", field.name)]
    else:
        fields = [_field(word) for word in columns]
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


def read(paths: Sequence[Path], into: Collection, at: Time | None) -> pa.Table:
    """The rows of some files as one table, at a given time if there is one."""
    tables = [_read(path, into.update_schema) for path in paths]
    table = pa.concat_tables(tables, promote_options="default")
    if at is None:
        return table
    components = at if isinstance(at, tuple) else (at,)
    for column, component in zip(into.domain.columns, components, strict=True):
        if column in table.column_names:
            raise UsageError(f"--time and a column {column} in the file: leave one of them out")
        table = table.append_column(column, pa.array([component] * table.num_rows, pa.int64()))
    return table


def _read(path: Path, schema: pa.Schema | None) -> pa.Table:
    """One file. Text formats are parsed to the collection's types where it has the column."""
    types = {} if schema is None else {field.name: field.type for field in schema}
    try:
        match path.suffix.lower():
            case ".parquet":
                return pq.read_table(path)
            case ".csv":
                convert = pyarrow.csv.ConvertOptions(
                    column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False
                )
                return pyarrow.csv.read_csv(path, convert_options=convert)
            case ".jsonl" | ".ndjson" | ".json":
                fields = None if schema is None else pa.schema([f.with_nullable(True) for f in schema])
                options = pyarrow.json.ParseOptions(explicit_schema=fields)
                table = pyarrow.json.read_json(path, parse_options=options)
                return _without_absent(table, schema)
            case _:
                raise UsageError(f"{path} has an unknown format: use .parquet, .csv or .jsonl")
    except pa.ArrowInvalid as error:
        raise InvalidUpdates(f"{path} cannot be read as {path.suffix[1:]}: {error}") from error


def _without_absent(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """The table without time and diff columns that only the explicit schema put there."""
    for name in () if schema is None else schema.names:
        if re.fullmatch(r"_diff|_time(_\d+)?", name) and table[name].null_count == table.num_rows:
            table = table.drop_columns([name])
    return table

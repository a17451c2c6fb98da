"""Types: the model's description of them and Arrow's, one to one.

Owns which Arrow types Tidelake keeps and the Arrow schemas of rows and updates; must not know any
data. Invariant: `data_type(arrow_type(t)) == t`, and several Arrow forms of the same values (views,
large offsets, dictionaries, instants written with an offset) all become the one plain form.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from tidelake.errors import UsageError
from tidelake.model.schema import DIFF, Column, DataType, Field, Schema
from tidelake.model.time import TimeDomain

# Arrow's errors for values that do not fit a type, and for operations that a type does not support.
UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
# Parquet allows 100 levels, of which a list takes two and a struct one; Arrow's own files allow 64.
NESTED_MAX = 32
# Limited because the state describes each column, and each part has statistics for each.
COLUMNS_MAX = 10_000
_LISTED_MAX = 20
# What Arrow, pandas and ISO texts say for UTC and for a fixed distance from it.
_OFFSET = re.compile(r"(?i:utc|z)|[+-]\d\d(:?\d\d){0,2}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
# In the database, but for the one machine only, or for none.
_NO_PLACES = ("localtime", "Factory", "posixrules")

# Each by its Arrow name; Arrow spells float16 "halffloat", float32 "float" and float64 "double".
_PLAIN: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
_NAMES = {arrow: name for name, arrow in _PLAIN.items()}
_NAMES |= {pa.large_string(): "string", pa.large_binary(): "binary"}
_NAMES |= {pa.string_view(): "string", pa.binary_view(): "binary"}

_WITH_UNIT: dict[str, tuple[Callable[[pa.DataType], bool], Callable[[str], pa.DataType]]] = {
    "time32": (pa.types.is_time32, pa.time32),
    "time64": (pa.types.is_time64, pa.time64),
    "duration": (pa.types.is_duration, pa.duration),
}
_DECIMALS: dict[str, tuple[Callable[[pa.DataType], bool], Callable[[int, int], pa.DataType]]] = {
    "decimal32": (pa.types.is_decimal32, pa.decimal32),
    "decimal64": (pa.types.is_decimal64, pa.decimal64),
    "decimal128": (pa.types.is_decimal128, pa.decimal128),
    "decimal256": (pa.types.is_decimal256, pa.decimal256),
}


def arrow_type(type_: DataType) -> pa.DataType:
    """The Arrow type that `type_` describes."""
    name, params = type_.name, type_.params
    if name in _PLAIN:
        return _PLAIN[name]
    if name in _WITH_UNIT:
        return _WITH_UNIT[name][1](str(params[0]))
    if name in _DECIMALS:
        return _DECIMALS[name][1](int(params[0]), int(params[1]))
    if name == "timestamp":
        return pa.timestamp(str(params[0]), tz=str(params[1]) if len(params) > 1 else None)
    if name == "fixed_size_binary":
        return pa.binary(int(params[0]))
    if name == "struct":
        return pa.struct([_arrow_field(child) for child in type_.children])
    if name == "list":
        return pa.list_(_arrow_field(type_.children[0]))
    if name == "fixed_size_list":
        return pa.list_(_arrow_field(type_.children[0]), int(params[0]))
    raise UsageError(f"type {type_} is unknown to this version: upgrade Tidelake")


def data_type(arrow: pa.DataType, where: str) -> DataType:
    """Describe an Arrow type."""
    is_ = pa.types
    if is_.is_dictionary(arrow):
        return data_type(arrow.value_type, where)
    if arrow in _NAMES:
        return DataType(_NAMES[arrow])
    for name, (matches, _) in _WITH_UNIT.items():
        if matches(arrow):
            return DataType(name, (arrow.unit,))
    for name, (fits, _) in _DECIMALS.items():
        if fits(arrow):
            return DataType(name, (arrow.precision, arrow.scale))
    if is_.is_timestamp(arrow):
        return DataType("timestamp", (arrow.unit,) if arrow.tz is None else (arrow.unit, _zone(arrow.tz)))
    if is_.is_fixed_size_binary(arrow) and arrow.byte_width > 0:
        return DataType("fixed_size_binary", (arrow.byte_width,))
    if is_.is_struct(arrow) and arrow.num_fields > 0:
        children = [_field(arrow.field(i), f"{where}.{arrow.field(i).name}") for i in range(arrow.num_fields)]
        return DataType("struct", (), tuple(children))
    if is_.is_list(arrow) or is_.is_large_list(arrow):
        return DataType("list", (), (_item(arrow, where),))
    if is_.is_fixed_size_list(arrow) and arrow.list_size > 0:
        return DataType("fixed_size_list", (arrow.list_size,), (_item(arrow, where),))
    raise UsageError(f"column {where!r} has type {arrow}, which cannot be kept: {_remedy(arrow)}")


def check_kept(arrow: pa.DataType, where: str) -> None:
    """Check that a type can be written, not only described: Parquet has fewer types than Arrow.

    Lists and structs may be nested 32 deep (`NESTED_MAX`). Decimals may have no negative scale, and no more
    digits after the point than in total. A zone is an offset, or a name that others know, too. Stops at the
    depth limit, however deep a type is.
    """
    check_depth(arrow, where)
    _check_leaves(arrow, where)


def check_depth(arrow: pa.DataType, where: str) -> None:
    """Check that lists and structs are nested at most 32 deep (`NESTED_MAX`)."""
    level = [arrow]
    for _ in range(NESTED_MAX + 1):
        level = [inner for kind in level for inner in _inside(kind)]
        if not level:
            return
    raise UsageError(
        f"column {where!r} is nested more than {NESTED_MAX} levels deep, which cannot be kept: flatten it, "
        "or keep the inner levels as a JSON text"
    )


def _inside(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    return [kind.field(i).type for i in range(kind.num_fields)]


def _zone(name: str) -> str:
    """The zone that is stored: an offset only says how instants were written, and few libraries read one."""
    return "UTC" if _OFFSET.fullmatch(name) else name


@lru_cache(256)
def _is_known(zone: str) -> bool:
    """Whether a name of a zone is one of the time zone database, if this machine has it."""
    if zone in _NO_PLACES or zone.startswith("right/"):
        return False
    try:
        ZoneInfo("Europe/London")
    except ZoneInfoNotFoundError:
        return _NAME.fullmatch(zone) is not None
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _check_leaves(arrow: pa.DataType, where: str) -> None:
    if pa.types.is_timestamp(arrow) and arrow.tz is not None and not _is_known(_zone(arrow.tz)):
        raise UsageError(
            f"column {where!r} has type {arrow}, whose zone is unknown: cast it to "
            f"timestamp[{arrow.unit}, UTC], or to a zone such as Europe/Berlin"
        )
    if pa.types.is_decimal(arrow):
        precision, scale = arrow.precision, arrow.scale
        if scale < 0:
            digits = precision - scale
            remedy = (
                f"use decimal{128 if digits <= 38 else 256}({digits}, 0)" if digits <= 76 else "use a float64"
            )
            raise UsageError(
                f"column {where!r} has type {arrow}, whose scale is negative, which cannot be kept: {remedy}"
            )
        if scale > precision:
            raise UsageError(
                f"column {where!r} has type {arrow}, with more digits after the point than digits, which "
                f"cannot be kept: use a precision of {scale}"
            )
    for i, inner in enumerate(_inside(arrow)):
        _check_leaves(inner, f"{where}.{arrow.field(i).name}" if pa.types.is_struct(arrow) else where)


def _field(field: pa.Field, where: str) -> Field:
    if pa.types.is_fixed_size_list(field.type) and not field.nullable:
        # Parquet stores no values of the field under a null struct, and pyarrow cannot read that back.
        raise UsageError(
            f"field {where!r} is a {field.type} that must not be null: make it nullable, or a list"
        )
    return Field(field.name, data_type(field.type, where), field.nullable)


def _item(arrow: pa.DataType, where: str) -> Field:
    # The item field is "item" or "element" depending on who made the list; it means nothing.
    return Field("item", data_type(arrow.value_type, f"{where}[]"), arrow.value_field.nullable)


def _arrow_field(field: Field) -> pa.Field:
    return pa.field(field.name, arrow_type(field.type), nullable=field.nullable)


def _remedy(arrow: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_map(arrow):
        return "cast it to a list of struct<key, value>, sorted by key"
    if is_.is_null(arrow):
        return "give it a type, such as string"
    if is_.is_union(arrow):
        return "make a struct with one nullable field for each case"
    if is_.is_interval(arrow):
        return "cast it to a duration, or to a struct of months, days and nanoseconds"
    if is_.is_run_end_encoded(arrow):
        return f"decode it to {arrow.value_type}"
    if is_.is_struct(arrow):
        return "give the struct a field"
    return "cast it to a list, a struct or a primitive type"


def listed(names: Sequence[str]) -> str:
    """Names of columns for a message; of many only the first ones."""
    more = len(names) - _LISTED_MAX
    return ", ".join(map(repr, names[:_LISTED_MAX])) + (f" and {more:,} more" if more > 0 else "")


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a part keeps a column: Parquet has no seconds and no date64."""
    is_ = pa.types
    if is_.is_date64(kind):
        return pa.date32()
    if is_.is_time32(kind):
        return pa.time32("ms")
    if is_.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", tz=kind.tz)
    if is_.is_struct(kind):
        children = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([child.with_type(stored_type(child.type)) for child in children])
    if is_.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(stored_type(kind.value_type)), kind.list_size)
    if is_.is_list(kind):
        return pa.list_(kind.value_field.with_type(stored_type(kind.value_type)))
    return kind


def row_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of rows: key columns, then value columns."""
    return pa.schema([pa.field(c.name, arrow_type(c.type), nullable=c.nullable) for c in schema.columns])


@lru_cache(64)
def update_schema(schema: Schema, domain: TimeDomain) -> pa.Schema:
    """The Arrow schema of updates: key, value, the time column(s), `_diff`; the latter int64 not null."""
    fields = list(row_schema(schema))
    fields += [pa.field(name, pa.int64(), nullable=False) for name in (*domain.columns, DIFF)]
    return pa.schema(fields)


def schema_from_arrow(arrow: pa.Schema, key: Sequence[str], value: Sequence[str] | None = None) -> Schema:
    """The schema of a collection with the columns of an Arrow schema, whose ids are 0, 1, ... in order."""
    _check_described(arrow, key, value)
    if isinstance(key, str) or isinstance(value, str):
        raise UsageError(f"key and value are lists of column names: write [{key!r}] instead of {key!r}")
    names, keys = list(arrow.names), frozenset(key)
    chosen = list(key) + (list(value) if value is not None else [n for n in names if n not in keys])
    if len(chosen) > COLUMNS_MAX:
        raise UsageError(
            f"a collection has at most {COLUMNS_MAX:,} columns, not {len(chosen):,}: put those that belong "
            "together into a struct or a list"
        )
    places = {name: i for i, name in enumerate(names)}
    unknown = [n for n in chosen if n not in places]
    if unknown:
        raise UsageError(f"no column named {listed(unknown)}: there are {listed(names)}")
    counts = Counter(names)
    doubled = sorted({n for n in chosen if counts[n] > 1})
    if doubled:
        raise UsageError(f"column {doubled[0]!r} appears twice in the table: rename one of them")
    columns = []
    ids = {name: i for i, name in enumerate(sorted(chosen, key=places.__getitem__))}
    for name in chosen:
        field = arrow.field(places[name])
        check_kept(field.type, name)
        columns.append(Column(ids[name], name, data_type(field.type, name), field.nullable))
    return Schema(tuple(columns[: len(key)]), tuple(columns[len(key) :]))


def _check_described(schema: object, key: object, value: object) -> None:
    """Check the Python types of the arguments that describe the columns of a table."""
    if not isinstance(schema, pa.Schema):
        raise UsageError(
            f"schema is a {type(schema).__name__}: give a pyarrow schema, such as table.schema or "
            "pa.schema([('id', pa.int64()), ('name', pa.string())])"
        )
    for what, names in (("key", key), ("value", value)):
        listed = isinstance(names, Sequence) and not isinstance(names, bytes)
        if not listed and not (what == "value" and names is None):
            raise UsageError(f"{what}={names!r} is not a list of column names: write {what}=['name', ...]")

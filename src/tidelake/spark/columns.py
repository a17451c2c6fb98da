"""Columns of a collection as columns of a DataFrame, and back.

Owns the mapping of Arrow types to Spark types. Every value survives it in both directions. A type that
Spark cannot hold completely is refused, with the column's name; a type that Spark lacks is widened if a
wider Spark type holds all its values.

| Arrow | Spark |
|---|---|
| bool, int8..int64, float32, float64, string, binary, date32 | the same |
| uint8, uint16, uint32 | smallint, int, bigint |
| uint64 | decimal(20,0) |
| float16 | float |
| decimal of up to 38 digits | decimal of the same precision and scale |
| large_string, string_view, large_binary, binary_view, fixed_size_binary | string, binary |
| date64 | date |
| timestamp s, ms, us without zone, with zone | timestamp_ntz, timestamp |
| duration s, ms, us | interval day to second |
| list, large_list, fixed_size_list; struct | array; struct |
| timestamp ns, duration ns, time32, time64, decimal of more digits, map, ... | refused |
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from tidelake.errors import InvalidUpdates, UsageError
from tidelake.spark.versions import spark_schema

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_NUMBERS = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()}
_SAME = _NUMBERS | {pa.string(), pa.binary(), pa.date32()}
_FITS = ("byte", "short", "integer", "long")
_REMEDY = "keep it as another type, or read the collection without Spark"


def frame_arrow(schema: pa.Schema) -> pa.Schema:
    """The Arrow schema of batches that Spark accepts for `schema`: same names, Spark's types."""
    return pa.schema([pa.field(f.name, _spark_arrow(f.type, f.name), f.nullable) for f in schema])


def frame_schema(schema: pa.Schema) -> t.StructType:
    """The schema of a DataFrame that holds `schema`."""
    return spark_schema(frame_arrow(schema))


def _spark_arrow(kind: pa.DataType, name: str) -> pa.DataType:
    if kind in _SAME:
        return kind
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_duration(kind) and kind.unit != "ns":
        return pa.duration("us")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = kind.value_field
        return pa.list_(pa.field("element", _spark_arrow(item.type, f"{name}.element")))
    if pa.types.is_struct(kind):
        # Fields are nullable throughout: Spark's toArrow fails on a null struct of non-null fields.
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([(f.name, _spark_arrow(f.type, f"{name}.{f.name}")) for f in fields])
    raise UsageError(f"column {name!r} is a {kind}, which Spark cannot hold without loss: {_REMEDY}")


def quoted(name: str) -> str:
    """Quote a column's name for Spark, so that a dot in it is not taken for a path."""
    return "`" + name.replace("`", "``") + "`"


def check_case(spark: SparkSession, names: Sequence[str]) -> None:
    """Check that Spark can tell columns apart by their names."""
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(name.lower(), name)
        if other != name and spark.conf.get("spark.sql.caseSensitive") != "true":
            raise UsageError(
                f"columns {other!r} and {name!r} differ by case only, which this session ignores: "
                "spark.conf.set('spark.sql.caseSensitive', True)"
            )


def check_frame(frame: t.StructType, schema: pa.Schema, optional: Iterable[str] = ()) -> None:
    """Check that a DataFrame's columns are those of `schema`, by name in any order, before anything runs.

    A whole number may be of a narrower type than the collection's. Columns named in `optional` may be absent.
    """
    expected = {f.name: f for f in frame_schema(schema)}
    given = {f.name: f for f in frame}
    faults = [f"column {n!r} appears twice" for n in sorted(given) if frame.names.count(n) > 1]
    missing = [n for n in expected if n not in given and n not in set(optional)]
    faults += [f"column {n!r} ({expected[n].dataType.simpleString()}) is missing" for n in missing]
    faults += [f"column {n!r} is not in the collection" for n in given if n not in expected]
    for name, field in expected.items():
        if name in given and not holds(field.dataType, given[name].dataType):
            have, want = given[name].dataType.simpleString(), field.dataType.simpleString()
            faults.append(f"column {name!r} is {have} and not {want}: cast it")
    if faults:
        raise InvalidUpdates("the DataFrame does not fit the collection: " + "; ".join(faults))


def holds(wide: t.DataType, given: t.DataType) -> bool:
    """Whether all values of `given` are values of `wide`; nullability is checked on the data."""
    if isinstance(wide, t.ArrayType) and isinstance(given, t.ArrayType):
        return holds(wide.elementType, given.elementType)
    if isinstance(wide, t.StructType) and isinstance(given, t.StructType):
        same = wide.names == given.names
        return same and all(holds(a.dataType, b.dataType) for a, b in zip(wide, given, strict=True))
    if isinstance(wide, t.IntegralType) and isinstance(given, t.IntegralType):
        return _FITS.index(given.typeName()) <= _FITS.index(wide.typeName())
    if isinstance(wide, t.DecimalType) and isinstance(given, t.DecimalType):
        whole = given.precision - given.scale <= wide.precision - wide.scale
        return bool(whole and given.scale <= wide.scale)
    if isinstance(wide, t.DoubleType) and isinstance(given, t.FloatType):
        return True
    if isinstance(wide, t.StringType) and isinstance(given, t.StringType):
        return True
    return bool(wide == given) or isinstance(given, t.NullType)

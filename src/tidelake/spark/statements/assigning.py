"""Values that a statement gives to columns: converted if nothing is lost, refused otherwise.

Spark's own tables convert in one of three ways, by a setting. Here no value changes, except that a decimal
for a float becomes the nearest one, as the literal 1.5 must.
"""

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tidelake.errors import UsageError
from tidelake.spark.installed import VERSION


def assigned(value: Column, kind: t.DataType, field: t.StructField) -> Column:
    """A value as the column of a field; a job fails where a number does not fit exactly."""
    to = field.dataType
    name, given = to.simpleString(), kind.simpleString()
    made = _cast(value, to)
    if given == name or isinstance(kind, t.NullType):
        return made.alias(field.name)
    if not isinstance(kind, t.NumericType) or not isinstance(to, t.NumericType):
        raise UsageError(
            f"column {field.name!r} is {name}, and the value is {given}: write CAST(... AS {name})"
        )
    if isinstance(to, t.FloatType | t.DoubleType) and isinstance(kind, t.DecimalType):
        return made.alias(field.name)
    fits = value.isNull() | _cast(made, kind).eqNullSafe(value)
    message = f.lit(f"a value does not fit column {field.name!r}, which is {name}: round it, or cast it")
    # Spark's own error about a cast would advise what does not help here.
    return f.when(fits, made).otherwise(f.raise_error(message).cast(to)).alias(field.name)


def _cast(value: Column, to: t.DataType) -> Column:
    """A number as another type; null if it is too large for it."""
    return value.try_cast(to) if VERSION >= (4, 0) else value.cast(to)

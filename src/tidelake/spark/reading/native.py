"""Reading parts that need no merging by Spark's own Parquet scan.

Owns for which column types Spark reads the same values as `tidelake.spark.columns`, and the options that make
its scan fail rather than leave rows out. Must not know why a part needs no merging; see
`tidelake.shard.runs.stored`.

What is checked: when it plans, the driver compares the sizes of the files and the checksums of their footers;
when it reads, Spark checks the checksums of the pages. A missing file fails the read. Page headers have no
checksum in Parquet; Tidelake's own reads check these too. Filters are pushed down to the files, except those
on floats.
"""

from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, lit

from tidelake.errors import LeaseExpired
from tidelake.model.schema import DIFF
from tidelake.model.time import parts
from tidelake.shard.runs.stored import AsStored
from tidelake.spark.columns import frame_schema, quoted
from tidelake.spark.reading.jvm import jvm_url
from tidelake.spark.versions import condition

# Types that parts store as Spark would. Spark may read the stored bytes of other types differently.
_PLAIN = {
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
}
_OPTIONS = {
    "parquet.page.verify-checksum.enabled": "true",
    # Override the session's settings: a missing row is a wrong answer.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    # Read dates before 1582 unchanged, without a calendar conversion.
    "datetimeRebaseMode": "CORRECTED",
}
# With more paths Spark lists the files by a job, which pays where each takes a round trip.
_PATHS_MAX = 32


def readable(schema: pa.Schema) -> bool:
    """Whether Spark reads the same values from files with such columns as our own reads return."""
    names = [field.name for field in schema]
    return (
        all(_is_plain(field.type) for field in schema)
        # Spark ignores the case of names, and takes a dot in a name for a path.
        and len({name.casefold() for name in names}) == len(names)
        and not any("." in name for name in names)
    )


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return kind in _PLAIN or (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)


def scan(spark: SparkSession, stored: AsStored, schema: pa.Schema, times: Sequence[str]) -> DataFrame:
    """The rows of parts, in no order; key and value columns are nullable."""
    given = dict(zip(times, parts(stored.time), strict=True))
    if stored.ones:
        given[DIFF] = 1
    read = pa.schema([field for field in schema if field.name not in given])
    # Columns that Spark knows are not null, so that the frame's schema does not depend on how it is read.
    made = {name: lit(value).cast("bigint").alias(name) for name, value in given.items()}
    made.setdefault(DIFF, coalesce(col(DIFF), lit(0).cast("bigint")).alias(DIFF))
    columns = [made[field.name] if field.name in made else _column(field) for field in schema]
    reader = spark.read.schema(frame_schema(read)).options(**_OPTIONS)
    try:
        frames = [reader.parquet(*paths) for paths in _in_lists(stored.files)]
    except AnalysisException as error:
        if condition(error) != "PATH_NOT_FOUND":
            raise
        gone = next((part.name for part in stored.parts if part.name in str(error)), stored.parts[0].name)
        raise LeaseExpired("", gone) from error
    return reduce(DataFrame.union, frames).select(*columns)


def _column(field: pa.Field) -> Column:
    if not pa.types.is_floating(field.type):
        return col(quoted(field.name))
    # SUBTLE: the sum prevents filter pushdown to the file. Pushed filters use statistics, which leave NaN
    # out, and dictionaries, where -0.0 is not 0.0: they would skip row groups that have matching rows.
    zero = lit(0.0).cast("float" if field.type == pa.float32() else "double")
    return (col(quoted(field.name)) + zero).alias(field.name)


def _in_lists(files: Sequence[str]) -> Iterator[Sequence[str]]:
    most = _PATHS_MAX if files[0].startswith("file:") else len(files)
    for start in range(0, len(files), most):
        yield [jvm_url(url) for url in files[start : start + most]]

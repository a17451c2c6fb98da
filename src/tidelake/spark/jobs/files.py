"""The files of a directory as a stream, lines with their places or rows, and how it is run.

Owns the options of Spark's file source, and that values are not guessed: `tidelake.data.json` reads JSON
lines strictly, because Spark's own reader turns values that do not fit into nulls and rounded numbers.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.streaming.readwriter import DataStreamReader

from tidelake import errors
from tidelake.cdc.core.lineerrors import as_bytes, place, shown
from tidelake.data.ingest.convert import convert
from tidelake.data.json.rows import BadLine, RowReader
from tidelake.data.kernel.types import UNFIT
from tidelake.errors import InvalidUpdates, TidelakeError, UsageError
from tidelake.feeds.lines import TextFormat, check_format
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.reports import IngestReport
from tidelake.feeds.rowfiles import check_row_format, first_columns, known_field
from tidelake.lake.api.collection import Collection
from tidelake.spark.columns import frame_arrow, frame_schema, quoted
from tidelake.spark.tasks import one_thread
from tidelake.spark.versions import condition
from tidelake.spark.writing.exactly_once import Sink

Format: TypeAlias = Literal["jsonl", "keyed", "csv", "parquet"]
# Name of the column with the file: for the envelope `debezium`, and for rows that may have any column names.
FILE, ROWS_FILE = "file", "_tidelake_file"
# As RFC 4180, and as `tidelake append` reads CSV. By default Spark does not handle newlines and doubled
# quotes inside quotes, and reads `""` as null.
_CSV = {
    "header": "true",
    # False: Spark checks the names against the header of each file.
    "enforceSchema": "false",
    "mode": "FAILFAST",
    "multiLine": "true",
    "escape": '"',
    # An empty field is null. A null value that occurs in no file lets Spark tell it from `""`.
    "nullValue": "\0null\0",
}
# The error that a worker raised, inside the text of Spark's exception.
_RAISED = re.compile(r"tidelake\.errors\.(\w+): (.*)")
# Spark's text for a file that it cannot read, and its reasons for CSV files.
_UNREAD = re.compile(r"\[FAILED_READ_FILE\.\w+\] Encountered error while reading file (\S+)\.\s")
_CSV_REASONS = {
    "CSV header does not conform to the schema": "its header is not that of the other files",
    "[MALFORMED_RECORD_IN_PARSING": "a row has more or fewer values than the header has names, or "
    "lines end in several ways",
}


def text_of(spark: SparkSession, directory: str, files: int | None, format: TextFormat) -> DataFrame:  # noqa: A002
    """The lines of new files, as the envelope `debezium` takes them, each with its place.

    Those of format `"keyed"` are a key, a tab and a value, as Kafka's console consumer prints messages.
    """
    check_format(format)
    found = _loaded(_reader(spark, "text", files), directory)
    places = {"file_path": FILE, "file_block_start": "block"}
    modified = f.unix_micros("_metadata.file_modification_time").alias("modified")
    columns = ["value"]
    if format == "keyed":
        # JSON has no tabs but between its parts, where Kafka Connect writes none.
        tab = "instr(value, '\\t')"
        key = f"nullif(substring(value, 1, {tab} - 1), 'null')"
        found = found.withColumns(
            {"key": f.expr(f"if({tab} > 0, {key}, null)"), "value": f.expr(f"substring(value, {tab} + 1)")}
        )
        columns.append("key")
    return found.select(*columns, *(f.col(f"_metadata.{a}").alias(b) for a, b in places.items()), modified)


def rows_of(
    spark: SparkSession,
    collection: Collection,
    directory: str,
    format: Format,  # noqa: A002 - as Spark calls it
    *,
    files: int | None,
    file_column: str,
) -> DataFrame:
    """The rows of new files, with an additional column `file_column`, the name of their file.

    Columns are those of the present files. In text formats, columns of the collection get its types; other
    columns are texts in CSV, and have the type of the first line's value in JSON. Every value must fit its
    type.
    """
    check_row_format(format)
    file = f.col("_metadata.file_path").alias(file_column)
    collection.state()
    known = collection.update_schema
    try:
        if format == "parquet":
            schema = spark.read.parquet(_literal(directory)).schema
            return _loaded(_reader(spark, format, files).schema(schema), directory).select("*", file)
        if format == "csv":
            names = spark.read.options(**_CSV).csv(_literal(directory)).columns
            texts = t.StructType([t.StructField(name, t.StringType()) for name in names])
            reader = _reader(spark, format, files).schema(texts)
            found = _loaded(reader.options(**_CSV), directory).select("*", file)
            wanted = pa.schema([known_field(known, name, pa.string()) for name in names])
            return _mapped(found, _CastTexts(wanted, frame_arrow(wanted), file_column), wanted, file_column)
        first = spark.read.text(_literal(directory)).where("trim(value) != ''").first()
    except AnalysisException as error:
        if condition(error) not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        raise UsageError(
            f"there are no files at {directory!r} yet to take columns from: put one there"
        ) from error
    if first is None:
        raise UsageError(f"there are no rows at {directory!r} yet to take columns from: put a file there")
    lines = _loaded(_reader(spark, "text", files), directory).where("trim(value) != ''").select("value", file)
    wanted = first_columns(first[0], known, directory)
    return _mapped(lines, _ReadLines(wanted, frame_arrow(wanted), file_column), wanted, file_column)


def check_rejects(rejects: str | None, directory: str) -> None:
    """Refuse to read the folder of rejects."""
    if rejects is not None and os.path.realpath(rejects) == os.path.realpath(directory):
        raise UsageError(
            f"rejects={rejects!r} is the directory that is read: rejected lines would be read again"
        )


def run(frame: DataFrame, sink: Sink[Any, Any], checkpoint: str, *, follow: bool) -> IngestReport:
    """Give the micro-batches of a stream to a sink, until it ends or the caller is interrupted.

    Returns:
        What all micro-batches did.
    """
    stream = frame.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query = (stream if follow else stream.trigger(availableNow=True)).start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        if not follow:
            raise
    except StreamingQueryException:
        if sink.error is None:
            raise
        # It may come from the driver or a worker, and is not always one of PySpark's classes.
        own = None if isinstance(sink.error, TidelakeError) else ours(sink.error)
        raise own or sink.error from None
    return sink.report if sink.report.batches else replace(sink.report, upper=sink.into.upper)


def _mapped(frame: DataFrame, work: ArrowMap, schema: pa.Schema, file_column: str) -> DataFrame:
    output = pa.schema([*schema, pa.field(file_column, pa.string())])
    # Name columns by position: `mapInArrow` takes a dot in a name for a path.
    columns = frame.select(*(f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(frame.columns)))
    return columns.mapInArrow(work, frame_schema(output))


@dataclass(frozen=True)
class _ReadLines:
    """In a worker: parse JSON lines into rows, and keep their files."""

    schema: pa.Schema
    output: pa.Schema
    file_column: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        reader = RowReader(self.schema)
        for batch in batches:
            lines = as_bytes(batch.column(0))
            try:
                rows = reader.read(lines)
            except BadLine as bad:
                where, text = place(batch.column(1)[bad.line].as_py()), shown(lines[bad.line].as_py())
                raise InvalidUpdates(f"cannot read a row: {bad.reason}; {where} line={text}") from None
            yield convert(rows, self.output).append_column(self.file_column, batch.column(1))


@dataclass(frozen=True)
class _CastTexts:
    """In a worker: cast columns of text to their types without loss, and keep their files."""

    schema: pa.Schema
    output: pa.Schema
    file_column: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        for batch in batches:
            columns = [self._column(batch, i) for i in range(len(self.schema))]
            rows = pa.RecordBatch.from_arrays(columns, names=self.schema.names)
            yield convert(rows, self.output).append_column(self.file_column, batch.column(len(self.schema)))

    def _column(self, batch: pa.RecordBatch, index: int) -> pa.Array:
        texts, wanted = batch.column(index), self.schema.field(index)
        try:
            values = texts.cast(pa.string()).cast(wanted.type)
            values.validate(full=True)
        except UNFIT as error:
            file = place(batch.column(len(self.schema))[0].as_py())
            reason = str(error).split("\n", 1)[0]
            raise InvalidUpdates(f"column {wanted.name!r} is no {wanted.type}: {reason}; {file}") from error
        # Spark puts U+FFFD in place of bytes that are not UTF-8, which looks the same as a U+FFFD in the
        # file.
        lost = pc.fill_null(pc.match_substring(texts, "\ufffd"), False)
        if pc.any(lost, min_count=0).as_py():
            file = place(batch.column(len(self.schema))[pc.index(lost, True).as_py()].as_py())
            raise InvalidUpdates(
                f"column {wanted.name!r} holds U+FFFD, or bytes that are not UTF-8: write the file as UTF-8, "
                f"or as JSON lines if U+FFFD is meant; {file}"
            )
        return values


def ours(error: Exception) -> TidelakeError | None:
    """Convert an error of Spark: to the error of Tidelake that a worker raised, or to that of a bad CSV file.

    Spark has only the texts of these. None: it is some other error.
    """
    text = str(error)
    raised = _RAISED.search(text)
    kind = getattr(errors, raised[1], None) if raised else None
    if raised is not None and kind is not None and issubclass(kind, UsageError):
        made: TidelakeError = kind(raised[2])
        return made
    unread = _UNREAD.search(text)
    reason = (
        None if unread is None else next((says for why, says in _CSV_REASONS.items() if why in text), None)
    )
    if unread is None or reason is None:
        return None
    return InvalidUpdates(f"cannot read a row: {reason}; {place(unread[1])}")


def _reader(spark: SparkSession, format: str, files: int | None) -> DataStreamReader:  # noqa: A002
    reader = spark.readStream.format(format)
    # By default Spark silently skips files that are a week older than the newest, or that it cannot read.
    reader = reader.option("maxFileAge", "36500d").option("ignoreCorruptFiles", "false")
    reader = reader.option("ignoreMissingFiles", "false")
    if files is not None:
        if files < 1:
            raise UsageError(f"max_files_per_trigger={files} must be at least 1")
        reader = reader.option("maxFilesPerTrigger", files)
    return reader


def _loaded(reader: DataStreamReader, directory: str) -> DataFrame:
    try:
        return reader.load(_literal(directory))
    except AnalysisException as error:
        if condition(error) != "PATH_NOT_FOUND":
            raise
        raise UsageError(f"there is no directory of files at {directory!r}: create it first") from error


def _literal(directory: str) -> str:
    """Escape a directory's name: Spark reads paths as patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", directory)

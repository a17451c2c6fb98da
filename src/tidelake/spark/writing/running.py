"""Where the work of a write is done: by Spark tasks, or by this process if there are few rows.

Owns that choice, and how few rows get into this process. A job with Python workers takes about a tenth of a
second before it does any work, and each of its tasks uses one thread; fetching a few rows into the driver
needs no Python workers.

INVARIANT: either this process gets every row once, or the tasks do all the work. The size of rows is a guess:
for files Spark knows their compressed size, for most streams nothing, but the caller knows the size of the
last micro-batch. So the fetch is bounded by the real size of the rows, and if there are more, the tasks do
all.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from tidelake.errors import UsageError
from tidelake.feeds.answers import Answer, has_truncates, total, weighing
from tidelake.feeds.reading import ArrowMap
from tidelake.lake.api.collection import Collection
from tidelake.shard.engine.overlap import beside
from tidelake.spark.columns import check_case, quoted
from tidelake.spark.envelopes.envelope import Emptying, Envelope, Unpacking
from tidelake.spark.tasks import bytes_in, estimated_bytes, one_thread, remote
from tidelake.spark.uploads import answer_schema
from tidelake.spark.versions import to_arrow

BYTES_MAX = "spark.tidelake.driverBytesMax"
_BYTES_MAX = "16m"
# A larger look-up takes long, so tasks share it.
LOOKED_UP_BYTES = 512 << 20
# Rows are larger in memory than in files. If they are larger by more than this factor, the estimate was
# wrong.
_GROWTH = 4
# Bits of the row number in `monotonically_increasing_id`; the bits above are the number of the partition.
_ROW_BITS = 33
# The memory counted for each value, beside its text or bytes.
_FIXED_BYTES = 16


@dataclass(frozen=True)
class PreparedRows:
    """The rows of a write, ready for the work, which may be repeated.

    Attributes:
        names: names of the columns.
        frame: the frame whose rows the tasks get; its columns have other names.
        few: the rows themselves, in at most one batch; None: the tasks get them.
        alone: the frame with all rows in one task, for rows that empty the collection; None: none do.
    """

    names: Sequence[str]
    frame: DataFrame
    few: Sequence[pa.RecordBatch] | None = None
    alone: DataFrame | None = None

    def answer(self, work: ArrowMap) -> Answer:
        """Do the work on all rows. Errors as for `uploads.total`."""
        weighed = _Weighed(work)
        if self.few is None:
            answers = to_arrow(self.frame.mapInArrow(weighed, answer_schema()))
            if self.alone is not None and has_truncates(answers):
                # Rare. What the tasks uploaded is left to the collection of garbage.
                answers = to_arrow(self.alone.mapInArrow(weighed, answer_schema()))
            return total(answers)
        return total(pa.Table.from_batches(weighed(iter(self.few))))


@dataclass(frozen=True)
class _Weighed:
    """Work whose answer includes the size of its input rows."""

    work: ArrowMap

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        taken_bytes = 0

        def seen() -> Iterator[pa.RecordBatch]:
            nonlocal taken_bytes
            for batch in batches:
                taken_bytes += batch.nbytes
                yield batch

        for answer in self.work(seen()):
            yield weighing(answer, taken_bytes)


def rows_of(
    frame: DataFrame,
    envelope: Envelope,
    collection: Collection,
    *,
    by_tasks: bool = False,
    expected_bytes: int | None = None,
    few: Sequence[pa.RecordBatch] | None = None,
) -> PreparedRows:
    """The rows of a checked frame; runs a job to fetch them if they seem to be few.

    Args:
        frame: evaluated once here if its rows seem to be few, in vain if they are not.
        envelope: what the rows mean.
        collection: the collection to write to.
        by_tasks: leave the rows to the tasks, however few they are.
        expected_bytes: a guess of their size, used if Spark has no estimate.
        few: the prepared rows, if they are in this process already.
    """
    prepared = envelope.prepare(frame, collection)
    names = prepared.columns
    if few is not None:
        return PreparedRows(names, prepared, few)
    most = 0 if by_tasks else few_bytes(frame, expected_bytes)
    if most and envelope.looks_up_bytes(collection) <= LOOKED_UP_BYTES:
        caught_up = (
            beside(partial(envelope.catch_up, collection))
            if isinstance(envelope, Unpacking)
            else nullcontext()
        )
        with caught_up:
            few = taken(prepared, most)
        if few is not None:
            return PreparedRows(names, prepared, few)
    alone = envelope.alone(prepared, collection) if isinstance(envelope, Emptying) else None
    return PreparedRows(
        names,
        envelope.spread(prepared, collection).selectExpr(*_numbered(names)),
        alone=None if alone is None else alone.selectExpr(*_numbered(names)),
    )


def checked_rows(
    frame: DataFrame,
    envelope: Envelope,
    collection: Collection,
    *,
    by_tasks: bool = False,
    expected_bytes: int | None = None,
) -> PreparedRows:
    """As `rows_of`, of a frame that is checked here."""
    check_columns(frame, envelope, collection)
    return rows_of(frame, envelope, collection, by_tasks=by_tasks, expected_bytes=expected_bytes)


def check_columns(frame: DataFrame, envelope: Envelope, collection: Collection) -> None:
    """Check the columns of a frame against the newest schema."""
    collection.state()
    envelope.check(frame.schema, collection)
    check_case(frame.sparkSession, collection.schema.names)


def few_bytes(frame: DataFrame, expected_bytes: int | None = None) -> int:
    """How large the rows of a frame may be for this process to take them; 0: the tasks get them."""
    most = 0 if remote(frame.sparkSession) else _bytes_max(frame.sparkSession)
    size = estimated_bytes(frame) if most else None
    if size is None:
        size = expected_bytes
    return most * _GROWTH if most and size is not None and size <= most else 0


def fetched(frame: DataFrame, expected_bytes: int | None = None) -> list[pa.RecordBatch] | None:
    """The rows of a frame, in at most one batch, if they seem to be few; None if not. Errors as `rows_of`."""
    most = few_bytes(frame, expected_bytes)
    few = taken(frame, most) if most else None
    return None if few is None else [batch.rename_columns(frame.columns) for batch in few]


def _bytes_max(spark: SparkSession) -> int:
    text = spark.conf.get(BYTES_MAX, _BYTES_MAX) or ""
    size = bytes_in(text)
    if size is None:
        raise UsageError(f"setting {BYTES_MAX}={text!r} is no size: give one such as 16m, or 0")
    return size


def taken(frame: DataFrame, bytes_max: int) -> list[pa.RecordBatch] | None:
    """The rows of a frame, in at most one batch; None if those of a partition are too large.

    This is decided row by row: row i, from 1, may have at most `bytes_max / i` bytes. So a partition never
    sends more than `bytes_max` times the logarithm of its rows. Columns get other names.
    """
    # SQL texts, because there are many expressions and each call of Spark takes time. The private method,
    # because the public one fails on null structs whose fields are not nullable.
    names = list(map(quoted, frame.columns))
    sizes = [_size(name, field.dataType) for name, field in zip(names, frame.schema, strict=True)]
    row = f"((monotonically_increasing_id() & {(1 << _ROW_BITS) - 1}L) + 1L)"
    more = "".join(f" + coalesce({size}, 0)" for size in sizes if size)
    fits = f"{row} * ({_FIXED_BYTES}.0D * {len(sizes) + 1}{more}) <= {bytes_max}.0D"
    cut = [f"if({fits}, {name}, null)" if size else name for name, size in zip(names, sizes, strict=True)]
    # If there are too many rows, the first one above the limit stays, to signal that.
    some = frame.where(f"{row} <= {bytes_max // _FIXED_BYTES + 1}")
    columns = [f"{value} AS c{i}" for i, value in enumerate(cut)]
    batches = some.selectExpr(*columns, f"{fits} AS fits")._collect_as_arrow()  # type: ignore[operator]
    if not batches:
        return []
    rows = pa.Table.from_batches(batches)
    if not pc.all(rows.column("fits")).as_py():
        return None
    # One batch, so that equal keys are together.
    found: list[pa.RecordBatch] = rows.drop_columns(["fits"]).combine_chunks().to_batches()
    return found


def _size(name: str, kind: t.DataType) -> str:
    """The SQL for the bytes of a value in addition to `_FIXED_BYTES`; empty: none."""
    if isinstance(kind, t.StringType | t.BinaryType):
        return f"octet_length({name})"
    if isinstance(kind, t.ArrayType | t.MapType | t.StructType):
        return f"octet_length(CAST({name} AS STRING))"
    return ""


def _numbered(names: Sequence[str]) -> list[str]:
    """Names by position, in SQL: `mapInArrow` looks columns up by name, and takes a dot in one for a path."""
    return [f"{quoted(name)} AS c{i}" for i, name in enumerate(names)]

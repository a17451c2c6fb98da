"""Rows with a column that says what happened to each: changelogs of tables as DataFrames.

Owns how the words of such a column become diffs, or removals of keys, in the tasks. An envelope of a format
owns its words.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from tidelake.errors import InvalidUpdates
from tidelake.feeds.opcolumn import REMOVED, is_among, with_instants
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.rows import Late, Prepare
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.spark.envelopes.updates import StoreRows, Updates
from tidelake.spark.envelopes.upsert import Upsert, preparing


@dataclass(frozen=True)
class Words:
    """The words of a column.

    Attributes:
        column: its name.
        added: words of rows that are there from then on.
        removed: words of rows that are there no more.
        besides: further columns that are not stored, if the collection has none of that name.
    """

    column: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    besides: tuple[str, ...] = ()

    def check(self, frame: t.StructType, kept: Iterable[str | None], collection: Collection) -> t.StructType:
        """The columns of a frame besides those that are not stored; `kept` are stored in any case."""
        kinds = {field.name: field.dataType for field in frame}
        if not isinstance(kinds.get(self.column), t.StringType):
            have = kinds.get(self.column)
            found = f"it is {have.simpleString()}" if have is not None else "there is none"
            raise InvalidUpdates(
                f"the DataFrame needs a column {self.column!r} of type string, which says what happened to "
                f"each row: {found}"
            )
        own = {*collection.schema.names, *kept}
        left_out = {self.column, *(name for name in self.besides if name not in own)}
        return t.StructType([field for field in frame if field.name not in left_out])


@dataclass(frozen=True)
class ReadDiffs:
    """Computes `_diff` from words."""

    words: Words
    then: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Append the column to a batch."""
        words = self.words
        removed = is_among(batch.column(words.column), words.column, words.added, words.removed)
        diffs = pc.if_else(removed, pa.scalar(-1, pa.int64()), pa.scalar(1, pa.int64()))
        batch = batch.append_column(pa.field(DIFF, pa.int64(), nullable=False), diffs)
        return batch if self.then is None else self.then(batch)


@dataclass(frozen=True)
class ReadRemovals:
    """Computes from words which keys are removed, and leaves out rows whose word is in `ignored`."""

    words: Words
    ignored: tuple[str, ...] = ()
    then: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Append the column `REMOVED` to a batch."""
        words = self.words
        if self.ignored:
            old = pc.is_in(batch.column(words.column), value_set=pa.array(self.ignored))
            batch = batch.filter(pc.invert(old))
        removed = is_among(batch.column(words.column), words.column, words.added, words.removed)
        batch = batch.append_column(REMOVED, removed)
        return batch if self.then is None else self.then(batch)


@dataclass(frozen=True)
class ReadInstants:
    """Reads a column of texts without a zone, such as `2026-01-31 12:00:00.5`, as instants of UTC."""

    column: str
    then: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the column of a batch, if it holds texts."""
        batch = with_instants(batch, self.column)
        return batch if self.then is None else self.then(batch)


@dataclass(frozen=True)
class KindUpdates:
    """Each row was added or removed; old rows are complete.

    Attributes:
        words: what happened to each row.
        time: as for `Updates`.
        late: as for `Updates`.
    """

    words: Words
    time: str | None
    late: Late

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        rest = self.words.check(frame, [self.time], collection)
        if DIFF in rest.names:
            raise InvalidUpdates(f"column {DIFF!r} has no place beside {self.words.column!r}: drop it")
        Updates(self.time, self.late).check(rest, collection)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        made = Updates(self.time, self.late).work(collection, columns, lower)
        if not isinstance(made, StoreRows):
            raise TypeError(made)
        schema = made.schema.append(collection.update_schema.field(DIFF))
        return replace(made, schema=schema, counted=True, prepare=ReadDiffs(self.words, made.prepare))


@dataclass(frozen=True)
class KindUpsert:
    """Each row is the new row of its key, or removes it; old rows are looked up.

    Attributes:
        words: what happened to each row.
        ignored: words of rows that change nothing.
        order_by: as for `Upsert`.
        time: as for `Upsert`, but no time of all rows; or a text such as `2026-01-31 12:00:00.5`, in UTC.
        late: as for `Upsert`.
    """

    words: Words
    ignored: tuple[str, ...]
    order_by: str | None
    time: str | None
    late: Late

    @property
    def _upsert(self) -> Upsert:
        return Upsert(self.order_by, REMOVED, self.time, self.late)

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        rest = self.words.check(frame, [self.time, self.order_by], collection)
        if self.time is not None and self.time not in collection.schema.names:
            rest = t.StructType([_timed(field) if field.name == self.time else field for field in rest])
        flag = t.StructField(REMOVED, t.BooleanType())
        self._upsert.check(t.StructType([*rest, flag]), collection)

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """As `Envelope`."""
        return self._upsert.spread(prepared, collection)

    def looks_up_bytes(self, collection: Collection) -> int:
        """As `Envelope`."""
        return self._upsert.looks_up_bytes(collection)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""

        def first(own: Prepare | None) -> Prepare:
            read = own if self.time is None else ReadInstants(self.time, own)
            return ReadRemovals(self.words, self.ignored, read)

        return preparing(self._upsert.work(collection, columns, lower), first)


def _timed(field: t.StructField) -> t.StructField:
    """A column of texts or of times without a zone, as the column of instants that it stands for."""
    stands = isinstance(field.dataType, t.StringType | t.TimestampNTZType)
    return t.StructField(field.name, t.TimestampType()) if stands else field

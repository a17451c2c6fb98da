"""The envelope `upsert`: each row is the new row of its key or, if it says so, removes the key.

Owns the meaning of such a frame, and how equal keys get into one task; `tidelake.data.ingest.upsert` turns
events into updates. The tasks look up the old rows of their keys.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tidelake.errors import InvalidUpdates
from tidelake.feeds import rows
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.rows import Prepare, RowUpserts
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.columns import check_frame, quoted
from tidelake.spark.envelopes.times import TakeTime, check_time
from tidelake.spark.installed import VERSION
from tidelake.spark.tasks import slots


# SUBTLE: workers of other versions know this class by its name here.
class _UpsertEvents(rows.UpsertRows):
    """As its base."""


@dataclass(frozen=True)
class Upsert(RowUpserts):
    """Each row is the new row of its key, or removes the key.

    The frame has the key and value columns, by name in any order, and those named here. Rows have no order
    in Spark: several events of one key and time must be equal, or differ in `order_by`. See
    `tidelake.Collection.upsert`.
    """

    takes: ClassVar[type[rows.TimesFrom]] = TakeTime
    stores: ClassVar[type[rows.UpsertRows]] = _UpsertEvents

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        spec = collection.distributed.uploader().spec
        columns = self.events
        columns.check(spec.schema, spec.domain)
        time, own = self.column(frame.names, collection), collection.schema.names
        if time is not None:
            check_time(frame, time, collection)
        for name in columns.besides(spec.schema):
            if frame.names.count(name) != 1:
                raise InvalidUpdates(
                    f"the DataFrame has {frame.names.count(name)} columns {name!r}: it has "
                    f"{', '.join(map(repr, frame.names))}"
                )
        extra = {*columns.besides(spec.schema), *(() if time is None else (time,))} - {*own}
        rest = t.StructType([field for field in frame if field.name not in extra])
        columns.check_keys(rest.names, spec.schema)
        check_frame(rest, collection.schema, optional={*spec.optional, *columns.needless(spec.schema)})
        flag = [field for field in frame if field.name == self.delete_column]
        if flag and not isinstance(flag[0].dataType, t.BooleanType):
            kind = flag[0].dataType.simpleString()
            raise InvalidUpdates(f"column {self.delete_column!r} is {kind} and not boolean: cast it")

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        """As `Envelope`: the tasks take the columns as they are."""
        return frame

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """Bring equal and neighbouring keys into one task: each task then reads a part of the collection.

        Spark samples the frame for that, so it is evaluated twice. There are as many tasks as run at once.
        """
        by = by_key(prepared, collection)
        count = slots(prepared.sparkSession)
        met = prepared.repartitionByRange(count, *by) if count > 1 else prepared.coalesce(1)
        # Sorted, so that a task needs memory only for some of its events at a time.
        return met.sortWithinPartitions(*by)

    def looks_up_bytes(self, collection: Collection) -> int:
        """All stored bytes: the keys may be in all row groups."""
        return collection.state().spine.totals.size_bytes

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        return self.work_on(collection, columns, lower)

    def catch_up(self, collection: Collection) -> None:
        """As `Unpacking`."""
        collection.distributed.upserter().catch_up()


def preparing(work: ArrowMap, first: Callable[[Prepare | None], Prepare]) -> ArrowMap:
    """The work of an `Upsert`, with a preparation that is made from its own one."""
    if not isinstance(work, _UpsertEvents):
        raise TypeError(work)
    return replace(work, prepare=first(work.prepare))


def by_key(prepared: DataFrame, collection: Collection) -> list[Column]:
    """The order of stored rows: by key."""
    return [_sorted_as_stored(prepared.schema[name]) for name in collection.key]


def _sorted_as_stored(field: t.StructField) -> Column:
    """Make Spark sort a key column as parts are sorted: nulls last, -0.0 equal to 0.0, text by bytes."""
    column = f.col(quoted(field.name))
    if isinstance(field.dataType, t.FloatType | t.DoubleType):
        column = column + f.lit(0.0).cast(field.dataType)
    if isinstance(field.dataType, t.StringType) and not _by_bytes(field.dataType):
        column = f.collate(column, "UTF8_BINARY")
    return column.asc_nulls_last()


def _by_bytes(text: t.StringType) -> bool:
    """Whether Spark sorts this text by its bytes; before 4.0 it knows no other order."""
    return VERSION < (4, 0) or bool(text.isUTF8BinaryCollation())

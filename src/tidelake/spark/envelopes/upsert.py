"""The envelope `upsert`: each row is the new row of its key or, if it says so, removes the key.

Owns the meaning of such a frame, and how equal keys get into one task; `tidelake.data.ingest.upsert` turns
events into updates. The tasks look up the old rows of their keys.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tidelake.data.ingest.events import EventColumns
from tidelake.data.kernel.types import update_schema
from tidelake.errors import InvalidUpdates
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.model.time import parts
from tidelake.shard.writing.upserter import Upserter
from tidelake.spark.columns import check_frame, convert, quoted
from tidelake.spark.envelopes.envelope import OneTime
from tidelake.spark.envelopes.times import TakeTime, check_time, one_time
from tidelake.spark.envelopes.updates import Late, check_late, commit_time
from tidelake.spark.installed import VERSION
from tidelake.spark.tasks import ArrowMap, slots
from tidelake.spark.uploads import Answer, answered

Prepare: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
"""What a task does to a batch before all else."""


@dataclass(frozen=True)
class Upsert:
    """Each row is the new row of its key, or removes the key.

    The frame has the key and value columns, by name in any order, and those named here. Rows have no order
    in Spark: several events of one key and time must be equal, or differ in `order_by`. See
    `tidelake.Collection.upsert`.

    Attributes:
        order_by: a column of the collection, or only of the frame: of the events of one key and time, the one
            with the greatest value wins. If it is a column of the collection, events older than the stored
            row are late and change nothing.
        delete_column: a boolean column that is true where the key is removed; None: no row removes its key.
            If all rows are removals, value columns may be missing.
        time: the column with the time of each event, or one time for all events, as for `Updates`. None:
            `_time` if the frame has it, otherwise the time of the commit.
        late: what to do with events whose time is closed: `"refuse"` is an error, `"advance"` moves them to
            the least open time, in their order.
    """

    order_by: str | None = None
    delete_column: str | None = None
    time: str | int | None = None
    late: Late = "refuse"

    def __post_init__(self) -> None:
        check_late(self.late)

    @property
    def rebases(self) -> bool:
        """False: the updates depend on old rows, which another writer may change."""
        return False

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        spec = collection.distributed.uploader().spec
        columns = self._events()
        columns.check(spec.schema, spec.domain)
        time, own = self._column(frame.names, collection), collection.schema.names
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

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:  # noqa: ARG002  # it pins its own
        """As `Envelope`."""
        own, time = collection.domain.columns[0], self._column(columns, collection)
        at = one_time(self.time, columns, collection)
        upserter = collection.distributed.upserter(
            time=at,
            order_by=self.order_by,
            delete_column=self.delete_column,
            rows_count=False,
            advance=self.late == "advance" and time is not None,
        )
        if at is None and time is None:
            upserter = replace(upserter, time=commit_time(collection, upserter.lower))
        return _UpsertEvents(
            upserter.to_bytes(),
            tuple(columns),
            update_schema(upserter.spec.schema, upserter.spec.domain),
            own,
            stamped=at is None and time is None,
            prepare=None if time in (None, own) else TakeTime(str(time), own, collection.domain.unit),
        )

    def catch_up(self, collection: Collection) -> None:
        """As `Unpacking`."""
        collection.distributed.upserter().catch_up()

    def _events(self) -> EventColumns:
        return EventColumns(self.order_by, self.delete_column)

    def _column(self, names: Sequence[str], collection: Collection) -> str | None:
        """The frame's column with the times; None if there is none."""
        own = collection.domain.columns[0]
        if self.time is None:
            return own if own in names else None
        if one_time(self.time, names, collection) is not None:
            return None
        return self.time if isinstance(self.time, str) else None


# SUBTLE: workers of other versions know this class by its name and its fields.
@dataclass(frozen=True)
class _UpsertEvents:
    """In a worker: store the updates of events as parts, and yield one answer.

    Attributes:
        upserter: bytes of the upserter.
        columns: names of the input columns, in order.
        schema: schema of the collection's updates.
        time: name of its time column.
        stamped: whether the events have the time of the commit: then no time passes without updates.
        prepare: applied to each batch first, under the names of `columns`; None: nothing is.
    """

    upserter: bytes
    columns: tuple[str, ...]
    schema: pa.Schema
    time: str
    stamped: bool
    prepare: Prepare | None

    @property
    def all_at(self) -> OneTime | None:
        """As `AtOneTime`."""
        at = Upserter.from_bytes(self.upserter).time
        return None if at is None else OneTime(parts(at)[0], given=not self.stamped)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""

        def work(answer: Answer) -> bytes:
            upserter = Upserter.from_bytes(self.upserter)
            return upserter.upload(
                (self._events(batch, upserter) for batch in batches),
                lambda events, updates: self._see(answer, events, updates),
                count=answer.see_removals,
            )

        return answered(work)

    def _events(self, batch: pa.RecordBatch, upserter: Upserter) -> pa.RecordBatch:
        named = batch.rename_columns(self.columns)
        rows = named if self.prepare is None else self.prepare(named)
        extra = upserter.columns.besides(upserter.spec.schema)
        fields = [field for field in self.schema if field.name in rows.schema.names]
        return convert(rows, pa.schema([*fields, *(rows.schema.field(name) for name in extra)]))

    def _see(self, answer: Answer, events: pa.Table, updates: pa.Table) -> None:
        answer.count(events=events.num_rows, updates=updates.num_rows)
        seen = updates if self.stamped else events
        if seen.num_rows:
            ends = pc.min_max(seen.column(self.time)).as_py()
            answer.see_times(ends["min"], ends["max"])


def preparing(work: ArrowMap, first: Callable[[Prepare | None], Prepare]) -> ArrowMap:
    """The work of an `Upsert`, with a preparation that is made from its own one.

    Raises:
        TypeError: it is other work.
    """
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

"""The envelope `append`: each row is added once, at the time in a column or at that of the commit.

Owns the meaning of a plain DataFrame: no `_diff`, nothing is removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.columns import check_frame
from tidelake.spark.envelopes.updates import Late, StoreRows, check_late, commit_time
from tidelake.spark.tasks import ArrowMap


@dataclass(frozen=True)
class Append:
    """Each row is added.

    The frame has the key and value columns, by name in any order. Columns that a change of the schema
    added may be missing, and are null.

    Attributes:
        time: the column with the time of each row: whole numbers, or timestamps if the collection's times
            are a clock (rounded down to its unit). It is also stored if the collection has a column of that
            name. None: `_time` if the frame has it, otherwise the time of the commit, as for `Updates`.
        late: as for `Updates`.
    """

    time: str | None = None
    late: Late = "refuse"

    def __post_init__(self) -> None:
        check_late(self.late)

    @property
    def rebases(self) -> bool:
        """True: rows do not depend on the contents of the collection."""
        return True

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        if not collection.domain.total_order:
            raise UsageError(
                f"times of {collection.domain} need lower and upper: use "
                "tidelake.spark.append(collection, frame, lower=..., upper=...)"
            )
        time = self._column(frame.names, collection)
        if time is not None:
            check_time(frame, time, collection)
        rest = t.StructType([f for f in frame if f.name != time or f.name in collection.schema.names])
        check_frame(rest, collection.schema, optional=collection.distributed.uploader().spec.optional)

    def _column(self, names: Sequence[str], collection: Collection) -> str | None:
        own = collection.domain.columns[0]
        return self.time if self.time is not None else own if own in names else None

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        """As `Envelope`: the tasks take the columns as they are."""
        return frame

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        """No row needs to meet another one."""
        return prepared

    def looks_up_bytes(self, collection: Collection) -> int:  # noqa: ARG002
        """Nothing."""
        return 0

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        own, time = collection.domain.columns[0], self._column(columns, collection)
        wanted = [field for field in collection.update_schema if field.name in columns and field.name != own]
        if time is not None:
            wanted.append(collection.update_schema.field(own))
        stamp = commit_time(collection, lower) if time is None else None
        return StoreRows(
            collection.distributed.uploader().to_bytes(),
            tuple(columns),
            pa.schema(wanted),
            time=own,
            stamp=stamp,
            advances=stamp is not None or self.late == "advance",
            prepare=None if time in (None, own) else TakeTime(str(time), own, collection.domain.unit),
        )


def check_time(frame: t.StructType, time: str, collection: Collection) -> None:
    """Check that a frame has the column that times are taken from.

    Raises:
        InvalidUpdates: it has no such column, or one of another type.
    """
    found = [field.dataType for field in frame if field.name == time]
    if len(found) != 1:
        raise InvalidUpdates(
            f"the DataFrame has {len(found)} columns {time!r} to take times from: "
            f"it has {', '.join(map(repr, frame.names))}"
        )
    clock = collection.domain.unit in _CUTS
    if isinstance(found[0], t.IntegralType) or (clock and isinstance(found[0], t.TimestampType)):
        return
    wanted = "bigint or timestamp" if clock else "bigint"
    raise InvalidUpdates(
        f"column {time!r} is {found[0].simpleString()}, and times of this collection are {wanted}: cast it"
    )


@dataclass(frozen=True)
class TakeTime:
    """Computes the time column from another one."""

    source: str
    target: str
    unit: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Append the time column to a batch."""
        values = batch.column(self.source)
        if pa.types.is_timestamp(values.type):
            # Round down, also before 1970: a cast rounds towards 0, so that -0.5 ms would become time 0.
            unit, cut = _CUTS[self.unit]
            values = pc.cast(pc.cast(cut(values), pa.timestamp(unit, values.type.tz)), pa.int64())
        return batch.append_column(self.target, values)


def _milliseconds(values: pa.Array) -> pa.Array:
    return pc.floor_temporal(values, 1, "millisecond")


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


_CUTS = {"ms": ("ms", _milliseconds), "us": ("us", _as_it_is)}

"""The times of rows whose time column has another name.

Owns which columns can be times, and how their values become times. Must not know envelopes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from tidelake.data.kernel.timestamps import days_of
from tidelake.errors import InvalidUpdates
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.model.instants import is_instant
from tidelake.model.time import parts
from tidelake.timetext import is_clock


def one_time(time: str | int | None, names: Sequence[str], collection: Collection) -> int | None:
    """The one time of all rows, if an option `time` says it: a number or, if no column has that name, a text.

    Raises:
        UsageError: the text is an instant, and the collection has no such time.
    """
    if not isinstance(time, str):
        return time
    if time in names or not is_instant(time):
        return None
    return parts(times_of(collection).at(time, "time"))[0]


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
    clock = is_clock(collection.domain.unit)
    if isinstance(found[0], t.IntegralType) or (clock and isinstance(found[0], t.TimestampType | t.DateType)):
        return
    wanted = "bigint, timestamp or date" if clock else "bigint"
    raise InvalidUpdates(
        f"column {time!r} is {found[0].simpleString()}, and times of this collection are {wanted}: cast it"
    )


@dataclass(frozen=True)
class TakeTime:
    """Computes the time column from another one. A date is midnight UTC, as everywhere."""

    source: str
    target: str
    unit: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Append the time column to a batch."""
        values = batch.column(self.source)
        is_moment = pa.types.is_date(values.type) or pa.types.is_timestamp(values.type)
        if self.unit == "date" and is_moment:
            values = days_of(values, self.source)
        elif pa.types.is_date(values.type):
            values = pc.cast(pc.cast(values, pa.timestamp(_CUTS[self.unit][0])), pa.int64())
        elif pa.types.is_timestamp(values.type):
            # Round down, also before 1970: a cast rounds towards 0, so that -0.5 ms would become time 0.
            unit, cut = _CUTS[self.unit]
            values = pc.cast(pc.cast(cut(values), pa.timestamp(unit, values.type.tz)), pa.int64())
        return batch.append_column(self.target, values)


def _milliseconds(values: pa.Array) -> pa.Array:
    return pc.floor_temporal(values, 1, "millisecond")


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


_CUTS = {"ms": ("ms", _milliseconds), "us": ("us", _as_it_is)}

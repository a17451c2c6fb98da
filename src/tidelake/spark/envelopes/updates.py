"""The envelope `updates`, the default: rows are updates, with key and value columns, a time and `_diff`.

Owns the check of such a frame; `tidelake.feeds.rows` owns the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.types import StructType

from tidelake.errors import UsageError
from tidelake.feeds import rows
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.rows import RowUpdates, one_time
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.spark.columns import check_frame
from tidelake.spark.envelopes.envelope import RowByRow
from tidelake.spark.envelopes.times import TakeTime, check_time


# SUBTLE: workers of other versions know these classes by their names here.
class StoreRows(rows.AddRows):
    """As its base."""


class Half(rows.OneSide):
    """As its base."""


@dataclass(frozen=True)
class Updates(RowUpdates, RowByRow):
    """Each row is an update.

    The frame has the key and value columns, by name in any order, types as `tidelake.spark.columns` maps
    them. Without times all rows get the time of the commit: the collection's upper or, for clock times, the
    wall clock if that is later. Without `_diff` all are `+1`: each row is added. Columns that a change of the
    schema added may be missing, and are null.

    Attributes:
        time, late: as for `RowUpdates`.
        interval: lower and upper; all rows lie in between. Only needed if times are tuples.
    """

    interval: tuple[Frontier, Frontier] | None = None

    takes: ClassVar[type[rows.TimesFrom]] = TakeTime
    stores: ClassVar[type[rows.AddRows]] = StoreRows

    def check(self, frame: StructType, collection: Collection) -> None:
        """As `Envelope`."""
        domain = collection.domain
        if not domain.total_order and self.late == "advance":
            raise UsageError(f"late='advance' needs times that are single numbers, not {domain}")
        if not domain.total_order and self.time is not None:
            raise UsageError(f"time={self.time!r} needs times that are single numbers, not {domain}")
        if not domain.total_order and (self.interval is None or not set(domain.columns) <= set(frame.names)):
            raise UsageError(
                f"times of {domain} need the columns {', '.join(domain.columns)}, lower and upper: use "
                "tidelake.spark.append(collection, frame, lower=..., upper=...)"
            )
        optional = (DIFF, *collection.distributed.uploader().spec.optional)
        wanted = collection.update_schema
        if one_time(self.time, frame.names, collection) is not None:
            wanted = pa.schema([f for f in wanted if f.name != domain.columns[0]])
        elif isinstance(self.time, str) and self.time != domain.columns[0]:
            check_time(frame, self.time, collection)
            wanted = pa.schema([f for f in wanted if f.name != domain.columns[0]])
            frame = StructType([f for f in frame if f.name != self.time or f.name in wanted.names])
        elif domain.total_order:
            optional += domain.columns
        check_frame(frame, wanted, optional=optional)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        return self.work_on(collection, columns, lower, interval=self.interval)

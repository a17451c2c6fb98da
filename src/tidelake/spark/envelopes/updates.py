"""The envelope `updates`, the default: rows are updates, with key and value columns, a time and `_diff`.

Owns the check of such a frame, and the work of tasks that store rows without looking up others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from tidelake.data.kernel.types import update_schema
from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.spark.columns import check_frame, convert
from tidelake.spark.envelopes.envelope import OneTime, RowByRow
from tidelake.spark.envelopes.times import TakeTime, check_time, one_time
from tidelake.spark.tasks import ArrowMap
from tidelake.spark.uploads import Answer, upload

Late: TypeAlias = Literal["refuse", "advance"]


@dataclass(frozen=True)
class Updates(RowByRow):
    """Each row is an update.

    The frame has the key and value columns, by name in any order, types as `tidelake.spark.columns` maps
    them. Without times all rows get the time of the commit: the collection's upper or, for clock times, the
    wall clock if that is later. Without `_diff` all are `+1`: each row is added. Columns that a change of the
    schema added may be missing, and are null.

    Attributes:
        time: the column with the time of each row: whole numbers or, if the collection's times are a clock,
            timestamps (rounded down to its unit) or dates (midnight UTC). It is also stored if the collection
            has a column of that name. Or one time for all rows: a number, or a text such as `"now"` if the
            frame has no such column. None: `_time` if the frame has it, otherwise the time of the commit.
        late: what to do with rows whose time is closed: `"refuse"` is an error, `"advance"` gives them
            the least time that is open at the commit.
        interval: lower and upper; all rows lie in between. Only needed if times are tuples.
    """

    time: str | int | None = None
    late: Late = "refuse"
    interval: tuple[Frontier, Frontier] | None = None

    def __post_init__(self) -> None:
        check_late(self.late)

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
        domain = collection.domain
        uploader = collection.distributed.uploader(*(self.interval or (None, None)))
        own, take = domain.columns[0], None
        stamp = at = one_time(self.time, columns, collection)
        if at is None and isinstance(self.time, str) and self.time != own:
            take = TakeTime(self.time, own, domain.unit)
        elif at is None and domain.total_order and own not in columns:
            stamp = commit_time(collection, lower)
        given = columns if take is None else (*columns, own)
        wanted = [field for field in update_schema(uploader.spec.schema, domain) if field.name in given]
        return StoreRows(
            uploader.to_bytes(),
            tuple(columns),
            pa.schema(wanted),
            time=own if domain.total_order else None,
            stamp=stamp,
            counted=DIFF in columns,
            advances=stamp != at or self.late == "advance",
            prepare=take,
        )


@dataclass(frozen=True)
class Half:
    """The rows on one side of a time.

    Attributes:
        at: the time.
        late: True: the rows before it; False: the rows at or after it.
    """

    at: int
    late: bool


@dataclass(frozen=True)
class StoreRows:
    """In a worker: store rows as parts, and yield one answer.

    Attributes:
        uploader: bytes of the uploader.
        columns: names of the input columns, in order.
        schema: the columns that are stored unchanged.
        time: name of the time column; None if times are tuples.
        stamp: the time of all rows; None if the rows have their own.
        counted: whether the rows have diffs; otherwise all are +1.
        advances: whether rows whose times are closed at the commit get a later time.
        prepare: applied to each batch first, under the names of `columns`.
        half: which rows to store; None: all. Rows before its time are counted as late in either case.
    """

    uploader: bytes
    columns: tuple[str, ...]
    schema: pa.Schema
    time: str | None
    stamp: int | None = None
    counted: bool = False
    advances: bool = False
    prepare: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    half: Half | None = None

    @property
    def all_at(self) -> OneTime | None:
        """As `AtOneTime`."""
        return None if self.stamp is None else OneTime(self.stamp)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        return upload(self.uploader, lambda answer: self._rows(batches, answer))

    def _rows(self, batches: Iterator[pa.RecordBatch], answer: Answer) -> Iterator[pa.RecordBatch]:
        answer.advances = self.advances
        for batch in batches:
            named = batch.rename_columns(self.columns)
            rows = convert(named if self.prepare is None else self.prepare(named), self.schema)
            if self.time is not None and self.stamp is not None:
                rows = _constant(rows, self.time, self.stamp)
            if not self.counted:
                rows = _constant(rows, DIFF, 1)
            if self.half is not None and self.time is not None:
                is_late = pc.less(rows.column(self.time), self.half.at)
                answer.count(late=pc.sum(is_late).as_py() or 0)
                rows = rows.filter(is_late if self.half.late else pc.invert(is_late))
            answer.see_rows(rows, self.time)
            yield rows


def _constant(batch: pa.RecordBatch, name: str, value: int) -> pa.RecordBatch:
    field = pa.field(name, pa.int64(), nullable=False)
    return batch.append_column(field, pa.repeat(pa.scalar(value, pa.int64()), batch.num_rows))


def check_late(late: object) -> None:
    """Check the argument `late`.

    Raises:
        UsageError: it is not valid; names the valid values.
    """
    if late not in get_args(Late):
        raise UsageError(f"late={late!r} is unknown: use 'refuse' or 'advance'")


def commit_time(collection: Collection, lower: Frontier) -> int:
    """The time for rows without one: `lower` or, for clock times, the wall clock if that is later.

    Raises:
        UsageError: the last time was given, and is much older than the clock.
    """
    return times.parts(times.join(lower.elements[0], collection.distributed.commit_time()))[0]

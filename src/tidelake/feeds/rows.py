"""What rows mean, and the work on them: each is an update, or the new row of its key.

Owns their times and options. Must not know where the rows are from.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.convert import convert
from tidelake.data.ingest.events import EventColumns, read_events
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.timestamps import days_of
from tidelake.data.kernel.types import update_schema
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.answers import Answer, answered, upload
from tidelake.feeds.commit import OneTime
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.instants import is_instant
from tidelake.model.schema import DIFF
from tidelake.model.time import parts
from tidelake.shard.writing.upserter import Upserter
from tidelake.timetext import is_clock

Late: TypeAlias = Literal["refuse", "advance"]
Prepare: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
"""What a task does to a batch before all else."""


@dataclass(frozen=True)
class OneSide:
    """The rows on one side of a time.

    Attributes:
        at: the time.
        late: True: the rows before it; False: the rows at or after it.
    """

    at: int
    late: bool


@dataclass(frozen=True)
class AddRows:
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
    prepare: Prepare | None = None
    half: OneSide | None = None

    @property
    def all_at(self) -> OneTime | None:
        """The one time of all rows; None: they have times of their own."""
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


@dataclass(frozen=True)
class UpsertRows:
    """In a worker: store the updates of new rows of keys as parts, and yield one answer.

    Attributes:
        upserter: bytes of the upserter.
        columns: names of the input columns, in order.
        schema: schema of the updates.
        time: name of the time column.
        stamped: whether the rows have the time of the commit: then no time passes without updates.
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
        """As `AddRows`."""
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


def _constant(batch: pa.RecordBatch, name: str, value: int) -> pa.RecordBatch:
    field = pa.field(name, pa.int64(), nullable=False)
    return batch.append_column(field, pa.repeat(pa.scalar(value, pa.int64()), batch.num_rows))


def check_late(late: object) -> None:
    """Check the argument `late`."""
    if late not in get_args(Late):
        raise UsageError(f"late={late!r} is unknown: use 'refuse' or 'advance'")


def commit_time(collection: Collection, lower: Frontier) -> int:
    """The time for rows without one: `lower` or, for clock times, the wall clock if that is later."""
    return parts(times.join(lower.elements[0], collection.distributed.commit_time()))[0]


def one_time(time: str | int | None, names: Sequence[str], collection: Collection) -> int | None:
    """The one time of all rows that an option `time` says: a number, or a text that names no column."""
    if time is None or (isinstance(time, str) and (time in names or not is_instant(time))):
        return None
    return parts(times_of(collection).at(time, "time"))[0]


def _any_time(time: str | int | None, kinds: pa.Schema, collection: Collection) -> int | None:
    """A time for rows that have none of their own."""
    own = collection.domain.columns[0]
    return None if own in kinds.names and one_time(time, kinds.names, collection) is None else 0


def _timed(time: str | int | None, given: pa.Schema, collection: Collection) -> pa.Schema:
    """Columns of rows with the column of times, whichever that is."""
    domain = collection.domain
    if not domain.total_order:
        raise UsageError(f"rows of files need times that are single numbers, not {domain}: use append")
    own = domain.columns[0]
    at = given.get_field_index(own)
    if at >= 0 and pa.types.is_integer(given.field(at).type):
        given = given.set(at, given.field(at).with_type(pa.int64()))
    if not isinstance(time, str) or time == own or one_time(time, given.names, collection) is not None:
        return given
    if time not in given.names:
        raise InvalidUpdates(f"there is no column {time!r} to take times from: there is {given.names}")
    kind, clock = given.field(time).type, is_clock(domain.unit)
    is_moment = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if not (pa.types.is_integer(kind) or (clock and is_moment)):
        wanted = "int64, timestamp or date" if clock else "int64"
        raise InvalidUpdates(f"column {time!r} is {kind}, and times of this collection are {wanted}: cast it")
    kept = [field for field in given if field.name != time or time in collection.schema.names]
    return pa.schema([*kept, pa.field(own, pa.int64())])


@dataclass(frozen=True)
class TimesFrom:
    """Computes the time column from another one. A date is midnight UTC, as everywhere."""

    source: str
    target: str
    unit: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Append the time column to a batch."""
        try:
            times = self._times(batch.column(self.source))
        except pa.ArrowInvalid as error:
            raise InvalidUpdates(
                f"column {self.source!r} has times that do not fit {self.unit!r}: {error}"
            ) from error
        return batch.append_column(self.target, times)

    def _times(self, values: pa.Array) -> pa.Array:
        is_moment = pa.types.is_date(values.type) or pa.types.is_timestamp(values.type)
        if self.unit == "date" and is_moment:
            values = days_of(values, self.source)
        elif pa.types.is_date(values.type):
            values = pc.cast(pc.cast(values, pa.timestamp(_CUTS[self.unit][0])), pa.int64())
        elif pa.types.is_timestamp(values.type):
            # Round down, also before 1970: a cast rounds towards 0, so that -0.5 ms would become time 0.
            unit, cut = _CUTS[self.unit]
            values = pc.cast(pc.cast(cut(values), pa.timestamp(unit, values.type.tz)), pa.int64())
        return values


def _milliseconds(values: pa.Array) -> pa.Array:
    return pc.floor_temporal(values, 1, "millisecond")


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


_CUTS = {"ms": ("ms", _milliseconds), "us": ("us", _as_it_is)}


@dataclass(frozen=True)
class RowUpdates:
    """Each row is an update.

    Attributes:
        time: the column with the time of each row: whole numbers or, if the collection's times are a clock,
            timestamps (rounded down to its unit) or dates (midnight UTC). It is also stored if the collection
            has a column of that name. Or one time for all rows: a number, or a text such as `"now"` if there
            is no such column. None: `_time` if there is one, otherwise the time of the commit.
        late: what to do with rows whose time is closed: `"refuse"` is an error, `"advance"` gives them
            the least time that is open at the commit.
    """

    time: str | int | None = None
    late: Late = "refuse"

    # The classes of the work, which processes of other versions know by their names.
    takes: ClassVar[type[TimesFrom]] = TimesFrom
    stores: ClassVar[type[AddRows]] = AddRows

    def __post_init__(self) -> None:
        check_late(self.late)

    def check_columns(self, collection: Collection, given: pa.Schema) -> None:
        """Check the columns of rows. Errors as `normalize`."""
        spec, kinds = collection.distributed.uploader().spec, self.stored(collection, given)
        normalize(
            kinds.empty_table(),
            spec.schema,
            spec.domain,
            time=_any_time(self.time, kinds, collection),
            optional=spec.optional,
            dropped=spec.dropped,
        )

    def stored(self, collection: Collection, given: pa.Schema) -> pa.Schema:
        """The columns of rows that are stored, with their times. Errors as `check_columns`."""
        return _timed(self.time, given, collection)

    @property
    def rebases(self) -> bool:
        """True: rows do not depend on the contents of the collection."""
        return True

    def work_on(
        self,
        collection: Collection,
        columns: Sequence[str],
        lower: Frontier,
        kinds: pa.Schema | None = None,
        interval: tuple[Frontier, Frontier] | None = None,
    ) -> AddRows:
        """The work on rows of some columns, at an upper.

        Args:
            collection: the target.
            columns: names of the columns.
            lower: the upper.
            kinds: the columns to store, with the times; None: those of the collection, in its types.
            interval: as for `Distributed.uploader`.
        """
        domain = collection.domain
        uploader = collection.distributed.uploader(*(interval or (None, None)))
        own, take = domain.columns[0], None
        stamp = at = one_time(self.time, columns, collection)
        if at is None and isinstance(self.time, str) and self.time != own:
            take = self.takes(self.time, own, domain.unit)
        elif at is None and domain.total_order and own not in columns:
            stamp = commit_time(collection, lower)
        given = columns if take is None else (*columns, own)
        wanted = update_schema(uploader.spec.schema, domain) if kinds is None else kinds
        return self.stores(
            uploader.to_bytes(),
            tuple(columns),
            pa.schema([field for field in wanted if field.name in given]),
            time=own if domain.total_order else None,
            stamp=stamp,
            counted=DIFF in columns,
            advances=stamp != at or self.late == "advance",
            prepare=take,
        )


@dataclass(frozen=True)
class RowUpserts:
    """Each row is the new row of its key, or removes the key.

    Several rows of one key and time must be equal, or differ in `order_by`. See `tidelake.Collection.upsert`.

    Attributes:
        order_by: a column of the collection, or only of the rows: of those of one key and time, the one with
            the greatest value wins. If it is a column of the collection, rows older than the stored one are
            late and change nothing.
        delete_column: a boolean column that is true where the key is removed; None: no row removes its key.
            If all rows are removals, value columns may be missing.
        time: as for `RowUpdates`.
        late: what to do with rows whose time is closed: `"refuse"` is an error, `"advance"` moves them to the
            least open time, in their order.
    """

    order_by: str | None = None
    delete_column: str | None = None
    time: str | int | None = None
    late: Late = "refuse"

    takes: ClassVar[type[TimesFrom]] = TimesFrom
    stores: ClassVar[type[UpsertRows]] = UpsertRows

    def __post_init__(self) -> None:
        check_late(self.late)

    def check_columns(self, collection: Collection, given: pa.Schema) -> None:
        """Check the columns of rows. Errors as `read_events`."""
        spec, kinds = collection.distributed.uploader().spec, self.stored(collection, given)
        extra = self.events.besides(spec.schema)
        read_events(
            pa.schema([*kinds, *(field for field in given if field.name in extra)]).empty_table(),
            spec.schema,
            spec.domain,
            self.events,
            time=_any_time(self.time, kinds, collection),
            optional=spec.optional,
            dropped=spec.dropped,
        )

    def stored(self, collection: Collection, given: pa.Schema) -> pa.Schema:
        """As `RowUpdates`."""
        own = (*collection.schema.names, *collection.domain.columns)
        kinds, left_out = _timed(self.time, given, collection), {self.order_by, self.delete_column}
        return pa.schema([field for field in kinds if field.name in own or field.name not in left_out])

    @property
    def rebases(self) -> bool:
        """False: the updates depend on old rows, which another writer may change."""
        return False

    def work_on(
        self,
        collection: Collection,
        columns: Sequence[str],
        lower: Frontier,  # noqa: ARG002 - it pins its own
        kinds: pa.Schema | None = None,
    ) -> UpsertRows:
        """As `RowUpdates.work_on`."""
        own, time = collection.domain.columns[0], self.column(columns, collection)
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
        return self.stores(
            upserter.to_bytes(),
            tuple(columns),
            update_schema(upserter.spec.schema, upserter.spec.domain) if kinds is None else kinds,
            own,
            stamped=at is None and time is None,
            prepare=None if time in (None, own) else self.takes(str(time), own, collection.domain.unit),
        )

    @property
    def events(self) -> EventColumns:
        """What the columns besides those of the collection mean."""
        return EventColumns(self.order_by, self.delete_column)

    def column(self, names: Sequence[str], collection: Collection) -> str | None:
        """The column with the times; None if there is none."""
        own = collection.domain.columns[0]
        if self.time is None:
            return own if own in names else None
        if one_time(self.time, names, collection) is not None:
            return None
        return self.time if isinstance(self.time, str) else None

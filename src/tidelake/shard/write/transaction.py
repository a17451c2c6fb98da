"""One collection's share of a transaction: uploads its rows and stages them until the group decides.

`tidelake.lake.groups.groups` makes the decision; the commands are in `tidelake.state.group.awaiting` and
`tidelake.state.group.applying`.
"""

import operator
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.events import EventColumns, read_events
from tidelake.data.query.selection import bind
from tidelake.errors import LeftGroup, TransactionExpired, UpdateNotBeforeUpper, UploadExpired, UpperMismatch
from tidelake.model import time as times
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time
from tidelake.shard.engine.lease import Lease
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.engine.version import Version
from tidelake.shard.runs.upload import check_times, normalized
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.tending import admit
from tidelake.shard.write.append import commit_floor, past_last, under_newest_schema
from tidelake.shard.write.batch import Batch
from tidelake.shard.write.batches import check_once, check_own, check_stored, uploaded
from tidelake.shard.write.builder import BatchBuilder
from tidelake.shard.write.replacement import check_total
from tidelake.shard.write.uploads import Uploads, uploading
from tidelake.shard.write.upsert import Difference, deleting, replacing, upserting
from tidelake.state.core.commands import Outcome
from tidelake.state.group import applying, awaiting, deciding
from tidelake.state.spine.staged import Awaited
from tidelake.state.write.staging import unseen
from tidelake.state.write.write import Addition


@dataclass(frozen=True)
class Stay:
    """A period in which a collection is in a group.

    Attributes:
        group: id of the group.
        joined: seqno of the group's state in which the collection joined.
    """

    group: str
    joined: int


@dataclass(frozen=True)
class Offered:
    """Updates that are stored already: batches, and uploads of workers. They may be tried again if refused.

    Attributes:
        runs: all runs.
        checked: a frontier; all times are known to be at or after it.
        upper: the upper that the batches among them close times up to.
        batches: handles of the batches, which a transaction uses up.
        read_at: the updates depend on contents, which were read when the group was in this state or a later
            one: the decision is refused if the group let rows in for the collection after it. None: they
            depend on none.
    """

    runs: tuple[Run, ...]
    checked: Frontier
    upper: Frontier
    batches: tuple[Batch, ...] = ()
    read_at: int | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts of the runs."""
        return tuple(chain.from_iterable(run.parts for run in self.runs))


@dataclass(frozen=True)
class RowChanges:
    """The rows of an upsert or a replacement.

    Attributes:
        table: the rows.
        columns: the event columns of an upsert; None: the rows replace all contents.
    """

    table: pa.Table
    columns: EventColumns | None


@dataclass(frozen=True)
class Deletion:
    """A delete of the rows that a condition is true for.

    Attributes:
        where: the condition.
    """

    where: str


ContentChange: TypeAlias = RowChanges | Deletion
Given: TypeAlias = pa.Table | Offered | RowChanges | Deletion


@dataclass(frozen=True)
class MemberWrite:
    """One of the writes of a transaction.

    Attributes:
        name: the collection, as the transaction calls it.
        given: what it writes.
        upper: a frontier that all times must be before; None: there is none.
    """

    name: str
    given: Given
    upper: Frontier | None = None


Made: TypeAlias = Callable[[Version], Difference]
Ask: TypeAlias = Callable[..., Outcome[bool]]


def offered_of(shard: Shard, given: object) -> Offered | None:
    """Read a batch, the bytes of an upload, or a list of these; None if `given` is none of them.

    Raises:
        UsageError: one is for another collection, or is given twice.
        CorruptionError, FormatTooNew: the bytes are damaged, or of a newer version.
    """
    found: Sequence[object] = given if isinstance(given, list | tuple) else [given]
    if not found or not all(isinstance(one, Batch | bytes) for one in found):
        return None
    batches = tuple(one for one in found if isinstance(one, Batch))
    check_own(shard, batches)
    runs, checked = uploaded(shard, [one for one in found if isinstance(one, bytes)])
    minimum = Frontier.of(shard.spec.domain.minimum)
    upper = minimum
    for batch in batches:
        runs += batch.hollow.runs
        checked = minimum
        # A closed upper counts as none: it would close the whole group for good, which users must ask for.
        upper = upper if batch.bounds.upper.closed else upper.join(batch.bounds.upper)
    offered = Offered(runs, checked, upper, batches)
    check_once([part.name for part in offered.parts], "an upload")
    return offered


def has_times(shard: Shard, given: Given) -> bool:
    """Whether the rows have times of their own."""
    if isinstance(given, Offered | Deletion):
        return isinstance(given, Offered)
    if isinstance(given, RowChanges):
        return given.columns is not None and has_times(shard, given.table)
    return bool(set(shard.spec.domain.columns) & set(given.column_names))


def prepare(
    shard: Shard, stay: Stay, awaited: Awaited, given: pa.Table, *, time: int | None, upper: Frontier | None
) -> tuple[int, int] | None:
    """Upload rows and stage them for a transaction. One log write, and one `put` for each part not inline.

    Args:
        shard: the collection's shard.
        stay: its stay in the group.
        awaited: the transaction that the rows wait for.
        given: the rows. Without times they are written at `time`, or at the first open time.
        time: the time of all rows that have none.
        upper: a frontier that all times must be before; None: there is none.

    Returns:
        The first and the last time of the rows; None if there are no rows.

    Raises:
        UpperMismatch: `time` is closed.
        LeftGroup: the collection has left the group, even if it joined again since.
        UpdateBeforeLower, UpdateNotBeforeUpper: a time of the rows is closed, or not before `upper`.
        InvalidUpdates: the table does not fit the collection.
    """
    ask = partial(
        awaiting.prepare,
        group=stay.group,
        joined=stay.joined,
        awaited=awaited,
        as_now=True,
        owner=shard.writes_as,
    )

    def prepared(spec: ShardSpec) -> tuple[int, int] | None:
        state = shard.version().state
        timed = has_times(shard, given)
        at = None if timed else commit_floor(shard, state) if time is None else time
        table = normalized(spec, given, at)
        if not table.num_rows:
            return None
        if at is not None and not state.upper.less_equal(at):
            raise UpperMismatch(Frontier.of(at), state.upper).of(state.domain.unit)
        check_times(table, spec.domain, state.upper, upper)
        admit(shard)
        Drainer(shard).make_room()
        # Rows without times get them at the commit, so a time that was closed meanwhile does not matter.
        step = partial(
            ask, checked=state.upper, movable=not timed, inline_bytes_max=spec.config.inline_total_bytes
        )
        uploading(shard, spec, table, lambda uploads: _parked(shard, uploads, step))
        ends = pc.min_max(table.column(spec.domain.columns[0])).as_py()
        return ends["min"], ends["max"]

    return under_newest_schema(shard, prepared)


def _parked(shard: Shard, uploads: Uploads, step: Ask) -> None:
    uploads.offer(lambda runs: shard.carry_out(partial(step, runs=runs)), operator.not_)


def check_fits(shard: Shard, given: Given) -> None:
    """Refuse a table whose columns do not fit the collection. Looks at no rows. Usually no store call.

    Raises:
        InvalidUpdates: a column does not fit; names it.
    """
    if isinstance(given, Offered):
        return
    if isinstance(given, Deletion):
        check_total(shard.spec)
        bind(ReadOptions(where=given.where), shard.version().spec.schema)
        return
    at = None if has_times(shard, given) else shard.spec.domain.minimum
    table = (given.table if isinstance(given, RowChanges) else given).slice(0, 0)
    columns = given.columns if isinstance(given, RowChanges) else None

    def fits(spec: ShardSpec) -> None:
        if columns is None:
            normalized(spec, table, at)
            return
        columns.check(spec.schema, spec.domain)
        read_events(
            table, spec.schema, spec.domain, columns, time=at, optional=spec.optional, dropped=spec.dropped
        )

    under_newest_schema(shard, fits)


@dataclass(frozen=True)
class Changed:
    """What was staged for a change of contents.

    Attributes:
        times: the first and the last time of the updates; None: there are none.
        end: the last time that was asked for, also if nothing changes there; None: none was.
        latest: a seqno of the group: the decision must be refused if the group accepted another write to the
            collection after that state.
        removed: rows that go because their removal was asked for.
        absent: removals of keys that have no row.
    """

    times: tuple[int, int] | None
    end: int | None
    latest: int
    removed: int
    absent: int


def prepare_changes(
    shard: Shard, stay: Stay, awaited: Awaited, changes: ContentChange, time: int | None
) -> Changed:
    """Compute the updates of an upsert, a replacement or a delete on the present contents, and stage them.

    Three log scans, two log writes, a read of the contents, and one `put` for each part that is not tiny.

    Args:
        shard: the collection's shard.
        stay: its stay in the group.
        awaited: the transaction that the updates wait for.
        changes: the new rows.
        time: the time of the change; None: the rows have times.

    Raises:
        UpdateBeforeLower: a time is closed.
        UpperMismatch: all times are closed for good.
        LeftGroup, InvalidUpdates: as `prepare`.
        TransactionExpired: it took so long that the uploaded parts have expired.
    """
    if isinstance(changes, Deletion):
        made = deleting(shard, changes.where, time)
    elif changes.columns is None:
        made = replacing(shard, changes.table, time)
    else:
        made = upserting(shard, changes.table, changes.columns, time)
    return under_newest_schema(shard, lambda _: _changed(shard, stay, awaited, made))


def _changed(shard: Shard, stay: Stay, awaited: Awaited, made: Made) -> Changed:
    look = shard.look()
    view, group = look.view, look.group
    if view is None or group is None or not view.is_of(stay.group, stay.joined):
        raise LeftGroup(shard.spec.shard_id)
    # The group was read first, so a write that the group accepts later is either in the contents that are
    # read here, or makes the group refuse the decision.
    shard.run(partial(applying.apply_decided, view=view))
    version = shard.version_of(shard.known())
    state, spec = version.state, version.spec
    admit(shard)
    Drainer(shard).make_room()
    found = made(version)
    runs, ends = _built(shard, version, found)
    end = None if found.end is None else _number(found.end)
    changed = Changed(ends, end, group.seqno, found.removed, found.absent)
    if ends is None:
        return changed
    step = partial(
        awaiting.prepare,
        group=stay.group,
        joined=stay.joined,
        awaited=awaited,
        checked=state.upper,
        inline_bytes_max=spec.config.inline_total_bytes,
        as_now=True,
        owner=shard.writes_as,
    )
    with Uploads(shard, runs) as uploads:
        refusal = unseen(state, Bounds(state.upper, past_last(ends[1]), state.minimum), found.seen)
        if refusal is not None:
            raise refusal.error
        try:
            _parked(shard, uploads, step)
        except UploadExpired as error:
            raise TransactionExpired(awaited.transaction) from error
    return changed


def _built(
    shard: Shard, version: Version, found: Difference
) -> tuple[tuple[Run, ...], tuple[int, int] | None]:
    """Write differences as runs; returns these, and their first and last time (None: no rows)."""
    ends: tuple[int, int] | None = None
    spec = version.spec
    updates = Lease(shard).watch(version, found.updates)
    with (
        BatchBuilder(
            spec, shard.stores.blobs, shard.env, version.upper, sorted=True, upper=Frontier()
        ) as builder,
        closing(updates),
    ):
        for batch in updates:
            if batch.num_rows:
                here = pc.min_max(batch.column(spec.domain.columns[0])).as_py()
                first, last = ends or (here["min"], here["max"])
                ends = (min(first, here["min"]), max(last, here["max"]))
            builder.add(batch)
        built = builder.finish(Frontier())
    built.take("staged")
    return built.hollow.runs, ends if built.rows else None


def free_offered(shard: Shard, group: Shard, offered: Offered) -> None:
    """Make sure that no earlier attempt with the same runs can still be committed. Two log scans.

    SUBTLE: an earlier attempt may still be running, so expire it in the group, which then refuses every
    transaction that began before.
    """
    look = shard.look()
    waiting = awaiting.waiting_for(applying.seen_through(look.state, look.view), offered.runs)
    before = max((one.begun + 1 for one in waiting.values()), default=0)
    if before > group.known().expired:
        group.run(partial(deciding.expire, before=before))


def prepare_offered(
    shard: Shard, stay: Stay, awaited: Awaited, offered: Offered, end: Frontier | None = None
) -> tuple[int, int] | None:
    """Stage stored updates for a transaction. Two log scans and a log write.

    They replace those of an earlier attempt with the same runs, if that has expired. All times must be before
    `end`, if it is given.

    Returns:
        The first and the last time of the rows; None if there are no rows.

    Raises:
        AlreadyTaken: some of the updates are in the collection.
        UploadExpired: some were uploaded too long ago.
        UpdateBeforeLower, UpdateNotBeforeUpper, LeftGroup: as `prepare`.
        TransactionExpired: the updates are staged for another transaction, which may still commit.
    """
    check_stored(shard, [part for batch in offered.batches if batch.sent for part in batch.hollow.parts()])
    if not offered.runs:
        return None
    late = [
        part.seen_times[1] for part in offered.parts if end is not None and end.less_equal(part.seen_times[1])
    ]
    if late:
        raise shard.named(UpdateNotBeforeUpper(late[0], end))
    admit(shard)
    Drainer(shard).make_room()
    look = shard.look()
    view, group = look.view, look.group
    if view is None or group is None or not view.is_of(stay.group, stay.joined):
        raise LeftGroup(shard.spec.shard_id)
    upper = applying.seen_through(look.state, view).upper
    waiting = awaiting.waiting_for(look.state, offered.runs).values()
    step = partial(
        awaiting.stage_single,
        view=view,
        awaited=awaited,
        found=Addition(HollowBatch(Bounds(upper, upper, look.state.minimum), offered.runs), stays_open=True),
        checked=offered.checked,
        given_up=frozenset(one.transaction for one in waiting if one.begun < group.expired),
    )
    if not shard.run(step):
        raise TransactionExpired(awaited.transaction)
    seen = [time for part in offered.parts for time in part.seen_times]
    return min(map(_number, seen)), max(map(_number, seen))


def _number(time: Time) -> int:
    return times.parts(time)[0]

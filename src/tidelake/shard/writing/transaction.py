"""One collection's share of a transaction: its rows are uploaded and staged, where they await the decision.

Who decides, and where, is `tidelake.lake.groups`; what the commands promise is `tidelake.state.transactions`.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.events import EventColumns, read_events
from tidelake.errors import LeftGroup, TransactionExpired, UploadExpired, UpperMismatch
from tidelake.model import time as times
from tidelake.model.batch import Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.shard.lease import Lease
from tidelake.shard.runs.upload import check_times, discard, normalized, write_table
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.maintain import admit
from tidelake.shard.writing.append import commit_floor, past_last, under_newest_schema
from tidelake.shard.writing.batch import Batch
from tidelake.shard.writing.batches import check_once, check_own, check_stored, uploaded
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.shard.writing.stage import offer_staged
from tidelake.shard.writing.upsert import Difference, replacing, upserting
from tidelake.state import transactions
from tidelake.state.append import Addition
from tidelake.state.commands import Outcome
from tidelake.state.staged import Awaited
from tidelake.state.staging import unseen
from tidelake.state.state import ShardState


@dataclass(frozen=True)
class Stay:
    """The time that a collection is in a group: the id of that, and since which state of it."""

    group: str
    joined: int


@dataclass(frozen=True)
class Offered:
    """What is stored already: batches, and what workers uploaded. It may be offered again after a refusal.

    Attributes:
        runs: of it.
        checked: a frontier that all its times are known to lie at or beyond.
        upper: what the batches among it close.
        batches: handles, which a transaction uses.
    """

    runs: tuple[Run, ...]
    checked: Frontier
    upper: Frontier
    batches: tuple[Batch, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of it."""
        return tuple(chain.from_iterable(run.parts for run in self.runs))


@dataclass(frozen=True)
class Changes:
    """Rows that replace what is there.

    Attributes:
        table: of them.
        columns: of an upsert; None: they replace all that is there.
    """

    table: pa.Table
    columns: EventColumns | None


Given: TypeAlias = pa.Table | Offered | Changes
Made: TypeAlias = Callable[[ShardState, ShardSpec], Difference]
Ask: TypeAlias = Callable[..., Outcome[bool]]


def offered_of(shard: Shard, given: object) -> Offered | None:
    """A batch, the bytes of an upload, or a list of these; None: it is something else.

    Raises:
        UsageError: one is for another collection, or is there twice.
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
        # Nobody closes a whole group for good without saying so.
        upper = upper if batch.bounds.upper.closed else upper.join(batch.bounds.upper)
    offered = Offered(runs, checked, upper, batches)
    check_once([part.name for part in offered.parts], "an upload")
    return offered


def has_times(shard: Shard, given: Given) -> bool:
    """Whether rows say when they are."""
    if isinstance(given, Offered):
        return True
    if isinstance(given, Changes):
        return given.columns is not None and has_times(shard, given.table)
    return bool(set(shard.spec.domain.columns) & set(given.column_names))


def prepare(
    shard: Shard, stay: Stay, awaited: Awaited, given: pa.Table, time: int | None = None
) -> tuple[int, int] | None:
    """Upload rows and stage them for a transaction. One log write, and one `put` a part that is not tiny.

    Args:
        shard: of the collection, in the group.
        stay: in its group.
        awaited: the transaction.
        given: the rows. Without times they are written at `time`, or at the first one that is open.
        time: of all rows.

    Returns:
        The first and the last time of the rows; None: there are none.

    Raises:
        UpperMismatch: `time` is closed.
        LeftGroup: the collection is in the group no more, or came back to it since.
        UpdateNotBeyondLower: a time of the rows is closed.
        InvalidUpdates: the table does not fit the collection.
    """
    ask = partial(transactions.prepare, group=stay.group, joined=stay.joined, awaited=awaited)
    return under_newest_schema(shard, lambda spec: _prepared(shard, spec, ask, given, time))


def _prepared(
    shard: Shard, spec: ShardSpec, ask: Ask, given: pa.Table, time: int | None
) -> tuple[int, int] | None:
    state = shard.readable()
    timed = has_times(shard, given)
    at = None if timed else commit_floor(shard, state) if time is None else time
    table = normalized(spec, given, at)
    if not table.num_rows:
        return None
    if at is not None and not state.upper.less_equal(at):
        raise UpperMismatch(Frontier.of(at), state.upper)
    check_times(table, spec.domain, state.upper, None)
    admit(shard)
    Drainer(shard).make_room()

    def attempt(runs: tuple[Run, ...]) -> bool:
        limit = spec.config.inline_total_bytes
        # What gets its time at the commit may be written at one that is closed meanwhile.
        return shard.run(
            partial(ask, runs=runs, checked=state.upper, movable=not timed, inline_bytes_max=limit)
        )

    try:
        offer_staged(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)
    except UploadExpired:
        # The refusal was made on the newest state, which the next upload names.
        spec = replace(spec, seqno=shard.known().seqno)
        offer_staged(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)
    ends = pc.min_max(table.column(spec.domain.columns[0])).as_py()
    return ends["min"], ends["max"]


def check_fits(shard: Shard, given: Given) -> None:
    """Refuse a table whose columns do not fit the collection. No rows are looked at, and no store call.

    Raises:
        InvalidUpdates: names the column.
    """
    if isinstance(given, Offered):
        return
    at = None if has_times(shard, given) else shard.spec.domain.minimum
    table = (given.table if isinstance(given, Changes) else given).slice(0, 0)
    columns = given.columns if isinstance(given, Changes) else None

    def fits(spec: ShardSpec) -> None:
        if columns is None:
            normalized(spec, table, at)
            return
        columns.check(spec.schema, spec.domain)
        read_events(
            table, spec.schema, spec.domain, columns, time=at, optional=spec.optional, dropped=spec.dropped
        )

    under_newest_schema(shard, fits)


def prepare_changes(
    shard: Shard, stay: Stay, awaited: Awaited, changes: Changes, time: int | None
) -> tuple[tuple[int, int] | None, int]:
    """Work out what replaces what is there now, and stage that for a transaction.

    Three log scans, two log writes, a look into what is there, and one `put` a part that is not tiny.

    Args:
        shard: of the collection, in the group.
        stay: in its group.
        awaited: the transaction.
        changes: what is to be there.
        time: of the change; None: the rows have times.

    Returns:
        The first and the last time of what changes, None if nothing does; and the seqno of the state of the
        group after which nothing more may be let in for the collection.

    Raises:
        UpdateNotBeyondLower: a time is closed.
        UpperMismatch: all are, for good.
        LeftGroup, InvalidUpdates: as `prepare`.
        TransactionExpired: it took so long that what was stored is given up.
    """
    if changes.columns is None:
        made = replacing(shard, changes.table, time)
    else:
        made = upserting(shard, changes.table, changes.columns, time)
    return under_newest_schema(shard, lambda _: _changed(shard, stay, awaited, made))


def _changed(shard: Shard, stay: Stay, awaited: Awaited, made: Made) -> tuple[tuple[int, int] | None, int]:
    look = shard.look()
    view, group = look.view, look.group
    if view is None or group is None or not view.is_of(stay.group, stay.joined):
        raise LeftGroup(shard.spec.shard_id)
    # The group first: what it lets in from here on is either among what is read, or refuses the decision.
    shard.run(partial(transactions.settle, view=view))
    state, spec = shard.known(), shard.spec
    admit(shard)
    Drainer(shard).make_room()
    found = made(state, spec)
    runs, ends = _built(shard, state, spec, found)
    if ends is None:
        return None, group.seqno
    refusal = unseen(state, Bounds(state.upper, past_last(ends[1]), state.minimum), found.seen)
    if refusal is not None:
        discard(shard.stores.blobs, shard.env, runs)
        raise refusal.error
    step = partial(
        transactions.prepare,
        group=stay.group,
        joined=stay.joined,
        awaited=awaited,
        checked=state.upper,
        inline_bytes_max=spec.config.inline_total_bytes,
    )
    try:
        offer_staged(shard, runs, lambda offered: shard.run(partial(step, runs=offered)))
    except UploadExpired as error:
        raise TransactionExpired(awaited.transaction) from error
    return ends, group.seqno


def _built(
    shard: Shard, state: ShardState, spec: ShardSpec, found: Difference
) -> tuple[tuple[Run, ...], tuple[int, int] | None]:
    """Differences as runs, and their first and last time."""
    ends: tuple[int, int] | None = None
    updates = Lease(shard).watch(state, found.updates)
    with (
        BatchBuilder(
            spec, shard.stores.blobs, shard.env, state.upper, sorted=True, upper=Frontier()
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
    """See to it that no earlier attempt with the same runs comes in any more. Two log scans.

    SUBTLE: it may still be under way, so it is given up in the group, which refuses all that began before.
    """
    look = shard.look()
    waiting = transactions.waiting_for(transactions.seen_through(look.state, look.view), offered.runs)
    before = max((one.begun + 1 for one in waiting.values()), default=0)
    if before > group.known().expired:
        group.run(partial(transactions.expire, before=before))


def prepare_offered(shard: Shard, stay: Stay, awaited: Awaited, offered: Offered) -> tuple[int, int] | None:
    """Stage what is stored already for a transaction. Two log scans and a log write.

    It takes the place of an earlier attempt with the same runs, if that was given up.

    Returns:
        The first and the last time of the rows; None: there are none.

    Raises:
        AlreadyTaken: some of it is in.
        UploadExpired: it was uploaded too long ago.
        UpdateNotBeyondLower: a time of the rows is closed.
        LeftGroup: as `prepare`.
        TransactionExpired: it is staged for another transaction, which may come in.
    """
    check_stored(shard, [part for batch in offered.batches if batch.sent for part in batch.hollow.parts()])
    if not offered.runs:
        return None
    admit(shard)
    Drainer(shard).make_room()
    look = shard.look()
    view, group = look.view, look.group
    if view is None or group is None or not view.is_of(stay.group, stay.joined):
        raise LeftGroup(shard.spec.shard_id)
    upper = transactions.seen_through(look.state, view).upper
    waiting = transactions.waiting_for(look.state, offered.runs).values()
    step = partial(
        transactions.stage_single,
        view=view,
        awaited=awaited,
        found=Addition(True, offered.runs, Bounds(upper, upper, look.state.minimum), stays_open=True),
        checked=offered.checked,
        given_up=frozenset(one.transaction for one in waiting if one.begun < group.expired),
    )
    if not shard.run(step):
        raise TransactionExpired(awaited.transaction)
    seen = [time for part in offered.parts for time in part.seen_times]
    return min(map(_number, seen)), max(map(_number, seen))


def _number(time: Time) -> int:
    return times.parts(time)[0]

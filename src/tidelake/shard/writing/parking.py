"""Stages the rows of a write in a collection, where they wait for the decision of its group.

`tidelake.state.group.awaiting` owns the step, `tidelake.state.group.deciding` the decision.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.errors import LeftGroup, TransactionExpired, UpdateNotBeforeUpper, UploadExpired
from tidelake.model import time as times
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.counts import Removals
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.lease import Lease
from tidelake.shard.engine.requestqueue import Done
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import Version
from tidelake.shard.runs.upload import check_times, normalized
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.tending import admit, tend_if_due
from tidelake.shard.writing.append import commit_floor, past_last
from tidelake.shard.writing.batches import check_stored
from tidelake.shard.writing.builder import BatchBuilder, add_canonical
from tidelake.shard.writing.committing import committed
from tidelake.shard.writing.derived import ContentChange, Derivation, Difference, derivation
from tidelake.shard.writing.memberwrite import Offered, has_times
from tidelake.shard.writing.proposal import Proposal, times_of
from tidelake.shard.writing.uploads import Uploads, remade
from tidelake.state.core.decisions import GroupView
from tidelake.state.core.state import ShardState
from tidelake.state.group import applying, awaiting
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


def _looked(shard: Shard, stay: Stay) -> tuple[GroupView, ShardState, ShardState]:
    """What the group has decided for a collection, the group, and the collection. Two log scans.

    Raises `LeftGroup` if the collection is no longer there for that stay.
    """
    look = shard.look()
    if look.view is None or look.group is None or not look.view.is_of(stay.group, stay.joined):
        raise LeftGroup(shard.spec.shard_id)
    return look.view, look.group, look.state


def _waiting(state: ShardState, runs: tuple[Run, ...]) -> Addition:
    """Rows at times that stay open until the group decides."""
    return Addition(HollowBatch(Bounds(state.upper, state.upper, state.minimum), runs), stays_open=True)


def prepare(
    shard: Shard, stay: Stay, proposal: Proposal, given: pa.Table, *, time: int | None, upper: Frontier | None
) -> tuple[int, int] | None:
    """Upload rows and stage them for a transaction. One log write, and one `put` for each part not inline.

    Args:
        shard: the collection's shard.
        stay: its stay in the group.
        proposal: the transaction that the rows wait for.
        given: the rows. Without times they are written at `time`, or at the first open time.
        time: the time of all rows that have none.
        upper: a frontier that all times must be before; None: there is none.

    Returns:
        The first and the last time of the rows; None if there are no rows.

    Raises:
        LeftGroup: the collection has left the group, even if it joined again since.
        UpdateBeforeLower, UpdateNotBeforeUpper: `time` or one of the rows is closed, or not before `upper`.
        InvalidUpdates: the table does not fit the collection.
    """

    def prepared() -> tuple[int, int] | None:
        view, _, known = _looked(shard, stay)
        state, spec = applying.seen_through(known, view), shard.version_of(shard.known()).spec
        timed = has_times(shard, given)
        at = None if timed else commit_floor(shard, state) if time is None else time
        table = normalized(spec, given, at)
        if not table.num_rows:
            return None
        check_times(table, spec.domain, state.upper, upper)
        admit(shard)
        Drainer(shard).make_room()

        def attempt(runs: tuple[Run, ...]) -> Done[bool]:
            found = replace(_waiting(state, runs), floats=at)
            limit = spec.config.inline_total_bytes
            return proposal.park(shard, view, found, checked=state.upper, as_now=True, inline_bytes_max=limit)

        with Uploads.of(shard, spec, table) as uploads:
            _offered(shard, uploads, attempt)
        ends = pc.min_max(table.column(spec.domain.columns[0])).as_py()
        return ends["min"], ends["max"]

    return remade(shard, prepared)


def _offered(shard: Shard, uploads: Uploads, attempt: Callable[[tuple[Run, ...]], Done[bool]]) -> None:
    done = committed(lambda: attempt(uploads.offer()), uploads)
    uploads.answered(needed=done.result)
    tend_if_due(shard, done)


@dataclass(frozen=True)
class Changed(Removals):
    """What was staged for a change of contents.

    Attributes:
        times: the first and the last time of the updates; None: there are none.
        end: the last time that was asked for, also if nothing changes there; None: none was.
        latest: a seqno of the group: the decision must be refused if the group accepted another write to the
            collection after that state.
        removed: as for `Removals`.
        absent: likewise.
    """

    times: tuple[int, int] | None
    end: int | None
    latest: int


def prepare_changes(
    shard: Shard,
    stay: Stay,
    proposal: Proposal,
    changes: ContentChange,
    *,
    time: int | None,
    upper: Frontier | None,
) -> Changed:
    """Compute the updates of an upsert, a replacement or a delete on the present contents, and stage them.

    Three log scans, two log writes, a read of the contents, and one `put` for each part that is not tiny.

    Args:
        shard: the collection's shard.
        stay: its stay in the group.
        proposal: the transaction that the updates wait for.
        changes: the new rows.
        time: the time of the change if it has none of its own; None: it has.
        upper: a frontier that all times must be before; None: there is none.

    Raises:
        UpdateBeforeLower, UpdateNotBeforeUpper: a time is closed, or not before `upper`.
        UpperMismatch: all times are closed for good.
        LeftGroup, InvalidUpdates: as `prepare`.
        TransactionExpired: it took so long that the uploaded parts have expired.
    """
    made = derivation(shard, replace(changes, time=time) if changes.time is None else changes)
    return remade(shard, lambda: _changed(shard, stay, proposal, made, upper))


def _changed(
    shard: Shard, stay: Stay, proposal: Proposal, made: Derivation, upper: Frontier | None
) -> Changed:
    view, group, _ = _looked(shard, stay)
    # The group was read first, so a write that the group accepts later is either in the contents that are
    # read here, or makes the group refuse the decision.
    shard.run(partial(applying.apply_decided, view=view))
    version = shard.version_of(shard.known())
    state, spec = version.state, version.spec
    admit(shard)
    Drainer(shard).make_room()
    found = made(version)
    runs, ends = _built(shard, version, found)
    end = None if found.end is None else times.parts(found.end)[0]
    if end is not None and upper is not None and upper.less_equal(end):
        raise shard.named(UpdateNotBeforeUpper(end, upper))
    changed = Changed(ends, end, group.seqno).plus(found.removals)
    if ends is None:
        return changed

    def attempt(runs: tuple[Run, ...]) -> Done[bool]:
        limit = spec.config.inline_total_bytes
        waiting = _waiting(state, runs)
        return proposal.park(shard, view, waiting, checked=state.upper, as_now=True, inline_bytes_max=limit)

    with Uploads(shard, runs) as uploads:
        refusal = unseen(state, Bounds(state.upper, past_last(ends[1]), state.minimum), found.seen)
        if refusal is not None:
            raise refusal.error
        try:
            _offered(shard, uploads, attempt)
        except UploadExpired as error:
            raise TransactionExpired(proposal.id) from error
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
            add_canonical(builder, pa.Table.from_batches([batch]))
        built = builder.finish(Frontier())
    built.take("staged")
    return built.hollow.runs, ends if built.rows else None


def prepare_offered(
    shard: Shard, stay: Stay, proposal: Proposal, offered: Offered, end: Frontier | None = None
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
    view, group, known = _looked(shard, stay)
    waiting = awaiting.waiting_for(known, offered.runs).values()
    done = proposal.park(
        shard,
        view,
        _waiting(applying.seen_through(known, view), offered.runs),
        checked=offered.checked,
        given_up=frozenset(one.transaction for one in waiting if one.begun < group.expired),
    )
    if not done.result:
        raise TransactionExpired(proposal.id)
    tend_if_due(shard, done)
    return times_of(offered.runs)

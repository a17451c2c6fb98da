"""Forks: shards that begin as a version of another one, and share its parts.

The *origin* notes a fork before the fork is made, and from then on keeps the parts of one version for it: a
pin without a lease. The fork names these parts by their names in the origin. It never deletes *borrowed*
parts, those that are not its own. Otherwise it treats them like its own: a borrowed part that a merge has
replaced stays garbage of the fork for as long as its readers, and its own forks, may need it. When a fork
names no borrowed part at all it is *freed*: first the origin notes that and keeps no part for it any more,
then the fork. They go on knowing each other until one of them is removed: what is erased in a shard is erased
in its forks. So forks of forks form a tree, and each shard knows only its neighbours.

A tombstone keeps the parts that its forks need, and the only steps it commits are those about its forks.
"""

from collections.abc import Iterable
from dataclasses import replace

from pyrsistent import PMap, pmap

from tidelake.errors import CollectionDropped, HistoryCompacted, LeaseExpired, NotYetClosed, UsageError
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.schema import SchemaVersion
from tidelake.model.time import Time
from tidelake.state.core.commands import Commit, NoOp, Outcome, Refused, initial
from tidelake.state.core.edits import Edits
from tidelake.state.core.forks import is_borrower, lender
from tidelake.state.core.partnames import indexed
from tidelake.state.core.state import Fork, Origin, ShardState
from tidelake.state.spine import fuel
from tidelake.state.spine.bases import Base, Bases
from tidelake.state.spine.spine import FuelingMerge, Member, Spine, SpineBatch, SpineId
from tidelake.state.spine.staged import Staged, Staging, begins_before


def note_fork(state: ShardState, now_ms: int, *, fork_id: str, seqno: int) -> Outcome[None]:
    """Keep the parts of a version for a fork that is about to be made from it.

    Refused with `LeaseExpired` if some of them have been deleted since, or rows were erased: fork a newer
    version. Refused if rows are being erased.
    """
    if state.dropped:
        return Refused(CollectionDropped(state.shard_id))
    if fork_id in state.forks:
        return NoOp(None)
    if any(one.pending for one in state.erasures.values()):
        return Refused(
            UsageError(
                f"rows of collection {state.shard_id} are being erased, and a fork would keep them: run "
                "`tidelake maintain`, which finishes that, and fork then"
            )
        )
    if not max(state.collected_to, state.erased) <= seqno <= state.seqno:
        return Refused(LeaseExpired(fork_id))
    return Commit(Edits(forks={fork_id: Fork(seqno, now_ms)}), None)


def forget_fork(state: ShardState, _now_ms: int, *, fork_id: str) -> Outcome[bool]:
    """Stop keeping parts for a fork; whether it was noted. Possible on a tombstone as well."""
    if fork_id not in state.forks:
        return NoOp(False)
    return Commit(Edits(forks={fork_id: None}, dropped=state.dropped), True)


def free_fork(state: ShardState, _now_ms: int, *, fork_id: str) -> Outcome[bool]:
    """Stop keeping parts for a fork; whether it is known. Possible on a tombstone as well."""
    fork = state.forks.get(fork_id)
    if fork is None or fork.freed:
        return NoOp(fork is not None)
    return Commit(Edits(forks={fork_id: replace(fork, freed=True)}, dropped=state.dropped), True)


def let_go(state: ShardState, _now_ms: int, *, known: bool) -> Outcome[None]:
    """Need no part of the origin any more, which keeps none for this fork already.

    Does nothing while a part is borrowed.
    """
    if lender(state) is None or state.dropped or is_borrower(state):
        return NoOp(None)
    return Commit(Edits(freed=True) if known else Edits(let_go=True), None)


def forked(state: ShardState, fork_id: str, now_ms: int, as_of: Time | None = None) -> ShardState:
    """The first version of a fork: the contents and history of a shard, complete or up to a time.

    Leaves out what belongs to the origin's readers, writers, group and store. Schemas keep their ids. Staged
    batches at open times come along, unless the fork is to end at a time.
    """
    upper, retained, spine, staged = state.upper, state.retained, state.spine, list(state.staged)
    if as_of is not None:
        if not state.since.less_equal(as_of):
            raise HistoryCompacted(as_of, state.since).of(state.domain.unit)
        if state.upper.less_equal(as_of):
            raise NotYetClosed(as_of, next(iter(state.upper), state.upper), 0).of(state.domain.unit)
        upper = state.upper.meet(Frontier.past(as_of))
        # The origin's owner may have given up history from `as_of` on that holds keep; the fork keeps it.
        retained = retained.meet(Frontier.of(as_of))
        staged = [
            cut for one in staged if (cut := replace(one, batch=_narrowed(one.batch, upper))).batch.runs
        ]
        # With tuples neither the end of the spine nor that of the fork need be at or after the other.
        waits = any(begins_before(one.batch, upper) for one in staged)
        end = state.drained.meet(upper) if waits else upper
        spine = _extended(_cut(spine, upper), state, end)
    bases = [base for base in state.bases if Frontier.of(base.at) <= upper and spine.begins(base.hi)]
    first = started(state, fork_id, now_ms, spine, staged=staged, bases=bases)
    closed_ms = state.closed_ms if upper == state.upper else 0
    origin = Origin(state.shard_id, state.seqno)
    return replace(first, upper=upper, retained=retained, origin=origin, closed_ms=closed_ms)


def started(
    state: ShardState,
    shard_id: str,
    now_ms: int,
    spine: Spine,
    *,
    staged: Iterable[Staged],
    bases: Iterable[Base],
) -> ShardState:
    """The first state of a new shard that begins with frontiers, schemas and settings of another one.

    Everything else begins empty: holds, writers, tokens, uploads, the group and garbage belong to the other.
    """
    whole = spine.with_members(replace(member, added=0) for member in spine)
    staying = Staging.of({one.name: replace(one, added=0) for one in staged})
    first = ShardState(
        shard_id=shard_id,
        domain=state.domain,
        seqno=0,
        committed_ms=now_ms,
        since=state.since,
        upper=state.upper,
        retained=state.retained,
        spine=whole,
        schemas=_registered(state),
        retention=state.retention,
        staged=staying,
        agreed=state.agreed,
        bases=Bases.of(replace(base, added=0) for base in bases),
        unpaid=state.unpaid if spine.next_id == state.spine.next_id else None,
    )
    return replace(first, part_names=indexed(first))


def unmade(state: ShardState, fork_id: str, now_ms: int) -> ShardState:
    """What takes the place of a fork that was noted only: an empty shard, of no version of its origin."""
    made = initial(fork_id, state.domain, state.schema, now_ms)
    return replace(made, schemas=_registered(state), origin=Origin(state.shard_id, -1))


def _registered(state: ShardState) -> PMap[int, SchemaVersion]:
    """The schemas of a shard, for the first state of another one: there all of them hold from it on."""
    return pmap({id_: replace(version, seqno=0) for id_, version in state.schemas.items()})


def _cut(spine: Spine, upper: Frontier) -> Spine:
    """The spine up to a frontier. Levels stay as they are, so that no new merge becomes due."""
    members: list[Member] = []
    for member in spine:
        if members and upper <= members[-1].batch.bounds.upper:
            break
        members.append(replace(member, batch=_narrowed(member.batch, upper)))
    end = members[-1].id.hi if members else 0
    batches: list[SpineBatch] = []
    for batch in spine.all_batches():
        if batch.id.lo < end:
            inside = [member for member in members if batch.id.covers(member.id)]
            bounds = Bounds(inside[0].batch.bounds.lower, inside[-1].batch.bounds.upper, batch.bounds.since)
            rows = sum(member.batch.rows for member in inside)
            batches.append(SpineBatch(SpineId(batch.id.lo, min(batch.id.hi, end)), batch.level, bounds, rows))
    merges: list[FuelingMerge] = []
    for merge in spine.merges:
        inputs = [batch for batch in batches if merge.id.covers(batch.id)]
        if len(inputs) > 1:
            merges.append(replace(merge, id=SpineId(merge.id.lo, inputs[-1].id.hi)))
    return Spine.of(end, spine.spent, members, batches, tuple(merges), sliced=min(spine.sliced, end))


def _extended(spine: Spine, state: ShardState, upper: Frontier) -> Spine:
    """The spine made longer, up to a frontier; nothing is staged between its end and there."""
    end = state.minimum if spine.end is None else spine.end
    if upper <= end:
        return spine
    batch = HollowBatch(Bounds(end, upper, state.minimum))
    return spine.edited(fuel.push(spine, batch, state.since, state.seqno).edit)


def _narrowed(batch: HollowBatch, upper: Frontier) -> HollowBatch:
    """A batch without its times at or after a frontier. Its times were advanced no further than that."""
    bounds = batch.bounds
    within = Bounds(bounds.lower.meet(upper), bounds.upper.meet(upper), bounds.since)
    if bounds.upper <= upper:
        return replace(batch, bounds=within)
    runs: list[Run] = []
    for run in batch.runs:
        kept = tuple(
            part for part in run.parts if not within.empty and not upper.less_equal(part.seen_times[0])
        )
        if kept:
            cut = any(upper.less_equal(part.seen_times[1]) for part in kept) or run.truncated
            runs.append(Run(kept, cut))
    return HollowBatch(within, tuple(runs))

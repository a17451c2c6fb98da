"""The commands of merges: claim one, put a result in place, move levels along.

Claims only save work. A result is accepted if the runs that it was made from are still in place
(`tidelake.state.spine.merging.placed`), whichever process made it.
"""

from dataclasses import dataclass, replace

from tidelake.model.batch import Part
from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Commit, NoOp, Outcome
from tidelake.state.core.edits import Edits
from tidelake.state.core.partnames import too_late
from tidelake.state.core.state import MergeClaim, ShardState
from tidelake.state.spine.fuel import FuelStep, collapse, exert
from tidelake.state.spine.merging import Fit, MergeRequest, MergeResult, chosen, digest, placed, request
from tidelake.state.upkeep import basing
from tidelake.state.upkeep.claims import ending, recorded, still_recorded
from tidelake.state.upkeep.slices import cut_edit, cut_fits


@dataclass(frozen=True)
class Claimed:
    """The answer to a claim.

    Attributes:
        claim: the merge to carry out; None: another process does it, or its inputs are no longer there.
        chunks: what has been recorded so far, by the number of the chunk.
    """

    claim: MergeClaim | None
    chunks: tuple[tuple[int, tuple[Part, ...]], ...] = ()


def claim_merge(
    state: ShardState,
    now_ms: int,
    request: MergeRequest,
    *,
    runner: str,
    lease_ms: int,
    cuts: tuple[bytes, ...],
    since: Frontier | None = None,
) -> Outcome[Claimed]:
    """Take on a large merge, new or left by another process; None if another process works on it."""
    if not is_there(state, request):
        return NoOp(Claimed(None))
    overlapping = [claim for claim in state.claims.values() if claim.id.overlaps(request.id)]
    if any(claim.runner != runner and now_ms < claim.expires_ms for claim in overlapping):
        return NoOp(Claimed(None))
    claim = MergeClaim(
        request.id,
        request.positions,
        request.inputs,
        since or state.since,
        runner,
        now_ms + lease_ms,
        cuts,
        request.base,
        bool(request.times),
        request.saves,
    )
    left = [old for old in overlapping if same_work(old, request)]
    if left:
        claim = replace(left[0], runner=runner, expires_ms=now_ms + lease_ms, saves=request.saves)
    edits = ending(state, [old for old in overlapping if old not in left])
    edits.claims[claim.name] = claim
    return Commit(edits, Claimed(claim, tuple(recorded(state, claim)) if left else ()))


def same_work(claim: MergeClaim, asked: MergeRequest) -> bool:
    """Whether the chunks of a claim, and the cuts between them, serve a request as well."""
    # SUBTLE: pieces of a slice belong to the times that it was cut at. A merge may take over any chunks.
    cut_alike = not asked.times or claim.cuts == cuts_at(asked.times)
    same_kind = (claim.base, claim.by_time) == (asked.base, bool(asked.times))
    inputs = (claim.id, claim.positions, claim.inputs), (asked.id, asked.positions, asked.inputs)
    return same_kind and cut_alike and inputs[0] == inputs[1]


def cuts_at(times: tuple[int, ...]) -> tuple[bytes, ...]:
    """The cuts of a claim to cut a slice at these times."""
    return tuple(str(time).encode() for time in times)


def apply_merge(
    state: ShardState, _now_ms: int, result: MergeResult, *, claim: MergeClaim | None = None
) -> Outcome[Fit]:
    """Put a merged run, or the pieces of a slice, in the place of their inputs, if these are still there.

    Ends claims on them.
    """
    if result.times:
        fit, edit = cut_edit(state.spine, result, state.seqno + 1)
    else:
        fit, edit = placed(state.spine, result, state.since, state.seqno + 1)
    if edit is None:
        return NoOp(fit)
    # SUBTLE: when a claim ends its recorded parts become garbage, though the inputs may still be there.
    if claim is not None and not still_recorded(state, claim, result.parts):
        return NoOp(Fit.NO_MATCH)
    edits = ending(state, [c for c in state.claims.values() if c.id.overlaps(result.id)])
    taken_in = {part.name for member in state.spine.range(result.id) for part in member.batch.parts()}
    fresh = [part for part in result.parts if part.name not in taken_in]
    if claim is None and too_late(state, fresh):
        return NoOp(Fit.NO_MATCH)
    before = state.written
    written = replace(
        before,
        merged_rows=before.merged_rows + sum(part.rows for part in fresh),
        merged_bytes=before.merged_bytes + sum(part.size_bytes for part in fresh),
    )
    return Commit(replace(edits, spine=edit, written=written), fit)


def exert_fuel(state: ShardState, _now_ms: int, fuel: int) -> Outcome[bool]:
    """Move the merges of an idle shard along; False if there is nothing to merge."""
    return _stepped(exert(state.spine, state.since, fuel))


def collapse_levels(state: ShardState, _now_ms: int) -> Outcome[bool]:
    """Make all members one spine batch; False if they are one already."""
    return _stepped(collapse(state.spine, state.since))


def _stepped(step: FuelStep | None) -> Outcome[bool]:
    return NoOp(False) if step is None else Commit(Edits(spine=step.edit), True, step.due)


def begun_merge(state: ShardState, claim: MergeClaim) -> MergeRequest | None:
    """The request that a claim was made for; None if its inputs are no longer there."""
    if claim.base is not None:
        asked = basing.request(state, claim.id.hi, claim.saves, lo=claim.id.lo)
        return asked if asked is not None and _same_base(asked, claim) else None
    if state.spine.holder(claim.id) is None or state.spine.tiling(claim.id) is None:
        return None
    members = state.spine.range(claim.id)
    if max(claim.positions, default=0) >= len(members[0].batch.runs):
        return None
    found = request(members, claim.positions)
    if claim.by_time:
        found = replace(found, times=tuple(int(cut) for cut in claim.cuts))
    return found if found.inputs == claim.inputs and is_there(state, found) else None


def is_there(state: ShardState, request: MergeRequest) -> bool:
    """Whether the inputs of a request are still there."""
    if request.base is not None:
        asked = basing.request(state, request.id.hi, lo=request.id.lo)
        return asked is not None and _same_base(asked, request)
    if request.times:
        return cut_fits(state.spine, request.id, request.inputs, request.times)
    if state.spine.holder(request.id) is None or state.spine.tiling(request.id) is None:
        return False
    return digest(chosen(state.spine.range(request.id), request.positions)) == request.inputs


def _same_base(a: MergeRequest, b: MergeRequest | MergeClaim) -> bool:
    return (a.id, a.inputs, a.base) == (b.id, b.inputs, b.base)

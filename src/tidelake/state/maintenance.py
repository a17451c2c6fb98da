"""The commands of merges: claim one, record a chunk, put a result in place, move levels along.

Claims and recorded chunks only save work. A result is accepted if the runs that it was made from are still in
place (`tidelake.state.merging.placed`), whichever process made it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidelake.model.batch import Part
from tidelake.model.frontier import Frontier
from tidelake.state.append import too_late
from tidelake.state.commands import Commit, NoOp, Outcome
from tidelake.state.edits import Edits
from tidelake.state.fuel import FuelStep, collapse, exert
from tidelake.state.merging import Fit, MergeRequest, MergeResult, chosen, digest, placed, request
from tidelake.state.spine import SpineId
from tidelake.state.state import MergeClaim, ShardState


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
    """Take on a large merge, new or left by another process; None if another process works on it.

    Args:
        state: of the shard.
        now_ms: wall clock.
        request: what is to be merged.
        runner: the process.
        lease_ms: how long the claim lasts without progress.
        cuts: between its chunks; a merge that was left keeps the cuts with which it began.
        since: to advance times by; default: the shard's. A merge that was left keeps its own.
    """
    if not _is_there(state, request):
        return NoOp(Claimed(None))
    overlapping = [claim for claim in state.claims.values() if claim.id.overlaps(request.id)]
    if any(claim.runner != runner and now_ms < claim.expires_ms for claim in overlapping):
        return NoOp(Claimed(None))
    claim = MergeClaim(
        request.id, request.positions, request.inputs, since or state.since, runner, now_ms + lease_ms, cuts
    )
    left = [old for old in overlapping if _same_work(old, claim)]
    if left:
        claim = replace(left[0], runner=runner, expires_ms=now_ms + lease_ms)
    edits = _ending(state, [old for old in overlapping if old not in left])
    edits.claims[claim.name] = claim
    return Commit(edits, Claimed(claim, tuple(recorded(state, claim)) if left else ()))


def _same_work(a: MergeClaim, b: MergeClaim) -> bool:
    return (a.id, a.positions, a.inputs) == (b.id, b.positions, b.inputs)


def record_chunk(
    state: ShardState, now_ms: int, claim: MergeClaim, index: int, parts: tuple[Part, ...], *, lease_ms: int
) -> Outcome[bool]:
    """Record the result of a chunk; False if another process has the claim, or the parts are too old."""
    held = state.claims.get(claim.name)
    if held is None or replace(held, expires_ms=0) != replace(claim, expires_ms=0):
        return NoOp(False)
    key = claim.chunk(index)
    if key in state.chunks:
        return NoOp(state.chunks[key] == parts)
    if too_late(state, parts):
        return NoOp(False)
    renewed = replace(held, expires_ms=max(held.expires_ms, now_ms + lease_ms))
    return Commit(Edits(claims={claim.name: renewed}, chunks={key: parts}), True)


def apply_merge(
    state: ShardState, _now_ms: int, result: MergeResult, *, claim: MergeClaim | None = None
) -> Outcome[Fit]:
    """Put a merged run in the place of its inputs, if all of these are still there. Ends claims on them.

    Args:
        state: of the shard.
        result: of the merge.
        claim: under which its chunks were recorded; None if only the caller knows the parts.
    """
    fit, edit = placed(state.spine, result, state.since, state.seqno + 1)
    if edit is None:
        return NoOp(fit)
    # SUBTLE: when a claim ends its recorded parts become garbage, though the inputs may still be there.
    if claim is not None and not _still_recorded(state, claim, result):
        return NoOp(Fit.NO_MATCH)
    edits = _ending(state, [c for c in state.claims.values() if c.id.overlaps(result.id)])
    output = () if result.output is None else result.output.parts
    taken_in = {part.name for member in state.spine.range(result.id) for part in member.batch.parts()}
    fresh = [part for part in output if part.name not in taken_in]
    if claim is None and too_late(state, fresh):
        return NoOp(Fit.NO_MATCH)
    before = state.written
    written = replace(
        before,
        merged_rows=before.merged_rows + sum(part.rows for part in fresh),
        merged_bytes=before.merged_bytes + sum(part.size_bytes for part in fresh),
    )
    return Commit(replace(edits, spine=edit, written=written), fit)


def _still_recorded(state: ShardState, claim: MergeClaim, result: MergeResult) -> bool:
    held = tuple(part for _, parts in recorded(state, claim) for part in parts)
    return held == (() if result.output is None else result.output.parts)


def exert_fuel(state: ShardState, _now_ms: int, fuel: int) -> Outcome[bool]:
    """Move the merges of an idle shard along; False if there is nothing to merge."""
    return _stepped(exert(state.spine, state.since, fuel))


def collapse_levels(state: ShardState, _now_ms: int) -> Outcome[bool]:
    """Make all members one spine batch; False if they are one already."""
    return _stepped(collapse(state.spine, state.since))


def _stepped(step: FuelStep | None) -> Outcome[bool]:
    return NoOp(False) if step is None else Commit(Edits(spine=step.edit), True, step.due)


def recorded(state: ShardState, claim: MergeClaim) -> Iterator[tuple[int, tuple[Part, ...]]]:
    """The finished chunks of a claim, by number."""
    for index in range(len(claim.cuts) + 1):
        parts = state.chunks.get(claim.chunk(index))
        if parts is not None:
            yield index, parts


def begun_merge(state: ShardState, claim: MergeClaim) -> MergeRequest | None:
    """The request that a claim was made for; None if its inputs are no longer there."""
    if state.spine.holder(claim.id) is None or not state.spine.tiled(claim.id):
        return None
    members = list(state.spine.range(claim.id))
    if max(claim.positions, default=0) >= len(members[0].batch.runs):
        return None
    found = request(members, claim.positions)
    return found if found.inputs == claim.inputs else None


def taken(state: ShardState, now_ms: int, runner: str) -> list[SpineId]:
    """The members that other processes are merging now."""
    return [c.id for c in state.claims.values() if c.runner != runner and now_ms < c.expires_ms]


def release_claim(state: ShardState, _now_ms: int, claim: MergeClaim) -> Outcome[None]:
    """Give a claim up. The parts that were recorded for it become garbage."""
    held = state.claims.get(claim.name)
    if held is None or replace(held, expires_ms=0) != replace(claim, expires_ms=0):
        return NoOp(None)
    return Commit(_ending(state, [held]), None)


def end_expired(state: ShardState, now_ms: int) -> Outcome[None]:
    """End the claims that were not renewed in time."""
    expired = [claim for claim in state.claims.values() if claim.expires_ms <= now_ms]
    return Commit(_ending(state, expired), None) if expired else NoOp(None)


def _is_there(state: ShardState, request: MergeRequest) -> bool:
    if state.spine.holder(request.id) is None or not state.spine.tiled(request.id):
        return False
    return digest(chosen(list(state.spine.range(request.id)), request.positions)) == request.inputs


def _ending(state: ShardState, claims: list[MergeClaim]) -> Edits:
    """Edits that end these claims."""
    edits = Edits()
    for claim in claims:
        edits.claims[claim.name] = None
        edits.chunks.update({claim.chunk(index): None for index, _ in recorded(state, claim)})
    return edits

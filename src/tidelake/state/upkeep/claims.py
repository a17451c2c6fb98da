"""Claims of merges: which process carries out a large one, and which of its chunks are done.

Claims and recorded chunks only save work. Whether a result is accepted depends on what it was made from, not
on the process that brings it.
"""

from collections.abc import Iterator
from dataclasses import replace

from tidelake.model.batch import Part
from tidelake.state.core.commands import Commit, NoOp, Outcome
from tidelake.state.core.edits import Edits
from tidelake.state.core.partnames import too_late
from tidelake.state.core.state import MergeClaim, ShardState
from tidelake.state.spine.spine import SpineId


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


def recorded(state: ShardState, claim: MergeClaim) -> Iterator[tuple[int, tuple[Part, ...]]]:
    """The finished chunks of a claim, by number."""
    for index in range(len(claim.cuts) + 1):
        parts = state.chunks.get(claim.chunk(index))
        if parts is not None:
            yield index, parts


def still_recorded(state: ShardState, claim: MergeClaim, parts: tuple[Part, ...]) -> bool:
    """Whether these are the parts that were recorded for a claim: when a claim ends, they become garbage."""
    return parts == tuple(part for _, chunk in recorded(state, claim) for part in chunk)


def taken(state: ShardState, now_ms: int, runner: str) -> list[SpineId]:
    """The members that other processes are merging now."""
    return [c.id for c in state.claims.values() if c.runner != runner and now_ms < c.expires_ms]


def release_claim(state: ShardState, _now_ms: int, claim: MergeClaim) -> Outcome[None]:
    """Give a claim up. The parts that were recorded for it become garbage."""
    held = state.claims.get(claim.name)
    if held is None or replace(held, expires_ms=0) != replace(claim, expires_ms=0):
        return NoOp(None)
    return Commit(ending(state, [held]), None)


def hand_over(state: ShardState, now_ms: int, runner: str) -> Outcome[int]:
    """Let other processes go on at once with what a runner has claimed; the number of its claims."""
    held = [claim for claim in state.claims.values() if claim.runner == runner and now_ms < claim.expires_ms]
    if not held:
        return NoOp(0)
    return Commit(Edits(claims={claim.name: replace(claim, expires_ms=now_ms) for claim in held}), len(held))


def end_expired(state: ShardState, now_ms: int) -> Outcome[None]:
    """End the claims that were not renewed in time."""
    expired = [claim for claim in state.claims.values() if claim.expires_ms <= now_ms]
    return Commit(ending(state, expired), None) if expired else NoOp(None)


def ending(state: ShardState, claims: list[MergeClaim]) -> Edits:
    """Edits that end these claims."""
    edits = Edits()
    for claim in claims:
        edits.claims[claim.name] = None
        edits.chunks.update({claim.chunk(index): None for index, _ in recorded(state, claim)})
    return edits


def living(state: ShardState, now_ms: int) -> list[MergeClaim]:
    """The merges that are under way, oldest first: a claim that expired was left by a process that ended."""
    return sorted((one for one in state.claims.values() if now_ms < one.expires_ms), key=lambda one: one.id)

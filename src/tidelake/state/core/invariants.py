"""The rules that every state and every step must keep, by name. They cannot be switched off.

`check_state` runs on the first state of a shard before it is written, and on every state that is read back
whole. `check_step` runs before every compare-and-set, and looks only at what changes. docs/correctness.md
lists each rule with its test.
"""

import itertools
from collections import Counter
from collections.abc import Iterable

from pyrsistent import pset

from tidelake.errors import IncompatibleSchema, InternalError
from tidelake.model.evolution import evolved
from tidelake.state.core.agreed import AGES
from tidelake.state.core.batchrules import (
    broken,
    check_bases,
    check_batch,
    check_spine_edit,
    check_staged,
    check_staged_changes,
    erases,
    validate,
)
from tidelake.state.core.edits import Edits, arriving, going
from tidelake.state.core.forks import fork_pins, is_borrowed, is_borrower, lender
from tidelake.state.core.partnames import expired, is_taken
from tidelake.state.core.state import ShardState
from tidelake.state.core.tokens import days_of, is_token, over, writes_once
from tidelake.state.core.writername import WriterName


def check_state(state: ShardState) -> None:
    """Check a whole state. Costs O(state)."""
    validate(state.spine, state.minimum, state.drained, state.since)
    state.schemas or broken("schema-registered", f"shard {state.shard_id} has no schema")
    _check_schemas(state, 1)
    names = [part.name for part in state.parts()]
    names += [part.name for parts in state.chunks.values() for part in parts]
    _check_named_once(names)
    for batch in state.batches():
        check_batch(batch, state)
    check_staged(state, state.staged)
    _check_claims(state)
    _check_holds(state)
    _check_garbage(state, {*names})
    lender(state) is not None or not is_borrower(state) or broken("borrowed-from-origin", state.shard_id)
    state.since <= state.retained or broken("owner-keeps-since", state.since, "is after", state.retained)
    _check_rollup(state)
    set(state.part_names) == {*names} or broken("names-indexed", state.shard_id)
    check_bases(state, state.bases)
    for id_, one in state.erasures.items():
        bool(one.keys) == one.pending or broken("erased-keys-forgotten", id_)
    tokens = [name for there in state.tokens.values() for name in there]
    len(tokens) == len({*tokens}) or broken("tokens-known", state.shard_id, "has one of several days")
    _check_tokens(state, tokens)


def check_step(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Check one step. Costs O(change)."""
    drained = before.drained, after.drained
    for rule, old, new in (
        ("since-never-goes-back", before.since, after.since),
        ("upper-never-goes-back", before.upper, after.upper),
        ("retained-never-goes-back", before.retained, after.retained),
        ("drained-never-goes-back", *drained),
    ):
        old is new or old <= new or broken(rule, old, "to", new)
    after.since <= after.retained or broken("owner-keeps-since", after.since, "is after", after.retained)
    before.committed_ms <= after.committed_ms or broken("clock-never-goes-back", after.committed_ms)
    before.sweep.floor <= after.sweep.floor or broken("floor-never-goes-back", "to", after.sweep.floor)
    before.expired <= after.expired or broken("expired-never-goes-back", "to", after.expired)
    same_holds = before.holds is after.holds and before.critical is after.critical
    if after.dropped or not same_holds or before.since is not after.since:
        _check_holds(after)
    if before.agreed is not after.agreed:
        _check_agreed(before, after)
    if edits.doomed:
        _check_pins(before, edits)
    _check_arrivals(before, edits)
    if edits.rollup is not None:
        newer = before.rollup.seqno < edits.rollup.seqno
        newer or broken("rollup-never-goes-back", "to", edits.rollup.seqno)
        _check_rollup(after)
    if edits.let_go or edits.freed:
        not is_borrower(after) or broken("borrowed-from-origin", after.shard_id, "still names such parts")
    if edits.writers or edits.writers_gone or edits.tokens:
        _check_writers(before, after, edits)
    if edits.schemas:
        all(v.seqno == after.seqno for v in edits.schemas.values()) or broken("schemas-numbered", "seqno")
        _check_schemas(after, max(before.schemas) + 1)
    if edits.claims or edits.chunks:
        _check_claimed(before, after, edits)
    if edits.decisions or edits.memberships or edits.group is not None:
        _check_group(before, after, edits)
    check_staged_changes(before, after, edits, drained)
    if edits.spine is not None:
        check_spine_edit(before, after, edits, drained)
    if edits.erasures:
        _check_erasures(before, after, edits)
    if edits.bases:
        check_bases(after, [base for base in edits.bases.values() if base is not None])


def _check_erasures(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Erasures are final and keep no keys, and the step of one takes rows away and changes nothing else."""
    for id_, one in edits.erasures.items():
        old = before.erasures.get(id_)
        if old is None:
            asked = one.pending and bool(one.keys) and not one.gone_ms
            asked or broken("erasures-are-final", id_, "was not asked for")
            continue
        same = (old.reason, old.count, old.asked_ms) == (one.reason, one.count, one.asked_ms)
        once = one.seqno == (after.seqno if old.pending else old.seqno) and not old.gone_ms
        once = once and bool(one.gone_ms) != old.pending
        (same and once) or broken("erasures-are-final", id_, "changes at", after.seqno)
        not one.keys or broken("erased-keys-forgotten", id_)
    if not erases(edits):
        return
    (before.upper == after.upper and before.drained == after.drained) or broken(
        "erasure-only-takes", "closes"
    )
    gone = {member.id: member for member in before.spine}
    for member in edits.spine.members if edits.spine is not None else ():
        old_batch = gone[member.id].batch if member.id in gone else None
        same = old_batch is not None and old_batch.bounds == member.batch.bounds
        fewer = old_batch is not None and member.batch.rows <= old_batch.rows
        (same and fewer) or broken("erasure-only-takes", member.id)
    rows = before.staged.totals.rows, after.staged.totals.rows
    rows[1] <= rows[0] or broken("erasure-only-takes", "staged rows", rows)
    # A base that had such rows is gone; the others still sum up what is before them.
    check_bases(after, after.bases)


def _check_tokens(state: ShardState, names: Iterable[str]) -> None:
    """Tokens have a record, of a writer that writes once: only such a record may be forgotten in time."""
    for name in names:
        there = name in state.writers and is_token(name) and writes_once(state.writers[name])
        there or broken("tokens-known", name, "of", state.shard_id)


def _check_writers(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Epochs and numbers only grow. Only records of old tokens and of leaving collections are forgotten."""
    for name, record in edits.writers.items():
        old = before.writers.get(name)
        if old is not None:
            old.epoch <= record.epoch or broken("epoch-never-goes-back", f"writer {name}")
            same = old.epoch == record.epoch and old.sequence is not None
            not same or (record.sequence or 0) >= (old.sequence or 0) or broken(
                "sequence-never-goes-back", f"writer {name}"
            )
    _check_tokens(after, edits.tokens)
    left = {id_ for id_, member in edits.memberships.items() if member is None}
    gone = {name for name in edits.writers_gone if WriterName.of(name).member not in left}
    days = days_of(before.tokens, gone)
    gone == {name for names in days.values() for name in names} or broken("tokens-last", sorted(gone)[:3])
    for day in days:
        over(day, before.agreed, after.committed_ms) or broken("tokens-last", "of day", day)


def _check_agreed(before: ShardState, after: ShardState) -> None:
    """A process that changes a setting takes away nothing on which another process relies."""
    old, new, now_ms = before.agreed, after.agreed, after.committed_ms
    later = old.revision < new.revision or (old.revision == new.revision and old.values == new.values)
    later or broken("agreed-never-goes-back", f"from revision {old.revision} to {new.revision}")
    old.format <= new.format or broken("format-never-goes-back", f"from {old.format} to {new.format}")
    for name in AGES:
        kept = new.in_force(name, now_ms) >= old.in_force(name, now_ms)
        kept or broken("ages-stay-in-force", name, "at", now_ms)


def _check_group(before: ShardState, after: ShardState, edits: Edits) -> None:
    """A group's decision is final, and this log forgets it only after every member has applied it."""
    for name, decision in edits.decisions.items():
        (decision is None) == (name in before.decisions) or broken("decided-once", "transaction", name)
        if decision is not None:
            present = {id_ for id_, member in after.memberships.items() if not member.leaving}
            strangers = sorted({*decision.members} - present)
            not strangers or broken("members-decide", "transaction", name, "writes to", strangers)
    for id_, member in edits.memberships.items():
        old = before.memberships.get(id_)
        if old is not None and member is not None:
            old.upper <= member.upper or broken("member-upper-never-goes-back", id_, "to", member.upper)
            same = old.admitted == member.admitted and old.leaving <= member.leaving
            same or broken("members-leave-for-good", id_, "stays")
        if member is None:
            (old is not None and old.leaving) or broken("members-leave-first", id_)
        elif old is None:
            member.admitted == after.seqno or broken("members-numbered", id_, "at", member.admitted)
    if edits.group is not None and before.group:
        waits = [awaited.transaction for _, awaited in after.staged.awaiting()]
        not waits or broken("left-behind-nothing", before.group, "and", waits)


def _check_schemas(state: ShardState, first: int) -> None:
    """Schemas are numbered in the order of their states; each from `first` on may follow those before it."""
    ids = sorted(state.schemas)
    seqnos = [state.schemas[i].seqno for i in ids]
    numbered = ids == list(range(len(ids))) and seqnos == sorted(seqnos)
    (numbered and seqnos[-1] <= state.seqno) or broken(
        "schemas-numbered", f"schemas {ids} of states {seqnos}"
    )
    versions = {i: version.schema for i, version in state.schemas.items()}
    for i in range(first, len(ids)):
        try:
            before = {n: versions[n] for n in range(i)}
            follows = evolved(before, versions[i], renamed=state.schemas[i].renamed) == versions[i]
        except IncompatibleSchema as error:
            raise InternalError(f"rule schema-evolves does not hold: schema {i}: {error}") from error
        follows or broken("schema-evolves", f"schema {i} gives a column another's id")


def _check_holds(state: ShardState) -> None:
    held_back = [(name, hold.since) for name, hold in state.holds.items()]
    held_back += [(name, hold.since) for name, hold in state.critical.items()]
    for name, since in held_back:
        state.since <= since or broken("holds-keep-since", "hold", name, "at", since)
    held = state.holds or state.critical or state.claims or state.spine.totals.runs or len(state.staged)
    not (state.dropped and held) or broken("tombstone-holds-nothing", state.shard_id)


def _check_garbage(state: ShardState, named: set[str]) -> None:
    gone = {*state.garbage, *state.doomed}
    len(gone) == len(state.garbage) + len(state.doomed) or broken("doomed-once", state.shard_id)
    not gone & named or broken("garbage-is-not-named", ", ".join(sorted(gone & named)[:3]))


def _check_pins(before: ShardState, edits: Edits) -> None:
    """No fork, and no hold that remains, needs what this step dooms."""
    kept = [edits.holds.get(id_, hold) for id_, hold in before.holds.items()]
    pins = [pin for hold in kept if hold is not None for pin in hold.pins]
    pins += fork_pins(before)
    for name in edits.doomed:
        lost = before.garbage[name]
        not any(lost.read_by(pin) for pin in pins) or broken("pins-keep-parts", name)


def _check_arrivals(before: ShardState, edits: Edits) -> None:
    """A part that comes into the state is new and never was in, or moves from elsewhere in the state."""
    parts = arriving(edits)
    _check_named_once([part.name for part in parts])
    moved: set[str] | None = None
    floor = max(before.sweep.floor, before.erased)
    for part in parts:
        left = part.name in before.garbage or part.name in before.doomed
        not left or broken("garbage-stays", part.name)
        if part.name in before.part_names:
            moved = {gone.name for gone, _ in going(before, edits)} if moved is None else moved
            part.name in moved or broken("part-named-once", part.name)
            continue
        not is_taken(before.taken, part.name) or broken("uploads-taken-once", part.name)
        not expired(part.name, floor) or broken("uploads-young", part.name)
        # A fork begins with all the borrowed parts that it ever has.
        not is_borrowed(part.name, before.shard_id) or broken("borrowed-from-origin", part.name)
    for seqno, ids in edits.taken.items():
        again = before.taken.get(seqno, pset())
        not any(id_ in again for id_ in ids) or broken("uploads-taken-once", "of seqno", seqno)


def _check_rollup(state: ShardState) -> None:
    state.rollup.seqno <= state.seqno or broken("rollup-is-past", f"{state.rollup.seqno} > {state.seqno}")


def _check_named_once(names: list[str]) -> None:
    if len({*names}) == len(names):
        return
    twice = [name for name, count in Counter(names).items() if count > 1]
    not twice or broken("part-named-once", ", ".join(twice[:3]))


def _check_claims(state: ShardState) -> None:
    _check_claims_apart(state)
    for key in state.chunks:
        _check_chunk(state, key)


def _check_claimed(before: ShardState, after: ShardState, edits: Edits) -> None:
    """`_check_claims` for the claims and chunks that change."""
    if edits.claims:
        _check_claims_apart(after)
    for key, parts in edits.chunks.items():
        if parts is not None:
            _check_chunk(after, key)
    for name, claim in edits.claims.items():
        old = before.claims.get(name)
        if old is None or (claim is not None and len(claim.cuts) >= len(old.cuts)):
            continue
        for index in range(len(old.cuts) + 1):
            if f"{name}/{index}" in after.chunks:
                _check_chunk(after, f"{name}/{index}")


def _check_claims_apart(state: ShardState) -> None:
    ids = sorted(claim.id for claim in state.claims.values())
    apart = all(a.hi <= b.lo for a, b in itertools.pairwise(ids))
    apart or broken("claims-apart", ", ".join(map(str, ids)))


def _check_chunk(state: ShardState, key: str) -> None:
    """A chunk belongs to a claim, by a number within it: otherwise it would never be found and removed."""
    name, _, index = key.partition("/")
    claim = state.claims.get(name)
    numbered = index.isdecimal() and str(int(index)) == index
    (claim is not None and numbered and int(index) <= len(claim.cuts)) or broken("chunk-of-claim", key)

"""The rules that every state and every step must keep, by name. They cannot be switched off.

`check_state` runs on the first state of a shard before it is written, and on every state that is read back
whole. `check_step` runs before every compare-and-set, and looks only at what changes. docs/correctness.md
lists each rule with its test.
"""

import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from pyrsistent import pset

from tidelake.errors import IncompatibleSchema, InternalError
from tidelake.model.batch import HollowBatch
from tidelake.model.evolution import evolved
from tidelake.model.frontier import Frontier
from tidelake.state.core.agreed import AGES
from tidelake.state.core.edits import Edits, arriving, going
from tidelake.state.core.forks import fork_pins, is_borrowed, is_borrower, lender
from tidelake.state.core.garbage import expired
from tidelake.state.core.partnames import is_taken
from tidelake.state.core.state import ShardState
from tidelake.state.core.tokens import days_of, is_token, over, writes_once
from tidelake.state.core.writername import WriterName
from tidelake.state.spine.bases import Base
from tidelake.state.spine.partsums import diff_sum, may_have_the_same_rows
from tidelake.state.spine.spine import (
    Member,
    Spine,
    SpineEdit,
    SpineId,
    intervals,
)
from tidelake.state.spine.staged import Staged, begins_before
from tidelake.state.spine.validate import same_batches, validate, validate_levels


def _require(holds: bool, rule: str, *detail: object) -> None:
    # The detail comes in pieces, because printing frontiers would take longer than checking most rules.
    if not holds:
        raise InternalError(f"rule {rule} does not hold: {' '.join(map(str, detail))}")


def check_state(state: ShardState) -> None:
    """Check a whole state. Costs O(state).

    Raises:
        InternalError: naming the rule.
    """
    validate(state.spine, state.minimum, state.drained, state.since)
    _require(bool(state.schemas), "schema-registered", f"shard {state.shard_id} has no schema")
    _check_schemas(state, 1)
    names = [part.name for part in state.parts()]
    names += [part.name for parts in state.chunks.values() for part in parts]
    _check_named_once(names)
    for batch in state.batches():
        _check_batch(batch, state)
    _check_staged(state, state.staged)
    _check_claims(state)
    _check_holds(state)
    _check_garbage(state, {*names})
    _require(lender(state) is not None or not is_borrower(state), "borrowed-from-origin", state.shard_id)
    _require(state.since <= state.retained, "owner-keeps-since", state.since, "is after", state.retained)
    _check_rollup(state)
    _require(set(state.part_names) == {*names}, "names-indexed", state.shard_id)
    _check_bases(state, state.bases)
    for id_, one in state.erasures.items():
        _require(bool(one.keys) == one.pending, "erased-keys-forgotten", id_)
    tokens = [name for there in state.tokens.values() for name in there]
    _require(len(tokens) == len({*tokens}), "tokens-known", state.shard_id, "has one of several days")
    _check_tokens(state, tokens)


def check_step(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Check one step. Costs O(change).

    Raises:
        InternalError: naming the rule.
    """
    _require(before.since <= after.since, "since-never-goes-back", before.since, "to", after.since)
    _require(before.upper <= after.upper, "upper-never-goes-back", before.upper, "to", after.upper)
    _require(before.retained <= after.retained, "retained-never-goes-back", "to", after.retained)
    _require(after.since <= after.retained, "owner-keeps-since", after.since, "is after", after.retained)
    _require(before.committed_ms <= after.committed_ms, "clock-never-goes-back", after.committed_ms)
    _require(before.sweep.floor <= after.sweep.floor, "floor-never-goes-back", "to", after.sweep.floor)
    drained = before.drained, after.drained
    _require(drained[0] <= drained[1], "drained-never-goes-back", drained[0], "to", drained[1])
    _require(before.expired <= after.expired, "expired-never-goes-back", "to", after.expired)
    if after.dropped or not _same_holds(before, after):
        _check_holds(after)
    _check_agreed(before, after)
    if edits.doomed:
        _check_pins(before, edits)
    _check_arrivals(before, edits)
    _check_new_rollup(before, after, edits)
    if edits.let_go or edits.freed:
        _require(not is_borrower(after), "borrowed-from-origin", after.shard_id, "still names such parts")
    if edits.writers or edits.writers_gone or edits.tokens:
        _check_writers(before, after, edits)
    _check_new_schemas(before, after, edits)
    if edits.claims or edits.chunks:
        _check_claimed(before, after, edits)
    if edits.decisions or edits.memberships or edits.group is not None:
        _check_group(before, after, edits)
    _check_staged_changes(before, after, edits, drained)
    if edits.spine is not None:
        _check_spine_edit(before, after, edits, drained)
    if edits.erasures:
        _check_erasures(before, after, edits)
    come = [base for base in edits.bases.values() if base is not None]
    if come:
        _check_bases(after, come)


def _same_holds(before: ShardState, after: ShardState) -> bool:
    """Whether `since` and all holds are those of the state before, where they kept their rules."""
    same = before.holds is after.holds and before.critical is after.critical
    return same and before.since is after.since


def _check_new_rollup(before: ShardState, after: ShardState, edits: Edits) -> None:
    if edits.rollup is not None:
        newer = before.rollup.seqno < edits.rollup.seqno
        _require(newer, "rollup-never-goes-back", "to", edits.rollup.seqno)
        _check_rollup(after)


def _check_new_schemas(before: ShardState, after: ShardState, edits: Edits) -> None:
    if edits.schemas:
        _require(all(v.seqno == after.seqno for v in edits.schemas.values()), "schemas-numbered", "seqno")
        _check_schemas(after, max(before.schemas) + 1)


def _check_staged_changes(
    before: ShardState, after: ShardState, edits: Edits, drained: tuple[Frontier, Frontier]
) -> None:
    """Staged batches are numbered and well-formed, lose no row, and lie after the end of the spine."""
    if edits.staged:
        come = {name: staged for name, staged in edits.staged.items() if staged is not None}
        for name, one in come.items():
            added = before.staged.batches[name].added if name in before.staged.batches else after.seqno
            _require(one.added == added, "staged-numbered", name, "at", one.added)
        for one in come.values():
            _check_batch(one.batch, after)
        if before.upper == after.upper and not after.dropped and not _erases(edits):
            _check_drained(before, edits)
    changed = any(name in before.staged.batches for name in edits.staged)
    if changed or before.upper != after.upper or drained[0] != drained[1]:
        # A step that closes or drains times concerns all staged batches.
        _check_staged(after, after.staged)
    elif edits.staged:
        # A batch that awaits a transaction gets its time when that is decided.
        arrived = [one for one in edits.staged.values() if one is not None and one.awaits is None]
        _check_open(after, arrived)


def _check_spine_edit(
    before: ShardState, after: ShardState, edits: Edits, drained: tuple[Frontier, Frontier]
) -> None:
    """New members tile and are well-formed, and the levels describe them."""
    edit = edits.spine or SpineEdit(0, 0)
    _check_tiling(before, after, edit, drained, erases=_erases(edits))
    same = same_batches(before.spine, after.spine)
    validate_levels(after.spine, after.minimum, drained[1], after.since, same)
    for member in edit.members:
        _check_batch(member.batch, after)
        since = member.batch.bounds.since
        _require(since <= after.since, "batch-folded-to-since", since, "is after", after.since)
        if drained[0] != drained[1] and after.domain.total_order:
            _check_times(member.batch)
    _check_spine_batches(before.spine, after.spine, edit, after.since, same)


def _erases(edits: Edits) -> bool:
    """Whether the rows of an erasure leave in this step."""
    return any(one.seqno and not one.gone_ms for one in edits.erasures.values())


def _check_erasures(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Erasures are final and keep no keys, and the step of one takes rows away and changes nothing else."""
    for id_, one in edits.erasures.items():
        old = before.erasures.get(id_)
        if old is None:
            asked = one.pending and bool(one.keys) and not one.gone_ms
            _require(asked, "erasures-are-final", id_, "was not asked for")
            continue
        same = (old.reason, old.count, old.asked_ms) == (one.reason, one.count, one.asked_ms)
        once = one.seqno == (after.seqno if old.pending else old.seqno) and not old.gone_ms
        once = once and bool(one.gone_ms) != old.pending
        _require(same and once, "erasures-are-final", id_, "changes at", after.seqno)
        _require(not one.keys, "erased-keys-forgotten", id_)
    if not _erases(edits):
        return
    _require(before.upper == after.upper and before.drained == after.drained, "erasure-only-takes", "closes")
    gone = {member.id: member for member in before.spine.range(SpineId(0, before.spine.next_id))}
    for member in edits.spine.members if edits.spine is not None else ():
        old_batch = gone[member.id].batch if member.id in gone else None
        same = old_batch is not None and old_batch.bounds == member.batch.bounds
        fewer = old_batch is not None and member.batch.rows <= old_batch.rows
        _require(same and fewer, "erasure-only-takes", member.id)
    rows = before.staged.totals.rows, after.staged.totals.rows
    _require(rows[1] <= rows[0], "erasure-only-takes", "staged rows", rows)
    # A base that had such rows is gone; the others still sum up what is before them.
    _check_bases(after, after.bases)


def _check_tokens(state: ShardState, names: Iterable[str]) -> None:
    """Tokens have a record, of a writer that writes once: only such a record may be forgotten in time."""
    for name in names:
        there = name in state.writers and is_token(name) and writes_once(state.writers[name])
        _require(there, "tokens-known", name, "of", state.shard_id)


def _check_writers(before: ShardState, after: ShardState, edits: Edits) -> None:
    """Epochs and numbers only grow. Only records of old tokens and of leaving collections are forgotten."""
    for name, record in edits.writers.items():
        old = before.writers.get(name)
        if old is not None:
            _require(old.epoch <= record.epoch, "epoch-never-goes-back", f"writer {name}")
            same = old.epoch == record.epoch and old.sequence is not None
            _require(
                not same or (record.sequence or 0) >= (old.sequence or 0),
                "sequence-never-goes-back",
                f"writer {name}",
            )
    _check_tokens(after, edits.tokens)
    left = {id_ for id_, member in edits.memberships.items() if member is None}
    gone = {name for name in edits.writers_gone if WriterName.of(name).member not in left}
    days = days_of(before.tokens, gone)
    _require(gone == {name for names in days.values() for name in names}, "tokens-last", sorted(gone)[:3])
    for day in days:
        _require(over(day, before.agreed, after.committed_ms), "tokens-last", "of day", day)


def _check_agreed(before: ShardState, after: ShardState) -> None:
    """A process that changes a setting takes away nothing on which another process relies."""
    old, new, now_ms = before.agreed, after.agreed, after.committed_ms
    if old is new:
        return
    later = old.revision < new.revision or (old.revision == new.revision and old.values == new.values)
    _require(later, "agreed-never-goes-back", f"from revision {old.revision} to {new.revision}")
    _require(old.format <= new.format, "format-never-goes-back", f"from {old.format} to {new.format}")
    for name in AGES:
        kept = new.in_force(name, now_ms) >= old.in_force(name, now_ms)
        _require(kept, "ages-stay-in-force", name, "at", now_ms)


def _check_group(before: ShardState, after: ShardState, edits: Edits) -> None:
    """A group's decision is final, and this log forgets it only after every member has applied it."""
    for name, decision in edits.decisions.items():
        _require((decision is None) == (name in before.decisions), "decided-once", "transaction", name)
        if decision is not None:
            present = {id_ for id_, member in after.memberships.items() if not member.leaving}
            strangers = sorted({*decision.members} - present)
            _require(not strangers, "members-decide", "transaction", name, "writes to", strangers)
    for id_, member in edits.memberships.items():
        old = before.memberships.get(id_)
        if old is not None and member is not None:
            _require(old.upper <= member.upper, "member-upper-never-goes-back", id_, "to", member.upper)
            same = old.admitted == member.admitted and old.leaving <= member.leaving
            _require(same, "members-leave-for-good", id_, "stays")
        if member is None:
            _require(old is not None and old.leaving, "members-leave-first", id_)
        elif old is None:
            _require(member.admitted == after.seqno, "members-numbered", id_, "at", member.admitted)
    if edits.group is not None and before.group:
        waits = [awaited.transaction for _, awaited in after.staged.awaiting()]
        _require(not waits, "left-behind-nothing", before.group, "and", waits)


def _check_tiling(
    before: ShardState,
    after: ShardState,
    edit: SpineEdit,
    drained: tuple[Frontier, Frontier],
    *,
    erases: bool,
) -> None:
    """New members cover the times of the members that go, and at the end the newly drained times."""
    gone, come = [], []
    covered = intervals(member.id for member in edit.members)
    if not (covered and covered[-1].hi == after.spine.next_id):
        _require(drained[0] == drained[1], "batches-tile", "batches end at", drained[1])
    for ids in covered:
        removed = list(before.spine.range(SpineId(ids.lo, min(ids.hi, before.spine.next_id))))
        added = list(after.spine.range(ids))
        at = removed[0].batch.bounds.lower if removed else drained[0]
        end = drained[1] if ids.hi == after.spine.next_id else removed[-1].batch.bounds.upper
        for member in added:
            bounds = member.batch.bounds
            _require(bounds.lower == at, "batches-tile", bounds, "does not start at", at)
            at = bounds.upper
        _require(at == end, "batches-tile", "batches end at", at, "instead of", end)
        gone += removed
        come += added
    if drained[0] == drained[1] and not after.dropped and not erases:
        rules = "merge-keeps-diffs", "merge-keeps-rows"
        _check_kept(*rules, [member.batch for member in gone], [member.batch for member in come])


def _check_bases(state: ShardState, bases: Iterable[Base]) -> None:
    """These bases stand at boundaries between members, in order, and sum up what is before them.

    Costs O(batches since the base before each).
    """
    for base in bases:
        _require(state.domain.total_order, "base-total-order", state.shard_id)
        _require(len(base.runs) <= 1, "base-is-one-run", base.hi)
        members = state.spine.members
        end = members[base.hi].batch.bounds.lower if base.hi in members else state.drained
        stands = state.spine.begins(base.hi) and end.elements == (base.at,)
        _require(stands, "base-boundary-stands", base.hi, "at", base.at)
        before, after = state.bases.before(base.hi - 1), state.bases.after(base.hi)
        _require(base.at - 1 <= base.time, "bases-in-order", base.hi, "has time", base.time)
        _require(before is None or before.time <= base.time, "bases-in-order", base.hi, "comes too late")
        _require(after is None or base.time <= after.time, "bases-in-order", base.hi, "comes too early")
        _check_batch(base.batch(state.minimum), state)
        since = state.spine.range(SpineId(0 if before is None else before.hi, base.hi))
        first = [] if before is None else [before.batch(state.minimum)]
        rules = "base-keeps-diffs", "base-keeps-rows"
        _check_kept(*rules, [*first, *(member.batch for member in since)], [base.batch(state.minimum)])


def _check_slices(after: Spine, edit: SpineEdit, since: Frontier) -> None:
    """Slices that come, or have new members, describe their members. Costs O(members in them)."""
    sliced = after.sliced
    touched = {batch.id for batch in edit.batches if batch.id.lo < sliced}
    for member in edit.members:
        if member.id.lo < sliced:
            held = after.holder(member.id)
            _require(held is not None, "levels-say-members", "member", member.id, "is in several slices")
            touched |= {held.id} if held is not None else set()
    for id_ in touched:
        held = after.holder(id_)
        members = list(after.range(id_))
        rows = sum(member.batch.rows for member in members)
        folded = all(member.batch.bounds.since <= held.bounds.since for member in members) if held else False
        first, last = members[0].batch.bounds.lower, members[-1].batch.bounds.upper
        same = held is not None and (held.rows, held.bounds.lower, held.bounds.upper) == (rows, first, last)
        _require(same and folded, "levels-say-members", "slice", id_, "says something else than its members")
        past = held is not None and held.bounds.since <= since
        _require(past, "levels-say-members", "slice", id_, "is since a time after the shard's", since)


def _check_spine_batches(before: Spine, after: Spine, edit: SpineEdit, since: Frontier, same: int) -> None:
    """Spine batches describe their members. Costs O(change) and O(levels), unless one was split.

    The first `same` are as before. They are looked at only if members in them change.
    """
    _check_slices(after, edit, since)
    touched = (id_.lo for id_ in (*edit.members_gone, *(member.id for member in edit.members)))
    lo = min(touched, default=after.next_id)
    same = min(same, bisect_right(after.batches, lo, key=lambda batch: batch.id.hi))
    rule, batches, sliced = "levels-say-members", after.batches[same:], after.sliced
    starts = [batch.id.lo for batch in batches]
    rows, parted = [0] * len(batches), [False] * len(batches)

    def home(id_: SpineId) -> int:
        return bisect_right(starts, id_.lo) - 1

    for old in before.batches[same:]:
        if old.id.hi <= sliced:
            continue
        if old.id.lo < sliced:
            parted[0] = True
            continue
        for n in range(home(old.id), home(SpineId(old.id.hi - 1, old.id.hi)) + 1):
            rows[n] += old.rows
            covers = batches[n].id.covers(old.id) and old.bounds.since <= batches[n].bounds.since
            parted[n] = parted[n] or not covers
    for id_ in edit.members_gone:
        if id_.lo >= sliced:
            rows[home(id_)] -= before.members[id_.lo].batch.rows
    for member in edit.members:
        if member.id.lo < sliced:
            continue
        held, since = batches[home(member.id)], member.batch.bounds.since
        rows[home(member.id)] += member.batch.rows
        _require(since <= held.bounds.since, rule, held.id, "is since", held.bounds.since, "before", since)
    for n, batch in enumerate(batches):
        first = after.members.get(batch.id.lo)
        begins = first is not None and first.batch.bounds.lower == batch.bounds.lower
        _require(begins, rule, batch.id, "begins elsewhere than at", batch.bounds.lower)
        if parted[n]:
            members = list(after.range(batch.id))
            rows[n] = sum(member.batch.rows for member in members)
            folded = all(member.batch.bounds.since <= batch.bounds.since for member in members)
            _require(folded, rule, batch.id, "is since", batch.bounds.since, "before a member")
        _require(rows[n] == batch.rows, rule, batch.id, "says", batch.rows, "rows, not", rows[n])


def _check_schemas(state: ShardState, first: int) -> None:
    """Schemas are numbered in the order of their states; each from `first` on may follow those before it."""
    ids = sorted(state.schemas)
    seqnos = [state.schemas[i].seqno for i in ids]
    numbered = ids == list(range(len(ids))) and seqnos == sorted(seqnos)
    _require(numbered and seqnos[-1] <= state.seqno, "schemas-numbered", f"schemas {ids} of states {seqnos}")
    versions = {i: version.schema for i, version in state.schemas.items()}
    for i in range(first, len(ids)):
        try:
            before = {n: versions[n] for n in range(i)}
            follows = evolved(before, versions[i], renamed=state.schemas[i].renamed) == versions[i]
        except IncompatibleSchema as error:
            raise InternalError(f"rule schema-evolves does not hold: schema {i}: {error}") from error
        _require(follows, "schema-evolves", f"schema {i} gives a column another's id")


def _check_holds(state: ShardState) -> None:
    held_back = [(name, hold.since) for name, hold in state.holds.items()]
    held_back += [(name, hold.since) for name, hold in state.critical.items()]
    for name, since in held_back:
        _require(state.since <= since, "holds-keep-since", "hold", name, "at", since)
    held = state.holds or state.critical or state.claims or state.spine.totals.runs or len(state.staged)
    _require(not (state.dropped and held), "tombstone-holds-nothing", state.shard_id)


def _check_garbage(state: ShardState, named: set[str]) -> None:
    gone = {*state.garbage, *state.doomed}
    _require(len(gone) == len(state.garbage) + len(state.doomed), "doomed-once", state.shard_id)
    _require(not gone & named, "garbage-is-not-named", ", ".join(sorted(gone & named)[:3]))


def _check_pins(before: ShardState, edits: Edits) -> None:
    """No fork, and no hold that remains, needs what this step dooms."""
    kept = [edits.holds.get(id_, hold) for id_, hold in before.holds.items()]
    pins = [pin for hold in kept if hold is not None for pin in hold.pins]
    pins += fork_pins(before)
    for name in edits.doomed:
        lost = before.garbage[name]
        _require(not any(lost.read_by(pin) for pin in pins), "pins-keep-parts", name)


def _check_arrivals(before: ShardState, edits: Edits) -> None:
    """A part that comes into the state is new and never was in, or moves from elsewhere in the state."""
    parts = list(arriving(edits))
    _check_named_once([part.name for part in parts])
    moved = {part.name for part, _ in going(before, edits)}
    floor = max(before.sweep.floor, before.erased)
    for part in parts:
        gone = part.name in before.garbage or part.name in before.doomed
        _require(not gone, "garbage-stays", part.name)
        if part.name in before.part_names:
            _require(part.name in moved, "part-named-once", part.name)
            continue
        _require(not is_taken(before.taken, part.name), "uploads-taken-once", part.name)
        _require(not expired(part, floor), "uploads-young", part.name)
        # A fork begins with all the borrowed parts that it ever has.
        _require(not is_borrowed(part.name, before.shard_id), "borrowed-from-origin", part.name)
    for seqno, ids in edits.taken.items():
        again = before.taken.get(seqno, pset())
        _require(not any(id_ in again for id_ in ids), "uploads-taken-once", "of seqno", seqno)


def _check_rollup(state: ShardState) -> None:
    _require(state.rollup.seqno <= state.seqno, "rollup-is-past", f"{state.rollup.seqno} > {state.seqno}")


def _check_staged(state: ShardState, staged: Iterable[Staged]) -> None:
    """No staged time is before the spine's end, which is `upper` unless something is staged before that."""
    end = state.drained
    _require(end <= state.upper, "drained-up-to-upper", end, "is after", state.upper)
    _check_open(state, staged)
    waits = end == state.upper or any(begins_before(one.batch, state.upper) for one in staged)
    _require(waits, "drained-up-to-upper", "nothing is staged between", end, "and", state.upper)


def _check_open(state: ShardState, staged: Iterable[Staged]) -> None:
    """These staged batches hold rows, at times at or after the end of the spine."""
    for one in staged:
        _require(bool(one.batch.runs), "staged-holds-rows", one.batch.bounds)
        _require(not begins_before(one.batch, state.drained), "staged-is-open", one.name)


def _check_named_once(names: list[str]) -> None:
    if len({*names}) == len(names):
        return
    twice = [name for name, count in Counter(names).items() if count > 1]
    _require(not twice, "part-named-once", ", ".join(twice[:3]))


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
    _require(apart, "claims-apart", ", ".join(map(str, ids)))


def _check_chunk(state: ShardState, key: str) -> None:
    """A chunk belongs to a claim, by a number within it: otherwise it would never be found and removed."""
    name, _, index = key.partition("/")
    claim = state.claims.get(name)
    numbered = index.isdecimal() and str(int(index)) == index
    _require(claim is not None and numbered and int(index) <= len(claim.cuts), "chunk-of-claim", key)


def _check_drained(before: ShardState, edits: Edits) -> None:
    """Rows that leave the staged batches while no time is closed go into the spine, or are staged again."""
    known = before.staged.batches
    # A batch that awaits a transaction may be withdrawn; if it is let in, it stays where it is.
    gone: list[Member | Staged] = [
        known[name] for name, one in edits.staged.items() if one is None and known[name].awaits is None
    ]
    if not gone:
        return
    come: list[Member | Staged] = [
        one for name, one in edits.staged.items() if one is not None and name not in known
    ]
    if edits.spine is not None:
        gone += [before.spine.members[id_.lo] for id_ in edits.spine.members_gone]
        come += edits.spine.members
    rules = "drain-keeps-diffs", "drain-keeps-rows"
    _check_kept(*rules, [one.batch for one in gone], [one.batch for one in come])


def _check_kept(diffs: str, rows: str, before: list[HollowBatch], after: list[HollowBatch]) -> None:
    """Check by both rules that batches have the updates of those whose place they take."""
    old, new = diff_sum(before), diff_sum(after)
    _require(old is None or new is None or old == new, diffs, old, "became", new)
    _require(may_have_the_same_rows(before, after), rows, "the hash of", len(before), "batches changed")


def _check_times(batch: HollowBatch) -> None:
    """The times of an appended batch, as a reader will see them, lie in its bounds."""
    for run in batch.runs:
        for part in run.parts:
            first, last = part.seen_times
            inside = batch.bounds.contains(first) and batch.bounds.contains(last)
            _require(inside or run.truncated, "times-in-bounds", "part", part.name, "from", first, "to", last)


def _check_batch(batch: HollowBatch, state: ShardState) -> None:
    for run in batch.runs:
        _require(bool(run.parts), "run-has-parts", batch.bounds)
        for part in run.parts:
            _require(part.schema_id in state.schemas, "schema-registered", "part", part.name)
            _require(part.rows > 0 and part.size_bytes > 0, "part-has-rows", part.name)
            _require(part.rewrite is None or state.domain.total_order, "rewrite-total-order", part.name)
    _require(not (batch.bounds.empty and batch.runs), "empty-bounds-hold-nothing", batch.bounds)

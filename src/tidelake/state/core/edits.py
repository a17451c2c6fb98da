"""The edits that lead from one version of a shard to the next, as they are stored in its log.

A command returns no new state but an `Edits` value, which says field by field what changes. The committing
process and every other process make the next state with `apply` from the same edits, so memory and log cannot
differ, and a commit costs as much as it changes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyrsistent import PMap, PSet, pmap

from tidelake.errors import CorruptionError, InternalError
from tidelake.model import names
from tidelake.model.batch import Part
from tidelake.model.frozen import with_fields
from tidelake.model.names import ObjectName, PlainName
from tidelake.state.core import partnames, tokens
from tidelake.state.core.fields import OfEdits, edited, merges, of_edits, with_new
from tidelake.state.core.garbage import NEVER_READ, Garbage
from tidelake.state.core.state import FIRST, Origin, Rollup, ShardState, StateFields, Taken
from tidelake.state.spine.bases import fallen
from tidelake.state.spine.spine import Member
from tidelake.state.spine.staged import Staged


@dataclass(frozen=True)
class Note:
    """What the caller says of a commit. No rule depends on it."""

    author: str = ""
    message: str = ""


@of_edits
class Edits(StateFields, OfEdits):
    """The step from one state to the next: what changes of the fields of `StateFields`, and what follows.

    Attributes:
        buried: names of doomed blobs that have been deleted.
        let_go: whether a fork and its origin forget each other, since it needs none of its parts.
        freed: whether a fork needs no part of its origin any more, and remembers it.
        mended: the state before this one is that in `rollup`, which a repair has made, and not that of the
            log: a process that has followed the log so far starts again from there.
        writers_gone: names of writer records that are removed.
        sliced: the end of the slices, if it moves.
        note: what the caller says of the commit. It changes no state, and goes with the entry of the log.
    """

    buried: tuple[ObjectName, ...] = ()
    let_go: bool = False
    freed: bool = False
    mended: bool = False
    writers_gone: tuple[str, ...] = ()
    sliced: int | None = None
    note: Note | None = None


@dataclass(frozen=True)
class Delta:
    """One entry of the log: the edits that make state `seqno` from state `seqno - 1`.

    Commands that were committed together have a step each, in their order; all the steps together make the
    state `seqno`.

    Attributes:
        shard_id: whose log it belongs to.
        seqno: of the state that it makes.
        committed_ms: wall clock of the commit; never goes back.
        nonce: fresh for every attempt, so that a process knows its own entry.
        base: the newest rollup that the state knows, from which a reader starts.
        edits: the first step.
        more: the steps after it.
    """

    shard_id: PlainName
    seqno: int
    committed_ms: int
    nonce: str
    base: Rollup
    edits: Edits
    more: tuple[Edits, ...] = ()

    @property
    def steps(self) -> tuple[Edits, ...]:
        """The edits of each command."""
        return (self.edits, *self.more)

    @property
    def dropped(self) -> bool:
        """Whether it makes the shard a tombstone."""
        return any(edits.dropped for edits in self.steps)

    @property
    def mended(self) -> bool:
        """Whether it continues from a state that a repair has made."""
        return any(edits.mended for edits in self.steps)


@dataclass(frozen=True)
class Transition:
    """What one command of a delta did.

    Attributes:
        before: the state that the command was decided on, with the seqno before the delta's.
        after: that state with the command's edits, and the delta's seqno.
    """

    before: ShardState
    after: ShardState
    edits: Edits


def apply(state: ShardState, delta: Delta) -> ShardState:
    """The state after a delta. Costs O(change)."""
    for step in steps(state, delta):
        state = step.after
    return state


def steps(state: ShardState, delta: Delta) -> Iterator[Transition]:
    """The steps of a delta, one after the other. The last one leads to the state after it."""
    name = f"{state.shard_id}@{delta.seqno}"
    if delta.shard_id != state.shard_id or delta.seqno != state.seqno + 1:
        raise CorruptionError(
            name,
            f"the entry is for {delta.shard_id}@{delta.seqno}, expected {state.shard_id}@{state.seqno + 1}",
        )
    newest = next((edits.rollup for edits in reversed(delta.steps) if edits.rollup), state.rollup)
    if delta.base != newest:
        raise CorruptionError(name, f"it starts from rollup {delta.base.seqno}, not {newest.seqno}")
    for edits in delta.steps:
        after = stepped(state, edits, delta.committed_ms)
        yield Transition(state, after, edits)
        state = with_fields(after, seqno=state.seqno)


def stepped(state: ShardState, edits: Edits, committed_ms: int) -> ShardState:
    """The state after the edits of one command. Costs O(change)."""
    seqno = state.seqno + 1
    name = f"{state.shard_id}@{seqno}"
    changed = _merged(state, edits, name)
    try:
        if edits.spine:
            changed["spine"] = state.spine.edited(edits.spine, edits.sliced)
        if state.bases.held or edits.bases:
            gone = {base.hi: None for base in fallen(state.bases, edits.spine)}
            changed["bases"] = state.bases.edited({**gone, **edits.bases})
        if edits.staged:
            changed |= {"staged": state.staged.edited(edits.staged), "let_in": _let_in(state, edits)}
    except InternalError as error:
        raise CorruptionError(name, str(error)) from error
    if edits.writers or edits.writers_gone or edits.tokens:
        writers, day = {**edits.writers, **dict.fromkeys(edits.writers_gone)}, committed_ms // tokens.DAY_MS
        changed["writers"] = edited(state.writers, writers, "writers", name)
        changed["tokens"] = tokens.moved(state.tokens, day, edits.tokens, edits.writers, edits.writers_gone)
    if edits.let_go or edits.freed:
        changed["origin"] = None if edits.let_go else _freed(state.origin, name)
    if edits.dropped or edits.taken or edits.sweep:
        changed["taken"] = _taken(state, edits)
    if edits.decisions or edits.memberships:
        changed["latest"] = _latest(state, edits)
    if edits.upper is not None:
        changed["closed_ms"] = committed_ms if edits.closed_ms is None else edits.closed_ms
    left, come = going(state, edits), arriving(edits)
    return with_fields(
        state,
        seqno=seqno,
        committed_ms=committed_ms,
        part_names=_reindexed(state, left, come) if left or come else state.part_names,
        **changed,
        **_discarded(state, edits, leaving(left, come) if left else {}, committed_ms, name),
    )


_BY_VALUE, _BY_ENTRY = merges(StateFields)


def _merged(state: ShardState, edits: Edits, step: str) -> dict[str, object]:
    """The fields that a step changes each by the edit of the same name."""
    changed: dict[str, object] = {}
    for name, merge in _BY_VALUE:
        if (edit := getattr(edits, name)) is not None:
            changed[name] = merge(getattr(state, name), edit, name, step)
    for name, merge in _BY_ENTRY:
        if edit := getattr(edits, name):
            changed[name] = merge(getattr(state, name), edit, name, step)
    return changed


def leaving(gone: Iterable[tuple[Part, int]], come: Iterable[Part]) -> dict[str, int]:
    """The stored parts of `going` that are not in `arriving`: they leave the state."""
    kept = {part.name for part in come}
    return {part.name: added for part, added in gone if part.inline is None and part.name not in kept}


def going(state: ShardState, edits: Edits) -> list[tuple[Part, int]]:
    """The parts of everything that a step removes or changes; some stay elsewhere.

    Each with the seqno from which readers had it. Parts of the chunks of merges under way were never read.
    """
    held: list[Member | Staged] = []
    for name in edits.staged:
        if name in state.staged.batches:
            held.append(state.staged.batches[name])
    for id_ in () if edits.spine is None else edits.spine.members_gone:
        held.append(state.spine.members[id_.lo])
    found: list[tuple[Part, int]] = []
    for one in held:
        found += [(part, one.added) for part in one.batch.parts()]
    bases = {base.hi: base for base in fallen(state.bases, edits.spine)} if state.bases.held else {}
    for hi in edits.bases:
        if (base := state.bases.get(hi)) is not None:
            bases[hi] = base
    for base in bases.values():
        found += [(part, base.added) for part in base.parts()]
    for key in edits.chunks:
        found += [(part, NEVER_READ) for part in state.chunks.get(key, ())]
    return found


def arriving(edits: Edits) -> list[Part]:
    """The parts of everything that a step puts into the state; some may have been elsewhere in it before."""
    come: list[Part] = []
    for parts in edits.chunks.values():
        come += parts or ()
    for staged in edits.staged.values():
        if staged is not None:
            come += staged.batch.parts()
    if edits.spine is not None:
        for member in edits.spine.members:
            come += member.batch.parts()
    for base in edits.bases.values():
        if base is not None:
            come += base.parts()
    return come


def _reindexed(state: ShardState, gone: Iterable[tuple[Part, int]], come: Iterable[Part]) -> PSet[str]:
    """The names of all parts after a step. Costs O(change)."""
    old, new = {part.name for part, _ in gone}, {part.name for part in come}
    known = state.part_names.evolver()
    for name in old - new:
        if name in state.part_names:
            known.remove(name)
    for name in new - old:
        known.add(name)
    return known.persistent()


def _discarded(
    state: ShardState, edits: Edits, found: dict[str, int], committed_ms: int, name: str
) -> dict[str, object]:
    """What a step of that name, which `found` leave, changes of the blobs that no state names any more."""
    if edits.rollup is not None and state.rollup != FIRST:
        # No pin reads a rollup, but a process that opens the shard may be about to read it.
        found[names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id)] = NEVER_READ
    if not (found or edits.doomed or edits.buried):
        return {}
    seqno = state.seqno + 1
    left = {blob: Garbage(min(added, seqno), seqno, committed_ms) for blob, added in found.items()}
    dooming = {key: _found(state.garbage, key, name) for key in edits.doomed}
    # Rollups and chunks of merges are not named for readers, so no state misses them.
    lost = [one.removed for one in dooming.values() if one.added < one.removed]
    return {
        "garbage": edited(
            with_new(state.garbage, left, "garbage", name), dict.fromkeys(edits.doomed), "garbage", name
        ),
        "doomed": edited(
            with_new(state.doomed, dooming, "doomed", name), dict.fromkeys(edits.buried), "doomed", name
        ),
        "collected_to": max([state.collected_to, *lost]),
    }


def _let_in(state: ShardState, edits: Edits) -> PMap[str, int]:
    """The seqnos from which staged batches are seen that awaited a transaction, by name."""
    known = state.let_in
    for name, one in edits.staged.items():
        before = state.staged.batches.get(name)
        if one is None:
            known = known.discard(name)
        elif before is not None and before.awaits is not None and one.awaits is None:
            known = known.set(name, state.seqno + 1)
    return known


def _latest(state: ShardState, edits: Edits) -> PMap[str, int]:
    """The seqnos at which a group last let rows in, by collection."""
    known = state.latest
    for decision in edits.decisions.values():
        for id_ in () if decision is None else decision.members:
            known = known.set(id_, state.seqno + 1)
    for id_, member in edits.memberships.items():
        if member is None:
            known = known.discard(id_)
    return known


def _taken(state: ShardState, edits: Edits) -> Taken:
    if edits.dropped:
        return pmap()
    known = partnames.added(state.taken, edits.taken)
    return known if edits.sweep is None else partnames.kept(known, edits.sweep.floor)


def _freed(origin: Origin | None, name: str) -> Origin:
    if origin is None:
        raise CorruptionError(name, "says that it needs no part of its origin, and has none")
    return replace(origin, freed=True)


def _found(present: PMap[str, Garbage], key: str, name: str) -> Garbage:
    if key not in present:
        raise CorruptionError(name, f"names {key!r}, which is not there")
    return present[key]

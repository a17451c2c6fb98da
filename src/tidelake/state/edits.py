"""The edits that lead from one version of a shard to the next, as they are stored in its log.

A command returns no new state but an `Edits` value, which says field by field what changes. The committing
process and every other process make the next state with `apply` from the same edits, so memory and log cannot
differ, and a commit costs as much as it changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pyrsistent import PMap, pmap

from tidelake.errors import CorruptionError, InternalError
from tidelake.model import names
from tidelake.model.batch import Part
from tidelake.model.frontier import Frontier
from tidelake.model.frozen import with_fields
from tidelake.model.names import NoOrPlainName, ObjectName, PlainName
from tidelake.model.schema import SchemaVersion
from tidelake.state import taken, tokens
from tidelake.state.agreed import Agreed
from tidelake.state.bases import Base, Unpaid, fallen
from tidelake.state.erased import Erasure
from tidelake.state.garbage import NEVER_READ, Garbage, Sweep, leaving
from tidelake.state.grouped import Decision, Membership
from tidelake.state.spine import SpineEdit
from tidelake.state.staged import Staged
from tidelake.state.state import (
    FIRST,
    CriticalHold,
    Fork,
    Hold,
    MergeClaim,
    Origin,
    Retention,
    Rollup,
    ShardState,
    WriterRecord,
    Written,
)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Move:
    """A move of a frontier; `before` is stored so that it can be checked."""

    before: Frontier
    after: Frontier


@dataclass(frozen=True)
class Note:
    """What the caller says of a commit. No rule depends on it.

    Attributes:
        author: who makes it; may be empty.
        message: why; may be empty.
    """

    author: str = ""
    message: str = ""


@dataclass(frozen=True)
class Edits:
    """The step from one state to the next, field by field.

    Attributes:
        since: the move of `since`, if it moves.
        upper: the move of `upper`, if it moves.
        retained: the move of `retained`, if it moves.
        spine: what happens to the batches.
        schemas: new schemas by id.
        writers: new or changed records by name.
        holds: new or changed holds by id; None removes one.
        critical: new or changed ones by name; None removes one.
        retention: the new one, if it changes.
        dropped: whether the shard becomes a tombstone.
        doomed: names of garbage that may be deleted from now on.
        buried: names of doomed blobs that have been deleted.
        sweep: the new one, if it changes.
        rollup: the newest rollup, if it changes.
        claims: new or changed claims by name; None removes one.
        chunks: finished chunks by their keys; None removes one.
        written: the new totals, if they change.
        staged: new or changed staged batches by name; None removes one.
        group: the new one, if it changes; empty: it leaves its group.
        joined: the new one, if it changes.
        memberships: new or changed ones by id; None removes one.
        decisions: new ones by id; None removes one.
        expired: the new one, if it changes.
        forks: new ones by their shards' ids; None removes one.
        let_go: whether a fork and its origin forget each other, since it needs none of its parts.
        closed_ms: wall clock when the times were closed, if that was in another commit, of the group.
        freed: whether a fork needs no part of its origin any more, and remembers it.
        taken: ids of uploads that come in and of which others may hold copies, by the seqnos in their names.
        mended: the state before this one is that in `rollup`, which a repair has made, and not that of the
            log: a process that has followed the log so far starts again from there.
        writers_gone: names of writer records that are removed.
        agreed: the new settings, if they change.
        tokens: names of writers that are tokens and under which writes begin.
        sliced: the end of the slices, if it moves.
        bases: new ones by their boundary; None removes one. A base whose boundary goes is not named.
        unpaid: the new one, if it changes.
        note: what the caller says of the commit. It changes no state, and goes with the entry of the log.
        erasures: new or changed ones by id.
    """

    since: Move | None = None
    upper: Move | None = None
    retained: Move | None = None
    spine: SpineEdit | None = None
    schemas: dict[int, SchemaVersion] = field(default_factory=dict)
    writers: dict[str, WriterRecord] = field(default_factory=dict)
    holds: dict[str, Hold | None] = field(default_factory=dict)
    critical: dict[str, CriticalHold | None] = field(default_factory=dict)
    retention: Retention | None = None
    dropped: bool = False
    doomed: tuple[ObjectName, ...] = ()
    buried: tuple[ObjectName, ...] = ()
    sweep: Sweep | None = None
    rollup: Rollup | None = None
    claims: dict[str, MergeClaim | None] = field(default_factory=dict)
    chunks: dict[str, tuple[Part, ...] | None] = field(default_factory=dict)
    written: Written | None = None
    staged: dict[ObjectName, Staged | None] = field(default_factory=dict)
    group: NoOrPlainName | None = None
    joined: int | None = None
    memberships: dict[PlainName, Membership | None] = field(default_factory=dict)
    decisions: dict[str, Decision | None] = field(default_factory=dict)
    expired: int | None = None
    forks: dict[PlainName, Fork | None] = field(default_factory=dict)
    let_go: bool = False
    taken: dict[int, tuple[str, ...]] = field(default_factory=dict)
    mended: bool = False
    writers_gone: tuple[str, ...] = ()
    agreed: Agreed | None = None
    tokens: tuple[str, ...] = ()
    sliced: int | None = None
    bases: dict[int, Base | None] = field(default_factory=dict)
    unpaid: Unpaid | None = None
    note: Note | None = None
    erasures: dict[str, Erasure] = field(default_factory=dict)
    freed: bool = False
    closed_ms: int | None = None


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

    @property
    def rolled_up(self) -> bool:
        """Whether it names a newer rollup."""
        return any(edits.rollup is not None for edits in self.steps)


@dataclass(frozen=True)
class Transition:
    """What one command of a delta did.

    Attributes:
        before: the state that the command was decided on, with the seqno before the delta's.
        after: that state with the command's edits, and the delta's seqno.
        edits: the command's own.
    """

    before: ShardState
    after: ShardState
    edits: Edits


def apply(state: ShardState, delta: Delta) -> ShardState:
    """The state after a delta. Costs O(change).

    Raises:
        CorruptionError: the delta does not fit the state.
    """
    for step in steps(state, delta):
        state = step.after
    return state


def steps(state: ShardState, delta: Delta) -> Iterator[Transition]:
    """The steps of a delta, one after the other. The last one leads to the state after it.

    Raises:
        CorruptionError: the delta does not fit the state.
    """
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
    """The state after the edits of one command. Costs O(change).

    Raises:
        CorruptionError: the edits do not fit the state.
    """
    seqno = state.seqno + 1
    name = f"{state.shard_id}@{seqno}"
    changed: dict[str, object] = _replaced(state, edits, name)
    try:
        if edits.spine:
            changed["spine"] = state.spine.edited(edits.spine, edits.sliced)
        gone = {base.hi: None for base in fallen(state.bases, edits.spine)}
        if gone or edits.bases:
            changed["bases"] = state.bases.edited({**gone, **edits.bases})
        if edits.staged:
            changed |= {"staged": state.staged.edited(edits.staged), "let_in": _let_in(state, edits)}
    except InternalError as error:
        raise CorruptionError(name, str(error)) from error
    if edits.writers or edits.writers_gone or edits.tokens:
        writers, day = {**edits.writers, **dict.fromkeys(edits.writers_gone)}, committed_ms // tokens.DAY_MS
        changed["writers"] = _edited(state.writers, writers, name)
        changed["tokens"] = tokens.moved(state.tokens, day, edits.tokens, edits.writers, edits.writers_gone)
    if edits.dropped:
        changed["dropped"] = True
    if edits.let_go or edits.freed:
        changed["origin"] = None if edits.let_go else _freed(state.origin, name)
    if edits.dropped or edits.taken or edits.sweep:
        changed["taken"] = _taken(state, edits)
    if edits.decisions or edits.memberships:
        changed["latest"] = _latest(state, edits)
    if edits.upper is not None:
        changed["closed_ms"] = committed_ms if edits.closed_ms is None else edits.closed_ms
    if edits.erasures:
        changed["erasures"] = state.erasures.update(edits.erasures)
    return with_fields(
        state,
        seqno=seqno,
        committed_ms=committed_ms,
        part_names=taken.reindexed(state, edits),
        **changed,
        **_discarded(state, edits, committed_ms),
    )


# Fields of a state that edits move, that they replace, and that are maps of which they change some entries.
_MOVES = ("since", "upper", "retained")
_VALUES = ("retention", "sweep", "rollup", "written", "group", "joined", "expired", "agreed", "unpaid")
_MAPS = ("holds", "critical", "claims", "chunks", "memberships", "decisions", "forks")


def _replaced(state: ShardState, edits: Edits, name: str) -> dict[str, object]:
    """The fields that a step changes each by the edit of the same name."""
    changed: dict[str, object] = {}
    for field_name in _MOVES:
        if (move := getattr(edits, field_name)) is not None:
            changed[field_name] = _moved(getattr(state, field_name), move, field_name, name)
    for field_name in _VALUES:
        if (value := getattr(edits, field_name)) is not None:
            changed[field_name] = value
    for field_name in _MAPS:
        if edit := getattr(edits, field_name):
            changed[field_name] = _edited(getattr(state, field_name), edit, name)
    if edits.schemas:
        changed["schemas"] = _added(state.schemas, edits.schemas, name)
    return changed


def _discarded(state: ShardState, edits: Edits, committed_ms: int) -> dict[str, object]:
    """What a step changes of the blobs that no state names any more."""
    name = f"{state.shard_id}@{state.seqno + 1}"
    left = _left(state, edits, committed_ms)
    if not (left or edits.doomed or edits.buried):
        return {}
    dooming = {key: _found(state.garbage, key, name) for key in edits.doomed}
    # Rollups and chunks of merges are not named for readers, so no state misses them.
    lost = [one.removed for one in dooming.values() if one.added < one.removed]
    return {
        "garbage": _edited(_added(state.garbage, left, name), dict.fromkeys(edits.doomed), name),
        "doomed": _edited(_added(state.doomed, dooming, name), dict.fromkeys(edits.buried), name),
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


def _left(state: ShardState, edits: Edits, committed_ms: int) -> dict[str, Garbage]:
    """The blobs that a step removes from the state."""
    seqno = state.seqno + 1
    found = dict(leaving(state, edits))
    if edits.rollup is not None and state.rollup != FIRST:
        # No pin reads a rollup, but a process that opens the shard may be about to read it.
        found[names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id)] = NEVER_READ
    return {blob: Garbage(min(added, seqno), seqno, committed_ms) for blob, added in found.items()}


def _taken(state: ShardState, edits: Edits) -> taken.Taken:
    if edits.dropped:
        return pmap()
    known = taken.added(state.taken, edits.taken)
    return known if edits.sweep is None else taken.kept(known, edits.sweep.floor)


def _freed(origin: Origin | None, name: str) -> Origin:
    if origin is None:
        raise CorruptionError(name, "says that it needs no part of its origin, and has none")
    return replace(origin, freed=True)


def _found(present: PMap[K, V], key: K, name: str) -> V:
    if key not in present:
        raise CorruptionError(name, f"names {key!r}, which is not there")
    return present[key]


def _moved(value: Frontier, move: Move, field_name: str, name: str) -> Frontier:
    if move.before != value:
        raise CorruptionError(name, f"{field_name} moves from {move.before} but is {value}")
    return move.after


def _added(present: PMap[K, V], added: Mapping[K, V], name: str) -> PMap[K, V]:
    for key in added:
        if key in present:
            raise CorruptionError(name, f"adds {key!r}, which is already there")
    return present.update(added) if added else present


def _edited(present: PMap[K, V], edits: Mapping[K, V | None], name: str) -> PMap[K, V]:
    for key, value in edits.items():
        if value is not None:
            present = present.set(key, value)
        elif key in present:
            present = present.remove(key)
        else:
            raise CorruptionError(name, f"removes {key!r}, which is not there")
    return present

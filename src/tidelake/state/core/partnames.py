"""Which parts a state names, and which uploads it took in: so that no row comes in twice.

Every part has a name of its own, also an inline one. A state keeps two sets of names:

- The *index*: the names of all parts that it names now. It is derived, and each step updates it.
- What was *taken*: uploads of which others may hold copies (uploads of workers, batches). Their names stay
  after their rows were merged into other parts, until `sweep.floor` has passed them; from then on such an
  upload is refused for its age (`expired`).

So an upload that is offered again is refused, because it is in or because it is too old; and no name is kept
longer than an upload may take.
"""

from collections.abc import Iterable, Mapping

from pyrsistent import PSet, pset

from tidelake.errors import AlreadyTaken, UploadExpired
from tidelake.model import names
from tidelake.model.batch import Part
from tidelake.model.names import uploaded_at
from tidelake.state.core.state import ShardState, Taken


def indexed(state: ShardState) -> PSet[str]:
    """The names of all parts. Costs O(parts)."""
    batches = [member.batch for member in state.spine.held()]
    batches += [staged.batch for staged in state.staged.batches.values()]
    found = [part.name for held in (*batches, *state.bases) for part in held.parts()]
    found += [part.name for parts in state.chunks.values() for part in parts]
    return pset(found)


def by_seqno(offered: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Names of uploads in the form that a state keeps: ids, by the seqnos in the names."""
    found: dict[int, list[str]] = {}
    for name in offered:
        seqno, id_ = names.upload(name)
        found.setdefault(seqno, []).append(id_)
    return {seqno: tuple(sorted(ids)) for seqno, ids in sorted(found.items())}


def added(taken: Taken, more: Mapping[int, tuple[str, ...]]) -> Taken:
    """The uploads with more of them. Costs O(change)."""
    for seqno, ids in more.items():
        taken = taken.set(seqno, taken.get(seqno, pset()).update(ids))
    return taken


def kept(taken: Taken, floor: int) -> Taken:
    """The uploads without those that are refused for their age. Costs O(seqnos)."""
    left = taken.evolver()
    for seqno in [seqno for seqno in taken if seqno < floor]:
        del left[seqno]
    return left.persistent()


def is_taken(taken: Taken, name: str) -> bool:
    """Whether an upload of that name was taken in."""
    if not taken:
        return False
    seqno, id_ = names.upload(name)
    return id_ in taken.get(seqno, ())


def repeated(state: ShardState, offered: Iterable[Part]) -> AlreadyTaken | None:
    """The error for the first part that is in the state or was. O(parts), or O(state) if there is one."""
    for part in offered:
        name = part.name
        if name in state.part_names:
            return AlreadyTaken(name, _where(state, name))
        if name in state.garbage or name in state.doomed or is_taken(state.taken, name):
            return AlreadyTaken(name, "merged with others, or written again, since")
    return None


def _where(state: ShardState, name: str) -> str:
    """In which place of the state a part is, in words."""
    for member in state.spine:
        if any(part.name == name for part in member.batch.parts()):
            return f"in the batch of [{member.batch.bounds.lower}, {member.batch.bounds.upper})"
    for one in state.staged.batches.values():
        if any(part.name == name for part in one.batch.parts()):
            awaits = one.awaits
            return "staged" if awaits is None else f"staged for the transaction {awaits.transaction!r}"
    if any(part.name == name for base in state.bases for part in base.parts()):
        return "in a base"
    return "the result of a part of a merge"


def too_late(state: ShardState, parts: Iterable[Part]) -> UploadExpired | None:
    """The error for the first part whose upload began too early to come into the state; see `given_up`."""
    return given_up(state, [part.name for part in parts])


def given_up(state: ShardState, uploads: Iterable[str]) -> UploadExpired | None:
    """The error for the first upload, by its name, that the state takes in no more.

    It was made too long ago, or before rows were erased: it may have them, or updates that were worked out
    from them.
    """
    floor, erased = state.sweep.floor, state.erased
    for name in uploads:
        if expired(name, max(floor, erased)):
            seqno = uploaded_at(name) or 0
            old = seqno < floor
            return UploadExpired(name, seqno, floor if old else erased, not old)
    return None


def expired(upload: str, floor: int) -> bool:
    """Whether an upload, by its name, is too old to come into a state; this holds for inline parts too."""
    seqno = uploaded_at(upload)
    return seqno is not None and seqno < floor

"""Blobs that no state names any more, and the order in which they are deleted.

A blob that leaves the state becomes *garbage* in the same step: `leaving` finds it in the step itself, so no
command can forget it. It is *free* once no reader reads a state that named it. Collecting takes two commits
with the deletion between them: free garbage is *doomed* (no read may begin to use it from then on), deleted,
and *buried* (the state forgets its name). A doomed blob never comes back, so a collector that stalled for a
week deletes nothing that is needed.

An upload that was never appended is in no state at all. Its name holds the seqno of the state that its
uploader knew. Once the *floor* is past that seqno the state refuses the part (`expired`), and only then is
the part deleted: an uploader that stalled for a week cannot bring it back.

Pure: nothing here deletes. `tidelake.shard.upkeep.collector` does.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tidelake.model import names
from tidelake.model.batch import Part
from tidelake.state.bases import Base, Bases, fallen
from tidelake.state.spine import Member, Spine, SpineEdit
from tidelake.state.staged import Staged, Staging


@dataclass(frozen=True)
class Garbage:
    """A blob that the state no longer names: states with seqnos in `[added, removed)` named it.

    Attributes:
        added: seqno of the first state that may have named it for readers.
        removed: seqno of the first state that no longer did.
        removed_ms: wall clock of that commit.
    """

    added: int
    removed: int
    removed_ms: int

    def read_by(self, seqno: int) -> bool:
        """Whether the state of this seqno may have named it."""
        return self.added <= seqno < self.removed


@dataclass(frozen=True)
class Sweep:
    """How far uploads that were never appended are given up.

    Attributes:
        floor: parts whose upload began before this seqno may no longer come into the state.
        marks: ascending pairs of a seqno and the wall clock at which it was noted: the floors to come.
    """

    floor: int = 0
    marks: tuple[tuple[int, int], ...] = ()


class Change(Protocol):
    """What a step does to the fields of a state that name parts; see `tidelake.state.edits.Edits`."""

    @property
    def spine(self) -> SpineEdit | None:
        """What happens to the batches."""

    @property
    def staged(self) -> Mapping[str, Staged | None]:
        """Staged batches that come, or go (None), by name."""

    @property
    def chunks(self) -> Mapping[str, tuple[Part, ...] | None]:
        """Finished chunks of merges that come, or go (None), by key."""

    @property
    def bases(self) -> Mapping[int, Base | None]:
        """Bases that come, or go (None), by their boundary."""


class Holding(Protocol):
    """The fields of a state that name parts."""

    @property
    def spine(self) -> Spine:
        """The batches."""

    @property
    def staged(self) -> Staging:
        """Staged batches."""

    @property
    def bases(self) -> Bases:
        """The bases."""

    @property
    def chunks(self) -> Mapping[str, tuple[Part, ...]]:
        """Finished chunks of merges."""


def leaving(state: Holding, edits: Change) -> Iterator[tuple[str, int]]:
    """The stored parts that a step removes from the state, each with the seqno from which readers had it.

    Parts of the chunks of merges under way were never read.

    Args:
        state: before the step.
        edits: the step.
    """
    gone = [(part.name, added) for part, added in going(state, edits) if part.inline is None]
    kept = {part.name for part in arriving(edits)} if gone else ()
    yield from ((name, added) for name, added in gone if name not in kept)


def going(state: Holding, edits: Change) -> Iterator[tuple[Part, int]]:
    """The parts of everything that a step removes or changes; some stay elsewhere. Arguments as `leaving`."""
    staged = state.staged.batches
    gone: list[Member | Staged] = [staged[name] for name in edits.staged if name in staged]
    if edits.spine is not None:
        gone += [state.spine.members[id_.lo] for id_ in edits.spine.members_gone]
    for held in gone:
        for part in held.batch.parts():
            yield part, held.added
    bases = {base.hi: base for base in fallen(state.bases, edits.spine)}
    bases |= {hi: base for hi in edits.bases if (base := state.bases.get(hi)) is not None}
    for base in bases.values():
        for part in base.parts():
            yield part, base.added
    for key in edits.chunks:
        for part in state.chunks.get(key, ()):
            yield part, NEVER_READ


def arriving(edits: Change) -> Iterator[Part]:
    """The parts of everything that a step puts into the state; some may have been elsewhere in it before."""
    for parts in edits.chunks.values():
        yield from parts or ()
    for staged in edits.staged.values():
        if staged is not None:
            yield from staged.batch.parts()
    if edits.spine is not None:
        for member in edits.spine.members:
            yield from member.batch.parts()
    for base in edits.bases.values():
        if base is not None:
            yield from base.parts()


# Later than any seqno: no state has named the blob for readers.
NEVER_READ = (1 << 63) - 1


def free(garbage: Mapping[str, Garbage], pins: Iterable[int], before_ms: int) -> Iterator[str]:
    """The garbage that may be doomed: older than `before_ms`, and no pin reads a state that named it."""
    pinned = sorted(set(pins))
    for name, found in garbage.items():
        if found.removed_ms <= before_ms and not any(found.read_by(pin) for pin in pinned):
            yield name


def expired(part: Part, floor: int) -> bool:
    """Whether an upload is too old to come into the state; holds for inline parts too, see `taken`."""
    uploaded = names.uploaded_at(part.name)
    return uploaded is not None and uploaded < floor

"""Blobs that no state names any more, and the order in which they are deleted.

A blob that leaves the state becomes *garbage* in the same step: `leaving` in `tidelake.state.core.edits`
finds it in the step itself, so no command can forget it. It is *free* once no reader reads a state that named
it. Collecting takes two commits with the deletion between them: free garbage is *doomed* (no read may begin
to use it from then on), deleted, and *buried* (the state forgets its name). A doomed blob never comes back,
so a collector that stalled for a week deletes nothing that is needed.

An upload that was never appended is in no state at all. Its name holds the seqno of the state that its
uploader knew. Once the *floor* is past that seqno the state refuses the part (`expired`), and only then is
the part deleted: an uploader that stalled for a week cannot bring it back.

Pure: nothing here deletes. `tidelake.shard.upkeep.collector` does.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


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


# Later than any seqno: no state has named the blob for readers.
NEVER_READ = (1 << 63) - 1


def free(garbage: Mapping[str, Garbage], pins: Iterable[int], before_ms: int) -> Iterator[str]:
    """The garbage that may be doomed: older than `before_ms`, and no pin reads a state that named it."""
    pinned = sorted(set(pins))
    for name, found in garbage.items():
        if found.removed_ms <= before_ms and not any(found.read_by(pin) for pin in pinned):
            yield name

"""The findings of a check of a lake (fsck): one value for each thing that is wrong or worth knowing."""

from collections.abc import Callable
from dataclasses import dataclass

# Kinds that are worth knowing but not damage: garbage goes by itself, negative rows and sums that are too
# large are what was written, `mendable` accompanies the finding that it would repair, `kept-aside` is kept
# for people, a ghost has no effect, and the bytes of erased rows go with the garbage.
_NOTES = frozenset(
    {"old-garbage", "negative-rows", "sum-too-large", "mendable", "kept-aside", "ghost-entry", "erased-bytes"}
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or worth knowing.

    Attributes:
        kind: one of the kinds that docs/guide.md lists, such as `part-damaged`.
        collection: name of the collection; empty for the lake itself, or if the name is not known.
        object: the blob, log entry or shard.
        message: what is wrong, for people, and what it means for reads.
        repaired: whether it was repaired.
    """

    kind: str
    collection: str
    object: str
    message: str
    repaired: bool = False

    @property
    def note(self) -> bool:
        """Whether nothing needs to be done about it."""
        return self.kind in _NOTES

    def __str__(self) -> str:
        where = f"{self.collection}: " if self.collection else ""
        return f"{where}{self.kind}: {self.object}: {self.message}{' (repaired)' if self.repaired else ''}"


Tell = Callable[[str, str, str], None]
"""Called with the kind, the object and the message of a finding."""

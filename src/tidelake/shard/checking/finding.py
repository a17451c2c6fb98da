"""What a file-system check has to say, one value for each thing that is not as it should be."""

from collections.abc import Callable
from dataclasses import dataclass

# Worth knowing, and no damage: what is left goes by itself, and rows are what was written. What can be mended
# stands beside what is to be mended, and what was set aside is kept for people.
_NOTES = frozenset({"old-garbage", "negative-rows", "mendable", "kept-aside"})


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: one of those that docs/guide.md lists, such as `part-damaged`.
        collection: its name; empty for the lake itself, or where the name is not known.
        object: the blob, log entry or shard.
        message: what is wrong, for people, and what it means for reads.
        repaired: whether it was put right.
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
"""Takes the kind, the object and the message of a finding."""

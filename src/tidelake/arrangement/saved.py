"""What a checkpoint says about itself: the value that its list file holds, and its bytes.

Owns the fields; must not know directories. docs/formats.md describes the bytes.
"""

from dataclasses import dataclass

from tidelake.model.frontier import Frontier
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain
from tidelake.state.codec import decode_record, encode_record, learn

_KIND = "arrangement"
# Which arrangements of collections have the same rows, and may go on from each other's checkpoints.
_FOLLOWED = ("collection_id", "columns", "where", "keeps_history")


@dataclass(frozen=True)
class SavedBatch:
    """One batch file of a checkpoint.

    Attributes:
        name: of the file, in the folder of batch files. It is the batch's own, so equal names are equal rows.
        rows: updates in it.
        negative_rows: of these with a negative diff.
        size_bytes: of the file.
    """

    name: str
    rows: int
    negative_rows: int
    size_bytes: int


@dataclass(frozen=True)
class Followed:
    """What an arrangement was following when it was saved.

    Attributes:
        lake_url: of the collection's lake.
        collection_id: of the collection, whatever it is called.
        name: that it had, for messages.
        schema_id: that it was read under.
        columns: value columns that were read, None: all.
        where: condition on rows, None: all rows.
        position: all updates before it are in.
        hold: id of the hold on the history from the position on.
        keeps_history: whether the frontier stays where its owner puts it, rather than follow the position.
    """

    lake_url: str
    collection_id: str
    name: str
    schema_id: int
    columns: tuple[str, ...] | None
    where: str | None
    position: Frontier
    hold: str
    keeps_history: bool

    def differences(self, other: "Followed") -> list[tuple[str, object, object]]:
        """Where two do not follow the same: what it is called, and both values."""
        each = ((name, getattr(self, name), getattr(other, name)) for name in _FOLLOWED)
        return [(name, ours, theirs) for name, ours, theirs in each if ours != theirs]


@dataclass(frozen=True)
class Checkpoint:
    """An arrangement as it was saved.

    Attributes:
        number: ascending in a directory; 0 says that nothing was saved there yet.
        content: id of the contents: two checkpoints with the same one have the same updates and frontier.
        saved_ms: wall clock, in milliseconds since 1970 UTC.
        schema: key and value columns.
        domain: unit of the times.
        frontier: times before it are folded.
        batches: newest last.
        followed: None: nobody was followed.
        arrangement: id of the arrangement, which those that are restored from it have too; empty if somebody
            was followed, or before there were such ids.
    """

    number: int
    content: str
    saved_ms: int
    schema: Schema
    domain: TimeDomain
    frontier: Frontier
    batches: tuple[SavedBatch, ...]
    followed: Followed | None = None
    arrangement: str = ""

    @property
    def owner(self) -> str:
        """The id of the arrangement that follows nobody; before there were such ids, that of its contents."""
        return self.arrangement or self.content

    def same_arrangement(self, other: "Checkpoint") -> bool:
        """Whether both are of one arrangement, or of ones that follow the same."""
        if self.followed is None or other.followed is None:
            return self.followed == other.followed and self.owner == other.owner
        return not self.followed.differences(other.followed)

    @property
    def title(self) -> str:
        """What it is a checkpoint of, for messages."""
        followed = self.followed
        if followed is None:
            return "an arrangement that follows no collection"
        more = "".join(f", {name}={getattr(followed, name)!r}" for name in _FOLLOWED[1:])
        return f"an arrangement of collection {followed.name!r} ({followed.collection_id}{more})"

    @property
    def rows(self) -> int:
        """Updates in all batches."""
        return sum(batch.rows for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batch files."""
        return sum(batch.size_bytes for batch in self.batches)

    def to_bytes(self) -> bytes:
        """The bytes of its list file."""
        return encode_record(_KIND, self)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> "Checkpoint":
        """Read `to_bytes`.

        Raises:
            CorruptionError: the bytes are damaged; names the file.
            FormatTooNew: written by a newer version.
        """
        return decode_record(_KIND, data, cls, name)


# As the module is imported: all that it is made of is of this module, or learned by the codec.
learn(Checkpoint)

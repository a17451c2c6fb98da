"""The contents of a checkpoint's list file.

Owns the fields and their encoding; must not know directories. docs/formats.md describes the bytes.
"""

from dataclasses import dataclass

from tidelake.model.frontier import Frontier
from tidelake.model.names import PlainName
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain
from tidelake.state.core.codec import decode_record, encode_record, learn

_KIND = "arrangement"
# Arrangements of collections that agree in these fields have the same rows and may share checkpoints.
_FOLLOWED = ("collection_id", "columns", "where", "keeps_history")


@dataclass(frozen=True)
class SavedBatch:
    """One batch file of a checkpoint.

    Attributes:
        name: name of the file in the folder of batch files. It is unique: equal names mean equal rows.
        rows: number of updates.
        negative_rows: number of updates with a negative diff.
        size_bytes: size of the file.
    """

    name: PlainName
    rows: int
    negative_rows: int
    size_bytes: int


@dataclass(frozen=True)
class Followed:
    """What an arrangement was following when it was saved.

    Attributes:
        lake_url: URL of the collection's lake.
        collection_id: id of the collection, which stays when it is renamed.
        name: name of the collection at that time, for messages.
        schema_id: id of the schema under which it was read.
        columns: value columns that were read; None: all.
        where: condition on rows; None: all rows.
        position: all updates before it are applied.
        hold: id of the hold on the history from the position on.
        keeps_history: whether the owner sets the frontier; otherwise it follows the position.
        erased: seqno of the first state after the last erasure that the contents were loaded after.
    """

    lake_url: str
    collection_id: PlainName
    name: str
    schema_id: int
    columns: tuple[str, ...] | None
    where: str | None
    position: Frontier
    hold: str
    keeps_history: bool
    erased: int

    def differences(self, other: "Followed") -> list[tuple[str, object, object]]:
        """The fields in which two differ: name of the field, and both values."""
        each = ((name, getattr(self, name), getattr(other, name)) for name in _FOLLOWED)
        return [(name, ours, theirs) for name, ours, theirs in each if ours != theirs]


@dataclass(frozen=True)
class Checkpoint:
    """An arrangement as it was saved.

    Attributes:
        number: ascending in a directory; 0: the empty list that is written before the first checkpoint.
        content: id of the contents: checkpoints with the same id have the same updates and frontier.
        saved_ms: wall clock, in milliseconds since 1970 UTC.
        schema: key and value columns.
        domain: unit of the times.
        frontier: times before it are folded.
        batches: newest last.
        followed: the collection that was followed, and how far; None: none.
        arrangement: id of the arrangement, which a restored one keeps; empty if a collection was followed.
    """

    number: int
    content: str
    saved_ms: int
    schema: Schema
    domain: TimeDomain
    frontier: Frontier
    batches: tuple[SavedBatch, ...]
    followed: Followed | None
    arrangement: str

    def same_arrangement(self, other: "Checkpoint") -> bool:
        """Whether both are of one arrangement, or of arrangements of the same rows of one collection."""
        if self.followed is None or other.followed is None:
            return self.followed == other.followed and self.arrangement == other.arrangement
        return not self.followed.differences(other.followed)

    @property
    def title(self) -> str:
        """A description of the arrangement, for messages."""
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
        """Read `to_bytes`."""
        return decode_record(_KIND, data, cls, name)


learn(Checkpoint)

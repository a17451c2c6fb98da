"""What a copy of a lake reports."""

from dataclasses import dataclass

from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.shard.care.copy import Copied
from tidelake.state.core.state import ShardState
from tidelake.tabletext import FieldsAsHtml


@dataclass(frozen=True)
class CopiedCollection:
    """One collection of a copy, after a run.

    Attributes:
        name: its name in the target.
        what: `new`, `newer` (brought up to date), or `same` (nothing was new, and nothing was written).
        since: of the copy.
        upper: of the copy.
        rows: updates in the copy.
        parts: number of parts that this run has stored.
        size_bytes: total size of these parts in bytes.
        found: number of parts that were there.
        domain: the unit of its times.
    """

    name: str
    what: str
    since: Frontier
    upper: Frontier
    rows: int
    parts: int
    size_bytes: int
    found: int
    domain: TimeDomain

    @classmethod
    def of(cls, name: str, what: str, state: ShardState, copied: Copied) -> "CopiedCollection":
        """What a run did for one collection, whose copy has this state."""
        rows = state.spine.totals.rows + state.staged.totals.rows
        done = copied.parts, copied.size_bytes, copied.found
        return cls(name, what, state.since, state.upper, rows, *done, state.domain)


@dataclass(frozen=True)
class CopyReport(FieldsAsHtml):
    """What a run of a copy did.

    Attributes:
        collections: the collections that are in the target as they were at the source, by name.
        renamed: new names in the target by old ones, of collections that were renamed at the source.
        dropped: names of copies that were dropped in the target, as they are no longer at the source.
        left: names of copies whose collections are no longer at the source, and that stay.
    """

    collections: tuple[CopiedCollection, ...]
    renamed: dict[str, str]
    dropped: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def parts(self) -> int:
        """Number of parts that were stored."""
        return sum(one.parts for one in self.collections)

    @property
    def size_bytes(self) -> int:
        """Size of these parts in bytes."""
        return sum(one.size_bytes for one in self.collections)

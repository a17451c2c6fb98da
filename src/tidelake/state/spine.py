"""The spine: the ordered list of a shard's batches.

Every batch has a `SpineId`, the half-open range `[lo, hi)` of insertions that it stands for; ids tile
`[0, next_id)` and bounds tile `[minimum, upper)`. Today it is a plain list: batches keep the order of
their insertion until a merge replaces a range of them; only neighbouring empty batches fuse.

INVARIANT: `validate` holds after every edit.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pyrsistent import PMap, pmap

from tidelake.errors import InternalError
from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier


@dataclass(frozen=True)
class SpineBatch:
    """A batch and the insertions `[lo, hi)` that went into it."""

    lo: int
    hi: int
    batch: HollowBatch


@dataclass(frozen=True)
class SpineEdit:
    """Replace the batches of ids `[lo, hi)` by `added`; an insertion replaces none.

    Only an edit at the end may cover more ids than it removes.
    """

    lo: int
    hi: int
    added: tuple[SpineBatch, ...]


@dataclass(frozen=True)
class Spine:
    """Batches by the first id of their range. Shares structure with its predecessors."""

    next_id: int = 0
    last_lo: int = 0
    by_lo: PMap[int, SpineBatch] = field(default_factory=pmap)

    def __iter__(self) -> Iterator[SpineBatch]:
        """Oldest first."""
        yield from self.range(0, self.next_id)

    def __len__(self) -> int:
        return len(self.by_lo)

    def range(self, lo: int, hi: int) -> Iterator[SpineBatch]:
        """The batches that tile `[lo, hi)`.

        Raises:
            InternalError: no batches tile it.
        """
        while lo < hi:
            found = self.by_lo.get(lo)
            if found is None or found.hi > hi:
                raise InternalError(f"no spine batches tile the ids [{lo}, {hi})")
            yield found
            lo = found.hi

    def tiles(self, lo: int, hi: int) -> bool:
        """Whether some batches tile exactly `[lo, hi)`."""
        while lo < hi:
            found = self.by_lo.get(lo)
            if found is None:
                return False
            lo = found.hi
        return lo == hi

    def edited(self, edit: SpineEdit) -> "Spine":
        """The spine after an edit. Costs O(batches removed and added).

        Raises:
            InternalError: the edit does not fit.
        """
        removed = list(self.range(edit.lo, edit.hi))
        batches = self.by_lo.evolver()
        for old in removed:
            del batches[old.lo]
        position = edit.lo
        for new in edit.added:
            if new.lo != position or new.hi <= new.lo:
                raise InternalError(f"ids do not tile: expected {position}, got [{new.lo}, {new.hi})")
            batches[new.lo] = new
            position = new.hi
        at_end = edit.hi == self.next_id
        if position != edit.hi and not (at_end and position > edit.hi):
            raise InternalError(f"an edit of [{edit.lo}, {edit.hi}) covers ids up to {position}")
        last_lo = edit.added[-1].lo if at_end and edit.added else self.last_lo
        return replace(self, next_id=max(self.next_id, position), last_lo=last_lo, by_lo=batches.persistent())


def push(spine: Spine, batch: HollowBatch) -> SpineEdit:
    """The edit that inserts a batch at the end; an empty batch fuses with an empty predecessor."""
    last = spine.by_lo.get(spine.last_lo)
    if last is not None and not batch.runs and not last.batch.runs:
        since = last.batch.bounds.since.join(batch.bounds.since)
        fused = HollowBatch(Bounds(last.batch.bounds.lower, batch.bounds.upper, since))
        return SpineEdit(last.lo, last.hi, (SpineBatch(last.lo, last.hi + 1, fused),))
    lo = spine.next_id
    return SpineEdit(lo, lo, (SpineBatch(lo, lo + 1, batch),))


def validate(spine: Spine, minimum: Frontier, upper: Frontier, since: Frontier) -> None:
    """Check that ids and bounds tile and that no batch was folded further than `since`.

    Raises:
        InternalError: naming the first batch that breaks the rule.
    """
    at = minimum
    for item in spine:
        bounds = item.batch.bounds
        if bounds.lower != at:
            raise InternalError(f"batch [{item.lo}, {item.hi}) starts at {bounds.lower}, expected {at}")
        if not bounds.since <= since:
            raise InternalError(
                f"batch [{item.lo}, {item.hi}) since {bounds.since} is after the shard's {since}"
            )
        at = bounds.upper
    if at != upper:
        raise InternalError(f"the batches end at {at}, the shard at {upper}")
    if sum(1 for _ in spine) != len(spine):
        raise InternalError("the spine holds batches outside the ids that it tiles")

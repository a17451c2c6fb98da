"""Staged updates: durable updates at open times, which wait for their times to be closed.

A staged batch stands beside the spine. Its times are at or after the end of the spine, in any order and over
any stretch; staged batches do not depend on each other, so stagers never conflict. When times are closed,
readers see the staged updates at these times; when they are drained, the updates move into the spine
(`tidelake.state.write.staging`).

INVARIANT: no staged update has a time before the end of the spine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyrsistent import PMap, pmap

from tidelake.errors import InternalError
from tidelake.model.batch import HollowBatch
from tidelake.model.frontier import Frontier
from tidelake.state.spine.spine import Totals

_NOTHING = Totals()


@dataclass(frozen=True)
class Awaited:
    """The undecided transaction that a staged batch belongs to. Readers do not see the batch yet.

    Attributes:
        begun: seqno of the group's state when it began.
    """

    transaction: str
    begun: int
    noted_ms: int


@dataclass(frozen=True)
class Staged:
    """One staged batch.

    Attributes:
        batch: its runs. Of a truncated run only the rows within the bounds count.
        added: seqno of the first state that names it.
        awaits: the transaction that decides whether it is in; None: it is in.
    """

    batch: HollowBatch
    added: int
    awaits: Awaited | None = None

    @property
    def name(self) -> str:
        """Its key in the state: the name of its first part, which is never used twice."""
        return next(self.batch.parts()).name


@dataclass(frozen=True)
class Staging:
    """The staged batches by name. Shares structure with the values it was made from.

    Attributes:
        batches: by name, including those that await a transaction.
    """

    batches: PMap[str, Staged] = field(default_factory=pmap)
    totals: Totals = _NOTHING

    @classmethod
    def of(cls, batches: Mapping[str, Staged]) -> "Staging":
        """The staged batches that were stored. Costs O(batches)."""
        return cls(pmap(batches), Totals().plus(batches.values()))

    def __iter__(self) -> Iterator[Staged]:
        """The batches that are in, in the order of their names."""
        if not self.batches:
            return iter(())
        return (one for name in sorted(self.batches) if (one := self.batches[name]).awaits is None)

    def __len__(self) -> int:
        return len(self.batches)

    def awaiting(self) -> Iterator[tuple[Staged, Awaited]]:
        """Batches that await a transaction, in the order of their names."""
        for name in sorted(self.batches):
            one = self.batches[name]
            if one.awaits is not None:
                yield one, one.awaits

    def edited(self, edits: Mapping[str, Staged | None]) -> "Staging":
        """With batches that come or change, and without those whose value is None. Costs O(change)."""
        gone, come = [], []
        batches = self.batches.evolver()
        for name, staged in edits.items():
            before = self.batches.get(name)
            if before is not None:
                gone.append(before)
            elif staged is None:
                raise InternalError(f"staged batch {name!r} is not there")
            if staged is None:
                del batches[name]
            else:
                come.append(staged)
                batches[name] = staged
        return Staging(batches.persistent(), self.totals.plus(come, gone))


def begins_before(batch: HollowBatch, frontier: Frontier) -> bool:
    """Whether an update may have a time before a frontier. Exact for int times, unless a run is truncated."""
    if frontier <= batch.bounds.lower:
        return False
    return any(not frontier.less_equal(part.seen_times[0]) for part in batch.parts())


def ends_before(batch: HollowBatch, frontier: Frontier) -> bool:
    """Whether all updates have times before a frontier. Exact as `begins_before`."""
    return batch.bounds.upper <= frontier or all(
        not frontier.less_equal(part.seen_times[1]) for part in batch.parts()
    )

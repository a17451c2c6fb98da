"""Updates at open times that are durable already: what is staged, and waits for its times to be closed.

A staged batch stands beside the spine. Its times lie at or beyond where the spine ends, in any order and over
any stretch; two of them know nothing of each other, so stagers never conflict. When times are closed,
readers see the staged updates of these; when they are drained, the spine has them
(`tidelake.state.staging`).

INVARIANT: no staged update has a time before the end of the spine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyrsistent import PMap, pmap

from tidelake.errors import InternalError
from tidelake.model.batch import HollowBatch
from tidelake.model.frontier import Frontier
from tidelake.state.spine import Totals

_NOTHING = Totals()


@dataclass(frozen=True)
class Staged:
    """One staged batch.

    Attributes:
        batch: its runs. Of truncated ones only what lies in its bounds is meant.
        added: seqno of the first state that names it.
    """

    batch: HollowBatch
    added: int

    @property
    def name(self) -> str:
        """Its key in the state: the name of its first part, which is never used twice."""
        return next(self.batch.parts()).name


@dataclass(frozen=True)
class Staging:
    """The staged batches by name. Shares structure with its predecessors.

    Attributes:
        batches: by name.
        totals: of all of them.
    """

    batches: PMap[str, Staged] = field(default_factory=pmap)
    totals: Totals = _NOTHING

    @classmethod
    def of(cls, batches: Mapping[str, Staged]) -> "Staging":
        """Of stored values. Costs O(batches)."""
        return cls(pmap(batches), Totals().plus(batches.values()))

    def __iter__(self) -> Iterator[Staged]:
        """The batches, in the order of their names."""
        return (self.batches[name] for name in sorted(self.batches))

    def __len__(self) -> int:
        return len(self.batches)

    def edited(self, edits: Mapping[str, Staged | None]) -> "Staging":
        """With batches that come, and without those whose name has None. Costs O(change).

        Raises:
            InternalError: one comes that is there, or goes that is not.
        """
        gone, come = [], []
        batches = self.batches.evolver()
        for name, staged in edits.items():
            if (name in self.batches) == (staged is not None):
                raise InternalError(f"staged batch {name!r} {'comes twice' if staged else 'is not there'}")
            if staged is None:
                gone.append(self.batches[name])
                del batches[name]
            else:
                come.append(staged)
                batches[name] = staged
        return Staging(batches.persistent(), self.totals.plus(gone, -1).plus(come))


def begins_before(batch: HollowBatch, frontier: Frontier) -> bool:
    """Whether an update may have a time before a frontier. Exact for numbers, unless a run is truncated."""
    if frontier <= batch.bounds.lower:
        return False
    return any(not frontier.less_equal(part.seen_times[0]) for part in batch.parts())


def ends_before(batch: HollowBatch, frontier: Frontier) -> bool:
    """Whether all updates have times before a frontier. Exact as `begins_before`."""
    return batch.bounds.upper <= frontier or all(
        not frontier.less_equal(part.seen_times[1]) for part in batch.parts()
    )

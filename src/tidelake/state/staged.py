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
class Awaited:
    """The transaction that a staged batch is part of, until that is decided. Nobody sees the batch before.

    Attributes:
        transaction: its id.
        begun: seqno of the group's state when it began.
        noted_ms: wall clock of that.
    """

    transaction: str
    begun: int
    noted_ms: int


@dataclass(frozen=True)
class Staged:
    """One staged batch.

    Attributes:
        batch: its runs. Of truncated ones only what lies in its bounds is meant.
        added: seqno of the first state that names it.
        awaits: what decides whether it is in; None: it is.
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
    """The staged batches by name. Shares structure with its predecessors.

    Attributes:
        batches: by name, with those that await a transaction.
        totals: of all of them.
    """

    batches: PMap[str, Staged] = field(default_factory=pmap)
    totals: Totals = _NOTHING

    @classmethod
    def of(cls, batches: Mapping[str, Staged]) -> "Staging":
        """Of stored values. Costs O(batches)."""
        return cls(pmap(batches), Totals().plus(batches.values()))

    def __iter__(self) -> Iterator[Staged]:
        """The batches that are in, in the order of their names."""
        return (one for name in sorted(self.batches) if (one := self.batches[name]).awaits is None)

    def __len__(self) -> int:
        return len(self.batches)

    def awaiting(self) -> Iterator[tuple[Staged, Awaited]]:
        """Those that await a transaction, in the order of their names."""
        for name in sorted(self.batches):
            one = self.batches[name]
            if one.awaits is not None:
                yield one, one.awaits

    def edited(self, edits: Mapping[str, Staged | None]) -> "Staging":
        """With batches that come or change, and without those whose name has None. Costs O(change).

        Raises:
            InternalError: one goes that is not there.
        """
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

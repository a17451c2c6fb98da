"""Bases: exact contents just before a boundary of the spine, and which batches a query needs because of them.

A *base* is what a snapshot just before its boundary answers, stored as a run of its own. A read of a later
time begins with it, and needs no older batch. A base depends on nothing that is merged beneath it: it stands
for as long as its boundary does, which is a boundary between two members.

Only collections with a totally ordered time have bases: with tuples, a snapshot is no prefix of the batches.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from pyrsistent import PVector, pvector

from tidelake.errors import InternalError
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Fold, Query, Updates
from tidelake.model.time import TimeDomain
from tidelake.state.spine.spine import Member, Spine, SpineEdit
from tidelake.state.spine.staged import Staging


@dataclass(frozen=True)
class Base:
    """The contents just before a boundary.

    Attributes:
        hi: the boundary: the first insertion that it does not sum up.
        at: the boundary: the first time that it does not sum up.
        time: of its rows. Reads at or after it may begin with the base: `at - 1`, or later if the batches
            were folded further when it was made.
        runs: one, or none if the contents were empty.
        added: seqno of the first state whose readers may have read its parts.
    """

    hi: int
    at: int
    time: int
    runs: tuple[Run, ...]
    added: int = 0

    def batch(self, minimum: Frontier) -> HollowBatch:
        """The batch that it is in the place of all batches before the boundary."""
        return HollowBatch(Bounds(minimum, Frontier.of(self.at), Frontier.of(self.time)), self.runs)

    def parts(self) -> Iterator[Part]:
        """All its parts."""
        for run in self.runs:
            yield from run.parts


@dataclass(frozen=True)
class Unpaid:
    """A base that was made and not kept, since a read would not have become much cheaper.

    Attributes:
        hi: its boundary.
        rows: that it had.
        size_bytes: stored bytes that it had.
    """

    hi: int
    rows: int
    size_bytes: int


@dataclass(frozen=True)
class Bases:
    """All bases of a shard, ascending; both their boundaries and their times ascend."""

    held: PVector[Base] = field(default_factory=pvector)

    def __iter__(self) -> Iterator[Base]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    @classmethod
    def of(cls, bases: Iterable[Base]) -> "Bases":
        """These bases."""
        return cls(pvector(sorted(bases, key=lambda base: base.hi)))

    def get(self, hi: int) -> Base | None:
        """The base with this boundary."""
        found = self.before(hi)
        return found if found is not None and found.hi == hi else None

    def before(self, hi: int) -> Base | None:
        """The last base with a boundary at or before an insertion."""
        index = bisect_right(self.held, hi, key=lambda base: base.hi)
        return self.held[index - 1] if index else None

    def after(self, hi: int) -> Base | None:
        """The first base with a boundary after an insertion."""
        index = bisect_right(self.held, hi, key=lambda base: base.hi)
        return self.held[index] if index < len(self.held) else None

    def serving(self, time: int) -> Base | None:
        """The last base with which a read as of a time may begin."""
        index = bisect_right(self.held, time, key=lambda base: base.time)
        return self.held[index - 1] if index else None

    def within(self, lo: int, hi: int) -> list[Base]:
        """The bases with boundaries strictly between two insertions."""
        start = bisect_right(self.held, lo, key=lambda base: base.hi)
        return list(
            takewhile(lambda base: base.hi < hi, map(self.held.__getitem__, range(start, len(self.held))))
        )

    def edited(self, edits: Mapping[int, Base | None]) -> "Bases":
        """The bases after an edit: new ones by their boundary, None for those that go."""
        if not edits:
            return self
        for hi, base in edits.items():
            if (base is None) != (self.get(hi) is not None):
                raise InternalError(f"an edit of the base at {hi} does not fit")
        come = [base for base in edits.values() if base is not None]
        if len(come) == len(edits) == 1 and (not self.held or self.held[-1].hi < come[0].hi):
            return Bases(self.held.append(come[0]))
        return Bases.of([*(base for base in self.held if base.hi not in edits), *come])


NO_BASES = Bases()


def fallen(bases: Bases, edit: SpineEdit | None) -> list[Base]:
    """The bases whose boundaries an edit removes: members on both sides of them become one. O(change)."""
    if edit is None:
        return []
    return [base for member in edit.members for base in bases.within(member.id.lo, member.id.hi)]


@dataclass(frozen=True)
class Needed:
    """The batches that answer a query.

    Attributes:
        query: what to ask of them; it differs from what was asked where `less` is needed.
        less: whose updates up to `after` are taken away.
        after: the time of what is taken away; None: nothing is.
    """

    query: Query
    batches: list[HollowBatch]
    less: list[HollowBatch] = field(default_factory=list)
    after: int | None = None

    @property
    def rows(self) -> int:
        """Updates to read, at most."""
        return sum(batch.rows for batch in (*self.batches, *self.less))


class _Held(Protocol):
    @property
    def spine(self) -> Spine: ...

    @property
    def bases(self) -> Bases: ...

    @property
    def staged(self) -> Staging: ...

    @property
    def domain(self) -> TimeDomain: ...

    @property
    def minimum(self) -> Frontier: ...


def needed(state: _Held, query: Query) -> Needed:
    """The batches of a state that a query needs. Costs O(log batches) and O(batches that are needed).

    A snapshot needs a base and the batches since. Changes need the batches between two times, or are the
    difference of two snapshots, whichever has fewer updates.
    """
    spine, bases, minimum = state.spine, state.bases, state.minimum
    open_ = [one.batch for one in state.staged]
    if not state.domain.total_order:
        return Needed(query, [*(member.batch for member in spine), *open_])
    match query:
        case AsOf(time):
            return Needed(query, [*_contents(spine, bases, _int(time), minimum), *open_])
        case Changes(after, through):
            between = [m.batch for m in _between(spine, _int(after), Frontier.past(through))]
            if after != through and len(bases):
                new = _contents(spine, bases, _int(through), minimum)
                old = _contents(spine, bases, _int(after), minimum)
                if sum(batch.rows for batch in (*new, *old)) < sum(batch.rows for batch in between):
                    return Needed(AsOf(through), [*new, *open_], [*old, *open_], _int(after))
            return Needed(query, [*between, *open_])
        case Updates(lower, upper):
            first = -1 if lower.closed else _int(lower.elements[0]) - 1
            inside = [] if lower.closed else [m.batch for m in _between(spine, first, upper)]
            return Needed(query, [*inside, *open_])
        case Fold(_):
            return Needed(query, [*(member.batch for member in spine), *open_])


def _int(time: object) -> int:
    if not isinstance(time, int):
        raise InternalError(f"time {time} of a totally ordered collection is no integer")
    return time


def _contents(spine: Spine, bases: Bases, time: int, minimum: Frontier) -> list[HollowBatch]:
    """A base and the batches after it that may have updates up to a time."""
    base = bases.serving(time)
    found = [] if base is None else [base.batch(minimum)]
    for member in spine.since(0 if base is None else base.hi):
        # As `less_equal`, which every look-up would ask of many tiny batches.
        first = next(iter(member.batch.bounds.lower.elements), None)
        if not isinstance(first, int) or first > time:
            break
        found.append(member.batch)
    return found


def _between(spine: Spine, after: int, upper: Frontier) -> Iterator[Member]:
    """The members that may have updates after a time and before a frontier.

    Of a member that ends at or before the time the updates were advanced to `since` at most, which reads of
    updates after a time do not see.
    """
    if upper.closed and not len(spine):
        return
    index = bisect_right(spine.slices, after, key=lambda held: _end(held.bounds) - 1)
    lo = spine.slices[index].id.lo if index < len(spine.slices) else spine.sliced
    for member in spine.since(lo):
        bounds = member.batch.bounds
        if not bounds.lower.closed and upper <= bounds.lower and not bounds.empty:
            break
        if bounds.upper.closed or _end(bounds) - 1 > after:
            yield member


def _end(bounds: Bounds) -> int:
    """The end of a batch as an integer, for comparisons only; nothing is at or after that of a closed one."""
    return (1 << 63) if bounds.upper.closed else _int(bounds.upper.elements[0])

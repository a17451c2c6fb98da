"""What the refreshes of one call share: collections that are opened once, and changes that are read once.

Owns what may be remembered from one view to the next: an input is seen as it was at first, until a refresh of
the same call writes it. Must not know what a view is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import pyarrow as pa

from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Updates
from tidelake.model.schema import DIFF
from tidelake.model.time import TIME_MAX, parts
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import Version
from tidelake.views.engine import Output
from tidelake.views.workroom import same

KEPT_MAX = 1_000_000
"""So many rows of changes are kept for the next view that reads them; more are read again."""


class Shared:
    """Collections of a lake, as the refreshes of one call see them."""

    def __init__(self, lake: Naming) -> None:
        self.lake = lake
        self._versions: dict[str, Version] = {}
        self._shards: dict[str, Shard] = {}
        self._readers = Counter[tuple[str, str]]()
        self._kept: dict[tuple[str, Frontier, Frontier], tuple[set[str], list[pa.RecordBatch]]] = {}
        self._rows = 0
        self._written: dict[str, tuple[Frontier, Output]] = {}

    def open(self, id_: str, name: str) -> Collection:
        """A collection that no user has, by its id, under the name that a user knows.

        Raises:
            CollectionDropped, CollectionNotFound: there is none any more.
        """
        if id_ not in self._versions:
            shard = self._shards[id_] = shard_of(same(self.lake, id_, name))
            # It was just looked at.
            known = shard.known()
            self._versions[id_] = shard.version() if known.group else shard.version_of(known)
        return Collection(name, self._shards[id_])

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of all collections, by id."""
        return self.lake.names()

    def version(self, of: Collection) -> Version:
        """A collection as the views of this call see it."""
        return self._versions[of.id]

    def changed(self, of: Collection) -> None:
        """Look at a collection again, when it is opened next: it was written here, or by another refresh."""
        self._versions.pop(of.id, None)
        self._written.pop(of.id, None)

    def announce(self, of: Collection, names: Iterable[str]) -> None:
        """Tell that a view will read the changes of these columns."""
        self._readers.update((of.id, name) for name in names)

    def written(self, of: Collection, updates: Output, lower: Frontier) -> None:
        """Let views see updates from `lower` on that a collection gets by the next commit."""
        self._written[of.id] = lower, updates.normalized(of)

    def pieces(self, of: Collection, asked: AsOf | Updates) -> Iterator[AsOf | Updates | Output]:
        """What a read of a collection is made of, if it may have updates that are yet to be committed.

        Contents are as of the time, but their rows may come at earlier times, and some twice.
        """
        if of.id not in self._written:
            yield asked
            return
        (lower, pending), (time,) = self._written[of.id], of.domain.columns
        match asked:
            case AsOf() if parts(asked.time)[0] < _first(lower):
                yield asked
            case AsOf():
                if not lower <= shard_of(of).known().since:
                    yield AsOf(_first(lower) - 1)
                yield pending.within(time, 0, parts(asked.time)[0])
            case Updates():
                if asked.lower < lower:
                    yield Updates(asked.lower, lower.meet(asked.upper))
                last = TIME_MAX if asked.upper.closed else _first(asked.upper) - 1
                yield pending.within(time, _first(asked.lower), last)

    def batches(
        self, of: Collection, piece: AsOf | Updates | Output, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one of them: columns, and times and multiplicities behind them."""
        match piece:
            case AsOf():
                yield from of.snapshot(piece.time, columns=names)
            case Updates():
                yield from self._read(of, piece.lower, piece.upper, names)
            case _:
                yield from piece.table.select([*names, *of.domain.columns, DIFF]).to_batches()

    def _read(
        self, of: Collection, start: Frontier, upper: Frontier, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The stored updates; what several views read is read once, if it is not too much."""
        shown = [*names, *of.domain.columns, DIFF]
        columns, batches = self._kept.get((of.id, start, upper), (set[str](), list[pa.RecordBatch]()))
        if {*names} <= columns:
            yield from (batch.select(shown) for batch in batches)
            return
        asked = {name: count for (id_, name), count in self._readers.items() if id_ == of.id}
        keeps = max(asked.values(), default=0) > 1
        wanted = [*dict.fromkeys([*names, *asked])] if keeps else [*names]
        batches = []
        for batch in of.updates(start, upper, columns=wanted):
            if keeps:
                keeps = self._rows + batch.num_rows <= KEPT_MAX
                self._rows += batch.num_rows if keeps else 0
                batches = [*batches, batch] if keeps else []
            yield batch.select(shown)
        if keeps:
            self._kept[of.id, start, upper] = {*wanted}, batches


def _first(frontier: Frontier) -> int:
    """The first time that is not before a frontier."""
    return parts(frontier.elements[0])[0]

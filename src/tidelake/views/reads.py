"""What one span of a refresh reads: contents and updates of inputs, and what the view keeps, as streams.

Must not know what is computed from them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidelake.errors import RebuildNeeded
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Scan
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Updates
from tidelake.model.schema import DIFF
from tidelake.model.time import TIME_MAX
from tidelake.views.definition import Definition, last_before
from tidelake.views.engine import KeyRows, StoredScan
from tidelake.views.inputs import Input, View
from tidelake.views.plan import FromCollection, ViewPlan, collection_at
from tidelake.views.reach import KeptStage
from tidelake.views.shared import Shared
from tidelake.views.state import ViewState, contents_of


@dataclass(frozen=True)
class Reads:
    """What a span reads: from `lower`, or from the birth of the view if that is later, to `upper`."""

    shared: Shared
    view: View
    plan: ViewPlan
    inputs: dict[str, Input]
    lower: Frontier
    upper: Frontier
    state: ViewState

    @property
    def definition(self) -> Definition:
        """Of the view."""
        return self.view.definition

    @property
    def time(self) -> int:
        """The last time before the span; if the view has no contents before it, the first one of these."""
        return last_before(self.lower) if self.base else self.definition.birth

    @property
    def base(self) -> bool:
        """Whether the view has contents before the span."""
        return Frontier.of(self.definition.birth) < self.lower

    def before(self, time: int) -> "Reads | None":
        """Up to a time at which something changes, which is not the first one; None: the grid has no such."""
        cut = Frontier.of(time // self.definition.every * self.definition.every)
        # The cell that never ends is at the last time, which may be the next one.
        first = self.lower.join(Frontier.of(self.definition.birth))
        return replace(self, upper=cut) if first < cut else None

    def columns(self, stage: FromCollection) -> list[str]:
        """The present names of the columns of an input that a stage reads.

        Raises:
            RebuildNeeded: one was dropped, or has another type now.
        """
        one = self.inputs[stage.collection]
        missing = [name for name in stage.names if name not in one.names]
        if missing:
            reason = f"column {missing[0]!r} of {stage.collection!r} was dropped, or has another type now"
            raise RebuildNeeded(self.view.name, reason)
        return [one.names[name] for name in stage.names]

    def contents(self, number: int, keys: KeyRows | None) -> Scan:
        """The rows of an input before the span, of some keys or of all."""
        stage = collection_at(self.plan, number)
        names, one = self.columns(stage), self.inputs[stage.collection]
        if keys is not None:
            by = tuple(keys.column_names)
            one = next((index for index in one.indexes if index.key_in(stage) == by), one)
            names = [one.names[name] for name in stage.names]
            called = {column.name: name for column, name in zip(stage.columns, names, strict=True)}
            keys = keys.rename_columns([called[column] for column in by])
        return contents_of(one.collection, names, keys, self.definition.as_of(self.time))

    def kept(self, kept: KeptStage, keys: KeyRows | None, first: int | None = None) -> Scan:
        """What the view keeps of a stage before the span; see `ViewState.read`."""
        return self.state.read(kept, keys, self.time, first)

    def contents_at(self, number: int, time: int) -> Scan:
        """The rows of an input at a time in the span."""
        return self._read(number, [AsOf(self.definition.as_of(time))])

    def stored(self, kept: KeptStage | None) -> Scan:
        """All of what the view keeps of a stage before the span; None: of the view itself."""
        if kept is not None:
            return self.kept(kept, None)
        return contents_of(self.view.collection, [one.name for one in self.plan.columns], None, self.time)

    def updates(self, number: int) -> Scan:
        """The updates of an input in the span."""
        birth, upper = self.definition.birth, self.definition.seen(self.upper)
        start = self.definition.seen(self.lower) if self.base else Frontier.past(birth)
        asked: list[AsOf | Updates] = [] if self.base else [AsOf(birth)]
        return self._read(number, [*asked, *([Updates(start, upper)] if start < upper else [])])

    def _read(self, number: int, asked: Sequence[AsOf | Updates]) -> Scan:
        stage = collection_at(self.plan, number)
        names, of = self.columns(stage), self.inputs[stage.collection].collection
        pieces = [piece for one in asked for piece in self.shared.pieces(of, one)]

        def batches() -> Iterator[pa.RecordBatch]:
            for piece in pieces:
                yield from map(self._moved, self.shared.batches(of, piece, names))

        every, first = self.definition.every, 0 if self.base else self.definition.birth
        return StoredScan(_schema(of, names), batches, of, names, pieces, every=every, first=first)

    def _moved(self, updates: pa.RecordBatch) -> pa.RecordBatch:
        """Updates at the next time of the grid, not before the view begins: until then they are not in it."""
        every, place = self.definition.every, updates.num_columns - 2
        if every == 1 and self.base:
            return updates
        times = np.maximum(updates.column(place).to_numpy(), self.definition.birth)
        # A cell that never ends is one that the closing of the inputs has ended.
        later = np.where(times > TIME_MAX // every * every, TIME_MAX, -(-times // every) * every)
        return updates.set_column(place, updates.schema.field(place), pa.array(later, pa.int64()))


def _schema(of: Collection, names: list[str]) -> pa.Schema:
    updates = of.update_schema
    return pa.schema([updates.field(name) for name in (*names, *of.domain.columns, DIFF)])

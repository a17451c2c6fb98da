"""A refresh: read what changed of the inputs, carry the span out, and write the view, all or nothing.

Owns which span a refresh does, the holds of a view on its inputs, and the errors of inputs that have become
something else. Must not know how a stage is computed.

INVARIANT: the updates of a span depend on the inputs and on the span only, and are written by
compare-and-append at the upper that they were computed for. So any number of refreshes may run, and any of
them may die.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, reduce

import numpy as np
import pyarrow as pa

from tidelake.errors import (
    CollectionDropped,
    CollectionNotFound,
    HistoryCompacted,
    RebuildNeeded,
    UpperMismatch,
    UsageError,
)
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Scan
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.model.time import TIME_MAX, parts
from tidelake.state.core.owned import owner_of
from tidelake.tabletext import FieldsAsHtml
from tidelake.views.definition import Definition, ViewSource, current_names, identity
from tidelake.views.plan import FromCollection, ViewPlan, collection_at
from tidelake.views.query.compile import compiled
from tidelake.views.reach import KeptStage, Reach
from tidelake.views.rules import Emission
from tidelake.views.spans import Database, SpanRun, SpanTooLarge, State, engine_version
from tidelake.views.state import ViewState, contents_of

PAIRS_MAX = 20_000_000
"""Rows of groups that a span computes again, each once for each of its times; else the span is cut."""
_AGAIN_MAX = 2


@dataclass(frozen=True)
class Refreshed(FieldsAsHtml):
    """What a refresh of one view did.

    Attributes:
        view: its name.
        lower: times from here on were computed.
        upper: the upper of the view now.
        already: there was nothing to do, or another refresh did it.
        rows: updates that were written.
        read: rows that were read, by the name of an input.
    """

    view: str
    lower: Frontier
    upper: Frontier
    already: bool = False
    rows: int = 0
    read: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Input:
    """An input as it is now.

    Attributes:
        collection: opened by its id.
        names: the present names of its columns, by those in the query.
        upper: its upper.
    """

    collection: Collection
    names: dict[str, str]
    upper: Frontier


def refreshed(
    lake: Naming, view: Collection, definition: Definition, database: Database, plan: ViewPlan | None = None
) -> Refreshed:
    """Bring a view up to the least upper of its inputs.

    Args:
        lake: that has them.
        view: opened under its name.
        definition: of the view.
        database: does the work.
        plan: the stages of the view; default: they are found again.

    Raises:
        RefreshFailed: the query has no answer for one of these times.
        RebuildNeeded: history or columns that it needs are gone.
    """
    if plan is None:
        plan = plan_of(view.name, definition)
    start = view.upper
    inputs = {one.name: opened(lake, view.name, one) for one in definition.sources}
    upper = definition.shown(reduce(Frontier.meet, (one.upper for one in inputs.values())))
    keep_holds(view, definition, inputs, start)
    if upper <= Frontier.of(definition.birth):
        return Refreshed(view.name, start, start, already=True)
    # A handle of its own: that of a user takes no writes.
    writer = lake.same_collection(view.id, view.name)
    shard_of(writer).writes_as = owner_of(view.id)
    reach = Reach(plan, _keys(plan, inputs))
    state = ViewState(lake, view, definition, plan, reach.kept())
    lower, rows, read, again = start, 0, dict.fromkeys(inputs, 0), 0
    while lower < upper:
        reads = _Reads(view.name, definition, plan, inputs, lower, upper, state)
        try:
            run = _carried_out(reach, reads, database)
            # The state first: it may be ahead of the view, and is never behind.
            state.append(run.kept, run.upper)
            written = writer.compare_and_append(run.updates, lower, run.upper).upper
        except UpperMismatch:
            # Another refresh was faster.
            return Refreshed(view.name, start, view.upper, already=not rows, rows=rows, read=read)
        except (HistoryCompacted, CollectionDropped) as error:
            shard_of(view).alive()
            if view.upper != lower:
                # Another one was faster, and has given up state that only this one wanted.
                return Refreshed(view.name, start, view.upper, already=not rows, rows=rows, read=read)
            if again < _AGAIN_MAX:
                # Another one has made the state again meanwhile, or a user has dropped it.
                state, again = ViewState(lake, view, definition, plan, reach.kept()), again + 1
                continue
            raise RebuildNeeded(view.name, f"history that it needs is gone: {error}") from error
        keep_holds(view, definition, inputs, written)
        lower, rows = written, rows + run.updates.num_rows
        for number, count in run.read.items():
            stage = plan.stages[number]
            if isinstance(stage, FromCollection):
                read[stage.collection] += count
    return Refreshed(view.name, start, lower, already=lower == start, rows=rows, read=read)


@dataclass(frozen=True)
class _Done:
    """What a span did: times before `upper` are computed, from so many rows of stages."""

    upper: Frontier
    updates: pa.Table
    kept: dict[KeptStage, pa.Table]
    read: dict[int, int]


def _carried_out(reach: Reach, reads: "_Reads", database: Database) -> _Done:
    """The updates of a span, or of the first part of it whose groups are not computed again too often."""
    reads.state.ready(
        reads.time, partial(_computed, reach, reads, database) if reads.base else None, database
    )
    while True:
        half = reads.half
        run = _run(reach, reads, reads.kept, None if half is None else PAIRS_MAX)
        try:
            return _Done(reads.upper, run.carried_out(database), run.kept, run.read)
        except SpanTooLarge:
            reads = reads if half is None else replace(reads, upper=half)


def _computed(
    reach: Reach, reads: "_Reads", database: Database, wanted: Sequence[KeptStage]
) -> dict[KeptStage, pa.Table]:
    """What the view keeps, from the contents of the inputs."""
    return _run(reach, reads, None, None).computed(database, wanted)


def _run(reach: Reach, reads: "_Reads", state: State | None, pairs_max: int | None) -> SpanRun:
    emission = Emission(reads.base, None if reads.base else reads.definition.birth)
    return SpanRun(
        reads.view,
        reach,
        emission,
        contents=reads.contents,
        updates=reads.updates,
        state=state,
        pairs_max=pairs_max,
    )


def _keys(plan: ViewPlan, inputs: Mapping[str, Input]) -> dict[int, tuple[str, ...]]:
    """The keys of the inputs, by the numbers of their stages, as these call them."""
    found = {}
    for number, stage in enumerate(plan.stages):
        if isinstance(stage, FromCollection):
            one = inputs[stage.collection]
            called = {
                one.names[name]: column.name
                for name, column in zip(stage.names, stage.columns, strict=True)
                if name in one.names
            }
            if {*one.collection.key} <= {*called}:
                found[number] = tuple(called[name] for name in one.collection.key)
    return found


@dataclass(frozen=True)
class _Reads:
    """What a span reads: from `lower`, or from the birth of the view if that is later, to `upper`."""

    view: str
    definition: Definition
    plan: ViewPlan
    inputs: dict[str, Input]
    lower: Frontier
    upper: Frontier
    state: ViewState

    @property
    def time(self) -> int:
        """The last time before the span; if the view has no contents before it, the first one of these."""
        return _last(self.lower) if self.base else self.definition.birth

    @property
    def base(self) -> bool:
        """Whether the view has contents before the span."""
        return Frontier.of(self.definition.birth) < self.lower

    @property
    def half(self) -> Frontier | None:
        """The end of the first half of the times; None: there is one time only."""
        first = max(self.definition.birth, parts(self.lower.elements[0])[0])
        end = TIME_MAX if self.upper.closed else parts(self.upper.elements[0])[0]
        every = self.definition.every
        cells = (end - first) // every
        return Frontier.of(first + cells // 2 * every) if cells > 1 else None

    def columns(self, stage: FromCollection) -> list[str]:
        one = self.inputs[stage.collection]
        missing = [name for name in stage.names if name not in one.names]
        if missing:
            reason = f"column {missing[0]!r} of {stage.collection!r} was dropped, or has another type now"
            raise RebuildNeeded(self.view, reason)
        return [one.names[name] for name in stage.names]

    def contents(self, number: int, keys: pa.Table | None) -> Scan:
        stage = collection_at(self.plan, number)
        names, of = self.columns(stage), self.inputs[stage.collection].collection
        if keys is not None:
            called = {column.name: name for column, name in zip(stage.columns, names, strict=True)}
            keys = keys.rename_columns([called[one] for one in keys.column_names])
        return contents_of(of, names, keys, self.definition.as_of(self.time))

    def kept(self, kept: KeptStage, keys: pa.Table | None) -> Scan:
        return self.state.read(kept, keys, self.time)

    def updates(self, number: int) -> Scan:
        stage = collection_at(self.plan, number)
        names, of = self.columns(stage), self.inputs[stage.collection].collection
        return Scan(_schema(of, names), lambda: self._updates(of, names))

    def _updates(self, of: Collection, names: list[str]) -> Iterator[pa.RecordBatch]:
        birth, upper = self.definition.birth, self.definition.seen(self.upper)
        if self.base:
            start = self.definition.seen(self.lower)
        else:
            yield from of.snapshot(birth, columns=names)
            start = Frontier.past(birth)
        if start < upper:
            yield from (self._moved(batch) for batch in of.updates(start, upper, columns=names))

    def _moved(self, updates: pa.RecordBatch) -> pa.RecordBatch:
        """Updates at the next time of the grid: before that they are not in the view."""
        every, place = self.definition.every, updates.num_columns - 2
        if every == 1:
            return updates
        times = updates.column(place).to_numpy()
        # A cell that never ends is one that the closing of the inputs has ended.
        later = np.where(times > TIME_MAX // every * every, TIME_MAX, -(-times // every) * every)
        return updates.set_column(place, updates.schema.field(place), pa.array(later, pa.int64()))


def _schema(of: Collection, names: list[str]) -> pa.Schema:
    updates = of.update_schema
    return pa.schema([updates.field(name) for name in (*names, *of.domain.columns, DIFF)])


def _last(frontier: Frontier) -> int:
    """The last time before a frontier."""
    return parts(frontier.just_before().elements[0])[0]


def opened(lake: Naming, view: str, source: ViewSource) -> Input:
    """An input, found by its id.

    Raises:
        RebuildNeeded: it was dropped; a column has gone or changed; or rows of it were erased.
    """
    try:
        found = lake.same_collection(source.id, source.name)
    except (CollectionDropped, CollectionNotFound) as error:
        raise RebuildNeeded(view, f"its input {source.name!r} was dropped") from error
    version = shard_of(found).version()
    return Input(found, current_names(view, source, version.state), version.upper)


def plan_of(view: str, definition: Definition) -> ViewPlan:
    """The stages of a view.

    Raises:
        RebuildNeeded: this process has another engine, or makes other stages of the query.
    """
    engine = engine_version()
    if engine != definition.engine:
        raise RebuildNeeded(view, f"it was made with {definition.engine}, and here is {engine}")
    plan = _compiled(definition)
    if identity(plan) != definition.plan:
        raise RebuildNeeded(view, "this version of Tidelake computes its query in other stages")
    return plan


@lru_cache(maxsize=64)
def _compiled(definition: Definition) -> ViewPlan:
    return compiled(definition.sql, definition.schema_of)


def keep_holds(view: Collection, definition: Definition, inputs: dict[str, Input], upper: Frontier) -> None:
    """Let the inputs keep history from the last time before `upper` on: the next refresh reads from there.

    Raises:
        RebuildNeeded: an input has given it up already.
    """
    name, since = owner_of(view.id), definition.first_needed(upper)
    for one in inputs.values():
        held = shard_of(one.collection).known().critical.get(name)
        if held is not None and since <= held.since:
            continue
        try:
            if held is None and definition.is_behind(since, one.upper):
                # It may not hold it any more. What is still there is enough for this refresh.
                if not one.collection.since <= since:
                    raise HistoryCompacted(since, one.collection.since)
                continue
            hold = one.collection.critical_hold(name, name, since)
            if hold.since < since:
                hold.compare_and_downgrade_since(name, (name, since))
        except HistoryCompacted as error:
            reason = f"its input {one.collection.name!r} no longer has the history from {since} on"
            if definition.max_lag is not None:
                reason += f", which it holds while it is not behind by more than {definition.max_lag}"
            raise RebuildNeeded(view.name, reason) from error
        except UsageError:
            # Another process has dropped the hold, with the view.
            shard_of(view).alive()
            raise


def let_go(lake: Naming, view: Collection, definition: Definition) -> None:
    """Drop the holds on inputs that the view is further behind than it may be."""
    if definition.max_lag is None:
        return
    name, since = owner_of(view.id), definition.first_needed(view.upper)
    for source in definition.sources:
        with suppress(CollectionNotFound):
            one = lake.same_collection(source.id, source.name)
            if name in one.state().critical and definition.is_behind(since, one.upper):
                one.critical_hold(name).drop()

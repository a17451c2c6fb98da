"""A refresh: read what changed of the inputs, carry the span out, and write the view, all or nothing.

Owns which span a refresh does. Must not know how a stage is computed.

INVARIANT: the updates of a span depend on the inputs and on the span only, and are written by
compare-and-append at the upper that they were computed for. So any number of refreshes may run, and any of
them may die.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce

from tidelake.errors import (
    CollectionDropped,
    CorruptionError,
    HistoryCompacted,
    InvalidUpdates,
    RebuildNeeded,
    RefreshFailed,
    TidelakeError,
    UpperMismatch,
)
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.lake.arguments.tokens import noted
from tidelake.model.frontier import Frontier
from tidelake.state.core.owned import owner_of
from tidelake.views.engine import Engine, Outgrown, Output
from tidelake.views.indexes import is_held, reach_of, with_indexes
from tidelake.views.inputs import View, keep_holds, opened, plan_of
from tidelake.views.plan import FromCollection, Redo
from tidelake.views.reach import KeptStage, Reach
from tidelake.views.reads import Reads
from tidelake.views.refreshed import Refreshed, as_message
from tidelake.views.rules import Emission
from tidelake.views.shared import Shared
from tidelake.views.spans import Again, SpanRun, SpanTooLarge, State
from tidelake.views.state import ViewState

PAIRS_MAX = 20_000_000
"""Rows of groups that a span computes again, each once for each of its times; else the span is cut."""
ROWS_MAX = 10_000_000
"""Updates of a stage, which are written from memory; else a span of several times is cut."""
_AGAIN_MAX = 2


class _Refreshing:
    """A view amid its refresh."""

    def __init__(self, shared: Shared, view: View, engine: Engine) -> None:
        self._shared, self.view, self.engine = shared, view, engine
        self.plan = plan_of(view.name, view.definition, engine)
        self.inputs = {one.name: opened(shared, view.name, one) for one in view.definition.sources}
        self.start = self.lower = self.upper = shared.version(view.collection).upper
        none = dict.fromkeys(self.inputs, 0)
        self._done = Refreshed(view.name, self.start, self.start, True, read=none, place=engine.place)
        self._clock = shared.lake.env.clock
        self._began_s = self._clock.monotonic_s()
        self._again = 0
        self.waits_for = list[str]()

    def begin(self, upper: Frontier) -> bool:
        """Aim at an upper of its inputs; whether there is something to do."""
        definition = self.view.definition
        keep_holds(self.view, self.inputs.values(), self.start)
        upper = definition.shown(upper)
        self.upper = self.lower if upper <= Frontier.of(definition.birth) else self.lower.join(upper)
        if self.upper == self.lower:
            return False
        shard_of(self.view.collection).writes_as = owner_of(self.view.id)
        self._find()
        return True

    def carried_out(self, cut: Frontier | None) -> "_Done":
        """The updates of the next span, up to a cut if there is one. What the view keeps is written."""
        upper = self.upper if cut is None else self.upper.meet(cut)
        try:
            reads = Reads(self._shared, self.view, self.plan, self.inputs, self.lower, upper, self.state)
            done = _carried_out(self.reach, reads, self.engine)
            # The state first: it may be ahead of the view, and is never behind.
            self.state.append(done.kept, done.upper, self.engine)
        except Outgrown as error:
            self.engine = error.by
            return self.carried_out(cut)
        except CorruptionError as error:
            if not self.state.has(error.name):
                raise
            why = f"object {error.name!r} of what it keeps is damaged: {error.reason}"
            raise RebuildNeeded(self.view.name, why) from error
        except (HistoryCompacted, CollectionDropped) as error:
            shard_of(self.view.collection).alive()
            if self.view.collection.upper != self.lower:
                # Another one was faster, and has given up state that only this one wanted.
                raise UpperMismatch(self.lower, self.view.collection.upper) from error
            if self._again == _AGAIN_MAX:
                raise RebuildNeeded(self.view.name, f"history that it needs is gone: {error}") from error
            # Another one has made the state again meanwhile, or a user has dropped it.
            self._again += 1
            self._find()
            return self.carried_out(cut)
        return done

    def release(self) -> None:
        """Let go of what a span has read."""
        self.engine.release()

    def with_span(self, span: "_Done") -> Refreshed:
        """What is done once a span is committed as well."""
        read, stages = dict(self._done.read), {one[0]: one[1:] for one in self._done.stages}
        for number, stage in enumerate(self.plan.stages):
            rows, emitted, how = stages.get(number, (0, 0, ""))
            more = span.read.get(number, 0)
            stages[number] = rows + more, emitted + span.emitted.get(number, 0), span.how.get(number, how)
            if isinstance(stage, FromCollection):
                read[stage.collection] += more
        return replace(
            self._done,
            upper=span.upper,
            already=False,
            rows=self._done.rows + span.updates.num_rows,
            read=read,
            stages=tuple((n, *told) for n, told in sorted(stages.items()) if told[0] or told[1]),
            took_s=self._clock.monotonic_s() - self._began_s,
            waits_for=tuple(self.waits_for),
            place=self.engine.place,
        )

    def has_written(self, span: "_Done", done: Refreshed) -> None:
        """Go on behind a span that is committed."""
        self._shared.changed(self.view.collection)
        keep_holds(self.view, self.inputs.values(), span.upper)
        for one in self.inputs.values():
            for index in one.indexes:
                is_held(self.view, index, span.upper)
        self.lower, self._done = span.upper, done

    def told(self, *, overtaken: bool = False) -> Refreshed:
        """What was done; if another refresh was faster, with what that did."""
        upper = self.lower
        if overtaken:
            upper = self.view.collection.upper
            self._shared.changed(self.view.collection)
        took_s = self._clock.monotonic_s() - self._began_s
        return replace(self._done, upper=upper, took_s=took_s, waits_for=tuple(self.waits_for))

    def _find(self) -> None:
        """Find where rows of the inputs are looked up, and what the view keeps for it."""
        self.inputs, self.reach, freed = with_indexes(
            self._shared,
            self.view,
            self.inputs,
            (self.lower, self.upper),
            partial(reach_of, self.plan, self.engine),
        )
        of, definition = self.view.collection, self.view.definition
        self.state = ViewState(self._shared.lake, of, definition, self.plan, self.reach.kept())
        self.state.drop(freed)


def refreshed(
    shared: Shared, views: Sequence[View], engine: Engine, *, until: Frontier | None = None
) -> list[Refreshed]:
    """Bring views that change together up to the least upper of their inputs, each span by one commit.

    Each is behind those of them that it stands on. They are brought no further than `until`.

    Raises:
        RefreshFailed: the query has no answer for one of these times.
        RebuildNeeded: history or columns that it needs are gone.
    """
    all_ = [_Refreshing(shared, view, engine) for view in views]
    ids = {view.id for view in views}
    outer = [one.upper for each in all_ for one in each.inputs.values() if one.collection.id not in ids]
    for each in all_:
        uppers = {n: one.upper for n, one in each.inputs.items() if one.collection.id not in ids}
        each.waits_for = [n for n, upper in uppers.items() if any(upper < other for other in uppers.values())]
    upper = reduce(Frontier.meet, outer if until is None else [*outer, until])
    behind = [one for one in all_ if one.begin(upper)]
    while behind:
        try:
            done = _together(shared, behind)
            told = {one.view.id: one.with_span(span) for one, span in done}
            with noted("", as_message(told)):
                _commit(shared.lake, done)
        except UpperMismatch:
            # Another refresh was faster.
            return [one.told(overtaken=True) for one in all_]
        finally:
            for one in behind:
                one.release()
        for one, span in done:
            one.has_written(span, told[one.view.id])
        behind = [one for one in behind if one.lower < one.upper]
    return [one.told() for one in all_]


def announce(shared: Shared, view: View, engine: Engine) -> None:
    """Tell which changes a view will read."""
    with suppress(TidelakeError):
        # It says so at its own turn.
        for stage in plan_of(view.name, view.definition, engine).stages:
            if isinstance(stage, FromCollection):
                one = opened(shared, view.name, view.definition.source(stage.collection))
                shared.announce(one.collection, [one.names[of] for of in stage.names if of in one.names])


def _together(shared: Shared, behind: Sequence[_Refreshing]) -> "list[tuple[_Refreshing, _Done]]":
    """The updates of the next span of views that change together, which is as long as each of them allows."""
    cut: Frontier | None = None
    while True:
        done = list[tuple[_Refreshing, _Done]]()
        for one in behind:
            if cut is not None and cut <= one.lower:
                continue
            span = one.carried_out(cut)
            for other in behind:
                # Rows that are not in this process are not brought into it.
                other.engine = one.engine
            # What stands on it must not see more of it than it has now, as it keeps what follows from that.
            cut = span.upper if cut is None else cut.meet(span.upper)
            if len(behind) > 1:
                with _told(one):
                    shared.written(one.view.collection, span.updates, one.lower)
            done.append((one, span))
        shortest = reduce(Frontier.meet, (span.upper for _, span in done))
        if all(span.upper == shortest for _, span in done):
            return done
        cut = shortest


@contextmanager
def _told(one: _Refreshing) -> Iterator[None]:
    """Tell what no collection keeps as a failure of the view."""
    try:
        yield
    except InvalidUpdates as error:
        raise RefreshFailed(one.view.name, "answer", str(error)) from error


def _commit(lake: Naming, done: "Sequence[tuple[_Refreshing, _Done]]") -> None:
    """Write the updates of a span, of all of its views or of none."""
    if len(done) == 1:
        ((one, span),) = done
        with _told(one):
            span.updates.append_to(one.view.collection, one.lower, span.upper)
        return
    from tidelake.lake.groups.transactions import Transaction

    shards = {one.view.name: shard_of(one.view.collection) for one, _ in done}
    with Transaction(lake._groups, shards.__getitem__, lake.env.ids.fresh) as transaction:
        for one, span in done:
            if span.updates.num_rows:
                with _told(one):
                    span.updates.write_in(transaction, one.view.collection, one.lower, span.upper)
            transaction.seal(one.view.name, span.upper, lower=one.lower)


@dataclass(frozen=True)
class _Done:
    """What a span did: times before `upper` are computed, from so many rows of stages."""

    upper: Frontier
    updates: Output
    kept: dict[KeptStage, Output]
    read: dict[int, int]
    emitted: dict[int, int]
    how: dict[int, str]


def _carried_out(reach: Reach, reads: Reads, engine: Engine) -> _Done:
    """The updates of a span, or of the first part of it whose groups are not computed again too often."""
    reads.state.ready(reads.time, partial(_computed, reach, reads, engine) if reads.base else None, engine)
    can_be_cut = True
    while True:
        run = _run(reach, reads, engine, reads.kept, can_be_cut=can_be_cut)
        try:
            return _Done(reads.upper, run.carried_out(engine), run.kept, run.read, run.emitted, run.how)
        except SpanTooLarge as error:
            first_part = reads.before(error.time)
            can_be_cut, reads = first_part is not None, first_part or reads


def _computed(
    reach: Reach, reads: Reads, engine: Engine, wanted: Sequence[KeptStage]
) -> dict[KeptStage, Output]:
    """What the view keeps, from the contents of the inputs."""
    return _run(reach, reads, engine, None, can_be_cut=False).computed(engine, wanted)


def _run(reach: Reach, reads: Reads, engine: Engine, state: State | None, *, can_be_cut: bool) -> SpanRun:
    emission = Emission(reads.base, None if reads.base else reads.definition.birth)
    return SpanRun(
        reads.view.name,
        reach,
        emission,
        contents=reads.contents,
        updates=reads.updates,
        state=state,
        pairs_max=PAIRS_MAX if can_be_cut else None,
        rows_max=ROWS_MAX if can_be_cut and engine.holds_rows else None,
        again=_again(reads) if state is not None and reads.base else None,
    )


def _again(reads: Reads) -> Again | None:
    """How all is computed again if much changes; None where no group is, so that updates cost less."""
    stages = reads.plan.stages
    if not any(isinstance(stage, Redo) for stage in stages):
        return None
    read = [reads.inputs[one.collection].collection for one in stages if isinstance(one, FromCollection)]
    rows = sum(shard_of(one).known().spine.totals.rows for one in read)
    return Again(rows, reads.contents_at, reads.stored)

"""Maintenance: carrying out the merges that a shard needs, and collecting what they leave; whoever runs it.

Four runners use it: an append, for a moment afterwards; a worker in the background; `tidelake maintain`;
and a Spark job. All find the work in the state, so none is lost with a process, and an idle shard
needs no append to be looked after.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from tidelake.errors import (
    BlobNotFound,
    Closed,
    CollectionDropped,
    CorruptionError,
    InvalidUpdates,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    TidelakeWarning,
)
from tidelake.model.frontier import Frontier
from tidelake.shard.asked import Done
from tidelake.shard.combining import Request
from tidelake.shard.shard import Shard
from tidelake.shard.upkeep.collector import Collector, CollectReport
from tidelake.shard.upkeep.compactor import NOT_MERGED, Compactor, MergeReport, Workers
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.state import holds, maintenance, transactions
from tidelake.state.forking import is_borrowed
from tidelake.state.merging import (
    MergeRequest,
    Policy,
    everything,
    inline_requests,
    requests,
)
from tidelake.state.space import has_tail, must_merge_all
from tidelake.state.spine import SpineId
from tidelake.state.state import ShardState

# Merges that fail so fail whenever they are tried: a sum does not fit, or a part is lost or damaged.
SET_ASIDE = (InvalidUpdates, BlobNotFound, CorruptionError)
# What an append counts on when it decides whether a merge fits into its budget.
_ROWS_PER_S = 1_000_000
# Appends merge something larger in so many chunks at most, one at a time; the rest is for other runners.
_CHUNKS_MAX = 32
_TURN = "merge"
# Updates outside of the largest run may be one in so many: then a read is not much dearer than of one run.
_TAIL_AT_REST, _TAIL_BUSY = 8, 5


@dataclass(frozen=True)
class MaintenanceReport:
    """What maintenance did.

    Attributes:
        merges: results that took the place of their inputs.
        rows_read: updates that went into them.
        rows_written: updates that came out.
        bytes_read: stored bytes that went in.
        bytes_written: stored bytes that came out.
        refused: results that did not fit any more, or merges that others were at.
        seconds: wall clock.
        complete: nothing was left to do.
        drained: updates that were read to bring staged ones of closed times into the spine.
        collected: what was deleted.
    """

    merges: int = 0
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    refused: int = 0
    seconds: float = 0.0
    complete: bool = True
    drained: int = 0
    collected: CollectReport = field(default_factory=CollectReport)

    def plus(self, merge: MergeReport) -> "MaintenanceReport":
        """With one more merge."""
        if not merge.applied:
            return replace(self, refused=self.refused + 1)
        return replace(
            self,
            merges=self.merges + 1,
            rows_read=self.rows_read + merge.before.rows,
            rows_written=self.rows_written + merge.after.rows,
            bytes_read=self.bytes_read + merge.before.size_bytes,
            bytes_written=self.bytes_written + merge.after.size_bytes,
        )


@dataclass(frozen=True)
class Due:
    """A merge to carry out next.

    Attributes:
        request: what goes in.
        rewrite: also if it is a single run, whose times are to be advanced; the result is never inline.
        chunk_rows: one key range of about so many rows now, the others later; None: all.
    """

    request: MergeRequest
    rewrite: bool = False
    chunk_rows: int | None = None


R = TypeVar("R")
Find = Callable[[ShardState], Iterator[Due]]
Watch = Callable[[MergeRequest], None]


class Maintainer:
    """Maintains one shard.

    Args:
        shard: to maintain.
        workers: who carries out the merges; default: this process.
        watch: is told of each merge before it begins.
    """

    def __init__(self, shard: Shard, workers: Workers | None = None, watch: Watch | None = None) -> None:
        self._shard = shard
        self._compactor = Compactor(shard, workers)
        self._watch = watch

    def run(self, *, thorough: bool, seconds: float | None = None) -> MaintenanceReport:
        """Merge what the levels ask for, and all if the space bound cannot be shown otherwise; then collect.

        Args:
            thorough: merge small levels as well, and let no retraction linger that `since` has passed:
                for a shard that is idle, or an explicit wish. Otherwise what is worth its while now.
            seconds: begin no merge after so long.
        """
        if thorough:
            self._shard.run(holds.end_expired_holds)
        # What comes in meanwhile is for the next run: a busy shard would keep this one for ever.
        if self._shard.state().dropped:
            return MaintenanceReport()
        self._settle()
        drained, failed = 0, None
        try:
            drained = Drainer(self._shard).run().rows_read
        except SET_ASIDE as error:
            # It must not keep the merges of what is drained waiting.
            failed = error
        first = self._shard.known()
        end, since = first.spine.next_id, first.since
        policy = settled(self._shard) if thorough else eager(self._shard)

        def find(state: ShardState) -> Iterator[Due]:
            taken = self._taken(state)
            for request in requests(state.spine, policy, taken):
                if request.id.lo < end:
                    yield Due(request)
            must = not taken and (
                must_merge_all(state.spine, state.since, thorough=thorough)
                or (thorough and self._is_scattered(state))
            )
            if must and not _is_one(state, end, since):
                yield from self._gathered(end)
            elif thorough and not taken and state.spine.merges and state.spine.next_id == end:
                # Nobody appends, so nobody brings fuel.
                self._shard.run(partial(maintenance.exert_fuel, fuel=state.spine.totals.rows))
                yield from map(Due, requests(self._shard.known().spine, policy))

        report = self._merge(find, seconds)
        if thorough and report.complete:
            self._compactor.end_expired()
        collector = Collector(self._shard)
        collected = collector.run() if thorough else collector.run_if_due()
        if failed is not None:
            raise failed
        return replace(report, collected=collected, drained=drained)

    def _settle(self) -> None:
        """Write down what transactions have decided for the shard."""
        view = self._shard.view()
        self._shard.state()
        if view is not None:
            self._shard.run(partial(transactions.catch_up, view=view))

    def merge_all(self) -> MaintenanceReport:
        """Merge everything that is there into one run, its times advanced to `since`."""
        if self._shard.state().dropped:
            return MaintenanceReport()
        self._settle()
        Drainer(self._shard).run()
        first = self._shard.known()
        end, since = first.spine.next_id, first.since

        def find(state: ShardState) -> Iterator[Due]:
            batches = state.spine.batches
            apart = any(batch.rows and 0 < batch.id.lo < end for batch in batches)
            if apart or not _is_one(state, end, since):
                yield from self._gathered(end)

        return self._merge(find, None)

    def bring_out_inline(self) -> MaintenanceReport:
        """Merge inline parts into stored ones, to make room in the state."""
        policy = settled(self._shard)

        def find(state: ShardState) -> Iterator[Due]:
            return (Due(one, True) for one in inline_requests(state.spine, policy, self._taken(state)))

        return self._merge(find, None)

    def relieve(self, runs_max: int) -> MaintenanceReport:
        """Merge until no more than so many runs are unmerged, or others are at the rest."""
        policy = settled(self._shard)

        def find(state: ShardState) -> Iterator[Due]:
            if unmerged(state) > runs_max:
                yield from map(Due, requests(state.spine, policy, self._taken(state)))

        return self._merge(find, None)

    def within_budget(self, seconds: float) -> MaintenanceReport:
        """What an append may do afterwards: merges that are short enough, or one chunk of a longer one."""
        clock, policy = self._shard.env.clock, eager(self._shard)
        deadline_s = clock.monotonic_s() + seconds
        Drainer(self._shard).run(int(seconds * _ROWS_PER_S))
        chunk_rows = max(1, int(seconds * _ROWS_PER_S))

        def find(state: ShardState) -> Iterator[Due]:
            left_s, now_ms = deadline_s - clock.monotonic_s(), clock.now_ms()
            # Own merges, and those of runners that are gone: a process that only appends may end at any time.
            begun = {
                claim.id: request
                for claim in state.claims.values()
                if claim.runner == self._shard.runner or claim.expires_ms <= now_ms
                if (request := maintenance.begun_merge(state, claim))
            }
            claims = [c.id for c in state.claims.values() if now_ms < c.expires_ms or c.id in begun]
            found = list(requests(state.spine, policy, claims))
            yield from (Due(request) for request in found if request.rows <= left_s * _ROWS_PER_S)
            if left_s < seconds / 2:
                return
            for request in begun.values():
                yield Due(request, rewrite=True, chunk_rows=chunk_rows)
            rows_max = _CHUNKS_MAX * chunk_rows
            if not claims:
                yield from (Due(r, chunk_rows=chunk_rows) for r in found if r.rows <= rows_max)
            if (
                not claims
                and policy.rows_min <= state.spine.totals.rows <= rows_max
                and (must_merge_all(state.spine, state.since) or has_tail(state.spine, _TAIL_BUSY))
            ):
                for due in self._gathered(state.spine.next_id):
                    yield replace(due, chunk_rows=chunk_rows)

        return self._merge(find, seconds)

    def _is_scattered(self, state: ShardState) -> bool:
        """Whether a shard at rest has more beside its largest run than it may."""
        totals = state.spine.totals
        whole = totals.rows <= self._shard.spec.config.merge_whole_rows
        return totals.runs > 1 if whole else has_tail(state.spine, _TAIL_AT_REST)

    def _gathered(self, end: int) -> Iterator[Due]:
        """Make all members one spine batch, and ask for the merge of those before an id."""
        self._shard.run(maintenance.collapse_levels)
        found = everything(self._shard.known().spine, settled(self._shard), end)
        if found is not None:
            yield Due(found, rewrite=True)

    def _merge(self, find: Find, seconds: float | None) -> MaintenanceReport:
        """Carry out what is found, one after the other, until there is nothing or no time is left."""
        clock = self._shard.env.clock
        started_s = clock.monotonic_s()
        report, refused, late = MaintenanceReport(), set[str](), False
        failed, left = dict[str, TidelakeError](), list[str]()
        while not late:
            due, left = _first(find(self._shard.known()), refused)
            if due is None:
                break
            if self._watch is not None:
                self._watch(due.request)
            try:
                merge = self._compactor.merge(due.request, rewrite=due.rewrite, chunk_rows=due.chunk_rows)
            except SET_ASIDE as error:
                # It must not keep the others waiting, and with some of these a sum may fit.
                failed[due.request.inputs] = error
                merge = NOT_MERGED
            if merge.unfinished:
                late = True
                break
            report = report.plus(merge)
            if not merge.applied:
                refused.add(due.request.inputs)
                self._shard.state()
            late = seconds is not None and clock.monotonic_s() - started_s > seconds
        for inputs in left:
            if inputs in failed:
                raise failed[inputs]
        seconds_spent = clock.monotonic_s() - started_s
        # What others are at is not done before they are: they may die.
        complete = not late and not refused and not self._taken(self._shard.known())
        return replace(report, seconds=seconds_spent, complete=complete)

    def _taken(self, state: ShardState) -> list[SpineId]:
        return maintenance.taken(state, self._shard.env.clock.now_ms(), self._shard.runner)


def _first(found: Iterator[Due], refused: Collection[str]) -> tuple[Due | None, list[str]]:
    """The first merge that was not refused, and the inputs of those before it."""
    passed: list[str] = []
    for due in found:
        if due.request.inputs not in refused:
            return due, passed
        passed.append(due.request.inputs)
    return None, passed


def _is_one(state: ShardState, end: int, since: Frontier) -> bool:
    """Whether all members before an id are at most one run of the newest schema, advanced to `since`.

    Parts that a fork has borrowed do not count: what is merged is its own.
    """
    members = [member for member in state.spine if member.id.lo < end]
    runs = [(member.batch, run) for member in members for run in member.batch.runs]
    if len(runs) != 1:
        return not runs
    ((batch, run),) = runs
    as_stored = not run.truncated and all(
        part.rewrite is None
        and part.schema_id == state.schema_id
        and (part.inline is not None or not is_borrowed(part.name, state.shard_id))
        for part in run.parts
    )
    return as_stored and since <= batch.bounds.since


def unmerged(state: ShardState) -> int:
    """Runs, or members, beyond one for each spine batch, whichever are more.

    Heartbeats bring members without runs, which make the state grow until they are merged.
    """
    spine = state.spine
    runs = spine.totals.runs - sum(1 for batch in spine.batches if batch.rows)
    return max(runs, len(spine) - len(spine.batches))


def eager(shard: Shard) -> Policy:
    """What is worth a merge while a shard is written to."""
    config = shard.spec.config
    return Policy(config.merge_fan_in, config.fold_rows, config.merge_inputs_min, config.merge_rows_min)


def settled(shard: Shard) -> Policy:
    """What is worth a merge in a shard at rest: one run for each spine batch."""
    return Policy(shard.spec.config.merge_fan_in, shard.spec.config.fold_rows)


def tend_if_due(shard: Shard, done: Done[R]) -> None:
    """`tend` after an append that leaves something to do, or finds something begun."""
    state = shard.known()
    if done.merges_due or state.claims or state.drained != state.upper:
        tend(shard)


def tend(shard: Shard) -> None:
    """Merge for a moment after an append, as long as the setting `merge_budget_s` allows, and clean up.

    The append is in, and stays so whatever happens here; what fails is left to the next maintenance.
    """
    budget_s = shard.spec.config.merge_budget_s
    if not budget_s:
        return
    # Of many processes that append, one at a time merges: the others would make the same merge in vain.
    with shard.stores.turns.take(shard.spec.shard_id, _TURN) as is_ours:
        if is_ours:
            _beside_an_append(shard, lambda: Maintainer(shard).within_budget(budget_s))
            _beside_an_append(shard, Collector(shard).beside_append)


def make_room(shard: Shard) -> None:
    """Merge the inline parts of the state into stored ones, if that can be done now."""
    _beside_an_append(shard, Maintainer(shard).bring_out_inline)


def _beside_an_append(shard: Shard, work: Callable[[], object]) -> None:
    try:
        work()
    except (StoreUnavailable, OutcomeUnknown, Closed, CollectionDropped):
        shard.env.recorder.count("shard.tend.failed")
    except TidelakeError as error:
        # It will fail again, so somebody has to know.
        shard.env.recorder.count("shard.tend.failed")
        message = f"a merge beside an append failed; the append itself is as it says: {error}"
        warnings.warn(TidelakeWarning(message), stacklevel=3)


def admit(shard: Shard) -> float:
    """Before an append: merge while more runs are unmerged than the setting `runs_max` allows.

    One of several threads merges, and the others wait for it.

    Returns:
        Seconds that it took; 0.0 usually, and then without a store call.

    Raises:
        StoreUnavailable: that could not be done, and the append was not tried.
    """
    known, runs_max = shard.known(), shard.spec.config.runs_max
    if unmerged(known) <= runs_max and not _waits_for_drain(known, runs_max):
        return 0.0
    clock = shard.env.clock
    started_s = clock.monotonic_s()
    try:
        shard.together.reliefs.run(Request(), partial(_relieve, shard))
    except SET_ASIDE as error:
        # No merge of these will do; those of the others are done.
        warnings.warn(TidelakeWarning(f"a merge before an append failed: {error}"), stacklevel=2)
    except OutcomeUnknown as error:
        raise StoreUnavailable(
            f"the append was not tried, since a merge had to come first: {error}"
        ) from error
    seconds = clock.monotonic_s() - started_s
    shard.env.recorder.count("shard.backpressure")
    shard.env.recorder.count("shard.backpressure.ms", round(seconds * 1000))
    return seconds


def _waits_for_drain(state: ShardState, runs_max: int) -> bool:
    """Whether appends have piled up that the spine cannot have before staged batches are read."""
    return state.drained != state.upper and state.staged.totals.runs > runs_max


def _relieve(shard: Shard, asking: Sequence[Request]) -> None:
    try:
        runs_max = shard.spec.config.runs_max
        if _waits_for_drain(shard.known(), runs_max):
            Drainer(shard).run()
        Maintainer(shard).relieve(runs_max)
    except Exception as error:
        for request in asking:
            request.fail(error)
    for request in asking:
        request.answered = True

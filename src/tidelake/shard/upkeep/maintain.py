"""Maintenance: carries out the merges that a shard needs, and collects the garbage that they leave.

Four runners use it: an append, briefly after its commit; a background worker; `tidelake maintain`; and a
Spark job. All find the work in the state, so no work is lost with a process, and an idle shard is maintained
without appends.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain

from tidelake.errors import BlobNotFound, ErasureWaits, StoreUnavailable, TidelakeError
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.shard.engine.shard import Shard
from tidelake.shard.runs.gather import follow_merges
from tidelake.shard.runs.read import sources_of
from tidelake.shard.runs.scope import Source
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.compactor import NOT_MERGED, SET_ASIDE, Compactor, Workers
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.eraser import Eraser
from tidelake.shard.upkeep.reports import MaintenanceReport
from tidelake.state.core.commands import Commit
from tidelake.state.core.forks import is_borrowed
from tidelake.state.core.state import ShardState
from tidelake.state.group import applying
from tidelake.state.life import holds
from tidelake.state.spine.merging import (
    MergeRequest,
    Policy,
    bounded,
    cheapest,
    everything,
    inline_requests,
    requests,
    unmerged,
)
from tidelake.state.spine.space import has_tail, must_merge_all
from tidelake.state.spine.spine import Member, SpineId
from tidelake.state.upkeep import basing, claims, maintenance, slices

# The speed that an append assumes when it decides whether a merge fits into its budget.
_ROWS_PER_S = 1_000_000
# Appends merge a larger request chunk by chunk, if it takes at most this many; others are for other runners.
_CHUNKS_MAX = 32
# At most one in this many updates may be outside the largest run, so that a read costs little more than one
# of a single run.
_TAIL_AT_REST, _TAIL_BUSY = 8, 5


@dataclass(frozen=True)
class Due:
    """A merge to carry out next.

    Attributes:
        request: the inputs.
        rewrite: merge even a single run, to advance its times; the result is never inline.
        chunk_rows: merge only one key range of about this many rows now; None: merge all.
    """

    request: MergeRequest
    rewrite: bool = False
    chunk_rows: int | None = None


Find = Callable[[ShardState], Iterator[Due]]
Watch = Callable[[MergeRequest], None]


class Maintainer:
    """Maintains one shard.

    Args:
        shard: the shard to maintain.
        workers: carries out the merges; default: this process.
        watch: called with each merge before it begins.
    """

    def __init__(self, shard: Shard, workers: Workers | None = None, watch: Watch | None = None) -> None:
        self._shard = shard
        self._compactor = Compactor(shard, workers)
        self._watch = watch

    def run(self, *, thorough: bool, seconds: float | None = None) -> MaintenanceReport:
        """Erase what was asked for; merge what the levels need, or all for the space bound; collect garbage.

        Args:
            thorough: also merge small levels, and remove all retractions that `since` has passed: for an idle
                shard, or at a user's request. Otherwise merge only what is worth the cost now.
            seconds: begin no merge after this time.
        """
        if thorough:
            self._shard.run(holds.end_expired_holds)
        # Later appends are left to the next run: with a busy shard this one would never end.
        if self._shard.state().dropped:
            return MaintenanceReport()
        self._apply_decided()
        looked_up = self._newest()
        drained, failed = 0, list[TidelakeError]()
        try:
            Eraser(self._shard).run()
        except (*SET_ASIDE, ErasureWaits) as error:
            failed.append(error)
        try:
            drained = Drainer(self._shard).run().rows_read
        except SET_ASIDE as error:
            # An erasure or a drain that fails must not prevent the merges of the spine.
            failed.append(error)
        first = self._shard.known()
        end, since = first.spine.next_id, first.since
        policy = Policy.idle(self._shard.spec.config) if thorough else Policy.busy(self._shard.spec.config)

        def find(state: ShardState) -> Iterator[Due]:
            taken = self._taken(state)
            state = self._sliced(state)
            for request in (*requests(state.spine, policy, taken), *self._history(state, taken)):
                if request.id.lo < end:
                    yield Due(request)
            if taken:
                return
            yield from self._for_space(state, end, thorough=thorough)
            levels = list(state.spine.levels(end))
            must = must_merge_all(levels, state.since, thorough=thorough)
            if (must or (thorough and self._is_scattered(levels))) and not _is_one(state, levels, since):
                yield from self._gathered(end)
            elif thorough and state.spine.merges and state.spine.next_id == end:
                # Without appends, no append brings fuel to the merges.
                self._shard.run(partial(maintenance.exert_fuel, fuel=state.spine.totals.rows))
                yield from map(Due, requests(self._shard.known().spine, policy))
            if thorough and state.spine.next_id == end and (head := basing.due_at_head(state)):
                yield Due(head)

        report = self._merge(find, seconds)
        if thorough and report.complete:
            self._compactor.end_expired()
        collector = Collector(self._shard)
        collected = collector.run() if thorough else collector.run_if_due()
        self._follow(report, looked_up)
        if failed:
            raise failed[0]
        return replace(report, collected=collected, drained=drained)

    def _newest(self) -> list[Source]:
        """The runs that look-ups of the newest rows read."""
        found, _ = sources_of(self._shard.known(), AsOf(self._shard.spec.domain.maximum))
        return found

    def _follow(self, report: MaintenanceReport, before: list[Source]) -> None:
        """Unpack the results of merges for look-ups of this process, if it had unpacked the inputs."""
        if report.merges:
            spec = self._shard.version_of(self._shard.known()).spec
            try:
                follow_merges(spec, self._shard.stores.blobs, before, self._newest())
            except (BlobNotFound, StoreUnavailable):
                # The merges are done. Look-ups need no unpacked parts, and say what they cannot read.
                self._shard.env.failed("lookup.unpack.failed")

    def _apply_decided(self) -> None:
        """Commit to the shard what transactions have decided for it."""
        view = self._shard.view()
        self._shard.state()
        if view is not None:
            self._shard.run(partial(applying.catch_up, view=view))

    def merge_all(self) -> MaintenanceReport:
        """Merge each slice into one run, and the levels into one, with times advanced to `since`."""
        if self._shard.state().dropped:
            return MaintenanceReport()
        self._apply_decided()
        looked_up = self._newest()
        Drainer(self._shard).run()
        first = self._shard.known()
        end, since = first.spine.next_id, first.since

        policy = Policy.idle(self._shard.spec.config)
        self._forget_old_bases()

        def find(state: ShardState) -> Iterator[Due]:
            state = self._sliced(state)
            spine = state.spine
            passed = basing.last_passed(state, end)
            first = spine.range(SpineId(0, passed))
            folded = Frontier() if not first else first[-1].batch.bounds.upper.just_before().meet(since)
            if passed and not _is_one(state, first, folded):
                yield from self._base(state, passed)
            for held in spine.slices:
                members = spine.range(held.id)
                if held.id.lo >= passed and held.id.lo < end and not _is_one(state, members):
                    yield Due(bounded(members, policy), rewrite=True)
            yield from map(Due, self._history(state, self._taken(state)))
            levels = list(spine.levels(end))
            apart = any(batch.rows and spine.sliced < batch.id.lo < end for batch in spine.batches)
            if apart or not _is_one(state, levels, since):
                yield from self._gathered(end)
            if spine.next_id == end and (head := basing.due_at_head(state)):
                yield Due(head)

        report = self._merge(find, None)
        self._follow(report, looked_up)
        return report

    def base_at_head(self) -> MaintenanceReport:
        """Make a base at the end of what is closed, whether it pays or not."""
        self._apply_decided()
        Drainer(self._shard).run()
        end = self._shard.known().spine.next_id
        return self._merge(lambda state: self._base(state, end), None)

    def bring_out_inline(self) -> MaintenanceReport:
        """Merge inline parts into stored ones, to make room in the state."""
        policy = Policy.idle(self._shard.spec.config)

        def find(state: ShardState) -> Iterator[Due]:
            return (Due(one, True) for one in inline_requests(state.spine, policy, self._taken(state)))

        return self._merge(find, None)

    def relieve(self, runs_max: int) -> MaintenanceReport:
        """Merge until at most `runs_max` runs are unmerged, or other processes are merging the rest."""
        policy = Policy.idle(self._shard.spec.config)

        def find(state: ShardState) -> Iterator[Due]:
            if unmerged(state.spine) > runs_max:
                yield from map(Due, requests(state.spine, policy, self._taken(state)))

        # Writers wait, so what makes the most room for its cost comes first, and in one commit.
        report, going = MaintenanceReport(), True
        while going:
            state = self._shard.known()
            found = [due.request for due in find(state)]
            merges = self._compactor.merge_tiny(cheapest(found, unmerged(state.spine) - runs_max // 2))
            report = reduce(MaintenanceReport.plus, merges, report)
            going = any(merge.applied for merge in merges)
        return self._merge(find, None, report)

    def within_budget(self, seconds: float) -> MaintenanceReport:
        """Maintain after an append: do merges that are short enough, or one chunk of a longer one."""
        clock, policy = self._shard.env.clock, Policy.busy(self._shard.spec.config)
        deadline_s = clock.monotonic_s() + seconds
        Drainer(self._shard).run(int(seconds * _ROWS_PER_S))
        chunk_rows = max(1, int(seconds * _ROWS_PER_S))

        def find(state: ShardState) -> Iterator[Due]:
            left_s, now_ms = deadline_s - clock.monotonic_s(), clock.now_ms()
            # Own merges, and those whose claims expired: a process that only appends may end at any time.
            begun = {
                claim.id: request
                for claim in state.claims.values()
                if claim.runner == self._shard.runner or claim.expires_ms <= now_ms
                if (request := maintenance.begun_merge(state, claim))
            }
            held = [c.id for c in state.claims.values() if now_ms < c.expires_ms or c.id in begun]
            state = self._sliced(state)
            found = [*requests(state.spine, policy, held), *self._history(state, held)]
            yield from (Due(request) for request in found if request.rows <= left_s * _ROWS_PER_S)
            if left_s < seconds / 2:
                return
            for request in begun.values():
                yield Due(request, rewrite=True, chunk_rows=chunk_rows)
            rows_max = _CHUNKS_MAX * chunk_rows
            if held:
                return
            yield from (Due(r, chunk_rows=chunk_rows) for r in found if r.rows <= rows_max)
            for due in self._for_space(state, state.spine.next_id, thorough=False):
                if due.request.rows <= rows_max:
                    yield replace(due, chunk_rows=chunk_rows)
            levels = list(state.spine.levels())
            rows = sum(member.batch.rows for member in levels)
            if policy.rows_min <= rows <= rows_max and (
                must_merge_all(levels, state.since) or has_tail(levels, _TAIL_BUSY)
            ):
                for due in self._gathered(state.spine.next_id):
                    yield replace(due, chunk_rows=chunk_rows)

        return self._merge(find, seconds)

    def due(self, state: ShardState) -> list[MergeRequest]:
        """The merges that would begin now beside appends, in a state. No store call."""
        taken = self._taken(state)
        return [
            *requests(state.spine, Policy.busy(self._shard.spec.config), taken),
            *self._history(state, taken),
        ]

    def _sliced(self, state: ShardState) -> ShardState:
        """The state once its slices are cut, and `since` has put a base in the place of what is older."""
        least = self._shard.spec.config.slice_rows
        cut = partial(slices.cut_slices, least=least)
        for command in (cut, basing.begin_with_base):
            # Asked of the known state first: a command that changes nothing costs a look at the log.
            if isinstance(command(state, self._shard.env.clock.now_ms()), Commit):
                self._shard.run(command)
                state = self._shard.known()
        return state

    def _history(self, state: ShardState, taken: Sequence[SpineId]) -> Iterator[MergeRequest]:
        """Slices that are to be cut by time, and the next base that is due, but for what others work on."""
        least = self._shard.spec.config.slice_rows
        base = basing.due(state) or basing.due_by_reads(state, self._shard.group_commit.merged.rows(state))
        for request in chain(slices.long_slices(state, least), () if base is None else (base,)):
            if not any(id_.overlaps(request.id) for id_ in taken):
                yield request

    def _for_space(self, state: ShardState, end: int, *, thorough: bool) -> Iterator[Due]:
        """The base that takes the place of all that `since` has passed, if too little of that is live."""
        hi = basing.last_passed(state, end)
        members = state.spine.range(SpineId(0, hi))
        whole = hi == state.spine.next_id
        if must_merge_all(members, state.since, thorough=thorough) or (
            thorough and whole and self._is_scattered(members)
        ):
            yield from self._base(state, hi)

    def _base(self, state: ShardState, hi: int) -> Iterator[Due]:
        found = basing.request(state, hi, saves=0)
        if found is not None:
            yield Due(found)

    def _forget_old_bases(self) -> None:
        """Forget the bases that are not as they would be made today, and all later ones."""
        state = self._shard.known()
        old = [base.hi for base in state.bases if not all(_as_stored(state, run) for run in base.runs)]
        if old:
            his = tuple(base.hi for base in state.bases if base.hi >= old[0])
            self._shard.run(partial(basing.forget_bases, his=his))

    def _is_scattered(self, members: Sequence[Member]) -> bool:
        """Whether too many updates of an idle shard are outside the largest run of these members."""
        rows = sum(member.batch.rows for member in members)
        whole = rows <= self._shard.spec.config.merge_whole_rows
        runs = sum(len(member.batch.runs) for member in members)
        return runs > 1 if whole else has_tail(members, _TAIL_AT_REST)

    def _gathered(self, end: int) -> Iterator[Due]:
        """Put all members into one spine batch, and request the merge of the members before an id."""
        self._shard.run(maintenance.collapse_levels)
        found = everything(self._shard.known().spine, Policy.idle(self._shard.spec.config), end)
        if found is not None:
            yield Due(found, rewrite=True)

    def _merge(
        self, find: Find, seconds: float | None, before: MaintenanceReport | None = None
    ) -> MaintenanceReport:
        """Carry out merges that `find` finds, one after the other, until none or no time is left."""
        clock = self._shard.env.clock
        started_s = clock.monotonic_s()
        report, refused, late = before or MaintenanceReport(), set[str](), False
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
                # It must not prevent the other merges; after some of these its sum may fit.
                failed[due.request.inputs] = error
                merge = NOT_MERGED
            if merge.unfinished:
                late = True
                break
            report = report.plus(merge, base=due.request.base is not None)
            if merge.unpaid:
                self._shard.env.recorder.count("base.unpaid")
            elif merge.applied and due.request.base is not None:
                self._shard.env.recorder.count("base.made")
            if not merge.applied and not merge.unpaid:
                refused.add(due.request.inputs)
                self._shard.state()
            late = seconds is not None and clock.monotonic_s() - started_s > seconds
        for inputs in left:
            if inputs in failed:
                raise failed[inputs]
        seconds_spent = clock.monotonic_s() - started_s
        # Merges of other processes are not done yet: the processes may die.
        complete = not late and not refused and not self._taken(self._shard.known())
        return replace(report, seconds=seconds_spent, complete=complete)

    def _taken(self, state: ShardState) -> list[SpineId]:
        return claims.taken(state, self._shard.env.clock.now_ms(), self._shard.runner)


def _first(found: Iterator[Due], refused: Collection[str]) -> tuple[Due | None, list[str]]:
    """The first merge that was not refused, and the inputs of the merges before it."""
    passed: list[str] = []
    for due in found:
        if due.request.inputs not in refused:
            return due, passed
        passed.append(due.request.inputs)
    return None, passed


def _is_one(state: ShardState, members: Sequence[Member], since: Frontier | None = None) -> bool:
    """Whether members are at most one run, as it would be stored today and, if given, advanced to `since`."""
    runs = [(member.batch, run) for member in members for run in member.batch.runs]
    if len(runs) != 1:
        return not runs
    ((batch, run),) = runs
    return _as_stored(state, run) and (since is None or since <= batch.bounds.since)


def _as_stored(state: ShardState, run: Run) -> bool:
    """Whether a run is of the newest schema, whole, and the shard's own.

    A run with parts that a fork has borrowed is not: a merge makes parts of the fork's own.
    """
    return not run.truncated and all(
        part.rewrite is None
        and part.schema_id == state.schema_id
        and (part.inline is not None or not is_borrowed(part.name, state.shard_id))
        for part in run.parts
    )

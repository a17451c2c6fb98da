"""Random histories with runners that merge, die, wake up late and overlap: the oracle, and the guarantees."""

import uuid

import hypothesis.strategies as st
import pytest
import test_against_oracle
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, rule

import inside
from clocks import MovedClock
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.lake.api.lake import Lake
from tidelake.model.frontier import Frontier
from tidelake.model.query import Fold
from tidelake.shard.runs import read
from tidelake.shard.runs.read import Source
from tidelake.state.spine.spine import SpineId
from tidelake.state.upkeep.basing import last_passed
from tidelake.store.url import Stores, open_stores
from tidelake.testing import tables
from tidelake.testing.oracle import Oracle, canonical
from tiers import examples

CLAIM_S = 10.0
UNSURE = {
    "log.compare_and_set": {Fault.UNKNOWN_BEFORE: 0.3, Fault.UNKNOWN_AFTER: 0.3},
    "blob.put": {Fault.UNAVAILABLE: 0.1},
    "blob.delete": {Fault.UNAVAILABLE: 0.1, Fault.UNKNOWN_AFTER: 0.1},
}


def configs():
    """Limits so small that nearly every merge is claimed, cut into chunks and done in several passes."""
    return st.builds(
        Config,
        part_target_bytes=st.just(1024),
        row_group_rows=st.just(2),
        merge_chunk_rows=st.just(16),
        fold_rows=st.sampled_from((1, 1, 8)),
        inline_part_bytes=st.sampled_from((0, 0, 1024)),
        inline_total_bytes=st.just(8192),
        merge_claim_rows=st.integers(0, 8),
        merge_claim_s=st.just(CLAIM_S),
        merge_fan_in=st.integers(2, 4),
        merge_inputs_min=st.integers(2, 3),
        merge_rows_min=st.just(0),
        merge_budget_s=st.sampled_from((0.0, 0.25)),
        slice_rows=st.sampled_from((2, 5, 20, 16_384)),
        runs_max=st.just(4),
        rollup_bytes_min=st.sampled_from((1024, 65536)),
    )


def runs_of(members):
    return sum(len(member.batch.runs) for member in members)


@pytest.mark.promise(
    "1 to 5, on random histories of int and tuple times, with crashes, expiring claims and two runners",
    rule="`shard/upkeep/maintain.py`, `state/spine/merging.py`, `state/spine/space.py`",
    also=["shard/upkeep/test_maintain_properties.py", "state/test_spine_properties.py"],
)
class Maintained:
    """Rules of maintenance, for a machine of `test_against_oracle`."""

    @initialize(config=configs())
    def start(self, config):
        self.url, self.config = f"memory://{uuid.uuid4().hex}", config
        self.ahead_ms = 0
        self.c = self.opened().create("c", tables.SCHEMA, key=tables.KEY, time=str(self.domain))
        start = Frontier.of(self.domain.minimum)
        self.oracle = Oracle(start, start)
        self.plan = FaultPlan()
        self.runner = self.opened(self.plan).collection("c")

    def teardown(self):
        if hasattr(self, "c"):
            self.comes_to_rest()

    def opened(self, plan=None):
        clock = MovedClock()
        clock.ms += self.ahead_ms
        env = Env(clock=clock, recorder=Counters())
        stores = open_stores(self.url, self.config, env, create=True)
        if plan is not None:
            stores = Stores(FaultyBlobStore(stores.blobs, plan), FaultyVersionLog(stores.log, plan))
        return Lake(self.url, stores, self.config, env)

    def later_by(self, seconds):
        self.ahead_ms += int(seconds * 1000)
        for collection in (self.c, self.runner):
            inside.shard(collection).env.clock.ms += int(seconds * 1000)

    @rule()
    def reopen(self):
        self.c = self.opened().collection("c")

    @rule(seconds=st.sampled_from((CLAIM_S / 4, CLAIM_S)))
    def time_passes(self, seconds):
        self.later_by(seconds)

    @rule()
    def merge(self):
        left = {claim.runner for claim in self.c.state().claims.values()} - {inside.shard(self.c).runner}
        self.c.merge()
        if not left:
            spine = self.c.state().spine
            levels = list(spine.levels())
            assert len(levels) <= 2  # the merged one, and what is empty at the end
            assert sum(len(member.batch.runs) for member in levels) <= 1
            assert not spine.unmerged

    @rule(thorough=st.booleans())
    def maintain(self, thorough):
        report = self.c.maintain(thorough=thorough)
        if report.complete:
            self.check_rows()
            if thorough:
                self.check_rest()

    @rule(thorough=st.booleans())
    def another_maintains(self, thorough):
        assert self.runner.maintain(thorough=thorough).refused == 0

    @rule(calls=st.integers(0, 40), fault=st.sampled_from((Fault.CRASH_BEFORE, Fault.CRASH_AFTER)))
    def another_crashes(self, calls, fault):
        self.plan.follow([*[Fault.NONE] * calls, fault])
        try:
            self.runner.merge()
        except SimulatedCrash:
            self.plan.restart()
            self.runner = self.opened(self.plan).collection("c")
        self.plan.follow([])

    @rule(seed=st.integers(0, 2**16), everything=st.booleans())
    def another_is_left_unsure(self, seed, everything):
        unsure = FaultPlan(seed, {}, UNSURE)
        runner = self.opened(unsure).collection("c")
        try:
            if everything:
                runner.merge()
            else:
                runner.maintain()
        except (StoreUnavailable, OutcomeUnknown):
            assert unsure.total()

    @invariant()
    def answers_are_those_of_the_oracle(self):
        if not hasattr(self, "runner"):
            return
        closed = [t for t in self.probe_times() if not self.oracle.upper.less_equal(t)]
        readable = [t for t in closed if self.oracle.since.less_equal(t)]
        for time in {*readable[:1], *readable[-1:]}:
            got = tables.netted(self.c.snapshot(time).read_all(), self.domain, time)
            assert got == self.oracle.snapshot(time)

    @invariant()
    def what_the_state_names_is_stored(self):
        if hasattr(self, "runner"):
            state = self.c.state()
            parts = [part for member in state.spine for part in member.batch.parts()]
            parts += [part for base in state.bases for part in base.parts()]
            parts += [part for recorded in state.chunks.values() for part in recorded]
            stored = {blob.name for blob in inside.shard(self.c).stores.blobs.list(f"{self.c.id}/parts/")}
            assert {part.name for part in parts if part.inline is None} <= stored

    def comes_to_rest(self):
        """An idle shard, with one process left that maintains it."""
        # Longer than any runner has slept between two tries.
        self.later_by(100 * CLAIM_S)
        assert self.c.maintain().complete
        self.check_rows()
        self.check_rest()
        spine = self.c.state().spine
        assert not spine.merges
        assert spine.totals.runs <= sum(1 for batch in spine.all_batches() if batch.rows)
        assert runs_of(spine.levels()) <= self.c.state().written.appended_rows.bit_length() + 3
        assert self.c.maintain().merges == 0
        self.check_bases()

    def check_bases(self):
        """Together they have at most as many rows as came; the one at the head may be one more."""
        state = self.c.state()
        rows = [sum(part.rows for part in base.parts()) for base in state.bases]
        if rows and state.bases.get(state.spine.next_id) is not None:
            rows.pop()
        assert sum(rows) <= state.written.appended_rows

    def live(self, lower=None, upper=None):
        """(row, time) -> diff, consolidated at since; of these times only."""
        live = {}
        for row, time, diff in self.oracle.updates:
            if (lower is None or lower.less_equal(time)) and (upper is None or not upper.less_equal(time)):
                key = (row, self.oracle.since.advance(time))
                live[key] = live.get(key, 0) + diff
        return {key: diff for key, diff in live.items() if diff}

    def within(self, state):
        """Members that take little space together, and the live updates of their times.

        These are all before the last boundary that `since` has passed, and those of the levels.
        """
        spine = state.spine
        passed = last_passed(state, spine.next_id)
        members = list(spine.range(SpineId(0, passed)))
        if members:
            yield members, self.live(upper=members[-1].batch.bounds.upper)
        if spine.sliced >= passed:
            lower = spine.slices[-1].bounds.upper if spine.slices else None
            yield list(spine.levels()), self.live(lower)

    def check_rows(self):
        for members, live in self.within(self.c.state()):
            rows = sum(member.batch.rows for member in members)
            assert runs_of(members) <= 1 or rows <= 2 * len(live)

    def check_rest(self):
        state = self.c.state()
        assert runs_of(state.spine.levels()) <= 2 * (1 + state.written.appended_rows.bit_length())
        assert not state.claims or all(
            claim.expires_ms > inside.shard(self.c).env.clock.now_ms() for claim in state.claims.values()
        )
        since = self.oracle.since
        for members, live in self.within(state):
            for row, time, diff in self.stored_updates(members, state):
                if diff < 0 and (time in since.elements or not since.less_equal(time)):
                    # Where no two updates differ in their times alone they need not be advanced.
                    assert live.get((row, since.advance(time))) == diff

    def stored_updates(self, members, state):
        shard = inside.shard(self.c)
        for member in members:
            for run in member.batch.runs:
                needed = [Source.of(run, member.batch)]
                for batch in read.rows(shard.version().spec, shard.stores.blobs, needed, Fold(state.minimum)):
                    for row, time, diff in tables.updates(batch, self.domain):
                        yield tuple(canonical(value) for value in row), time, diff


class IntMachine(Maintained, test_against_oracle.IntMachine):
    pass


class TupleMachine(Maintained, test_against_oracle.TupleMachine):
    pass


TestInts = IntMachine.TestCase
TestTuples = TupleMachine.TestCase
TestInts.settings = TestTuples.settings = settings(max_examples=examples(60), stateful_step_count=25)

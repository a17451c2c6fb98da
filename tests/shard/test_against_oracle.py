"""Random appends, stages, seals, since downgrades, merges, reopenings and reads against the oracle."""

import uuid

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import tidelake
from tidelake.config import Config
from tidelake.errors import HistoryCompacted, NotYetClosed, UpdateBeforeLower, UpperMismatch, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.model.time import TimeDomain
from tidelake.shard.runs import plan
from tidelake.state.core.invariants import check_state
from tidelake.testing import strategies, tables
from tidelake.testing.oracle import Oracle, canonical
from tiers import examples

# So small that a handful of rows makes several parts, row groups, chunks and stitches.
CONFIGS = (
    Config(part_target_bytes=1024, row_group_rows=2, merge_chunk_rows=16, fold_rows=1, rollup_bytes_min=2048),
    Config(part_target_bytes=4096, row_group_rows=3, merge_chunk_rows=24, fold_rows=8, rollup_bytes_min=4096),
    # Slices of a few rows, and bases between them.
    Config(
        slice_rows=2, part_target_bytes=1024, row_group_rows=2, merge_chunk_rows=16, rollup_bytes_min=2048
    ),
    Config(slice_rows=8, fold_rows=1, merge_claim_rows=4, merge_chunk_rows=16, merge_fan_in=3),
    # Staged batches are brought together soon, and what is closed is drained by maintenance only.
    Config(runs_max=4, merge_budget_s=0, part_target_bytes=1024, row_group_rows=2, rollup_bytes_min=2048),
    Config(),
)


@pytest.mark.promise(
    "After an erasure every read at every time, also of forks, is as if the rows had never been; "
    "and what was under way brings none back",
    rule="`state/life/erasing.py`, `shard/upkeep/eraser.py`",
    also=[
        "shard/test_against_oracle.py",
        "lake/api/test_erase.py::test_whatever_is_under_way_brings_nothing_back",
        "lake/api/test_erase.py::test_the_rows_leave_the_forks_and_their_forks",
    ],
)
@pytest.mark.promise(
    "Snapshot, changes, updates and listen answer as the oracle does, for int and tuple times, "
    "before and after merges",
    rule="`data/kernel/select.py`, `data/kernel/merge.py`",
    also=[
        "shard/test_against_oracle.py",
        "spark/reading/test_frames.py::test_reads_equal_the_oracle_before_and_after_a_merge",
    ],
)
@pytest.mark.promise(
    "Reads of random histories with slices of a few rows answer as the oracle does",
    rule="`shard/runs/read.py`",
    also=[
        "shard/test_against_oracle.py",
        "shard/test_evolution_against_oracle.py",
        "shard/writing/test_batches_against_oracle.py",
    ],
)
class Machine(RuleBasedStateMachine):
    domain = TimeDomain("counter")
    ahead = 3

    @initialize(config=st.sampled_from(CONFIGS))
    def start(self, config):
        plan._TASK_BYTES_MIN = 1  # so that a handful of rows is cut into several tasks
        self.url, self.config = f"memory://{uuid.uuid4().hex}", config
        lake = tidelake.open(self.url, config=config)
        self.c = lake.create("c", tables.SCHEMA, key=tables.KEY, time=str(self.domain))
        start = Frontier.of(self.domain.minimum)
        self.oracle = Oracle(start, start)

    def teardown(self):
        plan._TASK_BYTES_MIN = 1024 * 1024

    @rule()
    def reopen(self):
        self.c = tidelake.open(self.url, config=self.config).collection("c")

    def later(self, data):
        """A frontier at or after the upper."""
        steps = data.draw(strategies.frontiers(self.domain, self.ahead))
        raised = [
            self.plus(a, b)
            for a in self.oracle.upper
            for b in (steps if not steps.closed else [self.domain.minimum])
        ]
        return Frontier.of_all(raised)

    def plus(self, a, b):
        return a + b

    def drawn_updates(self, data, lower, upper):
        """Random updates with times of `[lower, upper)`."""
        open_times = [t for t in self.probe_times() if lower.less_equal(t) and not upper.less_equal(t)]
        if not open_times:
            return []
        update = st.tuples(strategies.rows(), st.sampled_from(open_times), strategies.diffs())
        return data.draw(st.lists(update, max_size=12))

    def probe_times(self):
        top = max([0, *self.oracle.upper]) + self.ahead + 1
        return list(range(top))

    def record(self, updates, upper):
        rows = [(tuple(canonical(v) for v in row), time, diff) for row, time, diff in updates]
        self.oracle.append(rows, upper)

    @rule(data=st.data())
    def compare_and_append(self, data):
        lower, upper = self.oracle.upper, self.later(data)
        updates = self.drawn_updates(data, lower, upper)
        self.c.compare_and_append(tables.table(updates, self.domain), lower, upper)
        self.record(updates, upper)

    @rule(data=st.data())
    def compare_and_append_elsewhere_is_refused(self, data):
        upper = self.later(data)
        if upper != self.oracle.upper:
            with pytest.raises(UpperMismatch):
                self.c.compare_and_append(tables.table([], self.domain), upper, upper.join(upper))

    @rule(data=st.data())
    def append_what_overlaps(self, data):
        """Writers of the same data: what lies before the upper is in already, and is dropped."""
        upper = self.later(data)
        lower = Frontier.of(self.domain.minimum)
        updates = self.drawn_updates(data, lower, upper)
        self.c.append(tables.table(updates, self.domain), lower=lower, upper=upper)
        if not upper <= self.oracle.upper:
            self.record([u for u in updates if self.oracle.upper.less_equal(u[1])], upper)

    @rule(data=st.data())
    def append_below_upper_is_refused(self, data):
        closed = [t for t in self.probe_times() if not self.oracle.upper.less_equal(t)]
        if closed:
            update = (data.draw(strategies.rows()), data.draw(st.sampled_from(closed)), 1)
            end = self.later(data)
            with pytest.raises(UpdateBeforeLower):
                self.c.append(tables.table([update], self.domain), upper=end)

    @rule(data=st.data())
    def stage(self, data):
        """At open times, which stay open: reads of closed times do not see it."""
        updates = self.drawn_updates(data, self.oracle.upper, Frontier())
        if not self.oracle.upper.closed:
            self.c.stage(tables.table(updates, self.domain))
            self.record(updates, self.oracle.upper)

    @rule(data=st.data())
    def stage_below_upper_is_refused(self, data):
        closed = [t for t in self.probe_times() if not self.oracle.upper.less_equal(t)]
        if closed and not self.oracle.upper.closed:
            updates = self.drawn_updates(data, self.oracle.upper, Frontier())
            late = (data.draw(strategies.rows()), data.draw(st.sampled_from(closed)), 1)
            with pytest.raises(UpdateBeforeLower) as refused:
                self.c.stage(tables.table([*updates, late], self.domain))
            assert refused.value.time == late[1]

    @rule(data=st.data())
    def seal(self, data):
        to = self.later(data)
        assert self.c.seal(to).upper == to
        self.oracle.upper = to

    @rule()
    def maintain(self):
        self.c.maintain()
        state = self.c.state()
        assert state.drained == state.upper

    @rule(data=st.data())
    def erase(self, data):
        """Erases the keys of some rows that were written, and of one row that may not be there."""
        there = [row for row, _, _ in self.oracle.updates]
        rows = [data.draw(strategies.rows())]
        rows += data.draw(st.lists(st.sampled_from(there), max_size=3)) if there else []
        keys = {tuple(canonical(value) for value in row[:2]) for row in rows}
        before = self.c.state().written.appended_rows
        self.c.erase([dict(zip(tables.KEY, key, strict=True)) for key in keys], reason="asked for")
        self.oracle.erase(keys)
        assert self.c.state().written.appended_rows == before
        assert all(not one.keys and one.seqno for one in self.c.erasures().values())

    @rule(data=st.data())
    def snapshot_with_what_is_staged(self, data):
        readable = [t for t in self.probe_times() if self.oracle.since.less_equal(t)]
        if readable:
            time = data.draw(st.sampled_from(readable))
            got = tables.netted(self.c.snapshot(time, staged=True).read_all(), self.domain, time)
            assert got == self.oracle.snapshot(time)

    @rule(data=st.data())
    def changes_with_what_is_staged(self, data):
        readable = [t for t in self.probe_times() if self.oracle.since.less_equal(t)]
        if readable:
            after = data.draw(st.sampled_from(readable))
            through = data.draw(st.sampled_from([t for t in readable if Frontier.of(after).less_equal(t)]))
            got = self.c.changes(after, through, staged=True).read_all()
            assert tables.netted(got, self.domain, through) == self.oracle.changes(after, through)

    @rule(data=st.data())
    def updates_with_what_is_staged(self, data):
        lower = data.draw(strategies.frontiers(self.domain, 8))
        if self.oracle.since == Frontier.of(self.domain.minimum) or self.oracle.since.keeps_times_from(lower):
            got = self.c.updates(lower, Frontier(), staged=True).read_all()
            assert tables.by_time(got, self.domain) == self.oracle.between(lower, Frontier())

    @rule(data=st.data())
    def advance_since(self, data):
        upper = self.oracle.upper
        # Mostly a frontier that is allowed: only then do later merges fold and later reads get refused.
        closed = [t for t in self.probe_times() if not upper.less_equal(t)] or [self.domain.minimum]
        allowed = st.lists(st.sampled_from(closed), min_size=1, max_size=2).map(Frontier.of_all)
        target = data.draw(st.one_of(allowed, allowed, strategies.frontiers(self.domain, 8)))
        # Of tuples each may leave times to read, and both together none.
        both = self.oracle.since.join(target)
        if both != self.oracle.since and all(upper.less_equal(t) for t in both):
            with pytest.raises(UsageError, match="nothing could be read"):
                self.c.advance_since(target)
            return
        assert self.c.advance_since(target) == both
        self.oracle.since = both

    @rule()
    def merge(self):
        self.c.merge()
        spine = self.c.state().spine
        # What is empty at the end stays as it is.
        assert sum(len(member.batch.runs) for member in spine.levels()) <= 1
        for held in spine.slices:
            assert sum(len(member.batch.runs) for member in spine.range(held.id)) <= 1

    @rule(data=st.data())
    def snapshot(self, data):
        time = data.draw(st.sampled_from(self.probe_times()))
        if not self.oracle.since.less_equal(time):
            with pytest.raises(HistoryCompacted):
                self.c.snapshot(time)
        elif self.oracle.upper.less_equal(time):
            with pytest.raises(NotYetClosed):
                self.c.snapshot(time, timeout_s=0)
        else:
            got = tables.netted(self.c.snapshot(time).read_all(), self.domain, time)
            assert got == self.oracle.snapshot(time)

    @rule(data=st.data())
    def changes(self, data):
        readable = [
            t
            for t in self.probe_times()
            if self.oracle.since.less_equal(t) and not self.oracle.upper.less_equal(t)
        ]
        if readable:
            after = data.draw(st.sampled_from(readable))
            through = data.draw(st.sampled_from([t for t in readable if Frontier.of(after).less_equal(t)]))
            got = tables.netted(self.c.changes(after, through).read_all(), self.domain, through)
            assert got == self.oracle.changes(after, through)

    @rule(data=st.data())
    def updates(self, data):
        lower = data.draw(strategies.frontiers(self.domain, 8))
        upper = self.oracle.upper.join(lower)
        minimum = Frontier.of(self.domain.minimum)
        if self.oracle.since == minimum or self.oracle.since.keeps_times_from(lower):
            got = tables.by_time(self.c.updates(lower, upper).read_all(), self.domain)
            assert got == self.oracle.between(lower, upper)
        else:
            with pytest.raises(HistoryCompacted):
                self.c.updates(lower, upper)

    @rule(parallelism=st.integers(2, 5))
    def planned_read(self, parallelism):
        """The same answer from tasks of disjoint key ranges, one after the other."""
        minimum = Frontier.of(self.domain.minimum)
        if self.oracle.since == minimum:
            planned = self.c.distributed.plan(Updates(minimum, self.oracle.upper), parallelism)
            batches = [b for t in planned.tasks for b in plan.run_task(t)]
            table = pa.Table.from_batches(batches, planned.schema)
            assert tables.by_time(table, self.domain) == self.oracle.between(minimum, self.oracle.upper)

    @invariant()
    def the_state_keeps_every_rule(self):
        if hasattr(self, "c"):
            state = self.c.state()
            check_state(state)
            assert (state.upper, state.since) == (self.oracle.upper, self.oracle.since)


class IntMachine(Machine):
    @rule(data=st.data())
    def append_at_commit(self, data):
        rows = data.draw(st.lists(strategies.rows(), min_size=1, max_size=6))
        at = self.oracle.upper.elements[0]
        whole = tables.table([(row, 0, 1) for row in rows], self.domain)
        answer = self.c.append(whole.drop_columns(["_time", "_diff"]))
        assert (answer.lower, answer.upper) == (Frontier.of(at), Frontier.of(at + 1))
        self.record([(row, at, 1) for row in rows], answer.upper)

    @rule(timeout=st.just(0.0))
    def listen(self, timeout):
        """Every time after the start, once, also when it comes in several steps."""
        start = self.oracle.since.elements[0]
        if self.oracle.since != Frontier.of(0) and not self.oracle.since.keeps_times_from(
            Frontier.past(start)
        ):
            return
        seen = {}
        at = Frontier.past(start)
        for step in self.c.listen(start, timeout_s=timeout):
            assert step.lower == at
            at = step.upper
            found = tables.by_time(step.updates.read_all(), self.domain)
            assert not (seen.keys() & found.keys())
            seen.update(found)
        assert seen == self.oracle.between(Frontier.past(start), self.oracle.upper)


class TupleMachine(Machine):
    domain = TimeDomain("tuple", 2)
    ahead = 2

    def plus(self, a, b):
        return tuple(x + y for x, y in zip(a, b, strict=True))

    def probe_times(self):
        top = max([0, *(x for t in self.oracle.upper for x in t)]) + self.ahead
        return [(a, b) for a in range(top) for b in range(top)][:64]


TestInts = IntMachine.TestCase
TestTuples = TupleMachine.TestCase
TestInts.settings = TestTuples.settings = settings(max_examples=examples(150), stateful_step_count=25)

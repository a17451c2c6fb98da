"""Stages, seals, appends and drains in any order, judged by the list of all updates that were taken."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_states import Shard, part
from writes import append, seal, stage

from tidelake.errors import UpdateBeforeLower
from tidelake.model.batch import Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain, join, meet
from tidelake.state.core import codec
from tidelake.state.core.commands import Commit, NoOp, open_writer
from tidelake.state.core.edits import Delta, apply
from tidelake.state.life.dropping import drop_shard
from tidelake.state.upkeep.maintenance import collapse_levels
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.staging import Split, drain, splits
from tidelake.state.write.write import AtCommit, Exactly, UpTo
from tidelake.testing.oracle import Oracle
from tiers import examples

COUNTER, PAIRS = TimeDomain("counter"), TimeDomain("tuple", 2)
LAST = 5


class World:
    """A shard whose parts have rows, kept aside by the names of the parts."""

    def __init__(self, domain):
        self.domain, self.shard = domain, Shard(domain)
        self.first = self.shard.state
        self.oracle = Oracle(self.first.upper, self.first.since)
        self.rows, self.deltas, self.splits, self.made = {}, [], [], 0
        commit = self.shard.commit

        def noted(edits, now_ms=10):
            before = self.shard.state
            commit(edits, now_ms)
            self.deltas.append((before, edits, self.shard.state))

        self.shard.commit = noted

    @property
    def state(self):
        return self.shard.state

    def run_of(self, updates):
        """A run of one part with these updates."""
        self.made += 1
        name = f"p{self.made}"
        self.rows[name] = list(updates)
        times = [time for _, time, _ in updates]
        first, last = times[0], times[0]
        for time in times:
            first, last = meet(first, time), join(last, time)
        diffs = [diff for _, _, diff in updates]
        return Run((part(name, first, last, rows=len(updates), diff_sum=sum(diffs)),))

    def read(self, batches, keep):
        """What some batches hold of the times that are kept, netted."""
        found = Counter()
        for batch in batches:
            for run in batch.runs:
                for one in run.parts:
                    for row, time, diff in self.rows[one.name]:
                        seen = time if one.rewrite is None else join(time, one.rewrite)
                        if keep(seen) and (not run.truncated or batch.bounds.contains(seen)):
                            found[row, seen] += diff
        return Counter({key: diff for key, diff in found.items() if diff})

    def open_times(self, times):
        return [time for time in times if self.state.upper.less_equal(time)]

    def updates(self, times):
        return [((f"r{n % 3}",), time, -1 if n % 4 == 3 else 1 + n % 2) for n, time in enumerate(times)]

    # --- What clients do ---

    def stage(self, times, _):
        closed = [time for time in times if not self.state.upper.less_equal(time)]
        updates = self.updates(times)
        if closed:
            before = self.state
            if self.domain.total_order:
                error = self.shard.refused(stage, (self.run_of(updates),), Frontier.of(self.domain.minimum))
                assert isinstance(error, UpdateBeforeLower) and error.time == min(closed)
            assert self.state is before
            updates = self.updates(self.open_times(times))
        if not updates:
            return
        # As the uploader checks it against the rows.
        assert self.shard.do(stage, (self.run_of(updates),), self.state.upper).result is True
        self.oracle.updates += updates

    def seal(self, times, _):
        if not times:
            return
        to = Frontier.of_all(times)
        assert self.shard.do(seal, to).result.upper == self.state.upper.join(to)
        self.oracle.upper = self.oracle.upper.join(to)

    def stage_and_seal(self, times, _):
        """In one step: staged times are open when they come, and perhaps closed afterwards."""
        updates = self.updates(self.open_times(times))
        end = reached(self.state.upper, times[:2])
        runs = (self.run_of(updates),) if updates else ()
        outcome = self.shard.do(stage, runs, self.state.upper, seal_to=end)
        assert outcome.result is bool(updates) or self.oracle.upper.closed
        if not self.oracle.upper.closed:
            self.oracle.append(updates, end)

    def append(self, times, _):
        lower = self.state.upper
        end = reached(lower, times)
        updates = self.updates(t for t in self.open_times(times) if not end.less_equal(t))
        runs = (self.run_of(updates),) if updates else ()
        self.shard.do(append, runs, Exactly(lower, end))
        self.oracle.append(updates, end)

    def append_up_to(self, times, _):
        lower = Frontier.of(self.domain.minimum)
        end = reached(self.state.upper, times)
        updates = self.updates(t for t in times if not end.less_equal(t))
        before = self.state.upper
        runs = (self.run_of(updates),) if updates else ()
        outcome = self.shard.do(append, runs, UpTo(lower, end))
        if isinstance(outcome, Commit):
            self.oracle.append([u for u in updates if before.less_equal(u[1])], end)

    def append_at_commit(self, times, _):
        if not self.domain.total_order or self.state.upper.closed:
            return
        floor = times[0] if times else 0
        run = self.run_of([(("c",), floor, 1)])
        done = self.shard.do(append, (run,), AtCommit(floor)).result
        self.oracle.append([(("c",), done.upper.elements[0] - 1, 1)], done.upper)

    def split(self, times, number):
        """A drainer reads batches to drain, or to combine, and writes them in two."""
        state = self.state
        if number % 3 == 2 and len(state.staged) > 1:
            names, upper = tuple(one.name for one in list(state.staged)[: 2 + number % 2]), state.drained
        else:
            names, upper = splits(state), state.upper
        if state.drained == state.upper and upper != state.drained:
            return
        batches = [state.staged.batches[name].batch for name in names]
        runs = []
        for keep in (lambda t: not upper.less_equal(t), upper.less_equal):
            found = [(row, time, diff) for (row, time), diff in self.read(batches, keep).items()]
            runs.append((self.run_of(found),) if found else ())
        self.splits.append(Split(names, upper, *runs, self.shard.state.seqno))

    def drain(self, times, number):
        """What a drainer wrote, perhaps long ago, is put in its place, if it still has one."""
        if not self.splits:
            return
        split = self.splits[number % len(self.splits)]
        before = self.state
        outcome = self.shard.do(drain, split)
        there = all(name in before.staged.batches for name in split.names)
        if isinstance(outcome, NoOp):
            assert self.state is before
            assert not there or not before.drained <= split.upper
        else:
            assert there and split.upper <= self.state.drained
            self.splits.remove(split)

    def collapse(self, times, number):
        self.shard.do(collapse_levels)

    # --- What must hold ---

    def check(self):
        state = self.state
        assert state.upper == self.oracle.upper
        everything = Frontier.of(self.domain.minimum), Frontier()
        assert self.read(state.batches(), lambda _: True) == self.oracle.between(*everything)
        spine = [member.batch for member in state.spine]
        drained = state.drained
        assert self.read(spine, lambda _: True) == self.oracle.between(everything[0], drained)
        assert self.read(spine, drained.less_equal) == Counter()

    def check_replay(self):
        """The deltas, by way of bytes, lead to the same states; a whole state does as well."""
        for before, edits, after in self.deltas:
            sent = Delta("s", before.seqno + 1, after.committed_ms, "n", edits.rollup or before.rollup, edits)
            assert apply(before, codec.decode_delta(codec.encode_delta(sent), "s")) == after
        assert codec.decode_state(codec.encode_state(self.state), "s") == self.state


def reached(lower, times):
    """A frontier at or after `lower`, past the times."""
    for time in times:
        lower = lower.join(Frontier.past(time)) if len(times) % 2 else lower.join(Frontier.of(time))
    return lower


def run(domain, steps):
    world = World(domain)
    for name, times, number in steps:
        if name == "drop":
            continue
        getattr(world, name)(times, number)
        world.check()
    world.check_replay()
    return world


KINDS = [
    "stage", "stage", "stage", "stage_and_seal", "seal", "seal", "append", "append_up_to", "append_at_commit",
    "split", "split", "drain", "drain", "collapse",
]  # fmt: skip


def steps_of(times):
    return st.lists(
        st.tuples(st.sampled_from(KINDS), st.lists(times, max_size=4), st.integers(0, 5)), max_size=25
    )


@pytest.mark.promise(
    "Every update is in one place, staged or in the spine, after stages, seals, appends, gathers "
    "and drains in any order; with tuple times too",
    rule=(
        "`state/write/staging.py`; `staged-is-open`, `staged-holds-rows`, `staged-numbered`, "
        "`drained-up-to-upper`"
    ),
    also=[
        "::test_every_update_is_in_one_place_with_times_that_are_tuples",
        "state/test_invariants.py::test_each_rule_refuses_the_step_that_breaks_it",
    ],
)
@settings(max_examples=examples(300))
@given(steps_of(st.integers(0, 12)))
def test_every_update_is_in_one_place_whatever_is_staged_sealed_and_drained(steps):
    run(COUNTER, steps)


@settings(max_examples=examples(200))
@given(steps_of(st.tuples(st.integers(0, LAST), st.integers(0, LAST))))
def test_every_update_is_in_one_place_with_times_that_are_tuples(steps):
    run(PAIRS, steps)


@settings(max_examples=examples(100))
@given(steps_of(st.integers(0, 12)))
def test_once_all_is_split_and_drained_the_spine_has_all_closed_times(steps):
    world = run(COUNTER, steps)
    for _ in range(2):
        world.splits.clear()
        world.split((), 0)
        world.drain((), 0)
        world.check()
    assert world.state.drained == world.state.upper


@settings(max_examples=examples(50))
@given(steps_of(st.integers(0, 12)))
def test_a_drop_leaves_nothing_staged(steps):
    world = run(COUNTER, steps)
    parts = {one.name for one in world.state.parts()}
    world.shard.do(drop_shard, force=True)
    assert not len(world.state.staged) and parts <= world.shard.garbage
    world.check_replay()


# --- Case by case ---


def world_of(*staged, domain=COUNTER):
    world = World(domain)
    for times in staged:
        world.stage(list(times), 0)
    return world


def test_batches_wholly_below_a_seal_come_into_the_spine_with_it():
    world = world_of([1, 2], [7, 9], [0, 3])
    world.seal([4], 0)
    assert world.state.drained == world.state.upper and len(world.state.staged) == 1
    world.check()


def test_a_seal_of_times_without_updates_names_no_part():
    world = world_of([7])
    world.seal([5], 0)
    assert not world.state.spine.totals.runs and world.state.drained == Frontier.of(5)


def test_a_seal_that_comes_between_the_reading_and_the_drain_takes_the_spine_to_the_new_upper():
    world = world_of([1, 9])
    world.seal([4], 0)
    world.split((), 0)
    world.seal([6], 0)
    world.drain((), 0)
    assert world.state.drained == Frontier.of(6)
    world.check()


def test_what_cancels_out_while_it_is_brought_together_lets_the_spine_reach_the_upper():
    world = World(COUNTER)
    for diff in (1, -1):
        updates = [(("r",), 2, diff), (("r",), 9, diff)]
        world.shard.do(stage, (world.run_of(updates),), world.state.upper)
        world.oracle.updates += updates
    world.seal([4], 0)
    names = tuple(one.name for one in world.state.staged)
    assert world.shard.do(drain, Split(names, world.state.drained, (), (), world.state.seqno)).result is True
    assert world.state.drained == Frontier.of(4)
    world.check()


def test_a_drain_of_batches_that_are_gone_changes_nothing():
    world = world_of([1, 9])
    world.seal([4], 0)
    world.split((), 0)
    again = world.splits[0]
    world.drain((), 0)
    assert world.shard.do(drain, again).result is False


def test_what_was_read_before_its_upload_expired_is_not_drained():
    world = world_of([1, 9])
    world.seal([4], 0)
    world.split((), 0)
    world.shard.state = replace(world.state, sweep=replace(world.state.sweep, floor=99))
    (split,) = world.splits
    old = replace(split.below[0].parts[0], name=f"s/parts/{1:016x}-{1:032x}.parquet")
    assert world.shard.do(drain, replace(split, below=(Run((old,)),))).result is False


def test_a_part_that_moves_into_the_spine_keeps_the_seqno_since_which_it_is_read():
    world = world_of([1, 2])
    staged_at = world.state.seqno
    world.append([9], 0)
    world.seal([10], 0)
    members = {one.name: m.added for m in world.state.spine for one in m.batch.parts()}
    assert members["p1"] == staged_at


def test_seal_never_goes_back():
    world = world_of([1])
    world.seal([5], 0)
    before = world.state
    outcome = world.shard.do(seal, Frontier.of(3))
    assert isinstance(outcome, NoOp) and outcome.result.already and world.state is before


def test_a_claim_stages_once():
    world = World(COUNTER)
    world.shard.do(open_writer, "w")
    idempotency = IdempotencyKey("w", 0, 0)
    first, second = world.run_of([(("r",), 3, 1)]), world.run_of([(("r",), 3, 1)])
    assert world.shard.do(stage, (first,), world.state.upper, idempotency).result is True
    outcome = world.shard.do(stage, (second,), world.state.upper, idempotency)
    assert isinstance(outcome, NoOp) and outcome.result is False
    assert [one.name for one in world.state.parts()] == ["p1"]


@pytest.mark.parametrize("domain", [COUNTER, PAIRS])
def test_what_is_staged_lies_in_bounds_that_begin_at_the_upper_that_it_was_checked_against(domain):
    world = World(domain)
    world.stage([domain.minimum], 0)
    (one,) = world.state.staged
    assert one.batch.bounds == Bounds(world.state.upper, Frontier(), world.state.minimum)

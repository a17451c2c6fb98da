"""What holds for every history of a spine: its size, the size of its steps, and what maintenance leaves."""

from collections import Counter, defaultdict
from math import log2
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_rows import RealShard
from shard_states import STATS, F, hollow, run

from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.core import codec
from tidelake.state.core.batchrules import validate
from tidelake.state.core.edits import Delta, Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.state import FIRST
from tidelake.state.spine import fuel
from tidelake.state.spine.merging import Policy, requests
from tidelake.state.spine.space import must_merge_all
from tidelake.state.spine.spine import Spine
from tidelake.state.upkeep.maintenance import exert_fuel
from tidelake.state.write.write import AtCommit, Exactly
from tiers import examples


def entries(edit) -> int:
    """How many entries of the flattened form a step touches."""
    return sum(
        len(group)
        for group in (
            edit.members_gone,
            edit.members,
            edit.batches_gone,
            edit.batches,
            edit.merges_gone,
            edit.merges,
        )
    )


SIZES = st.one_of(st.just(0), st.just(1), st.integers(0, 100), st.integers(0, 2**40))


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(SIZES, st.integers(1, 30), st.sampled_from([0, 0, 1, 64])), max_size=12))
def test_there_are_few_spine_batches_and_a_step_changes_few_entries(history):
    spine, total, at = Spine(), 0, 0
    for rows, times, exerted in history:
        for _ in range(times):
            runs = (run(f"p{spine.next_id}", rows=rows),) if rows else ()
            step = fuel.push(spine, hollow(at, at + 1, *runs), F(0), 1)
            at += 1
            spine, total = spine.edited(step.edit), total + rows
            bound = log2(total + 1) + 3
            assert len(spine.batches) <= 2 * bound and len(spine.merges) <= bound
            assert entries(step.edit) <= 7 * bound
        if exerted and (step := fuel.exert(spine, F(0), exerted)):
            spine = spine.edited(step.edit)
            assert len(spine.batches) <= 2 * (log2(total + 1) + 3)
        validate(spine, F(0), F(at), F(0))


@pytest.mark.promise(
    "An insertion into a spine of 10,000 members changes O(log n) entries", rule="`SpineEdit`"
)
@pytest.mark.full
def test_an_insert_into_ten_thousand_batches_is_a_small_step():
    spine, most, largest = Spine(), 0, 0
    for n in range(10_128):
        step = fuel.push(spine, hollow(n, n + 1, run(f"{n:032x}", n, n, stats=STATS)), F(0), n + 1)
        spine = spine.edited(step.edit)
        if n >= 10_000:
            edits = Edits(upper=Move(F(n), F(n + 1)), spine=step.edit)
            most = max(most, entries(step.edit))
            largest = max(largest, len(codec.encode_delta(Delta("s" * 32, n + 1, n, "n" * 32, FIRST, edits))))
    assert len(spine) == 10_128 and len(spine.batches) <= 2 * log2(10_000)
    assert 3 <= most <= 4 * log2(10_000)
    assert 500 < largest < 8 * 1024


def test_collapse_costs_a_few_entries_whatever_the_levels_are():
    # Three levels at the top, of which results have left a row each, and a row that comes late.
    spine = Spine()
    for n, rows in enumerate((2**42, 2**41, 2**40, 1)):
        spine = spine.edited(fuel.push(spine, hollow(n, n + 1, run(f"p{n}", rows=rows)), F(0), 1).edit)
    assert [batch.level for batch in spine.batches] == [42, 41, 40, 0]
    shrunk = [hollow(n, n + 1, run(f"q{n}")) for n in range(4)]
    members = [type(m)(m.id, batch) for m, batch in zip(spine, shrunk, strict=True)]
    batches = tuple(type(b)(b.id, b.level, b.bounds, 1) for b in spine.batches)
    spine = Spine.of(4, spine.spent, members, batches, ())
    step = fuel.collapse(spine, F(0))
    after = spine.edited(step.edit)
    assert (after.next_id, len(after.batches), after.batches[0].level) == (4, 1, 2)
    assert fuel.collapse(after, F(0)) is None


INTS, TUPLES = TimeDomain(), TimeDomain("tuple", 2)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "since", "merge", "heartbeat", "exert", "maintain"]),
        st.integers(0, 2**32),
    ),
    min_size=1,
    max_size=40,
)
POLICIES = st.builds(
    Policy,
    st.integers(2, 6),
    st.sampled_from([0, 4, 20]),
    st.sampled_from([2, 2, 8, 99]),
    st.sampled_from([0, 0, 20, 10**6]),
)
EAGER = st.builds(Policy, st.integers(2, 6), st.sampled_from([0, 4, 20]))


def grown(domain, events, policy) -> RealShard:
    """A shard after some events; all rules are checked after each."""
    shard = RealShard(domain, Random(0))
    for name, seed in events:
        random = shard.random = Random(seed)
        if name in ("append", "heartbeat"):
            append = append_ints if domain.total_order else append_tuples
            append(shard, random, runs=0 if name == "heartbeat" else random.choice([1, 1, 1, 2, 3, 6]))
        elif name == "since":
            shard.downgrade(a_since(random, shard))
        elif name == "exert":
            shard.do(exert_fuel, random.choice([1, 8, 200]))
        elif name == "maintain":
            shard.maintain(policy, thorough=True)
        elif asked := list(requests(shard.state.spine, Policy(random.randint(2, 4), 0))):
            shard.merge(random.choice(asked))
        shard.state = codec.decode_state(codec.encode_state(shard.state), "state")
        assert shard.folded(shard.rows) == shard.folded(shard.history)
    return shard


def updates(random, inside):
    """A function that draws one: of few keys or many, that come and go, or mostly come."""
    keys, diffs = random.choice([1, 6, 40]), random.choice([[1, -1], [1, 1, 1, 2, -1], [-1], [1]])
    return lambda: ((random.randrange(keys), random.choice(inside)), random.choice(diffs))


def append_ints(shard, random, *, runs):
    (lower,) = shard.state.upper.elements
    if random.random() < 0.2:
        floor = random.randint(0, lower)
        shard.append(AtCommit(floor), runs, updates(random, [floor]))
    else:
        end = lower + random.randint(1, 8)
        inside = range(lower, end)
        shard.append(Exactly(F(lower), F(end)), runs, updates(random, inside))


def append_tuples(shard, random, *, runs):
    """Times of a rectangle at the minimum that grows to one or both sides."""
    lower = shard.state.upper
    x = max((t[0] for t in lower), default=0) + random.randint(0, 2)
    y = max((t[1] for t in lower), default=0) + random.randint(0, 2)
    upper = lower.join(Frontier.of((x + 1, 0), (0, y + 1)))
    square = [(i, j) for i in range(x + 1) for j in range(y + 1)]
    inside = [t for t in square if lower.less_equal(t) and not upper.less_equal(t)]
    shard.append(Exactly(lower, upper), runs, updates(random, inside))


def a_since(random, shard):
    last = shard.state.upper.elements
    if shard.domain.total_order:
        return F(random.randint(0, max(last[0] - 1, 0)))
    x, y = random.randint(0, max(t[0] for t in last)), random.randint(0, max(t[1] for t in last))
    return random.choice([F((x, y)), Frontier.of((x, y + 1), (x + 1, y))])


def check_bound(shard):
    """Stored rows are at most twice the live ones, or one run."""
    live = len(shard.folded(shard.history))
    assert len(shard.rows) <= 2 * live or len(shard.runs) <= 1, (len(shard.rows), live)


def check_no_cancelled_retraction(shard):
    """No stored retraction meets another stored row where since has brought them together."""
    together = defaultdict(list)
    for (key, time), diff in shard.rows:
        together[key, shard.since.advance(time)].append((time, diff))
    for (_, at), rows in together.items():
        moved = any(time != at for time, _ in rows) or at in shard.since.elements
        assert len(rows) == 1 or not moved or all(diff > 0 for _, diff in rows), rows


def check_maintained(shard, policy, *, thorough):
    shard.maintain(policy, thorough=thorough)
    assert not must_merge_all(list(shard.state.spine), shard.since, thorough=thorough)
    assert next(requests(shard.state.spine, policy), None) is None
    assert shard.folded(shard.rows) == shard.folded(shard.history)
    check_bound(shard)
    if thorough:
        check_no_cancelled_retraction(shard)
    assert shard.maintain(policy, thorough=thorough) == 0


@settings(max_examples=examples(300))
@given(EVENTS, POLICIES, st.booleans())
def test_maintenance_ends_and_leaves_at_most_twice_the_live_rows(events, policy, thorough):
    shard = grown(INTS, events, policy)
    check_maintained(shard, policy, thorough=thorough)


@settings(max_examples=examples(200))
@given(EVENTS, POLICIES, st.booleans())
def test_maintenance_does_the_same_for_tuples(events, policy, thorough):
    shard = grown(TUPLES, events, policy)
    check_maintained(shard, policy, thorough=thorough)


@settings(max_examples=examples(100))
@given(EVENTS, EAGER, st.sampled_from([INTS, TUPLES]))
def test_maintenance_that_merges_all_it_can_leaves_a_run_for_each_spine_batch(events, policy, domain):
    shard = grown(domain, events, policy)
    check_maintained(shard, policy, thorough=True)
    spine = shard.state.spine
    for batch in spine.batches:
        assert sum(len(member.batch.runs) for member in spine.range(batch.id)) <= 1
    assert max(Counter(batch.level for batch in spine.batches).values(), default=0) <= 2

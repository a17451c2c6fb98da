"""Batches built in all ways, rewritten, narrowed, sent as bytes and appended together, against the oracle."""

from collections import Counter
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from shards import Place, stored

import inside
from tidelake.config import Config
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain, join
from tidelake.shard.writing.batch import Batch
from tidelake.state.core.invariants import check_state
from tidelake.testing import strategies, tables
from tidelake.testing.oracle import Oracle, canonical, rank
from tiers import examples, some

# So that every stored part is named by the state.
NOTHING_MERGED = {"merge_budget_s": 0, "runs_max": 10**6}
CONFIGS = [
    Config(
        part_target_bytes=1024,
        row_group_rows=2,
        merge_chunk_rows=16,
        fold_rows=1,
        inline_part_bytes=inline,
        upload_parts_max=depth,
        builder_runs_max=runs,
        merge_fan_in=fan_in,
        **NOTHING_MERGED,
    )
    for inline, depth, runs, fan_in in [(0, 1, 1, 2), (1_500, 2, 2, 2), (2_500, 3, 3, 16), (4_096, 2, 8, 4)]
]
CONFIGS += [Config(**NOTHING_MERGED), Config(slice_rows=4, row_group_rows=2, **NOTHING_MERGED)]
INT, PAIR = TimeDomain("counter"), TimeDomain("tuple", 2)


def later(data, domain, frontier, ahead=3):
    """A frontier at or after another one."""
    steps = data.draw(strategies.frontiers(domain, ahead))
    if steps.closed:
        return frontier
    if domain.total_order:
        return Frontier.of(frontier.elements[0] + steps.elements[0])
    return Frontier.of_all(tuple(x + y for x, y in zip(a, b, strict=True)) for a in frontier for b in steps)


def times_of(domain, lower, upper):
    top = 14 if domain.total_order else 7
    all_ = range(top) if domain.total_order else [(a, b) for a in range(top) for b in range(top)]
    return [t for t in all_ if lower.less_equal(t) and not upper.less_equal(t)]


def many_updates(times):
    """Up to 150 updates: more than Hypothesis would draw one by one, and enough for several parts."""

    def made(count, seed):
        pick = Random(seed).choice
        columns = (
            strategies.TEXTS,
            strategies.INTS,
            strategies.FLOATS,
            strategies.DECIMALS,
            strategies.LISTS,
        )
        return [
            (tuple(pick(values) for values in columns), pick(times), pick((1, 1, -1, 2, 1000, -(2**40))))
            for _ in range(count)
        ]

    return st.builds(made, st.sampled_from([0, 1, 3, 20, 60, 150]), st.integers(0, 2**32))


def built(data, collection, domain, lower, upper):
    """A batch of random updates of `[lower, upper)`, and these."""
    times = times_of(domain, lower, upper)
    updates = data.draw(many_updates(times)) if times else []
    is_sorted = data.draw(st.booleans())
    if is_sorted and data.draw(st.booleans()):
        updates.sort(key=lambda u: ([rank(canonical(v)) for v in u[0]], u[1]))
    size = data.draw(st.sampled_from([1, 5, 17, 1000]))
    with collection.builder(lower, sorted=is_sorted) as builder:
        for start in range(0, len(updates), size):
            added = builder.add(tables.table(updates[start : start + size], domain))
            assert added.rows == len(updates[start : start + size])
        batch = builder.finish(upper)
    assert batch.runs <= inside.shard(collection).spec.config.builder_runs_max
    assert (batch.bounds.lower, batch.bounds.upper) == (lower, upper)
    return batch, [(tuple(canonical(v) for v in row), time, diff) for row, time, diff in updates]


def check_append(data, collection, domain, oracle):
    """Names of the parts that were sent: what an append leaves out of these stays for other copies."""
    lower, upper = oracle.upper, later(data, domain, oracle.upper)
    batches, expected, sent = [], [], set()
    if lower == upper:
        return sent
    minimum = Frontier.of(domain.minimum)
    for _ in range(data.draw(st.integers(1, 3))):
        exact = data.draw(st.booleans())
        rewrite = domain.total_order and data.draw(st.booleans())
        # A batch that will be rewritten may end before the append does; others may only be wider.
        end = upper if exact or rewrite else later(data, domain, upper)
        if rewrite:
            end = Frontier.of(data.draw(st.integers(1, upper.elements[0])))
        start = end.meet(lower if exact else minimum)
        batch, updates = built(data, collection, domain, start, end)
        if rewrite:
            at = 0
            for _ in range(data.draw(st.integers(1, 2))):
                least = max(at, lower.elements[0], start.elements[0])
                at = data.draw(st.integers(least, upper.elements[0] - 1))
                batch.rewrite_times(Frontier.of(at), upper)
            updates = [(row, join(time, at), diff) for row, time, diff in updates]
        if data.draw(st.booleans()):
            batch = collection.distributed.batch_from_bytes(batch.to_bytes())
            sent.update(batch.part_names)
        batches.append(batch)
        expected += [u for u in updates if lower.less_equal(u[1]) and not upper.less_equal(u[1])]
    collection.distributed.append_batches(batches, lower=lower, upper=upper)
    oracle.append(expected, upper)
    return sent


def check_reads(collection, domain, oracle):
    minimum = Frontier.of(domain.minimum)
    found = tables.by_time(collection.updates(minimum, oracle.upper).read_all(), domain)
    assert found == oracle.between(minimum, oracle.upper)
    for time in times_of(domain, minimum, oracle.upper)[-3:]:
        assert tables.netted(collection.snapshot(time).read_all(), domain, time) == oracle.snapshot(time)


@pytest.mark.promise(
    "A batch holds exactly the added rows, however it is built, rewritten, narrowed, sent and appended",
    rule="`shard/writing/builder.py`, `state/write/narrowing.py`",
    also=["shard/writing/test_batches_against_oracle.py"],
)
@pytest.mark.parametrize("domain", some([INT, PAIR], 2), ids=str)
@settings(max_examples=examples(20))
@given(data=st.data(), config=st.sampled_from(CONFIGS))
def test_batches_in_any_form_hold_what_was_added(domain, data, config):
    place = Place()
    collection = place.lake(config=config).create("c", tables.SCHEMA, key=tables.KEY, time=str(domain))
    oracle = Oracle(Frontier.of(domain.minimum), Frontier.of(domain.minimum))
    sent = set()
    for _ in range(data.draw(st.integers(1, 4))):
        sent |= check_append(data, collection, domain, oracle)
    state = collection.state()
    check_state(state)
    check_reads(collection, domain, oracle)
    parts = [p for item in state.spine for p in item.batch.parts()]
    assert stored(place, collection) - sent == {p.name for p in parts if p.inline is None} - sent
    for part in parts:
        assert sum(rows for _, rows in part.time_counts) == (part.rows if domain.total_order else 0)
    for tidy in (collection.maintain, collection.merge):
        tidy()
        check_state(collection.state())
        check_reads(collection, domain, oracle)


@pytest.mark.promise(
    "Sorted input becomes one run; unsorted input is never read in wrong order",
    rule="`data/kernel/rowbuffer.py`, `shard/writing/builder.py`",
    also=["shard/writing/test_builder.py::test_sorted_input_is_one_run_and_disorder_makes_another"],
)
@settings(max_examples=examples(30))
@given(
    updates=many_updates([0, 1, 2, 3]),
    config=st.sampled_from(CONFIGS),
    size=st.sampled_from([1, 7, 1000]),
)
def test_sorted_input_becomes_one_run(updates, config, size):
    updates.sort(key=lambda u: ([rank(canonical(v)) for v in u[0]], u[1]))
    collection = Place().lake(config=config).create("c", tables.SCHEMA, key=tables.KEY)
    with collection.builder(0, sorted=True) as builder:
        for start in range(0, len(updates), size):
            builder.add(tables.table(updates[start : start + size], INT))
        batch = builder.finish(Frontier.of(4))
    expected = Counter()
    for row, time, diff in updates:
        expected[tuple(canonical(v) for v in row), time] += diff
    assert batch.runs == (1 if any(expected.values()) else 0)
    # Not only is nothing in wrong order: no two parts hold the same update.
    assert batch.rows == sum(1 for diff in expected.values() if diff)
    assert isinstance(batch, Batch)
    collection.distributed.append_batches([batch], lower=0, upper=4)
    assert tables.by_time(collection.updates(0, 4).read_all(), INT) == Counter(
        {key: diff for key, diff in expected.items() if diff}
    )

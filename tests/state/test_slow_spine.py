"""The spine decides what a slow and plain one decides, whatever happens to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_states import F, hollow, run
from slow_spine import SlowSpine

from tidelake.model.frontier import Frontier
from tidelake.state.core.batchrules import validate
from tidelake.state.spine import fuel
from tidelake.state.spine.merging import MergeResult, placed, request
from tidelake.state.spine.spine import Spine, SpineId
from tiers import examples

SIZES = st.one_of(
    st.sampled_from([0, 0, 1, 1, 1, 2]), st.integers(0, 40), st.sampled_from([64, 100, 512, 3000, 2**20])
)
STEPS = st.one_of(
    st.tuples(st.just("push"), SIZES),
    st.tuples(st.just("pushes"), st.integers(1, 20), st.sampled_from([0, 1, 1, 2, 5])),
    st.tuples(st.just("since"), st.integers(0, 3)),
    st.tuples(st.just("exert"), st.integers(1, 4000)),
    st.tuples(st.just("replace"), *[st.floats(0, 1)] * 5),
)


def time_of(frontier: Frontier) -> int:
    (time,) = frontier.elements
    return time


def seen_by_levels(spine: Spine):
    members = {
        b.id: [(*m.id, time_of(m.batch.bounds.since), m.batch.rows) for m in spine.range(b.id)]
        for b in spine.batches
    }
    batches = [
        (b.level, *b.id, time_of(b.bounds.lower), time_of(b.bounds.upper), time_of(b.bounds.since))
        for b in spine.batches
    ]
    merges = [
        (level, *m.id, time_of(m.since), max(m.done_at - spine.spent, 0))
        for m in spine.merges
        for level in [next(b.level for b in spine.batches if m.id.covers(b.id))]
    ]
    return list(zip(batches, members.values(), strict=True)), merges


def seen_by_model(slow: SlowSpine):
    batches, merges = [], []
    for i, level in reversed(list(enumerate(slow.levels))):
        for b in level.batches:
            batches.append(((i, *b.span, b.since), [(h.lo, h.hi, h.since, h.rows) for h in b.hollow]))
        if len(level.batches) == 2:
            span = (level.batches[0].span[0], level.batches[1].span[1])
            merges.append((i, *span, level.since, level.remaining_work))
    return batches, merges


class Both:
    def __init__(self):
        self.spine, self.slow, self.names = Spine(), SlowSpine(), 0

    def push(self, rows):
        upper = self.slow.upper
        self.names += 1
        runs = (run(f"p{self.names}", upper, upper, rows=rows),) if rows else ()
        step = fuel.push(self.spine, hollow(upper, upper + 1, *runs), F(self.slow.since), 1)
        self._agree(step, self.slow.push(upper + 1, rows))

    def pushes(self, count, rows):
        for _ in range(count):
            self.push(rows)

    def since(self, by):
        self.slow.since += by

    def exert(self, by):
        step = fuel.exert(self.spine, F(self.slow.since), by)
        self._agree(step, self.slow.exert(by))

    def replace(self, which, first, last, kept, folded):
        """A merge of some members of a spine batch comes in."""
        if not self.spine.batches:
            return
        batch = self.spine.batches[int(which * (len(self.spine.batches) - 1))]
        members = list(self.spine.range(batch.id))
        members = members[int(first * (len(members) - 1)) :]
        members = members[: 1 + int(last * (len(members) - 1))]
        rows = int(kept * sum(m.batch.rows for m in members))
        earliest = max(time_of(m.batch.bounds.since) for m in members)
        since = earliest + int(folded * (self.slow.since - earliest))
        self.names += 1
        output = run(f"m{self.names}", rows=rows) if rows else None
        asked = request(members)
        fit, edit = placed(
            self.spine, MergeResult(asked.id, (), asked.inputs, F(since), output), F(self.slow.since), 1
        )
        assert edit is not None, fit
        self.spine = self.spine.edited(edit)
        self.slow.replace(*asked.id, rows, since)

    def _agree(self, step, requested):
        due = () if step is None else step.due
        bounds = [(time_of(d.bounds.lower), time_of(d.bounds.upper), time_of(d.bounds.since)) for d in due]
        assert [((*d.id, *b[:2]), b[2]) for d, b in zip(due, bounds, strict=True)] == requested
        if step is not None:
            self.spine = self.spine.edited(step.edit)


@pytest.mark.promise(
    "The levels do what the fueled spine does: same batches, same merges, same remaining work",
    rule="`state/spine/fuel.py`",
    also=["state/test_slow_spine.py", "state/test_spine_transcripts.py", "state/spine/*.txt"],
)
@settings(max_examples=examples(250))
@given(st.lists(STEPS, max_size=60))
def test_levels_merges_and_requests_are_those_of_the_slow_model(steps):
    both = Both()
    for name, *arguments in steps:
        getattr(both, name)(*arguments)
        assert seen_by_levels(both.spine) == seen_by_model(both.slow)
        validate(both.spine, F(0), F(both.slow.upper), F(both.slow.since))


def test_a_long_history_of_single_rows_stays_the_same():
    both = Both()
    both.pushes(2000, 1)
    assert seen_by_levels(both.spine) == seen_by_model(both.slow)
    assert both.spine.batches[0].id == SpineId(0, 1024)

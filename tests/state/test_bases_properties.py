"""Histories of rows that come and go, with every base that is due: what reads touch, what bases take."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from shard_states import F, run
from sliced_shards import SlicedShard
from writes import append

from tidelake.model.query import AsOf
from tidelake.state.core.commands import NoOp
from tidelake.state.life.holds import advance_since
from tidelake.state.spine.bases import needed
from tidelake.state.spine.merging import Fit
from tidelake.state.upkeep.basing import add_base, due, due_at_head
from tidelake.state.upkeep.maintenance import apply_merge
from tidelake.state.write.write import Exactly
from tiers import examples

# Of each row; so bytes are saved as rows are.
_BYTES = 10


class History(SlicedShard):
    """A collection in which no row is twice: with `counts`, how many rows each time leaves."""

    def __init__(self):
        super().__init__()
        self.counts = []
        self.unpaid = {}

    def step(self, come, gone):
        """A batch of so many rows that come, and of as many that go, if there are as many."""
        held = self.counts[-1] if self.counts else 0
        gone, at = min(gone, held), len(self.counts)
        rows = come + gone
        fields = {"rows": rows, "negative_rows": gone, "diff_sum": come - gone, "size_bytes": _BYTES * rows}
        runs = (run(f"p{at}", at, at, **fields),) if rows else ()
        self.do(append, runs, Exactly(F(at), F(at + 1)))
        self.counts.append(held + come - gone)

    def rest(self):
        """Cut slices and merge each, and make every base that is due."""
        self.cut(8)
        for held in self.state.spine.slices:
            members = list(self.state.spine.range(held.id))
            if held.id.lo in self.state.spine.unmerged and any(m.batch.runs for m in members):
                fields = {
                    "rows": held.rows,
                    "negative_rows": sum(m.batch.negative_rows for m in members),
                    "diff_sum": sum(m.batch.diff_sum for m in members),
                    "size_bytes": _BYTES * held.rows,
                }
                (first,), (end,) = held.bounds.lower.elements, held.bounds.upper.elements
                merged = run(f"m{held.id.lo}", first, end - 1, **fields)
                assert self.do(apply_merge, self.result(*held.id, merged)).result is Fit.EXACT
        while (asked := due(self.state)) is not None:
            self.make(asked)
        asked = due_at_head(self.state)
        if asked is not None:
            self.make(asked)

    def make(self, asked):
        rows = self.counts[asked.base]
        made = self.made(asked.id.hi, rows, asked=asked)
        if rows:
            ((part,),) = (made.runs[0].parts,)
            made = replace(
                made, runs=(replace(made.runs[0], parts=(replace(part, size_bytes=_BYTES * rows),)),)
            )
        if self.do(add_base, made).result is Fit.UNPAID:
            self.unpaid[asked.id.hi] = rows

    def read(self, time):
        return sum(batch.rows for batch in needed(self.state, AsOf(time)).batches)


def check_reads(history):
    spine, bases = history.state.spine, history.state.bases
    allowed = {0: 0}
    for held in spine.slices:
        hi, end = held.id.hi, held.bounds.upper.elements[0]
        base = bases.before(hi)
        since = 0 if base is None else base.hi
        tried = max((rows for at, rows in history.unpaid.items() if since < at <= hi), default=0)
        allowed[end] = 2 * max(history.counts[end - 1], tried, 1)
        assert history.read(end - 1) <= allowed[end]
    for time in range(len(history.counts)):
        end = max(end for end in allowed if end <= time + 1)
        between = [m for m in spine if end <= m.batch.bounds.lower.elements[0] <= time]
        assert history.read(time) <= allowed[end] + sum(m.batch.rows for m in between)


def check_space(history):
    """A base at the head may be one more."""
    spine = history.state.spine
    kept = [sum(run_.rows for run_ in base.runs) for base in history.state.bases if base.hi != spine.next_id]
    assert sum(kept) <= spine.totals.rows


STEPS = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from((0, 0, 1, 3, 12, 99)), st.booleans()), max_size=60
)


@pytest.mark.promise(
    "A snapshot touches at most twice what it answers and one slice, and bases have no more rows "
    "than there are updates, whatever comes and goes",
    rule="`due`, `add_base`",
    also=["::test_upserts_of_few_rows_are_read_in_a_few_rows_however_long_their_history"],
)
@settings(max_examples=examples(150))
@given(STEPS)
def test_a_snapshot_touches_at_most_twice_what_it_answers_and_one_slice(steps):
    """At the end of each slice it touches at most twice what is answered there.

    A time within a slice, or in the levels, is answered by what the last end before it needs, and by the
    updates since. What is answered there may be more or less by these updates than at that end. So where rows
    do not become fewer meanwhile, it is at most twice the answer and that one slice.

    There is one slack: where a base was tried and did not pay, the next one is due where twice its rows would
    be read, though the contents may have become fewer since. That many rows may be read until then.
    """
    history = History()
    for come, gone, rests in steps:
        history.step(come, gone)
        if rests:
            history.rest()
            check_reads(history)
            check_space(history)
    history.rest()
    check_reads(history)
    check_space(history)


@settings(max_examples=examples(40))
@given(st.integers(1, 12), st.integers(30, 60))
def test_upserts_of_few_rows_are_read_in_a_few_rows_however_long_their_history(rows, count):
    history = History()
    history.step(rows, 0)
    for _ in range(count):
        history.step(rows, rows)
        history.rest()
    largest = max(held.rows for held in history.state.spine.slices)
    assert all(history.read(time) <= 2 * rows + largest for time in range(count + 1))
    # Once there are more updates than a slice holds, the newest contents are one run.
    assert history.read(count) == rows
    assert isinstance(history.do(advance_since, F(0)), NoOp)

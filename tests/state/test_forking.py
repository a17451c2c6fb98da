"""Forks: what is kept for them, when they are forgotten, and what a fork begins with."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyrsistent import pmap
from shard_states import EAGER, F, Shard, doom, hollow, indexed_again, part, pushed, run
from writes import append

from tidelake.errors import CollectionDropped, HistoryCompacted, InternalError, LeaseExpired, NotYetClosed
from tidelake.model import names
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.core import forks
from tidelake.state.core.commands import NoOp, open_writer
from tidelake.state.core.edits import Delta, Edits, apply
from tidelake.state.core.forks import fork_pins, is_borrower, lender
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.core.state import Fork, Origin, Retention
from tidelake.state.life.collecting import bury
from tidelake.state.life.dropping import drop_shard, vanished
from tidelake.state.life.forking import forget_fork, forked, free_fork, let_go, note_fork, unmade
from tidelake.state.life.holds import advance_since, open_critical, open_hold, set_retention, settle
from tidelake.state.spine.merging import requests
from tidelake.state.upkeep.maintenance import apply_merge, collapse_levels
from tidelake.state.write.write import AtCommit, Exactly


def name(n, shard="s"):
    return names.part(shard, 0, f"{n:032x}")


def filled(appends=4, domain=None):
    """A shard with a part at each of some times."""
    shard = Shard() if domain is None else Shard(domain)
    for n in range(appends):
        shard.do(append, (run(name(n), n, n),), Exactly(F(n), F(n + 1)))
    return shard


def merged(shard, hi, number, at=0):
    """All members below an id become one run."""
    output = run(name(number), at, hi - 1, rows=hi, diff_sum=hi)
    shard.do(apply_merge, shard.result(0, hi, output, since=shard.state.since))


def a_fork(shard, as_of=None, id_="f"):
    """What a fork of the shard would be, as a shard that commands are run on."""
    fork = Shard()
    fork.state = forked(shard.state, id_, 20, as_of)
    check_state(fork.state)
    return fork


def commit(fork, edits):
    """As `Shard.commit`, of a shard with another id."""
    before = fork.state
    edits = settle(before, edits, 30)
    after = apply(before, Delta(before.shard_id, before.seqno + 1, 30, "n", before.rollup, edits))
    check_step(before, after, edits)
    check_state(after)
    fork.state = after


def do(fork, command, *args, **kwargs):
    outcome = command(fork.state, 30, *args, **kwargs)
    if not isinstance(outcome, NoOp):
        commit(fork, outcome.edits)
    return outcome


# --- What is kept ---


@pytest.mark.promise(
    "Parts that a fork, its readers or its forks need are not deleted",
    rule=(
        "`doom` and `pins-keep-parts` with the pins of forks; `borrowed-from-origin`: who names a "
        "borrowed part has an origin"
    ),
    also=[
        "state/test_invariants.py::test_each_rule_refuses_the_state_that_breaks_it",
        "lake/catalog/test_fork.py::test_a_fork_that_is_merged_lets_go_but_not_while_a_reader_needs_what_it_borrowed",
    ],
)
def test_what_a_fork_needs_is_not_given_up_until_it_is_forgotten():
    shard = filled()
    shard.do(note_fork, fork_id="f", seqno=shard.state.seqno)
    merged(shard, 2, 10)
    shard.do(append, (run(name(4), 4, 4),), Exactly(F(4), F(5)))
    merged(shard, 3, 11)
    # The result of the first merge came after the fork, and went again.
    assert set(shard.do(doom, now_ms=10**6, age_ms=0, names_max=99).result) == {name(10)}
    shard.do(bury, (name(10),))
    assert set(shard.state.garbage) == {name(0), name(1), name(2)}
    assert shard.do(forget_fork, fork_id="f").result is True
    assert set(shard.do(doom, now_ms=10**6, age_ms=0, names_max=99).result) == {name(0), name(1), name(2)}


def test_a_version_that_has_lost_a_part_is_not_forked():
    shard = filled()
    old = shard.state.seqno
    merged(shard, 2, 10)
    shard.do(doom, now_ms=10**6, age_ms=0, names_max=99)
    assert isinstance(shard.refused(note_fork, fork_id="f", seqno=old), LeaseExpired)
    assert isinstance(shard.refused(note_fork, fork_id="f", seqno=shard.state.seqno + 1), LeaseExpired)
    shard.do(note_fork, fork_id="f", seqno=shard.state.seqno)
    assert isinstance(shard.do(note_fork, fork_id="f", seqno=shard.state.seqno), NoOp)


def test_a_fork_that_was_not_noted_is_forgotten_without_a_write():
    assert isinstance(filled().do(forget_fork, fork_id="f"), NoOp)


def test_a_tombstone_keeps_what_its_forks_need_and_only_forgets_them():
    shard = filled()
    shard.do(note_fork, fork_id="f", seqno=shard.state.seqno)
    shard.do(drop_shard)
    assert set(shard.state.forks) == {"f"} and len(shard.state.garbage) == 4
    assert isinstance(shard.refused(note_fork, fork_id="g", seqno=shard.state.seqno), CollectionDropped)
    # What it commits says again that it is one: the newest entry alone tells it.
    assert shard.do(forget_fork, fork_id="f").edits.dropped
    assert shard.state.dropped and not shard.state.forks
    gone = vanished(shard.state)
    assert not gone.forks and gone.origin is None


def test_a_shard_that_has_vanished_keeps_and_needs_nothing():
    shard = filled()
    shard.do(note_fork, fork_id="g", seqno=shard.state.seqno)
    fork = replace(forked(shard.state, "f", 20), forks=shard.state.forks)
    assert not vanished(fork).forks and vanished(fork).origin is None


# --- What a fork begins with ---


def test_a_fork_begins_as_its_origin_without_readers_and_writers():
    shard = filled()
    shard.do(set_retention, Retention(3))
    shard.do(open_writer, "w")
    shard.do(open_hold, "h", "reads", lease_ms=100)
    shard.do(open_critical, "c")
    merged(shard, 2, 10)
    state = shard.state
    fork = forked(state, "f", 99)
    assert (fork.since, fork.upper, fork.retained) == (state.since, state.upper, state.retained)
    assert fork.retention == state.retention and fork.schemas.keys() == state.schemas.keys()
    assert [m.batch for m in fork.spine] == [m.batch for m in state.spine]
    assert fork.spine.batches == state.spine.batches and fork.spine.merges == state.spine.merges
    assert not (fork.writers or fork.holds or fork.critical or fork.garbage or fork.claims or fork.forks)
    assert (fork.seqno, fork.committed_ms, fork.origin) == (0, 99, Origin("s", state.seqno))
    check_state(fork)


def test_a_time_that_cannot_be_read_cannot_be_forked():
    shard = filled()
    shard.do(advance_since, F(2))
    with pytest.raises(HistoryCompacted, match="at 1 is compacted"):
        forked(shard.state, "f", 9, 1)
    with pytest.raises(NotYetClosed):
        forked(shard.state, "f", 9, 4)
    with pytest.raises(NotYetClosed):
        forked(Shard().state, "f", 9, 0)
    assert forked(shard.state, "f", 9, 2).upper == F(3)


def test_history_that_only_a_hold_of_the_origin_keeps_is_let_go_no_further_than_the_fork_goes():
    shard = filled(9)
    shard.do(open_critical, "c", since=F(2))
    shard.do(advance_since, F(7))
    fork = a_fork(shard, as_of=4)
    assert (fork.state.since, fork.state.retained, fork.state.upper) == (F(2), F(4), F(5))
    do(fork, open_writer, "w")
    # Without the hold, the last time of the fork can still be read.
    assert fork.state.since == F(4)


def test_a_batch_is_cut_where_its_times_may_be_later_and_left_out_where_all_do():
    shard = Shard()
    inside, across, beyond = part(name(0), 0, 3), part(name(1), 2, 6), part(name(2), 5, 6)
    shard.do(
        append, (Run((inside, across)), Run((beyond,)), Run((part(name(3), 1, 3),))), Exactly(F(0), F(9))
    )
    shard.do(append, (run(name(4), 9, 9),), Exactly(F(9), F(10)))
    (member,) = a_fork(shard, as_of=4).state.spine
    assert member.batch.bounds.upper == F(5)
    assert member.batch.runs == (Run((inside, across), True), Run((part(name(3), 1, 3),)))
    (whole,) = a_fork(shard, as_of=8).state.spine
    assert whole.batch == next(iter(shard.state.spine)).batch


def test_a_rewritten_part_is_where_it_is_read():
    shard = filled(1)
    shard.do(append, (run(name(1), 1, 1),), AtCommit(1))
    rewritten = part(name(2), 2, 2, rewrite=7)
    batch = hollow(2, 10, Run((rewritten,)))
    late = replace(shard.state, upper=F(10), spine=pushed(shard.state.spine, batch))
    assert [r for m in forked(late, "f", 9, 6).spine for r in m.batch.runs][2:] == []
    assert [r for m in forked(late, "f", 9, 7).spine for r in m.batch.runs][2:] == [Run((rewritten,))]


@given(st.data())
def test_a_cut_spine_keeps_all_rules_and_can_be_written_on(data):
    shard, at = Shard(), 0
    for n in range(data.draw(st.integers(1, 12), "appends")):
        width = data.draw(st.integers(1, 4))
        first = data.draw(st.integers(at, at + width - 1))
        last = data.draw(st.integers(first, at + width - 1))
        rows = data.draw(st.sampled_from((1, 2, 30)))
        runs = (run(name(n), first, last, rows=rows, diff_sum=rows),) if data.draw(st.booleans()) else ()
        shard.do(append, runs, Exactly(F(at), F(at + width)))
        at += width
        if data.draw(st.integers(0, 3)) == 0:
            shard.do(advance_since, F(data.draw(st.integers(0, at - 1))))
        found = list(requests(shard.state.spine, EAGER))
        if found and data.draw(st.booleans()):
            lo, hi = found[0].id
            inside = [m.batch for m in shard.state.spine.range(found[0].id)]
            rows = sum(batch.rows for batch in inside)
            low, high = inside[0].bounds.lower.elements[0], inside[-1].bounds.upper.elements[0] - 1
            output = run(name(100 + n), low, high, rows=rows, diff_sum=rows) if rows else None
            shard.do(apply_merge, shard.result(lo, hi, output, since=shard.state.since))
    as_of = data.draw(st.integers(shard.state.since.elements[0], at - 1), "as_of")
    fork = a_fork(shard, as_of)
    state, end = fork.state, as_of + 1
    assert state.upper == F(end) and state.since == shard.state.since
    kept = {p.name for m in state.spine for p in m.batch.parts()}
    all_parts = [p for m in shard.state.spine for p in m.batch.parts()]
    assert kept == {p.name for p in all_parts if p.time_lower <= as_of}
    reaching = {p.name for m in state.spine for r in m.batch.runs if not r.truncated for p in r.parts}
    assert all(p.time_upper <= as_of or p.name not in reaching for p in all_parts if beyond(p, shard, as_of))
    # It takes batches in, and its merges go on.
    spine = pushed(state.spine, *(hollow_at(end + n) for n in range(5)), since=state.since)
    check_state(indexed_again(replace(state, spine=spine, upper=F(end + 5))))


def beyond(part_, shard, as_of):
    """Whether a part is of a batch that is cut: of others, times may be advanced but not hidden."""
    batch = next(m.batch for m in shard.state.spine if part_ in m.batch.parts())
    return not batch.bounds.upper <= F(as_of + 1)


def hollow_at(time):
    return hollow(time, time + 1, run(name(time, "f"), time, time))


def test_a_cut_of_tuples_closes_what_is_not_after_the_time():
    shard = Shard(TimeDomain("tuple", 2))
    first = (Run((part(name(0), (0, 0), (1, 1)),)), Run((part(name(1), (2, 0), (3, 0)),)))
    start, end = Frontier.of((0, 0)), Frontier.of((4, 0), (0, 2))
    shard.do(append, first, Exactly(start, end))
    shard.do(append, (Run((part(name(2), (0, 2), (0, 5)),)),), Exactly(end, Frontier.of((4, 0), (0, 9))))
    fork = a_fork(shard, as_of=(1, 3)).state
    assert fork.upper == Frontier.of((2, 0), (0, 4))
    one, two = (member.batch for member in fork.spine)
    assert [r.parts[0].name for r in one.runs] == [name(0)] and not one.runs[0].truncated
    assert one.bounds.upper == Frontier.of((2, 0), (0, 2)) and two.runs[0].truncated


# --- Letting go ---


@pytest.mark.parametrize("known", [True, False])
def test_a_fork_lets_go_when_neither_it_nor_its_readers_need_a_borrowed_part(known):
    fork = a_fork(filled(2))
    assert is_borrower(fork.state) and isinstance(let_go(fork.state, 9, known=True), NoOp)
    do(fork, collapse_levels)
    own = run(name(7, "f"), 0, 1, rows=2, diff_sum=2)
    assert do(fork, apply_merge, fork.result(0, 2, own)).result.applied
    assert set(fork.state.garbage) == {name(0), name(1)}
    assert is_borrower(fork.state) and isinstance(let_go(fork.state, 9, known=True), NoOp)
    do(fork, doom, age_ms=0, names_max=9)
    assert is_borrower(fork.state)
    do(fork, bury, (name(0), name(1)))
    assert not is_borrower(fork.state)
    origin = fork.state.origin
    do(fork, let_go, known=known)
    # An origin that was dropped knows it no more.
    assert fork.state.origin == (replace(origin, freed=True) if known else None)
    assert lender(fork.state) is None and isinstance(let_go(fork.state, 9, known=known), NoOp)


def test_an_origin_knows_a_freed_fork_and_keeps_nothing_for_it():
    origin = filled(2)
    do(origin, note_fork, fork_id="f", seqno=origin.state.seqno)
    assert fork_pins(origin.state) == [origin.state.seqno - 1]
    assert do(origin, free_fork, fork_id="f").result is True
    assert [fork.freed for fork in origin.state.forks.values()] == [True] and not fork_pins(origin.state)
    assert free_fork(origin.state, 9, fork_id="f") == NoOp(True)
    assert free_fork(origin.state, 9, fork_id="g") == NoOp(False)


@pytest.mark.parametrize("edits", [Edits(let_go=True), Edits(freed=True)])
def test_letting_go_too_early_breaks_a_rule(edits):
    before = a_fork(filled(2)).state
    after = apply(before, Delta("f", 1, 30, "n", before.rollup, edits))
    with pytest.raises(InternalError, match="rule borrowed-from-origin "):
        check_step(before, after, edits)
    with pytest.raises(InternalError, match="rule borrowed-from-origin "):
        check_state(after)


def test_inline_rows_are_not_borrowed():
    shard = Shard()
    shard.do(append, (run(name(0), 0, 0, inline=b"rows", size_bytes=4),), Exactly(F(0), F(1)))
    fork = a_fork(shard).state
    assert not is_borrower(fork) and not isinstance(let_go(fork, 9, known=False), NoOp)


def test_the_place_of_a_fork_that_was_never_made_is_taken_by_nothing():
    shard = filled()
    shard.do(note_fork, fork_id="f", seqno=shard.state.seqno)
    state = unmade(shard.state, "f", 50)
    check_state(state)
    assert not is_borrower(state) and state.upper == state.minimum and state.origin.shard_id == "s"
    assert state != forked(shard.state, "f", 50)


def test_a_fork_of_a_fork_hangs_on_its_own_origin():
    fork = replace(a_fork(filled(2)).state, seqno=3)
    second = forked(fork, "g", 20)
    assert second.origin == Origin("f", 3) and is_borrower(second)
    # What the second needs keeps the first from letting go.
    noted = replace(fork, forks=pmap({"g": Fork(3, 0)}))
    assert forks.fork_pins(noted) == [3]

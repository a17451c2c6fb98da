"""Commands as pure functions: what they commit, answer and refuse."""

from dataclasses import replace

import pytest

from tidelake.errors import (
    HistoryCompacted,
    IncompatibleSchema,
    LeaseExpired,
    UpdateBeyondUpper,
    UpdateNotBeyondLower,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Column, DataType, Schema
from tidelake.model.time import TimeDomain
from tidelake.state import commands
from tidelake.state.append import AtCommit, Claim, Exactly, UpTo, append
from tidelake.state.commands import Commit, MergeResult, NoOp, Refused
from tidelake.state.invariants import check_state, check_step
from tidelake.state.state import Delta, Rollup, apply

SCHEMA = Schema((Column(0, "k", DataType("int64")),))
F = Frontier.of


def part(name, first=0, last=0, rows=1, diff_sum=1):
    return Part(name, 100, "0" * 32, rows, 0, diff_sum, 0, b"a", b"b", first, last)


def run(name, first=0, last=0, **kwargs):
    return Run((part(name, first, last, **kwargs),))


class Shard:
    """A state that commands are run on, with every check that the machine makes."""

    def __init__(self, domain=TimeDomain("counter")):
        self.state = commands.initial("s", domain, SCHEMA, 5)

    def do(self, command, *args, now_ms=10, **kwargs):
        outcome = command(self.state, now_ms, *args, **kwargs)
        if isinstance(outcome, Commit):
            delta = Delta(
                "s",
                self.state.seqno + 1,
                now_ms,
                "n",
                outcome.edits.rollup or self.state.rollup,
                outcome.edits,
            )
            after = apply(self.state, delta)
            check_step(self.state, after, outcome.edits)
            check_state(after)
            self.state = after
        return outcome

    def refused(self, command, *args, **kwargs):
        before = self.state
        outcome = self.do(command, *args, **kwargs)
        assert isinstance(outcome, Refused)
        assert self.state is before
        return outcome.error


@pytest.fixture
def shard():
    return Shard()


def test_an_exact_append_moves_upper_and_adds_one_batch(shard):
    answer = shard.do(append, (run("p", 1, 3),), Exactly(F(0), F(4))).result
    assert (answer.lower, answer.upper, answer.already) == (F(0), F(4), False)
    assert [item.batch.bounds for item in shard.state.spine] == [Bounds(F(0), F(4), F(0))]


def test_an_exact_append_elsewhere_is_a_mismatch_with_the_current_upper(shard):
    shard.do(append, (), Exactly(F(0), F(4)))
    error = shard.refused(append, (run("p", 5, 5),), Exactly(F(5), F(6)))
    assert isinstance(error, UpperMismatch) and (error.expected, error.current) == (F(5), F(4))


def test_times_outside_the_interval_are_refused_naming_them(shard):
    error = shard.refused(append, (run("p", 1, 3),), Exactly(F(2), F(4)))
    assert isinstance(error, UpdateNotBeyondLower) and (error.time, error.lower) == (1, F(2))
    error = shard.refused(append, (run("p", 1, 4),), Exactly(F(0), F(4)))
    assert isinstance(error, UpdateBeyondUpper) and (error.time, error.upper) == (4, F(4))


def test_a_lower_after_the_upper_is_a_usage_error(shard):
    for when in (Exactly(F(3), F(2)), UpTo(F(3), F(2))):
        assert isinstance(shard.refused(append, (), when), UsageError)


def test_empty_appends_fuse_into_one_batch(shard):
    for t in range(5):
        shard.do(append, (), Exactly(F(t), F(t + 1)))
    assert [(i.lo, i.hi, i.batch.bounds.upper) for i in shard.state.spine] == [(0, 5, F(5))]
    shard.do(append, (run("p", 5, 5),), Exactly(F(5), F(6)))
    shard.do(append, (), Exactly(F(6), F(7)))
    assert [(i.lo, i.hi) for i in shard.state.spine] == [(0, 5), (5, 6), (6, 7)]


def test_an_empty_interval_writes_nothing(shard):
    assert isinstance(shard.do(append, (), Exactly(F(0), F(0))), NoOp)
    error = shard.refused(append, (run("p", 0, 0),), Exactly(F(0), F(0)))
    assert isinstance(error, UpdateBeyondUpper)


def test_append_up_to_narrows_to_what_is_open(shard):
    shard.do(append, (), Exactly(F(0), F(4)))
    runs = (run("gone", 1, 3), run("cut", 2, 5), run("whole", 4, 5))
    answer = shard.do(append, runs, UpTo(F(1), F(6))).result
    assert (answer.lower, answer.upper) == (F(4), F(6))
    (_, item) = shard.state.spine
    assert [(r.parts[0].name, r.truncated, r.diff_sum) for r in item.batch.runs] == [
        ("cut", True, None),
        ("whole", False, 1),
    ]
    assert item.batch.diff_sum is None


def test_append_up_to_a_closed_upper_is_success_and_a_gap_is_refused(shard):
    shard.do(append, (), Exactly(F(0), F(4)))
    assert shard.do(append, (run("p", 1, 2),), UpTo(F(1), F(3))).result.already
    assert isinstance(shard.refused(append, (run("p", 7, 7),), UpTo(F(6), F(8))), UpperMismatch)


def test_an_append_at_commit_takes_upper_and_rewrites_what_was_written_earlier(shard):
    shard.do(append, (run("a", 0, 0),), AtCommit(0))
    answer = shard.do(append, (run("b", 0, 0),), AtCommit(0)).result
    assert (answer.lower, answer.upper) == (F(1), F(2))
    assert [p.rewrite for i in shard.state.spine for p in i.batch.parts()] == [None, 1]
    answer = shard.do(append, (run("c", 9, 9),), AtCommit(9)).result
    assert (answer.lower, answer.upper) == (F(2), F(10))


def test_tuples_have_no_commit_time():
    error = Shard(TimeDomain("tuple", 2)).refused(append, (), AtCommit((0, 0)))
    assert isinstance(error, UsageError)


def test_a_sequence_is_written_once_whatever_comes_again(shard):
    shard.do(commands.open_writer, "w")
    claim = Claim("w", 0, 7)
    assert not shard.do(append, (run("p"),), Exactly(F(0), F(1)), claim).result.already
    for sequence in (7, 6, 0):
        answer = shard.do(append, (run("q"),), Exactly(F(1), F(2)), Claim("w", 0, sequence)).result
        assert answer.already and answer.upper == F(1)
    assert shard.state.writers["w"].sequence == 7


def test_a_claim_with_an_empty_interval_is_remembered_too(shard):
    shard.do(commands.open_writer, "w")
    shard.do(append, (), Exactly(F(0), F(0)), Claim("w", 0, 0))
    assert shard.state.writers["w"].sequence == 0 and shard.state.upper == F(0)


def test_a_number_that_comes_again_with_other_content_is_refused(shard):
    shard.do(commands.open_writer, "w")
    shard.do(append, (run("p"),), Exactly(F(0), F(1)), Claim("w", 0, 0, "files a"))
    assert shard.do(append, (run("p"),), Exactly(F(0), F(1)), Claim("w", 0, 0, "files a")).result.already
    error = shard.refused(append, (run("q"),), Exactly(F(1), F(2)), Claim("w", 0, 0, "files b"))
    assert isinstance(error, UsageError) and "older than the collection" in str(error)


def test_a_later_epoch_fences_the_earlier_one(shard):
    assert shard.do(commands.open_writer, "w").result.epoch == 0
    assert shard.do(commands.open_writer, "w").result.epoch == 1
    error = shard.refused(append, (run("p"),), Exactly(F(0), F(1)), Claim("w", 0, 0))
    assert isinstance(error, WriterFenced) and (error.epoch, error.current_epoch) == (0, 1)
    assert not shard.do(append, (run("p"),), Exactly(F(0), F(1)), Claim("w", 1, 0)).result.already


def test_a_writer_that_was_never_opened_is_refused(shard):
    assert isinstance(shard.refused(append, (), Exactly(F(0), F(1)), Claim("w", 0, 0)), UsageError)


def test_another_owner_must_take_over_and_starts_counting_anew(shard):
    shard.do(commands.open_writer, "w", owner="query-1")
    shard.do(append, (run("p"),), Exactly(F(0), F(1)), Claim("w", 0, 3))
    error = shard.refused(commands.open_writer, "w", owner="query-2")
    assert "query-1" in str(error) and "take_over=True" in str(error)
    record = shard.do(commands.open_writer, "w", owner="query-2", take_over=True).result
    assert (record.epoch, record.sequence) == (1, -1)
    # ... also if the one who took over died before it wrote.
    assert isinstance(shard.refused(commands.open_writer, "w", owner="query-3"), UsageError)
    assert not shard.do(append, (run("q", 1, 1),), Exactly(F(1), F(2)), Claim("w", 1, 0)).result.already


def test_since_is_the_meet_of_what_the_owner_allows_and_readers_hold(shard):
    shard.do(append, (), Exactly(F(0), F(9)))
    shard.do(commands.open_hold, "a", "test")
    shard.do(commands.open_hold, "b", "test", F(3))
    assert shard.do(commands.advance_since, F(5)).result == F(0)
    shard.do(commands.downgrade_hold, "a", F(4))
    assert shard.state.since == F(3)
    shard.do(commands.close_hold, "b")
    assert shard.state.since == F(4)
    shard.do(commands.close_hold, "a")
    assert shard.state.since == F(5)
    assert isinstance(shard.do(commands.advance_since, F(2)), NoOp) and shard.state.since == F(5)


def test_readers_alone_let_no_history_go(shard):
    shard.do(append, (), Exactly(F(0), F(9)))
    shard.do(commands.open_hold, "a", "test")
    shard.do(commands.downgrade_hold, "a", F(7))
    shard.do(commands.open_hold, "b", "test", F(8))
    shard.do(commands.close_hold, "a")
    assert shard.state.since == F(0)


def test_a_hold_cannot_be_opened_on_folded_history(shard):
    shard.do(commands.advance_since, F(5))
    assert isinstance(shard.refused(commands.open_hold, "a", "test", F(4)), HistoryCompacted)


def test_a_hold_that_is_gone_is_named(shard):
    error = shard.refused(commands.downgrade_hold, "a", F(4))
    assert isinstance(error, LeaseExpired) and error.reader == "a"
    assert isinstance(shard.do(commands.close_hold, "a"), NoOp)


def test_only_an_equal_schema_is_registered(shard):
    assert shard.do(commands.register_schema, SCHEMA).result == 0
    other = Schema((Column(0, "k", DataType("string")),))
    error = shard.refused(commands.register_schema, other)
    assert isinstance(error, IncompatibleSchema) and "int64" in str(error) and "string" in str(error)


def merged(name, since=F(0), upper=F(3), rows=3):
    return HollowBatch(Bounds(F(0), upper, since), (Run((part(name, 0, 2, rows=rows, diff_sum=3),)),))


def three_appends(shard):
    for t in range(3):
        shard.do(append, (run(f"p{t}", t, t),), Exactly(F(t), F(t + 1)))


def test_a_merge_takes_the_place_of_its_inputs_once(shard):
    three_appends(shard)
    result = MergeResult(0, 3, ("p0", "p1", "p2"), merged("m"))
    assert shard.do(commands.apply_merge, result).result is True
    assert isinstance(shard.do(commands.apply_merge, result), NoOp)
    assert [(i.lo, i.hi) for i in shard.state.spine] == [(0, 3)]
    shard.do(append, (run("p3", 3, 3),), Exactly(F(3), F(4)))
    assert [(i.lo, i.hi) for i in shard.state.spine] == [(0, 3), (3, 4)]


def test_a_late_merge_result_never_brings_a_replaced_part_back(shard):
    three_appends(shard)
    late = MergeResult(0, 3, ("p0", "p1", "p2"), merged("late"))
    shard.do(commands.apply_merge, MergeResult(0, 3, ("p0", "p1", "p2"), merged("first")))
    shard.do(commands.apply_merge, MergeResult(0, 3, ("first",), merged("second")))
    assert shard.do(commands.apply_merge, late).result is False
    assert [p.name for i in shard.state.spine for p in i.batch.parts()] == ["second"]


@pytest.mark.parametrize(
    "result",
    [
        MergeResult(0, 2, ("p0", "p1", "p2"), merged("m")),
        MergeResult(0, 4, ("p0", "p1", "p2"), merged("m")),
        MergeResult(0, 3, ("p0", "p1"), merged("m")),
        MergeResult(0, 3, ("p0", "p1", "p2"), merged("m", upper=F(2))),
    ],
)
def test_a_merge_result_that_does_not_fit_changes_nothing(shard, result):
    three_appends(shard)
    assert shard.do(commands.apply_merge, result).result is False


def test_only_a_newer_rollup_is_taken(shard):
    three_appends(shard)
    assert shard.do(commands.add_rollup, Rollup(2, "r2", 10, 3)).result
    assert not shard.do(commands.add_rollup, Rollup(1, "r1", 10, 3)).result
    assert shard.do(commands.add_rollup, Rollup(2, "r2", 10, 3)).result
    assert shard.state.rollup == Rollup(2, "r2", 10, 3)


def test_the_clock_of_a_state_never_goes_back_in_a_step(shard):
    three_appends(shard)
    outcome = append(shard.state, 1, (), Exactly(F(3), F(4)))
    delta = Delta("s", shard.state.seqno + 1, 1, "n", shard.state.rollup, outcome.edits)
    from tidelake.errors import InternalError

    with pytest.raises(InternalError, match="clock-never-goes-back"):
        check_step(shard.state, apply(shard.state, delta), outcome.edits)


def test_a_closed_collection_takes_no_more(shard):
    shard.do(append, (), Exactly(F(0), Frontier()))
    assert isinstance(shard.refused(append, (run("p"),), AtCommit(0)), UpperMismatch)
    assert replace(shard.state.upper, elements=()) == Frontier()

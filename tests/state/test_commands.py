"""Commands as pure functions: what they commit, answer and refuse."""

from dataclasses import replace

import pytest
from shard_states import SCHEMA, F, Shard, part, run
from writes import append, expected

from tidelake.errors import (
    CollectionDropped,
    HistoryCompacted,
    IncompatibleSchema,
    InlineFull,
    InternalError,
    LeaseExpired,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model.batch import Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Column, DataType, Schema
from tidelake.model.time import TimeDomain
from tidelake.state.core import commands
from tidelake.state.core.commands import NoOp, Refused
from tidelake.state.core.edits import Delta, apply
from tidelake.state.core.invariants import check_step
from tidelake.state.core.state import Rollup, Written
from tidelake.state.life import holds, schemas
from tidelake.state.life.dropping import drop_shard
from tidelake.state.spine.fuel import MergeDue
from tidelake.state.spine.merging import Fit
from tidelake.state.spine.spine import SpineId
from tidelake.state.upkeep.claims import record_chunk, taken
from tidelake.state.upkeep.maintenance import apply_merge, claim_merge, collapse_levels, exert_fuel
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import AtCommit, Exactly, UpTo


@pytest.fixture
def shard():
    return Shard()


def test_an_exact_append_moves_upper_and_adds_one_batch(shard):
    answer = shard.do(append, (run("p", 1, 3),), Exactly(F(0), F(4))).result
    assert (answer.lower, answer.upper, answer.already) == (F(0), F(4), False)
    assert [item.batch.bounds for item in shard.state.spine] == [Bounds(F(0), F(4), F(0))]


@pytest.mark.promise(
    "`compare_and_append` writes all or nothing, iff `upper` equals `lower`; a mismatch tells the "
    "current upper",
    rule="`append` with `Exactly`",
    also=["shard/test_outcomes.py::test_compare_and_append_conflicts_carry_the_current_upper"],
)
def test_an_exact_append_elsewhere_is_a_mismatch_with_the_current_upper(shard):
    shard.do(append, (), Exactly(F(0), F(4)))
    error = shard.refused(append, (run("p", 5, 5),), Exactly(F(5), F(6)))
    assert isinstance(error, UpperMismatch) and (error.expected, error.current) == (F(5), F(4))


def test_times_outside_the_interval_are_refused_naming_them(shard):
    error = shard.refused(append, (run("p", 1, 3),), Exactly(F(2), F(4)))
    assert isinstance(error, UpdateBeforeLower) and (error.time, error.lower) == (1, F(2))
    error = shard.refused(append, (run("p", 1, 4),), Exactly(F(0), F(4)))
    assert isinstance(error, UpdateNotBeforeUpper) and (error.time, error.upper) == (4, F(4))


def test_a_lower_after_the_upper_is_a_usage_error(shard):
    for when in (Exactly(F(3), F(2)), UpTo(F(3), F(2))):
        assert isinstance(shard.refused(append, (), when), UsageError)


@pytest.mark.promise(
    "An append without rows moves `upper` only, and stores no object",
    rule="`append`",
    also=["shard/test_costs.py::test_an_empty_append_uploads_nothing"],
)
def test_empty_appends_fuse_into_one_batch(shard):
    for t in range(5):
        assert shard.do(append, (), Exactly(F(t), F(t + 1))).due == ()
    assert [(i.id, i.batch.bounds.upper) for i in shard.state.spine] == [(SpineId(0, 5), F(5))]
    shard.do(append, (run("p", 5, 5),), Exactly(F(5), F(6)))
    shard.do(append, (), Exactly(F(6), F(7)))
    assert shard.ids == [(0, 5), (5, 6), (6, 7)]


def test_an_empty_interval_writes_nothing(shard):
    assert isinstance(shard.do(append, (), Exactly(F(0), F(0))), NoOp)
    error = shard.refused(append, (run("p", 0, 0),), Exactly(F(0), F(0)))
    assert isinstance(error, UpdateNotBeforeUpper)


@pytest.mark.promise(
    "Writers of the same data: an append is narrowed to the open times; it succeeds if all times "
    "are closed; a gap is refused",
    rule="`append` with `UpTo`",
    also=["::test_append_up_to_a_closed_upper_is_success_and_a_gap_is_refused"],
)
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


@pytest.mark.promise(
    "A commit time is the upper, or the wall clock if that is later; after a conflict it is picked "
    "again without another upload",
    rule="`AtCommit` in `state/write/write.py`",
    also=[
        "shard/test_outcomes.py::test_an_append_at_commit_that_meets_a_conflict_gets_its_time_without_another_upload",
        "spark/reading/test_frames.py::test_clock_times_that_are_left_out_are_now",
    ],
)
def test_an_append_at_commit_takes_upper_and_rewrites_what_was_written_earlier(shard):
    shard.do(append, (run("a", 0, 0),), AtCommit(0))
    answer = shard.do(append, (run("b", 0, 0),), AtCommit(0)).result
    assert (answer.lower, answer.upper) == (F(1), F(2))
    assert [p.rewrite for i in shard.state.spine for p in i.batch.parts()] == [None, 1]
    answer = shard.do(append, (run("c", 9, 9),), AtCommit(9)).result
    assert (answer.lower, answer.upper) == (F(2), F(10))


@pytest.mark.parametrize(
    "claim",
    [
        None,
        IdempotencyKey("w", 0, 4),
        IdempotencyKey("w", 0, 5),
        IdempotencyKey("w", 1, 6),
        IdempotencyKey("x", 0, 0),
    ],
)
@pytest.mark.parametrize("upper", [3, 4, 6])
@pytest.mark.parametrize("lower", [3, 4, 5])
def test_an_append_without_runs_answers_as_expected(shard, lower, upper, claim):
    shard.do(commands.open_writer, "w")
    shard.do(append, (run("p", 1, 3),), Exactly(F(0), F(4)), IdempotencyKey("w", 0, 4))
    for when in (Exactly(F(lower), F(upper)), UpTo(F(lower), F(upper)), AtCommit(lower)):
        foreseen = expected(shard.state, 10, when, claim)
        answer = append(shard.state, 10, (), when, claim)
        assert type(foreseen) is type(answer)
        if isinstance(answer, Refused):
            assert str(foreseen.error) == str(answer.error)
        else:
            assert foreseen.result == answer.result
    shard.do(drop_shard)
    assert isinstance(expected(shard.state, 10, AtCommit(lower), claim), Refused)


def test_tuples_have_no_commit_time():
    error = Shard(TimeDomain("tuple", 2)).refused(append, (), AtCommit((0, 0)))
    assert isinstance(error, UsageError)


@pytest.mark.promise(
    "A writer's number is in once, in the same commit as its data",
    rule="`IdempotencyKey`, `plan`",
    also=[
        "shard/test_outcomes.py::test_an_append_with_times_that_is_tried_again_is_already_in",
        "shard/test_outcomes.py::test_an_append_without_rows_is_remembered_as_well",
    ],
)
def test_a_sequence_is_written_once_whatever_comes_again(shard):
    shard.do(commands.open_writer, "w")
    claim = IdempotencyKey("w", 0, 7)
    assert not shard.do(append, (run("p"),), Exactly(F(0), F(1)), claim).result.already
    for sequence in (7, 6, 0):
        answer = shard.do(append, (run("q"),), Exactly(F(1), F(2)), IdempotencyKey("w", 0, sequence)).result
        assert answer.already and answer.upper == F(1)
    assert shard.state.writers["w"].sequence == 7


def test_a_claim_with_an_empty_interval_is_remembered_too(shard):
    shard.do(commands.open_writer, "w")
    shard.do(append, (), Exactly(F(0), F(0)), IdempotencyKey("w", 0, 0))
    assert shard.state.writers["w"].sequence == 0 and shard.state.upper == F(0)


def test_a_number_that_comes_again_with_other_content_is_refused(shard):
    shard.do(commands.open_writer, "w")
    shard.do(append, (run("p"),), Exactly(F(0), F(1)), IdempotencyKey("w", 0, 0, "files a"))
    assert shard.do(
        append, (run("p"),), Exactly(F(0), F(1)), IdempotencyKey("w", 0, 0, "files a")
    ).result.already
    error = shard.refused(append, (run("q"),), Exactly(F(1), F(2)), IdempotencyKey("w", 0, 0, "files b"))
    assert isinstance(error, UsageError) and "older than the collection" in str(error)


def test_a_later_epoch_fences_the_earlier_one(shard):
    assert shard.do(commands.open_writer, "w").result.epoch == 0
    assert shard.do(commands.open_writer, "w").result.epoch == 1
    error = shard.refused(append, (run("p"),), Exactly(F(0), F(1)), IdempotencyKey("w", 0, 0))
    assert isinstance(error, WriterFenced) and (error.epoch, error.current_epoch) == (0, 1)
    assert not shard.do(append, (run("p"),), Exactly(F(0), F(1)), IdempotencyKey("w", 1, 0)).result.already


def test_an_owner_who_resumes_goes_on_beside_its_other_handles(shard):
    assert shard.do(commands.open_writer, "w", owner="query", resume=True).result.epoch == 0
    shard.do(append, (run("p"),), Exactly(F(0), F(1)), IdempotencyKey("w", 0, 3, "files a"))
    before = shard.state
    record = shard.do(commands.open_writer, "w", owner="query", resume=True, take_over=True).result
    assert (record.epoch, record.sequence, record.content) == (0, 3, "files a")
    assert shard.state == before
    assert shard.do(
        append, (run("p"),), Exactly(F(0), F(1)), IdempotencyKey("w", 0, 3, "files a")
    ).result.already
    # Of another owner the name is taken over, or refused.
    assert isinstance(shard.refused(commands.open_writer, "w", owner="other", resume=True), UsageError)
    assert shard.do(commands.open_writer, "w", owner="other", resume=True, take_over=True).result.epoch == 1


def test_a_writer_that_was_never_opened_is_refused(shard):
    assert isinstance(shard.refused(append, (), Exactly(F(0), F(1)), IdempotencyKey("w", 0, 0)), UsageError)


@pytest.mark.promise(
    "Another owner must take a writer's name over explicitly; a number that is repeated with other "
    "content is refused",
    rule="`open_writer`, `WriterRecord.content`",
    also=["::test_a_number_that_comes_again_with_other_content_is_refused"],
)
def test_another_owner_must_take_over_and_starts_counting_anew(shard):
    shard.do(commands.open_writer, "w", owner="query-1")
    shard.do(append, (run("p"),), Exactly(F(0), F(1)), IdempotencyKey("w", 0, 3))
    error = shard.refused(commands.open_writer, "w", owner="query-2")
    assert "query-1" in str(error) and "take_over=True" in str(error)
    record = shard.do(commands.open_writer, "w", owner="query-2", take_over=True).result
    assert (record.epoch, record.sequence) == (1, -1)
    # ... also if the one who took over died before it wrote.
    assert isinstance(shard.refused(commands.open_writer, "w", owner="query-3"), UsageError)
    assert not shard.do(
        append, (run("q", 1, 1),), Exactly(F(1), F(2)), IdempotencyKey("w", 1, 0)
    ).result.already


@pytest.mark.promise(
    "`since` is the meet of the frontier that the owner allowed and of all holds; it moves when "
    "holds move or close",
    rule="`state/core/commands.py`",
)
def test_since_is_the_meet_of_what_the_owner_allows_and_readers_hold(shard):
    shard.do(append, (), Exactly(F(0), F(9)))
    shard.do(holds.open_hold, "a", "test", lease_ms=99)
    shard.do(holds.open_hold, "b", "test", since=F(3), lease_ms=99)
    assert shard.do(holds.advance_since, F(5)).result == F(0)
    shard.do(holds.renew_hold, "a", since=F(4))
    assert shard.state.since == F(3)
    shard.do(holds.close_hold, "b")
    assert shard.state.since == F(4)
    shard.do(holds.close_hold, "a")
    assert shard.state.since == F(5)
    assert isinstance(shard.do(holds.advance_since, F(2)), NoOp) and shard.state.since == F(5)


@pytest.mark.promise(
    "Readers alone let no history go, wherever they move",
    rule="`state/core/commands.py`",
    also=["shard/test_outcomes.py::test_following_a_collection_costs_no_earlier_read"],
)
def test_readers_alone_let_no_history_go(shard):
    shard.do(append, (), Exactly(F(0), F(9)))
    shard.do(holds.open_hold, "a", "test", lease_ms=99)
    shard.do(holds.renew_hold, "a", since=F(7))
    shard.do(holds.open_hold, "b", "test", since=F(8), lease_ms=99)
    shard.do(holds.close_hold, "a")
    assert shard.state.since == F(0)


def test_a_hold_cannot_be_opened_on_folded_history(shard):
    shard.do(append, (), Exactly(F(0), F(6)))
    shard.do(holds.advance_since, F(5))
    assert isinstance(shard.refused(holds.open_hold, "a", "test", since=F(4), lease_ms=99), HistoryCompacted)


def test_a_hold_that_is_gone_is_named(shard):
    error = shard.refused(holds.renew_hold, "a", since=F(4))
    assert isinstance(error, LeaseExpired) and error.reader == "a"
    assert isinstance(shard.do(holds.close_hold, "a"), NoOp)


def test_only_an_equal_schema_is_registered(shard):
    assert shard.do(schemas.register_schema, SCHEMA).result == 0
    other = Schema((Column(0, "k", DataType("string")),))
    error = shard.refused(schemas.register_schema, other)
    assert isinstance(error, IncompatibleSchema) and "int64" in str(error) and "string" in str(error)


def with_values(*columns):
    """The schema of the shard with value columns `(name, type)`; ids mean nothing."""
    return Schema(SCHEMA.key, tuple(Column(50, name, DataType(type_)) for name, type_ in columns))


def test_each_schema_has_a_number_and_the_seqno_of_its_state(shard):
    shard.do(append, (run("p", 0, 0),), AtCommit(0))
    assert shard.do(schemas.evolve, with_values(("v", "int32")), ()).result == 1
    assert shard.do(schemas.evolve, with_values(("v", "int64")), ()).result == 2
    assert {i: v.seqno for i, v in shard.state.schemas.items()} == {0: 0, 1: 2, 2: 3}
    assert str(shard.state.schema) == "key(k: int64) value(v: int64)" and shard.state.schema.value[0].id == 1
    assert [schemas.schema_id_at(shard.state, n) for n in range(4)] == [0, 0, 1, 2]
    for seqno in (-1, 4):
        with pytest.raises(UsageError, match="none of the states 0 to 3"):
            schemas.schema_id_at(shard.state, seqno)


def test_an_equal_schema_is_no_step(shard):
    assert isinstance(shard.do(schemas.evolve, SCHEMA, ()), NoOp)
    assert shard.state.schema_id == 0


def test_the_second_of_two_evolvers_is_checked_against_the_schema_of_the_first(shard):
    shard.do(schemas.evolve, with_values(("v", "int32"), ("a", "int8")), ())
    error = shard.refused(schemas.evolve, with_values(("v", "int32"), ("b", "int8")), ())
    assert isinstance(error, IncompatibleSchema) and "column 'a' is not in the new schema" in str(error)
    error = shard.refused(schemas.evolve, with_values(("v", "int32"), ("a", "string")), ())
    assert "from int8 to string" in str(error)
    assert shard.do(schemas.evolve, with_values(("v", "int32"), ("a", "int8"), ("b", "int8")), ()).result == 2


def test_rows_of_a_schema_that_is_not_registered_are_refused(shard):
    error = shard.refused(append, (run("p", 0, 0, schema_id=1),), AtCommit(0))
    assert isinstance(error, IncompatibleSchema) and "rows of schema 1" in str(error)


def test_rows_of_an_older_schema_are_in_unless_they_have_to_be_as_now(shard):
    shard.do(schemas.evolve, with_values(("a", "int8"), ("b", "int8")), ())
    shard.do(schemas.evolve, with_values(("b", "int8"), ("c", "int8")), ("a",))
    error = shard.refused(append, (run("p", 0, 0, schema_id=1),), AtCommit(0), as_now=True)
    assert isinstance(error, IncompatibleSchema) and "column 'a' was dropped or renamed meanwhile" in str(
        error
    )
    # No column of schema 0 is gone; and a batch that was built before may be appended.
    shard.do(append, (run("q", 0, 0),), AtCommit(0), as_now=True)
    shard.do(append, (run("p", 1, 1, schema_id=1),), AtCommit(1))
    assert shard.names == ["q", "p"]


def test_a_tombstone_does_not_evolve(shard):
    shard.do(drop_shard)
    assert isinstance(shard.refused(schemas.evolve, with_values(("a", "int8")), ()), CollectionDropped)


def merged(name="m", rows=3, diff_sum=3):
    return run(name, 0, 2, rows=rows, diff_sum=diff_sum)


def three_appends(shard):
    """Three members that the levels treat as one."""
    for t in range(3):
        shard.do(append, (run(f"p{t}", t, t),), Exactly(F(t), F(t + 1)))
    shard.do(collapse_levels)


def test_an_append_tells_of_the_merges_that_the_levels_decide_on(shard):
    for t in range(2):
        assert shard.do(append, (run(f"p{t}", t, t),), Exactly(F(t), F(t + 1))).due == ()
    due = shard.do(append, (run("p2", 2, 2),), Exactly(F(2), F(3))).due
    assert due == (MergeDue(SpineId(0, 2), Bounds(F(0), F(2), F(0))),)


def test_a_merge_takes_the_place_of_its_inputs_once(shard):
    three_appends(shard)
    result = shard.result(0, 3, merged())
    assert shard.do(apply_merge, result).result is Fit.EXACT
    again = shard.do(apply_merge, result)
    assert isinstance(again, NoOp) and again.result is Fit.ALREADY and again.result.applied
    assert shard.ids == [(0, 3)] and shard.names == ["m"]
    shard.do(append, (run("p3", 3, 3),), Exactly(F(3), F(4)))
    assert shard.ids == [(0, 3), (3, 4)]
    assert shard.do(apply_merge, result).result is Fit.ALREADY


def test_a_merge_of_neighbours_within_a_spine_batch_is_a_subset(shard):
    three_appends(shard)
    result = shard.result(1, 3, run("m", 1, 2, rows=2, diff_sum=2))
    assert shard.do(apply_merge, result).result is Fit.SUBSET
    assert shard.ids == [(0, 1), (1, 3)] and shard.names == ["p0", "m"]


def test_a_merge_that_leaves_nothing_leaves_a_batch_without_runs(shard):
    for t, sum_ in ((0, 1), (1, -1)):
        shard.do(append, (run(f"p{t}", t, t, diff_sum=sum_),), Exactly(F(t), F(t + 1)))
    shard.do(collapse_levels)
    assert shard.do(apply_merge, shard.result(0, 2, None)).result is Fit.EXACT
    assert shard.ids == [(0, 2)] and shard.names == [] and shard.state.spine.totals.rows == 0


def test_a_late_merge_result_never_brings_a_replaced_part_back(shard):
    three_appends(shard)
    late = shard.result(0, 3, merged("late"))
    shard.do(apply_merge, shard.result(0, 3, merged("first")))
    shard.do(apply_merge, shard.result(0, 3, merged("second")))
    assert shard.do(apply_merge, late).result is Fit.NO_MATCH
    assert shard.names == ["second"]


def test_a_merge_result_that_does_not_fit_changes_nothing(shard):
    three_appends(shard)
    shard.do(append, (run("p3", 3, 3),), Exactly(F(3), F(4)))
    shard.do(holds.advance_since, F(2))
    shard.do(apply_merge, shard.result(0, 1, run("q0"), since=F(1)))
    good = shard.result(0, 3, merged(), since=F(2))
    for fit, result in [
        (Fit.NO_MATCH, replace(good, id=SpineId(0, 2))),
        (Fit.NO_MATCH, replace(good, id=SpineId(0, 4))),
        (Fit.NO_MATCH, replace(good, id=SpineId(2, 2))),
        (Fit.NO_MATCH, replace(good, inputs="0" * 32)),
        (Fit.NO_MATCH, replace(good, positions=(0,))),
        (Fit.NO_MATCH, replace(good, positions=(9,))),
        (Fit.INVALID_SINCE, replace(good, since=F(0))),
        (Fit.INVALID_SINCE, replace(good, since=F(3))),
        (Fit.TOO_MANY_UPDATES, replace(good, output=merged(rows=4))),
    ]:
        before = shard.state
        outcome = shard.do(apply_merge, result)
        assert isinstance(outcome, NoOp) and outcome.result is fit and not fit.applied
        assert shard.state is before
    assert shard.do(apply_merge, good).result is Fit.EXACT


def test_some_runs_of_a_member_become_one_and_the_others_stay(shard):
    shard.do(append, tuple(run(f"r{i}") for i in range(4)), Exactly(F(0), F(1)))
    result = shard.result(0, 1, run("m", rows=2, diff_sum=2), (1, 3))
    assert shard.do(apply_merge, result).result is Fit.SUBSET
    assert shard.names == ["r0", "r2", "m"]
    assert shard.do(apply_merge, result).result is Fit.ALREADY
    # Where runs stand may change; what they are may not.
    assert shard.do(apply_merge, replace(result, output=run("n"))).result is Fit.NO_MATCH


def test_what_was_written_is_counted_once(shard):
    three_appends(shard)
    assert shard.state.written == Written(3, 300, 0, 0)
    shard.do(append, (), Exactly(F(3), F(4)))
    shard.do(collapse_levels)
    # A merge that only joins a run with batches of no rows writes nothing.
    shard.do(apply_merge, shard.result(0, 3, Run(tuple(part(n, 0, 2) for n in ("p0", "x", "p2")))))
    assert shard.state.written == Written(3, 300, 1, 100)
    shard.do(apply_merge, shard.result(0, shard.ids[-1][1], merged()))
    assert shard.state.written == Written(3, 300, 4, 200)


def test_inline_parts_are_refused_once_the_state_is_full_of_them(shard):
    tiny = run("a", size_bytes=10, inline=b"x" * 10)
    shard.do(append, (tiny,), Exactly(F(0), F(1)), inline_bytes_max=20)
    next_one = run("b", 1, 1, size_bytes=10, inline=b"y" * 10)
    error = shard.refused(append, (next_one,), Exactly(F(1), F(2)), inline_bytes_max=20)
    assert isinstance(error, InlineFull) and (error.size_bytes, error.limit_bytes) == (20, 20)
    shard.do(append, (run("c", 1, 1),), Exactly(F(1), F(2)), inline_bytes_max=20)
    shard.do(append, (run("b", 2, 2, inline=b"y" * 9),), Exactly(F(2), F(3)), inline_bytes_max=20)
    assert shard.state.spine.totals.inline_bytes == 19


def test_levels_move_along_without_appends_until_all_is_one(shard):
    assert shard.do(exert_fuel, 8).result is False and shard.do(collapse_levels).result is False
    for t in range(3):
        shard.do(append, (run(f"p{t}", t, t),), Exactly(F(t), F(t + 1)))
    before = shard.state.upper
    assert shard.do(exert_fuel, 8).result is True
    assert shard.do(collapse_levels).result is True
    (only,) = shard.state.spine.batches
    assert only.rows == 3 and only.bounds.upper == shard.state.upper == before
    assert isinstance(shard.do(exert_fuel, 8), NoOp) and isinstance(shard.do(collapse_levels), NoOp)


def claim(shard, now_ms, runner, lo=0, hi=3, **kwargs):
    asked = kwargs.pop("request", None) or shard.request(lo, hi)
    return shard.do(
        claim_merge, asked, runner=runner, lease_ms=10, cuts=kwargs.pop("cuts", (b"k",)), now_ms=now_ms
    ).result


def test_a_claim_keeps_others_away_until_it_expires(shard):
    three_appends(shard)
    assert claim(shard, 10, "a").claim.runner == "a"
    assert claim(shard, 19, "b").claim is None and claim(shard, 19, "b", 1, 3).claim is None
    assert [id_.overlaps(SpineId(2, 3)) for id_ in taken(shard.state, 19, "b")] == [True]
    assert taken(shard.state, 19, "a") == taken(shard.state, 20, "b") == []
    assert claim(shard, 20, "b").claim.runner == "b"


def test_who_takes_an_expired_claim_over_goes_on_where_it_stands(shard):
    three_appends(shard)
    first = claim(shard, 10, "a").claim
    shard.do(holds.advance_since, F(2))
    assert shard.do(record_chunk, first, 0, (part("c0"),), lease_ms=10, now_ms=15).result is True
    assert claim(shard, 24, "b").claim is None  # a chunk renews the lease
    taken = claim(shard, 25, "b", cuts=(b"other", b"cuts"))
    assert taken.claim == replace(first, runner="b", expires_ms=35)
    assert taken.chunks == ((0, (part("c0"),)),) and not shard.garbage
    zombie = shard.do(record_chunk, first, 1, (part("c1"),), lease_ms=10, now_ms=26)
    assert isinstance(zombie, NoOp) and zombie.result is False
    assert shard.do(record_chunk, taken.claim, 1, (), lease_ms=10, now_ms=27).result is True


def test_a_chunk_is_recorded_once(shard):
    three_appends(shard)
    mine = claim(shard, 10, "a").claim
    shard.do(record_chunk, mine, 0, (part("c0"),), lease_ms=10)
    again = shard.do(record_chunk, mine, 0, (part("c0"),), lease_ms=10)
    assert isinstance(again, NoOp) and again.result is True
    assert shard.do(record_chunk, mine, 0, (part("other"),), lease_ms=10).result is False


def test_a_claim_ends_with_any_result_on_its_members_and_what_is_useless_is_garbage(shard):
    three_appends(shard)
    mine = claim(shard, 10, "a").claim
    shard.do(record_chunk, mine, 0, (part("c0"),), lease_ms=10)
    shard.do(record_chunk, mine, 1, (part("c1"),), lease_ms=10)
    applied = shard.do(apply_merge, shard.result(0, 3, Run((part("c0"), part("d1", diff_sum=2))))).result
    assert applied is Fit.EXACT and "c1" in shard.garbage and "c0" not in shard.garbage
    assert not shard.state.claims and not shard.state.chunks
    assert shard.do(record_chunk, mine, 1, (part("c1"),), lease_ms=10).result is False


def test_other_work_on_the_same_members_ends_an_expired_claim(shard):
    three_appends(shard)
    mine = claim(shard, 10, "a").claim
    shard.do(record_chunk, mine, 0, (part("c0"),), lease_ms=10)
    other = claim(shard, 30, "b", 1, 3)
    assert other.claim.id == SpineId(1, 3) and other.chunks == () and shard.garbage == {"c0"}
    assert list(shard.state.claims) == ["1-3"] and not shard.state.chunks


def test_what_is_no_longer_there_cannot_be_claimed(shard):
    three_appends(shard)
    asked = shard.request(0, 3)
    assert claim(shard, 10, "a", request=replace(asked, id=SpineId(0, 9))).claim is None
    shard.do(apply_merge, shard.result(0, 3, merged()))
    assert claim(shard, 10, "a", request=asked).claim is None


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
    with pytest.raises(InternalError, match="clock-never-goes-back"):
        check_step(shard.state, apply(shard.state, delta), outcome.edits)


def test_a_closed_collection_takes_no_more(shard):
    shard.do(append, (), Exactly(F(0), Frontier()))
    assert isinstance(shard.refused(append, (run("p"),), AtCommit(0)), UpperMismatch)
    assert replace(shard.state.upper, elements=()) == Frontier()

"""Which merges are asked for, when all must be merged, and what results may claim."""

from dataclasses import replace

import pytest
from shard_states import EAGER, F, Shard, hollow, part, pushed, run
from writes import append

from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.life.holds import advance_since
from tidelake.state.spine import fuel
from tidelake.state.spine.merging import (
    MergeRequest,
    MergeResult,
    Policy,
    cheapest,
    digest,
    everything,
    placed,
    request,
    requests,
    worth_merging,
)
from tidelake.state.spine.space import must_merge_all
from tidelake.state.spine.spine import Spine, SpineId
from tidelake.state.upkeep.maintenance import apply_merge, collapse_levels
from tidelake.state.write.write import Exactly


def members(*rows_of_runs, negative=0):
    """A spine batch of a member for each list, with a run for each number of rows."""
    batches = [
        hollow(
            n, n + 1, *(run(f"p{n}.{i}", n, n, rows=r, negative_rows=negative) for i, r in enumerate(runs))
        )
        for n, runs in enumerate(rows_of_runs)
    ]
    spine = pushed(Spine(), *batches)
    step = fuel.collapse(spine, F(0))
    return spine if step is None else spine.edited(step.edit)


def asked(spine, **policy):
    found = requests(spine, replace(EAGER, **policy))
    return [(str(r.id), r.positions, r.rows, r.sources) for r in found]


def test_a_spine_batch_of_one_run_needs_no_merge():
    assert asked(members([5])) == [] and asked(members([])) == [] and asked(Spine()) == []


def test_empty_batches_beside_a_run_are_taken_in_but_alone_ask_for_nothing():
    assert asked(members([5], [])) == [("[0-2]", (), 5, 1)]
    assert asked(members([5], []), inputs_min=3, rows_min=6) == []
    spine = pushed(Spine(), hollow(0, 1), hollow(1, 2))
    assert asked(spine) == []


@pytest.mark.parametrize(
    ("stored", "inline", "worthwhile"),
    [(0, 31, False), (0, 32, True), (3, 7, False), (3, 8, True), (4, 0, True), (1, 23, False), (1, 24, True)],
)
def test_twice_as_many_members_with_rows_in_the_state_as_are_merged_count_as_one(stored, inline, worthwhile):
    def held(n):
        more = {"inline": b"rows"} if n >= stored else {}
        return hollow(n, n + 1, run(f"p{n}", n, n, rows=1, **more))

    spine = pushed(Spine(), *map(held, range(stored + inline)))
    step = fuel.collapse(spine, F(0))
    spine = spine if step is None else spine.edited(step.edit)
    policy = Policy(99, 0, inputs_min=4, rows_min=99)
    assert worth_merging(spine, SpineId(0, stored + inline), policy) is worthwhile
    assert bool(list(requests(spine, policy))) is worthwhile


def test_members_that_are_not_there_are_not_worth_a_merge():
    assert not worth_merging(members([1], [1]), SpineId(0, 3), Policy(99, 0))


@pytest.mark.parametrize(
    ("spine", "policy", "worthwhile"),
    [
        (members([1], [1]), {"inputs_min": 3, "rows_min": 3}, False),
        (members([1], [1]), {"inputs_min": 2, "rows_min": 3}, True),
        (members([1], [1]), {"inputs_min": 3, "rows_min": 2}, True),
        (members([1, 1], [1]), {"inputs_min": 3, "rows_min": 99}, True),
        (members([512], [512], negative=128), {"inputs_min": 9, "rows_min": 9999}, True),
        (members([512], [516], negative=128), {"inputs_min": 9, "rows_min": 9999}, False),
        (members([511], [512], negative=512), {"inputs_min": 9, "rows_min": 9999}, False),
    ],
)
def test_a_merge_is_worthwhile_by_inputs_rows_or_retractions(spine, policy, worthwhile):
    assert bool(asked(spine, **policy)) is worthwhile


def test_a_merge_reads_no_more_runs_than_the_fan_in_and_takes_the_cheapest_neighbours():
    spine = members([9], [9], [2], [2], [9])
    assert asked(spine, fan_in=5) == [("[0-5]", (), 31, 5)]
    assert asked(spine, fan_in=2) == [("[2-4]", (), 4, 2)]
    assert asked(spine, fan_in=3) == [("[3-5]", (), 11, 2)]


def test_a_member_of_too_many_runs_is_merged_by_its_smallest_runs():
    spine = members([1, 1], [7, 3, 9, 1, 5])
    assert asked(spine, fan_in=3) == [("[1-2]", (1, 3, 4), 9, 3)]
    assert asked(spine, fan_in=4) == [("[1-2]", (0, 1, 3, 4), 16, 4)]
    assert asked(spine, fan_in=5) == [("[0-1]", (), 2, 2)]
    assert asked(spine, fan_in=7) == [("[0-2]", (), 27, 7)]


def test_small_runs_are_folded_in_memory_and_count_as_one():
    spine = members([100], *([1] for _ in range(8)))
    assert asked(spine, fan_in=2, fold_rows=8) == [("[0-9]", (), 108, 9)]
    assert asked(spine, fan_in=2, fold_rows=7) == [("[0-8]", (), 107, 8)]
    # Of two large runs and small ones, one large one too many for the fan-in.
    assert asked(members([100], [100], [1]), fan_in=2, fold_rows=8) == [("[0-2]", (), 200, 2)]


def test_a_request_sums_its_inputs_and_knows_them_by_name():
    spine = members([3], [4, 5])
    (found,) = requests(spine, EAGER)
    assert (found.rows, found.size_bytes, found.sources) == (12, 300, 3)
    assert found.inputs == digest(run for member in spine for run in member.batch.runs)
    assert found.inputs != request(list(spine)[1:]).inputs


def test_the_digest_tells_runs_from_parts_and_orders():
    a, b = part("a"), part("b")
    digests = [digest(runs) for runs in ([], [Run((a, b))], [Run((a,)), Run((b,))], [Run((b, a))])]
    assert len(set(digests)) == 4


def test_those_who_wait_merge_first_what_makes_the_most_room_for_its_cost():
    def of(name, rows, sources):
        return MergeRequest(SpineId(0, 1), (), name, rows, 0, sources)

    pair, many, large = of("pair", 20, 2), of("many", 640, 33), of("large", 10**6, 33)
    assert cheapest([pair, large, many], 1) == [many]
    assert cheapest([pair, large, many], 32) == [many]
    assert cheapest([pair, large, many], 33) == [many, pair]
    assert cheapest([pair, large, many], 34) == [many, pair, large]
    assert cheapest([pair, large, many], 1_000) == [many, pair, large]
    assert cheapest([pair], 0) == []
    # Members without runs are merged too.
    assert cheapest([of("empty", 0, 0), pair], 2) == [of("empty", 0, 0), pair]


def test_everything_is_the_oldest_spine_batch():
    spine = pushed(Spine(), hollow(0, 1, run("a")), hollow(1, 2, run("b", 1, 1)))
    assert everything(Spine(), EAGER) is None
    assert everything(spine, EAGER).id == SpineId(0, 1)
    step = fuel.collapse(spine, F(0))
    assert everything(spine.edited(step.edit), EAGER).id == SpineId(0, 2)


def one_of(*runs, since=F(0)):
    return pushed(Spine(), hollow(0, 99, *runs, since=since))


def timed(name, *counts, negative=0):
    rows = sum(n for _, n in counts)
    first, last = counts[0][0], counts[-1][0]
    return run(name, first, last, rows=rows, time_counts=counts, negative_rows=negative)


@pytest.mark.parametrize(
    ("spine", "since", "must"),
    [
        (Spine(), 5, False),
        # One run is left alone, however much of it may cancel.
        (one_of(timed("a", (1, 100))), 5, False),
        # Another run of the same batch may take away as many rows as it has.
        (one_of(timed("a", (7, 75)), timed("b", (7, 25))), 5, False),
        (one_of(timed("a", (7, 74)), timed("b", (7, 26))), 5, True),
        # What since has not reached stays, whatever it has reached.
        (one_of(timed("a", (1, 50), (6, 50)), timed("b", (7, 0))), 5, False),
        (one_of(timed("a", (1, 51), (6, 50)), timed("b", (7, 0))), 5, True),
        # Loose: not at the folded time, and not after since.
        (one_of(timed("a", (0, 50), (6, 50)), timed("b", (7, 1))), 5, False),
        (one_of(timed("a", (0, 25), (6, 75)), timed("b", (7, 1))), 6, True),
        (one_of(timed("a", (0, 75), (5, 25)), timed("b", (7, 0))), 5, False),
        (one_of(timed("a", (0, 75), (5, 26)), timed("b", (7, 0))), 5, True),
        # What is folded to since already is firm; to another time, loose.
        (one_of(timed("a", (5, 100)), timed("b", (7, 1)), since=F(5)), 5, False),
        (one_of(timed("a", (4, 100)), timed("b", (7, 1)), since=F(3)), 5, True),
        (one_of(timed("a", (3, 100)), timed("b", (7, 1)), since=F(3)), 5, False),
    ],
)
def test_all_must_be_merged_where_the_counts_leave_a_doubt(spine, since, must):
    assert must_merge_all(list(spine), F(since)) is must


def test_without_counts_of_times_all_rows_are_loose_unless_all_are_at_the_folded_time():
    for first, last, must in ((0, 0, False), (0, 1, True), (1, 1, True)):
        spine = one_of(run("a", first, last, rows=90), run("b", 7, 7, rows=1))
        assert must_merge_all(list(spine), F(5)) is must


def test_truncated_and_rewritten_runs_show_nothing():
    whole = timed("a", (0, 90))
    assert not must_merge_all(list(one_of(whole, timed("b", (7, 1)))), F(5))
    cut = replace(whole, truncated=True)
    moved = Run((replace(whole.parts[0], rewrite=3),))
    for loose in (cut, moved):
        assert must_merge_all(list(one_of(loose, timed("b", (7, 1)))), F(5))


@pytest.mark.parametrize(
    ("spine", "since", "must"),
    [
        (one_of(timed("a", (0, 90)), timed("b", (6, 1), negative=1)), 5, False),
        (one_of(timed("a", (0, 90)), timed("b", (5, 1), negative=1)), 5, True),
        (one_of(timed("a", (0, 90)), timed("b", (5, 1))), 5, False),
        (one_of(timed("a", (0, 9), (5, 1), negative=1)), 5, True),
        (one_of(timed("a", (0, 9), (6, 1), negative=1)), 5, False),
        (one_of(timed("a", (5, 9), negative=1), since=F(5)), 5, False),
    ],
)
def test_an_idle_shard_is_left_without_retractions_that_since_has_passed(spine, since, must):
    assert must_merge_all(list(spine), F(since), thorough=True) is must


@pytest.mark.parametrize(("time", "must"), [((2, 7), True), ((3, 7), False), ((3, 1), True)])
def test_a_retraction_that_since_reaches_in_one_component_is_not_left(time, must):
    # What was at (0, 7) is now at (2, 7), for it is advanced to (2, 2).
    start, since = F((0, 0)), F((2, 2))
    older = HollowBatch(Bounds(start, F((1, 0)), since), (run("a", (2, 7), (2, 7), rows=90),))
    newer = HollowBatch(Bounds(F((1, 0)), F((9, 0)), start), (run("b", time, time, negative_rows=1),))
    spine = pushed(Spine(), older, newer, since=since)
    assert not must_merge_all(list(spine), since)
    assert must_merge_all(list(spine), since, thorough=True) is must


def test_a_closed_since_leaves_nothing_to_fold():
    spine = one_of(timed("a", (0, 90), negative=1), since=Frontier())
    assert not must_merge_all(list(spine), Frontier(), thorough=True)


def test_runs_that_a_partial_merge_leaves_are_not_said_to_be_folded():
    shard = Shard()
    runs = (timed("a", (1, 90)), run("b", 1, 1, rows=1), run("c", 1, 1, rows=1))
    shard.do(append, runs, Exactly(F(0), F(9)))
    shard.do(advance_since, F(5))
    assert must_merge_all(shard.state.spine, F(5))
    shard.do(apply_merge, shard.result(0, 1, run("m", 5, 5, rows=2, diff_sum=2), (1, 2), since=F(5)))
    (member,) = shard.state.spine
    assert member.batch.bounds.since == F(0) and shard.names == ["a", "m"]
    assert must_merge_all(shard.state.spine, F(5))
    shard.do(apply_merge, shard.result(0, 1, run("n", 5, 5, rows=90, diff_sum=3), since=F(5)))
    (member,) = shard.state.spine
    assert member.batch.bounds.since == F(5) and not must_merge_all(shard.state.spine, F(5))


def test_all_runs_by_their_positions_are_folded_as_all_runs():
    shard = Shard()
    shard.do(append, (run("a"), run("b")), Exactly(F(0), F(9)))
    shard.do(advance_since, F(5))
    shard.do(apply_merge, shard.result(0, 1, run("m", 5, 5, rows=2, diff_sum=2), (0, 1), since=F(5)))
    assert [member.batch.bounds.since for member in shard.state.spine] == [F(5)]


def test_a_spine_batch_is_never_folded_less_than_its_members():
    shard = Shard()
    for t in range(7):
        shard.do(append, (run(f"p{t}", t, t),), Exactly(F(t), F(t + 1)))
    shard.do(append, (run("big", 7, 7, rows=9),), Exactly(F(7), F(8)))
    shard.do(append, (run("big2", 8, 8, rows=9),), Exactly(F(8), F(9)))
    (merge,) = shard.state.spine.merges
    # The result comes in while the levels are at a merge that was to fold less far.
    shard.do(advance_since, F(5))
    first = shard.state.spine.batches[0]
    held = sum(member.batch.diff_sum for member in shard.state.spine.range(first.id))
    shard.do(apply_merge, shard.result(*first.id, run("m", 5, 8, rows=7, diff_sum=held), since=F(5)))
    assert merge.id.covers(first.id) and merge.since == F(0)
    shard.do(collapse_levels)
    assert [batch.bounds.since for batch in shard.state.spine.batches] == [F(5)]


@pytest.mark.promise(
    "A result is applied to a whole spine batch or a part of it, or refused; a repeated or late "
    "result does nothing",
    rule="`placed`",
    also=[
        "state/spine/results.txt",
        "shard/upkeep/test_maintain.py::test_a_result_whose_recorded_parts_another_runner_deleted_is_refused",
    ],
)
def test_a_result_of_a_window_fits_as_long_as_its_runs_are_there():
    spine = members([9], [2], [2], [9])
    middle = list(spine.range(SpineId(1, 3)))
    result = MergeResult(SpineId(1, 3), (), request(middle).inputs, F(0), run("m", 1, 2, rows=4))
    _, edit = placed(spine, result, F(0), 1)
    after = spine.edited(edit)
    assert [str(member.id) for member in after] == ["[0-1]", "[1-3]", "[3-4]"]
    assert asked(after, fan_in=2) == [("[0-3]", (), 13, 2)] and after.totals.rows == 22


def test_tuples_fold_like_ints():
    shard = Shard(TimeDomain("tuple", 2))
    start, end = F((0, 0)), F((5, 5))
    shard.do(append, (run("a", (0, 0), (4, 4), rows=8),), Exactly(start, end))
    assert not must_merge_all(shard.state.spine, F((1, 1)))
    pair = HollowBatch(
        Bounds(start, end, start), (run("b", (0, 0), (0, 0), rows=9), run("c", (4, 4), (4, 4)))
    )
    assert not must_merge_all(pushed(Spine(), pair, since=start), F((1, 1)))
    assert must_merge_all(pushed(Spine(), pair, since=start), Frontier.of((1, 0), (0, 1)))


def test_policies_default_to_merging_all_they_can():
    assert (Policy(4, 0).inputs_min, Policy(4, 0).rows_min) == (2, 0)

"""Slices: which members they take from the levels, and how they are cut by time."""

from dataclasses import replace

import pytest
from shard_states import EAGER, F, Shard, run
from sliced_shards import SlicedShard, counted
from writes import append

from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.core.commands import NoOp
from tidelake.state.life.holds import advance_since
from tidelake.state.spine.fuel import _ROWS_PER_ID
from tidelake.state.spine.merging import Fit, MergeResult, inline_requests, requests
from tidelake.state.spine.spine import SpineId
from tidelake.state.upkeep.claims import record_chunk
from tidelake.state.upkeep.maintenance import apply_merge, begun_merge, claim_merge, collapse_levels
from tidelake.state.upkeep.slices import PIECES_MAX, cut_fits, cut_slices, long_slices, slice_rows
from tidelake.state.write.write import Exactly


def shard_of(*rows, negative=0):
    shard = SlicedShard()
    shard.add(*rows, negative=negative)
    return shard


def claim(shard, lo, hi):
    asked = shard.request(lo, hi)
    assert shard.do(claim_merge, asked, runner="x", lease_ms=30, cuts=()).result.claim is not None


# --- Members that leave the levels ---


@pytest.mark.parametrize(
    ("rows", "slices", "levels"),
    [
        ([1, 1, 1], [], [(0, 1), (1, 2), (2, 3)]),
        ([1, 1, 1, 1], [(0, 4)], []),
        ([3, 3, 3], [(0, 2)], [(2, 3)]),
        ([2, 2, 2, 2, 2], [(0, 2), (2, 4)], [(4, 5)]),
        ([5, 4, 3, 1], [(0, 1), (1, 2), (2, 4)], []),
        ([0, 4, 0], [(0, 2)], [(2, 3)]),
        # One of 16 rows is cut by time, so nothing older is merged with it; what is younger may be.
        ([1, 16, 1], [(0, 1), (1, 2)], [(2, 3)]),
        ([1, 15, 1], [(0, 2)], [(2, 3)]),
        ([16, 16], [(0, 1), (1, 2)], []),
    ],
)
def test_a_slice_takes_the_oldest_members_until_it_has_its_rows(rows, slices, levels):
    shard = shard_of(*rows)
    shard.do(collapse_levels)
    assert shard.cut(4) == len(slices)
    assert (shard.slices, shard.levels) == (slices, levels)
    assert [held.rows for held in shard.state.spine.slices] == [sum(rows[lo:hi]) for lo, hi in slices]
    assert all(held.level == 0 for held in shard.state.spine.slices)


def test_what_is_cut_needs_no_step_twice():
    shard = shard_of(4, 4, 1)
    assert shard.cut(4) == 2
    before = shard.state
    assert isinstance(shard.do(cut_slices, least=4), NoOp) and shard.state is before


def test_appends_and_cuts_go_on_after_slices():
    shard = shard_of(*[1] * 7)
    assert shard.cut(4) == 1
    shard.add(1, 1, 1)
    assert shard.cut(4) == 1 and shard.slices == [(0, 4), (4, 8)] and shard.levels == [(8, 9), (9, 10)]
    assert shard.state.spine.sliced == 8 and shard.state.drained == F(10)


def test_slices_of_a_large_collection_are_larger():
    assert slice_rows(shard_of(160).state.spine, 4) == 10
    # A retraction takes a row away.
    assert slice_rows(shard_of(160, negative=40).state.spine, 4) == 5
    assert slice_rows(shard_of(160, negative=80).state.spine, 4) == 4
    shard = shard_of(*[8] * 20)
    assert shard.cut(4) == 10 and shard.slices[0] == (0, 2)


def test_a_slice_ends_within_no_merge_that_a_process_has_claimed():
    shard = shard_of(1, 1, 1, 1, 1, 1)
    shard.do(collapse_levels)
    claim(shard, 1, 5)
    assert shard.cut(2) == 1 and shard.slices == [(0, 5)] and shard.levels == [(5, 6)]
    # The claim's result still fits.
    assert shard.do(apply_merge, shard.result(1, 5, run("m", 1, 4, rows=4, diff_sum=4))).result is Fit.SUBSET


def test_a_long_member_stays_with_older_ones_that_a_process_merges_with_it():
    shard = shard_of(1, 1, 40)
    shard.do(collapse_levels)
    claim(shard, 1, 3)
    assert shard.cut(4) == 1 and shard.slices == [(0, 3)]


def test_a_claim_of_the_newest_members_keeps_them_in_the_levels():
    shard = shard_of(4, 4, 4, 1)
    shard.do(collapse_levels)
    claim(shard, 1, 4)
    assert shard.cut(4) == 2 and shard.slices == [(0, 1), (1, 4)]
    shard = shard_of(4, 4, 4, 1, 1)
    shard.do(collapse_levels)
    claim(shard, 0, 5)
    assert shard.cut(4) == 1 and shard.slices == [(0, 5)]


@pytest.mark.parametrize("count", range(2, 20))
def test_levels_and_merges_under_way_go_on_with_what_is_left(count):
    """Every state is checked by all rules; a slice may end within a batch of the levels or a merge."""
    shard = SlicedShard()
    under_way = 0
    for n in range(count):
        shard.add(1 + n % 3)
        under_way += len(shard.state.spine.merges)
        if n % 4 == 3:
            shard.cut(3)
    shard.do(collapse_levels)
    assert len(shard.state.spine.batches) <= 1 and under_way
    assert shard.ids == sorted(shard.ids) and shard.state.spine.totals.members == count


def test_a_slice_is_folded_as_far_as_the_levels_that_it_comes_from():
    shard = shard_of(1, 1)
    shard.do(advance_since, F(1))
    shard.add(1, 1)
    shard.do(collapse_levels)
    (before,) = shard.state.spine.batches
    shard.cut(4)
    (held,) = shard.state.spine.slices
    assert held.bounds.since == before.bounds.since == F(1) and held.bounds.upper == F(4)


def test_times_that_are_not_in_one_order_are_not_cut():
    shard = Shard(TimeDomain("tuple", 2))
    shard.do(append, (run("p", (0, 0), (0, 0), rows=9),), Exactly(F((0, 0)), F((1, 1))))
    assert isinstance(shard.do(cut_slices, least=1), NoOp)


@pytest.mark.promise(
    "A slice is cut from the oldest members of the levels, or from a long slice by time; no row is "
    "lost or doubled, and nothing is merged across its ends",
    rule="`state/upkeep/slices.py`",
    also=["::test_a_cut_makes_a_slice_of_each_piece_and_shares_out_the_ids"],
)
def test_what_is_in_a_slice_is_merged_within_it_at_once_and_never_with_its_neighbours():
    shard = shard_of(*[1] * 8)
    shard.cut(4)
    found = [str(one.id) for one in requests(shard.state.spine, replace(EAGER, inputs_min=9, rows_min=99))]
    assert found == ["[4-8]", "[0-4]"] and shard.state.spine.unmerged == {0, 4}
    shard.do(apply_merge, shard.result(0, 4, run("m", 0, 3, rows=4, diff_sum=4)))
    assert shard.state.spine.unmerged == {4}
    assert [str(one.id) for one in requests(shard.state.spine, EAGER)] == ["[4-8]"]
    assert [str(one.id) for one in requests(shard.state.spine, EAGER, [SpineId(5, 6)])] == ["[6-8]"]
    across = MergeResult(SpineId(2, 6), (), shard.request(4, 6).inputs, F(0), None)
    assert shard.do(apply_merge, across).result is Fit.NO_MATCH


def test_inline_rows_leave_slices_too():
    shard = SlicedShard()
    for n in range(4):
        shard.do(append, (run(f"p{n}", n, n, rows=2, inline=b"rows"),), Exactly(F(n), F(n + 1)))
    shard.cut(4)
    assert [str(one.id) for one in inline_requests(shard.state.spine, EAGER)] == ["[2-4]", "[0-2]"]


# --- Long slices, cut by time ---

ROWS = _ROWS_PER_ID


def long_shard(counts, *, upper=None, since=0):
    """A shard whose only batch is one slice, with so many rows of each time."""
    shard = SlicedShard()
    end = counts[-1][0] + 1 if upper is None else upper
    shard.do(append, (counted("p", counts),), Exactly(F(0), F(end)))
    if since:
        shard.do(advance_since, F(since))
    shard.cut(1)
    return shard


def pieces(shard, *rows_of_times):
    """The result of a cut: a run for each list of `(time, rows)`, None for an empty one."""
    asked = shard.request(*shard.slices[0])
    runs = tuple(counted(f"c{n}", counts) if counts else None for n, counts in enumerate(rows_of_times))
    return asked, runs


def cut(shard, times, *rows_of_times):
    asked, runs = pieces(shard, *rows_of_times)
    result = MergeResult(asked.id, (), asked.inputs, shard.state.since, None, times, runs)
    return shard.do(apply_merge, result).result


def times_of(shard, least=ROWS):
    return [one.times for one in long_slices(shard.state, least)]


def test_a_long_slice_is_cut_into_pieces_of_about_the_usual_rows():
    assert times_of(long_shard([(t, ROWS) for t in range(8)])) == [tuple(range(1, 8))]
    assert times_of(long_shard([(t, ROWS) for t in range(4)])) == []
    assert times_of(long_shard([(t, 2 * ROWS) for t in range(4)])) == [(1, 2, 3)]
    assert times_of(long_shard([(t, 10) for t in range(800)]), 1000) == [(400,)]


def test_at_most_so_many_pieces_are_made_at_once():
    (times,) = times_of(long_shard([(t, ROWS) for t in range(64)]))
    assert len(times) == PIECES_MAX - 1 and times == tuple(range(4, 64, 4))


def test_one_time_cannot_be_cut():
    assert times_of(long_shard([(3, 8 * ROWS)])) == []
    # Its rows are in a piece of their own.
    assert times_of(long_shard([(3, ROWS), (4, 8 * ROWS), (5, 10)])) == [(4, 5)]


def test_times_that_were_folded_or_are_not_there_yet_begin_no_piece():
    shard = long_shard([(t, ROWS) for t in range(8)], since=3)
    assert times_of(shard) == [tuple(range(1, 8))]
    # Rows of times up to `since` are at that time from now on, so no piece begins there.
    folded = counted("m", [(3, 4 * ROWS), *((t, ROWS) for t in range(4, 8))])
    shard.do(apply_merge, shard.result(*shard.slices[0], folded, since=F(3)))
    assert times_of(shard) == [(4, 5, 6, 7)]


def test_what_is_not_merged_yet_or_closed_is_not_cut():
    shard = shard_of(8 * ROWS, 8 * ROWS)
    shard.do(collapse_levels)
    claim(shard, 0, shard.state.spine.next_id)
    shard.cut(ROWS)
    assert len(shard.slices) == 1 and times_of(shard) == []
    shard = long_shard([(t, ROWS) for t in range(8)])
    member = shard.state.spine.members[0]
    closed = replace(member.batch, bounds=replace(member.batch.bounds, since=Frontier()))
    spine = shard.state.spine.with_members([replace(member, batch=closed)])
    assert list(long_slices(replace(shard.state, spine=spine), ROWS)) == []


def test_the_newest_long_slice_is_cut_first():
    shard = SlicedShard()
    for n in range(2):
        lower = 8 * n
        counts = [(t, ROWS) for t in range(lower, lower + 8)]
        shard.do(append, (counted(f"p{n}", counts),), Exactly(F(lower), F(lower + 8)))
    assert shard.cut(ROWS) == 2
    assert [one.times[0] for one in long_slices(shard.state, ROWS)] == [9, 1]


@pytest.mark.parametrize(
    ("times", "fits"),
    [
        ((4,), True),
        ((1, 7), True),
        ((), False),
        ((0,), False),
        ((4, 4), False),
        ((5, 4), False),
        ((8,), False),
        ((-1, 4), False),
    ],
)
def test_times_of_a_cut_ascend_within_the_slice(times, fits):
    shard = long_shard([(t, ROWS) for t in range(8)])
    spine, asked = shard.state.spine, shard.request(*shard.slices[0])
    assert cut_fits(spine, asked.id, asked.inputs, times) is fits
    assert not cut_fits(spine, asked.id, "other", times)


def test_a_slice_has_no_more_pieces_than_ids():
    shard = long_shard([(t, 10) for t in range(8)])
    asked = shard.request(0, 1)
    assert not cut_fits(shard.state.spine, asked.id, asked.inputs, (4,))
    shard = long_shard([(t, ROWS // 4) for t in range(8)])
    asked = shard.request(0, 3)
    assert cut_fits(shard.state.spine, asked.id, asked.inputs, (2, 4))
    assert not cut_fits(shard.state.spine, asked.id, asked.inputs, (2, 4, 6))


def test_a_member_of_the_levels_is_not_cut():
    shard = SlicedShard()
    shard.do(append, (counted("p", [(t, ROWS) for t in range(8)]),), Exactly(F(0), F(8)))
    asked = shard.request(0, 9)
    assert not cut_fits(shard.state.spine, asked.id, asked.inputs, (4,))


def test_a_cut_makes_a_slice_of_each_piece_and_shares_out_the_ids():
    shard = long_shard([(t, ROWS) for t in range(8)])
    shard.add(3)
    low, high = [(t, ROWS) for t in range(2)], [(t, ROWS) for t in range(5, 8)]
    middle = [(t, ROWS) for t in range(2, 5)]
    assert cut(shard, (2, 5), low, middle, high) is Fit.EXACT
    assert shard.slices == [(0, 3), (3, 6), (6, 9)] and shard.levels == [(9, 10)]
    bounds = [(held.bounds.lower, held.bounds.upper, held.rows) for held in shard.state.spine.slices]
    assert bounds == [(F(0), F(2), 2 * ROWS), (F(2), F(5), 3 * ROWS), (F(5), F(8), 3 * ROWS)]
    assert shard.names == ["c0", "c1", "c2", "p8"] and shard.garbage == {"p"}
    assert shard.state.written.merged_rows == 8 * ROWS and not shard.state.spine.unmerged
    # The same result comes again: what it was made from is gone.
    again = MergeResult(SpineId(0, 9), (), "old", F(0), None, (2, 5), (None, None, None))
    assert shard.do(apply_merge, again).result is Fit.NO_MATCH


def test_a_piece_without_rows_is_a_slice_without_runs():
    shard = long_shard([(0, 8 * ROWS)], upper=9)
    assert cut(shard, (3,), [(0, 8 * ROWS)], None) is Fit.EXACT
    assert [len(member.batch.runs) for member in shard.state.spine] == [1, 0]
    assert not shard.state.spine.unmerged and shard.state.drained == F(9)


def test_a_slice_that_was_folded_is_cut_behind_what_was_folded():
    shard = long_shard([(t, ROWS) for t in range(8)], since=3)
    shard.do(apply_merge, shard.result(0, 9, counted("m", [(3, 4 * ROWS), (5, 4 * ROWS)]), since=F(3)))
    assert cut(shard, (3,), None, [(3, 8 * ROWS)]) is Fit.NO_MATCH
    assert cut(shard, (4,), [(3, 4 * ROWS)], [(5, 4 * ROWS)]) is Fit.EXACT
    assert [held.bounds.since for held in shard.state.spine.slices] == [F(3), F(3)]


def test_a_claim_to_cut_ends_with_the_cut():
    shard = long_shard([(t, ROWS) for t in range(8)])
    (asked,) = long_slices(shard.state, ROWS)
    cuts = tuple(str(time).encode() for time in asked.times)
    held = shard.do(claim_merge, asked, runner="x", lease_ms=30, cuts=cuts).result.claim
    assert held.by_time and begun_merge(shard.state, held) == asked
    assert cut(shard, asked.times, *[[(n, ROWS)] for n in range(8)]) is Fit.EXACT
    assert not shard.state.claims and len(shard.slices) == 8 and begun_merge(shard.state, held) is None


def test_a_cut_that_was_left_is_not_gone_on_with_at_other_times():
    """Where a slice is cut depends on the whole spine, which may have grown since."""
    shard = long_shard([(t, ROWS) for t in range(8)])
    (asked,) = long_slices(shard.state, ROWS)

    def claimed(times, now_ms):
        cuts = tuple(str(time).encode() for time in times)
        other = replace(asked, times=times)
        return shard.do(claim_merge, other, runner="x", lease_ms=30, cuts=cuts, now_ms=now_ms).result

    old = claimed((2, 4), 10).claim
    piece = counted("old", [(0, ROWS), (1, ROWS)]).parts
    assert shard.do(record_chunk, old, 0, piece, lease_ms=30, now_ms=11).result is True
    assert claimed((2, 4), 12).chunks == ((0, piece),)
    again = claimed((4,), 13)
    assert again.claim.cuts == (b"4",) and again.chunks == () and shard.garbage == {"old"}

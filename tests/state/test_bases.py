"""Bases: when one is due and kept, which batches a read needs because of it, and how it takes their place."""

from dataclasses import replace
from functools import reduce
from itertools import pairwise

import pytest
from pyrsistent import PMap
from shard_states import F, Shard, hollow, run
from sliced_shards import SlicedShard, counted, names
from writes import append, seal, stage

from tidelake.errors import InternalError
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Fold, Updates
from tidelake.model.time import TimeDomain
from tidelake.state.core.commands import NoOp
from tidelake.state.life.holds import advance_since
from tidelake.state.spine.bases import Base, Bases, Unpaid, needed
from tidelake.state.spine.merging import Fit
from tidelake.state.spine.space import rows_of_one_time
from tidelake.state.spine.spine import SpineId
from tidelake.state.upkeep import basing
from tidelake.state.upkeep.basing import (
    Made,
    add_base,
    begin_with_base,
    due,
    due_at_head,
    due_by_reads,
    forget_bases,
    last_passed,
    serves,
)
from tidelake.state.upkeep.claims import record_chunk, release_claim
from tidelake.state.upkeep.maintenance import apply_merge, begun_merge, claim_merge, collapse_levels
from tidelake.state.write.write import Exactly


def shard_of(*rows, cut=4, negative=0):
    """Slices of at least four rows."""
    shard = SlicedShard()
    shard.add(*rows, negative=negative)
    shard.cut(cut)
    return shard


# --- The list of bases ---


def test_bases_are_found_by_their_boundaries_and_by_time():
    two, five, nine = Base(2, 20, 19, ()), Base(5, 50, 49, ()), Base(9, 90, 95, ())
    bases = Bases.of([nine, two, five])
    assert [bases.before(hi) for hi in (1, 2, 4, 5, 8, 10)] == [None, two, two, five, five, nine]
    assert [bases.after(hi) for hi in (1, 2, 5, 9)] == [two, five, nine, None]
    assert [bases.get(hi) for hi in (2, 3)] == [two, None]
    assert [bases.serving(t) for t in (18, 19, 48, 49, 94, 95)] == [None, two, two, five, five, nine]
    assert [bases.within(*ends) for ends in ((2, 9), (1, 3), (5, 9), (2, 5))] == [[five], [two], [], []]


def test_an_edit_of_bases_that_does_not_fit_is_refused():
    bases = Bases.of([Base(2, 20, 19, ())])
    assert bases.edited({}) is bases
    assert [base.hi for base in bases.edited({5: Base(5, 50, 49, ())})] == [2, 5]
    assert [base.hi for base in bases.edited({1: Base(1, 5, 4, ()), 2: None})] == [1]
    for edit in ({2: Base(2, 20, 19, ())}, {5: None}):
        with pytest.raises(InternalError, match="does not fit"):
            bases.edited(edit)


# --- What reads need ---


def six(base_rows=1):
    """Batches `p0` to `p5` of two rows and one time each; bases before the third and before the fifth."""
    shard = shard_of(2, 2, 2, 2, 2, 2)
    assert shard.slices == [(0, 2), (2, 4), (4, 6)]
    assert [shard.base(hi, base_rows) for hi in (2, 4)] == [Fit.EXACT] * 2
    return shard


def needs(shard, query):
    """Names of the parts that are needed, and of those whose rows are taken away."""
    found = needed(shard.state, query)
    return " ".join(names(found.batches)), " ".join(names(found.less))


@pytest.mark.promise(
    "A read needs no more than a base and the batches since, the batches between its times, or two snapshots",
    rule="`needed` in `state/spine/bases.py`",
    also=[
        "::test_changes_need_the_batches_between",
        "::test_changes_are_the_difference_of_two_snapshots_where_that_has_fewer_updates",
    ],
)
@pytest.mark.parametrize(
    ("time", "parts"),
    [(0, "p0"), (1, "b2"), (2, "b2 p2"), (3, "b4"), (4, "b4 p4"), (5, "b4 p4 p5"), (99, "b4 p4 p5")],
)
def test_a_snapshot_needs_the_last_base_and_the_batches_since(time, parts):
    state, spine = six().state, six().state.spine
    # Batches after the time are not looked up.
    gone = replace(spine, members=reduce(PMap.remove, range(max(time, 2) + 2, 6), spine.members))
    assert " ".join(names(needed(replace(state, spine=gone), AsOf(time)).batches)) == parts


@pytest.mark.parametrize(
    ("after", "through", "parts"),
    [
        (-1, 0, "p0"),
        (0, 1, "p1"),
        (1, 2, "p2"),
        (1, 3, "p2 p3"),
        (2, 4, "p3 p4"),
        (3, 3, ""),
        (3, 5, "p4 p5"),
        (0, 5, "p1 p2 p3 p4 p5"),
    ],
)
def test_changes_need_the_batches_between(after, through, parts):
    # With bases of so many rows two snapshots are never less.
    shard = six(base_rows=9)
    assert needs(shard, Changes(after, through)) == (parts, "")
    assert needed(shard.state, Changes(after, through)).query == Changes(after, through)


@pytest.mark.parametrize(
    ("after", "through", "parts", "less"),
    [
        (1, 3, "b4", "b2"),
        (0, 3, "b4", "p0"),
        (1, 5, "b4 p4 p5", "b2"),
        (0, 5, "b4 p4 p5", "p0"),
        (4, 5, "p5", ""),
        (0, 1, "p1", ""),
        (2, 4, "p3 p4", ""),
        (1, 4, "b4 p4", "b2"),
        # As many updates, so those between are read.
        (0, 2, "p1 p2", ""),
        (3, 3, "", ""),
    ],
)
def test_changes_are_the_difference_of_two_snapshots_where_that_has_fewer_updates(
    after, through, parts, less
):
    shard = six()
    found = needed(shard.state, Changes(after, through))
    assert needs(shard, Changes(after, through)) == (parts, less)
    asked = AsOf(through) if less else Changes(after, through)
    assert (found.query, found.after) == (asked, after if less else None)


@pytest.mark.parametrize(
    ("lower", "upper", "parts"),
    [
        (F(0), F(1), "p0"),
        (F(0), F(6), "p0 p1 p2 p3 p4 p5"),
        (F(1), F(3), "p1 p2"),
        (F(2), F(2), ""),
        (F(4), Frontier(), "p4 p5"),
        (F(6), Frontier(), ""),
        (F(5), F(99), "p5"),
        (Frontier(), Frontier(), ""),
    ],
)
def test_updates_need_the_batches_of_their_times(lower, upper, parts):
    assert needs(six(), Updates(lower, upper)) == (parts, "")


def test_a_fold_needs_all_batches_and_no_base():
    assert needs(six(), Fold(F(3))) == ("p0 p1 p2 p3 p4 p5", "")


def test_merged_slices_are_needed_whole():
    shard = six(base_rows=2)
    for lo in (0, 2, 4):
        shard.do(apply_merge, shard.result(lo, lo + 2, run(f"m{lo}", lo, lo + 1, rows=4, diff_sum=4)))
    assert shard.bases == [2, 4]
    assert needs(shard, AsOf(4)) == ("b4 m4", "") and needs(shard, AsOf(2)) == ("b2 m2", "")
    assert needs(shard, Changes(2, 3)) == ("m2", "") and needs(shard, Changes(3, 4)) == ("m4", "")
    assert needs(shard, Updates(F(1), F(3))) == ("m0 m2", "")


def test_what_is_staged_is_needed_by_all():
    shard = six()
    shard.do(stage, (run("s", 8, 9, rows=2),), F(6))
    shard.do(seal, F(7))
    assert needs(shard, AsOf(3)) == ("b4 s", "")
    assert needs(shard, Changes(1, 3)) == ("b4 s", "b2 s")
    assert needs(shard, Updates(F(5), F(6))) == ("p5 s", "")


@pytest.mark.promise("Tuple times need all batches", rule="`needed`")
def test_tuples_need_all_batches():
    shard = Shard(TimeDomain("tuple", 2))
    for n in range(2):
        lower, upper = F((0, n)), F((0, n + 1))
        shard.do(append, (run(f"p{n}", (0, n), (0, n)),), Exactly(lower, upper))
    for query in (AsOf((0, 0)), Changes((0, 0), (0, 1)), Fold(F((0, 0)))):
        assert needs(shard, query) == ("p0 p1", "")
    assert basing.request(shard.state, 1) is None and due(shard.state) is due_at_head(shard.state) is None


def test_nothing_is_needed_of_a_shard_without_batches():
    shard = SlicedShard()
    for query in (AsOf(0), Changes(0, 3), Updates(F(0), F(3)), Updates(F(0), Frontier()), Fold(F(0))):
        assert needs(shard, query) == ("", "")


# --- Requests ---


def test_a_base_is_made_of_the_one_before_and_the_batches_since():
    shard = six()
    found = basing.request(shard.state, 6)
    assert (found.id, found.base, found.rows, found.sources) == (SpineId(4, 6), 5, 5, 3)
    assert names(basing.inputs(shard.state, found)) == ["b4", "p4", "p5"]
    older = basing.request(shard.state, 6, lo=2)
    assert (older.id, older.rows) == (SpineId(2, 6), 9)
    assert names(basing.inputs(shard.state, older)) == ["b2", "p2", "p3", "p4", "p5"]
    first = basing.request(shard.state, 6, lo=0)
    assert (first.id, first.rows) == (SpineId(0, 6), 12)
    assert names(basing.inputs(shard.state, first)) == [f"p{n}" for n in range(6)]


def test_there_is_no_base_where_there_is_one_or_no_boundary():
    shard = six()
    assert [basing.request(shard.state, hi) for hi in (0, 2, 4, 7)] == [None] * 4
    # Between members, also within a slice.
    assert basing.request(shard.state, 5).base == 4
    shard.do(apply_merge, shard.result(4, 6, run("m", 4, 5, rows=4, diff_sum=4)))
    assert basing.request(shard.state, 5) is None and basing.request(shard.state, 6, lo=5) is None
    shard.do(seal, Frontier())
    assert basing.boundary(shard.state, shard.state.spine.next_id) is None


def test_a_base_of_batches_that_were_folded_further_has_the_time_of_their_rows():
    shard = shard_of(4, 4, 4)
    shard.do(advance_since, F(2))
    shard.do(apply_merge, shard.result(0, 1, run("m", 2, 2, rows=4, diff_sum=4), since=F(2)))
    assert basing.request(shard.state, 1).base == 2
    assert shard.base(1) is Fit.EXACT
    # The next one is no earlier than the one before.
    assert [basing.request(shard.state, hi).base for hi in (2, 3)] == [2, 2]
    assert needs(shard, AsOf(2)) == ("b1 p1 p2", "")


# --- When one is due ---


def upserts(count, rows=4):
    """The same two rows, written again and again: half of the updates of each batch but the first retract."""
    shard = SlicedShard()
    shard.add(rows // 2)
    shard.add(*[rows] * count, negative=rows // 2)
    shard.cut(rows)
    return shard


@pytest.mark.promise(
    "A base is due where a snapshot would read twice what it answers; one that does not pay is not "
    "kept, and tried again only once much more is read",
    rule="`due`, `Made.pays` in `state/upkeep/basing.py`",
    also=["::test_a_base_that_does_not_pay_is_noted_and_tried_again_only_once_much_more_is_read"],
)
def test_a_base_is_due_where_a_snapshot_reads_twice_what_it_answers():
    shard = upserts(6)
    assert shard.slices[:2] == [(0, 2), (2, 3)]
    found = due(shard.state)
    assert (found.id, found.base, found.rows, found.saves) == (SpineId(0, 2), 1, 6, 2)
    assert shard.base(2, rows=2, saves=2) is Fit.EXACT
    # Two rows of the base, and four updates.
    assert due(shard.state).id == SpineId(2, 3)


@pytest.mark.promise(
    "Bases together have at most as many rows as there are updates, and one more at the head",
    rule="`add_base`",
    also=[
        "::test_a_base_that_did_not_pay_for_itself_goes_when_the_next_one_comes",
        "lake/test_sliced_lakes.py::test_bases_have_at_most_as_many_rows_as_there_are_updates_beside_one_at_the_head",
    ],
)
def test_all_that_is_due_leaves_no_more_rows_in_bases_than_updates():
    shard = upserts(40)
    for _ in range(99):
        found = due(shard.state)
        if found is None:
            break
        assert shard.do(add_base, shard.made(found.id.hi, 2, asked=found)).result is Fit.EXACT
    kept = sum(run_.rows for base in shard.state.bases for run_ in base.runs)
    assert due(shard.state) is None and 0 < kept <= shard.state.spine.totals.rows // 2
    last = shard.state.bases.before(shard.state.spine.sliced)
    assert shard.state.spine.sliced - last.hi <= 1


def test_rows_that_only_come_are_tried_now_and_then_and_have_no_base():
    shard = shard_of(*[1] * 200)
    tried = []
    while (found := due(shard.state)) is not None:
        tried.append(found.rows)
        shard.do(add_base, shard.made(found.id.hi, found.rows, asked=found))
    assert not shard.bases and all(later >= 4 * earlier for earlier, later in pairwise(tried))
    assert 0 < len(tried) < 4


def loaded(*counts, **fields):
    """One run, loaded at once, that says how many rows have each time; it is a slice."""
    shard = SlicedShard()
    made = counted("load", counts, **fields)
    shard.do(append, (made,), Exactly(F(0), F(counts[-1][0] + 1)))
    shard.cut(4)
    assert len(shard.slices) == 1
    return shard


@pytest.mark.promise(
    "No base is tried where the counts of times show that it would not pay, as after a bulk append",
    rule="`rows_of_one_time` in `state/spine/space.py`",
    also=[
        "::test_a_base_is_tried_where_rows_of_the_load_may_be_gone_since",
        "::test_the_rows_of_one_time_of_a_run_are_those_that_its_parts_count_exactly",
    ],
)
def test_no_base_is_tried_where_most_rows_have_one_time_and_stay():
    shard = shard_of(100)
    assert due(shard.state) is None
    shard.add(4, 4, 4)
    shard.cut(4)
    assert len(shard.slices) > 1 and due(shard.state) is None
    # At least 80 of 100 rows are answered, or 52, or only 50.
    # Not only the first batch of a slice has such rows.
    assert due(shard_of(2, 100).state) is None
    assert due(loaded((0, 90), (7, 10)).state) is None
    assert due(loaded((0, 76), (7, 24)).state) is None
    assert due(loaded((0, 75), (7, 25)).state).rows == 100


def test_a_base_is_tried_where_rows_of_the_load_may_be_gone_since():
    shard = shard_of(100)
    shard.add(100, negative=40)
    shard.cut(4)
    # A snapshot answers about 120 rows of 200, and reads twice that only later.
    assert due(shard.state) is None
    shard.add(100, negative=100)
    shard.cut(4)
    assert due(shard.state).rows == 300


def test_the_rows_of_one_time_of_a_run_are_those_that_its_parts_count_exactly():
    one, two = (counted("p", [(t, 5), (t + 1, 7)]).parts[0] for t in (3, 4))
    assert [rows_of_one_time(Run(parts)) for parts in ((one,), (one, one), (one, two))] == [5, 10, 5]
    (alone,) = run("q", 3, 3, rows=9).parts
    assert rows_of_one_time(Run((one, two, alone))) == 14
    assert rows_of_one_time(run("r", 3, 4, rows=9)) == rows_of_one_time(Run(())) == 0
    # They have other times, or are fewer, when they are read.
    assert rows_of_one_time(Run((alone, replace(one, rewrite=9)))) == 0
    assert rows_of_one_time(Run((alone,), truncated=True)) == 0


def test_a_shard_without_slices_has_no_base():
    assert due(SlicedShard().state) is None
    shard = SlicedShard()
    shard.add(2, 4, 4, negative=2)
    assert due(shard.state) is None and due_at_head(shard.state) is None


def test_a_base_that_does_not_pay_is_noted_and_tried_again_only_once_much_more_is_read():
    shard = upserts(40)
    found = due(shard.state)
    assert found.id == SpineId(0, 2) and found.rows == 6
    tried = []
    while found is not None:
        tried.append(found.rows)
        # A read answers nearly all that it reads, whatever was estimated.
        made = shard.made(found.id.hi, found.rows - 1, asked=found)
        assert not made.pays and shard.do(add_base, made).result is Fit.UNPAID
        assert shard.state.unpaid == Unpaid(found.id.hi, found.rows - 1, 100) and not shard.bases
        found = due(shard.state)
    assert all(later >= 2 * (earlier - 1) for earlier, later in pairwise(tried))
    assert len(tried) <= 6 and shard.state.spine.totals.rows == 162


@pytest.mark.parametrize(
    ("rows", "size_bytes", "saves", "pays"),
    [
        (5, 50, 2, True),
        (6, 50, 2, False),
        (5, 51, 2, False),
        (8, 80, 5, True),
        (9, 80, 5, False),
        (99, 990, 0, True),
        (0, 0, 2, True),
    ],
)
def test_a_base_pays_if_rows_and_bytes_are_saved(rows, size_bytes, saves, pays):
    asked = replace(basing.request(six().state, 6, saves), rows=10, size_bytes=100)
    runs = (run("b", 5, 5, rows=rows, size_bytes=size_bytes),) if rows else ()
    made = Made(asked, runs, six().state.seqno)
    assert (made.rows, made.size_bytes, made.pays) == (rows, size_bytes, pays)


def test_at_rest_a_base_is_due_at_the_head_if_a_read_there_reads_other_rows_too():
    shard = upserts(3)
    hi = shard.state.spine.next_id
    found = due_at_head(shard.state)
    assert (found.id, found.base, found.saves) == (SpineId(0, hi), hi - 1, 9)
    shard.do(add_base, shard.made(hi, 2, asked=found))
    assert due_at_head(shard.state) is None
    # Rows that only come: what is read is what is answered.
    assert due_at_head(shard_of(4, 4, 4).state) is None


def test_a_base_is_due_once_reads_have_merged_as_many_rows_as_making_it_reads():
    shard = shard_of(4, 4)
    assert due(shard.state) is None and due_by_reads(shard.state, 7) is None
    found = due_by_reads(shard.state, 8)
    assert (found.id, found.rows, found.saves) == (SpineId(0, 2), 8, 0)
    assert [serves(shard.state, time) for time in (0, 1, 2)] == [False, True, True]
    assert shard.do(add_base, shard.made(2, 8, asked=found)).result is Fit.EXACT
    assert due_by_reads(shard.state, 99) is None
    # One run is read as fast without a base.
    assert due_by_reads(shard_of(4).state, 99) is None
    assert not serves(SlicedShard().state, 0)


def test_a_base_at_the_head_that_did_not_pay_is_not_tried_again_there():
    shard = upserts(3)
    found = due_at_head(shard.state)
    shard.do(add_base, shard.made(found.id.hi, found.rows, asked=found))
    assert shard.state.unpaid.hi == found.id.hi and due_at_head(shard.state) is None
    shard.add(4, negative=2)
    # Its rows are what is answered, as far as is known.
    assert due_at_head(shard.state) is not None
    shard = upserts(30)
    found = due_at_head(shard.state)
    shard.do(add_base, shard.made(found.id.hi, found.rows, asked=found))
    shard.add(4, negative=2)
    assert due_at_head(shard.state) is None


def test_the_boundaries_that_since_has_passed():
    shard = shard_of(2, 2, 2, 2, 2)
    head = shard.state.spine.next_id
    assert (shard.slices, head) == ([(0, 2), (2, 4)], 5)
    found = []
    for time in range(5):
        shard.do(advance_since, F(time))
        found.append(
            (last_passed(shard.state, head), last_passed(shard.state, 3), last_passed(shard.state, 1))
        )
    assert found == [(0, 0, 0), (2, 2, 0), (2, 2, 0), (4, 0, 0), (5, 0, 0)]
    shard.do(advance_since, Frontier())
    assert last_passed(shard.state, head) == 0
    assert last_passed(SlicedShard().state, 9) == 0


# --- A base comes in ---


def test_the_first_of_two_bases_at_a_boundary_stays():
    shard = six()
    first, second = shard.made(6), shard.made(6, 2)
    second = replace(second, runs=(run("other", 5, 5, rows=2, diff_sum=12),))
    assert shard.do(add_base, first).result is Fit.EXACT
    before = shard.state
    assert isinstance(shard.do(add_base, first), NoOp) and shard.do(add_base, first).result is Fit.ALREADY
    assert shard.do(add_base, second).result is Fit.NO_MATCH and shard.state is before
    assert shard.state.written.merged_rows == 3 and needs(shard, AsOf(5)) == ("b6", "")


def test_an_empty_base_has_no_run():
    shard = SlicedShard()
    shard.add(4, 4)
    shard.do(append, (run("q", 2, 2, rows=8, negative_rows=8, diff_sum=-8),), Exactly(F(2), F(3)))
    shard.add(1)
    shard.cut(4)
    assert shard.base(3, rows=0) is Fit.EXACT
    assert needs(shard, AsOf(2)) == ("", "") and needs(shard, AsOf(3)) == ("p3", "")


def test_a_base_whose_boundary_went_meanwhile_is_not_kept():
    shard = shard_of(2, 2, 2)
    made = shard.made(1)
    shard.do(apply_merge, shard.result(0, 2, run("m", 0, 1, rows=4, diff_sum=4)))
    assert shard.do(add_base, made).result is Fit.NO_MATCH and not shard.bases


@pytest.mark.promise(
    "A base fits while its boundary stands, whatever was merged beneath it; of two at one boundary "
    "the first stays",
    rule="`add_base`",
    also=["::test_the_first_of_two_bases_at_a_boundary_stays"],
)
def test_a_base_fits_whatever_was_merged_beneath_it():
    shard = shard_of(2, 2, 2, 2, 2)
    made = shard.made(4)
    shard.do(apply_merge, shard.result(0, 2, run("m", 0, 1, rows=4, diff_sum=4)))
    assert shard.base(2) is Fit.EXACT
    assert shard.do(add_base, made).result is Fit.EXACT and shard.bases == [2, 4]


def test_a_base_of_a_time_before_the_one_before_is_not_kept():
    shard = shard_of(4, 4, 4)
    made = shard.made(2)
    shard.do(advance_since, F(2))
    shard.do(apply_merge, shard.result(0, 1, run("m", 2, 2, rows=4, diff_sum=4), since=F(2)))
    assert shard.base(1) is Fit.EXACT
    assert made.request.base == 1 and shard.do(add_base, made).result is Fit.NO_MATCH


def test_a_base_at_the_head_goes_when_the_next_one_comes():
    shard = six()
    shard.add(1)
    assert shard.base(7) is Fit.EXACT and shard.bases == [2, 4, 7]
    shard.add(1)
    assert shard.base(8) is Fit.EXACT and shard.bases == [2, 4, 8]
    assert "b7" in shard.garbage and "b8" not in shard.garbage
    assert needs(shard, AsOf(6)) == ("b4 p4 p5 p6", "") and needs(shard, AsOf(7)) == ("b8", "")


def test_a_base_that_did_not_pay_for_itself_goes_when_the_next_one_comes():
    shard = shard_of(4, 4, 4)
    # At the head, which is the end of a slice: nine rows of twelve are kept there.
    assert shard.base(3, rows=9) is Fit.EXACT
    shard.add(4)
    shard.cut(4)
    assert shard.base(4, rows=2) is Fit.EXACT
    assert shard.bases == [4] and shard.garbage == {"b3"}


def test_a_base_is_claimed_and_its_chunks_are_recorded():
    shard = six()
    asked = basing.request(shard.state, 6, saves=9)
    held = shard.do(
        claim_merge, asked, runner="x", lease_ms=30, cuts=(b"c",), since=F(asked.base)
    ).result.claim
    assert held.base == 5 and begun_merge(shard.state, held) == asked
    # Who goes on with it takes it for what it saves by now.
    paid = basing.request(shard.state, 6)
    held = shard.do(
        claim_merge, paid, runner="x", lease_ms=30, cuts=(b"c",), since=F(asked.base)
    ).result.claim
    assert begun_merge(shard.state, held) == paid != asked
    made = shard.made(6)
    assert shard.do(add_base, made, claim=held).result is Fit.NO_MATCH
    assert shard.do(record_chunk, held, 0, (), lease_ms=30).result
    assert shard.do(record_chunk, held, 1, made.runs[0].parts, lease_ms=30).result
    assert shard.do(add_base, made, claim=held).result is Fit.EXACT
    assert not shard.state.claims and not shard.state.chunks and shard.bases == [2, 4, 6]
    assert begun_merge(shard.state, held) is None


def test_forgotten_bases_are_garbage_and_those_that_are_not_there_are_passed_over():
    shard = six()
    assert shard.do(forget_bases, his=(3, 4)).result == 1
    assert shard.bases == [2] and shard.garbage == {"b4"}
    assert isinstance(shard.do(forget_bases, his=(3, 4)), NoOp)


# --- A boundary that goes ---


def test_a_merge_over_a_boundary_lets_the_base_fall():
    shard = six()
    assert shard.base(5) is Fit.EXACT and shard.bases == [2, 4, 5]
    shard.do(apply_merge, shard.result(4, 6, run("m", 4, 5, rows=4, diff_sum=4)))
    assert shard.bases == [2, 4] and shard.garbage == {"p4", "p5", "b5"}
    assert needs(shard, AsOf(5)) == ("b4 m", "")


# --- `since` passes a base ---


@pytest.mark.promise(
    "Once `since` has passed a base, the base takes the place of all that is older",
    rule="`begin_with_base`",
    also=["lake/test_sliced_lakes.py::test_once_since_has_passed_bases_what_is_older_goes"],
)
def test_the_last_base_that_since_has_passed_takes_the_place_of_all_that_is_older():
    shard = six()
    assert isinstance(shard.do(begin_with_base), NoOp)
    shard.do(advance_since, F(3))
    assert shard.do(begin_with_base).result is True
    assert shard.ids == [(0, 4), (4, 5), (5, 6)] and shard.slices == [(0, 4), (4, 6)]
    assert shard.names == ["b4", "p4", "p5"] and not shard.bases
    assert shard.garbage == {"p0", "p1", "p2", "p3", "b2"}
    (first, *_) = shard.state.spine
    assert first.batch.bounds == hollow(0, 4, since=F(3)).bounds
    assert needs(shard, AsOf(3)) == ("b4", "") and needs(shard, AsOf(4)) == ("b4 p4", "")
    assert isinstance(shard.do(begin_with_base), NoOp)


def test_a_base_that_is_offered_again_after_it_became_a_batch_or_went_is_not_taken_again():
    shard = shard_of(1, 1, 1, 1, 1, 1, cut=2)
    first = shard.made(2)
    assert shard.do(add_base, first).result is Fit.EXACT
    shard.do(advance_since, F(1))
    assert shard.do(begin_with_base).result is True and not shard.bases
    assert shard.do(add_base, first).result is Fit.ALREADY and not shard.bases
    second = shard.made(4)
    assert shard.do(add_base, second).result is Fit.EXACT
    shard.do(forget_bases, his=(4,))
    assert shard.do(add_base, second).result is Fit.ALREADY and not shard.bases


def test_a_base_that_since_has_not_passed_stays_one():
    shard = six()
    shard.do(advance_since, F(2))
    assert shard.do(begin_with_base).result is True
    assert shard.ids[0] == (0, 2) and shard.bases == [4]
    assert needs(shard, AsOf(3)) == ("b4", "") and needs(shard, AsOf(2)) == ("b2 p2", "")


def test_a_base_within_a_slice_that_is_not_merged_divides_it():
    shard = shard_of(1, 1, 1, 1, 1, 1)
    assert shard.slices == [(0, 4)] and shard.base(3) is Fit.EXACT
    shard.do(advance_since, F(2))
    assert shard.do(begin_with_base).result is True
    assert shard.slices == [(0, 3), (3, 4)] and shard.names == ["b3", "p3", "p4", "p5"]
    assert not shard.state.spine.unmerged and shard.levels == [(4, 5), (5, 6)]


@pytest.mark.parametrize("hi", [5, 6, 7, 8])
def test_a_base_behind_the_slices_divides_the_levels(hi):
    shard = shard_of(1, 1, 1, 1, 1, 1, 1)
    shard.add(1)
    shard.do(collapse_levels)
    assert shard.slices == [(0, 4)] and shard.base(hi) is Fit.EXACT
    shard.do(advance_since, F(7))
    assert shard.do(begin_with_base).result is True
    assert shard.slices == [(0, hi)] and shard.levels == [(n, n + 1) for n in range(hi, 8)]
    shard.add(1)
    shard.do(collapse_levels)
    assert shard.names[0] == f"b{hi}"


def test_claims_below_the_base_end_and_one_across_it_keeps_all_as_it_is():
    shard = six()
    shard.do(advance_since, F(3))
    below = shard.request(0, 2)
    shard.do(claim_merge, below, runner="x", lease_ms=30, cuts=())
    across = basing.request(shard.state, 6, lo=2)
    held = shard.do(claim_merge, across, runner="y", lease_ms=30, cuts=(), since=F(5)).result.claim
    assert held.id == SpineId(2, 6) and len(shard.state.claims) == 2
    assert isinstance(shard.do(begin_with_base), NoOp)
    shard.do(release_claim, claim=held)
    assert shard.do(begin_with_base).result is True and not shard.state.claims


def test_a_claim_across_the_base_that_a_dead_process_left_ends():
    shard = six()
    shard.do(advance_since, F(3))
    across = basing.request(shard.state, 6, lo=2)
    shard.do(claim_merge, across, runner="dead", lease_ms=30, cuts=(), since=F(5))
    assert isinstance(shard.do(begin_with_base, now_ms=39), NoOp)
    assert shard.do(begin_with_base, now_ms=40).result is True and not shard.state.claims


def test_an_empty_base_takes_the_place_of_rows_that_all_went():
    shard = SlicedShard()
    shard.add(4)
    shard.do(append, (run("q", 1, 1, rows=4, negative_rows=4, diff_sum=-4),), Exactly(F(1), F(2)))
    shard.add(4)
    shard.cut(4)
    shard.base(2, rows=0)
    shard.do(advance_since, F(1))
    assert shard.do(begin_with_base).result is True
    assert shard.names == ["p2"] and [len(m.batch.runs) for m in shard.state.spine] == [0, 1]


def test_a_closed_since_has_no_time_for_a_base():
    shard = six()
    shard.do(advance_since, Frontier())
    assert basing.passed(shard.state) is None and isinstance(shard.do(begin_with_base), NoOp)


def test_parts_of_bases_are_part_of_the_state():
    shard = six()
    assert {"b2", "b4"} <= set(shard.state.part_names)
    assert [base.batch(F(0)).bounds.upper for base in shard.state.bases] == [F(2), F(4)]
    base = Base(1, 1, 0, (Run(tuple(part for n in "ab" for part in run(n).parts)),))
    assert [part.name for part in base.parts()] == ["a", "b"]

"""Who keeps history back, and for how long; and the end of a shard."""

import pytest
from shard_states import F, Shard, doom, run
from test_garbage import appended, named, two_and_a_merge
from writes import append

from tidelake.errors import CollectionDropped, CollectionInUse, LeaseExpired
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.core.commands import NoOp, open_writer
from tidelake.state.core.state import Retention
from tidelake.state.life import holds
from tidelake.state.life.dropping import drop_shard
from tidelake.state.write.write import Exactly


@pytest.fixture
def shard():
    return Shard()


@pytest.mark.promise(
    "The next commit ends a reader whose lease is over, by the clock of the committing process, and "
    "`since` follows; without a commit the reader lives on. The reader learns of its end at its "
    "next call",
    rule="`settle`, `Lease.check`",
    also=[
        "shard/test_lease.py::test_a_lease_that_is_over_lives_on_without_a_commit",
        "shard/test_lease.py::test_a_reader_that_shows_signs_of_life_does_not_expire_and_one_that_does_not_is_ended_by_others",
        "shard/test_lease.py::test_the_hold_of_a_reader_that_was_killed_expires",
        "shard/test_lease.py::test_a_reader_that_slept_through_its_lease_gives_no_wrong_row",
    ],
)
def test_a_hold_ends_by_the_clock_of_the_committer_and_since_follows(shard):
    appended(shard, now_ms=10)
    appended(shard, now_ms=10)
    shard.do(holds.open_hold, "a", "test", lease_ms=20, now_ms=10)
    shard.do(holds.advance_since, F(1), now_ms=11)
    assert shard.state.since == F(0)
    assert isinstance(shard.do(holds.end_expired_holds, now_ms=29), NoOp)
    appended(shard, now_ms=30)
    assert not shard.state.holds and shard.state.since == F(1)
    assert isinstance(shard.refused(holds.renew_hold, "a", now_ms=31), LeaseExpired)


@pytest.mark.promise(
    "`since` follows `upper` at the retained distance, and moves when leases end, also in an idle collection",
    rule="`settle`, `end_expired_holds`",
    also=[
        "shard/test_lease.py::test_upkeep_that_found_a_collection_at_rest_looks_again_when_a_lease_is_over",
        "shard/test_lease.py::test_since_follows_upper_at_the_distance_that_is_retained",
        "shard/test_lease.py::test_since_follows_by_maintenance_without_writes",
    ],
)
def test_an_idle_shard_lets_holds_end_as_well(shard):
    shard.do(holds.open_hold, "a", "test", lease_ms=20, now_ms=10)
    shard.do(holds.end_expired_holds, now_ms=30)
    assert not shard.state.holds


def test_a_sign_of_life_in_time_keeps_the_hold(shard):
    shard.do(holds.open_hold, "a", "test", lease_ms=20, now_ms=10)
    shard.do(holds.renew_hold, "a", now_ms=25)
    appended(shard, now_ms=44)
    assert "a" in shard.state.holds
    # ... also a late one, if there was no commit in between.
    shard.do(holds.renew_hold, "a", now_ms=99)
    assert shard.state.holds["a"].expires_ms == 119


@pytest.mark.promise(
    "The allowed frontier may be past `upper`; with tuples, several calls together may put it "
    "there. `since` leaves one closed time to read, and follows `upper`",
    rule="`settle`",
    also=[
        "::test_what_several_calls_allow_of_tuples_does_not_leave_them_without_a_time_to_read",
    ],
)
def test_since_stays_where_a_closed_time_can_be_read_and_follows_upper_to_what_is_allowed(shard):
    shard.do(holds.advance_since, F(4))
    assert (shard.state.since, shard.state.retained) == (F(0), F(4))
    for upper in range(1, 8):
        appended(shard)
        assert shard.state.since == F(min(upper - 1, 4))
        assert not shard.state.upper <= shard.state.since
    shard.do(holds.advance_since, F(9))
    shard.do(append, (), Exactly(F(7), Frontier()))
    assert shard.state.since == F(9)


def test_with_tuples_since_leaves_a_closed_time_to_read_as_well():
    shard = Shard(TimeDomain("tuple", 2))
    shard.do(append, (), Exactly(F((0, 0)), F((4, 0), (0, 5))))
    shard.do(holds.advance_since, F((0, 7), (3, 2)))
    assert shard.state.since == F((0, 7), (3, 2))
    shard.do(holds.advance_since, F((5, 5)))
    assert (shard.state.since, shard.state.retained) == (F((0, 7), (3, 2)), F((5, 5)))
    shard.do(append, (), Exactly(F((4, 0), (0, 5)), F((6, 6))))
    assert shard.state.since == F((5, 5))


def test_what_several_calls_allow_of_tuples_does_not_leave_them_without_a_time_to_read():
    shard = Shard(TimeDomain("tuple", 2))
    shard.do(append, (), Exactly(F((0, 0)), F((4, 0), (1, 1), (0, 4))))
    shard.do(holds.advance_since, F((0, 3)))
    shard.do(holds.advance_since, F((3, 0)))
    assert (shard.state.since, shard.state.retained) == (F((0, 3)), F((3, 3)))


def test_since_follows_upper_at_the_distance_of_the_retention(shard):
    shard.do(holds.set_retention, Retention(2))
    for _ in range(5):
        appended(shard)
    assert shard.state.since == F(3)
    shard.do(holds.open_hold, "a", "test", lease_ms=99)
    appended(shard)
    assert shard.state.since == F(3) and shard.state.retained == F(4)
    shard.do(holds.close_hold, "a")
    assert shard.state.since == F(4)
    shard.do(holds.set_retention, Retention())
    appended(shard)
    assert shard.state.since == F(4)


@pytest.mark.promise(
    "A critical hold lasts until it is dropped. Only its owner moves it, and a repeated move is "
    "done once; others get the present token and `since`",
    rule="`compare_and_downgrade_since`",
    also=[
        "shard/test_lease.py::test_a_second_owner_fences_the_first_one_of_a_critical_hold",
        "shard/test_lease.py::test_a_move_of_a_critical_hold_is_done_once_however_often_it_is_repeated",
    ],
)
def test_a_critical_hold_is_moved_by_its_token_and_the_same_call_again_succeeds(shard):
    for _ in range(9):
        appended(shard)
    shard.do(holds.open_critical, "c", token="one")
    shard.do(holds.advance_since, F(8))
    assert shard.state.since == F(0)
    move = (holds.compare_and_downgrade_since, "c")
    assert shard.do(*move, "one", "two", F(3)).result.done and shard.state.since == F(3)
    again = shard.do(*move, "one", "two", F(3))
    assert isinstance(again, NoOp) and again.result.done
    fenced = shard.do(*move, "one", "three", F(5))
    assert isinstance(fenced, NoOp) and not fenced.result.done
    assert (fenced.result.hold.token, fenced.result.hold.since) == ("two", F(3))
    # It lasts, whatever the clock says, and never goes back.
    appended(shard, now_ms=10**12)
    assert shard.do(*move, "two", "two", F(1)).result.done and shard.state.since == F(3)
    assert shard.do(holds.drop_critical, "c").result and shard.state.since == F(8)
    assert "no critical hold 'c'" in str(shard.refused(*move, "two", "two", F(4)))


@pytest.mark.promise(
    "A tombstone has closed `since` and `upper`, and names and holds nothing",
    rule="`drop_shard`, `tombstone-holds-nothing`",
    also=["::test_a_shard_can_be_dropped_whatever_it_holds"],
)
def test_a_dropped_shard_holds_nothing_and_takes_nothing(shard):
    two_and_a_merge(shard)
    ever = named(shard.state) | shard.garbage
    shard.do(holds.open_critical, "c")
    error = shard.refused(drop_shard, now_ms=11)
    assert isinstance(error, CollectionInUse) and len(error.holders) == 2
    assert shard.do(drop_shard, force=True, now_ms=11).result is True
    state = shard.state
    assert state.upper.closed and state.since.closed and not named(state) and not state.holds
    assert shard.garbage == ever and isinstance(shard.do(drop_shard), NoOp)
    for command, *args in (
        (append, (), Exactly(F(9), F(10))),
        (holds.open_critical, "c"),
        (holds.renew_hold, "slow"),
        (holds.compare_and_downgrade_since, "c", "", "", F(1)),
        (holds.set_retention, Retention(3)),
        (open_writer, "w"),
    ):
        assert isinstance(shard.refused(command, *args), CollectionDropped)
    assert isinstance(shard.refused(holds.open_hold, "x", "t", lease_ms=9), CollectionDropped)
    assert isinstance(shard.do(holds.close_hold, "slow"), NoOp)
    assert isinstance(shard.do(holds.advance_since, F(3)), NoOp)
    assert set(shard.do(doom, age_ms=0, names_max=99, now_ms=11).result) == ever


@pytest.mark.parametrize("appends", [0, 1, 5])
def test_a_shard_can_be_dropped_whatever_it_holds(shard, appends):
    for n in range(appends):
        appended(shard, run(f"p{n}", n, n))
    shard.do(append, (), Exactly(F(appends), F()))
    assert shard.do(drop_shard).result is True
    assert len(shard.state.spine) == 1 and len(shard.garbage) == appends

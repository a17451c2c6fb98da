"""Writes of several collections: all of it is seen, or nothing, whatever crashes, leaves or comes late."""

import threading
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from together import AGE_S, QUIET, Places, at, awaiting, balance, rows, totals

import inside
from clocks import SetClock
from tables import SCHEMA
from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from tidelake.errors import (
    Closed,
    CollectionDropped,
    CollectionNotFound,
    CorruptionError,
    InvalidUpdates,
    LeftGroup,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeWarning,
    TransactionExpired,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
)
from tidelake.lake.groups.attempt import Attempt
from tidelake.model.frontier import Frontier
from tidelake.state.group import applying, deciding, joining
from tiers import calls, some

F = Frontier.of


@pytest.fixture
def places():
    return Places()


@pytest.fixture
def lake(places):
    return places.banks("a", "b", "c")


def uppers(lake, names="abc"):
    return [lake.collection(name).upper for name in names]


# --- what is seen


def test_rows_of_several_collections_come_in_at_one_time(lake):
    done = lake.write({"a": rows(1, v=5), "b": rows(1, v=-5)})
    assert (done.upper, done.already) == (F(1), False)
    assert totals(lake, 0, "ab") == [5, -5]
    assert uppers(lake) == [F(1), F(1), F(0)]


def test_what_a_caller_does_with_his_arrays_before_the_commit_changes_nothing(lake):
    keys, values = np.arange(3), np.array([4, 5, 6])
    with lake.transaction() as transaction:
        transaction.write("a", pa.table({"k": keys, "v": values}))
        keys[:], values[:] = 9, 0
    assert totals(lake, 0, "a") == [15]


def test_an_idle_collection_of_the_group_is_closed_without_a_write_of_its_own(places, lake):
    lake.write({"a": rows(1), "b": rows(1), "c": rows(1)})
    before = lake.collection("c").state().seqno
    lake.write({"a": rows(2), "b": rows(2)}, time=50)
    assert lake.collection("c").upper == F(51)
    assert lake.collection("c").snapshot(50).read_all().num_rows == 1
    assert lake.collection("c").state().seqno == before


@pytest.mark.promise(
    "A transaction over k collections costs k + 1 log writes, a read of one in a group two store "
    "calls, an idle one no write",
    also=[
        "::test_a_read_of_a_collection_in_a_group_costs_two_store_calls",
        "::test_an_idle_collection_of_the_group_is_closed_without_a_write_of_its_own",
    ],
)
@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_a_transaction_costs_a_log_write_for_each_collection_and_one_that_decides(places, lake, names):
    lake.write({name: rows(1) for name in "abc"})
    places.counts.clear()
    lake.write({name: rows(2) for name in names})
    assert places.counts["log.compare_and_set"] == len(names) + 1
    assert places.counts["blob.put"] == 0


def test_a_read_of_a_collection_in_a_group_costs_two_store_calls(places, lake):
    lake.write({"a": rows(1), "b": rows(1)})
    collection = lake.collection("a")
    collection.snapshot(0).read_all()
    places.counts.clear()
    collection.snapshot(0).read_all()
    assert places.counts["log.newer"] == 2
    assert places.counts["log.compare_and_set"] == 0


def test_own_times_stay_and_the_upper_goes_past_the_last(lake):
    lake.write({"a": at([3, 5], [1, 2]), "b": at([9], [-3])})
    assert uppers(lake, "ab") == [F(10), F(10)]
    assert totals(lake, 3, "ab") == [1, 0]
    assert totals(lake, 9, "ab") == [3, -3]


def test_several_tables_for_one_collection_and_rows_that_cancel(lake):
    with lake.transaction() as txn:
        txn.write("a", rows(1, v=4))
        txn.write("a", rows(2, v=6))
        txn.write("b", rows(1, v=7))
        txn.write("b", rows(1, v=7).append_column("_diff", pa.array([-1])))
    assert totals(lake, 0, "ab") == [10, 0]
    assert lake.collection("b").snapshot(0).read_all().num_rows == 0


def test_tables_without_rows_close_the_time_all_the_same(lake):
    assert lake.write({"a": rows(), "b": rows()}, time=4).upper == F(5)
    assert totals(lake, 4, "ab") == [0, 0]


def test_nothing_at_all_is_in_already(lake):
    assert lake.write({}) == lake.transaction().commit()
    assert lake.write({}).already


@pytest.mark.parametrize("v", [2**63 - 1, -(2**63), None, 0])
def test_values_at_the_ends_come_in_as_they_are(lake, v):
    table = pa.table({"k": pa.array([2**63 - 1]), "v": pa.array([v], pa.int64())})
    lake.write({"a": table, "b": table})
    assert lake.collection("b").snapshot(0).read_all()["v"].to_pylist() == [v]


@pytest.mark.parametrize(("unit", "per_ms"), [("ms", 1), ("us", 1000)])
def test_clocks_are_written_at_the_wall_clock(places, unit, per_ms):
    clock = SetClock(1_000)
    lake = places.banks("x", "y", time=unit, env={"clock": clock})
    assert lake.write({"x": rows(1), "y": rows(1)}).upper == F(1_000 * per_ms + 1)
    clock.ms = 900  # put back
    assert lake.write({"x": rows(2), "y": rows(2)}).upper == F(1_000 * per_ms + 2)


def test_staged_rows_of_several_collections_are_seen_together_when_their_times_are_closed(lake):
    lake.stage({"a": at([20], [9]), "b": at([25], [-9])})
    assert uppers(lake, "ab") == [F(0), F(0)]
    assert lake.collection("a").snapshot(30, staged=True).read_all()["v"].to_pylist() == [9]
    lake.seal({"a": 21, "b": 30})
    assert uppers(lake, "ab") == [F(21), F(30)]
    assert (totals(lake, 20, "a"), totals(lake, 29, "b")) == ([9], [-9])
    with pytest.raises(UpdateBeforeLower) as caught:
        lake.write({"a": rows(1), "b": rows(1)}, time=25)
    assert caught.value.lower == F(30)


def test_copies_made_one_by_one_agree_at_every_time_that_is_closed_in_all_of_them(lake):
    lake.write({"a": rows(1, v=5), "b": rows(1, v=-5)})
    lake.copy(lake, ["a"], as_name="old a")
    lake.write({"a": rows(2, v=7), "b": rows(2, v=-7)})
    lake.copy(lake, ["b"], as_name="old b")
    copies = ("old a", "old b")
    assert uppers(lake, copies) == [F(1), F(2)]
    assert totals(lake, 0, copies) == [5, -5] and totals(lake, 1, ["old b"]) == [-12]


def test_without_a_time_what_is_decided_is_read_as_staged_and_what_awaits_a_decision_is_not(lake):
    lake.write({"a": rows(1, v=5), "b": rows(1, v=-5)})
    # Nothing of it is written down in the collections yet, which only know that it awaits a decision.
    assert totals(lake, None, "ab", staged=True) == [5, -5]
    lake.stage({"a": at([20], [9]), "b": at([25], [-9])})
    assert totals(lake, None, "ab", staged=True) == [14, -14]
    with lake.transaction(time=30) as txn:
        txn.write("a", rows(2, v=70))
        attempt_of(txn).prepare(txn._draft.rows, 30)
        assert lake.collection("a").last_staged() == 20
        assert totals(lake, None, "a", staged=True) == [14]


@pytest.mark.promise(
    "A seal of several collections of which one would go back seals none, and says which",
    rule="`seal_back` in `state/group/deciding.py`",
)
def test_a_seal_of_several_of_which_one_would_go_back_seals_none(places, lake):
    lake.seal({"a": 9, "b": 9})
    for seals in ({"a": 5, "b": 9}, {"a": 12, "b": 8}, {"c": 3, "b": 8}):
        which = next(name for name, upper in seals.items() if name != "c" and upper < 9)
        with pytest.raises(UsageError, match=rf"collection '{which}' is closed before \[9\] already"):
            lake.seal(seals)
    assert uppers(lake, "ab") == [F(9), F(9)] and lake.collection("c").group() is None
    assert lake.seal({"a": 9, "b": 9}).already
    assert lake.seal({"a": 9, "b": 12}).uppers == {"a": F(9), "b": F(12)}
    # Another process closed more, which this one has not seen.
    other = places.process()
    other.collection("a").seal(30)
    with pytest.raises(UsageError, match=r"collection 'a' is closed before \[30\] already"):
        lake.seal({"a": 20, "b": 20})
    assert uppers(lake, "ab") == [F(30), F(12)]
    late = lake.transaction()
    late.seal("a", 40), late.seal("b", 40)
    attempt_of(late)
    other.collection("a").seal(50)
    with pytest.raises(UsageError, match=r"collection 'a' is closed before \[50\] already"):
        late.commit()
    assert uppers(lake, "ab") == [F(50), F(12)]


def test_what_was_closed_before_a_collection_joined_stays_closed(lake):
    lake.collection("b").append(at([99], [1]))
    assert lake.write({"a": rows(1, v=2), "b": rows(2, v=3)}).upper == F(101)
    assert totals(lake, 99, "ab") == [0, 1]
    txn = lake.transaction(time=300)
    txn.write("a", rows(5)), txn.write("c", rows(5))
    lake.collection("c").append(at([200], [1]))
    txn.commit()
    assert uppers(lake) == [F(301)] * 3


# --- conflicts


@pytest.mark.promise(
    "A retried commit stores nothing twice, after a conflict and after an unknown outcome",
    rule="`Attempt`",
    also=[
        "::test_a_conflict_in_the_second_collection_stores_the_first_ones_rows_once",
        "::test_whatever_the_store_fails_at_a_commit_that_is_repeated_comes_in_once",
    ],
)
def test_a_conflict_is_tried_again_without_another_upload(places):
    lake = places.banks("a", "b")
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})
    txn = lake.transaction(time=5)
    txn.write("a", rows(1, v=3)), txn.write("b", rows(1, v=-3))
    attempt_of(txn).prepare(txn._draft.rows, 5)
    lake.write({"a": rows(2, v=0), "b": rows(2, v=0)}, time=7)
    places.counts.clear()
    with pytest.raises(UpdateBeforeLower) as caught:
        txn.commit()
    assert caught.value.lower == F(8)
    txn.commit(time=caught.value.lower.elements[0])
    assert places.counts["log.compare_and_set"] == 1
    assert totals(lake, 8, "ab") == [3, -3]
    assert totals(lake, 7, "ab") == [0, 0]


def attempt_of(txn):
    """The attempt of a transaction, begun as its commit would."""
    group, joined = txn._groups.of(txn._draft.shards)
    txn._attempt = Attempt(txn._new_id(), group, txn._draft.shards, joined)
    return txn._attempt


def test_a_conflict_in_the_second_collection_stores_the_first_ones_rows_once(lake):
    lake.collection("b").append(at([9], [0]))
    txn = lake.transaction(time=5)
    txn.write("a", rows(1, v=3)), txn.write("b", rows(1, v=-3))
    with pytest.raises(UpdateBeforeLower) as caught:
        txn.commit()
    txn.commit(time=caught.value.lower.elements[0])
    assert totals(lake, 10, "ab") == [3, -3]


@pytest.mark.promise(
    "The contents at a closed time never change, also at times that the collection closed alone "
    "before it joined",
    rule="`Share.floor`: the group is told a collection's own upper as of after it joined",
    also=["::test_what_was_closed_before_a_collection_joined_stays_closed"],
)
def test_rows_never_move_back_below_what_their_collection_closed_alone(lake):
    lake.collection("b").append(at([99], [1]))
    txn = lake.transaction(time=200)
    txn.write("a", rows(1)), txn.write("b", rows(2))
    attempt_of(txn).prepare(txn._draft.rows, 200)
    with pytest.raises(UpdateBeforeLower) as caught:
        txn.commit(time=50)
    assert caught.value.lower == F(100)
    with pytest.raises(UsageError, match="written at 200: commit at 200 or later"):
        txn.commit(time=150)
    assert txn.commit(time=200).upper == F(201)


def test_lower_is_compared_with_the_upper_of_each_collection(lake):
    lake.write({"a": rows(1), "b": rows(1)})
    txn = lake.transaction(lower=1)
    txn.write("a", rows(2))
    assert txn.commit().upper == F(2)
    late = lake.transaction(lower=1)
    late.write("a", rows(3))
    with pytest.raises(UpperMismatch) as caught:
        late.commit()
    assert caught.value.current == F(2)
    late.abort()


def test_a_refused_write_leaves_nothing_waiting(lake):
    lake.write({"a": rows(1), "b": rows(1)}, time=9)
    with pytest.raises(UpdateBeforeLower):
        lake.write({"a": at([20], [1]), "b": at([5], [1])})
    assert not awaiting(lake, "a", "b")
    assert totals(lake, 9, "ab") == [1, 1]


def test_an_abort_gives_up_what_is_staged_and_a_late_commit_is_refused(lake):
    lake.write({"a": rows(1), "b": rows(1)})
    txn = lake.transaction(time=5)
    txn.write("a", rows(2)), txn.write("b", rows(2))
    attempt_of(txn).prepare(txn._draft.rows, 5)
    assert len(awaiting(lake, "a")) == 1
    txn.abort(), txn.abort()
    assert not awaiting(lake, "a", "b")
    with pytest.raises(UsageError, match="ended"):
        txn.commit()


def gone(places):
    for name in "ab":
        places.process().leave(name)


def left_by_both(places):
    lake = places.process()
    lake.write({"a": rows(8, v=0), "c": rows(8, v=0)})
    gone(places)
    lake.collect()
    assert lake.collection("c").state().group


def given_up(places):
    lake = places.process()
    places.clock.ms += int(AGE_S * 1000)
    stale = lake.transaction()
    stale.write("a", rows(7, v=0))
    attempt_of(stale).prepare(stale._draft.rows, None)
    places.clock.ms += int(AGE_S * 1000)
    lake.collect()


@pytest.mark.promise(
    "After an unknown outcome a commit or an abort says what is certain, or that the outcome can no "
    "longer be known",
    rule="`Attempt`",
)
@pytest.mark.full
@pytest.mark.parametrize("then", ["commit", "abort"])
@pytest.mark.parametrize("meanwhile", [gone, left_by_both, given_up])
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_after_an_unknown_outcome_that_the_group_forgot_no_answer_may_be_untrue(fault, meanwhile, then):
    unknown = 0
    for call in range(100):
        places = Places(config=QUIET)
        joined(places.banks("a", "b", "c"))
        plan = FaultPlan(script=[Fault.NONE] * call + [fault] + [Fault.UNAVAILABLE] * 20)
        txn = places.process(faults=plan, retries=False).transaction()
        with suppress(StoreUnavailable, OutcomeUnknown):
            txn.write("a", rows(1, v=5)), txn.write("b", rows(1, v=-5))
            txn.commit()
        plan.follow([])
        if not plan.injected:
            break
        if txn._attempt is None or not txn._attempt.asked:
            continue
        meanwhile(places)
        is_in = bool(places.process().collection("a").lookup(rows(1).select(["k"])).num_rows)
        assert is_in == (fault is Fault.UNKNOWN_AFTER)
        told = None
        try:
            getattr(txn, then)()
        except (OutcomeUnknown, UsageError) as error:
            told = error
        match told:
            case None:
                assert then == "abort" and not is_in
            case OutcomeUnknown():
                assert "look for its rows before you write them again" in str(told)
                unknown += 1
            case UsageError():
                assert "the transaction is committed" in str(told) and is_in
    assert unknown


@pytest.mark.promise(
    "A write in a group has an unknown outcome only once the group was asked to decide it; if it is unknown "
    "what was staged, it is not in",
    rule="`Proposal` in `shard/writing/proposal.py`",
)
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_the_outcome_is_unknown_only_once_the_group_was_asked(fault):
    told = set()
    for call in range(100):
        places = Places(config=QUIET)
        joined(places.banks("a", "b"))
        plan = FaultPlan(script=[Fault.NONE] * call + [fault] + [Fault.UNAVAILABLE] * 20)
        txn = places.process(faults=plan, retries=False).transaction()
        try:
            txn.write("a", rows(1, v=5)), txn.write("b", rows(1, v=-5))
            txn.commit()
        except (OutcomeUnknown, StoreUnavailable) as error:
            asked = txn._attempt is not None and txn._attempt.asked
            unknown = isinstance(error, OutcomeUnknown) and "log.append" in str(error)
            assert asked or not unknown, call
            assert asked or not places.process().collection("a").lookup(rows(1).select(["k"])).num_rows
            told |= {"staged still" if "its rows are staged" in str(error) else type(error)}
        if not plan.injected:
            break
    assert {"staged still", OutcomeUnknown} <= told


class Interrupted(FaultPlan):
    """Others act right before the n-th call of a process, and it dies some calls later."""

    def __init__(self, number, act, calls):
        super().__init__(script=[Fault.NONE] * (number + calls) + [Fault.CRASH_BEFORE])
        self.left, self._act = number, act

    def run(self, operation, call):
        self.left -= 1
        if self.left == 0:
            self._act()
        return super().run(operation, call)


def leave_all(lake):
    for name in "ab":
        lake.leave(name)
    lake.collect()


@pytest.mark.promise(
    "A late join does not restore a membership that is over, whether the group still exists or not",
    rule="`join` (`seen`), `Groups._join`",
    also=["state/test_transaction_commands.py::test_a_late_join_does_not_bring_an_earlier_stay_back"],
)
@pytest.mark.parametrize("number", some(range(1, 26, 2), 7, full=3))
def test_who_joins_late_does_not_bring_a_stay_back_that_is_over(number):
    for later in range(12):
        places = Places(config=QUIET)
        lake = places.banks("a", "b", "c")
        joined(lake)
        begun = lake.transaction()
        begun.write("a", rows(1, v=5)), begun.write("b", rows(1, v=-5))
        attempt_of(begun)
        plan = Interrupted(number, partial(leave_all, places.process()), later)
        with suppress(SimulatedCrash):
            places.process(faults=plan, retries=False).write({"a": rows(2, v=7), "c": rows(2, v=-7)})
        # What was begun in a stay that is over is begun anew.
        begun.commit()
        other = places.process()
        assert balance(other, "abc") == 0
        other.write({name: rows(3, v=0) for name in "abc"})
        assert balance(other, "abc") == 0 and other.fsck().clean
        if not plan.injected:
            break


@pytest.mark.promise(
    "A damaged collection of the group fails no transaction of the other collections",
    rule="`Groups.tidy_beside`",
)
def test_a_collection_of_the_group_that_is_damaged_fails_no_transaction_of_the_others(places, lake):
    lake.write({name: rows(0, v=0) for name in "abc"})
    log, id_ = places.stores.log, lake.collection("c").id
    log._entries[id_] = [replace(entry, data=b"damaged") for entry in log._entries[id_]]
    other = places.process()
    with pytest.warns(TidelakeWarning, match="beside a transaction, which is as it says"):
        told = [other.write({"a": rows(n), "b": rows(n)}).already for n in range(1, 40)]
    assert not any(told)
    assert totals(other, 39, "ab") == [39, 39]
    assert any(id_ in told for told in other.collect().damaged)
    # What was decided is written down in the others all the same.
    assert not [*other.collection("a").state().staged.awaiting()]


def test_a_block_that_raises_stores_nothing(places, lake):
    places.counts.clear()
    with suppress(ZeroDivisionError), lake.transaction() as txn:
        txn.write("a", rows(1))
        _ = 1 / 0
    assert places.counts["log.compare_and_set"] == places.counts["blob.put"] == 0


@pytest.mark.promise(
    "Staged rows of crashed transactions are given up first in the group, then in their collections",
    rule="`expire`, `withdraw`; `expired-never-goes-back`",
    also=["::test_one_that_is_young_is_begun_anew_when_an_old_one_is_given_up"],
)
def test_a_transaction_that_takes_too_long_is_given_up(places):
    lake = places.banks("a", "b")
    txn = lake.transaction(time=5)
    txn.write("a", rows(1)), txn.write("b", rows(1))
    attempt_of(txn).prepare(txn._draft.rows, 5)
    places.clock.ms += int(AGE_S * 1000)
    lake.collect()
    assert not awaiting(lake, "a", "b")
    with pytest.raises(TransactionExpired):
        txn.commit()
    assert totals(lake, 0, "ab", staged=True) == [0, 0]


def test_one_that_is_young_is_begun_anew_when_an_old_one_is_given_up(places):
    lake = places.banks("a", "b")
    old, young = lake.transaction(), lake.transaction()
    for txn in (old, young):
        txn.write("a", rows(1, v=2)), txn.write("b", rows(1, v=-2))
    attempt_of(old).prepare(old._draft.rows, None)
    places.clock.ms += int(AGE_S * 1000)
    attempt_of(young).prepare(young._draft.rows, None)
    lake.collect()
    young.commit()
    assert totals(lake, 0, "ab") == [2, -2]


# --- refusals


def test_wrong_arguments_say_what_they_may_be_and_store_nothing(places, lake):
    places.counts.clear()
    for call, message in [
        (lambda: lake.write([rows(1)]), "give a dict"),
        (lambda: lake.seal([5]), "give a dict"),
        (lambda: lake.write({"a": rows(1)}, time="x"), "time"),
        (lambda: lake.write({"a": rows(1)}, time=-1), "time"),
        (lambda: lake.write({"a": rows(1)}, token=5), "token"),
        (lambda: lake.write({"a": 5}), "int"),
        (lambda: lake.transaction(lower="x"), "lower"),
    ]:
        with pytest.raises(UsageError, match=message):
            call()
    with pytest.raises(CollectionNotFound, match="'a'"):
        lake.write({"b": rows(1), "aa": rows(1)})
    assert places.counts["log.compare_and_set"] == places.counts["blob.put"] == 0


def test_a_table_that_does_not_fit_leaves_nothing_waiting(lake):
    with pytest.raises(InvalidUpdates):
        lake.write({"a": rows(1), "b": pa.table({"nope": [1]})})
    assert not awaiting(lake, "a", "b")


def test_some_rows_with_times_and_some_without_are_refused(lake):
    with pytest.raises(UsageError, match="others do not"):
        lake.write({"a": rows(1), "b": at([1], [1])})
    with pytest.raises(UsageError, match="leave one of them out"):
        lake.write({"a": at([1], [1])}, time=3)
    with pytest.raises(UsageError, match="need _time"):
        lake.stage({"a": rows(1)})
    assert not lake.collection("a").state().group
    txn = lake.transaction()
    txn.write("a", rows(1))
    with pytest.raises(UsageError, match="writes or stages"):
        txn.stage("b", at([1], [1]))


def test_the_last_time_there_is_is_refused(lake):
    with pytest.raises(UsageError, match="last there is"):
        lake.write({"a": rows(1)}, time=2**63 - 1)


@pytest.mark.parametrize("unit", ["ms", "tuple(2)"])
def test_collections_that_count_times_otherwise_are_in_no_group(places, lake, unit):
    lake.create("t", SCHEMA, key=["id"], time=unit)
    with pytest.raises(UsageError, match=r"need the same|no total order"):
        lake.seal({"a": 1, "t": 1 if unit == "ms" else [(1, 1)]})
    if unit != "ms":
        with pytest.raises(UsageError, match="no total order"):
            lake.seal({"t": [(1, 1)]})


def test_collections_of_two_groups_are_refused(lake):
    lake.create("d", lake.collection("a").schema, key=["k"])
    lake.write({"a": rows(1), "b": rows(1)})
    lake.write({"c": rows(1), "d": rows(1)})
    with pytest.raises(UsageError, match=r"different groups.*lake\.leave"):
        lake.write({"a": rows(2), "c": rows(2)})
    assert totals(lake, 0) == [1, 1, 1]


def test_a_closed_lake_says_so(lake):
    txn = lake.transaction()
    txn.write("a", rows(1))
    lake.close()
    for call in (txn.commit, lambda: lake.write({"a": rows(1)}), lambda: lake.leave("a"), lake.transaction):
        with pytest.raises(Closed):
            call()


# --- tokens


def test_a_token_comes_in_once(lake):
    assert not lake.write({"a": rows(1, v=2)}, token="x").already
    assert lake.write({"a": rows(1, v=2)}, token="x").already
    assert totals(lake, 0, "a") == [2]


@pytest.mark.promise(
    "A token comes in once, also if two processes have begun with it, and after its collection left",
    rule="`answer_of_record`; `apply_decided(leave=...)`",
    also=["::test_a_token_is_known_after_its_collection_left_and_joined_others"],
)
def test_a_token_that_two_have_begun_comes_in_once_and_nothing_is_left(places):
    lake = places.banks("a", "b")
    first, second = (lake.transaction(token="x") for _ in range(2))
    for txn in (first, second):
        txn.write("a", rows(1, v=2)), txn.write("b", rows(1, v=-2))
    attempt = attempt_of(first)
    first._number(attempt.group)
    attempt.prepare(first._draft.rows, None)
    assert not second.commit().already
    assert first.commit().already
    lake.collect()
    assert totals(lake, 0, "ab") == [2, -2]
    assert not awaiting(lake, "a", "b")


def test_a_token_is_known_after_its_collection_left_and_joined_others(lake):
    lake.write({"a": rows(1, v=2)}, token="x")
    lake.leave("a")
    assert lake.write({"a": rows(1, v=2), "b": rows(1)}, token="x").already
    assert totals(lake, 0, "a") == [2]


# --- leaving and coming


def test_a_collection_that_left_is_written_to_alone_and_has_all_that_was_decided(lake):
    lake.write({"a": rows(1, v=5), "b": rows(1, v=-5)}, time=3)
    assert lake.leave("a") and not lake.leave("a")
    assert lake.collection("a").append(rows(2, v=1)).lower == F(4)
    assert totals(lake, 3, "ab") == [5, -5]
    lake.write({"a": rows(3), "b": rows(3)})
    assert uppers(lake, "ab") == [F(6), F(6)]


@pytest.mark.promise(
    "A collection that leaves and comes back is another member: nothing begun before it left is decided",
    rule=(
        "`Membership.admitted`; `member-upper-never-goes-back`, `members-numbered`, "
        "`members-leave-first`, `members-leave-for-good`, `left-behind-nothing`"
    ),
    also=[
        "::test_a_leave_that_sleeps_does_not_take_out_a_collection_that_came_back",
        "::test_maintenance_never_forgets_a_collection_that_joins_beside_it",
    ],
)
def test_what_was_begun_before_a_collection_left_and_came_back_is_begun_anew(lake):
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})
    txn = lake.transaction()
    txn.write("a", rows(1, v=5)), txn.write("b", rows(1, v=-5))
    attempt_of(txn).prepare(txn._draft.rows, None)
    lake.leave("a")
    lake.collection("a").append(at([70], [1]))
    lake.write({"a": rows(2, v=0), "b": rows(2, v=0)})
    at_ = txn.commit().upper.elements[0] - 1
    assert totals(lake, at_, "ab") == [6, -5]
    assert totals(lake, at_ - 1, "ab") == [1, 0]
    assert not awaiting(lake, "a")


def test_a_leave_that_sleeps_does_not_take_out_a_collection_that_came_back(lake):
    lake.write({"a": rows(1, v=1), "b": rows(1, v=-1)})
    a = inside.shard(lake.collection("a"))
    group = a.group(a.state().group)
    view = deciding.view(group.state(), a.spec.shard_id)
    group.run(lambda s, n: joining.retire(s, n, a.spec.shard_id, view.admitted))
    old = deciding.view(group.state(), a.spec.shard_id)
    lake.leave("a")
    lake.write({"a": rows(2, v=2), "b": rows(2, v=-2)}, time=8)
    assert not a.run(lambda s, n: applying.apply_decided(s, n, old, leave={}))
    assert totals(lake, 8, "ab") == [3, -3]


@pytest.mark.promise(
    "Other processes finish a leave that ended half-way; a collection that joined a group that is "
    "gone is not lost",
    rule="`Groups._left`, `Groups._freed`",
    also=["::test_a_collection_that_joined_a_group_that_is_gone_is_read_and_written"],
)
def test_a_leave_that_ended_half_way_is_finished_by_the_next_writer(lake):
    lake.write({"a": rows(1, v=1), "b": rows(1, v=-1)})
    a = inside.shard(lake.collection("a"))
    group = a.group(a.state().group)
    admitted = group.state().memberships[a.spec.shard_id].admitted
    group.run(lambda s, n: joining.retire(s, n, a.spec.shard_id, admitted))
    lake.write({"a": rows(2, v=2), "b": rows(2, v=-2)})
    assert totals(lake, 1, "ab") == [3, -3]


def test_a_collection_that_joined_a_group_that_is_gone_is_read_and_written(places, lake):
    lake.write({"a": rows(1)})
    group = lake.collection("a").state().group
    lake.leave("a")
    assert group not in set(inside.stores(lake).log.keys())
    b = inside.shard(lake.collection("b"))
    b.run(lambda s, n: joining.join(s, n, group, 1, s.seqno))
    assert lake.collection("b").upper == F(0)
    other = places.process()
    assert other.write({"a": rows(2), "b": rows(1)}).upper == F(2)
    assert totals(other, 1, "ab") == [2, 1]


@pytest.mark.promise(
    "A lost log of a group is reported where something awaits its decision", rule="`Shard.version`"
)
def test_a_group_whose_log_is_lost_is_told_of_when_something_awaits_it(lake):
    lake.write({"a": rows(1), "b": rows(1)})
    inside.stores(lake).log.delete(lake.collection("a").state().group)
    with pytest.raises(CorruptionError, match="log of the group is gone"):
        lake.collection("a").snapshot(0)


def test_a_collection_of_a_group_that_does_not_know_it_is_read_and_taken_in(lake):
    lake.write({"a": rows(1)})
    b = inside.shard(lake.collection("b"))
    b.run(lambda s, n: joining.join(s, n, lake.collection("a").state().group, 1, s.seqno))
    assert lake.collection("b").upper == F(0)
    assert lake.leave("b")
    b.run(lambda s, n: joining.join(s, n, lake.collection("a").state().group, 1, s.seqno))
    lake.write({"a": rows(2), "b": rows(2)})
    assert totals(lake, 1, "ab") == [2, 1]


def test_maintenance_never_forgets_a_collection_that_joins_beside_it(lake):
    """Tidying looks at a collection that is not in yet; that joins, and is written to, at the next calls."""
    lake.write({"a": rows(1, v=0), "c": rows(1, v=0)})
    a, b = (inside.shard(lake.collection(name)) for name in "ab")
    group = lake._groups._open(a.state().group)
    admitted = group.run(lambda s, n: joining.admit(s, n, (b.spec.shard_id,)))
    lake._groups.tidy(group)
    b.run(lambda s, n: joining.join(s, n, group.spec.shard_id, admitted[b.spec.shard_id], s.seqno))
    done = lake.write({"a": rows(2, v=4), "b": rows(2, v=-4)})
    lake.collect()
    assert totals(lake, done.upper.elements[0] - 1, "ab") == [4, -4]


def test_one_member_groups_give_way_and_what_is_begun_in_them_comes_in(lake):
    lake.write({"a": rows(0, v=0)})
    lake.write({"b": rows(0, v=0)})
    txns = [lake.transaction(), lake.transaction()]
    for name, txn in zip("ab", txns, strict=True):
        txn.write(name, rows(1, v=7))
        attempt_of(txn).prepare(txn._draft.rows, None)
    lake.write({"a": rows(2, v=1), "b": rows(2, v=1)})
    for txn in txns:
        txn.commit()
    last = lake.collection("a").upper.elements[0] - 1
    assert totals(lake, last, "ab") == [8, 8]


def test_a_left_group_error_names_the_remedy():
    assert "write it again" in str(LeftGroup("a"))


# --- others beside


def test_a_dropped_collection_takes_its_share_along_and_the_others_keep_theirs(lake):
    txn = lake.transaction()
    txn.write("a", rows(1, v=5)), txn.write("b", rows(1, v=-5))
    attempt_of(txn).prepare(txn._draft.rows, None)
    lake.drop("b")
    assert txn.commit().upper == F(1)
    assert totals(lake, 0, "a") == [5]
    lake.collect()
    assert lake.fsck().clean
    with pytest.raises((CollectionDropped, CollectionNotFound)):
        lake.write({"a": rows(1), "b": rows(1)})


def test_a_backup_has_what_readers_see_and_is_in_no_group(places, lake):
    lake.write({"a": rows(1, v=5), "b": rows(1, v=-5)})
    txn = lake.transaction()
    txn.write("a", rows(2, v=5))
    attempt_of(txn).prepare(txn._draft.rows, None)
    to = Places().lake()
    lake.copy(to, ["a"])
    copy = to.collection("a")
    assert copy.snapshot(0).read_all()["v"].to_pylist() == [5]
    assert (copy.state().group, len(copy.state().staged), copy.upper) == ("", 0, F(1))
    copy.append(rows(3))
    assert to.fsck().clean


def test_a_fork_has_what_readers_see_and_is_in_no_group(lake):
    lake.write({"a": rows(1, v=5), "b": rows(1, v=-5)})
    fork = lake.fork("a", "f")
    assert fork.snapshot(0).read_all()["v"].to_pylist() == [5]
    assert fork.append(rows(2)).upper == F(2)
    assert totals(lake, 0, "ab") == [5, -5]


def test_a_renamed_collection_stays_in_its_group(lake):
    lake.write({"a": rows(1), "b": rows(1)})
    lake.rename("a", "z")
    lake.write({"z": rows(2), "b": rows(2)})
    assert totals(lake, 1, "zb") == [2, 2]


def test_columns_may_come_between_the_stage_and_the_decision(lake):
    txn = lake.transaction()
    txn.write("a", rows(1, v=5)), txn.write("b", rows(1, v=-5))
    attempt_of(txn).prepare(txn._draft.rows, None)
    a = lake.collection("a")
    a.evolve(a.schema.append(pa.field("w", pa.string())))
    txn.commit()
    assert lake.collection("a").snapshot(0).read_all().to_pylist() == [
        {"k": 1, "v": 5, "w": None, "_time": 0, "_diff": 1}
    ]


def test_readers_followers_and_holds_see_transactions(lake):
    lake.write({"a": rows(1, v=5), "b": rows(1, v=-5)})
    with lake.collection("a").reader("test") as reader:
        assert reader.snapshot(0).read_all().num_rows == 1
        lake.write({"a": rows(2, v=5), "b": rows(2)}, time=6)
        assert reader.snapshot(6).read_all().num_rows == 2
        steps = reader.listen(0, timeout_s=0)
        assert [row["v"] for step in steps for row in step.updates.read_all().to_pylist()] == [5]


def test_since_may_go_as_far_as_readers_see_times_closed(lake):
    lake.write({"a": rows(1), "b": rows(1)}, time=50)
    lake.write({"b": rows(2)}, time=80)
    assert lake.collection("a").advance_since(60) == F(60)
    assert totals(lake, 60, "a") == [1]


def test_retention_follows_the_group_at_maintenance(lake):
    lake.collection("a").retain(10)
    lake.write({"a": rows(1), "b": rows(1)}, time=50)
    lake.write({"b": rows(2)}, time=80)
    lake.collection("a").maintain()
    assert lake.collection("a").since == F(71)
    assert totals(lake, 80, "ab") == [1, 2]


def test_decisions_are_written_down_by_those_who_commit(lake):
    for n in range(40):
        lake.write({"a": rows(n), "b": rows(n)})
    group = lake._groups._open(lake.collection("a").state().group)
    assert len(group.known().decisions) <= 16
    assert (
        lake.collection("a").state().spine.totals.rows + lake.collection("a").state().staged.totals.rows == 40
    )
    assert totals(lake, 39, "ab") == [40, 40]


def test_two_threads_on_one_lake_lose_nothing(places):
    lake = places.banks("a", "b")
    failed = []

    def transfers(first):
        try:
            for n in range(10):
                lake.write({"a": rows(first + n, v=1), "b": rows(first + n, v=-1)})
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=transfers, args=(100 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert balance(lake, "ab") == 0
    assert not failed
    assert balance(lake, "ab") == 0
    last = lake.collection("a").upper.elements[0] - 1
    assert totals(lake, last, "ab") == [30, -30]


# --- crashes and faults

WRITES = {"a": rows(1, v=5), "b": rows(1, v=-5)}


def joined(lake):
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})


def waiting(lake):
    joined(lake)
    lake.write(WRITES)


ACTS = {
    "first write": (lambda lake: None, lambda lake: lake.write(WRITES, token="t")),
    "write": (joined, lambda lake: lake.write(WRITES, token="t")),
    "seal": (joined, lambda lake: lake.seal({"a": 9, "b": 7})),
    "leave": (waiting, lambda lake: lake.leave("a")),
    "leave and end": (lambda lake: lake.write({"a": rows(1, v=0)}), lambda lake: lake.leave("a")),
    "tidy": (waiting, lambda lake: lake.collect()),
}


@pytest.mark.promise(
    "A read at a time sees all of a transaction or nothing; a decided transaction is never lost, an "
    "undecided one is never seen",
    rule="`seen_through`; `decided-once`, `members-decide`",
    also=["state/test_transaction_commands.py::Transactions", "kills/test_bank_kills.py"],
)
@pytest.mark.grows
@pytest.mark.parametrize("act", some(ACTS, 6))
def test_after_a_crash_at_any_call_all_is_seen_or_nothing_and_others_go_on(act):
    prepare, do = ACTS[act]
    for call in calls(most=200, fast=5, full=2):
        places = Places(config=QUIET)
        prepare(places.banks("a", "b"))
        lake = places.process(faults=FaultPlan(script=[Fault.NONE] * call + [Fault.CRASH_AFTER]))
        try:
            do(lake)
        except SimulatedCrash:
            pass
        else:
            break
        other = places.process()
        assert balance(other, "ab") == 0
        do(other)
        seen = balance(other, "ab")
        other.write({"a": rows(9, v=1), "b": rows(9, v=-1)})
        places.clock.ms += int(AGE_S * 1000)
        for name in "ab":
            other.collection(name).maintain()
        other.collect()
        last = min(other.collection(name).upper.elements[0] for name in "ab") - 1
        share = 6 if "write" in act or prepare is waiting else 1
        assert totals(other, last, "ab") == [share, -share], call
        assert seen == 0
        assert not awaiting(other, "a", "b"), call
        assert other.fsck().clean
    assert call > 3


@pytest.mark.full
@pytest.mark.grows
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_whatever_the_store_fails_at_a_commit_that_is_repeated_comes_in_once(fault):
    for call in calls(most=200, full=2):
        places = Places(config=QUIET)
        joined(places.banks("a", "b"))
        plan = FaultPlan(script=[Fault.NONE] * call + [fault] * 60)
        lake = places.process(faults=plan, retries=False)
        try:
            txn = lake.transaction()
            for name, table in WRITES.items():
                txn.write(name, table)
        except (OutcomeUnknown, StoreUnavailable):
            continue
        for _ in range(100):
            try:
                txn.commit()
                break
            except (OutcomeUnknown, StoreUnavailable):
                continue
        other = places.process()
        last = min(other.collection(name).upper.elements[0] for name in "ab") - 1
        assert totals(other, last, "ab") == [5, -5], (call, fault)
        if not plan.injected:
            break

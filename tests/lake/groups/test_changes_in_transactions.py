"""Upserts and replacements in transactions: made from what is there at the very instant that they come in."""

import pyarrow as pa
import pytest
from together import AGE_S, STORED, Places, at, awaiting, rows, totals

from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from threads import at_once
from tidelake.errors import (
    InvalidUpdates,
    OutcomeUnknown,
    StoreUnavailable,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UpperMismatch,
    UsageError,
)
from tidelake.lake.groups.attempt import Attempt
from tidelake.model.frontier import Frontier
from tiers import some

F = Frontier.of


@pytest.fixture
def lake(places):
    made = places.banks("a", "b", "c")
    made.write({"a": rows(1, 2, v=5), "b": rows(1, v=7)})
    return made


def held(lake, name, time=None):
    """What a collection holds: each key with its value, which must be there once."""
    last = lake.collection(name).upper.elements[0] - 1 if time is None else time
    found = lake.collection(name).snapshot(last).read_all().to_pylist()
    assert all(row["_diff"] == 1 for row in found)
    assert len(found) == len({row["k"] for row in found}), found
    return {row["k"]: row["v"] for row in found}


def changed(lake, *changes, **options):
    txn = lake.transaction(**options)
    for kind, name, table in changes:
        getattr(txn, kind)(name, table)
    return txn


def interrupted(txn, act, *, before="decide", times=1):
    """Let others act right before the transaction is decided, or staged."""
    begun, left = txn._carried_out, [times]

    def carried_out(attempt):
        call = getattr(attempt, before)

        def late(*args, **kwargs):
            if left[0]:
                left[0] -= 1
                act()
            return call(*args, **kwargs)

        setattr(attempt, before, late)
        return begun(attempt)

    txn._carried_out = carried_out
    return txn


def test_mixed_kinds_come_in_at_one_instant(lake):
    done = changed(
        lake, ("upsert", "a", rows(2, 3, v=9)), ("replace", "b", rows(4, v=1)), ("write", "c", rows(6, v=2))
    ).commit()
    assert done.upper == F(2)
    assert [held(lake, name) for name in "abc"] == [{1: 5, 2: 9, 3: 9}, {4: 1}, {6: 2}]
    assert [held(lake, name, 0) for name in "abc"] == [{1: 5, 2: 5}, {1: 7}, {}]
    assert lake.fsck().clean


def test_at_a_time_at_own_times_with_order_and_removals(lake):
    assert changed(lake, ("upsert", "a", rows(1, v=8)), ("replace", "b", rows()), time=9).commit().upper == F(
        10
    )
    assert (held(lake, "a"), held(lake, "b")) == ({1: 8, 2: 5}, {})
    events = pa.table(
        {"k": [1, 1, 2], "v": [3, 4, None], "_time": [12, 11, 13], "gone": [False, False, True]}
    )
    txn = changed(lake, ("write", "b", at([12], [1])))
    txn.upsert("a", events, delete_column="gone")
    assert txn.commit().upper == F(14)
    assert (held(lake, "a", 11), held(lake, "a", 12), held(lake, "a")) == ({1: 4, 2: 5}, {1: 3, 2: 5}, {1: 3})
    txn = lake.transaction()
    txn.upsert("a", pa.table({"k": [1, 3], "v": [0, 0], "gone": [True, False]}), delete_column="gone")
    txn.upsert("b", pa.table({"k": [1, 1], "v": [5, 6], "at": [2, 1]}), order_by="at")
    txn.commit()
    assert (held(lake, "a"), held(lake, "b")) == ({3: 0}, {12: 1, 1: 5})


def test_one_time_is_chosen_for_all_where_collections_are_closed_differently(lake):
    lake.collection("c").append(at([40], [1]))
    changed(lake, ("upsert", "a", rows(1, v=8)), ("write", "c", rows(9))).commit()
    assert held(lake, "a", 41) == {1: 8, 2: 5} and held(lake, "a", 40) == {1: 5, 2: 5}


def test_what_is_staged_for_its_time_is_met(lake):
    lake.collection("a").stage(at([4], [3]))
    changed(lake, ("upsert", "a", rows(4, v=8)), time=6).commit()
    assert held(lake, "a") == {1: 5, 2: 5, 4: 8}
    lake.collection("a").stage(at([9], [3]))
    # So is what is staged between the times of several events.
    events = pa.table({"k": [9, 9], "v": [1, 2], "_time": [8, 11]})
    changed(lake, ("upsert", "a", events)).commit()
    assert [held(lake, "a", time)[9] for time in (8, 11)] == [1, 2] and not awaiting(lake, "a")


MORE, SAME = rows(1, 3, v=9), rows(1, 2, v=5)
OTHERS = {
    "an upsert": lambda lake: lake.collection("a").upsert(rows(1, 3, v=6)),
    "a transaction": lambda lake: lake.write({"a": rows(3, v=6), "b": rows(5, v=1)}),
    "a stage": lambda lake: lake.collection("a").stage(at([3], [6])),
    "a seal": lambda lake: lake.collection("a").seal(4),
    "a seal of all": lambda lake: lake.seal({"a": 5, "b": 6}),
    "one of another": lambda lake: lake.collection("b").append(rows(3, v=6)),
    "a leave": lambda lake: (lake.leave("a"), lake.collection("a").append(rows(3, v=6))),
}


@pytest.mark.promise(
    "An upsert or a replacement in a transaction is computed from the very contents that the "
    "transaction meets, and for its time",
    rule="`Share.latest`; `decide` refuses what was made of other contents, and it is worked out again",
    also=[
        "::test_what_is_worked_out_for_one_time_is_not_let_in_at_another",
        "::test_after_a_crash_at_any_call_all_of_it_is_seen_or_nothing",
    ],
)
@pytest.mark.parametrize(
    ("kind", "other"), some([(kind, other) for kind in ("upsert", "replace") for other in OTHERS], 2)
)
@pytest.mark.parametrize(
    ("before", "table"), some([("decide", MORE), ("decide", SAME), ("prepare", MORE)], 3, full=2)
)
@pytest.mark.parametrize("time", [6, None])
def test_it_is_what_it_says_at_the_end_if_others_come_between(places, lake, other, kind, before, table, time):
    """The oracle: at its time the keys of an upsert have its rows, and a replacement's are all there are."""
    txn = changed(lake, (kind, "a", table), ("write", "b", rows(8, v=1)), time=time)
    done = interrupted(txn, lambda: OTHERS[other](places.process()), before=before).commit()
    wanted = {row["k"]: row["v"] for row in table.to_pylist()}
    found = held(lake, "a", done.upper.elements[0] - 1)
    assert {k: v for k, v in found.items() if kind == "replace" or k in wanted} == wanted
    assert held(lake, "b", done.upper.elements[0] - 1)[8] == 1
    assert not awaiting(lake, "a", "b")
    lake.collect()
    assert lake.fsck().clean


def test_a_time_that_others_closed_meanwhile_is_refused_and_may_be_another(places, lake):
    txn = interrupted(
        changed(lake, ("upsert", "a", rows(1, 3, v=9)), ("write", "b", rows(8)), time=4),
        lambda: places.process().write({"a": rows(3, v=1)}, time=6),
    )
    with pytest.raises((UpperMismatch, UpdateBeforeLower)):
        txn.commit()
    assert not awaiting(lake, "a", "b")
    txn.commit(time=9)
    assert held(lake, "a") == {1: 9, 2: 5, 3: 9} and held(lake, "a", 8) == {1: 5, 2: 5, 3: 1}


def test_what_is_worked_out_for_one_time_is_not_let_in_at_another(lake):
    lake.collection("a").stage(at([7], [3]))
    txn = changed(lake, ("upsert", "a", rows(7, v=8)), time=4)
    group, joined = txn._groups.of(txn._draft.shards)
    txn._attempt = Attempt(txn._new_id(), group, txn._draft.shards, joined)
    txn._attempt.prepare(txn._draft.rows, 4)
    txn.commit(time=9)
    assert held(lake, "a") == {1: 5, 2: 5, 7: 8} and held(lake, "a", 8) == {1: 5, 2: 5, 7: 3}


@pytest.mark.promise(
    "An upsert, a replace and a delete of a transaction are each at a time, and in an interval, of their own",
    rule="`RowChanges.time`, `Deletion.time`, `MemberWrite.upper`",
)
def test_each_change_is_at_a_time_and_in_an_interval_of_its_own(places, lake):
    lake.create("d", lake.collection("a").schema, key=["k"])
    lake.collection("d").append(rows(8, 9, v=1), time=0)
    starts = {name: lake.collection(name).upper for name in "abd"}
    txn = lake.transaction()
    txn.upsert("a", rows(7, v=8), time=10, lower=starts["a"], upper=12)
    txn.replace("b", rows(3, v=4), time=20, lower=starts["b"], upper=25)
    txn.delete("d", where="k = 8", time=30, lower=starts["d"], upper=31)
    done = txn.commit()
    assert {name: lake.collection(name).upper for name in "abd"} == {"a": F(12), "b": F(25), "d": F(31)}
    assert done.uppers == {"a": F(12), "b": F(25), "d": F(31)} and done.removed == 1
    assert held(lake, "a", 10)[7] == 8 and held(lake, "a", 9).get(7) != 8
    assert held(lake, "b", 20) == {3: 4} and held(lake, "b", 19) != {3: 4}
    assert held(lake, "d", 29) == {8: 1, 9: 1} and held(lake, "d", 30) == {9: 1}


def test_a_change_at_its_own_time_without_an_upper_closes_the_group_past_it(places, lake):
    txn = lake.transaction()
    txn.upsert("a", rows(7, v=8), time=30, upper=40), txn.delete("b", rows(1).select(["k"]), time=20)
    assert txn.commit().upper == F(21) == lake.collection("b").upper
    assert lake.collection("a").upper == F(40)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"time": 30, "upper": 30}, UpdateNotBeforeUpper),
        ({"time": 30, "lower": 29}, UpperMismatch),
        ({"time": 0}, UpdateBeforeLower),
        ({"upper": 30}, UsageError),
    ],
)
@pytest.mark.parametrize("kind", ["upsert", "replace", "delete"])
def test_a_change_outside_its_interval_is_refused_and_leaves_nothing(places, lake, kind, wrong, error):
    before = {name: held(lake, name) for name in "ab"}

    def write():
        with lake.transaction() as txn:
            txn.upsert("b", rows(7, v=8), time=40)
            getattr(txn, kind)("a", rows(1).select(["k"]) if kind == "delete" else rows(7, v=8), **wrong)

    with pytest.raises(error):
        write()
    assert {name: held(lake, name) for name in "ab"} == before


def test_a_change_has_one_time(lake):
    txn = lake.transaction()
    with pytest.raises(UsageError, match="times of its own"):
        txn.upsert("a", at([9], [5]), time=9)
    txn.upsert("a", rows(7, v=8), time=9), txn.upsert("b", rows(7, v=8))
    with pytest.raises(UsageError, match="some rows of the transaction have _time"):
        txn.commit()


def test_refusals_end_and_leave_nothing(places, lake):
    lake.create("pair", lake.collection("a").schema, key=["k"], time="tuple(2)")
    lake.create("d", lake.collection("a").schema, key=["k"])
    cases = [
        (lambda: changed(lake, ("upsert", "d", rows(1)), ("write", "d", rows(2))), "no other rows"),
        (lambda: changed(lake, ("write", "d", rows(1)), ("replace", "d", rows(2))), "no other rows"),
        (lambda: changed(lake, ("stage", "a", at([5], [1])), ("upsert", "d", rows(2))), "writes or stages"),
        (lambda: changed(lake, ("upsert", "pair", rows(1))), "follow each other"),
        (lambda: changed(lake, ("replace", "pair", rows(1))).commit(), "no total order"),
        (lambda: changed(lake, ("upsert", "d", pa.table({"nope": [1]}))).commit(), "nope"),
        (lambda: changed(lake, ("replace", "d", pa.table({"nope": [1]}))).commit(), "nope"),
        (
            lambda: changed(lake, ("upsert", "d", rows(1)), ("write", "a", at([9], [1]))).commit(),
            "others do not",
        ),
        (lambda: lake.transaction().upsert("d", rows(1), order_by="k"), "must name a value column"),
        (lambda: lake.transaction().upsert("d", 5), "int"),
    ]
    for call, message in cases:
        with pytest.raises((UsageError, InvalidUpdates), match=message):
            call()
    assert not lake.collection("d").state().group
    for options, change in [({"time": 0}, rows(1, v=9)), ({}, at([0], [1])), ({"lower": 77}, rows(1, v=9))]:
        with pytest.raises((UpperMismatch, UpdateBeforeLower)):
            changed(lake, ("write", "b", change), ("upsert", "a", change), **options).commit()
        assert not awaiting(lake, "a", "b")
    lake.collection("c").seal([])
    with pytest.raises(UpperMismatch):
        changed(lake, ("upsert", "c", rows(1))).commit()
    assert held(lake, "a") == {1: 5, 2: 5}


def test_several_that_count_together_lose_nothing(places, lake):
    """Threads move one from a to b, by what they have read: the total stays, and each move counts."""

    def moves(first):
        process = places.process()
        for n in range(2):
            changed(
                process, ("upsert", "a", rows(1, v=first + n)), ("upsert", "b", rows(1, v=-first - n))
            ).commit()

    at_once(moves, (0, 100, 200))
    for time in range(1, lake.collection("a").upper.elements[0]):
        assert held(lake, "a", time)[1] == -held(lake, "b", time)[1]


# --- crashes and faults


def change(lake):
    return changed(
        lake, ("upsert", "a", rows(1, 3, v=9)), ("replace", "b", rows(4, v=-9)), token="t"
    ).commit()


def begun(config):
    places = Places(config=config)
    lake = places.banks("a", "b")
    lake.write({"a": rows(1, 2, v=5), "b": rows(1, v=7)})
    return places


BEFORE, AFTER = ({1: 5, 2: 5}, {1: 7}), ({1: 9, 2: 5, 3: 9}, {4: -9})


def both(lake):
    last = min(lake.collection(name).upper.elements[0] for name in "ab") - 1
    return held(lake, "a", last), held(lake, "b", last)


@pytest.mark.parametrize("first", some(range(10), 10, full=2))
def test_after_a_crash_at_any_call_all_of_it_is_seen_or_nothing(first):
    for call in range(first, 200, 10):
        places = begun(STORED)
        lake = places.process(faults=FaultPlan(script=[Fault.NONE] * call + [Fault.CRASH_AFTER]))
        try:
            change(lake)
        except SimulatedCrash:
            pass
        else:
            break
        other = places.process()
        assert both(other) in (BEFORE, AFTER), call
        change(other)
        assert both(other) == AFTER, call
        places.clock.ms += int(AGE_S * 1000)
        other.collect()
        assert not awaiting(other, "a", "b")
        assert other.fsck().clean
    assert call > 3


@pytest.mark.full
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_whatever_the_store_fails_the_same_transaction_comes_in_once(fault):
    for call in range(0, 200, 3):
        places = begun(STORED)
        plan = FaultPlan(script=[Fault.NONE] * call + [fault] * 3)
        lake = places.process(faults=plan, retries=False)
        txn = changed(lake)
        for _ in range(20):
            try:
                if not txn._draft.rows:
                    txn.upsert("a", rows(1, 3, v=9))
                    txn.replace("b", rows(4, v=-9))
                txn.commit()
            except (OutcomeUnknown, StoreUnavailable):
                assert both(places.process()) in (BEFORE, AFTER)
                if len(txn._draft.rows) == 1:
                    txn._draft.rows.clear()
            else:
                break
        assert both(places.process()) == AFTER, call
        assert totals(places.process(), 0, "ab") == [10, 7]
        if not plan.injected:
            break
    assert call > 3

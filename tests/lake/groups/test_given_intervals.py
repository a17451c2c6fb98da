"""Transactions that write each collection in an interval of its own: what a refresh of a view commits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from together import QUIET, Places, at, awaiting, rows, totals

from tests.doubles.faults import Fault, FaultPlan
from tidelake.errors import (
    OutcomeUnknown,
    StoreUnavailable,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UpperMismatch,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.testing.oracle import Oracle
from tiers import examples

F = Frontier.of
NAMES = ("a", "b", "c")


@pytest.fixture
def places():
    return Places(config=QUIET)


@pytest.fixture
def lake(places):
    return places.banks(*NAMES)


def uppers(lake):
    return [lake.collection(name).upper for name in NAMES]


def built(lake, name, table, upper):
    builder = lake.collection(name).builder()
    builder.add(table)
    return builder.finish(F(upper))


@pytest.mark.promise(
    "A transaction writes each collection in an interval of its own, iff the upper of each is the "
    "one asked for; otherwise nothing is in, and nothing stays staged; other collections are not "
    "closed",
    rule="`Share.lower`, `Share.seal`; `_is_refused`",
    also=["lake/groups/test_given_intervals.py"],
)
def test_each_collection_is_written_in_its_own_interval_and_the_others_are_not_closed(lake):
    lake.join(NAMES)
    lake.collection("a").append(at([1], [1]), upper=2)
    lake.collection("b").append(at([4], [2]), upper=5)
    txn = lake.transaction()
    txn.write("a", at([2], [10]), lower=2, upper=9)
    txn.write("a", rows(7, v=100), time=7, lower=2, upper=4 + 4)
    txn.write("b", rows(1, v=20), time=5, lower=5, upper=6)
    txn.seal("c", 3, lower=0)
    done = txn.commit()
    assert (done.already, done.upper, done.uppers) == (False, F(3), {"a": F(9), "b": F(6), "c": F(3)})
    assert uppers(lake) == [F(9), F(6), F(3)]
    assert [totals(lake, time, "a") for time in (1, 2, 6, 7)] == [[1], [11], [11], [111]]
    assert totals(lake, 5, "b") == [22]


def test_collections_that_were_never_written_together_have_a_lower_in_common(lake):
    for name in "ab":
        lake.collection(name).append(at([1], [1]), upper=2)
    with lake.transaction(lower=2, upper=3) as txn:
        txn.write("a", at([2], [5])), txn.write("b", at([2], [-5]))
    assert totals(lake, 2, "ab") == [6, -4]
    assert uppers(lake)[:2] == [F(3), F(3)]


@pytest.mark.parametrize("early", [True, False])
def test_another_upper_than_the_one_asked_for_commits_nothing_and_leaves_nothing(places, lake, early):
    lake.join(["a", "b"])
    txn = lake.transaction()
    txn.write("a", at([0], [5]), lower=0, upper=4)
    txn.write("b", at([0], [5]), lower=0, upper=4)

    def other():
        places.process().collection("b").append(at([1], [1]))

    if early:
        other()
    else:
        tried = type(txn)._carried_out
        txn._carried_out = lambda attempt: (
            attempt.prepare(txn._draft.rows, None),
            other(),
            tried(txn, attempt),
        )[2]
    with pytest.raises(UpperMismatch, match="upper of 'b' is") as caught:
        txn.commit()
    assert (caught.value.name, caught.value.current) == ("b", F(2))
    assert (totals(lake, 1, "b"), uppers(lake)) == ([1], [F(0), F(2), F(0)])
    assert not awaiting(lake, *NAMES)


def test_rows_outside_of_the_interval_are_refused_in_every_form(lake):
    lake.join(["a", "b"])
    for make in (at([9], [1]), [built(lake, "a", at([9], [1]), 10)]):
        txn = lake.transaction()
        txn.write("b", at([1], [1]), lower=0, upper=3)
        txn.write("a", make, lower=0, upper=9)
        with pytest.raises(UpdateNotBeforeUpper):
            txn.commit()
        txn.abort()
    lake.collection("a").seal(5)
    txn = lake.transaction()
    txn.write("a", at([3], [1]), lower=5, upper=9)
    with pytest.raises(UpdateBeforeLower):
        txn.commit()
    txn.abort()
    assert uppers(lake) == [F(5), F(0), F(0)]
    assert not awaiting(lake, *NAMES)


def test_stored_rows_come_in_within_their_interval_and_do_not_close_the_group(lake):
    lake.join(NAMES)
    with lake.transaction() as txn:
        txn.write("a", built(lake, "a", at([3], [1]), 20), lower=0, upper=4)
        txn.write("b", at([2], [1]), upper=7)
    assert uppers(lake) == [F(4), F(7), F(0)]


def test_a_write_without_an_upper_closes_the_group_and_the_others_go_further(lake):
    lake.join(NAMES)
    with lake.transaction() as txn:
        txn.write("a", at([3], [1])), txn.write("b", at([6], [1]), upper=12)
    assert uppers(lake) == [F(4), F(12), F(4)]


def test_a_token_is_known_after_its_interval_is_closed(lake):
    for again in (False, True):
        txn = lake.transaction(token="x")
        txn.write("a", at([2], [1]), lower=0, upper=5), txn.seal("b", 4, lower=0)
        assert txn.commit().already == again
    assert totals(lake, 3, "ab") == [1, 0]


def test_one_that_is_behind_its_lower_says_so_whenever_it_finds_out(lake):
    """With a token the uppers are looked at only as rows are staged, where their times are closed."""
    lake.seal({"a": 3})
    transaction = lake.transaction(token="t")
    transaction.write("a", rows(1), time=0, lower=0, upper=1)
    with pytest.raises(UpperMismatch, match="'a'"):
        transaction.commit()
    assert not awaiting(lake, *NAMES) and uppers(lake)[0] == F(3)


def test_empty_tables_and_none_close_the_interval(lake):
    with lake.transaction() as txn:
        txn.write("a", at([], []), lower=0, upper=5)
        txn.seal("b", 5, lower=0)
    assert uppers(lake) == [F(5), F(5), F(0)]


def test_wrong_intervals_are_refused_before_anything_joins(lake):
    lake.collection("a").seal(5)
    txn = lake.transaction()
    for wrong, message in [
        (lambda: txn.write("b", rows(1), upper=3), "needs times"),
        (lambda: txn.write("b", at([1], [1]), lower=4, upper=3), "not at or before"),
        (lambda: txn.write("b", at([1], [1]), time=3), "times of its own"),
        (lambda: txn.write("b", built(lake, "b", at([1], [1]), 2), time=3), "times of their own"),
        (lambda: txn.write("b", rows(1), time="x"), "time"),
        (lambda: txn.seal("b", 3, lower=-1), "lower of 'b'"),
        (lambda: lake.join("a"), "a list"),
        (lambda: lake.join([]), "at least one"),
    ]:
        with pytest.raises(UsageError, match=message):
            wrong()
    txn.write("b", at([1], [1]), lower=0)
    with pytest.raises(UsageError, match=r"given lower=\[0\] before, now \[1\]"):
        txn.seal("b", 3, lower=1)
    txn.write("a", at([1], [1]), upper=3)
    with pytest.raises(UsageError, match=r"'a' is closed before \[5\] already"):
        txn.commit()
    assert [lake.collection(name).group() for name in NAMES] == [None] * 3


def test_who_repeats_a_commit_without_rows_is_not_told_that_it_failed(places, lake):
    """Closed times do not tell by whom: the outcome stays unknown."""
    lake.join(["a", "b"])
    unknown = 0
    for call in range(60):
        plan = FaultPlan()
        upper = lake.collection("a").upper
        txn = places.process(faults=plan, retries=False).transaction()
        for name in "ab":
            txn.seal(name, upper.elements[0] + 1, lower=upper)
        plan.follow([Fault.NONE] * call + [Fault.UNKNOWN_AFTER] + [Fault.UNAVAILABLE] * 20)
        try:
            txn.commit()
        except (OutcomeUnknown, StoreUnavailable):
            plan.follow([])
            try:
                txn.commit()
            except OutcomeUnknown:
                unknown += 1
        assert uppers(lake) == [F(upper.elements[0] + 1)] * 2 + [F(0)]
        if not plan.injected:
            break
    assert unknown


WRITES = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["rows", "timed", "batch", "seal"]),
        st.lists(st.integers(0, 5), max_size=3),
        st.integers(0, 6),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.grows
@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(WRITES, st.booleans(), st.sampled_from("xab")), min_size=1, max_size=4))
def test_refreshes_in_any_intervals_are_what_the_oracle_says(steps):
    """Each step writes some collections, each in an interval; sometimes others were faster, or one leaves."""
    lake = Places(config=QUIET).banks(*NAMES)
    truth = {name: Oracle(F(0), F(0)) for name in NAMES}
    for writes, is_late, leaves in steps:
        lowers = {name: truth[name].upper.elements[0] for name in NAMES}
        txn, ends = lake.transaction(), dict(lowers)
        given_ = []
        for name, kind, offsets, least in writes:
            lower, length = lowers[name], max([least, *(one + 1 for one in offsets)])
            times = [lower + one for one in offsets]
            ends[name] = max(ends[name], lower + length)
            match kind:
                case "rows":
                    txn.write(name, at(times, [1] * len(times)), lower=lower, upper=lower + length)
                case "timed":
                    times = times[:1] * len(times)
                    table = at(times, [1] * len(times)).select(["k", "v"])
                    time = times[0] if times else lower
                    txn.write(name, table, time=time, lower=lower, upper=max(time + 1, lower + length))
                    ends[name] = max(ends[name], time + 1)
                case "batch":
                    batch = built(lake, name, at(times, [1] * len(times)), lower + length)
                    txn.write(name, [batch], lower=lower, upper=lower + length)
                case _:
                    times = []
                    txn.seal(name, lower + length, lower=lower)
            given_ += [(name, (time, 1), time) for time in times]
        first = writes[0][0]
        if is_late:
            lake.collection(first).append(at([lowers[first]], [7]))
            truth[first].append([((lowers[first], 7), lowers[first], 1)], F(lowers[first] + 1))
            with pytest.raises(UpperMismatch):
                txn.commit()
        else:
            txn.commit()
            for name in {name for name, *_ in writes}:
                mine = [(row, time, 1) for whose, row, time in given_ if whose == name]
                truth[name].append(mine, F(ends[name]))
        if leaves != "x":
            lake.leave(leaves)
        for name, oracle in truth.items():
            assert lake.collection(name).upper == oracle.upper
            found = lake.collection(name).updates(lower=0, upper=oracle.upper).read_all().to_pylist()
            told = {((row["k"], row["v"]), row["_time"]): row["_diff"] for row in found}
            assert told == dict(oracle.between(F(0), oracle.upper))
    assert not awaiting(lake, *NAMES) and lake.fsck().clean

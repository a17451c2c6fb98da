"""Batches and uploads in transactions of several collections: each comes in once, with all the rest."""

from contextlib import suppress

import pyarrow as pa
import pytest
from together import AGE_S, QUIET, STORED, Places, at, awaiting, balance, rows, totals

import inside
from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from tidelake.errors import (
    AlreadyTaken,
    BatchConsumed,
    OutcomeUnknown,
    StoreUnavailable,
    UpdateBeforeLower,
    UploadExpired,
    UpperMismatch,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.store import url
from tiers import some

F = Frontier.of
KINDS = ["table", "batch", "upload", "list"]


@pytest.fixture
def lake(places):
    return places.banks("a", "b", "c")


def batch(lake, name, table, upper=70):
    builder = lake.collection(name).builder(lower=0)
    builder.add(table)
    return builder.finish(F(upper))


def upload(lake, name, table):
    return batch(lake, name, table).to_bytes()


def given(kind, lake, name, table, upper=70):
    """The same rows, as a kind of what may be written."""
    match kind:
        case "table":
            return table
        case "batch":
            return batch(lake, name, table, upper)
        case "upload":
            return upload(lake, name, table)
        case _:
            half = table.num_rows // 2
            return [upload(lake, name, table.slice(0, half)), batch(lake, name, table.slice(half), upper)]


def contents(lake, name):
    return sorted(map(str, lake.collection(name).snapshot(100, staged=True).read_all().to_pylist()))


@pytest.mark.promise(
    "Batches and uploads that are given to a transaction come in once or not at all, together with "
    "the rest; after a refusal they may be offered again",
    rule="`park`, `withdraw` (`kept`)",
    also=[
        "::test_a_refusal_gives_them_back_and_they_come_in_later_wherever_they_are_offered",
        "::test_after_a_crash_at_any_call_the_same_offers_come_in_once",
        "::test_what_is_taken_from_a_transaction_that_waits_is_not_let_in_by_it",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", ["table", "upload"])
def test_each_kind_comes_in_as_its_rows_would(places, kind, other):
    """The oracle is a collection alone, which gets the same rows as tables."""
    lake = places.banks("a", "b", "c", "d")
    table, more = at([3, 5], [1, 2]), at([4, 9], [3, 4])
    done = lake.write({"a": given(kind, lake, "a", table), "b": given(other, lake, "b", more)})
    end = F(70 if kind in ("batch", "list") else 10)
    assert (done.upper, done.already) == (end, False)
    lake.collection("c").append(table), lake.collection("d").append(more)
    for time in range(10):
        assert totals(lake, time, "ab") == [
            sum(v for t, v in ((3, 1), (5, 2)) if t <= time),
            sum(v for t, v in ((4, 3), (9, 4)) if t <= time),
        ]
    assert contents(lake, "a") == contents(lake, "c") and contents(lake, "b") == contents(lake, "d")
    assert not awaiting(lake, "a", "b")
    lake.collect()
    assert lake.fsck().clean


@pytest.mark.parametrize("kind", ["batch", "upload", "list"])
def test_staged_they_wait_for_their_times(lake, kind):
    lake.stage({"a": given(kind, lake, "a", at([20, 30], [5, 6])), "b": at([25], [7])})
    assert [lake.collection(name).upper for name in "ab"] == [F(0), F(0)]
    lake.seal({"a": 26, "b": 26})
    assert totals(lake, 25, "ab") == [5, 7]


def test_a_batch_closes_up_to_its_upper_unless_another_is_asked_for(lake):
    assert lake.write({"a": batch(lake, "a", at([3], [1]), upper=8)}, upper=5).upper == F(5)
    assert lake.write({"a": batch(lake, "a", at([6], [1]), upper=8)}).upper == F(8)
    assert lake.write({"a": lake.collection("a").distributed.batch_from_bytes(_endless(lake))}).upper == F(13)


def _endless(lake):
    url._memory_lakes[lake.url] = inside.stores(lake)
    return (
        lake.collection("a")
        .distributed.uploader()
        .upload(at([12], [1]).append_column("_diff", pa.array([1])).to_batches())
    )


@pytest.mark.parametrize("kind", ["batch", "upload"])
def test_what_is_in_is_not_taken_again_by_whatever_offers_it(places, lake, kind):
    data = upload(lake, "a", at([3], [5]))
    again = upload(lake, "b", at([3], [-5]))

    def offer():
        made = {
            name: lake.collection(name).distributed.batch_from_bytes(one)
            for name, one in (("a", data), ("b", again))
        }
        try:
            lake.write({"a": data, "b": again} if kind == "upload" else made)
        finally:
            for one in made.values():
                if not one._use:
                    one.take("left alone")

    offer()
    for _ in range(3):
        with pytest.raises((AlreadyTaken, UsageError)):
            offer()
        with pytest.raises(AlreadyTaken):
            lake.collection("a").distributed.append_uploaded(
                [data], lower=lake.collection("a").upper, upper=90, advance=True
            )
        lake.collection("a").maintain(), lake.collect()
    assert totals(lake, 3, "ab") == [5, -5]
    assert not awaiting(lake, "a", "b")


@pytest.mark.parametrize("kind", ["batch", "upload", "list"])
def test_a_refusal_gives_them_back_and_they_come_in_later_wherever_they_are_offered(places, lake, kind):
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})
    for number, later in enumerate(["together", "alone", "staged"]):
        start = lake.collection("a").upper.elements[0] + 1
        what = given(kind, lake, "a", at([start, start + 1], [5, 5]), start + 3)
        with pytest.raises(UpdateBeforeLower):
            lake.write({"a": what, "b": at([0], [-5])})
        assert balance(lake, "ab") == 0
        both = what if isinstance(what, list) else [what]
        match later:
            case "together":
                lake.write({"a": what, "b": at([start], [-10])})
            case "staged":
                lake.stage({"a": what, "b": at([start], [-10])})
                lake.seal({"a": 90, "b": 90})
            case _ if kind == "upload":
                lake.collection("a").distributed.append_uploaded(
                    both, lower=lake.collection("a").upper, upper=start + 2
                )
                lake.write({"b": at([start + 4], [-10])})
            case _ if kind == "batch":
                lower = lake.collection("a").upper
                lake.collection("a").distributed.append_batches(both, lower=lower, upper=start + 2)
                lake.write({"b": at([start + 4], [-10])})
            case _:
                (
                    lake.write({"a": what[0]}, upper=start + 1),
                    lake.write({"a": what[1], "b": at([start + 2], [-10])}),
                )
        last = lake.collection("a").upper.elements[0] - 1
        assert totals(lake, last, "a") == [10 * (number + 1)]
        lake.collect()
    assert not awaiting(lake, "a", "b")
    assert lake.fsck().clean


def test_a_refused_batch_may_be_deleted_and_a_used_one_not(lake):
    lake.write({"a": rows(0), "b": rows(0)})
    made = batch(lake, "a", at([5], [1]))
    with pytest.raises(UpdateBeforeLower):
        lake.write({"b": at([0], [1]), "a": made})
    lake.write({"a": made})
    for use in (made.delete, made.to_bytes, lambda: lake.write({"a": made})):
        with pytest.raises(BatchConsumed):
            use()
    other = batch(lake, "a", at([75], [1]), 80)
    with pytest.raises(UpperMismatch):
        _at_lower(lake, other)
    other.delete()
    lake.collect()
    assert lake.fsck().clean


def _at_lower(lake, made):
    with lake.transaction(lower=3) as transaction:
        transaction.write("a", made)


def test_a_block_that_raises_leaves_the_batch_to_its_caller(lake):
    made = batch(lake, "a", at([5], [1]))
    with suppress(ZeroDivisionError), lake.transaction() as transaction:
        transaction.write("a", made)
        _ = 1 / 0
    assert not lake.collection("a").state().group
    assert lake.collection("a").append(made).upper == F(70)


def test_refusals_say_why_before_anything_joins(places, lake):
    lake.create("ms", lake.collection("a").schema, key=["k"], time="ms")
    lake.create("pair", lake.collection("a").schema, key=["k"], time="tuple(2)")
    data = upload(lake, "a", at([5], [1]))
    made = batch(lake, "a", at([5], [1]))
    cases = [
        (lambda: lake.write({"b": data}), "collection that it was written for"),
        (lambda: lake.write({"b": made}), "collection that it was written for"),
        (lambda: lake.write({"a": [data, data]}), "given twice"),
        (lambda: lake.write({"a": [made, made]}), "given twice"),
        (lambda: lake.write({"a": [made, 5]}), "list"),
        (lambda: lake.write({"a": []}), "list"),
        (lambda: lake.write({"a": data, "b": rows(1)}), "others do not"),
        (lambda: lake.write({"a": made}, time=7), "leave one of them out"),
        (lambda: lake.write({"a": made, "ms": at([5], [1])}), "need the same"),
        (lambda: lake.write({"a": made, "pair": pa.table({"k": [1]})}), "others do not|no total order"),
        (lambda: lake.write({"a": data, "b": pa.table({"nope": [1], "_time": [1]})}), "nope"),
        (lambda: lake.write({"a": b"damaged"}), "."),
    ]
    for call, message in cases:
        with pytest.raises(Exception, match=message) as caught:
            call()
        assert type(caught.value).__module__ == "tidelake.errors"
        assert not lake.collection("a").state().group and not lake.collection("ms").state().group
    txn = lake.transaction()
    txn.write("a", data)
    with pytest.raises(UsageError, match="given twice"):
        txn.write("a", data)
    made.delete()


def test_uploads_of_a_collection_that_left_meanwhile_come_in_once_or_are_refused_for_good(places, lake):
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})
    data = upload(lake, "a", at([5], [1]))
    txn = lake.transaction(lower=9)
    txn.write("a", data)
    with pytest.raises(UpperMismatch):
        txn.commit()
    lake.leave("a")
    lake.collection("b").append(rows(1))
    txn._asked = (txn._asked[0], None, txn._asked[2])
    if places.config is STORED:
        with pytest.raises(UploadExpired):
            txn.commit()
    else:
        txn.commit()
    assert totals(lake, None, "a", staged=True) == [places.config is QUIET]


def test_what_is_taken_from_a_transaction_that_waits_is_not_let_in_by_it(lake):
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})
    data = upload(lake, "a", at([5], [7]))
    txn = lake.transaction(lower=9)
    txn.write("a", data), txn.write("b", at([5], [-7]))
    with pytest.raises(UpperMismatch):
        txn.commit()
    lake.write({"a": data})
    txn._asked = (txn._asked[0], None, txn._asked[2])
    with pytest.raises(AlreadyTaken):
        txn.commit()
    txn.abort()
    last = lake.collection("b").upper.elements[0] - 1
    assert totals(lake, last, "ab") == [7, 0]


def test_two_that_offer_the_same_under_one_token_bring_it_in_once(places, lake):
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})
    data = upload(lake, "a", at([5], [7]))
    lake.write({"a": data, "b": at([5], [-7])}, token="x")
    assert places.process().write({"a": data, "b": at([5], [-7])}, token="x").already
    assert balance(lake, "ab") == 0 and totals(lake, 5, "a") == [7]


def test_what_is_never_offered_again_is_removed_when_it_is_old(places, lake):
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})
    data = upload(lake, "a", at([5], [7]))
    with pytest.raises(UpdateBeforeLower):
        lake.write({"a": data, "b": at([0], [-7])})
    assert len(awaiting(lake, "a", "b")) == 1
    places.clock.ms += int(AGE_S * 1000)
    lake.collect()
    assert not awaiting(lake, "a", "b")


# --- crashes and faults


def offers(places):
    lake = places.banks("a", "b")
    lake.write({"a": rows(0, v=0), "b": rows(0, v=0)})
    return upload(lake, "a", at([5], [7])), upload(lake, "b", at([6], [-7]))


def both(lake, data, kind="upload"):
    if kind == "upload":
        return lake.write({"a": data[0], "b": [data[1]]}, token="t")
    made = lake.collection("a").distributed.batch_from_bytes(data[0])
    try:
        return lake.write({"a": made, "b": data[1]}, token="t")
    finally:
        if not made._use:
            made.take("left alone")


@pytest.mark.parametrize("first", some(range(10), 10, full=2))
@pytest.mark.parametrize(
    ("kind", "config"), some([("upload", STORED), ("upload", QUIET), ("batch", STORED)], 3, full=2)
)
def test_after_a_crash_at_any_call_the_same_offers_come_in_once(first, kind, config):
    for call in range(first, 200, 10):
        places = Places(config=config)
        data = offers(places)
        lake = places.process(faults=FaultPlan(script=[Fault.NONE] * call + [Fault.CRASH_AFTER]))
        try:
            both(lake, data, kind)
        except SimulatedCrash:
            pass
        else:
            break
        other = places.process()
        assert balance(other, "ab") == 0
        both(other, data)
        assert totals(other, 6, "ab") == [7, -7], call
        places.clock.ms += int(AGE_S * 1000)
        other.collect()
        assert not awaiting(other, "a", "b"), call
        assert other.fsck().clean
    assert call > 3


@pytest.mark.full
@pytest.mark.parametrize("kind", ["upload", "batch"])
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_whatever_the_store_fails_they_come_in_once(fault, kind):
    for call in range(0, 200, 4):
        places = Places(config=STORED)
        data = offers(places)
        plan = FaultPlan(script=[Fault.NONE] * call + [fault] * 3)
        lake = places.process(faults=plan, retries=False)
        for _ in range(20):
            try:
                both(lake, data, kind)
            except (OutcomeUnknown, StoreUnavailable):
                assert balance(places.process(), "ab") == 0
            else:
                break
        assert totals(places.process(), 6, "ab") == [7, -7], call
        if not plan.injected:
            break
    assert call > 3

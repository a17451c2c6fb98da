"""History of several collections that may go: all or none, whatever crashes in between."""

import json
import threading
import uuid

import pyarrow as pa
import pytest

import inside
from clocks import SetClock
from tables import SCHEMA, rows
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from threads import at_once
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import (
    CollectionDropped,
    CollectionNotFound,
    CorruptionError,
    HistoryCompacted,
    OutcomeUnknown,
    StoreUnavailable,
    UsageError,
)
from tidelake.lake.api.lake import Lake
from tidelake.model.frontier import Frontier
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores
from tiers import calls, some

CONFIG = Config(merge_budget_s=0.0, retry_deadline_s=0.0)
NAMES = ("a", "b", "c")


class Yard:
    """Stores that several processes open, with three collections of five times each."""

    def __init__(self):
        self.clock = SetClock()
        self.stores = Stores(MemoryBlobStore(self.clock), MemoryVersionLog())
        lake = self.lake()
        for name in NAMES:
            c = lake.create(name, SCHEMA, key=["id"])
            for n in range(5):
                c.append(rows(n))

    def lake(self, plan=None):
        blobs, log = self.stores.blobs, self.stores.log
        if plan is not None:
            blobs, log = FaultyBlobStore(blobs, plan), FaultyVersionLog(log, plan)
        env = Env(clock=self.clock, recorder=Counters())
        return Lake(f"memory://{uuid.uuid4().hex}", Stores(blobs, log), CONFIG, env)

    def sinces(self):
        lake = self.lake()
        return tuple(str(lake.collection(name).since) for name in NAMES)

    def left(self):
        """Intents that are not done."""
        return inside.catalog(self.lake()).look([], intents=True).intents


@pytest.fixture
def yard():
    return Yard()


def test_all_of_them_advance_by_one_write_of_the_catalog_that_decides(yard):
    lake = yard.lake()
    lake.list()
    before = yard.stores.log.head("catalog").seqno
    answer = lake.advance_since({"a": 1, "b": [2], "c": Frontier.of(3)})
    assert {name: str(since) for name, since in answer.items()} == {"a": "[1]", "b": "[2]", "c": "[3]"}
    assert yard.sinces() == ("[1]", "[2]", "[3]")
    # The decision, and that it is done.
    assert yard.stores.log.head("catalog").seqno == before + 2 and not yard.left()
    # The same again is fine, and so is nothing.
    assert lake.advance_since({"a": 1, "b": 2, "c": 3}) == answer and lake.advance_since({}) == {}
    with pytest.raises(HistoryCompacted):
        lake.collection("c").snapshot(2)
    assert lake.list() == ["a", "b", "c"] and lake.fsck().clean


def test_holds_keep_history_back_and_since_follows(yard):
    lake = yard.lake()
    with lake.collection("b").reader("test", since=1):
        answer = lake.advance_since({"a": 3, "b": 3})
        assert {name: str(since) for name, since in answer.items()} == {"a": "[3]", "b": "[1]"}
    assert yard.sinces() == ("[3]", "[3]", "[0]")


def test_tuples_and_clocks_are_taken_as_they_are(yard):
    lake = yard.lake()
    t = lake.create("t", SCHEMA, key=["id"], time="tuple(2)")
    empty = pa.table({"id": [], "v": [], "_time_0": [], "_time_1": []}).cast(t.update_schema.remove(4))
    t.compare_and_append(empty, (0, 0), [(4, 0), (0, 5)])
    answer = lake.advance_since({"t": [(3, 1), (0, 2)], "a": 1})
    assert answer["t"] == Frontier.of((3, 1), (0, 2)) and yard.sinces()[0] == "[1]"


@pytest.mark.parametrize(
    ("frontiers", "error", "said"),
    [
        ({"a": 3, "x": 3, "y": 3}, CollectionNotFound, "no collection 'x'"),
        ({"a": 3, "gone": 1}, CollectionNotFound, r"'gone' \(it was dropped or renamed\)"),
        ({"a": 3, "b": "x", "c": -1}, UsageError, "since of 'b'"),
        ({"a": 3, "b": -1}, UsageError, "since of 'b'"),
        ({"a": 3, "b": (1, 2)}, UsageError, "since of 'b'"),
        (
            {"a": 3, "b": 5},
            UsageError,
            r"since=\[5\] is past the upper \[5\] of collection 'b'.* at most \[4\]",
        ),
        ({"a": 3, "b": []}, UsageError, "past the upper .* 'b'"),
        ({"a": 3, 5: 3}, UsageError, "frontiers="),
        (["a"], UsageError, "frontiers="),
        ("a", UsageError, "frontiers="),
    ],
)
def test_what_cannot_be_is_refused_naming_the_first_and_nothing_moves(yard, frontiers, error, said):
    lake = yard.lake()
    lake.create("gone", SCHEMA, key=["id"])
    lake.drop("gone")
    lake.collection("c").advance_since(2)
    before = yard.stores.log.head("catalog").seqno, yard.sinces()
    with pytest.raises(error, match=said):
        lake.advance_since(frontiers)
    assert (yard.stores.log.head("catalog").seqno, yard.sinces()) == before


def test_a_collection_that_is_being_dropped_is_refused_and_nothing_moves(yard):
    lake = yard.lake()
    lake._leftovers.ending(lake.collection("b").id).drop()
    with pytest.raises(CollectionDropped, match="'b'"):
        lake.advance_since({"a": 1, "b": 1})
    assert str(lake.collection("a").since) == "[0]"


ALL, NONE = ("[1]", "[2]", "[3]"), ("[0]", "[0]", "[0]")


def call_of(lake):
    return lambda: lake.advance_since({"a": 1, "b": 2, "c": 3})


def finishers(yard):
    """Who finds what was decided."""
    return {
        "collect": lambda: yard.lake().collect(),
        "another call": lambda: yard.lake().advance_since({"a": 1}),
        "the next process": call_of(yard.lake()),
    }


@pytest.mark.promise(
    "`Lake.advance_since` moves the `since` of all its collections or of none, after any crash, "
    "whichever process finishes it; a refusal names the first offender and moves nothing",
    rule="an intent in the catalog, `lake/admin/sinces.py`",
    also=[
        "::test_a_store_that_fails_at_any_call_leaves_all_or_none_and_says_which",
        "::test_what_cannot_be_is_refused_naming_the_first_and_nothing_moves",
    ],
)
@pytest.mark.grows
@pytest.mark.parametrize("who", some(["collect", "another call", "the next process"], 3))
def test_a_crash_at_any_call_leaves_all_or_none_once_the_next_one_has_come(who):
    seen = set()
    for n in calls(most=200, fast=4, full=2):
        yard = Yard()
        plan = FaultPlan()
        lake = yard.lake(plan)
        lake.list()
        plan.follow([Fault.NONE] * n + [Fault.CRASH_AFTER])
        try:
            call_of(lake)()
            break
        except SimulatedCrash:
            decided = bool(yard.left()) or yard.sinces() == ALL
            finishers(yard)[who]()
        found = yard.sinces()
        seen.add((found, decided))
        assert not yard.left()
        if who == "collect":
            assert found == (ALL if decided else NONE)
        elif who == "another call":
            assert found == (ALL if decided else ("[1]", "[0]", "[0]"))
        else:
            assert found == ALL
        assert yard.lake().fsck().clean
    assert yard.sinces() == ALL and n > 12 and len(seen) == 2


@pytest.mark.grows
@pytest.mark.parametrize("fault", some([Fault.UNKNOWN_AFTER, Fault.UNKNOWN_BEFORE, Fault.UNAVAILABLE], 3))
def test_a_store_that_fails_at_any_call_leaves_all_or_none_and_says_which(fault):
    for n in calls(most=200, fast=4, full=2):
        yard = Yard()
        plan = FaultPlan()
        lake = yard.lake(plan)
        lake.list()
        plan.follow([Fault.NONE] * n + [fault] * 30)
        try:
            call_of(lake)()
            plan.follow([])
            break
        except StoreUnavailable:
            # It did not happen.
            plan.follow([])
            yard.lake().collect()
            assert yard.sinces() == NONE and not yard.left()
        except OutcomeUnknown:
            plan.follow([])
            yard.lake().collect()
            assert yard.sinces() in (ALL, NONE) and not yard.left()
    assert yard.sinces() == ALL and n > 12


def test_what_was_decided_is_finished_also_for_what_was_renamed_and_not_for_what_was_dropped(yard):
    plan = FaultPlan()
    lake = yard.lake(plan)
    lake.list()
    whole = lake._sinces._opened

    def crash(_id):
        raise SimulatedCrash

    lake._sinces._opened = crash
    with pytest.raises(SimulatedCrash):
        call_of(lake)()
    lake._sinces._opened = whole
    assert len(yard.left()) == 1 and yard.sinces() == NONE
    other = yard.lake()
    assert other.list() == ["a", "b", "c"]
    other.swap("a", "c")
    other.drop("b")
    other.create("b", SCHEMA, key=["id"], allow_recreate=True).append(rows(1))
    other.collect()
    assert yard.sinces() == ("[3]", "[0]", "[1]") and not yard.left()


def test_threads_that_advance_at_once_all_come_to_the_end(yard):
    failures = []

    def work(who):
        lake = yard.lake()
        for n in range(5):
            names = NAMES if who % 2 else NAMES[::-1]
            try:
                lake.advance_since(dict.fromkeys(names, n))
            except BaseException as error:
                failures.append(error)

    at_once(work, range(4))
    assert not failures and not yard.left()
    assert {str(yard.lake().collection(name).state().retained) for name in NAMES} == {"[4]"}
    assert yard.sinces() == ("[4]", "[4]", "[4]")


def test_an_intent_that_cannot_be_read_is_damage(yard):
    lake = yard.lake()
    for what in ("{", json.dumps([1]), json.dumps({"a": 1})):
        listing = inside.catalog(lake).look([])
        assert inside.catalog(lake).intend(listing, "bad", what)
        with pytest.raises(CorruptionError, match="an intent of it cannot be read"):
            yard.lake().collect()
        (key,) = yard.left()
        inside.catalog(lake).done(key)


def test_upkeep_finishes_what_was_decided(yard):
    lake = yard.lake()
    listing = inside.catalog(lake).look(["a"])
    what = json.dumps({listing.shards["a"]: [3]})
    assert inside.catalog(lake).intend(listing, "left", what)
    with lake.upkeep(interval_s=0.001) as upkeep:
        upkeep._tidied_s -= 1e9
        for _ in range(10_000):
            if not yard.left():
                break
            threading.Event().wait(0.005)
    assert yard.sinces() == ("[3]", "[0]", "[0]") and not yard.left()

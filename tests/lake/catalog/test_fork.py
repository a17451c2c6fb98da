"""Forks share what they were forked from, and whatever ends first leaves the other whole."""

import uuid
from collections import Counter
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

import inside
from clocks import SetClock
from tables import SCHEMA, at, contents, rows
from tests.doubles.faults import Fault, FaultPlan, FaultyBlobStore, FaultyVersionLog, SimulatedCrash
from threads import at_once
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import (
    CollectionDropped,
    CollectionExists,
    CollectionNotFound,
    ForkExpired,
    HistoryCompacted,
    NotYetClosed,
    UsageError,
)
from tidelake.lake.api.lake import Lake
from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.shard.care.partchecks import named_parts
from tidelake.state.core import forks
from tidelake.state.core.forks import fork_pins, lender
from tidelake.state.life import forking
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.metered import metered
from tidelake.store.url import Stores
from tiers import some

GARBAGE_S, UPLOAD_S = 100.0, 1_000.0
CONFIG = Config(
    inline_part_bytes=0,
    merge_budget_s=0.0,
    rollup_bytes_min=1300,
    garbage_age_s=GARBAGE_S,
    upload_age_s=UPLOAD_S,
    lease_s=10 * UPLOAD_S,
)
FIVE = {(n, "x"): 1 for n in range(5)}


class Delta:
    """Stores that several processes open, and the clock that these share; a collection `c` of five rows."""

    def __init__(self):
        self.clock = SetClock()
        self.stores = Stores(MemoryBlobStore(self.clock), MemoryVersionLog())
        self.c = self.lake().create("c", SCHEMA, key=["id"])
        for n in range(5):
            self.c.append(rows(n))

    def lake(self, plan=None, log=None, config=CONFIG):
        counters = Counters()
        blobs, log = self.stores.blobs, log or self.stores.log
        if plan is not None:
            blobs, log = FaultyBlobStore(blobs, plan), FaultyVersionLog(log, plan)
        stores = Stores(blobs, log).layered(metered(counters))
        env = Env(clock=self.clock, recorder=counters)
        lake = Lake(f"memory://{uuid.uuid4().hex}", stores, config, env)
        lake.counts = counters.counts
        return lake

    def stored(self, shard_id=""):
        return {info.name for info in self.stores.blobs.list(f"{shard_id}/parts/" if shard_id else "")}

    def keys(self):
        return {*self.stores.log.keys()} - {"catalog"}

    def later(self, seconds):
        self.clock.ms += int(seconds * 1000)
        self.clock.slept_s += seconds

    def tidy_up(self):
        """Maintain everything until all is old."""
        for _ in range(4):
            lake = self.lake()
            lake.collect()
            for name in lake.list():
                lake.collection(name).maintain()
                lake.collection(name).collect(thorough=True)
            self.later(UPLOAD_S)
        lake.collect()

    def check_rest(self, **expected):
        """These collections are there, with this many rows, and nothing else is stored but what they need."""
        self.tidy_up()
        lake = self.lake()
        assert lake.list() == sorted(expected)
        states = [lake.collection(name).state() for name in expected]
        assert {name: len(contents(lake.collection(name))) for name in expected} == expected
        assert self.keys() == {state.shard_id for state in states}
        named = {part.name for state in states for part in named_parts(state) if part.inline is None}
        kept = {name for state in states if state.forks for name in state.garbage}
        mine = {name for name in self.stored() if "/parts/" in name and not name.startswith("catalog/")}
        assert mine == named | kept
        assert lake.fsck().findings == ()


@pytest.fixture
def delta():
    return Delta()


def borrowed(c):
    return {part.name for part in forks.borrowed_parts(c.state()) if part.name.partition("/")[0] != c.id}


# --- What a fork is ---


@pytest.mark.promise(
    "A fork copies nothing, and costs a few calls",
    rule="`fork_shard`",
    also=["::test_a_fork_costs_as_many_calls_however_large_the_collection"],
)
def test_a_fork_copies_nothing_and_goes_its_own_way(delta):
    lake, before = delta.lake(), delta.stored()
    fork = lake.fork("c", "fix")
    added = delta.stored() - before
    assert not {name for name in added if name.startswith(fork.id)}
    assert lake.counts["blob.put.calls"] == 0
    assert contents(fork) == FIVE and borrowed(fork) == delta.stored(delta.c.id)
    fork.append(at(5, 0, diff=-1))
    delta.c.append(rows(7))
    assert contents(fork) == {row: 1 for row in FIVE if row != (0, "x")}
    assert contents(delta.c) == {**FIVE, (7, "x"): 1}
    assert [contents(fork, t) for t in range(5)] == [contents(delta.c, t) for t in range(5)]
    delta.check_rest(c=6, fix=4)


def test_a_fork_at_a_time_ends_there_and_is_written_from_there_on(delta):
    delta.c.append(at(9, 100, 101, v="bad"))
    delta.c.append(pa.concat_tables([at(10, 102), at(11, 103), at(12, 104)]))
    delta.c.merge()
    fork = delta.lake().fork("c", "fix", as_of=10)
    assert fork.upper == Frontier.of(11)
    (run,) = next(iter(fork.state().spine)).batch.runs
    assert run.truncated
    for time in range(11):
        assert contents(fork, time) == contents(delta.c, time)
    fork.append(at(11, 200))
    assert contents(fork) == {**contents(delta.c, 10), (200, "x"): 1}
    fork.merge()
    assert borrowed(fork) == set() and contents(fork) == {**contents(delta.c, 10), (200, "x"): 1}
    assert contents(fork, 9) == contents(delta.c, 9)
    delta.check_rest(c=10, fix=9)


@pytest.mark.promise(
    "The history of a fork or copy begins at the frontier that the owner of the source allowed, "
    "whatever its readers hold",
    rule="`forked`, `copied`",
)
def test_a_fork_and_a_copy_begin_at_what_the_owner_allowed_not_at_what_a_reader_holds(delta):
    """Readers of the source do not read them: with the first commit their history begins where it may."""
    lake = delta.lake()
    source = lake.create("held", SCHEMA, key=["id"])
    for n in range(4):
        source.append(rows(n))
    with source.reader("holds", since=1):
        source.advance_since(3)
        fork = lake.fork("held", "forked")
        lake.copy(lake, ["held"], as_name="copied")
        for copy in (fork, lake.collection("copied")):
            copy.append(rows(9))
            assert str(copy.state().since) == "[3]"
        assert str(source.state().since) == "[1]"


def test_a_fork_costs_as_many_calls_however_large_the_collection(delta):
    def calls(name):
        lake = delta.lake()
        lake.list()
        before = Counter(lake.counts)
        lake.fork("c", name)
        counts = Counter(lake.counts) - before
        return {
            key: n for key, n in counts.items() if key.endswith("calls") and not key.startswith("blob.open")
        }

    few = calls("a")
    for n in range(5, 60):
        delta.c.append(rows(n))
    many = calls("b")
    assert sum(many.values()) <= sum(few.values()) + 4, (few, many)


def test_a_fork_has_the_retention_and_schemas_but_neither_writers_nor_holds(delta):
    c = delta.c
    c.retain(3)
    c.writer("w").append(rows(5), sequence=7)
    c.critical_hold("billing")
    reader = c.reader("nightly")
    c.evolve(SCHEMA.append(pa.field("extra", pa.int64())))
    fork = delta.lake().fork("c", "fix")
    state = fork.state()
    assert state.retention.window == 3 and state.schemas.keys() == c.state().schemas.keys()
    assert not state.writers and not state.holds and not state.critical
    assert fork.schema.names == ["id", "v", "extra"]
    fork.append(rows(9, extra=pa.array([1], pa.int64())))
    assert fork.snapshot().read_all()["extra"].to_pylist() == [None] * 6 + [1]
    assert fork.writer("w").last_sequence is None
    fork.append(rows(10))
    # The window is that of the fork's own upper.
    assert fork.since.elements[0] == fork.upper.elements[0] - 3
    reader.close()


def test_staged_updates_come_along_unless_the_fork_ends_at_a_time(delta):
    delta.c.stage(pa.concat_tables([at(6, 60), at(9, 90), at(20, 99)]))
    inside.run(delta.c, partial(_sealed, upper=Frontier.of(10)))
    lake = delta.lake()
    whole, until = lake.fork("c", "whole"), lake.fork("c", "until", as_of=7)
    assert contents(whole) == contents(delta.c) == {**FIVE, (60, "x"): 1, (90, "x"): 1}
    assert contents(until) == {**FIVE, (60, "x"): 1} and until.upper == Frontier.of(8)
    for c in (whole, until, delta.c):
        c.seal(30)
        c.maintain()
    assert contents(whole) == contents(delta.c) == {**FIVE, (60, "x"): 1, (90, "x"): 1, (99, "x"): 1}
    assert contents(until) == {**FIVE, (60, "x"): 1}
    lake.drop("c")
    delta.check_rest(whole=8, until=6)


def _sealed(state, now_ms, upper):
    """Close times without reading what is staged at both sides, as a seal does."""
    from tidelake.model.batch import HollowBatch
    from tidelake.model.bounds import Bounds
    from tidelake.state.core.commands import Commit
    from tidelake.state.core.edits import Edits
    from tidelake.state.core.fields import Move
    from tidelake.state.write.staging import closing

    step = closing(state, HollowBatch(Bounds(state.upper, upper, state.minimum)))
    assert step.spine is None
    return Commit(Edits(upper=Move(state.upper, upper), staged=step.staged), None)


def test_a_fork_of_a_collection_in_a_group_has_what_was_decided_and_is_in_no_group(delta):
    lake = delta.lake()
    lake.create("other", SCHEMA, key=["id"]).append(rows(1))
    lake.write({"c": rows(50), "other": rows(51)})
    fork = lake.fork("c", "fix")
    assert contents(fork) == contents(lake.collection("c")) == {**FIVE, (50, "x"): 1}
    assert not fork.state().group and lake.collection("c").state().group
    fork.append(rows(60))
    lake.write({"c": rows(52), "other": rows(53)})
    assert contents(fork) == {**FIVE, (50, "x"): 1, (60, "x"): 1}
    until = lake.fork("c", "until", as_of=4)
    assert contents(until) == FIVE
    for name in ("c", "other"):
        lake.leave(name)
    lake.drop("c")
    delta.check_rest(fix=7, other=3, until=5)


def test_a_fork_of_tuples_ends_at_what_is_not_after_the_time(delta):
    lake = delta.lake()
    pairs = lake.create("pairs", SCHEMA, key=["id"], time="tuple(2)")
    pairs.append(rows(1, 2, 3, _time_0=[0, 1, 2], _time_1=[2, 0, 2]), upper=[(3, 3)])
    fork = lake.fork("pairs", "fix", as_of=(1, 2))
    assert fork.upper == Frontier.of((2, 0), (0, 3))
    assert contents(fork, (1, 2)) == contents(pairs, (1, 2)) == {(1, "x"): 1, (2, "x"): 1}
    lake.drop("pairs")
    assert contents(lake.collection("fix"), (1, 1)) == {(2, "x"): 1}


def test_a_fork_of_tuples_at_a_time_that_is_not_drained_is_whole(delta):
    lake = delta.lake()
    pairs = lake.create("pairs", SCHEMA, key=["id"], time="tuple(2)")
    pairs.append(rows(1, 2, 3, _time_0=[0, 1, 2], _time_1=[2, 0, 2]), upper=[(1, 7), (4, 6)])
    pairs.stage(rows(60, 61, 99, _time_0=[4, 2, 20], _time_1=[6, 8, 20]))
    inside.run(pairs, partial(_sealed, upper=Frontier.of((9, 9))))
    fork = lake.fork("pairs", "fix", as_of=(5, 8))
    # Neither of the two is past the other.
    assert fork.upper == Frontier.of((6, 0), (0, 9))
    assert contents(fork, (5, 8)) == {(n, "x"): 1 for n in (1, 2, 3, 60, 61)}
    assert contents(fork, (3, 8)) == {(n, "x"): 1 for n in (1, 2, 3, 61)}
    fork.append(rows(70, _time_0=[6], _time_1=[6]), lower=fork.upper, upper=[(7, 0), (0, 9)])
    fork.maintain()
    lake.drop("pairs")
    assert contents(fork, (6, 8)) == {(n, "x"): 1 for n in (1, 2, 3, 60, 61, 70)}
    assert lake.fsck().clean


def test_what_cannot_be_forked_is_refused_and_nothing_is_written(delta):
    lake = delta.lake()
    delta.c.advance_since(2)
    lake.create("other", SCHEMA, key=["id"])
    lake.create("gone", SCHEMA, key=["id"])
    lake.drop("gone")
    before = delta.stored(), delta.keys(), delta.c.state()
    refusals = [
        (CollectionNotFound, "no collection 'cc'", ("cc", "fix", None)),
        (CollectionNotFound, "no collection 'gone'", ("gone", "fix", None)),
        (CollectionExists, "a collection 'other' exists", ("c", "other", None)),
        (CollectionExists, "a collection 'c' exists", ("c", "c", None)),
        (CollectionExists, "'gone' was dropped or renamed", ("c", "gone", None)),
        (HistoryCompacted, "at 1 is compacted: since=.2.", ("c", "fix", 1)),
        (NotYetClosed, "time 5 is not closed", ("c", "fix", 5)),
        (UsageError, "as_of", ("c", "fix", "yesterday")),
        (UsageError, "as_of", ("c", "fix", (1, 2))),
        (UsageError, "collection name", ("c", "a\nb", None)),
    ]
    for kind, match, (source, name, as_of) in refusals:
        with pytest.raises(kind, match=match):
            lake.fork(source, name, as_of)
        assert (delta.stored(), delta.keys(), delta.c.state()) == before
    assert contents(lake.fork("c", "gone", allow_recreate=True)) == FIVE


# --- Either is dropped ---


@pytest.mark.promise(
    "Dropping either leaves the other whole, in any order, also of forks of forks",
    rule=(
        "`Ending.remove`: a tombstone keeps what its forks need; what it borrowed is returned before "
        "its own objects and log go"
    ),
    also=[
        "::test_a_dropped_fork_frees_what_was_kept_for_it",
        "::test_forks_of_forks_are_dropped_in_any_order",
    ],
)
def test_a_dropped_source_leaves_the_fork_whole_and_its_name_free(delta):
    lake = delta.lake()
    fork = lake.fork("c", "fix")
    delta.c.merge()
    assert lake.drop("c") is True
    assert lake.list() == ["fix"] and contents(fork) == FIVE
    # What the merge had made is gone at once; what the fork needs stays.
    assert delta.stored(delta.c.id) == borrowed(fork)
    with pytest.raises(CollectionDropped):
        contents(delta.c)
    again = lake.create("c", SCHEMA, key=["id"], allow_recreate=True)
    again.append(rows(1))
    delta.tidy_up()
    assert contents(delta.lake().collection("fix")) == FIVE
    assert delta.lake().fsck().findings == ()
    fork.merge()
    delta.check_rest(c=1, fix=5)
    assert lender(fork.state()) is None


def test_a_dropped_fork_frees_what_was_kept_for_it(delta):
    lake = delta.lake()
    lake.fork("c", "fix", as_of=3)
    delta.c.merge()
    delta.later(GARBAGE_S)
    delta.c.collect()
    assert len(delta.stored(delta.c.id)) == 6 and delta.c.state().forks
    lake.drop("fix")
    assert not delta.c.state().forks
    delta.check_rest(c=5)
    assert len(delta.stored(delta.c.id)) == 1


@pytest.mark.full
@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_forks_of_forks_are_dropped_in_any_order(delta, order):
    lake = delta.lake()
    a = delta.c
    b = lake.fork("c", "b")
    b.append(at(5, 5))
    c = lake.fork("b", "cc", as_of=5)
    c.append(at(6, 6))
    full = {"a": ("c", a, 5), "b": ("b", b, 6), "c": ("cc", c, 7)}
    for n, which in enumerate(order):
        for left in order[n:]:
            _, collection, count = full[left]
            assert len(contents(collection)) == count
        assert lake.drop(full[which][0])
        delta.tidy_up()
        assert delta.lake().fsck().findings == ()
    delta.check_rest()


def test_a_fork_that_is_merged_lets_go_but_not_while_a_reader_needs_what_it_borrowed(delta):
    lake = delta.lake()
    fork = lake.fork("c", "fix")
    reader = fork.reader("slow")
    fork.merge()
    delta.c.merge()
    for _ in range(4):
        delta.clock.ms += int(GARBAGE_S * 500)
        fork.maintain()
        delta.c.maintain()
    assert contents(reader, 4) == FIVE and fork.state().origin is not None
    reader.close()
    delta.check_rest(c=5, fix=5)
    assert lender(fork.state()) is None and not fork_pins(delta.c.state())


@pytest.mark.promise(
    "Parts that are kept for a fork are deleted once the fork needs none of them",
    rule="`ForkPins.let_go`, after each collection of the fork",
    also=["state/test_forking.py::test_a_fork_lets_go_when_neither_it_nor_its_readers_need_a_borrowed_part"],
)
def test_a_large_run_is_shared_until_it_is_merged(delta):
    delta.c.merge()
    fork = delta.lake().fork("c", "fix")
    (shared,) = borrowed(fork)
    for _ in range(3):
        delta.tidy_up()
    assert borrowed(fork) == {shared}
    assert fork.merge().applied and borrowed(fork) == set()
    assert not fork.merge().applied
    delta.check_rest(c=5, fix=5)


def test_a_copy_of_a_fork_owns_its_parts(delta):
    lake, other = delta.lake(), Delta()
    fork = lake.fork("c", "fix", as_of=3)
    fork.append(at(4, 40))
    report = lake.copy(other.lake(), ["fix"], as_name="copy")
    copy = other.lake().collection("copy")
    assert report.parts == 5 and borrowed(copy) == set() and copy.state().origin is None
    for name in ("fix", "c"):
        lake.drop(name)
    delta.check_rest()
    assert contents(copy) == {(n, "x"): 1 for n in (0, 1, 2, 3, 40)}
    other.check_rest(c=5, copy=5)


# --- Crashes and stalls ---


def calls_of(work):
    """The store calls that some work makes, in their order."""
    delta, plan = Delta(), FaultPlan()
    prepared = work(delta, delta.lake(plan))
    before = len(plan.calls)
    prepared()
    return plan.calls[before:]


def forking_work(delta, lake):
    return lambda: lake.fork("c", "fix", as_of=3)


def dropping_source(delta, lake):
    delta.lake().fork("c", "fix")
    delta.c.merge()
    return lambda: lake.drop("c")


def dropping_fork(delta, lake):
    delta.lake().fork("c", "fix").append(at(5, 5))
    delta.c.merge()
    return lambda: lake.drop("fix")


def letting_go(delta, lake):
    delta.lake().fork("c", "fix").merge()
    delta.later(GARBAGE_S)
    fork = lake.collection("fix")
    return fork.maintain


WORKS = {
    "fork": (forking_work, [{"c": 5}, {"c": 5, "fix": 4}]),
    "drop the source": (dropping_source, [{"c": 5, "fix": 5}, {"fix": 5}]),
    "drop the fork": (dropping_fork, [{"c": 5, "fix": 6}, {"c": 5}]),
    "let go": (letting_go, [{"c": 5, "fix": 5}]),
}
CASES = [(name, n, call) for name, (work, _) in WORKS.items() for n, call in enumerate(calls_of(work))]


@pytest.mark.promise(
    "A crash at any call leaves both whole, without leftovers after maintenance",
    rule="the orders in `shard/care/fork.py`, `shard/upkeep/forkpins.py`, `shard/upkeep/ending.py`",
)
@pytest.mark.parametrize(
    ("name", "n", "call"), some(CASES, 13, full=3), ids=lambda v: str(v).replace(" ", "-")
)
def test_a_crash_at_any_call_leaves_both_whole_and_nothing_that_is_not_needed(name, n, call):
    work, outcomes = WORKS[name]
    delta, plan = Delta(), FaultPlan()
    prepared = work(delta, delta.lake(plan))
    plan.follow([Fault.NONE] * n + [Fault.CRASH_AFTER])
    with pytest.raises(SimulatedCrash):
        prepared()
    delta.tidy_up()
    found = {name: len(contents(delta.lake().collection(name))) for name in delta.lake().list()}
    assert found in outcomes
    delta.check_rest(**found)
    # A second try succeeds.
    if name == "fork" and "fix" not in found:
        delta.lake().fork("c", "fix", as_of=3)
    for collection in [delta.lake().collection(name) for name in delta.lake().list()]:
        collection.merge()
    delta.tidy_up()
    assert not any(lender(delta.lake().collection(name).state()) for name in delta.lake().list())


class Sleepy:
    """A log whose user sleeps before its nth write, while others work."""

    def __init__(self, inner, number, work):
        self._inner, self._left, self._work = inner, number, work

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def compare_and_set(self, *args):
        self._left -= 1
        if not self._left:
            self._work()
        return self._inner.compare_and_set(*args)


@pytest.mark.promise(
    "A fork that was recorded and never made is settled; a forker that comes too late gets an "
    "error, and does no harm",
    rule=(
        "`ForkPins.forget_uncreated`: an empty shard takes its place before the pin goes; `fork_shard` "
        "looks for the pin after the log"
    ),
    also=["::test_a_fork_that_was_never_made_is_found_and_settled_by_a_repair"],
)
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("number", some(range(1, 5), 3))
def test_a_forker_that_wakes_up_late_harms_nothing_and_is_told(delta, number, merged):
    """It sleeps before any of its writes, for longer than any other waits for it.

    These are the note in the source, the log of the fork, the name, and that it has one.
    """

    def others():
        if merged:
            delta.c.merge()
        delta.tidy_up()

    # So that no rollup comes between.
    config = replace(CONFIG, rollup_bytes_min=1_000_000)
    lake = delta.lake(log=Sleepy(delta.stores.log, number, others), config=config)
    if number in (1, 4):
        fork = lake.fork("c", "fix")
        assert contents(fork) == FIVE
        delta.check_rest(c=5, fix=5)
        return
    with pytest.raises((ForkExpired, CollectionDropped), match=r"'c' took so long|'fix' was dropped"):
        lake.fork("c", "fix")
    delta.check_rest(c=5)
    assert not delta.c.state().forks
    assert contents(delta.lake().fork("c", "fix")) == FIVE


def test_a_name_that_is_taken_meanwhile_leaves_nothing_of_the_fork(delta):
    lake = delta.lake()
    whole = inside.catalog(lake).set

    def taken(*args):
        inside.catalog(lake).set = whole
        delta.lake().create("fix", SCHEMA, key=["id"]).append(rows(1))
        return whole(*args)

    inside.catalog(lake).set = taken
    with pytest.raises(CollectionExists, match="'fix' exists"):
        lake.fork("c", "fix")
    assert not delta.c.state().forks
    delta.check_rest(c=5, fix=1)


def test_forks_by_several_at_once_are_all_whole(delta):
    def work(n):
        lake = delta.lake()
        fork = lake.fork("c", f"f{n}")
        fork.append(at(5, 50 + n))
        lake.collection("c").maintain()

    at_once(work, range(6))
    delta.lake().drop("c")
    delta.check_rest(**{f"f{n}": 6 for n in range(6)})


# --- Checks ---


def test_a_fork_that_was_never_made_is_found_and_settled_by_a_repair(delta):
    c = delta.c
    inside.run(c, partial(forking.note_fork, fork_id="ab" * 16, seqno=c.state().seqno))
    assert delta.lake().fsck().findings == ()
    delta.later(UPLOAD_S + 1)
    (found,) = delta.lake().fsck().left
    assert (found.kind, found.object, found.collection) == ("unfinished-fork", "ab" * 16, "c")
    assert delta.lake().fsck(repair=True).clean
    assert not c.state().forks and delta.keys() == {c.id}
    delta.check_rest(c=5)


@pytest.mark.promise(
    "Checks know shared parts; a copy of a fork owns its parts",
    rule="`ShardCheck`, `LakeCheck`, `ShardCopy`",
    also=[
        "::test_a_shared_part_that_is_gone_is_found_in_both",
        "::test_what_a_tombstone_keeps_and_has_lost_is_found",
        "::test_a_copy_of_a_fork_owns_its_parts",
    ],
)
def test_a_fork_that_its_source_does_not_know_is_found(delta):
    fork = delta.lake().fork("c", "fix")
    inside.run(delta.c, partial(forking.forget_fork, fork_id=fork.id))
    (found,) = delta.lake().fsck().findings
    assert (found.kind, found.collection) == ("fork-unknown", "fix") and "merge" in found.message
    fork.merge()
    delta.tidy_up()
    assert delta.lake().fsck().findings == ()


def test_a_shared_part_that_is_gone_is_found_in_both(delta):
    fork = delta.lake().fork("c", "fix")
    lost = min(borrowed(fork))
    delta.stores.blobs.delete(lost)
    found = {(one.kind, one.collection, one.object) for one in delta.lake().fsck().left}
    assert found == {("part-missing", "c", lost), ("part-missing", "fix", lost)}
    assert {one.kind for one in delta.lake().fsck(["fix"], quick=True).left} == {"part-missing"}


def test_what_a_tombstone_keeps_and_has_lost_is_found(delta):
    fork = delta.lake().fork("c", "fix")
    delta.lake().drop("c")
    lost = min(borrowed(fork))
    delta.stores.blobs.delete(lost)
    kinds = Counter(one.kind for one in delta.lake().fsck().left)
    assert kinds == {"pinned-missing": 1, "part-missing": 1}
    assert names.owner(lost) == delta.c.id

"""Closing a lake: running calls finish, and no call begins any more."""

import gc
import inspect
import os
import signal
import threading
import uuid
import warnings
from datetime import timedelta

import pyarrow as pa
import pytest

import inside
import tidelake
from tables import SCHEMA, contents, rows
from tidelake.config import Config
from tidelake.env import Counters, Env, SystemClock
from tidelake.errors import Closed, OutcomeUnknown, StoreUnavailable
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.distributed import Distributed
from tidelake.lake.api.lake import Lake
from tidelake.lake.api.readers import CollectionCriticalHold, CollectionReader
from tidelake.lake.api.writer import Writer
from tidelake.model.query import AsOf
from tidelake.shard.reading.tail import Tail
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.state.core.backlog import Limits
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.url import Stores
from tiers import some

STORED = Config(inline_part_bytes=0, merge_budget_s=0.0)

# What is given for a parameter of this name, where a method has no calls of its own below.
GIVEN = {
    "a": "c",
    "b": "c",
    "after": 0,
    "as_of": 0,
    "asked": AsOf(0),
    "erased": 0,
    "frontiers": {"c": 0},
    "key": 1,
    "keys": pa.table({"id": [1]}),
    "lower": 1,
    "n": 2,
    "name": "c",
    "names": {"c": "d"},
    "new": "d",
    "offered": [],
    "old": "c",
    "owner": "me",
    "parallelism": 2,
    "purpose": "test",
    "reason": "ticket 17",
    "since": 0,
    "source": "memory://elsewhere",
    "table": rows(3),
    "through": 0,
    "time": 9,
    "token": "t",
    "to": "memory://elsewhere",
    "updates": rows(3),
    "upper": 2,
    "uploads": [],
    "uppers": {"c": 9},
}
# Calls of methods that take something else.
CALLS = {
    "Lake.ingest": lambda lake: lake.ingest([], "c"),
    "Collection.advance_since": lambda c: c.advance_since(0),
    "Collection.delete": lambda c: c.delete(GIVEN["keys"]),
    "Writer.delete": lambda w: w.delete(GIVEN["keys"]),
    "Collection.evolve": lambda c: c.evolve(pa.schema([*SCHEMA, ("w", pa.int64())])),
    "Collection.lookup": lambda c: c.lookup(GIVEN["keys"]),
    "Collection.listen": lambda c: c.listen(0),
    "Collection.retain": lambda c: c.retain(5),
    "Collection.schema_at": lambda c: c.schema_at(0),
    "Collection.subscribe": lambda c: next(c.subscribe()),
    "Collection.append": lambda c: c.append(rows(3)),
    "CollectionCriticalHold.compare_and_downgrade_since": lambda h: h.compare_and_downgrade_since(
        "", ("x", 0)
    ),
    "Distributed.hold": lambda d: d.hold([MADE["plan"]], 60, "test"),
    "Distributed.release": lambda d: d.release("nothing"),
    "Distributed.upserter": lambda d: d.upserter(time=9),
    "CollectionReader.listen": lambda r: r.listen(0),
    "Lake.create": lambda lake: lake.create("new", SCHEMA, key=["id"]),
    "Lake.stage": lambda lake: lake.stage({"c": rows(3, _time=pa.array([9]))}),
    "Lake.write": lambda lake: lake.write({"c": rows(3)}),
    "Lake.sql": lambda lake: lake.sql("SELECT * FROM c").read_all(),
    "Lake.view": lambda lake: lake.view("v", "SELECT id FROM c"),
    "Lake.index": lambda lake: lake.index("c", ["n"]),
    "Lake.group_writer": lambda lake: lake.group_writer("c", "w"),
    "Lake.same_collection": lambda lake: lake.same_collection(MADE["id"], "c"),
    "Tail.begin": lambda t: t.begin(),
    "Tail.head": lambda t: t.head(fresh=True),
    "Tail.step": lambda t: t.step(MADE["lower"], Limits()),
    "Writer.append": lambda w: w.append(rows(3)),
}
# What needs no store, or only lets go of something; a tail plans the step that it has looked at.
ANSWERS = {
    "BatchBuilder": {"abandon", "close"},
    "Collection": {"tail"},
    "CollectionReader": {"close"},
    "Distributed": {"batch_from_bytes", "discard_uploaded"},
    "Lake": {"close"},
    "Tail": {"check_erased", "leave", "move", "plan", "read", "snapshot_of", "stop"},
}
MADE = {}


def public_calls(thing):
    """Names of the public methods of an object, and a call of each."""
    kind = type(thing).__name__
    for name, method in inspect.getmembers(type(thing), inspect.isfunction):
        if name.startswith("_") or name in ANSWERS.get(kind, ()):
            continue
        own = CALLS.get(f"{kind}.{name}")
        yield f"{kind}.{name}", own or with_what_is_given(method)


def with_what_is_given(method):
    needed = [
        p
        for p in list(inspect.signature(method).parameters.values())[1:]
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    missing = [p.name for p in needed if p.name not in GIVEN]
    assert not missing, (
        f"say in CALLS how {method.__qualname__} is called, or in ANSWERS that it needs no store"
    )
    args = [GIVEN[p.name] for p in needed if p.kind is not p.KEYWORD_ONLY]
    kwargs = {p.name: GIVEN[p.name] for p in needed if p.kind is p.KEYWORD_ONLY}

    def call(thing):
        answer = method(thing, *args, **kwargs)
        return next(answer) if inspect.isgenerator(answer) else answer

    return call


@pytest.mark.promise(
    "After `close` every call raises `Closed` and writes nothing",
    rule="`lake/catalog/closeguard.py`",
    also=[
        "lake/api/test_lake.py::test_after_close_every_call_answers_closed_and_writes_nothing",
        "lake/api/test_lake.py::test_a_stream_that_was_begun_may_be_read_after_close",
    ],
)
def test_every_public_method_answers_closed_and_writes_nothing(lake):
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1))
    c.append(rows(2))
    things = [lake, c, c.writer("w"), c.reader("r"), c.critical_hold("h"), c.tail(poll_s=0), c.distributed]
    assert [type(t) for t in things] == [
        Lake,
        Collection,
        Writer,
        CollectionReader,
        CollectionCriticalHold,
        Tail,
        Distributed,
    ]
    tail = things[-2]
    MADE.update(id=c.id, plan=c.distributed.plan(None, 1), lower=tail.begin_with_snapshot())
    with tidelake.open(lake.url) as other:
        c.merge()
        MADE["plan"] = c.distributed.plan(None, 1)
        lake.close()
        before = trace_of(other)
        called = 0
        for thing in things:
            for name, call in public_calls(thing):
                called += 1
                with pytest.raises(Closed):
                    pytest.fail(f"{name} answered {call(thing)}")
        assert called > 60
        assert trace_of(other) == before


def trace_of(lake):
    log = inside.stores(lake).log
    heads = {key: log.head(key).seqno for key in log.keys()}  # noqa: SIM118 - it is no dict
    return heads, sorted(info.name for info in inside.stores(lake).blobs.list())


def test_a_builder_stores_nothing_after_close_and_says_so(lake):
    c = lake.create("c", SCHEMA, key=["id"])
    builder = c.builder()
    assert isinstance(builder, BatchBuilder)
    builder.add(rows(*range(5000), _time=pa.array([0] * 5000, pa.int64())))
    lake.close()
    with tidelake.open(lake.url) as other:
        before = trace_of(other)
        with pytest.raises(Closed):
            builder.finish(tidelake.Frontier.of(1))
        assert trace_of(other) == before


# What is under way


class Slow:
    """A version log whose next commit, once it is in, waits for the test and then says what it is told to."""

    def __init__(self, inner):
        self._inner = inner
        self.armed = False
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.error = None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def compare_and_set(self, key, expected, data):
        done = self._inner.compare_and_set(key, expected, data)
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.go_on.wait(60)
            if self.error is not None:
                raise self.error
        return done


@pytest.fixture
def slow():
    return Slow(MemoryVersionLog())


def opened(slow, blobs=None):
    env = Env(recorder=Counters())
    return Lake(
        f"memory://{uuid.uuid4().hex}", Stores(blobs or MemoryBlobStore(SystemClock()), slow), STORED, env
    )


def thread(work):
    """A thread with its answer, or its error."""
    answer = []

    def run():
        try:
            answer.append(work())
        except BaseException as error:
            answer.append(error)

    started = threading.Thread(target=run, daemon=True)
    started.start()
    return started, answer


@pytest.mark.promise(
    "A command that began before `close` is finished and answered; answers that are given during "
    "the close are true; readers give up their holds",
    rule="`CloseGuard`, `LeaseRenewer.give_up`",
    also=[
        "::test_what_threads_are_told_beside_a_close_is_true",
        "::test_readers_and_reads_give_up_their_holds_and_what_is_to_stay_stays",
    ],
)
@pytest.mark.parametrize("error", [None, OutcomeUnknown("no reply")])
def test_a_command_that_was_begun_is_finished_and_answered_before_the_lake_is_closed(slow, error):
    lake = opened(slow)
    c = lake.create("c", SCHEMA, key=["id"])
    slow.armed, slow.error = True, error
    appending, appended = thread(lambda: c.append(rows(1)))
    assert slow.reached.wait(60)
    # One that waits in the line of the same shard was let in, too.
    waiting, waited = thread(lambda: c.append(rows(2)))
    while inside.shard(c).group_commit.commits._lines.get().count() < 2:
        pass
    closing, closed = thread(lake.close)
    while not lake._guard._shut:
        pass
    refused, late = thread(lambda: c.append(rows(3)))
    refused.join(60)
    assert isinstance(late[0], Closed) and not closed and not appended
    slow.go_on.set()
    for one in (appending, waiting, closing):
        one.join(60)
    assert closed == [None]
    assert (str(appended[0].upper), str(waited[0].upper)) == ("[1]", "[2]")
    assert contents(opened(slow, inside.stores(lake).blobs).collection("c")) == {(1, "x"): 1, (2, "x"): 1}


def test_a_lake_may_be_closed_from_within_a_command(slow):
    """As by the handler of a signal that comes in the middle of one."""
    lake = opened(slow)
    c = lake.create("c", SCHEMA, key=["id"])
    whole = slow._inner.compare_and_set

    def closing(*args):
        slow._inner.compare_and_set = whole
        lake.close()
        return whole(*args)

    slow._inner.compare_and_set = closing
    c.append(rows(1))
    with pytest.raises(Closed):
        c.append(rows(2))
    assert contents(opened(slow, inside.stores(lake).blobs).collection("c")) == {(1, "x"): 1}


def test_a_child_that_was_forked_beside_a_command_can_close_its_lake(slow):
    lake = opened(slow)
    c = lake.create("c", SCHEMA, key=["id"])
    slow.armed = True
    appending, appended = thread(lambda: c.append(rows(1)))
    assert slow.reached.wait(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        signal.alarm(30)
        lake.close()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    slow.go_on.set()
    appending.join(60)
    assert os.waitstatus_to_exitcode(status) == 7
    assert str(appended[0].upper) == "[1]"
    lake.close()


@pytest.mark.parametrize("kind", some(["directory", "memory"], 2))
@pytest.mark.parametrize("inline", some([4096, 0], 2))
def test_what_threads_are_told_beside_a_close_is_true(tmp_path, kind, inline):
    config = Config(inline_part_bytes=inline, merge_budget_s=0.01)
    url = f"memory://{uuid.uuid4().hex}" if kind == "memory" else str(tmp_path / "lake")
    with tidelake.open(url, config=config) as first:
        first.create("c", SCHEMA, key=["id"])
    acknowledged, errors = set(), []

    def write(lake, first_id, barrier):
        c = lake.collection("c")
        writer = c.writer(f"w{first_id}") if first_id % 2_000_000 else None
        for n in range(1_000_000):
            if n == 3:
                barrier.wait(60)
            id_ = first_id + n
            try:
                (writer or c).append(rows(id_))
            except Closed:
                return
            acknowledged.add(id_)

    def guarded(*args):
        try:
            write(*args)
        except BaseException as error:
            errors.append(error)

    for turn in range(6):
        lake = tidelake.open(url, config=config)
        barrier = threading.Barrier(6)
        threads = [
            threading.Thread(target=guarded, args=(lake, (turn * 10 + who) * 1_000_000, barrier))
            for who in range(5)
        ]
        for one in threads:
            one.start()
        upkeep = lake.upkeep(interval_s=0.0)
        barrier.wait(60)
        threads.append(threading.Thread(target=lake.close))
        threads[-1].start()
        lake.close()
        for one in threads:
            one.join(60)
        assert not upkeep.failures
        with pytest.raises(Closed):
            lake.list()
    assert not errors
    with tidelake.open(url) as last:
        found = {id_ for id_, _ in contents(last.collection("c"))}
        assert found == acknowledged and len(found) >= 6 * 5 * 3
        assert last.fsck().clean


# Holds


def test_readers_and_reads_give_up_their_holds_and_what_is_to_stay_stays(lake):
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(4):
        c.append(rows(n))
    reader = c.reader("report", since=1)
    steps = c.subscribe()
    next(steps)
    c.critical_hold("pipeline", since=2)
    tail = c.tail(hold_for=timedelta(days=1))
    tail.begin()
    plan_hold = c.distributed.hold([c.distributed.plan(None, 1)], 60, "task")
    with tidelake.open(lake.url) as other:
        assert len(other.collection("c").state().holds) == 3 + (plan_hold is not None)
        lake.close()
        state = other.collection("c").state()
        assert state.holds.keys() == {tail.hold, plan_hold} - {None} and state.critical.keys() == {"pipeline"}
        # Nothing is left to warn of, nor to give up.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader.close()
            del reader
            gc.collect()
        assert other.collection("c").state().seqno == state.seqno


def test_a_store_that_fails_at_the_end_leaves_holds_that_expire(slow):
    lake = opened(slow)
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1))
    readers = [c.reader(f"r{n}") for n in range(3)]
    whole, calls = slow._inner.compare_and_set, []

    def failing(*args):
        calls.append(args)
        raise StoreUnavailable("injected")

    slow._inner.compare_and_set = failing
    lake.close()
    slow._inner.compare_and_set = whole
    assert len(calls) == 1
    assert len(opened(slow, inside.stores(lake).blobs).collection("c").state().holds) == 3
    for reader in readers:
        with pytest.raises(Closed):
            reader.close()
        reader._reader._lease._over = True  # nothing to warn of


def test_no_reader_is_kept_alive_after_close(lake):
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1))
    reader = c.reader("r")
    names = {t.name for t in threading.enumerate()}
    assert "tidelake-renewer" in names
    renewer = lake._renewer
    lake.close()
    reader.close()
    renewer.add(reader._reader._lease)
    assert renewer._worker.get().spawned is None

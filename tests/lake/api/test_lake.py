"""Names and handles: create, open, list, drop, close; units of time; many handles, threads and processes."""

import inspect
import pickle
import subprocess
import sys
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from damage import SMALL, World
from lakes import place_of

import inside
import tidelake
from clocks import SetClock
from tables import SCHEMA, at, contents, rows
from threads import at_once
from tidelake import errors
from tidelake.env import Counters, Env
from tidelake.errors import (
    Closed,
    CollectionExists,
    CollectionNotFound,
    CorruptionError,
    FormatTooNew,
    IncompatibleSchema,
    NotALake,
    UsageError,
)
from tidelake.shard.upkeep.maintain import Maintainer

OTHER = pa.schema([pa.field("id", pa.string(), nullable=False)])


def test_a_collection_outlives_its_lake_handle(lake, collection):
    collection.append(rows(1, 2))
    again = tidelake.open(lake.url, create=False)
    assert again.list() == ["c"]
    assert contents(again.collection("c")) == {(1, "x"): 1, (2, "x"): 1}
    if lake.url.startswith("file:"):
        lake.close()
        assert contents(again.collection("c"), 0) == {(1, "x"): 1, (2, "x"): 1}
    again.close()


def test_a_lake_is_opened_by_path_object_text_and_url(tmp_path):
    tidelake.open(tmp_path / "l").create("c", SCHEMA, key=["id"])
    for place in (str(tmp_path / "l"), (tmp_path / "l").as_uri(), tmp_path / "x" / ".." / "l"):
        with tidelake.open(place, create=False) as lake:
            assert lake.list() == ["c"]


def test_creating_twice_is_one_creation(lake, collection):
    collection.append(rows(1))
    again = lake.create("c", SCHEMA, key=["id"])
    assert again.id == collection.id
    assert contents(again) == {(1, "x"): 1}
    assert lake.list() == ["c"]


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (OTHER, {}),
        (SCHEMA.append(pa.field("w", pa.int64())), {}),
        (pa.schema([SCHEMA.field(0), SCHEMA.field(1).with_nullable(False)]), {}),
        (SCHEMA, {"key": ["id", "v"]}),
        (SCHEMA, {"value": []}),
    ],
)
def test_another_schema_under_a_taken_name_is_refused_naming_both(lake, collection, schema, options):
    with pytest.raises(IncompatibleSchema) as caught:
        lake.create("c", schema, **{"key": ["id"], **options})
    message = str(caught.value)
    assert "key(id: int64 not null) value(v: string) time counter" in message
    assert message.count("key(") == 2
    assert lake.list() == ["c"]
    assert lake.collection("c").schema == SCHEMA


@pytest.mark.promise(
    "A name that was dropped or given up is used again only with `allow_recreate=True`, and then "
    "for another shard",
    rule="`Lake.create`, `lake/catalog/renaming.py`",
    also=[
        "lake/catalog/test_names.py::test_a_name_that_was_given_up_comes_back_only_if_it_is_said",
        "lake/catalog/test_names.py::test_a_dropped_name_that_is_made_again_is_another_collection",
        "lake/catalog/test_names.py::test_a_name_whose_drop_has_not_come_to_its_end_can_be_made_again",
    ],
)
def test_a_dropped_name_is_gone_and_does_not_come_back_by_accident(lake, collection):
    lake.create("d", SCHEMA, key=["id"])
    assert lake.drop("c") is True
    assert lake.drop("c") is False
    assert lake.list() == ["d"]
    with pytest.raises(CollectionNotFound, match="no collection 'c'"):
        lake.collection("c")
    for handle in (lake, tidelake.open(lake.url)):
        with pytest.raises(CollectionExists, match="'c' existed here and was dropped or renamed: use"):
            handle.create("c", SCHEMA, key=["id"])
    with pytest.raises(CollectionNotFound):
        lake.drop("never")


def test_a_name_that_is_not_there_brings_up_the_nearest(lake):
    with pytest.raises(CollectionNotFound, match="no collection 'x'; there is none yet"):
        lake.collection("x")
    for name in ("orders", "order_items", "users"):
        lake.create(name, SCHEMA, key=["id"])
    with pytest.raises(CollectionNotFound, match="the nearest names are 'orders'"):
        lake.collection("ordres")
    with pytest.raises(CollectionNotFound, match="there is 'order_items', 'orders', 'users'"):
        lake.collection("zzzzzz")
    with pytest.raises(CollectionNotFound):
        lake.collection("\ud800")


ODD = [
    "../x",
    "a/b",
    "/etc",
    ".",
    "..",
    " ",
    "a b",
    "é",
    "e\u0301",
    "日本",
    "🌊" * 63,
    "x" * 255,
    "CON",
    "a\\b",
    "%2e",
]


def test_a_lake_is_read_like_a_mapping_of_its_names(lake, collection):
    other = lake.create("b", SCHEMA, key=["id"])
    names = sorted([collection.name, "b"])
    assert list(lake) == lake.list() == names and all(name in lake for name in names)
    assert lake["b"].id == other.id
    for missing in ("B", "", 0, None, ("b",)):
        assert missing not in lake
    with pytest.raises(KeyError, match=r"^no collection 'B'; there is 'b', 'c'$") as none:
        lake["B"]
    assert isinstance(none.value, CollectionNotFound)
    lake.drop("b")
    assert "b" not in lake and list(lake) == [collection.name] == lake.list()
    with pytest.raises(KeyError):
        lake["b"]
    with pytest.raises(UsageError):
        lake[0]
    assert lake  # also an empty one is true: it has no length


def test_the_module_lists_its_public_names_before_they_are_loaded():
    code = """import sys, tidelake
assert dir(tidelake) == sorted(tidelake.__all__) and 'pyarrow' not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_odd_names_are_names_and_reach_no_path(lake, tmp_path):
    before = {p for p in tmp_path.rglob("*") if "lake" not in p.parts}
    for n, name in enumerate(ODD):
        lake.create(name, SCHEMA, key=["id"]).append(rows(n))
    assert lake.list() == sorted(ODD)
    again = tidelake.open(lake.url)
    assert [contents(again.collection(name)) for name in ODD] == [{(n, "x"): 1} for n in range(len(ODD))]
    assert {p for p in tmp_path.rglob("*") if "lake" not in p.parts} == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "non-empty"),
        ("\x00", "control characters"),
        ("a\nb", "control characters"),
        ("\x7f", "control characters"),
        ("x" * 300, "has 300 bytes: use at most 255"),
        ("é" * 128, "has 256 bytes"),
        ("\ud800", "not valid text"),
        (None, "must be a text"),
        (5, "must be a text"),
        (["c"], "must be a text"),
        (b"c", "must be a text"),
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_made(lake, name, said):
    with pytest.raises(UsageError, match=said) as caught:
        lake.create(name, SCHEMA, key=["id"])
    assert "\n" not in str(caught.value)
    assert lake.list() == []


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (None, {}, "schema='None' is a NoneType: give an Arrow schema"),
        ({}, {}, "no column named 'id'"),
        ({"id": "int65"}, {}, "column 'id' has the type 'int65': give an Arrow type"),
        (SCHEMA, {"key": "id"}, "write \\['id'\\]"),
        (SCHEMA, {"key": None}, "key=None is not a list"),
        (SCHEMA, {"key": 5}, "key=5 is not a list"),
        (SCHEMA, {"key": []}, "at least one key column"),
        (SCHEMA, {"key": ["nope"]}, "no column named 'nope': there are 'id', 'v'"),
        (SCHEMA, {"key": ["id", "id"]}, "appears twice"),
        (SCHEMA, {"value": ["id"]}, "appears twice"),
        (SCHEMA.append(pa.field("v", pa.int64())), {}, "'v' appears twice"),
        (SCHEMA.append(pa.field("", pa.int64())), {}, "needs a name"),
        (SCHEMA.append(pa.field("_diff", pa.int64())), {}, "'_diff' is reserved: rename it"),
        (SCHEMA.append(pa.field("_time", pa.int64())), {}, "'_time' is reserved"),
        (SCHEMA.append(pa.field("_time_3", pa.int64())), {}, "'_time_3' is reserved"),
        (SCHEMA.append(pa.field("_tidelake_x", pa.int64())), {}, "reserved"),
        (SCHEMA.append(pa.field("m", pa.map_(pa.string(), pa.int64()))), {}, "'m' has type map.*cast it"),
        (SCHEMA.append(pa.field("n", pa.null())), {}, "'n' has type null.*give it a type"),
        (pa.schema([("id", pa.list_(pa.int64()))]), {}, "keys cannot be nested"),
        (SCHEMA, {"time": "minutes"}, "'minutes' is not a unit of time: use 'counter'"),
        (SCHEMA, {"time": None}, "None is not a unit"),
        (SCHEMA, {"time": "tuple(0)"}, "0 components"),
        (SCHEMA, {"time": "tuple(9)"}, "9 components"),
    ],
)
def test_a_bad_schema_is_refused_and_nothing_is_made(lake, schema, options, said):
    with pytest.raises(UsageError, match=said):
        lake.create("c", schema, **{"key": ["id"], **options})
    assert lake.list() == []


def test_columns_that_are_neither_key_nor_value_are_left_out(lake):
    wide = SCHEMA.append(pa.field("w", pa.int64()))
    c = lake.create("c", wide, key=["v"], value=["w"])
    assert (c.schema.names, c.key) == (["v", "w"], ("v",))


# What is a lake


@pytest.mark.parametrize("create", [True, False])
def test_what_is_not_a_lake_is_refused_and_left_alone(tmp_path, create):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    for place, said in (
        ("file", "is a file"),
        ("file/below", "is a file"),
        ("full", "other files and no lake"),
    ):
        with pytest.raises(NotALake, match=said):
            tidelake.open(tmp_path / place, create=create)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "full", "mine.txt"]


def test_a_lake_that_is_missing_is_not_made_unless_asked_for(tmp_path):
    (tmp_path / "empty").mkdir()
    for place in ("missing", "empty"):
        with pytest.raises(NotALake, match="create the lake"):
            tidelake.open(tmp_path / place, create=False)
    with pytest.raises(NotALake, match="create it first"):
        tidelake.open(f"memory://{uuid.uuid4().hex}", create=False)
    assert [p.name for p in tmp_path.rglob("*")] == ["empty"]


def test_a_lake_of_a_newer_version_and_a_damaged_one_are_told_apart(tmp_path):
    place = tmp_path / "lake"
    tidelake.open(place).close()
    marker = place / "tidelake.json"
    whole = marker.read_text()
    marker.write_text(whole.replace('"lake_format": 1', '"lake_format": 3'))
    with pytest.raises(FormatTooNew, match="format 3 and this Tidelake reads up to 1: upgrade") as caught:
        tidelake.open(place)
    assert (caught.value.found, caught.value.known) == (3, 1)
    told = ('{"lake_format": "1"}', '{"lake_format": 1}', '{"lake_format": 1, "lake": "x"}')
    for damage in ("", "{", "[]", *told):
        marker.write_text(damage)
        with pytest.raises(CorruptionError, match=r"tidelake\.json.*damaged"):
            tidelake.open(place)
    marker.write_text(whole)
    assert tidelake.open(place).list() == []


@pytest.mark.parametrize(
    "place", ["", "http://bucket/x", "memory://", "memory://a b", "file://host/x", "\0", None, 5, b"x", ["x"]]
)
def test_a_place_where_no_lake_can_be_is_refused_with_the_forms_that_can(place):
    with pytest.raises(UsageError, match=r"memory://name|bad name|takes an absolute path"):
        tidelake.open(place)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that makes no directories")
def test_a_file_system_that_makes_no_directories_is_an_error_and_not_a_loop():
    with pytest.raises(errors.StoreUnavailable, match="no such file or directory"):
        tidelake.open("/proc/tidelake-test", config=tidelake.Config(retry_deadline_s=0))


def test_settings_that_are_none_are_refused():
    with pytest.raises(UsageError, match=r"give tidelake\.Config"):
        tidelake.open("memory://settings", config=5)


# Close


CALLS_OF_A_LAKE = {
    "create": lambda lake: lake.create("new", SCHEMA, key=["id"]),
    "collection": lambda lake: lake.collection("c"),
    "list": lambda lake: lake.list(),
    "of a name": lambda lake: lake["c"],
    "in": lambda lake: "c" in lake,
    "for": list,
    "drop": lambda lake: lake.drop("c"),
}
CALLS_OF_A_COLLECTION = {
    "since": lambda c: c.since,
    "upper": lambda c: c.upper,
    "state": lambda c: c.state(),
    "append": lambda c: c.append(rows(9)),
    "append with times": lambda c: c.append(at(9, 9)),
    "compare_and_append": lambda c: c.compare_and_append(at(1, 9), 1, 2),
    "append_uploaded": lambda c: c.distributed.append_uploaded([], lower=1, upper=2),
    "append_batches": lambda c: c.distributed.append_batches([], lower=1, upper=2),
    "builder": lambda c: c.builder(),
    "writer": lambda c: c.writer("new"),
    "snapshot": lambda c: c.snapshot(),
    "snapshot as of": lambda c: c.snapshot(0),
    "changes": lambda c: c.changes(0, 0),
    "updates": lambda c: c.updates(0, 1),
    "listen": lambda c: next(c.listen(0, timeout_s=0)),
    "reader": lambda c: c.reader("new"),
    "advance_since": lambda c: c.advance_since(0),
    "merge": lambda c: c.merge(),
    "maintain": lambda c: c.maintain(),
}


def test_after_close_every_call_answers_closed_and_writes_nothing(lake, collection):
    collection.append(rows(1))
    collection.append(rows(2))
    writer, reader = collection.writer("w"), collection.reader("r")
    other = tidelake.open(lake.url)
    lake.close()
    lake.close()
    before = other.collection("c").state(), [info.name for info in inside.stores(other).blobs.list()]
    for name, call in CALLS_OF_A_LAKE.items():
        with pytest.raises(Closed, match="open it again"):
            pytest.fail(f"{name} answered {call(lake)}")
    for name, call in CALLS_OF_A_COLLECTION.items():
        with pytest.raises(Closed):
            pytest.fail(f"{name} answered {call(collection)}")
    for call in (lambda: writer.append(rows(3)), lambda: next(reader.listen(0))):
        with pytest.raises(Closed):
            call()
    # Its hold went with the lake.
    reader.close()
    # What needs no store still answers: a handle can be printed.
    assert "'c'" in repr(collection) and collection.schema == SCHEMA
    # Other handles are not concerned.
    assert before == (
        other.collection("c").state(),
        [info.name for info in inside.stores(other).blobs.list()],
    )
    assert other.list() == ["c"]
    other.close()


def test_a_stream_that_was_begun_may_be_read_after_close(lake, collection):
    collection.append(rows(1, 2))
    stream = collection.snapshot()
    lake.close()
    assert stream.read_all().num_rows == 2


def test_the_end_of_a_with_block_closes_also_on_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), tidelake.open(tmp_path / "lake") as lake:
        raise ZeroDivisionError
    with pytest.raises(Closed):
        lake.list()


# Times


def test_a_counter_takes_the_upper_at_each_commit(collection):
    assert [str(collection.append(rows(n)).lower) for n in range(3)] == ["[0]", "[1]", "[2]"]


@pytest.mark.parametrize(("unit", "each_ms"), [("ms", 1), ("us", 1000)])
@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_clock_times_follow_the_clock_and_never_go_back(tmp_path, unit, each_ms, kind):
    clock = SetClock(1_700_000_000_000)
    lake = tidelake.open(place_of(kind, tmp_path), env=Env(clock=clock))
    c = lake.create("c", SCHEMA, key=["id"], time=unit)
    seen = []
    for n, ms in enumerate([0, 0, 5, -10_000, -10_000, 20]):
        clock.ms = 1_700_000_000_000 + ms
        answer = c.append(rows(n))
        (time,) = answer.upper.elements
        seen.append(time - 1)
    start = 1_700_000_000_000 * each_ms
    assert seen == sorted(set(seen))
    assert seen[0] == start
    assert seen[1] == start + 1  # the same millisecond: the next free time
    assert seen[2] == start + 5 * each_ms
    assert seen[3:5] == [seen[2] + 1, seen[2] + 2]  # the clock went back
    assert seen[5] == start + 20 * each_ms
    stored = c.updates(0, c.upper).read_all()
    assert dict(zip(stored["id"].to_pylist(), stored["_time"].to_pylist(), strict=True)) == dict(
        enumerate(seen)
    )
    assert contents(c, seen[2]) == {(n, "x"): 1 for n in range(3)}


def test_tuple_times_are_read_by_component(lake):
    c = lake.create("c", SCHEMA, key=["id"], time="tuple(2)")
    assert c.update_schema.names == ["id", "v", "_time_0", "_time_1", "_diff"]

    def updates(time, id_):
        times = {f"_time_{i}": pa.array([x], pa.int64()) for i, x in enumerate(time)}
        return rows(id_, **times)

    c.append(pa.concat_tables([updates((0, 1), 1), updates((1, 0), 2)]), upper=[(2, 0), (0, 2)])
    assert [contents(c, time) for time in ((0, 0), (0, 1), (1, 0), (1, 1))] == [
        {},
        {(1, "x"): 1},
        {(2, "x"): 1},
        {(1, "x"): 1, (2, "x"): 1},
    ]
    with pytest.raises(UsageError, match="no commit time"):
        c.append(rows(3))
    with pytest.raises(UsageError, match="no single last one: give upper"):
        c.append(updates((2, 2), 3))
    with pytest.raises(UsageError, match=r"no single last time.*as_of"):
        c.snapshot()
    with pytest.raises(UsageError, match="a tuple of 2 whole numbers"):
        c.snapshot(1)
    assert c.upper.elements == ((0, 2), (2, 0))


# Many handles, threads and processes


def test_two_handles_see_each_others_collections_and_rows(lake):
    other = tidelake.open(lake.url)
    one = lake.create("c", SCHEMA, key=["id"])
    two = other.collection("c")
    one.append(rows(1))
    two.append(rows(2))
    one.append(rows(3))
    assert contents(one) == contents(two) == {(n, "x"): 1 for n in (1, 2, 3)}
    other.drop("c")
    assert lake.list() == []
    other.close()


@pytest.mark.promise(
    "Names are never lost or doubled, however many processes create at once",
    rule="`lake/catalog/catalog.py`",
    also=["::test_two_processes_that_create_the_same_names_at_once_get_the_same_collections"],
)
def test_threads_that_create_at_once_lose_no_name(lake):
    def work(n):
        for i in range(6):
            lake.create("shared", SCHEMA, key=["id"])
            lake.create(f"own-{n}-{i}", SCHEMA, key=["id"])

    at_once(work, range(4))
    assert lake.list() == sorted(["shared", *(f"own-{n}-{i}" for n in range(4) for i in range(6))])


class ClockThatWaits(SetClock):
    """Does not tell the time before something has happened, or five seconds are over."""

    def __init__(self, happened):
        super().__init__()
        self.happened, self.asked, self.waited_in_vain = happened, threading.Event(), False

    def now_ms(self):
        self.asked.set()
        self.waited_in_vain |= not self.happened.wait(5)
        return super().now_ms()


def test_a_lake_does_not_wait_for_the_catalog_of_another():
    listed = threading.Event()
    clock = ClockThatWaits(listed)
    slow = tidelake.open(place_of("memory", None), env=Env(clock=clock))
    work = threading.Thread(target=slow.list)
    work.start()
    assert clock.asked.wait(30)
    assert tidelake.open(place_of("memory", None)).list() == []
    listed.set()
    work.join()
    assert not clock.waited_in_vain


CREATOR = """
import sys, pyarrow as pa, tidelake
lake = tidelake.open(sys.argv[1])
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
print("ready", flush=True)
sys.stdin.readline()
for n in range(20):
    c = lake.create(f"c{n}", schema, key=["id"])
    c.append(pa.table({"id": pa.array([int(sys.argv[2])], pa.int64()), "v": ["x"]}))
    print(c.id, flush=True)
"""


def test_two_processes_that_create_the_same_names_at_once_get_the_same_collections(tmp_path):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CREATOR, str(tmp_path / "lake"), str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in (1, 2)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=120)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert answers[0] == answers[1] and len(set(answers[0])) == 20
    lake = tidelake.open(tmp_path / "lake")
    assert lake.list() == sorted(f"c{n}" for n in range(20))
    for name in lake.list():
        assert contents(lake.collection(name)) == {(1, "x"): 1, (2, "x"): 1}
    # Who lost a race left no shard behind: as many logs as names, and the catalog.
    assert sorted(inside.stores(lake).log.keys()) == sorted([*answers[0], "catalog"])


@pytest.mark.full
def test_hundreds_of_collections_cost_no_more_each_than_a_few():
    counters = Counters()
    url = f"memory://{uuid.uuid4().hex}"
    lake = tidelake.open(url, env=Env(recorder=counters))

    def so_far():
        of_stores = (name for name in counters.counts if name.startswith(("log.", "blob.")))
        return sum(counters.counts[name] for name in of_stores if not name.endswith(".bytes"))

    def calls(work):
        before = so_far()
        work()
        return so_far() - before

    costs = [calls(lambda n=n: lake.create(f"c{n:03}", SCHEMA, key=["id"])) for n in range(600)]
    # The catalog's runs are merged, and folded now and then: a create reads a few, however many names.
    assert max(costs) <= 2 * max(costs[:100]) + 8
    runs = sum(len(item.batch.runs) for item in inside.shard(inside.catalog(lake)).state().spine)
    assert runs <= 17
    assert lake.list() == [f"c{n:03}" for n in range(600)]
    assert calls(lake.list) <= 3 * runs + 2
    fresh = tidelake.open(url, env=Env(recorder=counters))
    assert calls(lambda: fresh.collection("c050")) <= 3 * runs + 8
    for n in range(0, 600, 2):
        lake.drop(f"c{n:03}")
    assert fresh.list() == [f"c{n:03}" for n in range(1, 600, 2)]


# Errors


EXAMPLES = {
    "UpdateBeforeLower": (3, "[4]"),
    "UpdateNotBeforeUpper": (5, "[4]"),
    "UpperMismatch": ("[1]", "[2]"),
    "InlineFull": (5, 4),
    "HistoryCompacted": (1, "[2]"),
    "NotYetClosed": (9, 2, 0.5),
    "CollectionInUse": ("c", ("'backup' (1f)", "critical hold 'sink'")),
    "ErasureWaits": ("c", "its fork f is being made"),
    "RowsErased": ("c",),
    "RefreshFailed": ("v", "2 (join)", "out of range"),
    "RebuildNeeded": ("v", "its input was dropped"),
    "ViewsFailed": ({"v": "its input was dropped"},),
    "UploadExpired": ("s/parts/1-a.parquet", 1, 2),
    "WriterFenced": ("w", 1, 2),
    "LeaseExpired": ("r",),
    "StoreUnavailable": ("down", False),
    "AlreadyTaken": ("s/parts/1-a.parquet", "staged"),
    "BlobNotFound": ("b",),
    "BlobExists": ("b",),
    "CorruptionError": ("b", "bad checksum"),
    "SymbolicLink": ("/lake/log", "it is a symbolic link"),
    "FormatTooNew": ("b", 2, 1),
}
ERRORS = [e for _, e in inspect.getmembers(errors, inspect.isclass) if issubclass(e, errors.TidelakeError)]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling(kind):
    error = kind(*EXAMPLES.get(kind.__name__, ("a message",)))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is kind
        assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
    assert str(error) and "\n" not in str(error)


@pytest.mark.promise(
    "Each action that a caller can take next has a class of errors; every error survives pickling",
    rule="`errors/__init__.py`",
    also=[
        "::test_every_error_survives_pickling",
        "cli/test_cli.py::test_every_kind_of_error_has_the_code_of_what_the_caller_does_next",
    ],
)
def test_every_error_stands_in_the_tree_that_the_module_draws():
    for kind in ERRORS:
        assert kind.__name__ in errors.__doc__


def test_frontiers_of_a_conflict_survive_pickling(collection):
    collection.append(rows(1))
    with pytest.raises(errors.UpperMismatch) as caught:
        collection.compare_and_append(at(0, 2), 0, 1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.current == collection.upper
    assert again.expected != again.current


def test_the_catalog_is_read_again_when_others_delete_what_they_have_folded():
    world = World(replace(SMALL, garbage_age_s=0.0))
    for name in "abc":
        world.lake().create(name, SCHEMA, key=["id"])
    reading, collected = world.blobs.open, []

    def meanwhile(name):
        if name.startswith("catalog/parts/") and not collected:
            catalog = inside.catalog(world.lake())
            collected.append(name)
            inside.shard(catalog).advance_since(inside.shard(catalog).state().upper.just_before())
            Maintainer(inside.shard(catalog)).merge_all()
            world.clock.ms += 1
            assert catalog.collect().blobs
        return reading(name)

    world.blobs.open = meanwhile
    assert world.lake().list() == ["a", "b", "c"]
    assert collected and collected[0] not in world.blobs._blobs


def test_a_catalog_that_has_lost_a_part_is_damaged():
    world = World()
    world.lake().create("a", SCHEMA, key=["id"])
    [part] = [name for name in world.blobs._blobs if name.startswith("catalog/parts/")]
    world.blobs.delete(part)
    with pytest.raises(CorruptionError, match="missing"):
        world.lake().list()

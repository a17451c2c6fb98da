"""Upserts and replacements of collections: against a dictionary, in ranges, beside other writers."""

import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import inside
import tidelake
from tables import SCHEMA, contents, rows
from threads import at_once
from tidelake.config import Config
from tidelake.data.keys import keyranges
from tidelake.env import Counters, Env
from tidelake.errors import (
    CollectionDropped,
    InvalidUpdates,
    LeaseExpired,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
)
from tidelake.lake.api.lake import open_lake
from tidelake.model.frontier import Frontier
from tidelake.shard.writing.upserter import Upserter
from tidelake.testing.oracle import canonical
from tiers import some
from upsert_reference import Event, Model
from where_reference import FIELDS, random_rows

ARROW = pa.schema([field for field, _ in FIELDS])
CONFIGS = {
    "inline": Config(),
    # Everything is stored, in tiny parts and row groups, and events are taken in ranges of 16 rows.
    "stored": Config(
        part_target_bytes=1024,
        row_group_rows=4,
        merge_chunk_rows=16,
        fold_rows=1,
        inline_part_bytes=0,
        bound_bytes=9,
        merge_inputs_min=100,
    ),
    # Parts are large, and unpacked as soon as their rows have been decoded once.
    "unpacked": Config(row_group_rows=1, inline_part_bytes=0, bound_bytes=9, merge_inputs_min=100),
}


def plain(table):
    """Rows of a table as tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def held(c, as_of=None):
    table = c.snapshot(as_of).read_all().drop_columns(list(c.domain.columns))
    return Counter({tuple(canonical(v) for v in row[:-1]): row[-1] for row in plain(table)})


def draw(rng, n, times=(5,)):
    """A table of events with all there is, and the events."""
    table = random_rows(rng, FIELDS, n)
    at = [rng.choice(times) for _ in range(n)]
    gone = [rng.random() < 0.3 for _ in range(n)]
    order = [rng.randrange(4) for _ in range(n)]
    events = [Event(row, t, g, o) for row, t, g, o in zip(plain(table), at, gone, order, strict=True)]
    return table.append_column("gone", [gone]).append_column("order", [order]), at, events


@pytest.fixture(params=some([2, 1], 2))
def lookups(request, monkeypatch):
    """Ranges at once, however few the events are."""
    monkeypatch.setattr(keyranges, "_ENOUGH_ROWS", 1)
    before = pa.cpu_count()
    pa.set_cpu_count(request.param)
    yield
    pa.set_cpu_count(before)


@pytest.mark.promise(
    "After an upsert the contents of each time are those of a dictionary, whatever the keys, parts "
    "and ranges; after a replacement they are the rows of the table",
    rule="`shard/writing/derived.py`, `shard/writing/upserter.py`, `shard/runs/difference.py`",
    also=[
        "::test_events_at_several_times_give_the_contents_of_each_time",
        "::test_a_replacement_leaves_exactly_the_rows_of_the_table",
    ],
)
@pytest.mark.parametrize("config", list(CONFIGS))
@pytest.mark.parametrize("key", some([2, 1], 2))
def test_contents_after_upserts_are_those_of_a_dictionary(key, config, lookups, tmp_path):
    rng = random.Random(f"{key}{config}")
    with tidelake.open(tmp_path / "lake", config=CONFIGS[config]) as lake:
        c = lake.create("c", ARROW, key=ARROW.names[:key])
        model = Model(key)
        seeded = random_rows(rng, FIELDS, 40)
        c.append(seeded.append_column("_diff", [[rng.choice([1, 2, -1]) for _ in range(40)]]))
        model.rows = held(c)
        for step in range(1, 8):
            table, _, events = draw(rng, rng.choice([0, 1, 10, 60]))
            c.upsert(table, time=step * 10, order_by="order", delete_column="gone")
            model.apply([Event(e.row, step * 10, e.removed, e.order) for e in events])
            assert held(c) == model.rows
            if step == 4:
                c.advance_since(30)
                c.merge()


@pytest.mark.parametrize("config", list(CONFIGS))
def test_events_at_several_times_give_the_contents_of_each_time(config, tmp_path):
    rng = random.Random(config)
    with tidelake.open(tmp_path / "lake", config=CONFIGS[config]) as lake:
        c = lake.create("c", ARROW, key=["k"])
        model, start = Model(1), 0
        for _ in range(4):
            table, at, events = draw(rng, 50, range(start, start + 4))
            table = table.drop_columns(["order"]).append_column("_time", [at])
            assert c.upsert(table, delete_column="gone").upper == Frontier.of(max(at) + 1)
            for time in range(start, max(at) + 1):
                model.apply([Event(e.row, e.time, e.removed) for e in events if e.time == time])
                assert held(c, time) == model.rows
            start = max(at) + 1


@pytest.mark.parametrize("config", list(CONFIGS))
def test_an_upserter_gives_in_other_processes_what_an_upsert_gives(config, tmp_path):
    rng = random.Random(config)
    with tidelake.open(tmp_path / "lake", config=CONFIGS[config]) as lake:
        one, other = (lake.create(name, ARROW, key=["k", "s"]) for name in "ab")
        for _ in range(3):
            table, _, _ = draw(rng, 60)
            table = table.sort_by([("k", "ascending"), ("s", "ascending")])
            asked = {"order_by": "order", "delete_column": "gone"}
            one.upsert(table, time=next_time(one), **asked)
            at = next_time(other)
            sent = other.distributed.upserter(time=at, **asked).to_bytes()
            lower = Upserter.from_bytes(sent).lower
            # In two tasks, cut where a key ends.
            cut = cut_between_keys(table, 30)
            uploads = [
                Upserter.from_bytes(sent).upload(half.to_batches(max_chunksize=7))
                for half in (table.slice(0, cut), table.slice(cut))
            ]
            other.distributed.append_uploaded(uploads, lower=lower, upper=Frontier.past(at))
            assert held(one) == held(other)


@pytest.mark.parametrize("way", ["upload", "catch_up"])
def test_an_upserter_whose_parts_were_collected_says_so(way, lookups, tmp_path):
    config = replace(CONFIGS["unpacked"], garbage_age_s=0.0, merge_budget_s=0.0)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows(*range(100), v="old"))
        for _ in range(3):
            # The second one unpacks it, so that there is something to catch up with.
            c.lookup(pa.table({"id": list(range(100))}))
        c.append(rows(*range(40), v="new"))
        upserter = Upserter.from_bytes(c.distributed.upserter(time=next_time(c)).to_bytes())
        work = {
            "upload": lambda: upserter.upload(rows(*range(100), v="newer").to_batches()),
            "catch_up": upserter.catch_up,
        }[way]
        c.merge()
        c.collect()
        c.collect()
        with pytest.raises(LeaseExpired, match="was collected while it was still to be read"):
            work()
        lake.drop("c")
        with pytest.raises(CollectionDropped):
            work()


def test_what_ranges_have_stored_goes_if_one_of_them_is_refused(lookups, tmp_path):
    with tidelake.open(tmp_path / "lake", config=CONFIGS["stored"]) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows(*range(100), v="old"))
        before = sorted(tmp_path.rglob("*.parquet"))
        upserter = c.distributed.upserter(time=next_time(c), rows_count=False)
        events = pa.concat_tables([rows(*range(98), v="new"), rows(97, v="other"), rows(98, 99, v="new")])
        seen = []
        with pytest.raises(InvalidUpdates, match="several events of the key id=97 differ"):
            upserter.upload(events.to_batches(), lambda _, updates: seen.append(updates.num_rows))
        # More than one part of them was full by then.
        assert sum(seen) >= 2 * 80
        assert sorted(tmp_path.rglob("*.parquet")) == before


def next_time(c):
    return c.upper.elements[0]


def cut_between_keys(table, near):
    keys = [tuple(canonical(v) for v in row) for row in plain(table.select(["k", "s"]))]
    return next(i for i in range(near, len(keys)) if keys[i] != keys[i - 1])


@pytest.mark.promise(
    "Events are processed in ranges of keys; more events than fit into memory are refused unless "
    "they are sorted",
    rule="`data/keys/keyranges.py`",
    also=["data/test_keyranges.py"],
)
def test_an_upserter_refuses_more_than_fits_into_memory_unless_it_is_sorted(tmp_path):
    with tidelake.open(tmp_path / "lake", config=CONFIGS["stored"]) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        ids = list(range(100))
        upserter = c.distributed.upserter(time=0)
        assert upserter.upload(rows(*ids).to_batches(max_chunksize=10))
        # In any order as long as it fits.
        assert upserter.upload(rows(*ids[15::-1]).to_batches(max_chunksize=4))
        with pytest.raises(UsageError, match="must come sorted by id"):
            upserter.upload(rows(*ids[::-1]).to_batches(max_chunksize=10))


def test_late_events_happen_at_the_upper_in_their_order_if_they_may_advance(collection):
    collection.append(rows(9, _time=[0]), upper=10)
    late = pa.table({"id": [1, 1, 1, 2], "v": ["b", "a", "c", "d"], "_time": [7, 3, 12, 5]})
    upserter = collection.distributed.upserter(advance=True)
    upload = upserter.upload(late.to_batches())
    collection.distributed.append_uploaded([upload], lower=10, upper=13)
    assert contents(collection, 10) == {(1, "b"): 1, (2, "d"): 1, (9, "x"): 1}
    assert contents(collection, 12) == {(1, "c"): 1, (2, "d"): 1, (9, "x"): 1}
    # The greatest order comes before the latest time.
    upserter = collection.distributed.upserter(advance=True, order_by="v")
    upload = upserter.upload(rows(1, _time=[2], v="z").to_batches() + rows(1, _time=[3], v="y").to_batches())
    collection.distributed.append_uploaded([upload], lower=13, upper=14)
    assert contents(collection)[1, "z"] == 1


def test_a_key_with_more_events_than_a_range_has_rows_is_one_chain(tmp_path):
    with tidelake.open(tmp_path / "lake", config=CONFIGS["stored"]) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        n = 100
        events = pa.table(
            {"id": [0, *[1] * n, 2], "v": ["a", *map(str, range(n)), "b"], "_time": [5, *range(n), 6]}
        )
        c.upsert(events)
        assert contents(c, n - 1) == {(0, "a"): 1, (1, str(n - 1)): 1, (2, "b"): 1}
        assert contents(c, 4) == {(1, "4"): 1}
        sent = c.distributed.upserter(delete_column="gone")
        late = events.set_column(2, "_time", pc.add(events.column("_time"), n))
        batches = late.append_column("gone", pa.array([True] * (n + 2))).to_batches(max_chunksize=9)
        c.distributed.append_uploaded([sent.upload(batches)], lower=n, upper=2 * n)
        assert contents(c) == {}


@pytest.mark.promise(
    "An upsert that changes nothing writes nothing once a time is closed, but a given time is closed",
    rule="`shard/writing/derived.py`",
    also=["::test_a_time_that_is_given_is_closed_even_if_nothing_changes"],
)
def test_an_upsert_that_changes_nothing_writes_nothing(collection):
    collection.upsert(rows(1, 2))
    before = collection.state()
    assert collection.upsert(rows(2, 1, 1)).already
    assert collection.upsert(rows()).already
    assert collection.replace(rows(2, 1)).already
    assert collection.state() == before


def test_a_time_that_is_given_is_closed_even_if_nothing_changes(collection):
    collection.upsert(rows(1), time=3)
    assert collection.upsert(rows(1), time=7).upper == Frontier.of(8)
    assert collection.replace(rows(1), time=9).upper == Frontier.of(10)
    assert collection.upsert(rows(1, 1, _time=[12, 11])).upper == Frontier.of(13)
    assert contents(collection, 12) == {(1, "x"): 1}
    assert collection.updates(0, 13).read_all().num_rows == 1


def test_an_upsert_takes_every_copy_of_a_row_away(collection):
    collection.append(rows(1, 1, 2, v="old"))
    collection.upsert(rows(1, v="new"))
    assert contents(collection) == {(1, "new"): 1, (2, "old"): 1}
    collection.upsert(pa.table({"id": [2], "v": pa.array([None], pa.string())}))
    assert contents(collection) == {(1, "new"): 1, (2, None): 1}
    collection.upsert(pa.table({"id": [2], "gone": [True]}), delete_column="gone")
    assert contents(collection) == {(1, "new"): 1}


def test_an_event_older_than_the_stored_row_is_late(tmp_path):
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("at", pa.timestamp("us"))])
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", schema, key=["id"])

        def event(v, at):
            return pa.table({"id": [1], "v": [v], "at": [at]}, schema)

        c.upsert(event("b", 20), order_by="at")
        assert c.upsert(event("a", 10), order_by="at").already
        c.upsert(event("c", 20), order_by="at")
        assert c.lookup(pa.table({"id": [1]})).column("v").to_pylist() == ["c"]


def test_closed_times_are_refused_also_where_nothing_would_change(collection):
    collection.upsert(rows(1), time=5)
    for ask in (
        lambda: collection.upsert(rows(1), time=5),
        lambda: collection.replace(rows(1), time=5),
        lambda: collection.upsert(rows(1, _time=[4])),
        lambda: collection.distributed.upserter(time=5),
        lambda: collection.distributed.upserter().upload(rows(1, _time=[5]).to_batches()),
    ):
        with pytest.raises(UpdateBeforeLower):
            ask()


def test_a_collection_that_is_closed_takes_none(collection):
    collection.append(rows(1, _time=[0]), upper=[])
    for ask in (lambda: collection.upsert(rows(1, 2)), lambda: collection.replace(rows(2))):
        with pytest.raises(UpperMismatch, match="closed for good"):
            ask()


def test_what_is_no_table_of_events_is_refused_and_nothing_is_written(collection):
    collection.append(rows(1))
    before = collection.state()
    for ask, kind in (
        (lambda: collection.upsert(rows(1, _diff=[1])), InvalidUpdates),
        (lambda: collection.upsert(pa.table({"id": [1]})), InvalidUpdates),
        (lambda: collection.upsert(rows(1), order_by="id"), UsageError),
        (lambda: collection.upsert(rows(1), order_by="seq"), InvalidUpdates),
        (lambda: collection.upsert(rows(1, _time=[3]), time=3), InvalidUpdates),
        (lambda: collection.upsert(7), InvalidUpdates),
        (lambda: collection.replace(rows(1, _time=[3])), InvalidUpdates),
        (lambda: collection.replace(pa.table({"id": [1]})), InvalidUpdates),
    ):
        with pytest.raises(kind):
            ask()
    assert collection.state() == before


def test_times_that_are_tuples_are_refused(lake):
    c = lake.create("tuples", SCHEMA, key=["id"], time="tuple(2)")
    for ask in (lambda: c.upsert(rows(1)), lambda: c.replace(rows(1)), c.distributed.upserter):
        with pytest.raises(UsageError, match="times that follow each other"):
            ask()


@pytest.mark.parametrize("config", some(CONFIGS, 3))
def test_a_replacement_leaves_exactly_the_rows_of_the_table(config, tmp_path):
    rng = random.Random(config)
    with tidelake.open(tmp_path / "lake", config=CONFIGS[config]) as lake:
        c = lake.create("c", ARROW, key=["k"])
        for step in range(6):
            table = random_rows(rng, FIELDS, rng.choice([0, 5, 50]))
            c.replace(table, time=step)
            assert held(c) == Counter(tuple(canonical(v) for v in row) for row in plain(table))
            if step:
                # Only what differs is stored.
                changed = c.updates(step, step + 1).read_all().num_rows
                assert changed == len(dict_differences(held(c, step - 1), held(c, step)))


def dict_differences(before, after):
    return {row for row in before | after if before[row] != after[row]}


def test_a_replacement_takes_multiplicities(collection):
    collection.replace(rows(1, 2, _diff=[3, 1]))
    assert contents(collection) == {(1, "x"): 3, (2, "x"): 1}
    collection.replace(collection.snapshot().read_all().drop_columns(["_time"]))
    assert contents(collection) == {(1, "x"): 3, (2, "x"): 1}


def test_upserts_of_several_writers_follow_each_other(tmp_path):
    """Each adds to what it finds under its own keys and a common one: no row is lost or doubled."""
    place, writers, each = str(tmp_path / "lake"), 4, 8
    with tidelake.open(place) as lake:
        lake.create("c", SCHEMA, key=["id"])

    def work(number):
        with tidelake.open(place) as lake:
            c = lake.collection("c")
            for step in range(each):
                c.upsert(rows(0, number + 1, v=f"{number}.{step}"))

    at_once(work, range(writers))
    with tidelake.open(place) as lake:
        c = lake.collection("c")
        found = contents(c)
        assert len([row for row in found if row[0] == 0]) == 1
        assert {row: n for row, n in found.items() if row[0]} == {
            (n + 1, f"{n}.{each - 1}"): 1 for n in range(writers)
        }
        # Of the common key one row at any time.
        for time in range(c.upper.elements[0]):
            assert sum(n for row, n in contents(c, time).items() if row[0] == 0) == 1


class Intruder(Counters):
    """Lets others write just before a commit of the handle that it counts for."""

    def __init__(self):
        super().__init__()
        self.writes = []

    def count(self, name, amount=1):
        super().count(name, amount)
        if name == "log.compare_and_set" and self.writes:
            self.writes.pop()()


@pytest.mark.promise(
    "Differences are appended at the very upper that they were computed for; after a conflict the "
    "upsert looks again, and no row is lost or doubled",
    rule="`remade` in `shard/writing/uploads.py`",
    also=["::test_upserts_of_several_writers_follow_each_other"],
)
@pytest.mark.parametrize("numbered", [False, True])
def test_an_upsert_that_meets_another_writer_looks_again(numbered, tmp_path):
    intruder = Intruder()
    with (
        tidelake.open(tmp_path / "lake") as lake,
        open_lake(str(tmp_path / "lake"), env=Env(recorder=intruder)) as slow_lake,
    ):
        c = lake.create("c", SCHEMA, key=["id"])
        slow = slow_lake.collection("c")
        target = slow.writer("w") if numbered else slow
        intruder.writes = [lambda v=v: c.upsert(rows(1, 2, v=v)) for v in ("second", "first")]
        target.upsert(rows(1, v="last"))
        assert contents(c) == {(1, "last"): 1, (2, "second"): 1}
        intruder.writes = [lambda: c.upsert(rows(1, 3, v="third"))]
        target.replace(rows(5, v="all"))
        assert contents(c) == {(5, "all"): 1}
        assert intruder.counts["append.again"] == 3
        # One that waited for its time finds it closed.
        intruder.writes = [lambda: c.append(rows(9, _time=[500]), upper=1000)]
        with pytest.raises(UpdateBeforeLower):
            target.upsert(rows(1), time=999)
        assert contents(c) == {(5, "all"): 1, (9, "x"): 1}


def test_what_an_upsert_that_was_too_late_stored_is_deleted(tmp_path):
    intruder, config = Intruder(), CONFIGS["stored"]
    with (
        tidelake.open(tmp_path / "lake") as lake,
        open_lake(str(tmp_path / "lake"), config=config, env=Env(recorder=intruder)) as slow_lake,
    ):
        c = lake.create("c", SCHEMA, key=["id"])
        slow = slow_lake.collection("c")
        intruder.writes = [lambda: c.upsert(rows(1, v="first"))]
        slow.upsert(rows(*range(40)))
        state = c.state()
        named = {part.name for member in state.spine for part in member.batch.parts()}
        stored = {info.name for info in inside.stores(lake).blobs.list(f"{c.id}/parts")}
        assert stored
        assert stored <= named | {*state.garbage, *state.doomed}


@pytest.mark.promise("A numbered upsert is in once", rule="`claimed`")
def test_numbered_upserts_are_in_once(collection):
    writer = collection.writer("w")
    writer.upsert(rows(1, v="a"), sequence=0)
    assert writer.upsert(rows(1, v="a"), sequence=0).already
    assert contents(collection) == {(1, "a"): 1}
    # A number counts also if nothing changes.
    writer.upsert(rows(1, v="a"))
    assert collection.writer("w").last_sequence == 1
    writer = collection.writer("w")
    writer.replace(rows(2), sequence=2)
    assert writer.replace(rows(2), sequence=2).already
    assert contents(collection) == {(2, "x"): 1}


def test_columns_that_a_change_of_the_schema_added_may_be_missing(tmp_path):
    with (
        tidelake.open(tmp_path / "lake", config=CONFIGS["stored"]) as lake,
        tidelake.open(tmp_path / "lake") as behind_lake,
    ):
        c = lake.create("c", SCHEMA, key=["id"])
        behind = behind_lake.collection("c")
        c.append(rows(1, 2, v="a"))
        wide = pa.schema([*SCHEMA, ("w", pa.int64())])
        c.evolve(wide)
        behind.upsert(rows(1, v="b"))
        c.upsert(pa.table({"id": [2], "v": ["a"], "w": [7]}))
        found = c.snapshot(columns=["id", "v", "w"]).read_all().drop_columns(["_time"])
        assert plain(found) == [(1, "b", None, 1), (2, "a", 7, 1)]


def test_uploads_that_a_refused_upsert_made_are_deleted(tmp_path):
    with tidelake.open(tmp_path / "lake", config=CONFIGS["stored"]) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows(1))
        names = {info.name for info in inside.stores(lake).blobs.list()}
        # The second range of events holds one that fails while the first one is stored.
        last = pa.table({"id": list(range(40)), "v": ["x"] * 40, "_time": [1] * 39 + [2**63 - 1]})
        with pytest.raises(UsageError, match="closes the collection for good"):
            c.upsert(last)
        assert {info.name for info in inside.stores(lake).blobs.list()} == names


def test_an_upsert_of_clustered_keys_reads_the_row_groups_that_hold_them(tmp_path):
    recorder = Counters()
    config = Config(part_target_bytes=256 * 1024, merge_budget_s=0.0, row_group_rows=4096)
    with open_lake(str(tmp_path / "lake"), config=config, env=Env(recorder=recorder)) as lake:
        c = lake.create("c", pa.schema([("id", pa.int64()), ("v", pa.string())]), key=["id"])
        n = 300_000
        text = random.Random(0).randbytes(8 * n).hex()
        c.append(pa.table({"id": pa.array(range(n)), "v": [text[16 * i : 16 * i + 16] for i in range(n)]}))
        parts = [part for member in c.state().spine for part in member.batch.parts()]
        size = sum(part.size_bytes for part in parts)
        before = Counter(recorder.counts)
        ids = list(range(100_000, 110_000))
        c.upsert(pa.table({"id": ids, "v": ["new"] * len(ids)}))
        read = recorder.counts - before
        assert read["blob.open"] <= 2
        assert read["blob.get.bytes"] - 2 * 16 * 1024 <= 4 * 4096 / n * size * 1.1
        assert read["log.compare_and_set"] == 1
        assert c.lookup(pa.table({"id": ids})).column("v").unique().to_pylist() == ["new"]


def test_events_of_one_time_meet_what_is_staged_for_it_wherever_the_time_stands():
    """The time of all events may stand in a column or beside the table: both are the same upsert."""
    found = []
    for given in ({"time": 9}, {}):
        lake = tidelake.open(f"memory://one-time-{len(given)}")
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows(1, 2))
        c.stage(pa.table({"id": [1, 1], "v": ["x", "staged"], "_time": [5, 5], "_diff": [-1, 1]}))
        events = {"id": [1, 2], "v": ["new", "x"]}
        c.upsert(pa.table(events if given else {**events, "_time": [9, 9]}), **given)
        found.append((c.state().upper, contents(c, 5), contents(c, 9)))
        lake.close()
    assert found[0] == found[1]
    assert found[0][2] == {(1, "new"): 1, (2, "x"): 1}


def test_uploads_of_several_times_around_what_is_staged_are_refused_with_the_remedy():
    """Only this process knows what is staged between the times of events."""
    c = tidelake.open("memory://several-times").create("c", SCHEMA, key=["id"])
    c.append(rows(1, 2))
    c.stage(pa.table({"id": [1], "v": ["y"], "_time": [5]}))
    events, read_at = pa.table({"id": [1, 1], "v": ["a", "b"], "_time": [4, 9]}), c.state().seqno
    upserter = c.distributed.upserter()
    upload = upserter.upload(events.to_batches())
    with pytest.raises(UsageError, match=r"staged for times before.*seal the collection"):
        c.distributed.append_uploaded([upload], lower=upserter.lower, upper=10, read_at=read_at)
    c.upsert(events)
    assert [contents(c, time).get((1, "y"), 0) for time in (4, 5, 9)] == [0, 1, 0]
    assert (contents(c, 5)[1, "a"], contents(c, 9)[1, "b"], contents(c, 9).get((1, "a"), 0)) == (1, 1, 0)

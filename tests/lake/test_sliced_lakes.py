"""Whatever is done with a collection, its slices and bases answer as the updates do."""

from dataclasses import replace

import pyarrow as pa
import pytest
from upserted import KEYS, SCHEMA, TIMES, append, check, contents, expected, tiny_world, updates, upserted

from tidelake.env import Counters, Env
from tidelake.lake.api.lake import Lake
from tidelake.shard.care.partchecks import named_parts
from tidelake.store.url import Stores


@pytest.fixture
def world():
    return tiny_world(garbage_age_s=100.0, upload_age_s=1_000.0)


@pytest.fixture
def c(world):
    return upserted(world.lake())


def rows_of_bases(state):
    return sum(run.rows for base in state.bases for run in base.runs)


def goes_on(world, collection, first=0, last=TIMES):
    """The collection is right, also after more times and maintenance; a check finds nothing."""
    check(collection, first, last - 1)
    append(collection, last, last + 9)
    assert collection.maintain().complete
    check(collection, first, last + 8)
    assert world.fsck().findings == ()


def stored(world, *collections):
    """The parts that are stored, and those that these collections name."""
    there = {name for name in world.blobs._blobs if "/parts/" in name and not name.startswith("catalog/")}
    return there, {part.name for c in collections for part in named_parts(c.state()) if part.inline is None}


def tidy_up(world):
    """Maintain everything until all that nothing needs is gone."""
    for _ in range(4):
        lake = world.lake()
        lake.collect()
        for name in lake.list():
            lake.collection(name).maintain()
            lake.collection(name).collect(thorough=True)
        world.clock.ms += 1_000_000
    world.lake().collect()


@pytest.mark.promise(
    "Forks, copies, groups, staged updates, changed columns and lakes without slices know slices and bases",
    also=["lake/test_sliced_lakes.py"],
)
def test_bases_have_at_most_as_many_rows_as_there_are_updates_beside_one_at_the_head():
    # Each append is a slice, and maintenance comes after each.
    c = tiny_world(slice_rows=2).lake().create("c", SCHEMA, key=["id"])
    for time in range(TIMES):
        append(c, time, time + 1)
        assert c.maintain().complete
        state = c.state()
        assert rows_of_bases(state) <= state.spine.totals.rows + KEYS
    assert len(state.spine.slices) == TIMES and len(state.bases) > 4
    check(c)


def test_bases_that_are_kept_and_that_are_not_are_counted(world):
    counters = Counters()
    env = Env(clock=world.clock, recorder=counters)
    lake = Lake("memory://counted", Stores(world.blobs, world.log), world.config, env)
    upserted(lake)
    assert counters.counts["base.made"] >= len(lake.collection("c").state().bases) > 0
    before = counters.counts["base.unpaid"]
    # Rows only come: a base is tried now and then, and does not pay. The one at the head saves a long merge.
    more = lake.create("more", SCHEMA, key=["id"])
    for time in range(TIMES):
        more.append(
            pa.table({"id": [*range(100 * time, 100 * time + 100)], "v": [0] * 100, "_diff": [1] * 100})
        )
    assert more.maintain().complete
    state = more.state()
    assert [base.hi for base in state.bases] == [state.spine.next_id]
    assert counters.counts["base.unpaid"] > before


def test_a_fork_borrows_bases_and_goes_on_by_itself(world, c):
    lake = world.lake()
    fork = lake.fork("c", "f")
    assert len(fork.state().bases) == len(c.state().bases) > 0
    assert {p.name for b in fork.state().bases for p in b.parts()} == {
        p.name for b in c.state().bases for p in b.parts()
    }
    goes_on(world, fork)
    goes_on(world, c)
    lake.drop("c", force=True)
    tidy_up(world)
    fork = world.lake().collection("f")
    check(fork, 0, TIMES + 8)
    assert world.fsck().clean


@pytest.mark.parametrize("as_of", [4, 26])
def test_a_fork_as_of_a_time_has_the_bases_up_to_it_and_so_has_its_fork(world, c, as_of):
    lake = world.lake()
    fork = lake.fork("c", "f", as_of=as_of)
    assert all(base.time <= as_of for base in fork.state().bases)
    assert as_of < 20 or fork.state().bases
    lake.fork("f", "g", as_of=as_of - 3)
    goes_on(world, lake.collection("g"), 0, as_of - 2)
    goes_on(world, fork, 0, as_of + 1)
    fork.merge()
    for name in ("c", "f"):
        lake.drop(name, force=True)
    tidy_up(world)
    check(world.lake().collection("g"), 0, as_of + 6)
    assert world.fsck().clean


def test_a_copy_has_the_bases_of_its_source(world, c):
    other = tiny_world()
    source, target = world.lake(), other.lake()
    source.copy(target, ["c"])
    copy = target.collection("c")
    assert [(b.hi, b.time) for b in copy.state().bases] == [(b.hi, b.time) for b in c.state().bases]
    assert not {p.name for p in copy.state().parts()} & {p.name for p in c.state().parts()}
    goes_on(other, copy)


def test_what_a_drop_leaves_has_no_part_of_a_base(world, c):
    upserted(world.lake(), "other")
    world.lake().drop("c")
    tidy_up(world)
    there, named = stored(world, world.lake().collection("other"))
    assert there == named and world.fsck().findings == ()


def test_bases_of_an_older_schema_are_read_under_the_newest(world, c):
    old = {base.hi for base in c.state().bases}
    c.evolve(SCHEMA.append(pa.field("w", pa.int32())))
    check(c)
    for table in (updates(time, time + 1) for time in range(TIMES, TIMES + 9)):
        c.append(table.append_column("w", pa.nulls(table.num_rows, pa.int32())))
    assert c.maintain().complete
    state = c.state()
    assert {base.hi for base in state.bases} & old, "old bases stay"
    assert {part.schema_id for base in state.bases for part in base.parts()} == {0, 1}
    check(c, 0, TIMES + 8)
    row = c.snapshot(TIMES // 2).read_all().to_pylist()[0]
    assert row["w"] is None
    c.merge()
    assert {part.schema_id for part in c.state().parts()} == {1}
    check(c, 0, TIMES + 8)
    # The column that tells rows apart goes: rows of bases too are added up.
    c.evolve(pa.schema([SCHEMA.field("id")]), drop=["v", "w"])
    (first, *_) = c.snapshot(TIMES // 2).read_all().to_pylist()
    assert (first["id"], first["_diff"]) == (0, 1)
    assert c.snapshot(TIMES // 2).read_all().num_rows == KEYS
    assert world.fsck().clean


def test_once_since_has_passed_bases_what_is_older_goes(world, c):
    for since in (TIMES // 3, TIMES - 1):
        c.advance_since(since)
        assert c.maintain().complete
        check(c, since)
        assert all(base.time > since for base in c.state().bases)
    state = c.state()
    assert state.spine.totals.rows == KEYS and not state.bases
    tidy_up(world)
    there, named = stored(world, world.lake().collection("c"))
    assert there == named
    goes_on(world, world.lake().collection("c"), TIMES - 1)


def test_updates_that_are_staged_come_between_slices(world):
    c = world.lake().create("c", SCHEMA, key=["id"])
    for first in range(0, TIMES, 10):
        # Latest times first, and all is sealed in two steps.
        for time in (7, 3, 0):
            end = {7: 10, 3: 7, 0: 3}[time]
            c.stage(updates(first + time, first + end))
        c.seal(first + 5)
        check(c, 0, first + 4)
        if first % 20:
            assert c.maintain().complete
            check(c, 0, first + 4)
        c.seal(first + 10)
    assert c.maintain().complete
    assert len(c.state().spine.slices) > 2 and c.state().bases
    goes_on(world, c)


def test_collections_of_a_group_have_bases(world):
    lake = world.lake()
    a, b = upserted(lake, "a"), upserted(lake, "b")
    for time in range(TIMES, TIMES + 9):
        table = updates(time, time + 1).drop_columns(["_time"])
        lake.write({"a": table, "b": table})
    uppers = [one.upper.elements[0] for one in (a, b)]
    assert uppers[0] == uppers[1]
    for one in (a, b):
        assert one.maintain().complete
        check(one)
        assert contents(one) == expected(TIMES + 8)
        assert one.state().bases.after(0).time < TIMES
    assert world.fsck().clean


def test_an_arrangement_begins_with_a_base_and_follows(c):
    with c.arrange(as_of=TIMES // 2) as arranged:
        rows = arranged.range().to_pylist()
    assert {row["id"]: row["v"] for row in rows} == expected(TIMES - 1)


def test_a_lake_without_slices_gets_them_by_maintenance(world):
    whole = replace(world.config, slice_rows=1_000_000)
    tiny, world.config = world.config, whole
    c = world.lake().create("c", SCHEMA, key=["id"])
    append(c, 0, TIMES)
    assert c.merge().applied
    assert not c.state().spine.slices and c.state().spine.totals.runs == 1
    world.config = tiny
    c = world.lake().collection("c")
    assert c.maintain().complete
    assert len(c.state().spine.slices) > 2 and c.state().bases
    goes_on(world, c)

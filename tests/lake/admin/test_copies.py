"""A copy in another lake answers as the source does, and is there whole or not at all."""

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from damage import DAY_MS, SMALL, part_of, table
from pyrsistent import pmap
from shard_states import aged

import inside
import tidelake
from tidelake.env import Counters, Env
from tidelake.errors import (
    BlobNotFound,
    CollectionDropped,
    CollectionExists,
    CollectionNotFound,
    CorruptionError,
    LeaseExpired,
    StoreUnavailable,
    UsageError,
)
from tidelake.lake.api.lake import Lake
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.overlap import sequential
from tidelake.state.core.invariants import check_state
from tidelake.state.core.state import MergeClaim, Retention
from tidelake.state.life import holds
from tidelake.state.life.collecting import bury, doom, raise_floor
from tidelake.state.life.dropping import drop_shard
from tidelake.store.metered import metered
from tidelake.store.url import Stores


@pytest.fixture
def c(world):
    made = world.filled()
    made.append(table(*range(40), _diff=[-1] * 40))
    made.advance_since(1)
    made.maintain(thorough=False)
    made.append(table(1000))
    return made


def assert_equal(copy, source, upper=None):
    """Every read that the source answers."""
    upper, start = (upper or source.upper).elements[0], source.since.elements[0]
    times = range(start, upper)
    for time in times:
        assert copy.snapshot(time).read_all() == source.snapshot(time).read_all()
        for through in range(time, upper):
            assert copy.changes(time, through).read_all() == source.changes(time, through).read_all()
    assert copy.updates(start + 1, upper).read_all() == source.updates(start + 1, upper).read_all()


@pytest.mark.promise(
    "A copy answers every read as its source did at one moment, whatever is appended, merged and "
    "collected meanwhile",
    rule="a lease; `shard/care/copy.py`",
    also=[
        "::test_appends_merges_and_collections_meanwhile_do_not_touch_the_copy",
        "::test_a_slow_copy_keeps_what_it_reads",
    ],
)
def test_a_copy_answers_every_read_as_its_source_does(world, other, c):
    report = world.lake().copy(other.lake(), ["c"])
    copy = other.lake().collection("c")
    (one,) = report.collections
    assert (one.name, one.what, one.since, one.upper) == ("c", "new", c.since, c.upper)
    assert report.parts == len([p for m in c.state().spine for p in m.batch.parts()]) > 3
    assert copy.schema == c.schema and copy.id != c.id
    assert_equal(copy, c)
    assert other.fsck().findings == world.fsck().findings == ()


def test_a_copy_of_inline_parts_and_tuple_times_answers_as_its_source_does(world, other):
    world.config = SMALL.__class__(merge_budget_s=0)
    c = world.lake().create("c", table(1).schema, key=["id"], time="tuple(2)")
    for n in range(3):
        at = {"_time_0": pa.array([n]), "_time_1": pa.array([1])}
        c.append(table(n, **at), upper=(n + 1, 0))
    assert part_of(c).inline is not None
    world.lake().copy(other.lake(), ["c"])
    copy = other.lake().collection("c")
    for time in ((0, 5), (1, 5), (2, 1)):
        assert copy.snapshot(time).read_all() == c.snapshot(time).read_all()
    assert other.fsck().findings == ()
    assert {p.name for m in copy.state().spine for p in m.batch.parts()}.isdisjoint(
        p.name for m in c.state().spine for p in m.batch.parts()
    )


def test_a_copy_keeps_all_schemas_and_goes_on_from_the_newest(world, other, c):
    c.evolve(c.schema.append(pa.field("w", pa.int32())))
    c.append(table(1, 2, w=pa.array([1, None], pa.int32())))
    world.lake().copy(other.lake(), ["c"])
    copy = other.lake().collection("c")
    assert copy.schema == c.schema and copy.schema_at(0) == c.schema
    assert len(copy.state().schemas) == 2
    assert_equal(copy, c)
    copy.evolve(copy.schema.append(pa.field("z", pa.int32())))
    copy.merge()
    assert copy.snapshot().read_all().num_rows == c.snapshot().read_all().num_rows
    assert other.fsck().findings == ()


def test_a_copy_of_an_empty_collection_is_empty(world, other):
    c = world.lake().create("c", table(1).schema, key=["id"])
    assert world.lake().copy(other.lake(), ["c"]).parts == 0
    copy = other.lake().collection("c")
    assert copy.upper == c.upper == Frontier.of(0)


@pytest.mark.promise(
    "Writers go on exactly once in a copy, also with tokens of transactions",
    rule="writer records are copied; `with_group`",
    also=["lake/admin/test_copies_again.py::test_tokens_of_transactions_are_known_in_the_copy"],
)
def test_writers_go_on_in_the_copy_where_they_were(world, other, c):
    writer = c.writer("w", owner="me")
    writer.append(table(5), sequence=7)
    world.lake().copy(other.lake(), ["c"])
    copy = other.lake().collection("c")
    again = copy.writer("w", owner="me")
    before = copy.upper
    again.append(table(5), sequence=7)  # it is in
    assert copy.upper == before
    again.append(table(6), sequence=8)
    assert copy.upper != before


def test_a_copy_keeps_what_its_owner_decided_and_no_reader_of_the_source(world, other, c):
    held = c.reader("stays behind")
    inside.run(c, partial(holds.open_critical, name="mine", token="t"))
    inside.run(c, partial(holds.set_retention, retention=Retention(50)))
    c.merge()
    inside.write_rollup(c)
    world.lake().copy(other.lake(), ["c"])
    source, copy = c.state(), other.lake().collection("c").state()
    assert (copy.critical, copy.retention) == (source.critical, source.retention)
    assert copy.schemas.keys() == source.schemas.keys()
    assert (copy.retained, copy.since, copy.upper) == (source.retained, source.since, source.upper)
    assert not (copy.holds or copy.garbage or copy.doomed or copy.claims or copy.chunks)
    assert source.garbage and held.id in source.holds
    check_state(copy)


def test_a_copy_takes_over_no_merge_that_is_under_way(world, other, c):
    id_ = next(iter(c.state().spine)).id
    claim = MergeClaim(id_, (), "d" * 32, Frontier.of(0), "a runner", world.clock.ms + DAY_MS, ())
    claims, chunks = pmap({claim.name: claim}), pmap({claim.chunk(0): ()})
    world.rewrite(c, lambda state: replace(state, claims=claims, chunks=chunks))
    world.lake().copy(other.lake(), ["c"])
    copy = other.lake().collection("c").state()
    assert not copy.claims and not copy.chunks
    assert other.fsck().findings == ()


def test_a_copy_in_the_same_lake_has_another_name(world, c):
    lake = world.lake()
    with pytest.raises(CollectionExists, match="'c' exists there"):
        lake.copy(lake, ["c"])
    lake.copy(lake, ["c"], as_name="d")
    assert lake.list() == ["c", "d"]
    assert_equal(lake.collection("d"), c)
    assert world.fsck().findings == ()


def test_lakes_may_be_given_by_their_place(tmp_path):
    with tidelake.open(tmp_path / "a", config=SMALL) as lake:
        c = lake.create("c", table(1).schema, key=["id"])
        c.append(table(*range(300)))
        lake.copy(tmp_path / "b", ["c"])
        with tidelake.open(tmp_path / "b") as copied:
            copied.copy(lake, ["c"], as_name="again")
        with tidelake.open(tmp_path / "b", create=False) as copied:
            assert_equal(copied.collection("c"), c)
        assert_equal(lake.collection("again"), c)
        with pytest.raises(CollectionNotFound):
            lake.copy(tmp_path / "b", ["d"])


def test_a_name_of_something_else_is_refused_and_nothing_is_copied(world, other, c):
    there = other.filled("c")
    before = set(other.blobs._blobs), set(other.log._entries)
    with pytest.raises(CollectionExists, match="'c' exists there"):
        world.lake().copy(other.lake(), ["c"], progress=lambda *_: pytest.fail("a part was copied"))
    with pytest.raises(UsageError):
        world.lake().copy(other.lake(), ["c"], as_name="")
    assert (set(other.blobs._blobs), set(other.log._entries)) == before
    assert not c.state().holds and other.lake().collection("c").id == there.id


def test_a_copy_that_was_dropped_comes_back(world, other, c):
    world.lake().copy(other.lake(), ["c"])
    other.lake().drop("c")
    world.lake().copy(other.lake(), ["c"])
    assert_equal(other.lake().collection("c"), c)
    assert other.fsck().findings == ()


def test_a_name_that_is_taken_meanwhile_is_refused_and_nothing_is_left(world, other, c):
    target = other.lake()

    def taken(_, done, total):
        if done == total:
            target.create("c", table(1).schema, key=["id"])

    with pytest.raises(CollectionExists):
        world.lake().copy(target, ["c"], progress=taken)
    mine = target.collection("c").id
    assert set(other.log._entries) == {"catalog", mine}
    assert {name.partition("/")[0] for name in other.blobs._blobs} <= {"catalog", mine}


@pytest.mark.full
def test_appends_merges_and_collections_meanwhile_do_not_touch_the_copy(world, other, c):
    upper, expected = c.upper, {t: c.snapshot(t).read_all() for t in range(1, c.upper.elements[0])}
    steps, lake = iter(range(100)), world.lake()

    def meanwhile(*_):
        n = next(steps)
        c.append(table(5000 + n))
        c.advance_since(c.upper.just_before())
        c.merge()
        world.clock.ms += 300_000
        world.clock.slept_s += 300
        lake._renewer.look()
        collected(world, c)

    with sequential():
        lake.copy(other.lake(), ["c"], progress=meanwhile)
    copy = other.lake().collection("c")
    assert next(steps) > 4 and c.state().collected_to > 0
    assert copy.upper == upper
    assert {t: copy.snapshot(t).read_all() for t in expected} == expected
    assert other.fsck().findings == ()
    assert not c.state().holds


def collected(world, c):
    """Collect all garbage that is free, as a collector does."""
    names = inside.run(c, partial(aged(doom), names_max=1000))
    for name in names:
        world.blobs.delete(name)
    inside.run(c, partial(bury, names=names))


def test_who_sleeps_past_the_lease_is_told_so_and_nothing_is_named(world, other, c):
    def asleep(*_):
        world.clock.ms += DAY_MS
        c.append(table(7))  # the hold ends
        c.merge()
        collected(world, c)

    with sequential(), pytest.raises(LeaseExpired, match="was collected while it was still to be read"):
        world.lake().copy(other.lake(), ["c"], progress=asleep)
    assert other.lake().list() == [] and set(other.log._entries) == {"catalog"}
    # Once more, and it is there.
    world.lake().copy(other.lake(), ["c"])
    assert_equal(other.lake().collection("c"), c)


def test_a_copy_of_what_was_collected_can_be_held_from_its_first_state(world, other, c):
    c.merge()
    collected(world, c)
    for _ in range(2):
        inside.run(c, partial(aged(raise_floor, 1000), unnamed_max=99))
        world.clock.ms += 2000
    assert c.state().collected_to > 1 and c.state().sweep.floor > 1
    world.lake().copy(other.lake(), ["c"])
    copy = other.lake().collection("c")
    assert copy.state().collected_to == 0
    with copy.reader("reads"):
        assert_equal(copy, c)
        # What the reader pins is kept, and new uploads are taken in.
        held = [part.name for member in copy.state().spine for part in member.batch.parts()]
        copy.append(table(1, 2))
        copy.merge()
        other.clock.ms += 700_000
        copy.collect()
        assert all(name in other.blobs._blobs for name in held)


def test_a_slow_copy_keeps_what_it_reads(world, other, c):
    lake, seen = world.lake(), []

    def slow(*_):
        world.clock.ms += 400_000  # garbage lasts for 600 s, a lease for 900 s
        world.clock.slept_s += 400
        lake._renewer.look()
        c.append(table(7))
        c.merge()
        collected(world, c)
        seen.extend(hold.purpose for hold in c.state().holds.values())

    upper, expected = c.upper, c.snapshot().read_all()
    with sequential():
        lake.copy(other.lake(), ["c"], progress=slow)
    assert len(seen) > 4 and set(seen) == {"copy as c"}
    assert not c.state().holds
    assert other.lake().collection("c").upper == upper
    assert other.lake().collection("c").snapshot().read_all() == expected


def test_a_damaged_part_of_the_source_is_refused_by_its_name(world, other, c):
    name = part_of(c, 2).name

    def flipped(data):
        data[50] ^= 1
        return data

    world.overwrite(name, flipped)
    with pytest.raises(CorruptionError, match=name):
        world.lake().copy(other.lake(), ["c"])
    assert other.lake().list() == []
    assert not c.state().holds


def test_a_damaged_inline_part_is_refused_too(world, other):
    world.config = SMALL.__class__(merge_budget_s=0)
    c = world.lake().create("c", table(1).schema, key=["id"])
    c.append(table(1))
    world.describe(c, inline=b"x" * part_of(c).size_bytes)
    with pytest.raises(CorruptionError, match=part_of(c).name):
        world.lake().copy(other.lake(), ["c"])
    assert other.lake().list() == []


def test_a_dropped_collection_is_not_copied(world, other, c):
    inside.run(c, drop_shard)
    with pytest.raises(CollectionDropped):
        world.lake().copy(other.lake(), ["c"])


class Crash(BaseException):
    """The end of a process: nothing of it goes on."""


def crashed(*_):
    raise Crash


def crashes_before_the_name(world, other):
    target = other.lake()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inside.catalog(target), "set", crashed)
        with pytest.raises(Crash):
            world.lake().copy(target, ["c"])


@pytest.mark.promise(
    "A copy exists whole or not at all, and is readable as of its last finished run; damaged parts "
    "are not copied",
    rule="named last, one commit; checksums",
    also=[
        "::test_a_damaged_part_of_the_source_is_refused_by_its_name",
        "lake/admin/test_copies_again.py::test_a_flipped_bit_stops_one_collection_and_no_other",
    ],
)
def test_a_crash_leaves_no_half_of_a_copy_and_the_next_run_goes_on(world, other, c):
    with sequential(), pytest.raises(Crash):
        world.lake().copy(other.lake(), ["c"], progress=crashed)
    assert other.lake().list() == [] and len(other.blobs._blobs) > 1
    assert other.fsck().findings == ()
    (one,) = world.lake().copy(other.lake(), ["c"]).collections
    assert one.what == "new" and one.found >= 1 and one.parts > 3
    assert_equal(other.lake().collection("c"), c)
    assert other.fsck().findings == () and not list(other.blobs.list("copies/"))


def test_what_a_crash_left_is_found_and_removed_when_it_is_old(world, other, c):
    with sequential(), pytest.raises(Crash):
        world.lake().copy(other.lake(), ["c"], progress=crashed)
    other.lake().create("another", table(1).schema, key=["id"])
    other.clock.ms += DAY_MS + 1
    assert [f.kind for f in other.fsck().left] == ["unknown-shard"]
    # What is old may be removed at any moment, so nothing is built upon it.
    (one,) = world.lake().copy(other.lake(), ["c"]).collections
    assert one.found == 0
    assert_equal(other.lake().collection("c"), c)
    assert other.fsck(repair=True).clean and other.fsck().findings == ()
    other.lake().collect()
    assert not list(other.blobs.list("copies/"))


def test_a_crash_before_the_name_is_given_is_gone_on_from(world, other, c):
    crashes_before_the_name(world, other)
    assert other.lake().list() == []
    c.append(table(17))
    (one,) = world.lake().copy(other.lake(), ["c"]).collections
    assert one.found and one.parts == 1
    assert_equal(other.lake().collection("c"), c)
    assert other.fsck().findings == ()


def test_a_crash_before_the_name_is_given_leaves_a_shard_that_fsck_tells(world, other, c):
    crashes_before_the_name(world, other)
    other.clock.ms += DAY_MS + 1
    assert [f.kind for f in other.fsck().left] == ["unfinished-shard"]
    assert other.fsck(repair=True).clean and not list(other.blobs.list(""))[1:]


def test_a_copy_without_a_name_is_collected_also_with_the_critical_holds_of_its_source(world, other, c):
    inside.run(c, partial(holds.open_critical, name="mine", token="t"))
    crashes_before_the_name(world, other)
    other.clock.ms += DAY_MS + 1
    assert other.lake().collect().shards == 1
    assert not other.blobs._blobs
    assert other.fsck().findings == ()


def test_a_copy_that_took_so_long_that_its_parts_were_given_up_is_refused(world, other, c):
    def removed(_, done, total):
        if done == total:
            other.blobs.delete(next(name for name in other.blobs._blobs if "/parts/" in name))

    with pytest.raises(BlobNotFound):
        world.lake().copy(other.lake(), ["c"], progress=removed)
    assert other.lake().list() == []


def test_a_full_store_leaves_what_the_next_run_goes_on_from(world, other, c, monkeypatch):
    target = other.lake()
    puts = []

    def full(name, data):
        puts.append(name)
        if len(puts) >= 4:
            raise StoreUnavailable("no space left", False)
        other.blobs.__class__.put(other.blobs, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(other.blobs, "put", full)
        with pytest.raises(StoreUnavailable):
            world.lake().copy(target, ["c"])
    assert target.list() == []
    (one,) = world.lake().copy(target, ["c"]).collections
    assert one.found == 2
    assert_equal(target.collection("c"), c)


def test_a_copy_costs_a_read_and_a_put_for_each_part(world, other, c):
    env = Env(clock=world.clock, recorder=Counters())
    stores = Stores(other.blobs, other.log).layered(metered(env.recorder))
    target = Lake("memory://metered", stores, SMALL, env)
    target.list()
    before = dict(env.recorder.counts)
    report = world.lake().copy(target, ["c"])
    spent = {k: v - before.get(k, 0) for k, v in env.recorder.counts.items()}
    # And one for the name, since no part of this lake is inline, and one for the mark; three log writes: the
    # shard, its name, and the word that it has it. Listings: of marks, of what is there, of what was stored.
    assert spent["blob.put"] == report.parts + 2
    assert spent["blob.get"] == report.parts
    assert spent["log.compare_and_set"] == 3 and spent["blob.list"] == 3

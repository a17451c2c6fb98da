"""`fsck --repair` brings a damaged collection back, and says what it sets aside; it stops nothing else."""

from collections import Counter
from dataclasses import replace

import pytest
from damage import DAY_MS, part_of, table
from pyrsistent import pmap

from tidelake.errors import CorruptionError, TidelakeWarning, UsageError
from tidelake.lake.catalog.catalog import SHARD_ID
from tidelake.model import names
from tidelake.model.batch import HollowBatch, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.shard.care.mend import _erasures_in
from tidelake.state.core import codec
from tidelake.state.core.edits import Delta, Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.garbage import Garbage
from tidelake.state.core.state import MergeClaim, Rollup
from tidelake.state.spine import fuel
from tidelake.state.spine.spine import SpineEdit, SpineId
from tidelake.store.protocols import Entry
from tidelake.testing.oracle import Oracle
from tiers import some


@pytest.fixture
def c(world):
    return filled(world)


def rows_of(ids, at):
    data = table(*ids)
    return [(tuple(map(str, row.values())), at, 1) for row in data.to_pylist()]


def filled(world, name="c", lake=None):
    """Three appends; what is in them is in `world.held`."""
    made = (lake or world.lake()).create(name, table(1).schema, key=["id"])
    held = Oracle(Frontier.of(0), Frontier.of(0))
    for n in range(3):
        ids = range(n * 50, n * 50 + 70)
        made.append(table(*ids))
        held.append(rows_of(ids, n), Frontier.of(n + 1))
    world.held = held
    return made


def contents(c, as_of=None):
    found = Counter()
    for row in c.snapshot(as_of).read_all().to_pylist():
        diff, _ = row.pop("_diff"), row.pop("_time", None)
        found[tuple(map(str, row.values()))] += diff
    return found


def commit(world, c, edits):
    """Commit a step without any check: as a bug would."""
    state = c.state()
    base = edits.rollup or state.rollup
    delta = Delta(c.id, state.seqno + 1, state.committed_ms, "ab" * 16, base, edits)
    assert world.log.compare_and_set(c.id, state.seqno, codec.encode_delta(delta))
    return c.state()


def rolled_up(world, c):
    """Let those who open it begin from the state as it is, whatever rules that breaks."""
    state, data = c.state(), codec.encode_state(c.state())
    world.blobs.put(names.rollup(c.id, state.seqno, "ab" * 16), data)
    commit(world, c, Edits(rollup=Rollup(state.seqno, "ab" * 16, len(data), 1)))


def appending(c, *runs, lower=None, upper=None, moved=None):
    """An append of runs, with no check of what is in them."""
    state = c.state()
    lower = state.upper.elements[0] if lower is None else lower
    upper = lower + 1 if upper is None else upper
    batch = HollowBatch(Bounds(Frontier.of(lower), Frontier.of(upper), Frontier.of(0)), runs)
    edit = fuel.push(state.spine, batch, state.since, state.seqno + 1).edit
    return Edits(upper=Move(state.upper, Frontier.of(upper if moved is None else moved)), spine=edit)


def first_runs(c):
    return next(iter(c.state().spine)).batch.runs


def twice(world, c):
    """The upload of the first append once more: rows double."""
    commit(world, c, appending(c, *first_runs(c)))


def inline_twice(world, c):
    part = replace(part_of(c), name=part_of(c).name, inline=b"no matter")
    commit(world, c, appending(c, Run((part,))))


def no_schema(world, c):
    fresh = replace(part_of(c), name=names.part(c.id, 0, "aa" * 16), schema_id=7)
    commit(world, c, appending(c, Run((fresh,))))


def no_rows(world, c):
    fresh = replace(part_of(c), name=names.part(c.id, 0, "aa" * 16), rows=0)
    commit(world, c, appending(c, Run((fresh,))))


def empty_run(world, c):
    commit(world, c, appending(c, Run(())))


def overlap(world, c):
    commit(world, c, appending(c, lower=1, upper=4))


def hole(world, c):
    commit(world, c, appending(c, lower=5, upper=6))


def upper_apart(world, c):
    commit(world, c, appending(c, moved=9))


def since_past_holds(world, c):
    held = c.reader("reads")
    world.kept = held
    commit(
        world,
        c,
        Edits(since=Move(c.since, Frontier.of(2)), retained=Move(c.state().retained, Frontier.of(2))),
    )


def since_past_owner(world, c):
    commit(world, c, Edits(since=Move(c.since, Frontier.of(2))))


def wrong_rows_of_a_level(world, c):
    spine = c.state().spine
    gone = spine.batches[-1]
    edit = SpineEdit(
        spine.next_id, spine.spent, batches_gone=(gone.id,), batches=(replace(gone, rows=gone.rows + 1),)
    )
    commit(world, c, Edits(spine=edit))


def chunk_of_no_claim(world, c):
    commit(world, c, Edits(chunks={"7-9/0": ()}))


def claims_that_overlap(world, c):
    claims = {
        f"{lo}-{lo + 2}": MergeClaim(SpineId(lo, lo + 2), (), "", Frontier.of(0), "r", 0, ()) for lo in (0, 1)
    }
    commit(world, c, Edits(claims=claims))


def another_shards_part(world, c):
    other = filled(world, "other")
    # At a time of the batch.
    part = replace(first_runs(other)[0].parts[0], rewrite=3)
    commit(world, c, appending(c, Run((part,))))


def named_garbage(world, c):
    def change(state):
        return replace(state, garbage=state.garbage.set(part_of(c).name, Garbage(0, 1, 2)))

    rewrite(world, c, change)


def rewrite(world, c, change):
    """Put a state in the place of the whole log, whatever rules it breaks."""
    state = change(c.state())
    world.log._entries[c.id] = [Entry(state.seqno, codec.encode_state(state))]


def schemas_apart(world, c):
    def change(state):
        other = state.schemas[0]
        return replace(state, schemas=pmap({0: other, 2: replace(other, seqno=state.seqno)}))

    rewrite(world, c, change)


# How it is broken, how many rows are added to what was there, and how many things are set aside.
BREAKS = [
    (twice, 0, 1),
    (inline_twice, 0, 1),
    (no_schema, 0, 1),
    (no_rows, 0, 1),
    (empty_run, 0, 0),
    (overlap, 0, 0),
    (hole, 0, 1),
    (upper_apart, 0, 0),
    (since_past_holds, 0, 0),
    (since_past_owner, 0, 0),
    (wrong_rows_of_a_level, 0, 0),
    (chunk_of_no_claim, 0, 0),
    (claims_that_overlap, 0, 0),
    (another_shards_part, None, 0),
    (named_garbage, 0, 0),
    (schemas_apart, 0, 1),
]


def noted(report):
    return [f for f in report.findings if f.kind not in ("kept-aside", "old-garbage", "negative-rows")]


@pytest.mark.promise(
    "A repair restores a collection whose newest state breaks a rule, with everything that can be "
    "kept; the rest is named, counted and stored aside",
    rule="`state/life/mending.py`, `shard/care/mend.py`",
    also=[
        "state/test_mending.py::test_each_rule_can_be_mended",
        "state/test_mending.py::test_any_rules_together_can_be_mended",
        "::test_what_is_set_aside_is_kept_where_people_can_look_at_it",
    ],
)
@pytest.mark.promise(
    "A repair is one entry of the log: a process that follows the log starts again from the mended "
    "state; if another process wrote meanwhile, the repair changes nothing",
    rule="`Edits.mended`, `History.refresh`",
    also=["::test_a_repair_meets_another_writer_and_changes_nothing"],
)
@pytest.mark.parametrize("rolled", some([False, True], 2))
@pytest.mark.parametrize(("broken", "more", "aside"), BREAKS, ids=[b.__name__ for b, *_ in BREAKS])
def test_repair_brings_back_a_collection_whose_newest_state_breaks_a_rule(
    world, c, broken, more, aside, rolled
):
    held = world.held
    stale = world.lake().collection("c")
    stale.state()
    broken(world, c)
    whole_log = broken in (named_garbage, schemas_apart)
    if rolled and not whole_log:
        rolled_up(world, c)
        with pytest.raises(CorruptionError):
            world.lake().collection("c")

    told = world.fsck(["c"])
    assert not told.clean and "mendable" in {f.kind for f in told.findings}
    mended = world.fsck(["c"], repair=True)
    assert mended.clean, [str(f) for f in mended.left]
    # What was said beforehand is what was done.
    assert len([f for f in mended.findings if f.kind == "set-aside"]) == aside
    assert noted(world.fsck(["c"])) == []
    again = world.lake().collection("c")
    for one in (again,) if whole_log else (again, c, stale):
        for at in range(3):
            assert contents(one, at) == held.snapshot(at)
        assert one.state() == again.state()
    if more == 0:
        assert contents(again) == held.snapshot(9)
    again.append(table(9_000))
    again.maintain(thorough=True)
    assert contents(again)[rows_of([9_000], 0)[0][0]] == 1
    assert whole_log or contents(stale) == contents(again)


def test_what_is_set_aside_is_kept_where_people_can_look_at_it(world, c):
    no_schema(world, c)
    twice(world, c)
    before = c.state()
    world.fsck(repair=True)
    kept = {info.name.rpartition("/")[2]: info.name for info in world.blobs.list(f"{c.id}/aside/")}
    assert {"what.txt", "state"} <= kept.keys()
    assert "part-named-once" in world.blobs.get(kept["what.txt"]).decode()
    assert codec.decode_unchecked(world.blobs.get(kept["state"]), "aside") == before
    world.clock.ms += 9 * DAY_MS
    world.lake().collect()
    again = world.lake().collection("c")
    again.maintain(thorough=True)
    assert set(kept.values()) <= {info.name for info in world.blobs.list(f"{c.id}/aside/")}
    note = [f for f in world.fsck().findings if f.kind == "kept-aside"]
    assert note and note[0].note
    world.lake().drop("c")
    assert not list(world.blobs.list(f"{c.id}/"))


def test_a_part_that_is_gone_is_set_aside_with_its_keys_and_times(world, c):
    gone = part_of(c, 0)
    world.blobs.delete(gone.name)
    told = world.fsck()
    [found] = [f for f in told.findings if f.kind == "part-missing"]
    assert found.object == gone.name and "times 0 to 0" in found.message
    [mendable] = [f for f in told.findings if f.kind == "mendable"]
    assert f"1 things and {gone.rows} updates" in mendable.message
    mended = world.fsck(repair=True)
    assert mended.clean
    [aside] = [f for f in mended.findings if f.kind == "set-aside"]
    assert aside.object == gone.name and f"{gone.rows} updates" in aside.message
    again = world.lake().collection("c")
    rest = contents(again)
    assert rest.total() == world.held.snapshot(9).total() - gone.rows
    assert not rest - world.held.snapshot(9)
    again.maintain(thorough=True)


def test_where_all_objects_are_gone_nothing_is_set_aside(world, c):
    for n in range(len([*c.state().parts()])):
        world.blobs.delete(part_of(c, n).name)
    report = world.fsck(repair=True)
    assert {f.kind for f in report.left} == {"part-missing"}
    assert any("mounted" in f.message for f in report.findings)


def damaged_entry(world, c, at):
    entries = world.entries(c)
    data = bytearray(entries[at].data)
    data[-30] ^= 1
    entries[at] = replace(entries[at], data=bytes(data))


@pytest.mark.promise(
    "It also restores a collection whose log has unusable entries, or whose parts are gone; but it "
    "gives up no name of the catalog and no decision of a group",
    rule="`shard/care/replay.py` (`salvaged`), `ShardCheck`",
    also=[
        "::test_a_part_that_is_gone_is_set_aside_with_its_keys_and_times",
        "::test_where_all_objects_are_gone_nothing_is_set_aside",
        "::test_the_catalog_gives_up_no_name_by_itself",
    ],
)
def test_an_entry_that_cannot_be_read_is_left_out_with_what_does_not_fit_without_it(world, c):
    last = len(world.entries(c)) - 1
    damaged_entry(world, c, last - 1)
    with pytest.raises(CorruptionError):
        world.lake().collection("c")
    report = world.fsck(repair=True)
    assert report.clean
    aside = [f for f in report.findings if f.kind == "set-aside"]
    assert any(f"entry {c.id}@{last - 1}" in f.message for f in aside)
    again = world.lake().collection("c")
    upper = again.upper.elements[0]
    assert 0 < upper < 3
    assert contents(again) == world.held.snapshot(upper - 1)
    kept = {info.name.rpartition("/")[2] for info in world.blobs.list(f"{c.id}/aside/")}
    assert {f"entry-{last - 1}", f"entry-{last}"} <= kept
    # The rows of the entry that could be read are kept as well.
    assert any(name.endswith(".parquet") for name in kept)
    again.append(table(5))
    assert noted(world.fsck()) == []


@pytest.mark.promise(
    "The last version that keeps the rules can be forked, and the damaged collection stays as it is",
    rule="`lake/catalog/forking.py` (`fork_version`)",
)
def test_the_last_sound_state_is_offered_as_a_fork_and_the_original_is_untouched(world, c):
    sound = c.state().seqno
    twice(world, c)
    commit(world, c, Edits(retained=Move(c.state().retained, Frontier.of(1))))
    report = world.fsck()
    [offered] = [f for f in report.findings if "--to-seqno" in f.message]
    assert offered.object == f"{c.id}@{sound}"
    before = dict(world.blobs._blobs), list(world.entries(c))
    fork = world.lake().fork("c", "c_sound", to_seqno=sound)
    for at in range(3):
        assert contents(fork, at) == world.held.snapshot(at)
    assert world.entries(c) == before[1]
    assert {name: data for name, data in world.blobs._blobs.items() if name.startswith(c.id)} == {
        name: data for name, data in before[0].items() if name.startswith(c.id)
    }
    with pytest.raises(UsageError, match="no version 99"):
        world.lake().fork("c", "later", to_seqno=99)
    with pytest.raises(CorruptionError, match="part-named-once"):
        world.lake().fork("c", "broken", to_seqno=sound + 1)
    assert world.lake().list() == ["c", "c_sound"]


def test_a_tombstone_that_names_something_is_a_tombstone_afterwards(world, c):
    commit(world, c, Edits(dropped=True))
    assert "rule-broken" in world.kinds()
    world.fsck(repair=True)
    world.clock.ms += DAY_MS
    world.fsck(repair=True)
    assert world.lake().list() == [] and not list(world.blobs.list(f"{c.id}/"))


def test_a_repair_meets_another_writer_and_changes_nothing(world, c):
    twice(world, c)
    put = world.blobs.put

    def meanwhile(name, data):
        put(name, data)
        if "/aside/" in name and name.endswith("/state"):
            commit(world, c, Edits())

    world.blobs.put = meanwhile
    report = world.fsck(repair=True)
    assert not report.clean and any("meanwhile" in f.message for f in report.findings)
    world.blobs.put = put
    assert world.fsck(repair=True).clean


# --- What goes on beside a damaged collection ---


def broken_beside(world, c, lake):
    """A collection whose log cannot be read at all, beside good ones."""
    entries = world.entries(c)
    for at in range(len(entries)):
        damaged_entry(world, c, at)


@pytest.mark.promise(
    "A damaged collection stops no list, collection of leftovers, upkeep, group or drop",
    rule="`Lake.collections`, `Lake.collect`, `Groups.tidy`, `Lake.drop`",
    also=[
        "::test_a_damaged_member_does_not_keep_its_group_from_its_work",
        "::test_a_damaged_collection_can_be_dropped",
        "::test_a_collection_of_which_nothing_can_be_read_gives_up_its_name",
    ],
)
def test_a_damaged_collection_stops_no_list_no_collect_and_no_upkeep(world, c):
    lake = world.lake()
    filled(world, "d", lake)
    filled(world, "e", lake)
    lake.advance_since({"d": 1})
    broken_beside(world, c, lake)
    lake = world.lake()
    assert lake.list() == ["c", "d", "e"]
    told = []
    assert [one.name for one in lake.collections(lambda name, _: told.append(name))] == ["d", "e"]
    assert told == ["c"]
    with pytest.warns(TidelakeWarning, match="'c' cannot be opened"):
        assert [one.name for one in lake.collections()] == ["d", "e"]
    lake.drop("e")
    world.log._entries["ab" * 16] = [Entry(0, b"no state")]
    world.clock.ms += 2 * DAY_MS
    removed = lake.collect()
    assert any("no state" in one or "ab" * 16 in one for one in removed.damaged)
    assert sum(c.id in one or "c:" in one for one in removed.damaged) == 1
    assert lake.list() == ["c", "d"]


def test_a_damaged_collection_can_be_dropped(world, c):
    lake = world.lake()
    twice(world, c)
    rolled_up(world, c)
    damaged_entry(world, c, len(world.entries(c)) - 1)
    assert lake.drop("c")
    assert world.lake().list() == [] and not list(world.blobs.list(f"{c.id}/"))
    assert world.log.head(c.id) is None


def test_a_collection_of_which_nothing_can_be_read_gives_up_its_name(world, c):
    broken_beside(world, c, None)
    lake = world.lake()
    with pytest.warns(TidelakeWarning, match="the name is free"):
        assert lake.drop("c")
    assert lake.list() == []
    assert "unnamed-shard" in world.kinds()
    lake.create("c", table(1).schema, key=["id"], allow_recreate=True)


def test_a_damaged_member_does_not_keep_its_group_from_its_work(world):
    lake = world.lake()
    a, *_ = [filled(world, name, lake) for name in ("a", "b", "d")]
    lake.write({name: table(7_000) for name in ("a", "b", "d")}, time=3)
    lake.write({name: table(7_001) for name in ("b", "d")}, time=4)
    broken_beside(world, a, lake)
    lake = world.lake()
    lake.write({name: table(7_002) for name in ("b", "d")}, time=5)
    for name in ("b", "d"):
        assert {7_000, 7_001, 7_002} <= {*lake.collection(name).snapshot().read_all()["id"].to_pylist()}
    removed = lake.collect()
    assert any(a.id in one for one in removed.damaged)
    group = lake.collection("b").state().group
    # Nothing is kept for those that are whole.
    waiting = [one.members for one in world.state(group).decisions.values()]
    assert all(a.id in members for members in waiting)


def test_the_catalog_gives_up_no_name_by_itself(world, c):
    entries = world.log._entries[SHARD_ID]
    data = bytearray(entries[-1].data)
    data[-30] ^= 1
    entries[-1] = replace(entries[-1], data=bytes(data))
    report = world.fsck(repair=True)
    assert "log-unreadable" in {f.kind for f in report.left}
    assert any("other collections depend on" in f.message for f in report.findings)


def with_erasure(world, lake):
    """A collection from which two keys were erased; the entry that asked for it, and that which did it."""
    c = filled(world, "e", lake)
    before = len(world.entries(c))
    c.erase([0, 1], reason="ticket 12")
    return c, before, before + 1


@pytest.mark.promise(
    "A repair that leaves an erasure out carries it out again if its keys can be read, and "
    "otherwise reports it by name, with exit code 1",
    rule="`shard/care/mend.py` (`_erasures_in`), `ShardCheck._erase_again`",
    also=["::test_the_keys_of_a_sound_entry_that_is_left_out_are_erased_again"],
)
@pytest.mark.parametrize("which", ["asked", "done", "before", "both"])
def test_a_repair_that_leaves_an_erasure_out_erases_again_or_says_so_by_name(world, which):
    lake = world.lake()
    c, asked, done = with_erasure(world, lake)
    (id_,) = c.erasures()
    world.blobs.delete_all([info.name for info in world.blobs.list(f"{c.id}/rollups/")])
    for at in {"asked": [asked], "done": [done], "before": [asked - 1], "both": [asked, done]}[which]:
        damaged_entry(world, c, at)
    report = world.fsck(["e"], repair=True)
    again = world.lake().collection("e")
    there = {0, 1} & {*again.snapshot().read_all()["id"].to_pylist()} if again.upper.elements[0] else set()
    told = [one for one in report.left if one.kind == "erasure-lost"]
    if there:
        assert told and id_ in told[0].message and "erase them again" in told[0].message
        assert not report.clean
    else:
        assert not told and report.clean
    assert bool(there) == (which == "both"), report.findings


def test_the_keys_of_a_sound_entry_that_is_left_out_are_erased_again(world):
    c, asked, done = with_erasure(world, world.lake())
    (id_,) = c.erasures()
    state, entries = replace(c.state(), erasures=pmap()), world.entries(c)
    for left_out in ([entries[asked]], [entries[asked], entries[done]]):
        again, lost = _erasures_in(left_out, state)
        assert len(again[id_].keys) == 2 and again[id_].pending and not lost
    again, (lost,) = _erasures_in([entries[done]], state)
    assert not again and id_ in lost.what and "ticket 12" in lost.what
    assert _erasures_in(entries[asked:], c.state()) == ({}, [])

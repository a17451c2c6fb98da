"""Every kind of damage is found and called by its name; a healthy lake has none; repairs are safe."""

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from damage import DAY_MS, SCHEMA, SMALL, World, part_of, table, with_part
from hypothesis import given, settings
from hypothesis import strategies as st

import inside
import tidelake
from tidelake.config import Config
from tidelake.data.part.part import PartWriter, checksum
from tidelake.data.part.stats import StatsSettings
from tidelake.errors import CollectionNotFound, CorruptionError, StoreUnavailable
from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.shard.care.leftovers import leftovers
from tidelake.state.core import codec, commands
from tidelake.state.core.edits import Delta, Edits
from tidelake.state.core.fields import Move
from tidelake.state.core.formats import NEWEST
from tidelake.state.core.garbage import Sweep
from tidelake.state.life.dropping import drop_shard
from tidelake.state.spine.spine import Spine, SpineEdit
from tidelake.store.protocols import BlobInfo
from tidelake.testing import strategies, tables
from tiers import examples


@pytest.fixture
def c(world):
    return world.filled()


def flip(data, at=-30):
    data[at] ^= 1
    return data


def healthy(world):
    report = world.fsck()
    assert report.findings == () and report.clean
    assert world.fsck(quick=True).findings == ()
    return report


# --- Healthy lakes ---


@pytest.mark.promise(
    "A check that meets a row whose diffs sum to more than an int64 holds notes it, and goes on "
    "with other collections",
    rule="`ShardCheck._negative`",
)
def test_diffs_whose_sum_is_too_large_are_noted_and_all_else_is_checked(world):
    c = world.filled()
    for diff in (2**62, 2**62, -1):
        c.append(table(7077, _diff=[diff]))
    healthy(world)
    c.append(table(7077, _diff=[1]))
    (found,) = world.fsck().findings
    assert (found.kind, found.collection, found.note) == ("sum-too-large", "c", True)
    assert "sum to 9223372036854775808" in found.message and "id=7077" in found.message
    assert world.fsck().clean and world.fsck(repair=True).clean
    c.append(table(7077, _diff=[-1]))
    healthy(world)


@pytest.mark.promise(
    "Reads return rows of negative multiplicity as they are; they are counted, and a check notes "
    "them. A table of Spark refuses them and shows the row",
    rule="`shard/reading/negatives.py`, `expanded`",
    also=[
        "cli/test_cli.py::test_rows_that_are_there_less_than_no_times_are_shown_with_their_number",
        "data/test_table_rows.py::test_a_negative_multiplicity_is_an_error_that_shows_the_row",
    ],
)
@pytest.mark.parametrize("merged", [False, True])
def test_rows_that_are_there_less_than_no_times_are_counted_and_noted(world, merged):
    c = world.filled()
    assert c.negative_rows() == 0
    c.append(table(7077, 7078, _diff=[-1, -2]))
    c.append(table(7078, _diff=[1]))
    if merged:
        c.merge()
    assert c.negative_rows() == 2
    (found,) = world.fsck().findings
    assert (found.kind, found.collection, found.note) == ("negative-rows", "c", True)
    assert "2 rows have a negative multiplicity" in found.message and "'id': 7077" in found.message
    assert world.fsck().clean and world.fsck(quick=True).findings == ()
    c.append(table(7077, 7078, _diff=[1, 1]))
    assert c.negative_rows() == 0
    healthy(world)


def test_tuples_of_an_interval_that_begins_at_several_times_are_no_finding(world):
    pairs = world.lake().create("pairs", SCHEMA, key=["id"], time="tuple(2)")
    pairs.compare_and_append(
        table()
        .append_column("_time_0", pa.array([], pa.int64()))
        .append_column("_time_1", pa.array([], pa.int64())),
        [(0, 0)],
        [(0, 1), (1, 0)],
    )
    # The least of each component, (0, 0), is no time of any row.
    pairs.append(table(1, 2, _time_0=[0, 1], _time_1=[1, 0]), upper=[(0, 2), (2, 0)])
    healthy(world)


def test_a_fresh_lake_is_clean(world):
    assert world.fsck().findings == ()
    assert world.log._entries == {} and world.blobs._blobs == {}


def test_a_filled_lake_is_clean_and_is_counted(world, c):
    report = healthy(world)
    assert (report.collections, report.rows) == (1, 900)
    assert report.parts == len([p for m in c.state().spine for p in m.batch.parts()])
    assert report.size_bytes == c.state().spine.totals.size_bytes


CONFIGS = (
    replace(SMALL, row_group_rows=2, part_target_bytes=1024, merge_chunk_rows=16, rollup_bytes_min=2048),
    Config(rollup_bytes_min=4096, merge_budget_s=0),
)


@pytest.mark.promise(
    "A check finds and names every kind of damage; a healthy lake has no findings",
    rule=(
        "`shard/care/replay.py`, `shard/care/partchecks.py`, `data/part/check.py`, "
        "`shard/care/leftovers.py`, `lake/admin/fsck.py`"
    ),
    also=["lake/admin/test_fsck.py"],
)
@settings(max_examples=examples(25))
@given(st.data())
def test_a_healthy_lake_after_any_history_has_no_findings(data):
    world = World(data.draw(st.sampled_from(CONFIGS)))
    unit = data.draw(st.sampled_from(("counter", "tuple(2)")))
    domain = TimeDomain.parse(unit)
    lake = world.lake()
    c = lake.create("c", tables.SCHEMA, key=tables.KEY, time=unit)
    readers = []
    for step in data.draw(st.lists(st.sampled_from("aaaammsrcdw"), max_size=12)):
        upper = c.upper.elements[0]
        time = upper if domain.total_order else upper[0]
        match step:
            case "a":
                rows = data.draw(st.lists(strategies.rows(), max_size=30))
                end = time + data.draw(st.integers(1, 3))
                at = st.integers(time, end - 1)
                if not domain.total_order:
                    at = st.tuples(at, st.integers(0, 3))
                updates = [(row, data.draw(at), data.draw(strategies.diffs())) for row in rows]
                c.append(tables.table(updates, domain), upper=end if domain.total_order else (end, 0))
            case "m":
                c.maintain(thorough=data.draw(st.booleans()))
            case "s" if time > 0:
                c.advance_since(time - 1 if domain.total_order else (time - 1, 0))
            case "r":
                readers.append(c.reader("test"))
            case "c" if readers:
                readers.pop().close()
            case "d":
                lake.create(f"d{step}", tables.SCHEMA, key=tables.KEY)
            case "w":
                inside.write_rollup(c)
            case _:
                pass
        world.clock.ms += data.draw(st.sampled_from((1, 1000, 3_000_000)))
    assert [str(f) for f in world.fsck().left] == []
    assert [str(f) for f in world.fsck(quick=True).left] == []


def test_parts_of_older_schemas_are_checked_under_their_own(world, c):
    wider = c.schema.append(pa.field("w", pa.int32()))
    c.evolve(wider)
    c.append(table(1, 2, w=pa.array([1, None], pa.int32())))
    assert len({part_of(c, at).schema_id for at in (0, -1)}) == 2
    assert healthy(world)
    world.describe(c, stats={3: part_of(c, -1).stats[3]})  # of a column that came later
    assert world.kinds() == {"part-stats"}


@pytest.mark.promise(
    "A check writes nothing unless it is told to repair",
    rule="`ShardCheck`, `LakeCheck`",
    also=["::test_without_the_flag_nothing_is_repaired"],
)
def test_a_check_writes_nothing(world, c):
    before = dict(world.blobs._blobs), {key: list(found) for key, found in world.log._entries.items()}
    world.fsck()
    assert (world.blobs._blobs, world.log._entries) == before


def test_a_check_of_some_collections_looks_at_these_only(world, c):
    world.filled("d", lake=world.lake())
    world.overwrite(part_of(c).name, flip)
    assert world.fsck(["d"]).clean and not world.fsck(["c"]).clean
    assert world.fsck(["c"]).left[0].collection == "c"
    with pytest.raises(CollectionNotFound):
        world.fsck(["missing"])


def test_a_check_tells_how_far_it_is(world, c):
    seen = []
    world.fsck(["c"], progress=lambda *told: seen.append(told))
    total = c.state().spine.totals.size_bytes
    assert seen[-1] == ("c", total, total) and len(seen) == c.state().spine.totals.runs * 2


# --- Objects ---


@pytest.mark.parametrize("at", [4, 100, -30, -1])
def test_a_flipped_byte_of_a_part_is_found(world, c, at):
    world.overwrite(part_of(c, 1).name, lambda data: flip(data, at))
    [found] = world.fsck().left
    assert (found.kind, found.collection, found.object) == ("part-damaged", "c", part_of(c, 1).name)
    assert not found.repaired


def test_damage_says_which_keys_times_and_reads_it_is_about(world, c):
    c.append(table(7, _time=[9]), upper=12)
    world.overwrite(part_of(c, -1).name, flip)
    [found] = world.fsck().left
    assert "1 updates of keys id=7 to id=7 and times 9 to 9: contents as of 9 and later" in found.message


def test_damage_in_a_text_key_is_told_readably(world):
    lake = world.lake()
    made = lake.create("t", table(1).schema, key=["v", "id"], value=["x"])
    made.append(table(*range(1, 400)))
    world.overwrite(part_of(made).name, flip)
    [found] = world.fsck().left
    assert "of keys v='" in found.message and ", id=" in found.message


def test_a_truncated_part_is_found(world, c):
    world.overwrite(part_of(c).name, lambda data: data[:-5])
    assert world.kinds() == world.kinds(quick=True) == {"part-size"}


def test_a_missing_part_is_found(world, c):
    world.blobs.delete(part_of(c).name)
    assert world.kinds() == world.kinds(quick=True) == {"part-missing"}


def test_swapped_parts_are_found(world, c):
    a, b = part_of(c, 0).name, part_of(c, 1).name
    blobs = world.blobs._blobs
    blobs[a], blobs[b] = blobs[b], blobs[a]
    found = world.fsck().left
    assert [f.kind for f in found] == ["part-swapped", "part-swapped"] and b in found[0].message
    assert world.kinds(quick=True) == {"part-size"}


def test_parts_that_are_collected_while_the_check_runs_are_not_missing(world, c):
    lake = world.lake()
    removed = []

    def meanwhile(name, done, total):
        if name == "c" and not removed:
            removed.extend(p.name for m in c.state().spine for p in m.batch.parts())
            c.merge()
            for blob in removed:
                world.blobs.delete(blob)

    assert "part-missing" not in {f.kind for f in lake.fsck(["c"], progress=meanwhile).findings}
    assert removed


def test_an_object_that_a_reader_needs_and_that_is_gone_is_found(world, c):
    held = c.reader("reads")
    old = part_of(c).name
    c.merge()
    state = c.state()
    assert old in state.garbage and held is not None
    world.blobs.delete(old)
    assert world.kinds() == {"pinned-missing"}
    world.clock.ms += DAY_MS
    assert "pinned-missing" not in world.kinds()


def test_an_object_that_is_younger_than_the_listing_is_not_said_to_be_missing(world, c):
    """Uploaded, replaced and pinned by a reader, all after the listing and before the state was read."""
    held, listed = [], world.blobs.list

    def list_(prefix=""):
        found = list(listed(prefix))
        if prefix == f"{c.id}/" and not held:
            c.append(table(*range(300)))
            held.append(c.reader("reads"))
            c.merge()
            assert set(c.state().garbage) - {info.name for info in found}
        return iter(found)

    world.blobs.list = list_
    assert "pinned-missing" not in world.kinds()
    assert held


def test_an_object_that_a_reader_left_behind_is_not_said_to_be_missing():
    """Held in the state that is looked at; collected since, because the reader has gone."""
    world = World(replace(SMALL, garbage_age_s=0))
    c = world.filled()
    held, removed, listed = c.reader("reads"), [], world.blobs.list
    old = part_of(c).name
    c.merge()
    world.clock.ms += 1
    data = world.blobs._blobs.pop(old)

    def list_(prefix=""):
        if prefix == old and not removed:
            world.blobs._blobs[old] = data
            held.close()
            c.collect()
            assert old not in world.blobs._blobs
            removed.append(old)
        return listed(prefix)

    world.blobs.list = list_
    assert "pinned-missing" not in world.kinds()
    assert removed


# --- What the state says of a part ---


@pytest.mark.parametrize(
    ("field", "change", "kind"),
    [
        ("negative_rows", lambda part: 1, "part-diffs"),
        ("diff_sum", lambda part: part.diff_sum + 1, "part-diffs"),
        ("key_lower", lambda part: part.key_upper, "part-unreadable"),
        ("key_upper", lambda part: part.key_lower, "part-keys"),
        ("time_upper", lambda part: 5, "part-times"),
        ("time_lower", lambda part: part.time_lower - 1, "part-times"),
        ("time_counts", lambda part: (), "part-times"),
        ("time_counts", lambda part: ((2, part.rows - 1),), "part-times"),
        ("time_counts", lambda part: ((2, part.rows + 1),), "part-times"),
        ("time_counts", lambda part: ((1, part.rows),), "part-times"),
        ("time_counts", lambda part: ((2, part.rows - 1), (3, 1)), "part-times"),
        ("stats", lambda part: {0: replace(part.stats[0], null_count=1)}, "part-stats"),
        ("stats", lambda part: {0: replace(part.stats[0], lower=part.stats[0].upper)}, "part-stats"),
        ("stats", lambda part: {0: replace(part.stats[0], upper=part.stats[0].lower)}, "part-stats"),
        ("stats", lambda part: {0: replace(part.stats[0], upper=None, lower=None)}, "part-stats"),
        ("stats", lambda part: {9: part.stats[0]}, "part-stats"),
        ("checksum", lambda part: "0" * 32, "part-damaged"),
    ],
)
def test_a_description_that_is_not_true_is_found(world, c, field, change, kind):
    world.describe(c, -1, **{field: change(part_of(c, -1))})
    assert kind in world.kinds()
    assert kind == "part-damaged" or world.kinds(quick=True) <= {"run-unsorted", "batch-times"}


def test_a_wrong_number_of_rows_is_found(world, c):
    world.describe(c, rows=part_of(c).rows + 1)
    assert "part-unreadable" in world.kinds()


def test_later_times_that_are_counted_too_early_are_found(world):
    c = world.lake().create("c", table(1).schema, key=["id"])
    c.append(table(*range(10), _time=list(range(10))))
    assert healthy(world)
    # Rows up to 5 would be counted as three.
    world.describe(c, time_counts=((0, 1), (1, 2), (6, 7)))
    assert world.kinds() == {"part-times"}


def test_times_outside_of_the_batch_are_found(world, c):
    world.describe(c, rewrite=77)
    assert "batch-times" in world.kinds()


def test_times_before_the_batch_are_found(world, c):
    world.describe(c, -1, time_lower=0)
    assert world.kinds(quick=True) == {"batch-times"}


def test_times_that_a_fold_has_advanced_past_the_batch_are_no_damage(world, c):
    c.advance_since(2)

    def folded(state):
        state = with_part(state, 0, rewrite=2)
        first = next(iter(state.spine))
        bounds = replace(first.batch.bounds, since=Frontier.of(2))
        batches = tuple(
            replace(b, bounds=replace(b.bounds, since=Frontier.of(2))) for b in state.spine.batches
        )
        members = [replace(first, batch=replace(first.batch, bounds=bounds)), *list(state.spine)[1:]]
        spine = state.spine
        return replace(state, spine=Spine.of(spine.next_id, spine.spent, members, batches, spine.merges))

    world.rewrite(c, folded)
    assert c.since == Frontier.of(2) and healthy(world)


def rows_in(world, c, change):
    """Put other rows into the one part of a collection, with a description that is true but for the order."""
    found = c.updates(0, c.upper).read_all().combine_chunks().to_batches()[0]
    old = part_of(c)
    stats = StatsSettings.of(SMALL)
    writer = PartWriter(
        inside.shard(c).known().schema, c.domain, 0, row_group_rows=SMALL.row_group_rows, stats=stats
    )
    writer.write(change(found))
    part, data = writer.finish(old.name)
    world.overwrite(old.name, lambda _: data)
    kept = ("key_lower", "key_upper", "stats")
    fields = {name: getattr(part, name) for name in part.__dataclass_fields__ if name not in kept}
    world.describe(c, **fields)


def one_part():
    world = World(replace(SMALL, part_target_bytes=1 << 20))
    c = world.lake().create("c", table(1).schema, key=["id"])
    c.append(table(*range(100)))
    return world, c


@pytest.mark.parametrize(
    ("order", "kind"),
    [
        ([*range(50), 51, 50, *range(52, 100)], "part-unsorted"),
        ([*range(32, 64), *range(32), *range(64, 100)], "part-unsorted"),
        ([*range(50), 50, *range(50, 100)], "part-unconsolidated"),
        ([*range(32), 31, *range(32, 100)], "part-unconsolidated"),  # from one row group to the next
    ],
)
def test_rows_out_of_order_or_twice_are_found(order, kind):
    world, c = one_part()
    rows_in(world, c, lambda rows: rows.take(order))
    assert kind in world.kinds()


def test_a_diff_of_zero_is_found():
    world, c = one_part()

    def zeroed(rows):
        diffs = pa.array([0, *rows.column("_diff").to_pylist()[1:]], pa.int64())
        return rows.set_column(rows.num_columns - 1, rows.schema.field("_diff"), diffs)

    rows_in(world, c, zeroed)
    assert world.kinds() == {"part-unconsolidated"}


def test_bytes_that_are_no_part_are_found(world, c):
    data = b"PAR1 and not a part" * 10
    world.overwrite(part_of(c).name, lambda _: data)
    world.describe(c, size_bytes=len(data), checksum=checksum(data))
    assert "part-unreadable" in world.kinds()


def test_an_inline_part_is_checked_too():
    world = World(replace(SMALL, inline_part_bytes=4096))
    c = world.lake().create("c", table(1).schema, key=["id"])
    c.append(table(1, 2, 3))
    assert part_of(c).inline is not None and healthy(world)
    world.describe(c, diff_sum=4)
    assert world.kinds() == world.kinds(quick=True) == {"part-diffs"}
    world.describe(c, inline=bytes(flip(bytearray(part_of(c).inline))))
    assert "part-unreadable" in world.kinds()


def test_the_key_bounds_of_an_inline_part_are_checked():
    world = World(replace(SMALL, inline_part_bytes=4096))
    c = world.lake().create("c", table(1).schema, key=["id"])
    c.append(table(1, 2, 3))
    world.describe(c, key_lower=part_of(c).key_upper)
    assert world.kinds() == {"part-keys"}


def test_parts_of_a_run_that_overlap_are_found(world, c):
    c.merge()
    parts = [part for member in c.state().spine for part in member.batch.parts()]
    assert len(parts) > 2

    def swapped(state):
        members = []
        for member in state.spine:
            runs = tuple(replace(run, parts=tuple(reversed(run.parts))) for run in member.batch.runs)
            members.append(replace(member, batch=replace(member.batch, runs=runs)))
        spine = state.spine
        return replace(
            state, spine=type(spine).of(spine.next_id, spine.spent, members, spine.batches, spine.merges)
        )

    world.rewrite(c, swapped)
    assert world.kinds() == world.kinds(quick=True) == {"run-unsorted"}


def test_an_unknown_schema_is_found(world, c):
    # A whole state with such a part is refused when it is read; a step is not.
    part = part_of(c)
    assert part.schema_id == 0
    state = c.state()
    member = next(iter(state.spine))
    run = replace(member.batch.runs[0], parts=(replace(part, schema_id=5), *member.batch.runs[0].parts[1:]))
    changed = replace(member, batch=replace(member.batch, runs=(run, *member.batch.runs[1:])))
    edit = SpineEdit(state.spine.next_id, state.spine.spent, (member.id,), (changed,))
    commit(world, c, Edits(spine=edit))
    assert world.kinds() == {"rule-broken"}
    assert any("schema-registered" in f.message for f in world.fsck().findings if f.kind == "mendable")


def commit(world, c, edits, **fields):
    """Write an entry that was not checked."""
    state = c.state()
    base = edits.rollup or state.rollup
    delta = Delta(state.shard_id, state.seqno + 1, state.committed_ms, "0" * 32, base, edits)
    assert world.log.compare_and_set(c.id, state.seqno, codec.encode_delta(replace(delta, **fields)))


# --- The log and its rollups ---


def test_a_missing_log_entry_is_found(world, c):
    del world.entries(c)[2]
    assert world.kinds() == {"log-gap", "log-unreadable"}


def test_a_missing_log_entry_before_a_rollup_hides_nothing_behind_it(world, c):
    inside.write_rollup(c)
    c.append(table(1))
    del world.entries(c)[2]
    world.overwrite(part_of(c, -1).name, flip)
    assert world.kinds() == {"log-gap", "part-damaged"}


def test_a_log_entry_that_is_damaged_in_its_file_is_found(tmp_path):
    lake = tidelake.open(tmp_path / "lake", config=SMALL)
    c = lake.create("c", table(1).schema, key=["id"])
    for n in range(3):
        c.append(table(n))
    shard = c.id
    lake.close()
    path = Path(tmp_path / "lake" / "log" / shard / "log")
    content = bytearray(path.read_bytes())
    content[content.rindex(b"tidelake:") + 40] ^= 1
    path.write_bytes(content)
    with tidelake.open(tmp_path / "lake", create=False) as lake:
        assert {f.kind for f in lake.fsck().left} == {"log-damaged", "log-unreadable"}


def test_a_damaged_log_entry_is_found(world, c):
    entries = world.entries(c)
    entries[2] = replace(entries[2], data=bytes(flip(bytearray(entries[2].data))))
    assert world.kinds() == {"log-damaged", "log-unreadable"}


def test_a_damaged_first_entry_is_found_and_a_rollup_leads_on(world, c):
    inside.write_rollup(c)
    entries = world.entries(c)
    entries[0] = replace(entries[0], data=bytes(flip(bytearray(entries[0].data))))
    assert world.kinds() == {"log-damaged"}


def test_an_entry_that_does_not_fit_is_found(world, c):
    entries = world.entries(c)
    entries[2] = replace(entries[2], data=entries[3].data)
    assert world.kinds() == {"log-misfit", "log-unreadable"}


def test_a_first_entry_of_another_shard_is_found(world, c):
    d = world.filled("d", lake=world.lake(), appends=0)
    world.entries(d)[0] = world.entries(c)[0]
    assert world.kinds() == {"log-misfit", "log-unreadable"}


def test_a_step_that_breaks_a_rule_is_found(world, c):
    commit(world, c, Edits(retained=Move(c.state().retained, Frontier.of(2))))
    assert world.kinds() == set()
    commit(world, c, Edits(since=Move(c.since, Frontier.of(3))))
    assert world.kinds() == {"rule-broken"}


def test_a_step_that_goes_back_is_found(world, c):
    commit(world, c, Edits(sweep=Sweep(2)))
    assert world.kinds() == set()
    commit(world, c, Edits(sweep=Sweep(1)))
    assert world.kinds() == {"rule-broken"}


def test_a_whole_state_that_breaks_a_rule_is_found(world, c):
    spine = c.state().spine
    gone = spine.batches[-1]
    edit = SpineEdit(
        spine.next_id, spine.spent, batches_gone=(gone.id,), batches=(replace(gone, rows=gone.rows + 1),)
    )
    commit(world, c, Edits(spine=edit))
    step, state = world.fsck().left
    assert {step.kind, state.kind} == {"rule-broken"}
    assert "levels-say-members" in step.message and "its members have" in state.message


def test_a_newer_format_is_told(world, c):
    entries = world.entries(c)
    kind, _, rest = entries[2].data.split(b" ", 2)
    data = b"%s %d %s" % (kind, NEWEST + 1, rest)
    entries[2] = replace(entries[2], data=data)
    assert world.kinds() == {"unknown-format"}


def rollup_name(c):
    rollup = c.state().rollup
    return names.rollup(c.id, rollup.seqno, rollup.id)


@pytest.fixture
def rolled(world, c):
    """With a rollup, entries behind it, and the whole log before it."""
    inside.write_rollup(c)
    c.append(table(1))
    return c


def other_state(world, c):
    return codec.encode_state(replace(world.state(c.id), seqno=c.state().rollup.seqno))


@pytest.mark.promise("A lost or damaged rollup is made again from the log", rule="`ShardCheck`")
@pytest.mark.parametrize("kind", ["rollup-missing", "rollup-damaged", "rollup-differs", "another seqno"])
def test_a_bad_rollup_is_found_and_made_again_from_the_log(world, rolled, kind):
    name = rollup_name(rolled)
    match kind:
        case "rollup-missing":
            world.blobs.delete(name)
        case "rollup-damaged":
            world.overwrite(name, flip)
        case "rollup-differs":
            state = codec.decode_state(world.blobs.get(name), name)
            data = codec.encode_state(replace(state, written=replace(state.written, merged_rows=7)))
            world.overwrite(name, lambda _: data)
        case _:
            world.overwrite(name, lambda _: codec.encode_state(world.state(rolled.id)))
            kind = "rollup-differs"
    before = rolled.state()
    assert world.kinds() == {kind}
    assert world.fsck(repair=True).clean
    assert world.fsck().findings == ()
    # A process that opens it now sees the same data.
    again = world.lake().collection("c")
    assert again.state().spine == before.spine and again.state().rollup.seqno > before.rollup.seqno
    assert again.snapshot().read_all() == rolled.snapshot().read_all()


def test_a_bad_rollup_without_the_log_before_it_is_told_and_left(world, rolled):
    world.log.truncate(rolled.id, rolled.state().rollup.seqno)
    assert world.fsck().findings == ()
    world.overwrite(rollup_name(rolled), flip)
    report = world.fsck(repair=True)
    assert {f.kind for f in report.left} == {"rollup-damaged", "log-unreadable"}


def test_a_log_that_has_lost_its_newest_entries_is_found(world, rolled):
    del world.entries(rolled)[4:]
    assert world.kinds() == {"log-behind"}


def test_a_rollup_that_knows_a_later_state_than_the_log_is_found(world, c):
    inside.write_rollup(c)
    del world.entries(c)[3:]
    assert world.kinds() == {"log-behind"}


def test_a_rollup_of_another_state_is_no_start(world, rolled):
    world.log.truncate(rolled.id, rolled.state().rollup.seqno)
    data = codec.encode_state(world.state(rolled.id))
    world.overwrite(rollup_name(rolled), lambda _: data)
    assert world.kinds() == {"rollup-differs", "log-unreadable"}


def test_parts_that_a_lost_entry_named_are_told_and_kept(world, c):
    c.append(table(1))
    name = part_of(c, -1).name
    del world.entries(c)[3:]
    world.blobs.put(names.rollup(c.id, 0, "ab" * 16), b"who knows")
    world.clock.ms += 2 * DAY_MS
    kept = set(world.blobs._blobs)
    report = world.fsck(repair=True)
    assert ("log-behind", name) in {(f.kind, f.object) for f in report.left}
    assert "leaked-rollup" in {f.kind for f in report.left}
    assert kept == set(world.blobs._blobs)


def test_a_truncated_log_is_no_damage(world, rolled):
    inside.write_rollup(rolled)
    rolled.append(table(5))
    world.log.truncate(rolled.id, rolled.state().rollup.seqno)
    assert healthy(world)


# --- What nothing names ---


def leak(world, c, seqno=0):
    name = names.part(c.id, seqno, "ab" * 16)
    world.blobs.put(name, b"leaked")
    return name


@pytest.mark.promise(
    "An upload is removed only when it can no longer be appended", rule="`state.collection.raise_floor`"
)
def test_a_leaked_upload_is_told_once_it_is_old_and_removed_once_it_is_given_up(world, c):
    name = leak(world, c)
    assert world.fsck().findings == ()
    world.clock.ms += DAY_MS + 1
    assert world.kinds() == world.kinds(quick=True) == {"leaked-part"}
    # Its uploader may still come: a repair notes that it is given up, and says that it is not done.
    assert [(f.kind, f.repaired) for f in world.fsck(repair=True).findings] == [("leaked-part", False)]
    assert name in world.blobs._blobs
    world.clock.ms += DAY_MS
    assert [(f.kind, f.repaired) for f in world.fsck(repair=True).findings] == [("leaked-part", True)]
    assert name not in world.blobs._blobs
    assert world.fsck().findings == ()


def test_what_a_collector_removed_since_the_listing_is_no_leak(world, c):
    listed = [BlobInfo(names.part(c.id, 0, "ab" * 16), 7, 0)]
    assert leftovers(c.state(), listed, world.blobs, world.clock.ms) == []
    world.blobs.put(listed[0].name, b"leaked")
    assert len(leftovers(c.state(), listed, world.blobs, world.clock.ms)) == 1


def test_an_upload_that_comes_after_it_was_given_up_is_removed_at_once(world, c):
    commit(world, c, Edits(sweep=Sweep(2)))
    late, allowed = leak(world, c, 1), names.part(c.id, 2, "cd" * 16)
    world.blobs.put(allowed, b"under way")
    assert [(f.kind, f.object) for f in world.fsck(repair=True).findings] == [("leaked-part", late)]
    assert late not in world.blobs._blobs and allowed in world.blobs._blobs
    assert world.fsck().findings == ()


def test_a_leaked_rollup_is_told_and_removed(world, rolled):
    name = names.rollup(rolled.id, 1, "ab" * 16)
    world.blobs.put(name, b"late")
    newer = names.rollup(rolled.id, rolled.state().seqno, "cd" * 16)
    world.blobs.put(newer, codec.encode_state(rolled.state()))
    [found] = world.fsck().left
    assert (found.kind, found.object) == ("leaked-rollup", name)
    assert world.fsck(repair=True).clean and world.fsck().findings == ()
    assert newer in world.blobs._blobs
    world.clock.ms += DAY_MS + 1
    assert world.kinds() == {"leaked-rollup"}


def test_an_object_of_a_strange_name_is_told_and_kept(world, c):
    world.blobs.put(f"{c.id}/notes", b"mine")
    assert [f.kind for f in world.fsck(repair=True).left] == ["unknown-object"]
    assert f"{c.id}/notes" in world.blobs._blobs


def test_old_garbage_is_a_note(world, c):
    c.merge()
    assert c.state().garbage
    assert world.fsck().findings == ()
    world.clock.ms += 601_000
    report = world.fsck()
    assert [f.kind for f in report.findings] == ["old-garbage"] and report.clean


def test_objects_of_no_shard_are_told_once_they_are_old_and_removed(world, c):
    name = names.part("ab" * 16, 0, "cd" * 16)
    world.blobs.put(name, b"half a backup")
    assert world.fsck().findings == ()
    world.clock.ms += DAY_MS + 1
    assert world.kinds() == {"unknown-shard"}
    assert world.fsck(repair=True).clean and name not in world.blobs._blobs
    assert world.fsck().findings == ()


def test_objects_of_no_shard_stay_while_a_log_is_missing(world, c):
    name = names.part("ab" * 16, 0, "cd" * 16)
    world.blobs.put(name, b"perhaps all that is left")
    world.log.delete(c.id)
    world.clock.ms += DAY_MS + 1
    assert {f.kind for f in world.fsck(repair=True).left} == {"log-missing", "unknown-shard"}
    assert name in world.blobs._blobs


# --- The catalog ---


def test_a_name_without_a_shard_is_found(world, c):
    parts = set(world.blobs._blobs)
    world.log.delete(c.id)
    world.clock.ms += 3 * DAY_MS
    assert [f.kind for f in world.fsck(repair=True).left] == ["log-missing"]
    assert parts == set(world.blobs._blobs)
    with pytest.raises(CorruptionError, match="collection 'c' has lost its log"):
        world.lake().collection("c")
    with pytest.raises(CorruptionError, match="collection 'c' has lost its log"):
        world.lake().create("c", SCHEMA, key=["id"])


@pytest.mark.promise(
    "A lost catalog is not replaced by an empty one, and a lost log is reported as damage",
    rule="`Catalog`, `Lake`",
    also=["::test_a_name_without_a_shard_is_found"],
)
@pytest.mark.promise(
    "A repair neither removes nor invents data, also where the catalog or a log was lost",
    rule="`LakeCheck.all`, `ShardCheck`",
    also=[
        "::test_parts_that_a_lost_entry_named_are_told_and_kept",
        "::test_objects_of_no_shard_stay_while_a_log_is_missing",
    ],
)
def test_a_missing_catalog_is_found_and_no_data_is_removed(world, c):
    kept = set(world.blobs._blobs)
    world.log.delete("catalog")
    world.clock.ms += 3 * DAY_MS
    kinds = {f.kind for f in world.fsck(repair=True).left}
    assert {"catalog-missing", "unnamed-shard"} <= kinds
    assert [f.kind for f in world.fsck(["c"], repair=True).left] == ["catalog-missing"]
    assert kept == set(world.blobs._blobs) and c.id in world.log._entries
    # No call makes a new one, in which there would be no name at all.
    lake = world.lake()
    for call in (lake.list, lambda: lake.create("d", SCHEMA, key=["id"]), lambda: lake.collection("c")):
        with pytest.raises(
            CorruptionError, match="'catalog' is damaged: it is missing, and 1 shards have lost"
        ):
            call()
    assert set(world.log._entries) == {c.id} and kept == set(world.blobs._blobs)


@pytest.mark.promise(
    "A check of named collections, too, reports a catalog that cannot be read",
    rule="`LakeCheck.some`",
    also=[
        "::test_a_damaged_log_of_the_catalog_is_found",
        "::test_a_missing_catalog_is_found_and_no_data_is_removed",
        "::test_a_damaged_rollup_of_the_catalog_is_made_again",
    ],
)
def test_a_damaged_catalog_is_found(world, c):
    [part] = [name for name in world.blobs._blobs if name.startswith("catalog/")]
    world.overwrite(part, flip)
    assert {"part-damaged", "catalog-unreadable"} <= world.kinds()
    assert {"part-damaged", "catalog-unreadable"} <= {f.kind for f in world.fsck(["c"]).left}


def test_a_damaged_log_of_the_catalog_is_found(world, c):
    entries = world.log._entries["catalog"]
    entries[1] = replace(entries[1], data=b"nothing")
    assert {"log-damaged", "catalog-unreadable"} <= world.kinds()
    assert {"log-damaged", "catalog-unreadable"} <= {f.kind for f in world.fsck(["c"]).left}


@pytest.mark.parametrize("names", [None, ["c"]], ids=["all", "one"])
def test_a_damaged_rollup_of_the_catalog_is_made_again(world, c, names):
    lake = world.lake()
    inside.shard(inside.catalog(lake)).write_rollup()
    [name] = world.blobs.list("catalog/rollups/")
    world.overwrite(name.name, flip)
    assert {f.kind for f in world.fsck(names).left} == {"rollup-damaged", "catalog-unreadable"}
    assert "catalog-unreadable" not in {f.kind for f in world.fsck(names, repair=True).left}
    assert world.fsck().findings == () and world.lake().list() == ["c"]


def test_an_unnamed_empty_shard_is_told_once_it_is_old_and_removed(world, c):
    schema = inside.shard(c).known().schema
    state = commands.initial("ef" * 16, TimeDomain("counter"), schema, world.clock.ms)
    assert world.log.compare_and_set("ef" * 16, None, codec.encode_state(state))
    assert world.fsck().findings == ()
    world.clock.ms += DAY_MS + 1
    assert world.kinds() == {"unfinished-shard"}
    assert world.fsck(repair=True).clean and world.fsck().findings == ()
    assert "ef" * 16 not in world.log._entries


def test_an_unnamed_shard_that_cannot_be_read_is_told_and_kept(world, c):
    assert world.log.compare_and_set("ef" * 16, None, b"nonsense")
    world.clock.ms += DAY_MS + 1
    assert {f.kind for f in world.fsck(repair=True).left} == {"unnamed-shard"}
    assert "ef" * 16 in world.log._entries


@pytest.mark.parametrize("named", [True, False])
def test_a_drop_that_stopped_half_way_is_told_and_finished(world, c, named):
    lake = world.lake()
    inside.run(c, drop_shard)
    if not named:
        listing = inside.catalog(lake).read()
        assert inside.catalog(lake).set(listing, "c", None)
    assert "half-dropped" not in world.kinds()
    leak(world, c)
    world.clock.ms += DAY_MS + 1
    assert world.kinds() == {"half-dropped"}
    report = world.fsck(repair=True)
    assert report.clean and any(f.repaired for f in report.findings)
    assert world.fsck().findings == ()
    assert not [name for name in world.blobs._blobs if name.startswith(c.id)]
    assert c.id not in world.log._entries and world.lake().list() == []


def test_a_tombstone_whose_rollup_went_before_its_log_is_told_and_finished(world, rolled):
    inside.run(rolled, drop_shard)
    listing = inside.catalog(world.lake()).read()
    assert inside.catalog(world.lake()).set(listing, "c", None)
    world.blobs.delete(rollup_name(rolled))
    assert world.fsck().findings == ()
    world.clock.ms += DAY_MS + 1
    assert world.kinds() == {"half-dropped"}
    assert world.fsck(repair=True).clean and world.fsck().findings == ()
    assert rolled.id not in world.log._entries


def test_a_collection_that_is_dropped_before_its_turn_is_not_missing(world, c):
    world.filled("d")

    def meanwhile(name, done, total):
        if name == "c" and "d" in world.lake().list():
            world.lake().drop("d")

    report = world.lake().fsck(progress=meanwhile)
    assert (report.findings, report.collections) == ((), 1)
    assert world.lake().list() == ["c"]


def test_a_shard_that_gets_its_name_during_the_check_is_not_unnamed(world, c):
    named = world.filled("d").id
    catalog = inside.catalog(world.lake())
    assert catalog.set(catalog.read(), "d", None)
    world.clock.ms += DAY_MS + 1
    assert world.kinds() == {"unnamed-shard"}

    def meanwhile(name, done, total):
        if name == "c" and "d" not in world.lake().list():
            assert catalog.set(catalog.read(), "d", named)

    assert world.lake().fsck(progress=meanwhile).findings == ()
    assert world.lake().list() == ["c", "d"]


def test_without_the_flag_nothing_is_repaired(world, rolled):
    leak(world, rolled)
    world.blobs.put(names.rollup(rolled.id, 1, "ab" * 16), b"late")
    world.overwrite(rollup_name(rolled), flip)
    world.clock.ms += 3 * DAY_MS
    before = dict(world.blobs._blobs), {key: list(found) for key, found in world.log._entries.items()}
    assert world.kinds() == {"leaked-part", "leaked-rollup", "rollup-damaged"}
    assert (world.blobs._blobs, world.log._entries) == before


def test_collection_keeps_the_objects_of_a_named_shard_whose_log_was_lost(world, c):
    kept = {name for name in world.blobs._blobs if name.startswith(c.id)}
    world.log.delete(c.id)
    world.clock.ms += 3 * DAY_MS
    world.lake().collect()
    assert kept and kept <= set(world.blobs._blobs)


@pytest.mark.parametrize("away", ["c", "catalog", "unnamed"])
def test_a_log_that_the_store_refuses_is_told_and_the_others_are_looked_at(world, c, away):
    """Such as a folder where its file should be: no reason to say nothing of the other collections."""
    other = world.filled("other")
    key = {"c": c.id, "catalog": "catalog", "unnamed": "ab" * 16}[away]
    if away == "unnamed":
        assert world.log.compare_and_set(key, None, b"")
    lake = world.lake()
    lake.list()

    def refused(whole):
        def call(asked, *args):
            if asked == key:
                raise StoreUnavailable(f"cannot open key {key!r}: it is a folder", False)
            return whole(asked, *args)

        return call

    world.log.scan, world.log.head = refused(world.log.scan), refused(world.log.head)
    world.overwrite(next(iter(other.state().spine)).batch.runs[0].parts[0].name, flip)
    before = sorted(world.blobs._blobs)
    world.clock.ms += DAY_MS + 1
    report = world.lake().fsck(repair=True)
    told = {(one.kind, one.object) for one in report.left}
    assert ("unnamed-shard" if away == "unnamed" else "unavailable", key) in told
    # Without the catalog the names of the others are unknown; they are still there.
    assert away == "catalog" or "part-damaged" in {one.kind for one in report.left}
    assert sorted(world.blobs._blobs) == before


@pytest.mark.promise("A check of named collections includes their groups", rule="`LakeCheck.some`")
def test_a_check_of_some_collections_looks_at_their_group(world, c):
    lake = world.lake()
    world.filled("d", lake=lake)
    world.filled("alone", lake=lake)
    lake.write({"c": table(7), "d": table(7)}, time=c.upper.elements[0] + 1)
    group = lake.collection("c").state().group
    assert world.fsck(["c", "d"]).clean
    entries = world.log._entries[group]
    data = bytearray(entries[-1].data)
    data[-30] ^= 1
    entries[-1] = replace(entries[-1], data=bytes(data))
    report = world.fsck(["d"])
    assert {one.collection for one in report.left} == {f"group {group}"}
    assert world.fsck(["alone"]).clean


@pytest.mark.promise(
    "A row of the catalog that leads nowhere is told, and the other collections go on",
    rule="`lake/admin/fsck.py`, `model/names.py`",
)
@pytest.mark.parametrize("shard", ["../../x", "", "x" * 300, "A\0b", "é", "no-such-shard", "a/b"])
def test_a_row_of_the_catalog_that_leads_nowhere_is_told_and_the_others_go_on(shard):
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as lake:
        good = lake.create("good", {"id": "int64"}, key=["id"])
        good.append(pa.table({"id": [1]}))
        inside.catalog(lake).set(inside.catalog(lake).look(["bad"]), "bad", shard)
        told = {}
        assert [one.name for one in lake.collections(told.__setitem__)] == ["good"]
        assert set(told) == {"bad"}
        for report in (lake.fsck(), lake.fsck(["bad", "good"]), lake.fsck(repair=True)):
            assert {one.collection for one in report.left} == {"bad"}
            assert report.rows == 1
        assert lake["good"].to_arrow().num_rows == 1

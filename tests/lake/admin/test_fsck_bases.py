"""A check recomputes bases; a repair forgets those that differ or are damaged, and loses nothing by it."""

from dataclasses import replace

import pytest
from upserted import check, contents, expected, tiny_world, upserted

import inside
from clocks import SetClock
from tidelake.env import Env
from tidelake.errors import InternalError
from tidelake.shard.runs.upload import write_rows
from tidelake.state.core.commands import Commit
from tidelake.state.core.edits import Edits


@pytest.fixture
def world():
    return tiny_world()


@pytest.fixture
def c(world):
    return upserted(world.lake())


def replaced(world, c, number, rows):
    """Put rows whose hash is not told in the place of those of a base."""
    run = write_rows(inside.shard(c).version().spec, world.blobs, Env(clock=SetClock()), rows)
    run = replace(
        run, parts=tuple(replace(part, checksum=part.checksum.partition("+")[0]) for part in run.parts)
    )
    base = [*c.state().bases][number]
    for held in (None, replace(base, runs=(run,), added=c.state().seqno + 2)):
        inside.shard(c).run(lambda _state, _ms, held=held: Commit(Edits(bases={base.hi: held}), None))


def at_base(c, number):
    """What a base has to be, with the time of its rows."""
    base = [*c.state().bases][number]
    return base, c.snapshot(base.time).read_all()


def test_sound_bases_are_no_finding_and_are_read(world, c):
    report = world.fsck()
    assert report.findings == ()
    state = c.state()
    assert report.parts == len([*state.parts()])
    assert world.fsck(quick=True).findings == ()


def swapped(rows):
    """Two rows have each other's values: no sum of diffs tells."""
    values = rows.column("v").to_pylist()
    values[3], values[4] = values[4], values[3]
    return rows.set_column(rows.schema.get_field_index("v"), rows.schema.field("v"), [values])


@pytest.mark.parametrize("number", [0, -1])
def test_a_base_with_swapped_rows_is_refused_at_its_commit(world, c, number):
    base, rows = at_base(c, number)
    sound, wrong = (
        write_rows(inside.shard(c).version().spec, world.blobs, Env(clock=SetClock()), one)
        for one in (rows, swapped(rows))
    )
    inside.shard(c).run(lambda _state, _ms: Commit(Edits(bases={base.hi: None}), None))

    def put_in(run):
        again = replace(base, runs=(run,), added=c.state().seqno + 1)
        inside.shard(c).run(lambda _state, _ms: Commit(Edits(bases={base.hi: again}), None))

    with pytest.raises(InternalError, match="base-keeps-rows"):
        put_in(wrong)
    assert c.state().bases.get(base.hi) is None
    put_in(sound)
    check(c)


@pytest.mark.promise(
    "The rows of a base are those of the base before and of the updates between: a deep check compares them",
    rule="`shard/care/basechecks.py`",
    also=["::test_only_the_bases_that_differ_are_told_not_those_made_of_sound_ones"],
)
@pytest.mark.parametrize("number", [0, -1])
def test_a_base_that_differs_is_found_and_forgotten(world, c, number):
    base, rows = at_base(c, number)
    replaced(world, c, number, swapped(rows))
    again = world.lake().collection("c")
    assert contents(again, base.time) != expected(base.time)
    [found] = world.fsck().left
    assert (found.kind, found.object) == ("base-differs", f"{c.id} base {base.hi}")
    assert "4 rows differ" in found.message and "--repair" in found.message
    assert world.fsck(quick=True).clean
    assert contents(world.lake().collection("c"), base.time) != expected(base.time), "a check repairs nothing"
    mended = world.fsck(repair=True)
    assert mended.clean and [one.repaired for one in mended.findings if one.kind == "base-differs"] == [True]
    again = world.lake().collection("c")
    assert again.state().bases.get(base.hi) is None
    check(again)
    assert again.maintain().complete
    assert len(again.state().bases) >= 1
    check(again)
    assert world.fsck().clean


def test_a_base_of_an_older_time_is_found(world, c):
    base, _ = at_base(c, 1)
    older = c.snapshot(base.time - 1).read_all()
    times = older.schema.get_field_index("_time")
    older = older.set_column(times, older.schema.field(times), [[base.time] * older.num_rows])
    replaced(world, c, 1, older)
    assert world.kinds() == {"base-differs"}


def test_only_the_bases_that_differ_are_told_not_those_made_of_sound_ones(world, c):
    first, rows = at_base(c, 0)
    times = rows.schema.get_field_index("v")
    replaced(world, c, 0, rows.set_column(times, rows.schema.field(times), [[7] * rows.num_rows]))
    assert len(c.state().bases) > 1
    assert [one.object for one in world.fsck().left] == [f"{c.id} base {first.hi}"]


@pytest.mark.promise(
    "A base can be forgotten without loss: a repair does that where it differs or lost a part, and "
    "maintenance makes another",
    rule="`basing.forget_bases`",
    also=["::test_where_a_part_of_history_is_gone_too_the_rest_can_be_read"],
)
@pytest.mark.parametrize(("damage", "quick"), [("gone", True), ("damaged", False)])
def test_a_base_that_lost_a_part_is_forgotten_and_all_can_be_read(world, c, damage, quick):
    base = next(iter(c.state().bases))
    [part] = base.parts()
    if damage == "gone":
        world.blobs.delete(part.name)
    else:
        world.overwrite(part.name, lambda data: data[:-5])
    report = world.fsck(quick=quick)
    [found] = report.left
    assert found.object == part.name and found.kind in ("part-missing", "part-damaged", "part-size")
    assert [one.message for one in report.findings if one.kind == "mendable"] == [
        "--repair would forget 1 bases; nothing is lost, maintenance makes new ones"
    ]
    mended = world.fsck(quick=quick, repair=True)
    assert mended.clean and "set-aside" not in {one.kind for one in mended.findings}
    again = world.lake().collection("c")
    assert again.state().bases.get(base.hi) is None and again.state().spine.slices
    check(again)
    assert again.maintain().complete
    check(again)
    assert world.fsck().clean


def test_where_a_part_of_history_is_gone_too_the_rest_can_be_read(world, c):
    base = next(iter(c.state().bases))
    [part] = base.parts()
    lost = next(iter(c.state().spine)).batch.runs[0].parts[0]
    for name in (part.name, lost.name):
        world.blobs.delete(name)
    mended = world.fsck(repair=True)
    assert mended.clean
    assert [one.object for one in mended.findings if one.kind == "set-aside"] == [lost.name]
    again = world.lake().collection("c")
    assert again.snapshot().read_all().num_rows
    assert again.maintain().complete and world.fsck().clean

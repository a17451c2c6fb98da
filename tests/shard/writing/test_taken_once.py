"""An upload is taken once, in whatever form it is offered, and whatever became of its rows."""

from dataclasses import replace

import pytest
from collecting import CONFIG, GARBAGE_S, UPLOAD_S, World
from shards import Place
from test_builder import at, many

import inside
from tables import SCHEMA, ids, rows
from tidelake.errors import AlreadyTaken, InternalError, TidelakeWarning, UploadExpired, UsageError
from tidelake.model import names
from tidelake.model.frontier import Frontier

INLINE = replace(CONFIG, inline_part_bytes=8192)
FORMS = {"inline": INLINE, "stored": CONFIG}


def uploaded(c, table):
    """As a worker answers that uploads a table."""
    with c.builder(0) as builder:
        builder.add(table)
        return builder.finish(Frontier.of(10**15)).to_bytes()


def append_uploaded(c, data):
    upper = c.state().upper.elements[0]
    return c.distributed.append_uploaded([data], lower=upper, upper=upper + 1, advance=True)


def append_by_writer(c, data):
    upper, writer = c.state().upper.elements[0], c.writer("w")
    return writer.append_uploaded([data], lower=upper, upper=upper + 1, advance=True)


def stage(c, data):
    return c.distributed.stage_uploaded([data])


def stage_by_writer(c, data):
    return c.writer("w").stage_uploaded([data])


WAYS = {way.__name__: way for way in (append_uploaded, append_by_writer, stage, stage_by_writer)}


def merge_and_collect(world):
    """Write the rows again, until nothing is left of the parts that they came in."""
    world.c.append(rows(100))
    world.c.merge()
    world.later(2 * GARBAGE_S)
    world.c.collect()
    state = world.c.state()
    assert not any(names.uploaded_at(name) for name in (*state.garbage, *state.doomed))
    assert state.spine.totals.runs == 1


AFTER = {"at once": lambda world: None, "merged and collected": merge_and_collect}


def world_of(form):
    world = World(config=FORMS[form])
    # Times that stay open long enough to be staged again.
    world.c.append(rows(0))
    return world


def upload(world, first=500):
    """What a worker uploaded: rows at a time that is open as yet."""
    time = world.c.state().upper.elements[0]
    return uploaded(world.c, many(first, time=time, count=20))


@pytest.mark.promise(
    "An upload is taken once, stored or inline, by the collection that it was made for: offering it "
    "again, as an append or a stage, raises `AlreadyTaken`, which says where it is, also after it "
    "was merged, collected or written again, until it is refused for its age",
    rule="`state/core/partnames.py`, `part-named-once`, `uploads-taken-once`, `uploads-young`",
    also=[
        "::test_an_upload_that_was_staged_is_not_taken_again",
        "::test_a_repeated_upload_does_not_lock_the_collection_up",
        "::test_an_inline_upload_for_which_there_was_no_room_is_known_by_its_name",
        "::test_a_fork_takes_no_upload_of_its_origin",
        "shard/test_outcomes.py::test_uploads_given_twice_are_refused",
        "shard/writing/test_batches.py::test_uploads_of_another_shard_or_of_nothing",
    ],
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("again", ["append_uploaded", "append_by_writer"])
@pytest.mark.parametrize("first", ["append_uploaded", "append_by_writer"])
def test_an_upload_that_is_appended_again_is_refused(form, after, first, again):
    world = world_of(form)
    data = upload(world)
    WAYS[first](world.c, data)
    AFTER[after](world)
    before = ids(world.c)
    other = world.process()
    with pytest.raises(AlreadyTaken, match="was taken in before, and is"):
        WAYS[again](other, data)
    inside.write_rollup(world.c)
    with pytest.raises(AlreadyTaken):
        WAYS[again](world.process(), data)
    assert ids(world.process()) == before and set(before.values()) == {1}
    assert not world.process().state().part_names & set(world.c.state().garbage)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("again", ["stage", "stage_by_writer", "append_uploaded"])
@pytest.mark.parametrize("how", ["open", "closed", "drained"])
def test_an_upload_that_was_staged_is_not_taken_again(form, again, how):
    world = world_of(form)
    time = world.c.state().upper.elements[0] + 3
    data = uploaded(world.c, many(500, time=time, count=20))
    assert stage(world.c, data) is True
    if how == "closed":
        world.c.seal(time + 1)
    if how == "drained":
        world.c.stage(at(time + 9, 100))
        world.c.seal(time + 1)
        world.c.maintain()
        world.later(2 * GARBAGE_S)
        world.c.collect()
    with pytest.raises(AlreadyTaken):
        WAYS[again](world.process(), data)
    world.c.seal(time + 10)
    assert set(ids(world.process()).values()) == {1}


@pytest.mark.parametrize("form", FORMS)
def test_a_repeated_upload_does_not_lock_the_collection_up(form):
    """As it was found: the second append was taken, and the collection did not open after a rollup."""
    world = World(config=FORMS[form])
    data = uploaded(world.c, at(0, 1))
    world.c.distributed.append_uploaded([data], lower=0, upper=1, advance=True)
    with pytest.raises(AlreadyTaken, match=r"in the batch of \[\[0\], \[1\]\)"):
        world.c.distributed.append_uploaded([data], lower=1, upper=2, advance=True)
    inside.write_rollup(world.c)
    assert ids(world.process()) == {1: 1}


def test_an_inline_upload_for_which_there_was_no_room_is_known_by_its_name():
    """It is stored under another one."""
    world = World(config=replace(INLINE, inline_total_bytes=1))
    data = uploaded(world.c, at(0, 1))
    world.c.distributed.append_uploaded([data], lower=0, upper=1)
    assert not world.c.state().spine.totals.inline_bytes
    with pytest.raises(AlreadyTaken):
        world.c.distributed.append_uploaded([data], lower=1, upper=2, advance=True)


def test_a_copy_of_a_batch_is_refused_after_its_parts_are_gone():
    world = World(config=INLINE)
    data = uploaded(world.c, at(3, 1))
    world.c.distributed.append_batches([world.c.distributed.batch_from_bytes(data)], lower=0, upper=4)
    merge_and_collect(world)
    copy = world.process().distributed.batch_from_bytes(data)
    with pytest.raises(AlreadyTaken):
        world.process().distributed.append_batches([copy], lower=5, upper=10)
    copy.delete()
    assert ids(world.process()) == {1: 1, 100: 1}


@pytest.mark.promise(
    "The names kept for that are those of the uploads of about one and a half `upload_age_s`; an "
    "append of a table adds none",
    rule="`raise_floor` in `state/life/collecting.py`",
)
@pytest.mark.parametrize("form", FORMS)
def test_what_was_taken_is_forgotten_when_an_upload_may_not_come_in_any_more(form):
    """Until then it is refused as known, and from then on for its age."""
    world = World(config=replace(FORMS[form], merge_budget_s=1.0))
    kept = []
    for n in range(40):
        data = upload(world, 500 + 20 * n)
        append_uploaded(world.c, data)
        kept.append(data)
        world.later(UPLOAD_S / 10)
        for old in kept:
            with pytest.raises((AlreadyTaken, UploadExpired)):
                append_uploaded(world.c, old)
        with pytest.raises(AlreadyTaken):
            append_uploaded(world.c, data)
    # A window and a half, and the appends until the next look.
    assert sum(map(len, world.c.state().taken.values())) <= 20
    assert set(ids(world.c).values()) == {1}


def test_a_fork_takes_no_upload_of_its_origin():
    place = Place()
    lake = place.lake()
    c = lake.create("c", SCHEMA, key=["id"])
    data = uploaded(c, at(0, 1))
    append_uploaded(c, data)
    fork = lake.fork("c", "f")
    with pytest.raises(UsageError, match="for shard"):
        append_uploaded(fork, data)
    assert not fork.state().taken and fork.state().part_names == c.state().part_names
    own = uploaded(fork, at(0, 2))
    append_uploaded(fork, own)
    with pytest.raises(AlreadyTaken):
        append_uploaded(fork, own)


def append_ten(c):
    for n in range(10):
        c.append(rows(100 + n))


@pytest.mark.promise(
    "A state that breaks a rule is never written as a rollup: the collection opens from the rollup before",
    rule="`History.write_rollup`",
)
def test_a_state_that_breaks_a_rule_is_never_stored_whole(monkeypatch):
    """So the collection opens as before, from the rollup that is there."""
    world = World(config=INLINE)
    data = uploaded(world.c, at(0, 1))
    with monkeypatch.context() as unchecked:
        unchecked.setattr("tidelake.shard.engine.machine.check_step", lambda before, after, edits: None)
        unchecked.setattr("tidelake.state.write.write.repeated", lambda state, offered: None)
        for _ in range(2):
            append_uploaded(world.c, data)
    with pytest.raises(InternalError, match="part-named-once"):
        inside.write_rollup(world.c)
    with pytest.warns(TidelakeWarning, match="part-named-once"):
        append_ten(world.c)
    # The rows are twice what they were before there was the rule; they are there, and so are the others.
    assert set(ids(world.process())) == {1, *range(100, 110)}

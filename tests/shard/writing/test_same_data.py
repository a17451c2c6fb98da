"""Writers that all write the same data: one of them brings each update in, and the others learn it."""

import itertools

import pytest
from collecting import CONFIG, World, before
from shards import Place
from test_batches import built, spread, times
from test_builder import at, many

import inside
from tables import SCHEMA, ids
from tidelake.errors import BatchConsumed, Closed, UpperMismatch, UsageError
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.history import History
from tidelake.state.core import commands
from tiers import examples

ALL = [(n, n) for n in range(10)]


def test_one_writer_wins_and_the_others_learn_that_it_is_in():
    world = World()
    mine, theirs = (built(c, many(0, time=1)) for c in (world.c, world.process()))
    done = world.c.append(mine)
    assert (done.lower, done.upper, done.already) == (Frontier.of(0), Frontier.of(10), False)
    parts = set(theirs.part_names)
    assert parts <= world.stored()
    late = world.process().append(theirs)
    assert late.already and late.upper == Frontier.of(10)
    assert not parts & world.stored()
    assert set(ids(world.process()).values()) == {1}
    for batch in (mine, theirs):
        with pytest.raises(BatchConsumed):
            batch.delete()


def test_a_batch_is_narrowed_to_what_is_still_open():
    world = World()
    world.c.append(built(world.c, *(at(n, n) for n in range(5)), upper=5))
    done = world.process().append(built(world.c, spread()))
    assert (done.lower, done.upper) == (Frontier.of(5), Frontier.of(10))
    assert times(world.process(), 10) == ALL


def test_a_batch_after_a_gap_is_refused_and_stays_its_owners():
    world = World()
    batch = built(world.c, at(5, 5), lower=5)
    with pytest.raises(UpperMismatch):
        world.c.append(batch)
    world.c.append(built(world.c, at(1, 1), upper=5))
    assert world.c.append(batch).lower == Frontier.of(5)
    assert times(world.c, 10) == [(1, 1), (5, 5)]


def test_what_lies_before_the_open_times_by_its_rewritten_times_is_left_out():
    """Rows at 6 by a rewrite are in by the one who was first; those at 8 are not."""
    world = World()
    first = built(world.c, at(6, 1), upper=7)
    batch = built(world.c, at(2, 1), at(8, 8), upper=10)
    batch.rewrite_times(Frontier.of(6), Frontier.of(10))
    world.c.append(first)
    world.process().append(batch)
    assert times(world.process(), 10) == [(1, 6), (8, 8)]


def test_who_loses_a_race_writes_what_is_left():
    world = World()
    mine = built(world.c, spread())

    def others():
        c = world.process()
        c.append(built(c, *(at(n, n) for n in range(7)), upper=7))

    with before(world.place.stores.log, "compare_and_set", others):
        done = world.c.append(mine)
    assert (done.lower, done.upper) == (Frontier.of(7), Frontier.of(10))
    assert times(world.process(), 10) == ALL


def test_a_named_writer_appends_a_batch_under_its_number():
    world = World()
    writer = world.c.writer("w")
    assert not writer.append(built(world.c, spread()), sequence=0).already
    again = built(world.c, spread())
    names = set(again.part_names)
    assert writer.append(again, sequence=0).already
    assert names <= world.stored()  # they might have been the ones that are in
    assert times(world.c, 10) == ALL


def test_a_batch_has_its_own_bounds():
    world = World()
    batch = built(world.c, spread())
    for wrong in ({"upper": 10}, {"lower": 0, "upper": 10}):
        with pytest.raises(UsageError, match="has its own"):
            world.c.append(batch, **wrong)
    with pytest.raises(UsageError, match="has its own"):
        world.c.writer("w").append(batch, upper=10)
    batch.delete()


@pytest.mark.promise(
    "When several writers write the same data, each update comes in once, however each writer cuts "
    "the data; a late writer learns that its data is in, and a gap is refused",
    rule="`UpTo` in `state/write/write.py`, `append_batch`",
    also=[
        "::test_who_loses_a_race_writes_what_is_left",
        "::test_a_batch_after_a_gap_is_refused_and_stays_its_owners",
        "::test_what_lies_before_the_open_times_by_its_rewritten_times_is_left_out",
    ],
)
def test_however_each_writer_cuts_the_data_it_is_in_once(rng):
    for _ in range(examples(40)):
        world = World()
        cuts = [sorted({0, 10, *rng.sample(range(1, 10), rng.randint(0, 3))}) for _ in range(3)]
        todo = [(n, pair) for n, cut in enumerate(cuts) for pair in itertools.pairwise(cut)]
        handles = [world.process() for _ in cuts]
        waiting = [[pair for m, pair in todo if m == n] for n in range(3)]
        while any(waiting):
            n = rng.choice([n for n in range(3) if waiting[n]])
            lower, upper = waiting[n].pop(0)
            rows = spread().filter([lower <= time < upper for time in range(10)])
            batch = built(handles[n], rows, lower=lower, upper=upper)
            if rng.random() < 0.5:
                handles[n].append(batch)
            else:
                handles[n].append(handles[n].distributed.batch_from_bytes(batch.to_bytes()))
        assert times(world.process(), 10) == ALL


@pytest.mark.promise(
    "After a closed lake refused a batch, its owner still has it",
    rule="`shard/writing/batches.py`",
    also=["::test_a_closed_lake_says_so_at_the_commit_and_the_batch_is_its_owners"],
)
@pytest.mark.parametrize("append", ["append", "append_batches"])
def test_a_batch_that_a_closed_lake_refuses_is_its_owners_as_before(append):
    place = Place()
    lake = place.lake(config=CONFIG)
    c = lake.create("c", SCHEMA, key=["id"])
    batch = built(c, spread())
    lake.close()
    with pytest.raises(Closed):
        c.append(batch) if append == "append" else c.distributed.append_batches([batch], lower=0, upper=10)
    again = place.lake(config=CONFIG).collection("c")
    again.append(batch) if append == "append" else again.distributed.append_batches(
        [batch], lower=0, upper=10
    )
    assert times(again, 10) == ALL


def test_a_closed_lake_says_so_at_the_commit_and_the_batch_is_its_owners():
    """It is closed between the first look and the commit."""
    world = World()
    batch = built(world.c, spread())
    closing = world.process()
    copy = closing.distributed.batch_from_bytes(batch.to_bytes())
    with before(world.place.stores.log, "scan", closing.lake.close), pytest.raises(Closed):
        closing.distributed.append_batches([copy], lower=0, upper=10)
    world.process().distributed.append_batches([copy], lower=0, upper=10)
    assert times(world.process(), 10) == ALL


@pytest.mark.promise(
    "Times are only ever moved forward: `advance=True` leaves them where an earlier rewrite has put them",
    rule="`append_uploaded`",
)
def test_advance_keeps_times_where_an_earlier_rewrite_put_them():
    """Parts of times 1 to 9, rewritten to 7, and appended from 3 on: nothing is at 3."""
    world = World()
    batch = built(world.c, spread())
    batch.rewrite_times(Frontier.of(7), Frontier.of(20))
    world.c.append(at(0, 100), upper=3)
    world.c.distributed.append_uploaded([batch.to_bytes()], lower=3, upper=20, advance=True)
    expected = [(n, max(n, 7)) for n in range(10)]
    assert times(world.c, 20) == sorted([*expected, (100, 0)])


@pytest.mark.promise(
    "Opening retries while collectors delete what it reads; it reports damage only if the newest "
    "rollup is missing",
    rule="`History.open`",
)
def test_an_opening_outlasts_any_number_of_collectors():
    """Each time it has read which rollup is the newest, another one is, and that one is gone."""
    world = World(appends=3)
    inside.write_rollup(world.c)
    lost = []

    def overtake():
        """Make another rollup the newest one, and delete the one before."""
        before_, shard = world.c.state().rollup, inside.shard(world.c)
        shard.run(lambda state, now_ms: commands.Commit(commands.Edits(), None))
        assert shard.write_rollup()
        world.later(1_000)
        world.c.collect()
        assert before_ not in (world.c.state().rollup,)
        lost.append(before_)

    head, races = world.place.stores.log.head, 20

    def racing(key):
        found = head(key)
        if key == world.id and len(lost) < races:
            world.place.stores.log.head = head
            overtake()
            world.place.stores.log.head = racing
        return found

    world.place.stores.log.head = racing
    opened = History(world.id, world.place.stores, inside.shard(world.c).env).open()
    assert len(lost) == races and opened.state.seqno == world.c.state().seqno

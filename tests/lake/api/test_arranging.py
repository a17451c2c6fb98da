"""Arrangements of a collection: they follow it, and answer as a snapshot of that time does."""

import random
import signal
import subprocess
import sys
import threading
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidelake
from tables import SCHEMA, at, rows
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory
from tidelake.arrangement.follow.follow import _Rows
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.config import MIB, Config
from tidelake.errors import (
    Closed,
    CollectionDropped,
    HistoryCompacted,
    IncompatibleSchema,
    NotYetClosed,
    RowsErased,
    TidelakeError,
    UsageError,
)
from tidelake.lake.api.lake import open_lake
from tidelake.model.frontier import Frontier

WIDE = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("a", pa.string()), pa.field("b", pa.int64())]
)


def counted(table, names=("id", "v")):
    found = Counter()
    for row in table.to_pylist():
        found[tuple(row[name] for name in names)] += row["_diff"]
    return Counter({row: n for row, n in found.items() if n})


def snapshot(collection, as_of=None, names=("id", "v"), **asked):
    return counted(collection.snapshot(as_of, **asked).read_all(), names)


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def churn(collection, rng, times):
    """Random updates at the next times, some of them many rows."""
    for _ in range(times):
        upper = collection.upper.elements[0]
        n = rng.choice([0, 1, 5, 200])
        table = pa.table(
            {
                "id": pa.array([rng.randrange(30) for _ in range(n)], pa.int64()),
                "v": pa.array([rng.choice(["x", "ü", None]) for _ in range(n)], pa.string()),
                "_time": pa.array([upper + rng.randrange(3) for _ in range(n)], pa.int64()),
                "_diff": pa.array([rng.choice([-1, 1, 1, 2]) for _ in range(n)], pa.int64()),
            }
        )
        collection.append(table, upper=upper + 3)


@pytest.fixture
def arrange(tmp_path):
    """Arranges, and closes at the end; nothing runs beside."""
    made = []

    def arranged(collection, **asked):
        asked = {"follow": False, "directory": tmp_path / "batches", **asked}
        made.append(collection.arrange(**asked))
        return made[-1]

    yield arranged
    for arrangement in made:
        arrangement.close()


def test_an_arrangement_has_what_a_snapshot_has(collection, arrange):
    collection.append(at(1, 1, 2, 3), upper=5)
    collection.append(at(5, 3, diff=-1), upper=8)
    arrangement = arrange(collection)

    assert arrangement.last_time == 7
    assert counted(arrangement.range()) == {(1, "x"): 1, (2, "x"): 1}
    assert counted(arrangement.lookup(keys(2, 3, 4, 2))) == {(2, "x"): 1}
    assert arrangement.key_count() == 2


@pytest.mark.promise(
    "An arrangement that follows has the contents of one time, every update of the collection once, "
    "and is exact from `as_of` on",
    rule="`arrangement/follow/following.py`",
    also=[
        "::test_history_is_exact_from_the_time_asked_for_on",
        "::test_what_is_looked_up_while_it_follows_is_the_contents_of_one_time",
    ],
)
def test_what_comes_in_later_is_followed(collection, arrange):
    arrangement = arrange(collection)
    assert arrangement.last_time == 0 and len(arrangement) == 0
    rng = random.Random(1)
    for _ in range(10):
        churn(collection, rng, 2)
        last = arrangement.catch_up()
        assert last == collection.last_time()
        assert counted(arrangement.range()) == snapshot(collection)
        assert counted(arrangement.lookup(keys(3, 5, 99), as_of=last)) == {
            row: n for row, n in snapshot(collection).items() if row[0] in (3, 5)
        }


def test_closed_times_without_rows_are_followed_too(collection, arrange):
    arrangement = arrange(collection)
    collection.append(at(3), upper=9)
    assert arrangement.catch_up() == 8


def test_a_wait_that_is_interrupted_loses_and_doubles_nothing(collection, arrange, monkeypatch):
    arrangement = arrange(collection)

    def interrupted(self):
        raise KeyboardInterrupt

    for time in range(4):
        collection.append(at(time, time), upper=time + 1)
        with monkeypatch.context() as patch:
            patch.setattr(type(arrangement._spine), "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                arrangement.catch_up()
    assert arrangement.catch_up() == 3
    assert counted(arrangement.range()) == snapshot(collection)


def test_an_interrupt_right_after_updates_came_in_doubles_none(collection, arrange, interruptible):
    arrangement = arrange(collection)
    collection.append(at(0, 1), upper=1)
    looking, over = threading.Event(), threading.Event()

    def look(_):
        looking.set()
        over.wait(30)

    def interrupt():
        looking.wait(30)
        while not len(arrangement._spine.held()[0]) and not over.wait(0.01):
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    others = [threading.Thread(target=arrangement._follower.seen, args=(look,))]
    others.append(threading.Thread(target=interrupt))
    others[0].start()
    looking.wait(30)
    others[1].start()
    try:
        with pytest.raises(KeyboardInterrupt):
            arrangement.catch_up()
    finally:
        over.set()
        for other in others:
            other.join()
    arrangement.catch_up()
    assert counted(arrangement.range()) == {(1, "x"): 1}


def test_staged_updates_are_followed_once_their_times_are_sealed(collection, arrange):
    arrangement = arrange(collection, as_of=None)
    rng = random.Random(11)
    for upper in range(3, 30, 3):
        for _ in range(rng.randrange(4)):
            ids = [rng.randrange(9) for _ in range(rng.randrange(1, 5))]
            collection.stage(at(upper - rng.randrange(-4, 4), *ids))
        assert counted(arrangement.range()) == (snapshot(collection) if upper > 3 else {})
        collection.seal(upper)
        arrangement.catch_up()
        assert counted(arrangement.range()) == snapshot(collection)
        if upper % 2:
            collection.maintain()
    loaded = arrange(collection)
    assert counted(loaded.range()) == snapshot(collection)


def test_an_upsert_that_meets_staged_updates_does_not_ask_the_arrangement(collection, arrange):
    state = arrange(collection)
    collection.upsert(rows(1, 2, v="a"), state=state)
    collection.stage(at(collection.upper.elements[0], 2, v="staged"))
    collection.upsert(rows(2, v="b"), state=state)
    collection.upsert(rows(1, v="c"), state=state)
    assert snapshot(collection) == {(1, "c"): 1, (2, "b"): 1}


def test_history_is_exact_from_the_time_asked_for_on(collection, arrange):
    rng = random.Random(2)
    churn(collection, rng, 4)
    arrangement = arrange(collection, as_of=5)
    churn(collection, rng, 4)
    arrangement.catch_up()
    arrangement.merge()

    for time in range(5, arrangement.last_time + 1):
        assert counted(arrangement.range(as_of=time)) == snapshot(collection, time)
    with pytest.raises(HistoryCompacted):
        arrangement.range(as_of=4)
    arrangement.advance_since(12)
    arrangement.merge()
    with pytest.raises(HistoryCompacted):
        arrangement.lookup(keys(1), as_of=11)
    for time in range(12, arrangement.last_time + 1):
        assert counted(arrangement.range(as_of=time)) == snapshot(collection, time)


def test_without_history_only_the_newest_time_is_kept(collection, arrange):
    churn(collection, random.Random(3), 3)
    arrangement = arrange(collection)
    assert arrangement.since == Frontier.of(8)
    churn(collection, random.Random(4), 1)
    arrangement.catch_up()
    assert arrangement.since == Frontier.of(11)


def test_since_past_what_is_in_is_refused(collection, arrange):
    churn(collection, random.Random(3), 3)
    arrangement = arrange(collection, as_of=2)
    with pytest.raises(UsageError, match="past the last applied time, 8"):
        arrangement.advance_since(9)
    arrangement.advance_since(8)


def test_a_time_that_is_not_closed_yet_is_waited_for(collection, arrange):
    collection.append(at(1, 1), upper=3)
    with pytest.raises(NotYetClosed):
        arrange(collection, as_of=3, timeout_s=0)
    arrangement = arrange(collection)
    with pytest.raises(NotYetClosed):
        arrangement.catch_up(3, timeout_s=0)
    collection.append(at(3, 2), upper=6)
    assert arrangement.catch_up(3, timeout_s=0) == 5


def test_history_that_is_gone_is_refused(collection, arrange):
    collection.append(at(1, 1), upper=9)
    collection.advance_since(5)
    with pytest.raises(HistoryCompacted):
        arrange(collection, as_of=4)
    assert not collection.state().holds


def test_some_columns_and_rows_are_kept_summed_up(lake, arrange):
    collection = lake.create("wide", WIDE, key=["id"])
    collection.append(
        pa.table({"id": [1, 1, 2, 3], "a": ["x", "y", "x", None], "b": [7, 7, 8, 9], "_time": [0, 1, 1, 2]})
    )
    arrangement = arrange(collection, columns=["b"], where="b < 9")
    assert arrangement.schema.names == ["id", "b"]
    assert counted(arrangement.range(), ("id", "b")) == {(1, 7): 2, (2, 8): 1}

    collection.append(
        pa.table({"id": [1, 4], "a": ["y", "z"], "b": [7, 1], "_time": [3, 3], "_diff": [-1, 1]})
    )
    arrangement.catch_up()
    assert counted(arrangement.range(), ("id", "b")) == {(1, 7): 1, (2, 8): 1, (4, 1): 1}


def test_wrong_arguments_are_refused(lake, collection, arrange):
    for asked, message in (
        ({"columns": ["nope"]}, "no column named 'nope'"),
        ({"where": "nope = 1"}, "nope"),
        ({"hold_for": 0}, "at least a second"),
        ({"as_of": -1}, "from 0"),
        ({"poll_s": "x"}, "poll_s"),
    ):
        with pytest.raises(UsageError, match=message):
            arrange(collection, **asked)
    tuples = lake.create("tuples", SCHEMA, key=["id"], time="tuple(2)")
    with pytest.raises(UsageError, match="total order"):
        arrange(tuples)
    assert not collection.state().holds


def test_updates_are_not_appended_by_hand(collection, arrange):
    arrangement = arrange(collection)
    with pytest.raises(UsageError, match="append to the collection"):
        arrangement.append(at(1, 1))


def test_the_hold_goes_with_the_arrangement(collection, arrange):
    collection.append(at(1, 1), upper=3)
    arrangement = arrange(collection)
    assert [hold.purpose for hold in collection.state().holds.values()] == ["arrangement of c"]
    arrangement.close()
    assert not collection.state().holds


def test_batches_on_disk_go_with_the_arrangement(collection, arrange, tmp_path):
    churn(collection, random.Random(6), 5)
    arrangement = arrange(collection, config=ArrangementConfig(memory_budget_bytes=MIB, large_share=1e-9))
    assert arrangement.report().bytes_on_disk > 0
    assert counted(arrangement.range()) == snapshot(collection)
    arrangement.close()
    assert list((tmp_path / "batches").iterdir()) == []


def test_a_dropped_collection_is_said_to_be_dropped(lake, collection, arrange):
    collection.append(at(1, 1), upper=3)
    arrangement = arrange(collection)
    lake.drop("c", force=True)
    with pytest.raises(CollectionDropped):
        arrangement.catch_up()
    assert counted(arrangement.range()) == {(1, "x"): 1}
    arrangement.close()


def test_it_follows_beside_its_caller(collection, arrange):
    arrangement = arrange(collection, follow=True, poll_s=0.01)
    collection.append(at(0, 1, 2), upper=1)
    collection.append(at(1, 1, diff=-1), upper=5)
    assert arrangement.catch_up(4, timeout_s=30) == 4
    assert counted(arrangement.range()) == {(2, "x"): 1}


def test_errors_beside_the_caller_are_raised_by_the_next_look_up(lake, collection, arrange):
    arrangement = arrange(collection, follow=True, poll_s=0.01)
    lake.drop("c", force=True)
    waited = threading.Event()
    for _ in range(1000):
        try:
            arrangement.lookup(keys(1))
        except CollectionDropped:
            return
        waited.wait(0.01)
    pytest.fail("the drop was never told")


@pytest.mark.full
def test_what_is_looked_up_while_it_follows_is_the_contents_of_one_time(tmp_path):
    """Each time moves one unit from a key to another: the total of every consistent view is the same."""
    config = Config(inline_part_bytes=0)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        collection = lake.create("c", SCHEMA, key=["id"])
        collection.append(at(0, *range(50)), upper=1)
        with collection.arrange(follow=True, poll_s=0.001) as arrangement:
            rng = random.Random(7)
            for time in range(1, 60):
                gone, come = rng.randrange(50), rng.randrange(50)
                collection.append(pa.concat_tables([at(time, gone, diff=-1), at(time, come)]), upper=time + 1)
                last, view = arrangement.snapshot_at()
                with view:
                    assert sum(counted(view.range()).values()) == 50
                    assert counted(view.range(as_of=last)) == snapshot(collection, last)
            arrangement.catch_up()
            assert counted(arrangement.range()) == snapshot(collection)


# Checkpoints


def test_a_restored_arrangement_goes_on_where_it_was_saved(lake, collection, arrange, tmp_path):
    rng = random.Random(8)
    churn(collection, rng, 3)
    first = arrange(collection, as_of=2)
    churn(collection, rng, 3)
    first.catch_up()
    saved = first.save(tmp_path / "saved")
    assert saved.is_new and not first.save(tmp_path / "saved").is_new
    first.close()
    assert not arrange(collection, as_of=2, restore=tmp_path / "saved").save(tmp_path / "saved").is_new
    churn(collection, rng, 3)

    again = arrange(collection, as_of=2, restore=tmp_path / "saved")
    assert again.last_time == collection.last_time() == 26
    for time in range(2, again.last_time + 1):
        assert counted(again.range(as_of=time)) == snapshot(collection, time)
    assert again.save(tmp_path / "saved").is_new


@pytest.mark.promise(
    "A restored checkpoint continues from its position as long as its hold lasts; after that the "
    "contents are loaded anew",
    rule="`arrangement/follow/follow.py`",
    also=["::test_a_checkpoint_whose_history_is_gone_is_loaded_anew"],
)
def test_history_is_kept_for_the_checkpoints_that_are_there(collection, arrange, tmp_path):
    """Both of the last two can be gone on from, whatever the live one has taken in since."""
    collection.append(at(1, 1), upper=5)
    live = arrange(collection)
    live.save(tmp_path / "saved")
    for time in (5, 10, 15):
        collection.append(at(time, time), upper=time + 5)
        live.catch_up()
        live.save(tmp_path / "saved")
    collection.append(at(20, 20), upper=25)
    live.catch_up()
    live.close()
    collection.advance_since(24)

    (hold,) = collection.state().holds.values()
    assert hold.since == Frontier.of(14)
    again = arrange(collection, restore=tmp_path / "saved")
    assert again.last_time == 24
    assert counted(again.range()) == snapshot(collection)


def test_a_checkpoint_whose_history_is_gone_is_loaded_anew(tmp_path, arrange):
    with open_lake(tmp_path / "lake") as lake:
        collection = lake.create("c", SCHEMA, key=["id"])
        collection.append(at(1, 1), upper=5)
        first = arrange(collection)
        first.save(tmp_path / "saved")
        first.close()
        for hold in list(collection.state().holds):
            collection.distributed.release(hold)
        collection.append(at(5, 2), upper=20)
        collection.advance_since(15)

        again = arrange(collection, restore=tmp_path / "saved")
        assert again.last_time == 19
        assert counted(again.range()) == {(1, "x"): 1, (2, "x"): 1}
        again.save(tmp_path / "saved")


@pytest.mark.promise(
    "An arrangement takes no update that is read after an erasure which its contents do not know, "
    "and says so at each use from then on; a checkpoint from before is not restored, and is removed",
    rule="`Tail.check_erased`, `Followed.erased`, `CheckpointDirectory.discard`",
    also=["::test_a_checkpoint_from_before_an_erasure_is_not_used_and_is_removed"],
)
def test_an_arrangement_ends_with_an_erasure(collection, arrange, tmp_path):
    collection.append(at(1, 1, 2), upper=5)
    live = arrange(collection)
    collection.erase([1], reason="x")
    collection.upsert(rows(1, 2, v="new"))
    for use in (live.catch_up, live.snapshot, lambda: live.save(tmp_path / "saved"), live.follow):
        with pytest.raises(RowsErased, match="arrange the collection anew"):
            use()
    again = arrange(collection)
    collection.append(at(again.last_time + 1, 3))
    again.catch_up()
    assert counted(again.range()) == snapshot(collection) == {(1, "new"): 1, (2, "new"): 1, (3, "x"): 1}


def test_an_arrangement_that_follows_by_itself_ends_with_an_erasure(collection, arrange):
    collection.append(at(1, 1, 2), upper=5)
    live = arrange(collection, follow=True, poll_s=0.01)
    collection.erase([1], reason="x")
    with pytest.raises(RowsErased):
        look_for_ever(live)
    with pytest.raises(RowsErased):
        live.snapshot()


def look_for_ever(live):
    while True:
        live.snapshot().close()


def test_an_erasure_amid_the_load_is_noticed(collection, arrange, monkeypatch):
    collection.append(at(1, 1, 2), upper=5)
    load = _Rows.load

    def loading(self, contents, asked):
        load(self, contents, asked)
        monkeypatch.undo()
        collection.erase([1], reason="x")

    monkeypatch.setattr(_Rows, "load", loading)
    with pytest.raises(RowsErased):
        arrange(collection)


def test_a_checkpoint_from_before_an_erasure_is_not_used_and_is_removed(collection, arrange, tmp_path):
    collection.append(at(1, 1, 2, v="PERSON"), upper=5)
    saved = tmp_path / "saved"
    with arrange(collection) as first:
        first.save(saved)
        collection.append(at(5, 3), upper=6)
        first.catch_up()
        first.save(saved)
    assert len(CheckpointDirectory(saved).checkpoints()) == 2 and files_with(saved, "PERSON")
    collection.erase([1, 2], reason="x")
    with arrange(collection, restore=saved) as again:
        assert counted(again.range()) == snapshot(collection) == {(3, "x"): 1}
        assert CheckpointDirectory(saved).checkpoints() == [] and not files_with(saved, "PERSON")
        again.save(saved)
    (kept,) = CheckpointDirectory(saved).checkpoints()
    assert kept.followed.erased == collection.state().erased > 0
    with arrange(collection, restore=saved) as restored:
        assert not restored.save(saved).is_new and counted(restored.range()) == {(3, "x"): 1}


def test_a_save_removes_the_checkpoints_from_before_an_erasure(collection, arrange, tmp_path):
    collection.append(at(1, 1, 2, v="PERSON"), upper=5)
    saved = tmp_path / "saved"
    with arrange(collection) as first:
        first.save(saved)
    collection.erase([1], reason="x")
    with arrange(collection) as second:
        second.save(saved)
    assert [one.followed.erased for one in CheckpointDirectory(saved).checkpoints()] == [
        collection.state().erased
    ]
    assert len(list((saved / "batches").iterdir())) == 1


def files_with(folder, text):
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_without_a_checkpoint_restore_loads(collection, arrange, tmp_path):
    collection.append(at(1, 1), upper=5)
    assert counted(arrange(collection, restore=tmp_path / "none").range()) == {(1, "x"): 1}


def test_a_checkpoint_of_other_rows_is_refused(lake, collection, arrange, tmp_path):
    collection.append(at(1, 1), upper=5)
    arrange(collection).save(tmp_path / "saved")
    other = lake.create("other", SCHEMA, key=["id"])
    for asked in ({"columns": []}, {"where": "id > 1"}, {"as_of": 3}):
        with pytest.raises(UsageError, match="was saved with"):
            arrange(collection, restore=tmp_path / "saved", **asked)
    with pytest.raises(UsageError, match="collection_id"):
        arrange(other, restore=tmp_path / "saved")


def test_what_follows_something_else_saves_elsewhere(lake, collection, arrange, tmp_path):
    collection.append(at(1, 1), upper=5)
    first = arrange(collection)
    first.save(tmp_path / "saved")
    other = lake.create("other", SCHEMA, key=["id"])
    strangers = [arrange(other), arrange(collection, where="id > 0"), arrange(collection, as_of=3)]
    strangers += [tidelake.Arrangement.restore(tmp_path / "saved", directory=tmp_path / "live")]
    strangers[-1].advance_since(9)
    before = {path: path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    for stranger in strangers:
        for _ in range(2):
            with pytest.raises(UsageError, match=f"another arrangement .*{collection.id}"):
                stranger.save(tmp_path / "saved")
    assert {path: path.read_bytes() for path in (tmp_path / "saved").rglob("*") if path.is_file()} == before
    strangers[-1].close()

    # What has the same rows is as good.
    collection.append(at(5, 2), upper=9)
    assert arrange(collection).save(tmp_path / "saved").is_new
    assert counted(arrange(collection, restore=tmp_path / "saved").range()) == snapshot(collection)


def test_taking_over_a_checkpoint_gives_up_the_hold_of_the_one_before(collection, arrange, tmp_path):
    collection.append(at(1, 1), upper=5)
    first = arrange(collection)
    first.save(tmp_path / "saved")
    first.close()
    again = arrange(collection, restore=tmp_path / "saved")
    assert len(collection.state().holds) == 2
    collection.append(at(5, 2), upper=9)
    again.catch_up()
    again.save(tmp_path / "saved")
    assert len(collection.state().holds) == 1


def test_it_may_be_closed_after_its_lake(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        arrangement = lake.create("c", SCHEMA, key=["id"]).arrange(follow=False)
    arrangement.close()
    arrangement.close()


def test_a_fork_stays_as_it_was(collection, arrange):
    collection.append(at(1, 1), upper=5)
    arrangement = arrange(collection)
    with arrangement.fork() as fork:
        collection.append(at(5, 2), upper=9)
        arrangement.catch_up()
        arrangement.merge()
        arrangement.close()
        assert counted(fork.range()) == {(1, "x"): 1}
        fork.append(at(6, 3))
        assert counted(fork.range()) == {(1, "x"): 1, (3, "x"): 1}


# Upserts


@pytest.mark.promise(
    "Upserts that look up in an arrangement have the same result as others",
    rule="`arrangement/follow/oldrows.py`",
    also=["::test_an_upsert_meets_what_others_write_meanwhile"],
)
def test_upserts_look_up_old_rows_in_an_arrangement(tmp_path, arrange):
    """The same writes, with and without it, leave the same collection; and parts are not read for it."""
    rng = random.Random(9)
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        plain = lake.create("plain", SCHEMA, key=["id"])
        indexed = lake.create("indexed", SCHEMA, key=["id"])
        state = arrange(indexed)
        for _ in range(12):
            n = rng.randrange(1, 30)
            ids = rng.sample(range(60), n)
            table = pa.table(
                {"id": pa.array(ids, pa.int64()), "v": [rng.choice(["a", "b", None]) for _ in ids]}
            )
            plain.upsert(table)
            indexed.upsert(table, state=state)
            assert snapshot(plain) == snapshot(indexed)


def test_an_arrangement_that_does_not_hold_all_of_the_collection_is_no_state(lake, collection, arrange):
    collection.append(at(1, 1), upper=5)
    other = lake.create("other", SCHEMA, key=["id"])
    for state in (arrange(other), arrange(collection, where="id > 1"), arrange(collection, columns=[])):
        with pytest.raises(UsageError, match="state"):
            collection.upsert(rows(1), state=state)


def test_an_upsert_meets_what_others_write_meanwhile(collection, arrange):
    state = arrange(collection)
    collection.upsert(rows(1, 2, v="a"), state=state)
    collection.append(at(collection.upper.elements[0], 3, v="c"))
    collection.upsert(rows(1, 3, v="b"), state=state)
    assert snapshot(collection) == {(1, "b"): 1, (2, "a"): 1, (3, "b"): 1}


def test_an_evolved_collection_no_longer_asks_a_state_of_old_columns(collection, arrange):
    state = arrange(collection)
    collection.upsert(rows(1, v="a"), state=state)
    collection.evolve(SCHEMA.append(pa.field("more", pa.int64())))
    with pytest.raises(TidelakeError, match="state"):
        collection.upsert(rows(1, v="b", more=pa.array([1], pa.int64())), state=state)


# Columns that change, and ends


WIDENED = pa.schema([SCHEMA.field("id"), ("n", pa.int32())])


@pytest.mark.promise(
    "Dropping a column that an arrangement shows ends it, so that no retracted row stays",
    rule="`shard/reading/tail.py`, `outgrown`",
)
@pytest.mark.parametrize("kept", [{}, {"columns": ["a", "b"]}, {"columns": ["a"], "where": "b > 0"}])
def test_a_column_that_is_dropped_ends_an_arrangement_that_has_it(lake, arrange, kept, tmp_path):
    """The rows that go would have null there, and take nothing away."""
    collection = lake.create("wide", WIDE, key=["id"])
    collection.append(pa.table({"id": [1, 2], "a": ["x", "y"], "b": [7, 8], "_time": [0, 0]}), upper=1)
    arrangement = arrange(collection, **kept)
    arrangement.save(tmp_path / "saved")
    without = arrange(collection, columns=["a"])
    had = arrangement.range()
    collection.evolve(pa.schema([WIDE.field("id"), WIDE.field("a")]), drop=["b"])
    collection.append(pa.table({"id": [1], "a": ["x"], "_time": [1], "_diff": [-1]}), upper=2)

    with pytest.raises(IncompatibleSchema, match="'b' was dropped since; start again"):
        arrangement.catch_up()
    assert arrangement.range() == had
    without.catch_up()
    assert counted(without.range(), ("id", "a")) == {(2, "y"): 1}
    if "where" not in kept:
        asked = {"columns": kept["columns"][:1]} if kept else {}
        assert counted(arrange(collection, **asked).range(), ("id", "a")) == {(2, "y"): 1}


def test_a_checkpoint_of_other_columns_than_today_is_loaded_anew(lake, arrange, tmp_path):
    collection = lake.create("wide", WIDENED, key=["id"])
    collection.append(pa.table({"id": [1], "n": pa.array([1], pa.int32()), "_time": [0]}), upper=1)
    arrangement = arrange(collection)
    arrangement.save(tmp_path / "saved")
    collection.evolve(pa.schema([SCHEMA.field("id"), ("n", pa.int64())]))
    collection.append(pa.table({"id": [2], "n": [2**40], "_time": [1]}), upper=2)
    with pytest.raises(IncompatibleSchema, match="widened"):
        arrangement.catch_up()
    again = arrange(collection, restore=tmp_path / "saved")
    assert counted(again.range(), ("id", "n")) == {(1, 1): 1, (2, 2**40): 1}


def test_history_that_goes_without_a_follower_ends_an_arrangement(collection, arrange):
    collection.append(at(0, 1), upper=1)
    arrangement = arrange(collection)
    for hold in list(collection.state().holds):
        collection.distributed.release(hold)
    collection.append(at(1, 2), upper=9)
    collection.advance_since(5)
    for _ in range(2):
        with pytest.raises(HistoryCompacted):
            arrangement.catch_up()
    assert counted(arrangement.range()) == {(1, "x"): 1}


@pytest.mark.promise(
    "When its lake closes, an arrangement gives up its hold and its threads, and opens neither "
    "again; a process that ends leaves no batches",
    rule="`Follower.give_up`, `arrangement/checkpoint/home.py`",
    also=[
        "::test_a_closed_arrangement_says_so_and_holds_nothing_again",
        "::test_a_process_that_ends_without_closing_leaves_no_batches",
    ],
)
@pytest.mark.parametrize("follow", [False, True])
def test_a_lake_that_is_closed_takes_the_hold_and_the_thread_along(tmp_path, follow):
    before = set(threading.enumerate())
    with tidelake.open(tmp_path / "lake") as lake:
        collection = lake.create("c", SCHEMA, key=["id"])
        collection.append(at(0, 1), upper=1)
        arrangement = collection.arrange(follow=follow, poll_s=0.01, directory=tmp_path / "batches")
    # But for the one that waits for what is forgotten, until it is closed.
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert set(left) <= {"tidelake-forgotten"}
    if follow:
        with pytest.raises(Closed, match="the lake was closed"):
            arrangement.lookup(keys(1))
    assert counted(arrangement.range()) == {(1, "x"): 1}
    with pytest.raises(Closed):
        arrangement.catch_up()
    arrangement.close()
    assert set(threading.enumerate()) <= before
    assert list((tmp_path / "batches").iterdir()) == []
    with tidelake.open(tmp_path / "lake") as lake:
        assert not lake.collection("c").state().holds


def test_a_lake_that_is_closed_keeps_the_history_of_a_checkpoint(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        collection = lake.create("c", SCHEMA, key=["id"])
        collection.append(at(0, 1), upper=1)
        arrangement = collection.arrange(follow=False)
        arrangement.save(tmp_path / "saved")
    arrangement.close()
    with tidelake.open(tmp_path / "lake") as lake:
        collection = lake.collection("c")
        assert len(collection.state().holds) == 1
        with collection.arrange(follow=False, restore=tmp_path / "saved") as again:
            assert counted(again.range()) == {(1, "x"): 1}


def test_a_closed_arrangement_says_so_and_holds_nothing_again(collection, arrange, tmp_path):
    collection.append(at(0, 1), upper=1)
    arrangement = arrange(collection)
    arrangement.close()
    collection.append(at(1, 2), upper=2)
    for call in (
        arrangement.catch_up,
        arrangement.follow,
        arrangement.range,
        arrangement.snapshot_at,
        arrangement.merge_nowait,
        arrangement.pause,
        arrangement.fork,
        arrangement.report,
        lambda: arrangement.is_merged,
        lambda: arrangement.advance_since(0),
        lambda: arrangement.retain_keys(pc.field("id") > 3),
        lambda: arrangement.save(tmp_path / "saved"),
        lambda: collection.upsert(rows(1, v="a"), state=arrangement),
    ):
        with pytest.raises(Closed):
            call()
    assert not collection.state().holds
    arrangement.stop_following()
    arrangement.close()


def test_a_process_that_ends_without_closing_leaves_no_batches(tmp_path):
    program = f"""
import tidelake
from tidelake.arrangement.merge.settings import ArrangementConfig
from tests.tables import SCHEMA, at
config = ArrangementConfig(memory_budget_bytes=1 << 20, large_share=1e-9)
collection = tidelake.open({str(tmp_path / "lake")!r}).create("c", SCHEMA, key=["id"])
collection.append(at(0, 1), upper=1)
index = collection.arrange(directory={str(tmp_path / "batches")!r}, config=config)
print(index.report().bytes_on_disk > 0)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("True\n", "")
    assert list((tmp_path / "batches").iterdir()) == []

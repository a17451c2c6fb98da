"""Arrangements that are dropped without `close`: they warn, and give up threads, files and holds."""

import gc
import multiprocessing
import os
import threading
import time
import weakref
from contextlib import contextmanager

import pyarrow as pa
import pytest

import tidelake
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.env import Counters, Env
from tidelake.errors import TidelakeWarning
from tidelake.lake.api.lake import open_lake

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
# From the first row on batches are on disk, and merges are due soon.
ON_DISK = ArrangementConfig(memory_budget_bytes=1 << 20, large_share=1e-9, level_rows=8, idle_s=0.01)


def rows(*keys):
    return pa.table({"k": pa.array(keys, pa.int64()), "v": ["x"] * len(keys)})


def until(reached):
    """Wait for another thread."""
    deadline_s = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@contextmanager
def forgetting(message):
    """A context in which something is forgotten, which is told."""
    with pytest.warns(TidelakeWarning, match=message):  # noqa: PT031 - as late as the collector is
        yield
        gc.collect()


def threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("tidelake-")}


def filled(index):
    for key in range(40):
        index.append(rows(key).append_column("_time", pa.array([0])))
    return weakref.ref(index._spine)


@pytest.mark.promise(
    "An arrangement that is garbage-collected without `close` warns and is closed: threads, memory, "
    "files and hold go; forks, snapshots and checkpoints keep what they have",
    rule="`arrangement/forgotten.py`",
    also=["arrangement/test_forgotten.py"],
)
def test_an_arrangement_that_is_forgotten_says_so_and_leaves_nothing(tmp_path):
    before = threads()
    index = Arrangement.create(SCHEMA, key=["k"], directory=tmp_path, config=ON_DISK)
    spine = filled(index)
    assert os.listdir(tmp_path) and threads() > before
    with forgetting("an arrangement was garbage collected before it was closed"):
        del index
    until(lambda: threads() == before)
    gc.collect()
    assert os.listdir(tmp_path) == [] and spine() is None


def test_one_that_follows_a_collection_gives_up_its_hold_as_well(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["k"])
        c.append(rows(1, 2))
        before = threads()
        index = c.arrange(directory=tmp_path / "live", config=ON_DISK, poll_s=0.01)
        spine = weakref.ref(index._spine)
        assert c.state().holds and {"tidelake-follow"} <= {thread.name for thread in threads()}
        with forgetting("an arrangement of 'c' was garbage collected"):
            del index
        until(lambda: not c.state().holds)
        until(lambda: {thread for thread in threads() if thread.name != "tidelake-renewer"} <= before)
        gc.collect()
        assert os.listdir(tmp_path / "live") == [] and spine() is None


def test_the_hold_of_a_checkpoint_lasts(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["k"])
        c.append(rows(1))
        index = c.arrange(directory=tmp_path / "live", follow=False)
        index.save(tmp_path / "saved")
        with forgetting("garbage collected"):
            del index
        until(lambda: os.listdir(tmp_path / "live") == [])
        assert len(c.state().holds) == 1
        with c.arrange(follow=False, restore=tmp_path / "saved") as again:
            assert again.range().num_rows == 1


def test_what_cannot_be_given_up_is_counted_and_expires(tmp_path):
    lake = open_lake(tmp_path / "lake", env=Env(recorder=(recorder := Counters())))
    c = lake.create("c", SCHEMA, key=["k"])
    index = c.arrange(directory=tmp_path / "live", follow=False)
    broken = RuntimeError("no way")

    def fails():
        raise broken

    index._holdings.give_up.insert(0, fails)
    with forgetting("garbage collected"):
        del index, fails
    until(lambda: recorder.counts["arrangement.forgotten.failed"])
    until(lambda: not c.state().holds and os.listdir(tmp_path / "live") == [])
    lake.close()


def test_a_snapshot_that_outlives_its_arrangement_has_its_rows(tmp_path):
    index = Arrangement.create(SCHEMA, key=["k"], directory=tmp_path, config=ON_DISK)
    filled(index)
    snapshot = index.snapshot()
    with forgetting("garbage collected"):
        del index
    until(lambda: os.listdir(tmp_path) == [])
    assert snapshot.range()["k"].to_pylist() == list(range(40))
    snapshot.close()


def test_a_fork_that_is_forgotten_takes_nothing_from_the_other(tmp_path):
    index = Arrangement.create(SCHEMA, key=["k"], directory=tmp_path, config=ON_DISK)
    filled(index)
    fork = index.fork()
    with forgetting("garbage collected"):
        del fork
    assert index.range().num_rows == 40
    index.close()
    until(lambda: os.listdir(tmp_path) == [])


def test_one_that_is_closed_is_not_forgotten(tmp_path, recwarn):
    before = threads()
    for _ in range(3):
        with Arrangement.create(SCHEMA, key=["k"], directory=tmp_path) as index:
            filled(index)
        index.close()
        del index
        gc.collect()
        assert threads() == before
    assert not [one for one in recwarn if issubclass(one.category, TidelakeWarning)]


def test_a_child_process_gives_up_nothing_of_its_parents(tmp_path):
    index = Arrangement.create(SCHEMA, key=["k"], directory=tmp_path, config=ON_DISK)
    filled(index)
    held = [index]

    def forgets():
        held.clear()
        gc.collect()
        # It may have arrangements of its own.
        with Arrangement.create(SCHEMA, key=["k"], directory=tmp_path / "child") as own:
            filled(own)

    del index
    child = multiprocessing.get_context("fork").Process(target=forgets)
    child.start()
    child.join()
    assert child.exitcode == 0 and held[0].range().num_rows == 40
    held[0].close()
    assert os.listdir(tmp_path / "child") == []

"""Saving, restoring and forking: what comes back is what was there, and no file goes that is still needed."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.arrangement.checkpoint.saving_child import contents as child_contents
from tests.arrangement.checkpoint.saving_child import rows_of
from tests.arrangement.spine_rig import NoThreads, SetMachine, tiny
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory
from tidelake.arrangement.checkpoint.home import Home
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.config import MIB
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.env import Counters, Env
from tidelake.errors import Closed, CorruptionError, IncompatibleSchema, InvalidUpdates, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tiers import rounds

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])
# From the first row on batches are on disk.
ON_DISK = ArrangementConfig(memory_budget_bytes=MIB, large_share=1e-9, level_rows=8)
CHILD = Path(__file__).with_name("saving_child.py")


def rows(*keys, time=0, diff=1, v="x"):
    n = len(keys)
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "v": pa.array([v] * n, pa.string()),
            "_time": pa.array([time] * n, pa.int64()),
            "_diff": pa.array([diff] * n, pa.int64()),
        }
    )


def contents(source, as_of=None):
    found = source.range(as_of=as_of).to_pylist()
    return Counter({(row["k"], row["v"]): row["_diff"] for row in found})


@pytest.fixture(params=["memory", "disk"])
def config(request):
    return ON_DISK if request.param == "disk" else ArrangementConfig(level_rows=8)


@pytest.fixture
def made(tmp_path, config):
    """Makes arrangements whose files are below one folder, and closes them."""
    all_ = []

    def make(how=Arrangement.create, *args, **more):
        args = args or (SCHEMA,)
        more = {"key": ["k"]} | more if how == Arrangement.create else more
        all_.append(how(*args, directory=tmp_path / "live", config=config, **more))
        return all_[-1]

    yield make
    for arrangement in all_:
        arrangement.close()


def test_what_is_restored_is_what_was_saved(made, tmp_path):
    first = made()
    for time_ in range(30):
        first.append(rows(time_, time_ + 1, time=time_))
    first.append(rows(3, time=7, diff=-2))
    first.advance_since(5)
    first.save(tmp_path / "saved")
    again = made(Arrangement.restore, tmp_path / "saved")

    assert again.schema.equals(SCHEMA) and again.key == ("k",) and again.since == Frontier.of(5)
    for time_ in (None, *range(5, 31)):
        assert contents(again, time_) == contents(first, time_)
    again.merge()
    assert contents(again) == contents(first)


@pytest.mark.promise(
    "Unchanged contents are not saved again; changed contents always are",
    rule="`Arrangement.save`",
    also=["::test_a_fork_amid_appends_is_not_taken_for_what_it_was_forked_from"],
)
def test_unchanged_contents_are_not_saved_again(made, tmp_path):
    recorder = Counters()
    first = made(env=Env(recorder=recorder))
    for i in range(40):
        first.append(rows(i))
    assert first.save(tmp_path / "saved").is_new
    first.merge()
    assert not first.save(tmp_path / "saved").is_new
    again = made(Arrangement.restore, tmp_path / "saved")
    assert not again.save(tmp_path / "saved").is_new
    again.append(rows(1, diff=-1))
    assert again.save(tmp_path / "saved").is_new
    again.advance_since(3)
    assert again.save(tmp_path / "saved").is_new
    assert recorder.counts["arrangement.saved"] == recorder.counts["arrangement.unchanged"] == 1


@pytest.mark.promise(
    "No other arrangement or process removes a file of a checkpoint or a fork",
    rule="`arrangement/checkpoint/checkpoint.py`",
    also=[
        "::test_a_fork_and_what_it_was_forked_from_go_their_own_ways",
        "::test_a_restored_arrangement_needs_its_checkpoint_no_more",
        "::test_a_child_process_takes_no_file_from_its_parent",
    ],
)
def test_merges_and_closes_take_no_file_from_a_checkpoint(made, tmp_path):
    first = made()
    for i in range(30):
        first.append(rows(i))
    before = contents(first)
    first.save(tmp_path / "saved")
    first.merge()
    first.append(rows(99))
    first.save(tmp_path / "saved")
    first.close()

    assert os.listdir(tmp_path / "live") == []
    assert contents(made(Arrangement.restore, tmp_path / "saved", 1)) == before
    assert contents(made(Arrangement.restore, tmp_path / "saved")) == before | Counter({(99, "x"): 1})


def test_a_restored_arrangement_needs_its_checkpoint_no_more(made, tmp_path):
    first = made()
    first.append(rows(1, 2))
    first.save(tmp_path / "saved")
    again = made(Arrangement.restore, tmp_path / "saved")
    for i in range(3):
        first.append(rows(10 + i))
        first.merge()
        first.save(tmp_path / "saved")

    assert contents(again) == {(1, "x"): 1, (2, "x"): 1}


def test_a_fork_and_what_it_was_forked_from_go_their_own_ways(made, tmp_path):
    first = made()
    for i in range(20):
        first.append(rows(i))
    first.retain_keys(pc.field("k") >= 3)
    fork = first.fork()
    fork.append(rows(50))
    first.append(rows(60))
    first.merge()
    first.close()

    kept = Counter({(i, "x"): 1 for i in range(3, 20)})
    assert contents(fork) == kept | Counter({(50, "x"): 1})
    fork.save(tmp_path / "saved")
    fork.close()
    assert os.listdir(tmp_path / "live") == []
    again = made(Arrangement.restore, tmp_path / "saved")
    again.retain_keys(pc.field("k") >= 3)
    assert contents(again) == kept | Counter({(50, "x"): 1})


def test_forks_save_the_same_batches_at_once(made, tmp_path):
    first = made()
    first.append(rows(1))
    fork = first.fork()
    assert first.save(tmp_path / "a").is_new and fork.save(tmp_path / "b").is_new
    assert not fork.save(tmp_path / "a").is_new
    fork.close()


@pytest.mark.promise(
    "No other arrangement removes the checkpoints of an arrangement: its `save` there is refused "
    "and touches nothing",
    rule="`Checkpoint.same_arrangement`",
    also=["lake/api/test_arranging.py::test_what_follows_something_else_saves_elsewhere"],
)
def test_another_arrangement_leaves_the_checkpoints_of_the_first_as_they_are(made, tmp_path):
    first, other = made(), made()
    first.append(rows(1))
    other.append(rows(2))
    saved = first.save(tmp_path / "saved").checkpoint
    fork = first.fork()
    fork.append(rows(3))
    before = files_below(tmp_path / "saved")
    for _ in range(3):
        for stranger in (other, fork):
            with pytest.raises(UsageError, match=r"another arrangement .*save in another directory"):
                stranger.save(tmp_path / "saved")
            stranger.append(rows(4))
    assert files_below(tmp_path / "saved") == before
    fork.close()

    # Who goes on from it is this arrangement.
    again = made(Arrangement.restore, tmp_path / "saved", saved.number)
    again.append(rows(5))
    assert again.save(tmp_path / "saved").is_new and first.save(tmp_path / "saved").is_new


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_filters_are_set_again_after_a_restore(made, tmp_path):
    first = made()
    first.append(rows(1, 2, 3))
    first.retain_keys(pc.field("k") > 1)
    first.save(tmp_path / "saved")
    again = made(Arrangement.restore, tmp_path / "saved")
    again.retain_keys(pc.field("k") > 2)
    assert contents(again) == {(3, "x"): 1}


def test_damaged_files_are_named(made, tmp_path):
    first = made()
    first.append(rows(*range(100)))
    first.save(tmp_path / "saved")
    first.close()
    (file,) = (tmp_path / "saved" / "batches").iterdir()
    whole = file.read_bytes()
    for at in (20, len(whole) // 2, len(whole) - 3):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptionError) as caught:
            contents(made(Arrangement.restore, tmp_path / "saved"))
        assert file.name in caught.value.name
    file.write_bytes(whole)
    assert len(contents(made(Arrangement.restore, tmp_path / "saved"))) == 100


def test_a_folder_of_another_arrangement_is_refused(made, tmp_path):
    made().save(tmp_path / "saved")
    other = made(Arrangement.create, SCHEMA, key=["v", "k"])
    with pytest.raises(IncompatibleSchema):
        other.save(tmp_path / "saved")


def test_wrong_calls_are_refused(made, tmp_path):
    arrangement = made()
    with pytest.raises(InvalidUpdates, match="missing column"):
        arrangement.append(pa.table({"k": [1]}))
    with pytest.raises(UsageError):
        arrangement.advance_since(-1)
    with pytest.raises(UsageError, match="no checkpoint"):
        Arrangement.restore(tmp_path / "nothing")
    with pytest.raises(UsageError, match="columns"):
        arrangement.lookup(pa.table({"k": pa.array([1], pa.int64())}), columns=["z"])
    arrangement.close()
    for call in (arrangement.range, lambda: arrangement.append(rows(1)), arrangement.fork):
        with pytest.raises(Closed):
            call()


def test_an_empty_arrangement_is_saved_and_restored(made, tmp_path):
    first = made()
    assert first.save(tmp_path / "saved").is_new
    assert contents(made(Arrangement.restore, tmp_path / "saved")) == {}


def test_tuples_of_times_are_arranged_too(made):
    first = made(time="tuple(2)")
    first.append(pa.table({"k": [1, 2], "v": ["a", "b"], "_time_0": [0, 1], "_time_1": [1, 0]}))
    assert contents(first, (0, 5)) == {(1, "a"): 1}
    assert contents(first, (1, 1)) == {(1, "a"): 1, (2, "b"): 1}


def test_reports_count_what_happened_since_the_last_one(made):
    recorder = Counters()
    first = made(env=Env(recorder=recorder))
    first.report()
    for i in range(64):
        first.append(rows(i))
    first.merge()
    report = first.report()
    assert report.rows == 64 and report.batches == 1
    assert recorder.counts["arrangement.merges"] == report.merged.merges > 0
    assert recorder.counts["arrangement.merge_rows_written"] == report.merged.rows_written
    first.report()
    assert recorder.counts["arrangement.merges"] == report.merged.merges


@pytest.mark.grows
def test_nothing_is_lost_when_the_process_is_killed_while_it_saves(tmp_path, rng, record_property):
    saved, known = tmp_path / "saved", 0
    for kills in rounds(full=10, soak=600, least=2):
        command = [sys.executable, str(CHILD), str(saved), str(tmp_path / "live")]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            # From its first save on: it is at the next one, most of the time.
            first = child.stdout.readline()
            assert first, "the child ended by itself"
            time.sleep(rng.uniform(0, 0.05))
        finally:
            child.kill()
            rest = child.stdout.read()
            child.wait()
        told = [int(line) for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
        with Arrangement.restore(saved, directory=tmp_path / "seen") as found:
            now = child_contents(found)
        number = max(now.values())
        assert number in (told[-1], told[-1] + 1), "what was saved is not there"
        assert now == rows_of(number)
        assert number > known
        known = number
        assert 1 <= len(CheckpointDirectory(saved).checkpoints()) <= 4 + kills
    assert known > kills
    record_property("figures", f"{known} saves, {kills + 1} kills")


def test_a_fork_amid_appends_is_not_taken_for_what_it_was_forked_from(tmp_path):
    class Interrupting(SetMachine):
        """At the next look at memory another thread's append is in."""

        def resident_bytes(self):
            if work := interrupted.pop() if interrupted else None:
                work()
            return super().resident_bytes()

    interrupted = []
    # A thread that merges would look at memory too.
    env = Env(spawner=NoThreads())
    layout = Layout(schema_from_arrow(SCHEMA, ["k"]), TimeDomain())
    home = Home(tmp_path / "live", env.ids.fresh())
    spine = AsyncSpine(layout, tiny(), directory=home.path, env=env, machine=Interrupting())
    with Arrangement(spine, home, env, env.ids.fresh()) as arrangement:
        arrangement.append(rows(0))
        arrangement.save(tmp_path / "saved")
        arrangement.append(rows(1))
        interrupted.append(lambda: arrangement.append(rows(2)))
        with arrangement.fork() as fork:
            assert (len(fork), len(arrangement)) == (2, 3)
            forked = fork.save(tmp_path / "fork").checkpoint
        saved = arrangement.save(tmp_path / "saved")
        assert saved.is_new and saved.checkpoint.content != forked.content
    with Arrangement.restore(tmp_path / "saved") as again:
        assert len(again) == 3


def _close_in_child(arrangement, answers):
    arrangement.resume()
    arrangement.merge()
    answers.put(arrangement.key_count())
    arrangement.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_process_takes_no_file_from_its_parent(made, tmp_path):
    arrangement = made()
    arrangement.pause()
    for i in range(3):
        arrangement.append(rows(*range(10 * i, 10 * i + 10)))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_close_in_child, args=(arrangement, answers))
    child.start()
    assert answers.get(timeout=60) == 30
    child.join()
    assert child.exitcode == 0
    arrangement.save(tmp_path / "saved")
    with made(Arrangement.restore, tmp_path / "saved") as again:
        assert again.key_count() == 30

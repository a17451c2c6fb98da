import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.arrangement.arrangement_rows import sorted_rows
from tests.arrangement.spine_rig import LAYOUT, Looks, Rig, SetMachine, folded, row, tiny
from tidelake.arrangement.batch.batch import FilterPlan
from tidelake.arrangement.merge.levels import LEVELS
from tidelake.arrangement.merge.memorybudget import MEMORY_BATCH_BYTES_MAX, MemoryBudget, SystemMachine
from tidelake.arrangement.merge.pressure import Pressure
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.arrangement.read.retention import last_n
from tidelake.env import Env, RandomIds, SystemClock, ThreadSpawner
from tidelake.errors import (
    Closed,
    CorruptionError,
    InternalError,
    InvalidUpdates,
    StoreUnavailable,
    UsageError,
)
from tidelake.model.frontier import Frontier


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.spine.close()
    assert made.files() == []


# What is appended


def test_what_was_appended_stays_whatever_its_owner_does_with_the_memory(rig):
    keys = np.arange(1000)
    others = [["a"] * 1000, keys * 0.5, keys * 0, keys * 0 + 1]
    rig.spine.append(pa.table([keys, *others], schema=LAYOUT.arrow))
    keys += 1000
    assert rig.held_keys() == list(range(1000))


# Levels


def test_a_merge_is_due_when_a_level_has_enough_batches(rig):
    rig.append_keys([1])
    assert rig.spine.at_rest
    rig.append_keys([2])
    assert not rig.spine.at_rest
    rig.merge_due()
    assert rig.loose() == [1] + [0] * 8
    assert rig.held_keys() == [1, 2]


def test_what_is_merged_goes_to_the_level_of_its_size(rig):
    for start in (0, 3):
        rig.append_keys(range(start, start + 3))
    rig.merge_due()
    assert rig.loose()[:2] == [0, 1]


def test_a_merge_may_leave_nothing(rig):
    rig.append_keys([1])
    rig.append_keys([1], diff=-1)
    rig.merge_due()
    report = rig.spine.report()
    assert report.batches == 0
    assert report.merged.reduction == 1
    assert rig.spine.is_merged


def test_a_merge_takes_the_oldest_batches(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=100))
    rig.spine.pause()
    for key in range(6):
        rig.append_keys([key])
    rig.spine.resume()
    rig.spine.step()
    report = rig.spine.report().levels[0]
    assert (report.loose, report.merging) == (3, 0)
    assert rig.held_keys() == list(range(6))
    rig.spine.close()


def test_retractions_make_the_result_of_a_merge_count_more(tmp_path):
    rig = Rig(tmp_path, tiny(retraction_weight=10))
    rig.append_keys([1], diff=-1)
    assert rig.loose()[:2] == [1, 0]
    rig.append_keys([2], diff=-1)
    rig.merge_due()
    assert rig.loose()[:2] == [0, 1]
    assert rig.spine.report().negative_rows == 2
    rig.spine.close()


def test_a_large_merge_takes_several_steps_and_readers_see_its_inputs_meanwhile(rig):
    rig.append_keys(range(0, 200, 2))
    rig.append_keys(range(1, 200, 2))
    assert rig.spine.step()
    level = rig.spine.report().levels[2]
    assert (level.loose, level.merging, level.rows_in_memory) == (0, 2, 200)
    assert rig.held_keys() == list(range(200))
    rig.merge_due()
    counts = rig.spine.report().levels[2].merged
    assert (counts.merges, counts.inputs, counts.rows_read, counts.rows_written) == (1, 2, 200, 200)
    assert counts.steps > 1


def test_merges_of_different_levels_run_side_by_side(rig):
    rig.append_keys(range(0, 200, 2))
    rig.append_keys(range(1, 200, 2))
    rig.spine.step()
    rig.append_keys([1])
    rig.append_keys([2])
    rig.spine.step()
    levels = rig.spine.report().levels
    assert levels[0].loose == 1
    assert levels[2].merging == 2


def test_rows_that_come_to_nothing_are_not_appended(rig):
    contents = rig.spine.contents
    assert rig.append(row(1), row(1, diff=-1)) is False
    assert rig.spine.report().batches == 0
    assert rig.spine.contents == contents


def test_a_sum_that_does_not_fit_is_refused_and_nothing_is_appended(rig):
    most = 2**63 - 1
    table = sorted_rows([row(1, diff=most)], LAYOUT)
    with pytest.raises(InvalidUpdates):
        rig.spine.append_nowait(_twice(table))
    assert rig.spine.report().batches == 0


def _twice(rows):
    return pa.Table.from_batches([rows, rows])


# Backpressure


def test_an_append_is_asked_to_wait_while_there_are_too_many_batches(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=10))
    asked = [rig.append_keys([key]) for key in range(11)]
    assert asked == [False] * 9 + [True] * 2
    rig.spine.wait()
    report = rig.spine.report()
    assert report.batches < 10
    assert report.waits == 1
    rig.spine.close()


def test_batches_that_are_being_merged_count(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=10))
    rig.spine.pause()
    for start in range(4):
        rig.append_keys(range(start, 200, 4))
    rig.spine.resume()
    assert rig.spine.step()
    assert rig.spine.report().levels[2].merging == 4
    asked = [rig.append_keys([key]) for key in range(6)]
    assert asked == [False] * 5 + [True]
    rig.spine.close()


def test_an_append_that_waits_merges_until_it_need_not(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=10))
    for key in range(30):
        rig.spine.append(sorted_rows([row(key)], LAYOUT))
        assert rig.spine.report().batches < 10
    assert rig.held_keys() == list(range(30))
    rig.spine.close()


def test_the_time_that_appends_waited_is_reported(tmp_path):
    class Clock(SystemClock):
        """A second passes between any two looks."""

        def monotonic_s(self) -> float:
            looks.append(float(len(looks)))
            return looks[-1]

    looks: list[float] = []
    rig = Rig(tmp_path, tiny(batches_max=10), clock=Clock())
    for key in range(9):
        rig.spine.append(sorted_rows([row(key)], LAYOUT))
    assert (rig.spine.report().waits, rig.spine.report().waited_s, looks) == (0, 0.0, [])
    rig.spine.append(sorted_rows([row(9)], LAYOUT))
    assert rig.spine.report().waits == 1
    assert rig.spine.report().waited_s == looks[-1] - looks[0] > 0
    rig.spine.close()


def test_no_call_waits_for_merging_that_is_paused(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=10))
    rig.spine.pause()
    for key in range(30):
        rig.spine.append(sorted_rows([row(key)], LAYOUT))
    assert not rig.spine.step()
    assert rig.spine.report().batches == 30
    rig.spine.resume()
    rig.merge_due()
    assert rig.spine.report().batches <= LEVELS
    rig.spine.close()


# Memory pressure


def test_at_moderate_pressure_new_and_merged_batches_go_to_disk(rig):
    rig.append_keys([1])
    rig.append_keys([2])
    rig.machine.share = 0.6
    rig.append_keys([3])
    level = rig.spine.report().levels[0]
    assert (level.rows_in_memory, level.rows_on_disk) == (2, 1)
    rig.merge_due()
    assert rig.spine.report().bytes_in_memory == 0
    assert len(rig.files()) == 1
    assert rig.held_keys() == [1, 2, 3]


def test_at_moderate_pressure_what_is_in_memory_stays_until_it_is_merged(rig):
    rig.append_keys([1])
    rig.machine.share = 0.6
    rig.append_keys(range(10, 20))
    assert not rig.spine.step()
    assert rig.spine.report().levels[0].rows_in_memory == 1


def test_what_is_on_disk_stays_there_when_the_pressure_falls(rig):
    rig.machine.share = 0.6
    rig.append_keys([1])
    rig.machine.share = 0.0
    rig.append_keys([2])
    rig.merge_due()
    level = rig.spine.report().levels[0]
    assert (level.rows_in_memory, level.rows_on_disk) == (0, 2)


def test_at_high_pressure_what_is_in_memory_is_merged_out_at_once(rig):
    rig.append_keys([1])
    rig.append_keys(range(10, 20))
    rig.machine.share = 0.75
    rig.append_keys(range(100, 300))
    assert rig.merge_due() == 2
    report = rig.spine.report()
    assert report.bytes_in_memory == 0
    assert report.pressure == "high"
    assert len(rig.files()) == 3
    assert rig.held_keys() == [1, *range(10, 20), *range(100, 300)]


def test_at_high_pressure_large_files_are_not_written_again(rig):
    rig.machine.share = 0.6
    rig.append_keys(range(200))
    files = rig.files()
    assert len(files) == 1
    rig.machine.share = 0.0
    rig.append_keys([1])
    rig.append_keys(range(300, 310))
    rig.machine.share = 0.75
    rig.append_keys([2])
    rig.merge_due()
    assert rig.spine.report().bytes_in_memory == 0
    assert set(files) <= set(rig.files())


def test_pressure_is_left_below_where_it_was_entered(rig):
    rig.machine.share = 0.6
    rig.append_keys([1])
    rig.machine.share = 0.55
    rig.append_keys([2])
    assert rig.spine.report().levels[0].rows_on_disk == 2
    rig.machine.share = 0.4
    rig.append_keys([3])
    assert rig.spine.report().pressure == "low"
    assert rig.spine.report().levels[0].rows_in_memory == 1


def test_at_critical_pressure_an_append_waits_until_nothing_is_in_memory(rig):
    rig.append_keys([1])
    rig.machine.share = 0.95
    assert rig.append_keys(range(10, 20)) is True
    rig.spine.wait()
    report = rig.spine.report()
    assert (report.bytes_in_memory, report.waits) == (0, 1)
    # There is nothing more that could be done.
    assert rig.append_keys([3]) is False


def test_rows_filters_and_cache_count_in_the_budget(tmp_path):
    rig = Rig(tmp_path, tiny(memory_budget_bytes=1 << 20, cache_bytes=1 << 20))
    used = rig.spine.report().used_bytes
    rig.append_keys(range(1000))
    assert rig.spine.report().used_bytes >= used + 1000 * 8
    rig.machine.share = 0.6
    rig.append_keys([5])
    rig.append_keys(range(5000))
    before = rig.spine.report().used_bytes
    rig.held_keys()
    batches, _ = rig.spine.held()
    stored = next(batch for batch in batches if batch.on_disk)
    assert stored.memory_bytes > 0
    stored.block(0)
    assert rig.spine.report().used_bytes > before
    for batch in batches:
        batch.release()
    rig.spine.close()


def test_pressure_is_measured_after_every_step(rig):
    rig.machine.share = 0.75
    rig.append_keys([1])
    rig.append_keys([2])
    rig.machine.share = 0.1
    assert rig.spine.room.level is Pressure.HIGH
    assert rig.spine.step()
    assert rig.spine.room.level is Pressure.LOW


@pytest.mark.promise(
    "The reported pressure is that of the moment of the call; an idle arrangement spills by itself, "
    "also if it never merged, and when another one finds that the budget of the process is nearly "
    "used up",
    rule="`Merger.measured`, `Schedule.may_spill`",
    also=[
        "::test_idle_spines_spill_when_others_of_their_process_need_memory",
        "::test_what_never_merged_spills_by_itself_when_the_process_grows",
        "::test_a_cache_that_may_press_what_is_in_memory_out_is_looked_after",
    ],
)
def test_who_asks_an_idle_spine_is_told_the_pressure_of_this_moment(rig):
    rig.append_keys([1])
    rig.machine.share = 1.61
    report = rig.spine.report()
    assert (report.pressure, report.bytes_in_memory > 0, rig.spine.at_rest) == ("critical", True, False)
    rig.merge_due()
    report = rig.spine.report()
    assert (report.pressure, report.bytes_in_memory, rig.rows()) == ("critical", 0, [(1, "a", 1)])
    rig.machine.share = 0.1
    assert rig.spine.report().pressure == "low"


def test_a_thread_that_found_nothing_to_do_measures_when_it_looks_again(rig):
    rig.append_keys([1])
    rig.append_keys([2])
    rig.merge_due()
    (work,) = rig.spawner.works
    rig.machine.share = 0.8
    for _ in range(2):
        work(Looks(1))
    assert rig.spine.room.level is Pressure.HIGH
    assert rig.spine.report().bytes_in_memory == 0


def test_idle_spines_spill_when_others_of_their_process_need_memory(tmp_path):
    machine = SetMachine()
    first, second, alone = (
        Rig(tmp_path / "first", machine=machine),
        Rig(tmp_path / "second", machine=machine),
        Rig(tmp_path / "alone", tiny(process_budget_bytes=None), machine=machine),
    )
    first.append_keys([1])
    alone.append_keys([1])
    machine.share = 0.8
    second.append_keys([2])
    assert not first.spine.at_rest and first.spawner.asked and alone.spine.at_rest
    first.merge_due()
    assert first.spine.report().bytes_in_memory == 0 and first.rows() == [(1, "a", 1)]
    for rig in (first, second, alone):
        rig.spine.close()
    third = Rig(tmp_path / "third", machine=machine)
    third.append_keys([3])
    third.spine.close()


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_merges_hold_counts_in_the_budget(tmp_path, on_disk):
    """For a merge in memory, twice its output while it is copied; otherwise its filter; and the chunks."""
    config = tiny(memory_budget_bytes=1 << 20, merge_chunk_rows=512, large_share=1.0)
    rig = Rig(tmp_path, config)
    rig.machine.share = 0.6 if on_disk else 0.0
    rig.append_keys(range(0, 4000, 2))
    rig.append_keys(range(1, 4000, 2))
    before = rig.spine.report()
    assert rig.spine.step()
    merging = rig.spine.report().used_bytes - before.used_bytes
    chunks = 4 * min((1 << 20) // 32, before.bytes_on_disk + before.bytes_in_memory)
    output = 2 * 4000 if on_disk else 2 * before.bytes_in_memory
    assert merging == chunks + output
    rig.merge_due()
    rig.spine.close()


@pytest.mark.parametrize(("asked", "held"), [(1 << 30, 1 << 20), (1000, 1000)])
def test_the_cache_does_not_fill_a_small_budget(tmp_path, asked, held):
    rig = Rig(tmp_path, tiny(memory_budget_bytes=4 << 20, cache_bytes=asked))
    assert rig.spine.cache.capacity_bytes == held
    rig.spine.close()


def test_a_batch_of_nearly_two_gigabytes_goes_to_disk_whatever_the_budget():
    room = MemoryBudget(ArrangementConfig(memory_budget_bytes=1 << 40), SetMachine(), "")
    assert not room.on_disk(MEMORY_BATCH_BYTES_MAX - 1, 0)
    assert room.on_disk(MEMORY_BATCH_BYTES_MAX, 0)
    assert MEMORY_BATCH_BYTES_MAX < 2**31


def test_the_machine_says_what_it_holds_and_what_is_left(tmp_path):
    machine = SystemMachine()
    assert machine.resident_bytes() > 1 << 20
    assert machine.free_bytes(str(tmp_path)) > 0
    with pytest.raises(StoreUnavailable, match="cannot determine the free disk space"):
        machine.free_bytes(str(tmp_path / "gone"))


def test_a_large_batch_goes_to_disk_at_any_pressure(tmp_path):
    rig = Rig(tmp_path, tiny(memory_budget_bytes=1 << 20, large_share=0.1))
    rig.append_keys(range(100))
    rig.append_keys(range(10_000))
    report = rig.spine.report()
    assert (report.pressure, report.bytes_on_disk > 0, report.bytes_in_memory > 0) == ("low", True, True)
    rig.spine.close()


# Disk


def test_merges_leave_the_reserve_of_the_disk_free(tmp_path):
    rig = Rig(tmp_path, tiny(disk_reserve_bytes=1000))
    rig.machine.share = 0.6
    rig.append_keys([0])
    rig.append_keys([1])
    size = rig.spine.report().bytes_on_disk
    rig.machine.free = size + 999
    assert not rig.spine.step()
    rig.machine.free = size + 1000
    assert rig.spine.step()
    rig.spine.close()


def test_a_merge_that_the_disk_has_no_room_for_does_not_begin(rig):
    rig.machine.share = 0.6
    rig.append_keys([0])
    rig.append_keys([1])
    rig.machine.free = 10
    assert not rig.spine.step()
    rig.machine.free = 1 << 30
    assert rig.spine.step()


def meanwhile(tmp_path, prepare) -> bool:
    """Whether a merge of level 2 can begin while one of level 0 is about to write its first row."""
    begun: list[bool] = []

    class Ids(RandomIds):
        def fresh(self) -> str:
            if armed and not begun:
                begun.append(False)
                begun[0] = rig.spine.step()
            return super().fresh()

    armed = False
    rig = Rig(tmp_path, ids=Ids())
    rig.machine.share = 0.6
    rig.spine.pause()
    for size in (1, 1, 100, 100):
        rig.append_keys(range(size))
    prepare(rig)
    armed = True
    rig.spine.resume()
    assert rig.spine.step()
    rig.spine.close()
    return begun[0]


@pytest.mark.promise(
    "Concurrent merges fit into the free disk space together, and leave the reserve",
    rule="`arrangement/merge/memorybudget.py`",
    also=["::test_merges_leave_the_reserve_of_the_disk_free"],
)
@pytest.mark.parametrize("missing", [0, 1])
def test_merges_that_run_side_by_side_fit_the_disk_together(tmp_path, missing):
    def prepare(rig: Rig) -> None:
        rig.machine.free = rig.spine.report().bytes_on_disk - missing

    assert meanwhile(tmp_path, prepare) is not bool(missing)


def test_what_a_merge_has_written_is_not_promised_any_more(rig):
    rig.machine.share = 0.6
    rig.append_keys(range(0, 200, 2))
    rig.append_keys(range(1, 200, 2))
    assert rig.spine.step()
    assert rig.spine.report().levels[2].merging == 2
    large = rig.spine.report().bytes_on_disk
    rig.append_keys([1])
    rig.append_keys([2])
    rig.machine.free = rig.spine.report().bytes_on_disk - large
    assert rig.spine.step()
    assert rig.spine.report().levels[0].merged.merges == 1


@pytest.mark.parametrize(("share", "together"), [(0.8, True), (0.95, False)])
def test_at_critical_pressure_one_merge_works_at_a_time(tmp_path, share, together):
    def prepare(rig: Rig) -> None:
        rig.machine.share = share
        rig.append_keys([5000])

    assert meanwhile(tmp_path, prepare) is together


def test_an_append_that_would_wait_for_a_full_disk_is_told(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=10))
    rig.machine.share = 0.6
    rig.machine.free = 10
    rig.append_keys([0])
    for key in range(9):
        rig.spine.append(sorted_rows([row(key)], LAYOUT))
    with pytest.raises(StoreUnavailable, match="the disk has no room"):
        rig.spine.append(sorted_rows([row(99)], LAYOUT))
    assert 99 not in rig.held_keys()
    rig.spine.close()


# Errors


@pytest.mark.promise(
    "An error of a merge loses nothing, and is raised once, at the next append or read; a full "
    "merge that cannot end says why; a thread that fails repeatedly does not spin",
    rule="`arrangement/merge/merger.py`",
    also=[
        "::test_whatever_goes_wrong_in_a_thread_is_raised_at_the_next_read",
        "arrangement/test_failures.py::test_who_asks_whether_a_full_merge_is_done_learns_why_it_is_not",
        "arrangement/test_failures.py::test_a_thread_whose_merges_fail_pauses_longer_each_time",
    ],
)
def test_an_error_of_a_merge_is_raised_at_the_next_read_and_nothing_is_lost(rig):
    mend, (victim, *_) = rig.damage(), rig.files()
    rig.merge_due()
    with pytest.raises(CorruptionError, match=victim.partition(".")[0]):
        rig.spine.held()
    mend()
    assert rig.held_keys() == list(range(300))
    rig.merge_due()
    assert rig.held_keys() == list(range(300))
    assert rig.spine.report().merged.merges > 0


def test_an_error_of_a_merge_is_raised_at_the_next_append_which_appends_nothing(rig):
    mend = rig.damage()
    rig.merge_due()
    assert not rig.spine.step()
    with pytest.raises(CorruptionError):
        rig.append_keys([1000])
    mend()
    assert 1000 not in rig.held_keys()
    rig.spine.merge()
    assert rig.spine.is_merged


def test_whatever_goes_wrong_in_a_thread_is_raised_at_the_next_read(tmp_path):
    class RealDisk(SetMachine):
        def free_bytes(self, directory: str) -> int:
            return SystemMachine().free_bytes(directory)

    rig = Rig(tmp_path / "gone", tiny(idle_s=0.001), machine=RealDisk())
    rig.machine.share = 0.6
    rig.append_keys([1])
    rig.append_keys([2])
    work = rig.spawner.works[0]
    files = [(path, path.read_bytes()) for path in rig.folder.iterdir()]
    shutil.rmtree(rig.folder)
    work(Looks(3))
    with pytest.raises(StoreUnavailable, match="gone"):
        rig.spine.held()
    rig.folder.mkdir()
    for path, data in files:
        path.write_bytes(data)
    work(Looks(1))
    assert rig.spine.report().merged.merges == 1
    rig.spine.close()


def test_a_thread_merges_step_by_step_and_rests_when_nothing_is_due(tmp_path):
    rig = Rig(tmp_path, tiny(idle_s=0.001))
    rig.append_keys(range(0, 200, 2))
    rig.append_keys(range(1, 200, 2))
    work = rig.spawner.works[0]
    work(Looks(1))
    assert rig.spine.report().levels[2].merging == 2
    work(Looks(5))
    assert rig.spine.report().levels[2].merged.steps == 2
    rig.spine.close()
    work(Looks(5))


def test_a_batch_that_comes_too_late_leaves_no_file(rig):
    rig.machine.share = 0.6
    rig.append_keys([1])

    def rows():
        yield sorted_rows([row(1)], LAYOUT)
        rig.spine.close()

    with pytest.raises(Closed):
        rig.spine.load(rows(), FilterPlan(1))


def test_a_load_that_grows_too_large_for_memory_tells_that_its_spine_was_closed_meanwhile():
    one = sorted_rows([row(0)], LAYOUT).nbytes
    config = tiny(memory_budget_bytes=1 << 20, large_share=20 * one / (1 << 20))
    spine = AsyncSpine(LAYOUT, config, env=Env(), machine=SetMachine())

    def rows():
        yield from (sorted_rows([row(key)], LAYOUT) for key in range(10))
        # Its temporary directory is gone after that.
        spine.close()
        yield from (sorted_rows([row(key)], LAYOUT) for key in range(10, 40))

    with pytest.raises(Closed):
        spine.load(rows(), FilterPlan(1))


def test_merge_says_if_merging_was_paused_meanwhile(tmp_path):
    class Ids(RandomIds):
        def fresh(self) -> str:
            if armed:
                # Another thread would wait for the end of this step.
                rig.spine.paused = True
            return super().fresh()

    armed = False
    rig = Rig(tmp_path, ids=Ids())
    rig.append_keys(range(100))
    rig.append_keys(range(100, 200))
    rig.append_keys(range(1000))
    armed = True
    with pytest.raises(UsageError, match="was paused"):
        rig.spine.merge()
    rig.spine.close()


def test_merge_raises_what_goes_wrong(rig):
    rig.machine.share = 0.6
    for start in (0, 100):
        rig.append_keys(range(start, start + 100))
    rig.machine.free = 0
    with pytest.raises(StoreUnavailable):
        rig.spine.merge()
    rig.machine.free = 1 << 30
    rig.spine.merge()
    assert rig.spine.is_merged


# Full merges


def spread(rig: Rig) -> None:
    for size in (1, 3, 20, 300):
        rig.append_keys(range(size))


def test_merge_makes_one_batch(rig):
    spread(rig)
    assert not rig.spine.is_merged
    rig.spine.merge()
    assert rig.spine.is_merged
    assert rig.spine.report().batches == 1
    assert rig.held_keys() == list(range(300))
    # It is at the level of its size.
    assert rig.loose()[2] == 1


def test_a_single_batch_is_written_again_only_if_that_changes_it(rig):
    rig.append_keys(range(50), time=3)
    rig.spine.merge()
    merges = rig.spine.report().merged.merges
    rig.spine.merge()
    assert rig.spine.report().merged.merges == merges
    rig.spine.retain(lambda filters: filters.with_keys(pc.field("k0") < 10))
    rig.spine.merge()
    assert rig.spine.report().rows == 10
    assert rig.loose()[1] == 1
    rig.spine.merge()
    assert rig.spine.report().merged.merges == merges + 1


def test_merge_nowait_returns_at_once_and_merges_do_it(rig):
    spread(rig)
    rig.spine.merge_nowait()
    assert rig.spine.report().sweeping
    assert not rig.spine.is_merged
    rig.merge_due()
    assert rig.spine.is_merged
    assert not rig.spine.report().sweeping


def test_requests_for_full_merges_coalesce(rig):
    spread(rig)
    rig.spine.merge_nowait()
    rig.spine.step()
    for key in (7, 8, 9):
        rig.append_keys([key], time=1)
        rig.spine.merge_nowait()
    rig.merge_due()
    assert rig.spine.is_merged
    # One sweep for the first request, one for all others.
    assert rig.spine.report().levels[8].merged.merges <= 2


def test_a_merge_that_shrinks_is_part_of_a_full_merge_that_passed_its_level(rig):
    rig.append_keys(range(100))
    rig.append_keys(range(1, 100), diff=-1)
    assert rig.spine.step()
    assert rig.spine.report().levels[2].merging == 2
    rig.append_keys(range(300, 2000))
    rig.spine.merge_nowait()
    rig.merge_due()
    assert rig.spine.is_merged
    assert rig.held_keys() == [0, *range(300, 2000)]


def test_merge_takes_along_what_came_in_behind_a_compaction(rig):
    rig.append_keys(range(0, 200, 2))
    rig.append_keys(range(1, 200, 2))
    assert rig.spine.step()
    assert rig.spine.report().levels[2].merging == 2
    rig.spine.merge_nowait()
    # Looks what is due: the full merge comes to the level of the merge, and waits for it.
    assert not rig.spine.at_rest
    rig.append_keys([1000])
    rig.append_keys(range(2000, 2010))
    rig.spine.merge()
    assert rig.spine.is_merged


def test_a_full_merge_goes_on_after_an_error(rig):
    rig.machine.share = 0.6
    for size in (100, 101, 1000):
        rig.append_keys(range(size))
    contents = {path: path.read_bytes() for path in rig.folder.iterdir()}
    for path, data in contents.items():
        path.write_bytes(bytes(len(data)))
    with pytest.raises(CorruptionError):
        rig.spine.merge()
    for path, data in contents.items():
        path.write_bytes(data)
    assert rig.spine.report().sweeping
    rig.merge_due()
    assert rig.spine.is_merged


def test_nothing_is_merged_above_a_full_merge_only_to_be_merged_again(rig):
    rig.append_keys([0])
    rig.append_keys([1])
    # After this one it is the turn of the levels above.
    assert rig.merge_due() == 1
    rig.spine.pause()
    for size in (1, 100, 101):
        rig.append_keys(range(size))
    rig.spine.merge_nowait()
    rig.spine.resume()
    rig.merge_due()
    assert rig.spine.is_merged
    assert rig.spine.report().merged.merges == 1 + 2


@pytest.mark.promise(
    "A full merge makes one batch of all that was there when it was called, however many batches "
    "arrive later",
    rule="`arrangement/merge/schedule.py`",
    also=["::test_a_merge_that_shrinks_is_part_of_a_full_merge_that_passed_its_level"],
)
@pytest.mark.promise(
    "A snapshot keeps its contents, also after its arrangement is closed",
    rule="`arrangement/read/snapshot.py`",
)
def test_what_comes_in_behind_a_full_merge_does_not_keep_it_from_its_end(rig):
    spread(rig)
    rig.spine.merge_nowait()
    for key in range(1000, 1500):
        rig.append_keys([key])
        rig.spine.step()
        if not rig.spine.report().sweeping:
            break
    else:
        pytest.fail("the full merge did not end")
    assert set(range(300)) <= set(rig.held_keys())


def test_merges_that_run_are_part_of_a_compaction(rig):
    rig.append_keys(range(0, 200, 2))
    rig.append_keys(range(1, 200, 2))
    rig.spine.step()
    rig.append_keys([1000])
    rig.spine.merge()
    assert rig.spine.is_merged
    assert rig.held_keys() == [*range(200), 1000]


def test_more_batches_than_a_merge_takes_become_one(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=100))
    rig.spine.pause()
    for key in range(50):
        rig.append_keys([key])
    with pytest.raises(UsageError, match="paused"):
        rig.spine.merge()
    rig.spine.resume()
    rig.spine.merge()
    assert rig.spine.is_merged
    assert rig.held_keys() == list(range(50))
    rig.spine.close()


def test_an_empty_spine_is_merged(rig):
    rig.spine.merge()
    assert rig.spine.is_merged


# Frontier and filters


def test_times_below_since_are_folded_by_merges(rig):
    for time in range(5):
        rig.append_keys([1], time=time)
    rig.spine.advance_since(Frontier.of(3))
    rig.spine.merge()
    batches, _ = rig.spine.held()
    (only,) = [rows for batch in batches for rows in batch.scan()]
    assert only.column("_time").to_pylist() == [3, 4]
    assert only.column("_diff").to_pylist() == [4, 1]
    for batch in batches:
        batch.release()


def test_since_does_not_go_back(rig):
    rig.spine.advance_since(Frontier.of(3))
    with pytest.raises(UsageError, match="cannot go back"):
        rig.spine.advance_since(Frontier.of(2))


def test_a_merge_of_some_batches_ranks_the_values_of_all(rig):
    """The last value of a key is retracted in a batch that is not merged: the one before is kept."""
    rig.append(row(1, value="e", time=2, diff=-1), *(row(k) for k in range(100, 140)))
    rig.append(row(1, value="d"))
    rig.append(row(1, value="e"))
    rig.spine.advance_since(Frontier.of(2))
    rig.spine.retain(lambda filters: filters.with_values(last_n(1)))
    assert rig.spine.step()
    assert rig.spine.report().levels[0].merged.merges == 1
    assert [r for r in rig.rows() if r[0] == 1] == [(1, "d", 1)]
    rig.append(row(1, value="a", time=3), row(1, value="c"))
    rig.spine.merge()
    assert [r for r in rig.rows() if r[0] == 1] == [(1, "a", 1), (1, "d", 1)]


def test_a_key_of_many_chunks_is_ranked_as_a_whole(rig):
    values = [f"{n:03}" for n in range(100)]
    rig.append(*(row(1, value=value) for value in values[::2]), row(2, value="z"))
    rig.append(*(row(1, value=value) for value in values[1::2]), row(0, value="z"))
    rig.spine.retain(lambda filters: filters.with_values(last_n(2)))
    rig.spine.merge()
    assert rig.rows() == [(0, "z", 1), (1, "098", 1), (1, "099", 1), (2, "z", 1)]


# Life


def test_rows_that_are_not_in_order_leave_nothing_behind(rig):
    rig.machine.share = 0.6
    rig.append_keys([5])
    files = rig.files()
    pieces = [sorted_rows([row(key)], LAYOUT) for key in (2, 1)]
    with pytest.raises(InternalError, match="not sorted"):
        rig.spine.load(pieces, FilterPlan(2))
    assert rig.files() == files
    assert rig.held_keys() == [5]


@pytest.mark.parametrize(("pieces", "on_disk"), [(10, 0), (40, 40)])
def test_what_is_loaded_goes_to_disk_as_one_once_it_is_too_large_for_memory(tmp_path, pieces, on_disk):
    one = sorted_rows([row(0)], LAYOUT).nbytes
    rig = Rig(tmp_path, tiny(memory_budget_bytes=1 << 20, large_share=20 * one / (1 << 20)))
    rows = (sorted_rows([row(key)], LAYOUT) for key in range(pieces))
    rig.spine.load(rows, FilterPlan(1))
    report = rig.spine.report()
    assert sum(level.rows_on_disk for level in report.levels) == on_disk
    assert report.rows == pieces
    assert len(rig.files()) == (on_disk > 0)
    assert rig.held_keys() == list(range(pieces))
    rig.spine.close()


def test_readers_keep_what_they_started_with(rig):
    rig.machine.share = 0.6
    for key in range(4):
        rig.append_keys([key])
    batches, _ = rig.spine.held()
    before = len(rig.files())
    rig.merge_due()
    rig.append_keys([9])
    rig.spine.merge()
    assert len(rig.files()) > before - 1
    assert [r[0] for r in folded(batches)] == [0, 1, 2, 3]
    for batch in batches:
        batch.release()
    assert len(rig.files()) == 1


def test_the_contents_change_with_appends_and_since_only(rig):
    seen = {rig.spine.contents}
    rig.append_keys([1])
    seen.add(rig.spine.contents)
    rig.append_keys([2])
    seen.add(rig.spine.contents)
    rig.spine.merge()
    rig.spine.retain(lambda filters: filters.with_keys(pc.field("k0") > 0))
    seen.add(rig.spine.contents)
    assert len(seen) == 3
    rig.spine.advance_since(Frontier.of(1))
    moved = rig.spine.contents
    assert moved not in seen
    rig.spine.advance_since(Frontier.of(1))
    assert rig.spine.contents == moved


def test_a_closed_spine_says_so(rig):
    rig.append_keys([1])
    rig.spine.close()
    rig.spine.close()
    with pytest.raises(Closed):
        rig.append_keys([2])
    with pytest.raises(Closed):
        rig.spine.held()
    assert not rig.spine.step()


def test_closing_amid_a_merge_leaves_no_file(rig):
    rig.machine.share = 0.6
    rig.append_keys(range(0, 20_000, 2))
    rig.append_keys(range(1, 20_000, 2))
    assert rig.spine.step()
    assert len(rig.files()) == 3


def test_a_spine_without_a_directory_takes_its_own_along(tmp_path):
    spine = AsyncSpine(LAYOUT, tiny(), env=Env())
    assert Path(spine.directory).is_dir()
    spine.close()
    assert not Path(spine.directory).exists()


# Threads


def test_threads_start_with_the_first_merge_that_is_due(tmp_path):
    rig = Rig(tmp_path, tiny(merge_workers=2, process_budget_bytes=None))
    rig.append_keys([1])
    assert rig.spawner.asked == []
    rig.append_keys([2])
    rig.append_keys([3])
    assert rig.spawner.asked == ["tidelake-merger-0", "tidelake-merger-1"]
    rig.spine.close()


def test_what_never_merged_spills_by_itself_when_the_process_grows(tmp_path):
    rig = Rig(tmp_path, tiny(idle_s=0.01), spawner=ThreadSpawner())
    rig.append_keys([1, 2])
    # The rest of the process takes memory; nothing is asked of the arrangement.
    rig.machine.share = 0.8
    for _ in range(6_000):
        if rig.files():
            break
        threading.Event().wait(0.01)
    assert rig.held_keys() == [1, 2] and rig.files()
    rig.spine.close()


def test_a_cache_that_may_press_what_is_in_memory_out_is_looked_after(tmp_path):
    for cache_bytes, asked in ((0, []), (1 << 40, ["tidelake-merger-0"])):
        settings = {"memory_budget_bytes": 1 << 20, "cache_bytes": cache_bytes, "large_share": 1.0}
        rig = Rig(tmp_path / str(cache_bytes), tiny(process_budget_bytes=None, **settings))
        rig.append(*(row(key, value="x" * 4_000) for key in range(140)))
        report = rig.spine.report()
        assert report.bytes_on_disk == 0 and report.pressure == "low", report
        assert rig.spawner.asked == asked
        rig.spine.close()


def test_a_pause_waits_for_the_step_that_is_being_done(tmp_path):
    happened: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    class Ids(RandomIds):
        def fresh(self) -> str:
            if armed:
                begun.set()
                go_on.wait(30)
                happened.append("step")
            return super().fresh()

    def pause() -> None:
        rig.spine.pause()
        happened.append("paused")

    armed = False
    rig = Rig(tmp_path, ids=Ids())
    rig.append_keys([1])
    rig.append_keys([2])
    armed = True
    stepping, pausing = threading.Thread(target=rig.spine.step), threading.Thread(target=pause)
    stepping.start()
    begun.wait(30)
    pausing.start()
    # A pause that does not wait would be over by now.
    pausing.join(0.1)
    go_on.set()
    stepping.join()
    pausing.join()
    assert happened == ["step", "paused"]
    rig.spine.close()


def test_threads_merge_while_others_append_and_read(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=30))
    config = tiny(batches_max=30, idle_s=0.01, merge_workers=2)
    spine = AsyncSpine(LAYOUT, config, directory=str(tmp_path), env=Env(), machine=rig.machine)
    failures: list[BaseException] = []

    def append(start: int) -> None:
        try:
            for key in range(start, start + 300, 3):
                spine.append(sorted_rows([row(k) for k in range(key, key + 3)], LAYOUT))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(start,)) for start in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        rig.machine.share = 0.95 if rig.machine.share == 0.0 else 0.0
        batches, _ = spine.held()
        found = len(folded(batches))
        for batch in batches:
            batch.release()
        assert found >= seen
        assert found % 3 == 0
        seen = found
    for thread in threads:
        thread.join()
    assert failures == []
    spine.merge()
    batches, _ = spine.held()
    assert [r[0] for r in folded(batches)] == [k for s in (0, 1000, 2000) for k in range(s, s + 300)]
    for batch in batches:
        batch.release()
    spine.pause()
    assert not any(level.merging for level in spine.report().levels)
    spine.close()
    assert rig.files() == []

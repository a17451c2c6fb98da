"""Errors beside and below an arrangement reach the right caller, and no row comes twice."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.arrangement.arrangement_rows import sorted_rows
from tests.arrangement.spine_rig import BUDGET, LAYOUT, NoThreads, Rig, SetMachine, row, tiny
from tidelake.arrangement.batch.batch import FilterPlan
from tidelake.arrangement.read.snapshot import Snapshot
from tidelake.errors import CorruptionError, StoreUnavailable, UsageError


class FailingMachine(SetMachine):
    """A machine that at times tells nothing."""

    def __init__(self):
        super().__init__()
        self.memory_fails = self.disk_fails = False

    def resident_bytes(self):
        if self.memory_fails:
            raise OSError("too many open files")
        return super().resident_bytes()

    def free_bytes(self, directory):
        if self.disk_fails:
            raise StoreUnavailable("cannot determine the free disk space", False)
        return super().free_bytes(directory)


class NoThreadToStart(NoThreads):
    """A spawner that at times has no thread to give."""

    fails = True

    def spawn(self, name, work):
        if self.fails:
            raise RuntimeError("can't start new thread")
        return super().spawn(name, work)


@pytest.fixture(params=[0.0, 0.6], ids=["memory", "disk"])
def share(request):
    return request.param


@pytest.mark.promise(
    "An append that raises has appended nothing, and one that had to wait has appended all",
    rule="`Merger.adopt`, `Merger.wait`",
    also=["::test_what_goes_wrong_while_an_append_waits_is_told_by_the_next_one"],
)
def test_an_append_for_which_no_thread_can_be_started_appends_nothing(tmp_path, share):
    rig = Rig(tmp_path, tiny(process_budget_bytes=BUDGET if share else None), spawner=NoThreadToStart())
    rig.machine.share = share
    rig.append_keys([1])
    files, contents = rig.files(), rig.spine.contents
    for _ in range(2):
        with pytest.raises(RuntimeError, match="thread"):
            rig.append_keys([2])
    assert (rig.files(), rig.spine.contents, rig.rows()) == (files, contents, [(1, "a", 1)])
    rig.spawner.fails = False
    rig.append_keys([2])
    rig.merge_due()
    assert rig.rows() == [(1, "a", 1), (2, "a", 1)]
    rig.spine.close()


def test_an_append_amid_a_full_merge_for_which_no_thread_can_be_started_appends_nothing(tmp_path):
    rig = Rig(tmp_path, tiny(process_budget_bytes=None), spawner=NoThreadToStart())
    rig.append_keys([1])
    for ask in (rig.spine.merge_nowait, lambda: rig.append_keys([2])):
        with pytest.raises(RuntimeError, match="thread"):
            ask()
    rig.merge_due()
    assert rig.rows() == [(1, "a", 1)]
    assert rig.spine.is_merged
    rig.spine.close()


def test_an_append_whose_memory_cannot_be_measured_appends_nothing(tmp_path, share):
    rig = Rig(tmp_path, machine=FailingMachine())
    rig.machine.share = share
    rig.append_keys([1])

    def rows():
        yield sorted_rows([row(2)], LAYOUT)
        rig.machine.memory_fails = True

    with pytest.raises(OSError, match="open files"):
        rig.spine.load(rows(), FilterPlan(1))
    rig.machine.memory_fails = False
    assert rig.rows() == [(1, "a", 1)]
    assert len(rig.files()) == (share > 0)
    rig.merge_due()
    rig.spine.close()


def test_what_goes_wrong_while_an_append_waits_is_told_by_the_next_one(tmp_path):
    rig = Rig(tmp_path, tiny(batches_max=10), machine=FailingMachine())
    rig.machine.share = 0.6
    for key in range(9):
        rig.append_keys([key])
    rig.machine.disk_fails = True
    rig.spine.append(sorted_rows([row(9)], LAYOUT))
    with pytest.raises(StoreUnavailable, match="free disk space"):
        rig.spine.append(sorted_rows([row(10)], LAYOUT))
    rig.machine.disk_fails = False
    rig.spine.append(sorted_rows([row(10)], LAYOUT))
    assert rig.rows() == [(key, "a", 1) for key in range(11)]
    rig.spine.close()


def test_who_asks_whether_a_full_merge_is_done_learns_why_it_is_not(tmp_path):
    rig = Rig(tmp_path)
    mend = rig.damage()
    rig.spine.merge_nowait()
    rig.merge_due()
    with pytest.raises(CorruptionError):
        assert not rig.spine.is_merged
    rig.merge_due()
    with pytest.raises(CorruptionError):
        rig.spine.merge_nowait()
    mend()
    assert not rig.spine.is_merged
    rig.merge_due()
    assert rig.spine.is_merged
    rig.spine.close()


def test_who_asks_whether_a_full_merge_is_done_learns_that_the_disk_is_full(tmp_path):
    rig = Rig(tmp_path)
    rig.machine.share = 0.6
    rig.append_keys(range(100))
    rig.append_keys(range(100, 200))
    rig.machine.free = 10
    assert not rig.spine.is_merged
    rig.spine.merge_nowait()
    with pytest.raises(StoreUnavailable, match="no room"):
        assert not rig.spine.is_merged
    assert len(rig.held_keys()) == 200
    rig.spine.pause()
    assert not rig.spine.is_merged
    rig.spine.resume()
    rig.machine.free = 1 << 40
    rig.merge_due()
    assert rig.spine.is_merged
    rig.spine.close()


def test_a_thread_whose_merges_fail_pauses_longer_each_time(tmp_path):
    rig = Rig(tmp_path, tiny(idle_s=0.001))
    mend = rig.damage()
    pauses = []

    class Told:
        """Each look raises the error, so that the merge is tried again."""

        def wait(self, timeout):
            if pauses:
                with pytest.raises(CorruptionError):
                    rig.spine.held()
            pauses.append(timeout)
            return len(pauses) == 5

    rig.spawner.works[0](Told())
    assert pauses == [0, 0.001, 0.002, 0.004, 0.008]
    mend()
    rig.merge_due()
    assert len(rig.held_keys()) == 300
    rig.spine.close()


def test_a_filter_that_cannot_be_computed_is_named_until_another_one_is_set(tmp_path):
    rig = Rig(tmp_path)
    rig.append_keys([1])
    rig.spine.retain(lambda filters: filters.with_values(pc.field("v").cast(pa.int64()) > 3))
    rig.append_keys([2])
    rig.merge_due()
    with pytest.raises(UsageError, match=r"the filter .* fails: .*'a'"):
        rig.append_keys([3])
    for _ in range(2):
        with pytest.raises(UsageError, match=r"the filter .* fails: .*'a'"):
            seen(rig)
    rig.spine.retain(lambda filters: filters.with_values(pc.field("v") == "a"))
    rig.merge_due()
    assert seen(rig) == [1, 2]
    rig.spine.close()


def seen(rig):
    batches, rules = rig.spine.held()
    with Snapshot(LAYOUT, batches, rules.retention) as snapshot:
        for batch in batches:
            batch.release()
        return snapshot.range()["k0"].to_pylist()

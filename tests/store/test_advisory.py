"""Who has a turn, and when it ends."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clocks import SetClock
from tests.doubles.faults import SimulatedCrash
from tests.doubles.files import SimulatedDisk
from tidelake.store.advisory import AdvisoryLocks, FileAdvisoryLocks, ThreadAdvisoryLocks
from tidelake.store.files import Wait

HOLDER = """
import sys, time
from tidelake.store.advisory import FileAdvisoryLocks
with FileAdvisoryLocks(sys.argv[1]).take("a/b", "merge") as is_ours:
    print(is_ours, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def locks(tmp_path: Path) -> FileAdvisoryLocks:
    (tmp_path / "a~b").mkdir()
    (tmp_path / "c").mkdir()
    return FileAdvisoryLocks(str(tmp_path))


@pytest.fixture(params=["files", "threads"])
def either(locks: FileAdvisoryLocks, request: pytest.FixtureRequest) -> AdvisoryLocks:
    return locks if request.param == "files" else ThreadAdvisoryLocks()


@pytest.mark.promise(
    "One process of a machine at a time merges beside its appends, and no process waits for it",
    rule="`store/advisory.py`, `tend`",
    also=[
        "store/test_advisory.py",
        "shard/upkeep/test_maintain.py::test_an_append_merges_nothing_while_another_process_of_the_machine_does",
    ],
)
def test_one_at_a_time_has_a_turn(either: AdvisoryLocks) -> None:
    locks = either
    with locks.take("a/b", "merge") as first:
        with locks.take("a/b", "merge") as second:
            pass
        with locks.take("a/b", "merge") as third:
            assert (first, second, third) == (True, False, False)
    with locks.take("a/b", "merge") as fourth:
        assert fourth


def test_a_turn_is_of_one_thread_and_ends_with_an_error(either: AdvisoryLocks) -> None:
    def taken() -> bool:
        with either.take("c", "merge") as is_ours:
            return is_ours

    def failing() -> None:
        with either.take("c", "merge"):
            assert not other.submit(taken).result()
            raise KeyError

    with ThreadPoolExecutor(1) as other:
        with pytest.raises(KeyError):
            failing()
        assert other.submit(taken).result()


def test_a_fork_of_a_process_that_has_a_turn_has_none() -> None:
    locks = ThreadAdvisoryLocks()
    with locks.take("c", "merge"):
        pid = os.fork()
        if pid == 0:
            with locks.take("c", "merge") as is_ours:
                os._exit(0 if is_ours else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_turns_of_other_keys_and_names_are_others(either: AdvisoryLocks) -> None:
    locks = either
    with locks.take("a/b", "merge"), locks.take("a/b", "other") as other, locks.take("c", "merge") as key:
        assert other
        assert key


def test_a_turn_ends_with_its_process(locks: FileAdvisoryLocks, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    with locks.take("a/b", "merge") as while_it_lives:
        assert not while_it_lives
    child.kill()
    child.communicate()
    with locks.take("a/b", "merge") as afterwards:
        assert afterwards


def test_a_turn_that_was_given_up_is_not_kept_by_a_forked_child(locks: FileAdvisoryLocks) -> None:
    reading, writing = os.pipe()
    with locks.take("a/b", "merge"):
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent is done
            os._exit(0)
    with locks.take("a/b", "merge") as again:
        os.close(writing)
        os.waitpid(pid, 0)
        assert again
    os.close(reading)


def test_turns_are_kept_on_a_simulated_disk_and_end_with_their_process() -> None:
    disk = SimulatedDisk()
    first, second = disk.process(), disk.process()
    first.mkdir("/log")
    first.mkdir("/log/a")
    own = FileAdvisoryLocks("/log", first).take("a", "merge")
    assert own.__enter__()
    with FileAdvisoryLocks("/log", second).take("a", "merge") as while_it_lives:
        assert not while_it_lives
    first.kill()
    with FileAdvisoryLocks("/log", second).take("a", "merge") as afterwards:
        assert afterwards
    with pytest.raises(SimulatedCrash):
        own.__exit__(None, None, None)


def test_where_no_turn_can_be_kept_every_process_has_it(tmp_path: Path) -> None:
    locks = FileAdvisoryLocks(str(tmp_path / "missing"))
    with locks.take("a", "merge") as one, locks.take("a", "merge") as two:
        assert one
        assert two
    assert not (tmp_path / "missing").exists()


def test_a_turn_is_waited_for_and_not_without_end(either: AdvisoryLocks) -> None:
    clock = SetClock()
    with either.take("c", "commit"):
        began_s = clock.monotonic_s()
        with either.take("c", "commit", Wait(clock, 2.0)) as is_ours:
            assert not is_ours
        assert 2.0 <= clock.monotonic_s() - began_s < 2.01
    with either.take("c", "commit", Wait(clock, 2.0)) as is_ours, either.take("c", "commit") as second:
        assert (is_ours, second) == (True, False)

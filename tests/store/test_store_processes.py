"""Real processes: together, killed, and forked."""

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import store_child

from tidelake.errors import Closed, StoreUnavailable
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.framed.pool import files_allowed
from tidelake.store.local import LocalBlobStore

CHILD = [sys.executable, store_child.__file__]


def start(*args: object) -> "subprocess.Popen[str]":
    return subprocess.Popen([*CHILD, *map(str, args)], stdout=subprocess.PIPE, text=True)


def killed_after(lines_min: int, *args: object) -> list[str]:
    """What a child acknowledged before it was killed -9 in the middle of its work."""
    child = start(*args)
    lines = [child.stdout.readline() for _ in range(lines_min)]  # type: ignore[union-attr]
    time.sleep(0.002 * (lines_min % 7))
    child.kill()
    # With a timeout, `communicate` would leave out what `readline` has read ahead.
    with child.stdout as rest:  # type: ignore[union-attr]
        lines += rest
    assert child.wait(30) == -9
    return [line.rstrip("\n") for line in lines if line.endswith("\n")]


def in_fork(work: Callable[[], None]) -> int:
    """The pid of a forked child that does `work`."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


@pytest.mark.promise(
    "Of several processes and threads that write one entry, one wins; each gets its turn at the log",
    rule="`store/framed/log.py` (flock)",
    also=[
        "store/test_log_conformance.py::test_of_eight_threads_one_gets_each_seqno",
        "benchmarks/test_bench_contention.py::test_processes_that_append_to_one_shard_lose_nothing_and_all_get_a_share",
    ],
)
def test_of_four_processes_one_gets_each_seqno(tmp_path: Path) -> None:
    children = [start("cas", tmp_path, f"p{number}", 60) for number in range(4)]
    lines = [line for child in children for line in child.communicate(timeout=60)[0].splitlines()]
    assert [child.returncode for child in children] == [0] * 4
    log = FramedVersionLog(str(tmp_path))
    assert sorted(lines) == sorted(f"{entry.seqno} {entry.data.decode()}" for entry in log.scan("race", 0))
    assert len(set(lines)) == 240
    log.close()


@pytest.mark.promise(
    "An object is there whole or not at all; leftovers of a crash beside objects and logs are removed",
    rule="`store/scratch.py`, `store/framed/log.py`",
    also=[
        "store/test_power_cuts.py::test_a_killed_process_leaves_no_scratch_to_the_next_writer",
        "store/test_disk.py::test_what_a_crash_left_beside_a_key_is_ignored_and_removed",
    ],
)
def test_acknowledged_objects_survive_a_kill(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for round_ in range(6):
        acknowledged += killed_after(5 + 9 * round_, "put", tmp_path, f"r{round_}", 10**6)
    store = LocalBlobStore(str(tmp_path))
    found = [info.name for info in store.list()]
    assert set(acknowledged) <= set(found)
    assert len(acknowledged) > 100
    for name in found:
        assert store.get(name) == store_child.content(name), name
    store.put("after", b"")
    assert os.listdir(tmp_path / "~tmp") == []


@pytest.mark.full
def test_acknowledged_entries_survive_a_kill(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for round_ in range(6):
        acknowledged += killed_after(1 + 9 * round_, "cas", tmp_path, f"r{round_}", 10**6)
    log = FramedVersionLog(str(tmp_path))
    entries = log.scan("race", 0)
    assert [entry.seqno for entry in entries] == list(range(len(entries)))
    assert set(acknowledged) <= {f"{entry.seqno} {entry.data.decode()}" for entry in entries}
    assert len(acknowledged) > 100
    assert log.compare_and_set("race", entries[-1].seqno, b"goes on")
    log.close()


def test_a_killed_creation_leaves_no_key(tmp_path: Path) -> None:
    for round_ in range(8):
        child = start("cas", tmp_path, f"r{round_}", 1)
        time.sleep(0.05 + 0.005 * round_)
        child.kill()
        child.communicate(timeout=30)
    log = FramedVersionLog(str(tmp_path))
    entries = log.scan("race", 0)
    assert [entry.seqno for entry in entries] == list(range(len(entries)))
    assert log.compare_and_set("race", len(entries) - 1 if entries else None, b"goes on")
    log.close()


def test_a_limit_on_the_size_of_files_loses_nothing(tmp_path: Path) -> None:
    child = start("limited", tmp_path)
    child.communicate(timeout=60)
    assert child.returncode == 0


def test_forked_children_and_their_parent_write_together(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path))
    assert log.compare_and_set("race", None, b"first")
    done = threading.Event()
    written: list[bytes] = []

    def append(tag: str, count: int) -> None:
        for number in range(count):
            data = f"{tag}-{number}".encode()
            while True:
                head = log.head("race")
                if head is not None and log.compare_and_set("race", head.seqno, data):
                    written.append(data)
                    break

    def parent() -> None:
        rounds = 0
        while not done.is_set():
            append(f"parent{rounds}", 5)
            rounds += 1

    thread = threading.Thread(target=parent)
    thread.start()
    children = []
    for number in range(6):
        children.append(in_fork(lambda number=number: append(f"child{number}", 25)))  # type: ignore[misc]
        time.sleep(0.02)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    done.set()
    thread.join()
    assert statuses == [0] * 6
    entries = log.scan("race", 0)
    log.close()
    again = FramedVersionLog(str(tmp_path))
    assert again.scan("race", 0) == entries
    again.close()
    assert [entry.seqno for entry in entries] == list(range(len(entries)))
    data = [entry.data for entry in entries]
    assert len(set(data)) == len(data) == 1 + 6 * 25 + len(written)
    assert set(written) <= set(data)


def test_a_child_goes_on_after_its_parent_closed_the_log(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path))
    assert log.compare_and_set("k", None, b"0")
    reader, writer = os.pipe()

    def work() -> None:
        assert log.compare_and_set("k", 0, b"1")  # opens files of its own
        os.read(reader, 1)  # until the parent has closed its own
        for seqno in range(1, 50):
            assert log.compare_and_set("k", seqno, b"%d" % (seqno + 1))

    pid = in_fork(work)
    while len(log.scan("k", 0)) < 2:
        time.sleep(0.01)
    log.close()
    os.write(writer, b"x")
    assert os.waitpid(pid, 0)[1] == 0
    again = FramedVersionLog(str(tmp_path))
    assert [entry.data for entry in again.scan("k", 0)] == [b"%d" % number for number in range(51)]
    again.close()


@pytest.mark.promise(
    "A fork closes the files of its parent and opens its own; parent and children write together",
    rule="`store/framed/pool.py`",
    also=["::test_forked_children_and_their_parent_write_together"],
)
def test_a_fork_has_no_files_of_its_parent_open_and_opens_its_own(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path))
    for number in range(5):
        assert log.compare_and_set(f"k{number}", None, b"")
        assert log.head(f"k{number}") is not None

    def open_files() -> list[str]:
        links = []
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            except FileNotFoundError:
                continue
        return [link for link in links if str(tmp_path) in link]

    assert len(open_files()) == 15

    def work() -> None:
        assert open_files() == []
        assert log.head("k3") is not None

    assert os.waitpid(in_fork(work), 0)[1] == 0
    log.close()
    assert open_files() == []


def test_few_files_are_open_for_many_keys(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path), opened_max=8)
    for number in range(40):
        assert log.compare_and_set(f"k/{number}", None, b"%d" % number)
    for number in range(40):
        assert log.head(f"k/{number}") is not None
    links = [f"/proc/self/fd/{descriptor}" for descriptor in os.listdir("/proc/self/fd")]
    # Of this log only: other tests of the same process may have left theirs open.
    opened = [os.readlink(link) for link in links if os.path.exists(link)]
    files = [path for path in opened if path.startswith(str(tmp_path)) and path.endswith("/log")]
    assert 0 < len(files) <= 8
    log.close()


def test_a_pool_keeps_as_many_files_as_the_limit_on_descriptors_allows(monkeypatch):
    given = {256: 48, 1024: 85, 4096: 341, 1 << 20: 1024, resource.RLIM_INFINITY: 1024}
    for limit, files in given.items():
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert files_allowed() == files


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path))
    log.close()
    with pytest.raises(Closed, match="open it again"):
        log.head("k")


@pytest.mark.promise(
    "A write waits for the lock of a log as long as `retry_deadline_s`, and then says which process "
    "has it, such as one that is stopped",
    rule="`FramedVersionLog._take`",
    also=["::test_a_wait_for_another_thread_that_writes_ends"],
)
def test_a_wait_for_the_lock_of_a_log_ends_and_says_which_process_has_it(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path), wait_s=0.05)
    assert log.compare_and_set("k", None, b"0")
    child = os.fork()
    if not child:
        with log._locked("k"):
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(child, os.WUNTRACED)
        for write in (
            lambda: log.compare_and_set("k", 0, b"1"),
            lambda: log.truncate("k", 0),
            lambda: log.delete("k"),
            lambda: log.mend("k", ()),
        ):
            with pytest.raises(StoreUnavailable, match=f"process {child} has held .*lock'"):
                write()
        assert [entry.data for entry in log.scan("k", 0)] == [b"0"]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert log.compare_and_set("k", 0, b"1")


def test_a_wait_for_another_thread_that_writes_ends(tmp_path: Path) -> None:
    log = FramedVersionLog(str(tmp_path), wait_s=0.05)
    assert log.compare_and_set("k", None, b"0")
    with log._locked("k"), pytest.raises(StoreUnavailable, match="another thread"):
        log.compare_and_set("k", 0, b"1")
    assert log.compare_and_set("k", 0, b"1")


def test_a_log_that_is_dropped_without_a_close_keeps_no_files_open(tmp_path: Path) -> None:
    def opened() -> int:
        return sum(
            os.path.exists(f"/proc/self/fd/{one}") and str(tmp_path) in os.readlink(f"/proc/self/fd/{one}")
            for one in os.listdir("/proc/self/fd")
        )

    log = FramedVersionLog(str(tmp_path))
    for n in range(12):
        assert log.compare_and_set(f"k{n}", None, b"0")
    reader = FramedVersionLog(str(tmp_path), read_only=True)
    assert [reader.scan(f"k{n}", 0) for n in range(12)] and opened() == 60
    del log, reader
    gc.collect()
    assert opened() == 0

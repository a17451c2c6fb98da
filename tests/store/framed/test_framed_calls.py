"""What a commit and a look cost, and what a log that stays open notices of others."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doubles.files import SimulatedDisk
from tidelake.errors import CorruptionError, StoreUnavailable, SymbolicLink
from tidelake.store.framed.frames import Published
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.protocols import Entry


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FramedVersionLog]:
    """A log with two entries, open."""
    log = FramedVersionLog(str(tmp_path / "log"), wait_s=0.05)
    assert log.compare_and_set("k", None, b"zero") and log.compare_and_set("k", 0, b"one")
    yield log
    log.close()


def test_a_commit_and_a_look_make_few_calls_of_the_system() -> None:
    calls: list[str] = []
    log = FramedVersionLog("/lake/log", files=SimulatedDisk().process(calls.append))

    def made(work: Callable[[], object]) -> list[str]:
        calls.clear()
        assert work()
        return [call.removeprefix("file.") for call in calls]

    assert log.compare_and_set("k", None, b"0") and log.compare_and_set("k", 0, b"1")
    look = ["pread", "pread"]
    write = ["lock", "lstat", "lstat", "lstat", *look, "pwrite", "datasync", "pwrite", "unlock"]
    assert made(lambda: log.compare_and_set("k", 1, b"2")) == write
    assert made(lambda: log.head("k")) == ["lstat", *look]
    assert made(lambda: log.newer("k", 2) == []) == ["lstat", *look]
    log.close()


def test_a_look_costs_no_more_after_another_process_has_written() -> None:
    disk, calls = SimulatedDisk(), list[str]()
    writer = FramedVersionLog("/lake/log", files=disk.process())
    reader = FramedVersionLog("/lake/log", files=disk.process(calls.append))
    assert writer.compare_and_set("k", None, b"0") and reader.head("k") == Entry(0, b"0")
    assert writer.compare_and_set("k", 0, b"1") and reader.head("k") == Entry(1, b"1")
    calls.clear()
    assert reader.head("k") == Entry(1, b"1")
    assert calls == ["file.lstat", "file.pread", "file.pread"]


def test_a_lock_file_that_is_removed_keeps_nothing_from_excluding_others(
    tmp_path: Path, log: FramedVersionLog
) -> None:
    (tmp_path / "log" / "k" / "lock").unlink()
    other = FramedVersionLog(str(tmp_path / "log"))
    with other._locked("k"), pytest.raises(StoreUnavailable, match="cannot lock"):
        log.compare_and_set("k", 1, b"two")
    assert other.compare_and_set("k", 1, b"two") and log.compare_and_set("k", 2, b"three")
    assert [entry.data for entry in other.scan("k", 2)] == [b"two", b"three"]
    other.close()


def test_an_open_log_is_not_extended_after_damage_to_its_newest_entry(
    tmp_path: Path, log: FramedVersionLog
) -> None:
    path = tmp_path / "log" / "k" / "log"
    path.write_bytes(path.read_bytes().replace(b"one", b"0ne"))
    for call in (lambda: log.compare_and_set("k", 1, b"two"), lambda: log.head("k")):
        with pytest.raises(CorruptionError, match="entry 1"):
            call()


def test_an_open_log_takes_in_what_a_killed_process_left(tmp_path: Path, log: FramedVersionLog) -> None:
    record = tmp_path / "log" / "k" / "published"
    before = record.read_bytes()
    other = FramedVersionLog(str(tmp_path / "log"))
    assert other.compare_and_set("k", 1, b"two")
    other.close()
    record.write_bytes(before)
    assert log.compare_and_set("k", 1, b"another") is False
    assert log.head("k") == Entry(2, b"two")


def test_a_record_that_is_removed_is_made_again_where_others_find_it(
    tmp_path: Path, log: FramedVersionLog
) -> None:
    (tmp_path / "log" / "k" / "published").unlink()
    assert log.compare_and_set("k", 1, b"two")
    known = Published.decode((tmp_path / "log" / "k" / "published").read_bytes())
    assert known is not None and known.seqno == 2


@pytest.mark.parametrize(
    "change", [lambda log: log.truncate("k", 1), lambda log: log.delete("k"), lambda log: log.mend("k", ())]
)
def test_an_open_log_puts_no_file_behind_a_link(
    tmp_path: Path, log: FramedVersionLog, change: Callable[[FramedVersionLog], object]
) -> None:
    folder = tmp_path / "log" / "k"
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    before = sorted(os.listdir(folder))
    with pytest.raises(SymbolicLink):
        change(log)
    assert sorted(os.listdir(folder)) == before


def test_a_fork_that_python_did_not_make_takes_no_lock_of_its_parent(log: FramedVersionLog) -> None:
    child = ctypes.PyDLL(None).fork()
    if not child:
        try:
            log.compare_and_set("k", 1, b"two")
            os._exit(1)
        except StoreUnavailable as error:
            os._exit(0 if "not by Python" in str(error) else 2)
        finally:
            os._exit(3)
    with log._locked("k"):
        assert os.waitpid(child, 0)[1] == 0
        other = FramedVersionLog(log.root, wait_s=0.05)
        with pytest.raises(StoreUnavailable, match="cannot lock"):
            other.compare_and_set("k", 1, b"two")
        other.close()
    assert log.head("k") == Entry(1, b"one")

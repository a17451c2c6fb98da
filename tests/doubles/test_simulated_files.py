"""What a power cut may and may not take from a simulated disk."""

from collections.abc import Callable
from random import Random

import pytest

from tests.doubles.faults import SimulatedCrash
from tests.doubles.files import SimulatedDisk, SimulatedFiles

Contents = dict[str, bytes | None]
"""Paths of files with their bytes, and of folders with `None`."""


def write(files: SimulatedFiles, path: str, data: bytes, *, flushed: bool = True) -> None:
    descriptor = files.create(path)
    files.write(descriptor, memoryview(data))
    if flushed:
        files.fsync(descriptor)
    files.close(descriptor)


def flush(files: SimulatedFiles, path: str) -> None:
    descriptor = files.open(path)
    files.fsync(descriptor)
    files.close(descriptor)


def contents(files: SimulatedFiles, folder: str = "") -> Contents:
    found: Contents = {}
    for name, is_folder in files.scan(folder or "/"):
        path = f"{folder}/{name}"
        if is_folder:
            found |= {path: None, **contents(files, path)}
        else:
            with files.reader(files.open(path)) as file:
                found[path] = file.read()
    return found


def after_power_cuts(work: Callable[[SimulatedFiles], None], cuts: int = 300) -> list[Contents]:
    """What was left after `work` and a power cut, each different outcome once."""
    outcomes: list[Contents] = []
    for seed in range(cuts):
        disk = SimulatedDisk()
        work(disk.process())
        disk.crash(Random(seed))
        found = contents(disk.process())
        if found not in outcomes:
            outcomes.append(found)
    return outcomes


def test_what_was_flushed_stays() -> None:
    def work(files: SimulatedFiles) -> None:
        files.mkdir("/a")
        write(files, "/a/file", b"data")
        files.link("/a/file", "/a/other")
        flush(files, "/a")
        flush(files, "/")
        files.unlink("/a/other")
        flush(files, "/a")

    assert after_power_cuts(work) == [{"/a": None, "/a/file": b"data"}]


def test_bytes_that_were_not_flushed_are_lost_cut_zero_or_whole() -> None:
    def work(files: SimulatedFiles) -> None:
        write(files, "/file", b"abc", flushed=False)
        flush(files, "/")

    found = {outcome["/file"] for outcome in after_power_cuts(work)}
    # The length is kept or lost apart from the bytes.
    assert found == {b"", b"a", b"ab", b"abc", b"\0", b"\0\0", b"\0\0\0"}


def test_bytes_before_a_flush_stay_whatever_comes_after() -> None:
    def work(files: SimulatedFiles) -> None:
        descriptor = files.create("/file")
        files.write(descriptor, memoryview(b"ab"))
        files.fsync(descriptor)
        files.write(descriptor, memoryview(b"cd"))
        flush(files, "/")

    found = {outcome["/file"] for outcome in after_power_cuts(work)}
    assert found == {b"ab", b"abc", b"abcd", b"ab\0", b"ab\0\0"}


def test_changes_of_entries_are_lost_independently_of_each_other() -> None:
    def work(files: SimulatedFiles) -> None:
        write(files, "/old", b"old")
        flush(files, "/")
        files.unlink("/old")
        write(files, "/new", b"new")
        files.mkdir("/folder")

    whole = {"/old": b"old", "/new": b"new", "/folder": None}
    outcomes = after_power_cuts(work)
    assert len(outcomes) == 8
    assert all(outcome.items() <= whole.items() for outcome in outcomes)


def test_an_entry_is_as_it_was_at_some_moment_since_the_flush() -> None:
    def work(files: SimulatedFiles) -> None:
        write(files, "/a", b"first")
        write(files, "/b", b"second")
        flush(files, "/")
        files.unlink("/a")
        files.link("/b", "/a")

    found = [outcome.get("/a") for outcome in after_power_cuts(work)]
    assert len(found) == 3
    assert set(found) == {b"first", b"second", None}


def test_a_flushed_folder_goes_with_its_own_entry() -> None:
    def work(files: SimulatedFiles) -> None:
        files.mkdir("/a")
        files.mkdir("/a/b")
        write(files, "/a/b/file", b"data")
        flush(files, "/a/b")
        flush(files, "/a")

    assert sorted(after_power_cuts(work), key=len) == [{}, {"/a": None, "/a/b": None, "/a/b/file": b"data"}]


def test_a_file_of_two_names_is_one_file_after_a_power_cut() -> None:
    for seed in range(100):
        disk = SimulatedDisk()
        files = disk.process()
        write(files, "/a", b"content", flushed=False)
        files.link("/a", "/b")
        flush(files, "/")
        disk.crash(Random(seed))
        found = contents(disk.process())
        assert found["/a"] == found["/b"]


def test_what_a_power_cut_left_is_durable() -> None:
    for seed in range(100):
        disk = SimulatedDisk()
        files = disk.process()
        for name in "abc":
            write(files, f"/{name}", b"content", flushed=False)
        disk.crash(Random(seed))
        found = contents(disk.process())
        disk.crash(Random(seed + 1))
        assert contents(disk.process()) == found


def test_a_skipped_flush_loses_what_it_should_have_kept() -> None:
    def outcomes(disk: Callable[[], SimulatedDisk]) -> set[bytes | None]:
        found = set()
        for seed in range(100):
            machine = disk()
            files = machine.process()
            write(files, "/file", b"abc")
            flush(files, "/")
            machine.crash(Random(seed))
            found.add(contents(machine.process()).get("/file"))
        return found

    assert outcomes(SimulatedDisk) == {b"abc"}
    assert outcomes(lambda: SimulatedDisk(skipped_flush="folder")) == {b"abc", None}
    assert outcomes(lambda: SimulatedDisk(skipped_flush="file")) > {b"", b"a", b"ab", b"\0\0\0", b"abc"}


def test_a_killed_process_loses_its_locks_and_nothing_that_it_wrote() -> None:
    disk = SimulatedDisk()
    first, second = disk.process(), disk.process()
    descriptor = first.create("/file")
    first.write(descriptor, memoryview(b"data"))
    assert first.lock(descriptor)
    opened = second.open("/file")
    assert not second.lock(opened)
    first.kill()
    assert second.lock(opened)
    assert contents(second) == {"/file": b"data"}
    with pytest.raises(SimulatedCrash):
        first.unlink("/file")
    first.close(descriptor)
    assert contents(second) == {"/file": b"data"}

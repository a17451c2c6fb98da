"""What the disk may do: be full, fail to flush, hold damaged files."""

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clocks import RecordingClock
from tidelake.env import RandomIds
from tidelake.errors import BlobExists, OutcomeUnknown, StoreUnavailable
from tidelake.store.files import SystemFiles, no_flush
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.layers import BlobLayer
from tidelake.store.local import LocalBlobStore
from tidelake.store.protocols import Entry
from tidelake.store.retrying import Retry, draw_from


class Flushes:
    """Flushes for real, notes what, and fails at the calls that it is told."""

    def __init__(self, *failing: int) -> None:
        self.paths: list[str] = []
        self.failing = failing

    def __call__(self, descriptor: int) -> None:
        self.paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if len(self.paths) in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        os.fsync(descriptor)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.promise(
    "A full disk loses nothing acknowledged",
    rule="`KeyFile.write`",
    also=["::test_a_log_on_a_full_disk_keeps_what_it_acknowledged", "::test_a_log_is_read_on_a_full_disk"],
)
def test_a_put_on_a_full_disk_leaves_nothing(small_disk: Path, clock: RecordingClock) -> None:
    local = LocalBlobStore(str(small_disk / "blobs"))
    store = BlobLayer(local, Retry(clock, 30.0, draw_from(RandomIds())).layer)
    store.put("a/small", b"x" * 1000)
    with pytest.raises(StoreUnavailable, match=r"'a/big': no space left on device.*free space") as caught:
        store.put("a/big", b"x" * 1_000_000)
    assert clock.pauses == []
    assert isinstance(caught.value.__cause__, OSError)
    assert [info.name for info in store.list()] == ["a/small"]
    assert os.listdir(small_disk / "blobs" / "~tmp") == []
    store.put("a/fits", b"y" * 100_000)


def test_a_log_on_a_full_disk_keeps_what_it_acknowledged(small_disk: Path) -> None:
    log = FramedVersionLog(str(small_disk / "log"))
    count = 0

    def fill() -> None:
        nonlocal count
        while log.compare_and_set("k", count - 1 if count else None, b"%d " % count * 2000):
            count += 1

    with pytest.raises(StoreUnavailable, match="no space left on device; free space") as caught:
        fill()
    assert not caught.value.retryable
    assert count > 5
    assert len(log.scan("k", 0)) == count
    assert not log.compare_and_set("k", count, b"")
    with pytest.raises(StoreUnavailable, match="no space"):
        log.compare_and_set("other", None, b"z" * 400_000)
    assert list(log.keys()) == ["k"]
    log.close()
    again = FramedVersionLog(str(small_disk / "log"))
    assert [entry.seqno for entry in again.scan("k", 0)] == list(range(count))
    again.close()


def test_a_log_is_read_on_a_full_disk(small_disk: Path) -> None:
    log = FramedVersionLog(str(small_disk / "log"))
    assert log.compare_and_set("k", None, b"0")
    log.close()
    filler = small_disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(small_disk).free)
    again = FramedVersionLog(str(small_disk / "log"))
    assert again.head("k") == Entry(0, b"0")
    with pytest.raises(StoreUnavailable, match="cannot write key 'k': no space left on device") as caught:
        again.compare_and_set("k", 0, b"1" * 100_000)
    assert not caught.value.retryable
    filler.unlink()
    assert again.compare_and_set("k", 0, b"1" * 100_000)
    again.close()


@pytest.mark.promise(
    "An object is flushed before its folders, and folders before the answer",
    rule="`store/local.py`",
    also=["::test_an_existing_object_is_durable_before_it_is_reported"],
)
def test_the_file_is_flushed_before_its_folders(tmp_path: Path) -> None:
    flushes = Flushes()
    store = LocalBlobStore(str(tmp_path / "new" / "root"), SystemFiles(flushes))
    store.put("a/b/c", b"x")
    shown = [os.path.relpath(path, tmp_path) for path in flushes.paths]
    *folders, file, last = shown
    assert folders == ["..", ".", "new", "new/root", "new/root/a"]
    assert file.startswith("new/root/~tmp/")
    assert last == "new/root/a/b"
    flushes.paths.clear()
    store.put("a/b/d", b"x")
    assert len(flushes.paths) == 2
    other = Flushes()  # another process cannot know what the first one flushed
    LocalBlobStore(store.root, SystemFiles(other)).put("a/b/e", b"x")
    assert [os.path.relpath(path, tmp_path) for path in other.paths][:3] == ["new", "new/root", "new/root/a"]


def test_a_folder_above_the_root_that_cannot_be_flushed_is_passed_over(tmp_path: Path) -> None:
    def flush(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path):
            raise OSError(errno.EINVAL, "Invalid argument")
        os.fsync(descriptor)

    (tmp_path / "mount").mkdir()
    store = LocalBlobStore(str(tmp_path / "mount" / "root"), SystemFiles(flush))
    store.put("a/b", b"x")
    assert store.get("a/b") == b"x"
    with pytest.raises(StoreUnavailable, match="invalid argument"):
        LocalBlobStore(str(tmp_path / "new"), SystemFiles(flush)).put("a", b"x")


def test_empty_folders_are_pruned_durably_and_others_stay(tmp_path: Path) -> None:
    flushes = Flushes()
    root = tmp_path / "blobs"
    store = LocalBlobStore(str(root), SystemFiles(flushes))
    for name in ("a/b/c", "a/b/d", "a/e", "f/g"):
        store.put(name, b"x")
    store.prune("a")
    assert [info.name for info in store.list()] == ["a/b/c", "a/b/d", "a/e", "f/g"]
    store.delete("a/b/c")
    store.delete("a/b/d")
    store.prune("a")
    assert not (root / "a/b").exists() and (root / "a/e").exists()
    store.delete("a/e")
    flushes.paths.clear()
    store.prune("a")
    assert flushes.paths == [str(root / "a"), str(root)]
    store.prune("a")
    assert sorted(path.name for path in root.iterdir()) == ["f", "~tmp"]
    # What is put there makes it again, as durably as the first time.
    flushes.paths.clear()
    store.put("a/b/c", b"y")
    assert [str(root), str(root / "a"), str(root / "a/b")] == [
        p for p in dict.fromkeys(flushes.paths) if "~tmp" not in p
    ]
    assert store.get("a/b/c") == b"y"


def test_what_is_put_beside_a_prune_is_there(tmp_path: Path) -> None:
    stores = [LocalBlobStore(str(tmp_path / "blobs"), SystemFiles(no_flush)) for _ in range(4)]
    done, failures = threading.Event(), list[BaseException]()

    def put(store: LocalBlobStore, who: int) -> None:
        try:
            for n in range(300):
                name = f"a/b/{who}-{n}"
                while True:
                    try:
                        store.put(name, b"x")
                        break
                    except StoreUnavailable:
                        continue  # its folders went one after the other: tried again, as the layer above does
                assert store.get(name) == b"x"
                assert store.delete(name)
        except BaseException as error:
            failures.append(error)

    def prune() -> None:
        try:
            while not done.is_set():
                stores[-1].prune("a")
        except BaseException as error:
            failures.append(error)

    pruning = threading.Thread(target=prune)
    putting = [threading.Thread(target=put, args=(store, who)) for who, store in enumerate(stores[:3])]
    for thread in (pruning, *putting):
        thread.start()
    for thread in putting:
        thread.join(120)
    done.set()
    pruning.join(120)
    assert not failures
    stores[-1].prune("a")
    assert not (tmp_path / "blobs/a").exists()


def test_an_existing_object_is_durable_before_it_is_reported(tmp_path: Path) -> None:
    LocalBlobStore(str(tmp_path)).put("a/b", b"x")
    flushes = Flushes()
    with pytest.raises(BlobExists):
        LocalBlobStore(str(tmp_path), SystemFiles(flushes)).put("a/b", b"x")
    assert flushes.paths[-1] == str(tmp_path / "a")


def test_a_failed_flush_of_the_file_leaves_nothing(tmp_path: Path) -> None:
    flushes = Flushes(2)
    store = LocalBlobStore(str(tmp_path), SystemFiles(flushes))
    with pytest.raises(StoreUnavailable, match="'a': input/output error") as caught:
        store.put("a", b"x")
    assert caught.value.retryable
    assert list(store.list()) == []
    assert os.listdir(tmp_path / "~tmp") == []
    store.put("a", b"x")  # another file
    assert store.get("a") == b"x"


@pytest.mark.promise("A failed flush is never retried", rule="`Folders`")
def test_a_failed_flush_of_the_folder_is_unknown_and_not_repeated(
    tmp_path: Path, clock: RecordingClock
) -> None:
    flushes = Flushes(3)
    local = LocalBlobStore(str(tmp_path), SystemFiles(flushes))
    with pytest.raises(OutcomeUnknown, match="may have happened"):
        local.put("a", b"x")
    assert len(flushes.paths) == 3
    for call in (lambda: local.put("a", b"x"), lambda: local.put("b", b"x"), lambda: local.delete("a")):
        with pytest.raises(StoreUnavailable, match="check the disk") as caught:
            call()
        assert not caught.value.retryable
    assert local.get("a") == b"x"
    assert len(flushes.paths) == 3

    flushes = Flushes(3)
    retry = Retry(clock, 30.0, draw_from(RandomIds()))
    retrying = BlobLayer(LocalBlobStore(str(tmp_path), SystemFiles(flushes)), retry.layer)
    with pytest.raises(OutcomeUnknown, match="check the disk"):
        retrying.put("c", b"x")
    assert len(flushes.paths) == 3


def test_a_new_key_whose_folder_is_not_flushed_is_unknown(tmp_path: Path) -> None:
    flushes = Flushes(4)
    log = FramedVersionLog(str(tmp_path), files=SystemFiles(flushes))
    with pytest.raises(OutcomeUnknown, match="'k'"):
        log.compare_and_set("k", None, b"x")
    new = str(tmp_path / "k" / "new")
    assert flushes.paths == [str(tmp_path.parent), str(tmp_path), new, str(tmp_path / "k")]
    assert log.head("k") == Entry(0, b"x")
    log.close()
    again = FramedVersionLog(str(tmp_path))
    assert again.compare_and_set("k", 0, b"y")
    again.close()


def test_a_new_key_whose_file_is_not_flushed_is_not_there(tmp_path: Path) -> None:
    flushes = Flushes(3)
    log = FramedVersionLog(str(tmp_path), files=SystemFiles(flushes))
    with pytest.raises(StoreUnavailable, match="'k'"):
        log.compare_and_set("k", None, b"x")
    assert log.head("k") is None
    assert log.compare_and_set("k", None, b"y")
    assert log.head("k") == Entry(0, b"y")
    log.close()


def test_the_first_append_flushes_the_folder_of_a_key_that_others_made(tmp_path: Path) -> None:
    flushes, others = Flushes(), Flushes()
    log = FramedVersionLog(str(tmp_path), files=SystemFiles(flushes))
    assert log.compare_and_set("k", None, b"x")
    flushes.paths.clear()
    assert log.compare_and_set("k", 0, b"y")
    assert flushes.paths == [str(tmp_path / "k" / "log")]  # the folder was flushed when the key was made
    other = FramedVersionLog(str(tmp_path), files=SystemFiles(others))
    assert other.compare_and_set("k", 1, b"z")
    assert str(tmp_path / "k") in others.paths
    log.close()
    other.close()


@pytest.mark.promise(
    "A log that another process deleted and created again is noticed", rule="`store/framed/log.py`"
)
def test_a_key_that_another_process_made_anew_is_seen(tmp_path: Path) -> None:
    first, second = FramedVersionLog(str(tmp_path)), FramedVersionLog(str(tmp_path))
    assert first.compare_and_set("k", None, b"old")
    assert second.head("k") == Entry(0, b"old")
    assert first.delete("k")
    assert second.head("k") is None
    assert first.compare_and_set("k", None, b"new")
    assert second.compare_and_set("k", 0, b"newer")
    assert first.scan("k", 0) == [Entry(0, b"new"), Entry(1, b"newer")]
    first.close()
    assert second.compare_and_set("k", 1, b"newest")
    second.close()
    assert len(FramedVersionLog(str(tmp_path)).scan("k", 0)) == 3


def test_what_a_crash_left_beside_a_key_is_ignored_and_removed(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "new").write_bytes(b"half")
    log = FramedVersionLog(str(tmp_path))
    assert log.head("k") is None
    assert list(log.keys()) == []
    assert log.compare_and_set("k", None, b"x")
    assert sorted(os.listdir(tmp_path / "k")) == ["lock", "log", "published"]
    log.close()

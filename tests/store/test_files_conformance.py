"""What every `Files` must do, real or simulated."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles.files import SimulatedDisk
from tidelake.store.files import Files, SystemFiles, exists, is_file_at


def simulated(root: str) -> Files:
    files = SimulatedDisk().process()
    made = ""
    for name in root.strip("/").split("/"):
        made += "/" + name
        files.mkdir(made)
    return files


FILES: dict[str, Callable[[str], Files]] = {"system": lambda root: SystemFiles(), "simulated": simulated}


class Place:
    """A folder with the file `file` that holds `content`, and the empty folder `folder`."""

    def __init__(self, files: Files, root: str) -> None:
        self.files, self.root = files, root
        self.make("file", b"content")
        files.mkdir(self("folder"))

    def __call__(self, name: str) -> str:
        return f"{self.root}/{name}"

    def make(self, name: str, data: bytes) -> None:
        descriptor = self.files.create(self(name))
        rest = memoryview(data)
        while rest:
            rest = rest[self.files.write(descriptor, rest) :]
        self.files.close(descriptor)

    def content(self, name: str) -> bytes:
        with self.files.reader(self.files.open(self(name))) as file:
            return file.read()

    def names(self, folder: str = "") -> list[tuple[str, bool]]:
        return sorted(self.files.scan(self(folder).rstrip("/")))


@pytest.fixture(params=FILES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(FILES[request.param](str(tmp_path)), str(tmp_path))


def refusal(call: Callable[[], object]) -> tuple[type[OSError], int]:
    with pytest.raises(OSError, match="Errno") as caught:
        call()
    return type(caught.value), caught.value.errno or 0


MISSING = (FileNotFoundError, errno.ENOENT)
TAKEN = (FileExistsError, errno.EEXIST)
BELOW_FILE = (NotADirectoryError, errno.ENOTDIR)
BAD = (OSError, errno.EBADF)


def test_what_was_written_is_read_back(place: Place) -> None:
    files = place.files
    assert place.content("file") == b"content"
    descriptor = files.open(place("file"))
    assert files.pread(descriptor, 3, 2) == b"nte"
    assert files.pread(descriptor, 99, 4) == b"ent"
    assert files.pread(descriptor, 1, 7) == b""
    assert files.pread(descriptor, 1, 70) == b""
    files.close(descriptor)
    assert place.names() == [("file", False), ("folder", True)]
    assert place.names("folder") == []


def test_a_reader_seeks_and_takes_over_the_descriptor(place: Place) -> None:
    descriptor = place.files.open(place("file"))
    with place.files.reader(descriptor) as file:
        assert file.seek(-3, os.SEEK_END) == 4
        assert file.read() == b"ent"
        assert file.seek(1) == 1
        assert file.read(2) == b"on"
        assert file.tell() == 3
    assert refusal(lambda: place.files.pread(descriptor, 1, 0)) == BAD


def test_new_names_need_a_folder_and_must_be_free(place: Place) -> None:
    files = place.files
    for make in (
        lambda name: files.create(place(name)),
        lambda name: files.mkdir(place(name)),
        lambda name: files.link(place("file"), place(name)),
    ):
        assert refusal(lambda: make("file")) == TAKEN  # noqa: B023 - called at once
        assert refusal(lambda: make("folder")) == TAKEN  # noqa: B023
        assert refusal(lambda: make("missing/new")) == MISSING  # noqa: B023
        assert refusal(lambda: make("file/new")) == BELOW_FILE  # noqa: B023
    assert place.names() == [("file", False), ("folder", True)]


def test_a_folder_is_removed_when_it_is_empty(place: Place) -> None:
    files = place.files
    files.mkdir(place("folder/below"))
    assert refusal(lambda: files.rmdir(place("folder"))) == (OSError, errno.ENOTEMPTY)
    files.rmdir(place("folder/below"))
    files.rmdir(place("folder"))
    assert place.names() == [("file", False)]
    assert refusal(lambda: files.rmdir(place("folder"))) == MISSING
    assert refusal(lambda: files.rmdir(place("file"))) == BELOW_FILE
    files.mkdir(place("folder"))
    assert place.names("folder") == []


def test_what_is_missing_is_said_to_be_missing(place: Place) -> None:
    files = place.files
    for look in (files.open, files.lstat, files.unlink, files.scan):
        assert refusal(lambda: look(place("missing"))) == MISSING  # noqa: B023 - called at once
        assert refusal(lambda: look(place("missing/below"))) == MISSING  # noqa: B023
        assert refusal(lambda: look(place("file/below"))) == BELOW_FILE  # noqa: B023
    assert refusal(lambda: files.link(place("missing"), place("new"))) == MISSING
    assert refusal(lambda: files.link(place("missing"), place("file"))) == MISSING
    for name in ("missing", "file/below"):
        assert not exists(files, place(name))
        assert not files.isdir(place(name))


def test_files_and_folders_are_told_apart(place: Place) -> None:
    files = place.files
    assert files.isdir(place("folder"))
    assert not files.isdir(place("file"))
    assert stat.S_ISREG(files.lstat(place("file")).st_mode)
    assert stat.S_ISDIR(files.lstat(place("folder")).st_mode)
    assert refusal(lambda: files.scan(place("file"))) == BELOW_FILE
    assert refusal(lambda: files.unlink(place("folder"))) == (IsADirectoryError, errno.EISDIR)
    assert refusal(lambda: files.link(place("folder"), place("new"))) == (PermissionError, errno.EPERM)
    assert refusal(lambda: files.link(place("folder"), place("file"))) == TAKEN
    folder = files.open(place("folder"))
    assert stat.S_ISDIR(files.fstat(folder).st_mode)
    assert refusal(lambda: files.pread(folder, 1, 0)) == (IsADirectoryError, errno.EISDIR)
    files.fsync(folder)
    files.close(folder)


def test_a_link_is_the_same_file(place: Place) -> None:
    files = place.files
    files.link(place("file"), place("folder/again"))
    assert os.path.samestat(files.lstat(place("file")), files.lstat(place("folder/again")))
    files.unlink(place("file"))
    assert place.content("folder/again") == b"content"
    assert place.names() == [("folder", True)]


def test_an_opened_file_outlives_its_name(place: Place) -> None:
    files = place.files
    descriptor = files.open(place("file"))
    assert is_file_at(files, descriptor, place("file"))
    files.unlink(place("file"))
    assert not is_file_at(files, descriptor, place("file"))
    place.make("file", b"another")
    assert not is_file_at(files, descriptor, place("file"))
    assert files.pread(descriptor, 99, 0) == b"content"
    files.close(descriptor)


def test_a_status_has_size_and_time(place: Place) -> None:
    files = place.files
    descriptor = files.open(place("file"))
    for status in (files.fstat(descriptor), files.lstat(place("file"))):
        assert status.st_size == 7
        assert status.st_mtime_ns > 10**18
        assert status.st_mtime_ns // 10**9 == int(status.st_mtime)
    files.close(descriptor)


def test_a_descriptor_is_good_for_what_it_was_opened_for(place: Place) -> None:
    files = place.files
    reading, writing = files.open(place("file")), files.create(place("new"))
    assert refusal(lambda: files.write(reading, memoryview(b"x"))) == BAD
    assert refusal(lambda: files.pread(writing, 1, 0)) == BAD
    files.fsync(reading)
    files.fsync(writing)
    files.close(reading)
    files.close(writing)
    for call in (files.close, files.fsync, files.fstat, files.lock, files.unlock):
        assert refusal(lambda: call(reading)) == BAD  # noqa: B023 - called at once


def test_a_lock_belongs_to_one_descriptor_until_it_is_closed(place: Place) -> None:
    files = place.files
    first, second = files.open(place("file")), files.open(place("file"))
    assert files.lock(first)
    assert files.lock(first)
    assert not files.lock(second)
    files.close(first)
    assert files.lock(second)
    files.close(second)


def test_a_lock_is_given_up_by_the_descriptor_that_has_it(place: Place) -> None:
    files = place.files
    first, second = files.open(place("file")), files.open(place("file"))
    assert files.lock(first)
    files.unlock(second)
    assert not files.lock(second)
    files.unlock(first)
    assert files.lock(second)
    files.unlock(first)
    assert not files.lock(first)
    files.close(first)
    files.close(second)

"""Directories of checkpoints: complete or not to be seen, on disks that lose what was not flushed, too."""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.doubles.faults import SimulatedCrash
from tests.doubles.files import SimulatedDisk
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory
from tidelake.arrangement.checkpoint.saved import Checkpoint, SavedBatch
from tidelake.errors import (
    CorruptionError,
    FormatTooNew,
    IncompatibleSchema,
    OutcomeUnknown,
    StoreUnavailable,
    SymbolicLink,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Column, DataType, Schema
from tidelake.model.time import TimeDomain
from tidelake.store.files import SYSTEM_FILES, SystemFiles
from tiers import examples

SCHEMA = Schema((Column(0, "k", DataType("int64")),), (Column(1, "v", DataType("string")),))
DOMAIN = TimeDomain("counter")


def wanted(content, names):
    """A checkpoint of batches whose files hold their own names, repeated."""
    batches = tuple(SavedBatch(name, len(name), 0, len(bytes_of(name))) for name in names)
    return Checkpoint(0, content, 7, SCHEMA, DOMAIN, Frontier.of(3), batches, None, "a")


def bytes_of(name):
    return name.encode() * 50


def write(files, path, data):
    descriptor = files.create(path)
    files.write(descriptor, memoryview(data))
    files.close(descriptor)


def read(files, path):
    with files.reader(files.open(path)) as reader:
        return reader.read()


def saved_by(directory, checkpoint, source):
    return directory.save(checkpoint, lambda known: checkpoint.batches, source)


class Live:
    """A folder of batch files, and the directory that they are saved in."""

    def __init__(self, root, files=SYSTEM_FILES):
        self.files, self.folder = files, os.path.join(root, "live")
        self.path = os.path.join(root, "saved")
        files.mkdir(self.folder)
        self.directory = CheckpointDirectory(self.path, files)

    def batch(self, name):
        path = os.path.join(self.folder, name)
        if name not in dict(self.files.scan(self.folder)):
            write(self.files, path, bytes_of(name))
        return path

    def save(self, content, *names):
        return saved_by(self.directory, wanted(content, names), self.batch)

    def restored(self, number=None):
        """Content and files of a checkpoint, from a fresh folder."""
        folder = f"{self.path}-restored-{number}"
        os.mkdir(folder)
        found, paths = CheckpointDirectory(self.path, self.files).restore(folder, number)
        return found.content, {name: read(self.files, path) for name, path in paths.items()}

    def saved_files(self):
        return sorted(os.listdir(os.path.join(self.path, "batches")))


@pytest.fixture
def live(tmp_path):
    return Live(str(tmp_path))


def files_of(*names):
    return {name: bytes_of(name) for name in names}


def test_what_was_saved_is_restored(live):
    saved = live.save("one", "a", "b")

    assert saved.is_new and saved.checkpoint.number == 1 and saved.files_added == 2
    assert live.restored() == ("one", files_of("a", "b"))


def test_files_are_shared_by_saves_and_restores(live, tmp_path):
    live.save("one", "a")
    (tmp_path / "again").mkdir()
    _, paths = live.directory.restore(str(tmp_path / "again"))

    links = {os.stat(path).st_ino for path in (live.batch("a"), f"{live.path}/batches/a", paths["a"])}
    assert len(links) == 1


def test_a_file_lasts_as_long_as_one_name_of_it(live, tmp_path):
    live.save("one", "a")
    os.unlink(live.batch("a"))
    (tmp_path / "again").mkdir()
    _, paths = live.directory.restore(str(tmp_path / "again"))
    live.save("two", "b")
    live.save("three", "c")
    live.save("four", "d")

    assert live.saved_files() == ["c", "d"]
    assert read(SYSTEM_FILES, paths["a"]) == bytes_of("a")


def test_the_last_two_are_kept(live):
    live.save("one", "a", "b")
    live.save("two", "b", "c")
    live.save("three", "c", "d")

    assert [c.content for c in live.directory.checkpoints()] == ["two", "three"]
    assert live.saved_files() == ["b", "c", "d"]
    assert live.restored(2) == ("two", files_of("b", "c"))
    with pytest.raises(UsageError, match=r"no checkpoint 1 in .* \(there: 2, 3\)"):
        live.restored(1)


@pytest.mark.promise(
    "Names and links in a directory of checkpoints lead to no file outside of it: names are plain, "
    "no symbolic link is followed, a batch is a regular file, and a file of another user is copied",
    rule="`arrangement/checkpoint/checkpoint.py`",
    also=[
        "::test_no_symbolic_link_in_a_directory_of_checkpoints_is_followed",
        "::test_what_is_no_file_is_no_batch",
        "::test_files_of_another_user_are_copied",
    ],
)
@pytest.mark.parametrize("name", ["../../planted/cron", "..", "/absolute", "a/b", "lock\0", "~tmp/x", ""])
def test_a_list_with_a_forged_name_creates_no_file(live, tmp_path, name):
    live.save("one", "a")
    (tmp_path / "planted").mkdir()
    inside = {path for path in tmp_path.rglob("*") if path.name != "live-restored"}
    forged = replace(wanted("one", ["a"]), number=1, batches=(SavedBatch(name, 1, 0, 50),))
    listed = tmp_path / "saved" / "checkpoint-00000001.list"
    listed.write_bytes(forged.to_bytes())

    into = tmp_path / "into"
    into.mkdir()
    for ask in (live.directory.checkpoints, lambda: live.directory.restore(str(into))):
        with pytest.raises(CorruptionError, match="is not a plain name"):
            ask()
    with pytest.raises(CorruptionError, match="is not a plain name"):
        live.save("two", "b")
    assert {path for path in tmp_path.rglob("*") if path != into} >= inside
    assert not list(into.iterdir()) and not list((tmp_path / "planted").iterdir())


LINKED = ["batches", "batches/a", "checkpoint-00000001.list", "lock"]


@pytest.mark.parametrize("name", LINKED)
def test_no_symbolic_link_in_a_directory_of_checkpoints_is_followed(live, tmp_path, name):
    live.save("one", "a")
    outside, link = tmp_path / "outside", tmp_path / "saved" / name
    link.rename(outside)
    if outside.is_dir():
        (outside / "precious").write_bytes(b"of somebody else")
    link.symlink_to(outside)
    into = tmp_path / "into"
    into.mkdir()

    if name != "lock":
        with pytest.raises(SymbolicLink, match=name.split("/")[0]):
            live.directory.restore(str(into))
    # A save takes what is listed as it is: it removes and adds names, and reads no file.
    if name != "batches/a":
        with pytest.raises(SymbolicLink, match=name):
            live.save("two", "b")
        with pytest.raises(SymbolicLink, match=name):
            live.directory.discard(lambda _: True)
    assert not list(into.iterdir())
    assert outside.is_file() or (outside / "precious").exists()


def test_what_is_no_file_is_no_batch(live, tmp_path):
    live.save("one", "a")
    os.unlink(f"{live.path}/batches/a")
    os.mkfifo(f"{live.path}/batches/a")
    with pytest.raises(CorruptionError, match="it is not a file"):
        live.restored()


def test_files_of_another_user_are_copied(tmp_path):
    class OthersFiles(SystemFiles):
        def lstat(self, path):
            found = super().lstat(path)
            return os.stat_result([*found[:4], os.geteuid() + 1, *found[5:10]])

    live = Live(str(tmp_path), OthersFiles())
    live.save("one", "a")
    (tmp_path / "again").mkdir()
    _, paths = live.directory.restore(str(tmp_path / "again"))

    assert read(SYSTEM_FILES, paths["a"]) == bytes_of("a")
    assert os.stat(paths["a"]).st_ino != os.stat(f"{live.path}/batches/a").st_ino


def test_equal_contents_are_not_saved_again(live):
    live.save("one", "a", "b")
    # Merged meanwhile: other files, the same updates.
    saved = live.save("one", "ab")

    assert not saved.is_new and saved.checkpoint.number == 1
    assert live.saved_files() == ["a", "b"]


def test_only_files_that_are_not_there_yet_are_added(live):
    live.save("one", "a", "b")
    assert live.save("two", "b", "c").files_added == 1


def test_what_a_save_left_over_is_removed_by_the_next(live):
    live.save("one", "a")
    write(SYSTEM_FILES, f"{live.path}/batches/half", b"x")
    write(SYSTEM_FILES, f"{live.path}/strange.txt", b"x")
    live.save("two", "b")

    assert live.saved_files() == ["a", "b"]
    assert os.path.exists(f"{live.path}/strange.txt")


def test_a_file_that_a_failed_save_cut_short_is_not_taken_for_its_batch(live):
    live.save("one", "a")
    write(SYSTEM_FILES, f"{live.path}/batches/b", b"cut short")
    live.save("two", "a", "b")

    assert live.restored() == ("two", files_of("a", "b"))


def test_nothing_saved_is_no_checkpoint(live, tmp_path):
    assert live.directory.checkpoints() == []
    with pytest.raises(UsageError, match="no checkpoint of an arrangement in"):
        live.restored()


@pytest.mark.promise(
    "A directory whose lists are gone is refused, and a damaged file is named",
    rule="`arrangement/checkpoint/checkpoint.py`, `arrangement/batch/fileformat.py`",
    also=[
        "::test_a_damaged_list_is_named_and_nothing_is_removed",
        "arrangement/checkpoint/test_saving.py::test_damaged_files_are_named",
    ],
)
def test_lists_that_are_gone_while_files_are_there_are_damage(live):
    live.save("one", "a")
    live.save("two", "b")
    for name in os.listdir(live.path):
        if name.endswith(".list"):
            os.unlink(f"{live.path}/{name}")

    for call in (live.directory.checkpoints, lambda: live.save("three", "c"), live.restored):
        with pytest.raises(CorruptionError, match="lists of checkpoints are missing"):
            call()
    assert live.saved_files() == ["a", "b"]


def test_a_first_save_that_was_cut_short_is_no_damage(live):
    class Full(SystemFiles):
        def link(self, path, name):
            if "/batches/" in name:
                raise OSError(errno.ENOSPC, "full", name)
            super().link(path, name)

    with pytest.raises(StoreUnavailable, match="free space"):
        saved_by(CheckpointDirectory(live.path, Full()), wanted("one", ["a"]), live.batch)
    assert live.directory.checkpoints() == []
    assert live.save("two", "a").is_new


@pytest.mark.parametrize("damage", [b"", b"x", b"\x00" * 40])
def test_a_damaged_list_is_named_and_nothing_is_removed(live, damage):
    live.save("one", "a")
    live.save("two", "b")
    name = f"{live.path}/checkpoint-00000002.list"
    with open(name, "r+b") as file:
        file.truncate(0)
        file.write(damage)

    for call in (live.directory.checkpoints, lambda: live.save("three", "c"), live.restored):
        with pytest.raises(CorruptionError) as caught:
            call()
        assert caught.value.name == name
    assert live.saved_files() == ["a", "b"]
    assert live.restored(1) == ("one", files_of("a"))


def test_a_list_of_a_newer_format_is_refused(live):
    live.save("one", "a")
    name = f"{live.path}/checkpoint-00000001.list"
    with open(name, "rb") as file:
        data = file.read()
    with open(name, "wb") as file:
        file.write(data.replace(b"tidelake:arrangement 1 ", b"tidelake:arrangement 99 ", 1))

    with pytest.raises(FormatTooNew):
        live.save("two", "b")


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_batch_file_that_is_not_whole_is_named(live, damage):
    live.save("one", "a")
    name = f"{live.path}/batches/a"
    if damage == "missing":
        os.unlink(name)
    else:
        os.truncate(name, 3)

    with pytest.raises(CorruptionError) as caught:
        live.restored()
    assert caught.value.name == name


def test_a_batch_that_is_damaged_before_it_is_saved_is_not_saved(live):
    live.save("one", "a")
    os.truncate(live.batch("b"), 5)

    with pytest.raises(CorruptionError):
        live.save("two", "b")
    assert live.restored() == ("one", files_of("a"))


def test_other_columns_are_saved_elsewhere(live):
    live.save("one", "a")
    other = replace(wanted("two", []), schema=Schema(SCHEMA.key))

    with pytest.raises(IncompatibleSchema, match="save in another directory"):
        saved_by(live.directory, other, live.batch)


def test_one_process_saves_at_a_time(live):
    live.save("one", "a")
    holder = SYSTEM_FILES.open(f"{live.path}/lock")
    assert SYSTEM_FILES.lock(holder)
    try:
        with pytest.raises(StoreUnavailable, match="another process is saving there"):
            live.save("two", "b")
    finally:
        SYSTEM_FILES.close(holder)
    assert live.save("two", "b").is_new


def test_without_hard_links_files_are_copied(tmp_path):
    class Copying(SystemFiles):
        def link(self, path, name):
            if "~tmp" not in path:
                raise OSError(errno.EXDEV, "no links", path)
            super().link(path, name)

    live = Live(str(tmp_path), Copying())
    saved = live.save("one", "a", "b")

    assert saved.bytes_copied == sum(len(bytes_of(name)) for name in "ab")
    assert live.restored() == ("one", files_of("a", "b"))


def test_a_flush_that_fails_after_the_list_was_written_leaves_open_whether_it_is_saved(live):
    class Failing(SystemFiles):
        def fsync(self, descriptor):
            if os.path.exists(f"{live.path}/checkpoint-00000001.list"):
                raise OSError(errno.EIO, "broken", live.path)
            super().fsync(descriptor)

    with pytest.raises(OutcomeUnknown, match="it may have happened"):
        saved_by(CheckpointDirectory(live.path, Failing()), wanted("one", ["a"]), live.batch)
    assert not live.save("one", "a").is_new


def test_old_files_that_cannot_be_removed_do_not_undo_a_save(live):
    class Sticky(SystemFiles):
        def unlink(self, path):
            if path.endswith(".list"):
                raise OSError(errno.EACCES, "no", path)
            super().unlink(path)

    live.save("one", "a")
    saved = saved_by(CheckpointDirectory(live.path, Sticky()), wanted("two", ["b"]), live.batch)

    assert saved.is_new and "grant this user access" in saved.left
    assert live.restored() == ("two", files_of("b"))
    live.save("three", "c")
    assert [c.number for c in live.directory.checkpoints()] == [2, 3]


@dataclass(frozen=True)
class SavingLife:
    """A process that saves some sets of batches, until it is killed before the so-manieth operation."""

    saves: list[frozenset[str]]
    operations: int
    power_cut: int | None


LIVES = st.lists(
    st.builds(
        SavingLife,
        st.lists(st.frozensets(st.sampled_from("abcd"), max_size=3), max_size=4),
        st.integers(0, 15) | st.integers(16, 150),
        st.none() | st.integers(0, 2**32),
    ),
    max_size=7,
)


class LostCheckpoint(AssertionError):
    pass


class SavedHistory:
    """What the newest checkpoint may be, by what was acknowledged and what was begun."""

    def __init__(self, skipped_flush: Literal["file", "folder"] | None = None) -> None:
        self.disk = SimulatedDisk(skipped_flush=skipped_flush)
        self.possible = {("", frozenset())}
        self.saves = self.folders = 0

    def live(self, life):
        left = life.operations

        def before(operation):
            nonlocal left
            left -= 1
            if left < 0:
                raise SimulatedCrash(operation)

        with suppress(SimulatedCrash):
            self._saves(life, self.disk.process(before))
        if life.power_cut is not None:
            self.disk.crash(Random(life.power_cut))
        newest = self.check()
        # Without a power cut what can be seen may still be lost in the next one.
        if life.power_cut is not None:
            self.possible = {newest}

    def _saves(self, life, files):
        live = self._folder(files)
        for names in life.saves:
            self.saves += 1
            # Each batch file is one of its own.
            mine = {f"{name}{self.saves % 2}": f"{live}/{self.saves}-{name}" for name in sorted(names)}
            for name, path in mine.items():
                write(files, path, bytes_of(name))
            content = f"contents {sorted(mine)}"
            saved = (content, frozenset(mine))
            self.possible = {*self.possible, saved}
            saved_by(CheckpointDirectory("/saved", files), wanted(content, sorted(mine)), mine.__getitem__)
            self.possible = {saved}
            kept = CheckpointDirectory("/saved", files).checkpoints()
            if len(kept) > 2:
                raise LostCheckpoint(f"{len(kept)} are kept")

    def _folder(self, files):
        self.folders += 1
        files.mkdir(path := f"/{self.folders}")
        return path

    def check(self):
        files = self.disk.process()
        directory = CheckpointDirectory("/saved", files)
        found = directory.checkpoints()
        newest = ("", frozenset())
        for checkpoint in found:
            restored, paths = directory.restore(self._folder(files), checkpoint.number)
            newest = (restored.content, frozenset(paths))
            for name, path in paths.items():
                if read(files, path) != bytes_of(name):
                    raise LostCheckpoint(f"{name} of {checkpoint.number}")
        if newest not in self.possible:
            raise LostCheckpoint(f"{newest} is none of {self.possible}")
        return newest


@pytest.mark.promise(
    "A checkpoint is complete or invisible, after a kill and after a power cut; the last two are kept",
    rule="`arrangement/checkpoint/checkpoint.py`",
    also=[
        "::test_a_flush_that_is_left_out_is_found",
        "::test_the_last_two_are_kept",
        "arrangement/checkpoint/test_saving.py::test_nothing_is_lost_when_the_process_is_killed_while_it_saves",
    ],
)
@settings(max_examples=examples(100))
@given(LIVES)
def test_a_crash_leaves_the_last_checkpoint_or_the_new_one_whole(lives):
    history = SavedHistory()
    for life in lives:
        history.live(life)


@pytest.mark.parametrize("killed_at", range(24, 34))
def test_a_save_again_of_what_a_killed_process_saved_is_durable(killed_at):
    for seed in range(6):
        history = SavedHistory()
        files = history.disk.process()
        first = CheckpointDirectory("/saved", files)
        with pytest.raises(StoreUnavailable, match="no such file"):
            saved_by(first, wanted("never", ["a"]), lambda name: "/gone")
        history.live(SavingLife([frozenset()], killed_at, None))
        saved_by(first, wanted("contents []", []), lambda name: name)
        history.possible = {("contents []", frozenset())}
        history.live(SavingLife([], 0, seed))


@pytest.mark.parametrize("skipped", ["file", "folder"])
def test_a_flush_that_is_left_out_is_found(skipped):
    @settings(max_examples=2_000, phases=[Phase.generate], database=None)
    @given(LIVES)
    def search(lives):
        history = SavedHistory(skipped)
        for life in lives:
            history.live(life)

    with pytest.raises((LostCheckpoint, CorruptionError)):
        search()

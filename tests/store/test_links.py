"""Symbolic links in a lake: nothing outside of it is made, changed or removed, and errors name the link."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tidelake
from tidelake.arrangement.arrangement import Arrangement
from tidelake.config import Config
from tidelake.errors import BlobNotFound, SymbolicLink
from tidelake.store.advisory import FileAdvisoryLocks
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.local import LocalBlobStore
from tidelake.store.protocols import BlobStore, VersionLog

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def seen(folder: Path) -> dict[str, tuple[bytes, int]]:
    """What is in a folder: files with their bytes and the time of their change, and folders."""
    return {
        str(path.relative_to(folder)): (b"" if path.is_dir() else path.read_bytes(), path.lstat().st_mtime_ns)
        for path in [folder, *sorted(folder.rglob("*"))]
    }


def move_out(path: Path, outside: Path) -> Path:
    """Put a link in the place of something, which is outside from now on."""
    target = outside / path.name
    shutil.move(path, target)
    path.symlink_to(target)
    return path


def refused(link: Path, *calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(SymbolicLink) as caught:
            call()
        assert str(link) in str(caught.value) and "replace it by" in str(caught.value)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside" / "precious").mkdir(parents=True)
    (tmp_path / "outside" / "precious" / "file").write_bytes(b"mine")
    return tmp_path / "outside"


def blobs(root: Path) -> LocalBlobStore:
    return LocalBlobStore(str(root / "blobs"), base=str(root))


def log(root: Path) -> FramedVersionLog:
    return FramedVersionLog(str(root / "log"), base=str(root))


@pytest.mark.promise(
    "Nothing outside a lake is made, changed or removed through a symbolic link inside it; the "
    "error names the link. The root of the lake, and the folders above it, may be links",
    rule="`refuse_links` in `store/files.py`",
    also=["store/test_links.py"],
)
@pytest.mark.parametrize("place", ["blobs", "blobs/a", "blobs/a/parts"])
def test_no_object_is_written_removed_or_listed_behind_a_link(
    tmp_path: Path, outside: Path, place: str
) -> None:
    root = tmp_path / "lake"
    blobs(root).put("a/parts/x", b"x")
    link = move_out(root / place, outside)
    before, store = seen(outside), blobs(root)

    refused(
        link,
        lambda: store.put("a/parts/y", b"y"),
        lambda: store.put("a/parts/x", b"x"),
        lambda: store.delete("a/parts/x"),
        lambda: store.prune("a/parts"),
        lambda: list(store.list("a/parts/")),
    )
    if place == "blobs":
        refused(link, lambda: list(store.list()), lambda: store.put("b", b"b"))
    else:
        assert list(store.list()) == []
        store.put("b", b"b")
    assert seen(outside) == before


def test_no_folder_is_removed_behind_a_link_that_stands_below_it(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "lake"
    blobs(root).put("a/x", b"x")
    (root / "blobs" / "a" / "parts").symlink_to(outside)
    (outside / "empty").mkdir()
    before = seen(outside)
    blobs(root).delete("a/x")
    blobs(root).prune("a")
    assert seen(outside) == before


def test_files_that_are_being_written_are_never_behind_a_link(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "lake"
    blobs(root).put("a", b"a")
    link = root / "blobs" / "~tmp"
    link.rmdir()
    link.symlink_to(outside / "precious")
    before = seen(outside)
    refused(link, lambda: blobs(root).put("b", b"b"))
    assert seen(outside) == before

    link.unlink()
    link.mkdir()
    # As one that a crash left, whose sweep must not take what it leads to.
    (link / "1-0").symlink_to(outside / "precious" / "file")
    blobs(root).put("b", b"b")
    assert seen(outside) == before


def test_a_link_in_the_place_of_an_object_is_none(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "lake"
    blobs(root).put("a", b"a")
    link, before = root / "blobs" / "b", seen(outside)
    link.symlink_to(outside / "precious" / "file")
    store = blobs(root)
    refused(link, lambda: store.put("b", b"b"))
    assert store.delete("b") is False and [info.name for info in store.list()] == ["a"]
    assert seen(outside) == before


def entries(store: VersionLog) -> list[Callable[[], object]]:
    """All that touches a key."""
    return [
        lambda: store.head("k"),
        lambda: store.scan("k", 0),
        lambda: store.compare_and_set("k", 0, b"1"),
        lambda: store.compare_and_set("k", None, b"1"),
        lambda: store.truncate("k", 0),
        lambda: store.delete("k"),
    ]


@pytest.mark.parametrize("place", ["log", "log/k"])
def test_no_entry_is_read_written_or_removed_behind_a_link(tmp_path: Path, outside: Path, place: str) -> None:
    root = tmp_path / "lake"
    first = log(root)
    assert first.compare_and_set("k", None, b"0")
    first.close()
    link = move_out(root / place, outside)
    before, store = seen(outside), log(root)
    refused(link, *entries(store))
    if place == "log/k":
        # It is not gone: what it names may not be collected.
        assert list(store.keys()) == ["k"]
    with FileAdvisoryLocks(str(root / "log"), base=str(root)).take("k", "merge") as is_ours:
        assert is_ours
    assert seen(outside) == before
    store.close()


def test_a_link_in_the_place_of_a_log_or_lock_is_not_followed(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "lake"
    first = log(root)
    assert first.compare_and_set("k", None, b"0")
    first.close()
    for name in ("log", "published"):
        path = move_out(root / "log" / "k" / name, outside)
        before, store = seen(outside), log(root)
        refused(path, *entries(store))
        assert seen(outside) == before
        store.close()
        path.unlink()
        shutil.move(outside / name, path)
    lock = root / "log" / "k" / "lock"
    lock.unlink()
    lock.symlink_to(outside / "not there")
    store = log(root)
    refused(lock, lambda: store.compare_and_set("k", 0, b"1"), lambda: store.delete("k"))
    assert not (outside / "not there").exists() and store.head("k") is not None
    store.close()


def test_a_pipe_in_the_place_of_an_object_blocks_no_reader(tmp_path: Path) -> None:
    store: BlobStore = LocalBlobStore(str(tmp_path))
    os.mkfifo(tmp_path / "a")
    with pytest.raises(BlobNotFound):
        store.get("a")


@pytest.mark.parametrize("place", ["blobs", "log", "blobs/{id}", "log/{id}", "blobs/~tmp"])
def test_neither_a_drop_nor_a_collection_touches_what_is_outside(
    tmp_path: Path, outside: Path, place: str
) -> None:
    config = Config(inline_part_bytes=0)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(pa.table({"id": [1], "v": ["x"]}, SCHEMA))
        link = tmp_path / "lake" / place.format(id=c.id)
    move_out(link, outside)
    (link / "left over").write_bytes(b"mine")
    before = seen(outside)

    def dropped() -> None:
        with tidelake.open(tmp_path / "lake", config=config) as lake:
            lake.drop("c")
            lake.collect()

    def written() -> None:
        with tidelake.open(tmp_path / "lake", config=config) as lake:
            lake.collection("c").append(pa.table({"id": [2], "v": ["y"]}, SCHEMA))

    refused(link, written, dropped)
    assert seen(outside) == before


@pytest.mark.parametrize("place", ["log/{id}", "blobs/{id}"])
def test_a_check_names_the_link_and_a_repair_changes_nothing_there(
    tmp_path: Path, outside: Path, place: str
) -> None:
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        for name in ("c", "other"):
            lake.create(name, SCHEMA, key=["id"]).append(pa.table({"id": [1], "v": ["x"]}, SCHEMA))
        link = tmp_path / "lake" / place.format(id=lake.collection("c").id)
    move_out(link, outside)
    before = seen(outside)
    with tidelake.open(tmp_path / "lake") as lake:
        for repair in (False, True, False):
            (finding,) = lake.fsck(repair=repair).findings
            assert (finding.kind, finding.object) == ("symbolic-link", str(link))
        assert lake.collection("other").snapshot().read_all().num_rows == 1
    assert seen(outside) == before
    link.unlink()
    shutil.move(outside / link.name, link)
    with tidelake.open(tmp_path / "lake") as lake:
        assert lake.fsck().clean and lake.collection("c").snapshot().read_all().num_rows == 1


def test_a_lake_whose_root_is_a_link_is_a_lake_like_others(tmp_path: Path) -> None:
    (tmp_path / "disk" / "lake").mkdir(parents=True)
    (tmp_path / "lake").symlink_to(tmp_path / "disk" / "lake")
    (tmp_path / "above").symlink_to(tmp_path / "disk")
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(pa.table({"id": [1], "v": ["x"]}, SCHEMA))
    with tidelake.open(tmp_path / "above" / "lake") as lake:
        assert lake.collection("c").snapshot().read_all()["id"].to_pylist() == [1]
        assert lake.fsck().clean
        lake.drop("c")
        lake.collect()


@pytest.mark.parametrize("place", ["batches", "lock", "~tmp"])
def test_no_checkpoint_is_saved_behind_a_link(tmp_path: Path, outside: Path, place: str) -> None:
    saved = tmp_path / "saved"
    with Arrangement.create(SCHEMA, key=["id"]) as arrangement:
        arrangement.append(pa.table({"id": [1], "v": ["x"], "_time": [0]}))
        arrangement.save(saved)
        link = move_out(saved / place, outside)
        before = seen(outside)
        arrangement.append(pa.table({"id": [2], "v": ["x"], "_time": [0]}))
        refused(link, lambda: arrangement.save(saved))
        assert seen(outside) == before
        link.unlink()
        shutil.move(outside / place, link)
        (tmp_path / "link").symlink_to(saved)
        assert arrangement.save(tmp_path / "link").is_new

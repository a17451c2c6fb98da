"""Files of batches: what damage does to them, when they can be seen, and when they go."""

import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from arrangement_rows import COUNTER, file_batch, layout, plain, sorted_rows

from tidelake.arrangement.batch.batch import FilterPlan
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.filebuilder import FileBuilder
from tidelake.arrangement.batch.fileformat import FORMAT, MAGIC
from tidelake.arrangement.batch.files import FileBatch, open_batch
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.memory import MemoryBuilder
from tidelake.errors import CorruptionError, FormatTooNew, InternalError, StoreUnavailable, UsageError

OF = layout("pair", COUNTER)
ROWS = sorted_rows([((f"k{i % 7}", i, "a", 0.5), i % 3, 1 if i % 4 else -1) for i in range(60)], OF)


def written(folder: Path, name: str = "one") -> Path:
    """A file that stays when its batch is let go of."""
    batch = file_batch(ROWS, OF, folder, name)
    assert isinstance(batch, FileBatch)
    batch.owner.keep()
    batch.release()
    return folder / f"{name}.batch"


def opened(path: Path, **other: object) -> FileBatch:
    return open_batch(str(path), OF, BlockCache(1 << 20), delete=False)


def test_a_file_that_is_opened_again_is_the_batch_that_was_built(tmp_path: Path) -> None:
    built = file_batch(ROWS, OF, tmp_path, "one")
    assert built is not None
    batch = opened(tmp_path / "one.batch")
    for name in (
        "id",
        "rows",
        "negative_rows",
        "size_bytes",
        "memory_bytes",
        "key_lower",
        "key_upper",
        "blocks",
    ):
        assert getattr(batch, name) == getattr(built, name), name
    assert batch.block_starts.tolist() == built.block_starts.tolist()
    assert plain(pa.Table.from_batches(batch.scan())) == plain(ROWS)
    asked = Keys.of_values([("k3", i) for i in range(60)], OF)
    assert plain(batch.lookup(asked)) == plain(built.lookup(asked))
    assert batch.may_hold(asked).tolist() == built.may_hold(asked).tolist()
    batch.release()
    built.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise(
    "A damaged byte of a file never gives wrong rows: an error names the file",
    rule="`arrangement/batch/fileformat.py`",
)
def test_no_flipped_byte_goes_unnoticed(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    everything = Keys.sorted_from(ROWS, OF)
    # Every byte of the end, which says where everything is; of the rest a prime number is skipped each time.
    for at in (*range(len(MAGIC), len(whole) - 60, 13), *range(len(whole) - 60, len(whole))):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises((CorruptionError, FormatTooNew), match=r"one\.batch"):
            opened(path).lookup(everything)


@pytest.mark.parametrize("share", [0, 0.3, 0.6, 0.99])
def test_a_file_that_was_cut_off_is_named(share: float, tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(CorruptionError, match=r"one\.batch"):
        opened(path)
    assert path.exists()


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = bytearray(path.read_bytes())
    struct.pack_into("<I", whole, len(whole) - 12, FORMAT + 1)
    path.write_bytes(whole)
    with pytest.raises(FormatTooNew, match="has format 2 and this Tidelake reads up to 1"):
        opened(path)


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(UsageError, match="holds key"):
        open_batch(str(path), layout("int"), BlockCache(1 << 20), delete=True)
    assert path.exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot open '.*none\.batch'"):
        opened(tmp_path / "none.batch")


@pytest.mark.promise(
    "A file is visible under its name only when it is whole, and is deleted with its last user",
    rule="`arrangement/batch/filebuilder.py`, `arrangement/batch/files.py`",
    also=["::test_a_file_goes_with_its_last_user_and_stays_if_it_is_to_be_kept"],
)
def test_a_file_is_seen_under_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    builder = FileBuilder(OF, str(tmp_path), "one", FilterPlan(60), BlockCache(1 << 20))
    builder.add(ROWS)
    assert [path.name for path in tmp_path.iterdir()] == ["one.batch.tmp"]
    batch = builder.finish()
    builder.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ["one.batch"]
    assert batch is not None
    batch.release()


@pytest.mark.parametrize("rows", [ROWS, OF.empty])
def test_what_is_abandoned_leaves_nothing_behind(rows: pa.RecordBatch, tmp_path: Path) -> None:
    builder = FileBuilder(OF, str(tmp_path), "one", FilterPlan(60), BlockCache(1 << 20))
    builder.add(rows)
    if rows.num_rows:
        builder.abandon()
        builder.abandon()
    else:
        assert builder.finish() is None
    assert list(tmp_path.iterdir()) == []


def test_rows_that_come_before_others_are_refused(tmp_path: Path) -> None:
    for builder in (
        MemoryBuilder(OF, "m"),
        FileBuilder(OF, str(tmp_path), "f", FilterPlan(60), BlockCache(1 << 20)),
    ):
        builder.add(ROWS.slice(10))
        with pytest.raises(InternalError, match="not sorted"):
            builder.add(ROWS.slice(0, 10))
        builder.abandon()


def test_a_file_goes_with_its_last_user_and_stays_if_it_is_to_be_kept(tmp_path: Path) -> None:
    batch = file_batch(ROWS, OF, tmp_path, "one")
    assert isinstance(batch, FileBatch)
    batch.acquire()
    batch.release()
    assert (tmp_path / "one.batch").exists()
    batch.release()
    assert not (tmp_path / "one.batch").exists()
    for use in (batch.release, batch.acquire):
        with pytest.raises(InternalError, match=r"one\.batch"):
            use()
    assert written(tmp_path, "two").exists()


def test_rows_in_memory_do_not_hold_the_table_that_they_are_a_slice_of() -> None:
    large = sorted_rows([((f"k{i}", i, "a" * 100, 0.5), 0, 1) for i in range(2000)], OF)
    builder = MemoryBuilder(OF, "m")
    builder.add(large.slice(500, 10))
    batch = builder.finish()
    assert batch is not None
    assert batch.block(0).get_total_buffer_size() < large.nbytes / 20
    assert plain(batch.block(0)) == plain(large)[500:510]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process grows past so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 4, 200, 1500])
def test_a_disk_that_is_full_is_told_and_nothing_is_left_behind(room: int, tmp_path: Path) -> None:
    def build() -> None:
        builder = FileBuilder(OF, str(tmp_path), "one", FilterPlan(60), BlockCache(1 << 20))
        builder.add(ROWS)
        builder.finish()

    with pytest.raises(StoreUnavailable, match=r"cannot write '.*one\.batch'"), room_for(room):
        build()
    assert list(tmp_path.iterdir()) == []
    build()
    assert [path.name for path in tmp_path.iterdir()] == ["one.batch"]

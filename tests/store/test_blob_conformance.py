"""What every `BlobStore` must do."""

import io
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tidelake.errors import BlobExists, BlobNotFound, UsageError
from tidelake.store.protocols import BlobStore

BAD_NAMES = [
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", "a b", "a\\b", "a\0", "a\n",
    "~tmp/x", "ä", "a/日本", "٣", "a:b", "a*", "x" * 241,
]  # fmt: skip


@pytest.mark.promise(
    "Every store keeps the contracts of blob stores and version logs",
    rule="`store/protocols.py`",
    also=[
        "store/test_blob_conformance.py",
        "store/test_log_conformance.py",
        "store/test_store_model.py::test_a_blob_store_is_a_dictionary",
        "store/test_store_model.py::test_a_version_log_is_a_dictionary_of_lists",
    ],
)
class TestBlobs:
    def test_what_was_put_is_read_back(self, blobs: BlobStore) -> None:
        blobs.put("s0/p-1.parquet", b"0123456789")
        assert blobs.get("s0/p-1.parquet") == b"0123456789"

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, None, b"0123456789"), (3, 4, b"3456"), (7, None, b"789"), (8, 10, b"89"), (10, 1, b""),
         (99, None, b""), (99, 5, b""), (4, 0, b"")],
    )  # fmt: skip
    def test_a_range_gives_what_there_is(
        self, blobs: BlobStore, start: int, length: int | None, expected: bytes
    ) -> None:
        blobs.put("a", b"0123456789")
        assert blobs.get("a", start, length) == expected

    def test_several_ranges_give_what_each_of_them_gives(self, blobs: BlobStore) -> None:
        blobs.put("a", b"0123456789")
        ranges = [(7, 9), (0, 2), (1, 4), (4, 0), (10, 1), (99, 5), (0, 10)]
        assert blobs.get_ranges("a", ranges) == [blobs.get("a", *each) for each in ranges]
        assert blobs.get_ranges("a", []) == []
        with pytest.raises(BlobNotFound, match="missing"):
            blobs.get_ranges("missing", [(0, 1)])

    def test_a_negative_range_is_refused(self, blobs: BlobStore) -> None:
        blobs.put("a", b"0123456789")
        with pytest.raises(UsageError, match="start=-1"):
            blobs.get_ranges("a", [(0, 1), (-1, 1)])
        with pytest.raises(UsageError, match="start=-1"):
            blobs.get("a", -1)
        with pytest.raises(UsageError, match="length=-2"):
            blobs.get("a", 0, -2)

    def test_a_second_put_is_refused_and_changes_nothing(self, blobs: BlobStore) -> None:
        blobs.put("a/b", b"first")
        with pytest.raises(BlobExists, match="a/b"):
            blobs.put("a/b", b"second")
        assert blobs.get("a/b") == b"first"

    def test_a_missing_object_is_not_found(self, blobs: BlobStore) -> None:
        blobs.put("folder/b", b"x")
        for name in ("a", "folder", "folder/c", "folder/b/c"):
            with pytest.raises(BlobNotFound, match=name):
                blobs.get(name)
            with pytest.raises(BlobNotFound, match=name):
                blobs.open(name).read(1)

    def test_deleting_says_whether_it_was_there(self, blobs: BlobStore) -> None:
        blobs.put("a/b", b"x")
        assert blobs.delete("a/b")
        assert not blobs.delete("a/b")
        assert not blobs.delete("a")
        with pytest.raises(BlobNotFound):
            blobs.get("a/b")
        blobs.put("a/b", b"again")
        assert blobs.get("a/b") == b"again"

    def test_several_are_deleted_and_missing_ones_are_passed_over(self, blobs: BlobStore) -> None:
        names = [f"a/{n}" for n in range(5)]
        for name in names:
            blobs.put(name, b"x")
        found = blobs.delete_all(["a/1", "a/missing", "a/3"])
        assert found == (3 if blobs.is_far else 2)
        assert [info.name for info in blobs.list()] == ["a/0", "a/2", "a/4"]
        assert blobs.delete_all([]) == 0
        with pytest.raises(UsageError):
            blobs.delete_all(["a/0", "../a"])
        assert len(list(blobs.list())) == 3
        blobs.delete_all([info.name for info in blobs.list()])
        assert not list(blobs.list())

    def test_a_listing_ascends_and_has_sizes(self, blobs: BlobStore) -> None:
        names = ["b", "a/1", "a-b", "a.b", "a0", "a/1-x", "A", "a/0/z", "a=1", "a_", ".hidden", "..x", "-"]
        for size, name in enumerate(names):
            blobs.put(name, b"x" * size)
        found = list(blobs.list())
        assert [info.name for info in found] == sorted(names)
        assert {info.name: info.size_bytes for info in found} == {n: i for i, n in enumerate(names)}
        assert all(info.modified_ms > 10**9 for info in found)

    @pytest.mark.parametrize("prefix", ["", "a", "a/", "a/1", "a/10", "a/1/", "b", "c", "ab/c", "a/.", "."])
    def test_a_prefix_is_one_of_characters(self, blobs: BlobStore, prefix: str) -> None:
        names = ["a/1", "a/10/x", "a/10/y", "a/2", "a1", "ab/c", "b", "a/.x"]
        for name in names:
            blobs.put(name, b"")
        assert [i.name for i in blobs.list(prefix)] == sorted(n for n in names if n.startswith(prefix))

    @pytest.mark.parametrize("prefix", ["/", "../", "..//", "a//", "ä", "~", "a/../b"])
    def test_a_prefix_that_escapes_is_refused(self, blobs: BlobStore, prefix: str) -> None:
        with pytest.raises(UsageError, match="bad prefix"):
            list(blobs.list(prefix))

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_a_name_that_is_not_safe_is_refused(self, blobs: BlobStore, name: str) -> None:
        for call in (
            lambda: blobs.get(name),
            lambda: blobs.put(name, b"x"),
            lambda: blobs.delete(name),
            lambda: blobs.open(name).read(1),
        ):
            with pytest.raises(UsageError, match="bad name"):
                call()

    def test_the_longest_name_fits(self, blobs: BlobStore) -> None:
        blobs.put("x" * 240, b"1")
        blobs.put("y/" * 119 + "zz", b"2")
        assert [len(info.name) for info in blobs.list()] == [240, 240]

    def test_a_name_below_an_object_is_refused(self, blobs: BlobStore) -> None:
        if blobs.is_far:
            pytest.skip("an object store has no folders that could be in the way")
        blobs.put("a/b", b"x")
        with pytest.raises(UsageError, match="a/b/c"):
            blobs.put("a/b/c", b"x")
        with pytest.raises(UsageError, match="'a'"):
            blobs.put("a", b"x")
        assert [info.name for info in blobs.list()] == ["a/b"]

    def test_an_empty_object_is_an_object(self, blobs: BlobStore) -> None:
        blobs.put("e", b"")
        assert blobs.get("e") == b""
        assert [info.size_bytes for info in blobs.list()] == [0]
        with pytest.raises(BlobExists):
            blobs.put("e", b"x")
        assert blobs.get("e") == b""

    def test_a_mebibyte_comes_back(self, blobs: BlobStore) -> None:
        data = bytes(range(256)) * 4096
        blobs.put("big", data)
        assert blobs.get("big") == data
        assert blobs.get("big", 1_000_000, 100) == data[1_000_000:1_000_100]

    def test_an_opened_object_reads_like_a_file(self, blobs: BlobStore) -> None:
        data = bytes(range(256)) * 512
        blobs.put("a", data)
        with blobs.open("a") as file:
            assert file.seekable()
            assert file.readable()
            assert file.seek(0, io.SEEK_END) == len(data)
            assert file.seek(-8, io.SEEK_END) == len(data) - 8
            assert file.read() == data[-8:]
            assert file.read(5) == b""
            assert file.seek(100) == 100
            assert file.read(50) == data[100:150]
            assert file.tell() == 150
            file.seek(0)
            assert file.read() == data
        assert file.closed

    def test_an_opened_object_can_be_buffered(self, blobs: BlobStore) -> None:
        blobs.put("a", b"one\ntwo\nthree")
        with io.BufferedReader(blobs.open("a"), 4) as file:  # type: ignore[arg-type]
            assert list(file) == [b"one\n", b"two\n", b"three"]

    def test_of_eight_puts_of_one_name_exactly_one_wins(self, blobs: BlobStore) -> None:
        barrier = Barrier(8)

        def put(number: int, round_: int) -> int | None:
            barrier.wait()
            try:
                blobs.put(f"race/{round_}", bytes([number]) * 10_000)
            except BlobExists:
                return None
            return number

        with ThreadPoolExecutor(8) as threads:
            for round_ in range(10):
                results = list(threads.map(put, range(8), [round_] * 8))
                winners = [number for number in results if number is not None]
                assert len(winners) == 1
                assert blobs.get(f"race/{round_}") == bytes(winners) * 10_000

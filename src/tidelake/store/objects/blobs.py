"""A blob store on a bucket.

Owns what a `BlobStore` promises beyond a `Bucket`: names that are checked, objects that never change. Must
not know which service keeps them.

INVARIANT: an object of up to `MULTIPART_BYTES` is put if absent, in one request. A larger one is put in
parts, which no service can do if absent: the store looks first, and two puts of one name at the same time may
both succeed. Names of large objects hold a fresh id, so both are the same put, sent twice.
"""

import io
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

from tidelake.errors import BlobExists, BlobNotFound, StoreUnavailable
from tidelake.store.names import check_name, check_prefix, check_range
from tidelake.store.objects.bucket import MULTIPART_BYTES, Bucket
from tidelake.store.protocols import BlobInfo
from tidelake.store.reader import read_through


class ObjectBlobStore:
    """A `BlobStore` on a bucket. There are no folders: `a` and `a/b` may both be objects.

    Args:
        bucket: the bucket.
        url: where other programs find its objects; None: nowhere.
    """

    is_far = True

    def __init__(self, bucket: Bucket, url: str | None = None) -> None:
        self._bucket = bucket
        self.url = url

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of bytes, with one request; see `BlobStore.get`."""
        check_range(check_name(name), start, length)
        return self._bucket.get(name, start, length)

    def get_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; see `BlobStore.get_ranges`."""
        for start, length in ranges:
            check_range(check_name(name), start, length)
        return self._bucket.get_ranges(check_name(name), ranges)

    def put(self, name: str, data: bytes) -> None:
        """Store a new object, with one request; several if it is large or refused. See `BlobStore.put`."""
        check_name(name)
        if len(data) > MULTIPART_BYTES:
            if self._bucket.head(name) is not None:
                raise BlobExists(name)
            self._bucket.put(name, data)
        elif not self._bucket.put_new(name, data):
            # A service may refuse a put that has landed, such as one that was sent twice on the way.
            try:
                there = self._bucket.get(name)
            except BlobNotFound:
                there = None
            if there is None:
                raise StoreUnavailable(f"cannot write object {name!r}: another put of it is under way")
            if there != data:
                raise BlobExists(name)

    def delete(self, name: str) -> bool:
        """Delete an object, with two requests: one tells whether it existed; see `BlobStore.delete`."""
        if self._bucket.head(check_name(name)) is None:
            return False
        self._bucket.delete([name])
        return True

    def delete_all(self, names: Sequence[str]) -> int:
        """Delete objects, with one request for each 1,000; see `BlobStore.delete_all`."""
        checked = [check_name(name) for name in names]
        if checked:
            self._bucket.delete(checked)
        return len(checked)

    def prune(self, folder: str) -> None:
        """Do nothing: only objects are kept; see `BlobStore.prune`."""
        check_name(folder)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List objects, with one request for each 1,000; see `BlobStore.list`."""
        check_prefix(prefix)
        return (
            BlobInfo(info.key, info.size_bytes, info.modified_ms)
            for page in self._bucket.list(prefix)
            for info in page
        )

    def open(self, name: str) -> BinaryIO:
        """Open a reader, with one request, and one for each read; see `BlobStore.open`."""
        found = self._bucket.head(check_name(name))
        if found is None:
            raise BlobNotFound(name)
        cursor = cast(BinaryIO, _Cursor(self._bucket, name, found.size_bytes))
        return read_through(cursor, lambda inner, size: inner.read(size))

    def close(self) -> None:
        """Close the bucket."""
        self._bucket.close()


class _Cursor:
    """A place in an object, as much of a file as `read_through` asks for: each read is one request."""

    def __init__(self, bucket: Bucket, key: str, size_bytes: int) -> None:
        self._bucket, self._key, self._size = bucket, key, size_bytes
        self._position = 0

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        from_ = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, from_ + offset)
        return self._position

    def read(self, size: int, /) -> bytes:
        left = max(0, self._size - self._position)
        wanted = left if size < 0 else min(size, left)
        data = self._bucket.get(self._key, self._position, wanted) if wanted else b""
        self._position += len(data)
        return data

    def close(self) -> None:
        """Nothing is open."""

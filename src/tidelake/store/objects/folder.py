"""A folder of a bucket, as a bucket.

Owns the translation of keys. Must not know what is in the folder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tidelake.errors import BlobNotFound
from tidelake.store.objects.bucket import Bucket, ObjectInfo


class FolderBucket:
    """A `Bucket` of the objects below `folder` of another one, which others may use too.

    Args:
        inner: the bucket; `close` leaves it open.
        folder: segments separated by `/`.
    """

    def __init__(self, inner: Bucket, folder: str) -> None:
        self._inner = inner
        self._folder = f"{folder}/"

    def __repr__(self) -> str:
        return f"FolderBucket({self._inner!r}, {self._folder!r})"

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of an object; see `Bucket.get`."""
        try:
            return self._inner.get(self._folder + key, start, length)
        except BlobNotFound:
            raise BlobNotFound(key) from None

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects; see `Bucket.get_all`."""
        return self._inner.get_all([self._folder + key for key in keys])

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges of an object; see `Bucket.get_ranges`."""
        try:
            return self._inner.get_ranges(self._folder + key, ranges)
        except BlobNotFound:
            raise BlobNotFound(key) from None

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object if there is none; see `Bucket.put_new`."""
        return self._inner.put_new(self._folder + key, data)

    def put(self, key: str, data: bytes) -> None:
        """Store an object; see `Bucket.put`."""
        self._inner.put(self._folder + key, data)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; see `Bucket.delete`."""
        self._inner.delete([self._folder + key for key in keys])

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of an object; see `Bucket.head`."""
        found = self._inner.head(self._folder + key)
        return None if found is None else replace(found, key=key)

    def list(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """List objects in pages; see `Bucket.list`."""
        start = len(self._folder)
        for page in self._inner.list(self._folder + prefix):
            yield [replace(info, key=info.key[start:]) for info in page]

    def folders(self, prefix: str) -> Iterator[str]:
        """The segments after a prefix; see `Bucket.folders`."""
        return self._inner.folders(self._folder + prefix)

    def close(self) -> None:
        """Do nothing: who made the other bucket closes it."""

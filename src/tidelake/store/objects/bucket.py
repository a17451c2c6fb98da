"""What the stores on an object store ask of it: the calls that S3, GCS and Azure have in common.

Owns the Protocol. Must not know what objects mean, nor which service keeps them.

INVARIANT: a listing shows every object whose put was answered before the listing began, and that was not
deleted since. A get sees every put that was answered before it. All three services promise both.

Besides the errors in its own docstring, every call may raise:

- `StoreUnavailable`: the call had no effect. `retryable` says whether trying again soon may help.
- `OutcomeUnknown`: the call may have had its effect, or may still have it later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

MULTIPART_BYTES = 32 << 20
"""A larger object is put in parts."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object as a listing shows it.

    Attributes:
        key: its key, relative to the prefix of the bucket.
        modified_ms: when it was written, in milliseconds since 1970 UTC, by the clock of the store. Some
            services tell whole seconds.
    """

    key: str
    size_bytes: int
    modified_ms: int


class Bucket(Protocol):
    """Objects by key, below one prefix of an object store. Safe to use from several threads."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read the bytes `[start, start + length)` of an object, fewer past its end. One request.

        Raises:
            BlobNotFound: there is no such object.
        """

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read whole objects at once; None for those that do not exist. A request each, one round trip."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read ranges `(start, length)` of an object at once. A request for each group of near ranges.

        Raises:
            BlobNotFound: there is no such object.
        """

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object if there is none of this key. One request.

        Returns:
            True if this call made the object. False if the store refused: an object of this key exists, or
            another put of this key is under way. SUBTLE: False does not say that an object exists, nor whose
            it is: read it.
        """

    def put(self, key: str, data: bytes) -> None:
        """Store an object, in the place of one of this key. One request; several if it is large."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are passed over. One request for up to 1,000, if possible."""

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of an object; None if there is no such object. One request."""

    def list(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        """List the objects whose keys start with `prefix`, ascending by key, in pages. One request a page.

        An object that is put or deleted while the listing runs may or may not be in it.
        """

    def folders(self, prefix: str) -> Iterator[str]:
        """The different segments between `prefix`, which ends in `/`, and the next `/`; ascending."""

    def close(self) -> None:
        """Release handles. May be repeated. The bucket must not be used afterwards."""

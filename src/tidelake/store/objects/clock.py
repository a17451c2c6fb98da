"""The time of an object store, which the processes of all machines share.

Owns the object that is written to learn it. The answer is never ahead of the store's own time, so that ages
that are told by it are never too great.
"""

from tidelake.errors import StoreUnavailable
from tidelake.store.objects.bucket import Bucket

KEY = "clock"
"""The object that is written."""


def store_ms(bucket: Bucket) -> int:
    """The time of the store in milliseconds since 1970 UTC, or a little earlier. Two requests."""
    bucket.put(KEY, b"")
    info = bucket.head(KEY)
    if info is None:
        raise StoreUnavailable(f"object {KEY!r} was removed while the time of the store was read")
    return info.modified_ms

"""How a lake begins in an object store: its marker, and what is checked before one is made.

Owns what is looked at below and above a prefix, and the probe of a store. Must not know what a lake keeps.

    <prefix>/tidelake.json         the marker
    <prefix>/<lake id>/blobs/      objects
    <prefix>/<lake id>/            the log, unless it is elsewhere; the clock
    <prefix>/tidelake-probe/       objects of a probe, which removes them

INVARIANT: a marker is put only where nothing else is, once a probe has seen that of several puts of one key
one wins. The marker is put before anything else of a lake, and once.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from tidelake.env import IdSource
from tidelake.errors import BlobNotFound, NotALake, StoreUnavailable
from tidelake.store.marker import MARKER, Marker, check_place, decode_marker
from tidelake.store.objects.address import BucketAddress
from tidelake.store.objects.bucket import Bucket
from tidelake.store.retrying import Retry

PROBES = "tidelake-probe/"

_RACERS = 4
_RACES = 3


def find_marker(bucket: Bucket, place: str, retry: Retry) -> Marker | None:
    """The marker of the lake in a bucket; None if there is none. One request."""
    try:
        data = retry.read(lambda: bucket.get(MARKER))
    except BlobNotFound:
        return None
    marker = decode_marker(f"{place}/{MARKER}", data)
    check_place(marker, place)
    return marker


def make_lake(
    bucket: Bucket,
    top: Bucket,
    address: BucketAddress,
    new: Callable[[], Marker],
    *,
    ids: IdSource,
    retry: Retry,
) -> Marker:
    """Make a lake, unless another process is first; the marker that is there then. Some twenty requests."""
    _check_above(top, address, retry)
    if not _is_empty(bucket, address.url, retry):
        found = find_marker(bucket, address.url, retry)
        if found is not None:
            return found
    probe(bucket, address.url, ids, retry)
    try:
        made = new()
    except NotALake:
        # Another process may have made the lake, and its log elsewhere, since we looked.
        found = find_marker(bucket, address.url, retry)
        if found is None:
            raise
        return found
    retry.write(lambda: bucket.put_new(MARKER, made.encode()))
    # Whatever the answers were: what is there counts.
    found = find_marker(bucket, address.url, retry)
    if found is None:
        raise StoreUnavailable(f"the marker of the lake at {address.url!r} was removed while it was made")
    return found


def probe(bucket: Bucket, place: str, ids: IdSource, retry: Retry) -> None:
    """Try whether a store refuses a second put of a key, one after another and at once, and lists in order.

    Some servers accept conditions of puts and ignore them, so that writers overwrite each other's commits.
    """
    problem = retry.read(partial(_problem, bucket, ids))
    if problem:
        raise StoreUnavailable(
            f"the object store at {place!r} {problem}, so a lake there would lose writes: use another store, "
            "or a newer version of this one",
            retryable=False,
        )


def _problem(bucket: Bucket, ids: IdSource) -> str:
    """What is wrong with a store; empty if nothing is."""
    keys = [f"{PROBES}{ids.fresh()}" for _ in range(_RACES + 1)]
    try:
        first, *raced = keys
        bucket.put_new(first, b"first")
        if bucket.put_new(first, b"second") or bucket.get(first) != b"first":
            return "lets a put that must not overwrite an object do so"
        for key in raced:
            values = [b"%d" % number for number in range(_RACERS)]
            with ThreadPoolExecutor(_RACERS) as threads:
                answers = threads.map(partial(bucket.put_new, key), values)
                won = [value for value, is_won in zip(values, answers, strict=True) if is_won]
            if len(won) > 1 or (won and bucket.get(key) != won[0]):
                return "lets several puts that race for one object win"
        listed = [info.key for page in bucket.list(PROBES) for info in page]
        if not {first} <= {*listed} or listed != sorted(listed):
            return "does not list what was just put, or not in order"
        return ""
    finally:
        bucket.delete(keys)


def _check_above(top: Bucket, address: BucketAddress, retry: Retry) -> None:
    """Refuse a prefix inside another lake."""
    segments = address.prefix.split("/") if address.prefix else []
    above = [replace(address, prefix="/".join(segments[:count])) for count in range(len(segments))]
    keys = [f"{one.prefix}/{MARKER}".removeprefix("/") for one in above]
    try:
        found = retry.read(lambda: top.get_all(keys))
    except StoreUnavailable as error:
        if error.retryable:
            raise
        return  # these credentials are for the prefix only: nothing above it can be seen
    for one, data in zip(above, found, strict=True):
        if data is not None:
            raise NotALake(
                f"{address.url!r} is inside the lake at {one.url!r}, which would delete its objects: choose "
                "a prefix outside of it"
            )


def _is_empty(bucket: Bucket, place: str, retry: Retry) -> bool:
    """Whether nothing is below a prefix, besides probes; False if there is a lake."""

    def first() -> list[str]:
        for page in bucket.list(""):
            others = [info.key for info in page if not info.key.startswith(PROBES)]
            if others:
                return others
        return []

    others = retry.read(first)
    if MARKER in others:
        return False
    if others:
        raise NotALake(
            f"{place!r} holds other objects and no lake, such as {others[0]!r}: choose an empty prefix"
        )
    return True

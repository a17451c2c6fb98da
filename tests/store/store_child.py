"""A process that writes to a store and prints what was acknowledged, until it is done or killed.

store_child.py put ROOT TAG COUNT     objects k/<tag>-<n>, whose bytes follow from the name
store_child.py cas ROOT TAG COUNT     entries of the key "race"
store_child.py limited ROOT           what a limit on the size of files does
"""

import errno
import hashlib
import os
import resource
import sys

import pytest

from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.local import LocalBlobStore


def content(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest() * 600


def put(root: str, tag: str, count: int) -> None:
    store = LocalBlobStore(root)
    for number in range(count):
        name = f"k/{tag}-{number}"
        store.put(name, content(name))
        print(name, flush=True)


def cas(root: str, tag: str, count: int) -> None:
    log = FramedVersionLog(root)
    for number in range(count):
        data = f"{tag}-{number}".encode()
        while True:
            head = log.head("race")
            expected = head.seqno if head else None
            if log.compare_and_set("race", expected, data):
                print(0 if expected is None else expected + 1, data.decode(), flush=True)
                break


def limited(root: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 400_000))
    store = LocalBlobStore(root + "/blobs")
    store.put("small", b"x" * 1000)
    with pytest.raises(StoreUnavailable, match="'big'") as caught:
        store.put("big", b"x" * 1_000_000)
    assert not caught.value.retryable
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert [info.name for info in store.list()] == ["small"]
    assert os.listdir(root + "/blobs/~tmp") == []
    log = FramedVersionLog(root + "/log")
    acknowledged, unknown = [], 0
    for number in range(200):
        try:
            if log.compare_and_set("k", number - 1 if number else None, b"%d" % number * 1000):
                acknowledged.append(number)
        except (OutcomeUnknown, StoreUnavailable):
            unknown += 1
    assert unknown
    assert acknowledged
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    entries = log.scan("k", 0)
    assert [entry.seqno for entry in entries] == list(range(len(entries)))
    assert acknowledged == [entry.seqno for entry in entries][: len(acknowledged)]
    assert log.compare_and_set("k", len(entries) - 1, b"goes on")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["put", root, tag, count]:
            put(root, tag, int(count))
        case ["cas", root, tag, count]:
            cas(root, tag, int(count))
        case ["limited", root]:
            limited(root)
        case other:
            raise SystemExit(f"{other}: {__doc__}")

"""What a layer passes on, and what it shows to its `Around`."""

from collections.abc import Callable
from typing import TypeVar, get_args

import pytest

from tidelake.env import SystemClock
from tidelake.errors import ReadOnlyLake
from tidelake.store.layers import (
    WRITES,
    Around,
    BlobLayer,
    BlobOperation,
    LogLayer,
    LogOperation,
    Operation,
)
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.protocols import BlobStore, VersionLog
from tidelake.store.readonly import refusing_writes

T = TypeVar("T")

ARGUMENTS = {
    "blob.get_ranges": ("a/b", ((0, 2), (3, 1))),
    "blob.put": ("a/b", b"data"),
    "blob.delete_all": (["a/b"],),
    "log.scan": ("key", 0),
    "log.compare_and_set": ("key", None, b"data"),
    "log.newer": ("key", 0),
    "log.truncate": ("key", 0),
    "log.mend": ("key", ()),
    "log.ghosts": (),
}


def methods(protocol: type, prefix: str) -> set[str]:
    """The operations of a store that its Protocol declares."""
    names = {name for name, method in vars(protocol).items() if callable(method) and name[0] != "_"}
    return {f"{prefix}.{name}" for name in names - {"close"}}


def call(operation: str, around: Around) -> object:
    """Call one method of a layer over stores that hold an object and a key."""
    blobs, log = MemoryBlobStore(SystemClock()), MemoryVersionLog()
    if operation != "blob.put":
        blobs.put("a/b", b"here")
    if operation != "log.compare_and_set":
        log.compare_and_set("key", None, b"here")
    kind, method = operation.split(".")
    layer = BlobLayer(blobs, around) if kind == "blob" else LogLayer(log, around)
    name = "a/b" if kind == "blob" else "key"
    return getattr(layer, method)(*ARGUMENTS.get(operation, (name,)))


def test_every_method_of_the_protocols_is_an_operation() -> None:
    assert methods(BlobStore, "blob") | {"blob.read"} == set(get_args(BlobOperation))
    assert methods(VersionLog, "log") == set(get_args(LogOperation))


@pytest.mark.parametrize("operation", sorted(methods(BlobStore, "blob") | methods(VersionLog, "log")))
def test_each_call_is_shown_under_its_own_name_and_made_only_by_the_around(operation: str) -> None:
    shown: list[str] = []

    def skip(operation: Operation, call: Callable[[], T]) -> T:
        shown.append(operation)
        raise KeyError(operation)

    with pytest.raises(KeyError):
        call(operation, skip)
    assert shown == [operation]


@pytest.mark.parametrize("operation", sorted(methods(BlobStore, "blob") | methods(VersionLog, "log")))
def test_a_lake_for_reading_refuses_what_writes_and_nothing_else(operation: str) -> None:
    if operation in WRITES:
        with pytest.raises(ReadOnlyLake):
            call(operation, refusing_writes("memory://lake"))
    else:
        call(operation, refusing_writes("memory://lake"))

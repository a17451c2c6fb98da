"""How a store is made from another one and layers: what passes, what is shown, how far it is to the store."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import pytest

import inside
import tidelake
from tables import SCHEMA, rows
from tidelake.config import Config
from tidelake.env import SystemClock
from tidelake.errors import ReadOnlyLake
from tidelake.store.framed.log import FramedVersionLog
from tidelake.store.layers import (
    WRITES,
    BlobLayer,
    BlobOperation,
    Layer,
    LogLayer,
    LogOperation,
    Operation,
    around,
)
from tidelake.store.local import LocalBlobStore
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.protocols import BlobStore, VersionLog
from tidelake.store.readonly import refusing_writes

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
FRAMES_MAX = 4


def methods(protocol: type, prefix: str) -> set[str]:
    """The operations of a store that its Protocol declares."""
    names = {name for name, method in vars(protocol).items() if callable(method) and name[0] != "_"}
    return {f"{prefix}.{name}" for name in names - {"close"}}


OPERATIONS = sorted(methods(BlobStore, "blob") | methods(VersionLog, "log"))


def call(operation: str, *layers: Layer) -> object:
    """Call one method of a store made with layers over stores that hold an object and a key."""
    blobs, log = MemoryBlobStore(SystemClock()), MemoryVersionLog()
    if operation != "blob.put":
        blobs.put("a/b", b"here")
    if operation != "log.compare_and_set":
        log.compare_and_set("key", None, b"here")
    kind, method = operation.split(".")
    layer = BlobLayer(blobs, *layers) if kind == "blob" else LogLayer(log, *layers)
    name = "a/b" if kind == "blob" else "key"
    return getattr(layer, method)(*ARGUMENTS.get(operation, (name,)))


def test_every_method_of_the_protocols_is_an_operation() -> None:
    assert methods(BlobStore, "blob") | {"blob.read"} == set(get_args(BlobOperation))
    assert methods(VersionLog, "log") == set(get_args(LogOperation))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_call_is_shown_under_its_own_name_to_all_layers_the_outermost_first(operation: str) -> None:
    shown: list[tuple[str, str]] = []

    def pass_on(operation: Operation, call: Callable[[], Any]) -> Any:
        shown.append(("outer", operation))
        return call()

    def skip(operation: Operation, _call: Callable[[], Any]) -> Any:
        shown.append(("inner", operation))
        raise KeyError(operation)

    with pytest.raises(KeyError):
        call(operation, around(skip), around(pass_on))
    assert shown == [("outer", operation), ("inner", operation)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_lake_for_reading_refuses_what_writes_and_nothing_else(operation: str) -> None:
    if operation in WRITES:
        with pytest.raises(ReadOnlyLake):
            call(operation, refusing_writes("memory://lake"))
    else:
        call(operation, refusing_writes("memory://lake"))


def test_a_method_that_a_subclass_defines_takes_the_place_of_the_one_that_is_made() -> None:
    class Deaf(LogLayer):
        def head(self, key: str) -> None:
            assert self._inner.head(key) is not None

    inner = MemoryVersionLog()
    inner.compare_and_set("key", None, b"here")
    log: VersionLog = Deaf(inner)
    assert log.head("key") is None
    assert len(log.scan("key", 0)) == 1


def test_few_frames_lie_between_a_commit_and_the_log_and_between_a_read_and_the_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between: dict[str, int] = {}

    def watch(kind: type, name: str) -> None:
        method = getattr(kind, name)

        def watched(*args: Any, **named: Any) -> Any:
            frames, frame = 0, inspect.currentframe()
            while frame is not None and not _is_of_caller(frame):
                frames, frame = frames + 1, frame.f_back
            assert frame is not None
            between[name] = max(between.get(name, 0), frames - 1)
            return method(*args, **named)

        monkeypatch.setattr(kind, name, watched)

    for name in ("head", "newer", "compare_and_set"):
        watch(FramedVersionLog, name)
    for name in ("get", "put", "open"):
        watch(LocalBlobStore, name)
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        between.clear()  # what opens a store is in it
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows(1))
        assert c.snapshot().to_arrow().num_rows == 1
        stores = inside.stores(lake)
        stores.blobs.put("a", b"")
        stores.blobs.get("a")
    assert set(between) == {"head", "newer", "compare_and_set", "get", "put", "open"}
    assert max(between.values()) <= FRAMES_MAX, between


def _is_of_caller(frame: FrameType) -> bool:
    """Whether a frame is neither of the layers nor of this test's own watching."""
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    return not (file.endswith("closeguard.py") or "/tidelake/store/" in file or name == "watched")

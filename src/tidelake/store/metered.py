"""A layer that counts calls, entries and bytes.

Owns the names of the counters. Must not change what a call does or returns.

INVARIANT: a call is counted when it is made, also if it fails, since it costs the same. Bytes and entries are
counted after a call has succeeded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO

from tidelake.env import Recorder
from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.layers import Layer, Method, Methods, Operation, reading
from tidelake.store.protocols import Entry


def metered(recorder: Recorder) -> Layer:
    """Count `blob.*` and `log.*`; each read of an opened object is a `blob.get`."""
    count = recorder.count

    def entries(operation: Operation, found: list[Entry] | None, *_: Any, **__: Any) -> None:
        count(f"{operation}.entries", len(found or ()))
        count(f"{operation}.bytes", sum(len(entry.data) for entry in found or ()))

    def put(_: None, name: str, data: bytes) -> None:  # noqa: ARG001 - the signature
        count("blob.put.bytes", len(data))

    def appended(is_set: bool, key: str, expected: int | None, data: bytes) -> None:  # noqa: ARG001 - likewise
        if is_set:
            count("log.compare_and_set.bytes", len(data))

    # What a call has moved, by its result and its arguments.
    moved: dict[Operation, Callable[..., None]] = {
        "blob.get": lambda data, *_, **__: count("blob.get.bytes", len(data)),
        "blob.get_ranges": lambda found, *_, **__: count("blob.get.bytes", sum(map(len, found))),
        "blob.put": put,
        "log.scan": partial(entries, "log.scan"),
        "log.newer": partial(entries, "log.newer"),
        "log.compare_and_set": appended,
    }

    def read(inner: BinaryIO, size: int) -> bytes:
        count("blob.get")
        data = inner.read(size)
        count("blob.get.bytes", len(data))
        return data

    def counted(operation: Operation, method: Method) -> Method:
        tell = moved.get(operation)

        def call(*args: Any, **named: Any) -> Any:
            count(operation)
            try:
                result = method(*args, **named)
            except (StoreUnavailable, OutcomeUnknown):
                count("store.failed")
                raise
            if tell is not None:
                tell(result, *args, **named)
            return result

        return call

    def layer(below: Methods) -> Methods:
        return reading({name: counted(name, method) for name, method in below.items()}, read)

    return layer

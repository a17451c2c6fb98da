"""Layers: what is done around the calls of a store, composed once when the store is opened.

Owns the operations of a store, and how a store is made from another one and layers. A layer gets a table of
the methods of the store below, and makes that of the store above: it counts, retries, refuses or breaks
calls, or leaves a method as it is. A call then passes one frame for each layer that has changed its method.

INVARIANT: every call reaches the inner store through all layers, except `close` and the reads of an opened
object. A layer sees these reads by `reading`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

from tidelake.store.protocols import BlobInfo, BlobStore, Entry, Ghost, MendedLog, VersionLog
from tidelake.store.reader import ReadHook, read_through

BlobOperation: TypeAlias = Literal[
    "blob.get",
    "blob.get_ranges",
    "blob.put",
    "blob.delete",
    "blob.delete_all",
    "blob.prune",
    "blob.list",
    "blob.open",
    "blob.read",
]
LogOperation: TypeAlias = Literal[
    "log.head",
    "log.scan",
    "log.newer",
    "log.compare_and_set",
    "log.truncate",
    "log.delete",
    "log.mend",
    "log.ghosts",
    "log.keys",
]
Operation: TypeAlias = BlobOperation | LogOperation
"""The methods of the Protocols, and `blob.read`: a read of an object that `blob.open` has opened."""

WRITES: frozenset[Operation] = frozenset(
    {
        *("blob.put", "blob.delete", "blob.delete_all", "blob.prune"),
        *("log.compare_and_set", "log.truncate", "log.delete", "log.mend"),
    }
)
"""The operations that may change what is stored."""

Method: TypeAlias = Callable[..., Any]

Methods: TypeAlias = dict[Operation, Method]
"""The methods of a store by their operations."""

Layer: TypeAlias = Callable[[Methods], Methods]
"""Makes the methods of the store above from those of the store below."""


class BlobLayer:
    """A `BlobStore` made from another one: its methods are those that layers make, the innermost first.

    A method that a subclass defines takes the place of the one that is made.
    """

    get: Callable[..., bytes]
    get_ranges: Callable[..., list[bytes]]
    put: Callable[..., None]
    delete: Callable[..., bool]
    delete_all: Callable[..., int]
    prune: Callable[..., None]
    list: Callable[..., Iterator[BlobInfo]]
    open: Callable[..., BinaryIO]
    is_far: bool

    def __init__(self, inner: BlobStore, *layers: Layer) -> None:
        self._inner = inner
        if not hasattr(type(self), "is_far"):
            self.is_far = inner.is_far
        _compose(self, inner, get_args(BlobOperation), layers)

    @property
    def url(self) -> str | None:
        """Where other programs find the objects; see `BlobStore.url`."""
        return self._inner.url

    def close(self) -> None:
        """Close the inner store."""
        self._inner.close()


class LogLayer:
    """A `VersionLog` made from another one; see `BlobLayer`."""

    head: Callable[..., Entry | None]
    scan: Callable[..., list[Entry]]
    newer: Callable[..., list[Entry] | None]
    compare_and_set: Callable[..., bool]
    truncate: Callable[..., int]
    delete: Callable[..., bool]
    mend: Callable[..., MendedLog | None]
    ghosts: Callable[..., list[Ghost]]
    keys: Callable[..., Iterator[str]]

    def __init__(self, inner: VersionLog, *layers: Layer) -> None:
        self._inner = inner
        _compose(self, inner, get_args(LogOperation), layers)

    def close(self) -> None:
        """Close the inner log."""
        self._inner.close()


def around(run: Callable[[Operation, Callable[[], Any]], Any]) -> Layer:
    """A layer that hands each call to a function, which makes it, or not: the operation, and the call."""

    def shown(operation: Operation, method: Method) -> Method:
        return lambda *args, **named: run(operation, partial(method, *args, **named))

    return lambda below: {operation: shown(operation, method) for operation, method in below.items()}


def reading(methods: Methods, hook: ReadHook) -> Methods:
    """The same methods; an object that `blob.open` has opened is read through a hook."""
    opened = methods.get("blob.open")
    if opened is None:
        return methods
    return {**methods, "blob.open": lambda *args, **named: read_through(opened(*args, **named), hook)}


def _compose(
    store: BlobLayer | LogLayer,
    inner: BlobStore | VersionLog,
    operations: Sequence[Operation],
    layers: Sequence[Layer],
) -> None:
    """Give a store the methods that it does not define."""
    names: dict[Operation, str] = {operation: operation.partition(".")[2] for operation in operations}
    methods: Methods = {
        operation: getattr(inner, name) for operation, name in names.items() if operation != "blob.read"
    }
    for layer in layers:
        methods = layer(methods)
    for operation, method in methods.items():
        if not hasattr(type(store), names[operation]):
            setattr(store, names[operation], method)

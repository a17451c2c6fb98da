"""The true stores, with an observer that sees every effect at the moment it happens.

Must not know what an effect means, nor change any answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from tidelake.store.layers import BlobLayer, LogLayer
from tidelake.store.protocols import BlobStore, Entry, VersionLog


@dataclass(frozen=True)
class Actor:
    """The cause of an effect.

    Attributes:
        process: name of the process.
        about: what the thread that asked for the effect was doing; None: nothing in particular.
        beside: what the other threads of the process are doing.
    """

    process: str
    about: object
    beside: tuple[object, ...] = ()


class Observer(Protocol):
    """Is told of effects, at the moment of each."""

    def entered(self, key: str, entry: Entry, actor: Actor) -> None:
        """A log has a new entry, which `actor` caused."""

    def wrong(self, message: str) -> NoReturn:
        """End the run: a store broke a promise."""

    def survived(self) -> None:
        """The machine has crashed; the stores hold only what was durable."""

    def deleting(self, name: str) -> None:
        """A blob is about to be deleted."""

    def ending(self, key: str) -> None:
        """A log is about to be deleted."""


class WitnessedBlobs(BlobLayer):
    """A `BlobStore` whose deletions are seen."""

    def __init__(self, inner: BlobStore, observer: Observer) -> None:
        super().__init__(inner)
        self._observer = observer

    def delete(self, name: str) -> bool:
        """Tell the observer; see `BlobStore.delete`."""
        self._observer.deleting(name)
        return self._inner.delete(name)

    def delete_all(self, names: Sequence[str]) -> int:
        """Tell the observer; see `BlobStore.delete_all`."""
        for name in names:
            self._observer.deleting(name)
        return self._inner.delete_all(names)

    def close(self) -> None:
        """Do nothing: other processes use the store."""


class WitnessedLog(LogLayer):
    """A `VersionLog` whose new entries are seen."""

    def __init__(self, inner: VersionLog, observer: Observer, acting: Callable[[], Actor]) -> None:
        super().__init__(inner)
        self._observer, self._acting = observer, acting

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Tell the observer of the new entry; see `VersionLog.compare_and_set`."""
        won = self._inner.compare_and_set(key, expected, data)
        if won:
            entry = Entry(0 if expected is None else expected + 1, data)
            self._observer.entered(key, entry, self._acting())
        return won

    def delete(self, key: str) -> bool:
        """Tell the observer; see `VersionLog.delete`."""
        self._observer.ending(key)
        return self._inner.delete(key)

    def close(self) -> None:
        """Do nothing: other processes use the log."""

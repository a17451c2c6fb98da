"""Stores that fail on purpose.

Owns the kinds of faults, the plan that says when each one happens, and the layers that carry it out. Must
not know a particular store, nor how callers handle an error.

INVARIANT: a fault tells the truth. "Unavailable" has no effect; an unknown outcome had the effect or did not,
as its kind says; after a crash no call of that process reaches the store.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import BinaryIO, Protocol, TypeVar

from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.protocols import BlobInfo, BlobStore, Entry, Mended, VersionLog
from tidelake.store.reader import read_through

T = TypeVar("T")


class Fault(Enum):
    """What happens to one call."""

    NONE = "none"
    UNAVAILABLE = "unavailable"
    UNKNOWN_BEFORE = "unknown, without effect"
    UNKNOWN_AFTER = "unknown, after the effect"
    CRASH_BEFORE = "crash before the effect"
    CRASH_AFTER = "crash after the effect"


class SimulatedCrash(BaseException):
    """The process ends here. Not an `Exception`, so that only the simulation catches it."""


class Faults(Protocol):
    """Decides the fate of each call: a `FaultPlan`, or the simulation."""

    def run(self, operation: str, call: Callable[[], T]) -> T:
        """Carry out `call`, or not, or raise although it was carried out. See `FaultPlan` for operations."""


class FaultPlan:
    """Decides the fault of each call. One plan is shared by the stores of one simulated process.

    The script is used first, one fault for each call of any operation. After it the rates decide; the same
    seed and order of calls give the same faults. Operations are `blob.get`, `blob.put`, `blob.delete`,
    `blob.prune`, `blob.list`, `blob.open`, `blob.read` (of an opened object), `log.head`, `log.scan`,
    `log.compare_and_set`, `log.truncate`, `log.delete`, `log.mend` and `log.keys`.

    Args:
        seed: seed of the random choices.
        rates: probability of each fault; otherwise a call has none.
        rates_by_operation: rates that replace `rates` for the named operations.
        script: faults of the first calls.
    """

    def __init__(
        self,
        seed: int = 0,
        rates: Mapping[Fault, float] | None = None,
        rates_by_operation: Mapping[str, Mapping[Fault, float]] | None = None,
        script: Iterable[Fault] = (),
    ) -> None:
        self.injected: Counter[tuple[str, Fault]] = Counter()
        self.is_crashed = False
        self._random = random.Random(seed)  # noqa: S311 - a test must repeat
        self._rates = dict(rates or {})
        self._rates_by_operation = {name: dict(own) for name, own in (rates_by_operation or {}).items()}
        self._script = list(script)
        self._lock = threading.Lock()

    def run(self, operation: str, call: Callable[[], T]) -> T:
        """Carry out `call` as the plan decides."""
        fault = self._next(operation)
        match fault:
            case Fault.NONE:
                return call()
            case Fault.UNAVAILABLE:
                raise StoreUnavailable(f"injected: {operation} is unavailable")
            case Fault.UNKNOWN_BEFORE:
                raise OutcomeUnknown(f"injected: {operation} did not answer")
            case Fault.UNKNOWN_AFTER:
                call()
                raise OutcomeUnknown(f"injected: {operation} did not answer")
            case Fault.CRASH_BEFORE:
                raise self._crash(operation)
            case Fault.CRASH_AFTER:
                call()
                raise self._crash(operation)

    def restart(self) -> None:
        """Let the process come back after a crash."""
        with self._lock:
            self.is_crashed = False

    def total(self) -> int:
        """The number of faults that were injected."""
        with self._lock:
            return sum(self.injected.values())

    def _next(self, operation: str) -> Fault:
        with self._lock:
            if self.is_crashed:
                raise SimulatedCrash(f"{operation} of a process that crashed")
            fault = self._script.pop(0) if self._script else self._drawn(operation)
            if fault is not Fault.NONE:
                self.injected[operation, fault] += 1
            return fault

    def _drawn(self, operation: str) -> Fault:
        point = self._random.random()
        for fault, rate in self._rates_by_operation.get(operation, self._rates).items():
            point -= rate
            if point < 0:
                return fault
        return Fault.NONE

    def _crash(self, operation: str) -> SimulatedCrash:
        with self._lock:
            self.is_crashed = True
        return SimulatedCrash(f"crash in {operation}")


class FaultyBlobStore:
    """A `BlobStore` whose calls fail as a `FaultPlan`, or another `Faults`, decides."""

    def __init__(self, inner: BlobStore, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of a range; see `BlobStore.get`."""
        return self._faults.run("blob.get", lambda: self._inner.get(name, start, length))

    def put(self, name: str, data: bytes) -> None:
        """Put if absent; see `BlobStore.put`."""
        self._faults.run("blob.put", lambda: self._inner.put(name, data))

    def delete(self, name: str) -> bool:
        """Remove; see `BlobStore.delete`."""
        return self._faults.run("blob.delete", lambda: self._inner.delete(name))

    def prune(self, folder: str) -> None:
        """Remove empty folders; see `BlobStore.prune`."""
        self._faults.run("blob.prune", lambda: self._inner.prune(folder))

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Ascending names; see `BlobStore.list`. A fault "after the effect" occurs half way."""
        return _listed(self._faults, "blob.list", self._inner.list(prefix))

    def open(self, name: str) -> BinaryIO:
        """A reader whose reads fail as well; see `BlobStore.open`."""
        inner = self._faults.run("blob.open", lambda: self._inner.open(name))
        return read_through(inner, lambda file, size: self._faults.run("blob.read", lambda: file.read(size)))

    def close(self) -> None:
        """Close the store below."""
        self._inner.close()


class FaultyVersionLog:
    """A `VersionLog` whose calls fail as a `FaultPlan`, or another `Faults`, decides."""

    def __init__(self, inner: VersionLog, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def head(self, key: str) -> Entry | None:
        """The newest entry; see `VersionLog.head`."""
        return self._faults.run("log.head", lambda: self._inner.head(key))

    def scan(self, key: str, start: int, limit: int | None = None) -> list[Entry]:
        """Entries from `start` on; see `VersionLog.scan`."""
        return self._faults.run("log.scan", lambda: self._inner.scan(key, start, limit))

    def compare_and_set(self, key: str, expected: int | None, data: bytes) -> bool:
        """Append iff the head is `expected`; see `VersionLog.compare_and_set`."""
        return self._faults.run(
            "log.compare_and_set", lambda: self._inner.compare_and_set(key, expected, data)
        )

    def truncate(self, key: str, seqno: int) -> int:
        """Remove entries before `seqno`; see `VersionLog.truncate`."""
        return self._faults.run("log.truncate", lambda: self._inner.truncate(key, seqno))

    def delete(self, key: str) -> bool:
        """Remove the key; see `VersionLog.delete`."""
        return self._faults.run("log.delete", lambda: self._inner.delete(key))

    def mend(self, key: str, starts: Collection[int]) -> Mended | None:
        """Repair the key; see `VersionLog.mend`."""
        return self._faults.run("log.mend", lambda: self._inner.mend(key, starts))

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Ascending keys; see `VersionLog.keys`. A fault "after the effect" occurs half way."""
        return _listed(self._faults, "log.keys", self._inner.keys(prefix))

    def close(self) -> None:
        """Close the log below."""
        self._inner.close()


def _listed(faults: Faults, operation: str, items: Iterator[T]) -> Iterator[T]:
    found: list[T] = []
    try:
        faults.run(operation, lambda: found.extend(items))
    except (OutcomeUnknown, SimulatedCrash):
        yield from found[: len(found) // 2]
        raise
    yield from found

"""Stores that fail on purpose.

Owns the kinds of faults, the plan that says when each one happens, and the layers that carry it out. Must
not know a particular store, nor how callers handle an error.

INVARIANT: a fault tells the truth. "Unavailable" has no effect; an unknown outcome had the effect or did not,
as its kind says; after a crash no call of that process reaches the store.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Protocol, TypeVar

from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.layers import BlobLayer, LogLayer, Method, Methods, Operation, around, reading
from tidelake.store.protocols import BlobStore, VersionLog

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
    seed and order of calls give the same faults. Operations are `blob.get`, `blob.get_ranges`, `blob.put`,
    `blob.delete`, `blob.delete_all`, `blob.prune`, `blob.list`, `blob.open`, `blob.read` (of an opened
    object), `log.head`, `log.scan`, `log.newer`, `log.compare_and_set`, `log.truncate`, `log.delete`,
    `log.mend`, `log.ghosts` and `log.keys`.

    Args:
        seed: seed of the random choices.
        rates: probability of each fault; otherwise a call has none.
        rates_by_operation: rates that replace `rates` for the named operations.
        script: faults of the first calls.

    Attributes:
        rates_by_operation: as in the arguments; may be replaced at any time.
        injected: how often each operation had each fault.
        calls: the operations of all calls, in their order.
        is_crashed: whether the process has crashed and not come back.
    """

    def __init__(
        self,
        seed: int = 0,
        rates: Mapping[Fault, float] | None = None,
        rates_by_operation: Mapping[str, Mapping[Fault, float]] | None = None,
        script: Iterable[Fault] = (),
    ) -> None:
        self.injected: Counter[tuple[str, Fault]] = Counter()
        self.calls: list[str] = []
        self.is_crashed = False
        self._random = random.Random(seed)
        self._rates = dict(rates or {})
        self.rates_by_operation = {name: dict(own) for name, own in (rates_by_operation or {}).items()}
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

    def follow(self, script: Iterable[Fault]) -> None:
        """Replace the script: these are the faults of the next calls."""
        with self._lock:
            self._script = list(script)

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
            self.calls.append(operation)
            fault = self._script.pop(0) if self._script else self._drawn(operation)
            if fault is not Fault.NONE:
                self.injected[operation, fault] += 1
            return fault

    def _drawn(self, operation: str) -> Fault:
        point = self._random.random()
        for fault, rate in self.rates_by_operation.get(operation, self._rates).items():
            point -= rate
            if point < 0:
                return fault
        return Fault.NONE

    def _crash(self, operation: str) -> SimulatedCrash:
        with self._lock:
            self.is_crashed = True
        return SimulatedCrash(f"crash in {operation}")


class FaultyBlobStore(BlobLayer):
    """A `BlobStore` whose calls fail as a `FaultPlan`, or another `Faults`, decides; also reads of an object.

    A fault of a listing "after the effect" occurs half way.
    """

    def __init__(self, inner: BlobStore, faults: Faults) -> None:
        super().__init__(inner, partial(_faulty, faults))


class FaultyVersionLog(LogLayer):
    """A `VersionLog` whose calls fail as a `Faults` decides; see `FaultyBlobStore`."""

    def __init__(self, inner: VersionLog, faults: Faults) -> None:
        super().__init__(inner, partial(_faulty, faults))


def _faulty(faults: Faults, below: Methods) -> Methods:
    def listed(operation: Operation) -> Method:
        return lambda *args: _listed(faults, operation, below[operation](*args))

    listings: tuple[Operation, ...] = ("blob.list", "log.keys")
    above = {**around(faults.run)(below), **{name: listed(name) for name in listings if name in below}}
    return reading(above, lambda file, size: faults.run("blob.read", lambda: file.read(size)))


def _listed(faults: Faults, operation: Operation, items: Iterator[T]) -> Iterator[T]:
    found: list[T] = []
    try:
        faults.run(operation, lambda: found.extend(items))
    except (OutcomeUnknown, SimulatedCrash):
        yield from found[: len(found) // 2]
        raise
    yield from found

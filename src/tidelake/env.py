"""The outside world as small Protocols: the clock, fresh ids, counters and background threads.

Everything that is not a pure function takes an `Env`; tests pass their own. Background work is started
through a `Spawner`, only on request; nothing starts at import.
"""

import logging
import os
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tidelake.errors import OutOfThreads, UsageError
from tidelake.metrics import BOUNDS, BY_NAME
from tidelake.process import PerProcess

LOG = logging.getLogger("tidelake")
"""Where failures are logged that their callers survive. Quiet until a program adds a handler."""
LOG.addHandler(logging.NullHandler())

_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # Linux


class Clock(Protocol):
    """Wall clock and pauses. Data times never come from here unless a collection counts in `ms` or `us`."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""

    def monotonic_s(self) -> float:
        """Seconds that never go back, for deadlines."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class IdSource(Protocol):
    """Fresh names."""

    def fresh(self) -> str:
        """A name that was never used before: 32 lower-case hexadecimal digits."""


class Recorder(Protocol):
    """Takes counts and measurements; thread-safe. `tidelake.metrics` lists the names."""

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name`."""

    def observe(self, name: str, value: float) -> None:
        """Add a value to the histogram `name`."""

    def gauge(self, name: str, value: float | None, label: str = "") -> None:
        """Set the gauge `name`, for a collection or a level if it has a label; None: it is gone."""


class Stop(Protocol):
    """Tells background work when to end."""

    def wait(self, timeout: float) -> bool:
        """Pause for so many seconds, or until the work must end. Returns whether it must end."""


class Spawned(Protocol):
    """Background work that was started."""

    def stop(self) -> None:
        """Tell it to end, and wait until it has. May be repeated."""


class Spawner(Protocol):
    """Starts background work."""

    def spawn(self, name: str, work: Callable[[Stop], None]) -> Spawned:
        """Start `work`; it must check its `Stop` often, and raise nothing."""


class SystemClock:
    """The real clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds that never go back. On Linux they go on while the machine is suspended."""
        return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class RandomIds:
    """Ids from the operating system's random source, which stay unique after a fork."""

    def fresh(self) -> str:
        """A random 128-bit name."""
        return os.urandom(16).hex()


class ThreadSpawner:
    """Starts threads. They do not survive a fork: a child starts its own."""

    def spawn(self, name: str, work: Callable[[Stop], None]) -> Spawned:
        """Start a daemon thread.

        Raises:
            OutOfThreads: the system starts no further thread for this process.
        """
        return _SpawnedThread(name, work)


class _SpawnedThread:
    def __init__(self, name: str, work: Callable[[Stop], None]) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=work, args=(self._stop,), name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise OutOfThreads(name) from error

    def stop(self) -> None:
        self._stop.set()
        # The work itself may call this: a thread cannot join itself.
        if self._thread is not threading.current_thread():
            self._thread.join()


@dataclass(frozen=True)
class Histogram:
    """How many values were how large.

    Attributes:
        bounds: ascending upper ends of the buckets; the last bucket has no end.
        counts: values in each bucket, one more than bounds.
        total: sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    def plus(self, value: float) -> "Histogram":
        """With one more value."""
        at = bisect_left(self.bounds, value)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(self.bounds, counts, self.total + value)


# 2,000 collections with all their gauges: about 15 MB in memory, and as much text for Prometheus.
_GAUGES_MAX = 50_000


class Counters:
    """A recorder that keeps everything in memory: what a lake has if it is opened without one. Thread-safe.

    Attributes:
        counts: by name of the counter.
        histograms: by name.
        gauges: by name and label. At most 50,000; what is more is counted as `gauges.refused`.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.histograms: dict[str, Histogram] = {}
        self.gauges: dict[tuple[str, str], float] = {}
        self._lock = PerProcess(threading.Lock)

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name`."""
        with self._lock.get():
            self.counts[name] += amount

    def observe(self, name: str, value: float) -> None:
        """Add a value to the histogram `name`."""
        with self._lock.get():
            held = self.histograms.get(name)
            if held is None:
                bounds = BOUNDS[BY_NAME[name].unit]
                held = Histogram(bounds, (0,) * (len(bounds) + 1))
            self.histograms[name] = held.plus(value)

    def gauge(self, name: str, value: float | None, label: str = "") -> None:
        """Set the gauge `name`, or remove it."""
        key = name, label
        with self._lock.get():
            if value is None:
                self.gauges.pop(key, None)
            elif key in self.gauges or len(self.gauges) < _GAUGES_MAX:
                self.gauges[key] = value
            else:
                self.counts["gauges.refused"] += 1

    def taken(self) -> tuple[dict[str, int], dict[str, Histogram], dict[tuple[str, str], float]]:
        """Copies of counts, histograms and gauges, all of one moment."""
        with self._lock.get():
            return dict(self.counts), dict(self.histograms), dict(self.gauges)


@dataclass(frozen=True)
class Env:
    """The environment of a process: clock, ids, a recorder and a way to start threads."""

    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=RandomIds)
    recorder: Recorder = field(default_factory=Counters)
    spawner: Spawner = field(default_factory=ThreadSpawner)

    def failed(self, name: str) -> None:
        """Count a failure that its caller survives, and log it. Called while the error is handled.

        Args:
            name: of the counter, such as `renewer.failed`.
        """
        self.recorder.count(name)
        LOG.warning("%s: %s", name, sys.exception())


def expanded(path: str) -> str:
    """A path in which a `~` at its begin is a home directory.

    Raises:
        UsageError: there is no user of that name.
    """
    found = os.path.expanduser(path)
    if path.startswith("~") and found == path and path != "~":
        user = path.partition("/")[0]
        raise UsageError(f"{path!r}: there is no user {user[1:]!r}: write ./{user} if {user} is a directory")
    return found

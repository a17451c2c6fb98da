"""The outside world as small Protocols: the clock, fresh ids, counters and background threads.

Everything that is not a pure function takes an `Env`; tests pass their own. Background work is started
through a `Spawner`, only on request; nothing starts at import.
"""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tidelake.errors import OutOfThreads

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
    """Counts events."""

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name`."""


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
        return uuid.uuid4().hex


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


class Counters:
    """A recorder that keeps its counts in memory."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name`."""
        self.counts[name] += amount


@dataclass(frozen=True)
class Env:
    """The environment of a process: clock, ids, a recorder and a way to start threads."""

    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=RandomIds)
    recorder: Recorder = field(default_factory=Counters)
    spawner: Spawner = field(default_factory=ThreadSpawner)

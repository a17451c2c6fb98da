"""The world outside, as small Protocols: the clock, fresh ids, and where measurements go.

Everything that is not a pure function takes an `Env`; the tests hand in their own. Nothing here
starts a thread.
"""

import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol


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
        """A name that nobody has used: 32 lower-case hexadecimal digits."""


class Recorder(Protocol):
    """Takes counts of what was done."""

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name`."""


class SystemClock:
    """The real clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class RandomIds:
    """Ids from the operating system's random source: also fresh after a fork."""

    def fresh(self) -> str:
        """A random 128-bit name."""
        return uuid.uuid4().hex


class Counters:
    """A recorder that keeps its counts in memory."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: int = 1) -> None:
        """Add `amount` to the counter `name`."""
        self.counts[name] += amount


@dataclass(frozen=True)
class Env:
    """What a process brings along: clock, ids and a recorder."""

    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=RandomIds)
    recorder: Recorder = field(default_factory=Counters)

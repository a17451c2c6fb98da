"""Clocks of tests: none of them waits, and each says what moves it."""

import threading


class MovedClock:
    """A clock that moves when the test says so (`ms`), or when a thread sleeps."""

    def __init__(self, ms=1_000_000):
        self.ms = ms

    def now_ms(self):
        return self.ms

    def monotonic_s(self):
        return self.ms / 1000

    def sleep(self, seconds):
        self.ms += max(1, int(seconds * 1000))


class TickingClock(MovedClock):
    """A clock that moves a millisecond at each look at the seconds that never go back."""

    def monotonic_s(self):
        self.ms += 1
        return super().monotonic_s()


class SetClock:
    """A clock whose time (`ms`) the test sets. A sleep moves the seconds that never go back (`slept_s`)."""

    def __init__(self, ms=1_700_000_000_000):
        self.ms = ms
        self.slept_s = 0.0

    def now_ms(self):
        return self.ms

    def monotonic_s(self):
        return self.slept_s

    def sleep(self, seconds):
        self.slept_s += seconds


class RecordingClock:
    """A clock that any number of threads may sleep by, and that remembers for how long they did."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.pauses: list[float] = []
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.pauses.append(seconds)
            self.now_s += seconds

"""The clock of a store that the processes of several machines share.

Owns how often the store is asked. The answer is never ahead of the store's own time, so that ages that are
told by it are never too great.
"""

from collections.abc import Callable

from tidelake.env import Clock
from tidelake.errors import OutcomeUnknown, StoreUnavailable

_RENEWED_S = 3600.0
_AGAIN_S = 60.0


class StoreClock:
    """A `Clock` whose wall clock is that of a store; the others are those of this process.

    The store is asked at the first use, and again after an hour. If it fails then, the old answer is kept.

    Args:
        ask: asks the store for its time, in milliseconds since 1970 UTC. It may answer a little too early,
            and not too late.
        clock: of this process. Its `monotonic_s` must go on during a suspension.
    """

    def __init__(self, ask: Callable[[], int], clock: Clock) -> None:
        self._ask, self._clock = ask, clock
        self._ahead_ms: float | None = None  # the time of the store, less that of `monotonic_s`
        self._due_s = 0.0

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, by the clock of the store."""
        now_s = self._clock.monotonic_s()
        ahead_ms = self._ahead_ms
        if ahead_ms is None or now_s >= self._due_s:
            ahead_ms, self._due_s = self._asked(ahead_ms)
            self._ahead_ms = ahead_ms
        return int(self._clock.monotonic_s() * 1000 + ahead_ms)

    def monotonic_s(self) -> float:
        """Seconds that never go back; see `Clock`."""
        return self._clock.monotonic_s()

    def sleep(self, seconds: float) -> None:
        """Wait; see `Clock`."""
        self._clock.sleep(seconds)

    def _asked(self, known_ms: float | None) -> tuple[float, float]:
        try:
            found_ms = self._ask()
        except (StoreUnavailable, OutcomeUnknown):
            if known_ms is None:
                raise
            return known_ms, self._clock.monotonic_s() + _AGAIN_S
        now_s = self._clock.monotonic_s()  # after the answer, so that the result is not ahead
        return found_ms - now_s * 1000, now_s + _RENEWED_S

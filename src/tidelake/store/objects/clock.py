"""The time of an object store, which the processes of all machines share.

Owns the object that is written to learn it. The answer is never ahead of the store's own time, so that ages
that are told by it are never too great.
"""

from tidelake.env import Clock
from tidelake.errors import OutcomeUnknown, StoreUnavailable
from tidelake.store.objects.bucket import Bucket

KEY = "clock"
"""The object that is written."""

_RENEWED_S = 3600.0
_AGAIN_S = 60.0


def store_ms(bucket: Bucket) -> int:
    """The time of the store in milliseconds since 1970 UTC, or a little earlier. Two requests."""
    bucket.put(KEY, b"")
    info = bucket.head(KEY)
    if info is None:
        raise StoreUnavailable(f"object {KEY!r} was removed while the time of the store was read")
    return info.modified_ms


class StoreClock:
    """A `Clock` whose wall clock is that of a store; the others are those of this process.

    The store is asked at the first use, and again after an hour. If it fails then, the old answer is kept.

    Args:
        bucket: where the time is learned; must be writable.
        clock: of this process. Its `monotonic_s` must go on during a suspension.
    """

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket, self._clock = bucket, clock
        self._ahead_ms: float | None = None  # the time of the store, less that of `monotonic_s`
        self._due_s = 0.0

    def now_ms(self) -> int:
        """Milliseconds since 1970 UTC, by the clock of the store.

        Raises:
            StoreUnavailable, OutcomeUnknown: the first look at the clock failed.
        """
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
            found_ms = store_ms(self._bucket)
        except (StoreUnavailable, OutcomeUnknown):
            if known_ms is None:
                raise
            return known_ms, self._clock.monotonic_s() + _AGAIN_S
        now_s = self._clock.monotonic_s()  # after the answer, so that the result is not ahead
        return found_ms - now_s * 1000, now_s + _RENEWED_S

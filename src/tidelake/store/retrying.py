"""Layers that retry failed calls.

Owns the pauses, the deadline, and which operation may be repeated after which error. Must not know the store
inside.

INVARIANT: this layer raises `StoreUnavailable` only if no attempt of the call can have had an effect. A
compare-and-set with unknown outcome is never sent again; its caller reads the log to find out.
"""

from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from tidelake.env import Clock, IdSource, Recorder
from tidelake.errors import BlobExists, BlobNotFound, OutcomeUnknown, StoreUnavailable
from tidelake.store.layers import WRITES, BlobLayer, LogLayer, Operation
from tidelake.store.protocols import BlobInfo, BlobStore, VersionLog
from tidelake.store.reader import read_through

PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 2.0

T = TypeVar("T")


def draw_from(ids: IdSource) -> Callable[[], float]:
    """Random numbers in [0, 1), made from fresh ids. There is no state that a forked child would repeat."""
    return lambda: int(ids.fresh()[:8], 16) / 2**32


class Retry:
    """Repeats an operation with exponential pauses and full jitter until a deadline.

    The `n`-th pause is uniform in `[0, min(PAUSE_S_MAX, PAUSE_S_MIN * 2**n))`, after M. Brooker,
    "Exponential Backoff and Jitter" (2015). A pause that would end after the deadline is not begun.
    """

    def __init__(
        self,
        clock: Clock,
        deadline_s: float,
        draw: Callable[[], float],
        recorder: Recorder | None = None,
    ) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._draw = draw
        self._recorder = recorder

    def read(self, operation: Callable[[], T]) -> T:
        """Repeat an operation that changes nothing, after either error; at last, raise the last error."""
        return self._repeat(operation, has_effect=False)

    def write(self, operation: Callable[[], T]) -> T:
        """Repeat an idempotent write. After an unknown outcome, every failure is `OutcomeUnknown`."""
        return self._repeat(operation, has_effect=True)

    def around(self, operation: Operation, call: Callable[[], T]) -> T:
        """Make a call of a store, and repeat it as its operation allows; an `Around`.

        A compare-and-set must take effect once, so it is repeated only after errors that exclude an effect.
        A second attempt after an unknown outcome could find its own entry and return False.
        """
        is_repeatable = operation != "log.compare_and_set"
        return self._repeat(call, has_effect=operation in WRITES, is_repeatable=is_repeatable)

    def _repeat(self, operation: Callable[[], T], *, has_effect: bool, is_repeatable: bool = True) -> T:
        deadline_s = self._clock.monotonic_s() + self._deadline_s
        pause_s_max = PAUSE_S_MIN
        is_unknown = False
        while True:
            try:
                return operation()
            except (StoreUnavailable, OutcomeUnknown) as error:
                is_unknown = is_unknown or isinstance(error, OutcomeUnknown)
                pause_s = self._draw() * pause_s_max
                may_help = error.retryable if isinstance(error, StoreUnavailable) else is_repeatable
                if not may_help or self._clock.monotonic_s() + pause_s >= deadline_s:
                    if is_unknown and has_effect and isinstance(error, StoreUnavailable):
                        raise OutcomeUnknown(f"{error}; an earlier attempt may have happened") from error
                    raise
            if self._recorder is not None:
                self._recorder.count("store.retries")
            self._clock.sleep(pause_s)
            pause_s_max = min(PAUSE_S_MAX, 2 * pause_s_max)

    def iterate(self, start: Callable[[], Iterator[T]], name_of: Callable[[T], str]) -> Iterator[T]:
        """Repeat an ascending listing: after an error, list again and skip the items already yielded."""
        last = ""
        items: Iterator[T] | None = None

        def step() -> T | None:
            nonlocal items
            try:
                if items is None:
                    items = start()
                for item in items:
                    if name_of(item) > last:
                        return item
            except (StoreUnavailable, OutcomeUnknown):
                items = None
                raise
            return None

        while (item := self.read(step)) is not None:
            last = name_of(item)
            yield item


class RetryingBlobStore(BlobLayer):
    """A `BlobStore` that retries.

    A `delete` that was repeated after an unknown outcome may return False although it deleted the object.
    """

    def __init__(
        self,
        inner: BlobStore,
        clock: Clock,
        deadline_s: float,
        draw: Callable[[], float],
        recorder: Recorder | None = None,
    ) -> None:
        self._retry = Retry(clock, deadline_s, draw, recorder)
        super().__init__(inner, self._retry.around)

    def put(self, name: str, data: bytes) -> None:
        """Store a new object; see `BlobStore.put`.

        If an object of this name and with these bytes exists, the put has succeeded: it does not matter which
        process put it, or which attempt. Finding out costs one more call.
        """

        def attempt() -> None:
            try:
                self._inner.put(name, data)
            except BlobExists:
                if not self._holds(name, data):
                    raise

        self._retry.write(attempt)

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List objects; see `BlobStore.list`. The deadline applies to each step of the iterator."""
        return self._retry.iterate(lambda: self._inner.list(prefix), lambda info: info.name)

    def open(self, name: str) -> BinaryIO:
        """Open a reader; each of its reads is retried at its position. See `BlobStore.open`."""
        return read_through(super().open(name), self._read)

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self._inner.get(name) == data
        except BlobNotFound as error:
            raise OutcomeUnknown(f"object {name!r} was put and deleted while it was written") from error

    def _read(self, inner: BinaryIO, size: int) -> bytes:
        position = inner.tell()

        def attempt() -> bytes:
            inner.seek(position)
            return inner.read(size)

        return self._retry.read(attempt)


class RetryingVersionLog(LogLayer):
    """A `VersionLog` that retries, except a `compare_and_set` of unknown outcome.

    A `truncate` or `delete` that was repeated after an unknown outcome may not report what it removed itself.
    """

    def __init__(
        self,
        inner: VersionLog,
        clock: Clock,
        deadline_s: float,
        draw: Callable[[], float],
        recorder: Recorder | None = None,
    ) -> None:
        self._retry = Retry(clock, deadline_s, draw, recorder)
        super().__init__(inner, self._retry.around)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List keys; see `VersionLog.keys`. The deadline applies to each step of the iterator."""
        return self._retry.iterate(lambda: self._inner.keys(prefix), lambda key: key)

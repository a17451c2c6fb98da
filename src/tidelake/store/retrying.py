"""A layer that retries failed calls.

Owns the pauses, the deadline, and which operation may be repeated after which error. Must not know the store
inside.

INVARIANT: this layer raises `StoreUnavailable` only if no attempt of the call can have had an effect. A
compare-and-set with unknown outcome is never sent again; its caller reads the log to find out.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, ParamSpec, TypeVar

from tidelake.env import Clock, IdSource, Recorder
from tidelake.errors import BlobExists, BlobNotFound, OutcomeUnknown, StoreUnavailable
from tidelake.store.layers import WRITES, Method, Methods, Operation, reading

PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 2.0

P = ParamSpec("P")
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
        self, clock: Clock, deadline_s: float, draw: Callable[[], float], recorder: Recorder | None = None
    ) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._draw = draw
        self._recorder = recorder

    def read(self, operation: Callable[[], T]) -> T:
        """Repeat an operation that changes nothing, after either error; at last, raise the last error."""
        return self._repeating(operation, has_effect=False)()

    def write(self, operation: Callable[[], T]) -> T:
        """Repeat an idempotent write. After an unknown outcome, every failure is `OutcomeUnknown`."""
        return self._repeating(operation, has_effect=True)()

    def layer(self, below: Methods) -> Methods:
        """Repeat each call of a store as its operation allows; a `Layer`.

        - A compare-and-set must take effect once, so it is repeated only after errors that exclude an effect.
          A second attempt after an unknown outcome could find its own entry and return False.
        - A `delete` or `truncate` that was repeated after an unknown outcome may not report what it removed
          itself.
        - A listing goes on where it failed; its deadline applies to each step. Each read of an opened object
          is repeated at its position.
        """
        above = {name: self._of_store(name, method) for name, method in below.items()}
        if "blob.put" in below:
            put = _putting(below["blob.put"], below["blob.get"])
            above["blob.put"] = self._repeating(put, has_effect=True)
            above["blob.list"] = self._listing(below["blob.list"], lambda info: info.name)
        else:
            above["log.keys"] = self._listing(below["log.keys"], lambda key: key)
        return reading(above, self._read)

    def _of_store(self, operation: Operation, method: Method) -> Method:
        is_repeatable = operation != "log.compare_and_set"
        return self._repeating(method, has_effect=operation in WRITES, is_repeatable=is_repeatable)

    def _repeating(
        self, operation: Callable[P, T], *, has_effect: bool, is_repeatable: bool = True
    ) -> Callable[P, T]:
        def call(*args: P.args, **named: P.kwargs) -> T:
            deadline_s = self._clock.monotonic_s() + self._deadline_s
            pause_s_max = PAUSE_S_MIN
            is_unknown = False
            while True:
                try:
                    return operation(*args, **named)
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

        return call

    def _listing(self, method: Callable[P, Iterator[T]], name_of: Callable[[T], str]) -> Method:
        return lambda *args, **named: self._iterate(partial(method, *args, **named), name_of)

    def _iterate(self, start: Callable[[], Iterator[T]], name_of: Callable[[T], str]) -> Iterator[T]:
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

    def _read(self, inner: BinaryIO, size: int) -> bytes:
        position = inner.tell()

        def attempt() -> bytes:
            inner.seek(position)
            return inner.read(size)

        return self.read(attempt)


def _putting(put: Method, get: Method) -> Method:
    """A put that has succeeded if an object of this name and with these bytes exists.

    It does not matter which process put it, or which attempt. Finding out costs one more call.
    """

    def attempt(name: str, data: bytes) -> None:
        try:
            put(name, data)
        except BlobExists:
            try:
                is_there = get(name) == data
            except BlobNotFound as error:
                raise OutcomeUnknown(f"object {name!r} was put and deleted while it was written") from error
            if not is_there:
                raise

    return attempt

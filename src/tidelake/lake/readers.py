"""Readers and critical holds of a collection, with times and frontiers as users write them."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType

import pyarrow as pa

from tidelake.errors import UsageError
from tidelake.lake.frontiers import FrontierLike, frontier
from tidelake.lake.names import check_token
from tidelake.lake.wanted import wanted
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Updates
from tidelake.model.time import TIME_MAX, Time, TimeDomain
from tidelake.shard.reading.critical import CriticalHold, Moved
from tidelake.shard.reading.reader import Reader, Step

_LONGEST_S = 100 * 366 * 86_400
_PER_UNIT = {"ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1)}


class CollectionReader:
    """Reads of a collection under a hold, until `close` (or the end of a `with` block).

    History from `since` on is kept, and so are the parts of the state that it reads: the one that was the
    newest when it was opened, or when it was asked for a time that this one did not know. It shows signs of
    life in the background; without one for `lease_s` the hold expires, and every later call raises
    `LeaseExpired`. Then open another one.
    """

    def __init__(self, reader: Reader, domain: TimeDomain, last_time: Callable[[], Time]) -> None:
        self._reader = reader
        self._domain = domain
        self._last_time = last_time

    @property
    def id(self) -> str:
        """The name of its hold."""
        return self._reader.id

    @property
    def since(self) -> Frontier:
        """History from here on is held."""
        return self._reader.since

    def snapshot(
        self,
        as_of: Time | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> pa.RecordBatchReader:
        """As `Collection.snapshot`; errors as well.

        Raises:
            LeaseExpired: the hold is gone.
        """
        at = self._last_time() if as_of is None else self._domain.check(as_of, "as_of")
        return self._reader.stream(AsOf(at), patience(timeout_s), wanted(columns, where))

    def changes(
        self,
        after: Time,
        through: Time,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> pa.RecordBatchReader:
        """As `Collection.changes`; errors as `snapshot`."""
        asked = Changes(self._domain.check(after, "after"), self._domain.check(through, "through"))
        return self._reader.stream(asked, patience(timeout_s), wanted(columns, where))

    def updates(
        self,
        lower: FrontierLike,
        upper: FrontierLike,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> pa.RecordBatchReader:
        """As `Collection.updates`; errors as `snapshot`."""
        start, end = frontier(lower, self._domain, "lower"), frontier(upper, self._domain, "upper")
        return self._reader.stream(Updates(start, end), patience(timeout_s), wanted(columns, where))

    def listen(self, as_of: Time, timeout_s: float | None = None) -> Iterator[Step]:
        """Every time after `as_of` once, in steps; see `Reader.listen`."""
        return self._reader.listen(self._domain.check(as_of, "as_of"), patience(timeout_s))

    def downgrade(self, since: FrontierLike) -> None:
        """No longer hold history before `since`. One log write.

        Raises:
            LeaseExpired: the hold is gone.
        """
        self._reader.downgrade(frontier(since, self._domain, "since"))

    def close(self) -> None:
        """Give the hold up. May be repeated."""
        self._reader.close()

    def __enter__(self) -> "CollectionReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CollectionCriticalHold:
    """A hold by name that lasts until it is dropped; see `tidelake.shard.reading.critical.CriticalHold`."""

    def __init__(self, hold: CriticalHold, domain: TimeDomain) -> None:
        self._hold = hold
        self._domain = domain

    @property
    def name(self) -> str:
        """Of the hold."""
        return self._hold.name

    @property
    def token(self) -> str:
        """Of its owner, as far as this object knows."""
        return self._hold.token

    @property
    def since(self) -> Frontier:
        """History from here on is kept, as far as this object knows."""
        return self._hold.since

    def compare_and_downgrade_since(self, expected_token: str, new: tuple[str, FrontierLike]) -> Moved:
        """Move it to `new`, a token and a `since`, iff its token is the expected one. One log write.

        The same call again, after a reply that was lost, is done as well. If another owner was first, the
        answer is not `done` and tells that owner's token and `since`.

        Raises:
            UsageError: it was dropped.
        """
        given: object = new
        if not isinstance(given, tuple) or len(given) != 2:
            raise UsageError(f"new={given!r} must be a token and a since: write ('token', since)")
        token, since = new
        for text in (expected_token, token):
            check_token(text, self.name)
        return self._hold.compare_and_downgrade_since(
            expected_token, token, frontier(since, self._domain, "since")
        )

    def drop(self) -> bool:
        """Give it up, whoever owns it; whether there was one. One log write."""
        return self._hold.drop()


def patience(timeout_s: object) -> float | None:
    """A patience in seconds, checked."""
    if timeout_s is None or (isinstance(timeout_s, int | float) and timeout_s >= 0):
        return None if timeout_s is None else float(timeout_s)
    raise UsageError(f"timeout_s={timeout_s!r} must be a number of seconds that is not negative")


def duration_s(duration: object, name: str) -> float:
    """A span of wall-clock time in seconds, from that or a timedelta."""
    value = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S:
        raise UsageError(
            f"{name}={duration!r} must be a timedelta, or a number of seconds that is not negative, and at "
            "most a hundred years"
        )
    return float(value)


def window(wanted: object, domain: TimeDomain) -> int | None:
    """A window of history in units of the collection's time.

    Raises:
        UsageError: it is none; says what to give instead.
    """
    if wanted is None:
        return None
    if not domain.total_order:
        raise UsageError(
            f"times of unit {domain} have no length, so there is no window of them: call advance_since"
        )
    asked = wanted
    if isinstance(wanted, timedelta):
        unit = _PER_UNIT.get(domain.unit)
        if unit is None:
            raise UsageError(
                f"retention {wanted} is a span of a clock, and times are a {domain}: give a number"
            )
        wanted = wanted // unit
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        shown = asked if isinstance(asked, timedelta) else repr(asked)
        raise UsageError(
            f"retention {shown} must be a whole number of at least 1, a timedelta of at least one unit of "
            "the times, or None to keep all"
        )
    if wanted > TIME_MAX:
        raise UsageError(f"retention {asked!r} is longer than all time: give None to keep all")
    return wanted

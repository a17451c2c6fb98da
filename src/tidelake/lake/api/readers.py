"""Readers and critical holds of a collection, with times and frontiers as users write them."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from tidelake.data.answer.rows import Rows
from tidelake.errors import UsageError
from tidelake.handle import Handle
from tidelake.lake.api.following import following
from tidelake.lake.api.intervals import IntervalReads, R, ReadAt, SplitReads
from tidelake.lake.arguments.names import check_token
from tidelake.lake.arguments.times import FrontierLike, ReadTimes, Times
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf, Query
from tidelake.model.selection import ReadOptions, TimesAs
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.engine.version import Version
from tidelake.shard.reading.critical import CriticalHold, Moved
from tidelake.shard.reading.reader import Reader, Step
from tidelake.state.core.state import ShardState


class CollectionReader(IntervalReads, SplitReads):
    """Reads of a collection under a hold, until `close` or the end of a `with` block.

    The hold keeps history from `since` on, and the parts of the version that the reader uses. That is the
    newest version when the reader was opened; a read at a time that is not closed in it moves the reader to
    the newest version. The first read with `staged` also moves it; later ones see the same staged rows, until
    a read at a later closed time or `downgrade` moves the reader again. The hold is renewed in the
    background; if it is not renewed for `lease_s`, it expires, and every later call raises `LeaseExpired`.
    Then open another reader.
    """

    def __init__(self, reader: Reader, times: ReadTimes, last_staged: Callable[[ShardState], Time]) -> None:
        self._reader = reader
        self._converts, self._last_staged = times, last_staged

    @property
    def domain(self) -> TimeDomain:
        """The unit of the times."""
        return self._converts.domain

    @property
    def _times(self) -> ReadTimes:
        return self._converts

    @property
    def id(self) -> str:
        """The id of its hold."""
        return self._reader.id

    @property
    def since(self) -> Frontier:
        """The frontier from which on history is held."""
        return self._reader.since

    def snapshot(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        staged: bool = False,
        times: TimesAs = "int64",
    ) -> Rows:
        """See `Collection.snapshot`; same errors.

        Raises:
            LeaseExpired: the hold is gone.
        """
        return self._at(as_of, ReadOptions(columns, where, timeout_s, staged, times=times), self._read)

    def _at(self, as_of: TimeLike | None, options: ReadOptions, read: ReadAt[R]) -> R:
        if as_of is not None:
            return read(AsOf(self._times.read(as_of, "as_of", staged=options.staged)), options, None)
        last = self._last_staged(self._reader.ahead()) if options.staged else self._times.last()
        return read(AsOf(last), options, None)

    def _read(
        self,
        asked: Query,
        options: ReadOptions,
        seen: Version | None = None,  # noqa: ARG002 - a reader reads what it has pinned
    ) -> Rows:
        return self._reader.stream(asked, options)

    def _split(
        self,
        n: int,
        asked: Query,
        options: ReadOptions,
        seen: Version | None = None,  # noqa: ARG002 - as above
    ) -> list[Rows]:
        return self._reader.split(asked, n, options)

    def listen(
        self,
        as_of: TimeLike,
        timeout_s: float | None = None,
        *,
        until: FrontierLike | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        times: TimesAs = "int64",
    ) -> Iterator[Step]:
        """Yield every update after `as_of` once, in steps; see `Collection.listen`.

        Raises:
            LeaseExpired: the hold is gone.
        """
        at = self._times.read(as_of, "as_of")
        how = ReadOptions(columns, where, timeout_s, times=times)
        return self._reader.listen(at, following(self._times, until, how))

    def downgrade(self, since: FrontierLike) -> None:
        """Stop holding history before `since`, and staged rows that earlier reads saw. One log write.

        Raises:
            LeaseExpired: the hold is gone.
        """
        self._reader.downgrade(self._times.since(since, "since"))

    def close(self) -> None:
        """Release the hold. May be repeated."""
        self._reader.close()

    def __enter__(self) -> "CollectionReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CollectionCriticalHold(Handle):
    """A named hold that lasts until it is dropped; see `tidelake.shard.reading.critical.CriticalHold`."""

    def __init__(self, hold: CriticalHold, times: Times) -> None:
        self._hold = hold
        self._times = times

    @property
    def name(self) -> str:
        """The name of the hold."""
        return self._hold.name

    @property
    def token(self) -> str:
        """The token of its owner, as far as this object knows."""
        return self._hold.token

    @property
    def since(self) -> Frontier:
        """The frontier from which on history is kept, as far as this object knows."""
        return self._hold.since

    def compare_and_downgrade_since(self, expected_token: str, new: tuple[str, FrontierLike]) -> Moved:
        """Move the hold to `new`, a token and a `since`, iff its token is the expected one. One log write.

        Repeating the call after a lost reply also succeeds. If another owner was first, the answer is not
        `done`, and has that owner's token and `since`.

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
            expected_token, token, self._times.since(since, "since")
        )

    def drop(self) -> bool:
        """Drop the hold, whatever its token is. Returns whether there was one. One log write."""
        return self._hold.drop()

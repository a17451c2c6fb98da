"""Reads between two times, and reads in several streams."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from tidelake.data.answer.rows import Rows
from tidelake.errors import UsageError
from tidelake.handle import Handle
from tidelake.lake.arguments.times import FrontierLike, ReadTimes
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf, Changes, Query, Updates
from tidelake.model.selection import ReadOptions, TimesAs
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.version import Version

R = TypeVar("R")
ReadAt: TypeAlias = Callable[[AsOf, ReadOptions, Version | None], R]
"""Reads the contents at a time; the version, if any, was just read and told the time."""

_STREAMS_MAX = 65_536


class Timed(Handle, ABC):
    """Something that has times."""

    @property
    @abstractmethod
    def domain(self) -> TimeDomain:
        """The unit of the times."""

    @property
    @abstractmethod
    def _times(self) -> ReadTimes:
        """Converts the times of users."""


class IntervalReads(Timed):
    """Reads of what lies between two times."""

    @abstractmethod
    def _read(self, asked: Query, options: ReadOptions) -> Rows:
        """Answer a query as one stream."""

    def changes(
        self,
        after: TimeLike,
        through: TimeLike,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        staged: bool = False,
        times: TimesAs = "int64",
    ) -> Rows:
        """The exact net difference between the contents at `after` and at `through`.

        A `_diff` of `+n` means that n such rows were added, `-n` that n were removed. A row that was added
        and removed in between does not appear. All rows are at time `through`. `columns`, `where`, `staged`,
        `times` and errors as for `snapshot`.
        """
        read = partial(self._times.read, staged=staged)
        asked = Changes(read(after, "after"), read(through, "through"))
        return self._read(asked, ReadOptions(columns, where, timeout_s, staged, times=times))

    def updates(
        self,
        lower: FrontierLike,
        upper: FrontierLike,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        staged: bool = False,
        times: TimesAs = "int64",
    ) -> Rows:
        """Every update in `[lower, upper)`, at its own time.

        `columns`, `where`, `staged`, `times` and errors as for `snapshot`.
        """
        bound = partial(self._times.read_bound, staged=staged)
        asked = Updates(bound(lower, "lower"), bound(upper, "upper"))
        return self._read(asked, ReadOptions(columns, where, timeout_s, staged, times=times))


class SplitReads(Timed):
    """Reads in several streams."""

    @abstractmethod
    def _at(self, as_of: TimeLike | None, options: ReadOptions, read: ReadAt[R]) -> R:
        """Read the contents at a time; None: the last closed one or, if `staged`, `last_staged`."""

    @abstractmethod
    def _split(self, n: int, asked: Query, options: ReadOptions, seen: Version | None = None) -> list[Rows]:
        """Answer a query as `n` streams; `seen` is a version that was just read."""

    def split_snapshot(
        self,
        n: int,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        times: TimesAs = "int64",
    ) -> list[Rows]:
        """`snapshot` in `n` streams of about equal size, one for each of `n` threads.

        All streams read the same version of the collection. Each is sorted and holds all rows of its keys;
        concatenated they are the snapshot. Size means stored bytes or, if there are few bytes, rows. If there
        are fewer keys than streams, some streams are empty. The parts are kept until the last stream ends.
        Costs one log scan and a read or two of each part; of small parts also the keys. Other arguments and
        errors as for `snapshot`. For other processes see `Distributed.plan`.
        """
        return self._at(
            as_of, ReadOptions(columns, where, timeout_s, times=times), partial(self._split, _streams(n))
        )

    def split_changes(
        self,
        n: int,
        after: TimeLike,
        through: TimeLike,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        times: TimesAs = "int64",
    ) -> list[Rows]:
        """`changes` in `n` streams; see `split_snapshot`."""
        read = self._times.read
        asked = Changes(read(after, "after"), read(through, "through"))
        return self._split(_streams(n), asked, ReadOptions(columns, where, timeout_s, times=times))

    def split_updates(
        self,
        n: int,
        lower: FrontierLike,
        upper: FrontierLike,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        times: TimesAs = "int64",
    ) -> list[Rows]:
        """`updates` in `n` streams; see `split_snapshot`."""
        bound = self._times.read_bound
        asked = Updates(bound(lower, "lower"), bound(upper, "upper"))
        return self._split(_streams(n), asked, ReadOptions(columns, where, timeout_s, times=times))


def _streams(n: object) -> int:
    """Check a number of streams."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"n={n!r} must be a whole number of streams, at least 1")
    if n > _STREAMS_MAX:
        raise UsageError(f"n={n} streams are too many: ask for at most {_STREAMS_MAX:,}, one for each thread")
    return n

"""Reads between two times, and reads in several streams."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from tidelake.lake.arguments.frontiers import FrontierLike, frontier
from tidelake.lake.arguments.spans import patience
from tidelake.lake.arguments.wanted import streams, wanted
from tidelake.model.query import AsOf, Changes, Query, Updates
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time, TimeDomain

R = TypeVar("R")


class Timed(ABC):
    """Something that has times."""

    @property
    @abstractmethod
    def domain(self) -> TimeDomain:
        """The unit of the times."""


class IntervalReads(Timed):
    """Reads of what lies between two times."""

    @abstractmethod
    def _read(
        self, asked: Query, patience_s: float | None, rows: ReadOptions, *, staged: bool
    ) -> pa.RecordBatchReader:
        """Answer a query as one stream."""

    def changes(
        self,
        after: Time,
        through: Time,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        staged: bool = False,
    ) -> pa.RecordBatchReader:
        """The exact net difference between the contents at `after` and at `through`.

        A `_diff` of `+n` means that n such rows were added, `-n` that n were removed. A row that was added
        and removed in between does not appear. All rows are at time `through`. `columns`, `where`, `staged`
        and errors as for `snapshot`.
        """
        asked = Changes(self.domain.check(after, "after"), self.domain.check(through, "through"))
        return self._read(asked, patience(timeout_s), wanted(columns, where), staged=staged)

    def updates(
        self,
        lower: FrontierLike,
        upper: FrontierLike,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        staged: bool = False,
    ) -> pa.RecordBatchReader:
        """Every update in `[lower, upper)`, at its own time.

        `columns`, `where`, `staged` and errors as for `snapshot`.
        """
        asked = Updates(frontier(lower, self.domain, "lower"), frontier(upper, self.domain, "upper"))
        return self._read(asked, patience(timeout_s), wanted(columns, where), staged=staged)


class SplitReads(Timed):
    """Reads in several streams."""

    @abstractmethod
    def _asked(self, as_of: Time | None, ask: Callable[[AsOf], R], *, staged: bool = False) -> R:
        """Call `ask` for the contents at a time; None: the last closed one or, if `staged`, `last_staged`."""

    @abstractmethod
    def _split(
        self, asked: Query, n: int, patience_s: float | None, rows: ReadOptions
    ) -> list[pa.RecordBatchReader]:
        """Answer a query as `n` streams."""

    def split_snapshot(
        self,
        n: int,
        as_of: Time | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> list[pa.RecordBatchReader]:
        """`snapshot` in `n` streams of about equal size, one for each of `n` threads.

        All streams read the same version of the collection. Each is sorted and holds all rows of its keys;
        concatenated they are the snapshot. Size means stored bytes or, if there are few bytes, rows. If there
        are fewer keys than streams, some streams are empty. The parts are kept until the last stream ends.
        For other processes see `Distributed.plan`.

        Args:
            n: number of streams.
            as_of: as for `snapshot`, like the other arguments and errors.
            columns: as for `snapshot`.
            where: as for `snapshot`.
            timeout_s: how long to wait for the time to be closed.

        Returns:
            The streams. Costs one log scan and a read or two of each part; of small parts also the keys.
        """
        streams_, patience_s, asked_for = streams(n), patience(timeout_s), wanted(columns, where)

        def ask(asked: Query) -> list[pa.RecordBatchReader]:
            return self._split(asked, streams_, patience_s, asked_for)

        return self._asked(as_of, ask)

    def split_changes(
        self,
        n: int,
        after: Time,
        through: Time,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> list[pa.RecordBatchReader]:
        """`changes` in `n` streams; see `split_snapshot`."""
        asked = Changes(self.domain.check(after, "after"), self.domain.check(through, "through"))
        return self._split(asked, streams(n), patience(timeout_s), wanted(columns, where))

    def split_updates(
        self,
        n: int,
        lower: FrontierLike,
        upper: FrontierLike,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> list[pa.RecordBatchReader]:
        """`updates` in `n` streams; see `split_snapshot`."""
        asked = Updates(frontier(lower, self.domain, "lower"), frontier(upper, self.domain, "upper"))
        return self._split(asked, streams(n), patience(timeout_s), wanted(columns, where))

"""Reads in several streams and between two times, as every reader of a collection has them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa

from tidelake.lake.frontiers import FrontierLike, frontier
from tidelake.lake.spans import patience
from tidelake.lake.wanted import streams, wanted
from tidelake.model.query import AsOf, Changes, Query, Updates
from tidelake.model.selection import Wanted
from tidelake.model.time import Time, TimeDomain

R = TypeVar("R")


class IntervalReads(ABC):
    """Who reads the contents at a time, and what lies between two."""

    @property
    @abstractmethod
    def domain(self) -> TimeDomain:
        """The unit of the times."""

    @abstractmethod
    def _read(
        self, asked: Query, patience_s: float | None, rows: Wanted, *, staged: bool
    ) -> pa.RecordBatchReader:
        """The answer."""

    @abstractmethod
    def _split(
        self, asked: Query, n: int, patience_s: float | None, rows: Wanted
    ) -> list[pa.RecordBatchReader]:
        """The answer in `n` streams."""

    @abstractmethod
    def _asked(self, as_of: Time | None, ask: Callable[[AsOf], R]) -> R:
        """Ask for the contents at a time; None: the last closed one."""

    def split_snapshot(
        self,
        n: int,
        as_of: Time | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
    ) -> list[pa.RecordBatchReader]:
        """`snapshot` in `n` streams of about equal size, for as many threads.

        All are of one version of the collection. Each is sorted and holds all rows of its keys; one after
        the other they are the snapshot. Sizes are stored bytes, or, where those are few, rows. Where there
        are fewer keys than streams, some are empty. What is read is kept until the last one ends. For other
        processes see `Collection.plan`.

        Args:
            n: how many.
            as_of: as `snapshot`, and so are the other arguments and errors.
            columns: to give.
            where: which rows.
            timeout_s: how long to wait for the time to be closed.

        Returns:
            One log scan and a read or two of each part; of small ones the keys are read as well.
        """
        streams_, patience_s, asked_for = streams(n), patience(timeout_s), wanted(columns, where)

        def ask(asked: Query) -> list[pa.RecordBatchReader]:
            return self._split(asked, streams_, patience_s, asked_for)

        return self._asked(as_of, ask)

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
        """The exact netted difference between the contents at `after` and at `through`.

        `+n` rows were added, `-n` taken away; a row that came and went does not appear. Times are
        forwarded to `through`. `columns`, `where`, `staged` and errors as `snapshot`.
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
        """Every update of `[lower, upper)` at its own time.

        `columns`, `where`, `staged` and errors as `snapshot`.
        """
        asked = Updates(frontier(lower, self.domain, "lower"), frontier(upper, self.domain, "upper"))
        return self._read(asked, patience(timeout_s), wanted(columns, where), staged=staged)

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

"""Reads between two times, as every reader of a collection has them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from tidelake.lake.frontiers import FrontierLike, frontier
from tidelake.lake.spans import patience
from tidelake.lake.wanted import streams, wanted
from tidelake.model.query import Changes, Query, Updates
from tidelake.model.selection import Wanted
from tidelake.model.time import Time, TimeDomain


class IntervalReads(ABC):
    """Who reads what lies between two times."""

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

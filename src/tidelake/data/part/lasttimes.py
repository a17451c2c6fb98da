"""The latest times of a stream of updates, to check that all lie before an upper frontier.

Owns these times; must not know parts. Invariant: every time that was added is at or before a kept one, in
every component.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain

Ints = npt.NDArray[np.int64]
# Ints have one latest time. Tuples may have as many as there are times; then the caller must check each row.
_KEPT_MAX = 64


class LastTimes:
    """Takes updates and keeps their maximal times: those that no other time is at or after.

    Attributes:
        complete: whether all maximal times were kept; there may be too many.
    """

    def __init__(self, domain: TimeDomain) -> None:
        self.complete = True
        self._domain = domain
        self._kept: list[Ints] = []

    def add(self, table: pa.Table) -> None:
        """Take the times of a table."""
        for batch in table.select(self._domain.columns).to_batches():
            if batch.num_rows and self.complete:
                self._add(np.array([column.to_numpy() for column in batch.columns]).T)

    def at_or_after(self, frontier: Frontier) -> Time | None:
        """A time at or after a frontier, or None if there is none (sure only if `complete`)."""
        times = (tuple(int(x) for x in time) for time in self._kept)
        found = sorted(time for time in times if frontier.less_equal(self._time(time)))
        return self._time(found[-1]) if found else None

    def _time(self, components: tuple[int, ...]) -> Time:
        return components if self._domain.unit == "tuple" else components[0]

    def _add(self, times: Ints) -> None:
        for known in self._kept:
            times = times[(times > known).any(axis=1)]
        while len(times):
            if len(self._kept) == _KEPT_MAX:
                self.complete = False
                return
            # The greatest in lexicographic order is at or before no other time.
            last = times
            for component in range(times.shape[1]):
                last = last[last[:, component] == last[:, component].max()]
            self._kept = [k for k in self._kept if (k > last[0]).any()] + [last[0].copy()]
            times = times[(times > last[0]).any(axis=1)]

"""The latest times of a stream of updates: enough to say whether all lie before an upper frontier.

Owns these times; must not know parts. Invariant: no time that was added is unless one of the kept ones is at
or after it, in every component.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain

Ints = npt.NDArray[np.int64]
# Of ints there is one. Of tuples there may be as many as there are times; then whoever asks must look.
_KEPT_MAX = 64


class LastTimes:
    """Takes updates, keeps the times that no other time is at or after.

    Attributes:
        complete: whether all of these times were kept; there may be too many.
    """

    def __init__(self, domain: TimeDomain) -> None:
        self.complete = True
        self._domain = domain
        self._kept: list[Ints] = []

    def add(self, table: pa.Table) -> None:
        """Take the times of a table."""
        for batch in table.select(self._domain.columns).to_batches():
            if batch.num_rows and self.complete:
                self._add(np.stack([column.to_numpy() for column in batch.columns], axis=1))

    def beyond(self, frontier: Frontier) -> Time | None:
        """One of the times that is beyond a frontier, or None if none is (if `complete`: of all times)."""
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
            # The greatest in the order of words is at or before no other.
            last = times
            for component in range(times.shape[1]):
                last = last[last[:, component] == last[:, component].max()]
            self._kept = [k for k in self._kept if (k > last[0]).any()] + [last[0].copy()]
            times = times[(times > last[0]).any(axis=1)]

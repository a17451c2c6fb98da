"""The rows of the comparison, and what every answer must be.

Rows `id`, `n`, `s`, `x`: the ids from 0 on in a random order; of version v, `n` is 1,000 * id + v, `s` a
short text of both, and `x` a quarter of `n`. A truth in NumPy says the counts and sums
(`bench.peers.worker.summary`) of all answers.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.peers.contract import SCHEMA

__all__ = ["SCHEMA", "Truth", "rows_of"]


def rows_of(ids: np.ndarray, version: int) -> pa.Table:
    """The rows of some ids as of a version."""
    words = ["row", pa.array(ids).cast(pa.string()), f"of version {version}"]
    texts = pc.binary_join_element_wise(*words, " ")
    n = ids * 1_000 + version
    return pa.table([pa.array(ids), pa.array(n), texts, pa.array(n / 4)], schema=SCHEMA)


class Truth:
    """The contents after each version, as the version that each id has; -1: none."""

    def __init__(self, ids: int) -> None:
        self.at = [np.full(ids, -1, dtype=np.int32)]

    def wrote(self, ids: np.ndarray, version: int | np.ndarray) -> None:
        """Note what the next version has: one number, or that of each id; the last one of an id stays."""
        now = self.at[-1].copy()
        now[ids] = version
        self.at.append(now)

    def contents(self, version: int = -1, ids: np.ndarray | None = None) -> list[int]:
        """The summary of the rows after a version, or of some of them."""
        now = self.at[version]
        there = np.flatnonzero(now >= 0) if ids is None else ids[now[ids] >= 0]
        return _summary(there, now[there])

    def changes(self, after: int, through: int) -> list[int]:
        """The summary of what changed between two versions."""
        before, now = self.at[after], self.at[through]
        moved = np.flatnonzero(before != now)
        old = moved[before[moved] >= 0]
        gone, come = _summary(old, before[old]), _summary(moved, now[moved])
        return [gone[0] + come[0], *(c - g for g, c in zip(gone[1:], come[1:], strict=True))]


def _summary(ids: np.ndarray, versions: np.ndarray) -> list[int]:
    digits = sum(_digits(values) for values in (ids, versions))
    letters = len("row  of version ") * len(ids) + digits
    return [len(ids), int(ids.sum()), int((ids * 1_000 + versions).sum()), letters]


def _digits(values: np.ndarray) -> int:
    most = len(str(values.max(initial=0)))
    return len(values) + sum(int((values >= 10**more).sum()) for more in range(1, most))

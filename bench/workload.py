"""Updates as an operational database makes them, by columns, in memory that is bounded and small.

YCSB's mix, shifted towards new rows: of a batch's operations 70 % insert, 20 % change and 10 % delete. What
is changed is chosen by a zipfian law with its usual exponent, 0.99, what is deleted uniformly; keys are
scrambled, so that popular and new ones lie anywhere. A change is two updates.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from bench.texts import texts

SCHEMA = pa.schema(
    [
        pa.field("key", pa.int64(), nullable=False),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("text", pa.string()),
    ]
)
INSERTED, CHANGED, DELETED = 0.7, 0.2, 0.1
_EXPONENT = 0.99
_ODD, _MASK = np.uint64(0x9E3779B97F4A7C15), np.uint64(2**62 - 1)
_UPDATES_PER_OPERATION = INSERTED + 2 * CHANGED + DELETED


def zipfian(rng: np.random.Generator, ranks: int, count: int) -> np.ndarray:
    """`count` ranks below `ranks`, 0 the most popular: the inverse of the law's continuous distribution."""
    rest = 1 - _EXPONENT
    drawn = (rng.random(count) * ((ranks + 1) ** rest - 1) + 1) ** (1 / rest)
    return np.minimum(drawn.astype(np.int64) - 1, ranks - 1)


class Workload:
    """Batches of updates; those of one batch have one time, which is the number of the batch.

    Remembers three bytes for each row that ever was. No row is changed twice in a batch.

    Args:
        updates: in all.
        batch: at most so many in a batch.
        seed: of the random choices.
    """

    def __init__(self, updates: int, batch: int, seed: int = 0) -> None:
        self._updates, self._batch_rows = updates, batch
        self._rng = np.random.default_rng(seed)
        self._versions, self._live = np.zeros(updates, np.uint16), np.zeros(updates, bool)
        self._ids = 0

    def __iter__(self) -> Iterator[pa.Table]:
        made = time = 0
        while made < self._updates:
            table = self._batch(time).slice(0, self._updates - made)
            yield table
            made, time = made + table.num_rows, time + 1

    def _batch(self, time: int) -> pa.Table:
        operations = int(self._batch_rows / _UPDATES_PER_OPERATION)
        changed = self._there(zipfian(self._rng, self._ids, 4 * operations), int(operations * CHANGED))
        uniform = (self._rng.random(operations) * self._ids).astype(np.int64)
        deleted = self._there(uniform, int(operations * DELETED))
        deleted = np.setdiff1d(deleted, changed, assume_unique=True)
        # What is left of the batch: all of it at first, the intended share soon.
        new = self._ids + np.arange(self._batch_rows - 2 * len(changed) - len(deleted))
        self._ids += len(new)
        self._live[new], self._live[deleted] = True, False
        before = self._versions[np.concatenate([changed, deleted])]
        self._versions[changed] += 1
        ids = np.concatenate([new, changed, deleted, changed])
        versions = np.concatenate([self._versions[new], before, self._versions[changed]])
        diffs = np.repeat([1, -1, 1], [len(new), len(before), len(changed)])
        order = self._rng.permutation(len(ids))
        return _table(ids[order], versions[order].astype(np.int64), diffs[order], time)

    def _there(self, drawn: np.ndarray, count: int) -> np.ndarray:
        """At most `count` different rows of those drawn that are there, in random order."""
        if not self._ids:
            return np.zeros(0, np.int64)
        # Popular rows are drawn many times and taken once.
        different = np.unique(drawn)
        there = different[self._live[different]]
        self._rng.shuffle(there)
        return there[:count]


def _table(ids: np.ndarray, versions: np.ndarray, diffs: np.ndarray, time: int) -> pa.Table:
    # Odd, so no two ids below 2**62 share a key.
    key = (ids.astype(np.uint64) * _ODD & _MASK).astype(np.int64)
    n = ids * 1_000 + versions
    columns = [pa.array(key), pa.array(n), pa.array(n / 7), texts(n, 24)]
    times = pa.array(np.full(len(ids), time, np.int64))
    return pa.table([*columns, times, pa.array(diffs)], names=[*SCHEMA.names, "_time", "_diff"])

"""Reads of an arrangement; each one takes a snapshot of the current contents.

Owns the interface that users call; `tidelake.arrangement.read.snapshot` does the work.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from tidelake.arrangement.read.cursor import Cursor
from tidelake.arrangement.read.snapshot import Snapshot
from tidelake.handle import Handle
from tidelake.model.instants import TimeLike


class ArrangementReads(Handle, ABC):
    """The reads of an arrangement, by its snapshots."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The current contents, for several reads that must agree. Close it after use."""

    def lookup(
        self, keys: object, as_of: TimeLike | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of some keys, sorted by key and value, each with its multiplicity in `_diff`.

        Args:
            keys: a key (the value of the key column; of several, a tuple or a dict by name), a list or set of
                keys, or a table in any Arrow form with the key columns; may have duplicates.
            as_of: the time; default: all updates.
            columns: the columns to return, before `_diff`; default: all. Rows that are equal in these columns
                are not combined.

        Returns:
            A table; keys without rows are left out. Filters exclude most batches that do not have a key. Of
            the other batches on disk, each block that may hold a key and is not cached is read once.

        Raises:
            InvalidUpdates: a key is not valid; names the column and the row.
            UsageError: a column does not exist, or `as_of` is not a time.
            HistoryCompacted: `as_of` is before `since`.
            CorruptionError: a file is damaged; names it.
        """
        with self.snapshot() as snapshot:
            return snapshot.lookup(keys, as_of, columns)

    def range(
        self,
        lower: object = None,
        upper: object = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        as_of: TimeLike | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of the keys in `[lower, upper)`, ascending, or with `reverse` descending.

        Args:
            lower: a tuple of values of all key columns or the first ones, or the value of the first;
                default: from the least key on.
            upper: the same, exclusive; default: to the greatest key.
            limit: the greatest number of rows; default: all.
            reverse: whether rows come in descending order, the last ones first.
            as_of: as `lookup`, and so are the errors.
            columns: as `lookup`.
        """
        with self.snapshot() as snapshot:
            return snapshot.range(lower, upper, limit=limit, reverse=reverse, as_of=as_of, columns=columns)

    def sample_keys(self, n: int, seed: int | None = None, as_of: TimeLike | None = None) -> pa.Table:
        """A uniform random sample of `n` keys that have rows, sorted; all keys if there are fewer.

        Args:
            n: number of keys.
            seed: with equal contents and batches, the same seed gives the same keys; default: random.
            as_of: as `lookup`.
        """
        with self.snapshot() as snapshot:
            return snapshot.sample_keys(n, seed, as_of)

    def partition_keys(self, n: int, seed: int | None = None, as_of: TimeLike | None = None) -> pa.Table:
        """At most n - 1 keys, ascending, that split all keys into n ranges of about equal size.

        Each range begins with one of these keys and ends before the next one. Computed from a sample;
        arguments as for `sample_keys`.
        """
        with self.snapshot() as snapshot:
            return snapshot.partition_keys(n, seed, as_of)

    def key_count(self, as_of: TimeLike | None = None) -> int:
        """The number of keys that have rows. Reads everything."""
        with self.snapshot() as snapshot:
            return snapshot.key_count(as_of)

    @contextmanager
    def cursor(self, as_of: TimeLike | None = None) -> Iterator[Cursor]:
        """A context with a cursor over a snapshot, at the first key."""
        with self.snapshot() as snapshot:
            yield snapshot.cursor(as_of)

    def __len__(self) -> int:
        """The number of updates in all batches, including those that cancel out or that a filter hides."""
        with self.snapshot() as snapshot:
            return len(snapshot)

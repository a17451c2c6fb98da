"""Reads of an arrangement, each of the contents of the moment in which it is called.

Owns what users ask for; how it is found is `tidelake.arrangement.snapshot`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from tidelake.arrangement.cursor import Cursor
from tidelake.arrangement.snapshot import Snapshot
from tidelake.model.time import Time


class Reads(ABC):
    """What can be asked of whatever has snapshots."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """What is in it at this moment, for as long as it is open: for several reads of the same."""

    def fetch(
        self, keys: object, as_of: Time | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of some keys, sorted by key and value, each with its multiplicity in `_diff`.

        Args:
            keys: a table in any Arrow form with the key columns; a key may come several times.
            as_of: the time; default: all that is in.
            columns: those to give, before `_diff`; default: all.

        Returns:
            Keys without rows give none. Filters answer for most batches that do not have a key; of each
            other batch on disk the blocks are read that may hold one and are not in memory, each once.

        Raises:
            InvalidUpdates: the table is none of keys; names the column and the row.
            HistoryCompacted: `as_of` is before the frontier.
            CorruptionError: a file is damaged; names it.
        """
        with self.snapshot() as snapshot:
            return snapshot.fetch(keys, as_of, columns)

    def range(
        self,
        lower: tuple[object, ...] | None = None,
        upper: tuple[object, ...] | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        as_of: Time | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of the keys in `[lower, upper)`, the first ones, or with `reverse` the last ones first.

        Args:
            lower: values of the key columns, or of the first of them; default: from the least key on.
            upper: likewise; default: to the greatest.
            limit: rows at most; default: all.
            reverse: whether rows come in descending order.
            as_of: as `fetch`, and so are `columns` and the errors.
            columns: to give.
        """
        with self.snapshot() as snapshot:
            return snapshot.range(lower, upper, limit=limit, reverse=reverse, as_of=as_of, columns=columns)

    def sample_keys(self, n: int, seed: int | None = None, as_of: Time | None = None) -> pa.Table:
        """Some of the keys that have rows, all equally likely, sorted; all of them if there are no more.

        Args:
            n: how many.
            seed: the same keys again for the same contents and batches; default: others each time.
            as_of: as `fetch`.
        """
        with self.snapshot() as snapshot:
            return snapshot.sample_keys(n, seed, as_of)

    def partition_keys(self, n: int, seed: int | None = None, as_of: Time | None = None) -> pa.Table:
        """At most n - 1 keys, ascending, that cut all keys into n ranges of about as many; by a sample."""
        with self.snapshot() as snapshot:
            return snapshot.partition_keys(n, seed, as_of)

    def key_count(self, as_of: Time | None = None) -> int:
        """How many keys have rows. Reads everything."""
        with self.snapshot() as snapshot:
            return snapshot.key_count(as_of)

    @contextmanager
    def cursor(self, as_of: Time | None = None) -> Iterator[Cursor]:
        """A context with a cursor over a snapshot, at the first key."""
        with self.snapshot() as snapshot:
            yield snapshot.cursor(as_of)

    def __len__(self) -> int:
        """How many updates are held, those included that cancel out or that a filter hides."""
        with self.snapshot() as snapshot:
            return len(snapshot)

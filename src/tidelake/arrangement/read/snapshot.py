"""A consistent snapshot of an arrangement: its batches at one moment, held until it is closed.

Owns reads of many keys at once; must not know how batches are merged. Invariant: every result is the
multiset of rows as of one time, each row once with its multiplicity, whatever merges do meanwhile.

A result keeps no batch alive. It has the key and value columns and `_diff`, sorted by key and value. `_diff`
is the multiplicity; it is negative if a row was retracted more often than it was appended.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidelake.arrangement import arguments
from tidelake.arrangement.arguments import count
from tidelake.arrangement.batch.batch import IndexBatch
from tidelake.arrangement.batch.keys import Keys, prefix_bytes
from tidelake.arrangement.batch.layout import Layout, detached
from tidelake.arrangement.batch.search import Bound
from tidelake.arrangement.read.cursor import Cursor
from tidelake.arrangement.read.retention import RetentionFilters
from tidelake.arrangement.read.sampling import partition_keys, sample_keys
from tidelake.arrangement.read.view import UpdatesView, check_kept
from tidelake.arrangement.read.windows import Edge, Windows
from tidelake.errors import Closed, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.schema import DIFF

# `lookup` looks up this many keys at a time, so that the rows found fit into one record batch.
_LOOKUP_KEYS = 16_384
# A limit that no result reaches; larger ones would not fit into an int64.
_ROWS_MAX = 1 << 62

KeyPrefix: TypeAlias = object
"""The value of the first key column, or a tuple of values of the first ones."""


class Snapshot:
    """Reads over a fixed set of batches. Thread-safe; a read after `close` is refused.

    Attributes:
        layout: layout of the rows.
        since: times before it are folded, so reads as of earlier times are refused.
        retention: the filters.
    """

    def __init__(
        self,
        layout: Layout,
        batches: Sequence[IndexBatch],
        retention: RetentionFilters | None = None,
        since: Frontier | None = None,
    ) -> None:
        """Hold batches until `close`.

        Args:
            layout: layout of the rows.
            batches: the snapshot becomes a user of each; the caller must be a user until this returns.
            retention: filters; None for none.
            since: the `since` of the arrangement; None for the least time.
        """
        self.layout = layout
        self.retention = retention if retention is not None else RetentionFilters(layout)
        self.since = since if since is not None else Frontier.of(layout.domain.minimum)
        self._batches = tuple(batches)
        self._open = True
        for batch in self._batches:
            batch.acquire()

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.close()

    def close(self) -> None:
        """Release the batches. May be repeated."""
        was_open, self._open = self._open, False
        for batch in self._batches if was_open else ():
            batch.release()

    @property
    def batches(self) -> tuple[IndexBatch, ...]:
        """The batches.

        Raises:
            Closed: the snapshot was closed.
        """
        if not self._open:
            raise Closed("the snapshot is closed: take another one")
        return self._batches

    def __len__(self) -> int:
        """The number of updates in all batches, including those that cancel out or that a filter hides."""
        return sum(batch.rows for batch in self.batches)

    def view(self, as_of: TimeLike | None) -> UpdatesView:
        """The view as of a time.

        Raises:
            UsageError: it is not a time of this unit.
            HistoryCompacted: it is before `since`.
        """
        if as_of is not None:
            as_of = self.layout.domain.check(as_of, "as_of")
            check_kept(as_of, self.since, self.layout.domain)
        return UpdatesView(self.layout, self.retention, self.since, as_of)

    def lookup(
        self, keys: object, as_of: TimeLike | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of some keys, which may also be `Keys`; see `Arrangement.lookup`."""
        batches, view = self.batches, self.view(as_of)
        asked = keys if isinstance(keys, Keys) else Keys.of(keys, self.layout)
        found: list[pa.RecordBatch] = []
        for first in range(0, len(asked), _LOOKUP_KEYS):
            some = asked if len(asked) <= _LOOKUP_KEYS else asked.slice(first, _LOOKUP_KEYS)
            pieces = [rows for batch in batches if (rows := batch.lookup(some)).num_rows]
            found.append(view.netted(pieces)[0])
        return self._table(found, columns)

    def scan(
        self,
        lower: KeyPrefix | None = None,
        upper: KeyPrefix | None = None,
        *,
        reverse: bool = False,
        as_of: TimeLike | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range of keys, in batches, in bounded memory.

        Args:
            lower: the least key, inclusive: a tuple of values of all key columns or the first ones, or the
                value of the first. None: no bound.
            upper: the greatest key, exclusive, in the same form. None: no bound.
            reverse: whether rows come in descending order.
            as_of: as `lookup`.
            columns: as `lookup`.

        Yields:
            Batches that are not empty. Raises as `lookup`.
        """
        windows, names = Windows(self.batches, self.view(as_of)), self._names(columns)
        begin = Edge() if lower is None else Edge(self._bound(lower), inside=True)
        end = Edge() if upper is None else Edge(self._bound(upper))
        for window in windows.downwards(begin, end) if reverse else windows.upwards(begin, end):
            rows = window.rows
            if rows.num_rows:
                rows = rows.take(pa.array(np.arange(rows.num_rows)[::-1])) if reverse else rows
                yield detached(rows.select(names))

    def range(
        self,
        lower: KeyPrefix | None = None,
        upper: KeyPrefix | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        as_of: TimeLike | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The first rows of a range of keys: `scan` in memory, at most `limit` rows."""
        found: list[pa.RecordBatch] = []
        left = None if limit is None else min(count("limit", limit), _ROWS_MAX)
        if left is None or left > 0:
            for rows in self.scan(lower, upper, reverse=reverse, as_of=as_of, columns=columns):
                found.append(rows if left is None else rows.slice(0, left))
                left = None if left is None else left - found[-1].num_rows
                if left == 0:
                    break
        return self._table(found, columns)

    def cursor(self, as_of: TimeLike | None = None) -> Cursor:
        """A cursor at the first key, which must not be used after the snapshot is closed.

        Raises:
            UsageError: it is not a time of this unit.
            HistoryCompacted: `as_of` is before `since`.
        """
        return Cursor(self.batches, self.view(as_of))

    def key_count(self, as_of: TimeLike | None = None) -> int:
        """The number of keys that have rows. Reads everything; raises as `lookup`."""
        return sum(window.key_count for window in Windows(self.batches, self.view(as_of)).upwards())

    def sample_keys(self, n: int, seed: int | None = None, as_of: TimeLike | None = None) -> pa.Table:
        """See `Arrangement.sample_keys`. Reads some blocks for each key; or everything, if that is less."""
        return sample_keys(self.batches, self.view(as_of), count("n", n), _random(seed))

    def partition_keys(self, n: int, seed: int | None = None, as_of: TimeLike | None = None) -> pa.Table:
        """See `Arrangement.partition_keys`."""
        return partition_keys(self.batches, self.view(as_of), count("n", n), _random(seed))

    def _bound(self, prefix: KeyPrefix) -> Bound:
        """The bound before all keys whose first columns have these values."""
        prefix = prefix if isinstance(prefix, tuple) else (prefix,)
        if not 0 < len(prefix) <= self.layout.key_width:
            raise UsageError(f"a key has {self.layout.key_width} columns, not {len(prefix)}: {prefix!r}")
        return Bound(prefix_bytes(prefix, self.layout))

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        names = [column.name for column in self.layout.schema.columns]
        chosen = names if columns is None else arguments.names("columns", columns)
        unknown = [name for name in chosen if name not in names]
        if unknown or len(set(chosen)) < len(chosen):
            raise UsageError(f"columns={columns!r} are not distinct column names: there are {names}")
        return [*chosen, DIFF]

    def _table(self, found: Iterable[pa.RecordBatch], columns: Sequence[str] | None) -> pa.Table:
        names = self._names(columns)
        schema = pa.schema([self.layout.contents.field(name) for name in names])
        parts = (rows if columns is None else rows.select(names) for rows in found)
        return pa.Table.from_batches([detached(rows) for rows in parts], schema)


def _random(seed: int | None) -> np.random.Generator:
    return np.random.default_rng(None if seed is None else count("seed", seed))

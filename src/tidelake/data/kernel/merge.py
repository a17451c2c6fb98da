"""The merge kernel: sorted runs in, one sorted and consolidated stream out, in bounded memory.

Owns the chunk algorithm; must not know parts, files or threads. Invariant: the output is the query applied to
all rows of all runs, in the total order, no two rows equal except in their diff. At most about `chunk_rows`
rows, or `chunk_bytes` bytes, are held at once (with more than 64 runs, a 64th of that for each), beside what
is left of the last batch of each run.

Every run is buffered up to its share of a chunk. The *cut* is the least of the last buffered rows of the runs
that have more to give: everything at or before it is complete, except for rows equal to the cut itself, whose
group stays open until the next chunk. The chunk is joined, sorted in cache, and summed. A cut is a full row,
times included, so that one hot key cannot break the bound.

Advancing tuples by a frontier does not keep a run sorted. In that case the cut is on (key, value) alone, only
what is *before* it is taken, and the chunk is advanced and sorted again. A (key, value) whose history is
longer than a chunk is then held whole.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tidelake.data.kernel.order import Comparable, disjoint, row_tuple, search
from tidelake.data.kernel.select import Timing, one_time, preserves_order, selected
from tidelake.data.kernel.sums import Open, close, sum_chunk
from tidelake.data.kernel.types import update_schema
from tidelake.errors import InternalError
from tidelake.model.query import Fold, Query
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

# With more runs slices get tiny, and chunks end at the shortest of them. With fewer shares than runs chunks
# get larger than asked for instead, and reading, merging and writing overlap less.
_SHARES_MAX = 64
# A run of which the last chunk took little still fills an equal share divided by this.
_LEAST = 8


def merge(
    runs: Sequence[Iterable[pa.RecordBatch]],
    schema: Schema,
    domain: TimeDomain,
    query: Query,
    chunk_rows: int,
    *,
    chunk_bytes: int = 128 * 1024 * 1024,
) -> Iterator[pa.RecordBatch]:
    """Merge runs, applying a query.

    Args:
        runs: each an iterable of canonical update batches in the total order.
        schema: of the rows.
        domain: of the times.
        query: which updates are kept, and at which times.
        chunk_rows: how many rows, over all runs, are sorted at once.
        chunk_bytes: the same in bytes, because wide rows fill memory before they fill a chunk.

    Yields:
        Batches of at most some `chunk_rows` rows, never empty: sorted, consolidated.

    Raises:
        InvalidUpdates: a sum of diffs does not fit into an int64.
        InternalError: a run is not sorted (noticed at the borders of chunks only).
    """
    cut = chunks(runs, schema, domain, query, chunk_rows, chunk_bytes=chunk_bytes)
    return sums(cut, domain, query, chunk_rows)


@dataclass(frozen=True)
class Chunk:
    """Rows of all runs; no row of a later chunk comes before them.

    Attributes:
        rows: after the query, without times if it gives all the same; equal rows may not be adjacent.
        in_order: whether the rows are sorted as they are.
        keep_open: whether the next chunk may hold rows equal to the last rows of this one.
    """

    rows: pa.RecordBatch
    in_order: bool
    keep_open: bool


def chunks(
    runs: Sequence[Iterable[pa.RecordBatch]],
    schema: Schema,
    domain: TimeDomain,
    query: Query,
    chunk_rows: int,
    *,
    chunk_bytes: int,
) -> Generator[Chunk]:
    """The first half of `merge`, with the same arguments: cuts and joins, but neither sorts nor sums."""
    ordered = preserves_order(query, domain)
    rows_schema = update_schema(schema, domain)
    width = len(schema.columns) if not ordered or one_time(query) is not None else len(rows_schema) - 1
    shares = max(1, min(len(runs), _SHARES_MAX))
    share, bytes_share = max(1, chunk_rows // shares), max(1, chunk_bytes // shares)
    wanted = partial(selected, query=query, domain=domain)
    # A fold drops no rows, so it can be applied to the whole chunk at once, in far fewer calls.
    folds = isinstance(query, Fold)
    buffers = [_Buffer(iter(run) if folds else map(wanted, run), share, bytes_share) for run in runs]
    while True:
        live = [b for b in buffers if b.fill(width)]
        if not live:
            break
        buffers = live
        pieces = _cut(live, width, inclusive=ordered)
        if not pieces:
            # Every row is at the cut: one history is longer than the chunk.
            for buffer in live:
                buffer.grow()
            continue
        _share_out(live, chunk_rows, chunk_bytes)
        keep_open = ordered and any(b.rows or b.more for b in live)
        sorted_ = _in_order(pieces, width) if ordered else None
        in_order = sorted_ is not None
        rows = _joined(sorted_ or pieces)
        # Otherwise they would be held together with the chunk, and the chunk together with the next one.
        del pieces, sorted_
        yield Chunk(wanted(rows) if folds else rows, in_order, keep_open)
        del rows


def sums(
    source: Iterable[Chunk], domain: TimeDomain, query: Query, chunk_rows: int
) -> Iterator[pa.RecordBatch]:
    """The second half of `merge`: sorts and consolidates the chunks."""
    found, time = _sums(source, chunk_rows), one_time(query)
    return found if time is None else map(Timing(time, domain), found)


def _sums(source: Iterable[Chunk], chunk_rows: int) -> Iterator[pa.RecordBatch]:
    opened: Open | None = None
    for chunk in source:
        found, opened = sum_chunk(chunk.rows, opened, in_order=chunk.in_order, keep_open=chunk.keep_open)
        # Do not hold it while waiting for the next chunk.
        del chunk
        while found:
            yield from _bounded(found.pop(0), chunk_rows)
    if opened is not None:
        last = close(opened, opened.row)
        if last.num_rows:
            yield last


class _Buffer:
    """One run: the rows that were read and are not merged yet."""

    def __init__(self, source: Iterator[pa.RecordBatch], want: int, want_bytes: int) -> None:
        self.rows = 0
        self.taken = 0
        self._want = want
        self._bytes = 0
        self._want_bytes = want_bytes
        self._source: Iterator[pa.RecordBatch] | None = source
        self._pending: pa.RecordBatch | None = None
        self._batches: deque[pa.RecordBatch] = deque()
        self._row_bytes = 1
        self._end: Comparable | None = None

    def fill(self, width: int) -> bool:
        """Read until there are enough rows; False if there are none."""
        grown = False
        while self.rows < self._want:
            room = (self._want_bytes - self._bytes) // self._row_bytes
            if self.rows and room <= 0:
                break
            piece = self._next(max(1, min(self._want - self.rows, room)))
            if piece is None:
                break
            self._batches.append(piece)
            self.rows += piece.num_rows
            self._bytes += piece.num_rows * self._row_bytes
            grown = True
        if grown:
            last = self._batches[-1]
            end = row_tuple(last, last.num_rows - 1, width)
            if self._end is not None and end < self._end:
                raise InternalError(f"a run is not sorted: row {end} comes after row {self._end}")
            self._end = end
        return self.rows > 0

    def allow(self, rows: int, size: int) -> None:
        """Buffer so many rows and bytes from now on."""
        self._want, self._want_bytes = rows, size

    def grow(self) -> None:
        """Buffer twice as many rows from now on."""
        self.allow(2 * self._want, 2 * self._want_bytes)

    @property
    def end(self) -> Comparable:
        """The last buffered row."""
        if self._end is None:
            raise InternalError("an empty buffer has no last row")
        return self._end

    @property
    def more(self) -> bool:
        """Whether the run may have rows after the buffered ones."""
        return self._pending is not None or self._source is not None

    def take(self, bound: Comparable | None, *, inclusive: bool) -> list[pa.RecordBatch]:
        """Remove and return the rows before the bound, or up to it if inclusive; without a bound all rows."""
        taken: list[pa.RecordBatch] = []
        if bound is None or (inclusive and self.end <= bound):
            taken = list(self._batches)
            self._batches.clear()
        while self._batches and bound is not None:
            first = self._batches[0]
            count = search(first, bound, inclusive=inclusive)
            if count:
                taken.append(first.slice(0, count))
            if count < first.num_rows:
                self._batches[0] = first.slice(count)
                break
            self._batches.popleft()
        self.taken = _rows(taken)
        self.rows -= self.taken
        self._bytes = self.rows * self._row_bytes
        return taken

    def _next(self, rows: int) -> pa.RecordBatch | None:
        """The next batch of the source, of at most so many rows; None at its end."""
        while self._pending is None or self._pending.num_rows == 0:
            batch = next(self._source, None) if self._source is not None else None
            if batch is None:
                self._source = self._pending = None
                return None
            self._pending = batch
            self._row_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
        piece = self._pending.slice(0, rows)
        self._pending = self._pending.slice(rows) if rows < self._pending.num_rows else None
        return piece


def _cut(buffers: list[_Buffer], width: int, *, inclusive: bool) -> list[list[pa.RecordBatch]]:
    """Take from each buffer the rows that no later row can precede; a list of pieces per buffer with any."""
    ends = [b.end[:width] for b in buffers if b.more]
    cut = min(ends) if ends else None
    taken = (b.take(cut, inclusive=inclusive) for b in buffers)
    return [pieces for pieces in taken if pieces]


def _share_out(buffers: list[_Buffer], chunk_rows: int, chunk_bytes: int) -> None:
    """Let each run refill by what the last chunk took of it, so that the buffers end at about the same row.

    Runs of which nothing was taken keep what they have, and the others share the rest of a chunk, so that
    disjoint runs get whole chunks.
    """
    equal = 1 / max(1, min(len(buffers), _SHARES_MAX))
    free = max(equal, 1 - sum(b.rows for b in buffers if not b.taken) / chunk_rows)
    taken = sum(b.taken for b in buffers)
    for buffer in buffers:
        share = max(equal / _LEAST, free * buffer.taken / taken)
        buffer.allow(max(1, int(chunk_rows * share)), max(1, int(chunk_bytes * share)))


def _in_order(pieces: list[list[pa.RecordBatch]], width: int) -> list[list[pa.RecordBatch]] | None:
    """The pieces ordered by their first rows, if joining them so gives sorted rows; None: sort them."""
    # If runs overlap at all, the first two mostly do.
    if len(pieces) > 1 and not (disjoint(pieces[:2], 1) or disjoint(pieces[1::-1], 1)):
        return None
    by_first = sorted(
        pieces, key=lambda run: (row_tuple(run[0], 0, 1), row_tuple(run[-1], run[-1].num_rows - 1, 1))
    )
    if not disjoint(by_first, 1):
        return None
    by_first.sort(key=lambda run: row_tuple(run[0], 0, width))
    return by_first if disjoint(by_first, width) else None


def _rows(pieces: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in pieces)


def _joined(pieces: list[list[pa.RecordBatch]]) -> pa.RecordBatch:
    return pa.concat_batches([batch for run in pieces for batch in run])


def _bounded(batch: pa.RecordBatch, chunk_rows: int) -> Iterator[pa.RecordBatch]:
    # A chunk that had to grow is returned in pieces, so that the bound holds for the caller.
    for start in range(0, batch.num_rows, chunk_rows):
        yield batch.slice(start, chunk_rows)

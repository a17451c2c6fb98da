"""A uniform random sample of keys, without reading all of them.

Owns the draw; must not know cursors. Rows are drawn uniformly from all batches. A row represents its key if
it is the first row of the key in its batch and no earlier batch has the key; other rows are rejected. So one
row represents each key, however many rows it has. Keys whose rows cancel out are left out.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.arrangement.batch.batch import IndexBatch, Ints, Mask
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.read.view import UpdatesView
from tidelake.arrangement.read.windows import Windows
from tidelake.data.kernel.order import group_starts

# If more than this share of all rows would be drawn, all rows are read instead, block after block.
_DRAWN_MAX = 0.25
_SAMPLE_MIN = 1024


def sample_keys(
    batches: Sequence[IndexBatch], view: UpdatesView, n: int, random: np.random.Generator
) -> pa.Table:
    """See `Snapshot.sample_keys`."""
    layout = view.layout
    ends = np.cumsum([batch.rows for batch in batches], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    drawn, found = np.zeros(0, np.int64), [Keys.sorted_from(layout.empty, layout)]
    count, step = 0, 2 * n
    while count < n:
        if len(drawn) + step > total * _DRAWN_MAX:
            return _of_all(batches, view, n, random)
        # Rows that were drawn before do not count again.
        fresh = np.setdiff1d(random.integers(0, total, step), drawn)
        drawn = np.union1d(drawn, fresh)
        keys = _live(_standing(batches, ends, fresh, layout), batches, view)
        found.append(keys)
        count, step = count + len(keys), 2 * step
    rows = pa.concat_batches([keys.rows for keys in found])
    return _chosen(pa.Table.from_batches([rows]), n, random, layout)


def partition_keys(
    batches: Sequence[IndexBatch], view: UpdatesView, n: int, random: np.random.Generator
) -> pa.Table:
    """See `Snapshot.partition_keys`."""
    keys = sample_keys(batches, view, max(n * n, _SAMPLE_MIN), random)
    # More ranges than keys are not found.
    n = min(n, keys.num_rows)
    places = np.unique(np.arange(1, n) * keys.num_rows // max(1, n))
    return keys.take(pa.array(places[places > 0]))


def _standing(batches: Sequence[IndexBatch], ends: Ints, drawn: Ints, layout: Layout) -> Keys:
    """The keys that the drawn rows represent; `drawn` has row numbers over all batches, ascending."""
    of_batch = np.searchsorted(ends, drawn, "right")
    found: list[pa.RecordBatch] = []
    for i, batch in enumerate(batches):
        mine = drawn[of_batch == i]
        keys = _first_rows(batch, mine - (int(ends[i]) - batch.rows), layout)
        for earlier in batches[:i]:
            if len(keys):
                keys = keys.take(np.flatnonzero(~_held(keys, earlier)))
        found.append(keys.rows)
    return Keys.sorted_from(pa.concat_batches(found), layout)


def _first_rows(batch: IndexBatch, rows: Ints, layout: Layout) -> Keys:
    """The keys that begin at one of the given rows of a batch; `rows` is ascending."""
    width, starts = layout.key_width, batch.block_starts
    of_block = np.searchsorted(starts, rows, "right") - 1
    found = [layout.empty.select(range(width))]
    for i in np.unique(of_block).tolist():
        block = batch.block(i).select(range(width))
        first = group_starts(block, width)
        first[0] = i == 0 or batch.last_key(i - 1) != batch.first_key(i)
        places = rows[of_block == i] - starts[i]
        found.append(block.take(pa.array(places[first[places]])))
    return Keys(layout, pa.concat_batches(found))


def _held(keys: Keys, batch: IndexBatch) -> Mask:
    """Which of the keys a batch has rows of."""
    mask = batch.may_hold(keys)
    if mask.any():
        there = keys.layout.encode(batch.lookup(keys))
        mask = pc.is_in(keys.encoded, value_set=there).to_numpy(zero_copy_only=False)
    return mask


def _live(keys: Keys, batches: Sequence[IndexBatch], view: UpdatesView) -> Keys:
    """The keys that have rows."""
    pieces = [rows for batch in batches if len(keys) and (rows := batch.lookup(keys)).num_rows]
    return Keys.sorted_from(view.netted(pieces)[0], view.layout)


def _of_all(
    batches: Sequence[IndexBatch], view: UpdatesView, n: int, random: np.random.Generator
) -> pa.Table:
    """A sample of `n` keys by reading all of them; holds at most `n` keys beside those of one window."""
    layout = view.layout
    held = pa.schema(list(layout.arrow)[: layout.key_width]).empty_table()
    tickets = np.zeros(0)
    for window in Windows(batches, view).upwards():
        if not window.key_count:
            continue
        keys = window.rows.select(range(layout.key_width)).take(pa.array(window.keys[:-1]))
        held = pa.concat_tables([held, pa.Table.from_batches([keys])])
        tickets = np.append(tickets, random.random(window.key_count))
        if len(tickets) > n:
            # Keep the n least tickets, in key order.
            kept = np.sort(np.argpartition(tickets, n)[:n])
            held, tickets = held.take(pa.array(kept)), tickets[kept]
    return held


def _chosen(keys: pa.Table, n: int, random: np.random.Generator, layout: Layout) -> pa.Table:
    """`n` random ones of distinct keys, sorted."""
    places = random.choice(keys.num_rows, min(n, keys.num_rows), replace=False)
    rows = keys.take(pa.array(places)).combine_chunks().to_batches()
    return pa.Table.from_batches([Keys.sorted_from(batch, layout).rows for batch in rows], keys.schema)

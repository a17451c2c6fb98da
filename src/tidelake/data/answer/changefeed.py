"""Updates as the rows of a change feed, with the same columns as in other table formats.

| column | |
|---|---|
| `_change_type` | `insert`, `delete`, `update_preimage` or `update_postimage` |
| `_commit_version` | the time |
| `_commit_timestamp` | the time as a timestamp, where the collection's unit is a clock; else null |

Pure: Arrow in, Arrow out. If as many rows of one key are removed as added at one time, they are updates: the
removed rows are pre-images, the added ones post-images. Otherwise it is unknown which row became which: the
rows of that key and time are deletes and inserts. Each row is repeated as often as it is removed or added.

Rows are ordered by key, then time, removed before added ones, then value.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.answer.tablerows import repeated
from tidelake.data.kernel.order import group_starts
from tidelake.errors import UsageError
from tidelake.model.schema import DIFF
from tidelake.model.time import TimeDomain
from tidelake.timetext import US_PER_UNIT

CHANGE_TYPE, VERSION, TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(VERSION, pa.int64(), nullable=False),
    pa.field(TIMESTAMP, pa.timestamp("us", "UTC")),
)
_TYPES = ("delete", "insert", "update_preimage", "update_postimage")
_MOST = 2**63 - 1

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def check_feed(columns: Iterable[str], domain: TimeDomain) -> None:
    """Check that a collection can be read as a change feed."""
    if not domain.total_order:
        raise UsageError(
            f"option changeFeed: times of unit {domain} are no versions; read with withDiff=true"
        )
    taken = [name for name in columns if name in (CHANGE_TYPE, VERSION, TIMESTAMP)]
    if taken:
        raise UsageError(
            f"option changeFeed: the collection has a column {taken[0]!r} of its own: leave it out by option "
            "columns, or read with withDiff=true"
        )


def change_feed(
    batches: Iterable[pa.RecordBatch], key: Sequence[str], domain: TimeDomain
) -> Iterator[pa.RecordBatch]:
    """The columns before the times, then `FIELDS`. All updates of one key are in memory at once."""
    for batch in whole_keys(batches, key):
        yield from _feed(batch, key, domain)


def whole_keys(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The same rows, cut so that no key is in two batches; none is empty."""
    tail: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        starts = np.flatnonzero(_key_starts(batch, key))
        if tail:
            border = pa.concat_batches([tail[-1].slice(tail[-1].num_rows - 1), batch.slice(0, 1)])
            starts = starts if _key_starts(border, key)[1] else starts[1:]
        if not len(starts):
            tail.append(batch)
            continue
        last = int(starts[-1])
        ready = [*tail, *([batch.slice(0, last)] if last else [])]
        if ready:
            yield pa.concat_batches(ready)
        tail = [batch.slice(last)]
    if tail:
        yield pa.concat_batches(tail)


def _key_starts(batch: pa.RecordBatch, key: Sequence[str]) -> Mask:
    return group_starts(batch.select(list(key)), len(key))


def _feed(batch: pa.RecordBatch, key: Sequence[str], domain: TimeDomain) -> Iterator[pa.RecordBatch]:
    keys: Ints = np.cumsum(_key_starts(batch, key))
    times: Ints = batch.column(domain.columns[0]).to_numpy()
    diffs: Ints = batch.column(DIFF).to_numpy()
    order = np.lexsort((diffs > 0, times, keys))
    keys, times, diffs = keys[order], times[order], diffs[order]
    came = diffs > 0
    sizes: Words = np.where(came, diffs, -diffs).view(np.uint64)
    starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]) | (times[1:] != times[:-1])])
    gone: Words = np.add.reduceat(np.where(came, np.uint64(0), sizes), starts)
    new: Words = np.add.reduceat(np.where(came, sizes, np.uint64(0)), starts)
    is_update = np.repeat(gone == new, np.diff(np.r_[starts, len(times)]))
    kinds = pa.array(_TYPES).take(pa.array(came.astype(np.int8) + 2 * is_update.astype(np.int8)))
    names = batch.schema.names[: batch.schema.get_field_index(domain.columns[0])]
    rows = batch.select(names).take(pa.array(order))
    columns = [*rows.columns, kinds, pa.array(times), _timestamps(times, domain)]
    schema = pa.schema([*rows.schema, *FIELDS])
    yield from repeated(pa.RecordBatch.from_arrays(columns, schema=schema), np.abs(np.maximum(diffs, -_MOST)))


def _timestamps(times: Ints, domain: TimeDomain) -> pa.Array:
    if domain.unit not in US_PER_UNIT:
        return pa.nulls(len(times), pa.timestamp("us", "UTC"))
    try:
        return pc.multiply_checked(pa.array(times), US_PER_UNIT[domain.unit]).cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"option changeFeed: time {times.max()} is past the last timestamp; read with withDiff=true"
        ) from error

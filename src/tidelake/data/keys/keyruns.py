"""Rows of any columns, sorted by key in runs, and the runs merged: a shuffle without a cluster.

Owns the order in which rows with equal keys come together; must not know what the rows mean, nor where runs
are kept. Invariant: merged rows ascend by key; rows of equal keys are adjacent, in no particular order. One
batch of each run is held, and the rows of one key in these.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.canonical import canonical
from tidelake.data.kernel.encode import encode_key
from tidelake.model.schema import Schema

KEY = "_tidelake_key"


def sorted_run(rows: pa.Table, keys: pa.RecordBatch, schema: Schema) -> pa.Table:
    """The rows, sorted by key, with the encoded key as one more column."""
    own = [column.name for column in schema.key]
    plain = pa.RecordBatch.from_arrays([canonical(keys.column(name)) for name in own], own)
    marked = rows.append_column(pa.field(KEY, pa.binary(), nullable=False), encode_key(plain, schema))
    return marked.take(pc.sort_indices(marked.column(KEY)))


def merged(runs: Sequence[Iterable[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """One run of the rows of several, in ascending order of their keys."""
    heads = [head for run in runs if (head := _Head.of(iter(run))) is not None]
    while heads:
        # What is at or before the least last key is not preceded by anything to come.
        cut = min(head.last for head in heads)
        taken = [head.take(cut) for head in heads]
        joined = pa.Table.from_batches([piece for piece, _ in taken if piece.num_rows])
        ordered = joined.take(pc.sort_indices(joined.column(KEY))) if len(heads) > 1 else joined
        yield from ordered.combine_chunks().to_batches()
        heads = [head for _, head in taken if head is not None]


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a run as they were given to `sorted_run`."""
    return batch.drop_columns([KEY])


class _Head:
    """The first rows of a run that are left."""

    def __init__(self, rows: pa.RecordBatch, source: Iterator[pa.RecordBatch]) -> None:
        self._rows, self._source = rows, source
        self.last: bytes = rows.column(KEY)[-1].as_py()

    @classmethod
    def of(cls, source: Iterator[pa.RecordBatch]) -> "_Head | None":
        """Of a run; None at its end."""
        rows = next((batch for batch in source if batch.num_rows), None)
        return None if rows is None else cls(rows, source)

    def take(self, cut: bytes) -> "tuple[pa.RecordBatch, _Head | None]":
        """The rows at or before the cut, and the head of what is left."""
        if self.last <= cut:
            return self._rows, _Head.of(self._source)
        at_most = pc.less_equal(self._rows.column(KEY), pa.scalar(cut, pa.binary()))
        count: int = pc.sum(at_most).as_py()
        return self._rows.slice(0, count), _Head(self._rows.slice(count), self._source)

"""Parts as they are in memory, in a file: keys are searched for, and rows taken, without decoding anything.

Owns the layout, an Arrow IPC file with one column more, the keys as they are searched for. No other process
reads it, so it has no version. Must not know where the bytes are.
"""

from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa

from tidelake.data.kernel.consolidate import pieces
from tidelake.data.keys.keyset import KeySet, are_numbers, searchable
from tidelake.model.schema import Schema

# Name of the column of keys, which comes after the part's own; one of these may have the same name.
_KEYS = "_keys"
_NUMBER_BYTES = 8


def unpacked_bytes(size_bytes: int, rows: int, schema: Schema) -> int:
    """About how large a file gets of rows that take so much memory, or mostly less."""
    # Encoded keys are hardly larger than all columns together, of which two are numbers.
    return size_bytes + (rows * _NUMBER_BYTES if are_numbers(schema) else size_bytes)


def unpack(batches: Iterable[pa.RecordBatch], schema: Schema, sink: IO[bytes], bytes_max: int) -> bool:
    """Write the rows of a part; False if the file would be too large."""
    writer: pa.RecordBatchFileWriter | None = None
    try:
        for batch in batches:
            rows = batch.append_column(_KEYS, searchable(batch, schema))
            if writer is None:
                writer = pa.ipc.new_file(sink, rows.schema)
            if sink.tell() + rows.nbytes > bytes_max:
                return False
            writer.write_batch(rows)
    finally:
        if writer is not None:
            writer.close()
    # Checked again with the footer and what the last batch has beside its rows.
    return sink.tell() <= bytes_max


class Unpacked:
    """The rows of an unpacked part. Reads only the bytes that it needs."""

    def __init__(self, path: str) -> None:
        """Map a file that `unpack` wrote; afterwards neither the path nor a file descriptor is needed."""
        # Not with Python's own maps, which keep a descriptor each, and a process has few.
        with pa.memory_map(path) as source:
            data = source.read_buffer()
        self.size_bytes: int = data.size
        reader = pa.ipc.open_file(data)
        # Row size of each batch, computed once: it takes as long as a look-up of few keys.
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        self._batches = [(batch, max(1, batch.nbytes // batch.num_rows)) for batch in batches]

    def rows(self, among: KeySet, batch_rows: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows that have one of some keys, in the stored order, none empty."""
        for batch, row_bytes in self._batches:
            width = batch.num_columns - 1
            rows = batch.select(range(width))
            places = among.places(batch.column(width))
            if places is None:
                yield from pieces(rows, batch_rows, batch_bytes)
                continue
            # Taken rows are copies: all of a batch at once would take as much memory, for every run.
            most = max(1, min(batch_rows, batch_bytes // row_bytes))
            for start in range(0, len(places), most):
                yield rows.take(places.slice(start, most))

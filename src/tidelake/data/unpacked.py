"""Parts as they are in memory, in a file: keys are searched for, and rows taken, without decoding anything.

Owns the layout, an Arrow IPC file with one column more, the keys as they are searched for. No other process
reads it, so it has no version. Must not know where the bytes are.
"""

from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa

from tidelake.data.keyset import KeySet, searchable
from tidelake.data.types import row_schema
from tidelake.model.schema import Schema

# The keys, beside the columns of the part: users may call one of theirs like this as well.
_KEYS = "_keys"
_NUMBER_BYTES = 8


def unpacked_bytes(size_bytes: int, rows: int, schema: Schema) -> int:
    """About how large a file gets of rows that take so much memory, or mostly less.

    Args:
        size_bytes: of the rows in memory.
        rows: how many they are.
        schema: the one that they were written under.
    """
    empty = pa.RecordBatch.from_pylist([], row_schema(schema))
    numbers = pa.types.is_uint64(searchable(empty, schema).type)
    # Encoded keys are hardly larger than all columns together, of which two are numbers.
    return size_bytes + (rows * _NUMBER_BYTES if numbers else size_bytes)


def unpack(batches: Iterable[pa.RecordBatch], schema: Schema, sink: IO[bytes], bytes_max: int) -> bool:
    """Write the rows of a part.

    Args:
        batches: of `update_schema(schema, domain)`, at least one, none empty, sorted by key.
        schema: the one that the part was written under.
        sink: takes the bytes.
        bytes_max: how many it may take.

    Returns:
        Whether all of them were written: otherwise it would be too large.
    """
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
    return True


class Unpacked:
    """The rows of a part. Reads what it needs of the bytes only.

    Attributes:
        size_bytes: of the file.
    """

    def __init__(self, data: pa.Buffer) -> None:
        """From what `unpack` wrote."""
        self.size_bytes: int = data.size
        reader = pa.ipc.open_file(data)
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]

    def rows(self, among: KeySet | None = None) -> Iterator[pa.RecordBatch]:
        """All rows, or those that have one of some keys: as they came, in the stored order, none empty."""
        for batch in self._batches:
            width = batch.num_columns - 1
            rows = batch.select(range(width))
            found = rows if among is None else among.rows(rows, batch.column(width))
            if found.num_rows:
                yield found

"""Hashes of the keys of an arrangement.

Owns which form of a key is hashed, which is part of a stored format; must not know filters.
"""

import pyarrow as pa

from tidelake.arrangement.batch.layout import Layout
from tidelake.data.kernel.encode import words
from tidelake.data.keys.keyhash import Hashes, hash_encoded, hash_words


def hash_rows(rows: pa.RecordBatch, layout: Layout) -> Hashes:
    """The hash of every row's key; rows have at least the key columns, which come first."""
    if layout.number is None:
        return hash_encoded(layout.encode(rows))
    column = rows.column(0)
    found = words(column)
    if found is None:
        raise TypeError("keys of this layout are not numbers")
    nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return hash_words(found, nulls)

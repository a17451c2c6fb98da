"""Arrow's columns as those of numpy, and pieces of columns as one."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.events import Ints, Mask


def mask(values: pa.Array) -> Mask:
    """Which booleans are true; null is not."""
    found: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return found


def among(values: pa.Array, words: Collection[Any]) -> Mask:
    """Which values are among some."""
    return mask(pc.is_in(values, value_set=pa.array(words, values.type)))


def numbers(values: pa.Array) -> Ints:
    """Whole numbers; null is -1."""
    found: Ints = pc.fill_null(values, -1).to_numpy(zero_copy_only=False)
    return found


def concat(parts: list[Ints]) -> Ints:
    """The numbers of several arrays, which may be none."""
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The rows of a table, in one piece."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)

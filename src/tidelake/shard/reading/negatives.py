"""Counts rows with a negative multiplicity: they were deleted more often than they were added.

This is not damage, and reads return such rows with their multiplicity. Most often a writer deleted rows that
it had not written, so a check reports them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.model.schema import DIFF
from tidelake.state.core.state import ShardState


@dataclass(frozen=True)
class Negatives:
    """The distinct rows with a negative multiplicity.

    Attributes:
        example: one of them as text; empty if there is none.
    """

    rows: int
    example: str = ""


def may_be_negative(state: ShardState) -> bool:
    """Whether any row may have a negative multiplicity: something was deleted. Reads nothing."""
    return any(part.negative_rows for part in state.parts())


def negatives(contents: Iterable[pa.RecordBatch]) -> Negatives:
    """Count them in the contents at a time, as a read returns them: consolidated."""
    found, example = 0, ""
    for batch in contents:
        counts: npt.NDArray[np.int64] = batch.column(DIFF).to_numpy()
        below = np.flatnonzero(counts < 0)
        if len(below) and not found:
            example = str(batch.slice(int(below[0]), 1).to_pylist()[0])[:200]
        found += len(below)
    return Negatives(found, example)

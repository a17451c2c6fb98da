"""What the descriptions of parts tell of the rows in batches: the sum of their diffs, and a hash of the rows.

Both add up, and stay as they are when rows are summed and their times advanced. So a merge, a drain and a
base can be compared with what they were made of, and lost or changed rows are noticed without reading any.
"""

from collections.abc import Iterable, Sequence

from tidelake.model.batch import ROW_HASHES, HollowBatch


def diff_sum(batches: Iterable[HollowBatch]) -> int | None:
    """The sum of all diffs; None if it is not known of a batch."""
    total = 0
    for batch in batches:
        known = batch.diff_sum
        if known is None:
            return None
        total += known
    return total


def may_have_the_same_rows(before: Sequence[HollowBatch], after: Sequence[HollowBatch]) -> bool:
    """Whether the hashes of the rows are equal, or one of them is not known. Costs O(parts).

    Hashes are known of parts that were written with one, and not narrowed. They can be compared
    if all parts are of one schema: a change of columns changes the hash of the same row.
    """
    if len({part.schema_id for batch in (*before, *after) for part in batch.parts()}) > 1:
        return True
    old, new = _row_hash(before), _row_hash(after)
    return old is None or new is None or old == new


def _row_hash(batches: Iterable[HollowBatch]) -> int | None:
    total = 0
    for batch in batches:
        for run in batch.runs:
            if run.row_hash is None:
                return None
            total += run.row_hash
    return total % ROW_HASHES

"""Sorting a chunk: its order, and where groups of equal rows begin, in one go.

Owns the algorithm; must not know diffs or runs. Invariant: the order is the one of
`tidelake.data.kernel.order`, and the groups are those that `group_starts` finds in the sorted rows.

Columns are taken from the first on, each only for the rows that tie on those before it. As many columns as
have codes of few bits are packed into one word per row and sorted by numpy, with the row's number in the
lowest bits if there is room. A column that is the same throughout every group, as values and folded times
often are, orders nothing, and noticing that costs far less than sorting. If all groups are pairs, such as the
old and new rows of keys, the two rows are compared and swapped, and nothing is sorted.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.data.kernel.arrays import from_numpy, to_numpy
from tidelake.data.kernel.codes import Code, Words, code
from tidelake.data.kernel.order import Mask, differ, group_starts, precede, sort_all, sortable

Ints = npt.NDArray[np.int64]
_WORD_BITS = 64
# Fewer ascending runs than this, or smaller groups that are in order among themselves, are sorted faster by
# the stable sort, which merges runs, than by the vectorised one.
_RUNS_FEW, _GROUP_ROWS = 256, 512
# So many neighbours at so many places are a sample of a column.
_NEIGHBOURS, _SAMPLED = 4, 256


def sort_indices(batch: pa.RecordBatch, width: int) -> pa.Array:
    """The permutation that sorts the rows by the first `width` columns.

    Returns:
        An integer array for `take`.
    """
    return from_numpy(sorted_groups(batch, width)[0])


def sorted_groups(batch: pa.RecordBatch, width: int) -> tuple[Ints, Mask]:
    """The permutation that sorts the rows, and for each sorted row whether it differs from the one before."""
    ties = _Ties(batch)
    left = list(range(width))
    while left and len(ties.at):
        left = ties.refine(left)
    starts = ~np.zeros(batch.num_rows, np.bool_)
    if len(ties.at):
        starts[ties.at[1:][ties.inside]] = False
    return ties.order, starts


class _Ties:
    """The order so far, and the rows that are still equal, in groups of two and more."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        n = batch.num_rows
        self.order: Ints = np.arange(n)
        # Positions in `order`, ascending, and for each the number of its group.
        self.at: Ints = self.order if n > 1 else self.order[:0]
        self.groups: Words = np.zeros(len(self.at), np.uint64)
        self._batch = batch
        self._prefixed: set[int] = set()
        self._whole = True

    @property
    def inside(self) -> Mask:
        """For each tied row but the first, whether it is in the group of the one before it."""
        same: Mask = self.groups[1:] == self.groups[:-1]
        return same

    def refine(self, left: list[int]) -> list[int]:
        """Order the ties by the next column or columns; returns the columns that are left."""
        if len(self.at) == 2 * (int(self.groups[-1]) + 1):
            self._turn_pairs(self._column(left[0]))
            return left[1:]
        packed = Code(self.groups, int(self.groups[-1]).bit_length(), True)
        enough = len(self.at).bit_length()
        inside: Mask | None = None if self._whole else self.inside
        used = 0
        for used, i in enumerate(left):
            if used and packed.bits >= enough:
                break
            column = self._column(i)
            if inside is not None and not self._differs(column, inside):
                continue
            found = code(column) if i not in self._prefixed else None
            if found is None or (packed.bits and found.bits > _WORD_BITS - packed.bits and packed.bits > 32):
                if packed.values is self.groups:
                    self._sort_by(left[used:])
                    return []
                break
            found = found.cut(_WORD_BITS - packed.bits)
            packed = Code(
                (packed.values << np.uint64(found.bits)) | found.values if packed.bits else found.values,
                packed.bits + found.bits,
                found.exact,
            )
            if not found.exact:
                self._prefixed.add(i)
                break
        else:
            used += 1
        if packed.values is not self.groups:
            self._sort(packed)
        return left[used:]

    def _column(self, i: int) -> pa.Array:
        column = self._batch.column(i)
        return column if self._whole else column.take(from_numpy(self.order[self.at]))

    @staticmethod
    def _differs(column: pa.Array, inside: Mask) -> bool:
        return bool((inside & differ(column.slice(0, len(column) - 1), column.slice(1))).any())

    def _turn_pairs(self, column: pa.Array) -> None:
        """Order ties that are all pairs by a column; keep the pairs that are still equal."""
        first, second = column.slice(0, len(column) - 1), column.slice(1)
        # All neighbours are compared, because picking every other one takes longer.
        same = ~differ(first, second)
        if same[::2].all():
            return
        same[1::2] = False
        turned = precede(second, first)[::2]
        pairs = self.order[self.at].reshape(-1, 2)
        pairs[turned] = pairs[turned, ::-1]
        self.order[self.at] = pairs.ravel()
        self._keep(same)

    def _sort(self, code_: Code) -> None:
        """Order the ties by one word each; keep those that are still equal."""
        packed = code_.values
        steps = int(np.add.reduce(packed[1:] < packed[:-1]))
        if steps:
            groups = int(self.groups[-1]) + 1
            nearly = steps < _RUNS_FEW or len(packed) < _GROUP_ROWS * groups
            order, packed = _argsort(code_, nearly=nearly)
            self.order[self.at] = self.order[self.at][order] if not self._whole else order
        self._keep(packed[1:] == packed[:-1])

    def _sort_by(self, columns: list[int]) -> None:
        """Order the ties by all remaining columns with Arrow's sort, which takes any type."""
        rows = self.order[self.at]
        taken = self._batch.select(columns).take(from_numpy(rows))
        order = sort_all([from_numpy(self.groups), *(sortable(c) for c in taken.columns)])
        self.order[self.at] = rows[to_numpy(order)]
        starts = group_starts(taken.take(order), len(columns))[1:]
        groups = self.groups[to_numpy(order)]
        self._keep((groups[1:] == groups[:-1]) & ~starts)

    def _keep(self, same: Mask) -> None:
        if not np.logical_or.reduce(same):
            self.at = self.at[:0]
            return
        tied = np.zeros(len(self.at), np.bool_)
        tied[1:] = same
        tied[:-1] |= same
        kept = tied.nonzero()[0]
        # Groups are numbered by their first rows, the only ones that differ from the row before.
        begins = np.zeros(len(kept), np.bool_)
        begins[1:] = ~same[kept[1:] - 1]
        self.at = kept if self._whole else self.at[kept]
        self.groups = begins.cumsum(dtype=np.uint64)
        self._whole = False


def _argsort(packed: Code, *, nearly: bool) -> tuple[Ints, Words]:
    """The permutation that sorts the words, which may nearly be in order, and the sorted words."""
    rows = len(packed.values)
    shift = (rows - 1).bit_length()
    cut = max(0, packed.bits + shift - _WORD_BITS)
    if nearly or (cut and not _told_apart(packed.values, np.uint64(cut))):
        order = packed.values.argsort(kind="stable" if nearly else "quicksort")
        return order, packed.values[order]
    # With the row's number in the lowest bits, only words are sorted, at a third of the cost.
    words = (packed.values >> np.uint64(cut)) << np.uint64(shift)
    words |= np.arange(rows, dtype=np.uint64)
    words.sort()
    order = (words & np.uint64((1 << shift) - 1)).view(np.int64)
    words >>= np.uint64(shift)
    return (order, words) if not cut else _uncut(packed.values, order, words)


def _told_apart(values: Words, cut: np.uint64) -> bool:
    """Whether upper bits tell words apart about as well as all bits do, judged by a few neighbours."""
    blocks = min(_SAMPLED, len(values) // _NEIGHBOURS)
    firsts = np.arange(blocks)[:, None] * (len(values) // max(1, blocks))
    sample = np.sort(values[firsts + np.arange(_NEIGHBOURS)], axis=None)
    distinct, upper = sample[1:] != sample[:-1], sample >> cut
    return bool((upper[1:] != upper[:-1])[distinct].all())


def _uncut(values: Words, order: Ints, upper: Words) -> tuple[Ints, Words]:
    """The permutation that sorts words, and the sorted words, from one by their upper bits."""
    found = values[order]
    if not (found[1:] < found[:-1]).any():
        return order, found
    same = upper[1:] == upper[:-1]
    tied = np.zeros(len(found), np.bool_)
    tied[1:] = same
    tied[:-1] |= same
    at = tied.nonzero()[0]
    # The ties stay within their places, as their upper bits order them already.
    again = np.argsort(found[at], kind="stable")
    order[at], found[at] = order[at][again], found[at][again]
    return order, found

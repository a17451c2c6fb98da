"""Predicates on Arrow batches: which rows satisfy one, exactly.

Owns how intervals of encoded values become comparisons of columns as they are; must not know SQL or parts.
Invariant: a row is kept iff the encodings of its values, as `tidelake.data.kernel.encode` makes them, satisfy
the predicate. Values are encoded only if their type has no faster comparison.

A predicate is a function of key and value columns, so it is true for all rows that are equal in them, or for
none. So it gives the same result whether it is applied before equal rows are summed or after.
"""

from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import as_mask, binaries, from_numpy, null_mask
from tidelake.data.kernel.encode import encode, words
from tidelake.data.kernel.types import data_type
from tidelake.model.predicate import NULL, PAST, Intervals, Predicate
from tidelake.model.schema import Schema

Mask = npt.NDArray[np.bool_]
_WORD_BYTES = 8
_TEXT_END = b"\x00\x01"
# Up to so many ranges are compared with all values one by one; with more, each value is searched among them.
_RANGES_FEW = 8


class RowFilter:
    """A predicate, ready for batches that have at least the columns of the schema that it names."""

    def __init__(self, predicate: Predicate, schema: Schema) -> None:
        self._predicate = predicate
        self._names = {column.id: column.name for column in schema.columns}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that satisfy it, in the same order; the batch itself if all do."""
        mask = self.mask(batch)
        kept = int(np.count_nonzero(mask))
        if kept == batch.num_rows:
            return batch
        return batch.filter(from_numpy(mask)) if kept else batch.slice(0, 0)

    def mask(self, batch: pa.RecordBatch) -> Mask:
        """For each row, whether it satisfies it."""
        return self._mask(self._predicate, batch)

    def _mask(self, predicate: Predicate, batch: pa.RecordBatch) -> Mask:
        if predicate.op == "in":
            return within(batch.column(self._names[predicate.column]), predicate.intervals)
        conjunction = predicate.op == "and"
        result: Mask = np.full(batch.num_rows, conjunction)
        for part in predicate.of:
            if conjunction:
                result &= self._mask(part, batch)
            else:
                result |= self._mask(part, batch)
        return result


def within(array: pa.Array, intervals: Intervals) -> Mask:
    """For each value, whether its encoding lies in one of the intervals."""
    null = any(start <= NULL < stop for start, stop in intervals)
    present = tuple((start, min(stop, NULL)) for start, stop in intervals if start < NULL)
    if not present:
        mask: Mask = np.zeros(len(array), np.bool_)
    elif pa.types.is_nested(array.type):
        # Nested columns can only be asked whether they are null.
        mask = np.ones(len(array), np.bool_)
    elif (encoded := words(array)) is not None:
        mask = _words_within(encoded, present)
    else:
        mask = _bytes_within(array, present)
    if array.null_count:
        valid = ~null_mask(array)
        mask = np.where(valid, mask, null)
    return mask


def _words_within(encoded: npt.NDArray[np.uint64], intervals: Intervals) -> Mask:
    edges = [(first, end - 1) for a, b in intervals if (first := _word(a)) < (end := _word(b))]
    if not edges:
        return np.zeros(len(encoded), np.bool_)
    if len(edges) == 1:
        low, high = np.uint64(edges[0][0]), np.uint64(edges[0][1])
        mask: Mask = (encoded >= low) & (encoded <= high)
        return mask
    starts = np.array([first for first, _ in edges], np.uint64)
    lasts = np.array([last for _, last in edges], np.uint64)
    at = np.searchsorted(starts, encoded, side="right")
    result: Mask = (at > 0) & (encoded <= lasts[np.maximum(at, 1) - 1])
    return result


def _word(bound: bytes) -> int:
    """The least number whose encoding is not less than the bound; 2**64 if there is none."""
    if bound[:1] < b"\x01":
        return 0
    if bound[:1] >= NULL:
        return 1 << 64
    body = bound[1:]
    number = int.from_bytes(body[:_WORD_BYTES].ljust(_WORD_BYTES, b"\x00"), "big")
    return number + (len(body) > _WORD_BYTES)


def _bytes_within(array: pa.Array, intervals: Intervals) -> Mask:
    is_, kind = pa.types, array.type
    if is_.is_string(kind) or is_.is_binary(kind) or is_.is_fixed_size_binary(kind):
        values, bound = array.cast(pa.binary()), _text
    else:
        values, bound = encode(array, data_type(kind, "compared")), _encoded
    single = [bound(start)[0] for start, stop in intervals if stop == start + PAST]
    points = [value for value in single if value is not None]
    ranges = [(bound(start), bound(stop)) for start, stop in intervals if stop != start + PAST]
    masks = [as_mask(pc.is_in(values, value_set=binaries(points)))] if points else []
    if len(ranges) > _RANGES_FEW:
        masks.append(_searched(values, [_first(*edge) for pair in ranges for edge in pair]))
    else:
        masks += [_at_least(values, *start) & ~_at_least(values, *stop) for start, stop in ranges]
    return reduce(np.logical_or, masks)


def _searched(values: pa.Array, edges: list[bytes | None]) -> Mask:
    """Which values lie between an edge with an even number and the next one; None is past all values."""
    found = [edge for edge in edges if edge is not None]
    sorted_edges = np.empty(len(found), object)
    sorted_edges[:] = found
    given = values.fill_null(b"").to_numpy(zero_copy_only=False)
    inside: Mask = np.searchsorted(sorted_edges, given, side="right") % 2 == 1
    return inside


def _first(bound: bytes | None, exclusive: bool) -> bytes | None:
    """The least value that is not less than a bound, or greater with `exclusive`."""
    return bound if bound is None or not exclusive else bound + b"\x00"


def _at_least(values: pa.Array, bound: bytes | None, exclusive: bool) -> Mask:
    """Which values are not less than a bound, or greater with `exclusive`; no value if the bound is None."""
    if bound is None:
        return np.zeros(len(values), np.bool_)
    compare = pc.greater if exclusive else pc.greater_equal
    return as_mask(compare(values, binaries([bound])[0]))


def _text(bound: bytes) -> tuple[bytes | None, bool]:
    """An encoded bound as a string. Escaping keeps the order, so strings can be compared with it directly."""
    if bound >= NULL:
        return None, False
    body = bound[1:]
    end = body.find(b"\x00")
    while end >= 0 and body[end + 1 : end + 2] == b"\xff":
        end = body.find(b"\x00", end + 2)
    raw = (body if end < 0 else body[:end]).replace(b"\x00\xff", b"\x00")
    return raw, end >= 0 and body[end:] > _TEXT_END


def _encoded(bound: bytes) -> tuple[bytes | None, bool]:
    return (None, False) if bound >= NULL else (bound, False)

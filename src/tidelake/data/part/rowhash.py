"""The hash of a set of updates: the sum over all rows of their hash times their diff, modulo 2^64.

Owns the hash function, which is part of stored formats and the same in every process; must not know parts.
Invariants: the hash depends on neither the order nor the times of the rows, and that of two sets together is
the sum of both. So it is the same before and after rows are consolidated and their times advanced, and
differs if rows were changed, or values swapped between rows, except by chance (1 in 2^64).

A value is a number of 64 bits; null is one of its own, which does not depend on the type. The values of a row
are mixed in one after the other, each by a multiplication and a shift, as high bits would be lost otherwise.
The result goes through the finalizer of splitmix64, so that sums of hashes do not cancel out.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.data.kernel.arrays import SIGNED, TEXTS, null_mask, raw
from tidelake.data.kernel.encode import encode
from tidelake.data.kernel.sums import diffs
from tidelake.data.keys.keyhash import MULTIPLIER, Hashes, finished
from tidelake.model.batch import ROW_HASHES
from tidelake.model.schema import DataType, Schema

Ints = npt.NDArray[np.int64]
_NULL = np.uint64(0xD1B54A32D192ED03)
_HALF = np.uint64(32)
_THREE = np.uint64(3)
_ALL = np.uint64(2**64 - 1)
_WORD_BYTES = 8
# So many rows are hashed at once: with more, numbers of all rows leave the cache between the steps.
_BLOCK_ROWS = 32 * 1024
# So many words of each string are mixed in one after the other; those of longer ones are added up.
_SHORT_WORDS = 8
# By the number of bytes: which bits of a little-endian word belong to a string of that length.
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(_WORD_BYTES + 1)], np.uint64)


def row_hash(batch: pa.RecordBatch, schema: Schema) -> int:
    """The hash of a batch of canonical updates, from 0 to 2^64 - 1."""
    found = 0
    for start in range(0, batch.num_rows, _BLOCK_ROWS):
        found += _block_hash(batch.slice(start, _BLOCK_ROWS), schema)
    return found % ROW_HASHES


def _block_hash(batch: pa.RecordBatch, schema: Schema) -> int:
    found: Hashes = np.zeros(batch.num_rows, np.uint64)
    for column in schema.columns:
        found ^= _values(batch.column(column.name), column.type)
        _mix(found)
    return int(np.add.reduce(finished(found) * diffs(batch).view(np.uint64)))


def _mix(numbers: Hashes) -> None:
    """Make high bits depend on all bits, and low bits on the high ones, in place."""
    numbers *= MULTIPLIER
    numbers ^= numbers >> _HALF


def _values(column: pa.Array, type_: DataType) -> Hashes:
    """A number for each value: its bits if it has at most 64, else a hash of them."""
    kind = column.type
    found: Hashes
    if kind.id in TEXTS:
        found = _strings(column)
    elif kind.id in SIGNED:
        found = raw(column, np.dtype(f"u{kind.bit_width // 8}")).astype(np.uint64, copy=False)
    elif pa.types.is_decimal128(kind):
        found = _halves(column)
    elif _is_number(kind):
        found = raw(column, np.dtype(f"u{kind.bit_width // 8}")).astype(np.uint64, copy=False)
    else:
        found = _strings(encode(column, type_))
    if column.null_count:
        found = np.where(null_mask(column), _NULL, found)
    return found


def _is_number(kind: pa.DataType) -> bool:
    """Whether the values have 8 to 64 bits each."""
    is_ = pa.types
    short_decimal = is_.is_decimal32(kind) or is_.is_decimal64(kind)
    return short_decimal or (is_.is_primitive(kind) and not is_.is_boolean(kind))


def _halves(column: pa.Array) -> Hashes:
    both = np.frombuffer(column.buffers()[1], np.uint64, 2 * (column.offset + len(column)))
    high = both[2 * column.offset + 1 :: 2] + MULTIPLIER
    _mix(high)
    return np.asarray(high ^ both[2 * column.offset :: 2])


def _strings(column: pa.Array) -> Hashes:
    """The length of each string, with its words mixed in."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1 + column.offset)[column.offset :]
    # The bytes of other blocks are left alone.
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    starts, lengths = offsets[:-1].astype(np.int64) - first, (offsets[1:] - offsets[:-1]).astype(np.int64)
    found: Hashes = lengths.view(np.uint64) * MULTIPLIER
    shortest, longest = int(np.minimum.reduce(lengths)), int(np.maximum.reduce(lengths))
    data = column.buffers()[2]
    if not longest or data is None:
        return found
    # Words are read at any offset, also past the end of a string: pad.
    padded = np.zeros(size + _SHORT_WORDS * _WORD_BYTES, np.uint8)
    padded[:size] = np.frombuffer(data, np.uint8, size, first)
    at: Hashes = np.ndarray((len(padded) - _WORD_BYTES + 1,), "<u8", padded, strides=(1,))
    whole = min(shortest // _WORD_BYTES, _SHORT_WORDS)
    for n in range(whole):
        # Strings of one length lie in equal steps, which NumPy follows much faster than a list of places.
        begin = n * _WORD_BYTES
        found ^= at[begin::longest][: len(found)] if shortest == longest else at[starts + begin]
        _mix(found)
    rows: Ints | None = None
    for n in range(whole, min(_SHORT_WORDS, -(-longest // _WORD_BYTES))):
        left = (lengths if rows is None else lengths[rows]) - n * _WORD_BYTES
        longer = left > 0
        count = int(np.count_nonzero(longer))
        if rows is None and 2 * count > len(lengths):
            # Most strings have this word. To leave the others out takes longer than to mix in vain.
            mixed = _mixed(at[starts + n * _WORD_BYTES], left, found)
            found = mixed if count == len(lengths) else np.where(longer, mixed, found)
            continue
        if count < len(left):
            rows, left = longer.nonzero()[0] if rows is None else rows[longer], left[longer]
        found[rows] = _mixed(at[starts[rows] + n * _WORD_BYTES], left, found[rows])
    if longest > _SHORT_WORDS * _WORD_BYTES:
        _add_rest(found, at, starts, lengths)
    return found


def _mixed(words: Hashes, left: Ints, found: Hashes) -> Hashes:
    """The next word of each string mixed in; `left` says how many bytes the string has from there on."""
    bits = np.maximum(_WORD_BYTES - left, 0).view(np.uint64) << _THREE
    words &= _ALL >> bits
    words ^= found
    _mix(words)
    return words


def _add_rest(found: Hashes, at: Hashes, starts: Ints, lengths: Ints) -> None:
    """Add the words of long strings after the first ones, in time that depends on their bytes only.

    Each is mixed with its number in the string, so that their order counts.
    """
    rows = (lengths > _SHORT_WORDS * _WORD_BYTES).nonzero()[0]
    counts = -(-lengths[rows] // _WORD_BYTES) - _SHORT_WORDS
    begins = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum())) - np.repeat(begins, counts) + _SHORT_WORDS
    taken = at[np.repeat(starts[rows], counts) + numbers * _WORD_BYTES]
    ends = begins + counts - 1
    taken[ends] &= _MASKS[np.minimum(lengths[rows] - numbers[ends] * _WORD_BYTES, _WORD_BYTES)]
    taken ^= finished(numbers.astype(np.uint64))
    _mix(taken)
    _mix(taken)
    found[rows] += np.add.reduceat(taken, begins)

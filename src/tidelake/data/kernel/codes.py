"""Codes: the values of one column as unsigned numbers in the same order, for numpy to sort.

Owns how each type becomes a number; must not know rows or the order of columns. Invariant: for values
a, b of a column, `code(a) < code(b)` implies a < b in the order of `tidelake.data.kernel.order`, and where
the code is *exact* equal codes mean equal values. Codes hold within one array only; nothing stores them.

Numbers begin at 0 for the least value, so that those of several columns fit into one word.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import SIGNED, TEXTS, null_mask, raw

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]
_PREFIX_BYTES = 7
# By length: which bytes of a big-endian word belong to a string of that length.
_MASKS = np.array([(1 << 64) - (1 << (64 - 8 * n)) for n in range(_PREFIX_BYTES + 1)], np.uint64)
_SAMPLE, _SAMPLE_DISTINCT = 512, 256


@dataclass(frozen=True)
class Code:
    """A column as numbers.

    Attributes:
        bits: how many of the lowest bits are used.
    """

    values: Words
    bits: int
    exact: bool

    def cut(self, bits: int) -> "Code":
        """The same in at most so many bits, no longer exact if there are fewer than before."""
        if bits >= self.bits:
            return self
        return Code(self.values >> np.uint64(self.bits - bits), bits, False)


def code(column: pa.Array) -> Code | None:
    """The codes of a column of canonical values; None for types without numbers of 64 bits."""
    is_, kind = pa.types, column.type
    if column.null_count == len(column):
        return Code(np.zeros(len(column), np.uint64), 0, True)
    # Asking for each property takes longer than to count a few values.
    if kind.id in SIGNED:
        return _ranged(column, _signed(column))
    if kind.id in TEXTS:
        return _ranks(column) if _repeats(column) else _prefixes(column)
    if is_.is_floating(kind):
        return _ranks(column) if _repeats(column) else _ranged(column, _float_words(column))
    if is_.is_boolean(kind):
        column = column.cast(pa.uint8())
    numbers = _numbers(column)
    return None if numbers is None else _ranged(column, numbers)


def _numbers(column: pa.Array) -> Ints | Words | None:
    """Integers and what is stored as such; arbitrary where null."""
    is_, kind = pa.types, column.type
    if is_.is_unsigned_integer(kind):
        return raw(column, np.dtype(f"u{kind.bit_width // 8}")).astype(np.uint64, copy=False)
    if is_.is_temporal(kind) or (is_.is_decimal(kind) and kind.bit_width <= 64):
        return _signed(column)
    if is_.is_decimal(kind) and kind.bit_width == 128:
        halves = np.frombuffer(column.buffers()[1], np.int64, 2 * (column.offset + len(column)))
        low, high = halves[2 * column.offset :: 2], halves[2 * column.offset + 1 :: 2]
        # What is under a null may be anything, and then only costs the short way.
        return low if (high == low >> 63).all() else None
    return None


def _signed(column: pa.Array) -> Ints:
    return raw(column, np.dtype(f"i{column.type.bit_width // 8}")).astype(np.int64, copy=False)


def _float_words(column: pa.Array) -> Words:
    width = column.type.bit_width
    bits = raw(column, np.dtype(f"u{width // 8}")).astype(np.uint64)
    sign = np.uint64(1 << (width - 1))
    # The canonical NaN is positive, so it comes after infinity.
    return np.where(bits & sign, ~bits & (sign | (sign - np.uint64(1))), bits | sign)


def _ranged(column: pa.Array, numbers: Ints | Words) -> Code | None:
    """Count from the least value; null comes after the greatest."""
    valid = ~null_mask(column) if column.null_count else None
    known = numbers if valid is None else numbers[valid]
    least = np.minimum.reduce(known)
    span = int(np.maximum.reduce(known)) - int(least)
    # Wraps where the difference needs the 64th bit, which is that very bit without a sign.
    values = (numbers - least).view(np.uint64)
    if valid is None:
        return Code(values, span.bit_length(), True)
    null = span + 1
    if null.bit_length() > 64:
        return None
    return Code(np.where(valid, values, np.uint64(null)), null.bit_length(), True)


def _prefixes(column: pa.Array) -> Code:
    """The bytes after the prefix that all values share, and how many there are."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, column.offset + len(column) + 1)[column.offset :]
    start, end = int(offsets[0]), int(offsets[-1])
    data = np.zeros(end - start + 8, np.uint8)
    if end > start:
        data[:-8] = np.frombuffer(column.buffers()[2], np.uint8, end)[start:]
    begins, lengths = offsets[:-1] - start, np.diff(offsets)
    valid = ~null_mask(column) if column.null_count else None
    shared = _shared(data, begins, lengths) if valid is None else _shared(data, begins[valid], lengths[valid])
    lengths -= shared
    at = np.minimum(begins + shared, end - start)
    words = np.ndarray(len(data) - 7, ">u8", data, strides=(1,))[at].astype(np.uint64)
    known = np.clip(lengths, 0, _PREFIX_BYTES + 1)
    values: Words = (words & _MASKS[np.minimum(known, _PREFIX_BYTES)]) | known.astype(np.uint64)
    if valid is not None:
        least_word = values[valid].min()
        values = np.where(valid, values, np.uint64(2**64 - 1))
    else:
        least_word = values.min()
    values -= least_word
    return Code(values, int(values.max()).bit_length(), bool(lengths.max() <= _PREFIX_BYTES))


def _shared(data: npt.NDArray[np.uint8], begins: Offsets, lengths: Offsets) -> int:
    """How many bytes all texts at some places begin with alike; a word has room after the last one."""
    words = np.ndarray(len(data) - 7, "<u8", data, strides=(1,))
    shared, least = 0, int(lengths.min())
    while shared < least:
        found = words[begins + shared]
        differing = int(np.bitwise_or.reduce(found ^ found[0]))
        if differing:
            shared += ((differing & -differing).bit_length() - 1) // 8
            break
        shared += 8
    return min(shared, least)


def _repeats(column: pa.Array) -> bool:
    """Whether there are few distinct values, as far as a sample tells."""
    if len(column) < 4 * _SAMPLE:
        return False
    sample = column.take(pa.array(np.linspace(0, len(column) - 1, _SAMPLE).astype(np.int64)))
    return bool(pc.count_distinct(sample, mode="all").as_py() <= _SAMPLE_DISTINCT)


def _ranks(column: pa.Array) -> Code:
    found = column.dictionary_encode()
    size = len(found.dictionary)
    ranks = np.empty(size + 1, np.uint64)
    words = found.dictionary
    if pa.types.is_float16(words.type):
        order = np.argsort(_float_words(words), kind="stable")
    else:
        order = pc.sort_indices(words).to_numpy()
    ranks[order] = np.arange(size, dtype=np.uint64)
    ranks[size] = size
    indices = raw(found.indices, np.dtype(np.int32))
    if column.null_count:
        indices = np.where(~null_mask(column), indices, size)
    return Code(ranks[indices], size.bit_length(), True)

"""Membership filters: tell which keys a batch may hold without reading its rows.

Owns two kinds and the choice between them; their bytes are a stored format. Must not know batches.
Invariant: no false negatives.

- *bloom*: see `tidelake.data.keys.bloom`; 16 bits for each planned key. If there are far fewer keys than
planned,
  neighbouring words are combined by OR, which halves the filter.
- *bitmap*: one bit for each whole number from the least to the greatest key; exact. Used where it is no
  larger than the bloom filter.
"""

import math
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidelake.arrangement.batch.batch import FilterPlan, Mask
from tidelake.arrangement.batch.hashing import hash_rows
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.layout import NULL_KEY, Layout
from tidelake.data.kernel.encode import words
from tidelake.data.keys.bloom import WORD_BITS, add, bits_of, halved, may_hold, may_hold_one
from tidelake.data.keys.keyhash import Hashes

_BITS_PER_KEY = 16
_SIX_BITS = np.uint64(63)
_ONE = np.uint64(1)
# How often a filter may be halved.
_FOLDS_MAX = 10
_FOLD_UNIT = 1 << _FOLDS_MAX


class Filter(Protocol):
    """Tells which keys may be in a batch; immutable."""

    @property
    def kind(self) -> str:
        """`bloom` or `bitmap`."""

    @property
    def base(self) -> int:
        """The number of the first bit of a bitmap; 0 for a bloom filter. Stored beside the words."""

    @property
    def words(self) -> Hashes:
        """The bits of the filter."""

    def may_hold(self, keys: Keys, first: int, end: int) -> Mask:
        """For each of the keys at [first, end), whether it may be in the batch."""

    def may_hold_one(self, keys: Keys) -> bool:
        """The same for `keys` with just one key; ten times as fast."""


class FilterBuilder(Protocol):
    """Makes the filter of rows that are added in key order."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the keys of rows."""

    def finish(self) -> Filter:
        """The filter of all keys that were added."""


def filter_builder(layout: Layout, plan: FilterPlan) -> FilterBuilder:
    """A builder of the kind of filter that suits the plan."""
    lower, upper = plan.key_lower, plan.key_upper
    if lower is not None and upper is not None and upper != NULL_KEY and _whole(layout):
        span = _number(upper) - _number(lower) + 1
        if 0 < span <= plan.rows * _BITS_PER_KEY:
            return _BitmapBuilder(_number(lower), span)
    return _BloomBuilder(layout, plan.rows)


def filter_of(kind: str, words_: Hashes, base: int) -> Filter | None:
    """A filter from its stored parts; None for a kind that this version does not know."""
    if kind == "bloom":
        return Bloom(words_)
    return Bitmap(words_, base) if kind == "bitmap" else None


def _whole(layout: Layout) -> bool:
    # Floats as ordered integers lie too far apart for a bitmap.
    return layout.number is not None and layout.number.kind in "iu"


def _number(key: bytes) -> int:
    """An encoded key as an unsigned integer with the same order."""
    return int.from_bytes(key[1:], "big")


class Bloom:
    """A blocked bloom filter."""

    kind = "bloom"
    base = 0

    def __init__(self, words_: Hashes) -> None:
        self.words = words_
        self._view = words_.data

    def may_hold(self, keys: Keys, first: int, end: int) -> Mask:
        """See `Filter`."""
        return may_hold(self.words, keys.hashes[first:end], _bits(keys)[first:end])

    def may_hold_one(self, keys: Keys) -> bool:
        """See `Filter`."""
        return may_hold_one(self._view, keys.one_hash)


class _BloomBuilder:
    def __init__(self, layout: Layout, rows: int) -> None:
        count = max(1, math.ceil(rows * _BITS_PER_KEY / WORD_BITS))
        # A multiple of a power of two, so that the filter can be halved.
        unit = min(_FOLD_UNIT, 1 << count.bit_length())
        self._words = np.zeros(math.ceil(count / unit) * unit, np.uint64)
        self._layout = layout
        self._keys = 0

    def add(self, rows: pa.RecordBatch) -> None:
        hashes = hash_rows(rows, self._layout)
        self._keys += 1 + int(np.count_nonzero(hashes[1:] != hashes[:-1]))
        add(self._words, hashes)

    def finish(self) -> Filter:
        words_ = self._words
        wanted = max(1, math.ceil(self._keys * _BITS_PER_KEY / WORD_BITS))
        while len(words_) % 2 == 0 and len(words_) // 2 >= wanted:
            words_ = halved(words_)
        return Bloom(words_)


class Bitmap:
    """One bit for each key that is not null, numbered from `base` on, as `words` of the encoding does."""

    kind = "bitmap"

    def __init__(self, words_: Hashes, base: int) -> None:
        self.words = words_
        self.base = base
        self._view = words_.data

    def may_hold(self, keys: Keys, first: int, end: int) -> Mask:
        """See `Filter`."""
        offsets = _offsets(keys.rows.slice(first, end - first), self.base)
        # A key below the base wraps around to a number past the end.
        inside = offsets < np.uint64(len(self.words) * WORD_BITS)
        at = np.where(inside, offsets, np.uint64(0))
        bits = self.words[at >> np.uint64(6)] >> (at & _SIX_BITS)
        mask: Mask = inside & ((bits & _ONE) == _ONE)
        if keys.nulls and end == len(keys):
            mask[-1:] = False
        return mask

    def may_hold_one(self, keys: Keys) -> bool:
        """See `Filter`."""
        offset = -1 if keys.nulls else _number(keys.first) - self.base
        return 0 <= offset < len(self._view) * WORD_BITS and bool(
            self._view[offset >> 6] >> (offset & 63) & 1
        )


class _BitmapBuilder:
    def __init__(self, base: int, span: int) -> None:
        self._words = np.zeros(math.ceil(span / WORD_BITS), np.uint64)
        self._base = base

    def add(self, rows: pa.RecordBatch) -> None:
        offsets = _offsets(rows, self._base)
        np.bitwise_or.at(self._words, offsets >> np.uint64(6), _ONE << (offsets & _SIX_BITS))

    def finish(self) -> Filter:
        return Bitmap(self._words, self._base)


def _offsets(rows: pa.RecordBatch, base: int) -> Hashes:
    found = words(rows.column(0))
    if found is None:
        raise TypeError("keys of this layout are not numbers")
    return found - np.uint64(base)


def _bits(keys: Keys) -> Hashes:
    """The word of each key, computed once for all filters."""
    return keys.once("bloom bits", lambda: bits_of(keys.hashes))

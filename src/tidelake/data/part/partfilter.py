"""The filter of a part: which keys are certainly not in it.

Owns its bytes; must not know where they lie. Invariant: no key that a part has is denied. It is a blocked
bloom filter (`tidelake.data.keys.bloom`) over the hashes of the part's distinct keys: a key of one column
that is encoded in 8 bytes is hashed as that number, any other key as its encoding.
"""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa

from tidelake.data.kernel.arrays import null_mask
from tidelake.data.kernel.encode import encode_key, words
from tidelake.data.kernel.types import arrow_type
from tidelake.data.keys.bloom import WORD_BITS, add, bits_of, doubled, halved, made, may_hold
from tidelake.data.keys.keyhash import Hashes, hash_encoded, hash_words
from tidelake.data.keys.keyset import KeySet
from tidelake.model.schema import DataType, Schema

# About one absent key in fifty passes. With 12 bits it is one in ninety, but a collection of inserts with a
# base at the head takes more than 2.2 times the bytes of its updates.
_BITS_PER_KEY = 10
# With fewer bits for each key, a filter that was planned for too few keys is doubled.
_BITS_LEAST = 8
# A planned filter has a multiple of so many words, so that it can be halved a few times.
_UNIT = 64
# So many keys are added at once: with fewer, the filter is fetched into the cache again for each few.
_WAITING = 512 * 1024


@dataclass(frozen=True)
class PartFilter:
    """A filter, as it lies in a part."""

    words: Hashes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Its size, stored and in memory."""
        return int(self.words.nbytes)

    def among(self, keys: KeySet, schema: Schema) -> KeySet | None:
        """Those of some keys that the part may have; None: it has none of them."""
        hashes = _hashes_of(keys, schema)
        mask = may_hold(self.words, hashes, bits_of(hashes))
        if mask.all():
            return keys
        return KeySet(keys.keys.filter(pa.array(mask))) if mask.any() else None

    def to_bytes(self) -> bytes:
        """As stored: the words, little-endian."""
        return self.words.astype("<u8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "PartFilter":
        """From what `to_bytes` made."""
        return cls(np.frombuffer(data, "<u8"))


class PartFilterBuilder:
    """Makes the filter of keys that come in order.

    It holds the hash of every key, as the size of a filter depends on their number. Once it is told how many
    to expect, it holds a filter instead, which is halved or doubled if there are far fewer or more.
    """

    def __init__(self) -> None:
        """Start with no keys."""
        self.keys = 0
        self._last: np.uint64 | None = None
        self._held: list[Hashes] = []
        self._words: Hashes | None = None

    @property
    def waiting(self) -> int:
        """How many hashes it holds."""
        return sum(map(len, self._held))

    @property
    def is_planned(self) -> bool:
        """Whether it was told how many keys to expect."""
        return self._words is not None

    def plan(self, keys: int) -> None:
        """Expect about so many keys in all."""
        count = -(-keys * _BITS_PER_KEY // WORD_BITS)
        self._words = np.zeros(max(1, -(-count // _UNIT)) * _UNIT, np.uint64)

    def add(self, hashes: Hashes) -> None:
        """Add some keys, by what `key_hashes` makes of them; at least one."""
        if self._last == hashes[0]:
            # The last key of those before goes on.
            hashes = hashes[1:]
        if not len(hashes):
            return
        self._last = hashes[-1]
        self.keys += len(hashes)
        self._held.append(hashes)
        if self._words is not None and self.waiting >= _WAITING:
            self._words = self._filled(self._words)

    def finish(self) -> PartFilter:
        """The filter of all keys that were added."""
        if self._words is None:
            return PartFilter(made(self._held, _BITS_PER_KEY))
        found = self._filled(self._words)
        while len(found) % 2 == 0 and len(found) // 2 * WORD_BITS >= self.keys * _BITS_PER_KEY:
            found = halved(found)
        return PartFilter(found)

    def _filled(self, words_: Hashes) -> Hashes:
        """The filter with the keys that wait."""
        while self.keys * _BITS_LEAST > len(words_) * WORD_BITS:
            words_ = doubled(words_)
        for hashes in self._held:
            add(words_, hashes)
        self._held = []
        return words_


def key_hashes(rows: pa.RecordBatch, schema: Schema) -> Hashes:
    """The hashes of the distinct keys of rows that are sorted by key."""
    hashes = _hashes(rows, schema)
    fresh = np.ones(len(hashes), np.bool_)
    fresh[1:] = hashes[1:] != hashes[:-1]
    return hashes if fresh.all() else hashes[fresh]


def _hashes(rows: pa.RecordBatch, schema: Schema) -> Hashes:
    if len(schema.key) == 1:
        column = rows.column(schema.key[0].name)
        found = words(column)
        if found is not None:
            nulls = null_mask(column) if column.null_count else None
            return hash_words(found, nulls)
    return hash_encoded(encode_key(rows, schema))


def _hashes_of(keys: KeySet, schema: Schema) -> Hashes:
    if len(schema.key) == 1 and _is_word(schema.key[0].type):
        found = keys.numbers
        hashes = hash_words(found)
        if len(found) == len(keys):
            return hashes
        # Null is the last key.
        return np.append(hashes, hash_words(np.zeros(1, np.uint64), np.ones(1, np.bool_)))
    return hash_encoded(keys.keys)


@cache
def _is_word(type_: DataType) -> bool:
    """Whether keys of a type are hashed as numbers."""
    return words(pa.array([], arrow_type(type_))) is not None

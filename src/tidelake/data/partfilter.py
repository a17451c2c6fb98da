"""The filter of a part: which keys are certainly not in it.

Owns its bytes; must not know where they lie. Invariant: no key that a part has is denied. It is a blocked
bloom filter (`tidelake.data.bloom`) over the hashes of the part's distinct keys: a key of one column that is
encoded in 8 bytes is hashed as that number, any other key as its encoding.
"""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa

from tidelake.data.arrays import null_mask
from tidelake.data.bloom import bits_of, made, may_hold
from tidelake.data.encode import encode_key, words
from tidelake.data.keyhash import Hashes, hash_encoded, hash_words
from tidelake.data.keyset import KeySet
from tidelake.data.types import arrow_type
from tidelake.model.schema import DataType, Schema

# About one absent key in fifty passes. With 12 bits it is one in ninety, but a collection of inserts with a
# base at the head takes more than 2.2 times the bytes of its updates.
_BITS_PER_KEY = 10


@dataclass(frozen=True)
class PartFilter:
    """A filter, as it lies in a part.

    Attributes:
        words: 64 bits each.
    """

    words: Hashes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Its size, stored and in memory."""
        return int(self.words.nbytes)

    def among(self, keys: KeySet, schema: Schema) -> KeySet | None:
        """Those of some keys that the part may have; None: it has none of them.

        Args:
            keys: asked for.
            schema: that the part was written under.
        """
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
    """Makes the filter of keys that come in order."""

    def __init__(self) -> None:
        """Start with no keys."""
        self._held: list[Hashes] = []

    def add(self, hashes: Hashes) -> None:
        """Add some keys, by what `key_hashes` makes of them; at least one."""
        if self._held and self._held[-1][-1] == hashes[0]:
            # The last key of those before goes on.
            hashes = hashes[1:]
        if len(hashes):
            self._held.append(hashes)

    def finish(self) -> PartFilter:
        """The filter of all keys that were added."""
        return PartFilter(made(self._held, _BITS_PER_KEY))


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

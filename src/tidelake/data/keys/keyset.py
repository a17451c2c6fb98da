"""A set of keys: which parts, row groups and rows may hold one of them.

Owns the encoded keys and the semi-join; must not know where parts come from. Invariant: nothing that is left
out holds a row with such a key, and `rows` keeps no other row. Keys are equal iff their encodings are: NaN is
one value, null is another, and -0.0 equals 0.0.
"""

from bisect import bisect_left, bisect_right
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.kernel.arrays import from_numpy, null_mask, raw
from tidelake.data.kernel.encode import encode_key, words
from tidelake.data.kernel.order import equal_ranges
from tidelake.data.kernel.types import arrow_type
from tidelake.model.predicate import NULL
from tidelake.model.schema import Schema

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
# A marker and 8 bytes.
_WORD_BYTES = 9
# Searching for an encoded key takes as long as looking at this many rows.
_ROWS_PER_SEARCH = 1024
# So many keys are kept as a list too, in which a search takes less.
_FEW = 1024


def searchable(batch: pa.RecordBatch, schema: Schema) -> pa.Array:
    """Keys as `KeySet.rows` looks for them: uint64 if one column of at most 8 bytes, else encoded."""
    if len(schema.key) == 1:
        column = batch.column(schema.key[0].name)
        numbers = words(column)
        if numbers is not None:
            return from_numpy(numbers, null_mask(column) if column.null_count else None)
    return encode_key(batch, schema)


def are_numbers(schema: Schema) -> bool:
    """Whether `searchable` makes numbers of keys, for which it does not have to encode any."""
    return len(schema.key) == 1 and words(pa.nulls(0, arrow_type(schema.key[0].type))) is not None


class KeySet:
    """Distinct keys, encoded and ascending; at least one."""

    def __init__(self, keys: pa.Array) -> None:
        """A set of encoded keys, which are distinct and ascending."""
        self.keys = keys
        self.first: bytes = self.keys[0].as_py()
        self.last: bytes = self.keys[-1].as_py()

    @classmethod
    def of(cls, rows: pa.RecordBatch | pa.Table, schema: Schema) -> "KeySet":
        """The keys of some rows, at least one, with canonical values in the key columns of the schema."""
        encoded = encode_key(rows, schema)
        # Keys of a sorted range are in order, and checking that costs far less than sorting.
        if not pc.all(pc.less(encoded.slice(0, len(encoded) - 1), encoded.slice(1)), min_count=0).as_py():
            distinct = encoded.unique()
            encoded = distinct.take(pc.sort_indices(distinct))
        return cls(encoded)

    def __len__(self) -> int:
        return len(self.keys)

    def lies_in(self, start: bytes | None, stop: bytes | None) -> bool:
        """Whether all keys are at or after `start` and before `stop`; None: no bound."""
        return (start is None or start <= self.first) and (stop is None or self.last < stop)

    def between(self, start: bytes | None, stop: bytes | None) -> pa.Array:
        """The keys at or after `start` and before `stop`; None: no bound."""
        if self.lies_in(start, stop):
            return self.keys
        places = range(len(self))
        low = 0 if start is None else bisect_left(places, start, key=self._key)
        high = len(self) if stop is None else bisect_left(places, stop, low, key=self._key)
        return self.keys.slice(low, high - low)

    def meets(self, low: bytes, high: bytes | None) -> bool:
        """Whether a key lies between two bounds, both inclusive; None: no upper bound."""
        if self._few is not None:
            at = bisect_left(self._few, low)
            return at < len(self._few) and (high is None or self._few[at] <= high)
        at = bisect_left(range(len(self)), low, key=self._key)
        return at < len(self) and (high is None or self._key(at) <= high)

    def count(self, low: bytes, high: bytes | None) -> int:
        """How many keys lie between two bounds, both inclusive; None: no upper bound."""
        first = bisect_left(range(len(self)), low, key=self._key)
        end = len(self) if high is None else bisect_right(range(len(self)), high, first, key=self._key)
        return end - first

    def rows(self, batch: pa.RecordBatch, keys: pa.Array) -> pa.RecordBatch:
        """The rows that have one of the keys, in their order; the batch itself if all do."""
        places = self.places(keys)
        return batch if places is None else batch.take(places)

    def places(self, keys: pa.Array) -> pa.Array | None:
        """The positions of rows that have one of the keys, ascending; None: all rows do."""
        if not len(keys):
            return None
        if pa.types.is_uint64(keys.type):
            return self._found(keys)
        low = bisect_left(range(len(self)), keys[0].as_py(), key=self._key)
        high = bisect_right(range(len(self)), keys[-1].as_py(), low, key=self._key)
        wanted = self.keys.slice(low, high - low)
        if len(wanted) * _ROWS_PER_SEARCH < len(keys):
            # `is_in` costs time for each row and each key, since it makes a hash table at each call.
            return _places(len(keys), *_searched(keys, wanted.to_pylist()))
        places = pc.indices_nonzero(pc.is_in(keys, value_set=wanted))
        return None if len(places) == len(keys) else places

    def _found(self, keys: pa.Array) -> pa.Array | None:
        """`places` for keys that are numbers: searches for each wanted key instead of looking at each row."""
        nulls = keys.null_count
        known = raw(keys, np.dtype(np.uint64))[: len(keys) - nulls]
        wanted = self.numbers
        if len(known):
            wanted = wanted[np.searchsorted(wanted, known[0]) : np.searchsorted(wanted, known[-1], "right")]
        first, end = equal_ranges(known, wanted)
        if nulls and self.last == NULL:
            first, end = np.append(first, len(known)), np.append(end, len(keys))
        return _places(len(keys), first, end)

    @cached_property
    def numbers(self) -> Words:
        """The keys except null, if all are encoded in 8 bytes."""
        count = len(self) - (self.last == NULL)
        start = _WORD_BYTES * self.keys.offset
        data = np.frombuffer(self.keys.buffers()[2] or b"", np.uint8, _WORD_BYTES * count, start)
        numbers: Words = data.reshape(count, _WORD_BYTES)[:, 1:].copy().view(">u8")[:, 0].astype(np.uint64)
        return numbers

    @cached_property
    def _few(self) -> list[bytes] | None:
        """The keys as a list, which is searched for each part; None if they are many."""
        return self.keys.to_pylist() if len(self.keys) <= _FEW else None

    def _key(self, i: int) -> bytes:
        key: bytes = self.keys[i].as_py()
        return key


def _searched(keys: pa.Array, wanted: list[bytes]) -> tuple[Places, Places]:
    """Where the rows of each wanted key begin and end; for few wanted keys and many rows in order."""
    places = range(len(keys))
    first = [bisect_left(places, key, key=lambda i: keys[i].as_py()) for key in wanted]
    end = [
        bisect_right(places, key, at, key=lambda i: keys[i].as_py())
        for key, at in zip(wanted, first, strict=True)
    ]
    return np.array(first, np.int64), np.array(end, np.int64)


def _places(rows: int, first: Places, end: Places) -> pa.Array | None:
    """All positions of some ranges; None if these are all of `rows` rows."""
    counts = end - first
    total = int(counts.sum())
    if total == rows:
        return None
    before = np.cumsum(counts) - counts
    return from_numpy(np.repeat(first - before, counts) + np.arange(total))

"""64-bit hashes of keys, for filters.

Owns the hash function, which is part of stored formats and the same in every process; must not know filters.
Invariant: equal keys have equal hashes.

The hash of bytes begins with their number times `0x9e3779b97f4a7c15`. Each eight of them, little-endian,
the last ones filled with zeros, are mixed in: exclusive or, times the same number, exclusive or with itself
shifted right by 32. The result goes through the finalizer of splitmix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014). A key that is one column of a fixed-width number type is
hashed by its word alone: times that number, then the finalizer; null as `0xd1b54a32d192ed03`. All other
keys are hashed by their encoding.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD1B54A32D192ED03)
_WORD_BYTES = 8
_MASK = 2**64 - 1
# Of fewer rows, and of more bytes, a loop over the words of each is faster.
_FEW, _LONG = 64, 256


def hash_words(words: Hashes, nulls: npt.NDArray[np.bool_] | None = None) -> Hashes:
    """The hash of every word, as `data.kernel.encode.words` makes them; `nulls`: where the key is null."""
    hashes = finished(words * MULTIPLIER)
    if nulls is not None:
        hashes[nulls] = _NULL
    return hashes


def hash_encoded(keys: pa.Array) -> Hashes:
    """The hash of every string of bytes; `keys` is a binary array without nulls."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1 + keys.offset)[keys.offset :]
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    hashes: Hashes = lengths.astype(np.uint64) * MULTIPLIER
    data = keys.buffers()[2]
    if data is None or not lengths.any():
        return finished(hashes)
    # Words are read at any offset, so the last one may extend past the end: pad.
    padded = np.zeros(int(offsets[-1]) + _WORD_BYTES, np.uint8)
    padded[: int(offsets[-1])] = np.frombuffer(data, np.uint8, int(offsets[-1]))
    at: Hashes = np.ndarray((len(padded) - _WORD_BYTES + 1,), "<u8", padded, strides=(1,))
    rows = np.arange(len(keys))
    for done in range(0, int(lengths.max()), _WORD_BYTES):
        left = lengths[rows] - done
        if (left <= 0).any():
            rows, left = rows[left > 0], left[left > 0]
        if len(rows) < _FEW and left.max() > _LONG:
            for row, start in zip(rows.tolist(), (starts[rows] + done).tolist(), strict=True):
                end = int(starts[row] + lengths[row])
                hashes[row] = _mixed_in(int(hashes[row]), padded[start:end].tobytes())
            break
        found = at[starts[rows] + done]
        short = left < _WORD_BYTES
        if short.any():
            bits = (left[short] * 8).astype(np.uint64)
            found[short] &= (np.uint64(1) << bits) - np.uint64(1)
        mixed = (hashes[rows] ^ found) * MULTIPLIER
        hashes[rows] = mixed ^ (mixed >> np.uint64(32))
    return finished(hashes)


def _mixed_in(hashed: int, rest: bytes) -> int:
    """Mix in the rest of one key, as `hash_encoded` does for many: a word of few keys costs NumPy more."""
    multiplier = int(MULTIPLIER)
    words = np.frombuffer(rest + bytes(-len(rest) % _WORD_BYTES), "<u8").tolist()
    for word in words:
        mixed = ((hashed ^ word) * multiplier) & _MASK
        hashed = mixed ^ (mixed >> 32)
    return hashed


def finished(hashes: Hashes) -> Hashes:
    """The finalizer: a change of any bit changes about half of all bits."""
    hashes = hashes ^ (hashes >> np.uint64(30))
    hashes *= _FIRST
    hashes ^= hashes >> np.uint64(27)
    hashes *= _SECOND
    hashes ^= hashes >> np.uint64(31)
    return hashes

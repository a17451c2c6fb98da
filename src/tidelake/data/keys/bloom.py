"""Blocked bloom filters: which hashes may be in a set.

Owns how the bits are chosen, which is part of stored formats; must not know keys. Invariant: a hash that is
in the set is never denied.

A filter has words of 64 bits. The upper half of a hash picks one word, its lowest 24 bits pick four bits in
that word, so that a probe reads one word. With 16 bits for each hash about 1 in 150 others passes, with 12
about 1 in 60.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidelake.data.keys.keyhash import Hashes

WORD_BITS = 64
_ONE = np.uint64(1)
_SIX_BITS = np.uint64(63)
_HALF = np.uint64(32)
_TWELVE_BITS = np.uint64(4095)
# So many hashes are added at once: with more, their places and bits leave the cache in between.
_BLOCK = 32 * 1024
# Maps twelve bits, two bit positions of six bits each, to a word with these one or two bits set.
_PAIRS = (_ONE << (np.arange(4096, dtype=np.uint64) & _SIX_BITS)) | (
    _ONE << (np.arange(4096, dtype=np.uint64) >> np.uint64(6))
)
_PAIR_LIST: list[int] = _PAIRS.tolist()


def places(hashes: Hashes, count: int) -> Hashes:
    """The word of each hash in a filter of `count` words."""
    found: Hashes = ((hashes >> _HALF) * np.uint64(count)) >> _HALF
    return found


def bits_of(hashes: Hashes) -> Hashes:
    """The bits of each hash in its word."""
    # Signed places, as NumPy converts others one by one; none is out of range.
    pairs: Hashes = _PAIRS.take((hashes & _TWELVE_BITS).view(np.int64), mode="wrap")
    pairs |= _PAIRS.take(((hashes >> np.uint64(12)) & _TWELVE_BITS).view(np.int64), mode="wrap")
    return pairs


def made(hashes: Sequence[Hashes], bits_each: int) -> Hashes:
    """The words of a filter of some hashes, with so many bits for each of them."""
    count = sum(map(len, hashes))
    words: Hashes = np.zeros(max(1, -(-count * bits_each // WORD_BITS)), np.uint64)
    for several in hashes:
        add(words, several)
    return words


def add(words: Hashes, hashes: Hashes) -> None:
    """Put hashes into a filter, in place."""
    for start in range(0, len(hashes), _BLOCK):
        some = hashes[start : start + _BLOCK]
        np.bitwise_or.at(words, places(some, len(words)).view(np.int64), bits_of(some))


def halved(words: Hashes) -> Hashes:
    """A filter of the same hashes with half as many words; their number must be even."""
    return words[0::2] | words[1::2]


def doubled(words: Hashes) -> Hashes:
    """A filter of the same hashes with twice as many words, which denies what the one before denied."""
    return np.repeat(words, 2)


def may_hold(words: Hashes, hashes: Hashes, bits: Hashes) -> npt.NDArray[np.bool_]:
    """For each hash, whether it may be in the set; `bits` are those that `bits_of` gives."""
    mask: npt.NDArray[np.bool_] = (words[places(hashes, len(words))] & bits) == bits
    return mask


def may_hold_one(words: memoryview, hash_: int) -> bool:
    """The same for one hash; ten times as fast."""
    bits = _PAIR_LIST[hash_ & 4095] | _PAIR_LIST[hash_ >> 12 & 4095]
    return bool(words[((hash_ >> 32) * len(words)) >> 32] & bits == bits)

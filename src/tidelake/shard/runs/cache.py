"""The look-up cache: parts that look-ups decode again and again are unpacked on local disk.

To find a row, its whole page is decoded, so look-ups of scattered keys decode whole parts. Once look-ups have
decoded as many rows of a part as it has, the next look-up that needs most of the part unpacks it. Unpacking
costs as much as has been spent already, so a few look-ups never pay for it, and many pay little. Owns the
choice of the parts.

INVARIANT: the files of all lakes together are at most as large as the cache may be.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import IO, TypeAlias

import pyarrow as pa

from tidelake.config import MIB, Config
from tidelake.data.keys.keyset import KeySet
from tidelake.data.part.unpacked import Unpacked, unpack, unpacked_bytes
from tidelake.errors import CorruptionError
from tidelake.model.batch import Part
from tidelake.model.schema import Schema
from tidelake.shard.engine.spec import ShardSpec
from tidelake.store.unnamed import spare_bytes, unnamed

Decode: TypeAlias = Callable[..., Iterator[pa.RecordBatch]]
"""Decodes a part, with more arguments of `tidelake.data.part.scan.read_part`."""

# Smaller parts of a far store are not unpacked: that fetches them again, and their bytes are kept.
_FAR_ROW_GROUPS_MIN = 4
# A file counts at least so many bytes, since a process may map only so many (65,530 on Linux).
_FILE_BYTES_MIN = 64 * 1024
# Larger batches are searched faster, but take more memory while they are written.
_BATCH_ROWS, _BATCH_BYTES = 1 << 20, 32 * MIB
# The most missed parts to remember; most of them have been merged away since.
_NAMES_MAX = 10_000

Identity: TypeAlias = tuple[str, str, str]
"""Identifies a part in any lake: URL, name and checksum, since a new lake at the same URL may reuse names."""


def identity(spec: ShardSpec, part: Part) -> Identity:
    """The identity of a part: the lake's URL, its name, and the checksum of its bytes."""
    return spec.url, part.name, part.checksum


@dataclass(frozen=True)
class Whole:
    """A part, and the functions to unpack it.

    Attributes:
        rows_among: the number of rows in the row groups that may hold one of some keys.
        bytes_max: the most bytes that all files together may have.
    """

    id: Identity
    part: Part
    schema: Schema
    decode: Decode
    rows_among: Callable[[KeySet], int]
    group_rows: int
    bytes_max: int


@dataclass
class _Missed:
    """What look-ups decoded of a part that is not in the cache.

    Attributes:
        since: the number of the question since which this counts.
        before: `since` of the count before this one; 0: there was none.
    """

    since: int
    before: int = 0
    rows: int = 0
    size_bytes: int = 0


@dataclass
class _Kept:
    """A part in the cache.

    Attributes:
        asked: the number of the last question for it.
        spared: about how many rows look-ups would have decoded without it, since it last paid.
    """

    unpacked: Unpacked
    asked: int
    spared: int

    @property
    def charged_bytes(self) -> int:
        return max(self.unpacked.size_bytes, _FILE_BYTES_MIN)


class LookupCache:
    """The parts of all lakes that a process has unpacked. One size limit holds for all. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Least recently used first.
        self._kept: OrderedDict[Identity, _Kept] = OrderedDict()
        self._missed: OrderedDict[Identity, _Missed] = OrderedDict()
        # Size limits of files that are being written.
        self._begun: dict[Identity, int] = {}
        self._questions = count(1)
        self.hits = self.misses = 0

    def size_bytes(self, url: str | None = None) -> int:
        """Total size of the files, of all lakes or of one."""
        with self._lock:
            return sum(kept.unpacked.size_bytes for id_, kept in self._kept.items() if url in (None, id_[0]))

    def has(self, id_: Identity) -> bool:
        """Whether a part is in the cache now."""
        with self._lock:
            return id_ in self._kept

    def rows(
        self, whole: Whole, among: KeySet, asked: Decode, *, batch_rows: int, batch_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a part that have one of some keys, in stored order, in batches that are not empty."""
        unpacked = self._found(whole, among)
        if unpacked is None:
            watch = partial(self._note, whole.id)
            return asked(watch=watch, batch_rows=batch_rows, batch_bytes=batch_bytes)
        return unpacked.rows(among, batch_rows, batch_bytes)

    def catch_up(self, parts: Sequence[Whole]) -> None:
        """Unpack new parts of a collection, if most of it is in the cache."""
        with self._lock:
            here = self._here(parts)
            oldest = min((kept.asked for _, kept in here), default=0)
        if _is_most(here, parts):
            self._unpack_like(here, parts, oldest)

    def follow_merges(self, before: Sequence[Whole], after: Sequence[Whole]) -> None:
        """Unpack what merges have made, if most of what there was before is in the cache, and pays for it.

        A part pays once look-ups would have decoded about as many rows as it has, had it not been in the
        cache, and has to pay again after that. What was replaced is the first to be evicted.
        """
        old, new = {whole.id for whole in before}, {whole.id for whole in after}
        made = [whole for whole in after if whole.id not in old]
        with self._lock:
            here = [(whole, kept) for whole, kept in self._here(before) if kept.spared >= whole.part.rows]
            if not made or not _is_most(here, before):
                return
            oldest = min(kept.asked for _, kept in here)
            for _, kept in here:
                kept.spared = 0
            for whole, kept in self._here(before):
                if whole.id not in new:
                    kept.asked = 0
                    self._kept.move_to_end(whole.id, last=False)
        self._unpack_like(here, made, oldest)

    def shrink(self, bytes_max: int) -> None:
        """Drop what was used longest ago, as far as the files are larger than this."""
        with self._lock:
            held = self._held_bytes()
            while held > bytes_max and self._kept:
                held -= self._kept.popitem(last=False)[1].charged_bytes

    def forget(self, id_: Identity) -> None:
        """Drop a part."""
        with self._lock:
            self._kept.pop(id_, None)

    def _here(self, parts: Sequence[Whole]) -> list[tuple[Whole, _Kept]]:
        """Those of some parts that are in the cache. The caller holds the lock."""
        return [(whole, self._kept[whole.id]) for whole in parts if whole.id in self._kept]

    def _unpack_like(self, here: Sequence[tuple[Whole, _Kept]], parts: Sequence[Whole], since: int) -> None:
        """Unpack parts whose rows are about as large as those here, evicting what was not used `since`."""
        rows = sum(whole.part.rows for whole, _ in here)
        stored = sum(whole.part.size_bytes for whole, _ in here)
        size = sum(kept.unpacked.size_bytes for _, kept in here)
        for whole in parts:
            # Estimate the size by rows and by stored bytes: rows may be wider, or compress less, than others.
            part = whole.part
            about = max(size * part.rows // rows, size * part.size_bytes // stored)
            self._unpacked(whole, _promised(about), since, spared=0)

    def _found(self, whole: Whole, among: KeySet) -> Unpacked | None:
        """The unpacked part, if it is in the cache or is due and gets unpacked now; None: decode it."""
        with self._lock:
            now = next(self._questions)
            kept = self._kept.get(whole.id)
            if kept is not None:
                self.hits += 1
                kept.asked = now
                kept.spared += min(whole.part.rows, len(among) * whole.group_rows)
                self._kept.move_to_end(whole.id)
                return kept.unpacked
            self.misses += 1
            missed = self._missed.setdefault(whole.id, _Missed(now))
            self._missed.move_to_end(whole.id)
            if len(self._missed) > _NAMES_MAX:
                self._missed.popitem(last=False)
            if missed.rows < whole.part.rows:
                return None
            size = missed.size_bytes * whole.part.rows // missed.rows
            size = _promised(unpacked_bytes(size, whole.part.rows, whole.schema))
            # Restart the count even if unpacking fails, so that each try is paid for by look-ups.
            self._missed[whole.id] = _Missed(now, missed.since)
            if not self._fits(whole, size, missed.before):
                return None
        if 2 * whole.rows_among(among) <= whole.part.rows:
            # Not worth it: the keys are close together, so this look-up reads few row groups.
            return None
        return self._unpacked(whole, size, missed.before, spared=whole.part.rows)

    def _unpacked(self, whole: Whole, size: int, since: int, *, spared: int) -> Unpacked | None:
        """Unpack a part of at most this size, if that evicts only parts that were not used `since`."""
        with self._lock:
            if whole.id in self._kept or whole.id in self._begun or not self._makes_room(whole, size, since):
                return None
            self._begun[whole.id] = size
        unpacked = None
        try:
            unpacked = _written(whole, size)
        finally:
            with self._lock:
                del self._begun[whole.id]
                if unpacked is not None:
                    self._kept[whole.id] = _Kept(unpacked, next(self._questions), spared)
                    self._missed.pop(whole.id, None)
        return unpacked

    def _makes_room(self, whole: Whole, size: int, since: int) -> bool:
        if not self._fits(whole, size, since):
            return False
        held = self._held_bytes()
        for id_, freed in self._unused(since).items():
            if held + size <= whole.bytes_max:
                break
            del self._kept[id_]
            held -= freed
        return True

    def _fits(self, whole: Whole, size: int, since: int) -> bool:
        # Parts in use stay; otherwise parts that do not all fit would evict each other for ever.
        held = self._held_bytes() - sum(self._unused(since).values())
        return held + size <= whole.bytes_max and sum(self._begun.values()) + size <= spare_bytes()

    def _held_bytes(self) -> int:
        """Size of the files; a file that is being written counts with its limit."""
        return sum(kept.charged_bytes for kept in self._kept.values()) + sum(self._begun.values())

    def _unused(self, since: int) -> dict[Identity, int]:
        """The sizes of files that were not used since a question."""
        return {id_: kept.charged_bytes for id_, kept in self._kept.items() if kept.asked < since}

    def _note(self, id_: Identity, rows: int, size_bytes: int) -> None:
        with self._lock:
            missed = self._missed.get(id_)
            if missed is not None:
                missed.rows += rows
                missed.size_bytes += size_bytes


def _is_most(here: Sequence[tuple[Whole, _Kept]], parts: Sequence[Whole]) -> bool:
    """Whether what is here has more than half of the rows of some parts."""
    return 2 * sum(whole.part.rows for whole, _ in here) > sum(whole.part.rows for whole in parts)


def _promised(size: int) -> int:
    """The size limit for a file of an estimated size: it has a margin, as some rows may be larger."""
    return size + size // 8 + MIB


def _written(whole: Whole, bytes_max: int) -> Unpacked | None:
    def write(file: IO[bytes]) -> bool:
        batches = whole.decode(batch_rows=_BATCH_ROWS, batch_bytes=_BATCH_BYTES)
        return unpack(batches, whole.schema, file, bytes_max)

    try:
        return unnamed(write, Unpacked)
    except CorruptionError:
        # Damaged rows are reported to the look-up that decodes them; look-ups of other rows still work.
        return None


def worth_keeping(part: Part, config: Config, *, is_far: bool) -> bool:
    """Whether look-ups may unpack a part of a store."""
    if not config.lookup_cache_bytes or part.inline is not None:
        return False
    return not (is_far and part.rows < _FAR_ROW_GROUPS_MIN * config.row_group_rows)

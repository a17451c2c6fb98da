"""Parts that look-ups decode again and again, unpacked on local disk.

To find a row, its page is decoded whole, so keys that lie anywhere decode whole parts. Once look-ups have
decoded as many rows of a part as it has, the next one that needs most of it unpacks it: what that costs has
been spent before, so a few look-ups never pay for it, and many hardly anything else. Owns which parts that
are.

INVARIANT: a part never changes, so neither does what was unpacked of it. Files together, of whatever lakes,
are not larger than the cache may be, and it works without any: who is refused reads the part itself.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import IO, TypeAlias

import pyarrow as pa

from tidelake.config import MIB, Config
from tidelake.data.keyset import KeySet
from tidelake.data.unpacked import Unpacked, unpack, unpacked_bytes
from tidelake.errors import CorruptionError
from tidelake.model.batch import Part
from tidelake.model.schema import Schema
from tidelake.shard.spec import ShardSpec
from tidelake.store.unnamed import spare_bytes, unnamed

Decode: TypeAlias = Callable[..., Iterator[pa.RecordBatch]]
"""Decodes a part, with more arguments of `tidelake.data.scan.read_part`."""

# To decode fewer row groups costs less than to remember them.
_ROW_GROUPS_MIN = 4
# Larger batches are searched faster, and fill more of the memory while they are written.
_BATCH_ROWS, _BATCH_BYTES = 1 << 20, 32 * MIB
# Names of parts, of which most have been merged away.
_NAMES_MAX = 10_000

Identity: TypeAlias = tuple[str, str, str]
"""Of a part, in any lake: what is in a lake's place, once it was deleted, may use its names again."""


def identity(spec: ShardSpec, part: Part) -> Identity:
    """Of a part of a shard: the lake's url, the name, and the checksum of the bytes."""
    return spec.url, part.name, part.checksum


@dataclass(frozen=True)
class Whole:
    """A part, and how to unpack it.

    Attributes:
        id: of the part.
        part: its description.
        schema: the one that it was written under.
        decode: decodes all its rows.
        rows_among: of the row groups that may hold one of some keys.
        bytes_max: how large all files together may be.
    """

    id: Identity
    part: Part
    schema: Schema
    decode: Decode
    rows_among: Callable[[KeySet], int]
    bytes_max: int


@dataclass
class _Missed:
    """What look-ups decoded of a part that is not here: rows, and how large they are.

    Counted since a question; `before` is the one since which it was counted the time before.
    """

    since: int
    before: int = 0
    rows: int = 0
    size_bytes: int = 0


@dataclass
class _Kept:
    unpacked: Unpacked
    asked: int


class LookupCache:
    """The parts that a process has unpacked, of all lakes, so that one bound is for them all. Thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        # What was asked for last is at the end.
        self._kept: OrderedDict[Identity, _Kept] = OrderedDict()
        self._missed: OrderedDict[Identity, _Missed] = OrderedDict()
        # How large files may get that are being written.
        self._begun: dict[Identity, int] = {}
        self._questions = count(1)

    def size_bytes(self, url: str | None = None) -> int:
        """Of all files that are here, or of those of one lake."""
        with self._turn:
            return sum(kept.unpacked.size_bytes for id_, kept in self._kept.items() if url in (None, id_[0]))

    def has(self, id_: Identity) -> bool:
        """Whether a part is here now."""
        with self._turn:
            return id_ in self._kept

    def rows(
        self, whole: Whole, among: KeySet, asked: Decode, *, batch_rows: int, batch_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a part that have one of some keys, in the stored order, none empty.

        Args:
            whole: the part.
            among: the keys.
            asked: decodes these rows; called if the part is not here.
            batch_rows: most rows of a batch.
            batch_bytes: about how large a batch may be in memory.
        """
        unpacked = self._found(whole, among)
        if unpacked is None:
            watch = partial(self._note, whole.id)
            return asked(watch=watch, batch_rows=batch_rows, batch_bytes=batch_bytes)
        return unpacked.rows(among, batch_rows, batch_bytes)

    def catch_up(self, parts: Sequence[Whole]) -> None:
        """Unpack what is new of a collection, if look-ups have had most of it unpacked.

        Args:
            parts: all of the collection that are not too small.
        """
        with self._turn:
            here = [(whole.part, self._kept[whole.id]) for whole in parts if whole.id in self._kept]
        rows, total = sum(part.rows for part, _ in here), sum(whole.part.rows for whole in parts)
        if 2 * rows <= total or rows == total:
            return
        stored = sum(part.size_bytes for part, _ in here)
        size = sum(kept.unpacked.size_bytes for _, kept in here)
        oldest = min(kept.asked for _, kept in here)
        for whole in parts:
            # Its rows may be wider, or are packed less.
            part = whole.part
            about = max(size * part.rows // rows, size * part.size_bytes // stored)
            self._unpacked(whole, _promised(about), oldest)

    def _found(self, whole: Whole, among: KeySet) -> Unpacked | None:
        """A part that is here, or is due to be; None: it is to be decoded."""
        with self._turn:
            now = next(self._questions)
            kept = self._kept.get(whole.id)
            if kept is not None:
                kept.asked = now
                self._kept.move_to_end(whole.id)
                return kept.unpacked
            missed = self._missed.setdefault(whole.id, _Missed(now))
            self._missed.move_to_end(whole.id)
            if len(self._missed) > _NAMES_MAX:
                self._missed.popitem(last=False)
            if missed.rows < whole.part.rows:
                return None
            size = missed.size_bytes * whole.part.rows // missed.rows
            size = _promised(unpacked_bytes(size, whole.part.rows, whole.schema))
            # Whatever comes of it: next time it has to be paid for again.
            self._missed[whole.id] = _Missed(now, missed.since)
            if not self._fits(whole, size, missed.before):
                return None
        if 2 * whole.rows_among(among) <= whole.part.rows:
            # A look-up of keys that lie together reads the row groups that hold them, and no others.
            return None
        return self._unpacked(whole, size, missed.before)

    def _unpacked(self, whole: Whole, size: int, since: int) -> Unpacked | None:
        """Unpack a part of at most that size, if there is room without what was asked for since then."""
        with self._turn:
            if whole.id in self._kept or whole.id in self._begun or not self._makes_room(whole, size, since):
                return None
            self._begun[whole.id] = size
        unpacked = None
        try:
            unpacked = _written(whole, size)
        finally:
            with self._turn:
                del self._begun[whole.id]
                if unpacked is not None:
                    self._kept[whole.id] = _Kept(unpacked, next(self._questions))
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
        # What is in use stays, or parts that do not all fit would replace one another.
        held = self._held_bytes() - sum(self._unused(since).values())
        return held + size <= whole.bytes_max and sum(self._begun.values()) + size <= spare_bytes()

    def _held_bytes(self) -> int:
        """What the files take, and may that are being written."""
        return sum(kept.unpacked.size_bytes for kept in self._kept.values()) + sum(self._begun.values())

    def _unused(self, since: int) -> dict[Identity, int]:
        """How large the files are that were not asked for since then."""
        return {id_: kept.unpacked.size_bytes for id_, kept in self._kept.items() if kept.asked < since}

    def _note(self, id_: Identity, rows: int, size_bytes: int) -> None:
        with self._turn:
            missed = self._missed.get(id_)
            if missed is not None:
                missed.rows += rows
                missed.size_bytes += size_bytes


def _promised(size: int) -> int:
    """Room for a file of about that size: some rows may be larger than others."""
    return size + size // 8 + MIB


def _written(whole: Whole, bytes_max: int) -> Unpacked | None:
    def write(file: IO[bytes]) -> bool:
        batches = whole.decode(batch_rows=_BATCH_ROWS, batch_bytes=_BATCH_BYTES)
        return unpack(batches, whole.schema, file, bytes_max)

    try:
        return unnamed(write, Unpacked)
    except CorruptionError:
        # Who needs the rows that are damaged decodes them next, and is told; the others need not know.
        return None


_here: dict[int, LookupCache] = {}


def cache_of(spec: ShardSpec) -> LookupCache | None:
    """Where look-ups find parts in this process (a forked child has its own); None: nowhere."""
    if not spec.config.lookup_cache_bytes:
        return None
    pid = os.getpid()
    if pid not in _here:
        # A fork would keep on disk what its parent has let go of.
        _here.clear()
    return _here.get(pid) or _here.setdefault(pid, LookupCache())


def worth_keeping(part: Part, config: Config) -> bool:
    """Whether a part is of the size that a cache is for."""
    return part.inline is None and part.rows >= _ROW_GROUPS_MIN * config.row_group_rows

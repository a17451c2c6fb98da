"""Reads parts of a store that is far: all of a round trip at once, and ahead of the reader.

A small part is fetched whole. Of a larger one the footer is fetched, then what the scope needs: the row
groups of a look-up in one request, those of a scan in chunks, several at the same time. The next parts of the
run are begun before they are asked for, as long as the bytes under way are few. Owns what is fetched when;
must not know what rows are wanted for. `tidelake.data.part.scan` names the ranges, and checks all bytes.

INVARIANT: what the file gives are the bytes of the object, as if nothing were fetched ahead.
"""

import io
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import TypeAlias

from tidelake.config import MIB
from tidelake.data.part.container import File, Footer, read_footer
from tidelake.data.part.rowgroups import wanted_ranges
from tidelake.errors import CorruptionError
from tidelake.model.batch import Part
from tidelake.shard.engine.overlap import Background, Job
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.cache import identity
from tidelake.shard.runs.partcaches import part_caches
from tidelake.shard.runs.scope import Scope, Source
from tidelake.store.protocols import BlobStore

Range: TypeAlias = tuple[int, int]
"""Start, and the offset of the byte after the end."""

Find: TypeAlias = Callable[[File, Part], tuple[Footer, list[Range]]]
"""Reads the footer of a part, and says which ranges are to be read, ascending; no two overlap."""

Open: TypeAlias = Callable[[Part], AbstractContextManager[File]]
"""Opens a part of a run, to read it from its start to its end."""

# Up to this size a part is fetched whole: a request less, for bytes that take less time than a round trip.
_WHOLE_BYTES = MIB // 2
# Larger requests are no faster for each byte, and smaller ones cost more for each byte.
_CHUNK_BYTES_MAX, _CHUNK_BYTES_MIN = 4 * MIB, MIB
# This fraction of a merge's memory is under way, for all runs that are read at the same time.
_AHEAD_SHARE = 8
# A run has so many requests under way at the same time.
_REQUESTS = 8
_PARTS_AHEAD = 32
READERS_MAX = 32
# Where nothing waits for a network. Each thread keeps its own memory, so more cost more than they gain.
_NEAR_READERS = 2
# Runs of together at most this fraction of `fold_rows` are few rows.
_SMALL_SHARE = 2


def readers(blobs: BlobStore, near: int) -> int:
    """How many threads read runs: `near`, or more where reading is waiting for a network."""
    return READERS_MAX if blobs.is_far else near


def readers_of(spec: ShardSpec, blobs: BlobStore, runs: Sequence[Source]) -> int:
    """How many threads read some runs ahead. None do for few rows of a store that is near: they cost more."""
    is_small = sum(source.run.rows for source in runs) * _SMALL_SHARE <= spec.config.fold_rows
    return readers(blobs, 0 if is_small else _NEAR_READERS)


class FarPart:
    """A part as a `File`. For one reader at a time.

    Attributes:
        taken: called whenever the reader has come to the next chunk.
    """

    def __init__(
        self, spec: ShardSpec, blobs: BlobStore, part: Part, chunk_bytes: int = _CHUNK_BYTES_MAX
    ) -> None:
        self.part = part
        self.taken: Callable[[], None] = lambda: None
        self.footer: Footer | None = None
        self._blobs, self._chunk_bytes = blobs, chunk_bytes
        self._config, self._caches, self._id = spec.config, part_caches(), identity(spec, part)
        self._at = 0
        # Bytes that are here, by their start, ascending.
        self._held: list[tuple[int, bytes]] = []
        # What is to be fetched, then what is being fetched.
        self._chunks: deque[list[Range]] = deque()
        self._under_way: deque[tuple[list[Range], Job[list[bytes]]]] = deque()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move; the end is where the description says."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.part.size_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int, /) -> bytes:
        """Read at most so many bytes; fewer where a fetched range ends."""
        data = self._here(size)
        while not data and self._under_way and self._is_next():
            ranges, job = self._under_way.popleft()
            self._held = [(start, found) for (start, _), found in zip(ranges, job.result(), strict=True)]
            self.taken()
            data = self._here(size)
        if not data:
            [data] = self._fetched([(self._at, self._at + size)], keep=True)
            self._held = [(self._at, data)]
        self._at += len(data)
        return data

    def _here(self, size: int) -> bytes:
        i = bisect_right(self._held, self._at, key=lambda held: held[0]) - 1
        if i < 0:
            return b""
        start, data = self._held[i]
        from_ = self._at - start
        return data if not from_ and len(data) <= size else data[from_ : from_ + size]

    def _is_next(self) -> bool:
        ranges, _ = self._under_way[0]
        return any(start <= self._at < end for start, end in ranges)

    def load(self, find: Find, *, few: bool) -> None:
        """Read the footer and the first of what is wanted: two round trips; one if the part is small."""
        if self.part.size_bytes <= _WHOLE_BYTES:
            [data] = self._fetched([(0, self.part.size_bytes)], keep=True)
            self._held = [(0, data)]
            self.footer, _ = find(self, self.part)
            return
        self.footer, ranges = find(self, self.part)
        self._chunks.extend(_chunks(ranges, self._chunk_bytes, joined=not few))
        if self._chunks:
            first = self._chunks.popleft()
            fetched = self._fetched(first, keep=few)
            self._held = [(start, data) for (start, _), data in zip(first, fetched, strict=True)]

    def begin(self, background: Background, *, few: bool) -> None:
        """Begin to fetch the next chunk. REQUIRES: there is one."""
        chunk = self._chunks.popleft()
        self._under_way.append((chunk, background.submit(partial(self._fetched, chunk, keep=few))))

    @property
    def has_more(self) -> bool:
        """Whether there are chunks whose fetch is not begun."""
        return bool(self._chunks)

    @property
    def under_way_bytes(self) -> int:
        """Bytes that are being fetched, or are fetched and were not asked for yet."""
        return sum(end - start for ranges, _ in self._under_way for start, end in ranges)

    def forget(self) -> None:
        """Drop what this process keeps of it."""
        self._caches.forget(self._id)

    def _fetched(self, ranges: Sequence[Range], *, keep: bool) -> list[bytes]:
        """The bytes of ranges; one round trip at most."""
        caches, is_kept = self._caches, bool(self._config.lookup_cache_bytes)
        found = [caches.ranges.get(self._id, *each) if is_kept else None for each in ranges]
        missing = [each for each, data in zip(ranges, found, strict=True) if data is None]
        if not missing:
            return [data for data in found if data is not None]
        fetched = self._blobs.get_ranges(self.part.name, [(start, end - start) for start, end in missing])
        if is_kept and keep:
            for (start, end), data in zip(missing, fetched, strict=True):
                if len(data) == end - start:
                    caches.keep_range(self._id, start, data, self._config)
        came = iter(fetched)
        return [next(came) if data is None else data for data in found]


def _chunks(ranges: Iterable[Range], chunk_bytes: int, *, joined: bool) -> list[list[Range]]:
    """Ranges in chunks of about `chunk_bytes`; those that touch become one if `joined`."""
    chunks: list[list[Range]] = []
    size = chunk_bytes
    for start, end in ranges:
        if size >= chunk_bytes:
            chunks.append([])
            size = 0
        chunk = chunks[-1]
        if joined and chunk and chunk[-1][1] == start:
            chunk[-1] = chunk[-1][0], end
        else:
            chunk.append((start, end))
        size += end - start
    return chunks


class PartsAhead:
    """The parts of a run, begun before they are asked for. For one reader.

    Args:
        spec: the shard.
        blobs: the store, which is far.
        parts: those that will be asked for, in this order; some may be left out.
        find: which ranges are wanted of each.
        few: whether it is a look-up.
        runs: how many runs are read at the same time.
    """

    def __init__(
        self, spec: ShardSpec, blobs: BlobStore, parts: Iterable[Part], find: Find, *, few: bool, runs: int
    ) -> None:
        self._spec, self._blobs, self._find, self._few = spec, blobs, find, few
        self._left = deque(parts)
        self._begun: deque[tuple[FarPart, Job[None] | None]] = deque()
        self._current: FarPart | None = None
        share = spec.config.merge_memory_bytes // _AHEAD_SHARE // runs
        self._chunk_bytes = min(_CHUNK_BYTES_MAX, max(_CHUNK_BYTES_MIN, share // _REQUESTS))
        self._bytes_max = max(2 * self._chunk_bytes, share)
        self._background = Background(_PARTS_AHEAD + self._bytes_max // self._chunk_bytes + 2, lambda: None)

    @contextmanager
    def part(self, part: Part) -> Generator[FarPart]:
        """A part with its footer and the first of what is wanted of it."""
        self._current = None
        while self._begun and self._begun[0][0].part is not part:
            self._begun.popleft()
        if not self._begun:
            while self._left and self._left.popleft() is not part:
                pass
            # Without other parts there is nothing to begin meanwhile, and no need of a thread.
            self._begin(part, here=not self._left)
        found, job = self._begun.popleft()
        if self._few or not self._is_long(part):
            self._fill()
        try:
            if job is None:
                found.load(self._find, few=self._few)
            else:
                job.result()
            self._current, found.taken = found, self._fill
            self._fill()
            yield found
        except CorruptionError:
            # The store may give better bytes the next time.
            found.forget()
            raise

    def close(self) -> None:
        """Wait for what is under way."""
        self._background.close()

    def _begin(self, part: Part, *, here: bool = False) -> None:
        far = FarPart(self._spec, self._blobs, part, self._chunk_bytes)
        load = partial(far.load, self._find, few=self._few)
        self._begun.append((far, None if here else self._background.submit(load)))

    def _fill(self) -> None:
        """Begin what is next, as far as there is room for its bytes."""
        current = self._current
        room = self._bytes_max - self._begun_bytes()
        if current is not None:
            room -= current.under_way_bytes
            while current.has_more and room > 0:
                before = current.under_way_bytes
                current.begin(self._background, few=self._few)
                room -= current.under_way_bytes - before
            if current.has_more:
                return
        while self._left and len(self._begun) < _PARTS_AHEAD and room > 0:
            if not self._few and self._begun and self._is_long(self._begun[-1][0].part):
                # The chunks of that part come first, once it is read.
                return
            part = self._left.popleft()
            self._begin(part)
            room -= self._first_bytes(part)

    def _is_long(self, part: Part) -> bool:
        """Whether a scan of the part takes more than a chunk."""
        return part.size_bytes > self._chunk_bytes

    def _begun_bytes(self) -> int:
        return sum(self._first_bytes(far.part) for far, _ in self._begun)

    def _first_bytes(self, part: Part) -> int:
        """About what beginning a part fetches; a look-up needs a few row groups of it."""
        if not self._few:
            return min(part.size_bytes, self._chunk_bytes)
        groups = max(1, part.rows // self._spec.config.row_group_rows)
        return min(part.size_bytes, max(_WHOLE_BYTES, 2 * part.size_bytes // groups))


@contextmanager
def opener(
    spec: ShardSpec, blobs: BlobStore, parts: Iterable[Part], scope: Scope, runs: int = 1
) -> Generator[Open]:
    """A function that opens the parts of a run: from a store that is far, ahead of the reader."""
    if not blobs.is_far:
        yield lambda part: blobs.open(part.name)
        return

    filters = part_caches().filters

    def find(file: File, part: Part) -> tuple[Footer, list[Range]]:
        return wanted_ranges(
            file,
            part,
            spec.written_under(part.schema_id),
            key_from=scope.keys.start,
            key_below=scope.keys.stop,
            among=scope.among and (filters.among(spec, part, scope.among) or scope.among),
            row_groups=scope.row_groups(part),
            filtered=partial(filters.keep, identity(spec, part)) if runs > 1 else None,
        )

    with closing(PartsAhead(spec, blobs, parts, find, few=scope.among is not None, runs=runs)) as ahead:
        yield ahead.part


def footer_of(spec: ShardSpec, blobs: BlobStore, part: Part) -> Footer:
    """The checked footer of a part: one read, two if it is long."""
    if not blobs.is_far:
        with blobs.open(part.name) as file:
            return read_footer(file, part)
    far = FarPart(spec, blobs, part)
    try:
        return read_footer(far, part)
    except CorruptionError:
        far.forget()
        raise

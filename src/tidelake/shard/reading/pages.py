"""Answers page by page, in the order of keys, however large the whole answer is.

A page begins at an encoded key and ends after so many rows or bytes, or where a condition has let too few
rows through for too long. Owns where the next page begins; must not know who turns the pages.

INVARIANT: the pages of one query, one after the other, are the answer of that query, as long as `since` does
not pass its times: what is closed does not change.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from tidelake.data.kernel.encode import encode_key
from tidelake.errors import UsageError
from tidelake.model.query import Query
from tidelake.model.selection import ReadOptions
from tidelake.shard.engine.shard import Shard
from tidelake.shard.reading import query
from tidelake.shard.reading.versionread import VersionRead
from tidelake.shard.runs.scope import KeyRange, Source

_CURSOR_BYTES_MAX = 1 << 20
_CHUNK_ROWS_MIN = 1_024
_PAGE_BYTES = 16 << 20


@dataclass(frozen=True)
class PageStart:
    """Where a page begins: at a key, behind so many of its rows that earlier pages had."""

    key: bytes = b""
    passed: int = 0

    def __str__(self) -> str:
        return f"{self.key.hex()}.{self.passed}"

    @classmethod
    def parsed(cls, text: str) -> "PageStart":
        """The cursor of a text that `str` made."""
        key, _, passed = text.rpartition(".")
        try:
            if not passed.isascii() or not passed.isdigit() or len(text) > _CURSOR_BYTES_MAX:
                raise ValueError
            return cls(bytes.fromhex(key), int(passed))
        except ValueError:
            raise UsageError(
                "the page to begin at is none that was given before: begin at the first"
            ) from None


FIRST = PageStart()


@dataclass(frozen=True)
class Page:
    """Some rows of an answer.

    Attributes:
        next: where the next page begins; None: the answer is over.
        whole: whether it has as many rows as were asked for, or ends the answer, or reached the bound of its
            bytes. If not, the time was over while a condition let too few rows through.
        behind: where the page begins that follows the first rows of this one, at least one, by their number.
    """

    rows: pa.Table
    next: PageStart | None
    whole: bool
    behind: Callable[[int], PageStart]


def page(
    shard: Shard,
    asked: Query,
    options: ReadOptions,
    *,
    start: PageStart = FIRST,
    limit: int = 100,
    seconds: float = 1.0,
    size_bytes: int = _PAGE_BYTES,
) -> Page:
    """One page of the answer to a query. Errors as `tidelake.shard.reading.query.read`.

    Without a condition it costs a log scan and, for each run, the row groups that have the rows. With one, it
    reads the parts from the key on until it has enough rows, or the time is over and one more part was read.
    """
    clock = shard.env.clock
    deadline_s = clock.monotonic_s() + seconds
    read = query.read(shard, asked, options)
    if read.selection.where is None:
        read, ranges = _in_small_chunks(read, limit), [KeyRange(start.key)]
    else:
        ranges = _ranges(read.needed, start.key)
    found: list[pa.RecordBatch] = []
    skipped, rows, room_bytes = 0, 0, size_bytes

    def made(next_: PageStart | None, *, whole: bool) -> Page:
        return Page(pa.Table.from_batches(found, read.schema).slice(0, limit), next_, whole, behind)

    def behind(count: int) -> PageStart:
        return _behind(pa.Table.from_batches(found, read.schema).slice(0, count), start, read)

    for keys in ranges:
        for batch in _batches(read, keys):
            here = batch
            if skipped < start.passed:
                same = _leading(here, start.key, read)
                drop = min(same, start.passed - skipped)
                skipped = skipped + drop if drop == here.num_rows else start.passed
                here = here.slice(drop)
            here = here.slice(0, limit + 1 - rows)
            fitting = _fitting(here, room_bytes) if rows else max(1, _fitting(here, room_bytes))
            found.append(here.slice(0, fitting))
            rows, room_bytes = rows + found[-1].num_rows, room_bytes - found[-1].nbytes
            if rows > limit or fitting < here.num_rows:
                return made(behind(min(rows, limit)), whole=True)
        if keys.stop is not None and clock.monotonic_s() >= deadline_s:
            return made(PageStart(keys.stop), whole=False)
    return made(None, whole=True)


def _fitting(batch: pa.RecordBatch, size_bytes: int) -> int:
    """How many rows of a batch, from its first one on, have at most so many bytes in memory."""
    return bisect_right(range(batch.num_rows), size_bytes, key=lambda at: batch.slice(0, at + 1).nbytes)


def _in_small_chunks(read: VersionRead, rows: int) -> VersionRead:
    """The same read, which decodes little more than the first rows if no more are taken."""
    config = read.spec.config
    chunk_rows = min(config.merge_chunk_rows, max(_CHUNK_ROWS_MIN, rows + 1))
    return replace(read, spec=replace(read.spec, config=replace(config, merge_chunk_rows=chunk_rows)))


def _ranges(needed: list[Source], start: bytes) -> list[KeyRange]:
    """Ranges of keys from `start` on, each of which has about one part of each run."""
    edges = {part.key_lower for source in needed for part in source.run.parts if part.key_lower > start}
    cuts = [start, *sorted(edges)]
    return [KeyRange(low, high) for low, high in zip(cuts, [*cuts[1:], None], strict=True)]


def _batches(read: VersionRead, keys: KeyRange) -> Iterator[pa.RecordBatch]:
    stream = read.between(keys)
    try:
        yield from stream
    finally:
        stream.close()


def _leading(batch: pa.RecordBatch, key: bytes, read: VersionRead) -> int:
    """How many rows of a batch, from its first one on, have a key."""
    count = 0
    for one in encode_key(batch, read.spec.schema):
        if one.as_py() != key:
            break
        count += 1
    return count


def _behind(rows: pa.Table, start: PageStart, read: VersionRead) -> PageStart:
    """Where the page after these rows begins; there is at least one."""
    keys = encode_key(rows, read.spec.schema)
    last = keys[len(keys) - 1].as_py()
    same = 0
    for at in range(len(keys) - 1, -1, -1):
        if keys[at].as_py() != last:
            break
        same += 1
    passed = start.passed if last == start.key else 0
    return PageStart(last, same + passed)

"""Reading parts: whole, or the rows of a key range.

Owns which row groups are read and what is checked of them; must not know stores: a part is any file.
Invariant: rows that leave here are exactly the ones that were written, in order; damage of any kind is
a `CorruptionError` that names the part, and an error of the file itself passes through unchanged.

Parquet never reads the file. It sees only bytes whose checksum was compared before, so whatever it
complains about is no failure of a disk or a network.
"""

import io
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.data.container import File, Footer, read_footer, read_group_bytes
from tidelake.data.encode import encode_key
from tidelake.data.keyset import KeySet, searchable
from tidelake.data.prune import key_upper
from tidelake.data.types import stored_type, update_schema
from tidelake.errors import CorruptionError
from tidelake.model.batch import Part
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

# One read takes row groups up to so many bytes: fewer round trips, still a small buffer.
_WINDOW_BYTES = 2 * 1024 * 1024
_BATCH_BYTES = 32 * 1024 * 1024
# So much is decoded at once to find a few rows in it.
_SPARSE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class PartIndex:
    """The sparse index of a part: an item for each row group.

    Attributes:
        first_keys: of its first row, as `encode_key` makes it.
        rows: in it.
        size_bytes: of its stored bytes.
    """

    first_keys: tuple[bytes, ...]
    rows: tuple[int, ...]
    size_bytes: tuple[int, ...]


def read_index(file: File | str, part: Part) -> PartIndex:
    """Read a part's sparse index: one read, two where there are many row groups.

    Raises:
        CorruptionError: the footer is damaged or another part's.
        FormatTooNew: written by a newer version.
    """
    if isinstance(file, str):
        with open(file, "rb") as opened:
            return read_index(opened, part)
    footer = read_footer(file, part)
    groups = range(len(footer.ends))
    return PartIndex(
        footer.first_keys,
        tuple(footer.rows(i) for i in groups),
        tuple(footer.ends[i] - footer.start(i) for i in groups),
    )


def rows_among(file: File, part: Part, schema: Schema, among: KeySet) -> int:
    """How many rows the row groups have that may hold one of some keys. Errors and reads as `read_index`."""
    footer = read_footer(file, part)
    groups = range(len(footer.ends))
    return sum(footer.rows(i) for i in groups if _meets(among, footer, part, schema, i))


def read_part(
    file: File | str,
    part: Part,
    schema: Schema,
    domain: TimeDomain,
    *,
    batch_rows: int,
    batch_bytes: int = _BATCH_BYTES,
    key_from: bytes | None = None,
    key_below: bytes | None = None,
    among: KeySet | None = None,
    row_groups: Callable[[pq.FileMetaData], list[bool]] | None = None,
    columns: Collection[str] | None = None,
    watch: Callable[[int, int], None] = lambda _rows, _size_bytes: None,
) -> Iterator[pa.RecordBatch]:
    """Read the updates of a part: of all keys, or of a range or a set of them.

    Args:
        file: the object's bytes, with `seek` and `read`, or a path.
        part: its description; rewrite and truncation are not applied (see `select.view`).
        schema: the one that the part was written under.
        domain: of the times.
        batch_rows: most rows of a batch.
        batch_bytes: about how large a batch may be in memory, judged by those before it. The first ones
            are of one row group at most.
        key_from: only rows whose encoded key is not less than this.
        key_below: only rows whose encoded key is less than this.
        among: only rows with one of these keys; row groups that cannot hold one are not read.
        row_groups: says of each row group whether it is to be read; default: all are.
        columns: names of those to decode, with a range or a set of keys all key columns; default: all.
        watch: is told how many rows were decoded, and how large they are, whether they are wanted or not.

    Yields:
        Batches of `update_schema(schema, domain)`, or some of its columns, in the stored order, none empty.

    Raises:
        CorruptionError: the object is damaged, or is not the part described.
        FormatTooNew: written by a newer version.
    """
    if isinstance(file, str):
        with open(file, "rb") as opened:
            yield from read_part(
                opened,
                part,
                schema,
                domain,
                batch_rows=batch_rows,
                batch_bytes=batch_bytes,
                key_from=key_from,
                key_below=key_below,
                among=among,
                row_groups=row_groups,
                columns=columns,
                watch=watch,
            )
        return
    footer = read_footer(file, part)
    wanted = update_schema(schema, domain)
    _check_schema(footer, part, wanted)
    if columns is not None:
        wanted = pa.schema([field for field in wanted if field.name in columns])
    wanted_groups = _groups(footer, key_from, key_below, row_groups)
    if among is not None:
        wanted_groups = [g for g in wanted_groups if _meets(among, footer, part, schema, g)]
    # Before a batch was seen: the encoded size, which is too little where values repeat.
    rows, groups = min(batch_rows, _fitting(footer.metadata.row_group(0), batch_bytes)), 1
    while wanted_groups:
        last = _window(footer, wanted_groups[:groups], rows)
        first = wanted_groups[0]
        # Not in a variable: the bytes would be held until the next ones have been read.
        decoded = _decoded(
            read_group_bytes(file, part, footer, first, last),
            footer,
            part,
            range(first, last + 1),
            wanted,
            batch_rows=rows,
        )
        for batch in decoded:
            seen, size = batch.num_rows, max(1, batch.nbytes)
            watch(seen, size)
            rows = max(1, min(batch_rows, batch_bytes * seen // size))
            kept = [_within(batch, schema, key_from, key_below)]
            del batch
            if among is not None:
                kept.append(among.rows(kept[0], searchable(kept.pop(), schema)))
                # Where few rows are wanted more are decoded for a batch of them: each call takes its time.
                enough = rows * seen // max(1, kept[0].num_rows)
                rows = max(rows, min(enough, _SPARSE_BYTES * seen // size))
            if kept[0].num_rows:
                yield kept.pop()
        del decoded, kept
        del wanted_groups[: last + 1 - first]
        groups = len(wanted_groups)


def _groups(
    footer: Footer,
    key_from: bytes | None,
    key_below: bytes | None,
    row_groups: Callable[[pq.FileMetaData], list[bool]] | None,
) -> list[int]:
    """The row groups to read: those that may hold keys of the range, and that are wanted."""
    keys = footer.first_keys
    # Rows of the first key of a group may already stand at the end of the group before.
    first = 0 if key_from is None else max(0, bisect_left(keys, key_from) - 1)
    end = len(keys) if key_below is None else bisect_left(keys, key_below)
    if row_groups is None:
        return list(range(first, end))
    wanted = row_groups(footer.metadata)
    return [group for group in range(first, end) if wanted[group]]


def _meets(among: KeySet, footer: Footer, part: Part, schema: Schema, group: int) -> bool:
    """Whether a row group may hold one of some keys."""
    keys = footer.first_keys
    # Its last rows may have the first key of the next group.
    last = keys[group + 1] if group + 1 < len(keys) else part.key_upper
    if not among.meets(keys[group], last):
        return False
    upper = key_upper(footer.metadata.row_group(group), schema)
    return upper is None or among.meets(keys[group], upper if last is None else min(last, upper))


def _fitting(group: pq.RowGroupMetaData, size: int) -> int:
    return max(1, size * int(group.num_rows) // max(1, int(group.total_byte_size)))


def _window(footer: Footer, groups: list[int], batch_rows: int) -> int:
    """The last row group to read together with the first: one batch's worth, and none that is not wanted."""
    first = last = groups[0]
    rows = footer.rows(first)
    for group in groups[1:]:
        size = footer.ends[group] - footer.start(first)
        if group != last + 1 or rows >= batch_rows or size > _WINDOW_BYTES:
            break
        last = group
        rows += footer.rows(last)
    return last


class _Window(io.RawIOBase):
    """The checked bytes, at the offsets that they have in the object."""

    def __init__(self, data: bytes, origin: int, size: int) -> None:
        self._view, self._origin, self._size, self._at = memoryview(data), origin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    # Arrow takes any buffer, and so a view that copies nothing.
    def read(self, size: int = -1, /) -> memoryview:
        start = self._at - self._origin
        if start < 0 or size < 0:
            raise OSError(f"offset {self._at} lies outside the row groups that were read")
        self._at += size
        return self._view[start : start + size]


def _decoded(
    data: bytes, footer: Footer, part: Part, groups: range, wanted: pa.Schema, *, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    left = sum(footer.rows(i) for i in groups)
    which = f"row groups {groups[0]} to {groups[-1]}"
    try:
        window = _Window(data, footer.start(groups[0]), part.size_bytes)
        # The pages have checksums too, of bytes that were compared already.
        file = pq.ParquetFile(window, metadata=footer.metadata, pre_buffer=False)
        names = None if len(wanted) == len(footer.metadata.schema.to_arrow_schema()) else wanted.names
        batches = file.iter_batches(batch_rows, row_groups=list(groups), columns=names, use_threads=False)
        while (batch := next(batches, None)) is not None:
            left -= batch.num_rows
            # Not in a variable: it would be held until the next one is asked for.
            held = [_conformed(batch, wanted)]
            del batch
            if left <= 0:
                # Nor the bytes, by a reader that has nothing more to give.
                batches = iter(())
                del data, window, file
            yield held.pop()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise CorruptionError(part.name, f"{which} cannot be decoded: {error}") from error
    if left:
        raise CorruptionError(part.name, f"{which} do not hold as many rows as they say")


def _check_schema(footer: Footer, part: Part, wanted: pa.Schema) -> None:
    found = footer.metadata.schema.to_arrow_schema()
    if found.names != wanted.names:
        raise CorruptionError(part.name, f"it has columns {found.names} instead of {wanted.names}")
    for have, want in zip(found, wanted, strict=True):
        if not have.type.equals(stored_type(want.type)):
            raise CorruptionError(
                part.name, f"column {want.name!r} is stored as {have.type}, not {want.type}"
            )


def _conformed(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    # By name: of columns `a` and `a.b` Parquet gives the second to whoever asks for the first.
    found = zip((batch.column(field.name) for field in wanted), wanted, strict=True)
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type) for column, field in found
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _within(
    batch: pa.RecordBatch, schema: Schema, key_from: bytes | None, key_below: bytes | None
) -> pa.RecordBatch:
    """The rows of the range; the batch itself where its first and last row lie inside."""
    low, high = 0, batch.num_rows
    if key_from is not None:
        low = _first_at(batch, schema, key_from, low, high)
    if key_below is not None:
        high = _first_at(batch, schema, key_below, low, high)
    return batch.slice(low, high - low)


def _first_at(batch: pa.RecordBatch, schema: Schema, bound: bytes, low: int, high: int) -> int:
    """The first row whose encoded key is not less than the bound; encodes only the rows it looks at."""

    def key(row: int) -> bytes:
        encoded: bytes = encode_key(batch.slice(row, 1), schema)[0].as_py()
        return encoded

    if low == high or key(low) >= bound:
        return low
    if key(high - 1) < bound:
        return high
    return bisect_left(range(high), bound, low, high, key=key)

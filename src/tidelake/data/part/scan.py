"""Reading parts: whole, or the rows of a key range.

Owns which row groups are read and what is checked of them; must not know stores: a part is any file.
Invariant: rows that leave here are exactly the ones that were written, in order; damage of any kind is
a `CorruptionError` that names the part, and an error of the file itself passes through unchanged.

Parquet never reads the file. It sees only bytes whose checksum was compared before, so its errors are never
those of a disk or a network.
"""

import io
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.data.kernel.arrays import from_numpy
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.types import row_schema, stored_type, update_schema
from tidelake.data.keys.keyset import KeySet, are_numbers, searchable
from tidelake.data.part.container import File, Footer, check_groups, read_footer, read_range
from tidelake.data.part.rowgroups import Keep, is_sparse, undenied, wanted_groups
from tidelake.errors import CorruptionError
from tidelake.model.batch import Part
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

# One read takes row groups of up to so many bytes: fewer round trips, and still a small buffer.
_WINDOW_BYTES = 2 * 1024 * 1024
_BATCH_BYTES = 32 * 1024 * 1024
# So many keys are encoded at once to find the one at which a range begins.
_KEYS_AT_ONCE = 32
# At most so many bytes are decoded at once to find a few rows in them.
_SPARSE_BYTES = 8 * 1024 * 1024

S = TypeVar("S")
T = TypeVar("T")


class Mapped(Protocol):
    """As `map`, but several items may be worked on at once; it is closed at the end."""

    def __call__(self, work: Callable[[S], T], items: Iterable[S], /) -> Generator[T]:
        """The results, in the order of the items."""


def one_by_one(work: Callable[[S], T], items: Iterable[S], /) -> Generator[T]:
    """The `Mapped` that works on one item at a time, when its result is asked for."""
    yield from map(work, items)


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
    footer: Footer | None = None,
    filtered: Keep | None = None,
    probed: bool = False,
    mapped: Mapped = one_by_one,
) -> Iterator[pa.RecordBatch]:
    """Read the updates of a part: of all keys, or of a range or a set of them.

    Args:
        file: the object's bytes, with `seek` and `read`, or a path.
        part: its description; rewrite and truncation are not applied (see `select.view`).
        schema: the one that the part was written under.
        domain: of the times.
        batch_rows: the most rows of a batch.
        batch_bytes: the size of a batch in memory, about, judged by the batches before it. The first batches
            hold rows of one row group only.
        key_from: only rows whose encoded key is not less than this.
        key_below: only rows whose encoded key is less than this.
        among: only rows with one of these keys; row groups that cannot hold one are not read.
        row_groups: tells for each row group whether to read it; default: all.
        columns: names of the columns to decode, including all key columns if a range or a set of keys is
            given; default: all.
        watch: called with the number of rows that were decoded, wanted or not, and their size in bytes. Row
            groups of which only the keys were decoded, since they have none of the set, do not count, unless
            that is all of the part: to open it costs more than its rows. Their size is then that of pages.
        footer: of the part; default: it is read.
        filtered: where a set of few keys is given, ask the part's filter which of them it may have; called
            with the filter. None: do not.
        probed: whether a set of few keys is looked for in the key columns alone first, since mostly a row
            group has none of them.
        mapped: decodes what comes after the first row group, about one batch of rows for each item.

    Yields:
        Batches of `update_schema(schema, domain)`, or some of its columns, in the stored order, none empty.

    Raises:
        CorruptionError: the object is damaged, or is not the part described.
        FormatTooNew: written by a newer version.
    """
    with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
        if footer is None:
            footer = read_footer(opened, part)
        fields = _fields(footer, part, schema, domain, columns)
        groups = wanted_groups(footer, part, schema, key_from, key_below, among, row_groups)
        if among is not None and filtered is not None:
            groups, among = undenied(opened, groups, among, footer, part, schema, filtered)
        size = _BatchSize(batch_rows, batch_bytes, footer.metadata.row_group(0))
        windows = _windows(opened, part, footer, groups, size)
        keys = among if probed else None
        decode = partial(
            _begun, footer=footer, part=part, schema=schema, fields=fields, probed=keys, watch=watch
        )
        # The size of the first batch says how many rows to decode at once.
        with closing(mapped(decode, windows)) as others:
            for decoded in chain(map(decode, islice(windows, 1)), others):
                yield from _wanted(decoded, schema, key_from, key_below, among, size=size, watch=watch)
                del decoded


def places_in(
    file: File | str, part: Part, schema: Schema, domain: TimeDomain, among: KeySet
) -> npt.NDArray[np.int64]:
    """Where the rows of some keys stand in a part: their numbers, ascending, from 0.

    Decodes the key columns of the row groups that may have such rows. Arguments and errors as `read_part`.
    """
    names = {column.name for column in schema.key}
    found = [np.empty(0, np.int64)]
    with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
        footer = read_footer(opened, part)
        fields = _fields(footer, part, schema, domain, names)
        before = list(accumulate(map(footer.rows, range(len(footer.ends))), initial=0))
        for group in wanted_groups(footer, part, schema, None, None, among, None):
            data = read_range(opened, part, footer.start(group), footer.ends[group])
            check_groups(data, part, footer, range(group, group + 1))
            first = before[group]
            rows = footer.rows(group)
            for batch in _decoded(data, footer, part, [group], fields, batch_rows=rows, begin=group):
                places = among.places(searchable(batch, schema))
                here = np.arange(batch.num_rows) if places is None else places.to_numpy(zero_copy_only=False)
                found.append(here.astype(np.int64) + first)
                first += batch.num_rows
    return np.concatenate(found)


@dataclass(frozen=True)
class _Encoded:
    """Row groups that were read, unchecked."""

    groups: range
    data: bytes
    batch_rows: int


def _windows(
    file: File, part: Part, footer: Footer, groups: list[int], size: "_BatchSize"
) -> Iterator[_Encoded]:
    """The wanted row groups, about one batch at a time; the first one alone."""
    at_once = 1
    while groups:
        window = _window(footer, groups[:at_once], size.rows)
        del groups[: len(window)]
        at_once = len(groups)
        start, end = footer.start(window[0]), footer.ends[window[-1]]
        # In no variable, which would hold the bytes until the next ones have been read.
        yield _Encoded(window, read_range(file, part, start, end), size.rows)


def _begun(  # noqa: PLR0917 - as many as there are
    encoded: _Encoded,
    footer: Footer,
    part: Part,
    schema: Schema,
    fields: pa.Schema,
    probed: KeySet | None,
    watch: Callable[[int, int], None],
) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups. The first batch is decoded at once, others as they are asked for.

    Of row groups without any of the keys `probed`, if these are few, only the keys are decoded.
    """
    window, data = encoded.groups, encoded.data
    check_groups(data, part, footer, window)
    having: Sequence[int] = window
    if probed is not None and is_sparse(probed, footer, part, schema, window):
        having = _having(data, footer, part, window, schema, probed)
    if not having:
        if len(footer.ends) == 1:
            watch(part.rows, footer.metadata.row_group(0).total_byte_size)
        return iter(())
    rows = _decoded(data, footer, part, having, fields, batch_rows=encoded.batch_rows, begin=window[0])
    # The bytes are freed with the last batch, so nothing but `rows` may hold them.
    del data, encoded
    return chain(_drained(deque(islice(rows, 1))), rows)


def _drained(held: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the held batches, and hold none of them longer."""
    while held:
        yield held.popleft()


def _wanted(
    decoded: Iterator[pa.RecordBatch],
    schema: Schema,
    key_from: bytes | None,
    key_below: bytes | None,
    among: KeySet | None,
    *,
    size: "_BatchSize",
    watch: Callable[[int, int], None],
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of decoded batches, none empty; `size` learns how many rows to decode at once."""
    for batch in decoded:
        rows, nbytes = batch.num_rows, max(1, batch.nbytes)
        watch(rows, nbytes)
        # A list, so that nothing here holds the rows once they are handed over.
        kept = [_selected(batch, schema, key_from, key_below, among)]
        del batch
        size.learn(rows, nbytes, rows if among is None else kept[0].num_rows)
        if kept[0].num_rows:
            yield kept.pop()
        del kept


class _BatchSize:
    """How many rows to decode at once, judged by the batches before."""

    def __init__(self, rows_max: int, bytes_max: int, group: pq.RowGroupMetaData) -> None:
        self._rows_max, self._bytes_max = rows_max, bytes_max
        # Before the first batch only the encoded size is known, which is too low where values repeat.
        fitting = bytes_max * int(group.num_rows) // max(1, int(group.total_byte_size))
        self.rows = min(rows_max, max(1, fitting))

    def learn(self, rows: int, nbytes: int, kept: int) -> None:
        """Judge by a batch of so many rows and bytes, of which `kept` rows were wanted."""
        self.rows = max(1, min(self._rows_max, self._bytes_max * rows // nbytes))
        if kept < rows:
            # Each call costs time: where few rows are wanted, decode more for a batch of them.
            enough = self.rows * rows // max(1, kept)
            self.rows = max(self.rows, min(enough, _SPARSE_BYTES * rows // nbytes))


def _fields(
    footer: Footer, part: Part, schema: Schema, domain: TimeDomain, columns: Collection[str] | None
) -> pa.Schema:
    """The columns to decode, once the part is known to have all of its schema's."""
    every = update_schema(schema, domain)
    _check_schema(footer, part, every)
    return every if columns is None else pa.schema([field for field in every if field.name in columns])


def _having(  # noqa: PLR0917 - as many as there are
    data: bytes, footer: Footer, part: Part, window: range, schema: Schema, among: KeySet
) -> list[int]:
    """The row groups that have one of the keys. Decodes their key columns only."""
    names = {column.name for column in schema.key}
    fields = pa.schema([field for field in row_schema(schema) if field.name in names])

    def has(group: int) -> bool:
        rows = footer.rows(group)
        for batch in _decoded(data, footer, part, [group], fields, batch_rows=rows, begin=window[0]):
            places = among.places(searchable(batch, schema))
            if places is None or len(places):
                return True
        return False

    return [group for group in window if has(group)]


def _window(footer: Footer, groups: list[int], batch_rows: int) -> range:
    """The row groups to read at once: the first and the wanted ones right after it, at most one batch."""
    first = last = groups[0]
    rows = footer.rows(first)
    for group in groups[1:]:
        size = footer.ends[group] - footer.start(first)
        rows += footer.rows(group)
        if group != last + 1 or rows > batch_rows or size > _WINDOW_BYTES:
            break
        last = group
    return range(first, last + 1)


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

    # Arrow takes any buffer, so a view saves a copy.
    def read(self, size: int = -1, /) -> memoryview:
        start = self._at - self._origin
        if start < 0 or size < 0:
            raise OSError(f"offset {self._at} lies outside the row groups that were read")
        self._at += size
        return self._view[start : start + size]


def _decoded(
    data: bytes,
    footer: Footer,
    part: Part,
    groups: Sequence[int],
    wanted: pa.Schema,
    *,
    batch_rows: int,
    begin: int,
) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups; `data` begins with the row group `begin`."""
    left = sum(footer.rows(i) for i in groups)
    which = f"row groups {groups[0]} to {groups[-1]}"
    try:
        window = _Window(data, footer.start(begin), part.size_bytes)
        # Page checksums stay unchecked: the same bytes were compared already.
        file = pq.ParquetFile(window, metadata=footer.metadata, pre_buffer=False)
        names = None if len(wanted) == len(footer.metadata.schema.to_arrow_schema()) else wanted.names
        batches = file.iter_batches(batch_rows, row_groups=list(groups), columns=names, use_threads=False)
        while (batch := next(batches, None)) is not None:
            left -= batch.num_rows
            # A list, because a variable would hold the batch until the next one is asked for.
            held = [_conformed(batch, wanted)]
            del batch
            if left <= 0:
                # Free the bytes as well: the reader has nothing more to give.
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
    # By name: a request for column `a` makes Parquet return column `a.b` as well.
    found = zip((batch.column(field.name) for field in wanted), wanted, strict=True)
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type) for column, field in found
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _selected(
    batch: pa.RecordBatch,
    schema: Schema,
    key_from: bytes | None,
    key_below: bytes | None,
    among: KeySet | None,
) -> pa.RecordBatch:
    """The rows of the range that have one of the keys."""
    if among is not None and among.lies_in(key_from, key_below) and are_numbers(schema):
        # Searching for the ends of the range takes longer than searching for the keys themselves.
        key_from = key_below = None
    rows = _within(batch, schema, key_from, key_below)
    return rows if among is None else among.rows(rows, searchable(rows, schema))


def _within(
    batch: pa.RecordBatch, schema: Schema, key_from: bytes | None, key_below: bytes | None
) -> pa.RecordBatch:
    """The rows of the key range; a view of the batch."""
    low, high = 0, batch.num_rows
    if key_from is not None:
        low = _first_at(batch, schema, key_from, low, high)
    if key_below is not None:
        high = _first_at(batch, schema, key_below, low, high)
    return batch.slice(low, high - low)


def _first_at(batch: pa.RecordBatch, schema: Schema, bound: bytes, low: int, high: int) -> int:
    """The first row whose encoded key is not less than the bound; encodes only keys that it compares."""
    if low < high and encode_key(batch.slice(high - 1, 1), schema)[0].as_py() < bound:
        return high
    while low < high:
        # A call costs as much as many keys, so it gets the keys of several rows.
        step = -(-(high - low) // _KEYS_AT_ONCE)
        keys = encode_key(batch.take(from_numpy(np.arange(low, high, step))), schema).to_pylist()
        place = bisect_left(keys, bound)
        high = min(high, low + place * step)
        low = high if place == 0 else low + (place - 1) * step + 1
    return low

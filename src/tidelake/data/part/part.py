"""Writing parts: sorted updates to Parquet bytes, with a description of them.

Owns the encoding of columns and where row groups and parts are cut; must not know where the bytes go.
Invariant: a part's description is true of its bytes, and `read_part` returns the rows that were written, or
fails. `tidelake.data.part.scan` reads parts, `tidelake.data.part.container` owns their layout.
"""

import io
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelake.data.kernel.arrays import places
from tidelake.data.kernel.canonical import filled
from tidelake.data.kernel.consolidate import pieces
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.types import update_schema
from tidelake.data.keys.keyhash import Hashes
from tidelake.data.part.container import (
    MAGIC,
    checksum,
    filter_metadata,
    hasher,
    index_metadata,
    sealed,
    verify,
)
from tidelake.data.part.partfilter import PartFilterBuilder
from tidelake.data.part.rowgroups import PartIndex, read_index
from tidelake.data.part.scan import read_part
from tidelake.data.part.stats import StatsSettings, Summary, Tally, summary
from tidelake.errors import InternalError
from tidelake.model.batch import Part
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

__all__ = ["Ahead", "PartIndex", "PartWriter", "checksum", "read_index", "read_part", "verify", "write_parts"]

# A dictionary pays where values repeat: for strings with fewer distinct values in a row group than one in
# four rows, parts were measured to be 35 to 55 % smaller; with more, the gain fades and reading gets slower.
_DICTIONARY_SHARE = 4
# A row group of wide rows ends at this size: merges hold one of every run, and parts are cut between groups.
_GROUP_BYTES = 2 * 1024 * 1024
# Of fewer rows, as a fraction of a row group, a filter would cost more than it spares.
_FILTERED_SHARE = 8
# After so many row groups the size of the filter is planned, if it is known how many rows come at most.
_PLANNED_GROUPS = 32
# More batches than this in one row group are joined: Parquet and Python look at each batch.
_GROUP_BATCHES = 8
T = TypeVar("T")


class Ahead(Protocol):
    """Iterates over what it is given; may do so in another thread, which runs ahead."""

    def __call__(self, items: Iterator[T], /) -> Iterator[T]:
        """The same items."""


@dataclass(frozen=True)
class Encoded:
    """What `PartWriter.encode` hands to `PartWriter.digest`.

    Attributes:
        groups: the bytes of row groups that are complete.
    """

    groups: list[bytes]
    rows: int = 0
    keys: Hashes | None = None


class PartWriter:
    """Encodes one part in memory.

    `encode`, `digest` and `finish` may be called by different threads: each by one, and `finish` last.
    """

    def __init__(
        self,
        schema: Schema,
        domain: TimeDomain,
        schema_id: int,
        *,
        row_group_rows: int,
        stats: StatsSettings,
        group_bytes: int | None = None,
        filtered: bool = False,
        target_bytes: int | None = None,
        rows_max: int | None = None,
    ) -> None:
        """Start a part.

        Args:
            schema: of the rows.
            domain: of the times.
            schema_id: noted in the part's description.
            row_group_rows: rows of a row group; the last one, and one of wide rows, has fewer.
            stats: what of the statistics is kept.
            group_bytes: size in memory at which a row group of wide rows ends.
            filtered: whether to store a filter of the keys, if there are enough rows.
            target_bytes: about how many bytes the part gets, unless it ends before; None: not known.
            rows_max: how many rows come at most; None: not known. With both, no hashes of all keys are held.
        """
        self._schema, self._domain, self._schema_id = schema, domain, schema_id
        self._row_group_rows = row_group_rows
        self._group_bytes = group_bytes or _GROUP_BYTES
        self._stats = stats
        self._arrow = _with_ids(schema, domain)
        self._key_names = [column.name for column in schema.key]
        self._sink = io.BytesIO()
        self._writer: pq.ParquetWriter | None = None
        self._tally = Tally(schema.columns, domain)
        self._filter = PartFilterBuilder() if filtered else None
        self._target_bytes, self._rows_max = target_bytes, rows_max
        # Of what was digested.
        self._rows = self._bytes = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        # For each row group the key of its first row, and that of its last row.
        self._keys: list[pa.RecordBatch] = []
        self._ends: list[int] = []
        self._crcs: list[int] = []
        self._checksum = hasher(MAGIC)

    @property
    def size_bytes(self) -> int:
        """Bytes encoded so far, without rows that do not fill a row group yet."""
        return self._ends[-1] if self._ends else 0

    @property
    def rows(self) -> int:
        """Rows taken so far."""
        return self._tally.rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Take sorted, consolidated updates that follow those taken before."""
        if batch.num_rows:
            filtered = self._filter is not None
            self.digest(self.encode(summary(batch, self._schema, self._domain, filtered=filtered)))

    def digest(self, encoded: Encoded) -> None:
        """Take what `encode` returned into the checksums and the filter, in the same order."""
        for data in encoded.groups:
            self._checksum.update(data)
            self._crcs.append(zlib.crc32(data))
            self._bytes += len(data)
        self._rows += encoded.rows
        if self._filter is not None and encoded.keys is not None:
            self._filter.add(encoded.keys)
            self._plan(self._filter)

    def _plan(self, found: PartFilterBuilder) -> None:
        """Plan the filter by the keys and the bytes of the first row groups."""
        if self._rows_max is None or self._target_bytes is None or found.is_planned:
            return
        if self._bytes and self._rows >= _PLANNED_GROUPS * self._row_group_rows:
            rows = min(self._rows_max, self._rows * self._target_bytes // self._bytes)
            found.plan(-(-found.keys * rows // self._rows))

    def encode(self, piece: Summary) -> Encoded:
        """Take updates with their summary: the row groups full by that, and what `digest` needs."""
        self._tally.add(piece)
        batch = piece.rows
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        encoded: list[bytes] = []
        if self._pending_rows >= self._row_group_rows:
            encoded += self._flush(whole_groups=True)
        if self._pending_bytes >= self._group_bytes:
            encoded += self._flush(whole_groups=False)
        return Encoded(encoded, batch.num_rows, piece.keys)

    def finish(self, name: str) -> tuple[Part, bytes]:
        """Close the part; its description and its bytes."""
        self.digest(Encoded(self._flush(whole_groups=False)))
        if self._writer is None:
            raise InternalError("a part needs a row")
        # All keys in one call, because a call costs far more than a key.
        keys = encode_key(pa.concat_batches(self._keys), self._schema).to_pylist()
        self._writer.add_key_value_metadata(index_metadata(keys[::2], self._ends, self._crcs))
        if self._filter is not None and self.rows * _FILTERED_SHARE >= self._row_group_rows:
            # Parquet allows a gap before the footer, which is written when the writer is closed.
            found = self._filter.finish().to_bytes()
            self._sink.write(found)
            self._writer.add_key_value_metadata(filter_metadata(found))
        self._writer.close()
        data, of_footer = sealed(self._sink)
        self._checksum.update(memoryview(data)[self._ends[-1] :])
        checksum_ = self._checksum.hexdigest() + of_footer
        part = self._tally.part(
            name, data, self._schema_id, (keys[0], keys[-1]), self._stats, checksum_=checksum_
        )
        return part, data

    def _flush(self, *, whole_groups: bool) -> list[bytes]:
        if not self._pending:
            return []
        # Few batches that share a row group are not joined: that would copy all rows.
        pending = pa.Table.from_batches(self._pending)
        end = pending.num_rows
        if whole_groups:
            end -= end % self._row_group_rows
        cuts = range(0, end, self._row_group_rows)
        encoded = [self._encoded(pending.slice(n, min(self._row_group_rows, end - n))) for n in cuts]
        rest = pending.slice(end)
        # A copy, because a slice would keep the whole batch in memory.
        self._pending = [pa.concat_batches(rest.to_batches())] if rest.num_rows else []
        self._pending_rows, self._pending_bytes = rest.num_rows, rest.nbytes
        return encoded

    def _encoded(self, group: pa.Table) -> bytes:
        batches = group.to_batches()
        if self._writer is None:
            self._writer = self._opened(pa.concat_batches(batches))
        if len(batches) > _GROUP_BATCHES:
            batches = [pa.concat_batches(batches)]
        start = self._ends[-1] if self._ends else len(MAGIC)
        for_parquet = [
            pa.RecordBatch.from_arrays([filled(column) for column in batch.columns], schema=self._arrow)
            for batch in batches
        ]
        self._writer.write_table(pa.Table.from_batches(for_parquet), group.num_rows)
        end = self._sink.tell()
        for batch, row in ((batches[0], 0), (batches[-1], batches[-1].num_rows - 1)):
            self._keys.append(batch.select(self._key_names).take(places(row)))
        self._ends.append(end)
        # A copy, as a view would keep the buffer from growing.
        return bytes(self._sink.getbuffer()[start:end])

    def _opened(self, sample: pa.RecordBatch) -> pq.ParquetWriter:
        dictionaries, encodings = _encodings(sample)
        return pq.ParquetWriter(
            self._sink,
            self._arrow,
            compression="zstd",
            compression_level=1,
            use_dictionary=dictionaries,
            column_encoding=encodings,
            write_page_checksum=True,
            write_statistics=True,
            # List items are named as in Arrow, so that types are read back unchanged.
            use_compliant_nested_type=False,
            version="2.6",
        )


def write_parts(
    batches: Iterable[pa.RecordBatch],
    schema: Schema,
    domain: TimeDomain,
    schema_id: int,
    *,
    row_group_rows: int,
    stats: StatsSettings,
    target_bytes: int,
    name: Callable[[], str],
    group_bytes: int | None = None,
    filtered: bool = False,
    rows_max: int | None = None,
    ahead: Ahead = iter,
) -> Generator[tuple[Part, bytes]]:
    """Cut a sorted stream into parts.

    Args:
        batches: sorted, consolidated updates.
        schema: of the rows.
        domain: of the times.
        schema_id: noted in the parts' descriptions.
        row_group_rows: as for `PartWriter`.
        stats: as for `PartWriter`.
        target_bytes: a part ends with the row group that reaches this size.
        name: gives a fresh name for each part.
        group_bytes: as for `PartWriter`.
        filtered: as for `PartWriter`.
        rows_max: how many rows come at most; None: not known.
        ahead: batches are made and summarized in its first thread and encoded in its second one, if it has
            any; the caller's thread does the rest.

    Yields:
        Descriptions and bytes, in order; together one run. Nothing if there are no rows.
    """
    size = group_bytes or _GROUP_BYTES

    def summaries(batch: pa.RecordBatch) -> list[Summary]:
        cut = pieces(batch, row_group_rows, size)
        return [summary(piece, schema, domain, filtered=filtered) for piece in cut]

    def encoded() -> Iterator[tuple[PartWriter, Encoded, bool]]:
        writer: PartWriter | None = None
        left = rows_max
        for piece in chain.from_iterable(ahead(map(summaries, batches))):
            if writer is None:
                writer = PartWriter(
                    schema,
                    domain,
                    schema_id,
                    row_group_rows=row_group_rows,
                    stats=stats,
                    group_bytes=group_bytes,
                    filtered=filtered,
                    target_bytes=target_bytes,
                    rows_max=left,
                )
            found = writer.encode(piece)
            del piece
            full = writer.size_bytes >= target_bytes
            if full and left is not None:
                left -= writer.rows
            yield writer, found, full
            del found
            if full:
                writer = None
        if writer is not None:
            yield writer, Encoded([]), True

    for writer, found, full in ahead(encoded()):
        writer.digest(found)
        del found
        if full:
            yield writer.finish(name())


def _with_ids(schema: Schema, domain: TimeDomain) -> pa.Schema:
    ids = {column.name: column.id for column in schema.columns}
    fields = []
    for field in update_schema(schema, domain):
        known = field.name in ids
        fields.append(field.with_metadata({"PARQUET:field_id": str(ids[field.name])}) if known else field)
    return pa.schema(fields)


def _encodings(sample: pa.RecordBatch) -> tuple[list[str], dict[str, str]]:
    """The columns that get a dictionary, and encodings for the others, judged by the first row group."""
    dictionaries: list[str] = []
    encodings: dict[str, str] = {}
    for field, column in zip(sample.schema, sample.columns, strict=True):
        if pa.types.is_nested(field.type):
            dictionaries.extend(_leaves(field))
        elif _repeats(column):
            dictionaries.append(field.name)
        elif (encoding := _encoding(column)) is not None:
            encodings[field.name] = encoding
    # Field b of a struct `a` and a column `a.b` have the same path, and Parquet knows only paths.
    return dictionaries, {path: e for path, e in encodings.items() if path not in dictionaries}


def _repeats(column: pa.Array) -> bool:
    is_, kind = pa.types, column.type
    # Integers and booleans pack well without a dictionary.
    if is_.is_integer(kind) or is_.is_temporal(kind) or is_.is_boolean(kind) or is_.is_float16(kind):
        return False
    if is_.is_decimal(kind) and kind.bit_width != 128:
        return False
    return bool(pc.count_distinct(column, mode="all").as_py() * _DICTIONARY_SHARE < len(column))


def _encoding(column: pa.Array) -> str | None:
    is_, kind = pa.types, column.type
    if is_.is_integer(kind) or is_.is_temporal(kind):
        return "DELTA_BINARY_PACKED"
    # Lengths that differ are faster written and read beside their texts; equal ones would hinder compression.
    if (is_.is_string(kind) or is_.is_binary(kind)) and _is_even(column):
        return "DELTA_LENGTH_BYTE_ARRAY"
    return None


def _is_even(column: pa.Array) -> bool:
    """Whether all texts are of one length."""
    ends = pc.min_max(pc.binary_length(column))
    return bool(ends["min"].equals(ends["max"]))


def _leaves(field: pa.Field, path: str = "") -> list[str]:
    """Parquet's paths of the leaf columns of a field."""
    path = f"{path}.{field.name}" if path else field.name
    kind = field.type
    if pa.types.is_struct(kind):
        return [leaf for i in range(kind.num_fields) for leaf in _leaves(kind.field(i), path)]
    if pa.types.is_nested(kind):
        return _leaves(kind.value_field, f"{path}.list")
    return [path]

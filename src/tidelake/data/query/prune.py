"""Pruning: which parts and row groups can hold rows that satisfy a predicate.

Owns how statistics of the state and of Parquet are read as bounds on the present columns; must not know where
parts come from. Invariant: nothing that is left out holds such a row. `tidelake.data.query.filter` filters
the rest exactly, so a column without statistics only costs time.
"""

import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelake.data.kernel.types import arrow_type
from tidelake.data.query.literal import encoded_decimal, encoded_float, encoded_text, encoded_word
from tidelake.model.batch import ColumnStats, Part
from tidelake.model.predicate import NULL, PAST, Predicate, columns_of, may_match
from tidelake.model.schema import Column, DataType, Schema

_ALL_NULL = ColumnStats(None, None, 1)


@dataclass(frozen=True)
class Pruning:
    """A predicate, prepared for parts that were written under one schema.

    Attributes:
        known: by id, the columns whose statistics hold for the values as they are read, with their position.
        gone: ids of columns that are null in every row that is read.
    """

    predicate: Predicate
    known: dict[int, tuple[int, Column]]
    gone: frozenset[int]

    @classmethod
    def of(cls, predicate: Predicate, written: Schema, target: Schema, live: Collection[int]) -> "Pruning":
        """Prepare for rows that were written under one schema and are read under another."""
        stored = {column.id: (i, column) for i, column in enumerate(written.columns) if column.id in live}
        asked = columns_of(predicate)
        now = {column.id: column.type for column in target.columns}
        known = {
            id_: (i, column)
            for id_, (i, column) in stored.items()
            if id_ in asked and same_encoding(column.type, now[id_])
        }
        return cls(predicate, known, asked - stored.keys())

    def part(self, part: Part) -> bool:
        """Whether the part may hold such rows, by the statistics in the state."""
        return self._may_match({id_: part.stats[id_] for id_ in self.known if id_ in part.stats})

    def row_groups(self, metadata: pq.FileMetaData) -> list[bool]:
        """Whether each row group may hold such rows, by Parquet's statistics."""
        leaves = list(_first_leaves(metadata))
        return [
            self._may_match(
                {
                    id_: stats
                    for id_, (place, column) in self.known.items()
                    if (stats := _group_stats(metadata.row_group(i), leaves[place], column.type)) is not None
                }
            )
            for i in range(metadata.num_row_groups)
        ]

    def _may_match(self, stats: Mapping[int, ColumnStats]) -> bool:
        return may_match(self.predicate, {**dict.fromkeys(self.gone, _ALL_NULL), **stats})


def same_encoding(old: DataType, new: DataType) -> bool:
    """Whether a value has the same encoding in both types; the second is the first or a wider one."""
    # The encoding changes only from unsigned to signed integers.
    return old == new or _family(old) == _family(new)


def _family(type_: DataType) -> str:
    return re.sub(r"\d+$", "", type_.name)


def key_upper(group: pq.RowGroupMetaData, schema: Schema) -> bytes | None:
    """An upper bound on the keys of a row group, by Parquet's statistics; None if they give none."""
    # Key columns come first and are not nested, so the first key column is the first leaf.
    known = _group_stats(group, 0, schema.key[0].type)
    if known is None:
        return None
    if known.null_count:
        return NULL + PAST
    return None if known.upper is None else known.upper + PAST


def _first_leaves(metadata: pq.FileMetaData) -> Iterator[int]:
    """The position of each column's first leaf: Parquet counts the leaves of nested columns."""
    place = 0
    for field in metadata.schema.to_arrow_schema():
        yield place
        place += _leaves(field.type)


def _leaves(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))


def _group_stats(group: pq.RowGroupMetaData, leaf: int, type_: DataType) -> ColumnStats | None:
    """Parquet's statistics of a column in a row group; None if there are none to rely on."""
    encoded = _encoder(type_)
    found = group.column(leaf).statistics if encoded is not None else None
    if found is None or encoded is None or not found.has_null_count:
        return None
    if not found.has_min_max:
        # There are no bounds either if all values are NaN, or if one is too long.
        lower = None if found.null_count == group.num_rows else b""
        return ColumnStats(lower, None, found.null_count)
    lower = encoded(found.min_raw)
    # NaN is greater than any number, and Parquet leaves it out.
    upper = None if type_.name.startswith("float") else encoded(found.max_raw)
    return ColumnStats(lower, upper, found.null_count)


def _encoder(type_: DataType) -> Callable[[Any], bytes] | None:
    """Converts what Parquet stores of a value to its encoding; None for types without usable statistics."""
    name = type_.name
    if name in ("string", "binary", "fixed_size_binary"):
        return encoded_text
    if name in ("float32", "float64"):
        return encoded_float
    if name == "float16":
        return lambda raw: encoded_float(struct.unpack("<e", raw)[0])
    if name == "bool":
        return lambda raw: encoded_word(int(raw), signed=False)
    if name.startswith("decimal"):
        return lambda raw: encoded_decimal(int.from_bytes(raw, "big", signed=True))
    if name.startswith("uint"):
        # Parquet returns the bits as a signed number.
        bits = 32 if arrow_type(type_).bit_width <= 32 else 64
        return lambda raw: encoded_word(raw % (1 << bits), signed=False)
    if name == "date64":
        return lambda raw: encoded_word(raw * 86_400_000, signed=True)
    if type_.params[:1] == ("s",) and name != "duration":
        return lambda raw: encoded_word(raw // 1000, signed=True)
    if type_.nested:
        return None
    return lambda raw: encoded_word(raw, signed=True)

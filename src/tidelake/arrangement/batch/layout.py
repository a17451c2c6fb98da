"""The columns of an arrangement: which are key, value, time and diff, and in which form keys are compared.

Owns what follows from a schema and a unit of time; must not know batches. Keys of one numeric or temporal
column are compared as numbers, all others by their encoding. Invariant: both orders are that of
`tidelake.data.kernel.order`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.data.kernel.arrays import raw
from tidelake.data.kernel.consolidate import copied
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.types import arrow_type, row_schema, update_schema
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

Numbers = npt.NDArray[np.generic]
# The encoding of a key that is null in its only column.
NULL_KEY = b"\x02"
_SIGN = np.uint64(1 << 63)
_MARKED_BYTES = 9
_FEW = 256


def detached(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, copied if they are a view of much larger buffers, which they would keep alive."""
    # Measuring a few rows takes longer than copying them.
    if rows.num_rows > _FEW and rows.get_total_buffer_size() <= 2 * rows.nbytes:
        return rows
    return copied(rows)


@dataclass(frozen=True)
class Layout:
    """Rows of an arrangement: key columns, value columns, time column(s), `_diff`.

    Attributes:
        domain: the unit of the times; it also names the time columns.
    """

    schema: Schema
    domain: TimeDomain

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of updates."""
        return update_schema(self.schema, self.domain)

    @cached_property
    def contents(self) -> pa.Schema:
        """The Arrow schema of contents as of a time: key and value columns, and the multiplicity `_diff`."""
        return row_schema(self.schema).append(self.arrow.field(self.width))

    @cached_property
    def empty(self) -> pa.RecordBatch:
        """No updates."""
        return pa.RecordBatch.from_pylist([], self.arrow)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The key columns, in order."""
        return tuple(column.name for column in self.schema.key)

    @property
    def key_width(self) -> int:
        """The number of key columns."""
        return len(self.schema.key)

    @property
    def row_width(self) -> int:
        """The number of key and value columns."""
        return len(self.schema.columns)

    @property
    def width(self) -> int:
        """The number of columns that updates are sorted by: all but `_diff`."""
        return self.row_width + self.domain.arity

    @cached_property
    def number(self) -> np.dtype[np.generic] | None:
        """The numpy type in which keys are compared; None if they are compared by encoding."""
        if self.key_width != 1:
            return None
        is_, kind = pa.types, arrow_type(self.schema.key[0].type)
        if is_.is_float32(kind) or is_.is_float64(kind):
            return np.dtype(f"f{kind.bit_width // 8}")
        if is_.is_unsigned_integer(kind):
            return np.dtype(f"u{kind.bit_width // 8}")
        if is_.is_integer(kind) or is_.is_temporal(kind):
            return np.dtype(f"i{kind.bit_width // 8}")
        return None

    def numbers(self, rows: pa.RecordBatch) -> Numbers:
        """The keys of rows as numbers, without a copy. NaN is last; nulls are left out."""
        if self.number is None:
            raise TypeError("keys of this layout are not numbers")
        column = rows.column(0)
        return raw(column, self.number)[: len(column) - column.null_count]

    def encode(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """The encoded key of every row: a binary array without nulls, in the order of the keys."""
        return encode_key(rows, self.schema)

    def encoded_at(self, rows: pa.RecordBatch, row: int) -> bytes:
        """The encoded key of one row."""
        key: bytes = self.encode(rows.slice(row, 1))[0].as_py()
        return key

    def decoded(self, key: bytes) -> Numbers | None:
        """An encoded key as an array of one number; None if it is null. Only where `number` is not None."""
        return self.decoded_all([key]) if len(key) == _MARKED_BYTES else None

    def decoded_all(self, keys: list[bytes]) -> Numbers:
        """Encoded keys, none of them null, as numbers. Only where `number` is not None."""
        if self.number is None:
            raise TypeError("keys of this layout are not numbers")
        marked = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, _MARKED_BYTES)
        words = marked[:, 1:].copy().view(">u8")[:, 0].astype(np.uint64)
        if self.number.kind == "u":
            return words.astype(self.number)
        if self.number.kind == "i":
            return (words ^ _SIGN).view(np.int64).astype(self.number)
        return np.where(words & _SIGN, words ^ _SIGN, ~words).view(np.float64).astype(self.number)

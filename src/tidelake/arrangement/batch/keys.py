"""A set of keys to look up: checked, sorted and hashed once, for all batches.

Owns the forms in which batches search for keys; must not know batches. Invariant: keys are distinct and
ascending, and all forms (rows, numbers, encodings, hashes) have the same order.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.arrangement.batch.hashing import hash_rows
from tidelake.arrangement.batch.layout import Layout, Numbers
from tidelake.data.ingest.astable import as_table, is_table
from tidelake.data.ingest.keyvalues import key_table
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.order import Comparable, row_tuple
from tidelake.data.kernel.types import arrow_type, row_schema
from tidelake.data.keys.keyhash import Hashes
from tidelake.errors import InvalidUpdates
from tidelake.model.schema import Column, Schema
from tidelake.model.time import TimeDomain

T = TypeVar("T")
Places = npt.NDArray[np.int64]
# Raised by Arrow, or by the value itself, when a Python value does not fit a type.
_NO_VALUE = (pa.ArrowException, TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


class Keys:
    """Distinct keys, ascending; may be empty.

    Attributes:
        nulls: number of null keys, 0 or 1; counted only where keys are numbers.
    """

    def __init__(self, layout: Layout, rows: pa.RecordBatch) -> None:
        """Keys from rows that are already distinct, ascending and canonical."""
        self.layout = layout
        self.rows = rows
        self.nulls: int = rows.column(0).null_count if layout.number is not None else 0
        self._made: dict[str, Any] = {}

    @classmethod
    def of(cls, data: object, layout: Layout) -> "Keys":
        """Keys in any form; unsorted, with duplicates."""
        table = data if is_table(data) else key_table(data, layout.schema)
        return cls.sorted_from(_checked(table, layout), layout)

    @classmethod
    def of_values(cls, values: list[tuple[object, ...]], layout: Layout) -> "Keys":
        """Keys from tuples of Python values, one for each key column."""
        return cls.sorted_from(row_batch(values, layout.schema.key), layout)

    @classmethod
    def sorted_from(cls, rows: pa.RecordBatch, layout: Layout) -> "Keys":
        """Keys from canonical rows; unsorted, with duplicates. The key columns come first."""
        rows = rows.select(range(layout.key_width))
        if rows.num_rows < 2:
            return cls(layout, rows)
        if layout.number is not None and not rows.column(0).null_count:
            numbers = layout.numbers(rows)
            if np.greater(numbers[1:], numbers[:-1]).all():
                return cls(layout, rows)
            numbers = np.unique(numbers)
            column = pa.Array.from_buffers(
                rows.schema.field(0).type, len(numbers), [None, pa.py_buffer(numbers)]
            )
            return cls(layout, pa.RecordBatch.from_arrays([column], schema=rows.schema))
        encoded = layout.encode(rows)
        order = pc.sort_indices(encoded)
        ordered = encoded.take(order)
        first = np.ones(len(order), np.bool_)
        first[1:] = pc.not_equal(ordered.slice(1), ordered.slice(0, len(order) - 1)).to_numpy(
            zero_copy_only=False
        )
        keys = cls(layout, rows.take(order.filter(pa.array(first))))
        keys.__dict__["encoded"] = ordered.filter(pa.array(first))
        return keys

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @cached_property
    def numbers(self) -> Numbers:
        """The keys that are not null, as numbers; only where `layout.number` is not None."""
        return self.layout.numbers(self.rows)

    @cached_property
    def one_hash(self) -> int:
        """The hash of the only key."""
        return int(self.hashes[0])

    @cached_property
    def one(self) -> np.generic | None:
        """The only key as a number that equals itself; None if there are several, or it is another."""
        if self.layout.number is None or len(self) != 1 or self.nulls:
            return None
        number = self.numbers[0]
        return None if self.layout.number.kind == "f" and np.isnan(number) else number

    @cached_property
    def encoded(self) -> pa.Array:
        """The encodings, a binary array."""
        return self.layout.encode(self.rows)

    @property
    def first(self) -> bytes:
        """The encoding of the least; there is one."""
        return self.encodings[0]

    @property
    def last(self) -> bytes:
        """The encoding of the greatest; there is one."""
        return self.encodings[-1]

    @cached_property
    def hashes(self) -> Hashes:
        """The hashes that filters use."""
        return hash_rows(self.rows, self.layout)

    @cached_property
    def encodings(self) -> list[bytes]:
        """The encodings as Python bytes, for bisection."""
        found: list[bytes] = self.encoded.to_pylist()
        return found

    def between(self, lower: bytes, upper: bytes) -> tuple[int, int]:
        """The range [first, end) of keys between two encoded keys, both inclusive."""
        first = bisect_left(self.encodings, lower)
        return first, bisect_right(self.encodings, upper, first)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value derived from the keys, computed by the first call with that name."""
        if name not in self._made:
            self._made[name] = make()
        found: T = self._made[name]
        return found

    def tuple(self, i: int) -> Comparable:
        """One key as a tuple for `tidelake.data.kernel.order.search`."""
        return row_tuple(self.rows, i, self.layout.key_width)

    def slice(self, first: int, count: int) -> "Keys":
        """At most `count` keys from `first` on."""
        return self.take(np.arange(first, min(first + count, len(self))))

    def take(self, places: Places) -> "Keys":
        """The keys at ascending positions; the same object if these are all keys."""
        if len(places) == len(self):
            return self
        picked = pa.array(places)
        taken = Keys(self.layout, self.rows.take(picked))
        for form in ("hashes", "numbers"):
            if form in self.__dict__ and not self.nulls:
                taken.__dict__[form] = self.__dict__[form][places]
        if "encoded" in self.__dict__:
            taken.__dict__["encoded"] = self.encoded.take(picked)
        return taken


def row_batch(rows: list[tuple[object, ...]], columns: tuple[Column, ...]) -> pa.RecordBatch:
    """Canonical rows from tuples of Python values."""
    names = [column.name for column in columns]
    arrays = []
    for i, column in enumerate(columns):
        values = [row[i] for row in rows]
        try:
            arrays.append(pa.array(values, arrow_type(column.type)))
        except _NO_VALUE as error:
            raise InvalidUpdates(
                f"{', '.join(map(repr, values))} does not fit column {column.name!r} of type "
                f"{arrow_type(column.type)}: {error}"
            ) from error
    return _normal(pa.RecordBatch.from_arrays(arrays, names), Schema(columns))


def prefix_bytes(prefix: tuple[object, ...], layout: Layout) -> bytes:
    """The encoding of values for the first key columns: a prefix of all encoded keys that have them."""
    schema = Schema(layout.schema.key[: len(prefix)])
    encoded: bytes = encode_key(row_batch([prefix], schema.key), schema)[0].as_py()
    return encoded


def _checked(data: object, layout: Layout) -> pa.RecordBatch:
    if layout.number is not None and layout.number.kind in "iu":
        # Only the type has to be checked: `normalize` would take ten times as long as the look-up of one key.
        found = _plain(data, layout)
        if found is not None:
            return found
    return _normal(data, Schema(layout.schema.key))


def _normal(data: object, schema: Schema) -> pa.RecordBatch:
    """Rows with just the columns of a schema, checked and canonical."""
    table = normalize(data, schema, TimeDomain(), time=0)
    batches = table.select([column.name for column in schema.columns]).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], row_schema(schema))


def _plain(data: object, layout: Layout) -> pa.RecordBatch | None:
    """The data itself if it is one column of exactly the key's type without null, not empty; else None."""
    table = data if isinstance(data, pa.RecordBatch) else as_table(data)
    wanted = layout.arrow.field(0)
    if table.num_columns != 1 or table.schema.field(0).name != wanted.name or not table.num_rows:
        return None
    column = table.column(0)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if not column.type.equals(wanted.type) or column.null_count or isinstance(column, pa.ChunkedArray):
        return None
    return pa.RecordBatch.from_arrays([column], schema=pa.schema([wanted]))

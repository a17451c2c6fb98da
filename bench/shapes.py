"""The rows that the kernels are measured on: three shapes, each with many equal and cancelling updates.

- `a`: int64 key, 32-character string: the text follows from the key.
- `b`: key (string(16), int32), values (double, string, nullable timestamp): a wide key.
- `c`: zipf nullable int64 key, double with NaN, -0.0 and null, multi-byte string, decimal: short rows that
  repeat much, and hot keys.

All have int64 times and are canonical updates, as `normalize` makes them. `keys` is how many rows there
are to draw from, over all runs: a range for each run would fold away most rows, and flatter the merge.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import schema_from_arrow, update_schema
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain

DOMAIN = TimeDomain("counter")
TIMES = 1_000
Rng = np.random.Generator

_A = schema_from_arrow(
    pa.schema([pa.field("key", pa.int64(), nullable=False), ("text", pa.string())]), ["key"]
)
_B = schema_from_arrow(
    pa.schema(
        [
            pa.field("name", pa.string(), nullable=False),
            pa.field("number", pa.int32(), nullable=False),
            ("amount", pa.float64()),
            ("note", pa.string()),
            ("seen", pa.timestamp("us")),
        ]
    ),
    ["name", "number"],
)
_C = schema_from_arrow(
    pa.schema(
        [("key", pa.int64()), ("x", pa.float64()), ("word", pa.string()), ("price", pa.decimal128(12, 2))]
    ),
    ["key"],
)
_WORDS = ["", "é", "naïve", "größer", "日本語", "Ωμέγα", "zażółć gęślą jaźń", "😀😀", "plain", "last"]


@dataclass(frozen=True)
class Shape:
    """A schema and what fills it."""

    name: str
    schema: Schema
    columns: Callable[[Rng, int, int], list[pa.Array]]
    # Of the rows that shape `a` is measured with.
    share: float

    def table(self, rows: int, seed: int, keys: int) -> pa.Table:
        """Unsorted canonical updates of rows drawn from `keys` many."""
        rng = np.random.default_rng(seed)
        columns = self.columns(rng, rows, keys)
        times = rng.integers(0, TIMES, rows)
        diffs = np.where(rng.random(rows) < 0.15, -1, 1)
        arrays = [*columns, pa.array(times), pa.array(diffs)]
        return normalize(
            pa.Table.from_arrays(arrays, schema=update_schema(self.schema, DOMAIN)), self.schema, DOMAIN
        )


def _hex(numbers: np.ndarray, width: int) -> pa.Array:
    """Text of `width` hexadecimal digits, at most 32, that follows from the number."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    odd = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64).view(np.int64)
    words = (numbers.astype(np.int64)[:, None] * odd).view(np.uint8)
    text = digits[np.stack([words >> 4, words & 15], axis=2).reshape(len(numbers), 32)][:, :width]
    offsets = pa.py_buffer((np.arange(len(numbers) + 1) * width).astype(np.int32))
    return pa.StringArray.from_buffers(len(numbers), offsets, pa.py_buffer(np.ascontiguousarray(text)))


def _columns_a(rng: Rng, rows: int, keys: int) -> list[pa.Array]:
    key = rng.integers(0, keys, rows)
    return [pa.array(key), _hex(key, 32)]


def _columns_b(rng: Rng, rows: int, keys: int) -> list[pa.Array]:
    row = rng.integers(0, keys, rows)
    seen = pa.array(row * 1_000_003, mask=row % 7 == 0).cast(pa.timestamp("us"))
    number = pa.array((row % 4).astype(np.int32))
    return [_hex(row // 4, 16), number, pa.array(row * 0.25), _hex(row + 1, 12), seen]


def _columns_c(rng: Rng, rows: int, keys: int) -> list[pa.Array]:
    key = rng.zipf(1.2, rows) % keys
    x = np.array([0.0, -0.0, np.nan, 1.5, -2.5, 1e300, 7.0, 0.1])[rng.integers(0, 8, rows)]
    words = pa.array([w + str(i) for i in range(10) for w in _WORDS])
    price = pa.array(rng.integers(-500, 500, rows)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))
    return [
        pa.array(key, mask=rng.random(rows) < 0.02),
        pa.array(x, mask=rng.random(rows) < 0.1),
        words.take(pa.array(rng.integers(0, len(words), rows))),
        price.cast(pa.decimal128(12, 2)),
    ]


A, B, C = (
    Shape("a", _A, _columns_a, 1.0),
    Shape("b", _B, _columns_b, 0.5),
    Shape("c", _C, _columns_c, 0.5),
)
SHAPES = (A, B, C)

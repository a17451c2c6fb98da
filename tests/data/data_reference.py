"""A slow, plain reference for rows: Python values, one at a time, and strategies that make them."""

from collections import defaultdict
from decimal import Decimal
from functools import cmp_to_key

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.model import time as times
from tidelake.model.query import AsOf, Changes, Fold, Query, Updates
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain
from tidelake.testing.strategies import frontiers as frontiers_of
from tidelake.testing.strategies import times as times_of

NAN = float("nan")
TEXTS = ["", "\0", "\0\0", "a", "a\0", "a\0b", "ab", "b", "é", "z", "\uffff", "😀", "a" * 20]
FLOATS = [float("-inf"), -1.5, -0.0, 0.0, 1.0, 1e300, float("inf"), NAN]
HALVES = [float("-inf"), -1.5, -0.0, 0.0, 1.0, 3.0, float("inf"), NAN]
DECIMALS = [Decimal(x) for x in ("-9.99", "-0.01", "0.00", "0.01", "5.00", "9.99")]
HUGE = [Decimal(x) for x in (-(10**60), -(10**38), -(2**127), -1, 0, 1, 2**127, 2**128, 10**60)]

# Arrow type -> values in ascending order need not be; the reference sorts them.
PRIMITIVES: list[tuple[pa.DataType, list]] = [
    (pa.bool_(), [False, True]),
    (pa.int8(), [-128, -1, 0, 1, 127]),
    (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1]),
    (pa.int64(), [-(2**63), -256, -1, 0, 1, 255, 256, 2**63 - 1]),
    (pa.uint16(), [0, 1, 255, 256, 65535]),
    (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    (pa.float16(), HALVES),
    (pa.float32(), HALVES),
    (pa.float64(), FLOATS),
    (pa.string(), TEXTS),
    (pa.binary(), [t.encode() for t in TEXTS] + [b"\xff", b"\xff\xff"]),
    (pa.binary(2), [b"\0\0", b"\0\1", b"\1\0", b"ab", b"\xff\xff"]),
    (pa.decimal32(5, 2), DECIMALS),
    (pa.decimal64(12, 2), DECIMALS),
    (pa.decimal128(20, 2), DECIMALS),
    (pa.decimal256(70, 0), HUGE),
    (pa.date32(), [-1, 0, 1, 20_000]),
    (pa.date64(), [-86_400_000, 0, 86_400_000]),
    (pa.time32("s"), [0, 1, 86_399]),
    (pa.time64("ns"), [0, 1, 86_399_999_999_999]),
    (pa.timestamp("s"), [-1, 0, 1, 2**40]),
    (pa.timestamp("ns", "Europe/Berlin"), [-(2**62), -1, 0, 1, 2**62]),
    (pa.duration("us"), [-(2**62), -1, 0, 1, 2**62]),
]
NESTED: list[tuple[pa.DataType, list]] = [
    (pa.list_(pa.int64()), [[], [1], [1, 2], [2], [None], [1, None], [-1]]),
    (pa.list_(pa.float64()), [[], [0.0], [-0.0], [NAN], [1.0, NAN], [float("inf")]]),
    (pa.list_(pa.string(), 2), [["", ""], ["", "a"], ["a", ""], ["a", None], [None, None]]),
    (pa.list_(pa.list_(pa.string())), [[], [[]], [[""]], [["a"], []], [["a", "b"]], [None], [[None]]]),
    (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": a, "b": b} for a in (-1, 1, None) for b in ("", "x", None)],
    ),
    (
        pa.list_(pa.struct([("x", pa.float32())])),
        [[], [{"x": 0.0}], [{"x": -0.0}], [{"x": None}], [None], [{"x": NAN}], [{"x": 1.0}, {"x": 0.0}]],
    ),
]
ALL = PRIMITIVES + NESTED


def array(kind: pa.DataType, values: list) -> pa.Array:
    """The values as Arrow; temporal ones are given as their numbers."""
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)
    if pa.types.is_float16(kind):
        return pa.array([None if v is None else np.float16(v) for v in values], kind)
    return pa.array(values, kind)


def compare(a: object, b: object) -> int:
    """The total order, spelled out."""
    if a is None or b is None:
        return (a is None) - (b is None)
    if isinstance(a, dict) and isinstance(b, dict):
        return compare(list(a.values()), list(b.values()))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        for x, y in zip(a, b, strict=False):
            if (c := compare(x, y)) != 0:
                return c
        return (len(a) > len(b)) - (len(a) < len(b))
    if isinstance(a, float) and isinstance(b, float) and (a != a or b != b):
        return (a != a) - (b != b)
    if isinstance(a, str) and isinstance(b, str):
        a, b = a.encode(), b.encode()
    return (a > b) - (a < b)  # type: ignore[operator]


ORDER = cmp_to_key(compare)


def numbers(column: pa.Array) -> list:
    """A column as Python values that `compare` understands."""
    if pa.types.is_temporal(column.type):
        return column.view(pa.int64() if column.type.bit_width == 64 else pa.int32()).to_pylist()
    return [float(v) if isinstance(v, np.floating) else v for v in column.to_pylist()]


def rows_of(table: pa.Table | pa.RecordBatch) -> list[tuple]:
    """Rows as tuples of Python values."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    columns = [
        pa.concat_arrays(c.chunks) if c.num_chunks else pa.array([], c.type) for c in table.itercolumns()
    ]
    return list(zip(*(numbers(c) for c in columns), strict=True))


def exact(row: object) -> str:
    """A form in which equal means the same bits: tells -0.0 from 0.0, and NaN is itself."""
    return repr(row)


def consolidated(rows: list[tuple]) -> list[tuple]:
    """Equal rows summed, zeros dropped, sorted."""
    sums: dict[str, int] = defaultdict(int)
    kept: dict[str, tuple] = {}
    for row in rows:
        sums[exact(row[:-1])] += row[-1]
        kept[exact(row[:-1])] = row[:-1]
    left = [(*kept[k], total) for k, total in sums.items() if total]
    return sorted(left, key=lambda row: ORDER(row[:-1]))


def selected(rows: list[tuple], query: Query, domain: TimeDomain) -> list[tuple]:
    """A query on plain rows, by the model's scalar algebra."""
    n = domain.arity
    result = []
    for row in rows:
        head, parts, diff = row[: -n - 1], row[-n - 1 : -1], row[-1]
        t = tuple(parts) if domain.unit == "tuple" else parts[0]
        new = picked(t, query)
        if new is not None:
            result.append((*head, *times.parts(new), diff))
    return result


def picked(t: times.Time, query: Query) -> times.Time | None:
    match query:
        case AsOf(time):
            return time if times.less_equal(t, time) else None
        case Changes(after, through):
            keep = times.less_equal(t, through) and not times.less_equal(t, after)
            return through if keep else None
        case Updates(lower, upper):
            return t if lower.less_equal(t) and not upper.less_equal(t) else None
        case Fold(since):
            return since.advance(t)


@st.composite
def updates(
    draw: st.DrawFn,
    *,
    kinds: list[tuple[pa.DataType, list]] | None = None,
    columns: int = 2,
    max_rows: int = 40,
    domain: TimeDomain | None = None,
    diffs: st.SearchStrategy[int] | None = None,
) -> tuple[Schema, TimeDomain, pa.Table]:
    """A schema, a time domain and a canonical table of random updates with many equal rows."""
    chosen = [draw(st.sampled_from(PRIMITIVES))]
    chosen += [draw(st.sampled_from(kinds or ALL)) for _ in range(draw(st.integers(0, columns)))]
    domain = domain or draw(st.sampled_from([TimeDomain("counter"), TimeDomain("tuple", 2)]))
    few = [
        (kind, draw(st.lists(st.sampled_from([*values, None]), min_size=1, max_size=4)))
        for kind, values in chosen
    ]
    n = draw(st.integers(0, max_rows))
    names = [f"c{i}" for i in range(len(few))]
    arrays = [array(kind, draw(st.lists(st.sampled_from(v), min_size=n, max_size=n))) for kind, v in few]
    schema = schema_from_arrow(
        pa.schema([pa.field(name, kind) for name, (kind, _) in zip(names, few, strict=True)]), names[:1]
    )
    small = st.lists(st.integers(0, 4), min_size=n, max_size=n)
    for name in domain.columns:
        names.append(name)
        arrays.append(pa.array(draw(small), pa.int64()))
    names.append("_diff")
    diffs = st.sampled_from([-2, -1, 1, 1, 2]) if diffs is None else diffs
    arrays.append(pa.array(draw(st.lists(diffs, min_size=n, max_size=n)), pa.int64()))
    return schema, domain, normalize(pa.Table.from_arrays(arrays, names), schema, domain)


@st.composite
def queries(draw: st.DrawFn, domain: TimeDomain) -> Query:
    """Any of the four."""
    t, frontiers = times_of(domain, 4), frontiers_of(domain, 4)
    kind = draw(st.sampled_from(["as_of", "changes", "updates", "fold"]))
    if kind == "as_of":
        return AsOf(draw(t))
    if kind == "changes":
        return Changes(draw(t), draw(t))
    if kind == "updates":
        return Updates(draw(frontiers), draw(frontiers))
    return Fold(draw(frontiers))

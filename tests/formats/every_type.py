"""Rows of every type."""

from decimal import Decimal

import numpy as np
import pyarrow as pa

from tidelake.data.kernel.canonical import canonical
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.encode import encode
from tidelake.data.kernel.types import data_type, schema_from_arrow, update_schema
from tidelake.model.time import TimeDomain

NUMBERS = (-1, 0, 1, 5, None, 100)
PLAIN = {
    **{f"i{n}": getattr(pa, f"int{n}")() for n in (8, 16, 32, 64)},
    "b": pa.bool_(),
    "d32": pa.date32(),
    "d64": pa.date64(),
    **{f"t32{unit}": pa.time32(unit) for unit in ("s", "ms")},
    **{f"t64{unit}": pa.time64(unit) for unit in ("us", "ns")},
    **{f"ts{unit}": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")},
    "tsz": pa.timestamp("us", "Europe/Berlin"),
    **{f"dur{unit}": pa.duration(unit) for unit in ("s", "ms", "us", "ns")},
    "dec32": pa.decimal32(7, 2),
    "dec64": pa.decimal64(15, 3),
    "dec128": pa.decimal128(38, 5),
    "dec256": pa.decimal256(70, 5),
    **{f"u{n}": getattr(pa, f"uint{n}")() for n in (8, 16, 32, 64)},
    **{f"f{n}": getattr(pa, f"float{n}")() for n in (16, 32, 64)},
    "s": pa.string(),
    "bin": pa.binary(),
    "fix": pa.binary(2),
}


def column(kind):
    """Six values of a flat type; ends of its range, a null."""
    is_ = pa.types
    if is_.is_floating(kind):
        wanted = [float("nan"), 0.0, -1.5, float("inf"), None, float("-inf")]
        if kind == pa.float16():
            wanted = [None if x is None else np.float16(x) for x in wanted]
        return pa.array(wanted, kind)
    if is_.is_string(kind):
        return pa.array(["", "a", "a\0", "ä𝄞", None, "z" * 100], kind)
    if is_.is_fixed_size_binary(kind):
        return pa.array([b"\0\0", b"\0\xff", b"ab", b"\xff\xff", None, b"\1\0"], kind)
    if is_.is_binary(kind):
        return pa.array([b"", b"\0", b"\0\xff", b"\xff", None, b"x" * 80], kind)
    if is_.is_boolean(kind):
        return pa.array([True, False, True, False, None, True], kind)
    if is_.is_decimal(kind):
        top = Decimal("9" * (kind.precision - kind.scale) + "." + "9" * kind.scale)
        return pa.array([top, top.copy_negate(), Decimal(0), Decimal("1.5"), None, Decimal("-1.5")], kind)
    if is_.is_date64(kind):
        return pa.array([0 if x is None else x * 86_400_000 for x in NUMBERS], pa.int64()).cast(kind)
    if is_.is_unsigned_integer(kind):
        return pa.array([0, 1, 2, 2**kind.bit_width - 1, None, 7], kind)
    if is_.is_signed_integer(kind):
        top = 2 ** (kind.bit_width - 1)
        return pa.array([-top, top - 1, 0, -1, None, 7], kind)
    numbers = [None if x is None else abs(x) for x in NUMBERS] if is_.is_time(kind) else NUMBERS
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(numbers, width).cast(kind)


NESTED = {
    "l": (pa.list_(pa.string()), [[], ["a", None], None, ["b"], ["a"], [None]]),
    "fl": (pa.list_(pa.float32(), 2), [[1.0, None], None, [0.0, 2.0], [1.0, 1.0], None, [2.0, 0.5]]),
    "st": (
        pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.decimal128(5, 1))])))]),
        [
            {"x": 1, "y": [{"z": Decimal("1.5")}]},
            None,
            {"x": None, "y": []},
            {"x": 2, "y": None},
            {"x": 1, "y": [None, {"z": None}]},
            {"x": 0, "y": [{"z": Decimal(0)}]},
        ],
    ),
}


def _types():
    made = {name: column(kind) for name, kind in PLAIN.items()}
    made |= {name: pa.array(values, kind) for name, (kind, values) in NESTED.items()}
    return {"id": pa.array([1, 2, 3, 4, 5, 5], pa.int64()), **made}, ("id",)


def _keys():
    wanted = ("i64", "u16", "f64", "dec256", "s", "bin", "tsns", "b")
    return {name: column(PLAIN[name]) for name in wanted} | {"v": pa.array([*"abcdef"])}, wanted


CASES = {"types": (_types, "counter"), "keys": (_keys, "us"), "pairs": (_keys, "tuple(2)")}


def rows_of(case):
    """The rows, their schema and their domain."""
    make, unit = CASES[case]
    columns, keys = make()
    domain = TimeDomain.parse(unit)
    fields = pa.schema([(name, values.type) for name, values in columns.items()])
    schema = schema_from_arrow(fields, keys, None)
    for i, name in enumerate(domain.columns):
        columns[name] = pa.array([(n * (i + 1)) % 5 for n in range(6)], pa.int64())
    columns["_diff"] = pa.array([1, -1, 2, 2**63 - 1, -(2**63), 1], pa.int64())
    wanted = update_schema(schema, domain)
    table = pa.table([columns[name] for name in wanted.names], schema=wanted)
    canonical_ = [canonical(table.column(name).combine_chunks()) for name in wanted.names]
    [batch] = consolidate(pa.table(canonical_, schema=wanted), schema, domain).combine_chunks().to_batches()
    return batch, schema, domain


def encoded(batch):
    """Every value of a batch in its order-preserving encoding, by column."""
    return {
        name: [value.hex() for value in encode(values, data_type(values.type, name)).to_pylist()]
        for name, values in zip(batch.schema.names, batch.columns, strict=True)
    }

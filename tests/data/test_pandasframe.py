"""A frame of pandas holds what the rows hold, and Arrow gets it back."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidelake.data.answer.rows import Rows
from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.model.time import TimeDomain

pandas = pytest.importorskip("pandas")

WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
NAN, LEAST = float("nan"), -(2**63)


def _of(numbers, kind, via=None):
    return pa.array(numbers, via or pa.int64()).cast(kind)


def _columns():
    for kind in WHOLE:
        most = 2 ** (kind.bit_width - (1 if str(kind).startswith("i") else 0)) - 1
        yield pa.array([most, 0, None], kind)
        yield pa.array([[most, None], [], None], pa.list_(kind))
        yield pa.array([{"a": most}, {"a": None}, None], pa.struct([("a", kind)]))
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        yield pa.array([np.float16(1.5), np.float16(NAN), None], pa.float16()).cast(kind)
        yield pa.array([np.float16(1.5), np.float16(2), None], pa.float16()).cast(kind)
    for unit in ("s", "ms", "us", "ns"):
        for zone in (None, "UTC", "Europe/Berlin"):
            if unit != "s":  # whose least times cannot be stored
                yield _of([LEAST, 1, None], pa.timestamp(unit, zone))
            yield _of([1, 2, None], pa.timestamp(unit, zone))
        yield _of([LEAST, 1, None], pa.duration(unit))
        yield pa.array([[1, None], [], None], pa.list_(pa.duration(unit)))
    for day in (1, 5_000_000):
        yield _of([day, 2, None], pa.date32(), pa.int32())
        yield _of([day * 86_400_000, 0, None], pa.date64())
    yield from (_of([1, 2, None], pa.time32(unit), pa.int32()) for unit in ("s", "ms"))
    yield from (_of([1, 2, None], pa.time64(unit)) for unit in ("us", "ns"))
    for kind in (pa.decimal32(5, 2), pa.decimal64(15, 2), pa.decimal128(30, 2), pa.decimal256(60, 2)):
        yield pa.array([Decimal("1.10"), Decimal("999.99"), None], kind)
    yield pa.array([b"ab", b"cd", None], pa.binary(2))
    yield pa.array([b"ab", b"", None])
    yield pa.array(["ab", "", None])
    yield pa.array([True, False, None])
    yield pa.nulls(3, pa.int32())
    yield pa.nulls(3, pa.decimal128(5, 2))
    yield pa.array([[1, None], [2, 3], None], pa.list_(pa.int32(), 2))


COLUMNS = list(_columns())


@pytest.mark.promise(
    "A frame of pandas holds what the rows hold, of every type, and can be written back unchanged",
    rule="`data/answer/pandasframe.py`",
)
@pytest.mark.parametrize("column", COLUMNS, ids=[f"{i}-{c.type}" for i, c in enumerate(COLUMNS)])
def test_every_value_comes_back_from_a_frame(column):
    table = pa.table({"x": column, "key": [1, 2, 3]})
    schema = schema_from_arrow(table.schema, ["key"])
    for rows in (table, table.slice(0, 2), table.slice(0, 0), pa.concat_tables([table, table])):
        frame = Rows(rows.schema, rows.to_batches()).to_pandas()
        back = normalize(as_table(frame), schema, TimeDomain("counter"), time=0).select(["x", "key"])
        assert _bits(back.column("x")) == _bits(rows.column("x"))


def _bits(column):
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [repr(value) for value in column]


def test_integers_beside_nulls_stay_integers():
    rows = pa.table({"x": [2**53 + 1, None], "y": [1, 2], "b": [True, None]})
    frame = Rows(rows.schema, rows.to_batches()).to_pandas()
    assert [str(kind) for kind in frame.dtypes] == ["Int64", "int64", "boolean"]
    assert frame["x"][0] == 2**53 + 1
    chosen = Rows(rows.schema, rows.to_batches()).to_pandas(types_mapper=pandas.ArrowDtype)
    assert str(chosen.dtypes["y"]) == "int64[pyarrow]"

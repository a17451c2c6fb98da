import math
import struct

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidelake.data.ingest import updates
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import arrow_type, data_type, row_schema, schema_from_arrow, update_schema
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.schema import DataType
from tidelake.model.time import TimeDomain

INT, PAIR = TimeDomain("counter"), TimeDomain("tuple", 2)
SCHEMA = schema_from_arrow(pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())]), ["k"])
GOOD = {"k": [1, 2], "v": ["a", None], "_time": [3, 4], "_diff": [1, -1]}


def test_all_sources_give_the_same_table():
    table = pa.table({**GOOD, "v": pa.array(["a", None], pa.string())})
    expected = table.cast(update_schema(SCHEMA, INT))

    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return table.__arrow_c_stream__(requested_schema)

    class Array:
        def __arrow_c_array__(self, requested_schema=None):
            return table.to_batches()[0].__arrow_c_array__(requested_schema)

    frame = pd.DataFrame({"k": [1, 2], "v": ["a", None], "_time": [3, 4], "_diff": [1, -1]}, index=[7, 9])
    sources = [table, table.to_batches()[0], table.to_reader(), Stream(), Array(), frame]
    for source in [*sources, table.select(["_diff", "v", "_time", "k"])]:
        found = normalize(source, SCHEMA, INT)
        assert found.equals(expected)
        assert found.schema.equals(expected.schema)


def test_forms_of_the_same_type_are_taken():
    table = pa.table(
        {
            "k": pa.array([1, 2], pa.uint8()),
            "v": pa.array(["a", None]).dictionary_encode(),
            "_time": pa.array([3, 4], pa.int16()),
        }
    )
    for kind in (pa.large_string(), pa.string_view()):
        column = pa.array(["a", None], kind)
        assert normalize(table.set_column(1, "v", column), SCHEMA, INT).column("v").to_pylist() == ["a", None]
    found = normalize(table, SCHEMA, INT)
    assert found.column("v").to_pylist() == ["a", None]
    assert found.column("_diff").to_pylist() == [1, 1]
    assert normalize(table.set_column(1, "v", pa.nulls(2)), SCHEMA, INT).column("v").null_count == 2


def test_a_time_for_all_rows_takes_the_place_of_the_column():
    rows = pa.table({"k": [1, 2], "v": ["a", "b"]})
    assert normalize(rows, SCHEMA, INT, time=9).column("_time").to_pylist() == [9, 9]
    assert normalize(rows, SCHEMA, PAIR, time=(1, 2)).column("_time_1").to_pylist() == [2, 2]
    with pytest.raises(InvalidUpdates, match=r"'_time' gives times, but the call gives one"):
        normalize(pa.table(GOOD), SCHEMA, INT, time=9)


@pytest.mark.promise(
    "A column `_time` of timestamps without a zone is refused, as `time=` refuses them",
    rule="`data/ingest/updates.py`",
)
def test_timestamps_are_times_in_their_unit():
    rows = pa.table({"k": [1], "v": ["a"], "_time": pa.array([5_000_000], pa.timestamp("ns", "UTC"))})
    assert normalize(rows, SCHEMA, TimeDomain("ms")).column("_time").to_pylist() == [5]
    with pytest.raises(InvalidUpdates, match="'_time'"):
        normalize(rows, SCHEMA, INT)
    rows = rows.set_column(2, "_time", pa.array([5_000_001], pa.timestamp("ns", "UTC")))
    with pytest.raises(InvalidUpdates, match=r"'_time'.*not every value fits"):
        normalize(rows, SCHEMA, TimeDomain("ms"))
    for unit in ("s", "ms", "us", "ns"):
        rows = rows.set_column(2, "_time", pa.array([5], pa.timestamp(unit)))
        for clock in ("ms", "us"):
            with pytest.raises(InvalidUpdates, match=r"'_time'.*does not say its zone.*tz_localize"):
                normalize(rows, SCHEMA, TimeDomain(clock))


@pytest.mark.promise("Bad updates are refused, with column and row", rule="`data/ingest/updates.py`")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": [1, None]}, r"column 'k' must not be null, but is in row 1"),
        ({"_time": [0, -1]}, r"column '_time' is -1 in row 1"),
        ({"_time": [None, 1]}, r"column '_time' must not be null, but is in row 0"),
        ({"_diff": [1, 0]}, r"column '_diff' is 0 in row 1"),
        ({"_diff": [1, None]}, r"column '_diff' must not be null, but is in row 1"),
        ({"extra": [1, 2]}, r"unknown column 'extra': the collection has 'k', 'v', '_time', '_diff'"),
        ({"k": ["1", "2"]}, r"column 'k' has type string, expected int64"),
        ({"k": [1.0, 2.0]}, r"column 'k' has type double, expected int64"),
        ({"k": pa.array([1, 2**64 - 1], pa.uint64())}, r"column 'k' has type uint64.*not every value fits"),
        ({"v": [b"a", b"b"]}, r"column 'v' has type binary, expected string"),
        ({"v": [1, 2]}, r"column 'v' has type int64, expected string"),
        ({"_time": [1.0, 2.0]}, r"column '_time' has type double"),
    ],
)
def test_bad_updates_are_refused_by_name_and_row(change, message):
    with pytest.raises(InvalidUpdates, match=message):
        normalize(pa.table({**GOOD, **change}), SCHEMA, INT)


def test_a_row_number_counts_over_chunks():
    table = pa.concat_tables([pa.table(GOOD), pa.table({**GOOD, "_diff": [1, 0]})])
    with pytest.raises(InvalidUpdates, match="row 3"):
        normalize(table, SCHEMA, INT)


def test_missing_columns_and_strange_sources_are_named():
    with pytest.raises(InvalidUpdates, match=r"missing column 'v', '_time': the table has 'k'"):
        normalize(pa.table({"k": [1]}), SCHEMA, INT)
    with pytest.raises(InvalidUpdates, match="a list"):
        normalize([1, 2], SCHEMA, INT)
    doubled = pa.Table.from_arrays([pa.array([1])] * 2, ["k", "k"])
    with pytest.raises(InvalidUpdates, match="'k' appears twice"):
        normalize(doubled, SCHEMA, INT)
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff"))
    with pytest.raises(InvalidUpdates, match="'v' holds invalid values"):
        normalize(pa.table({"k": [1], "v": bad, "_time": [0]}), SCHEMA, INT)


@pytest.mark.promise("Ingesting rows never changes a value", rule="`data/ingest/updates.py`")
def test_casts_never_change_a_value():
    def taken(kind, column):
        schema = schema_from_arrow(pa.schema([("k", kind)]), ["k"])
        return normalize(pa.table({"k": column}), schema, INT, time=0).column("k").combine_chunks()

    seconds = pa.array([1], pa.timestamp("s"))
    assert taken(pa.timestamp("us"), seconds).view(pa.int64()).to_pylist() == [1_000_000]
    assert taken(pa.float64(), pa.array([0.5], pa.float32())).to_pylist() == [0.5]
    assert taken(pa.int8(), pa.array([5])).to_pylist() == [5]
    assert taken(pa.binary(), pa.array([b"ab"], pa.binary(2))).to_pylist() == [b"ab"]
    for kind, column in [
        (pa.timestamp("s"), pa.array([1], pa.timestamp("us"))),
        (pa.timestamp("us"), pa.array([1], pa.timestamp("us", "UTC"))),
        (pa.timestamp("us", "UTC"), pa.array([1], pa.timestamp("us"))),
        (pa.timestamp("ns"), pa.array([2**62], pa.timestamp("s"))),
        (pa.float32(), pa.array([0.5])),
        (pa.int8(), pa.array([200])),
        (pa.float64(), pa.array([2**53 + 1])),
        (pa.bool_(), pa.array([1])),
        (pa.string(), pa.array([1], pa.date32())),
    ]:
        with pytest.raises(InvalidUpdates, match="'k' has type"):
            taken(kind, column)


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.list_(pa.timestamp("s", "UTC"))])
def test_seconds_that_no_part_can_store_are_refused(kind):
    schema = schema_from_arrow(pa.schema([("k", pa.int64()), ("v", kind)]), ["k"])
    for value, fits in [(2**53, True), (2**61, False)]:
        column = pa.array([value]).view(pa.timestamp("s", "UTC" if pa.types.is_list(kind) else None))
        if pa.types.is_list(kind):
            column = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), column)
        table = pa.table({"k": [1], "v": column})
        if fits:
            assert normalize(table, schema, INT, time=0).num_rows == 1
        else:
            with pytest.raises(InvalidUpdates, match="'v' holds invalid values"):
                normalize(table, schema, INT, time=0)


def bits(values, code):
    return [struct.pack(code, x) for x in values]


@pytest.mark.promise(
    "`-0.0` and NaNs are canonical at any depth, by every way of writing",
    rule="`data/kernel/canonical.py`, `Uploader.upload`",
    also=["shard/test_outcomes.py::test_what_workers_upload_is_made_canonical"],
)
def test_minus_zero_and_nan_become_canonical_at_any_depth():
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))[0]
    plain = pa.array([-0.0, odd, None, 1.0])
    nested = pa.array(
        [[{"f": -0.0}, {"f": odd}], None, [None], []], pa.list_(pa.struct([("f", pa.float64())]))
    )
    pair = pa.array([[-0.0, None], None, [odd, 1.0], [0.0, 0.0]], pa.list_(pa.float64(), 2))
    small = pa.array([np.float32("-0"), np.float32("nan"), None, np.float32(2)], pa.float32())
    table = pa.table({"k": [0, 1, 2, 3], "a": plain, "b": nested, "c": pair, "d": small})
    schema = schema_from_arrow(table.schema, ["k"])
    for piece, start in ((table, 0), (table.slice(1), 1)):
        found = normalize(piece, schema, INT, time=0)
        for name in "abcd":
            flat = found.column(name).combine_chunks()
            while pa.types.is_nested(flat.type):
                flat = flat.flatten()[0] if pa.types.is_struct(flat.type) else flat.flatten()
            values = [v for v in flat.to_pylist() if v is not None]
            code = "<f" if name == "d" else "<d"
            nan = math.nan
            assert set(bits(values, code)) <= set(bits([0.0, nan, 1.0, 2.0], code))
        assert str(found.to_pylist()) == str(
            [
                {**row, "_time": 0, "_diff": 1}
                for row in eval(str(table.to_pylist()).replace("-0.0", "0.0"), {"nan": float("nan")})[start:]
            ]
        )


def test_nulls_inside_a_value_are_held_against_the_schema():
    kind = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.list_(pa.int64()))])
    loose = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.int64()))])
    schema = schema_from_arrow(pa.schema([("k", pa.int64()), ("v", kind)]), ["k"])
    good = pa.table({"k": [1, 2], "v": pa.array([{"a": 1, "b": [None]}, None], kind)})
    assert normalize(good, schema, INT, time=0).column("v").to_pylist() == [{"a": 1, "b": [None]}, None]
    bad = pa.table({"k": [1, 2, 3], "v": pa.array([{"a": 1}, None, {"a": None}], loose)})
    with pytest.raises(InvalidUpdates, match="'v'"):
        normalize(bad, schema, INT, time=0)


def test_types_describe_arrow_types_and_back():
    kinds = [
        *(pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
        *(pa.string(), pa.binary(), pa.binary(4), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us")),
        *(pa.decimal32(5, 2), pa.decimal64(10, 1), pa.decimal128(38, 4), pa.decimal256(70, 0)),
        *(pa.timestamp("s"), pa.timestamp("ns", "Asia/Tokyo"), pa.duration("us")),
        pa.list_(pa.struct([("a", pa.list_(pa.int8(), 3))])),
    ]
    for kind in kinds:
        assert arrow_type(data_type(kind, "x")) == kind
    assert data_type(pa.dictionary(pa.int8(), pa.large_string()), "x") == DataType("string")
    assert data_type(pa.large_list(pa.string_view()), "x").name == "list"
    for kind in (pa.map_(pa.string(), pa.int64()), pa.null(), pa.list_view(pa.int8()), pa.struct([])):
        with pytest.raises(UsageError, match=r"column 'x.*' has type .*: \w+"):
            data_type(kind, "x")
    with pytest.raises(UsageError, match=r"column 'x\.a\[\]' has type map"):
        data_type(pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.int8())))]), "x")


def test_a_schema_is_read_off_a_table():
    arrow = pa.schema(
        [pa.field("a", pa.int64(), nullable=False), ("b", pa.large_string()), ("c", pa.bool_())]
    )
    schema = schema_from_arrow(arrow, ["b"])
    assert str(schema) == "key(b: string) value(a: int64 not null, c: bool)"
    assert [c.id for c in schema.columns] == [1, 0, 2]  # in the order of the table
    assert row_schema(schema).names == ["b", "a", "c"]
    assert update_schema(schema, PAIR).names == ["b", "a", "c", "_time_0", "_time_1", "_diff"]
    assert schema_from_arrow(arrow, ["a"], []).value == ()
    for key, value, message in [
        (["x"], None, "no column named 'x': there are 'a', 'b', 'c'"),
        (["a"], ["y"], "no column named 'y'"),
        ("a", None, "lists of column names"),
        ([], None, "at least one key column"),
        (["a"], ["a"], "appears twice"),
    ]:
        with pytest.raises(UsageError, match=message):
            schema_from_arrow(arrow, key, value)


def test_a_fixed_size_list_in_a_struct_must_be_nullable() -> None:
    for nullable in (True, False):
        pair = pa.field("pair", pa.list_(pa.int64(), 2), nullable=nullable)
        schema = pa.schema([pa.field("k", pa.int64()), pa.field("s", pa.struct([pair]))])
        if nullable:
            schema_from_arrow(schema, ["k"])
        else:
            with pytest.raises(UsageError, match=r"field 's.pair' .* make it nullable"):
                schema_from_arrow(schema, ["k"])


def test_times_and_diffs_of_many_rows_are_not_held_for_each_row():
    count = updates._CONSTANT_ROWS * 3 + 5
    schema = schema_from_arrow(pa.schema([("k", pa.int64())]), ["k"])
    keys = pa.chunked_array([np.zeros(n, np.int64) for n in (count - 7, 0, 7)])
    found = normalize(pa.table({"k": keys}), schema, TimeDomain("counter"), time=9)
    assert found.num_rows == count and [len(c) for c in found["_time"].chunks][-1] == 7
    assert pc.min_max(found["_time"]).as_py() == {"min": 9, "max": 9}
    assert pc.min_max(found["_diff"]).as_py() == {"min": 1, "max": 1}
    assert found.get_total_buffer_size() < 8 * (count + 3 * updates._CONSTANT_ROWS)
    # Chunks end where those of the other columns do.
    assert len(found.to_batches()) == 5

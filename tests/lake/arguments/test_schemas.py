"""Schemas as users hand them in."""

import datetime
import sys

import pyarrow as pa
import pytest

import tidelake
from tidelake.errors import UsageError
from tidelake.lake.arguments.schemas import schema_of

PLAIN = pa.schema([("a", pa.int64()), ("b", pa.string())])
ROWS = {"a": [1], "b": ["x"]}


@pytest.mark.parametrize(
    "given",
    [
        PLAIN,
        pa.table(ROWS),
        pa.record_batch(ROWS),
        pa.table(ROWS).to_reader(),
        {"a": int, "b": str},
        {"a": "int64", "b": pa.string()},
    ],
    ids=lambda one: type(one).__name__,
)
def test_columns_of_arrow_and_of_a_dict(given):
    assert schema_of(given) == PLAIN


def test_types_by_name():
    found = schema_of(
        {
            "d": "decimal(10, 2)",
            "t": "timestamp[us, Europe/Berlin]",
            "n": "int32 NOT NULL",
            "when": datetime.datetime,
            "l": pa.list_(pa.int8()),
        }
    )
    assert found.types == [
        *(pa.decimal128(10, 2), pa.timestamp("us", "Europe/Berlin"), pa.int32(), pa.timestamp("us", "UTC")),
        pa.list_(pa.int8()),
    ]
    assert [field.nullable for field in found] == [True, True, False, True, True]


def test_columns_of_frames():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    assert schema_of(pandas.DataFrame(ROWS)).equals(PLAIN)
    assert schema_of(pandas.DataFrame({"a": pandas.Categorical(["x"])})) == pa.schema([("a", pa.string())])
    frame = polars.DataFrame({**ROWS, "c": [["x"]], "d": [{"e": "x"}]})
    more = [*PLAIN, ("c", pa.list_(pa.string())), ("d", pa.struct([("e", pa.string())]))]
    for given in (frame, frame.lazy(), frame.schema):
        assert schema_of(given) == pa.schema(more)


def test_columns_of_spark():
    t = pytest.importorskip("pyspark.sql.types")
    inner = t.StructType([t.StructField("z", t.TimestampNTZType())])
    given = t.StructType(
        [
            t.StructField("a", t.LongType(), nullable=False),
            t.StructField("d", t.DecimalType(12, 3)),
            t.StructField("l", t.ArrayType(inner, containsNull=False)),
        ]
    )
    item = pa.field("item", pa.struct([("z", pa.timestamp("us"))]), nullable=False)
    expected = [pa.field("a", pa.int64(), nullable=False), ("d", pa.decimal128(12, 3)), ("l", pa.list_(item))]
    assert schema_of(given) == pa.schema(expected)
    with pytest.raises(UsageError, match=r"column 'm'.*cast it"):
        schema_of(t.StructType([t.StructField("m", t.MapType(t.StringType(), t.LongType()))]))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (None, "NoneType: give an Arrow schema"),
        ("a: int64", "give an Arrow schema"),
        ([("a", pa.int64())], "give an Arrow schema"),
        (pa.array([1]), "give an Arrow schema|not of columns"),
        ({"a": "integer64"}, "column 'a' has the type 'integer64'"),
        ({"a": None}, "column 'a' has the type None"),
        ({"a": []}, r"column 'a' has the type \[\]"),
        ({1: "int64"}, "column name 1 is not a text"),
    ],
)
def test_what_names_no_columns_is_refused(given, match):
    with pytest.raises(UsageError, match=match):
        schema_of(given)


def test_a_collection_is_made_from_any_of_them_and_has_no_rows():
    with tidelake.open("memory://made-from-frames") as lake:
        made = lake.create("c", pa.table(ROWS), key=["a"])
        assert made.schema == PLAIN
        assert lake.create("c", {"a": int, "b": str}, key=["a"]).id == made.id
        assert made.upper == lake.create("d", PLAIN, key=["a"]).upper


def test_no_library_is_loaded_to_look_at_a_schema():
    before = set(sys.modules)
    schema_of({"a": int})
    assert not {"polars", "pandas", "pyspark"} & (set(sys.modules) - before)

"""What a library would lose on the way to Arrow is refused."""

import datetime as dt

import pyarrow as pa
import pytest

from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.arguments.schemas import schema_of
from tidelake.model.time import TimeDomain

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

NOON = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - what is tried
ZONED = NOON.replace(tzinfo=dt.UTC)
FINE, SPAN = pandas.Timestamp(1, unit="ns"), pandas.Timedelta(1, "ns")


@pytest.mark.promise(
    "What a library would lose on the way to Arrow is refused with its column: times with and "
    "without a zone in one column of pandas, its nanoseconds, polars' `Int128` and `Object`",
    rule="`data/ingest/astable.py`",
    also=["data/test_given_values.py"],
)
@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([NOON, ZONED], "in row 1, beside times with a zone and without"),
        ([ZONED, pandas.NaT, NOON], "in row 2, beside times with a zone and without"),
        ([[ZONED, NOON]], "in row 0, beside times"),
        ([{"a": ZONED}, None, {"a": NOON}], "in row 2, beside times"),
        ([FINE], "nanoseconds"),
        ([SPAN], "nanoseconds"),
        ([dt.timedelta(1), SPAN], "in row 1, whose nanoseconds"),
        ([dt.date(2024, 1, 1), NOON], "in row 1, a time beside dates"),
        ([dt.time(12, tzinfo=dt.UTC)], "whose zone would be lost"),
    ],
)
def test_objects_of_pandas_that_arrow_would_change_are_refused(values, why):
    frame = pandas.DataFrame({"x": pandas.Series(values, dtype=object)})
    with pytest.raises(InvalidUpdates, match=f"column 'x' holds .*{why}"):
        as_table(frame)


def test_objects_of_pandas_that_arrow_keeps_are_taken():
    for values in (
        [NOON, None, pandas.NaT],
        [ZONED, pandas.NaT],
        [dt.date(2024, 1, 1)],
        [[NOON]],
        [dt.time(1)],
    ):
        table = as_table(pandas.DataFrame({"x": pandas.Series(values, dtype=object)}))
        assert table.num_rows == len(values)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (polars.Int128, "Int128 of polars.*cast it to"),
        (polars.UInt128, "UInt128 of polars"),
        (polars.Object, "Object of polars"),
        (polars.List(polars.Int128), "Int128"),
        (polars.Struct({"a": polars.UInt128}), "UInt128"),
    ],
)
def test_types_of_polars_that_arrow_lacks_are_named(kind, why):
    frame = polars.DataFrame({"x": polars.Series([], dtype=kind)})
    with pytest.raises(InvalidUpdates, match=f"column 'x' has the type .*{why}"):
        as_table(frame)
    with pytest.raises(UsageError, match=f"column 'x'.*{why}"):
        schema_of(frame)


def test_a_lazy_frame_is_to_be_collected():
    with pytest.raises(InvalidUpdates, match="keys from a LazyFrame: collect"):
        as_table(polars.LazyFrame({"x": [1]}), "keys")


@pytest.mark.parametrize("kind", [polars.Categorical, polars.Enum(["a", "b"])])
def test_words_of_polars_are_stored_as_texts_at_any_depth(kind):
    frame = polars.DataFrame(
        {
            "k": polars.Series(["a", "b", "a"], dtype=kind),
            "l": polars.Series([["a", None], [], None], dtype=polars.List(kind)),
            "s": polars.Series([{"x": "a"}, None, {"x": None}], dtype=polars.Struct({"x": kind})),
        }
    )
    schema = schema_from_arrow(schema_of(frame), ["k"])
    table = normalize(frame, schema, TimeDomain("counter"), time=0)
    assert table["k"].to_pylist() == ["a", "b", "a"]
    assert table["l"].to_pylist() == [["a", None], [], None]
    assert table["s"].to_pylist() == frame["s"].to_list()
    assert table["k"].type == pa.string()

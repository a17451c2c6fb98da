"""Dicts of Python as rows: every value arrives, or the rows are refused."""

from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import tidelake
from tidelake.data.ingest.astable import as_table
from tidelake.errors import InvalidUpdates

HERE = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
MANY = [
    {"id": 1, "v": "a", "n": 2.5, "at": datetime(2026, 1, 2, tzinfo=UTC), "d": Decimal("1.50")},
    {"id": 2**64 - 1, "v": None, "n": 1, "at": None, "d": Decimal("10.5")},
]


@pytest.mark.promise(
    "Rows that are dicts arrive with their values, or are refused",
    rule="`data/ingest/pythonrows.py`",
    also=["::test_what_arrow_would_lose_is_refused"],
)
def test_a_dict_is_a_row_a_list_several_and_a_dict_of_lists_columns():
    assert as_table(MANY).to_pylist() == MANY
    assert as_table(MANY[0]).to_pylist() == MANY[:1]
    columns = {name: [row[name] for row in MANY] for name in MANY[0]}
    assert as_table(columns).to_pylist() == MANY
    assert as_table({"id": np.array([1, 2]), "v": ("a", "b"), "w": pa.array([1, 2])}).num_rows == 2
    # A row has a key beside its lists.
    assert as_table({"id": 1, "tags": ["a", "b"]}).to_pylist() == [{"id": 1, "tags": ["a", "b"]}]
    # The order of the names in a row means nothing.
    assert as_table([{"id": 1, "v": 2}, {"v": 4, "id": 3}]).to_pylist() == [
        {"id": 1, "v": 2},
        {"id": 3, "v": 4},
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"id": 1}, {"id": 2, "v": 1}], "row 1 and row 0 do not have the same names: 'v'"),
        ([{"id": 1, "v": 1}, {"id": 2}], "row 1 and row 0 do not have the same names: 'v'"),
        ([{"id": 1}, {"id": "a"}], "column 'id' cannot be read"),
        ({"id": [1, 2], "v": [1]}, "different numbers of values: 'id' has 2, 'v' has 1"),
        ({1: 2}, "the name of a column is 1"),
        ({"id": -(2**70)}, "column 'id' cannot be read"),
        ({"id": "\ud800"}, "column 'id' cannot be read"),
        ({"id": object()}, "column 'id' cannot be read"),
        ([{"id": date(2026, 1, 1)}, {"id": HERE.replace(hour=5)}], "column 'id'"),
        ([{"id": HERE}, {"id": datetime(2026, 1, 1, tzinfo=UTC)}], "beside times with a zone"),
        ({"id": time(1, tzinfo=UTC)}, "whose zone would be lost"),
    ],
)
def test_what_arrow_would_lose_is_refused(given, said):
    with pytest.raises(InvalidUpdates, match=said):
        as_table(given)


def test_a_named_index_of_pandas_is_a_column():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"k": [1, 2], "j": ["a", "b"], "v": [3, 4]})
    assert as_table(frame.set_index("k")).to_pydict() == {"k": [1, 2], "j": ["a", "b"], "v": [3, 4]}
    assert as_table(frame.set_index(["k", "j"])).to_pydict() == {"k": [1, 2], "j": ["a", "b"], "v": [3, 4]}
    assert as_table(frame[frame["k"] > 1]).to_pydict() == {"k": [2], "j": ["b"], "v": [4]}
    # The column is the data, where both have the name.
    assert as_table(frame.set_index("k", drop=False)).column_names == ["k", "j", "v"]


def test_every_write_and_look_up_takes_dicts_and_indexes(tmp_path):
    pandas = pytest.importorskip("pandas")
    with tidelake.open(tmp_path / "lake") as lake:
        frame = pandas.DataFrame({"id": [1, 2], "v": [3.5, 4.5]}).set_index("id")
        c = lake.create("c", frame, key=["id"])
        c.append(frame)
        c.append({"id": 3, "v": 1.0})
        c.upsert([{"id": 1, "v": 7.0}, {"id": 2, "v": 8.0}])
        c.delete({"id": [2]})
        c.writer("w").append({"id": 4, "v": 2.0}, sequence=0)
        c.stage({"id": 9, "v": 2.0, "_time": 50})
        with lake.transaction() as transaction:
            transaction.write("c", [{"id": 5, "v": 2.0}])
        lake.write({"c": {"id": 6, "v": 3.0}})
        with c.builder() as builder:
            builder.add({"id": 7, "v": 1.0, "_time": 20})
            c.append(builder.finish(tidelake.Frontier.of(21)))
        assert c.to_arrow()["id"].to_pylist() == [1, 3, 4, 5, 6, 7]
        assert c.lookup([{"id": 1}, {"id": 7}])["v"].to_pylist() == [7.0, 1.0]
        c.replace([{"id": 1, "v": 0.0}])
        assert c.to_arrow().to_pylist() == [{"id": 1, "v": 0.0}]


def test_a_list_without_rows_says_what_to_do():
    with pytest.raises(InvalidUpdates, match="hand in an empty table"):
        as_table([])

"""`tidelake view`, `refresh` and `verify`."""

import json

import pyarrow as pa
import pytest

import tidelake


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        orders = lake.create("orders", {"id": "int64", "price": "int64"}, key=["id"])
        orders.append(pa.table({"id": [1, 2], "price": [5, 6]}))
    (tmp_path / "query.sql").write_text("SELECT price, count(*) AS n FROM orders GROUP BY price")
    return tmp_path / "lake"


def test_a_view_is_made_refreshed_and_verified(run, place):
    query = place.parent / "query.sql"
    code, out, err = run("view", place, "prices", query, "--json")
    assert (code, err) == (0, "") and json.loads(out)[0]["rule"] == "fromcollection"
    with tidelake.open(place) as lake:
        lake["orders"].append(pa.table({"id": [3], "price": [5]}))
    assert json.loads(run("refresh", place, "prices", "--json")[1]) == [
        {"view": "prices", "upper": [2], "rows": 2, "read": 1}
    ]
    assert run("verify", place, "prices")[:2] == (0, "2 rows, as the query says\n")
    code, _, err = run("append", place, "prices", query.with_suffix(".jsonl"))
    assert code == 2
    assert json.loads(run("refresh", place, "--json")[1])[0]["rows"] == 0


def test_what_is_wrong_is_told(run, place):
    assert run("refresh", place)[:2] == (0, "no views\n")
    code, _, err = run("refresh", place, "orders")
    assert code == 2 and "is no view" in err
    (place.parent / "wrong.sql").write_text("SELECT now() AS t FROM orders")
    code, _, err = run("view", place, "v", place.parent / "wrong.sql")
    assert code == 2 and "now" in err


def test_maintain_refreshes_views_and_one_that_fails_stops_no_other(run, place):
    with tidelake.open(place) as lake:
        lake.view("bad", "SELECT CAST(price AS TINYINT) AS price FROM orders")
        lake.view("good", "SELECT count(*) AS n FROM orders")
        lake["orders"].append(pa.table({"id": [3], "price": [1_000]}))
    code, out, err = run("maintain", place, "--once", "--json")
    assert code != 0 and "view 'bad'" in err
    assert {line["collection"] for line in json.loads(out)} > {"bad", "good", "orders"}
    with tidelake.open(place) as lake:
        assert lake["good"].snapshot().read_all()["n"].to_pylist() == [3]

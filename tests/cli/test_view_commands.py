"""`tidelake view`, `refresh`, `explain` and `verify`."""

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
    assert (code, err) == (0, "") and json.loads(out)["stages"][0]["rule"] == "fromcollection"
    with tidelake.open(place) as lake:
        lake["orders"].append(pa.table({"id": [3], "price": [5]}))
    assert json.loads(run("refresh", place, "prices", "--json")[1]) == [
        {"view": "prices", "upper": [2], "rows": 2, "read": 1, "waits_for": []}
    ]
    assert run("verify", place, "prices")[:2] == (0, "2 rows, as the query says\n")
    code, _, err = run("append", place, "prices", query.with_suffix(".jsonl"))
    assert code == 2
    assert json.loads(run("refresh", place, "--json")[1])[0]["rows"] == 0


def test_explain_shows_stages_and_what_a_view_has_not_seen(run, place):
    run("view", place, "prices", place.parent / "query.sql")
    with tidelake.open(place) as lake:
        lake["orders"].append(pa.table({"id": [3], "price": [5]}))
        assert run("explain", place, "prices") == (0, f"{lake.explain('prices')}\n", "")
    told = json.loads(run("explain", place, "prices", "--json")[1])
    assert told["inputs"] == [{"input": "orders", "upper": [2], "behind": 1}]
    assert [one["rule"] for one in told["stages"]] == ["fromcollection", "count"] and told["whole"] == []
    assert told["kept"][0]["updates"] == 2 and told["upper"] == [1]
    code, _, err = run("explain", place, "orders")
    assert code == 2 and "'orders' is no view" in err


def test_a_refresh_names_the_input_that_a_view_waits_for(run, place):
    query = place.parent / "query.sql"
    query.write_text("SELECT o.id FROM orders o JOIN other p ON o.id = p.id")
    with tidelake.open(place) as lake:
        lake.create("other", {"id": "int64"}, key=["id"])
    assert run("view", place, "joined", query)[0] == 0
    again = run("view", place, "joined", query, "--replace")[1]
    assert again.endswith("joined has this query already: nothing was changed; rebuild makes it again\n")
    query.write_text("SELECT id FROM joined JOIN orders USING (id)")
    assert run("view", place, "upon", query)[0] == 0
    out = run("refresh", place)[1]
    assert "joined waits for 'other': append to it or seal it\nupon waits for 'joined'\n" in out
    assert [row["waits_for"] for row in json.loads(run("refresh", place, "--json")[1])] == [
        ["other"],
        ["joined"],
    ]


def test_the_retention_of_all_collections_leaves_what_views_keep_to_them(run, place):
    query = place.parent / "query.sql"
    query.write_text("SELECT price, max(id) AS last FROM orders GROUP BY price")
    assert run("view", place, "last", query)[0] == 0
    shown = json.loads(run("retain", place, "--all", "5", "--json")[1])
    assert [one["collection"] for one in shown] == ["last", "orders"]
    with tidelake.open(place) as lake:
        kept = [one for one in lake.collections() if one.name not in ("last", "orders")]
        assert kept and all(one.state().retention.window is None for one in kept)


def test_an_index_is_made_and_looked_up(run, place):
    assert json.loads(run("index", place, "orders", "--by", "price", "--json")[1]) == [
        {"index": "orders by price", "upper": [1]}
    ]
    assert json.loads(run("history", place, "orders by price", "6", "--json")[1])["id"] == 2
    assert run("index", place, "orders", "--by", "cost")[0] == 2


@pytest.mark.promise(
    "`tidelake refresh` shows what was done, names each view that failed, and ends with the first code",
    rule="`refresh` in `cli/views.py`",
)
def test_a_refresh_for_a_scheduler_tells_of_all_views(run, place):
    with tidelake.open(place) as lake:
        for name in ("bad", "worse"):
            lake.view(name, "SELECT id, CAST(price AS TINYINT) AS price FROM orders")
        lake.view("good", "SELECT count(*) AS n FROM orders")
        lake["orders"].append(pa.table({"id": [3], "price": [1_000]}))
    code, out, err = run("refresh", place, "--json")
    assert code == 2 and "view 'bad'" in err and "view 'worse'" in err
    assert [(row["view"], row["rows"]) for row in json.loads(out)] == [("good", 2)]
    with tidelake.open(place) as lake:
        lake.drop("orders", force=True)
    code, out, err = run("refresh", place, "good", "--json")
    assert code == 4 and "its input 'orders' was dropped" in err
    # That there is no view would be wrong.
    assert run("refresh", place, "good")[:2] == (4, "")


def test_what_is_wrong_is_told(run, place):
    assert run("refresh", place)[:2] == (0, "no views\n")
    code, _, err = run("refresh", place, "orders")
    assert code == 2 and "is no view" in err
    (place.parent / "wrong.sql").write_text("SELECT now() AS t FROM orders")
    code, _, err = run("view", place, "v", place.parent / "wrong.sql")
    assert code == 2 and "now" in err
    for text, why in ((b"\xff\xfe", "no text in UTF-8"), (b"-- nothing\n", "the text has no query")):
        (place.parent / "wrong.sql").write_bytes(text)
        code, _, err = run("view", place, "v", place.parent / "wrong.sql")
        assert code == 2 and why in err
    (place.parent / "marked.sql").write_bytes(b"\xef\xbb\xbfSELECT id FROM orders")
    assert run("view", place, "v", place.parent / "marked.sql")[0] == 0


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


def test_what_needs_a_rebuild_names_the_command_that_makes_it(run, place):
    with tidelake.open(place) as lake:
        lake.view("prices", "SELECT price, count(*) AS n FROM orders GROUP BY price")
    keys = place.parent / "keys.csv"
    keys.write_text("id\n1\n")
    out = run("erase", place, "orders", "--keys", keys, "--reason", "asked")[1]
    assert "remains: view 'prices', and what was made of it: tidelake rebuild LAKE 'prices'\n" in out
    code, _, err = run("refresh", place)
    assert code == 4 and "tidelake rebuild LAKE 'prices'" in err
    assert run("rebuild", place, "prices", "--json")[:2] == (0, '[{"view": "prices", "upper": [1]}]\n')
    assert run("refresh", place)[0] == 0
    assert run("rebuild", place, "orders")[0] == 2


def test_messages_name_options_of_the_command_line(run, place):
    with tidelake.open(place) as lake:
        lake.view("v", "SELECT count(*) AS n FROM orders")
    query = place.parent / "query.sql"
    err = run("view", place, "v", query)[2]
    assert err.endswith("give the view another name, or --replace\n")
    err = run("drop", place, "orders", "--yes")[2]
    assert "or drop with --force, which ends them" in err
    assert run("drop", place, "v", "--yes")[0] == 0
    err = run("view", place, "v", query)[2]
    assert "--allow-recreate" in err and "=True" not in err

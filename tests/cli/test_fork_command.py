"""`tidelake fork`, and what `show` says of parts that are shared."""

import json

import pyarrow as pa
import pytest

import tidelake
from tidelake.config import Config

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        orders = lake.create("orders", SCHEMA, key=["id"])
        for n in range(4):
            orders.append(pa.table({"id": [n], "v": [f"v{n}"]}))
    return tmp_path / "lake"


def shown(run, place, name):
    return json.loads(run("show", place, name, "--json")[1])


def test_fork_makes_a_collection_of_what_another_one_was(run, place):
    code, out, err = run("fork", place, "orders", "orders_fix", "--as-of", "1", "--json")
    (line,) = json.loads(out)
    assert (code, err, line["collection"], line["upper"]) == (0, "", "orders_fix", [2])
    rows = run("snapshot", place, "orders_fix", "--json")[1].splitlines()
    assert [json.loads(row)["id"] for row in rows] == [0, 1]
    code, out, _ = run("fork", place, "orders", "copy")
    assert code == 0 and "copy" in out


def test_show_says_what_is_shared_with_whom(run, place):
    assert shown(run, place, "orders")["shared"] == []
    run("fork", place, "orders", "orders_fix", "--as-of", "1")
    (mine,), (theirs,) = shown(run, place, "orders_fix")["shared"], shown(run, place, "orders")["shared"]
    assert (mine["is"], mine["collection"], mine["parts"]) == ("forked from", "orders", 2)
    assert (theirs["is"], theirs["collection"], theirs["parts"]) == ("fork", "orders_fix", 0)
    assert theirs["id"] == shown(run, place, "orders_fix")["id"] and mine["version"] == theirs["version"]
    run("merge", place, "orders")
    assert shown(run, place, "orders")["shared"][0]["parts"] == 4
    assert "shared parts" in run("show", place, "orders")[1]
    run("drop", place, "orders", "--yes")
    (mine,) = shown(run, place, "orders_fix")["shared"]
    assert mine["collection"] is None
    assert "forked from" in run("show", place, "orders_fix")[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("none", "x"), 2, "no collection 'none'"),
        (("orders", "orders"), 2, "a collection 'orders' exists"),
        (("orders", "x", "--as-of", "9"), 4, "time 9 is not closed"),
        (("orders", "x", "--as-of", "soon"), 2, "--as-of"),
    ],
)
def test_a_fork_that_cannot_be_made_is_one_line(run, place, arguments, code, message):
    got, out, err = run("fork", place, *arguments)
    assert (got, out) == (code, "") and message in err and err.count("\n") == 1

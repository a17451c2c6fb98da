"""`tidelake rename`, and names that come back."""

import json

import pyarrow as pa
import pytest

import tidelake


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        for name in ("orders", "orders_fix"):
            lake.create(name, pa.schema([("id", pa.string())]), key=["id"]).append(pa.table({"id": [name]}))
    return tmp_path / "lake"


def names(run, place):
    """The row that each collection holds."""
    listed = json.loads(run("ls", place, "--json")[1])
    return {
        line["collection"]: json.loads(run("snapshot", place, line["collection"], "--json")[1])["id"]
        for line in listed
    }


def test_rename_gives_a_collection_another_name(run, place):
    code, out, err = run("rename", place, "orders", "sales", "--json")
    assert (code, json.loads(out), err) == (0, [{"collection": "orders", "is_now": "sales"}], "")
    assert names(run, place) == {"sales": "orders", "orders_fix": "orders_fix"}
    code, _, err = run("show", place, "orders")
    assert code == 2 and err.startswith(
        "tidelake: no collection 'orders' (it was dropped or renamed); the near"
    )
    code, _, err = run("rename", place, "sales", "orders_fix")
    assert code == 2 and "there is a collection 'orders_fix'" in err


def test_rename_swap_changes_two_names_at_once(run, place):
    code, out, _ = run("rename", place, "orders", "orders_fix", "--swap", "--json")
    assert code == 0 and [line["is_now"] for line in json.loads(out)] == ["orders_fix", "orders"]
    assert names(run, place) == {"orders": "orders_fix", "orders_fix": "orders"}


def test_a_name_that_was_given_up_comes_back_only_if_it_is_said(run, place):
    assert run("drop", place, "orders", "--yes")[0] == 0
    created = ("create", place, "orders", "--key", "id", "--column", "id:int64")
    code, _, err = run(*created)
    assert code == 2 and "--allow-recreate" in err
    assert run(*created, "--allow-recreate")[0] == 0
    assert run("rename", place, "orders_fix", "fixed")[0] == 0
    code, _, err = run("rename", place, "orders", "orders_fix")
    assert code == 2 and "'orders_fix' existed here" in err
    assert run("rename", place, "orders", "orders_fix", "--allow-recreate")[0] == 0
    with tidelake.open(place) as lake:
        assert lake.list() == ["fixed", "orders_fix"]
        assert lake.collection("orders_fix").schema.field("id").type == pa.int64()

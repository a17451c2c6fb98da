"""`tidelake drop`, and what the command line says of garbage."""

import json
import os
import pty
import subprocess
import sys
from functools import partial

import pyarrow as pa
import pytest
from shard_states import aged

import inside
import tidelake
from tidelake.config import Config
from tidelake.state.life import collecting

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
STORED = Config(merge_budget_s=0, inline_part_bytes=0)


@pytest.fixture
def place(tmp_path):
    """A lake with two collections."""
    with tidelake.open(tmp_path / "lake", config=STORED) as lake:
        for name in ("orders", "users"):
            made = lake.create(name, SCHEMA, key=["id"])
            for n in range(3):
                made.append(pa.table({"id": [n]}))
    return tmp_path / "lake"


def test_drop_deletes_a_collection_and_says_if_it_was_dropped_before(run, place):
    with tidelake.open(place) as lake:
        id_ = lake.collection("users").id
    assert list(place.rglob(f"{id_}/parts/*.parquet"))
    assert json.loads(run("drop", place, "users", "--yes", "--json")[1]) == [
        {"collection": "users", "dropped": "now"}
    ]
    assert not [path for path in place.rglob("*") if id_ in str(path) and path.is_file()]
    code, out, err = run("drop", place, "users", "--yes")
    assert (code, err) == (0, "") and "before" in out
    code, _, err = run("drop", place, "user", "--yes")
    assert code == 2 and err == "tidelake: no collection 'user'; there is 'orders'\n"
    assert [line["collection"] for line in json.loads(run("ls", place, "--json")[1])] == ["orders"]


def test_drop_of_what_is_held_needs_force(run, place):
    with tidelake.open(place) as lake, lake.collection("users").reader("a colleague"):
        code, out, err = run("drop", place, "users", "--yes")
        assert (code, out) == (2, "")
        assert err.startswith("tidelake: collection 'users' is held by 'a colleague'") and "force" in err
        code, out, err = run("drop", place, "users", "--yes", "--force")
        assert (code, err) == (0, "") and "now" in out


def test_a_collection_that_is_being_dropped_is_not_listed_and_the_drop_is_finished(run, place):
    with tidelake.open(place) as lake:
        lake._leftovers.ending(lake.collection("users").id).drop()
    assert [line["collection"] for line in json.loads(run("ls", place, "--json")[1])] == ["orders"]
    code, _, err = run("show", place, "users")
    assert code == 2 and "collection 'users' was dropped" in err
    assert run("maintain", place, "orders", "--once")[0] == 0
    assert json.loads(run("maintain", place, "--once", "--json")[1])[0]["collection"] == "orders"
    with tidelake.open(place) as lake:
        assert lake.list() == ["orders"]


def test_show_and_maintain_tell_of_garbage(run, place):
    with tidelake.open(place, config=STORED) as lake:
        orders = lake.collection("orders")
        orders.merge()
        doomed = inside.run(orders, partial(aged(collecting.doom), names_max=2))
    assert len(doomed) == 2
    assert json.loads(run("show", place, "orders", "--json")[1])["garbage"] == 3
    (done,) = json.loads(run("maintain", place, "orders", "--once", "--json")[1])
    assert done["objects_deleted"] == 2
    assert json.loads(run("show", place, "orders", "--json")[1])["garbage"] == 1


def test_drop_without_a_terminal_needs_a_yes(run, place):
    code, _, err = run("drop", place, "users")
    assert code == 2 and "give --yes" in err
    assert [line["collection"] for line in run("ls", place, "--json").json] == ["orders", "users"]


@pytest.mark.parametrize(("answer", "left"), [("n", ["orders", "users"]), ("y", ["orders"])])
def test_drop_asks_in_a_terminal(place, answer, left):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tidelake.cli.main", "drop", str(place), "users"]
    child = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.write(ours, f"{answer}\n".encode())
    _, said = child.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert b"Delete 'users' with its history" in said
    assert child.returncode == (0 if answer == "y" else 130)
    with tidelake.open(place) as lake:
        assert lake.list() == left

"""`tidelake write`, `leave`, `seal` of several collections, and what `show` and `ls` say of groups."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidelake
from tidelake.web import describe

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def place(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        for name in ("a", "b=c"):
            lake.create(name, SCHEMA, key=["k"])
    pq.write_table(pa.table({"k": [1, 2], "v": ["x", "y"]}), tmp_path / "rows.parquet")
    return tmp_path / "lake"


@pytest.fixture
def rows(tmp_path):
    return tmp_path / "rows.parquet"


def shown(run, place, name):
    return json.loads(run("show", place, name, "--json")[1])


def test_files_are_written_to_several_collections_at_one_time(run, place, rows):
    code, out, _ = run("write", place, f"a={rows}", f"b=c={rows}", "--json")
    assert (code, json.loads(out)) == (0, [{"upper": [1], "already": False}])
    for name in ("a", "b=c"):
        assert len(run("snapshot", place, name, "--json")[1].splitlines()) == 2


def test_a_token_writes_once_and_a_time_is_that_of_all_rows(run, place, rows):
    for already in (False, True):
        code, out, _ = run("write", place, f"a={rows}", "--time", "7", "--token", "x", "--json")
        assert (code, json.loads(out)) == (0, [{"upper": [8], "already": already}])


def test_show_tells_the_group_and_what_awaits(run, place, rows):
    assert shown(run, place, "a")["group"] == []
    run("write", place, f"a={rows}", f"b=c={rows}", "--time", "4")
    found = shown(run, place, "a")
    assert [line["collection"] for line in found["group"]] == sorted(["a", "b=c"], key=ids(place).get)
    assert {tuple(line["upper"]) for line in found["group"]} == {(5,)}
    (waits,) = found["awaiting"]
    assert (waits["updates"], waits["decided"], found["upper"]) == (2, True, [5])
    assert "awaiting transactions" in run("show", place, "a")[1]
    assert {tuple(line["upper"]) for line in json.loads(run("ls", place, "--json")[1])} == {(5,)}
    run("collect", place)
    run("maintain", place, "--once")
    assert shown(run, place, "a")["awaiting"] == []


def ids(place):
    with tidelake.open(place) as lake:
        return {name: id_ for id_, name in lake.names().items()}


def test_several_collections_are_sealed_at_one_instant(run, place, rows):
    code, out, _ = run("seal", place, "a=5", "b=c=9", "--json")
    assert (code, [line["upper"] for line in json.loads(out)]) == (0, [[5], [9]])
    code, out, _ = run("seal", place, "a", "6", "--json")
    assert (code, json.loads(out)[0]["upper"]) == (0, [6])


def test_a_collection_is_written_to_alone_in_its_group_and_after_it_left(run, place, rows):
    run("write", place, f"a={rows}", f"b=c={rows}")
    assert run("append", place, "a", rows)[0] == 0
    assert json.loads(run("leave", place, "a", "--json")[1]) == [{"collection": "a", "left": True}]
    assert json.loads(run("leave", place, "a", "--json")[1])[0]["left"] is False
    assert run("leave", place, "a")[:2] == (0, "a is in no group: nothing was changed\n")
    told = run("join", place, "a", "b=c", "--json")
    assert (told[0], json.loads(told[1])[1]) == (0, {"collection": "b=c", "joined": True})
    assert json.loads(run("leave", place, "a", "--json")[1])[0]["left"] is True
    assert run("append", place, "a", rows)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["write", "a"], "COLLECTION=FILE"),
        (["write", "a="], "COLLECTION=FILE"),
        (["write", "a=nowhere.parquet"], "no file 'nowhere.parquet'"),
        (["write", "zzz=rows"], "zzz"),
        (["seal", "a", "5", "9"], "COLLECTION=UPPER"),
        (["seal", "a=x"], "x"),
        (["join", "a", "zzz"], "zzz"),
    ],
)
def test_what_makes_no_sense_is_one_line_that_says_what_does(run, place, arguments, message):
    command, *rest = arguments
    code, out, told = run(command, place, *rest)
    assert code == 2 and message in told and not out and "Traceback" not in told


@pytest.mark.promise(
    "`ls`, `show`, the page and a notebook count what is read, also what a group decided and its "
    "collections have not applied; merges of processes that ended are not counted as running",
    rule="`Shard.version`, `living`",
    also=["cli/test_maintenance.py::test_show_tells_merges_under_way"],
)
def test_counts_are_those_of_what_is_read_whatever_the_collections_have_applied(run, place):
    with tidelake.open(place) as lake:
        one = pa.table({"k": [1], "v": ["x"]})
        for _ in range(20):
            lake.write({"a": one, "b=c": one})
        a = lake.collection("a")
        assert a.state().spine.totals.rows < 20
        assert describe.summary(a)["gauges"]["updates"] == 20 and "20 updates" in a._repr_html_()
        assert sum(member["rows"] for member in describe.collection(a, {})["spine"]["members"]) == 20
    assert [line["updates"] for line in json.loads(run("ls", place, "--json")[1])] == [20, 20]
    assert shown(run, place, "a")["updates"] == 20

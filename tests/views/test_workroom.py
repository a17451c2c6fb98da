"""What the refreshes of a lake leave for the next ones."""

import gc
import tempfile
import threading

import duckdb
import pytest

import tidelake
from threads import at_once
from tidelake.errors import CollectionNotFound
from tidelake.views import workroom as rooms
from tidelake.views.state import states_of
from tidelake.views.workroom import workroom

SUMS = "SELECT k, count(*) AS n, max(x) AS m FROM a GROUP BY k"


@pytest.fixture
def lake(tmp_path):
    with tidelake.open(tmp_path / "lake") as opened:
        opened.create("a", {"id": "int64", "k": "int32", "x": "int32"}, key=["id"])
        opened["a"].append([{"id": n, "k": n % 3, "x": n} for n in range(9)])
        yield opened


def test_a_database_serves_one_thread_after_the_other(lake):
    room, barrier, found = workroom(lake), threading.Barrier(2), []

    def use(_):
        with room.database() as database:
            barrier.wait(10)
            found.append(database)

    at_once(use, range(2))
    assert found[0] is not found[1]
    with room.database() as database:
        assert database in found


def test_a_database_ends_with_an_error_and_with_the_lake(lake):
    room = workroom(lake)
    with pytest.raises(duckdb.CatalogException), room.database() as database:
        database.call("too_late", "FROM nothing")
    with room.database() as other:
        other.call("left_over", "SELECT 1")
        other.clear()
    with room.database() as again:
        assert again is other is not database
        room.close()
        again.call("still_open", "SELECT 1")
    for ended in (database, other):
        with pytest.raises(duckdb.ConnectionException):
            ended.call("late", "SELECT 1")


def test_handles_that_stay_see_what_others_did(lake):
    view = lake.view("v", SUMS)
    with tidelake.open(lake.url) as other:
        other["a"].append([{"id": 9, "k": 0, "x": 99}])
        for one in states_of(other, view.id):
            other.drop(one.name, force=True)
        lake.refresh("v")
        assert lake.verify("v").equal
        other.rename("a", "b")
        other["b"].append([{"id": 10, "k": 0, "x": 100}])
        lake.refresh("v")
        assert lake.verify("v").equal and view.upper == other["b"].upper
        other.drop("v")
        other.view("v", SUMS.replace("FROM a", "FROM b"), allow_recreate=True)
        assert lake.refresh("v")[0].already and lake["v"].id != view.id


def test_a_refresh_opens_nothing_again(lake):
    lake.view("v", SUMS)
    lake["a"].append([{"id": 20, "k": 0, "x": 20}])
    before = lake.recorder.counts["log.head"]
    assert not lake.refresh("v")[0].already
    assert lake.recorder.counts["log.head"] == before


def test_a_lake_that_is_forgotten_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    forgotten = tidelake.open("memory://forgotten")
    with workroom(forgotten).database() as database:
        database.answer("SELECT 1")
    assert [*tmp_path.iterdir()]
    del forgotten, database
    gc.collect()
    assert not [*tmp_path.iterdir()]


def test_collections_that_stay_open_are_bounded(lake, monkeypatch):
    monkeypatch.setattr(rooms, "_COLLECTIONS_MAX", 2)
    room, opened = workroom(lake), []
    for name in ("a", "b", "c", "c", "b", "a"):
        if name not in lake:
            lake.create(name, {"k": "int64"}, key=["k"])
        room.opened(name, name, lambda name=name: opened.append(name) or lake.collection(name))
    assert opened == ["a", "b", "c", "a"]


def test_names_that_views_keep_are_not_suggested(lake):
    lake.view("v", SUMS)
    with pytest.raises(CollectionNotFound) as told:
        lake.collection("view")
    assert "of stage" not in str(told.value)
    assert any("of stage" in name for name in lake.list(parts=True))

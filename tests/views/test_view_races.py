"""Refreshes that run at once, or are killed: what they leave is what one would have left."""

import threading

import pyarrow as pa
import pytest

import tidelake
from killed import killed
from tidelake.state.core.owned import owner_of
from tidelake.views import refresh

SQL = "SELECT k, count(*) AS n, max(id) AS last FROM a GROUP BY k"


def rows(first, *, time):
    ids = range(first, first + 5)
    return pa.table({"id": [*ids], "k": [one % 3 for one in ids], "_time": [time] * 5})


def updates(view):
    """The stored updates, and how far they go."""
    (upper,) = view.upper
    found = view.updates(0, upper).read_all().to_pylist()
    return upper, sorted(tuple(row.values()) for row in found)


def made(place, cuts):
    """A lake with a view that was refreshed after these times."""
    with tidelake.open(place) as lake:
        a = lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        lake.view("v", SQL)
        for time in range(6):
            a.append(rows(10 * time, time=time), upper=time + 1)
            if time in cuts:
                lake.refresh()
        return updates(lake["v"])


@pytest.mark.promise(
    "Refreshes of several processes at once, and of killed ones, leave what one would",
    rule="`compare_and_append` in `views/refresh.py`",
    also=[
        "views/test_view_races.py",
    ],
)
def test_the_stored_updates_do_not_depend_on_the_refreshes(tmp_path):
    assert made(tmp_path / "one", {5}) == made(tmp_path / "many", {0, 2, 3, 5})


def test_a_span_that_is_too_large_is_cut(tmp_path, monkeypatch):
    wanted = made(tmp_path / "whole", {5})
    monkeypatch.setattr(refresh, "PAIRS_MAX", 20)
    assert made(tmp_path / "cut", {5}) == wanted
    with tidelake.open(tmp_path / "cut") as lake:
        assert sum(1 for one in lake["v"].commits(50) if one.what == "append") > 1


@pytest.mark.full
def test_a_refresh_that_is_killed_is_done_or_not_begun_and_the_next_one_goes_on(tmp_path):
    wanted = made(tmp_path / "sound", {1, 5})
    before = made(tmp_path / "lake", {1})

    def again(place):
        with tidelake.open(place) as lake:
            lake.refresh()

    for place in killed(tmp_path / "lake", again, fast=40, full=8):
        with tidelake.open(place) as lake:
            assert updates(lake["v"]) in (before, wanted)
            lake.refresh()
            assert updates(lake["v"]) == wanted
            held = lake["a"].state().critical
            assert {name: str(hold.since) for name, hold in held.items()} == {owner_of(lake["v"].id): "[5]"}


@pytest.mark.full
def test_a_view_whose_making_is_killed_is_whole_or_can_be_made(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        a = lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        a.append(rows(0, time=0), upper=3)

    def make(place):
        with tidelake.open(place) as lake:
            lake.view("v", SQL)

    for place in killed(tmp_path / "lake", make, fast=40, full=10):
        with tidelake.open(place) as lake:
            view = lake.view("v", SQL)
            lake.refresh()
            assert lake.verify("v").equal and str(view.upper) == "[3]"
            assert [*lake["a"].state().critical] == [owner_of(view.id)]


@pytest.mark.full
def test_many_refreshes_at_once_leave_what_one_would(tmp_path):
    wanted = made(tmp_path / "sound", {5})
    place, errors = tmp_path / "lake", []
    with tidelake.open(place) as lake:
        a = lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        lake.view("v", SQL)
        done = threading.Event()

        def run():
            try:
                with tidelake.open(place) as mine:
                    while not done.is_set():
                        mine.refresh()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for time in range(6):
            a.append(rows(10 * time, time=time), upper=time + 1)
        done.set()
        for thread in threads:
            thread.join()
        lake.refresh()
        assert not errors and updates(lake["v"]) == wanted

"""Refreshes that run at once, or are killed: what they leave is what one would have left."""

import contextlib
import itertools
import threading

import pyarrow as pa
import pytest

import tidelake
from killed import killed
from threads import at_once
from tidelake.errors import CollectionExists, RefreshFailed
from tidelake.model.time import TIME_MAX
from tidelake.state.core.owned import owner_of
from tidelake.views import making, refresh
from tidelake.views.spans import SpanRun

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
    also=["views/test_view_races.py"],
)
def test_the_stored_updates_do_not_depend_on_the_refreshes(tmp_path):
    assert made(tmp_path / "one", {5}) == made(tmp_path / "many", {0, 2, 3, 5})


@pytest.mark.parametrize(("bound", "most"), [("PAIRS_MAX", 20), ("ROWS_MAX", 4)])
def test_a_span_that_is_too_large_is_cut(tmp_path, monkeypatch, bound, most):
    wanted = made(tmp_path / "whole", {5})
    monkeypatch.setattr(refresh, bound, most)
    assert made(tmp_path / "cut", {5}) == wanted
    with tidelake.open(tmp_path / "cut") as lake:
        assert sum(1 for one in lake["v"].commits(50) if one.what == "append") > 1


@pytest.mark.parametrize("every", [1, 3, 5])
def test_a_span_is_cut_where_something_changes(tmp_path, monkeypatch, every):
    monkeypatch.setattr(refresh, "PAIRS_MAX", 0)
    runs, carried_out = [], SpanRun.carried_out
    monkeypatch.setattr(SpanRun, "carried_out", lambda *given: runs.append(0) or carried_out(*given))
    with tidelake.open(tmp_path) as lake:
        a = lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        lake.view("v", SQL, every=every)
        # Of a grid of 5, the last two are the last cell, which has a begin only, and the one before it.
        for time in (3, 6, TIME_MAX - 2, TIME_MAX - 1):
            a.append(rows(time % 100, time=time), upper=time + 1)
        a.seal([])
        lake.refresh()
        assert lake["v"].upper.closed and all(lake.verify("v", at=time).equal for time in (5, 6, TIME_MAX))
    assert len(runs) < 10


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
def test_a_making_that_fails_and_is_killed_can_be_made(tmp_path):
    bad = "SELECT k, CAST('x' || k AS INTEGER) AS i FROM a"
    with tidelake.open(tmp_path / "lake") as lake:
        a = lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        a.append(rows(0, time=0), upper=3)

    def make(place):
        with tidelake.open(place) as lake, contextlib.suppress(RefreshFailed):
            lake.view("v", bad)

    for place in killed(tmp_path / "lake", make, fast=40, full=4):
        with tidelake.open(place) as lake:
            with pytest.raises((RefreshFailed, CollectionExists), match=r"TRY_CAST|allow_recreate=True"):
                lake.view("v", bad)
            view = lake.view("v", SQL, allow_recreate=True, replace=True)
            assert lake.verify("v").equal and str(view.upper) == "[3]"
            lake.refresh()
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


@pytest.mark.full
@pytest.mark.promise(
    "A process that is killed as it makes an index or view again leaves nothing that a user must clean up",
    rule="`is_left`, `_in_place`",
)
@pytest.mark.parametrize("what", ["index", "rebuild"])
def test_a_making_again_that_is_killed_is_ended_by_the_next_one(tmp_path, what):
    with tidelake.open(tmp_path / "lake") as lake:
        a = lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        a.append(rows(0, time=0), upper=3)
        lake.view("v", SQL)
        lake.index("a", by=["k"])
        lake.refresh()
        if what == "index":
            a.evolve(a.schema.append(pa.field("note", pa.string())))

    def again(place):
        with tidelake.open(place) as lake:
            lake.refresh() if what == "index" else lake.rebuild("v")

    for place in killed(tmp_path / "lake", again, fast=40, full=10):
        with tidelake.open(place) as lake:
            lake.refresh("v")
            again(place)
            a = lake["a"]
            a.evolve(a.schema.append(pa.field("more", pa.string())))
            lake.rebuild("v")
            lake.refresh()
            assert lake.list() == ["a", "a by k", "v"] and lake["a by k"].schema.names[-1] == "more"
            assert lake.verify("a by k").equal and lake.verify("v").equal
            assert {*a.state().critical} == {owner_of(lake[name].id) for name in ("a by k", "v")}


def test_two_calls_that_replace_a_view_at_once_put_one_new_view_in_its_place(tmp_path, monkeypatch):
    make, partial, both, is_made = (
        making.make,
        making.partial,
        threading.Barrier(2, timeout=60),
        threading.Event(),
    )
    turns = itertools.count()

    def in_turn(lake, name, *given):
        if name != "v (rebuilding)":
            return make(lake, name, *given)
        is_first = next(turns) == 0
        both.wait()
        if not is_first:
            is_made.wait(60)
        made = make(lake, name, *given)
        is_made.set()
        return made

    def waiting(*given, **named):
        both.wait()
        return partial(*given, **named)

    monkeypatch.setattr(making, "make", in_turn)
    with tidelake.open(tmp_path / "lake") as lake:
        a = lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        a.append(rows(0, time=0), upper=3)
        lake.view("v", SQL)
        monkeypatch.setattr(making, "partial", waiting)
        new = "SELECT k, count(*) AS n FROM a GROUP BY k"
        ids = at_once(lambda _: lake.view("v", new, replace=True).id, range(2))
        assert lake.list() == ["a", "v"] and {*ids} == {lake["v"].id}
        assert lake["v"].schema.names == ["k", "n"] and lake.verify("v").equal

"""Many views of one lake: what they share, which change together, and how long each keeps its history."""

import pyarrow as pa
import pytest

import inside
import tidelake
from killed import killed
from tidelake.errors import (
    CorruptionError,
    HistoryCompacted,
    RefreshFailed,
    TidelakeWarning,
    UsageError,
    ViewsFailed,
)
from tidelake.views import refresh, shared

SUMS = "SELECT k, count(*) AS n, sum(x) AS s FROM a GROUP BY k"
TOP = "SELECT k, x, n FROM (SELECT k, max(x) AS x FROM a GROUP BY k) JOIN sums USING (k)"


@pytest.fixture
def lake(tmp_path):
    with tidelake.open(tmp_path / "lake") as opened:
        opened.create("a", {"id": "int64", "k": "int32", "x": "int32"}, key=["id"])
        yield opened


def rows(first, time, many=5):
    ids = range(first, first + many)
    return pa.table(
        {
            "id": [*ids],
            "k": pa.array([one % 3 for one in ids], pa.int32()),
            "x": pa.array([one * 7 % 11 for one in ids], pa.int32()),
            "_time": [time] * many,
        }
    )


def write(lake, first, time, many=5):
    lake["a"].append(rows(first, time, many), upper=time + 1)


def calls(lake, work):
    """The store calls of work, by name."""
    before = dict(lake.recorder.counts)
    work()
    stores = ("log.head", "log.newer", "log.compare_and_set", "blob.get", "blob.put", "blob.open")
    return {name: many for name in stores if (many := lake.recorder.counts[name] - before.get(name, 0))}


@pytest.mark.promise(
    "An idle refresh of all views costs one scan of the names, and one of each collection",
    rule="`Shared.open`, `Workroom`",
)
def test_an_idle_refresh_looks_at_each_collection_once(lake):
    write(lake, 0, 0)
    for n in range(6):
        lake.view(f"v{n}", f"SELECT k, count(*) AS n FROM a WHERE x > {n} GROUP BY k")
    lake.view("w", "SELECT n, count(*) AS groups FROM v0 GROUP BY n")
    lake.refresh()
    assert calls(lake, lake.refresh) == {"log.newer": 1 + len(lake.list(parts=True))}


@pytest.mark.promise(
    "Views that read the same changes in one refresh read them once", rule="`Shared.updates`"
)
@pytest.mark.parametrize("kept_max", [1_000_000, 10])
def test_what_several_views_read_is_read_once_unless_it_is_too_much(lake, monkeypatch, kept_max):
    monkeypatch.setattr(shared, "KEPT_MAX", kept_max)
    write(lake, 0, 0)
    for n, columns in enumerate(("id, k", "id, x", "k, x")):
        lake.view(f"v{n}", f"SELECT {columns} FROM a WHERE x > 1")
    write(lake, 5, 1, many=20_000)
    found = calls(lake, lake.refresh)
    assert found["blob.open"] == (1 if kept_max > 10 else 3)
    assert all(lake.verify(f"v{n}").equal for n in range(3))


@pytest.mark.promise(
    "A view that fails stops no view that does not stand on it, and each one that fails is named",
    rule="`fresh` in `views/life.py`, `ViewsFailed`",
)
def test_each_view_that_fails_is_named(lake):
    for name in ("bad", "worse"):
        lake.view(name, f"SELECT id, CAST(x * {len(name)} AS TINYINT) AS y FROM a")
    lake.view("on bad", "SELECT count(*) AS n FROM bad")
    lake.view("good", "SELECT count(*) AS n FROM a")
    lake["a"].append(pa.table({"id": [1], "k": pa.array([1], pa.int32()), "x": pa.array([100], pa.int32())}))
    with pytest.raises(ViewsFailed, match=r"view 'bad'.*; view 'worse'") as caught:
        lake.refresh()
    assert [*caught.value.failed] == ["bad", "worse"]
    assert lake["good"].upper == lake["a"].upper and lake.verify("good").equal
    assert lake["on bad"].upper != lake["a"].upper
    lake.drop("worse")
    with pytest.raises(RefreshFailed, match="view 'bad'"):
        lake.refresh()


def test_an_input_that_is_damaged_stops_no_view_of_another(lake):
    lake.create("b", {"id": "int64"}, key=["id"]).append(pa.table({"id": [1]}))
    lake.view("of b", "SELECT count(*) AS n FROM b")
    lake.view("sums", SUMS)
    write(lake, 0, 0)
    inside.stores(lake).log.delete(lake["b"].id)
    with tidelake.open(lake.url) as again:
        with pytest.warns(TidelakeWarning, match="'b' cannot be opened"), pytest.raises(CorruptionError):
            again.refresh()
        assert again["sums"].upper == lake["a"].upper


def together(lake):
    lake.view("sums", SUMS, together="board")
    lake.view("top", TOP, together="board")
    lake.view("all", "SELECT sum(n) AS n FROM sums", together="board")


NAMES = ("sums", "top", "all")


@pytest.mark.full
@pytest.mark.promise(
    "Views that change together do so by one commit, however a refresh ends, also if one stands on another",
    rule="`_commit` in `views/refresh.py`",
    also=["views/test_random_views.py::test_views_of_many_random_queries_are_exact_at_every_time"],
)
def test_views_that_change_together_do_so_by_one_commit(tmp_path):
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("a", {"id": "int64", "k": "int32", "x": "int32"}, key=["id"])
        write(lake, 0, 0)
        together(lake)
        lake["a"].append(rows(0, 1, many=2).append_column("_diff", pa.array([-1, -1])), upper=2)
        write(lake, 5, 2)

    def again(place):
        with tidelake.open(place) as lake:
            lake.refresh("all")

    seen = set()
    for place in killed(tmp_path / "lake", again, fast=5, full=2):
        with tidelake.open(place) as lake:
            (upper,) = {lake[name].upper for name in NAMES}
            seen.add(str(upper))
            query = 'SELECT (SELECT sum(n) FROM sums)::INT AS a, (SELECT n FROM "all")::INT AS b'
            (both,) = lake.sql(query).read_all().to_pylist()
            assert both["a"] == both["b"]
            lake.refresh()
            assert {str(lake[name].upper) for name in NAMES} == {"[3]"}
    with tidelake.open(place) as lake:
        assert all(lake.verify(name, at=time).equal for name in NAMES for time in range(3))
    assert seen == {"[1]", "[3]"}


def test_a_span_of_views_that_change_together_is_as_long_as_each_allows(lake, monkeypatch):
    together(lake)
    for time in range(4):
        write(lake, 5 * time, time)
    monkeypatch.setattr(refresh, "PAIRS_MAX", 2)
    uppers, commit = [], refresh._commit

    def noted(lake, done):
        uppers.append({str(span.upper) for _, span in done})
        commit(lake, done)

    monkeypatch.setattr(refresh, "_commit", noted)
    assert {str(one.upper) for one in lake.refresh()} == {"[4]"}
    assert all(lake.verify(name, at=time).equal for name in NAMES for time in range(4))
    assert len(uppers) > 1 and all(len(one) == 1 for one in uppers)


def test_a_view_that_joins_others_begins_as_far_as_they_are(lake):
    write(lake, 0, 0)
    lake.view("sums", SUMS, together="board")
    write(lake, 5, 1)
    assert str(lake.view("top", TOP, together="board").upper) == "[1]"
    assert str(lake.view("n", "SELECT count(*) AS n FROM a", together="board").upper) == "[1]"
    assert {one.view for one in lake.refresh("sums")} == {"n", "sums", "top"}
    assert lake.view("sums", SUMS, together="board").upper == lake["top"].upper == lake["a"].upper
    lake.rebuild("top")
    write(lake, 10, 2)
    assert len(lake.refresh("top")) == 3 and lake["sums"].upper == lake["a"].upper


def test_one_that_begins_later_than_what_it_stands_on_has_its_first_contents_of_the_same_commit(lake):
    late = lake.create("late", {"k": "int32"}, key=["k"])
    late.append(pa.table({"k": pa.array([1], pa.int32()), "_time": [5]}), upper=8)
    late.advance_since(5)
    write(lake, 0, 0)
    lake.view("sums", SUMS, together="board")
    view = lake.view("both", "SELECT sums.k, n FROM sums JOIN late ON sums.k = late.k", together="board")
    for time in (3, 5, 6):
        write(lake, 5 * time, time)
    lake.refresh()
    assert str(view.since) == "[5]" and str(view.upper) == str(lake["sums"].upper) == "[7]"
    with pytest.raises(HistoryCompacted):
        view.snapshot(4)
    assert lake.verify("both", at=5).equal and lake.verify("both", at=6).equal


def test_one_that_fails_keeps_those_of_its_commit_back(lake):
    lake.view("bad", "SELECT id, CAST(x AS TINYINT) AS y FROM a", together="board")
    lake.view("sums", SUMS, together="board")
    lake.view("good", "SELECT count(*) AS n FROM a")
    lake["a"].append(pa.table({"id": [1], "k": pa.array([1], pa.int32()), "x": pa.array([500], pa.int32())}))
    with pytest.raises(ViewsFailed):
        lake.refresh()
    assert lake["sums"].upper == lake["bad"].upper != lake["good"].upper == lake["a"].upper


def test_what_cannot_change_together_is_refused(lake):
    lake.view("sums", SUMS, together="board")
    lake.view("amid", "SELECT n, count(*) AS m FROM sums GROUP BY n")
    with pytest.raises(UsageError, match="'last' cannot change together with 'sums': it stands on 'amid'"):
        lake.view("last", "SELECT max(m) AS m FROM amid", together="board")
    with pytest.raises(UsageError, match=r"one every=\.\.\."):
        lake.view("last", "SELECT max(n) AS m FROM sums", together="board", every=10)
    assert "last" not in lake
    write(lake, 0, 0)
    lake.view("n", "SELECT count(*) AS n FROM a", together="board")
    with pytest.raises(UsageError, match=r"'sums' cannot change together with 'n': .*one every=\.\.\."):
        lake.view("sums", SUMS, together="board", every=10, replace=True)
    lake.drop("n")
    lake.drop("amid")
    # It changes with no other one.
    lake.view("sums", SUMS, together="board", every=10, replace=True)
    assert lake.verify("sums").equal


def test_views_that_change_together_are_closed_for_good_together(lake):
    together(lake)
    write(lake, 0, 0)
    lake["a"].seal([])
    lake.refresh()
    assert all(lake[name].upper.closed for name in NAMES)


@pytest.mark.promise(
    "A view keeps its history as long as it is told, whatever its inputs keep",
    rule="`first_needed`, `_in_place` in `views/making.py`",
)
def test_a_view_keeps_other_history_than_its_inputs(lake):
    write(lake, 0, 0)
    short, long = lake.view("short", SUMS), lake.view("long", SUMS)
    short.retain(2)
    lake["a"].retain(4)
    for time in range(1, 10):
        write(lake, 5 * time, time)
        lake.refresh()
    lake["a"].maintain()
    assert [str(one.since) for one in (short, lake["a"], long)] == ["[8]", "[6]", "[0]"]
    with pytest.raises(HistoryCompacted):
        short.snapshot(7)
    assert [row["n"] for row in long.snapshot(0).read_all().to_pylist()] == [2, 2, 1]
    assert lake.verify("short", at=8).equal and lake.verify("long", at=6).equal
    with pytest.raises(HistoryCompacted):
        lake.verify("long", at=5)
    # It is the user's, and not of the history: a view that is made again has it, too.
    again = lake.rebuild("short")
    assert again.state().retention == short.state().retention and str(again.since) == "[8]"


def test_of_views_that_change_together_none_sees_a_time_that_its_input_has_yet_to_reach(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tidelake.views.refresh.PAIRS_MAX", 2)
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("t", {"id": "int64", "x": "int64"}, key=["id"])
        lake.write({"t": pa.table({"id": [0], "x": [0]})}, time=0)
        lake.view("a", "SELECT x % 2 AS k, max(x) AS m FROM t GROUP BY k", together="g")
        lake.view("b", "SELECT m, count(*) AS n FROM a GROUP BY m", together="g")
        for time in range(1, 5):
            lake.write({"t": pa.table({"id": [time, time + 9], "x": [time, time]})}, time=time)
        lake.refresh()
        assert all(lake.verify("b", at=time).equal for time in range(5))

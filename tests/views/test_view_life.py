"""Views in a lake: only a refresh writes to them, they keep the history they need, and inputs may change."""

import json
import time
from dataclasses import replace

import pyarrow as pa
import pytest

import tidelake
from tidelake.errors import (
    CollectionExists,
    CollectionInUse,
    CollectionIsView,
    HistoryCompacted,
    NotYetClosed,
    RebuildNeeded,
    RefreshFailed,
    UsageError,
)
from tidelake.lake.catalog.catalog import Catalog
from tidelake.model.frontier import Frontier
from tidelake.state.core.owned import owner_of
from tidelake.views import making
from tidelake.views.database import Database
from tidelake.views.definition import Definition
from tidelake.views.inputs import plan_of
from tidelake.views.refreshed import Refreshed, as_message, from_message
from tidelake.views.verifying import compared

SUMS = "SELECT k, count(*) AS n, sum(x) AS s FROM a GROUP BY k"


@pytest.fixture
def lake(tmp_path):
    with tidelake.open(tmp_path / "lake") as opened:
        opened.create("a", {"id": "int64", "k": "int32", "x": "int32"}, key=["id"])
        yield opened


def rows(*given):
    """Rows (id, k, x, time, diff) as a table."""
    names = ("id", "k", "x", "_time", "_diff")
    types = (pa.int64(), pa.int32(), pa.int32(), pa.int64(), pa.int64())
    columns = [pa.array([row[i] for row in given], type_) for i, type_ in enumerate(types)]
    return pa.table(dict(zip(names, columns, strict=True)))


def contents(view, time=None):
    found = view.snapshot(time).read_all().drop_columns(["_time", "_diff"])
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def failing(error):
    raise error


def test_a_late_correction_needs_nothing(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1), (2, 7, 5, 1, 1)), upper=2)
    view = lake.view("v", SUMS)
    assert contents(view, 0) == [(7, 1, 10)] and contents(view, 1) == [(7, 2, 15)]
    a.append(rows((2, 7, 5, 2, -1), (2, 8, 6, 2, 1), (3, 8, 1, 3, 1)), upper=5)
    (done,) = lake.refresh("v")
    assert (done.view, done.rows, str(done.upper), done.already) == ("v", 5, "[5]", False)
    assert contents(view, 1) == [(7, 2, 15)] and contents(view, 2) == [(7, 1, 10), (8, 1, 6)]
    assert contents(view) == [(7, 1, 10), (8, 2, 7)]
    assert all(lake.verify("v", at=time).equal for time in range(5))
    assert lake.refresh()[0].already


@pytest.mark.promise(
    "If the inputs of a view have more updates at one time than rows, all of it is computed again, and only "
    "what differs is stored",
    rule="`AGAIN_SHARE` in `views/spans.py`",
)
def test_all_is_computed_again_where_much_changes_at_one_time(lake):
    a = lake["a"]
    a.append(rows(*((n, n % 4, n, 0, 1) for n in range(40))), upper=1)
    lake.view("v", "SELECT k, max(x // 100) AS most, sum(x // 100) AS s FROM a GROUP BY k")
    for at, changed, step, again in ((1, 40, 1, True), (3, 20, 1, False), (5, 40, 2, False)):
        # Each row changes; of the answer, what one of them is in.
        given = []
        for n, (id_, k, x) in enumerate(contents(a)[:changed]):
            when, new = at + n % step, x + (100 if n == 7 else 1)
            given += [(id_, k, x, when, -1), (id_, k, new, when, 1)]
        a.append(rows(*given), upper=at + 2)
        (done,) = lake.refresh("v")
        assert again == any("computed again" in how for *_, how in done.stages)
        assert done.rows == 2, "what stays is not stored again"
        assert all(lake.verify("v", at=one).equal for one in range(at - 1, at + 2))
        a.advance_since(at + 1)
        a.maintain()


@pytest.mark.promise("Only its refresh writes to a view, by whichever call", rule="`not_for`")
def test_only_its_refresh_writes_to_it(lake):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    view = lake.view("v", SUMS)
    row = pa.table({"k": pa.array([7], pa.int32()), "n": [1], "s": pa.array([1], pa.decimal128(38, 0))})
    timed = row.append_column("_time", pa.array([5]))
    calls = (
        lambda: view.append(row),
        lambda: view.append(timed, lower=0, upper=6),
        lambda: view.compare_and_append(timed, 1, 6),
        lambda: view.append(row, token="once"),
        lambda: view.upsert(row),
        lambda: view.replace(row.slice(0, 0)),
        lambda: view.delete(where="TRUE"),
        lambda: view.stage(timed),
        lambda: view.seal(9),
        lambda: view.writer("w").append(row, sequence=1),
        lambda: view.erase([7], reason="asked for"),
        lambda: view.evolve(rename={"k": "key"}),
        lambda: lake.write({"v": row}),
        lambda: lake.seal({"v": 9}),
        lambda: lake.write({"v": row, "a": rows((2, 7, 1, 4, 1)).drop_columns(["_time"])}),
    )
    for call in calls:
        with pytest.raises(CollectionIsView, match="collection 'v' is a view"):
            call()
    assert lake["v"].upper == view.upper and contents(view) == [(7, 1, 10)]
    fork = lake.fork("v", "mine")
    fork.append(row)
    assert not lake.verify("v").missing and fork.state().owned is None


@pytest.mark.promise(
    "A view begins where all inputs have history, and earlier times cannot be read",
    rule="`with_owner`",
    also=["state/test_owned.py::test_times_before_its_birth_are_never_read"],
)
def test_it_begins_where_all_inputs_have_history(lake):
    a, b = lake["a"], lake.create("b", {"k": "int32"}, key=["k"])
    a.append(rows((1, 7, 10, 0, 1)), upper=6)
    b.append(pa.table({"k": pa.array([7], pa.int32()), "_time": [1]}), upper=4)
    b.advance_since(3)
    view = lake.view("v", "SELECT a.k, x FROM a JOIN b ON a.k = b.k")
    assert str(view.since) == "[3]" and str(view.upper) == "[4]"
    assert contents(view, 3) == [(7, 10)]
    with pytest.raises(HistoryCompacted):
        view.snapshot(2)
    with pytest.raises(NotYetClosed):
        view.snapshot(4)


@pytest.mark.promise(
    "What depends on no input is there from the birth of the view on", rule="`Emission.birth`"
)
def test_a_view_of_nothing_has_its_row_from_its_birth_on(lake):
    view = lake.view("v", "SELECT count(*) AS n FROM a WHERE x > 100")
    with pytest.raises(NotYetClosed):
        view.snapshot()
    lake["a"].seal(3)
    lake.refresh()
    assert contents(view, 0) == contents(view, 2) == [(0,)]


def test_views_stand_on_views_and_are_refreshed_in_order(lake):
    lake["a"].append(rows((1, 7, 10, 0, 1), (2, 8, 10, 0, 1)), upper=1)
    lake.view("z", SUMS)
    lake.view("b", "SELECT s, count(*) AS groups FROM z GROUP BY s")
    lake["a"].append(rows((3, 9, 10, 1, 1)), upper=2)
    assert [one.view for one in lake.refresh("b")] == ["z", "b"]
    assert [row[1] for row in contents(lake["b"])] == [3]
    assert lake.verify("b").equal
    assert [one.view for one in lake.refresh()] == ["z", "b"]


@pytest.mark.promise(
    "A view holds the history of its inputs from its last time on, and no more; a lost hold stops "
    "it if the history is gone, and never gives an older answer",
    rule="`keep_holds`",
    also=["::test_a_hold_that_was_lost_is_taken_again_or_the_view_must_be_rebuilt"],
)
def test_it_holds_what_the_next_refresh_reads_and_no_more(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=5)
    view = lake.view("v", SUMS)
    name = owner_of(view.id)
    assert str(a.state().critical[name].since) == "[4]"
    a.seal(9)
    a.advance_since(8)
    assert str(a.since) == "[4]"
    lake.refresh()
    assert str(a.since) == "[8]"
    with pytest.raises(CollectionInUse, match="view"):
        lake.drop("a")
    lake.drop("v")
    assert not a.state().critical and lake.drop("a")


def test_a_hold_that_was_lost_is_taken_again_or_the_view_must_be_rebuilt(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=5)
    view = lake.view("v", SUMS)
    name = owner_of(view.id)
    a.critical_hold(name).drop()
    a.append(rows((2, 7, 1, 6, 1)), upper=8)
    assert not lake.refresh()[0].already and name in a.state().critical
    a.critical_hold(name).drop()
    a.append(rows((3, 7, 1, 9, 1)), upper=12)
    a.advance_since(11)
    with pytest.raises(RebuildNeeded, match=r"no longer has the history .* lake.rebuild\('v'\)"):
        lake.refresh()
    assert contents(view, 7) == [(7, 2, 11)]
    rebuilt = lake.rebuild("v")
    assert contents(rebuilt) == [(7, 3, 12)] and "v (rebuilding)" not in lake
    assert [*a.state().critical] == [owner_of(rebuilt.id)]


def test_holds_of_views_that_are_gone_are_dropped_by_the_next_refresh_of_all(lake):
    a = lake["a"]
    a.seal(3)
    a.critical_hold(owner_of("0" * 32))
    a.critical_hold("mine")
    lake.refresh()
    assert [*a.state().critical] == ["mine"]


@pytest.mark.promise(
    "Inputs and columns are found by their ids; a used column that is gone or retyped, an erasure "
    "and a drop stop the view",
    rule="`current_names`",
    also=["::test_an_input_that_has_become_something_else_stops_the_view"],
)
def test_inputs_and_columns_are_found_by_their_ids(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("v", SUMS)
    lake.rename("a", "b")
    a.evolve(rename={"x": "y"})
    a.evolve(a.schema.append(pa.field("x", pa.string())))
    a.append(
        pa.table({"id": [2], "k": pa.array([7], pa.int32()), "y": pa.array([1], pa.int32()), "x": ["?"]})
    )
    lake.refresh()
    assert contents(lake["v"]) == [(7, 2, 11)] and lake.verify("v").equal


@pytest.mark.parametrize("change", ["widened", "dropped", "erased", "gone"])
def test_an_input_that_has_become_something_else_stops_the_view(lake, change):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=1)
    view = lake.view("v", SUMS)
    match change:
        case "widened":
            a.evolve(pa.schema([("id", pa.int64()), ("k", pa.int32()), ("x", pa.int64())]))
        case "dropped":
            a.evolve(pa.schema([("id", pa.int64()), ("k", pa.int32())]), drop=["x"])
        case "erased":
            remains = a.erase([1], reason="asked for").remains
            assert remains[0] == "view 'v', and what was made of it: lake.rebuild('v')"
        case "gone":
            lake.drop("a", force=True)
    if change != "gone":
        a.seal(4)
    with pytest.raises(RebuildNeeded, match=r"lake.rebuild\('v'\)"):
        lake.refresh()
    assert contents(view) == [(7, 1, 10)] and str(view.upper) == "[1]"
    if change in ("widened", "erased"):
        assert contents(lake.rebuild("v")) == ([] if change == "erased" else [(7, 1, 10)])


def test_a_column_that_the_query_does_not_use_may_go(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("v", "SELECT k FROM a")
    a.evolve(pa.schema([("id", pa.int64()), ("k", pa.int32())]), drop=["x"])
    a.seal(4)
    lake.refresh()
    assert lake.verify("v").equal and str(lake["v"].upper) == "[4]"


@pytest.mark.promise(
    "A query without an answer stops the refresh, which names the view and the stage and leaves nothing",
    rule="`RefreshFailed`",
    also=["::test_a_view_that_fails_keeps_no_other_one_back"],
)
def test_a_query_without_an_answer_stops_the_refresh_and_leaves_nothing(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=1)
    view = lake.view("v", "SELECT k, CAST(x AS TINYINT) AS x FROM a")
    a.append(rows((2, 7, 1000, 1, 1)), upper=2)
    before = view.state().seqno
    with pytest.raises(RefreshFailed, match=r"view 'v' cannot be refreshed: its stage \d+ \(map\).*1000"):
        lake.refresh()
    assert lake["v"].state().seqno == before and contents(view) == [(7, 10)]


def test_a_view_that_fails_keeps_no_other_one_back(lake):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("bad", "SELECT k, CAST(x AS TINYINT) AS x FROM a")
    lake.view("good", SUMS)
    lake["a"].append(rows((2, 7, 1000, 1, 1)), upper=2)
    with pytest.raises(RefreshFailed, match="view 'bad'"):
        lake.refresh()
    assert contents(lake["good"]) == [(7, 2, 1010)]


@pytest.mark.promise("A view is not gone on with by another engine, or in other stages", rule="`plan_of`")
def test_a_definition_of_another_engine_or_plan_is_not_gone_on_with(lake):
    lake["a"].seal(1)
    view = lake.view("v", SUMS)
    definition = Definition.of("v", view.state())
    engine = Database()
    assert plan_of("v", definition, engine)
    for other, why in (({"engine": "duckdb 1.0"}, "duckdb 1.0"), ({"plan": "0"}, "other stages")):
        with pytest.raises(RebuildNeeded, match=why):
            plan_of("v", replace(definition, **other), engine)


def test_a_definition_says_its_dialect_and_settings_and_one_without_them_is_read(lake):
    lake["a"].seal(1)
    view = lake.view("v", SUMS)
    state = view.state()
    definition = Definition.of("v", state)
    assert (definition.dialect, definition.settings) == ("duckdb", ())
    told = json.loads(state.owned.definition)
    del told["settings"]
    older = replace(state, owned=replace(state.owned, definition=json.dumps(told)))
    assert Definition.of("v", older) == definition
    spark = replace(definition, dialect="spark", settings=(("zone", "UTC"),))
    kept = replace(state, owned=spark.owned(view.id))
    assert Definition.of("v", kept) == spark


def test_what_cannot_be_a_view_is_refused_and_nothing_is_made(lake):
    lake.create("days", {"k": "int32"}, key=["k"], time="date")
    lake.create("pairs", {"k": "int32"}, key=["k"], time="tuple(2)")
    wrong = {
        "SELECT days.k FROM days JOIN a ON a.k = days.k": "need the same",
        "SELECT k FROM pairs": "times with an order",
        "SELECT k FROM nowhere": "nowhere",
        "SELECT 1 AS one": "no collection",
        "SELECT k, now() AS t FROM a": "now",
        "SELECT k, to_days(k) AS i FROM a": "no collection keeps INTERVAL",
    }
    for sql, why in wrong.items():
        with pytest.raises(UsageError, match=why):
            lake.view("v", sql)
    with pytest.raises(CollectionExists, match="no view"):
        lake.view("a", "SELECT k FROM a")
    lake.view("v", SUMS)
    assert lake.view("v", SUMS).id == lake["v"].id
    with pytest.raises(CollectionExists, match="another query"):
        lake.view("v", "SELECT k FROM a")
    with pytest.raises(UsageError, match="no view"):
        lake.verify("a")
    assert lake.list() == ["a", "days", "pairs", "v"]


def test_explain_shows_the_stages(lake):
    lake.view("v", "SELECT max(x) AS hi FROM a")
    found = lake.explain("v")
    assert found.sql == "SELECT max(x) AS hi FROM a" and "redo" in str(found) and found.stages
    lake.view("w", "SELECT median(x) AS m FROM a")
    assert lake.explain("w").whole and "which is in its only group" in str(lake.explain("w"))


def test_explain_tells_what_a_view_waits_for_and_what_it_keeps(lake):
    a, b = lake["a"], lake.create("b", {"k": "int32"}, key=["k"])
    a.append(rows((1, 7, 10, 0, 1)), upper=2)
    b.seal(2)
    lake.view("v", "SELECT a.k, count(*) AS n FROM a JOIN b ON a.k = b.k GROUP BY a.k")
    a.seal(9)
    found = lake.explain("v")
    assert [(name, str(upper), behind) for name, upper, behind in found.inputs] == [
        ("a", "[9]", 7),
        ("b", "[2]", 0),
    ]
    assert found.kept and all("stage" in what for what, _, _ in found.kept) and not found.whole
    assert "not seen yet" in str(found) and "sums of stage" in str(found)


@pytest.mark.promise(
    "`explain` tells what the last refresh read, wrote and took, whichever process made it, or nothing",
    rule="`last_refresh` in `views/explaining.py`",
    also=["::test_explain_tells_of_no_refresh_that_is_not_the_last"],
)
def test_explain_tells_what_the_last_refresh_did(lake, tmp_path):
    lake["a"].append(rows((1, 7, 10, 0, 1), (2, 8, 5, 0, 1)), upper=1)
    lake.view("v", SUMS)
    lake["a"].append(rows((3, 7, 1, 1, 1)), upper=2)
    lake.refresh("v")
    (idle,) = lake.refresh("v")
    with tidelake.open(tmp_path / "lake") as other:
        told = other.explain("v")
    found = told.last
    # One update; all sums, as they are few; a row, and that which it replaces.
    assert found.rows == 2 and found.took_s > 0
    assert found.stages == ((0, 1, 1, ""), (1, 2, 2, "all: a key, of 1, has fewer than 8 rows"))
    assert idle.already and not idle.stages
    assert (str(found.lower), str(found.upper), found.read) == ("[1]", "[2]", {"a": 1})
    assert "last refresh: wrote 2 updates" in str(told)


def test_explain_tells_of_no_refresh_that_is_not_the_last(lake):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("v", SUMS, together="board")
    lake.view("w", "SELECT max(k) AS k FROM a", together="board")
    assert lake.explain("v").last.rows == lake.explain("w").last.rows == 1
    lake["a"].append(rows((2, 7, 1, 1, 1)), upper=2)
    lake.refresh()
    # The commit of views that change together closes one of them without a row.
    assert lake.explain("v").last.rows == 2 and lake.explain("w").last is None


def test_what_a_refresh_of_many_stages_says_of_itself_is_bounded():
    stages = tuple((number, 1, 2, "all") for number in range(1_000))
    done = Refreshed("v", Frontier.of(1), Frontier.of(2), rows=3, read={"a": 4}, stages=stages)
    assert from_message(as_message({"id": done}), "id", "v") == replace(done, stages=())
    few = replace(done, stages=stages[:9])
    assert (
        from_message(as_message({"id": few}), "id", "v") == few
        and from_message(as_message({"id": few}), "other", "v") is None
    )
    names = {f"{number:032}": few for number in range(100)}
    assert (
        as_message(names) == ""
        and from_message("refresh all", "id", "v") is from_message("", "id", "v") is None
    )


def test_rows_that_differ_in_last_digits_are_compared_with_each_other():
    below, above = 10.0 - 1e-12, 20.0 + 1e-9
    missing, unexpected = (pa.table({"f": floats}) for floats in ([20.0, below], [10.0, above]))
    assert compared("v", 0, 2, missing, unexpected).equal
    assert not compared("v", 0, 2, missing, pa.table({"f": [10.0, 20.1]})).equal


def test_a_view_that_was_tampered_with_does_not_verify(lake):
    from tidelake.lake.api.handle import shard_of

    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=2)
    lake.view("v", "SELECT k, x FROM a")
    strange = lake["v"]
    shard_of(strange).writes_as = owner_of(strange.id)
    more = pa.table({"k": pa.array([1], pa.int32()), "x": pa.array([1], pa.int32()), "_time": [2]})
    lake["a"].seal(3)
    strange.compare_and_append(more, 2, 3)
    found = lake.verify("v")
    assert not found.equal and found.unexpected == ((1, 1),) and not found.missing
    assert lake.verify("v", at=1).equal


def test_verify_tells_that_a_query_leaves_a_choice(lake):
    lake["a"].append(rows(*((n, 7, 50 - n, 0, 1) for n in range(50))), upper=1)
    lake.view("v", "SELECT x FROM a ORDER BY k LIMIT 1")
    found = lake.verify("v")
    # The first row of a tie is any one to DuckDB.
    assert found.unexpected == ((1,),) and len(found.missing) == 1 and "leaves ties" in found.notes[0]


def test_a_copy_of_a_lake_with_views_can_be_copied_again(lake, tmp_path):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("v", SUMS)
    with tidelake.open(tmp_path / "copy") as copy:
        lake.copy(copy)
        assert copy.refresh() == [] and contents(copy["v"]) == [(7, 1, 10)]
        a.append(rows((2, 7, 1, 1, 1)), upper=2)
        lake.refresh()
        lake.copy(copy)
        assert contents(copy["v"]) == [(7, 2, 11)]


def test_a_view_is_closed_for_good_with_its_inputs(lake):
    lake["a"].append(rows((1, 7, 10, 4, 1)), upper=[])
    view = lake.view("v", SUMS)
    assert view.upper.closed and contents(view, 9) == [(7, 1, 10)]
    assert lake.verify("v", at=9).equal and lake.refresh()[0].already


def test_errors_name_views_and_collections_as_the_user_does(lake):
    lake.view("v", SUMS)
    with pytest.raises(CollectionInUse, match="'a' is held by view 'v': "):
        lake.drop("a")
    lake.rename("a", "b")
    with pytest.raises(UsageError, match=r"'v' reads 'a', called 'b' now: .*lake.view\('v', sql, rep"):
        lake.rebuild("v")
    for ask in (lambda: lake.view("w", SUMS), lambda: lake.view("v", SUMS)):
        with pytest.raises(UsageError, match="reads 'a', and there is no collection of this name now"):
            ask()
    with pytest.raises(UsageError, match="other statements: keep one SELECT"):
        lake.view("w", "SELECT k FROM b; DROP TABLE b")


@pytest.mark.promise(
    "A view with a grid is exact at its times, shows between them what it showed at the last one, and does "
    "not depend on its refreshes",
    rule="`Definition.shown`, `Definition.seen`",
    also=["::test_a_grid_does_not_depend_on_the_refreshes_and_ends_with_its_inputs"],
)
def test_a_grid_is_exact_at_its_times_and_between_them_as_at_the_last_one(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 3, 1), (2, 7, 1, 10, 1)), upper=12)
    view = lake.view("v", SUMS, every=10)
    assert str(view.upper) == "[20]"
    assert [contents(view, time) for time in (0, 9, 10, 19)] == [[], [], [(7, 2, 11)], [(7, 2, 11)]]
    a.append(rows((3, 7, 1, 12, 1), (3, 7, 1, 14, -1), (4, 8, 1, 20, 1), (5, 8, 1, 21, 1)), upper=31)
    assert str(a.state().critical[owner_of(view.id)].since) == "[10]"
    (done,) = lake.refresh()
    assert done.rows == 3 and str(view.upper) == "[40]"
    assert contents(view, 29) == [(7, 2, 11), (8, 1, 1)] and contents(view, 30) == [(7, 2, 11), (8, 2, 2)]
    assert all(lake.verify("v", at=time).equal for time in (0, 9, 10, 20, 29, 30, 39))
    lake.view("over", "SELECT sum(n) AS n FROM v", every=20)
    assert contents(lake["over"], 39) == [(3,)] and lake.verify("over", at=39).equal
    with pytest.raises(CollectionExists, match="another query"):
        lake.view("v", SUMS, every=5)


def test_a_grid_does_not_depend_on_the_refreshes_and_ends_with_its_inputs(lake):
    a = lake["a"]
    a.seal(4)
    a.advance_since(3)
    one = lake.view("one", SUMS, every=4)
    for now in range(4, 30):
        a.append(rows((now, now % 3, 1, now, 1), (now - 1, (now - 1) % 3, 1, now, -1)), upper=now + 1)
        if now % 5 == 0:
            lake.refresh()
    a.append(rows((99, 1, 1, 33, 1)), upper=[])
    lake.refresh()
    many = lake.view("many", SUMS, every=4)
    kept = [
        [*view.snapshot(4).read_all().to_pylist(), *view.updates(5, 50).read_all().to_pylist()]
        for view in (one, many)
    ]
    assert kept[0] == kept[1] and one.upper.closed and str(one.since) == "[4]"
    assert contents(one, 35) != contents(one, 36) == contents(one, 99)


def test_a_grid_of_a_clock_is_a_span(lake):
    events = lake.create("events", {"id": "int64"}, key=["id"], time="us")
    hour = 3_600_000_000
    events.append(pa.table({"id": [1, 2], "_time": [hour // 2, hour + 1]}), lower=0, upper=3 * hour)
    view = lake.view("v", "SELECT count(*) AS n FROM events", every="1h")
    assert [contents(view, time) for time in (hour - 1, hour, 2 * hour)] == [[(0,)], [(1,)], [(2,)]]
    with pytest.raises(UsageError, match="every 1h is a span of a clock"):
        lake.view("w", SUMS, every="1h")
    with pytest.raises(UsageError, match="every 0 must be a whole number"):
        lake.view("w", SUMS, every=0)


@pytest.mark.promise(
    "A view that is further behind an input than it may be holds its history no longer, and is refreshed or "
    "says that it must be rebuilt",
    rule="`let_go`, `keep_holds`",
)
def test_a_view_that_is_too_far_behind_holds_its_inputs_no_longer(lake):
    a, b = lake["a"], lake.create("b", {"k": "int32"}, key=["k"])
    a.seal(5)
    b.seal(5)
    view = lake.view("v", "SELECT a.k, x FROM a JOIN b ON a.k = b.k", max_lag=10)
    name = owner_of(view.id)
    a.append(rows((1, 7, 10, 8, 1)), upper=15)
    lake.refresh()
    assert name in a.state().critical, "it waits for b, and is not too far behind"
    a.seal(16)
    lake.refresh()
    assert name not in a.state().critical and name in b.state().critical
    a.seal(20)
    b.append(pa.table({"k": pa.array([7], pa.int32())}), time=19)
    assert not lake.refresh()[0].already, "the history is still there"
    assert name in a.state().critical and contents(view) == [(7, 10)]
    a.seal(50)
    lake.refresh()
    a.advance_since(45)
    b.seal(50)
    with pytest.raises(RebuildNeeded, match=r"not behind by more than 10; lake.rebuild\('v'\)"):
        lake.refresh()
    assert contents(lake.rebuild("v")) == [(7, 10)] and lake.refresh()[0].already
    assert str(a.state().critical[owner_of(lake["v"].id)].since) == "[49]"


@pytest.mark.promise(
    "A changed query takes the place of a view in one commit, when it is as far; until then, and if it fails,"
    " readers see the old one",
    rule="`_in_place`",
)
def test_a_changed_query_takes_the_place_of_a_view_when_it_is_as_far(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=2)
    old = lake.view("v", SUMS)
    lake.view("over", "SELECT count(*) AS c FROM v")
    a.append(rows((2, 8, 1, 2, 1)), upper=3)
    new = lake.view("v", "SELECT k, max(x) AS hi FROM a GROUP BY k", replace=True)
    assert new.id != old.id and str(new.upper) == "[3]" and contents(new) == [(7, 10), (8, 1)]
    assert lake.view("v", "SELECT k, max(x) AS hi FROM a GROUP BY k", replace=True).id == new.id
    assert lake.list() == ["a", "over", "v"] and owner_of(old.id) not in a.state().critical
    with pytest.raises(RebuildNeeded, match="its input 'v' was dropped"):
        lake.refresh("over")
    assert contents(lake.rebuild("over")) == [(2,)]
    lake.create("b", {"k": "int32"}, key=["k"])
    with pytest.raises(UsageError, match=r"closed up to \[3\], and an input of its new query up to \[0\]"):
        lake.view("v", "SELECT k FROM b", replace=True)
    with pytest.raises(RefreshFailed, match="view 'v' cannot be refreshed"):
        lake.view("v", "SELECT CAST('x' || k AS INTEGER) AS i FROM a", replace=True)
    with pytest.raises(CollectionExists, match="no view"):
        lake.view("a", SUMS, replace=True)
    assert lake["v"].id == new.id and lake.list() == ["a", "b", "over", "v"]


def test_a_view_does_not_stand_on_the_one_whose_place_it_takes(lake):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=2)
    lake.view("v", SUMS)
    lake.view("under", "SELECT k, n FROM v")
    lake.view("top", "SELECT k FROM under JOIN a USING (k)")
    for read in ("v", "under", "top"):
        with pytest.raises(UsageError, match=f"reads '{read}', which is that view or stands on it"):
            lake.view("v", f"SELECT k FROM {read}", replace=True)
    # What takes the name of its own input reads itself when it is made again.
    keys = lake.view("keys", "SELECT k FROM a")
    lake.rename_all({"a": "b", "keys": "a"})
    with pytest.raises(UsageError, match="view 'a' cannot stand on what it takes the place of"):
        lake.rebuild("a")
    assert lake["a"].id == keys.id and lake.list() == ["a", "b", "top", "under", "v"]
    assert lake.refresh() and lake.verify("top").equal


def test_an_input_that_is_swapped_or_forked_is_the_same_input(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("v", SUMS)
    fork = lake.fork("a", "b")
    assert not fork.state().critical, "a fork keeps nothing for the views of its source"
    lake.swap("a", "b")
    fork.append(rows((2, 8, 1, 1, 1)), upper=2)
    lake["b"].append(rows((3, 9, 2, 1, 1)), upper=2)
    lake.refresh()
    assert contents(lake["v"]) == [(7, 1, 10), (9, 1, 2)] and lake.verify("v").equal
    assert contents(lake.rebuild("v")) == [(7, 1, 10), (8, 1, 1)], "names mean what they mean now"


NAMES = ("n", "a0", "r0", "w0", "w", "c0", "_t", "_m", "l", "d")


@pytest.mark.promise(
    "Columns may be called as stages call their sums and results; frames, aliases in ORDER BY and "
    "`count_if` mean what they mean to DuckDB",
    rule="`FromCollection.names`, `WindowCalls` in `views/query/windows.py`",
    also=["::test_what_would_mean_something_else_is_refused"],
)
@pytest.mark.parametrize(
    "query",
    [
        *(f"SELECT {name}, count(*) AS found FROM t GROUP BY {name}" for name in NAMES),
        *(f"SELECT {name}, max(id) AS most FROM t GROUP BY {name}" for name in NAMES),
        *(f"SELECT id, {name}, rank() OVER (ORDER BY id) AS place FROM t" for name in NAMES),
        *(f"SELECT DISTINCT ON ({name}) {name}, id FROM t ORDER BY {name}, id" for name in NAMES),
        "SELECT id, sum(id) OVER (ORDER BY n GROUPS CURRENT ROW) AS s FROM t",
        "SELECT id, sum(id) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING "
        "EXCLUDE GROUP) AS s FROM t",
        "SELECT id, sum(id) OVER (ORDER BY n RANGE BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) AS s "
        "FROM t",
        "SELECT -id AS id, id AS z FROM t ORDER BY abs(id - 1) LIMIT 1",
        "SELECT n AS id, id AS z FROM t ORDER BY (id), z LIMIT 2",
        "SELECT count_if(id > 5) AS c FROM t WHERE id > 9",
        "SELECT n, count_if(w > 5) AS c, count_if(id > 5) AS e FROM t GROUP BY n",
        "SELECT 5 AS five FROM t GROUP BY ()",
    ],
)
def test_what_an_attack_found_is_the_query_over_the_contents(lake, query):
    t = lake.create("t", {"id": "int64"} | dict.fromkeys(NAMES, "int64"), key=["id"])
    table = {"id": [1, 2, 3], **{name: [5, 5, 6] for name in NAMES}, "w": [None, None, None]}
    t.append(pa.table({name: pa.array(values, pa.int64()) for name, values in table.items()}), time=0)
    lake.view("v", query)
    assert lake.verify("v").equal
    t.upsert(pa.table({"id": [2, 9], **{name: [6, 5] for name in NAMES}}), time=1)
    lake.refresh()
    assert lake.verify("v").equal and lake.verify("v", at=0).equal


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sum(id) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) AS s FROM a",
        "SELECT id, first_value(id) OVER (ORDER BY k RANGE BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM a",
        'SELECT id AS "#1" FROM a',
    ],
)
def test_what_would_mean_something_else_is_refused(lake, query):
    with pytest.raises(UsageError, match="a view cannot have"):
        lake.view("v", query)


@pytest.mark.promise(
    "A view whose first refresh has no answer is not left behind", rule="`make` in `views/making.py`"
)
def test_a_view_that_cannot_be_computed_at_first_is_not_there(lake):
    lake["a"].append(rows((1, 7, 0, 0, 1)), upper=1)
    with pytest.raises(RefreshFailed):
        lake.view("v", "SELECT id, CAST('x' || x AS INTEGER) AS i FROM a")
    assert "v" not in lake and not lake["a"].state().critical
    assert lake.refresh() == []
    lake.view("v", "SELECT id, TRY_CAST('x' || x AS INTEGER) AS i FROM a")


@pytest.mark.promise(
    "A making that fails leaves its name free, whatever the error", rule="`make` in `views/making.py`"
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, KeyError])
@pytest.mark.parametrize("place", ["refreshed", "_create_owned"])
def test_a_making_that_is_interrupted_leaves_the_name_free(lake, monkeypatch, error, place):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    of = making if place == "refreshed" else type(lake)
    was = getattr(of, place)

    def fails(*args, **named):
        was(*args, **named)
        failing(error)

    with monkeypatch.context() as patch:
        patch.setattr(of, place, fails)
        with pytest.raises(error):
            lake.view("v", SUMS)
    assert lake.list(parts=True) == ["a"] and not lake["a"].state().critical
    lake.view("v", SUMS)
    # A name that was taken once stays so.
    lake.drop("v")
    with monkeypatch.context() as patch:
        patch.setattr(of, place, fails)
        with pytest.raises(error):
            lake.view("v", SUMS, allow_recreate=True)
    with pytest.raises(CollectionExists, match="allow_recreate=True"):
        lake.view("v", SUMS)
    view = lake.view("v", SUMS, allow_recreate=True)
    # So does the view while another one is made to take its place.
    with monkeypatch.context() as patch:
        patch.setattr(of, place, fails)
        with pytest.raises(error):
            lake.rebuild("v")
    with monkeypatch.context() as patch:
        patch.setattr(type(lake), "_swapped", lambda *_: failing(error))
        with pytest.raises(error):
            lake.view("v", "SELECT * FROM a", replace=True)
    assert lake.list() == ["a", "v"] and lake["v"].id == view.id
    assert [*lake["a"].state().critical] == [owner_of(view.id)]


def test_the_next_call_goes_on_with_a_view_whose_making_was_killed(lake, monkeypatch):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    with monkeypatch.context() as patch:
        patch.setattr(making, "refreshed", lambda *_, **__: None)
        lake.view("v", SUMS)
    assert contents(lake.view("v", SUMS), 0) == [(7, 1, 10)]


def test_a_name_whose_drop_was_not_finished_is_one_that_was_dropped(lake, monkeypatch):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("v", SUMS)
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "unname", lambda *_, **__: failing(KeyError))
        with pytest.raises(KeyError):
            lake.drop("v")
    with pytest.raises(CollectionExists, match="allow_recreate=True"):
        lake.view("v", SUMS)
    assert contents(lake.view("v", SUMS, allow_recreate=True)) == [(7, 1, 10)]


@pytest.mark.promise(
    "Upkeep and `maintain` bring views up to their inputs; a view that fails is named and stops no other",
    rule="`Upkeep._refresh`, `fresh` in `views/life.py`",
    also=["cli/test_view_commands.py::test_maintain_refreshes_views_and_one_that_fails_stops_no_other"],
)
@pytest.mark.promise(
    "Upkeep and `maintain` bring views up to their inputs; one that fails is named and stops no other",
    rule="`Upkeep._refresh`, `fresh` in `views/life.py`",
    also=["cli/test_view_commands.py::test_maintain_refreshes_views_and_one_that_fails_stops_no_other"],
)
def test_upkeep_keeps_views_up_to_their_inputs_and_tells_of_each_that_fails(lake):
    a = lake["a"]
    a.append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("bad", "SELECT k, CAST(x AS TINYINT) AS x FROM a")
    good = lake.view("good", SUMS)
    lake.view("over", "SELECT count(*) AS groups FROM good")
    a.append(rows((2, 7, 1000, 1, 1)), upper=2)
    with lake.upkeep(interval_s=0.01) as upkeep:
        until(lambda: contents(lake["over"], 1) == [(1,)] and upkeep.errors)
        assert [*upkeep.errors] == ["bad"] and isinstance(upkeep.last_error, RefreshFailed)
        a.append(rows((2, 7, 1000, 2, -1), (3, 8, 1, 2, 1)), upper=3)
        until(lambda: contents(lake["over"], 2) == [(2,)])
    assert contents(good) == [(7, 1, 10), (8, 1, 1)]


def test_upkeep_of_some_collections_refreshes_the_views_among_them(lake):
    for name in ("v", "w"):
        lake.view(name, SUMS)
    with lake.upkeep(["w"], interval_s=0.01):
        lake["a"].seal(3)
        until(lambda: str(lake["w"].upper) == "[3]")
    assert str(lake["v"].upper) == "[0]"


def until(condition):
    """Wait until something holds; a read of what is not closed yet is no answer."""
    for _ in range(1_000):
        try:
            if condition():
                return
        except NotYetClosed:
            pass
        time.sleep(0.02)
    raise AssertionError("it does not come")


def test_collections_are_named_without_regard_to_case_as_by_the_engine(lake):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("v", "SELECT p.K, q.x FROM A p JOIN a q ON p.k = Q.k")
    assert contents(lake["v"]) == [(7, 10)] and lake.verify("v").equal
    lake.create("Pair", {"k": "int32"}, key=["k"])
    lake.create("pair", {"k": "int32"}, key=["k"])
    lake.view("w", "SELECT k FROM Pair")
    with pytest.raises(UsageError, match="'PAIR', which may be 'Pair' or 'pair': write one"):
        lake.view("x", "SELECT k FROM PAIR")


def test_a_rebuild_spares_a_collection_of_its_name(lake):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    lake.view("v", SUMS)
    theirs = lake.create("v (rebuilding)", {"id": "int64"}, key=["id"])
    with pytest.raises(CollectionExists, match="rename that"):
        lake.rebuild("v")
    assert lake["v (rebuilding)"].id == theirs.id and lake.verify("v").equal
    lake.drop("v (rebuilding)")
    theirs = lake.view("v (rebuilding)", SUMS, allow_recreate=True)
    with pytest.raises(CollectionExists, match="rename that"):
        lake.rebuild("v")
    assert lake["v (rebuilding)"].id == theirs.id


def test_what_a_collection_cannot_keep_is_told_of_the_stage(lake):
    lake["a"].append(rows((1, 7, 10, 0, 1)), upper=1)
    late = "SELECT k, CASE WHEN x > 10 THEN CAST('24:00:00' AS TIME) END AS u FROM a"
    views = {"kept": f"SELECT k, max(u) AS m FROM ({late}) GROUP BY k", "shown": f"SELECT k, u FROM ({late})"}
    for name, sql in views.items():
        lake.view(name, sql)
    lake["a"].append(rows((2, 7, 11, 1, 1)), upper=2)
    for name, said in {
        "kept": "rows of stage . by .*column 'c1'",
        "shown": "answer fails: column 'u'",
    }.items():
        with pytest.raises(RefreshFailed, match=said):
            lake.refresh(name)


def test_a_column_that_the_engine_lacks_is_named_with_its_collection(lake):
    lake.create("wide", pa.schema([("k", pa.int64()), ("w", pa.decimal256(50, 2))]), key=["k"])
    with pytest.raises(UsageError, match=r"'wide': column 'w' is a decimal256\(50, 2\), .* no view"):
        lake.view("v", "SELECT k FROM wide")


def test_verify_refuses_a_row_that_is_there_too_often_to_be_repeated(lake):
    many = lake.create("many", {"id": "int64"}, key=["id"])
    many.append(pa.table({"id": [1], "_diff": [2**62]}))
    lake.view("total", "SELECT count(*) AS n FROM many")
    with pytest.raises(UsageError, match=r"'many' has a row 4,611,686,018,427,387,904 times, and verify"):
        lake.verify("total")

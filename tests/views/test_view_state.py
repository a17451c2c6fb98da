"""What a view keeps beside itself: read instead of the inputs, made again if it is missing, gone with it."""

import pyarrow as pa
import pytest

import inside
import tidelake
from tidelake.errors import CollectionIsView, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.state.core.owned import owner_of
from tidelake.views import state as view_state
from tidelake.views.state import states_of

SQL = {
    "sums": "SELECT k, count(*) AS n, sum(x) AS s FROM a GROUP BY k",
    "most": "SELECT k, max(x) AS hi FROM a GROUP BY k",
    "pairs": "SELECT a.id, b.y FROM a JOIN b ON a.k = b.k",
    "lists": "SELECT count(*) AS n FROM (SELECT DISTINCT [k, x] AS pair FROM a)",
}
KEPT = {"sums": 1, "most": 1, "pairs": 1, "lists": 2}


def filled(place, names=SQL):
    """A lake with views over two tables of 400 and 40 rows."""
    lake = tidelake.open(place)
    lake.create("a", {"id": "int64", "k": "int64", "x": "int64"}, key=["id"])
    lake.create("b", {"k": "int64", "y": "int64"}, key=["k"])
    ids = range(400)
    a = pa.table({"id": ids, "k": [one % 40 for one in ids], "x": [one % 7 for one in ids]})
    lake.write({"a": a, "b": pa.table({"k": range(40), "y": range(40)})}, time=0)
    for name in names:
        lake.view(name, SQL[name])
    return lake


def change(lake, time):
    """A row that comes, one that goes, and another `y`."""
    rows = {"id": [1000 + time, time], "k": [time % 3, time % 40], "x": [50 + time, time % 7]}
    b = {"k": [5, 5], "y": [5 if time == 1 else 99 + time, 100 + time], "_diff": [-1, 1]}
    lake.write({"a": pa.table({**rows, "_diff": [1, -1]}), "b": pa.table(b)}, time=time)


def updates(view):
    (upper,) = view.upper
    return sorted(tuple(map(str, row.values())) for row in view.updates(0, upper).read_all().to_pylist())


@pytest.mark.promise(
    "Of the time before a span, a refresh reads what meets a change, from an input by its key or from what "
    "the view keeps",
    rule="`views/reach.py`, `views/state.py`",
    also=["::test_what_is_kept_is_found_by_the_id_of_the_view"],
)
def test_a_refresh_reads_only_what_meets_a_change(tmp_path):
    with filled(tmp_path) as lake:
        change(lake, 1)
        read = {one.view: one.read for one in lake.refresh()}
        # Two updates of `a`, four of both; and the groups, or the partners, of these.
        assert read["sums"] == {"a": 2} and read["lists"] == {"a": 2}
        assert 2 < read["most"]["a"] <= 24 and read["pairs"]["a"] <= 24 and read["pairs"]["b"] <= 6
        assert all(lake.verify(name).equal for name in SQL)
        assert {name: len(states_of(lake, lake[name].id)) for name in SQL} == KEPT


@pytest.mark.promise(
    "What a view keeps and is missing, is of another version, or lacks the time, is made again from the "
    "inputs; the updates of the view are the same",
    rule="`ViewState.ready`",
)
def test_what_is_missing_or_strange_is_made_again(tmp_path, monkeypatch):
    with filled(tmp_path / "sound") as lake:
        for time in range(1, 5):
            change(lake, time)
            lake.refresh()
        wanted = {name: updates(lake[name]) for name in SQL}
    with filled(tmp_path / "lake") as lake:
        change(lake, 1)
        lake.refresh()
        for name in SQL:
            for one in states_of(lake, lake[name].id):
                lake.drop(one.name)
        change(lake, 2)
        lake.refresh()
        monkeypatch.setattr(view_state, "FORMAT", 2)
        change(lake, 3)
        lake.refresh()
        for name in SQL:
            told = [one.state().owned.definition for one in states_of(lake, lake[name].id)]
            assert all('"format": 2' in one for one in told)
            for one in states_of(lake, lake[name].id):
                # A process died when this one was made, and nothing had been written to it.
                made_without_rows(lake, name, one)
        change(lake, 4)
        lake.refresh()
        assert {name: updates(lake[name]) for name in SQL} == wanted
        assert {name: len(states_of(lake, lake[name].id)) for name in SQL} == KEPT


def made_without_rows(lake, name, one):
    owned = one.state().owned
    lake.drop(one.name)
    lake._create_owned(
        one.name,
        one.schema,
        key=one.key,
        time=one.domain,
        owned=lambda _: owned,
        since=lake[name].since,
        allow_recreate=True,
    )


@pytest.mark.promise(
    "A refresh that ends between what a view keeps and the view is finished by the next one",
    rule="`ViewState.append`",
)
def test_a_refresh_that_ends_before_it_writes_the_view_is_finished(tmp_path, monkeypatch):
    with filled(tmp_path / "sound") as lake:
        for time in (1, 2):
            change(lake, time)
            lake.refresh()
        wanted = {name: updates(lake[name]) for name in SQL}
    with filled(tmp_path / "lake") as lake:
        change(lake, 1)
        append = Collection.compare_and_append

        def failing(self, rows, lower, upper, **told):
            if self.name in SQL:
                raise KeyboardInterrupt
            return append(self, rows, lower, upper, **told)

        monkeypatch.setattr(Collection, "compare_and_append", failing)
        for name in SQL:
            with pytest.raises(KeyboardInterrupt):
                lake.refresh(name)
        monkeypatch.undo()
        ahead = [one.upper for name in SQL for one in states_of(lake, lake[name].id)]
        assert all(lake[name].upper < upper for upper in ahead for name in SQL)
        change(lake, 2)
        lake.refresh()
        assert {name: updates(lake[name]) for name in SQL} == wanted


def test_a_null_is_not_looked_for_in_a_key_that_has_none(tmp_path):
    with tidelake.open(tmp_path) as lake:
        lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        key = pa.field("k", pa.int64(), nullable=False)
        lake.create("b", pa.schema([key, pa.field("y", pa.int64())]), key=["k"])
        b = pa.table([pa.array(range(40)), pa.array(range(40))], schema=lake["b"].schema)
        lake.write({"a": pa.table({"id": [1], "k": [2]}), "b": b}, time=0)
        lake.view("v", "SELECT a.id, b.y FROM a JOIN b ON a.k IS NOT DISTINCT FROM b.k")
        lake.write({"a": pa.table({"id": [2, 3], "k": pa.array([None, 3], pa.int64())})}, time=1)
        (done,) = lake.refresh()
        assert done.read == {"a": 2, "b": 1} and lake.verify("v").equal


@pytest.mark.parametrize(
    ("wide", "narrow", "found", "other"),
    [
        (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), 1000, 1500),
        (pa.binary(), pa.binary(2), b"ab", b"abc"),
    ],
)
def test_a_value_that_fits_no_key_is_looked_for(tmp_path, wide, narrow, found, other):
    with tidelake.open(tmp_path) as lake:
        lake.create("a", {"id": pa.int64(), "k": wide}, key=["id"])
        lake.create("b", {"k": narrow, "y": pa.int64()}, key=["k"])
        keys = pa.array([found] * 40, wide).cast(narrow)
        lake.write({"b": pa.table({"k": keys, "y": range(40)}), "a": lake["a"].schema.empty_table()}, time=0)
        lake.view("v", "SELECT a.id, b.y FROM a JOIN b ON a.k = b.k")
        lake.write({"a": pa.table({"id": [1, 2], "k": pa.array([found, other], wide)})}, time=1)
        lake["b"].seal(2)
        assert lake.refresh()[0].rows == 40 and lake.verify("v").equal


@pytest.mark.parametrize("odd", ["NULL", "'24:00:00'::TIME", "k::BIGNUM"])
def test_what_cannot_be_kept_leaves_no_view(tmp_path, odd):
    with filled(tmp_path, []) as lake:
        with pytest.raises(UsageError):
            lake.view("v", f"SELECT max(n) AS n FROM (SELECT {odd} AS o, count(*) AS n FROM a GROUP BY o)")
        assert lake.list() == ["a", "b"] and not lake["a"].state().critical


def test_what_is_dropped_while_a_refresh_reads_it_is_made_again(tmp_path, monkeypatch):
    with filled(tmp_path, ["sums", "most"]) as lake:
        change(lake, 1)
        ready, left = view_state.ViewState.ready, [1, 1]

        def dropping(self, *given):
            ready(self, *given)
            if left:
                left.pop()
                for one in states_of(lake, self._view.id):
                    lake.drop(one.name)

        monkeypatch.setattr(view_state.ViewState, "ready", dropping)
        lake.refresh()
        assert not left and lake.verify("sums").equal and lake.verify("most").equal


@pytest.mark.promise(
    "What a view keeps takes rows from its refresh alone, goes with the view, and is in no copy of the lake",
    rule="`Naming._release`, `is_part` in `state/core/owned.py`",
)
def test_what_a_view_keeps_belongs_to_it(tmp_path):
    with filled(tmp_path / "lake", ["sums", "most"]) as lake, tidelake.open(tmp_path / "copy") as copy:
        (one,) = states_of(lake, lake["sums"].id)
        with pytest.raises(CollectionIsView):
            one.seal(99)
        assert lake.fsck().clean
        lake.copy(copy)
        assert copy.list() == ["a", "b", "most", "sums"]
        old = lake["most"].id
        lake.rebuild("most")
        assert states_of(lake, old) == [] and len(states_of(lake, lake["most"].id)) == 1
        lake.drop(one.name)
        assert lake["sums"].id in {owner.partition(" ")[2] for owner in lake["a"].state().critical}
        lake.refresh()
        lake.drop("sums")
        lake.drop("most")
        assert lake.list() == ["a", "b"]


def test_what_a_view_that_died_as_it_was_dropped_has_left_goes_at_the_next_refresh(tmp_path):
    with filled(tmp_path, ["sums"]) as lake:
        view = lake["sums"]
        (one,) = states_of(lake, view.id)
        # The process dies right after the view itself is gone.
        lake._leftovers.ending(view.id).drop(force=True)
        inside.catalog(lake).unname(view.id, "sums")
        assert one.name in lake.list()
        lake.refresh()
        assert lake.list() == ["a", "b"] and owner_of(view.id) not in lake["a"].state().critical


def test_what_is_kept_is_found_by_the_id_of_the_view(tmp_path):
    with filled(tmp_path, ["sums", "most"]) as lake:
        kept = sorted(one.id for name in ("sums", "most") for one in states_of(lake, lake[name].id))
        lake.swap("sums", "most")
        lake.rename("sums", "hi")
        change(lake, 1)
        assert {one.view: one.read for one in lake.refresh()}["most"] == {"a": 2}
        assert sorted(one.id for name in ("hi", "most") for one in states_of(lake, lake[name].id)) == kept
        assert lake.verify("hi").equal and lake.verify("most").equal


def test_history_that_no_refresh_reads_is_given_up(tmp_path):
    with filled(tmp_path, ["sums"]) as lake:
        for time in range(1, 20):
            change(lake, time)
            lake.refresh()
        (one,) = states_of(lake, lake["sums"].id)
        assert 0 < one.since.elements[0] < one.upper.elements[0]

"""What a view keeps beside itself: read instead of the inputs, made again if it is missing, gone with it."""

import random

import pyarrow as pa
import pytest
from plan_reference import counted, evaluated

import inside
import tidelake
from tidelake.errors import CollectionIsView, CorruptionError, RebuildNeeded, RefreshFailed, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.state.core.owned import owner_of
from tidelake.views import state as view_state
from tidelake.views.database import Database
from tidelake.views.inputs import named, plan_of
from tidelake.views.state import states_of

duckdb = pytest.importorskip("duckdb")

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
        # Another process went on, and has given history up.
        (sums,) = states_of(lake, lake["sums"].id)
        sums.advance_since(sums.last_time())
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
        with pytest.raises((UsageError, RefreshFailed)):
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
@pytest.mark.parametrize("rows_per_key", [0, 10**9])
@pytest.mark.parametrize("damaged", ["v", "a"])
def test_damage_of_what_a_view_keeps_is_mended_by_a_rebuild(tmp_path, monkeypatch, rows_per_key, damaged):
    monkeypatch.setattr(view_state, "_ROWS_PER_KEY", rows_per_key)
    stored = tidelake.Config(inline_part_bytes=0, inline_total_bytes=0)
    with tidelake.open(tmp_path, config=stored) as lake:
        lake.create("a", {"k": "int64", "x": "int64"}, key=["k"])
        lake["a"].append(pa.table({"k": [1] * 9, "x": range(9)}))
        by = "k" if damaged == "a" else "x % 3"
        lake.view("v", f"SELECT {by} AS g, median(x) AS middle FROM a GROUP BY {by}")
        kept = states_of(lake, lake.id_of("v"))
        (of,) = kept if damaged == "v" else [lake["a"]]
    (part,) = (tmp_path / "blobs" / of.id / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-30] + bytes(30))
    with tidelake.open(tmp_path) as lake:
        lake["a"].append(pa.table({"k": [1], "x": [9]}))
        if damaged == "a":
            # Its rows are nowhere else.
            with pytest.raises(CorruptionError, match="restore it from a copy"):
                lake.refresh()
            return
        with pytest.raises(RebuildNeeded, match=r"'v' .* of what it keeps is damaged: .*lake.rebuild\('v'\)"):
            lake.refresh()
        lake.rebuild("v")
        assert lake.verify("v").equal


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
        assert one.name in lake.list(parts=True) and one.name not in lake.list()
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


HOT = {
    "max": "SELECT k, max(x) AS m FROM a GROUP BY k",
    "min": "SELECT k, min(x) AS m FROM a GROUP BY k",
    "rows": "SELECT k, id, x FROM a QUALIFY row_number() OVER (PARTITION BY k ORDER BY x DESC, id) <= 3",
    "ranks": "SELECT k, id, x FROM a QUALIFY rank() OVER (PARTITION BY k ORDER BY x NULLS FIRST) <= 3",
}


@pytest.mark.promise(
    "Of a group of many rows, a refresh reads the first ones only where these say all",
    rule="`views/leading.py`, `_first_of` in `views/state.py`",
)
@pytest.mark.parametrize(("name", "kind"), [*zip(HOT, ["int64", "int16", "float64", "string"], strict=True)])
def test_of_a_group_of_many_rows_the_first_ones_are_read(tmp_path, monkeypatch, name, kind):
    monkeypatch.setattr(view_state, "_MANY_ROWS", 32)
    monkeypatch.setattr(view_state, "_CHUNK_ROWS", (16, 16))
    rng = random.Random(7)
    with tidelake.open(tmp_path / "lake", config=tidelake.Config(row_group_rows=16)) as lake:
        a = lake.create("a", {"id": "int64", "k": "int64", "x": kind}, key=["id"])
        typed = {
            "string": lambda x: pa.array([None if one is None else f"{one:02}" for one in x], pa.string())
        }.get(kind, lambda x: pa.array(x, a.schema.field("x").type))
        # Two groups of many rows and some of few, with ties and nulls.
        rows = {n: (n % 2 if n < 600 else n % 40, rng.choice([None, *range(40)])) for n in range(640)}

        def table(ids, diff):
            k, x = zip(*(rows[one] for one in ids), strict=True)
            return pa.table({"id": ids, "k": k, "x": typed(x), "_diff": [diff] * len(ids)})

        a.append(table([*rows], 1), time=0)
        lake.view("v", HOT[name])
        (kept,) = states_of(lake, lake["v"].id)
        assert "o" in kept.schema.names
        read = []
        for time in range(1, 9):
            order = sorted(rows, key=lambda one: (rows[one][1] is None, rows[one][1], one))
            gone = [*rng.sample(order, 2), *(order[:3] if time % 2 else order[-9:-6])]
            lost = table([*dict.fromkeys(gone)], -1)
            for one in {*gone}:
                del rows[one]
            fresh = [1000 * time + n for n in range(3)]
            rows |= {one: (rng.randrange(4), rng.choice([None, 0, 20, 39])) for one in fresh}
            a.append(pa.concat_tables([lost, table(fresh, 1)]), time=time)
            read.append(lake.refresh("v")[0].read["a"])
            assert lake.verify("v", at=time).equal, time
        assert min(read) < 300


def test_rows_that_equal_the_last_one_are_read_in_all_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(view_state, "_MANY_ROWS", 32)
    monkeypatch.setattr(view_state, "_CHUNK_ROWS", (16, 16))
    with tidelake.open(tmp_path) as lake:
        a = lake.create("a", {"id": "int64", "k": "int64", "x": "int64", "y": "int64"}, key=["id"])
        ids = range(200)
        a.append(pa.table({"id": ids, "k": [1] * 200, "x": [1] * 200, "y": [*reversed(ids)]}), time=0)
        last = "QUALIFY row_number() OVER (PARTITION BY k ORDER BY x, y) <= 1"
        lake.view("v", f"SELECT k, id, y FROM a {last}")
        for time in range(1, 4):
            a.append([{"id": 200 - time, "k": 1, "x": 1, "y": time - 1, "_diff": -1}], time=time)
            lake.refresh("v")
            assert lake["v"].snapshot(time).read_all()["id"].to_pylist() == [199 - time]


def test_rows_that_are_owed_are_no_first_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(view_state, "_MANY_ROWS", 32)
    monkeypatch.setattr(view_state, "_CHUNK_ROWS", (16, 16))
    with tidelake.open(tmp_path, config=tidelake.Config(row_group_rows=16)) as lake:
        a = lake.create("a", {"id": "int64", "k": "int64", "x": "int64"}, key=["id"])
        ids = range(140)
        a.append(pa.table({"id": ids, "k": [1] * 140, "x": ids, "_diff": [1] * 100 + [-1] * 40}), time=0)
        lake.view("v", HOT["max"])
        a.append([{"id": 99, "k": 1, "x": 99, "_diff": -1}], time=1)
        lake.refresh("v")
        assert [lake["v"].snapshot(time).read_all()["m"].to_pylist() for time in (0, 1)] == [[99], [98]]


def test_rows_that_are_owed_before_the_first_of_a_huge_group_are_passed_over_until_they_are_repaid(tmp_path):
    rng = random.Random(3)
    places = [rng.randrange(1_000_000) for _ in range(20_000)]
    # Most of the rows at both ends are owed.
    ends = {one for one, x in enumerate(places) if not 80_000 < x < 920_000}
    many = [rng.choices([-1, -2, 1], [60, 37, 3])[0] if one in ends else 1 for one in range(20_000)]
    with tidelake.open(tmp_path) as lake, duckdb.connect() as engine:
        a = lake.create("a", {"id": "int64", "k": "int64", "x": "int64"}, key=["id"])

        def change(diffs, time):
            ids = [*diffs]
            keys, x = [int(one % 9 == 0) for one in ids], [places[one] for one in ids]
            a.append(pa.table({"id": ids, "k": keys, "x": x, "_diff": [*diffs.values()]}), time=time)

        change(dict(enumerate(many)), 0)
        for name, sql in HOT.items():
            lake.view(name, sql)
            assert "o" in states_of(lake, lake[name].id)[0].schema.names
        for time in range(4):
            if time:
                order = sorted((one for one in range(20_000) if one % 9), key=places.__getitem__)
                there = [one for one in order if many[one] > 0]
                diffs = dict.fromkeys((*there[:40], *there[-40:]), -1)
                if time == 3:
                    # As others go, some are repaid.
                    diffs |= dict.fromkeys(rng.sample([one for one in order if many[one] < 0], 40), 2)
                for one, diff in diffs.items():
                    many[one] += diff
                change(diffs, time)
                lake.refresh()
            whole = a.snapshot(time).read_all().rename_columns({"_diff": "__m"})
            engine.register("whole", whole)
            engine.execute("CREATE OR REPLACE TABLE a AS SELECT id, k, x, __m FROM whole")
            for name in HOT:
                found = lake[name].snapshot(time).read_all().drop_columns(["_time"]).to_pylist()
                plan = plan_of(name, named(lake, name)[1], Database())
                stored = counted((row[:-1], row[-1]) for row in map(tuple, map(dict.values, found)))
                assert stored == evaluated(plan, engine), (name, time)


def test_no_row_is_read_twice_when_many_groups_change(tmp_path, monkeypatch):
    monkeypatch.setattr(view_state, "_MANY_ROWS", 32)
    with tidelake.open(tmp_path) as lake:
        a = lake.create("a", {"id": "int64", "k": "int64", "x": "int64"}, key=["id"])
        ids, groups = range(100), [{"id": 1000 + k, "k": k, "x": 7} for k in range(60)]
        a.append(pa.table({"id": ids, "k": [99] * 100, "x": ids}), time=0)
        a.append(pa.Table.from_pylist(groups), time=1)
        ranked = "rank() OVER (PARTITION BY k ORDER BY x DESC) AS r"
        lake.view("v", f"SELECT k, x, {ranked} FROM a QUALIFY r <= 2")
        for time in (2, 3):
            lost = [{**one, "x": 9 - time, "_diff": -1} for one in groups]
            more = [{**one, "x": 8 - time, "_diff": 1} for one in groups]
            a.append(pa.Table.from_pylist([*lost, *more]), time=time)
            lake.refresh("v")
            assert lake.verify("v", at=time).equal

"""A refresh that reads much is carried out by executors, with the same rows as by the driver."""

import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import sqlglot

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from random_lakes import ARROW, TIMES, history, stored_updates, table
from random_queries import BASE, Queries

import tidelake
from tidelake import spark as ts
from tidelake.errors import RefreshFailed, UsageError, ViewsFailed
from tidelake.spark.views import engine, executors
from tidelake.spark.views.engine import SparkEngine
from tidelake.spark.views.executors import FrameOutput, SparkExecutors
from tidelake.views import spans
from tidelake.views.plan import PlanColumn
from tiers import rounds

# A join, both ways of a group, and the row of no group.
QUERY = (
    "SELECT a.k, max(b.y) AS most, sum(x) AS s, count(*) AS n FROM a LEFT JOIN b ON a.k = b.k GROUP BY a.k"
)


class Killed(BaseException):
    """The driver is gone."""


def both_ways(spark: Any, monkeypatch: Any, place: Path, seed: int, texts: list[str], every: int) -> int:
    """Make views twice over one history, refreshed in both ways. Returns how many there are.

    Columns get other names amid the history, and executors lose their driver before or after a write.
    """
    found = []
    for way, most in (("driver", engine.DRIVER_ROWS_MAX), ("executors", 0)):
        monkeypatch.setattr(engine, "DRIVER_ROWS_MAX", most)
        rng, views = Random(seed), list[str]()
        tables = {name: history(rng, name, negative=False) for name in BASE}
        renamed = {name: rng.randrange(1, 2 * TIMES) for name in BASE}
        together = rng.choice(["", "t"])
        with contextlib.closing(tidelake.open(place / way)) as lake:
            for name, columns in BASE.items():
                lake.create(name, {c: ARROW[kind] for c, kind in columns.items()}, key=[next(iter(columns))])
            for time in range(TIMES):
                for name, rows in tables.items():
                    if time == renamed[name]:
                        rename(lake[name])
                    given = table(name, [row for row in rows if row[-2] == time])
                    if time >= renamed[name]:
                        given = given.rename_columns([*map("new {}".format, BASE[name]), "_time", "_diff"])
                        for one in BASE[name]:
                            given = given.append_column(one, pa.nulls(given.num_rows, pa.string()))
                    lake[name].append(given, upper=time + 1)
                for number, text in enumerate(texts if time == 1 else ()):
                    with contextlib.suppress(UsageError):
                        ts.view(spark, lake, f"v{number}", text, every=every, together=together)
                        views.append(f"v{number}")
            if way == "executors":
                refresh_killed(spark, lake, monkeypatch, rng.randrange(8), rng.random() < 0.5)
            done = [one for one in ts.refresh(spark, lake) if not one.already and any(one.read.values())]
            assert {one.place for one in done} <= {way}
            # Of views that change together, those are told that have rows.
            told = [str(ts.explain(spark, lake, one.view)) for one in done if one.rows]
            assert all(f"by the {way}" in one for one in told)
            found.append({name: stored_updates(lake, name, every) for name in views})
    monkeypatch.undo()
    assert found[0] == found[1], f"seed {seed}"
    return len(found[0])


def rename(of: Any) -> None:
    """Give all columns new names, and the old names to others, which are texts."""
    old = of.schema.names
    of.evolve(rename={one: f"new {one}" for one in old})
    of.evolve(pa.schema([*of.schema, *(pa.field(one, pa.string()) for one in old)]))


def refresh_killed(spark: Any, lake: Any, monkeypatch: Any, write: int, has_written: bool) -> None:
    """Refresh by a driver that is killed at its write of this number, if it makes so many."""
    append, left = FrameOutput.append_to, [write]

    def dying(*args: Any) -> None:
        left[0] -= 1
        if left[0] < 0 and not has_written:
            raise Killed
        append(*args)
        if left[0] < 0:
            raise Killed

    with monkeypatch.context() as patched, contextlib.suppress(Killed):
        patched.setattr(FrameOutput, "append_to", dying)
        ts.refresh(spark, lake)


@pytest.mark.full
@pytest.mark.promise(
    "What executors write of a view is, row for row, what the driver would have written",
    rule="`SparkExecutors` in `spark/views/executors.py`",
)
def test_executors_write_the_rows_that_the_driver_writes(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    assert both_ways(spark, monkeypatch, tmp_path, 3, [QUERY], 1) == 1


@pytest.mark.full
@pytest.mark.promise(
    "What executors compute of views that change together is committed without passing through the driver",
    rule="`Output.write_in` in `views/engine.py`, `Shared.pieces` in `views/shared.py`",
)
def test_views_that_change_together_are_written_by_executors(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def given(*floats: float) -> pa.Table:
        return pa.table({"id": pa.array(range(len(floats))), "x": pa.array(floats, pa.float64())})

    monkeypatch.setattr(engine, "DRIVER_ROWS_MAX", 0)
    monkeypatch.setattr(executors, "FEW_ROWS", 0)
    monkeypatch.delattr(FrameOutput, "table")
    with tidelake.open(tmp_path) as lake:
        lake.create("a", {"id": "int64", "x": "float64"}, key=["id"])
        # Without times, both are made by the first refresh.
        for name, text in {
            "v": "SELECT id, -x AS x FROM a",
            "w": "SELECT CAST(x AS STRING) AS s FROM v",
        }.items():
            ts.view(spark, lake, name, text, together="both", every=2)
        lake["a"].append(given(1.5), time=1)
        lake["a"].append(given(0.0, 2.5), time=2)
        for time in (4, 6):
            ts.refresh(spark, lake)
            # As `v` shows it: a collection has no -0.0.
            assert [str(lake[name].upper) for name in "vw"] == [f"[{time}]"] * 2
            assert ts.verify(spark, lake, "w").equal and ts.verify(spark, lake, "v").equal
            lake["a"].append(given(0.0, 7.5), time=time)


@pytest.mark.full
@pytest.mark.promise(
    "A refresh takes a job for a stage; by executors two, and one for each collection that they write",
    rule="`_ONE_JOB` in `spark/views/engine.py`, `SparkExecutors` in `spark/views/executors.py`",
)
def test_jobs_of_a_refresh_are_few(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    with tidelake.open(tmp_path) as lake:
        a = lake.create("a", {"id": "int64", "k": "int64"}, key=["id"])
        a.append(pa.table({"id": range(9), "k": [n % 4 for n in range(9)]}), time=0)
        ts.view(spark, lake, "v", "SELECT k, count(*) AS n, sum(id) AS s FROM a GROUP BY k")
        ts.view(spark, lake, "w", "SELECT a.k, max(b.id) AS most FROM a JOIN a b ON a.k = b.k GROUP BY a.k")
        # What the views keep is there now.
        for time, place, rows in ((1, "driver", 100), (2, "executors", 0), (3, "executors", 0)):
            monkeypatch.setattr(spans, "AGAIN_SHARE", 1.0 if time < 3 else 0.0)
            a.append(pa.table({"id": [10 * time, 1], "k": [1, 5]}), time=time)
            monkeypatch.setattr(engine, "DRIVER_ROWS_MAX", rows)
            for name in "vw":
                kept = [one for one in lake.list(parts=True) if lake[name].id in one]
                began = jobs(spark)
                (done,) = ts.refresh(spark, lake, [name])
                stages, is_large = len(done.stages), place == "executors"
                assert done.place == place and kept
                assert 0 < jobs(spark) - began <= (2 * stages + len(kept) + 1 if is_large else stages), name
        assert "computed again" in str(ts.explain(spark, lake, "w"))
        assert ts.verify(spark, lake, "w").equal


def jobs(spark: Any) -> int:
    """How many there were."""
    return int(spark._jsc.sc().dagScheduler().numTotalJobs())


@pytest.mark.soak
def test_executors_and_the_driver_write_the_same_of_random_queries(
    spark: Any, tmp_path: Path, monkeypatch: Any, rng: Random
) -> None:
    for number in rounds(full=1, soak=100):
        seed = rng.randrange(1 << 32)
        texts = [Queries(seed + each).query(rng.choice([1, 2])).sql for each in range(4)]
        texts = [sqlglot.transpile(text, "duckdb", "spark")[0] for text in texts]
        both_ways(spark, monkeypatch, tmp_path / f"{number}", seed, texts, rng.choice([1, 1, 2]))


@pytest.mark.soak
@pytest.mark.promise(
    "The memory of the driver does not grow with what a refresh of a view of Spark's SQL reads",
    rule="`DRIVER_ROWS_MAX` in `spark/views/engine.py`, `SparkExecutors`",
)
def test_a_refresh_of_more_rows_than_the_driver_may_hold(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    # 20 MB of texts.
    many = 50_000
    conf, limit = spark._jsc.sc().conf(), "spark.driver.maxResultSize"
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("a", {"id": "int64", "k": "int64", "s": "string"}, key=["id"])
        ids = pa.array(range(many))
        lake["a"].append(pa.table({"id": ids, "k": ids, "s": pa.array(["x" * 400] * many)}), time=0)
        monkeypatch.setattr(engine, "DRIVER_ROWS_MAX", 10_000)
        conf.set(limit, "4m")
        try:
            view = ts.view(spark, lake, "v", "SELECT k, max(s) AS s, count(*) AS n FROM a GROUP BY k")
            lake["a"].append(pa.table({"id": ids, "k": ids, "s": pa.array(["y"] * many)}), time=1)
            (done,) = [one for one in ts.refresh(spark, lake) if not one.already]
            assert done.place == "executors" and done.rows == 2 * many
        finally:
            conf.remove(limit)
        assert sum(batch.num_rows for batch in view.snapshot(0)) == many


@pytest.mark.full
@pytest.mark.parametrize("together", ["", "both"])
def test_a_row_that_is_there_too_often_to_be_stored_is_told_of_the_view(
    spark: Any, tmp_path: Path, monkeypatch: Any, together: str
) -> None:
    def often(count: int, time: int) -> pa.Table:
        return pa.table({"id": [1], "_time": [time], "_diff": [count]})

    monkeypatch.setattr(engine, "DRIVER_ROWS_MAX", 0)
    with tidelake.open(tmp_path) as lake:
        a = lake.create("a", {"id": "int64"}, key=["id"])
        a.append(often(1, 0), upper=1)
        texts = {"v": "SELECT a.id, b.id AS other FROM a CROSS JOIN a b", "w": "SELECT id FROM a"}
        for name, text in texts.items():
            ts.view(spark, lake, name, text, together=together)
        a.append(often(2**40, 1), upper=2)
        with pytest.raises((RefreshFailed, ViewsFailed), match=r"'v'.*more often than can be stored"):
            ts.refresh(spark, lake, ["v"])
        assert str(lake["v"].upper) == "[1]"


@pytest.mark.full
def test_a_table_without_rows_has_none_whatever_had_its_name(spark: Any) -> None:
    by = SparkExecutors(spark, SparkEngine(spark).settings)
    columns = (PlanColumn("t", "BIGINT"), PlanColumn("n", "HUGEINT"))
    timed = [("t", "_time", "BIGINT"), ("n", "_diff", "BIGINT")]
    assert by.fill("d0", columns, "SELECT 1, 1") == 1
    by.clear()
    by.empty("d0", columns)
    assert by.read("d0", [], timed, None).num_rows == 0

"""Writes and reads of DataFrames against the oracle."""

import math
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import inside

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.errors import (
    HistoryCompacted,
    InvalidUpdates,
    NotYetClosed,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UpperMismatch,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.shard.upkeep.compactor import Workers
from tidelake.spark import append, changes, merge, release, snapshot, snapshots, sql, updates
from tidelake.spark.jobs.merge import workers
from tidelake.testing import tables
from tidelake.testing.oracle import Oracle, canonical

pytestmark = pytest.mark.usefixtures("small_tasks")

COUNTER = TimeDomain("counter")
TEXTS = ["", "a", "A", "ä", "Zürich", "\U0001f30a", "\x00", "z" * 100, None]
SMALL = Config(part_target_bytes=4096, row_group_rows=4, merge_chunk_rows=16, fold_rows=1)


def random_row(rng: Random) -> tuple[Any, ...]:
    numbers = [0.0, -0.0, 1.5, -math.inf, math.inf, math.nan, None]
    lists = [None, [], [1, None], [2**40]]
    decimals = [None, Decimal("0.00"), Decimal("-1234567.89")]
    n = rng.choice([None, -1, 0, 7, 2**40])
    return rng.choice(TEXTS), n, rng.choice(numbers), rng.choice(decimals), rng.choice(lists)


def random_updates(rng: Random, lower: int, upper: int, count: int) -> list[tuple[Any, int, int]]:
    return [
        (random_row(rng), rng.randrange(lower, upper), rng.choice([-2, -1, 1, 1, 3])) for _ in range(count)
    ]


def make(tmp_path: Path, time: str = "counter", config: Config = SMALL) -> tidelake.Collection:
    lake = tidelake.open(tmp_path / f"lake-{uuid.uuid4().hex}", config=config)
    return lake.create("c", tables.SCHEMA, key=tables.KEY, time=time)


def frame_of(spark: Any, held: list[tuple[Any, Any, int]], domain: TimeDomain = COUNTER) -> Any:
    return spark.createDataFrame(tables.table(held, domain)).repartition(3)


def row_of(**changed: Any) -> dict[str, Any]:
    return {"k": "a", "n": 1, "x": 0.5, "d": None, "l": None, "_time": 0, "_diff": 1} | changed


def frame_of_rows(spark: Any, *rows: dict[str, Any]) -> Any:
    schema = pa.schema([*tables.SCHEMA, ("_time", pa.int64()), ("_diff", pa.int64())])
    schema = pa.schema([f for f in schema if f.name in rows[0]])
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema))


def counts_of(frame: Any) -> Counter[Any]:
    """Row -> multiplicity, each row once."""
    found = tables.updates(frame.toArrow(), COUNTER)
    assert len({row for row, _, _ in found}) == len(found)
    return Counter({row: diff for row, _, diff in found})


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_reads_equal_the_oracle_before_and_after_a_merge(spark: Any, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    c = make(tmp_path)
    start = Frontier.of(0)
    oracle = Oracle(start, start)
    for lower in (0, 5, 10):
        batch = random_updates(rng, lower, lower + 5, 60)
        append(c, frame_of(spark, batch), upper=lower + 5, ranges=2 if lower == 10 else None)
        oracle.append([(tuple(map(canonical, row)), t, d) for row, t, d in batch], Frontier.of(lower + 5))
    for _ in range(2):
        for time in (0, 4, 9, 14):
            frame = snapshot(spark, c, time, parallelism=4)
            assert counts_of(frame) == oracle.snapshot(time)
            assert {r._time for r in frame.select("_time").collect()} <= {time}
        assert counts_of(changes(spark, c, 3, 11, parallelism=4)) == oracle.changes(3, 11)
        got = tables.updates(updates(spark, c, 2, 13, parallelism=4).toArrow(), COUNTER)
        expected = oracle.between(Frontier.of(2), Frontier.of(13))
        assert Counter({(row, t): d for row, t, d in got}) == expected
        assert len(got) == len(expected)
        many = tables.updates(snapshots(spark, c, [1, 8]).toArrow(), COUNTER)
        for time in (1, 8):
            assert Counter({r: d for r, t, d in many if t == time}) == oracle.snapshot(time)
        merge(spark, c, parallelism=3)
    assert len([run for item in c.state().spine for run in item.batch.runs]) == 1


def test_a_read_is_cut_into_tasks_and_sorted_within_them(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import spark_partition_id

    c = make(tmp_path)
    append(c, frame_of(spark, random_updates(Random(1), 0, 3, 300)))
    frame = snapshot(spark, c, parallelism=5)
    placed = frame.withColumn("p", spark_partition_id()).collect()
    assert len({r.p for r in placed}) > 2
    assert frame.rdd.getNumPartitions() <= 5
    tables.check_sorted(tables.updates(frame.toArrow(), COUNTER))


def test_a_frame_holds_what_it_reads_until_it_is_released(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, config=replace(SMALL, inline_part_bytes=0))
    for time in range(2):
        c.append(tables.table([(("a", time, None, None, None), time, 1)], COUNTER))
    seqno = c.state().seqno
    frames = [snapshot(spark, c), snapshots(spark, c, [0, 1]), changes(spark, c, 0, 1, hold_for=60)]
    held = c.state().holds.values()
    assert sorted(hold.lease_ms for hold in held) == [60_000, 86_400_000, 86_400_000]
    assert all(hold.pins[0] >= seqno and hold.since.closed for hold in held)
    assert [frame.count() for frame in frames] == [2, 3, 1]
    assert release(c) == 3 and not c.state().holds and release(c) == 0


@pytest.mark.promise("A DataFrame keeps the contents it was planned for", rule="planned tasks")
def test_a_frame_keeps_the_contents_that_it_was_planned_for(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    append(c, frame_of_rows(spark, row_of()))
    frame = snapshot(spark, c)
    append(c, frame_of_rows(spark, row_of(_time=1, k="b")))
    assert [r.k for r in frame.collect()] == ["a"]
    assert snapshot(spark, c).count() == 2


def test_times_and_diffs_may_be_left_out(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    assert append(c, frame_of_rows(spark, row_of()).drop("_time", "_diff")).upper == Frontier.of(1)
    assert append(c, frame_of_rows(spark, row_of(_diff=-1)).drop("_time")).upper == Frontier.of(2)
    assert [(r._time, r._diff) for r in snapshot(spark, c, 0).collect()] == [(0, 1)]
    assert snapshot(spark, c, 1).collect() == []


def test_clock_times_that_are_left_out_are_now(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, "ms")
    done = append(c, frame_of_rows(spark, row_of()).drop("_time", "_diff"))
    assert done.upper.elements[0] > 1_700_000_000_000


def test_columns_are_checked_before_anything_runs(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import lit, raise_error

    c = make(tmp_path)
    frame = frame_of_rows(spark, row_of()).withColumn("k", raise_error(lit("it ran"))).drop("n")
    with pytest.raises(InvalidUpdates, match=r"column 'n' \(bigint\) is missing"):
        append(c, frame)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"_diff": 0}, "a diff must not be 0"),
        ({"_time": -1}, "a time must not be negative"),
        ({"_time": None}, "column '_time' must not be null"),
        ({"_diff": None}, "column '_diff' must not be null"),
    ],
)
def test_bad_values_are_one_clear_error_and_nothing_is_appended(
    spark: Any, tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    c = make(tmp_path)
    rows = [row_of(), row_of(**changed), row_of()]
    with pytest.raises(InvalidUpdates, match=reason):
        append(c, frame_of_rows(spark, *rows))
    assert (c.upper, len(c.state().spine)) == (Frontier.of(0), 0)


@pytest.mark.promise("A job that fails appends nothing", rule="one append in the driver")
def test_a_job_that_fails_appends_nothing(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import expr

    c = make(tmp_path)
    frame = frame_of_rows(spark, row_of(), row_of(k="b")).repartition(2)
    frame = frame.withColumn("k", expr("if(k = 'b', raise_error('boom'), k)"))
    with pytest.raises(Exception, match="boom"):
        append(c, frame)
    assert (c.upper, len(c.state().spine)) == (Frontier.of(0), 0)
    assert append(c, frame_of_rows(spark, row_of())).upper == Frontier.of(1)


def test_lower_is_compared_and_times_stay_inside(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    frame = frame_of_rows(spark, row_of(_time=3))
    append(c, frame, lower=0, upper=4)
    with pytest.raises(UpperMismatch):
        append(c, frame_of_rows(spark, row_of(_time=9)), lower=5, upper=10)
    with pytest.raises(UpdateBeforeLower):
        append(c, frame)
    with pytest.raises(UpdateNotBeforeUpper):
        append(c, frame_of_rows(spark, row_of(_time=9)), upper=8)
    assert c.upper == Frontier.of(4)


def test_an_empty_frame_moves_the_upper_only(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    nothing = frame_of_rows(spark, row_of()).where("k = 'none'")
    assert append(c, nothing).upper == Frontier.of(0)
    assert append(c, nothing, upper=7).upper == Frontier.of(7)
    assert append(c, nothing, upper=3).already
    assert snapshot(spark, c, 6).collect() == []


def test_updates_that_cancel_leave_no_part(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    append(c, frame_of_rows(spark, row_of(), row_of(_diff=-1)).coalesce(1))
    assert c.upper == Frontier.of(1)
    assert [run for item in c.state().spine for run in item.batch.runs] == []


def test_tuple_times(spark: Any, tmp_path: Path) -> None:
    domain = TimeDomain.parse("tuple(2)")
    c = make(tmp_path, "tuple(2)")
    held = [((f"k{i}", i, None, None, None), (i % 3, i % 4), 1) for i in range(12)]
    with pytest.raises(UsageError, match="lower and upper"):
        append(c, frame_of(spark, held, domain))
    append(c, frame_of(spark, held, domain), lower=(0, 0), upper=[(3, 4)])
    got = tables.updates(snapshot(spark, c, (1, 2)).toArrow(), domain)
    assert {row[1] for row, _, _ in got} == {i for i in range(12) if i % 3 <= 1 and i % 4 <= 2}
    assert {time for _, time, _ in got} == {(1, 2)}


def test_reads_refuse_in_the_driver(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    with pytest.raises(NotYetClosed):
        snapshot(spark, c)
    append(c, frame_of_rows(spark, row_of(), row_of(_time=5)))
    c.advance_since(3)
    with pytest.raises(HistoryCompacted):
        snapshot(spark, c, 2)
    with pytest.raises(NotYetClosed):
        snapshot(spark, c, 6, timeout_s=0)
    with pytest.raises(UsageError, match="as_of"):
        snapshot(spark, c, (1, 2))


def test_a_merge_reports_and_has_nothing_to_do_twice(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path)
    for time in range(4):
        append(c, frame_of(spark, random_updates(Random(time), time, time + 1, 30)))
    before = counts_of(snapshot(spark, c))
    c.advance_since(3)
    report = merge(spark, c, parallelism=3)
    assert report.applied
    assert report.before.runs >= 4
    assert (report.after.runs, report.after.batches) == (1, 1)
    assert report.after.rows == len(before)
    assert counts_of(snapshot(spark, c)) == before
    assert not merge(spark, c).applied


def test_a_merge_that_comes_too_late_changes_nothing(spark: Any, tmp_path: Path) -> None:
    # Claims that expire at once: any process may take a merge over.
    c = make(tmp_path, config=replace(SMALL, merge_budget_s=0.0, merge_claim_s=0.0, merge_claim_rows=0))
    faster = tidelake.open(inside.shard(c).spec.url, config=inside.shard(c).spec.config).collection("c")
    for time in range(3):
        append(c, frame_of(spark, random_updates(Random(time), time, time + 1, 30)))
    before = counts_of(snapshot(spark, c))
    cluster, waves = workers(spark, "late", 2), 0

    def late(tasks: Sequence[bytes]) -> Sequence[bytes]:
        nonlocal waves
        outputs = cluster.run(tasks)
        waves += 1
        assert waves > 1 or faster.merge().applied
        return outputs

    assert not c.merge(Workers(late, cluster.width)).applied
    assert waves == 1 and c.state().spine.totals.runs == 1
    assert counts_of(snapshot(spark, c)) == before


@pytest.mark.full
def test_maintenance_by_spark_gives_the_same_contents(spark: Any, tmp_path: Path) -> None:
    c = make(tmp_path, config=replace(SMALL, merge_budget_s=0.0, merge_claim_rows=0))
    oracle = Oracle(Frontier.of(0), Frontier.of(0))
    for time in range(6):
        held = random_updates(Random(time), time, time + 1, 30)
        c.append(tables.table(held, COUNTER), upper=time + 1)
        oracle.append(
            [(tuple(canonical(v) for v in row), at, diff) for row, at, diff in held], Frontier.of(time + 1)
        )
    c.advance_since(4)
    jobs: list[int] = []
    cluster = workers(spark, "maintain", 3)

    def counted(tasks: Sequence[bytes]) -> Sequence[bytes]:
        jobs.append(len(tasks))
        return cluster.run(tasks)

    report = c.maintain(workers=Workers(counted, cluster.width))
    assert report.complete and report.merges and max(jobs) == 3
    assert c.state().spine.totals.runs <= 2 and not c.state().claims
    for as_of in (4, 5):
        assert counts_of(snapshot(spark, c, as_of)) == oracle.snapshot(as_of)
        assert tables.netted(c.snapshot(as_of).read_all(), COUNTER, as_of) == oracle.snapshot(as_of)
    assert not c.maintain(workers=cluster).merges


def test_a_column_with_a_dot_in_its_name(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a.b", pa.string(), nullable=False), ("c`d", pa.int64())])
    c = tidelake.open(tmp_path / "lake").create("dots", schema, key=["a.b"])
    table = pa.table({"a.b": ["x"], "c`d": [1], "_time": [0], "_diff": [1]})
    append(c, spark.createDataFrame(table), ranges=1)
    assert [tuple(r) for r in snapshot(spark, c).collect()] == [("x", 1, 0, 1)]


def test_frames_have_the_columns_of_the_schema_that_the_store_knows(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("n", pa.int32())])
    lake = tidelake.open(tmp_path / "lake", config=SMALL)
    c = lake.create("c", schema, key=["id"])
    old = lake.collection("c")
    ids = list(range(50))
    c.append(pa.table({"id": ids, "v": ["a", "b"] * 25, "n": pa.array([7] * 50, pa.int32())}))
    c.evolve(pa.schema([schema.field("id"), ("w", pa.string()), ("n", pa.int64())]), drop=["v"])
    # A handle from before, and a frame of the older shape but for the column that is gone.
    append(old, spark.createDataFrame([(i, 2**40) for i in ids], "id bigint, n bigint"))
    frame = snapshot(spark, lake.collection("c"))
    assert frame.columns == ["id", "w", "n", "_time", "_diff"]
    found = Counter((r.id, r.w, r.n, r._diff) for r in frame.collect())
    assert found == Counter([(i, None, n, 1) for i in ids for n in (7, 2**40)])
    assert snapshots(spark, c, [0, 1]).count() == 150
    with pytest.raises(InvalidUpdates, match="'v' is not in the collection"):
        append(old, spark.createDataFrame([(1, "a", 1)], "id bigint, v string, n bigint"))
    assert merge(spark, c).applied
    parts = [part for member in c.state().spine for part in member.batch.parts()]
    assert {part.schema_id for part in parts} == {1} and snapshot(spark, c).count() == 100


def test_a_renamed_column_is_read_filtered_and_written_by_its_new_name(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    with tidelake.open(tmp_path / "lake", config=SMALL) as lake:
        c = lake.create("c", schema, key=["id"])
        c.append(pa.table({"id": range(40), "v": ["a", "b"] * 20}))
        c.evolve(rename={"v": "name", "id": "key"})
        text = pa.string()
        key = pa.field("key", pa.int64(), nullable=False)
        c.evolve(pa.schema([key, ("name", text), ("v", text)]))
        append(c, spark.createDataFrame([(40, "b", "new")], "key bigint, name string, v string"))
        assert c.commits(1)[0].author == f"spark {spark.conf.get('spark.app.id')}"
        for _ in range(2):
            found = sql(spark, "SELECT key, v FROM c WHERE name = 'b' AND key > 36", lake=lake)
            assert sorted(found.collect()) == [(37, None), (39, None), (40, "new")]
            assert snapshot(spark, c).where("v IS NOT NULL").count() == 1
            assert snapshot(spark, c).columns[:3] == ["key", "name", "v"]
            merge(spark, c)

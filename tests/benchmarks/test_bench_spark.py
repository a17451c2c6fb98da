"""The measurements with Spark, on so few rows that only their own checks mean anything."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from bench import spark as reads
from bench import spark_first as first
from bench import spark_history as history
from bench import spark_writes as writes

pytestmark = pytest.mark.spark


@pytest.mark.soak
def test_a_compacted_shard_is_read_by_every_way_in(spark: Any, tmp_path: Path) -> None:
    found = reads.compacted(spark, tmp_path, 5_000)
    ways = {"helper_to_plain", "by_workers_to_plain", "format_to_plain"}
    assert ways <= found.keys() and all(found[way] > 0 for way in ways)


@pytest.mark.soak
def test_the_first_work_of_a_session_is_compared_with_later_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "ROUNDS", 1)
    found = first.run(10_000)
    assert [*found] == [*first.KINDS]
    for row in found.values():
        assert row["later_s"] > 0 and row["first_to_later"] == row["first_cpu_s"] / row["later_cpu_s"]


@pytest.mark.soak
def test_merges_and_reads_of_several_runs_are_compared_with_spark_sql(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    c = reads.store(folder, 4_000, 4)
    assert c.state().spine.totals.runs == 4
    parts = {path.name for path in folder.glob(f"blobs/{c.id}/parts/*")}
    found = reads.measured(spark, c, folder, 4_000, 2)
    assert 0 < found["rows_left"] < 4_000 and found["merge_to_rewrite"] > 0
    assert {path.name for path in folder.glob(f"blobs/{c.id}/parts/*")} == parts


@pytest.mark.soak
def test_appends_and_upserts_are_compared_with_plain_files(spark: Any, tmp_path: Path) -> None:
    frame = writes.source(spark, tmp_path, 3_000)
    assert frame.count() == 3_000
    assert writes.appends(tmp_path, frame, 3_000)["append_to_plain"] > 0
    found = writes.upserts(spark, tmp_path, frame, 3_000)
    assert [row["events"] for row in found.values()] == [30, 30, 30]
    assert all(row["upsert_to_rewrite"] > 0 for row in found.values())


@pytest.mark.soak
def test_a_long_history_is_compared_with_plain_files(spark: Any, tmp_path: Path) -> None:
    kept = history.filled(tmp_path, 300, 6_000)
    history.at_rest(kept)
    found = history.measured(spark, tmp_path, kept)
    assert found["updates"] == 6_000 and found["changed_rows"] > 0
    assert min(found["newest_to_plain"], found["changes_to_group_by"]) > 0


@pytest.mark.full
def test_micro_batches_are_compared_with_empty_ones(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "_BATCHES", 3)
    monkeypatch.setattr(writes, "_WARM", 1)
    found = writes.micro_batches(spark, tmp_path)
    assert min(found["empty_ms"], found["helper_ms"], found["format_ms"]) > 0

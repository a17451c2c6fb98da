"""Backfills: a history in one commit, cut by key, of which reads merge nothing."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.errors import UpdateBeforeLower
from tidelake.spark import WriteReport, backfill, snapshot

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


def made(folder: Path) -> tidelake.Collection:
    config = Config(inline_part_bytes=0, merge_budget_s=0.0, row_group_rows=64)
    return tidelake.open(folder / "lake", config=config).create("c", SCHEMA, key=["k"])


def history(spark: Any, rows: int = 3_000) -> Any:
    """Rows in no order: each key comes at 0, every third goes at 1."""
    frame = spark.range(rows).selectExpr("id AS k", "concat('v', id) AS v", "0L AS _time", "1L AS _diff")
    gone = frame.where("k % 3 = 0").selectExpr("k", "v", "1L AS _time", "-1L AS _diff")
    return frame.union(gone).orderBy("v").repartition(4)


@pytest.mark.promise(
    "A backfill is one commit of key ranges that do not overlap",
    rule="`spark/jobs/backfill.py`",
    also=["::test_a_backfill_that_is_run_again_with_its_token_does_nothing"],
)
@pytest.mark.parametrize("ranges", [5, None])
def test_a_history_is_one_commit_of_key_ranges_that_do_not_overlap(
    spark: Any, tmp_path: Path, ranges: int | None
) -> None:
    c = made(tmp_path)
    before = c.state().seqno
    report = backfill(c, history(spark), ranges=ranges)
    state = c.state()
    assert isinstance(report, WriteReport) and report.updates == 4_000
    assert state.seqno == before + 1 and report.appended.upper == state.upper
    runs = [run for member in state.spine for run in member.batch.runs]
    if ranges:
        assert report.uploads == ranges
    bounds = sorted((run.parts[0].key_lower, run.parts[-1].key_upper) for run in runs)
    assert all(before[1] < after[0] for before, after in pairwise(bounds))
    kept = Counter(row["k"] for row in c.snapshot().read_all().to_pylist())
    assert kept == Counter(k for k in range(3_000) if k % 3)
    assert snapshot(spark, c).count() == 2_000


def test_a_backfill_that_is_run_again_with_its_token_does_nothing(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    assert not backfill(c, history(spark), token="2026-01").appended.already
    again = backfill(c, history(spark), token="2026-01")
    assert again.appended.already and (again.updates, again.uploads) == (0, 0)
    assert c.snapshot().read_all().num_rows == 2_000


def test_a_backfill_that_does_not_fit_leaves_the_collection_as_it_was(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    with pytest.raises(UpdateBeforeLower):
        backfill(c, history(spark), lower=5, upper=9)
    failing = history(spark).selectExpr("k", "v", "_time", "if(k = 7, raise_error('boom'), _diff) AS _diff")
    with pytest.raises(Exception, match="boom"):
        backfill(c, failing)
    assert not list(c.state().spine)

"""Slices and bases through Spark: workers make them, its scan reads a base, changes are a difference."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.model.frontier import Frontier
from tidelake.model.query import Changes
from tidelake.spark import changes, maintain, snapshot, updates
from tidelake.spark.jobs.maintain import Round
from tidelake.state.spine.bases import needed

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("small_tasks")]

KEYS, REPLACED, BULK, TIMES = 1_000, 400, 12, 22
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
# No merges but those of Spark's workers; the bulk load is long enough to be cut.
CONFIG = Config(slice_rows=1_000, inline_part_bytes=0, row_group_rows=64, merge_budget_s=0.0, runs_max=99)


@dataclass
class Upserts:
    """A collection whose rows are replaced over and over, and the same updates as a list."""

    collection: tidelake.Collection
    said: list[tuple[int, int, int, int]] = field(default_factory=list)
    now: dict[int, int] = field(default_factory=dict)

    def append(self, times: range) -> None:
        """Replace some rows at each of these times, in one append."""
        start = len(self.said)
        for time in times:
            for key in range(KEYS) if time == 0 else {7 * (time + n) % KEYS for n in range(REPLACED)}:
                if key in self.now:
                    self.said.append((key, self.now[key], time, -1))
                self.said.append((key, time, time, 1))
                self.now[key] = time
        columns = zip(*self.said[start:], strict=True)
        table = pa.table(dict(zip(("k", "v", "_time", "_diff"), map(list, columns), strict=True)))
        self.collection.append(table, upper=times.stop)

    def net(self, after: int, through: int) -> Counter[tuple[int, int]]:
        """What `changes` answers; after -1: the contents."""
        found = Counter[tuple[int, int]]()
        for key, value, time, diff in self.said:
            if after < time <= through:
                found[key, value] += diff
        return Counter({row: diff for row, diff in found.items() if diff})


def made(folder: Path) -> tuple[tidelake.Lake, Upserts]:
    lake = tidelake.open(folder / "lake", config=CONFIG)
    history = Upserts(lake.create("c", SCHEMA, key=["k"]))
    history.append(range(BULK))
    for time in range(BULK, TIMES):
        history.append(range(time, time + 1))
    return lake, history


def counted(frame: Any) -> Counter[tuple[int, int]]:
    return Counter({(row["k"], row["v"]): row["_diff"] for row in frame.toArrow().to_pylist()})


def shape(frame: Any) -> tuple[bool, bool]:
    """Whether Spark scans files for it, and whether workers merge."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return "FileScan parquet" in plan, "MapInArrow" in plan


def test_workers_cut_slices_and_make_bases_and_spark_reads_them(spark: Any, tmp_path: Path) -> None:
    lake, history = made(tmp_path)
    c = history.collection
    rounds: list[Round] = []
    report = maintain(spark, lake, progress=rounds.append)
    assert not report.failed and report.collections["c"].complete
    state = c.state()
    bulk = [held for held in state.spine.slices if not Frontier.of(BULK) <= held.bounds.lower]
    # The bulk load was one append: its pieces were cut, by workers like the merges and the bases.
    assert len(bulk) == 3 and len(state.bases) > 2 and not state.claims
    merges = report.collections["c"].merges
    assert merges > len(state.bases) and report.rounds == len(rounds) >= merges
    again = maintain(spark, lake)
    assert (again.rounds, again.collections["c"].merges) == (0, 0)

    # At rest the last base is the newest contents; an older one is what a snapshot just before it answers.
    for base in (state.bases.held[-1], state.bases.held[0]):
        frame = snapshot(spark, c, base.at - 1)
        assert shape(frame) == (True, False)
        assert counted(frame) == history.net(-1, base.at - 1)
        assert counted(snapshot(spark, c, base.at - 1, native=False)) == history.net(-1, base.at - 1)
    assert shape(snapshot(spark, c)) == (True, False)

    # Later updates are merged with the base.
    history.append(range(TIMES, TIMES + 1))
    assert shape(snapshot(spark, c))[1]
    assert counted(snapshot(spark, c)) == history.net(-1, TIMES)

    # Far apart two snapshots have fewer updates than what lies between; close together they have not.
    for after, through, difference in ((1, TIMES, True), (0, TIMES - 1, True), (16, 17, False)):
        assert (needed(c.state(), Changes(after, through)).after is not None) == difference
        assert counted(changes(spark, c, after, through)) == history.net(after, through)
        assert counted(changes(spark, c, after, through, where="k < 90")) == Counter(
            {row: diff for row, diff in history.net(after, through).items() if row[0] < 90}
        )
    asked = sorted((k, v, t, d) for k, v, t, d in history.said if 8 <= t < 18)
    told = updates(spark, c, 8, 18).toArrow().to_pylist()
    assert sorted((row["k"], row["v"], row["_time"], row["_diff"]) for row in told) == asked

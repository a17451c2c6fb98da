"""Runs that are in the state are read together: with the same answer as one by one."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import inside
import tidelake
from tidelake.config import Config
from tidelake.data.keys.keyset import KeySet
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Updates
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.reading.lookup import beginning, few
from tidelake.shard.reading.versionread import VersionRead
from tidelake.shard.runs import gather, read
from tidelake.shard.runs.scope import KeyRange, Source

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
QUIET = Config(merge_budget_s=0.0)


def rows(keys: list[int], time: int, value: str, diff: int = 1) -> pa.Table:
    n = len(keys)
    return pa.table({"k": keys, "v": [value] * n, "_time": [time] * n, "_diff": [diff] * n})


def made(folder: Path, config: Config) -> tidelake.Collection:
    c = tidelake.open(folder, config=config).create("c", SCHEMA, key=["k"], time="counter")
    for time in range(8):
        c.append(rows([time, time + 1, 3], time, f"v{time}"))
    c.append(rows([3, 4], 8, "v1", -1))
    return c


QUERIES = [AsOf(8), AsOf(4), Changes(2, 6), Updates(Frontier.of(2), Frontier.of(7))]


@pytest.mark.promise(
    "Look-ups and snapshots of rows that are in the state find what they find of stored parts",
    rule="`together` in `shard/runs/stream.py`",
    also=["data/test_inline.py::test_several_inline_parts_read_together_have_the_rows_that_each_has"],
)
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_inline_runs_are_read_as_stored_ones(
    query: object, merged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if merged:
        # No memory to gather rows in.
        monkeypatch.setattr(gather, "_GATHERED_SHARE", 1 << 60)
    answers = []
    for name, config in {"inline": QUIET, "stored": replace(QUIET, inline_part_bytes=0)}.items():
        shard = inside.shard(made(tmp_path / name, config))
        version = shard.version()
        sources, asked = read.sources_of(version.state, query)
        sources = [_cut(i, source) for i, source in enumerate(sources)]
        assert all(source.run.inline == (name == "inline") for source in sources)
        keys = KeySet.of(pa.table({"k": pa.array([1, 3, 5, 99], pa.int64())}), version.spec.schema)
        start = KeyRange(keys.keys[1].as_py(), keys.keys[2].as_py())
        for among, within in [(keys, None), (keys, start), (None, start), (None, None)]:
            found = read.rows(version.spec, shard.stores.blobs, sources, asked, within, among=among)
            answers.append([row for batch in found for row in batch.to_pylist()])
    assert answers[:4] == answers[4:] and all(answers[:4])


def _cut(number: int, source: Source) -> Source:
    """Some runs are truncated, rewritten, or taken away."""
    parts = source.run.parts
    match number:
        case 3:
            return replace(source, run=replace(source.run, truncated=True), upper=source.lower)
        case 4:
            moved = tuple(replace(part, rewrite=6) for part in parts)
            return replace(source, run=replace(source.run, parts=moved))
        case 5:
            return replace(source, less=7)
        case _:
            return source


def test_columns_that_came_and_went_are_read_together(tmp_path: Path) -> None:
    found = []
    for name, config in {"inline": QUIET, "stored": replace(QUIET, inline_part_bytes=0)}.items():
        c = made(tmp_path / name, config)
        fresh = [pa.field("k", pa.int64(), nullable=False), pa.field("w", pa.int64())]
        c.evolve(pa.schema(fresh), drop=["v"])
        c.append(pa.table({"k": [3], "w": [7]}))
        found.append((c.lookup(pa.table({"k": [3, 5]})).to_pylist(), c.snapshot().read_all().to_pylist()))
    assert found[0] == found[1]
    assert found[0][0]


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_small_runs_that_are_held_for_several_ranges_give_the_same(tmp_path: Path, inline_bytes: int) -> None:
    config = replace(QUIET, inline_part_bytes=inline_bytes, inline_total_bytes=inline_bytes)
    c = tidelake.open(tmp_path, config=config).create("c", SCHEMA, key=["k"], time="counter")
    c.append(rows([*range(40)] * 9, 0, "first"))
    for time in range(1, 6):
        # Rows go that only the largest run has, or another small one; some are owed.
        c.append(pa.concat_tables([rows([time, 7, 12], time, "more"), rows([7, time], time, "first", -2)]))
    version = inside.shard(c).version()
    starts = KeySet.of(pa.table({"k": pa.array([12, 7, 3, 99], pa.int64())}), version.spec.schema).keys
    for time in (2, 5):
        asked = VersionRead.of(inside.shard(c), version, AsOf(time))
        held = few(asked, 64, [*starts.to_pylist()[1:], starts[0].as_py()])
        assert len(asked.needed) == 1 + time and len(held.needed) == 2
        for start in starts.to_pylist():
            found, wanted = (list(beginning(one, start)) for one in (held, asked))
            assert pa.Table.from_batches(found, asked.schema) == pa.Table.from_batches(wanted, asked.schema)
            assert bool(wanted) == (start != starts[-1].as_py())
        none = few(asked, 64, starts.to_pylist()[-1:])
        assert not list(beginning(none, starts[-1].as_py())) and len(none.needed) == 1
    # A longer run is not read whole.
    tight = VersionRead.of(inside.shard(c), replace(version, spec=_folding(version.spec, 40)), AsOf(5))
    assert len(few(tight, 64, starts.to_pylist()).needed) == 1 + 1 + 3


def _folding(spec: ShardSpec, rows_: int) -> ShardSpec:
    return replace(spec, config=replace(spec.config, fold_rows=rows_))

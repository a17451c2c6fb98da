"""Runs whose rows have one time, which the query asks for: read without their times."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import inside
import tidelake
from tidelake.config import Config
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Updates
from tidelake.shard.runs import read, stream

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
STORED = Config(row_group_rows=4, merge_chunk_rows=16, inline_part_bytes=0, merge_budget_s=0.0)


def made(folder: Path, config: Config = STORED, keys: int = 20) -> tidelake.Collection:
    c = tidelake.open(folder, config=config).create("c", SCHEMA, key=["k"], time="counter")
    c.append(rows(range(keys)), upper=6)
    return c


def rows(keys, time: int = 5) -> pa.Table:
    keys = list(keys)
    columns = {"k": pa.array(keys, pa.int64()), "v": pa.array([f"v{k}" for k in keys], pa.string())}
    return pa.table({**columns, "_time": pa.array([time] * len(keys), pa.int64())})


def decoded(c: tidelake.Collection, monkeypatch: pytest.MonkeyPatch, read_) -> tuple[pa.Table, set[str]]:
    """What a read finds, and the columns that it decodes."""
    asked: list[set[str]] = []

    def watched(*given, columns=None, **more):
        asked.append({*SCHEMA.names, "_time", "_diff"} if columns is None else set(columns))
        return stream_read(*given, columns=columns, **more)

    stream_read = stream.read_part
    with monkeypatch.context() as patched:
        patched.setattr(stream, "read_part", watched)
        return read_().read_all(), set().union(*asked)


@pytest.mark.promise(
    "Rows are decoded without their times only if they all have one that the query asks for, and "
    "none is cut away",
    rule="`_keeps_all` in `shard/runs/read.py`",
    also=[
        "::test_updates_keep_their_own_times",
        "::test_rows_outside_the_bounds_of_their_batch_are_dropped_by_their_times",
        "::test_rows_that_are_taken_away_are_judged_by_their_times",
        "::test_a_run_that_the_query_does_not_ask_for_is_not_taken_for_the_answer",
    ],
)
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("time", [5, 7])
def test_the_rows_of_one_time_are_read_without_it(
    inline: bool, time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = made(tmp_path, Config() if inline else STORED)
    c.append(rows([]), upper=8)
    wanted = rows(range(20), time).append_column("_diff", pa.array([1] * 20, pa.int64()))
    found, columns = decoded(c, monkeypatch, lambda: c.snapshot(time))
    assert found.to_pydict() == wanted.to_pydict()
    assert columns == (set() if inline else {"k", "v"})
    found, columns = decoded(c, monkeypatch, lambda: c.snapshot(time, columns=["v"], where="k >= 3"))
    assert found.to_pydict() == wanted.slice(3).select(["v", "_time", "_diff"]).to_pydict()
    found, _ = decoded(c, monkeypatch, lambda: c.changes(4, time))
    assert found.to_pydict() == wanted.to_pydict()
    assert c.changes(5, 7).read_all().num_rows == 0


@pytest.mark.promise(
    "Diffs are decoded unless the statistics of a run say that all are 1",
    rule="`_ones` in `shard/runs/read.py`",
    also=["::test_rows_that_are_taken_away_are_judged_by_their_times"],
)
@pytest.mark.parametrize("diffs", [[1, 1], [2, 2], [3, -1], [1, -1]])
@pytest.mark.parametrize("patched", [False, True])
def test_diffs_that_are_all_one_are_not_decoded(
    diffs: list[int], patched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(STORED, fold_rows=256)
    c = tidelake.open(tmp_path, config=config).create("c", SCHEMA, key=["k"], time="counter")
    keys = list(range(200))
    known = rows(keys).append_column("_diff", pa.array(diffs * 100, pa.int64()))
    c.append(known, upper=6)
    if patched:
        c.append(rows([200], 6), upper=7)
    found, columns = decoded(c, monkeypatch, c.snapshot)
    assert found["_diff"].to_pylist() == diffs * 100 + [1] * patched
    assert found["k"].to_pylist() == keys + [200] * patched
    assert patched or ("_diff" in columns) == (diffs != [1, 1])
    found, _ = decoded(c, monkeypatch, lambda: c.snapshot(columns=[]))
    assert found.column_names == ["_time", "_diff"]
    assert sum(found["_diff"].to_pylist()) == 100 * sum(diffs) + patched


def test_updates_keep_their_own_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    c = made(tmp_path)
    found, columns = decoded(c, monkeypatch, lambda: c.updates(0, 6))
    assert set(found["_time"].to_pylist()) == {5} and "_time" in columns


def test_rows_outside_the_bounds_of_their_batch_are_dropped_by_their_times(tmp_path: Path) -> None:
    c = made(tmp_path)
    version = inside.shard(c).version()
    (source,) = read.sources_of(version.state, AsOf(5))[0]
    for upper, count in ((5, 0), (6, 20)):
        cut = replace(source, run=replace(source.run, truncated=True), upper=Frontier.of(upper))
        found = read.rows(version.spec, inside.shard(c).stores.blobs, [cut], AsOf(7))
        assert sum(batch.num_rows for batch in found) == count


def test_rows_that_are_taken_away_are_judged_by_their_times(tmp_path: Path) -> None:
    c = made(tmp_path)
    version = inside.shard(c).version()
    (source,) = read.sources_of(version.state, AsOf(5))[0]
    for upto, diffs in ((4, []), (5, [-1] * 20)):
        taken = [replace(source, less=upto)]
        found = list(read.rows(version.spec, inside.shard(c).stores.blobs, taken, AsOf(5)))
        assert [diff for batch in found for diff in batch.column("_diff").to_pylist()] == diffs


def test_a_run_that_the_query_does_not_ask_for_is_not_taken_for_the_answer(tmp_path: Path) -> None:
    c = made(tmp_path)
    version = inside.shard(c).version()
    (source,) = read.sources_of(version.state, AsOf(5))[0]
    everything = Updates(Frontier.of(0), Frontier())
    for query, count in ((AsOf(4), 0), (Changes(5, 6), 0), (Changes(4, 5), 20), (everything, 20)):
        found = read.rows(version.spec, inside.shard(c).stores.blobs, [source], query)
        assert sum(batch.num_rows for batch in found) == count

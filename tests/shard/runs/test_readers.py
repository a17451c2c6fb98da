"""Reads of few rows of a store that is near are done by their caller alone."""

from pathlib import Path

import pyarrow as pa
import pytest

import tidelake
from tidelake.config import Config
from tidelake.shard.engine import overlap

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


def rows(keys, value: int) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array([value] * len(keys), pa.int64())})


@pytest.mark.parametrize(("fold_rows", "is_small"), [(600, True), (400, False)])
@pytest.mark.parametrize("runs", [1, 2])
def test_few_rows_need_no_thread_and_more_rows_are_read_ahead(
    fold_rows: int, is_small: bool, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(
        fold_rows=fold_rows,
        inline_part_bytes=0,
        merge_budget_s=0.0,
        merge_inputs_min=100,
        merge_rows_min=10**6,
    )
    c = tidelake.open(tmp_path, config=config).create("c", SCHEMA, key=["k"], time="counter")
    for n in range(runs):
        c.append(rows(range(n, 250, runs), n))
    begun = []
    start = overlap._started
    monkeypatch.setattr(overlap, "_started", lambda thread: begun.append(thread) or start(thread))
    for read in (lambda: c.snapshot().read_all(), lambda: c.lookup(pa.table({"k": range(250)}))):
        begun.clear()
        found = read()
        assert found["k"].to_pylist() == list(range(250))
        assert found["v"].to_pylist() == [k % runs for k in range(250)]
        assert (not begun) == is_small

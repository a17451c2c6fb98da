"""Change events of several tables against a replay by a dictionary, in micro-batches of any size."""

import random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from feed import Feed, contents, told

import tidelake
from tidelake.errors import WriterFenced
from tidelake.spark import tables_sink
from tidelake.spark.envelopes.read import AS_TEXT
from tidelake.spark.writing.tablelines import FewLines
from tiers import rounds


def few(lines: list[str], held: pa.RecordBatch | None = None, start: int = 0) -> FewLines:
    """Lines as a micro-batch."""
    kinds = {"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64()}
    given: dict[str, Any] = {"value": lines, "offset": range(start + 1, start + len(lines) + 1)}
    columns = [
        pa.array(given.get(name, [None] * len(lines)), kinds.get(name, pa.string())) for name in AS_TEXT
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=list(AS_TEXT))
    return FewLines([batch] if held is None else [held, batch])


def test_tables_are_what_a_replay_leaves_at_every_time(tmp_path: Any) -> None:
    for seed in rounds(fast=1, full=20, soak=400):
        _replayed(tmp_path / str(seed), seed)


def _replayed(place: Any, seed: int) -> None:
    feed = Feed(seed).transactions(30)
    chance = random.Random(seed)
    lake = tidelake.open(place)
    at, batch = 0, 0
    sink = tables_sink(lake, "shop", keys=["id"])
    while at < len(feed.lines):
        size = chance.randint(1, 8)
        lines = [line for _, one in feed.lines[at : at + size] for line in one]
        done = sink.write(lambda held, lines=lines: few(lines, held), "query", batch)
        assert not done.already
        if chance.random() < 0.3:
            # The driver died after the commit, and another one repeats the micro-batch.
            sink = tables_sink(lake, "shop", keys=["id"])
            assert sink.write(lambda held, lines=lines: few(lines, held), "query", batch).already
        uppers = {lake[name].upper for name in lake.list()}
        assert len(uppers) == 1
        at, batch = at + size, batch + 1
    named = {row["table"]: row["collection"] for row in lake["shop"].snapshot().read_all().to_pylist()}
    assert {f"d.public.{table}" for table in feed.now} == set(named)
    for (time, _), state in zip(feed.lines, feed.states, strict=True):
        if time >= max(lake["shop"].upper.elements):
            continue
        for table, rows in state.items():
            found = contents(lake[named[f"d.public.{table}"]], time)
            assert found == {key: told(row) for key, row in rows.items()}, (time, table)


def test_tables_are_whole_transactions_however_the_lines_are_cut(tmp_path: Any) -> None:
    for seed in rounds(fast=1, full=15, soak=400):
        feed = Feed(seed, postgres=True).transactions(30)
        chance = random.Random(seed)
        lines = [line for _, one in feed.lines for line in one]
        lake = tidelake.open(tmp_path / str(seed))
        sink = tables_sink(lake, "shop", keys=["id"])
        at, batch = 0, 0
        while at < len(lines):
            cut = lines[at : at + chance.randint(1, 15)]
            for number in (batch, batch) if chance.random() < 0.3 else (batch,):
                sink.write(lambda held, cut=cut, at=at: few(cut, held, at), "query", number)
                sink = tables_sink(lake, "shop", keys=["id"]) if chance.random() < 0.3 else sink
            at, batch = at + len(cut), batch + 1
        end = lake["shop"].upper.elements[0]
        closed = [
            (time, state) for (time, _), state in zip(feed.lines, feed.states, strict=True) if time < end
        ]
        assert len(closed) >= len(feed.lines) - 4, "more than the last transaction with events is held back"
        for time, state in closed:
            for table, rows in state.items():
                found = contents(lake[f"shop.public.{table}"], time)
                assert found == {key: told(row) for key, row in rows.items()}, (seed, time, table)


def test_an_older_driver_is_fenced(tmp_path: Any) -> None:
    (_, first), (_, second), (_, third) = Feed(1).transactions(3).lines
    lake = tidelake.open(tmp_path / "lake")
    old = tables_sink(lake, "shop", keys=["id"])
    old.write(lambda _: few(first), "query", 0)
    new = tables_sink(tidelake.open(tmp_path / "lake"), "shop", keys=["id"])
    new.write(lambda _: few(second), "query", 1)
    with pytest.raises(WriterFenced):
        old.write(lambda _: few(third), "query", 2)
    new.write(lambda _: few(third), "query", 2)

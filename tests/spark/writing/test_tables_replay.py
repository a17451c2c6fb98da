"""Change events of several tables against a replay by a dictionary, in micro-batches of any size."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import pyspark.sql.functions as F
from feed import Feed, connect, contents, told

import tidelake
from tidelake.cdc.times import heldevents as held_back
from tidelake.cdc.times.heldevents import packed, split
from tidelake.errors import CorruptionError, StoreUnavailable, UsageError, WriterFenced
from tidelake.feeds.reading import AS_TEXT
from tidelake.feeds.tablelines import FewLines
from tidelake.spark import tables_sink
from tidelake.spark.writing.tablelines import lines_of
from tiers import rounds


def few(lines: list[str], start: int = 0) -> FewLines:
    """Lines as a micro-batch."""
    kinds = {"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64()}
    given: dict[str, Any] = {"value": lines, "offset": range(start + 1, start + len(lines) + 1)}
    columns = [
        pa.array(given.get(name, [None] * len(lines)), kinds.get(name, pa.string())) for name in AS_TEXT
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=list(AS_TEXT))
    return FewLines([batch])


@pytest.mark.promise(
    "A truncation removes all rows before it, and a value that the source left out is that of the row before",
    rule="`Upserter.upload`, `_filled` in `data/ingest/upsert.py`, `cdc/debezium/unavailable.py`",
    also=[
        "spark/jobs/test_ingest_tables.py::test_a_truncation_empties_the_collection",
        "spark/jobs/test_ingest_tables.py::test_an_array_that_the_source_left_out_is_that_of_the_row_before",
        "spark/writing/test_table_targets.py::test_a_table_that_was_truncated_amid_its_copy_is_told",
        "cdc/test_cdc.py::test_a_truncation_waits_for_the_first_copy",
    ],
)
@pytest.mark.promise(
    "A micro-batch of many tables is in whole in all of them or not at all, once, and at every "
    "closed time they are what a replay leaves, also after kills",
    rule="`GroupWriter`",
    also=["spark/writing/test_tables_replay.py", "spark/test_tables_kill.py::test_killed_anywhere"],
)
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
        done = sink.write(lambda _, lines=lines: few(lines), "query", batch)
        assert not done.already
        if chance.random() < 0.3:
            # The driver died after the commit, and another one repeats the micro-batch.
            sink = tables_sink(lake, "shop", keys=["id"])
            assert sink.write(lambda _, lines=lines: few(lines), "query", batch).already
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
                sink.write(lambda _, cut=cut, at=at: few(cut, at), "query", number)
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


COLUMNS = {"id": ("int64", False), "n": ("int32", False)}


def event(table: str, key: int, own: int, commit: int) -> str:
    """An insert of PostgreSQL, in the transaction after a commit."""
    source = {"connector": "postgresql", "db": "d", "schema": "public", "table": table, "lsn": own}
    source |= {"sequence": json.dumps([str(commit), "0"]), "snapshot": "false"}
    payload = {"before": None, "after": {"id": key, "n": key % 7}, "op": "c", "source": source}
    return json.dumps({"schema": connect(table, COLUMNS), "payload": payload})


def stored(place: Path) -> set[str]:
    """The names of the objects in which rows are held back."""
    found = (path for path in place.rglob("*") if path.is_file() and "/held/" in str(path))
    return {str(path)[str(path).index("/held/") :] for path in found}


@pytest.mark.promise(
    "What is held back has no bound but that of the store: the record names the objects, a restart "
    "goes on with them, and those that no record names are deleted by the stream's next commit "
    "after a start",
    rule="`HeldStore` in `feeds/heldrows.py`",
    also=[
        "::test_tasks_hold_back_a_transaction_of_many_rows",
        "spark/envelopes/test_commit_times.py::test_an_ingest_goes_on_where_a_transaction_was_held_back",
    ],
)
def test_a_large_transaction_is_held_back_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_back, "BYTES_MAX", 1_800)
    monkeypatch.setattr(held_back, "OBJECT_BYTES", 2_000)
    monkeypatch.setattr("tidelake.feeds.reading.ROWS_MAX", 3)
    lines = [event(f"t{n % 2}", n, 1_000 + n, 900) for n in range(40)]
    place = tmp_path / "lake"
    lake = tidelake.open(place)
    sink = tables_sink(lake, "shop", keys=["id"])
    sink.write(lambda _: few([event("t0", 99, 800, 700), *lines[:10]]), "query", 0)
    for number, at in enumerate((10, 20, 30), 1):
        before = stored(place)
        assert len(before) > 1
        if at == 20:
            # A driver stored rows, and was killed before its commit.
            folder = next(place.rglob("held/*"))
            (folder / f"aa-{0:032x}").write_bytes(packed([]))
            assert stored(place) > before
        # What was sent last comes again.
        cut = lines[at - 3 : at + 10]
        sink = tables_sink(lake, "shop", keys=["id"])
        done = sink.write(lambda _, cut=cut: few(cut), "query", number)
        assert (done.held, done.repeated, lake["shop.public.t1"].upper.elements) == (at + 10, 3, (900,))
        kept = split(lake["shop"].writer("spark-tables", owner="query").last_content)[1]
        assert kept is not None and not kept.rows
        assert stored(place) == {f"/held/{name}" for name in kept.stored}
        assert sink.write(lambda _, cut=cut: few(cut), "query", number).already
    assert not lake.fsck().findings
    lake["shop"].collect()
    sink = tables_sink(lake, "shop", keys=["id"])
    done = sink.write(lambda _: few([event("t0", 100, 3_000, 2_000)]), "query", 4)
    assert done.held == 1 and not stored(place)
    # A driver was killed between its commit and the deletion.
    (folder / f"bb-{0:032x}").write_bytes(packed([]))
    sink = tables_sink(lake, "shop", keys=["id"])
    sink.write(lambda _: few([event("t0", 101, 5_000, 4_000)]), "query", 5)
    assert not stored(place)
    for table in range(2):
        found = contents(lake[f"shop.public.t{table}"], 1_999)
        assert {key for key in found if key < 40} == set(range(table, 40, 2))
        assert len(lake[f"shop.public.t{table}"].updates(900, 2_000).read_all()) == 20


def held_by(
    lake: tidelake.Lake, monkeypatch: pytest.MonkeyPatch, place: Path, most: int = 1_800
) -> list[Path]:
    """Let a stream into `shop` hold 40 events back in several objects; these."""
    monkeypatch.setattr(held_back, "BYTES_MAX", most)
    monkeypatch.setattr(held_back, "OBJECT_BYTES", 2_000)
    monkeypatch.setattr("tidelake.feeds.reading.ROWS_MAX", 3)
    lines = [event("t0", 99, 800, 700), *(event(f"t{n % 2}", n, 1_000 + n, 900) for n in range(40))]
    tables_sink(lake, "shop", keys=["id"]).write(lambda _: few(lines), "query", 0)
    return sorted(path for path in place.rglob("held/*/*") if path.is_file())


def goes_on(lake: tidelake.Lake, batch: int = 1) -> None:
    """Let the stream go on: what it held back is in then."""
    later = event("t0", 100, 3_000, 2_000)
    done = tables_sink(lake, "shop", keys=["id"]).write(lambda _: few([later]), "query", batch)
    assert done.events == 40
    for table in range(2):
        found = contents(lake[f"shop.public.t{table}"], 1_999)
        assert {key for key in found if key < 40} == set(range(table, 40, 2))


@pytest.mark.promise(
    "A copy of a lake has what a stream holds back, so the stream goes on there; `fsck` names what "
    "is gone of it or damaged, and other bytes are never taken",
    rule="`state/write/heldback.py`, `ShardCopy._hold_back`, `shard/care/partchecks.py`",
    also=[
        "::test_a_copy_has_what_a_stream_held_back_or_is_not_made",
        "::test_fsck_names_what_is_gone_of_rows_held_back",
    ],
)
def test_a_feed_goes_on_at_a_copy_with_what_it_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tidelake.open(tmp_path / "lake")
    lake.create("other", {"id": "int64"}, key=["id"])
    lake.copy(tmp_path / "copy")
    objects = held_by(lake, monkeypatch, tmp_path / "lake")
    assert len(objects) > 1
    for name in ("copy", "again"):
        # One that was there, and a new one.
        lake.copy(tmp_path / name)
        with tidelake.open(tmp_path / name) as copy:
            assert not copy.fsck().findings
            assert len(stored(tmp_path / name)) == len(objects)
    with tidelake.open(tmp_path / "again") as copy:
        goes_on(copy)
        assert not stored(tmp_path / "again")
    goes_on(lake)
    lake.copy(tmp_path / "copy")
    with tidelake.open(tmp_path / "copy") as copy:
        assert not stored(tmp_path / "copy") and not copy.fsck().findings


def test_a_copy_has_what_a_stream_held_back_or_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tidelake.open(tmp_path / "lake")
    objects = held_by(lake, monkeypatch, tmp_path / "lake")
    objects[0].write_bytes(objects[1].read_bytes())
    with pytest.raises(CorruptionError, match="other bytes"):
        lake.copy(tmp_path / "copy")
    objects[0].unlink()
    with pytest.raises(StoreUnavailable, match="has gone on: copy again"):
        lake.copy(tmp_path / "copy")


@pytest.mark.promise(
    "Keys of which a stream may hold events back are not erased: their rows would come after the erasure",
    rule="`_check_held_back` in `lake/api/erasing.py`, `data/keys/mentions.py`",
    also=["data/test_mentions.py"],
)
@pytest.mark.parametrize("most", [1_800, held_back.BYTES_MAX])
def test_keys_of_which_a_stream_holds_events_back_are_not_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Their rows would be there after the erasure."""
    lake = tidelake.open(tmp_path / "lake")
    held_by(lake, monkeypatch, tmp_path / "lake", most)
    # Another micro-batch, without events.
    tables_sink(lake, "shop", keys=["id"]).write(lambda _: few([]), "query", 1)
    assert bool(stored(tmp_path / "lake")) == (most == 1_800)
    before = lake["shop.public.t0"].state()
    with pytest.raises(
        UsageError, match=r"writer 'spark-tables' holds events back.*Delete the rows at the source"
    ):
        lake["shop.public.t0"].erase([99, 38], reason="r")
    assert lake["shop.public.t0"].state() == before
    assert lake["shop.public.t0"].erase([77, 78], reason="r").keys == 2
    goes_on(lake, 2)
    assert lake["shop.public.t0"].erase([38], reason="r").updates == 1


@pytest.mark.parametrize("quick", [False, True])
def test_fsck_names_what_is_gone_of_rows_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    lake = tidelake.open(tmp_path / "lake")
    objects = held_by(lake, monkeypatch, tmp_path / "lake")
    assert not lake.fsck(quick=quick).findings
    objects[0].write_bytes(objects[1].read_bytes())
    with pytest.raises(CorruptionError, match="other bytes"):
        goes_on(lake)
    damaged = [] if quick else [("held-damaged", objects[0].name)]
    objects[1].unlink()
    for report in (lake.fsck(quick=quick), lake.fsck(["shop"], quick=quick)):
        found = sorted((one.kind, one.object.rpartition("/")[2]) for one in report.findings)
        assert found == [*damaged, ("held-missing", objects[1].name)]
    objects[0].unlink()
    with pytest.raises(CorruptionError, match="are gone"):
        goes_on(lake)


@pytest.mark.full
def test_tasks_hold_back_a_transaction_of_many_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such rows are packed into very few bytes.
    monkeypatch.setattr(held_back, "BYTES_MAX", 100_000)
    monkeypatch.setattr(held_back, "OBJECT_BYTES", 100_000)
    place, count = tmp_path / "lake", 100_000
    lake = tidelake.open(place)
    text = event("t@", 11111111, 22222222, 900)
    columns = {"@": F.col("id") % 2, "11111111": F.col("id"), "22222222": F.col("id") + 1000}
    parts = [columns.get(part, F.lit(part)) for part in re.split("(@|11111111|22222222)", text)]
    for number in range(2):
        frame = spark.range(number * count, (number + 1) * count, 1, 4).select(
            F.concat(*parts).alias("value")
        )
        sink = tables_sink(lake, "shop", keys=["id"])
        done = sink.write(lambda many, frame=frame: lines_of(frame, None, by_tasks=many), "query", number)
        assert done.held == (number + 1) * count and stored(place)
    frame = spark.createDataFrame([(event("t0", -1, 900_000, 800_000),)], "value string")
    sink = tables_sink(lake, "shop", keys=["id"])
    done = sink.write(lambda many: lines_of(frame, None, by_tasks=many), "query", 2)
    assert done.held == 1 and not stored(place)
    for name in ("t0", "t1"):
        found = lake[f"shop.public.{name}"].updates(0, 800_000).read_all()
        assert len(found) == count and set(found.column("_time").to_pylist()) == {799_999}

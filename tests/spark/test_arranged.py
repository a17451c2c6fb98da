"""Arrangements in workers of Spark: frames are enriched there, and upserts look up their old rows."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.errors import StoreUnavailable, UsageError
from tidelake.lake.reference import ArrangementReference
from tidelake.model.frontier import Frontier
from tidelake.spark import upsert
from tidelake.spark.envelopes.upsert import Upsert
from tidelake.spark.uploads import total
from tidelake.spark.writing.commit import commit, write

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def held(collection: tidelake.Collection) -> Counter[Any]:
    rows = collection.snapshot().read_all().to_pylist()
    return Counter({(row["id"], row["v"]): row["_diff"] for row in rows})


def test_upserts_that_look_up_in_workers_leave_what_others_leave(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        plain = lake.create("plain", SCHEMA, key=["id"])
        kept = lake.create("kept", SCHEMA, key=["id"])
        for _ in range(4):
            rows = [(id_, rng.choice(["a", "b", None])) for id_ in rng.sample(range(60), 25)]
            frame = spark.createDataFrame(rows, "id bigint, v string")
            upsert(plain, frame)
            upsert(kept, frame, state_bytes=1 << 20)
            assert held(plain) == held(kept)
        purposes = {hold.purpose for hold in kept.state().holds.values()}
        assert purposes == {"arrangement of kept"}, "no worker has one"
        assert not plain.state().holds


def test_a_collection_that_is_too_large_is_not_kept_by_workers(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        noise = random.Random(1).randbytes(200_000).hex()
        c.append(pa.table({"id": [1], "v": [noise]}))
        frame = spark.createDataFrame([(1, "a"), (2, "b")], "id bigint, v string")
        upsert(c, frame, state_bytes=1 << 20)
        assert held(c) == Counter({(1, "a"): 1, (2, "b"): 1})
        assert not c.state().holds


def test_history_does_not_count_as_state(tmp_path: Path) -> None:
    noise = random.Random(1)
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for _ in range(8):
            c.upsert(pa.table({"id": [1], "v": [noise.randbytes(40_000).hex()]}))
        assert sum(batch.size_bytes for batch in c.state().batches()) > 1 << 18
        assert Upsert(state_bytes=1 << 20)._state(c) is not None
        c.append(pa.table({"id": range(2, 8), "v": [noise.randbytes(40_000).hex() for _ in range(6)]}))
        assert Upsert(state_bytes=1 << 20)._state(c) is None


@dataclass(frozen=True)
class Failing(Upsert):
    """Fails to bring up to date what it keeps."""

    def catch_up(self, collection: tidelake.Collection) -> None:
        """As `Keeping`."""
        raise StoreUnavailable(f"{collection.name} in {threading.current_thread().name}", False)


def test_what_goes_wrong_beside_the_job_ends_the_write(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        pq.write_table(pa.table({"id": [2], "v": ["b"]}), tmp_path / "events.parquet")
        frame = spark.read.parquet(str(tmp_path / "events.parquet"))
        with pytest.raises(StoreUnavailable, match="c in tidelake-background"):
            write(c, frame, Failing())
        assert c.upper == Frontier.of(0)
        assert write(c, frame, Upsert()).appended.upper == c.upper != Frontier.of(0)


def test_the_driver_keeps_the_state_of_few_rows_in_memory(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
        for number in range(3):
            pq.write_table(pa.table({"id": [2, 7], "v": [f"{number}", None]}), tmp_path / "events.parquet")
            upsert(c, spark.read.parquet(str(tmp_path / "events.parquet")), state_bytes=1 << 20)
            assert held(c) == Counter({(1, "a"): 1, (2, f"{number}"): 1, (3, "c"): 1})
        reference = Upsert(state_bytes=1 << 20)._state(c)
        assert reference is not None
        try:
            report = reference.here(catch_up=False).report()
            # The last upsert is taken in by the next one.
            assert (report.rows > 3, report.bytes_on_disk) == (True, 0)
        finally:
            reference.forget_here()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tidelake.Collection]:
    """A collection that this process has an arrangement of, for upserts."""
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
        work_here(c, pa.table({"id": [2], "v": ["c"]}))
        assert reference_of(c).is_here
        yield c
        reference_of(c).forget_here()


def reference_of(c: tidelake.Collection) -> ArrangementReference:
    reference = Upsert(state_bytes=1 << 20)._named(c)
    assert reference is not None
    return reference


def work_here(c: tidelake.Collection, events: pa.Table) -> None:
    """Upsert as a worker does, without a look at what is new before."""
    lower, read_at = c.upper, c.state().seqno
    work = Upsert(state_bytes=1 << 20).work(c, events.column_names, lower)
    answer = total(pa.Table.from_batches(list(work(iter(events.to_batches())))))
    assert commit(c, answer, lower, read_at=read_at) is not None


def test_a_worker_that_lost_its_history_reads_the_store_and_loads_again(kept: tidelake.Collection) -> None:
    first = reference_of(kept).here(catch_up=False)
    for hold in list(kept.state().holds):
        kept.release(hold)
    kept.append(pa.table({"id": [3], "v": ["x"]}))
    kept.advance_since(kept.upper.just_before())
    work_here(kept, pa.table({"id": [2, 3], "v": ["d", "y"]}))
    work_here(kept, pa.table({"id": [2], "v": ["e"]}))
    assert held(kept) == Counter({(1, "a"): 1, (2, "e"): 1, (3, "y"): 1})
    assert reference_of(kept).here(catch_up=False) is not first


def test_state_that_another_upsert_has_closed_is_not_asked(kept: tidelake.Collection) -> None:
    first = reference_of(kept).here(catch_up=False)
    first.close()
    work_here(kept, pa.table({"id": [2], "v": ["d"]}))
    work_here(kept, pa.table({"id": [2], "v": ["e"]}))
    assert held(kept) == Counter({(1, "a"): 1, (2, "e"): 1})
    assert reference_of(kept).here(catch_up=False) is not first


def test_state_from_before_the_columns_changed_is_loaded_again(kept: tidelake.Collection) -> None:
    kept.evolve(pa.schema([*SCHEMA, pa.field("w", pa.int64())]))
    work_here(kept, pa.table({"id": [2], "v": ["d"], "w": [1]}))
    assert held(kept) == Counter({(1, "a"): 1, (2, "d"): 1})
    found = reference_of(kept).here(catch_up=False)
    assert found.why_not_all_of(kept.uploader().spec) == ""


def test_state_that_was_outgrown_is_let_go(kept: tidelake.Collection) -> None:
    assert kept.state().holds
    kept.append(pa.table({"id": [3], "v": [random.Random(1).randbytes(400_000).hex()]}))
    work_here(kept, pa.table({"id": [2, 3], "v": ["d", "x"]}))
    assert held(kept) == Counter({(1, "a"): 1, (2, "d"): 1, (3, "x"): 1})
    assert not reference_of(kept).is_here
    assert not kept.state().holds


def test_a_stream_of_the_format_keeps_the_state_where_it_commits(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
        (tmp_path / "in").mkdir()

        def run(number: int, size: str) -> None:
            pq.write_table(pa.table({"id": [2], "v": [f"{number}"]}), tmp_path / "in" / f"{number}.parquet")
            stream = spark.readStream.schema("id bigint, v string").parquet(str(tmp_path / "in"))
            out = stream.writeStream.format("tidelake").options(envelope="upsert", stateBytes=size)
            out = out.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            out.start(f"{lake.url}/c").awaitTermination()

        for number in range(2):
            run(number, "1m")
            assert held(c) == Counter({(1, "a"): 1, (2, f"{number}"): 1})
        assert {hold.purpose for hold in c.state().holds.values()} == {"arrangement of c"}
        with pytest.raises(Exception, match="option stateBytes='much' is no size: give one such as 512m"):
            run(2, "much")


def test_state_of_a_few_bytes_is_refused() -> None:
    for size in (1, -1):
        with pytest.raises(UsageError, match=f"state_bytes={size} must be 0 or at least 1048576"):
            Upsert(state_bytes=size)


def test_a_frame_is_enriched_in_workers(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
        reference = tidelake.arrangement_reference(c, directory=str(tmp_path / "batches"))

        def enriched(batches: Any) -> Any:
            index = reference.here()
            for batch in batches:
                found = index.fetch(batch.select(["id"])).drop_columns(["_diff"])
                yield from pa.table(batch).join(found, "id").to_batches()

        frame = spark.range(5).select("id").mapInArrow(enriched, "id bigint, v string")
        assert {(r.id, r.v) for r in frame.collect()} == {(0, None), (1, "a"), (2, "b"), (3, "c"), (4, None)}
        c.append(pa.table({"id": [4], "v": ["d"]}))
        assert {(r.id, r.v) for r in frame.collect() if r.v} == {(1, "a"), (2, "b"), (3, "c"), (4, "d")}

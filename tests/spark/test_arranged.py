"""What Spark processes keep: arrangements that enrich frames, and unpacked parts for upserts."""

import random
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.errors import StoreUnavailable
from tidelake.model.frontier import Frontier
from tidelake.shard.runs.partcaches import part_caches
from tidelake.spark import upsert
from tidelake.spark.envelopes.upsert import Upsert
from tidelake.spark.writing.commit import write

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
# Parts of a few rows are kept.
CONFIG = Config(inline_part_bytes=0, row_group_rows=5, merge_budget_s=0.0)


def held(collection: tidelake.Collection) -> Counter[Any]:
    rows = collection.snapshot().read_all().to_pylist()
    return Counter({(row["id"], row["v"]): row["_diff"] for row in rows})


def kept_bytes(collection: tidelake.Collection) -> int:
    spec = collection.distributed.uploader().spec
    return part_caches().unpacked.size_bytes(spec.url)


@pytest.mark.full
def test_upserts_that_look_up_in_workers_leave_what_others_leave(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        one, other = (lake.create(name, SCHEMA, key=["id"]) for name in ("one", "other"))
        for _ in range(5):
            rows = [(id_, rng.choice(["a", "b", None])) for id_ in rng.sample(range(60), 40)]
            upsert(one, spark.createDataFrame(rows, "id bigint, v string"))
            other.upsert(pa.Table.from_pylist([{"id": id_, "v": v} for id_, v in rows], SCHEMA))
            assert held(one) == held(other)


@pytest.mark.full
def test_the_driver_unpacks_what_is_new_while_it_waits_for_rows(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake", config=CONFIG) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(pa.table({"id": list(range(100)), "v": ["old"] * 100}))
        # Each decodes half of the rows of the first part, and those that the ones before it have written.
        sizes, ids = [], list(range(0, 100, 10))
        for number in range(5):
            pq.write_table(pa.table({"id": ids, "v": [f"{number}"] * len(ids)}), tmp_path / "events.parquet")
            upsert(c, spark.read.parquet(str(tmp_path / "events.parquet")))
            sizes.append(kept_bytes(c))
        # The third one unpacks what the first has written, and each after it what the one before has.
        assert 0 == sizes[1] < sizes[2] < sizes[3] < sizes[4]
        expected = dict.fromkeys(range(100), "old") | dict.fromkeys(ids, "4")
        assert held(c) == Counter(expected.items())


@dataclass(frozen=True)
class Failing(Upsert):
    """Fails to unpack what is new."""

    def catch_up(self, collection: tidelake.Collection) -> None:
        """As `Unpacking`."""
        raise StoreUnavailable(f"{collection.name} in {threading.current_thread().name}", False)


@pytest.mark.full
def test_what_goes_wrong_beside_the_job_ends_the_write(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        pq.write_table(pa.table({"id": [2], "v": ["b"]}), tmp_path / "events.parquet")
        frame = spark.read.parquet(str(tmp_path / "events.parquet"))
        with pytest.raises(StoreUnavailable, match="c in tidelake-background"):
            write(c, frame, Failing())
        assert c.upper == Frontier.of(0)
        assert write(c, frame, Upsert()).appended.upper == c.upper != Frontier.of(0)


@pytest.mark.full
def test_a_frame_is_enriched_in_workers(spark: Any, tmp_path: Path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
        reference = tidelake.arrangement_reference(c, directory=str(tmp_path / "batches"))

        def enriched(batches: Any) -> Any:
            index = reference.here()
            for batch in batches:
                found = index.lookup(batch.select(["id"])).drop_columns(["_diff"])
                yield from pa.table(batch).join(found, "id").to_batches()

        frame = spark.range(5).select("id").mapInArrow(enriched, "id bigint, v string")
        assert {(r.id, r.v) for r in frame.collect()} == {(0, None), (1, "a"), (2, "b"), (3, "c"), (4, None)}
        c.append(pa.table({"id": [4], "v": ["d"]}))
        assert {(r.id, r.v) for r in frame.collect() if r.v} == {(1, "a"), (2, "b"), (3, "c"), (4, "d")}

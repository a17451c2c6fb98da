"""Rows handed over to another process: all of them come back, by key, in bounded memory."""

from collections import Counter
from random import Random

import pyarrow as pa
import pytest
from shards import Place

import tidelake
from tests.doubles.roundtrips import FarBlobStore, RoundTrips
from tidelake.config import Config
from tidelake.data.kernel.encode import encode_key
from tidelake.env import SystemClock
from tidelake.errors import CorruptionError, UploadExpired
from tidelake.model import names
from tidelake.shard.engine.spec import stores_of
from tidelake.shard.writing import shufflespill as spill_module
from tidelake.shard.writing.shufflespill import ShuffleSpill
from tidelake.store.url import Stores

SCHEMA = pa.schema([pa.field("x", pa.float64()), pa.field("k", pa.string()), ("v", pa.int64())])
TINY = Config(merge_memory_bytes=1 << 24)


@pytest.fixture
def c():
    lake = tidelake.open("memory://spill-" + Place().lake().url[9:], config=TINY)
    return lake.create("c", SCHEMA, key=["x", "k"])


def spill_of(c):
    return ShuffleSpill.from_bytes(ShuffleSpill(c.distributed.uploader().spec).to_bytes())


def batches(rng, count):
    """Batches of columns that are not the collection's, with keys of few values."""
    floats = [0.0, -0.0, 1.5, float("nan"), float("-inf"), None]
    for _ in range(count):
        n = rng.randrange(200)
        yield pa.RecordBatch.from_pydict(
            {
                "key of": [rng.choice(floats) for _ in range(n)],
                "and": [rng.choice(["", "a", "\x00", "ä", None]) for _ in range(n)],
                "more": [rng.randrange(5) for _ in range(n)],
            },
            schema=pa.schema([("key of", pa.float64()), ("and", pa.string()), ("more", pa.int8())]),
        )


def keys(batch):
    return pa.RecordBatch.from_arrays([batch.column(0), batch.column(1)], ["x", "k"])


def texts(found):
    return Counter(str(row) for batch in found for row in batch.to_pylist())


@pytest.mark.parametrize("seed", range(5))
def test_all_rows_come_back_in_the_order_of_their_keys(c, seed):
    rng = Random(seed)
    spill, stored, given = spill_of(c), [], []
    for _ in range(4):
        task = list(batches(rng, 20))
        given += task
        stored += spill.put(task, keys)
    found = list(spill.rows(stored, c.state()))
    assert texts(found) == texts(given)
    ordered = pa.Table.from_batches(found)
    # 0.0 and -0.0 are one key, and so are all NaN.
    plain = pa.RecordBatch.from_arrays(
        [
            pa.array([0.0 if x == 0 else x for x in ordered.column(0).to_pylist()], pa.float64()),
            ordered.column(1).combine_chunks(),
        ],
        ["x", "k"],
    )
    encoded = encode_key(plain, c.distributed.uploader().spec.schema).to_pylist()
    assert encoded == sorted(encoded)


def test_a_task_with_more_than_fits_into_memory_makes_several_runs(c):
    wide = pa.RecordBatch.from_pydict({"x": [1.0] * 2000, "k": ["k" * 500] * 2000})
    spill = spill_of(c)
    stored = spill.put([wide] * 10, lambda batch: batch)
    assert len(stored) > 2
    assert sum(batch.num_rows for batch in spill.rows(stored, c.state())) == 20_000


def test_many_runs_are_merged_in_steps_of_few_open_files(c, monkeypatch):
    blobs = stores_of(c.distributed.uploader().spec).blobs
    original, opened = blobs.open, []

    def noted(name):
        opened[:] = [file for file in opened if not file.closed]
        opened.append(original(name))
        assert len(opened) <= 4
        return opened[-1]

    monkeypatch.setattr(blobs, "open", noted)
    monkeypatch.setattr(spill_module, "_RUNS_MAX", 4)
    spill, rng = spill_of(c), Random(7)
    # Each key once, so that no order is by chance; in all more than a run may be large.
    order = list(range(4000))
    rng.shuffle(order)
    stored = []
    for i in range(0, len(order), 200):
        named = [f"{k:06}" + "k" * 600 for k in order[i : i + 200]]
        task = pa.RecordBatch.from_pydict({"x": [1.0] * len(named), "k": named})
        stored += spill.put([task], keys)
    assert len(stored) == 20
    for _ in range(2):
        found = [text[:6] for batch in spill.rows(stored, c.state()) for text in batch.column(1).to_pylist()]
        assert found == [f"{k:06}" for k in range(len(order))]
        assert all(file.closed for file in opened)
    listed = {entry.name for entry in stores_of(c.distributed.uploader().spec).blobs.list(names.parts(c.id))}
    assert listed == set(stored)


def test_without_rows_nothing_is_stored(c):
    spill = spill_of(c)
    assert spill.put([next(batches(Random(1), 1)).slice(0, 0)], keys) == ()
    assert spill.put([], keys) == () and list(spill.rows([], c.state())) == []


def test_runs_are_uploads_without_a_name(c):
    spill = spill_of(c)
    stored = spill.put(list(batches(Random(1), 3)), keys)
    assert [names.uploaded_at(name) for name in stored] == [spill.spec.seqno]
    spill.discard(stored)
    spill.discard(stored)
    assert not [*stores_of(spill.spec).blobs.list(names.parts(c.id))]
    with pytest.raises(UploadExpired):
        next(spill.rows(stored, c.state()))


def test_a_run_that_is_far_is_read_in_large_pieces(c, monkeypatch):
    spill, given = spill_of(c), list(batches(Random(1), 300))
    (stored,) = spill.put(given, keys)
    near = stores_of(spill.spec)
    trips = RoundTrips(SystemClock(), 0)
    far = Stores(FarBlobStore(near.blobs, trips), near.log)
    monkeypatch.setattr(spill_module, "stores_of", lambda _: far)
    assert texts(spill.rows([stored], c.state())) == texts(given)
    # Its bytes, and its end.
    assert trips.calls["blob.read"] <= 1 + len(near.blobs.get(stored)) // spill_module._AHEAD_BYTES + 1


@pytest.mark.parametrize("name", ["../../planted", "catalog/parts/0000000000000001-00.parquet"])
def test_only_runs_of_the_shard_are_read_or_deleted(c, name):
    spill = spill_of(c)
    with pytest.raises(CorruptionError, match="no run of this shard"):
        list(spill.rows([name], c.state()))
    with pytest.raises(CorruptionError, match="no run of this shard"):
        spill.discard([name])

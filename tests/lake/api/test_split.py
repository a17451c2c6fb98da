"""A read in several streams: together it, each a range of keys, about equally large."""

import random

import pyarrow as pa
import pytest
from lakes import SMALL_PARTS

import tidelake
from threads import at_once
from tidelake.config import Config
from tidelake.errors import CollectionDropped, HistoryCompacted, NotYetClosed, UsageError
from tiers import some

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("s", pa.string()), ("v", pa.int64())])
CONFIGS = {
    "inline": Config(),
    "stored": SMALL_PARTS,
    "one group": Config(inline_part_bytes=0, merge_budget_s=0.0),
}


def opened(tmp_path, config):
    return tidelake.open(tmp_path / "lake", config=config).create("c", SCHEMA, key=["k", "s"])


@pytest.fixture(params=list(CONFIGS))
def collection(request, tmp_path):
    return opened(tmp_path, CONFIGS[request.param])


def fill(c, rng, times=4, each=60):
    """Rows of few keys and of many, some of which come again and go; nulls in the key."""
    for _ in range(times):
        ks = [rng.choice([None, 0, 0, rng.randrange(40)]) for _ in range(each)]
        table = pa.table(
            {
                "k": pa.array(ks, pa.int64()),
                "s": [rng.choice([None, "a", "b" * 20]) for _ in range(each)],
                "v": [rng.randrange(5) for _ in range(each)],
                "_diff": pa.array([rng.choice([-1, 1, 1]) for _ in range(each)], pa.int64()),
            }
        )
        c.append(table)


def keys_of(table):
    return [(k, s) for k, s in zip(table["k"].to_pylist(), table["s"].to_pylist(), strict=True)]


def check(whole, streams, n):
    found = [stream.read_all() for stream in streams]
    assert len(found) == n
    assert pa.concat_tables(found).equals(whole)
    seen = set()
    for table in found:
        if "k" in table.column_names:
            keys = set(keys_of(table))
            assert not keys & seen
            seen |= keys


@pytest.mark.promise(
    "The streams of a split, in order, are the answer; they are of one version, share no key and "
    "are about equal in size",
    rule="`VersionRead.split`, `shard/runs/shares.py`",
    also=[
        "lake/api/test_split.py",
        "shard/test_lease.py::test_the_streams_of_a_split_are_held_as_one_until_the_last_one_ends",
    ],
)
@pytest.mark.parametrize("seed", some(range(2), 2))
@pytest.mark.parametrize("n", some([3, 1, 50], 3))
def test_the_streams_are_the_answer_and_share_no_key(collection, seed, n):
    rng = random.Random(seed)
    fill(collection, rng)
    for where in (None, "k < 20 AND v > 1"):
        with collection.reader("test") as reader:
            for c, cut in ((collection, collection.distributed), (reader, reader)):
                check(c.snapshot(2, where=where).read_all(), cut.split_snapshot(n, 2, where=where), n)
                check(c.snapshot().read_all(), cut.split_snapshot(n), n)
                check(c.changes(1, 3, where=where).read_all(), cut.split_changes(n, 1, 3, where=where), n)
                check(c.updates(1, 4, where=where).read_all(), cut.split_updates(n, 1, 4, where=where), n)
    columns = ["v"]
    check(
        collection.snapshot(columns=columns).read_all(),
        collection.distributed.split_snapshot(n, columns=columns),
        n,
    )


@pytest.mark.full
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("n", [2, 5, 16])
def test_shares_of_rows_of_one_kind_are_about_equal(tmp_path, config, n):
    c = opened(tmp_path, config)
    rng = random.Random(n)
    for _ in range(3):
        ks = pa.array([rng.randrange(1 << 40) for _ in range(400)], pa.int64())
        c.append(pa.table({"k": ks, "s": ["x"] * 400, "v": [1] * 400}))
    sizes = [stream.read_all().num_rows for stream in c.distributed.split_snapshot(n)]
    assert sum(sizes) == 1200
    # A cut is a row group off, at most, of each of the runs that there are.
    assert max(sizes) - min(sizes) <= 0.35 * 1200 / n + 12


@pytest.mark.full
def test_more_rows_than_are_sampled_are_cut_evenly(tmp_path):
    c = opened(tmp_path, Config(merge_chunk_rows=512, fold_rows=512, merge_budget_s=0.0))
    for part in range(4):
        ks = pa.array(range(part, 40_000, 4), pa.int64())
        c.append(pa.table({"k": ks, "s": ["x"] * 10_000, "v": [1] * 10_000}))
    sizes = [stream.read_all().num_rows for stream in c.distributed.split_snapshot(7)]
    assert sum(sizes) == 40_000 and max(sizes) - min(sizes) <= 0.1 * 40_000 / 7


def test_more_streams_than_keys_leave_some_empty(collection):
    collection.append(pa.table({"k": [1, 1, 2], "s": ["a", "a", "a"], "v": [1, 2, 3]}))
    sizes = [stream.read_all().num_rows for stream in collection.distributed.split_snapshot(5)]
    assert sizes == [2, 1, 0, 0, 0]
    collection.append(pa.table({"k": [], "s": [], "v": [], "_time": pa.array([], pa.int64())}), upper=9)
    assert [s.read_all().num_rows for s in collection.distributed.split_changes(3, 1, 8)] == [0, 0, 0]


def test_streams_are_of_one_version_and_may_be_read_by_threads_and_in_any_order(collection):
    fill(collection, random.Random(5))
    whole = collection.snapshot(3).read_all()
    streams = collection.distributed.split_snapshot(4, 3)
    fill(collection, random.Random(6))
    collection.advance_since(6)
    collection.merge()
    found = [None] * 4

    def read(i):
        found[i] = streams[i].read_all()

    at_once(read, reversed(range(4)))
    assert pa.concat_tables(found).equals(whole)


def test_errors_are_those_of_a_snapshot(collection):
    with pytest.raises(NotYetClosed):
        collection.distributed.split_snapshot(2)
    fill(collection, random.Random(1))
    collection.advance_since(2)
    with pytest.raises(HistoryCompacted):
        collection.distributed.split_snapshot(2, 1)
    with pytest.raises(NotYetClosed):
        collection.distributed.split_snapshot(2, 9, timeout_s=0)
    with pytest.raises(UsageError, match="no column named 'w'"):
        collection.distributed.split_snapshot(2, columns=["w"])
    for n in (0, -1, True, 2.0, "2", None):
        with pytest.raises(UsageError, match=r"n=.* must be a whole number of streams, at least 1"):
            collection.distributed.split_snapshot(n)
        with pytest.raises(UsageError):
            collection.distributed.split_changes(n, 2, 3)
        with pytest.raises(UsageError):
            collection.distributed.split_updates(n, 2, 3)


def test_a_split_of_a_reader_reads_the_version_that_it_has_pinned(tmp_path):
    config = Config(inline_part_bytes=0, garbage_age_s=0.0, merge_budget_s=0.0)
    c = opened(tmp_path, config)
    fill(c, random.Random(1))
    with c.reader("test") as reader:
        whole = reader.snapshot(3).read_all()
        c.advance_since(3)
        c.merge()
        c.collect()
        check(whole, reader.split_snapshot(3, 3), 3)
    assert c.collect().blobs > 0


def test_a_stream_of_a_collection_that_is_dropped_says_so(tmp_path):
    lake = tidelake.open(tmp_path / "lake", config=CONFIGS["one group"])
    c = lake.create("c", SCHEMA, key=["k", "s"])
    fill(c, random.Random(1))
    streams = c.distributed.split_snapshot(3)
    lake.drop("c", force=True)
    for stream in streams:
        with pytest.raises(CollectionDropped):
            stream.read_all()

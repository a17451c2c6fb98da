"""Filters, hashes and the cache of blocks."""

import threading

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from arrangement_rows import KEYS, keys, layout, plain, ranked
from hypothesis import given, settings

from threads import at_once
from tidelake.arrangement.batch.batch import FilterPlan
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.filters import Filter, filter_builder, filter_of
from tidelake.arrangement.batch.hashing import hash_rows
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.layout import Layout
from tidelake.data.keys.keyhash import hash_encoded
from tiers import examples

GOLDEN_ENCODED = [
    "0x0",
    "0xf7084f92dd651b1d",
    "0x43ad8d9c07c7735a",
    "0x2547783136b5e943",
    "0xdf927d5ee84b0395",
]
GOLDEN_NUMBERS = ["0xf768bd32e7db96eb", "0x25c26ea579cea98a", "0x9216e87cef427fdb", "0xd1b54a32d192ed03"]


def built(of: Layout, held: Keys, plan: FilterPlan) -> Filter:
    builder = filter_builder(of, plan)
    builder.add(held.rows.slice(0, 1))
    builder.add(held.rows.slice(1))
    return builder.finish()


def numbered(of: Layout, numbers: np.ndarray) -> Keys:
    return Keys.sorted_from(pa.RecordBatch.from_arrays([pa.array(numbers)], ["k0"]), of)


@pytest.mark.promise("A filter never denies a present key", rule="`arrangement/batch/filters.py`")
@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_no_key_that_is_there_is_denied(kind: str, data: st.DataObject) -> None:
    of = layout(kind)
    held = Keys.of_values(data.draw(st.lists(keys(kind), min_size=1, max_size=20)), of)
    asked = Keys.of_values(data.draw(st.lists(keys(kind), min_size=1, max_size=20)), of)
    there = {ranked(key) for key in plain(held.rows)}
    more = data.draw(st.sampled_from((0, 5000)))
    plans = [FilterPlan(len(held) + more), FilterPlan(len(held) + more, held.first, held.last)]
    for plan in plans:
        made = built(of, held, plan)
        again = filter_of(made.kind, np.frombuffer(made.words.tobytes(), "<u8"), made.base)
        assert again is not None
        for found in (made, again):
            mask = found.may_hold(asked, 0, len(asked))
            for i, key in enumerate(plain(asked.rows)):
                single = Keys(of, asked.rows.slice(i, 1))
                assert found.may_hold_one(single) == mask[i]
                assert mask[i] or ranked(key) not in there
                if found.kind == "bitmap":
                    assert mask[i] == (ranked(key) in there)


@pytest.mark.parametrize("planned", [20_000, 600_000])
def test_few_keys_that_are_not_there_pass_however_many_were_planned(planned: int) -> None:
    of = layout("int")
    numbers = np.random.default_rng(1).integers(0, 2**60, 40_000)
    made = built(of, numbered(of, numbers[:20_000]), FilterPlan(planned))
    others = numbered(of, numbers[20_000:])
    assert made.kind == "bloom"
    assert made.may_hold(others, 0, len(others)).mean() < 0.01
    assert made.words.nbytes < 20_000 * 8


def test_a_bitmap_is_taken_where_it_is_no_larger() -> None:
    of = layout("int")
    dense, sparse = numbered(of, np.arange(0, 5000, 5)), numbered(of, np.arange(0, 50_000, 50))
    kinds = [built(of, k, FilterPlan(len(k), k.first, k.last)).kind for k in (dense, sparse)]
    assert kinds == ["bitmap", "bloom"]
    assert built(of, dense, FilterPlan(len(dense))).kind == "bloom"
    assert filter_of("cuckoo", np.zeros(1, np.uint64), 0) is None


def test_hashes_are_those_that_files_were_written_with() -> None:
    # They are a stored format: a change of them must change the format of files.
    encoded = pa.array([b"", b"\x01", b"12345678", b"123456789", b"1234567812345678"], pa.binary())
    assert [hex(h) for h in hash_encoded(encoded).tolist()] == GOLDEN_ENCODED
    of = layout("int")
    rows = pa.RecordBatch.from_arrays([pa.array([-1, 0, 2**62, None])], ["k0"])
    assert [hex(h) for h in hash_rows(rows, of).tolist()] == GOLDEN_NUMBERS


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.integers(0, 5))
def test_a_hash_depends_on_the_bytes_alone(values: list[bytes], skipped: int) -> None:
    alone = [int(hash_encoded(pa.array([value], pa.binary()))[0]) for value in values]
    together = pa.array([b"x" * i for i in range(skipped)] + values, pa.binary())
    assert hash_encoded(together.slice(skipped)).tolist() == alone
    assert len(set(alone)) == len(set(values))


def rows_of(size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.zeros(size // 8, np.int64))], ["x"])


@pytest.mark.promise("The cache stays within its bound", rule="`arrangement/batch/cache.py`")
def test_the_cache_holds_the_blocks_used_last_within_its_bound() -> None:
    cache, read, owner = BlockCache(3000), [], object()

    def load(block: int) -> pa.RecordBatch:
        read.append(block)
        return rows_of(800 if block < 10 else 8000)

    for block in (0, 1, 2, 0, 3, 0, 1, 11, 11, 0):
        cache.get(owner, block, load)
        assert cache.bytes <= 3000
    assert read == [0, 1, 2, 3, 1, 11, 11]
    assert (cache.counts.cache_hits, cache.counts.cache_misses) == (3, 7)
    cache.drop(owner, 100)
    assert cache.bytes == 0
    cache.get(owner, 0, load)
    assert read[-1] == 0


def test_threads_that_read_one_block_all_get_it() -> None:
    cache, owner, gate = BlockCache(10_000), object(), threading.Barrier(4)

    def load(block: int) -> pa.RecordBatch:
        gate.wait(10)
        return rows_of(800)

    assert len(at_once(lambda _: cache.get(owner, 0, load), range(4))) == 4
    assert cache.bytes == 800

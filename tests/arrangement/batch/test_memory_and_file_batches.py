"""Batches in memory and in files: both answer as a filter over their rows does."""

import tracemalloc
from bisect import bisect_left, bisect_right
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from arrangement_rows import (
    COUNTER,
    KEYS,
    file_batch,
    keys,
    layout,
    memory_batch,
    plain,
    ranked,
    sorted_rows,
    updates,
)
from hypothesis import HealthCheck, given, settings

from tidelake.arrangement.batch import filebuilder, memory
from tidelake.arrangement.batch.batch import IndexBatch
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.batch.layout import Layout
from tidelake.data.kernel.types import schema_from_arrow
from tiers import examples


@pytest.fixture(autouse=True)
def _tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_BLOCK_ROWS", 3)
    monkeypatch.setattr(memory, "_FILTER_ROWS_MIN", 8)
    monkeypatch.setattr(memory, "_PIECE_ROWS", 5)
    monkeypatch.setattr(filebuilder, "_BLOCK_ROWS_MAX", 3)


def both(rows: pa.RecordBatch, of: Layout, folder: Path, number: list[int] = [0]) -> list[IndexBatch]:  # noqa: B006
    number[0] += 1
    made = [memory_batch(rows, of), file_batch(rows, of, folder, f"f{number[0]}")]
    return [batch for batch in made if batch is not None]


@pytest.mark.promise(
    "A batch answers as a filter over its rows does, in memory and on disk, for keys of every type",
    rule="`arrangement/batch/memory.py`, `arrangement/batch/files.py`",
)
@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_batch_answers_as_a_filter_over_its_rows(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    of = layout(kind)
    rows = sorted_rows(data.draw(updates(kind)), of)
    wanted = data.draw(st.lists(keys(kind), max_size=20))
    asked = Keys.of_values(wanted, of)
    chosen = {ranked(key) for key in wanted}
    width = of.key_width
    expected = [row for row in plain(rows) if ranked(row[:width]) in chosen]
    for batch in both(rows, of, tmp_path):
        assert plain(batch.lookup(asked)) == expected
        assert plain(pa.Table.from_batches(batch.scan())) == plain(rows)
        assert plain(pa.Table.from_batches([batch.block(i) for i in range(batch.blocks)])) == plain(rows)
        held = {ranked(row[:width]) for row in plain(rows)}
        mask = batch.may_hold(asked)
        for i, (key, possible) in enumerate(zip(plain(asked.rows), mask, strict=True)):
            assert possible or ranked(key) not in held
            single = Keys(of, asked.rows.slice(i, 1))
            assert plain(batch.lookup(single)) == [r for r in expected if ranked(r[:width]) == ranked(key)]
        assert (batch.rows, batch.negative_rows) == (rows.num_rows, sum(row[-1] < 0 for row in plain(rows)))
        batch.release()


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_blocks_are_found_by_their_keys(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    of = layout(kind)
    rows = sorted_rows(data.draw(updates(kind)), of)
    for batch in both(rows, of, tmp_path):
        lasts = [of.encoded_at(b := batch.block(i), b.num_rows - 1) for i in range(batch.blocks)]
        sizes = [batch.block(i).num_rows for i in range(batch.blocks)]
        assert batch.block_starts.tolist() == [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        assert [batch.last_key(i) for i in range(batch.blocks)] == lasts
        assert [batch.first_key(i) for i in range(batch.blocks)] == [
            of.encoded_at(batch.block(i), 0) for i in range(batch.blocks)
        ]
        assert (batch.key_lower, batch.key_upper) == (batch.first_key(0), lasts[-1])
        for key in Keys.of_values(data.draw(st.lists(keys(kind), max_size=5)), of).encodings:
            assert batch.find_block(key) == bisect_left(lasts, key)
            assert batch.find_block(key, after=True) == bisect_right(lasts, key)
        batch.release()


@pytest.mark.parametrize("kind", KEYS)
@given(data=st.data())
@settings(max_examples=examples(20))
def test_keys_are_distinct_and_ascend_in_all_their_forms(kind: str, data: st.DataObject) -> None:
    of = layout(kind)
    wanted = data.draw(st.lists(keys(kind), max_size=20))
    asked = Keys.of_values(wanted, of)
    assert [ranked(key) for key in plain(asked.rows)] == sorted({ranked(key) for key in wanted})
    assert asked.encodings == of.encode(asked.rows).to_pylist() == sorted(asked.encodings)
    places = np.flatnonzero(np.arange(len(asked)) % 2)
    asked.hashes  # noqa: B018 - derived before the keys are taken
    taken = asked.take(places)
    assert plain(taken.rows) == [plain(asked.rows)[i] for i in places]
    again = Keys(of, taken.rows)
    assert (taken.encodings, taken.hashes.tolist()) == (again.encodings, again.hashes.tolist())
    if of.number is not None:
        np.testing.assert_array_equal(taken.numbers, again.numbers)


def test_the_filter_of_a_batch_in_memory_is_made_in_less_memory_than_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The encodings of such keys are larger than the rows: of 2 GiB of rows they would fit no array of Arrow.
    monkeypatch.setattr(memory, "_PIECE_ROWS", 10_000)
    kinds = {name: pa.decimal32(5) for name in ("a", "b")}
    of = Layout(schema_from_arrow(pa.schema(kinds), list(kinds)), COUNTER)
    count = 200_000
    keys_ = [np.arange(count) // 1000, np.arange(count) % 1000]
    columns = [pa.array(numbers).cast(pa.decimal128(20)).cast(pa.decimal32(5)) for numbers in keys_]
    ones = pa.array(np.ones(count, np.int64))
    rows = pa.RecordBatch.from_arrays([*columns, ones, ones], schema=of.arrow)
    builder = memory.MemoryBuilder(of, "m")
    builder.add(rows)
    tracemalloc.start()
    try:
        batch = builder.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert batch is not None
    assert peak < rows.nbytes
    asked = Keys.sorted_from(rows.slice(0, 5000), of)
    assert batch.may_hold(asked).all()

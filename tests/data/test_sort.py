"""Sorting by packed codes: the ways that only large or repetitive columns take."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from data_reference import ALL, ORDER, PRIMITIVES, array, compare, numbers, rows_of, updates
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.kernel import codes, sort
from tidelake.data.kernel.canonical import canonical
from tidelake.data.kernel.codes import Code
from tidelake.data.kernel.order import ascends, group_starts, precede
from tidelake.data.kernel.sort import sorted_groups
from tiers import examples


@pytest.mark.parametrize("ranked", [True, False])
@pytest.mark.parametrize(("kind", "values"), PRIMITIVES, ids=[str(k) for k, _ in PRIMITIVES])
def test_codes_order_every_pair_of_values_as_the_reference_does(kind, values, ranked, monkeypatch):
    monkeypatch.setattr(codes, "_repeats", lambda column: ranked)
    for nulls in ([], [None]):
        column = canonical(array(kind, [*nulls, *values, *nulls, *values])).slice(1)
        found = codes.code(column)
        if found is None:
            continue
        assert all(int(v).bit_length() <= found.bits for v in found.values)
        for cut in (found, found.cut(3)):
            for a, x in zip(cut.values, numbers(column), strict=True):
                for b, y in zip(cut.values, numbers(column), strict=True):
                    assert not a < b or compare(x, y) < 0
                    assert not cut.exact or (a == b) == (compare(x, y) == 0)


@pytest.mark.parametrize(("kind", "values"), ALL, ids=[str(k) for k, _ in ALL])
def test_a_value_precedes_another_where_the_reference_says_so(kind, values):
    column = canonical(array(kind, [None, *values, None])).slice(1)
    plain = numbers(column)
    for shift in range(len(column)):
        places = np.roll(np.arange(len(column)), shift)
        found = precede(column, column.take(pa.array(places)))
        assert found.tolist() == [compare(x, plain[at]) < 0 for x, at in zip(plain, places, strict=True)]


@pytest.mark.parametrize(("kind", "values"), ALL, ids=[str(k) for k, _ in ALL])
def test_pairs_are_ordered_as_the_reference_orders_them(kind, values):
    column = canonical(array(kind, [None, *values, None])).slice(1)
    n = len(column)
    pairs = np.stack([np.repeat(np.arange(n), n), np.tile(np.arange(n), n)], axis=1).ravel()
    batch = pa.RecordBatch.from_arrays(
        [pa.array(np.repeat(np.arange(n * n), 2)), column.take(pa.array(pairs)), pa.array(-pairs)],
        ["k", "v", "t"],
    )
    order, starts = sorted_groups(batch, 3)
    plain = numbers(column)
    for at in range(0, len(pairs), 2):
        a, b = (int(pairs[order[at + i]]) for i in range(2))
        assert sorted(order[at : at + 2]) == [at, at + 1]
        assert (compare(plain[a], plain[b]), b) <= (0, a), (plain[a], plain[b])
        assert starts[at]
        assert starts[at + 1] == (a != b)


@settings(max_examples=examples(150))
@given(updates(columns=4, max_rows=60), st.booleans())
def test_groups_found_by_sorting_are_those_of_the_sorted_rows(drawn, ranked):
    _, _, table = drawn
    batch = pa.RecordBatch.from_arrays(
        [pa.concat_arrays(c.chunks) if c.num_chunks else pa.array([], c.type) for c in table.columns],
        schema=table.schema,
    )
    width = batch.num_columns - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "_repeats", lambda column: ranked)
        order, starts = sorted_groups(batch, width)
    taken = batch.take(pa.array(order))
    assert sorted(order.tolist()) == list(range(batch.num_rows))
    expected = sorted((r[:-1] for r in rows_of(batch)), key=ORDER)
    assert [repr(r[:-1]) for r in rows_of(taken)] == [repr(r) for r in expected]
    assert starts.tolist() == group_starts(taken, width).tolist()
    distinct = taken.filter(pa.array(starts))
    assert ascends(distinct, width)
    for other in (batch, taken):
        same = repr(rows_of(other)) == repr(rows_of(distinct))  # Arrow calls no NaN equal
        assert ascends(other, width) == (other.num_rows < 2 or same)


@pytest.mark.parametrize("distinct", [5, 4_000])
def test_large_columns_of_many_types_sort_as_arrow_sorts_them(distinct):
    rng = np.random.default_rng(distinct)
    n = 20_000

    def pick():
        return rng.integers(0, distinct, n)

    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(pick(), mask=rng.random(n) < 0.1),
            pa.array([None if i % 11 == 0 else f"common/prefix/{i % 7}/{i:012}" for i in pick().tolist()]),
            pa.array(np.where(rng.random(n) < 0.1, np.nan, pick() * 0.5 - 9), mask=rng.random(n) < 0.1),
            pa.array(pick() * 10**15).cast(pa.decimal128(21, 0)),
            pa.array(pick() % 3),
        ],
        ["a", "b", "c", "d", "e"],
    )
    order, starts = sorted_groups(batch, 5)
    keys = [(name, "ascending") for name in batch.schema.names]
    expected = batch.take(pc.sort_indices(batch, sort_keys=keys))
    found = batch.take(pa.array(order))
    assert [repr(r) for r in rows_of(found)] == [repr(r) for r in rows_of(expected)]
    assert starts.tolist() == group_starts(expected, 5).tolist()


@pytest.mark.parametrize(
    "texts", [["ab\0", "ab"], ["", "a"], ["long enough a", None, "long enough b", "long enough"]]
)
def test_texts_are_coded_by_what_comes_after_their_common_beginning(texts):
    for values in (texts, texts[::-1]):
        found = codes.code(pa.array(values))
        order = sorted(values, key=lambda value: (value is None, value or ""))
        assert found.exact and [values[i] for i in np.argsort(found.values)] == order
        assert len(set(found.values.tolist())) == len(values)


@pytest.mark.parametrize("tail", ["1234567", "12345678"])
def test_strings_that_differ_only_after_the_prefix_are_ordered_and_kept_apart(tail):
    texts = ["x" + tail + "b", "y", "x" + tail, None, "x" + tail + "a", "x" + tail + "b"]
    batch = pa.RecordBatch.from_arrays([pa.array(texts)], ["k"])
    order, starts = sorted_groups(batch, 1)
    found = batch.column(0).take(pa.array(order)).to_pylist()
    assert found == ["x" + tail, "x" + tail + "a", "x" + tail + "b", "x" + tail + "b", "y", None]
    assert starts.tolist() == [True, True, True, False, True, True]


@pytest.mark.parametrize("rows", [3, 5_000])
@pytest.mark.parametrize("low", [0, 1, 8, 40, 63])
@pytest.mark.parametrize("nearly", [False, True])
def test_words_that_leave_no_room_for_the_row_are_sorted(rows, low, nearly):
    rng = np.random.default_rng(low)
    # Of some words only the lowest bits differ, and some are equal.
    values = rng.integers(0, 2**63, rows).astype(np.uint64)
    near = rng.integers(0, rows, rows // 2)
    values[near] = values[near[0]] ^ rng.integers(0, 2**low, len(near)).astype(np.uint64)
    order, found = sort._argsort(Code(values, 64, True), nearly=nearly)
    assert sorted(order.tolist()) == list(range(rows))
    assert (values[order] == found).all() and (found == np.sort(values)).all()


@settings(max_examples=examples(100))
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=30), max_size=9),
    st.sampled_from([0, 4, 256]),
    st.sampled_from([0, 3, 512]),
)
def test_joined_runs_and_small_groups_are_sorted_by_either_sort(runs, few, group):
    rows = [row for run in runs for row in sorted(run)]
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    batch = pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), pa.array(values, pa.int64())], ["k", "v"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort, "_RUNS_FEW", few)
        patch.setattr(sort, "_GROUP_ROWS", group)
        order, starts = sorted_groups(batch, 2)
    assert sorted(order.tolist()) == list(range(len(rows)))
    found = [rows[at] for at in order]
    assert found == sorted(rows)
    assert starts.tolist() == [i == 0 or found[i - 1] != row for i, row in enumerate(found)]

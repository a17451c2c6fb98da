import numpy as np
import pyarrow as pa
import pytest
from data_reference import ALL, DECIMALS, ORDER, PRIMITIVES, array, compare, numbers, rows_of, updates
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.kernel.canonical import canonical
from tidelake.data.kernel.encode import encode, encode_key, truncate_lower, truncate_upper
from tidelake.data.kernel.order import equal_ranges, group_starts, row_tuple, search
from tidelake.data.kernel.sort import sort_indices
from tidelake.data.kernel.types import data_type, schema_from_arrow
from tiers import examples

kinds = st.sampled_from(ALL)


@pytest.mark.promise(
    "The encoding orders as the values do, and its bytes do not change",
    rule="`data/kernel/encode.py`",
    also=["::test_encoding_is_the_stored_format"],
)
@pytest.mark.parametrize(("kind", "values"), ALL, ids=[str(k) for k, _ in ALL])
def test_encoding_orders_every_pair_of_values_as_the_reference_does(kind, values):
    column = canonical(array(kind, [*values, None]))
    encoded = encode(column, data_type(kind, "x")).to_pylist()
    plain = numbers(column)
    for a, x in zip(encoded, plain, strict=True):
        for b, y in zip(encoded, plain, strict=True):
            assert (a > b) - (a < b) == compare(x, y), (x, y)
            assert a == b or not b.startswith(a)


@pytest.mark.parametrize(("kind", "values"), ALL, ids=[str(k) for k, _ in ALL])
def test_encoding_of_a_slice_is_the_slice_of_the_encoding(kind, values):
    column = array(kind, [None, *values, None, *values])
    described = data_type(kind, "x")
    whole = encode(column, described)
    assert encode(column.slice(2, 3), described).equals(whole.slice(2, 3))
    assert encode(pa.chunked_array([column.slice(0, 2), column.slice(2)]), described).equals(whole)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.int8(), pa.int64()),
        (pa.int32(), pa.int64()),
        (pa.uint16(), pa.uint64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal256(40, 2)),
        (pa.decimal32(5, 2), pa.decimal128(30, 2)),
    ],
)
def test_widening_a_column_keeps_its_encoding(narrow, wide):
    known = {str(k): v for k, v in PRIMITIVES}
    values = known.get(str(narrow), DECIMALS)
    column = pa.array([*values, None], narrow)
    assert encode(column, data_type(narrow, "x")).equals(encode(column.cast(wide), data_type(wide, "x")))


def test_encoding_is_the_stored_format():
    def hexes(values, kind):
        return [b.hex() for b in encode(pa.array(values, kind), data_type(kind, "x")).to_pylist()]

    assert hexes([0, -1, None], pa.int32()) == ["018000000000000000", "017fffffffffffffff", "02"]
    assert hexes([1.0, -1.0], pa.float64()) == ["01bff0000000000000", "01400fffffffffffff"]
    assert hexes(["a\0", ""], pa.string()) == ["016100ff0001", "010001"]
    assert hexes([[1], []], pa.list_(pa.uint8())) == ["0101000000000000000100", "0100"]


@pytest.mark.promise("Truncated bounds still hold", rule="`truncate_lower`, `truncate_upper`")
@given(st.binary(max_size=6), st.integers(1, 6), st.binary(max_size=4))
def test_truncated_bounds_hold(encoded, n, more):
    lower, upper = truncate_lower(encoded, n), truncate_upper(encoded, n)
    assert lower <= encoded
    assert len(lower) <= n
    if upper is None:
        assert len(encoded) > n
        assert encoded[:n] == b"\xff" * n
    else:
        assert upper >= encoded
        assert len(upper) <= n
        assert len(encoded) <= n or upper > encoded[:n] + more


@pytest.mark.promise(
    "One total order for all types; sorting, searching and grouping agree with it",
    rule="`data/kernel/order.py`",
)
@settings(max_examples=examples(150))
@given(updates(columns=3))
def test_sort_search_and_group_agree_with_the_reference(drawn):
    schema, _, table = drawn
    if table.num_rows == 0:
        return
    batch = pa.concat_batches(table.to_batches())
    width = batch.num_columns - 1
    result = batch.take(sort_indices(batch, width))
    plain = [row[:-1] for row in rows_of(batch)]
    found = [row[:-1] for row in rows_of(result)]
    assert [repr(r) for r in found] == [repr(r) for r in sorted(plain, key=ORDER)]
    starts = group_starts(result, width)
    assert list(starts) == [i == 0 or compare(found[i - 1], found[i]) != 0 for i in range(len(found))]
    tuples = [row_tuple(result, i, width) for i in range(len(found))]
    for i, t in enumerate(tuples):
        assert search(result, t, inclusive=False) == sum(compare(x, found[i]) < 0 for x in found)
        assert search(result, t, inclusive=True) == sum(compare(x, found[i]) <= 0 for x in found)
        assert all((t < u) == (compare(found[i], found[j]) < 0) for j, u in enumerate(tuples))
    keys = encode_key(result, schema).to_pylist()
    assert keys == sorted(keys)


def test_more_than_eight_sort_keys_give_the_same_order():
    rng = np.random.default_rng(5)
    for columns in (9, 12, 17):
        data = [pa.array(rng.integers(0, 2, 300)) for _ in range(columns - 1)]
        data.append(pa.array(rng.choice(["a", "b", None], 300)))
        batch = pa.RecordBatch.from_arrays(data, [str(i) for i in range(columns)])
        assert rows_of(batch.take(sort_indices(batch, columns))) == sorted(rows_of(batch), key=ORDER)
        first = pa.RecordBatch.from_arrays(data[::-1], [str(i) for i in range(columns)])
        assert rows_of(first.take(sort_indices(first, columns))) == sorted(rows_of(first), key=ORDER)


def test_composite_keys_are_encoded_column_by_column():
    rows = pa.table({"a": ["", "a", "a\0", "b", None], "b": pa.array([2, 1, 0, None, 5], pa.int32())})
    schema = schema_from_arrow(rows.schema, ["a", "b"])
    keys = encode_key(rows, schema).to_pylist()
    assert keys == sorted(keys)
    assert len(set(keys)) == 5


@given(
    st.lists(st.one_of(st.integers(-3, 3), st.just(float("nan"))), max_size=12),
    st.lists(st.one_of(st.integers(-4, 4), st.just(float("nan"))), max_size=6),
    st.sampled_from(["i8", "f8"]),
)
def test_equal_numbers_are_found_where_bisection_finds_them(stored, wanted, kind):
    stored, wanted = ([x for x in xs if kind == "f8" or x == x] for xs in (stored, wanted))
    numbers = np.sort(np.array(stored, kind))
    starts, ends = equal_ranges(numbers, np.array(wanted, kind))
    for x, start, end in zip(wanted, starts, ends, strict=True):
        before = [y for y in stored if y == y and (x != x or y < x)]
        equal = [y for y in stored if y == x or (y != y and x != x)]
        assert (start, end) == (len(before), len(before) + len(equal))

"""Rows of one schema as rows of another, and what that does to their order."""

from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.kernel.canonical import canonical
from tidelake.data.kernel.encode import encode, encode_key
from tidelake.data.kernel.order import row_tuple
from tidelake.data.kernel.project import Projection, in_order
from tidelake.data.kernel.sort import sort_indices
from tidelake.data.kernel.types import arrow_type, data_type, update_schema
from tidelake.model.evolution import widens
from tidelake.model.schema import Column, DataType, Schema
from tidelake.model.time import TimeDomain
from tiers import examples

COUNTER, PAIRS = TimeDomain("counter"), TimeDomain("tuple", 2)


def column(id_, name, type_="int64", *params):
    return Column(id_, name, DataType(type_, params))


K, A, B, C = column(0, "k"), column(1, "a"), column(2, "b"), column(3, "c")
NEW = column(4, "n", "string")


def projection(source, target, domain=COUNTER, live=None):
    source, target = Schema((K,), source), Schema((K,), target)
    live = {c.id for c in target.columns} if live is None else live
    return Projection.of(source, target, domain, live)


@pytest.mark.parametrize(
    ("source", "target", "places", "prefix"),
    [
        ((A, B), (A, B), (0, 1, 2, 3, 4), None),
        ((A, B), (NEW, A, B), (0, None, 1, 2, 3, 4), None),
        ((A, B), (A, B, NEW), (0, 1, 2, None, 3, 4), None),
        ((A, B, C), (B, C), (0, 2, 3, 4, 5), 1),
        ((A, B, C), (A, C), (0, 1, 3, 4, 5), 2),
        ((A, B, C), (A, B), (0, 1, 2, 4, 5), 3),
        ((A, B, C), (A, NEW, C), (0, 1, None, 3, 4, 5), 3),
        ((A,), (), (0, 2, 3), 1),
    ],
)
def test_rows_stay_sorted_up_to_the_first_column_that_goes(source, target, places, prefix):
    found = projection(source, target)
    assert (found.places, found.prefix) == (places, prefix)


def test_a_column_that_is_not_live_is_null_though_it_is_stored():
    found = projection((A, B), (A, B), live={0, 2})
    assert (found.places, found.prefix) == ((0, None, 2, 3, 4), 2)


def test_a_name_that_came_back_has_none_of_the_old_values():
    again = column(9, "a")
    assert projection((A, B), (again, B)).places == (0, None, 2, 3, 4)


FEW = st.one_of(st.none(), st.integers(0, 2))


@pytest.mark.promise(
    "After a column was dropped, rows are still in order, and one group at a time is in memory",
    rule="`in_order`",
    also=["::test_groups_are_given_up_as_soon_as_they_are_complete"],
)
@settings(max_examples=examples(200))
@given(
    rows=st.lists(st.tuples(FEW, FEW, FEW, FEW, st.integers(0, 3), st.integers(0, 3)), max_size=40),
    kept=st.sets(st.sampled_from([A, B, C])),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    new=st.booleans(),
    tuples=st.booleans(),
)
def test_a_sorted_run_stays_sorted_and_keeps_every_row(rows, kept, cuts, new, tuples):
    domain = PAIRS if tuples else COUNTER
    source = (A, B, C)
    target = tuple(c for c in source if c in kept) + ((NEW,) if new else ())
    found = projection(source, target, domain)
    whole = update_schema(Schema((K,), source), domain)
    given_ = pa.table(
        [
            pa.array([row[i] for row in rows], field.type) if i < 4 + domain.arity else [1] * len(rows)
            for i, field in enumerate(whole)
        ],
        schema=whole,
    ).combine_chunks()
    if not rows:
        assert list(in_order([], 1)) == []
        return
    batch = given_.to_batches()[0]
    batch = batch.take(sort_indices(batch, batch.num_columns - 1))
    edges = sorted({0, batch.num_rows, *(c for c in cuts if c < batch.num_rows)})
    pieces = [found.rows(batch.slice(a, b - a)) for a, b in pairwise(edges)]
    answer = pieces if found.prefix is None else list(in_order(pieces, found.prefix))
    assert all(piece.num_rows for piece in answer)
    got = pa.Table.from_batches(answer)
    assert got.schema == found.target
    width = got.num_columns - 1
    joined = got.combine_chunks().to_batches()[0]
    order = [row_tuple(joined, i, width) for i in range(joined.num_rows)]
    assert order == sorted(order)
    names = [c.name for c in (K, *target) if c.id != NEW.id] + list(domain.columns)
    as_given = sorted(map(str, given_.select(names).to_pylist()))
    assert sorted(map(str, got.select(names).to_pylist())) == as_given
    if new:
        assert got.column("n").null_count == len(rows)


def test_groups_are_given_up_as_soon_as_they_are_complete():
    source, target = Schema((K,), (A,)), Schema((K,))
    found = Projection.of(source, target, COUNTER, {0})
    arrow = update_schema(source, COUNTER)
    taken = []

    def batches():
        for k in range(10):
            taken.append(k)
            columns = [[k, k, k], [0, 1, 2], [9, 5, 7], [1, 1, 1]]
            yield found.rows(pa.record_batch([pa.array(c, pa.int64()) for c in columns], schema=arrow))

    answer = in_order(batches(), 1)
    assert next(answer).column("_time").to_pylist() == [5, 7, 9] and taken == [0, 1]


INTS = {
    name: st.one_of(st.none(), st.integers(low, high))
    for bits in (8, 16, 32, 64)
    for name, low, high in (
        (f"int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        (f"uint{bits}", 0, 2**bits - 1),
    )
}
FLOATS = {
    f"float{bits}": st.one_of(st.none(), st.floats(width=bits, allow_nan=False), st.just(float("nan")))
    for bits in (16, 32, 64)
}


def decimals(name, precision):
    most = 10**precision - 1
    return st.one_of(st.none(), st.integers(-most, most).map(lambda n: Decimal(f"{n}e-2")))


DECIMALS = {
    (name, p): decimals(name, p) for name, p in (("decimal32", 9), ("decimal64", 18), ("decimal128", 38))
}
WIDER = [
    (DataType(a), DataType(b), strategy)
    for kinds in (INTS, FLOATS)
    for a, strategy in kinds.items()
    for b in kinds
    if widens(DataType(a), DataType(b))
]
WIDER += [
    (DataType(name, (p, 2)), DataType(wider, (q, 2)), strategy)
    for (name, p), strategy in DECIMALS.items()
    for wider, q in (("decimal64", 18), ("decimal128", 38), ("decimal256", 76))
    if widens(DataType(name, (p, 2)), DataType(wider, (q, 2)))
]


def values(drawn, type_):
    if type_.name == "float16":
        return pa.array([None if v is None else np.float16(v) for v in drawn], pa.float16())
    return pa.array(drawn, arrow_type(type_))


@pytest.mark.promise(
    "Widening keeps values and their order, and of keys the encoded bytes",
    rule="`widens`, `Projection`",
    also=["lake/api/test_evolve.py::test_key_ranges_hold_across_a_key_that_was_widened"],
)
@settings(max_examples=examples(300))
@given(data=st.data())
def test_widening_keeps_the_values_the_order_and_for_keys_the_bytes(data):
    old, new, strategy = data.draw(st.sampled_from(WIDER))
    drawn = data.draw(st.lists(strategy, min_size=1, max_size=8))
    source, target = Schema((Column(0, "k", old),)), Schema((Column(0, "k", new),))
    found = Projection.of(source, target, COUNTER, {0})
    assert found.prefix is None
    zeros = pa.array([0] * len(drawn), pa.int64())
    stored = canonical(values(drawn, old))
    batch = pa.record_batch([stored, zeros, zeros], schema=update_schema(source, COUNTER))
    wide = found.rows(batch)
    assert wide.schema.field("k").type == arrow_type(new) and data_type(wide.column(0).type, "k") == new
    assert list(map(repr, wide.column(0).to_pylist())) == list(map(repr, batch.column(0).to_pylist()))
    a, b = encode(batch.column(0), old).to_pylist(), encode(wide.column(0), new).to_pylist()
    ranks = {value: rank for rank, value in enumerate(sorted(set(a)))}
    wide_ranks = {value: rank for rank, value in enumerate(sorted(set(b)))}
    assert [ranks[x] for x in a] == [wide_ranks[x] for x in b]
    if not (old.name.startswith("uint") and new.name.startswith("int")):
        assert encode_key(batch, source).to_pylist() == encode_key(wide, target).to_pylist() == b


def test_an_unsigned_key_that_became_signed_would_have_other_bytes():
    """Why evolve refuses it."""
    five = pa.array([5])
    assert encode(five.cast(pa.uint32()), DataType("uint32")) != encode(five, DataType("int64"))

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from data_reference import NESTED, PRIMITIVES, consolidated, queries, rows_of, selected, updates
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel import consolidate as consolidate_module
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.merge import chunks, merge
from tidelake.data.kernel.types import schema_from_arrow, update_schema
from tidelake.errors import InternalError, InvalidUpdates
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Fold, Updates
from tidelake.model.time import TimeDomain
from tiers import examples

INT, PAIR = TimeDomain("counter"), TimeDomain("tuple", 2)
ALL_TIMES = Updates(Frontier.of(0), Frontier())


def split(table, cuts):
    """A sorted table as batches cut anywhere, empty ones among them."""
    ends = sorted({min(c, table.num_rows) for c in cuts} | {0, table.num_rows})
    pieces = [table.slice(a, b - a) for a, b in pairwise(ends)]
    batches = [b for piece in pieces for b in piece.combine_chunks().to_batches()]
    return [*batches, *(b.slice(0, 0) for b in batches[:1])]


@settings(max_examples=examples(150))
@given(updates(columns=3), st.integers(1, 50))
def test_consolidate_agrees_with_the_reference(drawn, chunk_rows):
    schema, domain, table = drawn
    result = consolidate(table, schema, domain, chunk_rows)
    assert result.schema.equals(update_schema(schema, domain))
    assert [repr(r) for r in rows_of(result)] == [repr(r) for r in consolidated(rows_of(table))]


def test_what_is_consolidated_already_shares_no_memory_with_the_table():
    # Arrow takes arrays of numpy as they are, and their owner may go on to change them.
    keys = np.arange(100_000)
    table = pa.table(
        {"k": keys, "s": [f"{i:06}" for i in range(len(keys))], "_time": keys, "_diff": keys + 1}
    )
    schema = schema_from_arrow(table.select(["k", "s"]).schema, ["k"])
    some = normalize(table, schema, INT).slice(500, 300)
    expected = rows_of(some)
    found = consolidate(some, schema, INT)
    keys[:] = 7
    assert rows_of(found) == expected
    assert found.get_total_buffer_size() < 2 * found.nbytes


@settings(max_examples=examples(150))
@given(updates(columns=2), st.integers(1, 9), st.sampled_from([3, 20, 1000]), st.booleans())
def test_consolidated_batches_end_between_groups_and_none_is_empty(drawn, batch_rows, sorted_rows, again):
    schema, domain, table = drawn
    expected = [repr(row) for row in consolidated(rows_of(table))]
    table = consolidate(table, schema, domain) if again else table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consolidate_module, "_BATCH_ROWS", batch_rows)
        patch.setattr(consolidate_module, "_JOINED_BYTES", 0)
        found = list(consolidate_module.consolidated(table, schema, domain, sorted_rows))
    assert all(0 < batch.num_rows <= max(batch_rows, sorted_rows + 1) for batch in found)
    assert [repr(row) for batch in found for row in rows_of(batch)] == expected


@settings(max_examples=examples(150))
@given(updates(columns=2), st.sampled_from([5, 20]), st.lists(st.integers(0, 40)), st.sampled_from([2, 64]))
def test_rows_of_several_chunks_are_consolidated_as_those_of_one(drawn, sorted_rows, cuts, chunks_max):
    schema, domain, table = drawn
    expected = [repr(row) for row in consolidated(rows_of(table))]
    ends = sorted({min(cut, table.num_rows) for cut in cuts} | {0, table.num_rows})
    chunked = pa.concat_tables([table.slice(a, b - a) for a, b in pairwise(ends)] or [table])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consolidate_module, "_TAKEN_ROWS", 4)
        patch.setattr(consolidate_module, "_CHUNKS_MAX", chunks_max)
        patch.setattr(consolidate_module, "_JOINED_BYTES", 0)
        found = list(consolidate_module.consolidated(chunked, schema, domain, sorted_rows))
    assert [repr(row) for batch in found for row in rows_of(batch)] == expected


def test_equal_rows_are_summed_wherever_batches_and_chunks_end(monkeypatch):
    monkeypatch.setattr(consolidate_module, "_BATCH_ROWS", 3)
    monkeypatch.setattr(consolidate_module, "_JOINED_BYTES", 0)
    expected = [(k, "x", 0, 4) for k in range(10)]
    equal = [run_of([k for k in range(10) if k % 2 < wide], [0] * 5 * wide, SCHEMA) for wide in (2, 2, 1)]
    # Each chunk is in order, and the next one begins where it ends, or before.
    odd = run_of([1, 3, 5, 7, 9], [0] * 5, SCHEMA)
    for tables in ([*equal, odd, equal[0]], [equal[0].slice(0, 1)] * 4 + [equal[0].slice(1)] * 4):
        found = list(consolidate_module.consolidated(pa.concat_tables(tables), SCHEMA, INT))
        assert [row for batch in found for row in rows_of(batch)] == expected
        assert all(batch.num_rows for batch in found)


def test_few_rows_in_order_keep_nothing_of_the_table_that_they_are_cut_from():
    table = run_of(list(range(100_000)), [0] * 100_000, SCHEMA)
    [found] = consolidate_module.consolidated(table.slice(50_000, 10), SCHEMA, INT)
    assert rows_of(found) == [(k, "x", 0, 1) for k in range(50_000, 50_010)]
    assert found.get_total_buffer_size() < 2_000


@pytest.mark.promise(
    "An append sorts its rows without a copy of all of them, and equal rows are summed wherever "
    "batches and chunks end",
    rule="`consolidated` in `data/kernel/consolidate.py`",
    also=[
        "::test_equal_rows_are_summed_wherever_batches_and_chunks_end",
        "::test_consolidated_batches_end_between_groups_and_none_is_empty",
        "::test_rows_of_several_chunks_are_consolidated_as_those_of_one",
        "data/test_normalize.py::test_times_and_diffs_of_many_rows_are_not_held_for_each_row",
    ],
)
def test_many_rows_are_consolidated_without_a_copy_of_all():
    count = 1_000_000
    keys = np.random.default_rng(5).permutation(count)
    texts = pa.array(np.char.mod("%032d", keys % 1000).tolist())
    plain = {"k": keys, "v": texts, "_time": keys % 7, "_diff": np.ones(count, np.int64)}
    schema = schema_from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"])
    table = normalize(pa.table(plain), schema, INT)
    chunked = pa.Table.from_batches(table.to_batches(max_chunksize=50_000))
    for rows in (table, chunked, consolidate(table, schema, INT)):
        before, seen, most = pa.total_allocated_bytes(), 0, 0
        for batch in consolidate_module.consolidated(rows, schema, INT):
            seen += batch.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
        assert seen == count and most < rows.nbytes / 4


big = st.sampled_from([2**62, 2**63 - 1, -(2**62), -(2**63), 1, -1])


@pytest.mark.promise(
    "Equal updates are summed exactly, zeros dropped; an overflow is an error",
    rule="`data/kernel/sums.py`",
    also=["::test_a_sum_over_chunks_and_runs_that_overflows_is_refused"],
)
@settings(max_examples=examples(150))
@given(updates(columns=0, max_rows=25, domain=INT, diffs=big), st.integers(1, 30))
def test_sums_are_exact_or_refused(drawn, chunk_rows):
    schema, domain, table = drawn
    expected = consolidated(rows_of(table))
    if all(-(2**63) <= row[-1] < 2**63 for row in expected):
        found = rows_of(consolidate(table, schema, domain, chunk_rows))
        assert [repr(r) for r in found] == [repr(r) for r in expected]
    else:
        with pytest.raises(InvalidUpdates, match="does not fit into an int64"):
            consolidate(table, schema, domain, chunk_rows)


@pytest.mark.promise(
    "Merging agrees with a plain reference, within bounded rows, also for one hot key (tuple times excepted)",
    rule="`data/kernel/merge.py`",
    also=["::test_one_hot_key_stays_within_the_bound"],
)
@settings(max_examples=examples(300))
@given(st.data())
def test_merge_agrees_with_the_reference(data):
    kinds = PRIMITIVES if data.draw(st.booleans()) else NESTED
    schema, domain, table = data.draw(updates(kinds=kinds, columns=2, max_rows=60))
    query = data.draw(queries(domain))
    count = data.draw(st.integers(1, 6))
    chunk_rows = data.draw(st.integers(1, 40))
    owner = data.draw(st.lists(st.integers(0, count - 1), min_size=table.num_rows, max_size=table.num_rows))
    runs = []
    for i in range(count):
        mine = table.filter(pa.array([o == i for o in owner], pa.bool_()))
        cuts = data.draw(st.lists(st.integers(0, 60), max_size=4))
        runs.append(split(consolidate(mine, schema, domain), cuts))
    found = list(merge(runs, schema, domain, query, chunk_rows))
    expected = consolidated(selected(rows_of(table), query, domain))
    assert [repr(r) for b in found for r in rows_of(b)] == [repr(r) for r in expected]
    assert all(0 < b.num_rows <= chunk_rows + 1 for b in found)


def run_of(keys, times, schema, diffs=None, domain=INT):
    given_times = {"_time": times} if domain is INT else {f"_time_{i}": t for i, t in enumerate(times)}
    table = pa.table({"k": keys, "v": ["x"] * len(keys), **given_times, "_diff": diffs or [1] * len(keys)})
    return consolidate(normalize(table, schema, domain), schema, domain)


SCHEMA = schema_from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"])


def test_one_hot_key_stays_within_the_bound():
    pulled = []

    def counted(run, i):
        for batch in run.to_batches(max_chunksize=10):
            pulled[i] += batch.num_rows
            yield batch

    runs = [run_of([7] * 2000, list(range(i, 4000, 2)), SCHEMA) for i in range(2)]
    pulled = [0, 0]
    emitted = 0
    for batch in merge([counted(r, i) for i, r in enumerate(runs)], SCHEMA, INT, ALL_TIMES, 100):
        emitted += batch.num_rows
        assert sum(pulled) - emitted <= 250
    assert emitted == 4000


def test_a_hot_key_of_tuple_times_longer_than_a_chunk_is_folded():
    runs = [
        run_of([7] * 300, [list(range(300)), list(range(300, 0, -1))], SCHEMA, domain=PAIR) for _ in range(2)
    ]
    found = list(merge([r.to_batches() for r in runs], SCHEMA, PAIR, Fold(Frontier.of((400, 400))), 16))
    assert [rows_of(b) for b in found] == [[(7, "x", 400, 400, 600)]]


def test_disjoint_runs_get_whole_chunks():
    runs = [run_of(list(range(i * 1000, i * 1000 + 1000)), [0] * 1000, SCHEMA) for i in range(8)]
    found = list(merge([r.to_batches() for r in runs], SCHEMA, INT, ALL_TIMES, 400))
    assert sum(b.num_rows for b in found) == 8000
    # A row that a chunk has left open comes alone.
    assert sum(b.num_rows > 1 for b in found) < 100


def test_a_long_run_and_short_ones_get_whole_chunks():
    long = run_of(range(0, 80_000, 2), [0] * 40_000, SCHEMA)
    short = [run_of(range(i, 80_000, 40), [1] * 2_000, SCHEMA) for i in range(1, 15, 2)]
    runs = [table.to_batches(max_chunksize=512) for table in (long, *short)]
    everything = Updates(Frontier.of(0), Frontier())
    found = list(chunks(runs, SCHEMA, INT, everything, 4096, chunk_bytes=1 << 30))
    sizes = [chunk.rows.num_rows for chunk in found]
    # The first one shows how many rows of each run there are.
    assert min(sizes[1:-2]) > 3000 and max(sizes) < 1.3 * 4096


def test_few_rows_that_are_left_do_not_keep_their_chunks_in_memory():
    keys = np.repeat(np.arange(20_000), 2)
    run = run_of(keys.tolist(), [1, 2] * 20_000, SCHEMA, [1, -1] * 20_000)
    # Of each thousand keys one is not removed again.
    run = run.filter(pa.array(np.arange(run.num_rows) % 2_000 != 1))
    left = pa.Table.from_batches(merge([run.to_batches(max_chunksize=900)], SCHEMA, INT, AsOf(5), 1500))
    assert left.num_rows == 20
    assert left.get_total_buffer_size() < 10 * left.nbytes


def test_rows_that_became_equal_within_a_run_are_summed():
    run = run_of([1] * 50, list(range(50)), SCHEMA)
    found = list(merge([run.to_batches(max_chunksize=7)], SCHEMA, INT, AsOf(100), 4))
    assert [r for b in found for r in rows_of(b)] == [(1, "x", 100, 50)]


def test_a_sum_over_chunks_and_runs_that_overflows_is_refused():
    runs = [run_of([1, 2], [i, 0], SCHEMA, [2**62, 1]) for i in range(3)]
    with pytest.raises(InvalidUpdates, match=r"sum to 13835058055282163712.*k=1"):
        list(merge([r.to_batches() for r in runs], SCHEMA, INT, AsOf(9), 3))
    minus = run_of([1, 2], [5, 0], SCHEMA, [-(2**62), 1])
    found = list(merge([r.to_batches() for r in [*runs, minus, minus]], SCHEMA, INT, AsOf(9), 5))
    assert [r for b in found for r in rows_of(b)] == [(1, "x", 9, 2**62), (2, "x", 9, 5)]


def test_an_overflow_names_even_rows_that_python_cannot_hold():
    schema = schema_from_arrow(pa.schema([("k", pa.timestamp("s"))]), ["k"])
    keys = pa.array([2**40] * 2).view(pa.timestamp("s"))
    table = normalize(pa.table({"k": keys, "_diff": [2**62] * 2}), schema, INT, time=0)
    with pytest.raises(InvalidUpdates, match=r"k=.*_time=0"):
        consolidate(table, schema, INT)


def test_an_unsorted_run_is_noticed_at_a_border():
    batches = run_of(list(range(100)), [0] * 100, SCHEMA).to_batches(max_chunksize=10)
    with pytest.raises(InternalError, match="not sorted"):
        list(merge([batches[::-1], batches], SCHEMA, INT, ALL_TIMES, 20))


def test_a_diff_of_0_is_dropped_even_where_rows_are_in_order():
    run = run_of([1, 2, 3], [0, 0, 0], SCHEMA)
    zero = run.set_column(3, run.schema.field(3), pa.array([1, 0, 1]))
    assert rows_of(consolidate(zero, SCHEMA, INT)) == [(1, "x", 0, 1), (3, "x", 0, 1)]


def test_nothing_comes_of_nothing():
    empty = update_schema(SCHEMA, INT).empty_table()
    assert consolidate(empty, SCHEMA, INT).num_rows == 0
    assert list(merge([], SCHEMA, INT, AsOf(1), 10)) == []
    assert list(merge([[], run_of([1], [5], SCHEMA).to_batches()], SCHEMA, INT, AsOf(1), 10)) == []


def test_large_random_merge_matches_group_by():
    rng = np.random.default_rng(3)
    tables = []
    for _ in range(5):
        keys = rng.zipf(1.3, 20_000) % 5_000
        tables.append(run_of(keys.tolist(), rng.integers(0, 50, 20_000).tolist(), SCHEMA))
    found = pa.Table.from_batches(
        merge([t.to_batches(max_chunksize=999) for t in tables], SCHEMA, INT, Fold(Frontier.of(25)), 4096)
    )
    rows = [(k, v, max(t, 25), d) for t_ in tables for k, v, t, d in rows_of(t_)]
    assert rows_of(found) == consolidated(rows)


def test_slices_are_cut_by_bytes_and_no_sum_needs_the_whole_table(monkeypatch):
    table = pa.table({"k": ["x" * (i % 9) * 20 for i in range(60)], "_time": [0] * 60, "_diff": [1] * 60})
    schema = schema_from_arrow(table.select(["k"]).schema, ["k"])
    table = normalize(table, schema, INT)
    table = pa.concat_tables([table.slice(0, 25), table.slice(25)])
    expected = consolidate(table, schema, INT)
    # Within a slice the sum leaves an int64, over all it does not.
    diffs = [2**63 - 1, 2**63 - 1, -(2**63), -(2**63) + 1]
    extreme = pa.table({"k": ["y" * 150] * 4, "_time": [0] * 4, "_diff": diffs})
    extreme = normalize(extreme, schema, INT)
    both = pa.concat_tables([table, extreme])
    monkeypatch.setattr(consolidate_module, "_SORTED_BYTES", 500)
    for rows in (7, 1000):
        slices = list(map(pa.Table.from_batches, consolidate_module._slices(both.to_batches(), rows)))
        assert len(slices) > 10
        assert all(s.num_rows <= rows and (s.nbytes <= 500 or s.num_rows == 1) for s in slices)
        assert pa.concat_tables(slices).equals(both)
        assert consolidate(table, schema, INT, rows).equals(expected)
        found = consolidate(both, schema, INT, rows)
        assert rows_of(found)[:-1] == rows_of(expected)
        assert rows_of(found)[-1][-1] == -1

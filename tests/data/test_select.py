import pyarrow as pa
import pytest
from data_reference import queries, rows_of, selected, updates
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelake.data.kernel.select import Selector, preserves_order, select, taken_away, view
from tidelake.errors import InternalError, InvalidUpdates
from tidelake.model.query import AsOf, Changes, Fold
from tidelake.model.time import TimeDomain
from tidelake.testing.strategies import frontiers, times
from tiers import examples


def one(table):
    return pa.concat_batches(table.to_batches()) if table.num_rows else None


@pytest.mark.promise("Selecting by time is the scalar algebra, row by row", rule="`data/kernel/select.py`")
@settings(max_examples=examples(200))
@given(st.data())
def test_select_agrees_with_the_scalar_algebra(data):
    _, domain, table = data.draw(updates(columns=0))
    query = data.draw(queries(domain))
    if (batch := one(table)) is not None:
        found = select(batch, query, domain)
        assert [repr(r) for r in rows_of(found)] == [repr(r) for r in selected(rows_of(batch), query, domain)]


@settings(max_examples=examples(100))
@given(st.data())
def test_view_rewrites_first_and_then_drops(data):
    domain = data.draw(st.sampled_from([TimeDomain("counter"), TimeDomain("tuple", 2)]))
    _, _, table = data.draw(updates(columns=0, domain=domain))
    rewrite = data.draw(st.none() | times(domain, 4)) if domain.total_order else None
    lower, upper = data.draw(st.none() | frontiers(domain, 4)), data.draw(st.none() | frontiers(domain, 4))
    if (batch := one(table)) is None:
        return
    n = domain.arity
    expected = []
    for row in rows_of(batch):
        t = row[-n - 1 : -1] if domain.unit == "tuple" else row[-2]
        t = t if rewrite is None else max(t, rewrite)
        if (lower is None or lower.less_equal(t)) and (upper is None or not upper.less_equal(t)):
            expected.append((*row[: -n - 1], *(t if isinstance(t, tuple) else (t,)), row[-1]))
    found = rows_of(view(batch, domain, rewrite, lower, upper))
    assert [repr(r) for r in found] == [repr(r) for r in expected]


def test_only_folding_tuples_breaks_the_order():
    pair = TimeDomain("tuple", 2)
    for domain in (TimeDomain("counter"), TimeDomain("ms")):
        assert preserves_order(Fold.__new__(Fold), domain)
    assert preserves_order(AsOf((1, 1)), pair)
    assert preserves_order(Changes((0, 0), (1, 1)), pair)
    assert not preserves_order(Fold.__new__(Fold), pair)
    batch = pa.record_batch({"k": [1], "_time_0": [0], "_time_1": [0], "_diff": [1]})
    with pytest.raises(InternalError, match="cannot be rewritten"):
        view(batch, pair, rewrite=(1, 1))


def test_what_is_taken_away_has_the_opposite_diffs_up_to_a_time():
    columns = {"k": [1, 2, 3], "_time": [4, 5, 6], "_diff": [2, -1, 7]}
    batch = pa.RecordBatch.from_pydict(columns)
    found = taken_away(batch, 5, TimeDomain("counter"))
    assert found.to_pydict() == {"k": [1, 2], "_time": [4, 5], "_diff": [-2, 1]}
    assert found.schema == batch.schema


def test_a_diff_without_an_opposite_is_refused_unless_it_comes_later():
    batch = pa.RecordBatch.from_pydict({"k": [1], "_time": [4], "_diff": [-(2**63)]})
    with pytest.raises(InvalidUpdates, match="read the snapshots at both times"):
        taken_away(batch, 4, TimeDomain("counter"))
    assert not taken_away(batch, 3, TimeDomain("counter")).num_rows


def test_batches_with_one_time_share_its_values():
    columns = {"k": [1, 2, 3], "_time": [4, 5, 6], "_diff": [2, -1, 7]}
    batch = pa.RecordBatch.from_pydict(columns)
    wanted = Selector(AsOf(5), TimeDomain("counter"))
    found = [wanted(batch), wanted(batch.slice(0, 1)), wanted(batch.slice(2)), wanted(batch)]
    assert [one.column("_time").to_pylist() for one in found] == [[5, 5], [5], [], [5, 5]]
    assert len({one.column("_time").buffers()[1].address for one in found}) == 1

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.read.retention import Ranked, RetentionFilters, bottom_n, last_n, top_n
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain

COLUMNS = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.string())])
LAYOUT = Layout(schema_from_arrow(COLUMNS, ["k"]), TimeDomain())
NONE = RetentionFilters(LAYOUT)
# key, a, b, time, diff
Update = tuple[int | None, int | None, str, int, int]


def batch(updates: list[Update]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*updates, strict=True)] or [[]] * 5
    arrays = [pa.array(c, f.type) for c, f in zip(columns, LAYOUT.arrow, strict=True)]
    table = consolidate(
        pa.Table.from_arrays(arrays, schema=LAYOUT.arrow), LAYOUT.schema, LAYOUT.domain
    ).combine_chunks()
    return (
        table.to_batches()[0]
        if table.num_rows
        else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in LAYOUT.arrow], schema=LAYOUT.arrow)
    )


def listed(rows: pa.RecordBatch) -> list[Update]:
    return [tuple(row.values()) for row in rows.to_pylist()]


def visible(retention: RetentionFilters, updates: list[Update], since: int = 10) -> list[tuple]:
    rows = retention.visible(batch(updates), Frontier.of(since))
    return [(k, a) for k, a, *_ in listed(rows)]


def values(*numbers: int | None) -> list[Update]:
    return [(1, a, "", 0, 1) for a in numbers]


def test_a_predicate_on_keys_drops_all_rows_of_a_key_and_null_is_no():
    retention = NONE.with_keys(pc.field("k") >= 2)
    assert visible(retention, [(1, 1, "", 0, 1), (2, 2, "", 0, 1), (None, 3, "", 0, 1)]) == [(2, 2)]


def test_a_predicate_on_values_may_look_at_the_key_too():
    retention = NONE.with_values(pc.field("a") > pc.field("k"))
    assert visible(retention, [(1, 1, "", 0, 1), (1, 2, "", 0, 1), (2, 2, "", 0, 1)]) == [(1, 2)]


def test_a_filter_takes_the_place_of_the_one_before():
    retention = NONE.with_keys(pc.field("k") > 1).with_keys(pc.field("k") > 2)
    assert retention.version == 2
    assert visible(retention, [(2, 0, "", 0, 1), (3, 0, "", 0, 1)]) == [(3, 0)]


def test_last_n_keeps_the_last_values_of_each_key():
    retention = NONE.with_values(last_n(2))
    updates = [*values(5, 1, 3), (2, 9, "", 0, 1), (3, 1, "", 0, 1), (3, 2, "", 0, 1)]
    assert visible(retention, updates) == [(1, 3), (1, 5), (2, 9), (3, 1), (3, 2)]


def test_null_is_the_last_value_and_never_among_the_top():
    assert visible(NONE.with_values(last_n(1)), values(5, None)) == [(1, None)]
    assert visible(NONE.with_values(top_n(1, "a")), values(5, None)) == [(1, 5)]
    assert visible(NONE.with_values(bottom_n(1, "a")), values(5, None)) == [(1, 5)]


def test_top_and_bottom_rank_by_columns_and_then_by_the_total_order():
    updates = [(1, 1, "z", 0, 1), (1, 2, "z", 0, 1), (1, 3, "y", 0, 1)]
    assert visible(NONE.with_values(top_n(1, "b")), updates) == [(1, 1)]
    assert visible(NONE.with_values(bottom_n(1, "b")), updates) == [(1, 3)]
    assert visible(NONE.with_values(top_n(1, ["b", "a"])), updates) == [(1, 2)]


def test_a_value_that_was_retracted_is_not_counted():
    updates = [*values(1, 2, 3, 4, 5), *((1, a, "", 3, -1) for a in (2, 3, 4, 5))]
    assert (1, 1) in visible(NONE.with_values(last_n(1)), updates, 3)
    # Before that the last one is another; the retractions are still to come.
    assert visible(NONE.with_values(last_n(1)), updates, 2) == [(1, 2), (1, 3), (1, 4), (1, 5), (1, 5)]


def test_values_after_since_are_kept_until_it_passes_them():
    updates = [*values(1, 2), (1, 3, "", 7, 1)]
    assert visible(NONE.with_values(last_n(1)), updates, 6) == [(1, 2), (1, 3)]
    assert visible(NONE.with_values(last_n(1)), updates, 7) == [(1, 3)]


def test_values_above_a_watermark_are_kept_and_not_counted():
    retention = NONE.with_values(last_n(1, where=pc.field("a") >= 10))
    assert visible(retention, values(1, 2, 10, 11, 12)) == [(1, 2), (1, 10), (1, 11), (1, 12)]


def test_what_is_below_zero_at_since_is_dropped_under_an_n_filter():
    updates = [(1, 4, "", 2, -1), (1, 4, "", 9, 1)]
    rows = NONE.with_values(last_n(1)).visible(batch(updates), Frontier.of(5))
    assert listed(rows) == [(1, 4, "", 9, 1)]


def test_sums_beyond_64_bits_have_their_sign():
    most = 2**63 - 1
    updates = [(1, 1, "", 0, most), (1, 1, "", 1, most), (1, 2, "", 0, -most), (1, 2, "", 1, -most)]
    assert visible(NONE.with_values(last_n(1)), updates) == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.with_keys(pc.field("a") > 1), "key columns"),
        (lambda r: r.with_keys(pc.field("k")), "not a condition"),
        (lambda r: r.with_keys("k > 1"), "an expression such as"),
        (lambda r: r.with_values(pc.field("_time") > 1), "key or value columns"),
        (lambda r: r.with_values(pc.field("b") > 1), "not a condition"),
        (lambda r: r.with_values(top_n(1, "k")), "no value column 'k'"),
        (lambda r: r.with_values(top_n(1, [])), "ranks nothing"),
        (lambda r: r.with_values(last_n(-1)), "whole number"),
        (lambda r: r.with_values(last_n(1, pc.field("c"))), "not a condition"),
    ],
)
def test_filters_that_cannot_be_applied_are_refused_when_they_are_set(change, message):
    with pytest.raises(UsageError, match=message):
        change(NONE)


UPDATES = st.lists(
    st.tuples(
        st.sampled_from([1, 2, None]),
        st.sampled_from([1, 2, 3, 4, None]),
        st.sampled_from(["x", "y"]),
        st.integers(0, 6),
        st.integers(-2, 2).filter(bool),
    ),
    max_size=30,
)
RULES = st.builds(
    Ranked,
    st.integers(0, 3),
    st.sampled_from(["greatest", "least"]),
    st.sampled_from([(), ("a",), ("b",), ("b", "a")]),
    st.sampled_from([None, pc.field("a") >= 3]),
)


def slowly(rule: Ranked, updates: list[Update], since: int) -> list[Update]:
    """What is visible, one value after the other."""
    victims = set()
    for key in {u[0] for u in updates}:
        sums: dict[tuple, int] = {}
        for k, a, b, time, diff in updates:
            if k == key and time <= since:
                sums[(a, b)] = sums.get((a, b), 0) + diff
        victims |= {(key, *value) for value, total in sums.items() if total < 0}
        live = [value for value, total in sums.items() if total > 0]
        ranked = [v for v in live if not (rule.where is not None and v[0] is not None and v[0] >= 3)]
        ranked.sort(key=lambda v: (v[0] is None, v[0] or 0, v[1]))
        if not rule.by:
            ranked = ranked[::-1] if rule.first == "greatest" else ranked
        for name in reversed(rule.by):
            at = "ab".index(name)
            known = [v for v in ranked if v[at] is not None]
            known.sort(key=lambda v: v[at], reverse=rule.first == "greatest")
            ranked = known + [v for v in ranked if v[at] is None]
        victims |= {(key, *value) for value in ranked[rule.n :]}
    return [u for u in updates if u[3] > since or u[:3] not in victims]


@given(UPDATES, RULES, st.integers(0, 7))
def test_an_n_filter_keeps_what_counting_says(updates, rule, since):
    rows = batch(updates)
    kept = NONE.with_values(rule).visible(rows, Frontier.of(since))
    assert listed(kept) == slowly(rule, listed(rows), since)


@pytest.mark.promise(
    "An N-filter ranks the values of all batches, also when only some are merged",
    rule="`arrangement/read/retention.py`",
    also=["arrangement/merge/test_spine.py::test_a_merge_of_some_batches_ranks_the_values_of_all"],
)
@given(st.lists(UPDATES, min_size=1, max_size=3), UPDATES, RULES, st.integers(0, 7))
def test_what_a_merge_drops_no_read_would_have_seen(others, merged, rule, since):
    """Merges of some batches leave out rows only if all batches together are read the same without them."""
    retention, at = NONE.with_values(rule), Frontier.of(since)
    rows = batch(merged)
    left = retention.kept_by_merge(rows, [batch(other) for other in others], at)
    beside = [update for other in others for update in other]
    before = retention.visible(batch([*listed(rows), *beside]), at)
    after = retention.visible(batch([*listed(left), *beside]), at)
    assert listed(after) == listed(before)


@given(UPDATES, RULES, st.integers(0, 7))
def test_a_merge_of_everything_leaves_what_is_visible(updates, rule, since):
    retention, at = NONE.with_values(rule), Frontier.of(since)
    rows = batch(updates)
    assert listed(retention.kept_by_merge(rows, [], at)) == listed(retention.visible(rows, at))

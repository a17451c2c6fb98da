"""The same rows have the same fingerprint, in any order; most others have another."""

import pyarrow as pa
import pytest
from data_reference import ALL, array
from hypothesis import given
from hypothesis import strategies as st

from tidelake.data.ingest.fingerprint import fingerprint

ROWS = st.lists(st.tuples(st.integers(-9, 9), st.sampled_from([None, "", "a", "ü"])), max_size=8)


def table(rows):
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()), "v": [v for _, v in rows]})


@pytest.mark.promise(
    "A repeated number with the same rows, in any order, is never refused for its rows; with other "
    "rows it is refused in most cases: if the number of rows, the columns, or the nulls or extremes "
    "of a column differ",
    rule="`data/ingest/fingerprint.py`",
    also=[
        "data/test_fingerprint.py",
        "shard/test_outcomes.py::test_a_number_that_comes_again_with_other_rows_is_told_and_with_the_same_ones_is_in",
    ],
)
@given(ROWS, st.randoms())
def test_the_order_of_rows_is_no_matter(rows, rng):
    mixed = [*rows]
    rng.shuffle(mixed)
    assert fingerprint(table(rows)) == fingerprint(table(mixed))


@given(ROWS)
def test_a_column_that_was_added_is_no_matter_while_it_is_null(rows):
    more = table(rows).append_column("w", pa.nulls(len(rows), pa.float64()))
    assert fingerprint(more) == fingerprint(table(rows))


def test_other_rows_and_other_columns_have_another():
    tables = [[], [(1, "a")], [(2, "a")], [(1, "b")], [(1, None)], [(1, "a"), (1, "a")]]
    found = {fingerprint(table(rows)) for rows in tables}
    found.add(fingerprint(table([(1, "a")]).rename_columns(["k", "w"])))
    assert len(found) == 7


def test_columns_may_be_left_out():
    assert fingerprint(table([(1, "a")]), ("v",)) == fingerprint(table([(1, "b")]), ("v",))


@pytest.mark.parametrize(("kind", "values"), ALL, ids=[str(kind) for kind, _ in ALL])
def test_columns_of_every_type_have_one_whatever_the_order(kind, values):
    there, back = (pa.table({"k": array(kind, [*some, None])}) for some in (values, values[::-1]))
    assert fingerprint(there) == fingerprint(back) != fingerprint(there.slice(1))

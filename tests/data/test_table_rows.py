"""Rows of a table and of a change feed, from updates: pure Arrow, against the oracle. No Spark session."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

pytest.importorskip("pyspark")

from tidelake.data.answer import tablerows as rows_module
from tidelake.data.answer.changefeed import change_feed, check_feed, whole_keys
from tidelake.data.answer.tablerows import expanded, repeated
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.testing import strategies, tables
from tidelake.testing.oracle import Oracle, Row, canonical, rank

COUNTER, MS = TimeDomain.parse("counter"), TimeDomain.parse("ms")
SCHEMA = schema_from_arrow(tables.SCHEMA, tables.KEY)
WIDTH = len(tables.KEY)
Held = list[tuple[Row, int, int]]

# Few keys and values, so that rows of one key and time meet.
KEYS = st.sampled_from([("a", 0), ("a", None), (None, 0), ("ä", -1)])
VALUES = st.sampled_from(
    [(0.0, None, None), (float("nan"), None, []), (None, None, [1, None]), (1.5, None, [1])]
)
HELD = st.lists(
    st.tuples(
        st.builds(lambda key, value: key + value, KEYS, VALUES),
        st.integers(0, 3),
        st.sampled_from([1, 1, 1, -1, -1, 2, -2, 3]),
    ),
    max_size=40,
)
CUTS = st.lists(st.integers(0, 40), max_size=5)


def sorted_updates(held: Iterable[tuple[Any, int, int]], domain: TimeDomain = COUNTER) -> pa.Table:
    """What a read of all updates gives."""
    table = tables.table(held, domain)
    return consolidate(normalize(table, SCHEMA, domain), SCHEMA, domain)


def in_batches(table: pa.Table, cuts: list[int]) -> list[pa.RecordBatch]:
    """The rows as several batches, some of them empty."""
    whole = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    edges = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    return [whole[0].slice(a, b - a) for a, b in pairwise(edges)]


def plain(row: dict[str, Any]) -> Row:
    return tuple(canonical(row[name]) for name in tables.SCHEMA.names)


def expected_feed(held: Held) -> Iterator[tuple[Row, str, int]]:
    """Said by the oracle's sums, row by row: what of each key goes and comes at each time."""
    oracle = Oracle(Frontier.of(0), Frontier.of(0))
    oracle.append([(tuple(map(canonical, row)), time, diff) for row, time, diff in held], Frontier.of(9))
    moves: dict[Any, list[tuple[Row, int]]] = defaultdict(list)
    for (row, time), diff in oracle.between(Frontier.of(0), Frontier.of(9)).items():
        moves[row[:WIDTH], time].append((row, diff))
    for (_, time), changed in moves.items():
        balanced = sum(diff for _, diff in changed) == 0
        for row, diff in changed:
            gone, came = ("update_preimage", "update_postimage") if balanced else ("delete", "insert")
            for _ in range(abs(diff)):
                yield row, gone if diff < 0 else came, time


@pytest.mark.promise(
    "A change feed applied from nothing gives the contents; rows of one key and time are pre- and "
    "post-images iff as many go as come",
    rule="`data/answer/changefeed.py`",
    also=[
        "::test_a_feed_applied_from_nothing_gives_the_contents",
        "::test_batches_are_cut_between_keys_only",
    ],
)
@given(HELD, CUTS)
def test_a_change_feed_says_what_the_oracle_says(held: Held, cuts: list[int]) -> None:
    batches = in_batches(sorted_updates(held), cuts)
    found = [row for batch in change_feed(batches, tables.KEY, COUNTER) for row in batch.to_pylist()]
    got = [(plain(row), row["_change_type"], row["_commit_version"]) for row in found]
    assert Counter(got) == Counter(expected_feed(held))
    assert all(row["_commit_timestamp"] is None for row in found)


@given(HELD, CUTS)
def test_a_change_feed_comes_by_key_then_time_and_what_goes_before_what_comes(
    held: Held, cuts: list[int]
) -> None:
    batches = in_batches(sorted_updates(held), cuts)
    found = [row for batch in change_feed(batches, tables.KEY, COUNTER) for row in batch.to_pylist()]
    keys = [
        (
            [rank(canonical(row[name])) for name in tables.KEY],
            row["_commit_version"],
            row["_change_type"] in ("insert", "update_postimage"),
            [rank(value) for value in plain(row)],
        )
        for row in found
    ]
    assert keys == sorted(keys)


@given(HELD, CUTS)
def test_a_feed_applied_from_nothing_gives_the_contents(held: Held, cuts: list[int]) -> None:
    contents: Counter[Row] = Counter()
    for batch in change_feed(in_batches(sorted_updates(held), cuts), tables.KEY, COUNTER):
        for row in batch.to_pylist():
            contents[plain(row)] += 1 if row["_change_type"] in ("insert", "update_postimage") else -1
    oracle = Oracle(Frontier.of(0), Frontier.of(0))
    oracle.append([(tuple(map(canonical, row)), time, diff) for row, time, diff in held], Frontier.of(9))
    assert Counter({row: n for row, n in contents.items() if n}) == oracle.snapshot(8)


@given(HELD, CUTS)
def test_batches_are_cut_between_keys_only(held: Held, cuts: list[int]) -> None:
    table = sorted_updates(held)
    found = list(whole_keys(in_batches(table, cuts), tables.KEY))
    together = pa.Table.from_batches(found, table.schema)
    assert tables.updates(together, COUNTER) == tables.updates(table, COUNTER)
    keys = [{plain(row)[:WIDTH] for row in batch.to_pylist()} for batch in found]
    assert all(keys)
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_a_change_of_one_row_is_a_pair_and_an_unequal_one_is_not() -> None:
    old, new, third = ("a", 0, 1.0, None, None), ("a", 0, 2.0, None, None), ("a", 0, 3.0, None, None)
    held = [(old, 0, 1), (old, 1, -1), (new, 1, 1), (new, 2, -1), (old, 2, 1), (third, 2, 1), (old, 3, -1)]
    batches = in_batches(sorted_updates(held), [])
    found = [row for batch in change_feed(batches, tables.KEY, COUNTER) for row in batch.to_pylist()]
    assert [(row["_commit_version"], row["_change_type"], row["x"]) for row in found] == [
        (0, "insert", 1.0),
        (1, "update_preimage", 1.0),
        (1, "update_postimage", 2.0),
        (2, "delete", 2.0),
        (2, "insert", 1.0),
        (2, "insert", 3.0),
        (3, "delete", 1.0),
    ]


def test_a_feed_of_a_clock_has_timestamps() -> None:
    held = [(("a", 0, None, None, None), 1_706_702_400_123, 1)]
    (batch,) = change_feed(in_batches(sorted_updates(held, MS), []), tables.KEY, MS)
    assert batch.schema.names == [
        *tables.SCHEMA.names,
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
    ]
    assert batch.column("_commit_version").to_pylist() == [1_706_702_400_123]
    assert str(batch.column("_commit_timestamp")[0]) == "2024-01-31 12:00:00.123000+00:00"
    late = [(("a", 0, None, None, None), 2**63 - 1, 1)]
    with pytest.raises(UsageError, match="time 9223372036854775807 is past the last timestamp"):
        list(change_feed(in_batches(sorted_updates(late, MS), []), tables.KEY, MS))


def test_what_cannot_be_a_feed_is_refused() -> None:
    check_feed(["a"], MS)
    with pytest.raises(UsageError, match=r"times of unit tuple\(2\) are no versions"):
        check_feed(["a"], TimeDomain.parse("tuple(2)"))
    with pytest.raises(UsageError, match="has a column '_change_type' of its own"):
        check_feed(["a", "_change_type"], COUNTER)


# Tables


@pytest.mark.promise(
    "A table shows each row as often as its multiplicity; a negative multiplicity is an error that "
    "shows the row",
    rule="`data/answer/tablerows.py`",
    also=["spark/source/test_format.py::test_a_row_less_than_no_times_is_an_error_that_shows_it"],
)
@given(
    st.lists(st.tuples(strategies.rows(), st.sampled_from([1, 1, 2, 3, 100])), max_size=20),
    st.integers(1, 40),
)
def test_rows_are_repeated_as_often_as_they_are_there(held: list[tuple[Row, int]], piece: int) -> None:
    table = sorted_updates([(row, 0, diff) for row, diff in held])
    before, rows_module.PIECE_ROWS = rows_module.PIECE_ROWS, piece
    try:
        pieces = [part for batch in in_batches(table, []) for part in expanded(batch)]
    finally:
        rows_module.PIECE_ROWS = before
    expected = [plain(row) for row in table.to_pylist() for _ in range(row["_diff"])]
    assert [plain(row) for part in pieces for row in part.to_pylist()] == expected
    assert all(part.num_rows <= piece for part in pieces) or set(table["_diff"].to_pylist()) == {1}


def test_one_row_a_million_million_times_is_not_held_in_memory() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "_diff": [10**12, 2**63 - 1]})
    pieces = repeated(batch, np.array([10**12, 2**63 - 1]))
    assert sum(next(pieces).num_rows for _ in range(5)) == 5 * rows_module.PIECE_ROWS


def test_a_negative_multiplicity_is_an_error_that_shows_the_row() -> None:
    table = sorted_updates([(("a", 0, None, None, None), 0, 1), (("b", 7, 1.5, None, None), 0, -2)])
    with pytest.raises(
        InvalidUpdates, match=r"a row has the multiplicity -2, .*'k': 'b', 'n': 7.*withDiff=true"
    ):
        list(expanded(in_batches(table, [])[0]))

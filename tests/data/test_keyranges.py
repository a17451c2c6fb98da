"""Rows are cut into ranges of keys: each key in one range, in order, within the limits."""

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.data.keys import keyranges
from tidelake.data.keys.keyranges import RangeLimits, key_ranges
from tidelake.errors import UsageError

ARROW = pa.schema([("k", pa.int64()), ("s", pa.string()), ("at", pa.int64())])
SCHEMA = schema_from_arrow(ARROW, ["k", "s"], None)
KEYS = st.tuples(st.sampled_from([-1, 0, 1, 2, None]), st.sampled_from(["", "a", "b", None]))


def tables(keys, pieces):
    """Rows that are numbered as they come, in so many tables."""
    size = max(1, -(-len(keys) // pieces))
    return [
        pa.table(
            {
                "k": pa.array([k for k, _ in part], pa.int64()),
                "s": pa.array([s for _, s in part], pa.string()),
                "at": pa.array(range(start, start + len(part)), pa.int64()),
            }
        )
        for start in range(0, len(keys), size)
        for part in [keys[start : start + size]]
    ]


def by_key(found):
    return [(row["k"], row["s"]) for row in found.to_pylist()]


def order(key):
    return encode_key(tables([key], 1)[0], SCHEMA)[0].as_py()


@given(st.lists(KEYS, max_size=40), st.integers(1, 5), st.integers(1, 8), st.booleans())
def test_each_key_is_in_one_range_in_its_order_and_ranges_ascend(keys, pieces, most, whole):
    # Sorted, or all at once: then in any order.
    given_ = keys if whole else sorted(keys, key=order)
    found = list(key_ranges(tables(given_, 1 if whole else pieces), SCHEMA, RangeLimits(most, 2**40)))
    seen = [order(key) for part in found for key in by_key(part)]
    assert seen == sorted(map(order, keys))
    edges = [{order(key) for key in by_key(part)} for part in found]
    assert sum(map(len, edges)) == len(set(seen))
    for part, inside in zip(found, edges, strict=True):
        assert part.num_rows <= most or len(inside) == 1
        numbers = {}
        for row in part.to_pylist():
            numbers.setdefault((row["k"], row["s"]), []).append(row["at"])
        assert all(own == sorted(own) for own in numbers.values())


def test_bytes_limit_ranges_as_well():
    keys = [(i, "x") for i in range(100)]
    table = tables(keys, 1)[0]
    found = list(key_ranges([table], SCHEMA, RangeLimits(1000, table.nbytes // 10)))
    assert 8 <= len(found) <= 12


@pytest.mark.parametrize(
    ("rows", "limit", "ranges", "sizes"),
    [
        (100, 1000, 2, [50, 50]),
        (101, 1000, 2, [51, 50]),
        (100, 1000, 3, [34, 34, 32]),
        (100, 40, 2, [20] * 4 + [10] * 2),
        (15, 1000, 2, [10, 5]),
        (10, 1000, 2, [10]),
        (10, 4, 2, [2] * 5),
    ],
)
def test_what_fits_is_cut_into_several_ranges_unless_they_are_small(rows, limit, ranges, sizes, monkeypatch):
    monkeypatch.setattr(keyranges, "_ENOUGH_ROWS", 10)
    given_ = tables([(i, "x") for i in range(rows)], 1)
    found = list(key_ranges(given_, SCHEMA, RangeLimits(limit, 2**40, ranges)))
    assert [part.num_rows for part in found] == sizes


@pytest.mark.parametrize("ranges", [1, 2, 3])
def test_ranges_that_are_worked_on_at_once_are_together_within_the_bytes(ranges):
    # Few rows, which are large.
    wide = [(i, "x" * 10_000) for i in range(100)]
    limits = RangeLimits(262_144, 200_000, ranges)
    sizes = [part.nbytes for part in key_ranges(tables(wide, 25), SCHEMA, limits)]
    assert max(sum(sizes[i : i + ranges]) for i in range(len(sizes))) <= limits.size


def test_no_more_is_held_than_the_bytes_of_a_range_and_what_comes_next():
    keys, taken = [(i, "x") for i in range(100)], []
    pieces = tables(keys, 20)
    counted = (taken.append(piece) or piece for piece in pieces)
    next(key_ranges(counted, SCHEMA, RangeLimits(1000, 3 * pieces[0].nbytes)))
    assert len(taken) == 4


def test_a_key_that_comes_back_is_refused():
    keys = [(i, "x") for i in range(30)]
    with pytest.raises(UsageError, match="must come sorted by k, s, nulls last"):
        list(key_ranges(tables([*keys, keys[0]], 10), SCHEMA, RangeLimits(4, 2**40)))
    with pytest.raises(UsageError, match="must come sorted"):
        list(key_ranges(tables(keys[::-1], 10), SCHEMA, RangeLimits(4, 2**40)))
    # Of a range that is done already its last key, which is the nearest to be held still.
    done = tables([(i, "x") for i in range(10)], 1)
    with pytest.raises(UsageError, match="must come sorted"):
        list(key_ranges([*done, *tables([(7, "x"), *keys[20:]], 1)], SCHEMA, RangeLimits(4, 2**40)))

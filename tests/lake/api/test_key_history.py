"""The history of a key: every update in the order of time, as a plain list has them."""

import uuid
from collections import Counter
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidelake
from tables import SCHEMA, at, rows
from tidelake.config import Config
from tidelake.errors import HistoryCompacted, InvalidUpdates, NotYetClosed, UsageError
from tiers import examples

NOON = 1_793_534_400_000
SMALL = Config(inline_part_bytes=0, merge_budget_s=0.0)


def told(table):
    """(time, diff, value) of each row, in order."""
    at = pa.array(table["_time"].combine_chunks()).cast(pa.int64()).to_pylist()
    return [(time, row["_diff"], row["v"]) for time, row in zip(at, table.to_pylist(), strict=True)]


@pytest.fixture
def prices():
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as lake:
        # The tests may run before that day.
        lake.settings(max_ahead_s=3_000_000_000)
        made = lake.create("prices", SCHEMA, key=["id"], time="ms")
        made.append(pa.concat_tables([at(NOON, 1, v="b"), at(NOON, 2, v="x")]), upper=NOON + 1)
        made.append(
            pa.concat_tables([at(NOON + 9, 1, v="a"), at(NOON + 9, 1, diff=-1, v="b")]), upper=NOON + 10
        )
        made.append(at(NOON + 20, 1, diff=-1, v="a"), upper=NOON + 21)
        yield made


def test_the_updates_of_a_key_come_in_the_order_of_time_removed_ones_first(prices):
    assert told(prices.history(1)) == [
        (NOON, 1, "b"),
        (NOON + 9, -1, "b"),
        (NOON + 9, 1, "a"),
        (NOON + 20, -1, "a"),
    ]
    assert prices.history(1, times="int64").schema == prices.update_schema
    assert told(prices.history(2)) == [(NOON, 1, "x")]
    assert prices.history(3).num_rows == 0 and prices.history(3).schema == prices.history(1).schema


def test_lower_upper_columns_and_conditions_narrow_it(prices):
    assert told(prices.history(1, NOON + 1, NOON + 20)) == [(NOON + 9, -1, "b"), (NOON + 9, 1, "a")]
    assert told(prices.history(1, upper=NOON + 1)) == [(NOON, 1, "b")]
    assert told(prices.history({"id": 1}, where="v = 'a'")) == [(NOON + 9, 1, "a"), (NOON + 20, -1, "a")]
    assert prices.history(1, columns=[]).column_names == ["_time", "_diff"]
    assert prices.history(1)["_time"].type == pa.timestamp("ms", "UTC")


def test_what_was_folded_is_there_at_since(prices):
    prices.advance_since(NOON + 9)
    prices.merge()
    assert told(prices.history(1)) == [(NOON + 9, 1, "a"), (NOON + 20, -1, "a")]
    assert told(prices.history(1, NOON + 10)) == [(NOON + 20, -1, "a")]
    with pytest.raises(HistoryCompacted, match=r"since=2026-11-01 12:00:00\.009Z"):
        prices.history(1, NOON)
    with pytest.raises(HistoryCompacted):
        prices.history(1, upper=NOON + 9)


def test_open_times_are_waited_for_and_staged_updates_come_on_request(prices):
    prices.stage(at(NOON + 90, 1, v="z"))
    assert told(prices.history(1))[-1] == (NOON + 20, -1, "a")
    assert told(prices.history(1, staged=True))[-1] == (NOON + 90, 1, "z")
    assert told(prices.history(1, NOON + 21, staged=True)) == [(NOON + 90, 1, "z")]
    with pytest.raises(NotYetClosed):
        prices.history(1, upper=NOON + 91, timeout_s=0)
    prices.seal(NOON + 91)
    assert told(prices.history(1, upper=NOON + 91, timeout_s=0))[-1] == (NOON + 90, 1, "z")


def test_a_new_or_closed_collection_has_a_history_too():
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as lake:
        made = lake.create("c", SCHEMA, key=["id"])
        assert made.history(1).num_rows == 0
        made.append(at(3, 1), upper=[])
        assert told(made.history(1)) == [(3, 1, "x")]


def test_keys_of_several_columns_and_of_every_type_are_given_by_place_or_name():
    schema = pa.schema(
        [
            pa.field("name", pa.string(), nullable=False),
            pa.field("size", pa.decimal128(6, 2), nullable=False),
            pa.field("colour", pa.string()),
            pa.field("v", pa.string()),
        ]
    )
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as lake:
        made = lake.create("c", schema, key=["name", "size", "colour"])
        row = {"name": "mug", "size": Decimal("1.50"), "colour": None, "v": "x"}
        made.append(pa.Table.from_pylist([{**row, "_time": 4, "_diff": 2}], schema=made.update_schema))
        wanted = [{**row, "_time": 4, "_diff": 2}]
        assert made.history(("mug", Decimal("1.5"), None)).to_pylist() == wanted
        by_name = {"colour": None, "size": Decimal("1.50"), "name": "mug"}
        assert made.history(by_name).to_pylist() == wanted
        for wrong in ("mug", ("mug", 1), {"name": "mug"}, {**by_name, "v": "x"}):
            with pytest.raises(UsageError, match="does not fit the key columns 'name', 'size', 'colour'"):
                made.history(wrong)
        with pytest.raises(InvalidUpdates, match="column 'size' has type string, expected decimal128"):
            made.history(("mug", "large", None))
        with pytest.raises(InvalidUpdates, match="'name' must not be null"):
            made.history((None, Decimal(1), None))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (2**70, "key column 'id' cannot have the value"),
        (np.datetime64("2020-01-01"), "key column 'id' cannot have the value"),
        (pd.NaT, "key column 'id' cannot have the value"),
        (object(), "key column 'id' cannot have the value"),
        (1.5, "column 'id' has type double, expected int64"),
        ("1", "column 'id' has type string, expected int64"),
    ],
)
def test_what_no_key_can_be_is_refused(prices, wrong, told):
    with pytest.raises(UsageError, match=told):
        prices.history(wrong)


def test_tuple_times_are_in_the_order_of_their_components():
    with tidelake.open(f"memory://{uuid.uuid4().hex}") as lake:
        made = lake.create("c", SCHEMA, key=["id"], time="tuple(2)")
        times = [(1, 0), (0, 2), (0, 1), (2, 2)]
        table = rows(1, 1, 1, 1, _time_0=[a for a, _ in times], _time_1=[b for _, b in times])
        made.compare_and_append(table, (0, 0), [(3, 0), (0, 3)])
        found = made.history(1)
        assert list(zip(found["_time_0"].to_pylist(), found["_time_1"].to_pylist(), strict=True)) == sorted(
            times
        )
        assert made.history(1, [(1, 0)]).num_rows == 2
        with pytest.raises(UsageError, match="do not count from 1970"):
            made.history(1, times="timestamp")


def listed(updates, key, first, lower):
    """The history of a key, from a list of updates whose times before `first` are folded into it."""
    sums = Counter()
    for id_, v, time, diff in updates:
        if id_ == key and (lower is None or time >= lower):
            sums[max(time, first), v] += diff
    return sorted(
        ((time, diff, v) for (time, v), diff in sums.items() if diff),
        key=lambda row: (row[0], row[1] > 0, row[2]),
    )


@pytest.mark.promise(
    "The history of a key is that of a plain list of updates, in the order of time, after any "
    "appends, folds and merges",
    rule="`history` in `shard/reading/lookup.py`",
)
@settings(max_examples=examples(60))
@given(st.data())
def test_a_history_is_that_of_a_plain_list_after_any_appends_folds_and_merges(data):
    with tidelake.open(f"memory://{uuid.uuid4().hex}", config=SMALL) as lake:
        made, upper, all_ = lake.create("c", SCHEMA, key=["id"]), 0, []
        for _ in range(data.draw(st.integers(1, 6))):
            end = upper + data.draw(st.integers(1, 4))
            times, diffs = st.integers(upper, end - 1), st.sampled_from([-1, 1, 2])
            drawn = st.tuples(st.integers(0, 2), st.sampled_from("ab"), times, diffs)
            updates = data.draw(st.lists(drawn, max_size=6))
            columns = list(map(list, zip(*updates, strict=True))) or [[]] * 4
            made.append(pa.table(columns, schema=made.update_schema), upper=end)
            all_, upper = all_ + updates, end
            if data.draw(st.booleans()):
                made.advance_since(data.draw(st.integers(0, upper - 1)))
            if data.draw(st.booleans()):
                made.merge()
        first = made.since.elements[0]
        lower = data.draw(st.none() | st.integers(first + 1 if first else 0, upper))
        key = data.draw(st.integers(0, 2))
        assert told(made.history(key, lower)) == listed(all_, key, first, lower)

"""Messages of Oracle GoldenGate, in its form `json`."""

from typing import Any

import pyarrow as pa
import pytest

from tests.cdc.dialects.dialect_parsing import events, parse, refuses, updates
from tests.cdc.dialects.told_history import DELETE, STEP, UPDATE, Step, some_history, truth
from tidelake.cdc.dialects.goldengate import GOLDENGATE
from tidelake.errors import InvalidUpdates

ORDERS = pa.schema(
    [
        pa.field("CUST", pa.string(), nullable=False),
        pa.field("ID", pa.int64(), nullable=False),
        ("PRICE", pa.decimal128(10, 2)),
        ("AMOUNT", pa.int32()),
    ]
)


def message(step: Step, **more: Any) -> dict[str, Any]:
    found = {
        **{"table": "QA.ITEMS", "op_type": step.kind[0].upper(), "op_ts": "2026-06-02 22:14:41.000000"},
        **{"current_ts": "2026-09-18T10:17:49.899000", "pos": f"{step.number:020}", "primary_keys": ["id"]},
        **{"tokens": {"R": "AADPkvAAEAAEqLzAAC"}, "before": step.before, "after": step.after},
    }
    return {name: value for name, value in found.items() if value is not None} | more


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_history_is_told_by_goldengate(seed: int) -> None:
    steps = some_history(seed)
    parsed = parse(GOLDENGATE, *map(message, steps), old_rows="events")
    assert updates(parsed) == truth(steps, lambda step: step.number)


def order(kind: str, position: int, before: Any = None, after: Any = None) -> dict[str, Any]:
    keys = ["CUST", "ID"]
    found = {"table": "CDB.GG.TCUSTORD", "op_type": kind, "pos": f"{position:020}", "primary_keys": keys}
    return found | {"before": before, "after": after}


def test_columns_that_the_trail_lacks_are_looked_up_and_marked_ones_too() -> None:
    key = {"CUST": "DAVE", "ID": "600"}
    marked = {**key, "CUST_isMissing": False, "ID_isMissing": False, "PRICE": None, "PRICE_isMissing": True}
    parsed = parse(
        GOLDENGATE,
        order("I", 1, None, key | {"PRICE": "135.00", "AMOUNT": "3"}),
        order("U", 2, key, marked | {"AMOUNT": "1", "AMOUNT_isMissing": False}),
        order("D", 3, marked, None),
        order("T", 4),
        schema=ORDERS,
        key=("CUST", "ID"),
        table=("GG", "TCUSTORD"),
    )
    assert [(line, gone, row["AMOUNT"], left) for line, gone, row, left in events(parsed)] == [
        (0, False, 3, []),
        (1, False, 1, ["PRICE"]),
        (2, True, None, []),
    ]
    full = order("U", 5, key | {"PRICE": "1.00", "AMOUNT": "2"}, key | {"AMOUNT": "3"})
    (told,) = events(parse(GOLDENGATE, full, schema=ORDERS, key=("CUST", "ID")))
    assert (str(told[2]["PRICE"]), told[3]) == ("1.00", [])
    moved = order("U", 6, key, key | {"ID": "601", "AMOUNT": "3"})
    with pytest.raises(InvalidUpdates, match="the key changes, and the value of column 'PRICE' is left out"):
        parse(GOLDENGATE, moved, schema=ORDERS, key=("CUST", "ID"))
    assert parsed.truncates is not None and parsed.truncates.times.tolist() == [4]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"table": "QA.ITEMS", "pos": "2"}, "no 'op_type'"),
        (message(STEP, op_type="X"), "op_type 'X' is unknown"),
        ({"table": "QA.ITEMS", "op_type": "I", "pos": "1", "id": 1}, "gg.handler.NAME.format=json"),
        (message(UPDATE, after=None), "op_type 'U' without 'after'"),
        (message(STEP, pos="here"), "the time at 'pos' is 'here'"),
        (message(STEP, pos="9" * 20), "and not from 0 to 2^63 - 1"),
        (message(DELETE, before={"name": "x"}), "column 'id' of 'before': is missing; log all columns"),
        (message(STEP, primary_keys=["name"]), "the key of the message has the columns 'name'"),
        (message(STEP, table='QA."x'), "is no name of a table"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(given: Any, reason: str) -> None:
    refuses(reason, parse, GOLDENGATE, message(STEP), given)


def test_a_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidUpdates, match="which says no zone"):
        parse(GOLDENGATE, message(STEP), unit="ms", time="op_ts")
    assert "counter" in GOLDENGATE.no_time and set(GOLDENGATE.defaults) == {"counter"}

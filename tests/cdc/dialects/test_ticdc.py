"""Messages of TiCDC in its protocol `simple`."""

from typing import Any

import pyarrow as pa
import pytest

from tests.cdc.dialects.dialect_parsing import parse, refuses, updates
from tests.cdc.dialects.told_history import DELETE, ROW, STEP, UPDATE, Step, some_history, texts, truth
from tidelake.cdc.dialects.canal import CANAL
from tidelake.cdc.dialects.ticdc import TICDC
from tidelake.errors import InvalidUpdates

MS = 1_708_923_662_983


def message(step: Step, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        **{"version": 1, "database": "shop", "table": "items", "tableID": 148, "type": step.kind.upper()},
        **{"commitTs": (MS << 18) + step.number, "buildTs": MS + 9, "schemaVersion": 447984074911121426},
    }
    if step.after is not None:
        found["data"] = texts(step.after)
    if step.before is not None:
        found["old"] = texts(step.before)
    return found | more


def schema_of(table: str, key: list[str]) -> dict[str, Any]:
    index = {"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": key}
    return {"schema": "shop", "table": table, "tableID": 148, "version": 1, "columns": [], "indexes": [index]}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_history_is_told_by_ticdc_in_its_simple_protocol(seed: int) -> None:
    steps = some_history(seed)
    ends = {"version": 1, "type": "WATERMARK", "commitTs": 9**19, "buildTs": MS}
    begins = {"version": 1, "type": "BOOTSTRAP", "commitTs": 0, "tableSchema": schema_of("items", ["id"])}
    parsed = parse(TICDC, begins, *map(message, steps), ends, old_rows="events")
    assert updates(parsed) == truth(steps, lambda step: (MS << 18) + step.number)
    assert (parsed.events, parsed.heartbeats) == (len(steps), 2)


@pytest.mark.parametrize(("unit", "expected"), [("ms", MS), ("us", MS * 1000)])
def test_of_a_clock_the_time_is_that_in_the_timestamp(unit: str, expected: int) -> None:
    assert parse(TICDC, message(STEP), unit=unit).time_upper == expected


@pytest.mark.parametrize("told", [{"onlyHandleKey": True}, {"claimCheckLocation": "s3://b/1"}])
def test_a_row_that_was_too_large_for_a_message_is_refused(told: dict[str, Any]) -> None:
    of_canal = {"database": "d", "table": "t", "es": MS, "_tidb": {"commitTs": 9} | told}
    key = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    removed = of_canal | {"type": "DELETE", "data": [{"id": "1"}]}
    assert parse(CANAL, removed, unit="ms", schema=key).events == 1
    assert parse(TICDC, message(DELETE, handleKeyOnly=True)).events == 1
    with pytest.raises(InvalidUpdates, match="too large"):
        parse(CANAL, removed | {"type": "INSERT"}, unit="ms", schema=key)


def test_messages_of_canal_without_rows_are_of_no_table() -> None:
    found = [{"type": "INSERT", "database": "d", "table": name, "data": [], "es": MS} for name in "ab"]
    assert parse(CANAL, *found, unit="ms").heartbeats == 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"version": 1}, "no 'type': not a message of TiCDC"),
        (message(STEP, type="TRUNCATE"), "'TRUNCATE' removes rows"),
        (message(STEP, data=None), "a row is missing"),
        (message(UPDATE, old=None), "a row is missing"),
        (message(STEP, commitTs=None), "no time at 'commitTs'"),
        (message(STEP, data=ROW | {"id": "1.5"}), "column 'id' of 'data'"),
        (message(STEP, handleKeyOnly=True), "the row was too large for a message"),
        (message(UPDATE, claimCheckLocation="s3://b/1"), "the row was too large for a message"),
        (
            {
                **{"type": "RENAME", "tableSchema": schema_of("goods", ["id"])},
                "preTableSchema": schema_of("items", ["id"]),
            },
            "'RENAME' removes rows",
        ),
        ({"type": "ALTER", "tableSchema": {"table": "items", "indexes": "x"}}, "not a message of TiCDC"),
        ({"type": "ALTER", "tableSchema": schema_of("items", ["name"])}, "has the columns 'name'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(given: Any, reason: str) -> None:
    refuses(reason, parse, TICDC, message(STEP), given, table=("shop", "items"))

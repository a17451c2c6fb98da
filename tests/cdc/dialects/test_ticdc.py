"""Messages of TiCDC in its protocol `simple`."""

from typing import Any

import pytest

from tests.cdc.dialects.dialect_parsing import parse, updates
from tests.cdc.dialects.told_history import ROW, STEP, UPDATE, Row, Step, some_history, truth
from tidelake.cdc.dialects.canal import CanalDialect
from tidelake.cdc.dialects.ticdc import TicdcDialect
from tidelake.errors import InvalidUpdates

MS = 1_708_923_662_983


def message(step: Step, **more: Any) -> dict[str, Any]:
    def row(given: Row) -> Row:
        texts = {n: str(int(v)) if isinstance(v, bool) else str(v) for n, v in given.items() if v is not None}
        return dict.fromkeys(given) | texts

    kind = "INSERT" if step.before is None else "DELETE" if step.after is None else "UPDATE"
    found: dict[str, Any] = {
        **{"version": 1, "database": "shop", "table": "items", "tableID": 148, "type": kind},
        **{"commitTs": (MS << 18) + step.number, "buildTs": MS + 9, "schemaVersion": 447984074911121426},
    }
    if step.after is not None:
        found["data"] = row(step.after)
    if step.before is not None:
        found["old"] = row(step.before)
    return found | more


def schema_of(table: str, key: list[str]) -> dict[str, Any]:
    index = {"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": key}
    return {"schema": "shop", "table": table, "tableID": 148, "version": 1, "columns": [], "indexes": [index]}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_history_is_told_by_ticdc_in_its_simple_protocol(seed: int) -> None:
    steps = some_history(seed)
    ends = {"version": 1, "type": "WATERMARK", "commitTs": 9**19, "buildTs": MS}
    begins = {"version": 1, "type": "BOOTSTRAP", "commitTs": 0, "tableSchema": schema_of("items", ["id"])}
    parsed = parse(TicdcDialect, begins, *map(message, steps), ends, old_rows="events")
    assert updates(parsed) == truth(steps, lambda step: (MS << 18) + step.number)
    assert (parsed.events, parsed.heartbeats) == (len(steps), 2)


@pytest.mark.parametrize(("unit", "expected"), [("ms", MS), ("us", MS * 1000)])
def test_of_a_clock_the_time_is_that_in_the_timestamp(unit: str, expected: int) -> None:
    assert parse(TicdcDialect, message(STEP), unit=unit).time_upper == expected


def test_messages_of_canal_without_rows_are_of_no_table() -> None:
    found = [{"type": "INSERT", "database": "d", "table": name, "data": [], "es": MS} for name in "ab"]
    assert parse(CanalDialect, *found, unit="ms").heartbeats == 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"version": 1}, "type None is unknown"),
        (message(STEP, type="TRUNCATE"), "'TRUNCATE' removes rows"),
        (message(STEP, data=None), "a row is missing"),
        (message(UPDATE, old=None), "a row is missing"),
        (message(STEP, commitTs=None), "no time at 'commitTs'"),
        (message(STEP, data=ROW | {"id": "1.5"}), "column 'id' of 'data'"),
        ({"type": "ALTER", "tableSchema": schema_of("items", ["name"])}, "has the columns 'name'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(given: Any, reason: str) -> None:
    with pytest.raises(InvalidUpdates) as caught:
        parse(TicdcDialect, message(STEP), given, table=("shop", "items"))
    assert reason in str(caught.value) and "number=2" in str(caught.value)

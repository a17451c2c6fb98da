"""Messages of wal2json, in both versions, as PostgreSQL 15 with its 2.5 writes them."""

from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest

from tests.cdc.dialects.dialect_parsing import events, parse, refuses, updates
from tests.cdc.dialects.told_history import DELETE, SCHEMA, STEP, UPDATE, Row, Step, some_history, truth
from tidelake.cdc.dialects.wal2json import WAL2JSON
from tidelake.errors import InvalidUpdates

TYPES = dict.fromkeys(SCHEMA.names, "text") | {"id": "bigint", "price": "numeric(8,2)"}
T = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("big", pa.string())])


def raw(row: Row) -> Row:
    """Numbers without quotes."""
    return row | {"price": None if row["price"] is None else float(row["price"])}


def of_version_1(steps: list[Step], **more: Any) -> dict[str, Any]:
    """A transaction."""
    found = []
    for step in steps:
        one: dict[str, Any] = {"kind": step.kind, "schema": "public", "table": "items"}
        if step.after is not None:
            row = raw(step.after)
            one |= {"columnnames": [*row], "columntypes": [TYPES[n] for n in row]}
            one["columnvalues"] = [*row.values()]
        if step.before is not None:
            old = raw(step.before)
            one["oldkeys"] = {"keynames": [*old], "keytypes": [TYPES[n] for n in old]}
            one["oldkeys"]["keyvalues"] = [*old.values()]
        found.append(one | {"pk": {"pknames": ["id"], "pktypes": ["bigint"]}})
    lsn = f"1/{steps[0].number:X}"
    return {"xid": 7, "nextlsn": lsn, "timestamp": "2026-11-27 11:51:01.47+00", "change": found} | more


def of_version_2(step: Step, **more: Any) -> dict[str, Any]:
    """A row."""
    one: dict[str, Any] = {"xid": 7, "schema": "public", "table": "items", "lsn": "1/0"}
    one["action"] = step.kind[0].upper()
    one["timestamp"] = f"2026-11-27 11:51:01.{step.number:06}+00"
    for name, row in (("columns", step.after), ("identity", step.before)):
        if row is not None:
            one[name] = [{"name": n, "type": TYPES[n], "value": v} for n, v in raw(row).items()]
    return one | {"pk": [{"name": "id", "type": "bigint"}]} | more


@pytest.mark.promise(
    "Messages of wal2json (both versions), GoldenGate, DynamoDB and TiCDC tell the history that was "
    "replayed; what an update leaves out is looked up; what cannot be read or ordered is refused with "
    "the remedy",
    rule="`cdc/dialects/wal2json.py`, `cdc/dialects/goldengate.py`, `cdc/dialects/dynamodb.py`, "
    "`cdc/dialects/ticdc.py`, `cdc/dialects/fieldnumbers.py`",
    also=[
        "::test_a_history_is_told_by_version_2_a_row_a_message",
        "::test_what_an_update_leaves_out_is_looked_up_and_what_an_insert_leaves_out_is_an_error",
        "::test_a_value_that_a_transaction_told_before_is_not_looked_up",
        "::test_what_cannot_be_read_is_refused_with_the_remedy",
        "cdc/dialects/test_goldengate.py",
        "cdc/dialects/test_dynamodb.py",
        "cdc/dialects/test_ticdc.py",
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_history_is_told_by_version_1_a_transaction_a_message(seed: int) -> None:
    steps = some_history(seed)
    messages = [of_version_1(list(some)) for _, some in groupby(steps, lambda step: step.number)]
    parsed = parse(WAL2JSON, *messages, old_rows="events")
    assert updates(parsed) == truth(steps, lambda step: (1 << 32) + step.number)
    assert parsed.events == len(steps)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_history_is_told_by_version_2_a_row_a_message(seed: int) -> None:
    steps = some_history(seed)
    begins, ends = ({"action": a, "xid": 7, "timestamp": None, "nextlsn": "1/8"} for a in "BC")
    parsed = parse(WAL2JSON, begins, *map(of_version_2, steps), ends, unit="us", old_rows="events")
    at = pa.scalar("2026-11-27 11:51:01").cast(pa.timestamp("us")).value
    assert updates(parsed) == truth(steps, lambda step: at + step.number)
    assert (parsed.events, parsed.heartbeats) == (len(steps), 2)


def test_what_an_update_leaves_out_is_looked_up_and_what_an_insert_leaves_out_is_an_error() -> None:
    line = b"""{"action":"U","xid":1,"timestamp":"2026-11-27 11:51:01.5+00","schema":"public","table":"t",
        "columns":[{"name":"id","type":"bigint","value":2},{"name":"n","type":"integer","value":8}],
        "identity":[{"name":"id","type":"bigint","value":1}]}"""
    stays = line.replace(b"\n", b"").replace(b'"value":1}', b'"value":2}')
    parsed = parse(WAL2JSON, stays, schema=T, unit="us")
    assert events(parsed) == [(0, False, {"id": 2, "n": 8, "big": None}, ["big"])]
    # The stored row of the new key is another one.
    with pytest.raises(InvalidUpdates, match="the key changes, and the value of column 'big' is left out"):
        parse(WAL2JSON, line.replace(b"\n", b""), schema=T, unit="us")
    # With REPLICA IDENTITY FULL the old row has it.
    full = line.replace(b"\n", b"").replace(
        b'"value":1}', b'"value":1},{"name":"big","type":"text","value":"x"}'
    )
    assert events(parse(WAL2JSON, full, schema=T, unit="us"))[1][2:] == (
        {"id": 2, "n": 8, "big": "x"},
        [],
    )
    insert = line.replace(b"\n", b"").replace(b'"U"', b'"I"')
    with pytest.raises(InvalidUpdates, match="column 'big' of the new row: is missing"):
        parse(WAL2JSON, insert, schema=T, unit="us")


def change(kind: str, old: int | None = None, **row: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": kind, "schema": "public", "table": "t"}
    if row:
        found |= {"columnnames": [*row], "columnvalues": [*row.values()]}
    return found | ({} if old is None else {"oldkeys": {"keynames": ["id"], "keyvalues": [old]}})


def transaction(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"nextlsn": "0/10", "change": [*changes]}


def test_a_value_that_a_transaction_told_before_is_not_looked_up() -> None:
    """Of the rows of a key in one message only the last is stored, so it must have what those before had."""
    message = transaction(
        change("update", 1, id=1, n=5, big="new"),
        change("update", 1, id=2, n=6),
        change("update", 2, id=2, n=7),
        change("delete", 3),
        change("insert", id=3, n=0, big="b"),
        change("update", 4, id=4, n=1),
    )
    found = events(parse(WAL2JSON, message, schema=T))
    told = {(row["id"], gone): (row["n"], row["big"], left) for _, gone, row, left in found}
    assert told[2, False] == (7, "new", [])
    assert told[3, False] == (0, "b", [])
    assert told[4, False] == (1, None, ["big"])
    assert told[1, True] == (None, None, [])


def test_a_row_that_gets_the_key_of_a_removed_one_does_not_get_its_values() -> None:
    message = transaction(change("delete", 2), change("update", 1, id=2, n=6))
    with pytest.raises(InvalidUpdates, match="the key changes"):
        parse(WAL2JSON, message, schema=T)
    # With the old row there is nothing to look up.
    moved = change("update", 1, id=2, n=6)
    moved["oldkeys"] = {"keynames": ["id", "n", "big"], "keyvalues": [1, 5, "own"]}
    found = events(parse(WAL2JSON, transaction(change("delete", 2), moved), schema=T))
    assert (0, False, {"id": 2, "n": 6, "big": "own"}, []) in found


def test_a_transaction_of_several_tables_is_read_for_one_and_moves_the_time_of_others() -> None:
    message = transaction(change("insert", id=1, n=1, big=""), change("insert", a=9) | {"table": "other"})
    with pytest.raises(InvalidUpdates, match=r"several tables: choose one, such as table='public\.t'"):
        parse(WAL2JSON, message, schema=T)
    for table in (("public", "t"), ("t",)):
        parsed = parse(WAL2JSON, message, schema=T, table=table)
        assert [row["id"] for _, _, row, _ in events(parsed)] == [1]
    parsed = parse(WAL2JSON, message, schema=T, table=("public", "third"))
    assert (parsed.events, parsed.time_upper) == (0, 15)


@pytest.mark.parametrize("kind", ["B", "T", "X", ""])
def test_what_the_first_change_of_a_transaction_is_says_nothing_of_the_others(kind: str) -> None:
    rows = [change("insert", id=1, n=1, big=""), change("delete", 2)]
    odd = {"kind": kind, "schema": "public", "table": "other"}
    parsed = parse(WAL2JSON, transaction(odd, *rows), schema=T, table=("public", "t"))
    assert [(gone, row["id"]) for _, gone, row, _ in events(parsed)] == [(False, 1), (True, 2)]
    parsed = parse(WAL2JSON, transaction(odd, *rows), schema=T, table=("public", "third"))
    assert (parsed.events, parsed.time_upper) == (0, 15)
    ours = transaction(odd | {"table": "t"}, *rows)
    if kind == "T":
        parsed = parse(WAL2JSON, ours, schema=T)
        assert (parsed.events, len(events(parsed))) == (3, 2)
        return
    with pytest.raises(InvalidUpdates, match=f"action '{kind}' is unknown"):
        parse(WAL2JSON, ours, schema=T)


def test_truncations_and_messages_of_the_log() -> None:
    emptied = {"action": "T", "timestamp": "2026-11-27 11:51:01+00", "schema": "public", "table": "items"}
    mark = {"action": "M", "transactional": False, "timestamp": None, "prefix": "p", "content": ""}
    parsed = parse(WAL2JSON, of_version_2(STEP), mark, emptied, unit="ms")
    assert parsed.truncates is not None and parsed.truncates.lines.tolist() == [2]
    with pytest.raises(InvalidUpdates, match="take old_rows='stored'"):
        parse(WAL2JSON, emptied, unit="ms", old_rows="events")


def test_bytes_are_hexadecimal() -> None:
    schema = pa.schema([T.field("id"), ("b", pa.binary())])
    parsed = parse(WAL2JSON, transaction(change("insert", id=1, b="dead00")), schema=schema)
    assert parsed.rows.column("b").to_pylist() == [b"\xde\xad\x00"]
    with pytest.raises(InvalidUpdates, match="no text of hexadecimal digits"):
        parse(WAL2JSON, transaction(change("insert", id=1, b="xy")), schema=schema)


def without(message: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}


@pytest.mark.parametrize(
    ("message", "unit", "reason"),
    [
        ({"xid": 1}, "counter", "neither 'change' nor 'action'"),
        (without(of_version_1([STEP]), "nextlsn"), "counter", "include-lsn=1"),
        (of_version_2(STEP), "counter", "take a collection of time 'us' for that"),
        (without(of_version_2(STEP), "timestamp"), "us", "include-timestamp=1"),
        (of_version_1([STEP], nextlsn="5"), "counter", "is '5', and not a whole number"),
        (of_version_2(STEP, action="X"), "us", "action 'X' is unknown"),
        (of_version_2(STEP, columns=None), "us", "without columns"),
        (transaction(change("insert", id=1) | {"columnvalues": []}), "counter", "1 names of columns and 0"),
        (of_version_2(DELETE, identity=[{"name": "name", "value": "x"}]), "us", "column 'id' of the old row"),
        (of_version_2(UPDATE, identity=[{"name": "name", "value": "x"}]), "us", "REPLICA IDENTITY FULL"),
        (of_version_2(STEP, columns=[{"name": "id", "value": "7"}]), "us", "column 'id'"),
        (of_version_2(STEP, pk=[{"name": "other"}]), "us", "the key of the message has the columns 'other'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_remedy(message: Any, unit: str, reason: str) -> None:
    good = of_version_1([STEP]) if unit == "counter" else of_version_2(STEP)
    refuses(reason, parse, WAL2JSON, good, message, unit=unit)

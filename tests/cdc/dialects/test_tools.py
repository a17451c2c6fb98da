"""Messages of Maxwell, Canal and AWS DMS: what they mean, and that all else is refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidelake
from tests.cdc.dialects.dialect_parsing import updates
from tests.cdc.dialects.test_goldengate import message as of_goldengate
from tests.cdc.dialects.test_ticdc import message as of_ticdc
from tests.cdc.dialects.test_wal2json import of_version_2
from tests.cdc.dialects.told_history import (
    DELETE,
    ROW,
    SCHEMA,
    STEP,
    UPDATE,
    Row,
    Step,
    changed,
    some_history,
    texts,
    truth,
)
from tidelake.cdc.core.lineerrors import place
from tidelake.cdc.core.outcome import Parsed
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.named import FEEDS, made
from tidelake.feeds.tools import Canal, Dms, Maxwell, ToolMessages


def maxwell(step: Step, **more: Any) -> dict[str, Any]:
    """A message of Maxwell: numbers as numbers, booleans as 0 and 1."""

    def row(given: Row) -> Row:
        one = {n: int(v) if isinstance(v, bool) else v for n, v in given.items()}
        return one | {"price": None if given["price"] is None else float(given["price"]), "unknown": [1]}

    found = {
        **{"database": "shop", "table": "items", "type": step.kind, "ts": 1_790_000_000 + step.number},
        **{"xid": 10**6 - step.number, "position": f"bin-log.000007:{step.number}", "data": row(step.row)},
    }
    if step.last:
        found["commit"] = True
    if step.before is not None and step.after is not None:
        found["old"] = {n: v for n, v in row(step.before).items() if n in changed(step.before, step.row)}
    return found | more


def canal(*steps: Step, **more: Any) -> dict[str, Any]:
    """A message of Canal with one row or several of one kind: all values are texts."""
    first, old = steps[0], None
    kind = first.kind.upper()
    if kind == "UPDATE":
        old = [{n: texts(s.before or {})[n] for n in changed(s.before or {}, s.row)} for s in steps]
    return {
        **{"id": 3, "database": "shop", "table": "items", "pkNames": ["id"], "isDdl": False, "type": kind},
        **{"es": 1_790_000_000_000 + first.number, "ts": 1_790_000_000_777 + first.number, "sql": ""},
        **{"mysqlType": {"id": "bigint"}, "sqlType": {"id": -5}, "old": old},
        "data": [texts(s.row) for s in steps],
    } | more


def in_canal(steps: list[Step]) -> list[dict[str, Any]]:
    """Changes of one kind and time that follow each other come in one message."""
    found: list[list[Step]] = []
    for step in steps:
        last = found[-1][-1] if found else None
        if last is not None and (last.number, last.kind) == (step.number, step.kind):
            found[-1].append(step)
        else:
            found.append([step])
    return [canal(*some) for some in found]


def dms(step: Step, **told: Any) -> dict[str, Any]:
    """A message of AWS DMS with a complete before image."""
    kind = step.kind
    at = f"2026-09-21T14:{step.number // 60:02}:{step.number % 60:02}.000{step.number % 10}Z"
    found: dict[str, Any] = {
        "data": step.row,
        "metadata": {
            **{"timestamp": "2030-01-01T00:00:00.000001Z", "record-type": "data", "operation": kind},
            **{"partition-key-type": "schema-table", "schema-name": "shop", "table-name": "items"},
            **{"commit-timestamp": at, "transaction-id": step.number, "transaction-record-id": 1},
        }
        | told,
    }
    return found | ({"before-image": step.before} if kind == "update" else {})


def collection(root: Path, time: str = "counter", schema: pa.Schema = SCHEMA) -> tidelake.Collection:
    return tidelake.open(root / "lake").create("items", schema, key=["id"], time=time)


def parse(c: tidelake.Collection, envelope: ToolMessages, *messages: Any) -> Parsed:
    lines = [m if isinstance(m, bytes | None) else json.dumps(m).encode() for m in messages]
    return envelope.parser(c).parse(pa.array(lines, pa.binary()), lambda line: place("in", line + 1))


@pytest.mark.promise(
    "Messages of Maxwell, Canal and DMS tell the history that was replayed, with changed keys, "
    "nulls and several rows a message; a message with a bad row is refused or rejected whole",
    rule="`cdc/dialects/dialect.py`",
    also=[
        "::test_a_history_is_told_by_canal_also_by_messages_of_several_rows",
        "::test_a_history_is_told_by_dms_with_complete_before_images",
        "::test_a_message_is_rejected_with_all_of_its_rows",
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_history_is_told_by_maxwell(seed: int, tmp_path: Path) -> None:
    steps = some_history(seed)
    parsed = parse(collection(tmp_path), Maxwell(), *map(maxwell, steps))
    assert updates(parsed) == truth(steps, lambda step: (7 << 32) + step.number)
    assert parsed.events == len(steps)


@pytest.mark.parametrize(("unit", "of_second"), [("ms", 1000), ("us", 1_000_000)])
def test_clocks_take_the_seconds_of_maxwell(unit: str, of_second: int, tmp_path: Path) -> None:
    steps = some_history(4)
    parsed = parse(collection(tmp_path, unit), Maxwell(), *map(maxwell, steps))
    assert updates(parsed) == truth(steps, lambda step: (1_790_000_000 + step.number) * of_second)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_history_is_told_by_canal_also_by_messages_of_several_rows(seed: int, tmp_path: Path) -> None:
    steps = some_history(seed)
    messages = in_canal(steps)
    assert any(len(message["data"]) > 1 for message in messages)
    parsed = parse(collection(tmp_path, "ms"), Canal(), *messages)
    assert updates(parsed) == truth(steps, lambda step: 1_790_000_000_000 + step.number)
    assert parsed.events == len(steps)


def test_a_history_is_told_by_ticdc(tmp_path: Path) -> None:
    steps = some_history(5)
    messages = [canal(step, _tidb={"commitTs": 400 + step.number}) for step in steps]
    mark = {"id": 0, "type": "TIDB_WATERMARK", "data": None, "_tidb": {"watermarkTs": 9**9}}
    parsed = parse(collection(tmp_path), Canal(time="_tidb.commitTs"), *messages, mark)
    assert updates(parsed) == truth(steps, lambda step: 400 + step.number)
    assert (parsed.heartbeats, parsed.time_upper) == (1, 400 + steps[-1].number)


@pytest.mark.parametrize("table", ["shop.items", "items"])
def test_a_message_with_a_schema_and_no_table_is_of_no_table_that_is_known(
    table: str, tmp_path: Path
) -> None:
    c, envelope = collection(tmp_path, "ms"), Dms(table=table)
    nameless = dms(STEP, **{"table-name": None})
    with pytest.raises(InvalidUpdates, match="it names 'shop' and no table, and others are of"):
        parse(c, envelope, nameless)
    assert parse(c, envelope, dms(STEP, **{"table-name": None, "schema-name": None})).rows.num_rows == 1


def test_a_key_in_a_control_record_of_dms_that_is_none_tells_none(tmp_path: Path) -> None:
    control = {"table-def": {"primary-key": [{}]}}
    told = {"metadata": {"record-type": "control", "operation": "create-table"}, "control": control}
    envelope = Dms(time="metadata.transaction-id", table="shop.items")
    assert parse(collection(tmp_path), envelope, told).heartbeats == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_a_history_is_told_by_dms_with_complete_before_images(seed: int, tmp_path: Path) -> None:
    steps = some_history(seed)
    envelope = Dms(old_rows="events", time="metadata.transaction-id")
    parsed = parse(collection(tmp_path), envelope, *map(dms, steps))
    assert updates(parsed) == truth(steps, lambda step: step.number)


def test_clocks_take_the_commit_timestamps_of_dms(tmp_path: Path) -> None:
    parsed = parse(collection(tmp_path, "us"), Dms(old_rows="events"), dms(Step(61, None, ROW, True)))
    at = pa.scalar("2026-09-21T14:01:01.0001").cast(pa.timestamp("us")).value
    assert parsed.time_upper == at


def of_maxwell(**changed: Any) -> dict[str, Any]:
    return maxwell(STEP) | changed


UNREADABLE: dict[str, list[tuple[Any, str]]] = {
    "maxwell": [
        (b"{", "not JSON"),
        (b"7", "not a message of Maxwell"),
        (json.dumps(maxwell(STEP), ensure_ascii=False).encode("latin-1"), "UTF-8"),
        ({"database": "shop"}, "no 'type'"),
        (of_maxwell(type="merge"), "type 'merge' is unknown"),
        (of_maxwell(type=7), "not a message of Maxwell"),
        (of_maxwell(data=None), "a row is missing"),
        (of_maxwell(data=[1]), "a row is not an object"),
        (of_maxwell(position=None), "no time at 'position': set time"),
        (of_maxwell(position="here"), "the time at 'position' is 'here', and not a whole number"),
        (of_maxwell(position=-1), "from 0 to"),
        (of_maxwell(data={"id": 1}), "column 'name' of 'data': is missing"),
        (of_maxwell(data=ROW | {"id": "x"}), "column 'id' of 'data': \"x\" is a string"),
        (of_maxwell(data=ROW | {"at": "0000-00-00 00:00:00"}), "column 'at': 0000-00-00 is no day"),
        (of_maxwell(data=ROW | {"day": "0000-00-00"}), "zero_times='null'"),
        (maxwell(UPDATE, old=None), "a row is missing"),
        (of_maxwell(type="bootstrap-insert"), "use old_rows='stored'"),
        (of_maxwell(type="database-drop", table=None), "'database-drop' removes rows"),
        (of_maxwell(type="table-alter", **{"def": {"table": "goods"}}), "the table is renamed to 'goods'"),
        (of_maxwell(type="table-alter", **{"def": [1]}), "'def' describes no table"),
        (of_maxwell(type="table-drop"), "'table-drop' removes rows that no message names"),
    ],
    "canal": [
        (canal(STEP, type="MERGE"), "type 'MERGE' is unknown"),
        (canal(STEP, data=None), "type 'INSERT' without 'data'"),
        (canal(STEP, data={"id": 1}), "not a message of Canal"),
        (canal(STEP, es=None), "no time at 'es'"),
        (canal(UPDATE, old=None), "as many rows in 'old' as in 'data'"),
        (canal(UPDATE, old=[]), "as many rows in 'old' as in 'data'"),
        (canal(STEP, data=[ROW | {"id": "1.5"}]), "column 'id' of 'data'"),
        (canal(STEP, isDdl=True, type="TRUNCATE", data=None), "'TRUNCATE' removes rows"),
        (canal(STEP, isDdl=True, type="ERASE", data=None), "'ERASE' removes rows"),
        (
            canal(STEP, isDdl=True, type="QUERY", table="", data=None, sql="/* x */ drop  database shop"),
            "removes rows",
        ),
    ],
    "dms": [
        ({"data": ROW}, "no 'metadata.operation': not a message of AWS DMS"),
        (dms(STEP, operation="merge"), "operation 'merge' is unknown"),
        (dms(STEP, operation={}), "no 'metadata.operation'"),
        (dms(STEP, **{"commit-timestamp": None}), "IncludeTransactionDetails"),
        (dms(STEP, **{"commit-timestamp": None}), "time='metadata.timestamp'"),
        (dms(STEP, **{"commit-timestamp": "soon"}), "the time at 'metadata.commit-timestamp' is 'soon'"),
        (dms(STEP, **{"commit-timestamp": "2026-09-21T14:00:00"}), "which says no zone"),
        (dms(STEP) | {"data": {"id": 2}}, "column 'name' of 'data': is missing"),
        (dms(STEP, **{"record-type": "control", "operation": "truncate-table"}), "removes rows"),
        (dms(STEP, operation="load"), "use old_rows='stored'"),
        (dms(STEP) | {"data": None}, "a row is missing"),
        (
            dms(UPDATE) | {"before-image": {"id": 1}},
            "column 'name' of the old row: is missing; let BeforeImageSettings keep all columns",
        ),
        (dms(UPDATE) | {"before-image": None}, "operation 'update' without the old row: let BeforeImage"),
    ],
}


@pytest.mark.parametrize(
    ("tool", "message", "reason"), [(tool, *one) for tool, some in UNREADABLE.items() for one in some]
)
def test_messages_that_cannot_be_read(tool: str, message: Any, reason: str, tmp_path: Path) -> None:
    tell, feed, unit, time = {
        "maxwell": (maxwell, Maxwell, "counter", lambda step: (7 << 32) + step.number),
        "canal": (canal, Canal, "ms", lambda step: 1_790_000_000_000 + step.number),
        "dms": (dms, Dms, "ms", None),
    }[tool]
    c = collection(tmp_path, unit)
    with pytest.raises(InvalidUpdates) as caught:
        parse(c, feed(old_rows="events"), tell(STEP), message)
    assert reason in str(caught.value) and "file=in number=2" in str(caught.value)
    parsed = parse(c, feed(old_rows="events", rejects="aside"), tell(STEP), message, tell(DELETE))
    assert [reject.line for reject in parsed.rejects] == [1] and reason in parsed.rejects[0].reason
    assert time is None or updates(parsed) == truth([STEP, DELETE], time)


def test_a_message_is_rejected_with_all_of_its_rows(tmp_path: Path) -> None:
    steps = [Step(5, None, ROW | {"id": i}, True) for i in range(4)]
    message = canal(*steps)
    message["data"][2]["price"] = "cheap"
    parsed = parse(
        collection(tmp_path, "ms"), Canal(rejects="aside"), canal(steps[0]), message, None, canal(UPDATE)
    )
    assert [(reject.line, "cheap" in reject.reason) for reject in parsed.rejects] == [(1, True)]
    assert (parsed.events, parsed.tombstones) == (2, 1)
    assert updates(parsed) == truth([steps[0], UPDATE], lambda step: 1_790_000_000_000 + step.number)


def test_statements_that_remove_no_rows_are_counted_as_heartbeats_and_move_no_time(tmp_path: Path) -> None:
    statement = {"type": "table-alter", "database": "shop", "table": "items", "ts": 1_790_000_000_000}
    statement["def"] = {"table": "items", "columns": []}
    ends = [maxwell(STEP, type=kind, data={}) for kind in ("bootstrap-start", "bootstrap-complete")]
    parsed = parse(
        collection(tmp_path / "maxwell", "ms"), Maxwell(), maxwell(STEP), statement, *ends, b"", None
    )
    assert (parsed.events, parsed.heartbeats, parsed.tombstones) == (1, 3, 2)
    assert parsed.time_upper == 1_790_000_005_000
    alter = canal(STEP, isDdl=True, type="ALTER", data=None, sql="ALTER TABLE items ADD x int", es=9**15)
    parsed = parse(collection(tmp_path / "canal", "ms"), Canal(), canal(STEP), alter)
    assert (parsed.events, parsed.heartbeats, parsed.time_upper) == (1, 1, 1_790_000_000_005)
    control = {"metadata": {"record-type": "control", "operation": "create-table", "table-name": "items"}}
    parsed = parse(collection(tmp_path / "dms", "ms"), Dms(), control, dms(STEP))
    assert (parsed.events, parsed.heartbeats) == (1, 1)


def test_of_several_tables_one_must_be_chosen_and_the_others_move_time(tmp_path: Path) -> None:
    c = collection(tmp_path)
    other = maxwell(Step(99, None, {"id": 1, "price": None}, True), table="orders")
    with pytest.raises(InvalidUpdates, match=r"several tables: choose one, such as table='shop\.items'"):
        parse(c, Maxwell(rejects="aside"), maxwell(STEP), other)
    with pytest.raises(InvalidUpdates, match=r"file=in number=1"):
        parse(c, Maxwell(), maxwell(STEP), maxwell(UPDATE), other)
    dropped = {"type": "table-drop", "database": "shop", "table": "orders", "position": "bin.000007:999"}
    gone = {"type": "database-drop", "database": "others", "position": "bin.000007:999"}
    parsed = parse(c, Maxwell(table="shop.items"), maxwell(STEP), gone)
    assert (parsed.events, parsed.heartbeats) == (1, 1)
    drop = canal(
        STEP, isDdl=True, type="QUERY", database="others", table="", data=None, sql="DROP DATABASE others"
    )
    parsed = parse(c, Canal(table="shop.items", time="es"), canal(STEP), drop)
    assert (parsed.events, parsed.heartbeats) == (1, 1)
    # A row of another table's first copy has the time of the copy.
    copied = maxwell(STEP, type="bootstrap-insert", table="orders", position="bin.000007:999")
    for table in ("shop.items", "items"):
        parsed = parse(c, Maxwell(table=table), maxwell(STEP), other, dropped, copied)
        assert updates(parsed) == truth([STEP], lambda step: (7 << 32) + step.number)
        # All before the other table's event is there; another one of its time may follow.
        assert (parsed.heartbeats, parsed.time_upper) == (3, (7 << 32) + 98)


def test_of_a_keys_rows_in_one_message_the_last_wins(tmp_path: Path) -> None:
    second = ROW | {"id": 2}
    moves = [Step(9, second, ROW | {"id": 3}, True), Step(9, ROW, second, True)]
    parsed = parse(collection(tmp_path, "ms"), Canal(old_rows="stored"), canal(STEP), canal(*moves))
    rows = parsed.rows.select(["id", "_removed", "_line"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, False, 0),
        *((2, True, 1), (3, False, 1)),
        *((1, True, 1), (2, False, 1)),
    ]
    assert parsed.steps is not None and parsed.steps.tolist() == [0, 1, 1, 2, 2]


def test_rows_of_a_first_copy_need_no_time_and_come_first(tmp_path: Path) -> None:
    load = dms(STEP, operation="load", **{"commit-timestamp": None})
    parsed = parse(collection(tmp_path / "dms", "ms"), Dms(), load, dms(UPDATE))
    assert parsed.rows.column("_time").to_pylist()[0] == 0
    bootstrap = maxwell(STEP, type="bootstrap-insert", position=None)
    parsed = parse(collection(tmp_path / "maxwell"), Maxwell(old_rows="stored"), bootstrap)
    assert parsed.rows.column("_time").to_pylist() == [0]


def without(message: Any, name: str) -> Any:
    """A message whose rows do not have a column."""
    if isinstance(message, list):
        return [without(one, name) for one in message if not isinstance(one, dict) or one.get("name") != name]
    if not isinstance(message, dict):
        return message
    return {key: without(value, name) for key, value in message.items() if key != name}


@pytest.mark.promise(
    "A message of any tool from before a column was added is refused, or read with null if that is asked",
    rule="`missing` in `feeds/tools.py`",
)
@pytest.mark.parametrize(
    ("tool", "unit", "message"),
    [
        *(("maxwell", "ms", maxwell(step)) for step in (STEP, UPDATE)),
        *(("canal", "ms", canal(step)) for step in (STEP, UPDATE)),
        *(("dms", "ms", dms(step)) for step in (STEP, UPDATE)),
        ("ticdc", "ms", of_ticdc(STEP)),
        ("wal2json", "us", of_version_2(STEP)),
        ("goldengate", "counter", of_goldengate(STEP) | {"pos": "5"}),
    ],
)
def test_a_message_from_before_a_column_was_added(tool: str, unit: str, message: Any, tmp_path: Path) -> None:
    """`old` has only what changed, so an old row from messages could have a value that was never stored."""
    c, message = collection(tmp_path, unit), without(message, "ratio")
    for old_rows in ("events", "stored"):
        with pytest.raises(InvalidUpdates, match=r"column 'ratio' of .*: is missing"):
            parse(c, made(tool, {"old_rows": old_rows}, FEEDS), message)
    parsed = parse(c, made(tool, {"old_rows": "stored", "missing": "null"}, FEEDS), message)
    assert parsed.rows.column("ratio").to_pylist() == [None]
    with pytest.raises(UsageError, match="missing='null' needs old_rows='stored'"):
        made(tool, {"old_rows": "events", "missing": "null"}, FEEDS)


def test_days_that_mysql_does_not_have_are_null_on_request_and_sets_are_lists(tmp_path: Path) -> None:
    c = collection(tmp_path, schema=SCHEMA.append(pa.field("tags", pa.list_(pa.string()))))
    zeros = ROW | {"at": "0000-00-00 00:00:00.000", "day": "0000-00-00", "name": "0000-00-00", "tags": ["a"]}
    told = maxwell(STEP, data=zeros), maxwell(UPDATE, data=zeros, old={"day": "2026-01-31", "at": None})
    parsed = parse(c, Maxwell(zero_times="null"), *told)
    rows = [(row["at"], row["day"] and row["day"].day, row["_diff"]) for row in parsed.rows.to_pylist()]
    assert rows == [(None, None, 1), (None, 31, -1), (None, None, 1)]
    assert parsed.rows.column("name").to_pylist()[0] == "0000-00-00"
    assert parsed.rows.column("tags").to_pylist()[0] == ["a"]
    with pytest.raises(UsageError, match="zero_times='now' is unknown"):
        Canal(zero_times="now")  # type: ignore[arg-type]


def test_a_before_image_of_keys_removes_the_old_key(tmp_path: Path) -> None:
    moved = dms(Step(8, ROW, ROW | {"id": 2}, True)) | {"before-image": {"id": 1}}
    kept = dms(Step(9, ROW, ROW | {"name": "y"}, True)) | {"before-image": {}}
    parsed = parse(collection(tmp_path, "ms"), Dms(), moved, kept)
    assert [(r["id"], r["_removed"]) for r in parsed.rows.to_pylist()] == [(1, True), (2, False), (1, False)]


def test_bytes_of_canal_are_texts(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("raw", pa.binary()), ("n", pa.uint64())])
    data = bytes(range(256))
    row = {"id": "1", "raw": data.decode("latin-1"), "n": str(2**64 - 1)}
    message = canal(STEP) | {"data": [row]}
    c = collection(tmp_path, "ms", schema)
    (got,) = parse(c, Canal(), message).rows.to_pylist()
    assert (got["raw"], got["n"]) == (data, 2**64 - 1)
    with pytest.raises(InvalidUpdates, match="no text of bytes"):
        parse(c, Canal(), message | {"data": [row | {"raw": "東"}]})
    with pytest.raises(UsageError, match="column 'raw' is binary"):
        Dms().check(c)


def test_fields_that_are_no_times_are_refused(tmp_path: Path) -> None:
    counter, clock = collection(tmp_path / "counter"), collection(tmp_path / "clock", "ms")
    days = collection(tmp_path / "days", "date")
    for envelope, c, reason in (
        (Maxwell(time="xid"), clock, "time='xid' is a position in a log"),
        (Maxwell(time="xid"), days, "time='xid' is a position in a log"),
        (Maxwell(time="ts"), days, "time='ts' is a moment, and the times of collection 'items' are days"),
        (Maxwell(time="data.at"), clock, "must be a field of the message"),
        (Canal(), counter, "messages of Canal have no time for collection 'items' of time 'counter'"),
        (Canal(time="id"), clock, "time='id' is a position in a log"),
        (Dms(), counter, "messages of AWS DMS have no time"),
        (Dms(time="metadata.transaction-id"), clock, "is a position in a log"),
    ):
        with pytest.raises(UsageError, match=reason):
            envelope.check(c)
    with pytest.raises(UsageError, match="encodings give 'price' as bytes"):
        Maxwell(encodings="price=bytes").check(counter)


def test_counts_in_texts_are_read_as_encodings_say(tmp_path: Path) -> None:
    message = canal(STEP)
    message["data"][0]["at"] = "1790000000123"
    (row,) = parse(collection(tmp_path, "ms"), Canal(encodings="at=ms"), message).rows.to_pylist()
    assert row["at"] == pa.scalar(1_790_000_000_123_000, pa.timestamp("us")).as_py()


@pytest.mark.promise(
    "An error about a message or a row of another tool has the words and options of that tool, and "
    "shows what it sent; an `op` that Hudi does not have is refused, also if Debezium has it",
    rule="`Terms` in `cdc/core/ops.py`, `spark/envelopes/hudi.py`",
    also=[
        "::test_options_that_an_envelope_refuses_are_not_offered",
        "spark/envelopes/test_changelogs.py::test_an_op_that_hudi_does_not_have_is_refused_though_debezium_has_it",
        "spark/envelopes/test_changelogs.py::test_an_error_about_a_row_of_hudi_has_hudis_words",
    ],
)
@pytest.mark.parametrize(
    ("envelope", "good", "bad", "reason"),
    [
        (Maxwell(), maxwell, {"data": {"id": 1}, "type": "delete"}, "set binlog_row_image=FULL at MySQL"),
        (Canal(), canal, {"data": [{"id": 1}], "type": "DELETE"}, "set binlog_row_image=FULL at MySQL"),
        (Dms(old_rows="events"), dms, {"data": {"id": 1}}, "column 'name' of 'data': is missing; line"),
    ],
)
def test_an_error_has_the_words_of_the_tool_and_its_message(
    envelope: ToolMessages, good: Any, bad: Any, reason: str, tmp_path: Path
) -> None:
    message = good(STEP) | bad
    with pytest.raises(InvalidUpdates) as caught:
        parse(collection(tmp_path, "ms"), envelope, message)
    told = str(caught.value)
    assert reason.removesuffix("; line") in told
    assert json.dumps(message)[:150] in told
    for word in ("REPLICA IDENTITY", "'before'", "'after'", '"op"', "op '"):
        assert word not in told


def test_options_that_an_envelope_refuses_are_not_offered() -> None:
    for name in ("maxwell", "canal", "dms"):
        with pytest.raises(UsageError, match=f"'{name}' takes no idle: it takes time"):
            made(name, {"idle": "1m"}, FEEDS)
    with pytest.raises(UsageError, match="is for the times of transactions: leave it out"):
        Maxwell(idle="1m")
    with pytest.raises(UsageError, match="is for the times of transactions: give no time"):
        Debezium(time="ts_ms", idle="1m")

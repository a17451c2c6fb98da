"""`tidelake.cdc.read`: the events of a feed as values."""

import gzip
import json
import os
import random
import subprocess
import sys
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.cdc.dialects.test_goldengate import message
from tests.cdc.dialects.told_history import some_history
from tidelake import cdc
from tidelake.errors import InvalidUpdates, UsageError

SAMPLES = Path(__file__).parent / "samples"
SHARED = Path(os.environ.get("TIDELAKE_SHARED_DATA", "/nowhere")) / "postgres_acc" / "events.jsonl.gz"


def payload(line: str) -> Any:
    found = json.loads(line, parse_float=Decimal)
    if found is None:
        return None
    return found["payload"] if "payload" in found and "op" not in found else found


def rows_of(event: cdc.ChangeEvent) -> tuple[Any, Any]:
    return event.before, event.after


@pytest.mark.promise(
    "The events of a change feed are those of its lines, without Spark or a collection, or the first "
    "line that cannot be read is named",
    rule="`read` in `cdc/reading.py`",
    also=[
        "::test_lines_that_are_not_decoded_with_others_give_the_same_events",
        "::test_a_line_that_cannot_be_read_is_named",
    ],
)
@pytest.mark.parametrize("name", ["key_moved", "key_only", "schema_off", "schema_on"])
def test_the_events_of_a_sample_are_those_of_its_lines(name: str) -> None:
    lines = (SAMPLES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    events = {event.line: event for event in cdc.read(lines)}
    told = {
        at: found for at, line in enumerate(lines) if line.strip() and (found := payload(line)) is not None
    }
    assert events.keys() == told.keys()
    for at, one in told.items():
        event, source = events[at], one.get("source", {})
        if one.get("op") not in ("c", "u", "d", "r", "t"):
            assert (event.op, *rows_of(event)) == ("h", None, None)
            continue
        assert (event.op, *rows_of(event)) == (one["op"], one.get("before"), one.get("after"))
        assert event.table.endswith(source.get("table", ""))


def test_lines_that_are_not_decoded_with_others_give_the_same_events() -> None:
    event = {
        "op": "c",
        "after": {"id": 1, "v": 1.5},
        "source": {"connector": "mysql", "db": "shop", "table": "t"},
    }
    one = json.dumps(event)
    odd = json.dumps({"payload": event, "schema": None})
    end = '{"status":"END","id":"5:9","event_count":2}'
    found = list(cdc.read([one, None, "", "null", odd.encode(), end]))
    assert [(event.line, event.op, event.table) for event in found] == [
        (0, "c", "shop.t"), (4, "c", "shop.t"), (5, "h", ""),
    ]  # fmt: skip
    assert found[0].after == found[1].after == {"id": 1, "v": Decimal("1.5")}


@pytest.mark.skipif(not SHARED.is_file(), reason="TIDELAKE_SHARED_DATA names no folder with the capture")
def test_a_capture_tells_the_positions_of_its_transactions() -> None:
    with gzip.open(SHARED) as lines:
        events = list(cdc.read(islice(lines, 2000)))
    places = [event.position for event in events if event.op in "cud"]
    assert places == sorted(places, key=lambda place: place or 0)
    assert {event.table for event in events if event.op in "cud"} != {""}


def test_messages_of_a_tool_give_their_rows() -> None:
    steps = some_history(5)
    events = list(cdc.read([json.dumps(message(step)) for step in steps], "goldengate"))
    told = json.loads(json.dumps([(step.before, step.after) for step in steps]), parse_float=Decimal)
    assert [list(rows_of(event)) for event in events] == told
    assert [event.position for event in events] == [step.number for step in steps]


def test_of_a_message_that_names_no_table_the_rows_are_told() -> None:
    lines = [{"type": "insert", "ts": 1, "table": table, "data": {"id": 1}} for table in ("t", None)]
    events = cdc.read(map(json.dumps, lines), "maxwell")
    assert [(event.table, event.after) for event in events] == [("t", {"id": 1}), ("", {"id": 1})]
    # A record of a Kinesis stream, without its ARN.
    told = {"ApproximateCreationDateTime": 1, "Keys": {"id": {"S": "a"}}, "NewImage": {"id": {"S": "a"}}}
    (event,) = cdc.read([json.dumps({"eventName": "INSERT", "dynamodb": told})], "dynamodb")
    assert (event.table, event.after) == ("", {"id": "a"})


def test_rows_of_a_transaction_do_not_lend_each_other_values() -> None:
    columns = (
        {"columnnames": ["id", "big"], "columnvalues": [1, "one"]},
        {"columnnames": ["id"], "columnvalues": [2]},
    )
    told = [{"kind": "update", "schema": "s", "table": "t"} | one for one in columns]
    (first, second) = cdc.read(
        [json.dumps({"timestamp": "2026-11-27 11:51:01+00", "change": told})], "wal2json"
    )
    assert (first.after, second.after) == ({"id": 1, "big": "one"}, {"id": 2})


def test_a_transaction_may_be_of_several_tables() -> None:
    told = [
        {"kind": "insert", "schema": "s", "table": name, "columnnames": ["id"], "columnvalues": [at]}
        for at, name in enumerate("tut")
    ]
    line = {"timestamp": "2026-11-27 11:51:01+00", "change": [*told, {"kind": "message"}]}
    events = cdc.read([json.dumps(line)], "wal2json")
    assert [(event.table, event.after) for event in events] == [
        ("s.t", {"id": 0}),
        ("s.u", {"id": 1}),
        ("s.t", {"id": 2}),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ('{"op":"x","after":{}}', "op 'x' is unknown"),
        ('{"op":"c","after":{"a":1,"a":2}}', "given twice"),
        ('{"op":"c","op":"d","after":{"a":1}}', "no 'op'"),
        ('{"op":"c","after":[1]}', "not an object"),
        ('{"op":"c"}', "without 'after'"),
        (b'{"op":"c","after":{"a":"\xff"}}', "UTF-8"),
        ('{"op":"c","after":{"a":"\udc80"}}', "UTF-8"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str | bytes, reason: str) -> None:
    good = '{"op":"d","before":{"a":1}}'
    events = cdc.read([good, line])
    assert next(events).op == "d"
    with pytest.raises(InvalidUpdates, match="line 1") as raised:
        next(events)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("dialect", "line"),
    [
        ("canal", b'{"type":"INSERT\xff","es":1,"data":[]}'),
        ("dms", b'{"metadata":{"operation":"insert\xff"},"data":{}}'),
        ("dynamodb", b'{"eventName":"INSERT","dynamodb":{"NewImage":{"a":{"S":"\xff"}}}}'),
        ("goldengate", b'{"op_type":"I","pos":"1","after":{"a\xff":1}}'),
        ("maxwell", b'{"type":"insert","ts":1,"table":"\xff","data":{}}'),
        ("maxwell", b'{"type":"table-alter","ts":1,"def":{"table":"\xff"}}'),
        ("ticdc", b'{"type":"\xff"}'),
        ("wal2json", b'{"action":"I","columns":[{"name":"\xff","value":1}]}'),
    ],
)
def test_bytes_of_a_tool_that_are_no_utf_8_are_refused(dialect: str, line: bytes) -> None:
    with pytest.raises(InvalidUpdates, match=r"utf-8.*line 0"):
        list(cdc.read([line], dialect))


def test_a_dialect_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="known are"):
        cdc.read([], "oracle")
    with pytest.raises(InvalidUpdates, match="line 0"):
        list(cdc.read(["{}"], "maxwell"))


def test_lines_are_taken_as_they_are_needed() -> None:
    rng, taken = random.Random(1), 0

    def lines() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield json.dumps({"op": "c", "after": {"id": rng.random()}})

    assert len(list(islice(cdc.read(lines()), 5))) == 5
    assert taken < 10_000


def test_neither_spark_nor_a_lake_is_loaded() -> None:
    loaded = "[m for m in sys.modules if m.startswith(('pyspark', 'tidelake.lake', 'tidelake.spark'))]"
    code = f"import sys, tidelake.cdc; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

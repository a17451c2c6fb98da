"""Change events: what is read, and that everything else is refused with file, line and reason."""

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import tidelake
from tidelake.cdc.core.lineerrors import place
from tidelake.cdc.core.outcome import Parsed
from tidelake.cdc.parse import structcolumns as as_columns
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.debezium import Debezium

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("name", pa.string()),
        ("price", pa.decimal128(6, 2)),
        ("ratio", pa.float32()),
        ("day", pa.date32()),
        ("at", pa.timestamp("ms")),
        ("seen", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("sizes", pa.list_(pa.int8())),
        ("place", pa.struct([pa.field("code", pa.int8(), nullable=False), ("tags", pa.list_(pa.string()))])),
        ("ok", pa.bool_()),
    ]
)


def row(**changed: Any) -> dict[str, Any]:
    return {
        "id": 1,
        "name": "Zürich",
        "price": 12.5,
        "ratio": 0.1,
        "day": 19000,
        "at": 1_700_000_000_000,
        "seen": "2024-01-01T00:00:00.123456Z",
        "raw": "YWJj",
        "sizes": [1, None],
        "place": {"code": 1, "tags": ["x", None], "more": 1},
        "ok": True,
        "not in the collection": {"a": [1]},
    } | changed


def event(op: str = "c", time: Any = 5, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"lsn": time}, "ts_ms": 1}


def parse(*events: Any, parser: ChangeParser | None = None) -> Parsed:
    lines = [e if isinstance(e, bytes | None) else json.dumps(e).encode() for e in events]
    return (parser or ChangeParser(SCHEMA)).parse(
        pa.array(lines, pa.binary()), lambda _: place("file:///in/a%20b.json")
    )


def test_create_read_update_delete() -> None:
    new = row(name=None, place=None, sizes=None)
    parsed = parse(
        event("c", 5, after=row()),
        event("r", 5, after=row(id=2)),
        event("u", 6, before=row(), after=new),
        event("d", 9, before=new),
    )
    got = parsed.rows.select(["id", "name", "_time", "_diff"]).to_pylist()
    assert [tuple(r.values()) for r in got] == [
        (1, "Zürich", 5, 1),
        (2, "Zürich", 5, 1),
        (1, "Zürich", 6, -1),
        (1, None, 6, 1),
        (1, None, 9, -1),
    ]
    assert (parsed.events, parsed.time_upper) == (4, 9)
    assert parsed.rows.column("place").to_pylist()[2:] == [{"code": 1, "tags": ["x", None]}, None, None]


def test_every_type() -> None:
    got = parse(event(after=row())).rows.to_pylist()[0]
    assert got["price"] == Decimal("12.50")
    assert got["ratio"] == pa.scalar(0.1, pa.float32()).as_py()
    assert got["day"] == date(1970, 1, 1) + timedelta(days=19000)
    assert got["at"] == datetime(2023, 11, 14, 22, 13, 20)  # noqa: DTZ001
    assert got["seen"] == datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    assert got["raw"] == b"abc"
    assert got["sizes"] == [1, None]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("price", "-13.25", Decimal("-13.25")),
        ("price", 7, Decimal("7.00")),
        ("ratio", "NaN", math.nan),
        ("ratio", "-Infinity", -math.inf),
        ("ratio", 3, 3.0),
        ("day", "2024-12-31", date(2024, 12, 31)),
        ("at", "2024-01-01T00:00:00.5", datetime(2024, 1, 1, 0, 0, 0, 500_000)),  # noqa: DTZ001
        ("seen", "2024-01-01T02:00:00+02:00", datetime(2024, 1, 1, tzinfo=UTC)),
        ("seen", 1, datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("raw", "", b""),
        ("sizes", [], []),
    ],
)
def test_other_forms_of_a_value(column: str, value: Any, expected: Any) -> None:
    got = parse(event(after=row(**{column: value}))).rows.column(column)[0].as_py()
    assert got == expected or (expected != expected and math.isnan(got))


def test_wrapped_payload_heartbeats_and_tombstones() -> None:
    parsed = parse(
        {"schema": {"type": "struct"}, "payload": event("c", 5, after=row())},
        {"op": "h", "source": {"lsn": 99}},
        {"schema": None, "payload": {"op": "h", "source": {"lsn": 98}}},
        None,
        b"",
        b"  \t",
        b"null",
        b'{"schema": null, "payload": null}',
    )
    assert (parsed.events, parsed.heartbeats, parsed.tombstones) == (1, 2, 5)
    assert parsed.time_upper == 99
    assert parsed.rows.num_rows == 1


def test_time_from_another_place() -> None:
    parser = ChangeParser(SCHEMA, time="ts_ms")
    assert parse(event(after=row()), parser=parser).rows.column("_time").to_pylist() == [1]


@pytest.mark.promise(
    "No JSON value becomes a null, a rounded number, or a number read from a string by chance",
    rule="`data/json/values.py`",
    also=["data/json/test_json_values.py"],
)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b'{"op":"c"} {"op":"c"}', "not JSON: Extra data"),
        (b"\xff{}", "not UTF-8"),
        (b"[1]", "not a JSON object"),
        (b'{"op":"c","after":{"id":NaN},"source":{"lsn":1}}', "NaN is not JSON"),
        (b"[" * 100_000, "not JSON"),
        ({"x": 1}, "no 'op'"),
        ({"op": 1}, "no 'op'"),
        (event("t"), "op 't' (truncate) names no rows"),
        (event("x"), "op 'x' is unknown"),
        (event("u", after=row()), "op 'u' without 'before': set REPLICA IDENTITY FULL"),
        (event("d"), "op 'd' without 'before': set REPLICA IDENTITY FULL"),
        (event("u", before=row()), "op 'u' without 'after'"),
        (event("c"), "op 'c' without 'after'"),
        (event("r"), "op 'r' without 'after'"),
        (event("c", after=row(), before=row()), "must not have a row in 'before'"),
        (event("d", after=row(), before=row()), "must not have a row in 'after'"),
        (event(after=[1]), "'after' is not an object"),
        (event(after=row(), time=-1), "is -1, not a whole number"),
        (event(after=row(), time=2**63), "not a whole number"),
        (event(after=row(), time="5"), "is '5', not a whole number"),
        (event(after=row(), time=1.5), "not a whole number"),
        (event(after=row(), time=True), "is True, not a whole number"),
        (event(after=row(), time=None), "no time at 'source.lsn'"),
        ({"op": "c", "after": row()}, "no time at 'source.lsn'"),
        ({"op": "h"}, "no time at 'source.lsn'"),
        (event(after={"id": 1}), "column 'name' of 'after': is missing"),
        (event(after=row(id=None)), "column 'id' of 'after': is null, but the column is not nullable"),
        (event(after=row(id="1")), "column 'id' of 'after': \"1\" is a string, not int32"),
        (event(after=row(id=1.0)), "1.0 is a number with a fraction, not int32"),
        (event(after=row(id=True)), "true is a boolean, not int32"),
        (event(after=row(id=2**31)), "2147483648 does not fit int32"),
        (event(after=row(id=2**64)), "does not fit int32"),
        (event(after=row(name=1)), "1 is a whole number, not string"),
        (event(after=row(name="\ud800")), "is not Unicode text"),
        (event(after=row(price=1.234)), "1.234 does not fit decimal128(6, 2)"),
        (event(after=row(price=12345.6)), "12345.6 does not fit"),
        (event(after=row(price="AIg=")), '"AIg=" is not a decimal number'),
        (event(after=row(price="NaN")), "is not a decimal number"),
        (event(after=row(ratio="1.5")), "is a string, not a number"),
        (event(after=row(ratio=1e300)), "is out of the range of float"),
        (event(after=row(day="2024-13-01")), "does not fit date32"),
        (event(after=row(day=19000.5)), "not date32"),
        (event(after=row(at="2024-01-01T00:00:00.1234")), "does not fit timestamp[ms]"),
        (event(after=row(at="2024-01-01T00:00:00Z")), "does not fit timestamp[ms]"),
        (event(after=row(seen="2024-01-01T00:00:00")), "does not fit timestamp[us, tz=UTC]"),
        (event(after=row(raw="x")), "is not base64"),
        (event(after=row(sizes=[1, 300])), "300 does not fit int8"),
        (event(after=row(sizes=[1, "a"])), '"a" is a string, not int8'),
        (event(after=row(sizes=1)), "1 is a whole number, not list"),
        (event(after=row(place={"code": None, "tags": None})), "null is not allowed in 'code'"),
        (event(after=row(place={"tags": []})), "field 'code' is missing"),
        (event(after=row(ok=1)), "1 is a whole number, not bool"),
        (event(after=row(name="__debezium_unavailable_value")), "the source left the value out"),
    ],
)
def test_a_line_that_cannot_be_read(line: Any, reason: str) -> None:
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    good = json.dumps(event(after=row())).encode()
    with pytest.raises(InvalidUpdates) as caught:
        parse(good, text, good)
    message = str(caught.value)
    assert reason in message
    assert "file=/in/a b.json" in message
    assert f"line={text.decode('utf-8', 'backslashreplace')[:190]}" in message
    assert len(message) < 700
    message.encode()


def test_a_form_that_a_column_cannot_have_is_refused_where_a_row_has_a_value() -> None:
    """An old row that is not there has none."""
    parser = ChangeParser(pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us"))]))
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "at", "type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}

    def wrapped(at: Any) -> dict[str, Any]:
        told = {"op": "c", "source": {"lsn": 5}, "before": None, "after": {"id": 1, "at": at}}
        return {"schema": schema, "payload": told}

    assert parse(wrapped(None), parser=parser).rows.column("at").null_count == 1
    with pytest.raises(InvalidUpdates, match="column 'at' of 'after': the source writes decimals as bytes"):
        parse(wrapped(None), wrapped({"scale": 0, "value": "AQ=="}), parser=parser)


def test_the_first_line_that_cannot_be_read_is_named_whatever_follows() -> None:
    bad = [event(after=row(id=i, ok=1)) for i in range(200)]
    with pytest.raises(InvalidUpdates, match=r"1 is a whole number, not bool.*\"id\": 0, "):
        parse(*bad, event(after=row(), time=1), parser=ChangeParser(SCHEMA, lower=2))


def test_a_delete_that_names_no_row_is_a_reject_and_no_event() -> None:
    parser = ChangeParser(SCHEMA, ("id",), lower=6, late="advance", old_rows="stored", rejects=True)
    lines = pa.array([json.dumps(event("d", time)).encode() for time in (5, 6, 9)], pa.binary())
    parsed = parser.parse(lines, str, pa.array(['{"id": 1}', '{"id": 2}', None]))
    assert [(reject.line, "no key" in reject.reason) for reject in parsed.rejects] == [(2, True)]
    assert (parsed.events, parsed.late, parsed.time_upper, parsed.rows.num_rows) == (2, 1, 6, 2)
    alone = parser.parse(lines.slice(0, 1), str)
    assert (len(alone.rejects), alone.events, alone.late, alone.time_upper) == (1, 0, 0, None)


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar("__debezium_unavailable_value"),
        pa.scalar("__debezium_unavailable_value", pa.large_string()),
        pa.scalar(b"__debezium_unavailable_value"),
        pa.scalar(b"__debezium_unavailable_value", pa.large_binary()),
        pa.scalar(["__debezium_unavailable_value"]),
        pa.scalar(["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], pa.list_(pa.large_string())),
        pa.scalar([b"__debezium_unavailable_value"]),
        pa.scalar([*b"__debezium_unavailable_value"], pa.large_list(pa.int32())),
    ],
)
def test_a_value_that_the_source_left_out_is_refused_in_columns(value: pa.Scalar) -> None:
    fields = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("v", value.type)])
    parser = ChangeParser(pa.schema(list(fields)), ("id",))
    after = pa.array([{"id": 1, "v": value.as_py()}, {"id": 2, "v": value.as_py()[1:5]}], fields)
    ops, times = pa.array(["c", "c"]), pa.array([7, 7], pa.int64())
    found, bad = as_columns.events(ops, (pa.nulls(2, fields), after), times, None, parser.layout)
    assert found.lines.tolist() == [1]
    assert [(reject.line, "left the value out" in reject.reason) for reject in bad] == [(0, True)]


def test_late_events() -> None:
    lines = (event(after=row(), time=5), event(after=row(), time=8), {"op": "h", "source": {"lsn": 1}})
    with pytest.raises(InvalidUpdates, match="its time 5 is late, all times before 6 are closed"):
        parse(*lines, parser=ChangeParser(SCHEMA, lower=6))
    parsed = parse(*lines, parser=ChangeParser(SCHEMA, lower=6, late="advance"))
    # The append gives late rows its lower.
    assert parsed.rows.column("_time").to_pylist() == [5, 8]
    assert parsed.late == 1


@pytest.mark.parametrize(
    "kind", [pa.time64("us"), pa.duration("s"), pa.list_(pa.struct([("x", pa.duration("us"))]))]
)
def test_types_without_a_json_form_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(UsageError, match="column 't'"):
        ChangeParser(pa.schema([("t", kind)]))


@pytest.mark.parametrize("path", ["", "a..b", ".a"])
def test_the_time_must_be_a_path(path: str) -> None:
    with pytest.raises(UsageError, match="time"):
        ChangeParser(SCHEMA, time=path)


NOW_MS = 1_700_000_000_000


def of_unit(unit: str) -> tidelake.Collection:
    lake = tidelake.open(f"memory://debezium-{unit}")
    return lake.create("c", pa.schema([pa.field("id", pa.int32(), nullable=False)]), key=["id"], time=unit)


def sourced(**source: int) -> dict[str, Any]:
    return {"op": "c", "before": None, "after": {"id": 1}, "source": source, "ts_ms": 1}


@pytest.mark.promise(
    "A position in a log is never taken for the time of a clock, nor are seconds in a field that "
    "the caller did not name",
    rule="`Debezium.time_of`, `earliest` of `ChangeParser`",
    also=["::test_seconds_in_a_field_that_was_not_named_are_refused_and_taken_where_it_is_named"],
)
@pytest.mark.parametrize(
    ("unit", "time"),
    [("counter", 77), ("ms", NOW_MS), ("us", 1000 * NOW_MS + 5)],
    ids=["counter", "ms", "us"],
)
def test_the_time_of_an_event_is_by_default_what_the_unit_asks_for(unit: str, time: int) -> None:
    """A position in the log for counters; of clocks when the source committed, and never a position."""
    found = sourced(lsn=77, ts_ms=NOW_MS, ts_us=1000 * NOW_MS + 5)
    collection = of_unit(unit)
    assert parse(found, parser=Debezium().parser(collection)).rows["_time"].to_pylist() == [time]
    for named in ("source.lsn", "source.txId", "source.pos", "source.commit_lsn"):
        if unit == "counter":
            assert Debezium(time=named).parser(collection).time == named
            continue
        with pytest.raises(
            UsageError, match=rf"time='{named}' is a position in a log.*take 'source.ts_{unit}'"
        ):
            Debezium(time=named).parser(collection)


@pytest.mark.parametrize(
    "event",
    [sourced(ts_ms=NOW_MS // 1000), {"op": "h", "source": {"ts_ms": NOW_MS // 1000}}],
    ids=["event", "heartbeat"],
)
@pytest.mark.parametrize("rejects", [None, "folder"])
def test_seconds_in_a_field_that_was_not_named_are_refused_and_taken_where_it_is_named(
    event: dict[str, Any], rejects: str | None
) -> None:
    """Also where unreadable lines go aside: the field holds something else in all of them."""
    collection = of_unit("ms")
    with pytest.raises(InvalidUpdates, match=r"1700000000 at 'source.ts_ms' lies before 1990.*seconds"):
        parse(event, parser=Debezium(rejects=rejects).parser(collection))
    named = Debezium(time="source.ts_ms", rejects=rejects).parser(collection)
    assert parse(event, parser=named).time_upper == NOW_MS // 1000

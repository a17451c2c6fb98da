"""Messages of Avro, and flattened events, mean what Debezium's JSON of them does."""

import io
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidelake.cdc.core.lineerrors import place
from tidelake.cdc.core.outcome import Parsed
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.wire.decoder import Decoder
from tidelake.errors import InvalidUpdates, UsageError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("price", pa.decimal128(8, 2)),
        ("at", pa.timestamp("us")),
        ("day", pa.date32()),
        ("ratio", pa.float64()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float64())),
        ("kind", pa.string()),
    ]
)


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


DECIMAL = {
    **{"type": "bytes", "scale": 2, "precision": 8, "connect.version": 1, "logicalType": "decimal"},
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "8"},
    "connect.name": "org.apache.kafka.connect.data.Decimal",
}
ROW: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "price", "type": optional(DECIMAL), "default": None},
    {"name": "at", "type": optional({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"})},
    {"name": "day", "type": optional({"type": "int", "connect.name": "io.debezium.time.Date"})},
    {"name": "ratio", "type": optional("double")},
    {"name": "raw", "type": optional("bytes")},
    {"name": "tags", "type": optional({"type": "array", "items": optional("string")})},
    {"name": "scores", "type": optional({"type": "array", "items": optional("double")})},
    {"name": "kind", "type": optional({"type": "enum", "name": "Kind", "symbols": ["a", "b"]})},
]
SOURCE = {
    **{"type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql"},
    "fields": [{"name": "connector", "type": "string"}, {"name": "lsn", "type": optional("long")}],
}
ENVELOPE = {
    **{"type": "record", "name": "Envelope", "namespace": "bank.public.items"},
    "connect.name": "bank.public.items.Envelope",
    "fields": [
        {
            "name": "before",
            "type": optional({"type": "record", "name": "Value", "fields": ROW}),
            "default": None,
        },
        {"name": "after", "type": optional("Value"), "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": optional("long")},
    ],
}
FULL = {
    **{"id": 1, "price": b"\x3b", "at": 1_790_000_000_000_001, "day": 20_000, "ratio": float("nan")},
    **{"raw": b"\x00\xff", "tags": ["Zürich", None], "scores": [0.5, float("-inf"), None], "kind": "b"},
}
EMPTY = dict.fromkeys(FULL) | {"id": 1}


def event(op: str, lsn: int, before: Any = None, after: Any = None) -> dict[str, Any]:
    source = {"connector": "", "lsn": lsn}
    return {"before": before, "after": after, "op": op, "source": source, "ts_ms": 9}


EVENTS = [event("c", 5, None, FULL), event("u", 6, FULL, EMPTY), event("d", 7, EMPTY), None]
WANTED = [
    {
        **{"price": "0.59", "ratio": "nan", "raw": b"\x00\xff", "tags": ["Zürich", None]},
        **{"scores": [0.5, float("-inf"), None], "kind": "b"},
    },
    {"price": "None", "ratio": "None", "raw": None, "tags": None, "scores": None, "kind": None},
]


def avro(value: Any, schema: Any = ENVELOPE, number: int = 7) -> bytes | None:
    """A message in the wire format."""
    fastavro = pytest.importorskip("fastavro")
    if value is None:
        return None
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain(schema)), value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def plain(schema: Any) -> Any:
    """Without logical types, as the values here are those that are stored."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: plain(value) for name, value in schema.items() if name != "logicalType"}


def parse(lines: pa.Array, **settings: Any) -> Parsed:
    return ChangeParser(SCHEMA, ("id",), **settings).parse(lines, lambda line: place("in", line + 1))


def told(parsed: Parsed) -> list[tuple[dict[str, Any], int, int]]:
    found = []
    for row in parsed.rows.to_pylist():
        time, diff = row.pop("_time"), row.pop("_diff")
        found.append((row, time, diff))
    return found


def check(parsed: Parsed) -> None:
    """Whether it is `EVENTS`."""
    rows = told(parsed)
    assert [(time, diff) for _, time, diff in rows] == [(5, 1), (6, -1), (6, 1), (7, -1)]
    for (row, *_), wanted in zip(rows, (WANTED[0], WANTED[0], WANTED[1], WANTED[1]), strict=True):
        shown = row | {"price": str(row["price"]), "ratio": str(row["ratio"])}
        assert {name: shown[name] for name in wanted} == wanted
    assert rows[0][0]["at"].isoformat() == "2026-09-21T14:13:20.000001"
    assert rows[0][0]["day"].isoformat() == "2024-10-04" and parsed.tombstones == 1


def messages(*values: Any) -> pa.Array:
    return pa.array([avro(one) for one in values], pa.binary())


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "7.avsc").write_text(json.dumps(ENVELOPE), encoding="utf-8")
    return str(tmp_path)


@pytest.mark.promise(
    "Messages of Avro in the wire format of schema registries, and events that ExtractNewRecordState has "
    "flattened, mean what Debezium's JSON of them does; those that cannot be decoded are refused with the "
    "reason",
    rule="`cdc/wire/avro.py`, `cdc/wire/flattened.py`, `cdc/wire/decoder.py`",
    also=[
        "::test_a_registry_gives_schemas_and_what_they_refer_to",
        "::test_flattened_events_are_made_whole",
        "::test_what_cannot_be_decoded_is_refused_with_the_reason",
        "spark/envelopes/test_decoding.py",
    ],
)
def test_messages_of_avro_mean_what_their_events_do(directory: str) -> None:
    decoder = Decoder(directory)
    lines = decoder.values(messages(*EVENTS))
    check(parse(lines))
    # Also after it was used, in another process.
    assert pickle.loads(pickle.dumps(decoder)).values(messages(EVENTS[0])) == lines.slice(0, 1)
    fields = json.loads(lines[0].as_py())["schema"]["fields"][1]["fields"]
    assert fields[1]["parameters"] == {"scale": "2", "connect.decimal.precision": "8"}
    assert [one["optional"] for one in fields] == [False] + [True] * 8


def test_types_of_avro_that_have_no_name_of_connect(tmp_path: Path) -> None:
    row = [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ]
    after = {"type": "record", "name": "Row", "fields": row}
    source = {"type": "record", "name": "S", "fields": [{"name": "lsn", "type": "long"}]}
    named = [("after", after), ("source", source), ("op", "string")]
    schema = {"type": "record", "name": "E", "fields": [{"name": n, "type": t} for n, t in named]}
    (tmp_path / "7.avsc").write_text(json.dumps(schema))
    value = {"after": {one["name"]: FULL[one["name"]] for one in row}, "source": {"lsn": 5}, "op": "c"}
    lines = Decoder(str(tmp_path)).values(pa.array([avro(value, schema)], pa.binary()))
    (found,) = ChangeParser(pa.schema(list(SCHEMA)[:4])).parse(lines, str).rows.to_pylist()
    assert (str(found["price"]), found["day"].isoformat()) == ("0.59", "2024-10-04")
    assert (found["at"].microsecond, found["_time"], found["_diff"]) == (1, 5, 1)


@contextmanager
def registry(schemas: dict[str, Any], asked: list[Any]) -> Iterator[str]:
    """A registry on this machine."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            found = schemas.get(self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_registry_gives_schemas_and_what_they_refer_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"name": "source", "type": "io.debezium.connector.postgresql.Source"}
    fields = [source if one["name"] == "source" else one for one in ENVELOPE["fields"]]
    refers = [{"name": "Source", "subject": "the source", "version": 3}]
    schemas = {
        "/schemas/ids/7": {"schema": json.dumps(ENVELOPE | {"fields": fields}), "references": refers},
        "/subjects/the%20source/versions/3": {"id": 2, "schema": json.dumps(SOURCE)},
        "/schemas/ids/8": {"schema": "{}", "schemaType": "JSON"},
        "/schemas/ids/10": {"schema": "{"},
    }
    asked: list[Any] = []
    with registry(schemas, asked) as address:
        monkeypatch.setenv("HOME", str(tmp_path))
        secrets = tmp_path / ".netrc"
        secrets.touch(0o600)
        secrets.write_text('machine 127.0.0.1 login me password "se cret"\n')
        decoder = Decoder(f"http://{address}")
        check(parse(decoder.values(messages(*EVENTS))))
        assert [path for path, _ in asked] == ["/schemas/ids/7", "/subjects/the%20source/versions/3"]
        assert {by for _, by in asked} == {"Basic bWU6c2UgY3JldA=="}
        with pytest.raises(UsageError, match="is of JSON: let the connector write Avro, Protobuf or JSON"):
            decoder.values(pa.array([avro(EVENTS[0], number=8)]))
        with pytest.raises(UsageError, match="returns no schema of Avro for /schemas/ids/10"):
            decoder.values(pa.array([avro(EVENTS[0], number=10)]))
        with pytest.raises(
            UsageError, match=r"answers 404 to http://127\.0\.0\.1:\d+/schemas/ids/9"
        ) as caught:
            decoder.values(pa.array([avro(EVENTS[0], number=9)]))
        assert "cret" not in str(caught.value)
    assert b"cret" not in pickle.dumps(decoder) and "cret" not in repr(decoder)
    with pytest.raises(UsageError, match=r"has no user and password: put .* into ~/\.netrc") as told:
        Decoder(f"http://me:secret@{address}")
    assert "cret" not in str(told.value)
    secrets.write_text("machine 127.0.0.1 login me secret\n")
    with pytest.raises(UsageError, match=r"netrc cannot be read \(line") as told:
        Decoder(f"http://{address}").values(messages(EVENTS[0]))
    assert "cret" not in str(told.value)
    secrets.unlink()
    with pytest.raises(UsageError, match="does not answer"):
        Decoder(f"http://{address}").values(messages(EVENTS[0]))


def test_a_schema_that_is_not_there_or_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"7\.avsc cannot be read: .*give the address of the registry"):
        Decoder(str(tmp_path)).values(messages(EVENTS[0]))
    several = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}
    itself = {"type": "record", "name": "R", "fields": [{"name": "next", "type": optional("R")}]}
    for text, reason in (
        ("{", "is not an Avro schema"),
        ('"nothing"', "a schema is not one of Avro"),
        (json.dumps(several), "the type of 'a' is one of 2"),
        (json.dumps(itself), "the type of 'next' holds itself"),
    ):
        (tmp_path / "7.avsc").write_text(text)
        with pytest.raises(UsageError, match=reason):
            Decoder(str(tmp_path)).values(messages(EVENTS[0]))
    with pytest.raises(UsageError, match="give schemas=DIRECTORY"):
        Decoder()
    with pytest.raises(UsageError, match="tombstones='keep' is unknown"):
        Decoder(flattened=True, tombstones="keep")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b'{"op": "c"}', "not in the wire format of a schema registry"),
        (b"\0\0\0", "not in the wire format"),
        (b"\x03\x00" + b"x" * 30, "AWS Glue"),
        (b"\0\0\0\0\x07\x02", "its bytes do not match its Avro schema"),
        (b"", "not in the wire format"),
    ],
)
def test_what_cannot_be_decoded_is_refused_with_the_reason(
    message: bytes, reason: str, directory: str
) -> None:
    good = avro(EVENTS[0])
    lines = Decoder(directory).values(pa.array([good, message], pa.binary()))
    with pytest.raises(InvalidUpdates) as caught:
        parse(lines)
    assert reason in str(caught.value) and "number=2" in str(caught.value)
    parsed = parse(lines, rejects=True)
    assert [reject.line for reject in parsed.rejects] == [1] and parsed.events == 1


def test_a_message_with_bytes_behind_it_is_refused(directory: str) -> None:
    (line,) = Decoder(directory).values(pa.array([(avro(EVENTS[0]) or b"") + b"\0"])).to_pylist()
    assert b"1 are left over" in line


FLAT = [
    {"id": 1, "kind": "a", "__op": "c", "__source_lsn": 5, "__table": "items", "__source_ts_ms": 9},
    {"id": 1, "kind": "b", "__op": "u", "__source_lsn": 6, "__table": "items", "__deleted": "false"},
    {"id": 1, "kind": None, "__deleted": "true", "__op": "d", "__source_lsn": 7, "__transaction_id": "1:2"},
]
KINDS = {"id": "int64", "kind": "string", "__op": "string", "__source_lsn": "int64", "__table": "string"}


@pytest.mark.parametrize("wrapped", [False, True])
def test_flattened_events_are_made_whole(wrapped: bool) -> None:
    fields = [{"field": n, "type": kind, "optional": n != "id"} for n, kind in KINDS.items()]
    schema = {"type": "struct", "name": "items.Value", "fields": fields, "optional": False}
    texts = [json.dumps({"schema": schema, "payload": one} if wrapped else one).encode() for one in FLAT]
    lines = Decoder(flattened=True).values(pa.array(texts))
    columns = pa.schema([SCHEMA.field("id"), SCHEMA.field("kind")])
    parser = ChangeParser(columns, ("id",), old_rows="stored")
    rows = parser.parse(lines, str).rows.to_pylist()
    assert [(row["id"], row["kind"], row["_time"], row["_removed"]) for row in rows] == [
        *((1, "a", 5, False), (1, "b", 6, False), (1, None, 7, True)),
    ]
    first = json.loads(lines[0].as_py())
    event = first["payload"] if wrapped else first
    assert event["source"] == {"lsn": 5, "table": "items", "ts_ms": 9} and event["ts_ms"] == 9
    if wrapped:
        after = first["schema"]["fields"][1]
        assert (after["field"], [one["field"] for one in after["fields"]]) == ("after", ["id", "kind"])


@pytest.mark.parametrize("first", [True, False])
def test_when_a_connector_saw_an_event_is_not_when_it_was_committed(first: bool) -> None:
    times = {"__ts_ms": 99, "__source_ts_ms": 9} if first else {"__source_ts_ms": 9, "__ts_ms": 99}
    texts = [json.dumps({"id": 1, "__op": "c"} | one).encode() for one in (times, {"__ts_ms": 99})]
    both, seen = (json.loads(one) for one in Decoder(flattened=True).values(pa.array(texts)).to_pylist())
    assert (both["source"], both["ts_ms"]) == ({"ts_ms": 9}, 99)
    assert (seen["source"], seen["ts_ms"], seen["after"]) == ({}, 99, {"id": 1})


def test_a_column_with_two_underscores_stays_and_marks_stay_as_they_are() -> None:
    marks = [b'{"ts_ms":9}', b'{"status":"END","id":"5:9","event_count":2}']
    row = b'{"id":1,"__mine":2,"__op":"c"}'
    wrapped = b'{"schema":null,"payload":{"ts_ms":9}}'
    lines = Decoder(flattened=True).values(pa.array([*marks, wrapped, row])).to_pylist()
    assert lines[:3] == [*marks, wrapped]
    assert json.loads(lines[3])["after"] == {"id": 1, "__mine": 2}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (None, "delete.tombstone.handling.mode=rewrite"),
        (b"null", "tombstones='ignore'"),
        (b'{"schema":{},"payload":null}', "tombstones='ignore'"),
        (b'{"id":1,"kind":"a"}', "add.fields=op,source.connector"),
        (b'{"id":1,"status":"END"}', "add.fields=op,source.connector"),
        (b"[1]", "not a JSON object"),
        (b"{", "not a JSON object"),
        (b'{"\xff":1,"__op":"c"}', "not a JSON object"),
        (b'{"schema":[],"payload":{"id":1,"__op":"c"}}', "not a JSON object"),
    ],
)
def test_flattened_events_that_hide_what_happened_are_refused(message: Any, reason: str) -> None:
    (line,) = Decoder(flattened=True).values(pa.array([message], pa.binary())).to_pylist()
    assert reason.encode() in line
    with pytest.raises(InvalidUpdates):
        parse(pa.array([line]))
    if message in (None, b"null"):
        lines = Decoder(flattened=True, tombstones="ignore").values(pa.array([message], pa.binary()))
        assert lines.to_pylist() == [None]


def connect(columns: dict[str, str]) -> dict[str, Any]:
    fields = [{"field": n, "type": kind, "optional": n != "id"} for n, kind in columns.items()]
    return {"type": "struct", "fields": fields, "optional": True}


@pytest.mark.parametrize("wrapped", [False, True])
def test_columns_get_other_names_in_rows_keys_and_schemas(wrapped: bool) -> None:
    names = {"_time": "at", "_diff": "by"}
    old, new = {"id": 1, "_time": 2, "_diff": None}, {"id": 1, "_time": 5, "_diff": 3}
    whole = {"op": "u", "before": old, "after": new, "source": {"lsn": 7, "_time": 1}}
    key = {"id": 1, "_time": 5}
    kinds = connect({"id": "int64", "_time": "int64", "_diff": "int64"})
    sides = [kinds | {"field": "before"}, kinds | {"field": "after"}, {"type": "string", "field": "op"}]
    if wrapped:
        whole = {"schema": {"type": "struct", "fields": sides}, "payload": whole}
        key = {"schema": connect({"id": "int64", "_time": "int64"}), "payload": key}
    decoder = Decoder(rename=names)
    (line,) = decoder.values(pa.array([json.dumps(whole).encode()])).to_pylist()
    (text,) = decoder.keys(pa.array([json.dumps(key).encode()])).to_pylist()
    schema = pa.schema([SCHEMA.field("id"), ("at", pa.int64()), ("by", pa.int64())])
    rows = ChangeParser(schema, ("id",)).parse(pa.array([line]), str).rows.to_pylist()
    assert [(row["id"], row["at"], row["by"], row["_diff"]) for row in rows] == [
        (1, 2, None, -1),
        (1, 5, 3, 1),
    ]
    found = json.loads(text)
    assert (found["payload"] if wrapped else found) == {"id": 1, "at": 5}
    if wrapped:
        assert [one["field"] for one in found["schema"]["fields"]] == ["id", "at"]
        after = json.loads(line)["schema"]["fields"][1]
        assert (after["field"], [one["field"] for one in after["fields"]]) == ("after", ["id", "at", "by"])


def test_a_name_that_is_taken_is_refused_and_what_is_no_event_stays(directory: str) -> None:
    decoder = Decoder(rename={"_time": "id"})
    taken = b'{"op":"c","after":{"id":1,"_time":2}}'
    lines = [taken, b"[1]", b"{", None, b'{"op":"d","before":null,"after":"text"}', b'{"\xff":1}']
    found = decoder.values(pa.array(lines)).to_pylist()
    assert b"the table has a column 'id'" in found[0]
    assert found[1:] == lines[1:]
    with pytest.raises(UsageError, match="gives two columns one name"):
        Decoder(rename={"a": "c", "b": "c"})
    # With the others: first the bytes, then the flattened event, then the names.
    both = Decoder(directory, rename={"kind": "sort"}).values(messages(EVENTS[0]))
    event = json.loads(both[0].as_py())
    assert (
        event["payload"]["after"]["sort"] == "b"
        and event["schema"]["fields"][1]["fields"][8]["field"] == "sort"
    )

"""Messages of Protobuf mean what Debezium's JSON of them does, or are refused."""

import base64
import json
import pickle
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.message import Message

import tidelake
import tidelake.cdc
from tests.cdc.wire.test_decoder import registry
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.wire.decoder import Decoder
from tidelake.errors import InvalidUpdates, UsageError

File = descriptor_pb2.FileDescriptorProto
PLAIN = {"double": 1, "float": 2, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
UNSIGNED = {"uint64": 4, "fixed64": 6, "fixed32": 7, "uint32": 13, "sfixed32": 15, "sfixed64": 16}
KINDS = PLAIN | UNSIGNED | {"sint32": 17, "sint64": 18}
BOXED = {"double": "Double", "float": "Float", "int64": "Int64", "int32": "Int32"}
BOXED |= {"bool": "Bool", "string": "String", "bytes": "Bytes"}
EPOCH = datetime.fromisoformat("1970-01-01")


def known(name: str, package: str, message: str, *fields: tuple[str, int]) -> File:
    made = File(name=name, package=package, syntax="proto3")
    of = made.message_type.add(name=message)
    for number, (one, kind) in enumerate(fields, 1):
        of.field.add(name=one, number=number, type=kind, label=1)  # type: ignore[arg-type]
    return made


KNOWN = [
    known("confluent/type/decimal.proto", "confluent.type", "Decimal", ("value", 12), ("precision", 13)),
    known("google/type/date.proto", "google.type", "Date", ("year", 5), ("month", 5), ("day", 5)),
    known(
        "google/type/timeofday.proto",
        "google.type",
        "TimeOfDay",
        *((name, 5) for name in ("hours", "minutes", "seconds", "nanos")),
    ),
    known("google/protobuf/timestamp.proto", "google.protobuf", "Timestamp", ("seconds", 3), ("nanos", 5)),
    File.FromString(wrappers_pb2.DESCRIPTOR.serialized_pb),
]
KNOWN[0].message_type[0].field.add(name="scale", number=3, type=5, label=1)


def meta(**params: str) -> bytes:
    """Options of a field as Confluent writes them: number 1088, and in it a map of the number 2."""

    def part(number: int, data: bytes) -> bytes:
        head, left = bytearray(), number << 3 | 2
        while left > 0x7F:
            head.append(left & 0x7F | 0x80)
            left >>= 7
        return bytes([*head, left, len(data)]) + data

    entries = [part(1, name.encode()) + part(2, text.encode()) for name, text in params.items()]
    return part(1088, b"".join(part(2, entry) for entry in entries))


def add(
    message: Any,
    name: str,
    kind: str,
    null: str = "",
    *,
    label: int = 1,
    params: Any = None,
    enum: bool = False,
) -> None:
    """Add a field; `null` says how it can be: `optional`, `wrapper`, or not."""
    number = len(message.field) + 1
    if null == "wrapper" and kind in BOXED:
        kind = f".google.protobuf.{BOXED[kind]}Value"
    if kind in KINDS:
        one = message.field.add(name=name, number=number, type=KINDS[kind], label=label)
    else:
        one = message.field.add(
            name=name, number=number, type=14 if enum else 11, label=label, type_name=kind
        )
    if null == "optional":
        one.proto3_optional, one.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    if params:
        one.options.MergeFromString(meta(**params))


# Columns, of which those behind the first may be null, as the converter writes them.
COLUMNS: list[tuple[str, str, Any]] = [
    ("id", "int64", None),
    ("small", "int32", {"connect.type": "int16"}),
    ("number", "int32", None),
    ("big", "int64", None),
    ("flag", "bool", None),
    ("ratio", "double", None),
    ("part", "float", None),
    ("text", "string", None),
    ("raw", "bytes", None),
    ("price", ".confluent.type.Decimal", {"precision": "8", "scale": "2"}),
    ("day", ".google.type.Date", None),
    ("clock", ".google.type.TimeOfDay", None),
    ("at", ".google.protobuf.Timestamp", None),
    ("Clear", "string", None),
    ("ListFields", "string", None),
]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *(("small", pa.int16()), ("number", pa.int32()), ("big", pa.int64()), ("flag", pa.bool_())),
        *(("ratio", pa.float64()), ("part", pa.float32()), ("text", pa.string()), ("raw", pa.binary())),
        *(("price", pa.decimal128(8, 2)), ("day", pa.date32()), ("clock", pa.int32())),
        *(("at", pa.timestamp("ms")), ("Clear", pa.string()), ("ListFields", pa.string())),
    ]
)
# As Connect's JSON has them.
CONNECT = {"id": "int64", "small": "int16", "number": "int32", "big": "int64", "flag": "boolean"}
CONNECT |= {"ratio": "double", "part": "float", "text": "string", "raw": "bytes", "clock": "int32"}
CONNECT |= {"Clear": "string", "ListFields": "string"}
_DATA = "org.apache.kafka.connect.data."
NAMED: dict[str, Any] = {
    "price": {"type": "bytes", "name": _DATA + "Decimal"}
    | {"parameters": {"scale": "2", "connect.decimal.precision": "8"}},
    "day": {"type": "int32", "name": _DATA + "Date"},
    "at": {"type": "int64", "name": _DATA + "Timestamp"},
}
FULL: dict[str, Any] = {
    **{"id": 1, "small": -7, "number": 2**31 - 1, "big": -(2**63), "flag": True, "ratio": 0.1, "part": 0.5},
    **{"text": "Zürich\n", "raw": b"\x00\xff", "price": Decimal("-0.59"), "day": date(2024, 10, 4)},
    **{"clock": 86_399_999, "at": datetime.fromisoformat("1969-12-31 23:59:59.999"), "Clear": "c"},
    "ListFields": "l",
}
ZERO: dict[str, Any] = {
    **{"id": 0, "small": 0, "number": 0, "big": 0, "flag": False, "ratio": 0.0, "part": 0.0, "text": ""},
    **{"raw": b"", "price": Decimal("0.00"), "day": date(1970, 1, 1), "clock": 0},
    **{"at": EPOCH, "Clear": "", "ListFields": ""},
}
NULL = dict.fromkeys(FULL) | {"id": 0}


def file(null: str = "optional", columns: Any = COLUMNS, extra: Any = None) -> File:
    """The file of an event."""
    made = File(name="default", package="bank.public.items", syntax="proto3")
    made.dependency.extend(one.name for one in KNOWN)
    envelope = made.message_type.add(name="Envelope")
    row = envelope.nested_type.add(name="Value")
    for name, kind, params in columns:
        add(row, name, kind, "" if name == "id" else null, params=params)
    source = envelope.nested_type.add(name="Source")
    add(source, "connector", "string")
    add(source, "lsn", "int64", null)
    inner = ".bank.public.items.Envelope."
    add(envelope, "before", inner + "Value", null if null == "optional" else "")
    add(envelope, "after", inner + "Value", null if null == "optional" else "")
    add(envelope, "source", inner + "Source")
    add(envelope, "op", "string")
    add(envelope, "ts_ms", "int64", null)
    if extra is not None:
        extra(made, envelope, row)
    key = made.message_type.add(name="Key")
    add(key, "id", "int64")
    return made


def classes(made: File) -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for one in (*KNOWN, made):
        if one is KNOWN[-1] or one.name in made.dependency or one is made:
            pool.Add(one)
    found: dict[str, Any] = {}

    def of(message: Any) -> None:
        found[message.name] = message_factory.GetMessageClass(message)
        for one in message.nested_types:
            of(one)

    for one in made.message_type:
        of(pool.FindMessageTypeByName(f"{made.package}.{one.name}"))
    return found


def put(message: Message, values: dict[str, Any]) -> Any:
    """Set fields as the converter does, which leaves nulls out."""
    for name, value in values.items():
        if value is None:
            continue
        kind = message.DESCRIPTOR.fields_by_name[name].message_type
        # Columns may have the names of methods.
        to = None if kind is None else type(message).__getattribute__(message, name)
        match value:
            case dict():
                to.SetInParent()
                put(to, value)
            case Decimal():
                whole = int(value.scaleb(2))
                to.value = whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True)
                to.precision, to.scale = 8, 2
            case datetime():
                micros = (value - EPOCH) // timedelta(microseconds=1)
                to.SetInParent()
                to.seconds, to.nanos = micros // 10**6, micros % 10**6 * 1000
            case date():
                to.year, to.month, to.day = value.year, value.month, value.day
            case int() if name == "clock":
                to.SetInParent()
                to.hours, to.minutes = value // 3_600_000, value // 60_000 % 60
                to.seconds, to.nanos = value // 1000 % 60, value % 1000 * 10**6
            case _ if to is not None:
                to.SetInParent()
                to.value = value
            case _:
                setattr(message, name, value)
    return message


def wire(message: Message | None, indexes: bytes = b"\0", number: int = 7) -> bytes | None:
    if message is None:
        return None
    return b"\0" + number.to_bytes(4, "big") + indexes + message.SerializeToString()


def event(op: str, lsn: int, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "source": {"connector": "", "lsn": lsn}, "ts_ms": 9}


OTHER = FULL | {"id": 2}
EVENTS = [
    event("c", 5, None, FULL),
    event("c", 6, None, ZERO),
    event("u", 7, ZERO, NULL),
    event("u", 8, NULL, ZERO),
    event("d", 9, FULL),
    event("c", 9, None, OTHER),
    event("d", 10, OTHER),
    None,
]


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def jsons(value: Any) -> Any:
    """A row as Connect's JSON has it."""
    if value is None:
        return None
    made = {}
    for name, one in value.items():
        match one:
            case Decimal():
                whole = int(one.scaleb(2))
                made[name] = coded(whole.to_bytes(whole.bit_length() // 8 + 1, "big", signed=True))
            case bytes():
                made[name] = coded(one)
            case datetime():
                made[name] = (one - EPOCH) // timedelta(milliseconds=1)
            case date():
                made[name] = (one - EPOCH.date()).days
            case _:
                made[name] = one
    return made


def as_json(one: Any) -> bytes | None:
    """An event as Connect's JSON converter writes it."""
    if one is None:
        return None
    fields = [
        {"field": name, "optional": name != "id"} | NAMED.get(name, {"type": CONNECT.get(name)})
        for name in FULL
    ]
    sides = [
        {"type": "struct", "optional": True, "field": side, "fields": fields} for side in ("before", "after")
    ]
    payload = one | {side: jsons(one[side]) for side in ("before", "after")}
    return json.dumps({"schema": {"type": "struct", "fields": sides}, "payload": payload}).encode()


def parse(lines: Any, schema: pa.Schema = SCHEMA, **settings: Any) -> Any:
    return ChangeParser(schema, ("id",), **settings).parse(
        pa.array(lines, pa.binary()), lambda line: f"number={line + 1}"
    )


def saved(folder: Path, made: File, number: int = 7) -> str:
    """The file in a directory of schemas, as `protoc --include_imports` writes it."""
    files = [*(one for one in KNOWN if one.name in made.dependency), made]
    (folder / f"{number}.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())
    return str(folder)


@pytest.mark.promise(
    "Messages of Protobuf in the wire format of schema registries mean what Debezium's JSON of them does, "
    "nulls and zeros apart; a schema that cannot tell them, or has a type that Protobuf does not keep, is "
    "refused",
    rule="`cdc/wire/protobuf.py`",
    also=[
        "::test_schemas_that_cannot_be_exact_are_refused",
        "::test_a_number_of_which_nothing_is_told_is_no_time",
        "::test_messages_that_do_not_fit_their_schema_are_refused",
        "::test_a_registry_gives_compiled_files_and_what_they_refer_to",
    ],
)
@pytest.mark.parametrize("null", ["optional", "wrapper"])
def test_messages_of_protobuf_mean_what_their_json_does(null: str, tmp_path: Path) -> None:
    made = file(null)
    of = classes(made)
    decoder = Decoder(saved(tmp_path, made))
    messages = [None if one is None else wire(put(of["Envelope"](), one)) for one in EVENTS]
    lines = decoder.values(pa.array(messages, pa.binary()))
    found, wanted = parse(lines), parse(map(as_json, EVENTS))
    assert found.rows.equals(wanted.rows) and found.rows.num_rows == 9
    assert (found.events, found.tombstones) == (wanted.events, wanted.tombstones) == (7, 1)
    # Nulls and zeros stay apart, one by one.
    rows = [{name: row[name] for name in FULL} for row in found.rows.to_pylist()]
    assert [rows[0], rows[1], rows[3]] == [FULL, ZERO, NULL]
    assert pickle.loads(pickle.dumps(decoder)).values(pa.array(messages[:1])) == lines.slice(0, 1)
    # Columns of a new collection are those that JSON gives, but for the names that Protobuf leaves out.
    sides = [
        json.loads(text)["schema"]["fields"][1]["fields"] for text in (lines[0].as_py(), as_json(EVENTS[0]))
    ]
    assert [one["optional"] for one in sides[0]] == [one["optional"] for one in sides[1]]
    assert [one["type"] for one in sides[0]] == [one["type"] for one in sides[1]]


def test_values_of_numbers_that_json_does_not_have_and_of_other_widths(tmp_path: Path) -> None:
    columns = [("id", "int64", None), *((kind, kind, None) for kind in sorted(KINDS.keys() - BOXED.keys()))]
    columns += [("ratio", "double", None), ("part", "float", None)]
    made = file(columns=columns)
    of = classes(made)
    values: dict[str, Any] = dict.fromkeys((name for name, *_ in columns), 2**31 - 1)
    values |= {"uint64": 2**64 - 1, "fixed64": 2**63, "uint32": 2**32 - 1, "fixed32": 2**32 - 1, "sint32": -1}
    values |= {"sfixed64": -(2**63), "ratio": float("inf"), "part": float("nan")}
    lines = Decoder(saved(tmp_path, made)).values(
        pa.array([wire(put(of["Envelope"](), event("c", 5, None, values)))])
    )
    row = json.loads(lines[0].as_py())["payload"]["after"]
    assert row == values | {"ratio": "Infinity", "part": "NaN"}
    with pytest.raises(InvalidUpdates, match="uint64"):
        parse(lines, pa.schema([SCHEMA.field("id"), ("uint64", pa.int64())]))


def test_keys_heartbeats_and_marks_have_no_nulls_to_tell(tmp_path: Path) -> None:
    made = file()
    of = classes(made)
    saved(tmp_path, made)
    own = File(name="own", package="io.debezium.connector.common", syntax="proto3")
    mark = own.message_type.add(name="TransactionMetadataValue")
    for name, kind in (("status", "string"), ("id", "string"), ("event_count", "int64")):
        add(mark, name, kind, "optional" if kind == "int64" else "")
    part = mark.nested_type.add(name="collection")
    add(part, "data_collection", "string")
    add(mark, "data_collections", f".{own.package}.TransactionMetadataValue.collection", label=3)
    add(own.message_type.add(name="Heartbeat"), "ts_ms", "int64")
    other = classes(own)
    decoder = Decoder(saved(tmp_path, own, 8))
    end = other["TransactionMetadataValue"](status="END", id="5:9", event_count=0)
    end.data_collections.add(data_collection="a.b")
    begin = other["TransactionMetadataValue"](status="BEGIN", id="5:9")
    beat = other["Heartbeat"](ts_ms=0)
    messages = [wire(end, number=8), wire(begin, number=8), wire(beat, b"\x02\x02", 8)]
    texts = [json.loads(one)["payload"] for one in decoder.values(pa.array(messages)).to_pylist()]
    assert texts == [
        {"status": "END", "id": "5:9", "event_count": 0, "data_collections": [{"data_collection": "a.b"}]},
        {"status": "BEGIN", "id": "5:9", "event_count": None, "data_collections": []},
        {"ts_ms": 0},
    ]
    # The second message of its schema, and without bytes: its fields are 0.
    keys = decoder.keys(pa.array([wire(of["Key"](id=5), b"\x02\x02"), wire(of["Key"](), b"\x02\x02"), None]))
    assert [None if one is None else json.loads(one)["payload"] for one in keys.to_pylist()] == [
        *({"id": 5}, {"id": 0}, None)
    ]
    # As a value it is a row, whose nulls are not told.
    with pytest.raises(UsageError, match=r"optional\.for\.nullables"):
        decoder.values(pa.array([wire(of["Key"](id=5), b"\x02\x02")]))


def test_an_inner_message_is_found_by_its_indexes(tmp_path: Path) -> None:
    made = file()
    value = put(classes(made)["Value"](), ZERO)
    # A count of none is the first message, also if it is written at length.
    first = wire(put(classes(made)["Envelope"](), EVENTS[1]), b"\x80\0")
    (text,) = Decoder(saved(tmp_path, made)).values(pa.array([first])).to_pylist()
    assert json.loads(text)["payload"]["after"] == jsons(ZERO)
    # Two indexes, 0 and 0: `Envelope.Value`.
    (text,) = Decoder(saved(tmp_path, made)).keys(pa.array([wire(value, b"\x04\0\0")])).to_pylist()
    assert json.loads(text)["payload"] == jsons(ZERO)


def test_decimals_of_other_scales_are_made_exact_or_refused(tmp_path: Path) -> None:
    made = file(columns=[*COLUMNS, ("free", ".confluent.type.Decimal", None)])
    of = classes(made)["Envelope"]
    decoder = Decoder(saved(tmp_path, made))
    for digits, scale, wanted in ((-5, 0, "-5.00"), (1, -1, "10.00"), (-12_500, 4, "-1.25"), (1, 3, None)):
        one = put(of(), event("c", 5, None, {"id": 1}))
        for to in (one.after.price, one.after.free):
            to.value, to.scale = digits.to_bytes(3, "big", signed=True), scale
        (line,) = decoder.values(pa.array([wire(one)])).to_pylist()
        if wanted is None:
            assert b"a decimal has the scale 3, and its column 2" in line
        else:
            schema = pa.schema([*SCHEMA, ("free", pa.decimal128(8, 4))])
            (row,) = parse([line], schema).rows.to_pylist()
            assert row["price"] == row["free"] == Decimal(wanted)
    one.after.price.Clear()
    one.after.price.scale = 2
    (line,) = decoder.values(pa.array([wire(one)])).to_pylist()
    assert b"a decimal has no digits" in line


@pytest.mark.parametrize(
    ("name", "parts", "reason"),
    [
        ("day", {"year": 2023, "month": 2, "day": 29}, "there is no date 2023-2-29"),
        ("day", {"year": 2023}, "there is no date 2023-0-0"),
        ("day", {"year": 1582, "month": 10, "day": 14}, "either calendar"),
        ("clock", {"hours": 24}, "no time of day"),
        ("clock", {"minutes": -1}, "no time of day"),
        ("clock", {"nanos": 1}, "no milliseconds"),
        ("at", {"nanos": 1_500_000}, "no milliseconds"),
        ("at", {"nanos": -1_000_000}, "no milliseconds"),
    ],
)
def test_dates_and_times_that_are_none_or_finer_are_refused(
    name: str, parts: dict[str, int], reason: str, tmp_path: Path
) -> None:
    made = file()
    one = put(classes(made)["Envelope"](), event("c", 5, None, {"id": 1, name: parts}))
    (line,) = Decoder(saved(tmp_path, made)).values(pa.array([wire(one)])).to_pylist()
    assert reason.encode() in line and not line.startswith(b"{")


@pytest.mark.parametrize(
    ("parts", "days"),
    [
        ((1582, 10, 15), -141_427),
        ((2000, 2, 29), 11_016),
        ((9999, 12, 31), 2_932_896),
        ((10_000, 3, 1), 2_932_957),
    ],
)
def test_days_are_counted_in_any_year(parts: Any, days: int, tmp_path: Path) -> None:
    made = file()
    told = dict(zip(("year", "month", "day"), parts, strict=True))
    one = put(classes(made)["Envelope"](), event("c", 5, None, {"id": 1, "day": told}))
    (line,) = Decoder(saved(tmp_path, made)).values(pa.array([wire(one)])).to_pylist()
    assert json.loads(line)["payload"]["after"]["day"] == days


def test_a_number_of_which_nothing_is_told_is_no_time(tmp_path: Path) -> None:
    made = file()
    messages = [wire(put(classes(made)["Envelope"](), event("c", 5, None, FULL | {"big": 5})))] * 50
    lines = Decoder(saved(tmp_path, made)).values(pa.array(messages))
    for kind in (pa.timestamp("us"), pa.date32()):
        for some in (lines, lines.slice(0, 1)):
            with pytest.raises(InvalidUpdates, match=r"'number'.*time\.precision\.mode=connect"):
                parse(some, pa.schema([SCHEMA.field("id"), ("number", kind)]))
    for kind in (pa.int64(), pa.float64(), pa.decimal128(20, 0)):
        assert (
            parse(lines, pa.schema([SCHEMA.field("id"), ("big", kind)])).rows["big"].to_pylist() == [5] * 50
        )


def _repeated(made: File, envelope: Any, row: Any) -> None:
    add(row, "tags", "string", label=3)


def _map(made: File, envelope: Any, row: Any) -> None:
    entry = row.nested_type.add(name="TagsEntry")
    add(entry, "key", "string")
    add(entry, "value", "string")
    entry.options.map_entry = True
    add(row, "tags", ".bank.public.items.Envelope.Value.TagsEntry", label=3)


def _itself(made: File, envelope: Any, row: Any) -> None:
    add(row, "next", ".bank.public.items.Envelope.Value", "optional")


def _oneof(made: File, envelope: Any, row: Any) -> None:
    # Those of optional fields come last.
    row.oneof_decl.insert(0, descriptor_pb2.OneofDescriptorProto(name="either"))
    for one in row.field:
        one.oneof_index += 1 if one.proto3_optional else 0
        if not one.proto3_optional:
            one.ClearField("oneof_index")
    for name in ("left", "right"):
        add(row, name, "string")
        row.field[-1].oneof_index = 0


def _group(made: File, envelope: Any, row: Any) -> None:
    made.syntax = "proto2"
    for message in (envelope, row, *envelope.nested_type):
        del message.oneof_decl[:]
        for one in message.field:
            one.ClearField("proto3_optional")
            one.ClearField("oneof_index")
    row.nested_type.add(name="G")
    row.field.add(name="g", number=99, type=10, label=1, type_name=".bank.public.items.Envelope.Value.G")


def _moment(made: File, envelope: Any, row: Any) -> None:
    # Of Debezium's own fields only this one shows that nulls are not told.
    at = next(at for at, one in enumerate(envelope.field) if one.name == "ts_ms")
    del envelope.field[at], envelope.oneof_decl[-1]
    add(envelope, "ts_ms", "int64")


@pytest.mark.parametrize(
    ("null", "extra", "reason"),
    [
        ("", None, r"Envelope' a null cannot be told from 0.*optional\.for\.nullables=true"),
        ("optional", _moment, "a null cannot be told from 0"),
        (
            "optional",
            _repeated,
            r"'after\.tags' is repeated|'before\.tags' is repeated.*column\.exclude\.list",
        ),
        ("wrapper", _map, "tags' is a map"),
        ("optional", _itself, "next' holds itself"),
        ("optional", _oneof, "left' is one of a oneof"),
        ("optional", _group, "g' is a group"),
    ],
)
def test_schemas_that_cannot_be_exact_are_refused(null: str, extra: Any, reason: str, tmp_path: Path) -> None:
    made = file(null, extra=extra)
    decoder = Decoder(saved(tmp_path, made))
    message = wire(put(classes(made)["Envelope"](), event("c", 5, None, {"id": 1})))
    with pytest.raises(UsageError, match=reason):
        decoder.values(pa.array([message]))


def test_messages_that_do_not_fit_their_schema_are_refused(tmp_path: Path) -> None:
    made = file()
    of = classes(made)
    wider = classes(file(columns=[*COLUMNS, ("more", "string", None)]))["Envelope"]
    good = wire(put(of["Envelope"](), EVENTS[0])) or b""
    inner = put(wider(), event("c", 5, None, FULL | {"more": "x"}))
    head = good[:5]
    broken = {
        good[:-3]: "its bytes do not match its Protobuf schema",
        good + b"\x07": "its bytes do not match its Protobuf schema",
        head + b"\0\x1a\x02\x08": "its bytes do not match its Protobuf schema",
        head + b"\0\x22\x01\xff": "its bytes do not match its Protobuf schema",
        good + b"\x98\x06\x01": "fields, or values of an enumeration, that its Protobuf schema does not have",
        wire(inner) or b"": "fields, or values of an enumeration",
        head + b"\x02\x06" + good[6:]: "its schema has no message 3",
        head + b"\x04\0\x06" + good[6:]: "its schema has no message 0.3",
        head + b"\x02\x01" + good[6:]: "are negative",
        head + b"\x01": "are negative",
        head: "it ends amid the indexes",
        head + b"\x06\0": "it ends amid the indexes",
        head + b"\x80": "it ends amid the indexes",
        head + b"\xff" * 9: "is too large",
    }
    lines = Decoder(saved(tmp_path, made)).values(pa.array([good, *broken], pa.binary()))
    for line, (message, reason) in zip(lines[1:].to_pylist(), broken.items(), strict=True):
        assert line.startswith(b"cannot be decoded: ") and reason in line.decode(), (message, line)
    parsed = parse(lines, rejects=True)
    assert [one.line for one in parsed.rejects] == [*range(1, len(broken) + 1)] and parsed.events == 1
    with pytest.raises(InvalidUpdates, match="number=2"):
        parse(lines)
    with pytest.raises(UsageError, match=r"schema 9, and .*9\.avsc cannot be read.*as 9\.desc"):
        Decoder(str(tmp_path)).values(pa.array([wire(of["Envelope"](), number=9)]))


def test_values_of_an_enumeration_are_their_names(tmp_path: Path) -> None:
    def extra(made: File, envelope: Any, row: Any) -> None:
        kinds = made.enum_type.add(name="Kind")
        kinds.value.add(name="a", number=0)
        kinds.value.add(name="b", number=1)
        add(row, "kind", ".bank.public.items.Kind", "optional", enum=True)
        add(row, "sort", ".bank.public.items.Kind", enum=True)

    made = file(extra=extra)
    of = classes(made)["Envelope"]
    rows = [{"id": 1, "kind": 1, "sort": 1}, {"id": 1, "kind": 0}, {"id": 1}, {"id": 1, "kind": 5}]
    messages = [wire(put(of(), event("c", 5, None, one))) for one in rows]
    *good, bad = Decoder(saved(tmp_path, made)).values(pa.array(messages)).to_pylist()
    found = [json.loads(one)["payload"]["after"] for one in good]
    assert [(one["kind"], one["sort"]) for one in found] == [("b", "b"), ("a", "a"), (None, "a")]
    assert b"the enumeration of 'kind' has no value 5" in bad


def test_a_registry_gives_compiled_files_and_what_they_refer_to(tmp_path: Path) -> None:
    made = file()
    row = made.message_type[0].nested_type[0]
    # The row is in a file of its own; the converter's own ones are in none.
    other = File(name="default", package="bank.public.items", syntax="proto3")
    other.dependency.extend(made.dependency)
    other.message_type.add().CopyFrom(row)
    del made.message_type[0].nested_type[0]
    for one in made.message_type[0].field[:2]:
        one.type_name = ".bank.public.items.Value"
    del made.dependency[:]
    made.dependency.append("row.proto")
    # As the converter writes types: relative to the package, and without their kind.
    for one in (*made.message_type[0].field, *other.message_type[0].field):
        if one.type_name:
            one.type_name = one.type_name.removeprefix(".").removeprefix("bank.public.items.")
            one.ClearField("type")
    pool = descriptor_pool.DescriptorPool()
    imported = File()
    imported.CopyFrom(other)
    imported.name = "row.proto"
    for each in (*KNOWN, imported, made):
        pool.Add(each)
    of = message_factory.GetMessageClass(pool.FindMessageTypeByName("bank.public.items.Envelope"))

    def told(one: File, refers: Any = ()) -> dict[str, Any]:
        text = base64.b64encode(one.SerializeToString()).decode()
        return {"schema": text, "schemaType": "PROTOBUF", "references": list(refers)}

    refers = [{"name": "row.proto", "subject": "the row", "version": 3}]
    text = {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"}
    missing = File(name="default", syntax="proto3", dependency=["gone.proto"])
    schemas = {
        "/schemas/ids/7": text,
        "/schemas/ids/7?format=serialized": told(made, refers),
        "/subjects/the%20row/versions/3?format=serialized": told(other),
        **dict.fromkeys(("/schemas/ids/8", "/schemas/ids/8?format=serialized"), text),
        **dict.fromkeys(("/schemas/ids/9", "/schemas/ids/9?format=serialized"), told(missing)),
    }
    schemas |= dict.fromkeys(
        ("/schemas/ids/10", "/schemas/ids/10?format=serialized"), text | {"schema": "////"}
    )
    asked: list[Any] = []
    with registry(schemas, asked) as address:
        decoder = Decoder(f"http://{address}")
        messages = [None if one is None else wire(put(of(), one)) for one in EVENTS]
        assert parse(decoder.values(pa.array(messages))).rows.equals(parse(map(as_json, EVENTS)).rows)
        assert [path for path, _ in asked] == [*schemas][:3]
        for number, reason in (
            (8, "as its text, and not compiled"),
            (9, r"imports 'gone\.proto', which is not there"),
            (10, "is not one of Protobuf"),
            (11, "answers 404"),
        ):
            with pytest.raises(UsageError, match=reason):
                decoder.values(pa.array([wire(of(), number=number)]))


def test_files_that_are_no_schemas_are_errors(tmp_path: Path) -> None:
    message = wire(classes(file())["Envelope"]())
    twice = File(name="a", syntax="proto3", dependency=["a"])
    wrong = File(name="a", syntax="proto3")
    add(wrong.message_type.add(name="M"), "x", ".Gone")
    for data, reason in (
        (b"\xff", "is not one of Protobuf, compiled"),
        (b"", "has no file"),
        (descriptor_pb2.FileDescriptorSet(file=[twice]).SerializeToString(), "imports itself"),
        (descriptor_pb2.FileDescriptorSet(file=[wrong]).SerializeToString(), "is not one of Protobuf: "),
    ):
        (tmp_path / "7.desc").write_bytes(data)
        with pytest.raises(UsageError, match=reason):
            Decoder(str(tmp_path)).values(pa.array([message]))


def test_flattened_events_and_other_names_of_columns(tmp_path: Path) -> None:
    made = File(name="default", package="bank.public.items", syntax="proto3")
    value = made.message_type.add(name="Value")
    add(value, "id", "int64")
    for name, kind in (
        ("_time", "int64"),
        ("__op", "string"),
        ("__deleted", "string"),
        ("__source_lsn", "int64"),
    ):
        add(value, name, kind, "optional")
    of = classes(made)["Value"]
    rows = [
        {"id": 0, "_time": 0, "__op": "c", "__source_lsn": 5},
        {"id": 0, "__deleted": "true", "__source_lsn": 6},
    ]
    decoder = Decoder(saved(tmp_path, made), flattened=True, rename={"_time": "at"})
    lines = decoder.values(pa.array([wire(put(of(), one)) for one in rows]))
    schema = pa.schema([SCHEMA.field("id"), ("at", pa.int64())])
    found = parse(lines, schema, old_rows="stored").rows.to_pylist()
    assert [(row["id"], row["at"], row["_time"], row["_removed"]) for row in found] == [
        (0, 0, 5, False),
        (0, None, 6, True),
    ]


def test_messages_are_read_and_taken_in_without_spark(tmp_path: Path) -> None:
    made = file()
    of = classes(made)
    place = saved(tmp_path, made)
    messages = [None if one is None else wire(put(of["Envelope"](), one)) for one in EVENTS]
    read = tidelake.cdc.read
    found, wanted = list(read(messages, schemas=place)), list(read(map(as_json, EVENTS)))
    assert [(one.line, one.op, one.before, one.after, one.time_ms, one.position) for one in found] == [
        (one.line, one.op, one.before, one.after, one.time_ms, one.position) for one in wanted
    ]
    with pytest.raises(UsageError, match="are for events of Debezium"):
        read([], "maxwell", schemas=place)
    with pytest.raises(InvalidUpdates, match=r"line 0: .*wire format"):
        list(read([b"{}"], schemas=place))

    def record(at: int, value: bytes | None) -> dict[str, Any]:
        key = wire(of["Key"](id=at), b"\x02\x02")
        return {"topic": "t", "partition": 0, "offset": at, "value": value, "key": key}

    options: dict[str, Any] = {"time": "source.lsn"}
    histories = []
    with tidelake.open(tmp_path / "lake") as lake:
        for name, values in (("a", messages), ("b", [*map(as_json, EVENTS)])):
            to = lake.create(name, SCHEMA, key=["id"])
            given = options if name == "b" else options | {"schemas": place}
            if name == "b":
                records = [record(at, one) | {"key": None} for at, one in enumerate(values)]
            else:
                records = [record(at, one) for at, one in enumerate(values)]
            report = lake.ingest(iter(records), to, **given)
            again = lake.ingest(iter(records), to, **given)
            assert (report.events, again.events) == (7, 0)
            histories.append(
                to.updates(0, to.upper).read_all().sort_by([("_time", "ascending"), ("_diff", "ascending")])
            )
        assert histories[0].equals(histories[1]) and histories[0].num_rows == 9
        with pytest.raises(UsageError, match="is for messages, and not for lines of files"):
            lake.ingest(tmp_path, "a", schemas=place)
        with pytest.raises(UsageError, match="is for the envelope 'debezium'"):
            lake.ingest([], "a", "maxwell", schemas=place)

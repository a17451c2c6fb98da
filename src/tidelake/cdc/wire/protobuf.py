"""Messages of Protobuf as Kafka Connect's JSON: `{"schema": ..., "payload": ...}`.

Owns how a compiled schema becomes one of Connect, and a message its JSON, where both can be exact. What a
schema cannot tell is refused:

- proto3 writes a null like 0, except of fields that can be absent. Confluent's converter makes the nullable
  ones such if it is told to, and a schema shows whether it was.
- A repeated field has no null, so no column is one.
- Of the names of Connect's types only those are left that Protobuf has a message for. A number may be any of
  Debezium's dates and times: it stays a number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.debezium.connectschema import UNTOLD
from tidelake.cdc.wire.connectjson import DECIMAL, Convert, begun, finite
from tidelake.cdc.wire.protofiles import params_of, pool_of
from tidelake.errors import UsageError

_FD = FieldDescriptor
_BASIC = {
    **dict.fromkeys((_FD.TYPE_INT32, _FD.TYPE_SINT32, _FD.TYPE_SFIXED32), "int32"),
    **dict.fromkeys((_FD.TYPE_INT64, _FD.TYPE_SINT64, _FD.TYPE_SFIXED64), "int64"),
    **dict.fromkeys((_FD.TYPE_UINT32, _FD.TYPE_FIXED32, _FD.TYPE_UINT64, _FD.TYPE_FIXED64), "int64"),
    **{_FD.TYPE_BOOL: "boolean", _FD.TYPE_FLOAT: "float", _FD.TYPE_DOUBLE: "double"},
    **{_FD.TYPE_STRING: "string", _FD.TYPE_BYTES: "bytes", _FD.TYPE_ENUM: "string"},
}
_SMALL = ("int8", "int16")
_DECIMAL, _DAY = "confluent.type.Decimal", "google.type.Date"
_CLOCK, _MOMENT = "google.type.TimeOfDay", "google.protobuf.Timestamp"
_WRAPPERS = frozenset(one.full_name for one in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())
# Debezium's, of which the converter leaves the package out.
_SCALED = "VariableScaleDecimal"
_SIDES = ("before", "after")
# Messages of these are no rows: heartbeats, marks of transactions, statements.
_OWN = "io.debezium."
# Java counts days before it by the Julian calendar, others do not.
_GREGORIAN = (1582, 10, 15)
# The calendar repeats after so many years, which have so many days.
_YEARS, _DAYS = 400, 146_097
_DIGITS_MAX = 1_000
_NULLS = (
    "a null cannot be told from 0 or an empty text: let the connector's converter tell them "
    "(value.converter.optional.for.nullables=true), and take the topic anew"
)


@dataclass(frozen=True)
class ProtobufSchema:
    """How the messages of one schema are read.

    Attributes:
        file: the compiled file.
        pool: its types.
    """

    file: descriptor_pb2.FileDescriptorProto
    pool: descriptor_pool.DescriptorPool
    _readers: dict[tuple[tuple[int, ...], bool], "_Reader"] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, bytes]) -> "ProtobufSchema":
        """That of a `ProtobufSource`."""
        files: list[descriptor_pb2.FileDescriptorProto] = []
        try:
            for name, data in given.items():
                if not name:
                    files += descriptor_pb2.FileDescriptorSet.FromString(data).file
                    continue
                files.append(descriptor_pb2.FileDescriptorProto.FromString(data))
                files[-1].name = name
        except DecodeError as error:
            raise UsageError(f"a schema is not one of Protobuf, compiled: {error}") from None
        if not files:
            raise UsageError("a schema of Protobuf has no file: compile one with `protoc`")
        return cls(files[-1], pool_of(files))

    def text(self, data: bytes, *, key: bool) -> bytes:
        """A message, or the key of one, as JSON."""
        path, at = _indexes(data)
        reader = self._readers.get((path, key))
        if reader is None:
            reader = self._readers[path, key] = _Reader.of(self._message(path), key=key)
        return reader.text(data[at:])

    def _message(self, path: tuple[int, ...]) -> Descriptor:
        messages, name = self.file.message_type, self.file.package
        for at in path:
            if at >= len(messages):
                raise Unfit(f"its schema has no message {'.'.join(map(str, path))}")
            name = f"{name}.{messages[at].name}".lstrip(".")
            messages = messages[at].nested_type
        return self.pool.FindMessageTypeByName(name)


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of a schema it is, by its place and those that it stands in; and where it begins."""
    if data[:1] == b"\0":
        return (0,), 1
    count, at = _varint(data, 0)
    found: list[int] = []
    while len(found) < count:
        index, at = _varint(data, at)
        found.append(index)
    if count < 0 or any(index < 0 for index in found):
        raise Unfit("the indexes of its message are negative, which is not Confluent's format")
    return tuple(found) or (0,), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise Unfit("it ends amid the indexes of its message")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise Unfit("an index of its message is too large")


@dataclass(frozen=True)
class _Reader:
    """Reads one message of a schema."""

    parse: Callable[[bytes], Any]
    prefix: bytes
    convert: Callable[[Any], Any]

    @classmethod
    def of(cls, message: Descriptor, *, key: bool) -> "_Reader":
        shape = _Shape(message)
        kind, convert = shape.message(message, (), optional=False)
        if not key:
            shape.check_nulls()
        return cls(message_factory.GetMessageClass(message).FromString, begun(kind), convert)

    def text(self, data: bytes) -> bytes:
        try:
            message = self.parse(data)
        except DecodeError as error:
            raise Unfit(f"its bytes do not match its Protobuf schema: {error}") from None
        if not message.IsInitialized():
            raise Unfit("its bytes do not match its Protobuf schema: a required field is not there")
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != size:
            raise Unfit("it has fields, or values of an enumeration, that its Protobuf schema does not have")
        return b"%b%b}" % (self.prefix, msgspec.json.encode(self.convert(message)))


@dataclass
class _Shape:
    """What messages of one kind become.

    Attributes:
        root: the whole message.
    """

    root: Descriptor

    @cached_property
    def _all(self) -> list[FieldDescriptor]:
        """The fields of all its messages."""
        messages = [self.root]
        for message in messages:
            inner = (one.message_type for one in message.fields if one.message_type is not None)
            messages += {of.full_name: of for of in inner if of not in messages}.values()
        return [one for message in messages if message.full_name not in _WRAPPERS for one in message.fields]

    @property
    def _fields(self) -> Mapping[str, FieldDescriptor]:
        found: Mapping[str, FieldDescriptor] = self.root.fields_by_name
        return found

    @property
    def _is_own(self) -> bool:
        """Whether it is a message of Debezium's own, without rows."""
        return str(self.root.full_name).startswith(_OWN)

    @property
    def _is_event(self) -> bool:
        """Whether it is an event of Debezium, with rows in it; else it is a row, or of Debezium's own."""
        source = self._fields.get("source")
        sides = any(side in self._fields for side in _SIDES)
        return sides and "op" in self._fields and source is not None and source.message_type is not None

    def check_nulls(self) -> None:
        """Refuse a schema that writes a null like another value."""
        if self._is_own:
            return
        moment = self._fields.get("ts_ms") if self._is_event else None
        # Debezium's schema of events says that it may be null.
        there = any(map(_may_be_absent, self._all)) if moment is None else _may_be_absent(moment)
        if not there:
            raise UsageError(f"in the Protobuf schema of {self.root.full_name!r} {_NULLS}")

    @property
    def _labels(self) -> bool:
        """Whether the schema says which fields are nullable by `optional`; else any message may be."""
        return any(one.containing_oneof is not None for one in self._all)

    def message(
        self, message: Descriptor, path: tuple[FieldDescriptor, ...], *, optional: bool
    ) -> tuple[dict[str, Any], Callable[[Any], Any]]:
        """The schema of Connect for a message, and what makes its value."""
        fields: list[dict[str, Any]] = []
        empty: dict[str, Any] = {}
        numbers: dict[int, tuple[str, Convert]] = {}
        for one in message.fields:
            kind, convert = self._field(one, (*path, one))
            fields.append(kind | {"field": one.name})
            numbers[one.number] = one.name, convert
            if one.is_repeated:
                empty[one.name] = []
            elif one.has_presence:
                empty[one.name] = None
            else:
                empty[one.name] = one.default_value if convert is None else convert(one.default_value)

        # The message's own method, as a field may have its name.
        listed = message_factory.GetMessageClass(message).ListFields

        def convert_all(value: Any) -> dict[str, Any]:
            row = empty.copy()
            for one, found in listed(value):
                name, convert = numbers[one.number]
                row[name] = found if convert is None else convert(found)
            return row

        is_scaled = message.name == _SCALED and empty.keys() == {"scale", "value"}
        name = f"io.debezium.data.{_SCALED}" if is_scaled else message.full_name
        return {"type": "struct", "name": name, "fields": fields, "optional": optional}, convert_all

    def _field(
        self, one: FieldDescriptor, path: tuple[FieldDescriptor, ...]
    ) -> tuple[dict[str, Any], Convert]:
        where = ".".join(of.name for of in path)
        of = one.message_type
        if one.type == _FD.TYPE_GROUP:
            raise UsageError(f"the type of {where!r} is a group, which no column can keep")
        if one.containing_oneof is not None and len(one.containing_oneof.fields) > 1:
            raise UsageError(f"the type of {where!r} is one of a oneof, which no column can keep")
        if one.is_repeated and (not self._is_apart(path) or _is_entry(of)):
            what = "a map" if _is_entry(of) else "repeated"
            raise UsageError(
                f"the type of {where!r} is {what}: Protobuf cannot tell its null from no items. Let the "
                "connector write Avro or JSON, or leave the column out (column.exclude.list)"
            )
        if of is not None and of in (self.root, *(other.message_type for other in path[:-1])):
            raise UsageError(f"the type of {where!r} holds itself, which no collection can keep")
        kind, convert = self._value(one, path)
        if not one.is_repeated:
            return kind, convert
        array = {"type": "array", "items": kind, "optional": False}
        inner = convert
        return array, list if inner is None else lambda values: [inner(value) for value in values]

    def _is_apart(self, path: tuple[FieldDescriptor, ...]) -> bool:
        """Whether a field is of no row."""
        if self._is_event:
            return path[0].name not in _SIDES
        return self._is_own

    def _value(
        self, one: FieldDescriptor, path: tuple[FieldDescriptor, ...]
    ) -> tuple[dict[str, Any], Convert]:
        of = one.message_type
        if of is None:
            return _scalar(one, params_of(one), optional=one.has_presence and not one.is_required)
        name = of.full_name
        optional = one.containing_oneof is not None or not (self._labels or one.is_required)
        if name in _WRAPPERS:
            kind, inner = _scalar(of.fields_by_name["value"], params_of(one), optional=True)
            return kind, (lambda v: v.value) if inner is None else lambda v: inner(v.value)
        told: dict[str, Any] = {"optional": optional}
        if name == _DECIMAL:
            return _decimal(params_of(one), told)
        if name == _DAY:
            return told | {"type": "int32", "name": "org.apache.kafka.connect.data.Date"}, _days
        if name == _CLOCK:
            return told | {"type": "int32", "name": "org.apache.kafka.connect.data.Time"}, _clock
        if name == _MOMENT:
            return told | {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, _moment
        return self.message(of, path, optional=optional)


def _may_be_absent(one: FieldDescriptor) -> bool:
    """Whether it is a plain value that can be null."""
    of = one.message_type
    if one.is_repeated or one.is_required:
        return False
    return bool(one.has_presence) if of is None else of.full_name in _WRAPPERS


def _is_entry(message: Descriptor | None) -> bool:
    """Whether it is an entry of a map. Older converters do not mark them."""
    if message is None:
        return False
    entry = message.name.endswith("Entry") and [one.name for one in message.fields] == ["key", "value"]
    return entry or bool(message.GetOptions().map_entry)


def _scalar(
    one: FieldDescriptor, params: Mapping[str, str], *, optional: bool
) -> tuple[dict[str, Any], Convert]:
    kind: dict[str, Any] = {"type": _BASIC[one.type], "optional": optional}
    if one.type == _FD.TYPE_ENUM:
        names: dict[int, str] = {
            number: value.name for number, value in one.enum_type.values_by_number.items()
        }

        def symbol(number: int) -> str:
            if number not in names:
                raise Unfit(f"the enumeration of {one.name!r} has no value {number}")
            return names[number]

        return kind, symbol
    if kind["type"] in ("float", "double"):
        return kind, finite
    if kind["type"] in ("int32", "int64"):
        small = params.get("connect.type")
        return (kind | {"type": small} if small in _SMALL else kind | {"name": UNTOLD}), None
    return kind, None


def _decimal(params: Mapping[str, str], told: dict[str, Any]) -> tuple[dict[str, Any], Convert]:
    known = params.get("scale")
    if known is None:
        fields = [
            {"field": "scale", "type": "int32", "optional": False},
            {"field": "value", "type": "bytes", "optional": False},
        ]
        kind = {"type": "struct", "name": f"io.debezium.data.{_SCALED}", "fields": fields}
        return told | kind, lambda v: {"scale": v.scale, "value": _digits(v)}
    try:
        scale = int(known, 10)
    except ValueError:
        raise UsageError(f"the scale of a decimal is {known!r}, and no number") from None
    parameters = {"scale": str(scale)}
    if "precision" in params:
        parameters["connect.decimal.precision"] = params["precision"]

    def unscaled(value: Any) -> bytes:
        digits = _digits(value)
        shift = scale - value.scale
        if not shift:
            return digits
        number, places = int.from_bytes(digits, "big", signed=True), abs(shift)
        if places <= _DIGITS_MAX:
            number, left = (number * 10**places, 0) if shift > 0 else divmod(number, 10**places)
            if not left:
                return bytes(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))
        raise Unfit(f"a decimal has the scale {value.scale}, and its column {scale}")

    return told | {"type": "bytes", "name": DECIMAL, "parameters": parameters}, unscaled


def _digits(value: Any) -> bytes:
    found: bytes = value.value
    if not found:
        raise Unfit("a decimal has no digits")
    return found


def _days(value: Any) -> int:
    parts = value.year, value.month, value.day
    if parts < _GREGORIAN:
        raise Unfit(
            f"the date {'-'.join(map(str, parts))} is none, or before 1582-10-15, where it may be of either "
            "calendar: let the connector write numbers (time.precision.mode=adaptive)"
        )
    rounds, year = divmod(value.year, _YEARS)
    try:
        # A year of the same days, which Python's calendar has.
        days = date(_YEARS * 4 + year, value.month, value.day).toordinal()
    except ValueError:
        raise Unfit(f"there is no date {'-'.join(map(str, parts))}") from None
    whole: int = rounds - 4
    return days + whole * _DAYS - date(1970, 1, 1).toordinal()


def _clock(value: Any) -> int:
    within = zip((value.hours, value.minutes, value.seconds), (24, 60, 60), strict=True)
    if not all(0 <= part < end for part, end in within):
        raise Unfit("there is no time of day with these hours, minutes and seconds")
    seconds: int = (value.hours * 60 + value.minutes) * 60 + value.seconds
    return seconds * 1000 + _millis(value.nanos)


def _moment(value: Any) -> int:
    millis: int = value.seconds * 1000 + _millis(value.nanos)
    return millis


def _millis(nanos: int) -> int:
    millis, left = divmod(nanos, 1_000_000)
    if left or not 0 <= millis < 1000:
        raise Unfit(f"a time has {nanos} nanoseconds, which are no milliseconds: Connect's times have these")
    return millis

"""Compiled files of Protobuf: their types with those that they import, and what Confluent says of fields.

Owns the files that every schema may import. Must not know what messages mean.
"""

from functools import lru_cache
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from tidelake.errors import UsageError


def _file(name: str, package: str, message: str, **kinds: int) -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    of = made.message_type.add(name=message)
    for number, (one, kind) in enumerate(kinds.items(), 1):
        of.field.add(name=one, number=number, type=kind, label=1)
    return made


def _meta() -> descriptor_pb2.FileDescriptorProto:
    """What Confluent says of a field beside its type: options with the number 1088."""
    made = _file("confluent/meta.proto", "confluent", "Meta", doc=FieldDescriptor.TYPE_STRING)
    made.dependency.append("google/protobuf/descriptor.proto")
    meta = made.message_type[0]
    entry = meta.nested_type.add(name="ParamsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=9, label=1)
    meta.field.add(name="params", number=2, type=11, label=3, type_name=".confluent.Meta.ParamsEntry")
    meta.field.add(name="tags", number=3, type=9, label=3)
    for of in ("File", "Message", "Field", "Enum", "EnumValue"):
        name = {"EnumValue": "enum_value"}.get(of, of.lower()) + "_meta"
        to = f".google.protobuf.{of}Options"
        made.extension.add(name=name, number=1088, type=11, label=1, type_name=".confluent.Meta", extendee=to)
    return made


_INT = FieldDescriptor.TYPE_INT32
_COMMON = [
    descriptor_pb2.FileDescriptorProto.FromString(one.DESCRIPTOR.serialized_pb)
    for one in (
        *(any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2),
        *(timestamp_pb2, wrappers_pb2),
    )
] + [
    _meta(),
    _file(
        "confluent/type/decimal.proto",
        "confluent.type",
        "Decimal",
        value=FieldDescriptor.TYPE_BYTES,
        precision=FieldDescriptor.TYPE_UINT32,
        scale=_INT,
    ),
    _file("google/type/date.proto", "google.type", "Date", year=_INT, month=_INT, day=_INT),
    _file(
        "google/type/timeofday.proto",
        "google.type",
        "TimeOfDay",
        **dict.fromkeys(("hours", "minutes", "seconds", "nanos"), _INT),
    ),
]


@lru_cache(1)
def _options() -> Any:
    """A class that reads `field_meta` of the options of a field."""
    made = _file("options.proto", "", "Options")
    made.message_type[0].field.add(name="meta", number=1088, type=11, label=1, type_name=".confluent.Meta")
    made.dependency.append("confluent/meta.proto")
    pool = pool_of([made])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Options"))


def pool_of(files: list[descriptor_pb2.FileDescriptorProto]) -> descriptor_pool.DescriptorPool:
    """The files, and those that they import."""
    pool, known = descriptor_pool.DescriptorPool(), {one.name: one for one in _COMMON}
    known |= {one.name: one for one in files}
    done: set[str] = set()

    def add(one: descriptor_pb2.FileDescriptorProto, path: tuple[str, ...]) -> None:
        if one.name in done:
            return
        if one.name in path:
            raise UsageError(f"the file {one.name!r} of a schema imports itself")
        for other in one.dependency:
            if other not in known:
                raise UsageError(
                    f"the file {one.name!r} of a schema imports {other!r}, which is not there: compile it "
                    "with `protoc --include_imports`, or register it as a reference"
                )
            add(known[other], (*path, one.name))
        try:
            pool.Add(one)
        except TypeError as error:
            raise UsageError(f"a schema is not one of Protobuf: {error}") from None
        done.add(one.name)

    for one in files:
        add(one, ())
    return pool


def params_of(one: FieldDescriptor) -> dict[str, str]:
    """What Confluent says of a field."""
    try:
        return dict(_options().FromString(one.GetOptions().SerializeToString()).meta.params)
    except DecodeError as error:
        raise UsageError(f"the options of {one.full_name!r} are not Confluent's: {error}") from None

"""Messages as JSON texts of Debezium's events, of what their bytes are.

Owns the wire format of schema registries: a byte 0, the id of the schema in four bytes, and the value. A
message that cannot be decoded becomes a text that says why, which the parser refuses.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa

from tidelake.cdc.core.lineerrors import as_bytes, shown
from tidelake.cdc.core.ops import Unfit
from tidelake.cdc.wire.flattened import NULL, unflattened
from tidelake.cdc.wire.renamed import renamed
from tidelake.cdc.wire.schemas import AvroSource, ProtobufSource, Schemas, Source
from tidelake.errors import UsageError

Tombstones: TypeAlias = Literal["refuse", "ignore"]
_HEAD = 5
# The first bytes of what Glue's serializers write: their version, and whether it is compressed.
_GLUE = (b"\x03\x00", b"\x03\x05")


@dataclass
class Decoder:
    """Decodes messages. Picklable; each process asks for a schema once.

    Attributes:
        schemas: the place of the schemas, see `Schemas`; None: messages are JSON texts.
        flattened: the events are flattened by `ExtractNewRecordState`.
        tombstones: what a message without a value is, if they are: `"refuse"` is an error, `"ignore"` says
            that each follows an event on its deletion.
        rename: other names of columns, by name.
    """

    schemas: str | None = None
    flattened: bool = False
    tombstones: Tombstones = "refuse"
    rename: Mapping[str, str] = field(default_factory=dict)
    _places: Schemas | None = field(default=None, init=False, repr=False)
    _readers: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.tombstones not in get_args(Tombstones):
            raise UsageError(f"tombstones={self.tombstones!r} is unknown: use 'refuse' or 'ignore'")
        if self.schemas is None and not self.flattened and not self.rename:
            raise UsageError(
                "there is nothing to decode: give schemas=DIRECTORY or the address of a registry, "
                "flattened=True, or rename"
            )
        if len({*self.rename.values()}) < len(self.rename):
            raise UsageError(f"rename={dict(self.rename)!r} gives two columns one name")
        self._places = None if self.schemas is None else Schemas(self.schemas)

    def __reduce__(self) -> tuple[Any, ...]:
        # What was found is made of functions.
        return type(self), (self.schemas, self.flattened, self.tombstones, dict(self.rename))

    def batch(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Messages with values and, if they have any, keys, as texts."""
        columns = {name: messages.column(name) for name in messages.schema.names}
        columns["value"] = self.values(columns["value"])
        if "key" in columns:
            columns["key"] = self.keys(columns["key"])
        return pa.RecordBatch.from_pydict(columns)

    def values(self, messages: pa.Array) -> pa.Array:
        """The values of messages, as texts."""
        return self._texts(messages, self._value)

    def keys(self, messages: pa.Array) -> pa.Array:
        """The keys of messages, as texts."""
        return self._texts(messages, self._key)

    def _texts(self, messages: pa.Array, of: Callable[[bytes | None], bytes | None]) -> pa.Array:
        found: list[bytes | None] = []
        for one in as_bytes(messages).to_pylist():
            try:
                found.append(of(one))
            except Unfit as unfit:
                found.append(b"cannot be decoded: " + str(unfit).encode())
        return pa.array(found, pa.binary())

    def _value(self, message: bytes | None) -> bytes | None:
        if message is None or message.strip() == b"null":
            if self.flattened and self.tombstones == "refuse":
                raise Unfit(NULL)
            return None
        text = self._decoded(message)
        if self.flattened:
            text = unflattened(text)
        return renamed(text, self.rename) if self.rename else text

    def _key(self, message: bytes | None) -> bytes | None:
        if message is None:
            return None
        text = self._decoded(message, key=True)
        return renamed(text, self.rename, key=True) if self.rename else text

    def _decoded(self, message: bytes, *, key: bool = False) -> bytes:
        if self._places is None:
            return message
        if message[:2] in _GLUE:
            raise Unfit("it is in the format of AWS Glue's registry: let the connector write Confluent's")
        if message[:1] != b"\0" or len(message) < _HEAD:
            raise Unfit(
                f"it is not in the wire format of a schema registry (a byte 0, and the id of a schema): "
                f"{shown(message[:40])}"
            )
        number = int.from_bytes(message[1:_HEAD], "big")
        reader = self._readers.get(number)
        if reader is None:
            reader = self._readers[number] = _reader(self._places.of(number))
        text: bytes = reader.text(message[_HEAD:], key=key)
        return text


def decoder_of(
    schemas: str | PathLike[str] | None,
    flattened: bool,
    tombstones: Tombstones,
    rename: Mapping[str, str] | None,
) -> Decoder | None:
    """A decoder; None if there is nothing to decode."""
    if schemas is None and not flattened and not rename and tombstones == "refuse":
        return None
    return Decoder(None if schemas is None else fspath(schemas), flattened, tombstones, rename or {})


def _reader(source: Source) -> Any:
    match source:
        case AvroSource(schemas):
            return _module("avro", "fastavro").AvroSchema.of(schemas)
        case ProtobufSource(files):
            return _module("protobuf", "protobuf").ProtobufSchema.of(files)


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(f"tidelake.cdc.wire.{name}")
    except ImportError:
        raise UsageError(
            f"messages of {name.capitalize()} need the package {package}: install Tidelake with its extra "
            f"{name!r}"
        ) from None

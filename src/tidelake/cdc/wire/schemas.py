"""Schemas of Avro and Protobuf by their ids, from a directory or a schema registry.

Owns where a schema is, and that each is asked for once. In a directory, which all workers must reach, the
schema with the id 7 is the file `7.avsc`, or `7.desc`, which `protoc --include_imports -o 7.desc` has made. A
registry is one with the interface of Confluent's. Its user and
password are in the file `~/.netrc` of each machine that asks, as for curl, and nowhere else: a place is
printed, and travels with tasks.
"""

import base64
import binascii
import json
import netrc
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tidelake.errors import UsageError

_TIMEOUT_S = 30.0
_COMPILED = "?format=serialized"
_JSON = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True)
class AvroSource:
    """A schema of Avro.

    Attributes:
        schemas: as parsed JSON, after those that it refers to.
    """

    schemas: list[Any]


@dataclass(frozen=True)
class ProtobufSource:
    """A file of Protobuf, compiled.

    Attributes:
        files: the bytes of each as a `FileDescriptorProto`, by the names that others import it by, and of
            this one at the end. In a directory the bytes of a `FileDescriptorSet` under no name.
    """

    files: dict[str, bytes]


Source: TypeAlias = AvroSource | ProtobufSource


@dataclass
class Schemas:
    """The schemas of one place.

    Attributes:
        place: a directory, or the address of a registry, `http://HOST:PORT`.
    """

    place: str
    _found: dict[int, Source] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self._is_remote and "@" in urllib.parse.urlsplit(self.place).netloc:
            raise UsageError(
                "the address of a schema registry has no user and password: put `machine HOST login USER "
                "password PASSWORD` into ~/.netrc, on the machines of workers too"
            )

    @property
    def _is_remote(self) -> bool:
        return urllib.parse.urlsplit(self.place).scheme in ("http", "https")

    def of(self, number: int) -> Source:
        """A schema, with those that it refers to."""
        found = self._found.get(number)
        if found is None:
            found = self._asked(number) if self._is_remote else self._read(number)
            self._found[number] = found
        return found

    def _read(self, number: int) -> Source:
        path = Path(self.place) / f"{number}.avsc"
        compiled = path.with_suffix(".desc")
        try:
            if path.exists() or not compiled.exists():
                return AvroSource([json.loads(path.read_text(encoding="utf-8"))])
            return ProtobufSource({"": compiled.read_bytes()})
        except OSError as error:
            raise UsageError(
                f"a message has the schema {number}, and {path} cannot be read: {error.strerror}. Put the "
                f"schema there (of Protobuf, as {compiled.name}), or give the address of the registry"
            ) from None
        except ValueError as error:
            raise UsageError(f"{path} is not an Avro schema: {error}") from None

    def _asked(self, number: int) -> Source:
        path = f"/schemas/ids/{number}"
        told = self._schema(path)
        kind = told.get("schemaType", "AVRO")
        if kind == "AVRO":
            try:
                return AvroSource([json.loads(text) for text in self._texts(told, path).values()])
            except ValueError as error:
                raise UsageError(f"{self.place} returns no schema of Avro for {path}: {error}") from None
        if kind == "PROTOBUF":
            texts = self._texts(self._schema(path + _COMPILED), path, _COMPILED)
            return ProtobufSource({name: self._bytes(text) for name, text in texts.items()})
        raise UsageError(
            f"the schema at {path} is of {kind}: let the connector write Avro, Protobuf or JSON "
            "(value.converter, key.converter)"
        )

    def _texts(self, told: dict[str, Any], name: str, form: str = "") -> dict[str, str]:
        """The texts of schemas by the names that others refer to them by, and of this one at the end."""
        found = dict[str, str]()
        for one in told.get("references") or []:
            subject = urllib.parse.quote(one["subject"], safe="")
            other = self._schema(f"/subjects/{subject}/versions/{one['version']}{form}")
            found |= self._texts(other, one["name"], form)
        return {**found, name: told["schema"]}

    def _bytes(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise UsageError(
                f"{self.place} returns a schema of Protobuf as its text, and not compiled "
                "(format=serialized): put what `protoc --include_imports -o ID.desc` makes of it into a "
                "directory, and give that"
            ) from None

    def _schema(self, path: str) -> dict[str, Any]:
        told = self._ask(path)
        if not isinstance(told, dict) or not isinstance(told.get("schema"), str):
            raise UsageError(
                f"{self.place} returns no schema for {path}: is it the address of a schema registry?"
            )
        return told

    def _ask(self, path: str) -> Any:
        parts = urllib.parse.urlsplit(self.place)
        path, _, query = path.partition("?")
        shown = urllib.parse.urlunsplit(
            (parts.scheme, parts.netloc, parts.path.rstrip("/") + path, query, "")
        )
        request = urllib.request.Request(shown, headers={"Accept": _JSON})  # noqa: S310 - http or https
        if secret := _secret(parts.hostname or ""):
            request.add_header("Authorization", "Basic " + base64.b64encode(secret.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the same
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise UsageError(f"the schema registry answers {error.code} to {shown}") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"the schema registry does not answer to {shown}: {error}") from None


def _secret(host: str) -> str | None:
    """User and password for a host, if the file of this machine has them."""
    try:
        found = netrc.netrc().authenticators(host)
    except FileNotFoundError:
        return None
    except netrc.NetrcParseError as error:
        # Its text may have a piece of a password.
        raise UsageError(
            f"{error.filename} cannot be read (line {error.lineno}): give lines such as `machine HOST login "
            "USER password PASSWORD`, and only its owner may read it"
        ) from None
    return None if found is None else f"{found[0]}:{found[2]}"

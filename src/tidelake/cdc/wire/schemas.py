"""Schemas of Avro by their ids, from a directory or a schema registry.

Owns where a schema is, and that each is asked for once. In a directory, which all workers must reach, the
schema with the id 7 is the file `7.avsc`. A registry is one with the interface of Confluent's.
"""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelake.errors import UsageError

_TIMEOUT_S = 30.0
_JSON = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass
class Schemas:
    """The schemas of one place.

    Attributes:
        place: a directory, or the address of a registry, `http://HOST:PORT`; `http://USER:PASSWORD@HOST` asks
            with a password.
    """

    place: str
    _found: dict[int, list[Any]] = field(default_factory=dict, init=False, repr=False)

    def of(self, number: int) -> list[Any]:
        """A schema, as parsed JSON, after those that it refers to.

        Raises:
            UsageError: there is no such schema of Avro, or the registry does not give it.
        """
        found = self._found.get(number)
        if found is None:
            remote = urllib.parse.urlsplit(self.place).scheme in ("http", "https")
            found = self._asked(f"/schemas/ids/{number}") if remote else [self._read(number)]
            self._found[number] = found
        return found

    def _read(self, number: int) -> Any:
        path = Path(self.place) / f"{number}.avsc"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(
                f"a message has the schema {number}, and {path} cannot be read: {error.strerror}. Put the "
                "schema there, or give the address of the registry"
            ) from None
        except ValueError as error:
            raise UsageError(f"{path} is no schema of Avro: {error}") from None

    def _asked(self, path: str) -> list[Any]:
        told = self._ask(path)
        kind = told.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise UsageError(
                f"the schema at {path} is of {kind}: let the connector write Avro or JSON "
                "(value.converter, key.converter)"
            )
        found = []
        for one in told.get("references") or []:
            subject = urllib.parse.quote(one["subject"], safe="")
            found += self._asked(f"/subjects/{subject}/versions/{one['version']}")
        return [*found, json.loads(told["schema"])]

    def _ask(self, path: str) -> Any:
        parts = urllib.parse.urlsplit(self.place)
        host = parts.netloc.rpartition("@")[2]
        shown = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/") + path, "", ""))
        request = urllib.request.Request(shown, headers={"Accept": _JSON})  # noqa: S310 - http or https
        if parts.username is not None:
            secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            request.add_header("Authorization", "Basic " + base64.b64encode(secret.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the same
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise UsageError(f"the schema registry answers {error.code} to {shown}") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"the schema registry does not answer to {shown}: {error}") from None

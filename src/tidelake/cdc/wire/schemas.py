"""Schemas of Avro by their ids, from a directory or a schema registry.

Owns where a schema is, and that each is asked for once. In a directory, which all workers must reach, the
schema with the id 7 is the file `7.avsc`. A registry is one with the interface of Confluent's. Its user and
password are in the file `~/.netrc` of each machine that asks, as for curl, and nowhere else: a place is
printed, and travels with tasks.
"""

import base64
import json
import netrc
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
        place: a directory, or the address of a registry, `http://HOST:PORT`.
    """

    place: str
    _found: dict[int, list[Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self._is_remote and "@" in urllib.parse.urlsplit(self.place).netloc:
            raise UsageError(
                "the address of a schema registry has no user and password: put `machine HOST login USER "
                "password PASSWORD` into ~/.netrc, on the machines of workers too"
            )

    @property
    def _is_remote(self) -> bool:
        return urllib.parse.urlsplit(self.place).scheme in ("http", "https")

    def of(self, number: int) -> list[Any]:
        """A schema, as parsed JSON, after those that it refers to."""
        found = self._found.get(number)
        if found is None:
            found = self._asked(f"/schemas/ids/{number}") if self._is_remote else [self._read(number)]
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
            raise UsageError(f"{path} is not an Avro schema: {error}") from None

    def _asked(self, path: str) -> list[Any]:
        told = self._ask(path)
        if not isinstance(told, dict) or not isinstance(told.get("schema"), str):
            raise UsageError(
                f"{self.place} returns no schema for {path}: is it the address of a schema registry?"
            )
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
        shown = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + path, "", ""))
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

"""The marker of a lake: what every process must know before it opens the stores.

Owns its bytes. Must not know where it lies.

    {"format": 1, "lake": "<id>"}                       a lake in a directory, with its log there
    {"format": 2, "lake": "<id>", "log": "postgres"}    a lake whose log is in a PostgreSQL database

INVARIANT: a marker holds no address of a server, and no credential.
"""

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidelake.errors import CorruptionError, FormatTooNew

FORMAT = 2
MARKER = "tidelake.json"

LogKind: TypeAlias = Literal["sqlite", "postgres"]
"""Where the log of a lake is: in its directory, or in a PostgreSQL database."""


@dataclass(frozen=True)
class Marker:
    """What a marker says.

    Attributes:
        lake: the id of the lake.
        log: where its log is.
    """

    lake: str
    log: LogKind = "sqlite"

    def encode(self) -> bytes:
        """The bytes of the marker. A lake that older versions can open has the format that they know."""
        if self.log == "sqlite":
            return json.dumps({"format": 1, "lake": self.lake}).encode()
        return json.dumps({"format": FORMAT, "lake": self.lake, "log": self.log}).encode()


def decode_marker(path: str, data: bytes) -> Marker:
    """Read a marker; `path` is for errors.

    Raises:
        FormatTooNew: a newer Tidelake wrote the marker.
        CorruptionError: the marker is damaged.
    """
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise CorruptionError(path, "it is not JSON") from error
    found = fields.get("format") if isinstance(fields, dict) else None
    if type(found) is not int or found < 1:
        raise CorruptionError(path, "it has no format number")
    if found > FORMAT:
        raise FormatTooNew(path, found, FORMAT)
    lake = fields.get("lake")
    if not isinstance(lake, str) or not lake:
        raise CorruptionError(path, "it names no lake")
    if found == 1:
        return Marker(lake)
    if fields.get("log") != "postgres":
        raise CorruptionError(path, "it does not say where the log is")
    return Marker(lake, "postgres")

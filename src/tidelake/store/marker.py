"""The marker of a lake: what every process must know before it opens the stores.

Owns its bytes. Must not know where it lies.

    {"lake_format": 1, "lake": "<id>", "log": "files"}       a lake in a directory, with its log there
    {"lake_format": 1, "lake": "<id>", "log": "postgres"}    a lake whose log is in a PostgreSQL database
    {"lake_format": 1, "lake": "<id>", "log": "postgres", "place": "<url>"}
                                                          the same, with its objects in an object store
    {"lake_format": 1, "lake": "<id>", "log": "objects", "place": "<url>", "grace_s": 600}
                                                          a lake in an object store, with its log there

Lakes of unreleased versions have `format` or `tidelake` in place of `lake_format`, and are refused.

INVARIANT: a marker holds no address of a server, and no credential.
"""

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidelake.errors import CorruptionError, FormatTooNew, FormatTooOld, NotALake
from tidelake.model.names import checked

FORMAT = 1
_FORMAT = "lake_format"
# What unreleased versions had in its place.
_BEFORE = {"format", "tidelake"}
MARKER = "tidelake.json"

GRACE_S = 600
"""How long a log in an object store keeps what it has removed, in new lakes."""

LogKind: TypeAlias = Literal["files", "postgres", "objects"]
"""Where the log of a lake is: in its directory, in a PostgreSQL database, or in its object store."""


@dataclass(frozen=True)
class Marker:
    """What a marker says.

    Attributes:
        place: url of the objects in an object store, by which a copy of them is known; else empty.
        grace_s: of a log in an object store: how long it keeps what it has removed; else 0.
    """

    lake: str
    log: LogKind = "files"
    place: str = ""
    grace_s: int = 0

    def encode(self) -> bytes:
        """The bytes of the marker."""
        more = {"place": self.place} if self.place else {}
        waits = {"grace_s": self.grace_s} if self.grace_s else {}
        return json.dumps({_FORMAT: FORMAT, "lake": self.lake, "log": self.log} | more | waits).encode()


def decode_marker(path: str, data: bytes) -> Marker:
    """Read a marker; `path` is for errors."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(path, "it is not JSON") from error
    found = fields.get(_FORMAT) if isinstance(fields, dict) else None
    if found is None and isinstance(fields, dict) and fields.keys() & _BEFORE:
        raise FormatTooOld(path)
    if type(found) is not int or found < 1:
        raise CorruptionError(path, "it has no format number")
    if found > FORMAT:
        raise FormatTooNew(path, found, FORMAT)
    lake = fields.get("lake")
    if not isinstance(lake, str) or not lake:
        raise CorruptionError(path, "it names no lake")
    checked(lake, path)
    log, place, grace_s = fields.get("log"), fields.get("place", ""), fields.get("grace_s", 0)
    if log not in ("files", "postgres", "objects"):
        raise CorruptionError(path, "it does not say where the log is")
    if not isinstance(place, str) or type(grace_s) is not int:
        raise CorruptionError(path, "its place or its grace_s is of another type")
    if log == "objects" and (not place or grace_s <= 0):
        raise CorruptionError(path, "it does not say where the objects are, or how long entries are kept")
    return Marker(lake, log, place, grace_s)


def check_place(marker: Marker, place: str) -> None:
    """Check that the marker of a lake in an object store was written for the place where it was found."""
    if marker.place != place:
        raise NotALake(
            f"{place!r} holds a copy of the objects of the lake at {marker.place!r}, and a copy made object "
            "by object is no lake of its own: open the original, or copy it with `tidelake copy`; if you "
            f'have moved it, and the original is gone for good, correct "place" in {MARKER}'
        )

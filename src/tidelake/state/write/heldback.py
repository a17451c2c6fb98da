"""What the record of a stream's writer says, as a value: what it has written, and what it keeps.

Owns the one stored form of it. It must not know what the stream keeps besides rows and names of objects
(`tidelake.cdc.times.heldevents`), so that checks and copies of a shard find these objects.

INVARIANT: only a stream writes a record that keeps something: such a text of a user is refused.
"""

import base64
import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from tidelake.errors import CorruptionError
from tidelake.model import names
from tidelake.state.core.state import ShardState
from tidelake.state.core.writername import WriterName

_MARK = " transactions "
STORED = "stored"
"""The field of what is kept with the names of objects, each without its shard."""
FORM = "tidelake"
"""The field of what is kept with the number of its form."""
RECORD = "the record of the stream's writer"
"""What errors call it."""


@dataclass(frozen=True)
class StreamContent:
    """The content of a writer's record.

    Attributes:
        kept: what the stream keeps, as a JSON object; None: nothing, or it is the text of a user.
    """

    what: str
    kept: str | None = None
    packed: str = ""

    @classmethod
    def of(cls, text: str) -> "StreamContent":
        """Read `text`."""
        what, mark, rest = text.partition(_MARK)
        kept, _, packed = rest.partition(" ")
        return cls(what, kept, packed) if mark and not {FORM, STORED}.isdisjoint(_read(kept)) else cls(text)

    @classmethod
    def keeping(cls, what: str, kept: object, rows: bytes) -> "StreamContent":
        """What it says of something that can be JSON, and of some rows."""
        told = json.dumps(kept, separators=(",", ":"))
        return cls(what, told, base64.b85encode(rows).decode())

    @property
    def text(self) -> str:
        """As the record has it."""
        return self.what if self.kept is None else f"{self.what}{_MARK}{self.kept} {self.packed}"

    @property
    def stored(self) -> tuple[str, ...]:
        """Names of objects that it keeps, each without its shard."""
        found = None if self.kept is None else _read(self.kept).get(STORED)
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            return ()
        return tuple(found)

    @property
    def rows(self) -> bytes:
        """The rows; empty: there are none, or they are in objects."""
        try:
            return base64.b85decode(self.packed)
        except ValueError as error:
            raise CorruptionError(RECORD, "the rows that it holds back cannot be read") from error


def _read(kept: str) -> dict[str, Any]:
    """A JSON object; empty: it is none."""
    try:
        found = json.loads(kept)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def digest_of(data: bytes) -> str:
    """What the name of such an object tells of its bytes."""
    return blake2b(data, digest_size=16).hexdigest()


def as_stored(name: str, data: bytes) -> bytes:
    """The bytes of such an object; raises `CorruptionError` if others were stored."""
    if digest_of(data) != names.held_digest(name):
        raise CorruptionError(name, "the events of a stream in it have other bytes than were stored")
    return data


def objects_of(state: ShardState, writer: str) -> list[str]:
    """The names of the objects in which a writer of a shard, or of a member of a group, holds rows back."""
    owner = WriterName.of(writer).member
    shard_id = owner if owner in state.memberships else state.shard_id
    stored = StreamContent.of(state.writers[writer].content).stored
    return [names.held(shard_id, one) for one in stored]


def held_objects(state: ShardState) -> frozenset[str]:
    """The names of all objects in which writers of a shard, or of the members of a group, hold rows back."""
    return frozenset(name for writer in state.writers for name in objects_of(state, writer))

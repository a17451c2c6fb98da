"""The objects in which streams hold rows back, as the records of their writers name them.

Owns where such names stand in a record, so that checks and copies of a shard find these objects. It must not
know what else stands there (`tidelake.cdc.times.heldevents`).
"""

import base64
import json
from hashlib import blake2b

from tidelake.model import names
from tidelake.state.core.state import ShardState
from tidelake.state.core.writername import WriterName

MARK = " transactions "
"""Parts what identifies the rows of a record from what its stream keeps: JSON, a space, and rows."""
STORED = "stored"
"""The field of that JSON with the names of objects, each without its shard."""


def rows_in(content: str) -> bytes:
    """The rows that stand in the content of a record; empty: none do, or they are in objects."""
    kept = content.partition(MARK)[2]
    return b"" if _told(kept) is None else base64.b85decode(kept.partition(" ")[2])


def stored_in(content: str) -> tuple[str, ...]:
    """The names of objects in the content of a record, each without its shard."""
    return tuple(_told(content.partition(MARK)[2]) or ())


def _told(kept: str) -> list[str] | None:
    """The names in what a stream keeps; None: it is a user's own text."""
    told = kept.partition(" ")[0]
    if f'"{STORED}":' not in told:
        return None
    try:
        found = json.loads(told)[STORED]
    except (ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None


def digest_of(data: bytes) -> str:
    """What the name of such an object tells of its bytes."""
    return blake2b(data, digest_size=16).hexdigest()


def objects_of(state: ShardState, writer: str) -> list[str]:
    """The names of the objects in which a writer of a shard, or of a member of a group, holds rows back."""
    owner = WriterName.of(writer).member
    shard_id = owner if owner in state.memberships else state.shard_id
    return [names.held(shard_id, one) for one in stored_in(state.writers[writer].content)]


def held_objects(state: ShardState) -> frozenset[str]:
    """The names of all objects in which writers of a shard, or of the members of a group, hold rows back."""
    return frozenset(name for writer in state.writers for name in objects_of(state, writer))

"""The names of a shard's objects in the blob store, and which texts may be names. No name is used twice.

The name of a part holds the seqno of the newest state that its uploader knew, so a listing shows which
uploads are too old for a state to take in (`tidelake.state.core.garbage`).

INVARIANT: a name that was read from stored bytes is plain before it is used: it leads to no other folder. The
types `PlainName` and `ObjectName` say which texts of a record are names; `tidelake.state.core.codec` checks
them where it decodes a record, and other readers of bytes call `checked`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeAlias

from tidelake.errors import CorruptionError

NAME_CHARS_MAX = 240

# One segment of a path, and no folder above it.
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.=-]+"
_PLAIN = re.compile(_SEGMENT, re.ASCII)
_PART = re.compile(rf"({_SEGMENT})/parts/([0-9a-f]{{16}})-([0-9a-f]+)\.parquet", re.ASCII)
_ASIDE = re.compile(rf"{_SEGMENT}/aside/[0-9]{{19}}-[0-9a-f]+/{_SEGMENT}", re.ASCII)
_HELD = re.compile(rf"{_SEGMENT}/held/{_SEGMENT}/[0-9a-f]+-([0-9a-f]{{32}})", re.ASCII)
_MARK = re.compile(rf"copies/{_SEGMENT}/[0-9a-f]+/({_SEGMENT})", re.ASCII)
_ROLLUP = re.compile(rf"{_SEGMENT}/rollups/([0-9]{{19}})-[0-9a-f]+", re.ASCII)


@lru_cache(4096)
def is_plain(name: str) -> bool:
    """Whether a text is one segment of a path, of A-Z a-z 0-9 _ . = -, and neither `.` nor `..`."""
    return len(name) <= NAME_CHARS_MAX and _PLAIN.fullmatch(name) is not None


def is_object(name: str) -> bool:
    """Whether a text is a path of such segments: as the path of a file, it stays below its directory."""
    return len(name) <= NAME_CHARS_MAX and all(map(is_plain, name.split("/")))


@dataclass(frozen=True)
class NameRule:
    """What a text of a record has to be.

    Attributes:
        what: for messages.
        fits: whether a text is one.
    """

    what: str
    fits: Callable[[str], bool]


PlainName: TypeAlias = Annotated[str, NameRule("a plain name", is_plain)]
"""The id of a shard, of a rollup or of a lake, or the name of a file: one segment of a path."""
NoOrPlainName: TypeAlias = Annotated[str, NameRule("a plain name", lambda name: not name or is_plain(name))]
"""The same, or empty."""
ObjectName: TypeAlias = Annotated[str, NameRule("the name of an object", is_object)]
"""The name of an object of a store, such as a part: a path of plain names."""


def checked(name: str, source: str) -> str:
    """Return a plain name that was read from stored bytes."""
    if not is_plain(name):
        raise CorruptionError(source, f"it names {name[:NAME_CHARS_MAX]!r}, which is not a plain name")
    return name


def part(shard_id: str, seqno: int, id_: str) -> str:
    """The name of a part."""
    return f"{shard_id}/parts/{seqno:016x}-{id_}.parquet"


def parts(shard_id: str) -> str:
    """What the names of all parts of a shard start with."""
    return f"{shard_id}/parts/"


def rollup(shard_id: str, seqno: int, id_: str) -> str:
    """The name of a rollup of the state of a seqno, with a fresh id."""
    return f"{shard_id}/rollups/{seqno:019d}-{id_}"


def rollups(shard_id: str) -> str:
    """What the names of all rollups of a shard start with."""
    return f"{shard_id}/rollups/"


def aside(shard_id: str, seqno: int, id_: str, what: str) -> str:
    """The name of something that a repair of the state of a seqno has set aside."""
    return f"{shard_id}/aside/{seqno:019d}-{id_}/{what}"


def held(shard_id: str, own: str) -> str:
    """The name of rows that a stream holds back, from what its record calls them, as `held_as` made it."""
    return f"{shard_id}/held/{own}"


def held_as(writer: str, id_: str, digest: str) -> str:
    """What a record calls such rows, with a fresh id and the digest of the object; REQUIRES: both are hex.

    The record of the stream's writer names them, and only that writer deletes them; so does a drop.
    """
    return f"{writer}/{id_}-{digest}"


def helds(shard_id: str, writer: str) -> str:
    """What the names of all rows that a stream holds back start with."""
    return f"{shard_id}/held/{writer}/"


def held_digest(name: str) -> str | None:
    """The digest of the rows that a stream holds back in an object; None: it is no such object."""
    found = _HELD.fullmatch(name)
    return None if found is None else found[1]


def asides(shard_id: str) -> str:
    """The prefix of all that repairs of a shard have set aside."""
    return f"{shard_id}/aside/"


def aside_at(name: str) -> int:
    """The seqno of the state from which an object was set aside. REQUIRES: `is_aside`."""
    return int(name.split("/")[2].partition("-")[0])


def is_aside(name: str) -> bool:
    """Whether an object was set aside by a repair."""
    return _ASIDE.fullmatch(name) is not None


@lru_cache(1024)
def _part(name: str) -> tuple[str, int, str] | None:
    """The shard, the seqno and the id in the name of a part. Every step asks several times for each."""
    found = _PART.fullmatch(name)
    return (found[1], int(found[2], 16), found[3]) if found else None


def uploaded_at(name: str) -> int | None:
    """The seqno that the uploader of a part knew; None if this is not the name of a part."""
    found = _part(name)
    return found[1] if found else None


def upload(name: str) -> tuple[int, str]:
    """The seqno that the uploader of a part knew, and the part's id; for other names 0 and the name."""
    found = _part(name)
    return (found[1], found[2]) if found else (0, name)


def owner(name: str) -> str | None:
    """The id of the shard that a part was made for and that deletes it; None if this is no part's name."""
    found = _part(name)
    return found[0] if found else None


def rolled_up_at(name: str) -> int | None:
    """The seqno of the state in a rollup; None if this is not the name of a rollup."""
    found = _ROLLUP.fullmatch(name)
    return int(found[1]) if found else None


def published(shard_id: str, kind: str) -> str:
    """What the names of all objects start with by which other engines read a shard; `kind` of table."""
    return f"{publications(shard_id)}{kind}/"


def publications(shard_id: str) -> str:
    """What the names of all objects start with by which other engines read a shard."""
    return f"{shard_id}/published/"


def is_published(name: str) -> bool:
    """Whether other engines read an object: no state names it, and `published` made its name."""
    return name.split("/")[1:2] == ["published"]


def marks(source_id: str, digest: str) -> str:
    """What the names of the marks of first copies begin with; the id of the copy's shard follows.

    While a first copy is made, its mark tells the next run which shard has the parts that are there.
    """
    return f"copies/{source_id}/{digest}/"


def marked(name: str) -> str | None:
    """The id of the shard that the mark of a first copy tells; None if this is not the name of a mark."""
    found = _MARK.fullmatch(name)
    return found[1] if found else None

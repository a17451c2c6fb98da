"""How the objects of a shard are called in the blob store. Names are never used twice.

The name of a part holds the seqno of the newest state that its uploader knew: so a listing tells which
uploads are older than what a state still takes in (`tidelake.state.garbage`).
"""

import re

_PART = re.compile(r"([^/]+)/parts/([0-9a-f]{16})-[0-9a-f]+\.parquet")
_ROLLUP = re.compile(r"[^/]+/rollups/([0-9]{19})-[0-9a-f]+")


def part(shard_id: str, seqno: int, id_: str) -> str:
    """The name of a part.

    Args:
        shard_id: of the shard.
        seqno: of the newest state that the uploader knew when it began.
        id_: fresh.
    """
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


def uploaded_at(name: str) -> int | None:
    """The seqno that the uploader of a part knew; None if it is no name of a part."""
    found = _PART.fullmatch(name)
    return int(found[2], 16) if found else None


def owner(name: str) -> str | None:
    """The id of the shard that a part was made for, and that deletes it; None if it is no name of a part."""
    found = _PART.fullmatch(name)
    return found[1] if found else None


def rolled_up_at(name: str) -> int | None:
    """The seqno of the state in a rollup; None if it is no name of a rollup."""
    found = _ROLLUP.fullmatch(name)
    return int(found[1]) if found else None

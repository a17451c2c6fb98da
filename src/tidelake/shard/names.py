"""How the objects of a shard are called in the blob store. Names are never used twice."""

from tidelake.env import IdSource


def part(shard_id: str, ids: IdSource) -> str:
    """A fresh name for a part."""
    return f"{shard_id}/parts/{ids.fresh()}.parquet"


def rollup(shard_id: str, seqno: int, id_: str) -> str:
    """The name of a rollup with a fresh id."""
    return f"{shard_id}/rollups/{seqno:019d}-{id_}"

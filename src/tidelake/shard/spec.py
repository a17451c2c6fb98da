"""What a process needs to know to work on a shard's rows: a reference, never a live handle.

A `ShardSpec` goes to Spark workers inside tasks. It names the lake by its URL; credentials, if any,
come from the worker's own environment.
"""

import os
from dataclasses import dataclass

from tidelake.config import Config
from tidelake.env import Env
from tidelake.model.schema import Schema
from tidelake.model.time import TimeDomain
from tidelake.store.url import Stores, open_stores


@dataclass(frozen=True)
class ShardSpec:
    """Where a shard is, and how its rows look.

    Attributes:
        url: of the lake.
        shard_id: of the shard in it.
        domain: unit of its times.
        schema_id: of the schema below.
        schema: to read and write under.
        config: settings of the lake.
        seqno: of the newest state that was known: uploads say so in the names of their parts.
    """

    url: str
    shard_id: str
    domain: TimeDomain
    schema_id: int
    schema: Schema
    config: Config
    seqno: int = 0


_opened: dict[tuple[int, str, Config], Stores] = {}


def stores_of(spec: ShardSpec) -> Stores:
    """The stores of a spec, opened once per process (a forked child opens its own)."""
    key = (os.getpid(), spec.url, spec.config)
    if key not in _opened:
        _opened[key] = open_stores(spec.url, spec.config, Env(), create=False)
    return _opened[key]

"""The base of a lake's handle: its stores, its catalog, and what opens and removes its shards."""

from tidelake.config import Config
from tidelake.env import Env
from tidelake.handle import Handle
from tidelake.lake.admin.agreeing import Agreeing
from tidelake.lake.admin.sinces import Sinces
from tidelake.lake.catalog.catalog import Catalog
from tidelake.lake.catalog.closeguard import CloseGuard
from tidelake.lake.catalog.leftovers import Leftovers
from tidelake.lake.catalog.shards import Shards
from tidelake.lake.groups.groups import Groups
from tidelake.shard.engine.machine import GroupCommit
from tidelake.shard.engine.shard import renewer_of
from tidelake.store.url import Stores


class LakeHandle(Handle):
    """A handle on one lake.

    Attributes:
        url: the URL of the lake; other processes can open it under this URL.
        env: clock, ids, counters and threads that it was opened with.
    """

    def __init__(self, url: str, stores: Stores, config: Config, env: Env) -> None:
        self.url = url
        self._guard = guard = CloseGuard(url)
        self._stores = stores.layered(guard.layer)
        self._config = config
        self.env = env
        self._renewer = renewer_of(env, config)
        self._catalog = Catalog(
            self._stores, env, url, config, GroupCommit(env, guard.command, counts_appends=False)
        )
        self._shards = Shards(
            self._stores, env, url, config, catalog=self._catalog, guard=guard, renewer=self._renewer
        )
        self._leftovers = Leftovers(self._stores, env, config, self._catalog)
        self._sinces = Sinces(self._catalog, self._shards.led_to, self._shards.open, env)
        self._agreeing = Agreeing(self._catalog, self._stores.log.keys, self._shards.open)
        self._groups = Groups(self._stores, env, url, config, self._shards.open)

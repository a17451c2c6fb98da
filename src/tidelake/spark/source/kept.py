"""Collections that a process keeps open from one write to the next.

Spark plans, stores and commits in processes that it uses again for the next micro-batch, and to open a
collection is to read all of its state. Must not know names: they may lead elsewhere by then.

INVARIANT: what is kept is found by the id of a collection, which no other one ever has, and has looked at the
newest state when it is given out.
"""

import os
from collections import OrderedDict
from dataclasses import dataclass

from tidelake.config import Config
from tidelake.errors import CollectionDropped
from tidelake.lake.collection import Collection
from tidelake.lake.lake import Lake, open_lake

# Streams that write by one process; of others the collection is opened again.
_KEPT_MAX = 4


@dataclass(frozen=True)
class Target:
    """A collection to write to, for any process.

    Attributes:
        url: of the lake.
        id: of the collection.
        name: that it had when the write began; another collection may have it by now.
        config: settings of the lake.
    """

    url: str
    id: str
    name: str
    config: Config

    def collection(self) -> Collection:
        """The collection, as of its newest state. One log scan, or a few store calls.

        Raises:
            CollectionDropped: it was dropped since.
        """
        # A fork opens its own.
        key = (os.getpid(), self)
        lake, found = _kept.pop(key) if key in _kept else self._opened()
        try:
            if found.state().dropped:
                raise CollectionDropped(self.name)
        except BaseException:
            lake.close()
            raise
        _kept[key] = lake, found
        if len(_kept) > _KEPT_MAX:
            _kept.popitem(last=False)[1][0].close()
        return found

    def _opened(self) -> tuple[Lake, Collection]:
        lake = open_lake(self.url, create=False, config=self.config)
        try:
            return lake, lake.same_collection(self.id, self.name)
        except BaseException:
            lake.close()
            raise


_kept: OrderedDict[tuple[int, Target], tuple[Lake, Collection]] = OrderedDict()

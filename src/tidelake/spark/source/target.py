"""Collections that a process keeps open from one write to the next.

Spark plans, stores and commits in processes that it uses again for the next micro-batch, and opening a
collection reads all of its state. Must not look collections up by name: a name may lead elsewhere by then.

INVARIANT: an open collection is found by its id, which no other collection ever has, and has read the newest
state when it is handed out.
"""

from collections import OrderedDict
from dataclasses import dataclass

from tidelake.config import Config
from tidelake.errors import CollectionDropped
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake, open_lake
from tidelake.process import PerProcess

# So many collections stay open in a process; others are opened again for each write.
_KEPT_MAX = 4


@dataclass(frozen=True)
class Target:
    """A collection to write to, for any process.

    Attributes:
        url: URL of the lake.
        id: id of the collection.
        name: the name that it had when the write began; another collection may have it by now.
        config: settings of this process.
    """

    url: str
    id: str
    name: str
    config: Config

    def collection(self) -> Collection:
        """The collection at its newest state. One log scan, or a few store calls."""
        kept = _KEPT.get()
        lake, found = kept.pop(self) if self in kept else self._opened()
        try:
            if found.state().dropped:
                raise CollectionDropped(self.name)
        except BaseException:
            lake.close()
            raise
        kept[self] = lake, found
        if len(kept) > _KEPT_MAX:
            kept.popitem(last=False)[1][0].close()
        return found

    def _opened(self) -> tuple[Lake, Collection]:
        lake = open_lake(self.url, create=False, config=self.config)
        try:
            return lake, lake.same_collection(self.id, self.name)
        except BaseException:
            lake.close()
            raise


_KEPT: PerProcess[OrderedDict[Target, tuple[Lake, Collection]]] = PerProcess(OrderedDict)

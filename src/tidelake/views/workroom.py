"""What the refreshes of one lake leave for the next ones: databases of the engine, and opened collections.

Owns how much stays, and until when. Must not know what a refresh does.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import shard_of
from tidelake.lake.api.naming import Naming
from tidelake.process import PerProcess
from tidelake.shard.engine.shard import Shard
from tidelake.views.database import Database

_DATABASES_MAX = 1
_COLLECTIONS_MAX = 1_000
_KEPT = "views"


class Workroom:
    """What stays open until the lake is closed. Thread-safe; a forked process has its own."""

    def __init__(self) -> None:
        self._own = PerProcess(_Own)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """An empty database for one thread, which ends with an error inside."""
        own, stays = self._own.get(), False
        with own.lock:
            database = own.databases.pop() if own.databases else Database()
        try:
            yield database
            with own.lock:
                stays = not own.closed and len(own.databases) < _DATABASES_MAX
                if stays:
                    own.databases.append(database)
        finally:
            if not stays:
                database.close()

    def opened(self, key: str, name: str, open_: Callable[[], Collection]) -> Collection:
        """A collection as it is now: the one that was opened under this key, unless it was dropped since.

        Costs a log scan. Errors as of `open_`.
        """
        own = self._own.get()
        with own.lock:
            shard = own.shards.get(key)
        if shard is None or shard.state().dropped:
            shard = shard_of(open_())
        with own.lock:
            own.shards[key] = shard
            own.shards.move_to_end(key)
            while len(own.shards) > _COLLECTIONS_MAX:
                own.shards.popitem(last=False)
        return Collection(name, shard)

    def close(self) -> None:
        """Close what is open and not in use; what is in use closes afterwards."""
        own = self._own.get()
        with own.lock:
            own.closed, left = True, own.databases[:]
            own.databases.clear()
            own.shards.clear()
        for database in left:
            database.close()


class _Own:
    """What one process has open."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.databases: list[Database] = []
        self.shards: OrderedDict[str, Shard] = OrderedDict()
        self.closed = False


def same(lake: Naming, id_: str, name: str) -> Collection:
    """As `Lake.same_collection`, by a handle that stays."""
    return workroom(lake).opened(id_, name, partial(lake.same_collection, id_, name))


def workroom(lake: Naming) -> Workroom:
    """The workroom of a lake."""
    return cast(Workroom, lake._kept.setdefault(_KEPT, Workroom()))

"""Small lakes over chosen stores, for the tests of this folder."""

import uuid

from clocks import MovedClock
from inside import replaceable
from tests.doubles.faults import FaultPlan, FaultyBlobStore, FaultyVersionLog
from tidelake.config import Config
from tidelake.env import Counters, Env, SystemClock
from tidelake.lake.api.lake import Lake
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.metered import metered
from tidelake.store.retrying import Retry
from tidelake.store.url import Stores


class Place:
    """Memory stores that several lakes (as of several processes) open, each with faults of its own."""

    def __init__(self):
        self.stores = Stores(MemoryBlobStore(SystemClock()), MemoryVersionLog())

    def lake(self, faults=None, config=None, **seams):
        """A lake with fresh counters, as another process would open it; `seams` go into its `Env`."""
        env = Env(**{"clock": MovedClock(), "recorder": Counters(), **seams})
        config = config or Config()
        stores = replaceable(self.stores)
        blobs, log = stores.blobs, stores.log
        if faults is not None:
            blobs, log = FaultyBlobStore(blobs, faults), FaultyVersionLog(log, faults)
        stores = Stores(blobs, log).layered(metered(env.recorder))
        if faults is not None:
            draw = FaultPlan(1)._random.random
            stores = stores.layered(Retry(env.clock, config.retry_deadline_s, draw).layer)
        lake = Lake(f"memory://{uuid.uuid4().hex}", stores, config, env)
        lake.counts, lake.clock = env.recorder.counts, env.clock
        return lake


def stored(place, collection):
    """Names of all parts of a collection that are in the store, named by a state or not."""
    return {info.name for info in place.stores.blobs.list(f"{collection.id}/parts/")}

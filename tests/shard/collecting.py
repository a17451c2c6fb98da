"""What collection must keep and what it must not, for the tests of it."""

from contextlib import contextmanager

from shards import Place

from clocks import MovedClock
from tables import SCHEMA, rows
from tidelake.config import Config
from tidelake.model import names

GARBAGE_S, UPLOAD_S = 100.0, 1_000.0
CONFIG = Config(
    inline_part_bytes=0,
    merge_budget_s=0.0,
    rollup_bytes_min=1024,
    runs_max=10**6,
    garbage_age_s=GARBAGE_S,
    upload_age_s=UPLOAD_S,
    lease_s=10_000.0,
)


class World:
    """One place whose processes share a clock, with one collection of some appends."""

    def __init__(self, appends=0, config=CONFIG):
        self.place, self.clock = Place(), MovedClock()
        self.place.stores.blobs._clock = self.clock
        self.c = self.place.lake(config=config, clock=self.clock).create("c", SCHEMA, key=["id"])
        self.id, self.held = self.c.id, set()
        for _ in range(appends):
            self.append()

    def process(self, faults=None, config=CONFIG):
        """The collection as another process opens it; `.lake` is its lake."""
        lake = self.place.lake(faults, config, clock=self.clock)
        c = lake.collection("c")
        c.lake = lake
        return c

    def append(self, c=None):
        n = len(self.held)
        (c or self.c).append(rows(n))
        self.held.add(n)

    def later(self, seconds):
        self.clock.ms += int(seconds * 1000)

    def stored(self):
        return {info.name for info in self.place.stores.blobs.list(f"{self.id}/")}

    def entries(self):
        return [entry.seqno for entry in self.place.stores.log.scan(self.id, 0)]

    def check_readable(self):
        """Opening it now finds all rows, and all that the newest state names."""
        c = self.process()
        assert named(c.state()) <= self.stored()
        if self.held:
            assert set(c.snapshot().read_all()["id"].to_pylist()) == self.held
        return c

    def check_clean(self):
        """Nothing is stored but what the newest state names."""
        state = self.check_readable().state()
        assert not state.garbage and not state.doomed
        assert self.stored() == named(state)
        assert self.entries()[0] in (0, state.rollup.seqno)

    def tidy_up(self):
        """Maintain until everything has grown old."""
        c = self.process()
        for _ in range(4):
            c.maintain()
            self.later(GARBAGE_S)
        for _ in range(3):
            c.collect(thorough=True)
            self.later(UPLOAD_S)


def named(state):
    """What a state names: parts, those of merges under way, and its rollup."""
    found = {part.name for member in state.spine for part in member.batch.parts() if part.inline is None}
    found.update(part.name for parts in state.chunks.values() for part in parts)
    last = state.rollup
    return found | ({names.rollup(state.shard_id, last.seqno, last.id)} if last.size_bytes else set())


@contextmanager
def before(store, operation, act, number=1):
    """Do something right before the n-th call of an operation of a store."""
    whole, count = getattr(store, operation), [0]

    def watched(*args, **kwargs):
        count[0] += 1
        if count[0] == number:
            setattr(store, operation, whole)
            act()
        return whole(*args, **kwargs)

    setattr(store, operation, watched)
    try:
        yield count
    finally:
        setattr(store, operation, whole)

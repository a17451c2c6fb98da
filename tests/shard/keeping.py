"""A place whose lakes share one clock that the test moves, and whose keepers look when the test says so."""

from dataclasses import replace

from shards import Place

import inside
from clocks import MovedClock
from tables import SCHEMA, rows
from tidelake.config import Config
from tidelake.state.life import collecting


class Idle:
    """A spawner that starts nothing: the test looks in the renewer's place."""

    def __init__(self):
        self.spawned = []

    def spawn(self, name, work):
        self.spawned.append(name)
        return self

    def stop(self):
        pass


# Every part is an object, nothing is merged unasked; what is not needed goes after ten minutes.
STORED = Config(
    inline_part_bytes=0,
    merge_budget_s=0,
    row_group_rows=16,
    part_target_bytes=1024,
    fold_rows=1,
    merge_chunk_rows=16,
)
AGE_S = STORED.garbage_age_s
LEASE_S = STORED.lease_s


class Kept(Place):
    """Lakes of several processes with one clock between them."""

    def __init__(self):
        super().__init__()
        self.clock = MovedClock(1_000_000_000)

    def process(self, config=STORED, faults=None, **seams):
        """A lake as another process has it."""
        return self.lake(faults, config, **{"clock": self.clock, "spawner": Idle(), **seams})

    def made(self, appends=4, each=120):
        """The lake of a writing process, and its collection, with several batches of several parts."""
        lake = self.process()
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(appends):
            c.append(rows(*range(n * each, (n + 1) * each)))
        return lake, c

    def pass_s(self, seconds, *lakes):
        """Let time pass, in steps of half a minute; the keepers of these lakes look as often."""
        end = self.clock.ms + int(seconds * 1000)
        while self.clock.ms < end:
            self.clock.ms = min(end, self.clock.ms + 30_000)
            for lake in lakes:
                lake._renewer.look()

    def collect(self, c, age_s=AGE_S):
        """Delete what is not read and old enough, as a collector does; the names."""
        shard = inside.shard(c)
        doomed = shard.run(lambda s, now: collecting.doom(_aged(s, age_s), now, names_max=10**6))
        for name in doomed:
            self.stores.blobs.delete(name)
        shard.run(lambda s, now: collecting.bury(s, now, names=doomed))
        return doomed


def named(c):
    """Names of the parts of the newest state."""
    return {part.name for member in c.state().spine for part in member.batch.parts()}


def _aged(state, age_s):
    """A state of a lake where garbage stays for as long."""
    return replace(state, agreed=replace(state.agreed, garbage_age_ms=int(age_s * 1000)))

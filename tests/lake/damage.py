"""A lake in memory whose stored bytes a test may damage, and a clock that only the test moves."""

import uuid
from dataclasses import replace

import pyarrow as pa

from clocks import SetClock
from inside import replaceable
from tidelake.config import Config
from tidelake.env import Env
from tidelake.lake.api.lake import Lake
from tidelake.model.batch import Run
from tidelake.shard.engine.history import History
from tidelake.state.core import codec
from tidelake.state.spine.spine import Spine
from tidelake.store.memory import MemoryBlobStore, MemoryVersionLog
from tidelake.store.protocols import Entry
from tidelake.store.url import Stores

# Several parts and row groups of a few hundred rows, all of them objects.
SMALL = Config(
    part_target_bytes=4096, row_group_rows=32, inline_part_bytes=0, rollup_bytes_min=1 << 30, merge_budget_s=0
)
DAY_MS = 86_400_000
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.string()),
        pa.field("x", pa.list_(pa.float64())),
    ]
)


def table(*ids, **more):
    values = [f"{i * 7919 % 10007}" * 3 if i % 5 else None for i in ids]
    lists = [[float(i), None] if i % 3 else None for i in ids]
    columns = {"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.string())}
    return pa.table({**columns, "x": pa.array(lists, pa.list_(pa.float64())), **more})


class World:
    """Memory stores, and lakes over them."""

    def __init__(self, config=SMALL):
        self.clock = SetClock()
        self.config = config
        self.blobs, self.log = MemoryBlobStore(self.clock), MemoryVersionLog()

    def lake(self):
        stores, env = replaceable(Stores(self.blobs, self.log)), Env(clock=self.clock)
        return Lake(f"memory://{uuid.uuid4().hex}", stores, self.config, env)

    def filled(self, name="c", appends=3, lake=None):
        """A collection of some parts."""
        made = (lake or self.lake()).create(name, SCHEMA, key=["id"])
        for n in range(appends):
            made.append(table(*range(n * 50, n * 50 + 300)))
        return made

    def fsck(self, names=None, **kwargs):
        return self.lake().fsck(names, **kwargs)

    def kinds(self, **kwargs):
        return {finding.kind for finding in self.fsck(**kwargs).left}

    def overwrite(self, name, change):
        data, at_ms = self.blobs._blobs[name]
        self.blobs._blobs[name] = (bytes(change(bytearray(data))), at_ms)

    def entries(self, collection):
        return self.log._entries[collection.id]

    def state(self, shard_id):
        return History(shard_id, Stores(self.blobs, self.log), Env()).open().state

    def rewrite(self, collection, change):
        """Put a changed state in the place of the whole log. It must keep the rules that decoding checks."""
        state = change(collection.state())
        self.log._entries[collection.id] = [Entry(state.seqno, codec.encode_state(state))]

    def describe(self, collection, at=0, **fields):
        """Change what the state says of one of its parts."""
        self.rewrite(collection, lambda state: with_part(state, at, **fields))


def part_of(collection, at=0):
    return [part for member in collection.state().spine for part in member.batch.parts()][at]


def with_part(state, at, **fields):
    name = [part for member in state.spine for part in member.batch.parts()][at].name

    def changed(part):
        return replace(part, **fields) if part.name == name else part

    members = [
        replace(
            member,
            batch=replace(
                member.batch,
                runs=tuple(Run(tuple(map(changed, r.parts)), r.truncated) for r in member.batch.runs),
            ),
        )
        for member in state.spine
    ]
    spine = state.spine
    rows = [sum(m.batch.rows for m in members if b.id.covers(m.id)) for b in spine.batches]
    batches = tuple(replace(b, rows=n) for b, n in zip(spine.batches, rows, strict=True))
    return replace(state, spine=Spine.of(spine.next_id, spine.spent, members, batches, spine.merges))

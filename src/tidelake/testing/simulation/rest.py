"""The end of a run: all clients are gone, and no fault is left.

Everything can still be read and is as it must be; then maintenance brings the lake to rest, and nothing is
in the stores but what a state names.
"""

from collections.abc import Iterator
from contextlib import suppress

from tidelake.errors import CollectionDropped
from tidelake.lake.catalog import SHARD_ID as CATALOG
from tidelake.lake.collection import Collection
from tidelake.lake.lake import Lake
from tidelake.testing.simulation.clients import NAME
from tidelake.testing.simulation.court import Court
from tidelake.testing.simulation.judge import Judge
from tidelake.testing.simulation.record import named, only_time
from tidelake.testing.simulation.world import World

# Longer than every lease, age and error of a clock together.
_DAY_S = 86_400.0
# Uploads are given up in two looks, and what a look finds goes by the next.
_LOOKS = 4
# What those leave behind who crash; it goes by itself, or by maintenance.
_LEFT = frozenset(
    {"leaked-part", "leaked-rollup", "old-garbage", "half-dropped", "unfinished-shard", "unknown-shard"}
)


def check_whole(world: World, court: Court, judge: Judge) -> None:
    """Everything can still be read, and is as it must be."""
    court.survived()
    lake = world.calm_lake(court)
    collection, state = lake.collection(NAME), judge.state
    if collection.state().seqno != state.seqno:
        judge.wrong(f"the newest state is {collection.state().seqno}, expected {state.seqno}")
    for one in court.judges.values():
        one.check_order()
    _check_found(court, lake, _LEFT)
    for other in _alive(lake):
        _read_all(other, court.judges[other.id])
    for name, record in sorted(state.writers.items()):
        opened = collection.writer(name)
        judge.writer_opened(name, record.epoch + 1, opened.last_sequence)


def _alive(lake: Lake) -> Iterator[Collection]:
    """All collections but those whose drop has not come to its end."""
    for name in lake.list():
        with suppress(CollectionDropped):
            yield lake.collection(name)


def _read_all(collection: Collection, judge: Judge) -> None:
    """Read the first, the last and a time between."""
    state = judge.state
    since, upper = only_time(state.since), only_time(state.upper)
    for time in sorted({since, (since + upper - 1) // 2, upper - 1}) if upper > since else ():
        judge.snapshot(judge.asked(), time, collection.snapshot(time).read_all())
    if state.since == state.minimum:
        judge.updates(state.since, state.upper, collection.updates(state.since, state.upper).read_all())


def check_rest(world: World, court: Court) -> None:
    """After maintenance nothing is stored but what a state names, and the log begins at the rollup."""
    lake = world.calm_lake(court)
    for _ in range(_LOOKS):
        world.sleep(_DAY_S)
        lake.collect()
        for collection in _alive(lake):
            collection.maintain()
    states = court.states()
    wanted = {name for state in states.values() for name in named(state)}
    stored = {info.name for info in world.blobs(None).list()}
    if stored != wanted:
        court.wrong(f"at rest {sorted(stored - wanted)} is left, and {sorted(wanted - stored)} is missing")
    shards = {lake.collection(name).id: name for name in lake.list()}
    if len(shards) != len(lake.list()):
        court.wrong(f"at rest two names lead to one shard: {lake.list()}, {shards}")
    for key, state in states.items():
        if key not in shards and key != CATALOG:
            court.wrong(f"at rest shard {key} is left, which no name leads to")
        if state.garbage or state.doomed or state.holds or state.claims:
            court.wrong(
                f"{key} is not at rest: {state.garbage}, {state.doomed}, {state.holds}, {state.claims}"
            )
        first = world.log(court).scan(key, 0, 1)[0].seqno
        if first not in {0, state.rollup.seqno}:
            court.wrong(f"at rest the log of {key} begins at {first}, and its rollup is {state.rollup}")
    _check_found(court, lake, frozenset())


def _check_found(court: Court, lake: Lake, allowed: frozenset[str]) -> None:
    """A check of the lake finds nothing but what is allowed."""
    found = [one for one in lake.fsck().findings if one.kind not in allowed]
    if found:
        court.wrong("fsck found " + "; ".join(map(str, found[:3])))

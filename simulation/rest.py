"""The checks at the end of a run, when all clients are gone and there are no more faults.

First, everything can still be read and is correct. Then maintenance brings the lake to rest, after which the
stores hold nothing but what a state names.
"""

import itertools
from collections.abc import Iterator
from contextlib import suppress

from simulation.bank import ACCOUNTS, check_accounts
from simulation.checker import Checker
from simulation.clients import NAME
from simulation.judge import Judge
from simulation.record import AppendCall, named, only_time
from simulation.uploaders import UPLOADS
from simulation.world import World
from tidelake.errors import CollectionDropped
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.lake.catalog.catalog import SHARD_ID as CATALOG
from tidelake.lake.groups.groups import is_group
from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.state.core.forks import fork_pins, lender
from tidelake.state.core.state import FIRST, ShardState

# Longer than all leases, ages and clock errors together.
_DAY_S = 86_400.0
# Abandoned uploads take two rounds, and what one round condemns goes in the next.
_LOOKS = 4
# Each round ends at least one link of a chain of forks of forks.
_LOOKS_MAX = 40
# Findings that crashed processes leave behind; maintenance removes them.
_LEFT = frozenset(
    {
        "leaked-part",
        "leaked-rollup",
        "old-garbage",
        "half-dropped",
        "unfinished-shard",
        "unfinished-fork",
        "unknown-shard",
    }
)


def check_whole(world: World, checker: Checker, judge: Judge) -> None:
    """Check that everything can still be read and is correct."""
    checker.survived()
    lake = world.calm_lake(checker)
    collection, state = lake.collection(NAME), judge.state
    if collection.state().seqno != state.seqno:
        judge.wrong(f"the newest state is {collection.state().seqno}, expected {state.seqno}")
    for one in checker.judges.values():
        one.check_order()
    _check_found(checker, lake, _LEFT | _ghosts(world))
    alive = list(_alive(lake))
    check_accounts(checker.books, [one for one in alive if one.name in ACCOUNTS])
    for other in alive:
        if other.name not in ACCOUNTS:
            _read_all(other, checker.judges[other.id])
    for name, record in sorted(state.writers.items()):
        if name == UPLOADS:
            continue  # One upload is offered under many of its numbers.
        opened = collection.writer(name)
        judge.writer_opened(name, record.epoch + 1, opened.last_sequence)


def check_told(world: World, checker: Checker) -> None:
    """Check that fsck reports a log that lost acknowledged entries, unless it was dropped since."""
    lost = world.lost
    if lost is None or lost not in checker.states():
        return
    found = world.calm_lake(checker).fsck().findings
    if not any(one.object == lost and one.kind in {"log-damaged", "unnamed-shard"} for one in found):
        checker.wrong(f"{lost} has lost its newest entries, and fsck does not say so: {found}")


def _alive(lake: Lake) -> Iterator[Collection]:
    """All collections but those whose drop is not finished."""
    for name in lake.list():
        with suppress(CollectionDropped):
            yield lake.collection(name)


def _read_all(collection: Collection, judge: Judge) -> None:
    """Read at the first closed time, at the last, and at one between."""
    state = judge.state
    since, upper = only_time(state.since), only_time(state.upper)
    for time in sorted({since, (since + upper - 1) // 2, upper - 1}) if upper > since else ():
        judge.snapshot(judge.asked(), time, collection.snapshot(time).read_all())
    if state.since == state.minimum:
        judge.updates(state.since, state.upper, collection.updates(state.since, state.upper).read_all())


def check_rest(world: World, checker: Checker) -> None:
    """Check that maintenance leaves only what a state or a fork needs, and each log begins at its rollup.

    Then merge each collection into parts of its own: that must end all forks, and what was kept for them.
    """
    lake = world.calm_lake(checker)
    _bring_to_rest(world, checker, lake)
    _check_rest(world, checker, lake)
    if not any(map(_shares, checker.states().values())):
        return
    for collection in _alive(lake):
        _seal_all(collection, checker.judges[collection.id])
        collection.merge()
    _bring_to_rest(world, checker, lake)
    kept = {key: state.forks for key, state in checker.states().items() if _shares(state)}
    if kept:
        checker.wrong(f"forks that need nothing are not freed: {kept}")
    _check_rest(world, checker, lake)


def _shares(state: ShardState) -> bool:
    """Whether a shard keeps parts for a fork, or is a fork that may need some. A tombstone needs none."""
    return bool(fork_pins(state)) or not (state.dropped or lender(state) is None)


def _seal_all(collection: Collection, judge: Judge) -> None:
    """Close the times of all staged updates: a merge does not rewrite staged parts, which may be a fork's."""
    lasts = [part.seen_times[1] for one in judge.state.staged for part in one.batch.parts()]
    if not lasts or judge.state.group:
        return
    upper = Frontier.past(max(lasts))
    judge.calm = AppendCall("the seal at rest", [], upper)
    judge.begins(judge.calm)
    collection.seal(upper)
    judge.calm = None


def _bring_to_rest(world: World, checker: Checker, lake: Lake) -> None:
    """Maintain everything in rounds until a round finds nothing to do."""
    for look in itertools.count(1):
        before = checker.states()
        world.sleep(_DAY_S)
        lake.collect()
        for collection in _alive(lake):
            collection.maintain()
        if look >= _LOOKS and checker.states() == before:
            return
        if look > _LOOKS_MAX:
            checker.wrong(f"the lake does not come to rest in {look} looks")


def _check_rest(world: World, checker: Checker, lake: Lake) -> None:
    states = checker.states()
    wanted = {name for state in states.values() for name in [*named(state), *_lent(state)]}
    stored = {info.name for info in world.blobs(None).list()}
    if stored != wanted:
        checker.wrong(f"at rest {sorted(stored - wanted)} is left, and {sorted(wanted - stored)} is missing")
    shards = {lake.collection(name).id: name for name in lake.list()}
    if len(shards) != len(lake.list()):
        checker.wrong(f"at rest two names lead to one shard: {lake.list()}, {shards}")
    for key, state in states.items():
        if state.dropped and state.forks:
            continue
        if key not in shards and key != CATALOG and not (is_group(state) and state.memberships):
            checker.wrong(f"at rest shard {key} is left, which no name leads to")
        if next(state.staged.awaiting(), None) is not None and key in shards:
            checker.wrong(f"at rest {key} has rows of transactions that are not decided")
        garbage = state.garbage.keys() - set(_lent(state))
        if garbage or state.doomed or state.holds or state.claims:
            checker.wrong(f"{key} is not at rest: {garbage}, {state.doomed}, {state.holds}, {state.claims}")
        first = world.log(checker).scan(key, 0, 1)[0].seqno
        if first not in {0, state.rollup.seqno}:
            checker.wrong(f"at rest the log of {key} begins at {first}, and its rollup is {state.rollup}")
    _check_found(checker, lake, _ghosts(world))


def _lent(state: ShardState) -> Iterator[str]:
    """The garbage that is kept for forks, and the rollup from which a tombstone with forks is read."""
    for name, lost in state.garbage.items():
        if any(map(lost.read_by, fork_pins(state))):
            yield name
    if state.forks and state.rollup != FIRST:
        yield names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id)


def _ghosts(world: World) -> frozenset[str]:
    """What fsck may say of writes to the log that landed late, if there were any."""
    return frozenset({"ghost-entry"} if world.injected["ghost"] else ())


def _check_found(checker: Checker, lake: Lake, allowed: frozenset[str]) -> None:
    """Check that fsck finds only what is allowed. Negative rows are: clients delete rows that never were."""
    found = [one for one in lake.fsck().findings if one.kind not in {*allowed, "negative-rows"}]
    if found:
        checker.wrong("fsck found " + "; ".join(map(str, found[:3])))

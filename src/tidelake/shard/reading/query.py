"""Asking a shard: wait until the answer is final, check that history still has it, stream it.

Every read starts from one `Version` and then touches only immutable parts, so appends, merges and changes of
the schema that happen meanwhile do not change its answer.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from tidelake.data.selection import bind
from tidelake.errors import BlobNotFound, HistoryCompacted, NotYetClosed, UsageError
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Fold, Query, Updates
from tidelake.model.selection import ReadOptions, Selection
from tidelake.shard.lease import Lease, explained
from tidelake.shard.runs.plan import ReadPlan, TaskOptions, plan_read
from tidelake.shard.runs.read import rows, shown, sources
from tidelake.shard.runs.scope import Scope, Source, matching
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.version import Version
from tidelake.state.state import ShardState

_ALL = ReadOptions()


def stream(shard: Shard, query: Query, options: ReadOptions = _ALL) -> pa.RecordBatchReader:
    """The answer as Arrow batches: sorted by (key, value, time), consolidated, in bounded memory.

    Columns as `tidelake.data.types.update_schema` of the schema to read under (see `ShardSpec.read_as`), as
    far as the options ask for them. Waits for the times asked for to be closed. What is read is kept for as
    long as it takes.

    Raises:
        HistoryCompacted: the times asked for lie before `since`.
        NotYetClosed: they were still open at the deadline.
        IncompatibleSchema: today's rows do not fit the schema with that id.
        LeaseExpired: (while it is read) it took so long that a part is gone, and could not be held.
        UsageError: the options do not fit the schema; see `tidelake.data.selection.bind`.
    """
    version = ready(shard, query, options).kept_by(Lease(shard))
    return streamed(shard, version, query, options)


def streamed(
    shard: Shard, version: Version, query: Query, options: ReadOptions = _ALL
) -> pa.RecordBatchReader:
    """The answer from a version that knows it, without waiting; arguments as `selected`."""
    spec = version.spec.read_as(options.schema_id)
    return selected(shard, version, query, spec, bind(options, spec.schema))


def selected(
    shard: Shard, version: Version, query: Query, spec: ShardSpec, selection: Selection
) -> pa.RecordBatchReader:
    """The answer from a version that knows it; see `ready`.

    Args:
        shard: to read.
        version: of the shard, pinned or less than a third of `garbage_age_s` old. What pins it keeps what is
            read; if nothing does, nothing keeps it.
        query: to answer.
        spec: of the version, with the schema to read under.
        selection: which rows and columns.
    """
    needed = matching(sources(version.state.batches(), query), Scope(spec, where=selection.where))
    found = rows(spec, shard.stores.blobs, needed, query, selection=selection)
    if any_stored(needed):
        found = version.watch(found)
    return pa.RecordBatchReader.from_batches(shown(spec, selection), found)


def plan(shard: Shard, query: Query, tasks: TaskOptions, options: ReadOptions = _ALL) -> ReadPlan:
    """The same read, cut into tasks for other processes; errors as `stream`.

    Nothing keeps what they read for longer than `garbage_age_s`; see `tidelake.shard.reading.planholds`.
    """
    return planned(shard, ready(shard, query, options), query, tasks, options)


def planned(
    shard: Shard, version: Version, query: Query, tasks: TaskOptions, options: ReadOptions = _ALL
) -> ReadPlan:
    """The same from a version that knows the answer, as `streamed`."""
    state, spec = version.state, version.spec.read_as(options.schema_id)
    selection = bind(options, spec.schema)
    needed = matching(sources(state.batches(), query), Scope(spec, where=selection.where))
    try:
        cut = plan_read(spec, shard.stores.blobs, needed, query, tasks, selection=selection)
    except BlobNotFound as error:
        raise explained(shard, error.name, state.seqno, version.hold_id) from error
    if not any_stored(needed):
        return cut
    return replace(cut, seqno=state.seqno, version=_digest(state))


def _digest(state: ShardState) -> str:
    """A word for the stored parts that a state names."""
    parts = (part for part in state.parts() if part.inline is None)
    return hashlib.sha256("\n".join(sorted(part.name for part in parts)).encode()).hexdigest()[:16]


def ready(shard: Shard, query: Query, options: ReadOptions = _ALL) -> Version:
    """The first version seen that knows the whole answer, or with `staged` the newest. Errors as `stream`."""
    version = shard.version()
    check_since(query, version.state)
    closed, asked = _closed(query)
    if not options.staged and not closed(version.state):
        version = wait(shard, closed, asked, options.timeout_s)
        check_since(query, version.state)
    return version


def answers(state: ShardState, query: Query) -> bool:
    """Whether a state knows the whole answer."""
    return _closed(query)[0](state)


def any_stored(needed: list[Source]) -> bool:
    """Whether the store is needed at all: inline parts are in the state itself."""
    return any(part.inline is None for source in needed for part in source.run.parts)


def updates_folded(lower: Frontier, since: Frontier) -> HistoryCompacted:
    """The error of updates from `lower` on, of which those at `since` are folded into older ones."""
    remedy = "updates at since are folded: begin after it, or hold it back with a reader next time"
    return HistoryCompacted(lower, since, remedy)


def check_since(query: Query, state: ShardState) -> None:
    """Refuse what a state can no longer tell.

    Raises:
        HistoryCompacted: the times asked for lie before `since`.
        UsageError: they are in the wrong order.
    """
    match query:
        case AsOf(time):
            if not state.since.less_equal(time):
                raise HistoryCompacted(time, state.since)
        case Changes(after, through):
            if not times.less_equal(after, through):
                raise UsageError(
                    f"changes after {after} cannot end at {through}, which is not at or after it"
                )
            if not state.since.less_equal(after):
                raise HistoryCompacted(after, state.since)
        case Updates(lower, upper):
            if not lower <= upper:
                raise UsageError(f"the lower frontier {lower} is not at or before the upper {upper}")
            if state.since != state.minimum and not state.since.keeps_times_from(lower):
                raise updates_folded(lower, state.since)
        case Fold(_):
            pass


def _closed(query: Query) -> tuple[Callable[[ShardState], bool], object]:
    """Whether a state knows the whole answer, and what is asked for."""
    match query:
        case AsOf(time) | Changes(_, time):
            return lambda state: not state.upper.less_equal(time), time
        case Updates(lower, upper):
            # The times of `[lower, upper)`: tuples may all be closed before `upper` is reached.
            return lambda state: upper <= state.upper.join(lower), upper
        case Fold(_):
            return lambda _: True, None


def wait(
    shard: Shard, reached: Callable[[ShardState], bool], asked: object, timeout_s: float | None
) -> Version:
    """The first version seen whose state satisfies `reached`. One log scan a look, with growing pauses.

    Raises:
        NotYetClosed: none did before the deadline.
    """
    config, clock = shard.spec.config, shard.env.clock
    patience_s = config.wait_timeout_s if timeout_s is None else timeout_s
    deadline_s = clock.monotonic_s() + patience_s
    pause_s = 0.005
    while True:
        version = shard.version()
        if reached(version.state):
            return version
        left_s = deadline_s - clock.monotonic_s()
        if left_s <= 0:
            raise NotYetClosed(asked, _plain(version.upper), patience_s)
        clock.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 2, config.poll_interval_s)


def _plain(frontier: Frontier) -> object:
    """A one-element frontier as its time, for messages."""
    return frontier.elements[0] if len(frontier.elements) == 1 else frontier

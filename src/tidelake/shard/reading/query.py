"""Asking a shard: wait until the answer is final, and check that history still has it.

Owns which version answers; `tidelake.shard.reading.versionread` gives the answer.
"""

from collections.abc import Callable

from tidelake.errors import HistoryCompacted, NotYetClosed, UsageError
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Fold, Query, Updates
from tidelake.model.selection import ReadOptions
from tidelake.shard.engine.lease import Lease
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import Version
from tidelake.shard.reading.versionread import VersionRead
from tidelake.state.core.state import ShardState

_ALL = ReadOptions()


def read(shard: Shard, query: Query, options: ReadOptions = _ALL, seen: Version | None = None) -> VersionRead:
    """A read of the first version seen that knows the whole answer; that is kept for as long as it takes.

    Waits for the times asked for to be closed. `seen` is a version that the caller has just read, of which it
    has the times; then the log is not asked again.
    """
    version = ready(shard, query, options, seen)
    return VersionRead.of(shard, version.kept_by(Lease(shard)), query, options)


def ready(shard: Shard, query: Query, options: ReadOptions = _ALL, seen: Version | None = None) -> Version:
    """The first version seen that knows the whole answer, or with `staged` the newest. As `read`."""
    version = shard.version() if seen is None else seen
    check_since(query, version.state)
    closed, asked = _closed(query)
    if not options.staged and not closed(version.state):
        version = wait(shard, closed, asked, options.timeout_s)
        check_since(query, version.state)
    return version


def answers(state: ShardState, query: Query) -> bool:
    """Whether a state knows the whole answer."""
    return _closed(query)[0](state)


def updates_folded(lower: Frontier, since: Frontier) -> HistoryCompacted:
    """The error of updates from `lower` on, of which those at `since` are folded into older ones."""
    remedy = "updates at since are folded: begin after it, or hold it back with a reader next time"
    return HistoryCompacted(lower, since, remedy)


def check_since(query: Query, state: ShardState) -> None:
    """Refuse what a state can no longer tell."""
    match query:
        case AsOf(time):
            if not state.since.less_equal(time):
                raise HistoryCompacted(time, state.since).of(state.domain.unit)
        case Changes(after, through):
            if not times.less_equal(after, through):
                start, end = state.domain.text(after), state.domain.text(through)
                raise UsageError(
                    f"changes after {start} cannot end at {end}, which is not at or after it: give the "
                    "earlier time first"
                )
            if not state.since.less_equal(after):
                raise HistoryCompacted(after, state.since).of(state.domain.unit)
        case Updates(lower, upper):
            if not lower <= upper:
                start, end = state.domain.text(lower), state.domain.text(upper)
                raise UsageError(f"the lower frontier {start} is not at or before the upper {end}")
            if state.since != state.minimum and not state.since.keeps_times_from(lower):
                raise updates_folded(lower, state.since).of(state.domain.unit)
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
    """The first version seen whose state satisfies `reached`. One log scan a look, with growing pauses."""
    config, clock = shard.spec.config, shard.env.clock
    patience_s = config.wait_timeout_s if timeout_s is None else timeout_s
    deadline_s = clock.monotonic_s() + patience_s
    pause_s, waits = 0.005, False
    while True:
        version = shard.version()
        if reached(version.state):
            return version
        left_s = deadline_s - clock.monotonic_s()
        if left_s <= 0:
            raise NotYetClosed(asked, _plain(version.upper), patience_s).of(shard.spec.domain.unit)
        if not waits:
            shard.env.recorder.count("read.waits")
            waits = True
        this_s = min(pause_s, left_s)
        clock.sleep(this_s)
        shard.env.recorder.count("read.waits.ms", round(this_s * 1000))
        pause_s = min(pause_s * 2, config.poll_interval_s)


def _plain(frontier: Frontier) -> object:
    """A one-element frontier as its time, for messages."""
    return frontier.elements[0] if len(frontier.elements) == 1 else frontier

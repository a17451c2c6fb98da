"""Upkeep: a background thread that maintains the collections of a lake.

Started explicitly and stopped with the lake. It takes over merges from appends, and maintains collections
that get no more appends. It keeps views up to their inputs. Must not know how a merge or a refresh is done.

INVARIANT: a failure ends only one look at one collection, or one refresh of one view; it is counted and kept
in `last_error` and `errors`, and the next look tries again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from tidelake.config import Config
from tidelake.env import Env, Stop
from tidelake.errors import Closed, CollectionNotFound, TidelakeError
from tidelake.handle import Handle
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.measure import forget, tell, tell_caches
from tidelake.shard.upkeep.reports import CollectReport, MaintenanceReport
from tidelake.state.core.commands import NoOp
from tidelake.state.core.state import ShardState
from tidelake.state.life.holds import end_expired_holds

# A collection is idle when it has not been written to for 10 times its rewrite time, at a million rows a
# second. So a collection that gets an update now and then is not rewritten for each of them.
_IDLE_SHARE, _ROWS_PER_S = 10, 1_000_000
# A collection at rest is looked at again after a tenth of the time for which it was not written to, at most
# after this. So a round of a lake of many such collections is short.
_LOOK_SHARE, _LOOK_S = 10, 60.0
# Ages of an unchanged collection are told again after so long.
_AGES_S = 30.0
# A view that failed is tried again after ten times as long as that took, at most after `_LOOK_S`.
_RETRY_SHARE = 10


@dataclass(frozen=True)
class _Left:
    """The result of the last look at a collection.

    Attributes:
        seqno: seqno of its state afterwards.
        written: its upper and since; a change means that it was written to.
        since_s: when `written` was first seen with this value.
        until_s: until then it needs no work if it is not written to; None: it needs some.
        look_s: until then only commits of this process are looked for.
    """

    seqno: int
    written: tuple[Frontier, Frontier]
    since_s: float
    until_s: float | None
    look_s: float

    def looked(self, now_s: float) -> "_Left":
        """The same after a look that found nothing to do; the next one comes after a pause."""
        pause_s = min((now_s - self.since_s) / _LOOK_SHARE, _LOOK_S)
        return replace(self, look_s=min(now_s + pause_s, self.until_s or now_s))


Seen = Callable[[str, MaintenanceReport], None]
# Names of collections, each with the id of the one that it leads to; None: the one that it led to at first.
Listed = Sequence[tuple[str, str | None]]


# Refreshes the views among these collections that are due: the name of each, and its error if it failed.
Fresh = Callable[[Sequence[Collection], Callable[[str], bool]], Iterable[tuple[str, object]]]


@dataclass(frozen=True)
class Tidy:
    """Work for the lake as a whole, done from time to time, and the pause between two calls in seconds."""

    work: Callable[[], object]
    pause_s: Callable[[], float]


class Upkeep(Handle):
    """Maintains collections until it is stopped. Use as a context manager, or call `stop`.

    Attributes:
        failures: number of looks that ended with an error.
        last_error: the newest of these errors; None if there was none.
        errors: the newest error of each collection whose last look or refresh failed, by name.
        merges: number of merges applied.
        collected: totals of what was deleted.
    """

    def __init__(
        self,
        env: Env,
        config: Config,
        names: Callable[[], Listed],
        opened: Callable[[str], Collection],
        interval_s: float,
        *,
        seen: Seen | None = None,
        tidy: Tidy | None = None,
        fresh: Fresh | None = None,
    ) -> None:
        self.failures = 0
        self.last_error: TidelakeError | None = None
        self.errors: dict[str, TidelakeError] = {}
        self.merges = 0
        self.collected = CollectReport()
        self._env, self._config, self._names, self._opened = env, config, names, opened
        self._interval_s, self._seen = interval_s, seen
        self._tidy, self._tidied_s = tidy, env.clock.monotonic_s()
        self._fresh, self._retry_s = fresh, dict[str, float]()
        self._collections: dict[str, Collection] = {}
        self._left: dict[str, _Left] = {}
        # Seqno and moment of what the gauges tell.
        self._measured: dict[str, tuple[int, float]] = {}
        self._spawned = env.spawner.spawn("tidelake-upkeep", self._run)

    def stop(self) -> None:
        """Stop, after the current merge. May be repeated."""
        self._spawned.stop()

    def __enter__(self) -> "Upkeep":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, stop: Stop) -> None:
        try:
            while not stop.wait(0):
                listed = self._listed()
                for name, id_ in listed or ():
                    if stop.wait(0):
                        return
                    self._look(name, id_, stop)
                self._refresh([name for name, _ in listed or ()], stop)
                for name in () if listed is None else self._collections.keys() - {name for name, _ in listed}:
                    self._forget(name)
                self._tidy_up()
                tell_caches(self._env.recorder)
                if stop.wait(self._interval_s):
                    return
        except Closed:
            # The lake was closed: there is nothing left to maintain.
            return

    def _listed(self) -> Listed | None:
        try:
            return self._names()
        except Closed:
            raise
        except TidelakeError as error:
            self._failed(error)
            return None

    def _look(self, name: str, id_: str | None, stop: Stop) -> None:
        known = self._collections.get(name)
        if known is not None and id_ is not None and known.id != id_:
            # The name was given to another collection.
            self._forget(name)
        try:
            self._maintain(name, stop)
            if name not in self._retry_s:
                self.errors.pop(name, None)
        except Closed:
            raise
        except CollectionNotFound:
            self._forget(name)
        except TidelakeError as error:
            self._failed(error, name)

    def _refresh(self, names: Sequence[str], stop: Stop) -> None:
        """Bring the views among some collections up to their inputs."""
        known = [self._collections[name] for name in names if name in self._collections]
        views = [one for one in known if one._shard.latest().owned is not None]
        if not views or self._fresh is None:
            return
        began_s = self._env.clock.monotonic_s()

        def due(name: str) -> bool:
            nonlocal began_s
            _check(stop)
            began_s = self._env.clock.monotonic_s()
            return began_s >= self._retry_s.get(name, began_s)

        try:
            for name, done in self._fresh(views, due):
                self._retry_s.pop(name, None)
                if isinstance(done, TidelakeError):
                    now_s = self._env.clock.monotonic_s()
                    self._retry_s[name] = now_s + min((now_s - began_s) * _RETRY_SHARE, _LOOK_S)
                    self._failed(done, name)
        except Closed:
            raise
        except TidelakeError as error:
            self._failed(error)

    def _tidy_up(self) -> None:
        now_s = self._env.clock.monotonic_s()
        if self._tidy is None:
            return
        try:
            if now_s - self._tidied_s >= self._tidy.pause_s():
                self._tidied_s = now_s
                self._tidy.work()
        except Closed:
            raise
        except TidelakeError as error:
            self._failed(error)

    def _maintain(self, name: str, stop: Stop) -> None:
        collection = self._collections.get(name)
        if collection is None:
            collection = self._collections[name] = self._opened(name)
        left, now_s = self._left.get(name), self._env.clock.monotonic_s()
        if left is not None and now_s < left.look_s and collection._shard.latest().seqno == left.seqno:
            return
        state, now_s = collection.state(), self._env.clock.monotonic_s()
        self._measure(collection, state, now_s)
        written = state.upper, state.since
        overdue = not isinstance(end_expired_holds(state, self._env.clock.now_ms()), NoOp)
        if state.dropped:
            self._forget(name)
            return
        resting = left is not None and left.until_s is not None and now_s < left.until_s
        if left is not None and resting and left.seqno == state.seqno and not overdue:
            self._left[name] = left.looked(now_s)
            return
        still = left is not None and left.written == written
        since_s = left.since_s if left is not None and still else now_s
        wait_s = _IDLE_SHARE * state.spine.totals.rows // _ROWS_PER_S
        idle = still and now_s - since_s >= wait_s
        seconds = None if idle else self._interval_s
        report = collection.maintain(thorough=idle, seconds=seconds, progress=lambda _: _check(stop))
        self.merges += report.merges
        self.collected = self.collected.plus(report.collected)
        # At rest only if nothing was written during this look: otherwise the next look has work to do.
        seqno = collection.state().seqno
        finished = idle and report.complete and seqno == state.seqno
        until_s = now_s + Collector(collection._shard).pause_s() if finished else None
        self._left[name] = _Left(seqno, written, since_s, until_s, now_s)
        if self._seen is not None:
            self._seen(name, report)

    def _measure(self, collection: Collection, state: ShardState, now_s: float) -> None:
        """Tell the gauges of a collection that changed, or whose ages have grown."""
        name, told = collection.name, self._measured.get(collection.name)
        if not state.dropped and (told is None or told[0] != state.seqno or now_s - told[1] >= _AGES_S):
            self._measured[name] = state.seqno, now_s
            tell(collection._shard, name, state)

    def _forget(self, name: str) -> None:
        self._collections.pop(name, None)
        self._left.pop(name, None)
        self._retry_s.pop(name, None)
        self.errors.pop(name, None)
        if self._measured.pop(name, None) is not None:
            forget(self._env.recorder, name)

    def _failed(self, error: TidelakeError, name: str | None = None) -> None:
        self.failures += 1
        self.last_error = error
        if name is not None:
            self.errors[name] = error
        self._env.failed("upkeep.failed")


def _check(stop: Stop) -> None:
    if stop.wait(0):
        raise Closed("upkeep was stopped")

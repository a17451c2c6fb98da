"""Upkeep: a worker beside its caller that maintains the collections of a lake.

Started explicitly and stopped with the lake. It does what an append may do in its own time and what
nobody would do for a collection that is not written to any more. Must not know how a merge is done.

INVARIANT: a failure ends no more than one look at one collection; it is counted and kept, and the next
look tries again.
"""

from collections.abc import Callable, Sequence
from types import TracebackType

from tidelake.env import Env, Stop
from tidelake.errors import Closed, CollectionNotFound, TidelakeError
from tidelake.lake.collection import Collection
from tidelake.shard.maintain import MaintenanceReport

Seen = Callable[[str, MaintenanceReport], None]


class Upkeep:
    """Maintains collections until it is stopped. Use as a context manager, or call `stop`.

    Attributes:
        failures: looks that ended with an error.
        last_error: the newest of these; None if there was none.
        merges: merges that were applied.
    """

    def __init__(
        self,
        env: Env,
        names: Callable[[], Sequence[str]],
        opened: Callable[[str], Collection],
        interval_s: float,
        seen: Seen | None = None,
    ) -> None:
        self.failures = 0
        self.last_error: TidelakeError | None = None
        self.merges = 0
        self._env, self._names, self._opened = env, names, opened
        self._interval_s, self._seen = interval_s, seen
        self._collections: dict[str, Collection] = {}
        self._left: dict[str, tuple[int, bool]] = {}
        self._spawned = env.spawner.spawn("tidelake-upkeep", self._run)

    def stop(self) -> None:
        """End, after the merge that is under way. May be repeated."""
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
                for name in self._listed():
                    if stop.wait(0):
                        return
                    self._look(name, stop)
                if stop.wait(self._interval_s):
                    return
        except Closed:
            # The lake went first; there is nothing left to maintain.
            return

    def _listed(self) -> Sequence[str]:
        try:
            return self._names()
        except Closed:
            raise
        except TidelakeError as error:
            self._failed(error)
            return ()

    def _look(self, name: str, stop: Stop) -> None:
        try:
            self._maintain(name, stop)
        except Closed:
            raise
        except CollectionNotFound:
            self._collections.pop(name, None)
        except TidelakeError as error:
            self._failed(error)

    def _maintain(self, name: str, stop: Stop) -> None:
        collection = self._collections.get(name)
        if collection is None:
            collection = self._collections[name] = self._opened(name)
        seqno = collection.state().seqno
        before, finished = self._left.get(name, (-1, False))
        idle = seqno == before
        if idle and finished:
            return
        seconds = self._interval_s if not idle else None
        report = collection.maintain(thorough=idle, seconds=seconds, watch=lambda _: _check(stop))
        self.merges += report.merges
        # At rest only if a look found nothing to do: what came in beside the merges is for the next one.
        left = collection.state().seqno
        self._left[name] = (left, idle and report.complete and left == seqno)
        if self._seen is not None:
            self._seen(name, report)

    def _failed(self, error: TidelakeError) -> None:
        self.failures += 1
        self.last_error = error
        self._env.recorder.count("lake.upkeep.failed")


def _check(stop: Stop) -> None:
    if stop.wait(0):
        raise Closed("upkeep was stopped")

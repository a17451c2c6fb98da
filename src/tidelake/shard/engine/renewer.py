"""One background worker of a lake, which renews the holds of readers and reads.

Owns the worker, and when a hold is due. The worker starts when the first hold is added, and ends when it
finds none; so thousands of short reads share one. Must not know what a hold is.

INVARIANT: an added hold is looked at no later than it is due, as long as none is due sooner than `tick_s`
after it was added. A fork keeps nothing of its parent.
"""

import threading
from dataclasses import dataclass, field
from typing import Protocol

from tidelake.env import Env, Spawned, Stop
from tidelake.errors import OutOfThreads, TidelakeError
from tidelake.process import PerProcess

# Between two attempts at a renewal that fails.
_PAUSE_S = 1.0
_TICK_S_MIN = 0.01


class Kept(Protocol):
    """Something that has to be renewed now and then."""

    def due_s(self) -> float:
        """When it is due, by the monotonic clock."""

    def keep(self) -> None:
        """Renew it, or take it out of the renewer if it is over. May fail; then it stays due."""

    def give_up(self) -> None:
        """End it, because the renewer ends. May fail; then it expires."""


class LeaseRenewer:
    """Renews what is in it. Thread-safe.

    Args:
        env: the clock, and who starts the worker.
        tick_s: longest pause between two looks.
    """

    def __init__(self, env: Env, tick_s: float) -> None:
        self._env = env
        self._tick_s = max(tick_s, _TICK_S_MIN)
        # The worker is its process' own, and so is what it keeps.
        self._worker = PerProcess(_Worker)

    @property
    def _kept(self) -> dict[Kept, None]:
        return self._worker.get().kept

    def add(self, kept: Kept) -> None:
        """Keep something, until it is discarded. May be repeated."""
        worker = self._worker.get()
        with worker.lock:
            worker.kept[kept] = None
            if worker.spawned is None and not worker.ended:
                try:
                    worker.spawned = self._env.spawner.spawn("tidelake-renewer", self._run)
                except OutOfThreads:
                    del worker.kept[kept]
                    raise

    def look_every(self, tick_s: float) -> None:
        """Look at least every `tick_s` from now on: what is added next may be due so soon."""
        self._tick_s = min(self._tick_s, max(tick_s, _TICK_S_MIN))

    def discard(self, kept: Kept) -> None:
        """Keep it no longer. Takes no lock: the garbage collector may call it anywhere."""
        self._kept.pop(kept, None)

    def stop(self) -> None:
        """End the worker; what is still in it is kept no longer. May be repeated."""
        self.end()
        self._kept.clear()

    def end(self) -> None:
        """End the worker for good. May be repeated."""
        worker = self._worker.get()
        with worker.lock:
            worker.ended = True
            spawned, worker.spawned = worker.spawned, None
        if spawned is not None:
            spawned.stop()

    def give_up(self) -> None:
        """End the holds that are still in it. If the store fails, the rest expires. REQUIRES: `end`."""
        for kept in self._kept.copy():
            try:
                kept.give_up()
            except TidelakeError:
                # The others would wait for the same store.
                self._env.failed("renewer.failed")
                break
        self.stop()

    def look(self) -> float:
        """Renew what is due; the seconds until the next look. A failure is counted, and tried again."""
        for kept in self._kept.copy():
            if kept.due_s() <= self._env.clock.monotonic_s():
                try:
                    kept.keep()
                except TidelakeError:
                    self._env.failed("renewer.failed")
        next_s = min((kept.due_s() for kept in self._kept.copy()), default=float("inf"))
        left_s = next_s - self._env.clock.monotonic_s()
        return min(left_s if left_s > 0 else _PAUSE_S, self._tick_s)

    def _run(self, stop: Stop) -> None:
        # Nothing that was added can be due before.
        pause_s = self._tick_s
        while not stop.wait(pause_s):
            worker = self._worker.get()
            with worker.lock:
                if not worker.kept:
                    worker.spawned = None
                    return
            pause_s = self.look()


@dataclass
class _Worker:
    """The worker of one process, and what it keeps."""

    kept: dict[Kept, None] = field(default_factory=dict)
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    spawned: Spawned | None = None

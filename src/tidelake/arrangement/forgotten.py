"""Releases the resources of arrangements that are garbage collected before they were closed.

Owns the background thread that releases them; it runs while there are arrangements. Must not know what an
arrangement is made of.

INVARIANT: neither the holdings nor any thread refers to the arrangement; otherwise it would never be garbage
collected.

SUBTLE: the garbage collector calls a finalizer at any moment, in any thread, whatever locks that thread
holds. So the finalizer closes nothing: it only puts the holdings into a queue, which takes no lock of ours.
"""

import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from tidelake.env import Recorder, Spawned, Spawner, Stop
from tidelake.errors import TidelakeWarning
from tidelake.process import PerProcess, ProcessOrigin


@dataclass
class Holdings:
    """The resources of an arrangement."""

    title: str
    give_up: list[Callable[[], None]]
    recorder: Recorder

    def close(self) -> None:
        """Release all of them, even if some fail: the operating system and expiring leases do the rest."""
        for close in self.give_up:
            try:
                close()
            except Exception:
                # There is no caller to raise it to.
                self.recorder.count("arrangement.forgotten.failed")


@dataclass
class _Closer:
    """A thread that releases what was forgotten; it ends when no arrangement is watched."""

    watched: int = 0
    forgotten: "SimpleQueue[Holdings | None]" = field(default_factory=SimpleQueue)
    spawned: Spawned | None = None
    origin: ProcessOrigin = field(default_factory=ProcessOrigin)

    def run(self, _stop: Stop) -> None:
        while (holdings := self.forgotten.get()) is not None:
            holdings.close()
            # Otherwise the reference would keep the resources alive until the next item comes.
            del holdings
            if _CURRENT.get().less(self):
                return

    def end(self) -> None:
        """Stop the thread."""
        self.forgotten.put(None)
        if self.spawned is not None:
            self.spawned.stop()


class Watch:
    """Watches one arrangement until it is closed; if it is garbage collected first, warns and releases it."""

    def __init__(self, arrangement: object, holdings: Holdings, spawner: Spawner) -> None:
        self._closer = _CURRENT.get().more(spawner)
        self._finalizer = weakref.finalize(arrangement, _forgotten, self._closer, holdings)
        # At exit the thread is gone, and the operating system releases everything.
        self._finalizer.atexit = False

    def end(self) -> None:
        """Stop watching: the arrangement is being closed."""
        closer = self._closer
        if self._finalizer.detach() and closer.origin.is_here and _CURRENT.get().less(closer):
            closer.end()


class _Current:
    """The closer of a process, while it has arrangements."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closer: _Closer | None = None

    def more(self, spawner: Spawner) -> _Closer:
        """The closer, with one more arrangement to watch."""
        with self._lock:
            if self._closer is None:
                closer = _Closer()
                closer.spawned = spawner.spawn("tidelake-forgotten", closer.run)
                self._closer = closer
            self._closer.watched += 1
            return self._closer

    def less(self, closer: _Closer) -> bool:
        """One less arrangement to watch; returns whether it was the last one."""
        with self._lock:
            closer.watched -= 1
            if not closer.watched:
                self._closer = None
            return not closer.watched


_CURRENT = PerProcess(_Current)


def _forgotten(closer: _Closer, holdings: Holdings) -> None:
    if not closer.origin.is_here:
        return  # a forked process has a copy of the parent's arrangement
    closer.forgotten.put(holdings)
    warnings.warn(
        TidelakeWarning(
            f"{holdings.title} was garbage collected before it was closed: its threads, files and holds are "
            "released now; close it, or use it in a with block"
        ),
        stacklevel=2,
    )

"""Releases the resources of arrangements that are garbage collected before they were closed.

Owns the background thread that releases them; it runs while there are arrangements. Must not know what an
arrangement is made of.

INVARIANT: neither the holdings nor any thread refers to the arrangement; otherwise it would never be garbage
collected.

SUBTLE: the garbage collector calls a finalizer at any moment, in any thread, whatever locks that thread
holds. So the finalizer closes nothing: it only puts the holdings into a queue, which takes no lock of ours.
"""

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from tidelake.env import Recorder, Spawned, Stop, ThreadSpawner
from tidelake.errors import TidelakeWarning


@dataclass
class Holdings:
    """The resources of an arrangement.

    Attributes:
        title: describes the arrangement in the warning.
        give_up: releases the resources, in this order.
        recorder: counts failures.
    """

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
    pid: int = field(default_factory=os.getpid)

    def run(self, _stop: Stop) -> None:
        while (holdings := self.forgotten.get()) is not None:
            holdings.close()
            # Otherwise the reference would keep the resources alive until the next item comes.
            del holdings
            if _less(self):
                return

    def end(self) -> None:
        """Stop the thread."""
        self.forgotten.put(None)
        if self.spawned is not None:
            self.spawned.stop()


class Watch:
    """Watches one arrangement until it is closed; if it is garbage collected first, warns and releases it."""

    def __init__(self, arrangement: object, holdings: Holdings) -> None:
        self._closer = _more()
        self._finalizer = weakref.finalize(arrangement, _forgotten, self._closer, holdings)
        # At exit the thread is gone, and the operating system releases everything.
        self._finalizer.atexit = False

    def end(self) -> None:
        """Stop watching: the arrangement is being closed."""
        if self._finalizer.detach() and self._closer.pid == os.getpid() and _less(self._closer):
            self._closer.end()


_lock = threading.Lock()
_closers: list[_Closer] = []


def _more() -> _Closer:
    """The closer of this process, with one more arrangement to watch."""
    global _lock  # noqa: PLW0603 - once per process
    if _closers and _closers[0].pid != os.getpid():
        # In a forked process the parent's thread does not run, and its lock may be held for ever.
        _lock = threading.Lock()
        _closers.clear()
    with _lock:
        if not _closers:
            closer = _Closer()
            closer.spawned = ThreadSpawner().spawn("tidelake-forgotten", closer.run)
            _closers.append(closer)
        _closers[0].watched += 1
        return _closers[0]


def _less(closer: _Closer) -> bool:
    """One less arrangement to watch; returns whether it was the last one."""
    with _lock:
        closer.watched -= 1
        if closer.watched:
            return False
        _closers.remove(closer)
        return True


def _forgotten(closer: _Closer, holdings: Holdings) -> None:
    if closer.pid != os.getpid():
        return  # a forked process has a copy of the parent's arrangement
    closer.forgotten.put(holdings)
    warnings.warn(
        TidelakeWarning(
            f"{holdings.title} was garbage collected before it was closed: its threads, files and holds are "
            "released now; close it, or use it in a with block"
        ),
        stacklevel=2,
    )

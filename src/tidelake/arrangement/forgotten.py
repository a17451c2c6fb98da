"""Arrangements that nobody has any more, and nobody has closed: what they hold is given up.

Owns the thread that does it. It runs while there are arrangements. Must not know what they are made of.

INVARIANT: neither what is to be given up nor what threads have refers to the arrangement, so that the garbage
collector finds that nobody has it.

SUBTLE: the garbage collector calls at any moment, in any thread, whatever locks that thread holds. So nothing
is closed then: it is put into a queue, which takes no lock of ours.
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
    """What an arrangement has beside itself.

    Attributes:
        title: of the arrangement, for people.
        give_up: each of it, in order.
        recorder: counts what failed.
    """

    title: str
    give_up: list[Callable[[], None]]
    recorder: Recorder

    def close(self) -> None:
        """Give all of it up, whatever fails: the operating system and leases do the rest."""
        for close in self.give_up:
            try:
                close()
            except Exception:
                # Nobody is there to be told.
                self.recorder.count("arrangement.forgotten.failed")


@dataclass
class _Closer:
    """A thread that closes what was forgotten, while anything is watched."""

    watched: int = 0
    forgotten: "SimpleQueue[Holdings | None]" = field(default_factory=SimpleQueue)
    spawned: Spawned | None = None
    pid: int = field(default_factory=os.getpid)

    def run(self, _stop: Stop) -> None:
        while (holdings := self.forgotten.get()) is not None:
            holdings.close()
            # Of what it held nothing is to stay alive until the next one comes.
            del holdings
            if _less(self):
                return

    def end(self) -> None:
        """There is nothing to wait for any more."""
        self.forgotten.put(None)
        if self.spawned is not None:
            self.spawned.stop()


class Watch:
    """Watches over one arrangement until it is closed; one that is forgotten warns, and is closed."""

    def __init__(self, arrangement: object, holdings: Holdings) -> None:
        self._closer = _more()
        self._finalizer = weakref.finalize(arrangement, _forgotten, self._closer, holdings)
        # At the end of the process there is nobody left to do it, and nothing that would stay.
        self._finalizer.atexit = False

    def end(self) -> None:
        """It is being closed."""
        if self._finalizer.detach() and self._closer.pid == os.getpid() and _less(self._closer):
            self._closer.end()


_turn = threading.Lock()
_closers: list[_Closer] = []


def _more() -> _Closer:
    """The closer of this process, with one more to wait for."""
    global _turn  # noqa: PLW0603 - once per process
    if _closers and _closers[0].pid != os.getpid():
        # The parent's thread is not here, and its lock may be held for ever.
        _turn = threading.Lock()
        _closers.clear()
    with _turn:
        if not _closers:
            closer = _Closer()
            closer.spawned = ThreadSpawner().spawn("tidelake-forgotten", closer.run)
            _closers.append(closer)
        _closers[0].watched += 1
        return _closers[0]


def _less(closer: _Closer) -> bool:
    """One less to wait for; whether it was the last one."""
    with _turn:
        closer.watched -= 1
        if closer.watched:
            return False
        _closers.remove(closer)
        return True


def _forgotten(closer: _Closer, holdings: Holdings) -> None:
    if closer.pid != os.getpid():
        return  # a copy of the parent's, in a fork
    closer.forgotten.put(holdings)
    warnings.warn(
        TidelakeWarning(
            f"{holdings.title} was forgotten and not closed: its threads, files and holds are given up; "
            "close it, or use it in a with block"
        ),
        stacklevel=2,
    )

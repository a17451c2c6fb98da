"""The scheduler: many real threads, of which exactly one runs at a time.

Owns the order of the threads and the simulated time. The thread that holds the turn runs until it calls
`pause`; then a seeded choice among the threads that are ready picks the next one. Must not know what the
threads do.

INVARIANT: a run is a function of the seed. No thread runs without the turn, `pause` alone moves the time,
and a thread of a dead process never pauses again: it unwinds to its end before another thread runs.
"""

import heapq
import random
import sys
import threading
import traceback
from collections.abc import Callable

from tests.doubles.faults import SimulatedCrash

# After this many real seconds without a step the threads count as stuck.
_STUCK_S = 60.0
_NEVER = 2**62


class Stuck(Exception):
    """No thread can go on: a deadlock, or an endless loop without a store call."""


class Process:
    """A simulated process: threads that crash together.

    Attributes:
        name: its name in the trace.
        dead: whether it has crashed; its threads are unwinding, or gone.
        stalled_us: simulated time before which none of its threads runs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stalled_us = 0


class Strand:
    """One thread under the turn.

    Attributes:
        about: what it is doing, read by the judges; None: nothing in particular.
    """

    def __init__(self, process: Process, name: str, wake_us: int) -> None:
        self.process, self.name = process, name
        self.wake_us = wake_us
        self.until: Callable[[], bool] | None = None
        self.ended = False
        self.about: object = None
        self.go = threading.Lock()
        self.go.acquire()

    def ready_us(self) -> int:
        """The simulated time from which on it may run, as far as is known now."""
        if self.process.dead:
            return 0
        wake_us = 0 if self.until is not None and self.until() else self.wake_us
        return max(wake_us, self.process.stalled_us)


class Scheduler:
    """Lets one thread run at a time.

    Args:
        draw: the source of random choices; used by this class only.
        steps: number of pauses after which every process dies and the run ends.

    Attributes:
        now_us: simulated time.
        steps: number of pauses so far.
        trouble: the first error that `fail` was given, or that ended a thread.
    """

    def __init__(self, draw: random.Random, steps: int) -> None:
        self.now_us = 0
        self.steps = 0
        self.trouble: BaseException | None = None
        self._draw, self._limit = draw, steps
        # The probability that the running thread goes on although others are ready.
        self._stay = draw.choice((0.0, 0.3, 0.6, 0.85))
        self._strands: list[Strand] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self._current: Strand | None = None
        self._over = False
        self._done = threading.Event()

    @property
    def current(self) -> Strand:
        """The thread that holds the turn."""
        if self._current is None:
            raise Stuck("no thread holds the turn")
        return self._current

    def beside(self, strand: Strand) -> tuple[object, ...]:
        """What the other threads of this thread's process are doing."""
        others = [other for other in self._strands if other.process is strand.process and other is not strand]
        return tuple(other.about for other in others if other.about is not None)

    @property
    def running(self) -> bool:
        """Whether some thread has the turn."""
        return self._current is not None

    @property
    def over(self) -> bool:
        """Whether the run is ending: all threads unwind, and no new work starts."""
        return self._over

    def start(self, process: Process, name: str, work: Callable[[], None], delay_us: int = 0) -> Strand:
        """Add a thread, which waits for its turn."""
        strand = Strand(process, name, self.now_us + delay_us)
        thread = threading.Thread(target=self._run, args=(strand, work), name=name, daemon=True)
        self._strands.append(strand)
        thread.start()
        return strand

    def at(self, when_us: int, event: Callable[[], None]) -> None:
        """Call `event` at a simulated time, even if the process that asked for it has died by then."""
        self._event_count += 1
        heapq.heappush(self._events, (when_us, self._event_count, event))

    def run(self) -> None:
        """Run all threads until the last one has ended.

        Raises:
            Stuck: the threads made no step for a minute of real time.
        """
        self._pass_on(None)
        seen = -1
        while not self._done.wait(_STUCK_S):
            if seen == self.steps:
                raise Stuck(f"no step for {_STUCK_S:.0f} real seconds after step {seen}\n{_stacks()}")
            seen = self.steps

    def pause(self, wake_us: int = 0, until: Callable[[], bool] | None = None) -> None:
        """Let other threads run; go on at a simulated time, or as soon as `until` holds.

        Raises:
            SimulatedCrash: the process is dead.
        """
        strand = self.current
        self._check(strand)
        if self.steps == self._limit:
            self.finish()
            self._check(strand)
        self.steps += 1
        strand.wake_us, strand.until = wake_us, until
        self._pass_on(strand)
        self._check(strand)

    def block(self, until: Callable[[], bool]) -> None:
        """Let other threads run until `until` holds."""
        self.pause(_NEVER, until)

    def finish(self) -> None:
        """End the run: every process dies."""
        self._over = True
        for strand in self._strands:
            strand.process.dead = True

    def fail(self, error: BaseException) -> None:
        """End the run because of an error, even if a caller catches the error that is raised for it."""
        if self.trouble is None and not self._over:
            self.trouble = error
        self.finish()

    def _check(self, strand: Strand) -> None:
        if strand.process.dead:
            raise SimulatedCrash(f"{strand.process.name} is dead")

    def _run(self, strand: Strand, work: Callable[[], None]) -> None:
        strand.go.acquire()
        try:
            self._check(strand)
            work()
        except SimulatedCrash:
            pass
        except BaseException as error:
            self.fail(error)
        strand.ended = True
        self._strands.remove(strand)
        self._pass_on(None)

    def _pass_on(self, own: Strand | None) -> None:
        """Give the turn to the next thread. Unless that is the caller, wait for the caller's next turn."""
        chosen = self._choose(own)
        self._current = chosen
        if chosen is None:
            self._done.set()
            return
        if chosen is own:
            return
        chosen.go.release()
        if own is not None:
            own.go.acquire()

    def _choose(self, own: Strand | None) -> Strand | None:
        while self._strands:
            for strand in self._strands:
                if strand.process.dead:
                    return strand
            while self._events and self._events[0][0] <= self.now_us:
                heapq.heappop(self._events)[2]()
            if self._over:
                continue
            ready = [strand for strand in self._strands if strand.ready_us() <= self.now_us]
            if own in ready and self._draw.random() < self._stay:
                return own
            if ready:
                return ready[int(self._draw.random() * len(ready))]
            next_us = min(strand.ready_us() for strand in self._strands)
            if self._events:
                next_us = min(next_us, self._events[0][0])
            if next_us >= _NEVER:
                self.fail(
                    Stuck("all threads wait for each other: " + ", ".join(s.name for s in self._strands))
                )
            else:
                self.now_us = next_us
        return None


class SchedulerLock:
    """A `threading.Lock` for threads under the turn: a thread that waits for it hands the turn on.

    With a real lock that is held across a store call, the waiting thread would keep the turn for ever.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._baton = scheduler
        self._locked = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: ARG002 - the signature of a lock
        """Take it; waits unless told otherwise."""
        while self._locked:
            if not blocking:
                return False
            self._baton.block(lambda: not self._locked)
        self._locked = True
        return True

    def release(self) -> None:
        """Give it back."""
        self._locked = False

    def locked(self) -> bool:
        """Whether a thread has it."""
        return self._locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _stacks() -> str:
    frames = sys._current_frames()
    return "\n".join(
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident])[-6:])}"
        for thread in threading.enumerate()
        if thread.ident in frames and thread is not threading.current_thread()
    )

"""How a process leaves the log of a shard to other processes, so that each gets its share of the commits.

Who has just committed knows the newest state, and can commit again one round trip later. Who was too late
must read first, and so comes too late again. So a process that has lost a race lately waits after each of its
commits, for a random part of the time that a rival needs for its next attempt. Must not know what is
committed.

To wait after a lost race would leave even more to those who have won: only winners wait. Stores that answer
within `FAR_S` need none of this: there, what a process does between two commits takes longer than an attempt.
Nor do the processes of one machine that can take turns (`AdvisoryLocks.spans_processes`): they lose no races.
"""

from collections.abc import Callable

from tidelake.env import Clock

FAR_S = 0.005
PAUSE_S_MAX = 1.0
_WINS = 8  # after so many commits without a lost race the rivals have gone
_SHARE = 0.5  # more is fairer and slower: of eight processes the slowest had 0.5 of the mean at 0, 0.8 at 0.5


class FairShare:
    """The commits of one process on one shard. Used by one thread at a time.

    Args:
        clock: tells how long commits take, and waits.
        draw: random numbers in [0, 1).
    """

    def __init__(self, clock: Clock, draw: Callable[[], float]) -> None:
        self._clock, self._draw = clock, draw
        self._wins_left = self._alone_in = 0
        self._attempt_s = 0.0
        self._free_s: float | None = None
        self._last: int | None = None

    def give_way(self) -> None:
        """Wait before the next commit, if that is due. Time that has passed since the last one counts."""
        free_s, self._free_s = self._free_s, None
        if free_s is not None:
            left_s = free_s - self._clock.monotonic_s()
            if left_s > 0:
                self._clock.sleep(left_s)

    @property
    def has_rivals(self) -> bool:
        """Whether another process has committed between two commits of this one lately."""
        return self._alone_in > 0

    def won(self, seqno: int) -> None:
        """A commit has ended, which is this entry of the log."""
        is_next, self._last = self._last in (None, seqno - 1), seqno
        self._alone_in = max(0, self._alone_in - 1) if is_next else _WINS
        if self._wins_left:
            self._wins_left -= 1
            pause_s = min(PAUSE_S_MAX, self._draw() * _SHARE * self._attempt_s)
            self._free_s = self._clock.monotonic_s() + pause_s

    def lost(self, began_s: float) -> None:
        """An attempt that began then has lost; the newest state was read since."""
        self._attempt_s = self._clock.monotonic_s() - began_s
        self._wins_left = _WINS if self._attempt_s >= FAR_S else 0
        self._alone_in = _WINS

"""The log in an object store alone: clients that commit, refresh, truncate and delete, and one judge of them.

The runs of whole lakes use the same log; here every step is a request of it, so that a seed tries far more.
Must not know how the log keeps its promises: the judge knows the first object of each seqno, and what clients
were told.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from simulation.figures import Figures
from simulation.options import Options
from simulation.process import SimulatedProcess
from simulation.record import Violation
from simulation.run import SimulationFailed, repeatable
from simulation.scheduler import Stuck
from simulation.witness import Actor
from simulation.world import World
from tidelake.errors import OutcomeUnknown, StoreUnavailable, TidelakeError, UsageError
from tidelake.store.layers import LogLayer
from tidelake.store.protocols import Entry, VersionLog
from tidelake.store.retrying import Retry

_END = b"the end of "


class LogJudge:
    """Knows what was committed, and compares what clients are told. An `Observer` of the objects.

    Attributes:
        logs: all entries of each log that ever was.
        ended: keys that are being deleted.
        counts: how often each thing was done.
    """

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self.logs: dict[str, list[bytes]] = {}
        self.ended: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._lost: set[tuple[str, bytes]] = set()
        self._report = report

    def wrong(self, message: str) -> NoReturn:
        """End the run with a violation, even if a caller catches the error."""
        error = Violation(message)
        self._report(error)
        raise error

    def entered(self, key: str, entry: Entry, actor: Actor) -> None:  # noqa: ARG002 - the signature
        """Take in a new entry."""
        log = self.logs.setdefault(key, [])
        if entry.seqno != len(log):
            self.wrong(f"{key}@{entry.seqno} was put, and the log ends at {len(log) - 1}")
        if log and log[-1].startswith(_END):
            self.wrong(f"{key}@{entry.seqno} comes after the end")
        if (key, entry.data) in self._lost:
            self.wrong(f"{key}@{entry.seqno} holds {entry.data!r}, which was told to have lost")
        log.append(entry.data)

    def ending(self, key: str) -> None:
        """Judge a deletion of a log, which is about to happen."""
        if not self.logs[key][-1].startswith(_END):
            self.wrong(f"{key} is deleted before its end")
        self.ended.add(key)

    def survived(self) -> None:
        """Do nothing: objects survive a crash."""

    def deleting(self, name: str) -> None:
        """Do nothing: there are no parts."""

    def head(self, key: str) -> int:
        """The seqno of the newest entry; -1 if there is none."""
        return len(self.logs.get(key, ())) - 1

    def committed(self, key: str, seqno: int, data: bytes, *, won: bool) -> None:
        """Judge the answer to a commit."""
        there = self.logs.get(key, [])[seqno : seqno + 1]
        if won and there != [data]:
            self.wrong(f"{data!r} was told to be {key}@{seqno}, which is {there}")
        if not won:
            if data in self.logs.get(key, ()):
                self.wrong(f"{data!r} is in {key}, and was told to have lost")
            self._lost.add((key, data))
        self.counts["commits won" if won else "commits lost"] += 1

    def saw(self, key: str, entries: list[Entry], first: int | None, least: int) -> None:
        """Judge entries that were read from `first` on, when the log went up to `least` already."""
        log = self.logs.get(key, [])
        start = entries[0].seqno if entries and first is None else first or 0
        expected = [Entry(start + n, data) for n, data in enumerate(log[start : start + len(entries)])]
        if entries != expected:
            self.wrong(f"{key}: {entries} was read, and {expected} is true")
        if start + len(entries) <= least and key not in self.ended:
            self.wrong(f"{key} was read up to {start + len(entries) - 1}, and {least} was in")


class LogClient:
    """One process on one log after the other."""

    def __init__(self, world: World, judge: LogJudge, process: SimulatedProcess, draw: random.Random) -> None:
        self._world, self._judge, self._process, self._draw = world, judge, process, draw
        _, log = process.clock_and_log()
        deadline_s = world.options.config.retry_deadline_s
        self._log: VersionLog = LogLayer(log, Retry(process, deadline_s, world.draw.random).layer)
        self._key, self._known, self._count = "k0", -1, 0

    def work(self) -> None:
        """Do one thing after the other, for ever."""
        ways = (
            self._commit,
            self._commit,
            self._commit,
            self._refresh,
            self._truncate,
            self._wait,
            self._read,
        )
        while True:
            try:
                if self._known < 0:
                    self._open()
                elif self._judge.logs[self._key][self._known].startswith(_END):
                    self._delete()
                else:
                    self._draw.choice(ways)()
            except (StoreUnavailable, OutcomeUnknown):
                self._judge.counts["calls that failed"] += 1

    def _open(self) -> None:
        least = self._judge.head(self._key)
        head = self._log.head(self._key)
        if head is not None:
            self._judge.saw(self._key, [head], None, least)
            self._known = head.seqno
        elif self._key in self._judge.ended:
            self._next()
        elif least >= 0:
            self._judge.wrong(f"{self._key} was not found, and {least} was in")
        else:
            self._offer()

    def _next(self) -> None:
        self._key, self._known = f"k{int(self._key[1:]) + 1}", -1

    def _commit(self) -> None:
        self._offer()

    def _offer(self) -> None:
        """Commit something new after the known entry; read it back if the outcome is unknown."""
        self._count += 1
        end = _END if self._known > 60 and self._draw.random() < 0.1 else b""
        data = end + f"{self._process.name} {self._count}".encode()
        seqno, expected = self._known + 1, None if self._known < 0 else self._known
        try:
            won = self._log.compare_and_set(self._key, expected, data)
        except OutcomeUnknown:
            self._judge.counts["commits of unknown outcome"] += 1
            won = self.decided(seqno, expected, data)
        self._judge.committed(self._key, seqno, data, won=won)
        if won:
            self._known = seqno
        else:
            self._refresh()

    def decided(self, seqno: int, expected: int | None, data: bytes) -> bool:
        """Whether an entry is in, after a commit of unknown outcome."""
        while True:
            self._process.sleep(self._draw.choice((0.01, 0.1, 1.0)))
            newer = self._log.newer(self._key, seqno - 1)
            if newer is None:
                raise OutcomeUnknown("gone")
            if newer:
                return newer[0].data == data
            occupied = self.occupied(seqno, expected, data)
            if occupied is not None:
                return occupied

    def occupied(self, seqno: int, expected: int | None, data: bytes) -> bool | None:  # noqa: ARG002
        """Offer an entry whose seqno is free once more; whether it is in, None if another look is needed."""
        return True if self._log.compare_and_set(self._key, expected, data) else None

    def _refresh(self) -> None:
        if self._known < 0:
            return
        least = self._judge.head(self._key)
        newer = self._log.newer(self._key, self._known)
        self._judge.counts["refreshes"] += 1
        if newer is None:
            self._judge.counts["openings anew"] += 1
            self._known = -1
            return
        self._judge.saw(self._key, newer, self._known + 1, least)
        self._known += len(newer)

    def _read(self) -> None:
        least = self._judge.head(self._key)
        self._judge.saw(self._key, self._log.scan(self._key, 0), None, least)

    def _truncate(self) -> None:
        seqno = self._draw.randint(max(0, self._known - 8), self._known)
        try:
            self._judge.counts["entries removed"] += self._log.truncate(self._key, seqno)
        except UsageError:
            if self._key not in self._judge.ended:
                raise

    def _wait(self) -> None:
        self._process.sleep(
            self._draw.choice((0.01, 0.1, 0.4, 0.6, 1.1, 3.0)) * (self._world.options.grace_s or 0)
        )

    def _delete(self) -> None:
        if self._log.delete(self._key) or self._key in self._judge.ended:
            self._judge.counts["logs deleted"] += 1
            self._next()
        else:
            self._process.sleep((self._world.options.grace_s or 0) / 2)


def simulate_log(seed: int, steps: int) -> Figures:
    """Run one seed for at most `steps` steps. The answer depends on the arguments alone.

    Raises:
        SimulationFailed: an answer was wrong, or a rule was broken.
    """
    draw = random.Random(f"{seed} log options")  # noqa: S311
    options = Options.drawn(draw).on_objects(draw)
    options = replace(options, rates={**options.rates, "clock jump": draw.choice((0.0, 0.01))})
    world = World(seed, steps, options)
    judge = LogJudge(world.scheduler.fail)
    error: BaseException | None = None
    with repeatable(world):
        try:
            for n in range(draw.randint(2, 4)):
                _start(world, judge, f"client{n}")
            world.scheduler.run()
            if world.scheduler.trouble is None:
                _check_rest(world, judge)
        except (AssertionError, TidelakeError, Stuck) as caught:
            error = caught
    error = world.scheduler.trouble or error
    if error is not None:
        raise SimulationFailed(seed, world.scheduler.steps, error, list(world.trace.lines)) from error
    return Figures(1, world.scheduler.steps, judge.counts, world.injected, world.trace.digest)


def _start(world: World, judge: LogJudge, name: str, life: int = 0) -> None:
    """Start a client. When its process dies, a new one replaces it after a while."""
    process = SimulatedProcess(world, judge, f"{name}.{life}" if life else name)
    client = LogClient(world, judge, process, random.Random(f"{world.seed} {name} {life}"))  # noqa: S311

    def work() -> None:
        try:
            client.work()
        finally:
            if process.dead and not world.scheduler.over:
                _start(world, judge, name, life + 1)

    world.start(process, process.name, work, 10_000 if life else 0)


def _check_rest(world: World, judge: LogJudge) -> None:
    """Check that each log that was not deleted is there from its floor to its newest entry."""
    log = world.log(judge)
    for key in sorted(judge.logs.keys() - judge.ended):
        judge.saw(key, log.scan(key, 0), None, judge.head(key))
        log.truncate(key, judge.head(key))
        judge.saw(key, log.scan(key, 0), judge.head(key), judge.head(key))

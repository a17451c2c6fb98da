"""What the judge records: appends that clients asked for, moments of calls, and violations.

Must not judge.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.core.state import FIRST, ShardState
from tidelake.testing.oracle import Row

DOMAIN = TimeDomain("counter")


class Violation(AssertionError):
    """The product gave a wrong answer, or left the stores in a state that breaks a rule."""


@dataclass(eq=False)
class AppendCall:
    """One append that a client asks for. It stays one append however often the client tries it.

    Attributes:
        label: its name in messages.
        rows: (row, time, diff) of each update; a time of None is picked at the commit.
        upper: the upper that was asked for, if any.
        writer: name, epoch and sequence number, if a named writer appends.
        placed: seqno, lower and upper of the log entry that holds it; None until it is committed.
        unsure: whether an attempt has ended without an answer.
        barred: why it must not be committed from now on; empty if it may be.
        staged: whether it is a stage, which leaves its times open.
        answers: of each answer, the steps at which the call began and ended, and the interval in the answer.
    """

    label: str
    rows: list[tuple[Row, int | None, int]]
    upper: Frontier | None = None
    writer: tuple[str, int, int] | None = None
    placed: tuple[int, Frontier, Frontier] | None = None
    unsure: bool = False
    barred: str = ""
    staged: bool = False
    answers: list[tuple[int, int, Frontier, Frontier]] = field(default_factory=list)


@dataclass(frozen=True)
class CallBegan:
    """The moment at which a call began.

    Attributes:
        step: step of the run.
        at_us: simulated time in microseconds.
        entries: number of steps of the collection's log by then.
    """

    step: int
    at_us: int
    entries: int


def only_time(frontier: Frontier) -> int:
    """The one time of a frontier of counters."""
    (time,) = frontier.elements
    if not isinstance(time, int):
        raise TypeError(f"{time!r} is no counter")
    return time


@dataclass(frozen=True)
class Drop:
    """A drop in progress, with or without force."""

    force: bool


def parts(state: ShardState) -> Iterator[str]:
    """The names of the stored parts that readers of a state need."""
    yield from (part.name for part in state.parts() if part.inline is None)


def named(state: ShardState) -> Iterator[str]:
    """The names of the blobs that a state needs; a tombstone needs none."""
    if state.dropped:
        return
    yield from parts(state)
    for chunk in state.chunks.values():
        yield from (part.name for part in chunk if part.inline is None)
    if state.rollup != FIRST:
        yield names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id)

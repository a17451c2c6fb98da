"""The judge: sees every effect on the true stores, and knows what every answer must be.

Owns the oracle, which is fed from the order of the log's entries, and the record of every append. Must not
know which client asks, nor which faults there were.

INVARIANT: what is judged is never what the answer was made of: rows come from the clients, the order and
the times from the log, and the answers from the product.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import pyarrow as pa

from tidelake.errors import (
    HistoryCompacted,
    InternalError,
    LeaseExpired,
    NotYetClosed,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    UpdateBeyondUpper,
    UpdateNotBeyondLower,
    UpperMismatch,
    WriterFenced,
)
from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain
from tidelake.state import codec
from tidelake.state.append import Appended
from tidelake.state.invariants import check_state
from tidelake.state.state import FIRST, Delta, ShardState, apply
from tidelake.store.protocols import Entry
from tidelake.testing import tables
from tidelake.testing.oracle import Oracle, Row
from tidelake.testing.simulation.witness import Actor

DOMAIN = TimeDomain("counter")


class Violation(AssertionError):
    """The product gave a wrong answer, or left the stores in a state that breaks a rule."""


@dataclass(eq=False)
class Append:
    """One append that a client asks for, however often it is offered.

    Attributes:
        label: for messages.
        rows: with their times; None is picked at the commit.
        upper: that was asked for, if any.
        writer: name, epoch and number, if it has them.
        placed: seqno, lower and upper of the entry that holds it, once it is in.
        unsure: whether an attempt has ended without an answer.
        barred: why it must never come in (any more).
        answers: steps at which a call began and ended, and the interval that it was told.
    """

    label: str
    rows: list[tuple[Row, int | None, int]]
    upper: Frontier | None = None
    writer: tuple[str, int, int] | None = None
    placed: tuple[int, Frontier, Frontier] | None = None
    unsure: bool = False
    barred: str = ""
    answers: list[tuple[int, int, Frontier, Frontier]] = field(default_factory=list)


class Judge:
    """Knows the true history of one collection.

    Attributes:
        shard_id: of the collection.
        state: the newest true state.
        oracle: the collection as a list of updates.
        counts: what was done and judged.
    """

    def __init__(
        self,
        clock: Callable[[], tuple[int, int]],
        short_us: int,
        report: Callable[[BaseException], None],
        present: Callable[[str], bool],
    ) -> None:
        start = Frontier.of(DOMAIN.minimum)
        self.shard_id = ""
        self.oracle = Oracle(start, start)
        self.counts: Counter[str] = Counter()
        self.appends: list[Append] = []
        self._clock, self._short_us, self._report, self._present = clock, short_us, report, present
        self._states: dict[str, ShardState] = {}
        self._named: dict[str, frozenset[str]] = {}
        self._uppers: dict[str, list[Frontier]] = {}
        # What a writer's name had got in when an epoch was opened.
        self._opened: dict[tuple[str, int], int | None] = {}
        self.doomed: set[str] = set()
        # The process that opened each hold.
        self._holders: dict[str, str] = {}
        # The parts of the collection as of each of its entries, for those who read old states.
        self._parts_at: list[frozenset[str]] = []

    @property
    def state(self) -> ShardState:
        """The newest state of the collection."""
        return self._states[self.shard_id]

    @property
    def uppers(self) -> list[Frontier]:
        """The upper of the collection after each entry of its log."""
        return self._uppers[self.shard_id]

    def wrong(self, message: str) -> NoReturn:
        """End the run with a violation, whoever may catch it."""
        error = Violation(message)
        self._report(error)
        raise error

    # What happens to the stores.

    def entered(self, key: str, entry: Entry, actor: Actor) -> None:
        """A log got an entry."""
        before, delta = self._states.get(key), None
        if before is None:
            state = codec.decode_state(entry.data, key)
        else:
            delta = codec.decode_delta(entry.data, key)
            state = apply(before, delta)
        self._states[key] = state
        self._uppers.setdefault(key, []).append(state.upper)
        try:
            check_state(state)
        except InternalError as error:
            self.wrong(f"{key}@{entry.seqno}: {error}")
        known, self._named[key] = self._named.get(key, frozenset()), frozenset(named(state))
        self._check_present(key, self._named[key] - known)
        if key != "catalog":
            self._parts_at.append(frozenset(parts(state)))
        if before is not None and delta is not None and key == self.shard_id:
            self._advanced(before, state, delta, actor)

    def survived(self) -> None:
        """The machine has crashed: every blob that a newest state names is still there."""
        for key, wanted in self._named.items():
            self._check_present(key, wanted)

    def _check_present(self, key: str, wanted: Collection[str]) -> None:
        for name in sorted(wanted):
            if not self._present(name):
                self.wrong(f"{key}@{self._states[key].seqno} names {name}, which is not there")

    def deleting(self, name: str) -> None:
        """A blob is about to go."""
        key = name.partition("/")[0]
        if name in self._named.get(key, ()):
            self.wrong(f"{name} is deleted, but {key}@{self._states[key].seqno} names it")
        if key != self.shard_id:
            return
        for id_, hold in self.state.holds.items():
            for pin in hold.pins:
                if name in self._parts_at[pin]:
                    self.wrong(f"{name} is deleted, but hold {id_} reads {key}@{pin}, which names it")

    def _advanced(self, before: ShardState, after: ShardState, delta: Delta, actor: Actor) -> None:
        if not (before.upper <= after.upper and before.since <= after.since):
            self.wrong(f"seqno {after.seqno}: upper or since went back")
        self.oracle.since = after.since
        for name, record in delta.edits.writers.items():
            old = before.writers.get(name)
            if old is None or old.epoch < record.epoch:
                self._opened[name, record.epoch] = self._last_in(name)
        for id_, hold in before.holds.items():
            early = id_ not in after.holds and after.committed_ms < hold.expires_ms
            if early and self._holders.get(id_) != actor.process:
                self.wrong(f"seqno {after.seqno} ends hold {id_}, which lasts until {hold.expires_ms}")
        self._holders |= {id_: actor.process for id_ in after.holds if id_ not in before.holds}
        self.doomed.update(delta.edits.doomed)
        if delta.edits.rollup is not None:
            self.counts["rollups"] += 1
        if before.upper == after.upper:
            self.counts["merges"] += before.written.merged_rows != after.written.merged_rows
            return
        self.counts["appends in"] += 1
        if not isinstance(actor.about, Append):
            self.wrong(f"seqno {after.seqno} moves upper to {after.upper}, which nobody asked for")
        self._placed(actor.about, before, after)

    def _placed(self, op: Append, before: ShardState, after: ShardState) -> None:
        if op.placed is not None:
            self.wrong(f"{op.label} is in twice: at {op.placed[0]} and {after.seqno}")
        if op.barred:
            self.wrong(f"{op.label} came in at {after.seqno} although {op.barred}")
        if op.writer is not None:
            name, epoch, sequence = op.writer
            known = before.writers[name]
            if known.epoch != epoch:
                self.wrong(f"{op.label} of epoch {epoch} came in at {after.seqno} in epoch {known.epoch}")
            if after.writers[name].sequence != sequence:
                self.wrong(f"{op.label} is in, and its number is not: {after.writers[name]}")
        op.placed = (after.seqno, before.upper, after.upper)
        at = after.upper.just_before().elements[0]
        timed = [(row, at if time is None else time, diff) for row, time, diff in op.rows]
        kept = [u for u in timed if before.upper.less_equal(u[1]) and not after.upper.less_equal(u[1])]
        self.oracle.append(kept, after.upper)

    def _last_in(self, name: str) -> int | None:
        found = [op.writer[2] for op in self.appends if op.writer and op.writer[0] == name and op.placed]
        return max(found, default=None)

    # What callers are told.

    def begins(self, op: Append) -> None:
        """A new append is about to be offered."""
        self.appends.append(op)
        self.counts["appends"] += 1

    def asked(self) -> "Asked":
        """When a call begins."""
        step, at_us = self._clock()
        return Asked(step, at_us, len(self.uppers))

    def acknowledged(self, op: Append, asked: "Asked", answer: Appended) -> None:
        """An append was answered with success."""
        self.counts["appends acknowledged"] += 1
        if op.placed is None:
            covered = (
                answer.already and op.upper is not None and op.upper <= self.state.upper and not op.writer
            )
            if not covered:
                self.wrong(f"{op.label} was acknowledged ({answer}) and is not in")
            op.barred = "it was answered that all its times were closed"
            return
        _, lower, upper = op.placed
        if not answer.already:
            if (answer.lower, answer.upper) != (lower, upper):
                self.wrong(f"{op.label} is in at [{lower}, {upper}), but the answer is {answer}")
            op.answers.append((asked.step, self._clock()[0], lower, upper))

    def refused(self, op: Append, asked: "Asked", error: TidelakeError) -> None:
        """An append was answered with an error that says that it is certainly not in."""
        self.counts["appends refused"] += 1
        if op.unsure and isinstance(error, WriterFenced | StoreUnavailable):
            # That says nothing of an earlier attempt.
            return
        if op.placed is not None:
            self.wrong(f"{op.label} is in at {op.placed[0]}, but was refused: {error!r}")
        op.barred = f"it was refused: {error!r}"
        seen = self.uppers[asked.entries - 1 :]
        match error:
            case UpperMismatch():
                if error.current not in seen or error.expected == error.current:
                    self.wrong(
                        f"{op.label} was refused on a stale state: {error!r}; upper was {seen[0]} and later"
                    )
            case UpdateNotBeyondLower() | UpdateBeyondUpper():
                if all(seen[-1].less_equal(time) for _, time, _ in op.rows if time is not None):
                    self.wrong(f"{op.label} was refused though its times are open: {error!r}")
            case WriterFenced():
                if op.writer is None or self.state.writers[op.writer[0]].epoch <= op.writer[1]:
                    self.wrong(f"{op.label} was fenced by nobody: {error!r}")
            case StoreUnavailable():
                pass
            case _:
                self.wrong(f"{op.label} failed with {error!r}")

    def unsure(self, op: Append) -> None:
        """An append was answered with an unknown outcome, or its caller died."""
        self.counts["appends of unknown outcome"] += 1
        op.unsure = True

    def writer_opened(self, name: str, epoch: int, last: int | None) -> None:
        """Somebody opened a writer and was told the last number that is in."""
        self.counts["writers opened"] += 1
        if (name, epoch) not in self._opened:
            self.wrong(f"epoch {epoch} of writer {name} was given out, and is not in the log")
        expected = self._opened[name, epoch]
        if last != expected:
            self.wrong(f"writer {name} was told that {last} is in at epoch {epoch}, not {expected}")

    def snapshot(self, asked: "Asked", as_of: int | None, answer: pa.Table) -> None:
        """A snapshot was read; `as_of` None: at the last closed time."""
        self.counts["reads"] += 1
        if as_of is None:
            if not answer.num_rows:
                return
            as_of = answer.column(DOMAIN.columns[0])[0].as_py()
            closed = self.uppers[asked.entries - 1]
            if not closed <= Frontier.past(as_of):
                self.wrong(
                    f"a snapshot was of {as_of}, though {closed} was the upper before it was asked for"
                )
        self._compare(f"snapshot at {as_of}", self._netted(answer, as_of), self.oracle.snapshot(as_of))

    def changes(self, after: Time, through: Time, answer: pa.Table) -> None:
        """Changes were read."""
        self.counts["reads"] += 1
        found, expected = self._netted(answer, through), self.oracle.changes(after, through)
        self._compare(f"changes after {after} through {through}", found, expected)

    def updates(self, lower: Frontier, upper: Frontier, answer: pa.Table) -> None:
        """Updates were read, or a step of a listener."""
        self.counts["reads"] += 1
        try:
            found = tables.by_time(answer, DOMAIN)
        except AssertionError as error:
            self.wrong(str(error))
        self._compare(f"updates of [{lower}, {upper})", found, self.oracle.between(lower, upper))

    def unread(self, asked: "Asked", error: TidelakeError) -> None:
        """A read was answered with an error."""
        self.counts["reads refused"] += 1
        since, closed = self.state.since, self.uppers[asked.entries - 1]
        match error:
            case HistoryCompacted():
                about = error.asked
                kept = (
                    since == self.state.minimum or since.keeps_times_from(about)
                    if isinstance(about, Frontier)
                    else since.less_equal(cast(Time, about))
                )
                if kept:
                    self.wrong(f"a read was refused though since is {since}: {error!r}")
            case NotYetClosed():
                about = error.asked
                final = (
                    about <= closed
                    if isinstance(about, Frontier)
                    else not closed.less_equal(cast(Time, about))
                )
                if final:
                    self.wrong(f"a read waited in vain though upper was {closed}: {error!r}")
            case StoreUnavailable() | OutcomeUnknown():
                pass
            case LeaseExpired() if error.reader and error.reader not in self.state.holds:
                self.counts["leases expired"] += 1
            case LeaseExpired() if not self._is_timely(asked):
                self.counts["reads outlived"] += 1
            case _:
                self.wrong(f"a read failed with {error!r}")

    def _is_timely(self, asked: "Asked") -> bool:
        """Whether a read without a hold has been so short that all parts must be there still."""
        return self._clock()[1] - asked.at_us < self._short_us

    def _netted(self, answer: pa.Table, time: Time) -> Counter[Row]:
        try:
            return tables.netted(answer, DOMAIN, time)
        except AssertionError as error:
            self.wrong(str(error))

    def _compare(self, what: str, found: Mapping[Any, int], expected: Mapping[Any, int]) -> None:
        if found == expected:
            return
        keys = [key for key in {**found, **expected} if found.get(key) != expected.get(key)]
        shown = ", ".join(f"{key}: {found.get(key)} instead of {expected.get(key)}" for key in keys[:3])
        self.wrong(f"{what}: {len(keys)} rows differ: {shown}")

    def check_order(self) -> None:
        """The answers to all appends are those of one list, in an order that keeps to real time."""
        answers = sorted(
            (only_time(lower), only_time(upper), begun, ended, op.label)
            for op in self.appends
            for begun, ended, lower, upper in op.answers
        )
        latest_begun, whose, end = -1, "", 0
        for lower, upper, begun, ended, label in answers:
            if lower < end:
                self.wrong(f"{label} was given times that others were given too: [{lower}, {upper})")
            if ended < latest_begun:
                self.wrong(f"{label} ended before {whose} began, but comes after it")
            if begun > latest_begun:
                latest_begun, whose = begun, label
            end = upper


@dataclass(frozen=True)
class Asked:
    """When a call began.

    Attributes:
        step: of the run.
        at_us: simulated time.
        entries: of the collection's log.
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


def parts(state: ShardState) -> Iterator[str]:
    """The stored parts that readers of a state need."""
    for member in state.spine:
        yield from (part.name for part in member.batch.parts() if part.inline is None)


def named(state: ShardState) -> Iterator[str]:
    """The blobs that a state needs."""
    yield from parts(state)
    for chunk in state.chunks.values():
        yield from (part.name for part in chunk if part.inline is None)
    if state.rollup != FIRST:
        yield names.rollup(state.shard_id, state.rollup.seqno, state.rollup.id)

"""The true history of one collection, as the entries of its log tell it.

Owns the oracle, which is fed in the order of the log's entries, and the record of every append, which says
which commits are allowed. Must not know what callers were told.

INVARIANT: an answer is never compared with the data it was made of: the rows come from the clients, the
order and the times from the log, and the answers from the product.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn, Protocol

from simulation.record import AppendCall, CallBegan, Drop, parts
from simulation.witness import Actor
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.state.core.edits import Delta, Edits, Transition, arriving, steps
from tidelake.state.core.state import ShardState
from tidelake.state.spine.staged import ends_before
from tidelake.testing.oracle import Oracle, Row


class Bench(Protocol):
    """What the judges of all collections have in common.

    Attributes:
        counts: how often each thing was done or judged.
        short_us: a read without a hold that takes less time than this finds all parts.
        clock: the step of the run and the simulated time in microseconds.
        named_by: what the thread that named a given part was doing.
    """

    counts: Counter[str]
    short_us: int
    clock: Callable[[], tuple[int, int]]
    named_by: Callable[[str], object]

    def wrong(self, message: str) -> NoReturn:
        """End the run with a violation."""


class TrueHistory:
    """Follows the log of one collection.

    Attributes:
        key: the key of the log.
        state: the newest true state; once the collection is dropped, the last state before the drop.
        dropped: the step at which the collection became a tombstone.
        uppers: the upper after each step of each log entry, without the tombstone.
        oracle: the collection as a list of updates.
        appends: the appends that clients asked for.
    """

    oracle: Oracle
    known_at: dict[int, int]

    def __init__(self, bench: Bench, state: ShardState, source: "TrueHistory | None" = None) -> None:
        self.bench, self.counts, self.wrong = bench, bench.counts, bench.wrong
        self.key, self.state = state.shard_id, state
        self.dropped: int | None = None
        self.uppers = [state.upper]
        self.appends: list[AppendCall] = []
        # A fork starts with the history of its origin. A placeholder for a fork that was never created has
        # no history.
        known: list[tuple[Row, Time, int]] = []
        if source is not None and state.origin is not None and state.origin.seqno >= 0:
            known = source.oracle.updates[: source.known_at[state.origin.seqno]]
        # A fork also takes the staged updates of open times, unless it was asked to end at a time.
        whole = any(not ends_before(one.batch, state.upper) for one in state.staged)
        closed = [u for u in known if whole or not state.upper.less_equal(u[1])]
        self.oracle = Oracle(state.upper, state.since, closed)
        # The number of updates after each step, and as of each entry.
        self.known = [len(closed)]
        self.known_at = {state.seqno: len(closed)}
        # The append that the end of the run makes itself.
        self.calm: AppendCall | None = None
        # The last sequence that a writer had committed when each of its epochs was opened.
        self.opened: dict[tuple[str, int], int | None] = {}
        # The process that opened each hold.
        self._holders: dict[str, str] = {}
        # Whether the state after each step had a hold.
        self.held = [False]
        # The parts as of each entry, for readers of old states.
        self.parts_at = [frozenset(parts(state))]
        # Token and `since` of the critical hold after each step; None: there is none.
        self.critical: list[tuple[str, Frontier] | None] = [None]

    def asked(self) -> CallBegan:
        """The moment at which a call begins."""
        step, at_us = self.bench.clock()
        return CallBegan(step, at_us, len(self.uppers))

    def advanced(self, before: ShardState, after: ShardState, delta: Delta, actor: Actor) -> None:
        """Take in a new log entry: the steps of commands that were committed together."""
        self.counts["entries of several commands"] += len(delta.steps) > 1
        for step in steps(before, delta):
            if step.before.dropped:
                self.counts["tombstones that forgot a fork"] += 1
            elif step.after.dropped:
                self._ended(step.before, step.after, actor)
            else:
                self._stepped(step, actor)
        self.known_at[after.seqno] = len(self.oracle.updates)
        if not after.dropped:
            self.parts_at.append(frozenset(parts(after)))

    def _stepped(self, step: Transition, actor: Actor) -> None:
        before, after, edits = step.before, step.after, step.edits
        self.state = after
        self.uppers.append(after.upper)
        self.held.append(bool(after.holds or after.critical))
        held = after.critical.get("pipeline")
        self.critical.append(None if held is None else (held.token, held.since))
        if not (before.upper <= after.upper and before.since <= after.since):
            self.wrong(f"seqno {after.seqno}: upper or since went back")
        self.oracle.since = after.since
        for name, record in edits.writers.items():
            old = before.writers.get(name)
            if old is None or old.epoch < record.epoch:
                self.opened[name, record.epoch] = self._last_in(name)
        for id_, hold in before.holds.items():
            early = id_ not in after.holds and after.committed_ms < hold.expires_ms
            if early and self._holders.get(id_) != actor.process:
                self.wrong(f"seqno {after.seqno} ends hold {id_}, which lasts until {hold.expires_ms}")
        self._holders |= {id_: actor.process for id_ in after.holds if id_ not in before.holds}
        if edits.rollup is not None:
            self.counts["rollups"] += 1
        self._claimed(before, edits)
        self.counts["forks that let go"] += edits.let_go or edits.freed
        come = [one for one in edits.staged.values() if one is not None]
        if before.upper != after.upper:
            self.counts["appends in"] += 1
            op = self._asked_for(step, actor)
            if op is None:
                self.wrong(f"seqno {after.seqno} moves upper to {after.upper}, which no client asked for")
            self._placed(op, before, after)
        elif come and len(come) == len(edits.staged):
            self.counts["stages in"] += 1
            op = self._asked_for(step, actor, staged=True)
            if op is None:
                self.wrong(f"seqno {after.seqno} stages {come[0].name}, which no client asked for")
            self._placed(op, before, after)
        else:
            self.counts["drains"] += bool(edits.staged)
            self.counts["merges"] += before.written.merged_rows != after.written.merged_rows
        self.known.append(len(self.oracle.updates))

    def _claimed(self, before: ShardState, edits: Edits) -> None:
        """Count what was claimed, taken over and recorded."""
        for name, claim in edits.claims.items():
            old = before.claims.get(name)
            if claim is None:
                self.counts["claims that ended"] += 1
            elif old is None or old.runner != claim.runner:
                kind = "cuts" if claim.by_time else "merges" if claim.base is None else "bases"
                self.counts[f"claims of {kind}"] += 1
                taken = old is not None and replace(old, cuts=claim.cuts) == replace(
                    claim, runner=old.runner, expires_ms=old.expires_ms, saves=old.saves
                )
                self.counts[f"claims of {kind} taken over"] += taken
                begun = taken and any(key.startswith(f"{name}/") for key in before.chunks)
                self.counts[f"claims of {kind} taken over with chunks"] += begun
        self.counts["chunks recorded"] += sum(parts is not None for parts in edits.chunks.values())

    def _asked_for(self, step: Transition, actor: Actor, *, staged: bool = False) -> AppendCall | None:
        """The append that a step carries out: that of the thread that named a part of it, else a waiting one.

        Waiting are the append of the thread that commits, and those of the other threads of its process.
        """
        # Parts staged before belong to other appends: any append that closes their times takes them in.
        old = {part.name for one in step.before.staged for part in one.batch.parts()}
        for part in arriving(step.edits):
            about = None if part.name in old else self.bench.named_by(part.name)
            if isinstance(about, AppendCall) and about.staged == staged:
                return about
        waiting = [about for about in (actor.about, *actor.beside) if isinstance(about, AppendCall)]
        waiting = [op for op in waiting if op.staged == staged]
        fitting = [op for op in waiting if op.upper is None or op.upper == step.after.upper]
        return next(iter(fitting), self.calm)

    def _ended(self, before: ShardState, after: ShardState, actor: Actor) -> None:
        """The collection became a tombstone."""
        self.dropped = self.bench.clock()[0]
        self.counts["tombstones"] += 1
        drop = next((about for about in (actor.about, *actor.beside) if isinstance(about, Drop)), None)
        if drop is None:
            if before.seqno:
                self.wrong(f"{self.key} was dropped at {after.seqno}, which no client asked for")
            return
        alive = [id_ for id_, hold in before.holds.items() if after.committed_ms < hold.expires_ms]
        if not drop.force and (alive or before.critical):
            self.wrong(f"{self.key} was dropped without force, though held by {alive}, {before.critical}")

    def _placed(self, op: AppendCall, before: ShardState, after: ShardState) -> None:
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
        if op.staged:
            self.oracle.updates += [(row, time or 0, diff) for row, time, diff in op.rows]
            return
        at = after.upper.just_before().elements[0]
        timed = [(row, at if time is None else time, diff) for row, time, diff in op.rows]
        kept = [u for u in timed if before.upper.less_equal(u[1]) and not after.upper.less_equal(u[1])]
        self.oracle.append(kept, after.upper)

    def _last_in(self, name: str) -> int | None:
        found = [op.writer[2] for op in self.appends if op.writer and op.writer[0] == name and op.placed]
        return max(found, default=None)

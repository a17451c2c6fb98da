"""Compares the answers to reads with the true history.

Must not know which client asks, nor which faults there were.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa

from simulation.history import TrueHistory
from simulation.record import DOMAIN, CallBegan
from tidelake.errors import (
    CollectionDropped,
    HistoryCompacted,
    LeaseExpired,
    NotYetClosed,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
)
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.testing import tables
from tidelake.testing.oracle import Oracle, Row


class JudgeOfReads(TrueHistory):
    """Judges the answers to reads of one collection."""

    def snapshot(self, asked: CallBegan, as_of: int | None, answer: pa.Table) -> None:
        """Judge a snapshot; `as_of` None: it was asked for at the last closed time."""
        self.counts["reads"] += 1
        if self.dropped is not None and asked.step > self.dropped:
            self.wrong(f"{self.key} was read after its drop at step {self.dropped}")
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

    def staged(self, asked: CallBegan, as_of: int, answer: pa.Table) -> None:
        """Judge a snapshot with staged updates: it must be that of some state since the call began."""
        self.counts["staged reads"] += 1
        if self.dropped is not None and asked.step > self.dropped:
            self.wrong(f"{self.key} was read after its drop at step {self.dropped}")
        found, updates = self._netted(answer, as_of), self.oracle.updates
        for count in sorted({*self.known[asked.entries - 1 :]}):
            expected = Oracle(self.oracle.upper, self.oracle.since, updates[:count]).snapshot(as_of)
            if found == expected:
                return
        self._compare(f"staged snapshot at {as_of}", found, self.oracle.snapshot(as_of))

    def changes(self, after: Time, through: Time, answer: pa.Table) -> None:
        """Judge an answer to `changes`."""
        self.counts["reads"] += 1
        found, expected = self._netted(answer, through), self.oracle.changes(after, through)
        self._compare(f"changes after {after} through {through}", found, expected)

    def updates(self, lower: Frontier, upper: Frontier, answer: pa.Table) -> None:
        """Judge an answer to `updates`, or a step of a listener."""
        self.counts["reads"] += 1
        try:
            found = tables.by_time(answer, DOMAIN)
        except AssertionError as error:
            self.wrong(str(error))
        self._compare(f"updates of [{lower}, {upper})", found, self.oracle.between(lower, upper))

    def unread(self, asked: CallBegan, error: TidelakeError) -> None:
        """Judge a read that was answered with an error."""
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
            case CollectionDropped() if self.dropped is not None:
                self.counts["told of a drop"] += 1
            case LeaseExpired() if self.dropped is not None:
                self.counts["told of a drop"] += 1
            case LeaseExpired() if error.reader and error.reader not in self.state.holds:
                self.counts["leases expired"] += 1
            case LeaseExpired() if not self._is_timely(asked):
                self.counts["reads outlived"] += 1
            case _:
                self.wrong(f"a read failed with {error!r}")

    def _is_timely(self, asked: CallBegan) -> bool:
        """Whether a read without a hold was so short that all parts must still be there."""
        return self.bench.clock()[1] - asked.at_us < self.bench.short_us

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

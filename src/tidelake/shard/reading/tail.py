"""A tail in steps that can be repeated, for streaming queries.

Owns where a tail begins, how far its next step goes, and the plan of a step. Positions are frontiers that the
caller remembers. The same two positions give the same rows again, whatever was appended, merged and
collected meanwhile, because a durable lease keeps history from the earlier one on. Times are ints.

INVARIANT: steps tile the times: no time is in two steps, and none between two steps is left out. Under a
given schema, a row is removed with the same values with which it was added, or the step is refused.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tidelake.data.answer.rows import Rows
from tidelake.errors import HistoryCompacted, IncompatibleSchema, RowsErased, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Query, Updates
from tidelake.model.selection import ReadOptions
from tidelake.model.time import TIME_MAX
from tidelake.shard.engine.lease import Lease, young
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import Version
from tidelake.shard.reading import query
from tidelake.shard.reading.durable import DurableLease
from tidelake.shard.reading.readahead import ReadAhead
from tidelake.shard.reading.versionread import VersionRead, outgrown
from tidelake.shard.runs.plan import ReadPlan, TaskOptions
from tidelake.state.core.backlog import Limits, Span, end_of, fitting, frontier_of, spans
from tidelake.state.core.state import ShardState

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Counted:
    """How many updates of `[lower, upper)` each time has; times ascend."""

    lower: int
    upper: int
    times: Ints
    rows: Ints


class Tail:
    """A tail of a shard. Not for several threads at once.

    Args:
        shard: the shard to follow.
        hold: id of its hold; give the same id to continue the tail.
        purpose: shown to people.
        hold_for_s: how long history is kept for it while no process of it runs.
        poll_s: the shortest pause between two looks at the log.
        options: which rows and columns to read, and under which schema.

    Raises:
        UsageError: times are tuples.
    """

    def __init__(
        self, shard: Shard, hold: str, purpose: str, *, hold_for_s: float, poll_s: float, options: ReadOptions
    ) -> None:
        if not shard.spec.domain.total_order:
            raise UsageError(
                f"times of {shard.title!r} are of unit {shard.spec.domain}, and a stream needs times of a "
                "total order: follow the collection with listen, or read its updates"
            )
        self._shard = shard
        self._hold = DurableLease(shard, hold, purpose, hold_for_s)
        self._poll_s = poll_s
        self._options = options
        self._looked_s: float | None = None
        self._counted: _Counted | None = None
        self._ahead = ReadAhead(shard, options)
        self._vain: tuple[int, Frontier, Frontier] | None = None

    @property
    def hold(self) -> str:
        """The id of its hold."""
        return self._hold.id

    @property
    def known(self) -> ShardState:
        """The newest state seen. No store call."""
        return self._shard.last_version().state

    def check_erased(self, erased: int) -> None:
        """Refuse to go on from contents of before the last erasure that this tail has seen. No store call.

        Raises:
            RowsErased: rows were erased after the erasure that made the state of seqno `erased`.
        """
        if self.known.erased != erased:
            raise RowsErased(self._shard.title)

    def head(self, *, fresh: bool = False) -> Version:
        """A version at most `poll_s` old; with `fresh`, the newest. At most one log scan."""
        now_s = self._shard.env.clock.monotonic_s()
        if fresh or self._looked_s is None or now_s >= self._looked_s + self._poll_s:
            self._shard.version()
            self._looked_s = now_s
        return self._shard.last_version()

    def begin_with_snapshot(self, until: Frontier | None = None) -> Frontier | None:
        """The position past a snapshot, of the last closed time; None while none is closed.

        Args:
            until: later times are taken only if the history of earlier ones is gone already.

        Returns:
            `snapshot_of` it is what to read first. One log write, for the hold.
        """
        version = self.head()
        while True:
            upper = version.upper if until is None else version.upper.meet(until)
            if upper.less_equal(0):
                return None
            try:
                self._hold.keep_from(_before(upper))
            except HistoryCompacted:
                # `since` was moved meanwhile: a later snapshot does not need what was folded.
                until, version = None, self.head(fresh=True)
                continue
            return upper

    def begin(self, lower: Frontier | None = None) -> Frontier:
        """The position of the first update to read; with `lower` None, of the first from now on.

        One log write, for the hold.

        Raises:
            HistoryCompacted: updates from there on cannot be told apart any more.
        """
        while True:
            start = self.head().upper if lower is None else lower
            try:
                self._hold.keep_from(_before(start))
            except HistoryCompacted:
                if lower is not None:
                    raise
                # Updates were appended and `since` was moved meanwhile: begin later.
                self.head(fresh=True)
                continue
            return start

    def step(
        self, lower: Frontier, limits: Limits, until: Frontier | None = None, *, empty: bool = False
    ) -> Frontier:
        """The end of the next step from `lower`, after closed times only; `lower` if there is no step yet.

        Steps have updates, unless they may be `empty`.

        At most one log scan. Only if the updates do not fit, and parts do not tell exactly enough where they
        do, their times are read, once for all steps that are behind by then. One log write if the hold
        is not there.

        Raises:
            HistoryCompacted: the hold was gone for so long that updates can no longer be told apart.
        """
        version = self.head()
        known, upper = self._backlog(version.state, lower, until)
        self._hold.ensure(version.state, _before(lower))
        if not known:
            return upper if empty else lower
        if limits.none:
            return upper
        start, end = end_of(lower), end_of(upper)
        fit = fitting(known, end, limits)
        return frontier_of(self._cut(version, start, end, limits) if fit is None else fit)

    def snapshot_of(self, position: Frontier) -> AsOf:
        """The snapshot to read before continuing from this position."""
        return AsOf(end_of(position) - 1)

    def plan(
        self, asked: Query, start: Frontier, parallelism: int, task_bytes_max: int | None = None
    ) -> ReadPlan | None:
        """A step, cut by key range into tasks; None if it has no rows.

        Keeps what the tasks read until the next plan. At most one log scan, and none right after `step`.

        Args:
            asked: the snapshot or the updates of the step.
            start: where the step begins; from there on history is held.
            parallelism: tasks at most.
            task_bytes_max: more tasks than that, if one would read more stored bytes than about this.

        Raises:
            HistoryCompacted: the updates can no longer be told apart.
            IncompatibleSchema: a column of the schema to read under was dropped or widened.
        """
        version = self._answering(asked, start)
        read = VersionRead.of(self._shard, version, asked, self._options)
        rows = self._ahead.rows(version.kept_by(Lease(self._shard)), asked)
        planned = None if rows is None else read.plan_of(rows)
        if planned is None:
            planned = read.plan(TaskOptions(parallelism, task_bytes_max))
        self._hold.read(planned.seqno)
        return planned if planned.rows else None

    def read(self, asked: Query, start: Frontier) -> Rows:
        """A step, read by this process. Rows as from `VersionRead.stream`; arguments and errors as `plan`."""
        version = self._answering(asked, start).kept_by(Lease(self._shard))
        read = VersionRead.of(self._shard, version, asked, self._options)
        rows = self._ahead.rows(version, asked)
        return read.stream() if rows is None else read.stream_of(rows)

    def leave(self) -> None:
        """Stop the background renewal, after a last one: the hold lasts from now on. One log write."""
        self._ahead.clear()
        self._hold.keep()
        self._hold.stop()

    def release(self) -> None:
        """Stop the background renewal, and end the hold. One log write."""
        self._ahead.clear()
        self._hold.stop()
        self._hold.close()

    def move(self, position: Frontier) -> None:
        """All steps up to a position are done: history before it may be folded, a little later."""
        self._hold.move(_before(position))

    def stop(self) -> None:
        """Stop the background renewal. The hold lasts until it expires."""
        self._ahead.clear()
        self._hold.stop()

    def _answering(self, asked: Query, start: Frontier) -> Version:
        """A young version that knows the answer, while the hold keeps history from `start` on."""
        self._hold.ensure(self._recent(asked).state, _before(start))
        version = self._recent(asked)
        if not query.answers(version.state, asked):
            raise UsageError(
                f"{asked} is not closed in {self._shard.title!r} (upper={version.upper}), but a step ended "
                "there: the collection was restored from an older copy; begin with a new checkpoint"
            )
        query.check_since(asked, version.state)
        reason = outgrown(version.spec, self._options)
        if reason:
            raise IncompatibleSchema(
                f"rows of {self._shard.title!r} no longer fit what was read before: {reason}; start again"
            )
        return version

    def _young(self) -> bool:
        """Whether a read that begins now certainly finds the parts of the known state."""
        if self._looked_s is None:
            return False
        age_s = self._shard.env.clock.monotonic_s() - self._looked_s
        return age_s < young(self._shard.last_version().state)

    def _recent(self, asked: Query) -> Version:
        """The known version, if it is young and knows the answer; else the newest."""
        known = self._shard.last_version() if self._young() else None
        return known if known is not None and query.answers(known.state, asked) else self.head(fresh=True)

    def _backlog(
        self, state: ShardState, lower: Frontier, until: Frontier | None
    ) -> tuple[tuple[Span, ...], Frontier]:
        """What a state has from `lower` on, and where that ends."""
        upper = state.upper.join(lower)
        if until is not None:
            upper = upper.meet(until.join(lower))
        look = (state.seqno, lower, upper)
        # Asked again and again while nothing comes.
        known = () if look == self._vain else spans(state, end_of(lower), end_of(upper))
        if not known:
            self._vain = look
        return known, upper

    def _cut(self, version: Version, lower: int, upper: int, limits: Limits) -> int:
        """As `fitting`, by counted times. Reads the updates unless they are counted."""
        counted = self._counted
        if counted is None or not counted.lower <= lower < counted.upper:
            counted = self._counted = self._count(version, lower, upper)
        first = int(np.searchsorted(counted.times, lower))
        upper = min(upper, counted.upper)
        times, rows = counted.times[first:], counted.rows[first:]
        taken = len(times)
        if limits.rows is not None:
            taken = int(np.searchsorted(np.cumsum(rows), limits.rows, side="right"))
        if limits.times is not None:
            taken = min(taken, limits.times)
        taken = max(taken, 1)
        return upper if taken >= len(times) else min(upper, int(times[taken]))

    def _count(self, version: Version, lower: int, upper: int) -> _Counted:
        asked = Updates(frontier_of(lower), frontier_of(upper))
        column = version.spec.domain.columns[0]
        # The very rows that a plan gives: under the newest schema others may match.
        options, kept = replace(self._options, columns=()), version.kept_by(Lease(self._shard))
        found = VersionRead.of(self._shard, kept, asked, options).stream()
        times, rows = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for batch in found:
            times, rows = _summed(times, rows, batch.column(column).to_numpy())
        return _Counted(lower, upper, times, rows)


def _summed(times: Ints, rows: Ints, more: Ints) -> tuple[Ints, Ints]:
    """Rows by time, with those of another batch."""
    new, counts = np.unique(more, return_counts=True)
    summed, place = np.unique(np.concatenate([times, new]), return_inverse=True)
    total = np.zeros(len(summed), np.int64)
    np.add.at(total, place, np.concatenate([rows, counts]))
    return summed, total


def _before(position: Frontier) -> Frontier:
    """The latest `since` under which a tail can go on from a position; past all time: the last time's."""
    return Frontier.of(TIME_MAX) if position.closed else position.just_before()

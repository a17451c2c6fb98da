"""The times of transactions, from the positions at which they begin.

Owns how positions become times, and which events are held back. Must not know lines, nor Spark.

An event's time is the commit of its transaction:

- Times of a counter are positions in the source's log. Where events have the position of the commit before
  (PostgreSQL), a transaction's own commit is the next position that any event, message or END tells, and its
  time is the last number before that position. Otherwise its time is its own position.
- Times of a clock are the wall clocks of the commits at the source, in the order of the positions: a clock
  that goes back, or stands, gives the time of the transaction before.

The transaction at the last position is held back: its commit, or its rest, is not known yet. So are, with
times of a clock, all transactions of the last time. A set of positions decides all of this, so it does not
depend on the order of lines, nor on how they are divided among files, tasks and micro-batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import mask
from tidelake.cdc.core.events import Ints, Mask
from tidelake.cdc.core.topicpartition import Reached, TopicPartition
from tidelake.cdc.debezium.connectors import connector_of
from tidelake.cdc.times.positions import COPY, COPY_END, FRESH, MARK, NONE, ROWS, Positions, mixed
from tidelake.cdc.times.surveys import fingerprints, goes_back, told_apart
from tidelake.errors import InvalidUpdates

_LAST = 2**63 - 1


@dataclass(frozen=True)
class Timeline:
    """The times of all transactions in a micro-batch.

    Attributes:
        connector: of the events.
        clock: the field of `source` with the wall clock.
        by_clock: whether times are of a clock.
        starts: positions at which transactions begin, ascending.
        times: their times.
        held: events of transactions that begin at or after this position are held back.
        done: all transactions before this position are in the collection.
        before: the last position before this micro-batch.
        known_clock: the greatest wall clock of these; `NONE` without.
        last: the last position.
        last_clock: the greatest wall clock of all transactions before `held`.
        floor: the least time that later transactions may have; used with a clock, and by a first copy.
        copying: whether a first copy is going on: its rows are at open times.
        upper: all times before it are closed after this micro-batch; None: it says nothing.
        seen: what tells the events apart that were held back before, as `fingerprints`.
    """

    connector: str
    clock: str
    by_clock: bool
    starts: Ints = field(repr=False)
    times: Ints = field(repr=False)
    held: int
    done: int
    before: int
    known_clock: int
    last: int
    last_clock: int
    floor: int
    copying: bool
    upper: int | None
    seen: pa.Array | None = field(default=None, repr=False)

    @property
    def progress(self) -> "Progress":
        """How far the stream is after this micro-batch."""
        return Progress(self.connector, self.last, self.held, self.last_clock, self.floor, self.copying)

    def split(self, found: Positions) -> tuple[Ints, Mask, Mask]:
        """The times of lines, which are held back, and which are in the collection already.

        A line without a position has time `NONE`, and is neither.
        """
        if found.connector not in ("", self.connector):
            raise InvalidUpdates(mixed({found.connector, self.connector}))
        starts, roles = found.starts, found.roles
        rows = (roles & ROWS) > 0
        copies = (roles & COPY) > 0
        old = rows & (starts >= 0) & (starts < self.done)
        newer = old & (found.clocks > self.known_clock)
        if newer.any():
            at = int(np.flatnonzero(newer)[0])
            raise InvalidUpdates(
                f"a change event stands at position {int(starts[at])} of the source's log, before "
                f"{self.done}, up to which everything is in the collection; its clock "
                f"{int(found.clocks[at])} is later: the source has another log (it was restored, or another "
                "server took over). Take it into a new collection, with a first copy"
            )
        held = rows & (starts >= self.held) & ~old
        # Marks tell the commits of what is held back.
        held |= ((roles & MARK) > 0) & (starts > self.held)
        index = np.searchsorted(self.starts, starts, side="right") - 1
        times = np.full(len(starts), NONE, np.int64)
        inside = rows & (starts >= 0) & (index >= 0)
        times[inside] = self.times[index[inside]]
        if self.by_clock:
            times[copies] = found.clocks[copies]
        else:
            times[copies] = np.maximum(starts[copies] - (connector_of(self.connector).gives_before), NONE)
        return times, held, old

    def again(self, lines: pa.Array, found: Positions) -> Mask:
        """Which lines (binary) are events that are among those held back, or earlier in the lines.

        A connector that restarts delivers events again, from the middle of a transaction or from earlier on.
        What lies in several batches is found by `surveys.twice`.
        """
        rows = (found.roles & ROWS) > 0
        again = np.zeros(len(rows), np.bool_)
        if self.seen is not None:
            near = rows & (found.starts >= self.done)
            if found.groups is None:
                # Else `before` is the position of the first event only of the transaction.
                near &= found.starts <= self.before
            places = np.flatnonzero(near)
            told = fingerprints(lines.take(pa.array(places)))
            again[places] = mask(pc.is_in(told, value_set=self.seen))
        there = np.flatnonzero(rows)
        if goes_back(found, there).any():
            codes = told_apart(lines.take(pa.array(there))).dictionary_encode().indices.to_numpy()
            first = np.zeros(len(there), np.bool_)
            first[np.unique(codes, return_index=True)[1]] = True
            again[there[~first]] = True
        return again


@dataclass(frozen=True)
class Progress:
    """How far a stream of transactions has come; kept with the last micro-batch.

    Attributes:
        connector: of the events.
        last: all transactions that begin before this position are in the collection, but those held back.
        held: position of the first transaction that is held back; `last` if none is.
        clock: the greatest wall clock of the transactions that are in.
        floor: as in `Timeline`.
        copying: whether a first copy was going on.
        partitions: how far each partition is, if the events are messages of Kafka.
        copied_at: when the end of a first copy was sent (ms), if they are; `NONE`: it was not seen.
    """

    connector: str
    last: int = 0
    held: int = 0
    clock: int = NONE
    floor: int = NONE
    copying: bool = False
    partitions: Mapping[TopicPartition, Reached] = field(default_factory=dict, repr=False)
    copied_at: int = NONE


def timeline(
    found: pa.Table,
    unit_clock: str | None,
    before: Progress | None,
    *,
    whole: bool,
    seen: pa.Array | None = None,
    reach: int | None = None,
    copied: bool | None = None,
) -> Timeline | None:
    """The times of the transactions of a micro-batch.

    Args:
        found: as `SURVEY`, of all lines: also those that were held back before.
        unit_clock: the field of `source` whose values are times; None: times are positions.
        before: how far the stream was; None: this is its first micro-batch.
        whole: the lines end with whole transactions: none is held back.
        seen: `fingerprints` of the lines that were held back before.
        reach: up to this position all events are here, if they come in several streams, such as partitions:
            the least of their last positions. None: up to the last one.
        copied: whether all rows of a first copy are here, if they come in several streams. None: they are if
            its end, or an event after it, is here.

    Returns:
        None if no line is of a known connector.
    """
    connectors = set(found.column("connector").unique().to_pylist())
    connectors |= set() if before is None else {before.connector}
    connectors.discard("")
    if not connectors:
        return None
    if len(connectors) > 1:
        raise InvalidUpdates(mixed(connectors))
    connector = connectors.pop()
    known = ["", connector] if connector_of(connector).gives_before else [connector]
    found = found.filter(pc.is_in(found.column("connector"), value_set=pa.array(known)))
    roles = found.column("roles").to_numpy()
    streamed = (roles & (ROWS | MARK)) > 0
    done, known_clock = (0, NONE) if before is None else (before.held, before.clock)
    # What lies before is in already, or refused.
    streamed &= found.column("start").to_numpy() >= done
    starts, clocks, ends = _starts(found.filter(pa.array(streamed)))
    by_clock = unit_clock is not None
    common: dict[str, Any] = {
        "connector": connector,
        "clock": unit_clock or "ts_ms",
        "by_clock": by_clock,
        "done": done,
        "before": 0 if before is None else before.last,
        "known_clock": known_clock,
        "seen": seen,
    }
    floor = NONE if before is None else before.floor
    copies = found.filter(pa.array((roles & COPY) > 0))
    copying = bool(copies.num_rows or (before is not None and before.copying))
    if copies.num_rows:
        name = "clock" if by_clock else "start"
        of_copy = pc.max(copies.column(name)).as_py() + (by_clock or not connector_of(connector).gives_before)
        _check_one_copy(copies, before is not None and of_copy > floor)
        floor = max(floor, of_copy)
    ended = bool((roles & COPY_END).any() or len(starts)) if copied is None else copied
    ended = whole or ended
    last, held = (0, 0) if before is None else (before.last, before.held)
    if not len(starts):
        return Timeline(
            **common, starts=starts, times=starts, held=held, last=last, last_clock=known_clock, floor=floor,
            copying=copying and not ended, upper=floor if copying and ended else None,
        )  # fmt: skip
    last = int(starts[-1])
    at = len(starts) - 1 if reach is None else int(np.searchsorted(starts, reach, side="right")) - 1
    at = -1 if copying and not ended else at
    times = starts
    if by_clock:
        times = _clock_times(starts, clocks, done, floor)
    elif connector_of(connector).gives_before:
        times = np.append(starts[1:] - 1, max(int(ends[-1]), last))
    held, upper = _LAST, None
    if not whole and at < 0:
        held, upper = done, floor if copying and ended else None
    elif not whole and by_clock:
        upper = floor = int(times[at])
        held = int(starts[np.searchsorted(times, floor)])
    elif not whole:
        held = int(starts[at])
        upper = max(held, floor) if copying else held
    released = clocks[starts < held]
    last_clock = max(known_clock, int(released.max())) if len(released) else known_clock
    return Timeline(
        **common, starts=starts, times=times, held=held, last=last, last_clock=last_clock, floor=floor,
        copying=copying and not ended, upper=upper,
    )  # fmt: skip


def copies_again(found: pa.Table, before: Progress) -> bool:
    """Whether rows of a copy come after the first copy had ended, or other events had come."""
    copies = bool(((found.column("roles").to_numpy() & COPY) > 0).any())
    return copies and not before.copying and (before.last > 0 or before.floor > NONE)


def _check_one_copy(copied: pa.Table, again: bool) -> None:
    """Refuse a first copy after another one: the connector has lost how far it was, or died amid the first.

    Rows that were deleted in between would stay. And its slot holds a position in the log already, so that
    Debezium's second copy is of a moment a little later than the position that it tells.
    """
    fresh = copied.filter(pc.greater_equal(copied.column("roles"), FRESH)).column("start").to_numpy()
    if len(fresh) and (again or fresh.min() < fresh.max()):
        raise InvalidUpdates(
            f"the connector began its first copy of the tables again, at position {int(fresh.max())}: rows "
            "that were deleted since the copy before would stay. Begin anew: stop the connector, delete its "
            "slot in the database, its offsets and its topic, and take the feed into new collections, with a "
            "new checkpoint"
        )


def _starts(found: pa.Table) -> tuple[Ints, Ints, Ints]:
    """The positions at which transactions begin, ascending, with their clocks and their last positions."""
    if found.column("group").null_count < found.num_rows:
        named = found.filter(found.column("group").is_valid())
        found = named.group_by("group", use_threads=False).aggregate(
            [("start", "min"), ("clock", "max"), ("end", "max")]
        )
        found = found.rename_columns({"start_min": "start", "clock_max": "clock", "end_max": "end"})
    grouped = found.group_by("start", use_threads=False).aggregate([("clock", "max"), ("end", "max")])
    grouped = grouped.sort_by("start")
    return tuple(grouped.column(n).to_numpy() for n in ("start", "clock_max", "end_max"))


def _clock_times(starts: Ints, clocks: Ints, done: int, floor: int) -> Ints:
    """Clocks that never go back, from `floor` on for transactions that begin at `done` or later."""
    given = np.where(starts >= done, np.maximum(clocks, floor), clocks)
    times: Ints = np.maximum.accumulate(given)
    return times

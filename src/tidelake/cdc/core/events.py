"""The events in some lines, as columns, and which fields of events are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelake.data.json.encoding import PLAIN, Encoding

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EventSide:
    """The old rows of events, or the new ones.

    Attributes:
        lines: the line number of each row, ascending.
        rows: the rows, as columns.
        left_out: which rows leave the value of a column out, by column; they have null there.
    """

    lines: Ints
    rows: pa.RecordBatch
    left_out: Mapping[str, Mask] = field(default_factory=dict)


@dataclass(frozen=True)
class Events:
    """The events in some lines.

    Attributes:
        lines: numbers of the lines that are events on rows, ascending.
        times: the times of these events.
        orders: the values of their order field; None if there is none.
        before: their old rows, with the columns that the layout asks for.
        after: their new rows.
        marks: times of the heartbeats and messages that have a time.
        heartbeats: number of heartbeats and messages.
        tombstones: number of tombstones.
        truncates: numbers of the lines that truncate; they are among `lines`, and have no rows.
    """

    lines: Ints
    times: Ints
    orders: Ints | None
    before: EventSide
    after: EventSide
    marks: Ints
    heartbeats: int
    tombstones: int
    truncates: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class RawEvents:
    """Events whose rows are texts, of which all else is known to be right; element i belongs to event i.

    Attributes:
        lines: the number of the line of each event, ascending.
        times: their times.
        orders: the values of their order field; None if there is none.
        before: the old row as JSON (binary); null: there is none.
        after: the new row.
        encodings: numbers of encodings of the values.
        known: the encodings by number.
    """

    lines: Ints
    times: Ints
    orders: Ints | None
    before: pa.Array
    after: pa.Array
    encodings: Ints
    known: tuple[Encoding, ...] = (PLAIN,)

    def __len__(self) -> int:
        return len(self.lines)

    def slice(self, at: slice) -> "RawEvents":
        """Some of the events that follow each other."""
        orders = None if self.orders is None else self.orders[at]
        before, after = self.before[at], self.after[at]
        return RawEvents(
            self.lines[at], self.times[at], orders, before, after, self.encodings[at], self.known
        )

    def chosen(self, which: Mask) -> "RawEvents":
        """Some of the events."""
        if which.all():
            return self
        here = pa.array(which)
        orders = None if self.orders is None else self.orders[which]
        before, after = self.before.filter(here), self.after.filter(here)
        return RawEvents(
            self.lines[which], self.times[which], orders, before, after, self.encodings[which], self.known
        )


@dataclass(frozen=True)
class EventLayout:
    """Which fields of events are read.

    Attributes:
        before: columns of an old row.
        after: columns of a new row.
        time: path of the time; None: it is not in the events, and all have time 0.
        order: path of the value that orders events of one time.
        stored: old rows are looked up, and may be missing in events.
        encodings: encodings of columns, used if the event has no `schema`.
        optional: columns that may be missing, and are null then.
    """

    before: pa.Schema
    after: pa.Schema
    time: tuple[str, ...] | None
    order: tuple[str, ...] | None
    stored: bool
    encodings: Encoding = PLAIN
    optional: frozenset[str] = frozenset()

    @property
    def paths(self) -> frozenset[tuple[str, ...]]:
        """Where numbers are that are read."""
        return frozenset(path for path in (self.time, self.order) if path is not None)

    def keeps(self, side: str) -> frozenset[str]:
        """The columns whose values may be left out in the rows of a side: they are looked up."""
        wanted = self.after.names if self.stored and side == "after" else []
        return frozenset(wanted) - set(self.before.names)

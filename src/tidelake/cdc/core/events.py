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
        fields: the other fields of the layout, one struct a line, null for tombstones; None: not read.
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
    fields: pa.StructArray | None = None


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
        fields: other fields, given as they are read.
    """

    before: pa.Schema
    after: pa.Schema
    time: tuple[str, ...] | None
    order: tuple[str, ...] | None
    stored: bool
    encodings: Encoding = PLAIN
    optional: frozenset[str] = frozenset()
    fields: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def keeps(self, side: str) -> frozenset[str]:
        """The columns whose values may be left out in the rows of a side: they are looked up."""
        wanted = self.after.names if self.stored and side == "after" else []
        return frozenset(wanted) - set(self.before.names)

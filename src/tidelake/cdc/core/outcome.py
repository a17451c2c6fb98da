"""What some lines of a collection became."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class Reject:
    """A line that cannot be read.

    Attributes:
        line: its number among the given lines, from 0.
        reason: why it cannot be read.
    """

    line: int
    reason: str


@dataclass(frozen=True)
class Truncates:
    """Lines that remove all rows before them.

    Attributes:
        lines: their numbers, ascending.
        times: their times.
        orders: by `order_by`, 0 without.
    """

    lines: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    orders: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Parsed:
    """The result of parsing a batch of lines.

    Attributes:
        rows: updates (key and value columns, `_time`, `_diff`) in the order of the lines, old row first;
            with `old_rows="stored"` events, see `ChangeParser.schema_of_rows`.
        events: number of change events; an update has two rows.
        heartbeats: number of lines that only move time.
        tombstones: number of tombstones.
        late: number of events before `lower`.
        time_upper: the greatest time of any event or heartbeat; None if there is none.
        rejects: lines that could not be read, ascending; empty unless the parser collects them.
        truncates: truncations, which `events` counts, too; None: there are none.
    """

    rows: pa.RecordBatch
    events: int
    heartbeats: int
    tombstones: int
    late: int
    time_upper: int | None
    rejects: tuple[Reject, ...] = ()
    truncates: Truncates | None = None

"""What some lines of a collection became."""

from dataclasses import dataclass

import pyarrow as pa

from tidelake.cdc.core.events import Ints


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

    lines: Ints
    times: Ints
    orders: Ints


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
        created: of rows that say that their key has none before, whether one that is there after all is
            refused; null of others. None: that is not known.
        steps: in which order a line changes the rows. None: each line changes one.
    """

    rows: pa.RecordBatch
    events: int
    heartbeats: int
    tombstones: int
    late: int
    time_upper: int | None
    rejects: tuple[Reject, ...] = ()
    truncates: Truncates | None = None
    created: pa.Array | None = None
    steps: Ints | None = None

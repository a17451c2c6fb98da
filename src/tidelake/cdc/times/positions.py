"""Where change events stand in the log of their source: the positions of their transactions.

Owns which fields each connector of Debezium has for that. Must not know how positions become times
(`tidelake.cdc.times.timeline`), nor the rows of events.

| connector | position | what tells transactions apart |
|---|---|---|
| `postgresql` | the commit before, `source.sequence[0]`; of END its id | the position |
| `mysql`, `mariadb` | `source.file` and `source.pos` | `source.gtid`, or `transaction.id` |
| `sqlserver` | `source.commit_lsn` | the position |
| `oracle` | `source.commit_scn` | the position |
| `mongodb` | `source.ts_ms` in seconds and `source.ord` | the position |

Positions never decrease in the order in which a connector gives events out, and are equal within a
transaction, but for MySQL and MariaDB, where they ascend.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import among, mask
from tidelake.cdc.core.columns import numbers as _numbers
from tidelake.cdc.core.events import Ints, Mask
from tidelake.cdc.core.ops import INCREMENTAL, MARKS, TRUNCATE
from tidelake.cdc.debezium.connectors import CONNECTORS, connector_of
from tidelake.cdc.debezium.decoded import Decoded, decode
from tidelake.errors import InvalidUpdates

NONE = -1
# What a line is: nothing with a position, an event on rows, a mark (END, a message), a row of a first copy
# and the last one of these; of a copy by a connector that has seen no commit (of PostgreSQL only).
NOTHING, ROWS, MARK, COPY, COPY_END, FRESH = 0, 1, 2, 4, 8, 16
_TEXT = pa.string()
_inside = pc.struct_field
# Bits of the three numbers of an LSN of SQL Server: log file, block, slot.
_LSN_BITS = (24, 24, 15)


@dataclass(frozen=True)
class Positions:
    """The positions of lines; element i of each array belongs to line i.

    Attributes:
        connector: of all lines that have a position; empty: no line is of a known connector, but END events
            may have positions of PostgreSQL.
        starts: the positions; `NONE` where there is none.
        roles: what the lines are, as `ROWS` and the others.
        clocks: wall clocks of the commits at the source, in the unit that was asked for; `NONE` without.
        ends: positions of the events themselves in the log, where the connector has them, else `starts`.
        groups: names of the transactions, as text; None: the position tells them apart.
        numbers: of events their number in the transaction, from 1, of END events how many there are; `NONE`
            where they are not told. None: they were not asked for.
    """

    connector: str
    starts: Ints
    roles: Ints
    clocks: Ints
    ends: Ints
    groups: pa.Array | None = None
    numbers: Ints | None = None


def positions(lines: pa.Array | Decoded, clock: str = "ts_ms", *, numbered: bool = False) -> Positions:
    """The positions of lines."""
    fields = (lines if isinstance(lines, Decoded) else decode(lines)).fields
    named = _named(fields)
    if len(named) > 1:
        raise InvalidUpdates(mixed(named))
    found = _positions(fields, min(named, default=""), clock)
    return replace(found, numbers=_order_numbers(fields)) if numbered else found


def mixed(connectors: Collection[str]) -> str:
    """Why events of several connectors are refused."""
    return (
        f"change events of {' and '.join(sorted(connectors))} are mixed: their positions cannot be "
        "compared, so take each source into collections of its own, or name the time: time='...'"
    )


def _named(fields: pa.StructArray) -> set[str]:
    return set(_inside(fields.field("source"), "connector").unique().to_pylist()) & CONNECTORS.keys()


def _order_numbers(fields: pa.StructArray) -> Ints:
    """The numbers of events in their transactions; of END events how many there are."""
    order = _inside(_inside(fields, "transaction"), "total_order")
    ends = pc.equal(_inside(fields, "status"), "END")
    return _numbers(pc.if_else(pc.fill_null(ends, False), _inside(fields, "event_count"), order))


def _positions(fields: pa.StructArray, connector: str, clock: str) -> Positions:
    count = len(fields)
    source, op = fields.field("source"), fields.field("op")
    none = np.full(count, NONE, np.int64)
    # END tells its transaction, and not its connector.
    before = connector_of(connector).gives_before
    closed = _closed(fields) if before or not connector else none
    if not connector:
        return Positions("", closed, np.where(closed >= 0, MARK, NOTHING).astype(np.int8), none, closed)
    here = mask(pc.equal(_inside(source, "connector"), connector))
    snapshot = _inside(source, "snapshot")
    # Rows of an incremental snapshot come among other events, and have their positions.
    copies = here & mask(pc.equal(op, "r")) & ~mask(pc.equal(snapshot, INCREMENTAL))
    # Statements that the connector made up for a first copy have no position.
    here &= ~(mask(op.is_null()) & ~among(snapshot, [None, "false"]))
    starts, ends, groups = _of_connector(fields, source, connector, copies)
    on_rows = here & ~among(op, MARKS)
    starts = np.where(here, starts, NONE)
    roles = np.where(copies, COPY, np.where(on_rows, ROWS, np.where(starts >= 0, MARK, NOTHING)))
    last = copies & mask(pc.equal(snapshot, "last"))
    roles = np.where(last, COPY | COPY_END, roles)
    if before:
        fresh = copies & (_sequence(_inside(source, "sequence")) == 0)
        roles = np.where(fresh, roles | FRESH, roles)
    roles = roles.astype(np.int8)
    roles = np.where(closed >= 0, MARK, roles).astype(np.int8)
    starts = np.where(closed >= 0, closed, starts)
    clocks = np.where(here, _numbers(_inside(source, clock)), NONE)
    return Positions(connector, starts, roles, clocks, np.where(ends > NONE, ends, starts), groups)


def _of_connector(
    fields: pa.StructArray, source: pa.StructArray, connector: str, copies: Mask
) -> tuple[Ints, Ints, pa.Array | None]:
    """Positions of transactions and of events, and names of transactions."""
    if connector == "postgresql":
        own = _numbers(_inside(source, "lsn"))
        return np.where(copies, own, _sequence(_inside(source, "sequence"))), own, None
    if connector in ("mysql", "mariadb"):
        number = _digits(_inside(source, "file"), r"\.(?P<n>[0-9]{1,9})$")
        at = _numbers(_inside(source, "pos"))
        names = pc.coalesce(_inside(source, "gtid"), _inside(fields.field("transaction"), "id"))
        # A statement is a transaction of its own, also one that truncates.
        place = pc.binary_join_element_wise(_inside(source, "file"), _inside(source, "pos").cast(_TEXT), ":")
        alone = pc.fill_null(pc.equal(fields.field("op"), TRUNCATE), True)
        names = pc.coalesce(names, pc.if_else(alone, place, None))
        named = mask(names.is_valid()) | copies
        known = (number >= 0) & (number < 2**31) & (at >= 0) & (at < 2**32) & named
        starts = np.where(known, (number << 32) | (at & (2**32 - 1)), NONE)
        return starts, starts, names
    if connector == "sqlserver":
        starts = _by_value(_inside(source, "commit_lsn"), _packed_lsn)
        return starts, starts, None
    if connector == "oracle":
        texts = pc.coalesce(_inside(source, "commit_scn"), _inside(source, "scn"))
        starts = _by_value(texts, lambda text: int(text) if text.isdecimal() else NONE)
        return starts, starts, None
    seconds, order = (
        _numbers(_inside(source, "ts_ms")) // 1000,
        _numbers(_inside(source, "ord")),
    )
    known = (seconds >= 0) & (seconds < 2**31) & (order >= 0) & (order < 2**32)
    starts = np.where(known, (seconds << 32) | (order & (2**32 - 1)), NONE)
    return starts, starts, None


def _sequence(texts: pa.Array) -> Ints:
    """The first item of `["12","34"]` (a JSON text); null, before the first commit, is position 0."""
    found = _digits(texts, r'^\s*\[\s*"(?P<n>[0-9]{1,18})"\s*,')
    first = mask(pc.match_substring_regex(texts, r"^\s*\[\s*null\s*,"))
    return np.where(first, 0, found)


def _closed(fields: pa.StructArray) -> Ints:
    """The commit position in the id of an END event, `TRANSACTION:POSITION`; `NONE` elsewhere."""
    end = pc.and_(pc.equal(fields.field("status"), "END"), fields.field("op").is_null())
    ids = pc.if_else(end, fields.field("id"), None)
    return _digits(ids, r":(?P<n>[0-9]{1,18})$")


def _packed_lsn(text: str) -> int:
    """An LSN of SQL Server, such as `00000027:00000ac0:0002`, as one number of the same order."""
    words = text.split(":")
    try:
        numbers = [int(word, 16) for word in words]
    except ValueError:
        return NONE
    if len(numbers) != len(_LSN_BITS):
        return NONE
    packed = 0
    for number, bits in zip(numbers, _LSN_BITS, strict=True):
        if number >> bits:
            raise InvalidUpdates(
                f"source.commit_lsn {text!r} is too large for a position of 63 bits: take times of a clock "
                "(a collection with time 'ms'), or another field: time='...'"
            )
        packed = packed << bits | number
    return packed


def _by_value(texts: pa.Array, number: Any) -> Ints:
    coded = texts.dictionary_encode()
    values = np.array([number(text) for text in coded.dictionary.to_pylist()] + [NONE], np.int64)
    found: Ints = values[pc.fill_null(coded.indices, len(values) - 1).to_numpy(zero_copy_only=False)]
    return found


def _digits(texts: pa.Array, pattern: str) -> Ints:
    """The whole number at group `n` of a pattern; `NONE` where it does not match."""
    return _numbers(_inside(pc.extract_regex(texts, pattern), "n").cast(pa.int64()))

"""How far the partitions of Kafka's topics are that together hold the events of one source.

Owns up to where all events are here, which messages were seen before, and which come too late. Must not know
lines, nor Spark.

Each partition has its events in the order of their commits; between partitions there is no order. All events
of the transactions before a position are here

- when each partition has an event of that position or a later one, or has passed it by being idle: it has no
  message in this micro-batch, and the newest message of all is later, by the stated bound, than one of that
  position; or
- when as many events are here as the END events of all these transactions count (PostgreSQL).

A first copy is here as a whole when each partition has passed its end in the first of these ways.

INVARIANT: an event of a time that is closed is either one that was seen before, which its own partition
tells, or refused. It is never taken for the other.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.columns import one_batch
from tidelake.cdc.core.events import Ints
from tidelake.cdc.core.topicpartition import HEARTBEATS, UNPASSED, Reached, TopicPartition
from tidelake.cdc.times.positions import COPY_END, MARK, NONE, NOTHING, ROWS, Positions
from tidelake.cdc.times.surveys import SURVEY, edges, merged_surveys, told
from tidelake.errors import InvalidUpdates, UsageError

# They are kept in the record of the stream's writer, which is read with each state.
PARTITIONS_MAX = 4096
# What a task tells the driver of messages: of each partition and position the offsets, the first and last
# place in the log, the moments of delivery (ms), and what counts the events of a transaction.
PLACED = pa.schema(
    [
        *SURVEY,
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("number", pa.int64()),
        pa.field("first", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("begin", pa.int64()),
        pa.field("stamp", pa.int64()),
        pa.field("latest", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Partitions:
    """How far the partitions are after a micro-batch.

    Attributes:
        known: each of them.
        reach: all events of transactions that begin before this position are here.
        copied: all rows of a first copy are here, if there was one.
        copied_at: when the end of the copy was sent (ms); `NONE`: it was not seen.
    """

    known: Mapping[TopicPartition, Reached] = field(repr=False)
    reach: int
    copied: bool
    copied_at: int


def placed_survey(found: Positions, messages: pa.RecordBatch) -> pa.RecordBatch:
    """The transactions of some messages in each partition, as `PLACED`."""
    count = len(found.starts)
    there = found.starts >= 0
    names = messages.schema.names
    offsets, stamps = messages.column("offset"), messages.column("modified")
    placeless = {"topic": pa.nulls(count, pa.string()), "partition": pa.nulls(count, pa.int32())}
    place = {name: messages.column(name) if name in names else none for name, none in placeless.items()}
    numbers = np.full(count, NONE) if found.numbers is None else found.numbers
    columns = {
        **told(replace(found, roles=np.where(there, found.roles, NOTHING))),
        **place,
        "number": pa.array(numbers, mask=numbers < 0),
        "first": offsets,
        "offset": offsets,
        "begin": pa.array(found.ends),
        "stamp": stamps,
        "latest": stamps,
    }
    table = pa.table([columns[name] for name in PLACED.names], schema=PLACED)
    known = pc.or_(pa.array(there), place["topic"].is_valid())
    return one_batch(pa.concat_tables([merged_surveys(table.filter(known)), edges(found, PLACED)]))


def without_ends(
    found: pa.Table, before: Mapping[TopicPartition, Reached]
) -> tuple[pa.Table, dict[TopicPartition, Reached]]:
    """Messages of a connector whose END events tell no position, and the partitions, as if these had none."""
    named = found.column("connector").to_numpy(zero_copy_only=False) != ""
    roles = pa.array(np.where(named, found.column("roles").to_numpy(), NOTHING).astype(np.int8))
    at = found.schema.get_field_index("roles")
    known = {
        place: Reached(reached.offset, HEARTBEATS) if reached.start > UNPASSED else reached
        for place, reached in before.items()
    }
    return found.set_column(at, found.schema.field(at), roles), known


def seen_again(found: pa.Table, before: Mapping[TopicPartition, Reached]) -> dict[TopicPartition, int]:
    """The last offsets, of micro-batches before, of partitions that begin before their end again."""
    seen: dict[TopicPartition, int] = {}
    for place, rows in _by_place(found).items():
        known = before.get(place)
        if known is None:
            continue
        at = found.take(pa.array(rows))
        old = at.filter(pc.less_equal(at.column("first"), known.offset))
        if not old.num_rows:
            continue
        logged = (old.column("roles").to_numpy() & (ROWS | MARK)) > 0
        if known.start == HEARTBEATS:
            logged &= old.column("connector").to_numpy(zero_copy_only=False) != ""
        starts, begins = (old.column(name).to_numpy()[logged] for name in ("start", "begin"))
        named = old.column("group").is_valid().to_numpy()[logged]
        # Positions ascend in a transaction with a name, and it may come again from its middle on.
        starts = np.where(named & (begins <= known.end), np.minimum(starts, known.start), starts)
        if ((starts > known.start) | ((starts == known.start) & (begins > known.end))).any():
            raise InvalidUpdates(
                f"{place}: offset {int(pc.min(old.column('first')).as_py())} was seen before, and now it is "
                "an event of a later transaction: the topic was deleted and made anew. Events may be lost, "
                "so take the feed into new collections, with a new checkpoint and a first copy"
            )
        seen[place] = known.offset
    return seen


def partitions(
    found: pa.Table,
    before: Mapping[TopicPartition, Reached],
    planned: Collection[TopicPartition],
    *,
    done: int = 0,
    copied_at: int = NONE,
    idle_ms: int | None = None,
) -> Partitions | None:
    """How far the partitions are; None: no message tells its partition, as in files.

    Args:
        found: as `PLACED`, of all messages: also those that were held back before, which have no place.
        before: how far the partitions were.
        planned: partitions that the micro-batch is made of, also those without messages.
        done: all transactions before this position are in the collection.
        copied_at: as in `Partitions`, before.
        idle_ms: no message becomes visible so many milliseconds after one that was sent later; None: there
            is no such bound, so that a partition without messages is waited for.
    """
    here = _by_place(found)
    known = {place: before.get(place, Reached()) for place in sorted({*before, *planned, *here})}
    if not known:
        return None
    if len(known) > PARTITIONS_MAX:
        raise UsageError(
            f"a stream of transactions comes from at most {PARTITIONS_MAX} partitions, and these are "
            f"{len(known)}: send the events of several tables to one topic (Debezium's ByLogicalTableRouter)"
        )
    for place, rows in here.items():
        at = found.take(pa.array(rows))
        _check_late(at, place, known[place], done)
        known[place] = _reached(at, known[place])
    copied_at = max(copied_at, _copied_at(found))
    idle = _passed_by_idle(found, copied_at, idle_ms)
    passed = {
        place: max(reached.start, UNPASSED if place in here else idle)
        for place, reached in known.items()
        if reached.start != HEARTBEATS
    }
    reach = min(passed.values(), default=UNPASSED)
    return Partitions(known, max(reach, _counted(found, done)), reach > UNPASSED, copied_at)


def _by_place(found: pa.Table) -> dict[TopicPartition, Ints]:
    """The rows of each partition."""
    places = pa.table({name: found.column(name) for name in ("topic", "partition")})
    places = places.append_column("row", pa.array(np.arange(found.num_rows)))
    places = places.filter(places.column("topic").is_valid())
    grouped = places.group_by(["topic", "partition"], use_threads=False).aggregate([("row", "list")])
    topics, numbers = (grouped.column(name).to_pylist() for name in ("topic", "partition"))
    rows = [one.values.to_numpy() for one in grouped.column("row_list")]
    return {TopicPartition(*place): at for *place, at in zip(topics, numbers, rows, strict=True)}


def _reached(at: pa.Table, before: Reached) -> Reached:
    """How far a partition is, from its rows of a survey."""
    roles, starts, ends = (at.column(name).to_numpy() for name in ("roles", "start", "end"))
    offset = max(before.offset, pc.max(at.column("offset")).as_py())
    logged = (roles & (ROWS | MARK)) > 0
    last, end = before.start, before.end
    if before == Reached() and not (roles != NOTHING).any():
        last = HEARTBEATS
    elif last == HEARTBEATS and (roles != NOTHING).any():
        last = UNPASSED
    if logged.any():
        newest = int(starts[logged].max())
        of_it = int(ends[logged & (starts == newest)].max())
        last, end = max((last, end), (newest, of_it))
    if last == UNPASSED and ((roles & COPY_END) > 0).any():
        # What follows the copy comes after it.
        last = 0
    return Reached(offset, last, end)


def _check_late(at: pa.Table, place: TopicPartition, before: Reached, done: int) -> None:
    """Refuse events of closed times that this partition had not passed."""
    roles, starts, ends = (at.column(name).to_numpy() for name in ("roles", "start", "end"))
    rows = ((roles & ROWS) > 0) & (starts < done)
    late = rows & ((starts > before.start) | ((starts == before.start) & (ends > before.end)))
    if late.any():
        first = int(np.flatnonzero(late)[0])
        raise InvalidUpdates(
            f"{place}, offset {at.column('first')[first].as_py()}: a change event of position "
            f"{int(starts[first])} comes late: it arrived after all times before {done} were closed. Its "
            "partition was not known then, or was idle for longer than the bound. Ingest all partitions "
            "again from the beginning, into new collections, with a new checkpoint and a larger idle="
        )


def _copied_at(found: pa.Table) -> int:
    """When the end of a first copy was sent."""
    ends = pa.array((found.column("roles").to_numpy() & COPY_END) > 0)
    sent = pc.max(found.column("latest").filter(ends)).as_py()
    return NONE if sent is None else int(sent)


def _passed_by_idle(found: pa.Table, copied_at: int, idle_ms: int | None) -> int:
    """The position that partitions without messages have passed, by the bound."""
    newest = pc.max(found.column("latest")).as_py()
    if idle_ms is None or newest is None:
        return UNPASSED
    roles, starts = found.column("roles").to_numpy(), found.column("start").to_numpy()
    stamps = pc.fill_null(found.column("stamp"), newest).to_numpy()
    sent = (stamps <= newest - idle_ms) & ((roles & (ROWS | MARK)) > 0)
    after_copy = NONE < copied_at <= newest - idle_ms
    return max(int(starts[sent].max(initial=UNPASSED)), 0 if after_copy else UNPASSED)


def _counted(found: pa.Table, done: int) -> int:
    """Up to where the END events count as many events as are here; `UNPASSED` if they do not.

    An event has its number in its transaction, so one that comes twice counts once.
    """
    named = found.filter(found.column("number").is_valid())
    roles, starts, numbers = (named.column(name).to_numpy() for name in ("roles", "start", "number"))
    ending = ((roles & MARK) > 0) & (starts > done)
    if not ending.any():
        return UNPASSED
    ends, first = np.unique(starts[ending], return_index=True)
    counts = numbers[ending][first]
    # An event without a number is one that no END counts.
    rows = found.filter(pa.array((found.column("roles").to_numpy() & ROWS) > 0))
    events = np.stack(
        [rows.column("start").to_numpy(), pc.fill_null(rows.column("number"), NONE).to_numpy()], axis=1
    )
    events = np.unique(events[events[:, 0] >= done], axis=0)
    of_end = np.searchsorted(ends, events[:, 0], side="right")
    inside = of_end < len(ends)
    here = np.bincount(of_end[inside], minlength=len(ends))
    largest = np.zeros(len(ends), np.int64)
    np.maximum.at(largest, of_end[inside], events[inside, 1])
    whole = (here == counts) & (largest == counts)
    leading = int(np.argmin(whole)) if not whole.all() else len(whole)
    return int(ends[leading - 1]) if leading else UNPASSED

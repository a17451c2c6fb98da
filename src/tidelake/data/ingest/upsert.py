"""Upserts: events of keys and the present rows become updates.

Owns what "the last value wins" means; must not know where old rows come from. Invariant: after the updates
the collection holds, for every key with an accepted event, exactly the row of the key's last one, or none
after a removal; at every event's time it holds the row of that event; keys without an event do not change.

Events of a key apply in order of time. Among several events of one time, the one with the greatest order
wins; among equal orders, the one that was moved there from the latest time; otherwise the last one. If the
order is a column of the collection, an event is late, and changes nothing, if the stored row or an earlier
event of the key has a greater order.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.events import BEFORE, CREATED, LEFT_OUT, ORDER, REMOVED, left_out_rows
from tidelake.data.kernel.arrays import from_numpy
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.order import Mask, differ, group_starts
from tidelake.data.kernel.sort import sort_indices
from tidelake.data.kernel.sums import opposite
from tidelake.data.kernel.types import update_schema
from tidelake.data.keys.keytext import key_text
from tidelake.errors import InvalidUpdates
from tidelake.model.counts import Removals
from tidelake.model.schema import DIFF, Schema
from tidelake.model.time import TimeDomain

Ints = npt.NDArray[np.int64]
_ROW, _CAME = "_tidelake_row", "_tidelake_came"


@dataclass(frozen=True)
class UpsertRules:
    """How competing events are decided.

    Attributes:
        stored_order: column by which a stored row may be newer than an event; None: it never is.
        rows_count: whether the later row wins among equally good events; if false they must be equal.
    """

    stored_order: str | None = None
    rows_count: bool = True


@dataclass(frozen=True)
class Resolved(Removals):
    """What some events do.

    Attributes:
        removed: rows that removals take away, with their multiplicities.
    """

    updates: pa.Table


def resolve(
    events: pa.Table, old: pa.Table, schema: Schema, domain: TimeDomain, rules: UpsertRules = UpsertRules()
) -> Resolved:
    """The updates that have the effect of some events.

    Args:
        events: as `read_events` makes them.
        old: canonical updates, consolidated, at any times: the present rows of at least the events' keys,
            each with its multiplicity in `_diff`.
        schema: of the rows.
        domain: of the times, which are ints.
        rules: which events are late, and which are refused.

    Returns:
        Old rows are retracted with their whole multiplicity, new rows added once, each at the time of its
        event. Nothing where both are equal.

    Raises:
        InvalidUpdates: events of one key are equally good and differ; names the key.
    """
    wanted = update_schema(schema, domain)
    if not events.num_rows:
        return Resolved(wanted.empty_table())
    last = _winners(_joined(events), old, schema, domain, rules)
    starts = group_starts(last, len(schema.key))
    found = encode_key(old, schema)
    keys = encode_key(last.filter(pa.array(starts)), schema)
    # For each old row the number of its key; rows of other keys are ignored.
    if found.equals(keys):
        number = np.arange(len(keys))
    else:
        numbers = pc.index_in(found, value_set=keys)
        old, number = old.filter(numbers.is_valid()), numbers.drop_null().to_numpy().astype(np.int64)
    group = starts.cumsum() - 1
    if rules.stored_order is not None:
        kept = ~_late(last, group, old.column(rules.stored_order), number)
        last, group = last.filter(pa.array(kept)), group[kept]
    updates = consolidate(_differences(last, group, old, number, wanted), schema, domain)
    return Resolved(updates).plus(_removals(last, group, old, number))


def resolve_among(
    events: pa.Table,
    old: pa.Table,
    later: pa.Table,
    schema: Schema,
    domain: TimeDomain,
    *,
    rules: UpsertRules = UpsertRules(),
) -> Resolved:
    """As `resolve`, where rows of the keys come and go between the events.

    The events between two such times meet the rows that are there by then, so there is one step for each.
    """
    if not later.num_rows or not events.num_rows:
        return resolve(events, old, schema, domain, rules)
    if rules.stored_order is not None:
        events = _timely(events, old.slice(0, 0), schema, domain, rules)
    column = domain.columns[0]
    cuts = np.unique(later.column(column).to_numpy())
    steps = np.searchsorted(cuts, events.column(column).to_numpy(), side="right")
    found: list[Resolved] = []
    for step in np.unique(steps):
        come = later.filter(pc.less(later.column(column), cuts[step])) if step < len(cuts) else later
        parts = [old, come, *(one.updates for one in found)]
        present = consolidate(pa.concat_tables(_at_one_time(part, column) for part in parts), schema, domain)
        found.append(resolve(events.filter(pa.array(steps == step)), present, schema, domain, rules))
    updates = consolidate(pa.concat_tables(one.updates for one in found), schema, domain)
    return Resolved(updates).plus(*found)


def _timely(
    events: pa.Table, none: pa.Table, schema: Schema, domain: TimeDomain, rules: UpsertRules
) -> pa.Table:
    """The events that win at their time and are not older than an earlier one of their key."""
    last = _winners(_joined(events), none, schema, domain, rules)
    group = np.cumsum(group_starts(last, len(schema.key))) - 1
    stored = pa.chunked_array([], last.column(ORDER).type)
    kept = ~_late(last, group, stored, np.zeros(0, np.int64))
    return pa.Table.from_batches([last.filter(pa.array(kept))]).select(events.column_names)


def _at_one_time(updates: pa.Table, column: str) -> pa.Table:
    place = updates.schema.get_field_index(column)
    times = pa.array(np.zeros(updates.num_rows, np.int64))
    return updates.set_column(place, updates.schema.field(place), times)


def _joined(events: pa.Table) -> pa.RecordBatch:
    batch = events.combine_chunks().to_batches()[0]
    return batch.append_column(_ROW, from_numpy(np.arange(batch.num_rows)))


def _winners(
    events: pa.RecordBatch, old: pa.Table, schema: Schema, domain: TimeDomain, rules: UpsertRules
) -> pa.RecordBatch:
    """The event that wins for each key and time, sorted by both."""
    by = [*(column.name for column in schema.key), *domain.columns]
    tied = [*by, *(name for name in (ORDER, BEFORE) if name in events.schema.names)]
    ordered = events.take(sort_indices(events.select([*tied, _ROW]), len(tied) + 1))
    if LEFT_OUT in ordered.schema.names and ordered.column(LEFT_OUT).null_count < ordered.num_rows:
        ordered = _filled(ordered, old, schema)
    if CREATED in ordered.schema.names and ordered.column(CREATED).null_count < ordered.num_rows:
        ordered = _checked(ordered, group_starts(ordered.select(by), len(by)), old, schema, domain)
    points = group_starts(ordered.select(by), len(by))
    wins = np.concatenate((points[1:], [True]))
    if not rules.rows_count:
        _check_equal(ordered, group_starts(ordered.select(tied), len(tied)), wins, schema)
    if wins.all():
        return ordered
    last = ordered.filter(pa.array(wins))
    removed = ordered.column(REMOVED).to_numpy(zero_copy_only=False)
    if removed.any():
        came = np.logical_or.reduceat(~removed, points.nonzero()[0])
        last = last.append_column(_CAME, pa.array(came))
    return last


def _removals(last: pa.RecordBatch, group: Ints, old: pa.Table, number: Ints) -> Removals:
    """How many rows the removals take away, and how many of them find none; arguments as `_differences`."""
    gone = last.column(REMOVED).to_numpy(zero_copy_only=False)
    if not gone.any():
        return Removals()
    first = np.concatenate(([True], group[1:] != group[:-1]))
    keys = 1 + max(group[-1], number.max() if len(number) else -1)
    copies = np.zeros(keys, np.int64)
    np.add.at(copies, number, old.column(DIFF).to_numpy())
    # Before an event there is what is stored, if it is the first of its key, else what the one before left.
    left = np.append(0, ~gone[:-1])
    there = np.where(first, np.bincount(number, minlength=keys)[group], left) > 0
    before = np.where(first, copies[group], left)
    if _CAME in last.schema.names:
        # A row that came and went at one time was there.
        there |= last.column(_CAME).to_numpy(zero_copy_only=False)
    return Removals(removed=int(before[gone].sum()), absent=int((gone & ~there).sum()))


def _filled(ordered: pa.RecordBatch, old: pa.Table, schema: Schema) -> pa.RecordBatch:
    """The events with the values that they leave out: those of the event before, or of the stored row."""
    starts = group_starts(ordered, len(schema.key))
    group = starts.cumsum() - 1
    first = starts.nonzero()[0]
    number = pc.index_in(
        encode_key(old, schema), value_set=encode_key(ordered.filter(pa.array(starts)), schema)
    )
    at = (number.is_valid().to_numpy(zero_copy_only=False)).nonzero()[0]
    copies = np.zeros(len(first), np.int64)
    np.add.at(copies, number.drop_null().to_numpy(), old.column(DIFF).to_numpy()[at])
    rows = np.bincount(number.drop_null().to_numpy(), minlength=len(first))
    stored = np.zeros(len(first), np.int64)
    stored[number.drop_null().to_numpy()] = at
    removed = ordered.column(REMOVED).to_numpy(zero_copy_only=False)
    places = np.arange(ordered.num_rows)
    for name, left_out in left_out_rows(pa.chunked_array([ordered.column(LEFT_OUT)])).items():
        if name not in ordered.schema.names:
            continue
        untold = left_out & ~removed
        # The last event that tells the value, if it is of the same key; a removal tells that there is none.
        told = np.maximum.accumulate(np.where(untold, -1, places))
        inside = told >= first[group]
        nowhere = untold & np.where(inside, removed[told], (rows[group] != 1) | (copies[group] != 1))
        if nowhere.any():
            key = encode_key(ordered.slice(int(np.argmax(nowhere)), 1), schema)[0].as_py()
            raise InvalidUpdates(
                f"the source left out the value of column {name!r} for the key {key_text(key, schema)}, and "
                "the collection has no row of this key to take it from: let the source write whole rows "
                "(REPLICA IDENTITY FULL), or take a new snapshot of the table, and truncate it at no time "
                "amid that: PostgreSQL has no rows for it of a table that is truncated before it is read"
            )
        own, before = ordered.column(name), old.column(name).combine_chunks()
        source = np.where(untold & ~inside, ordered.num_rows + stored[group], np.where(untold, told, places))
        filled = pa.concat_arrays([own, before.cast(own.type)]).take(pa.array(source))
        ordered = ordered.set_column(ordered.schema.get_field_index(name), ordered.schema.field(name), filled)
    return ordered


def _checked(
    ordered: pa.RecordBatch, points: Mask, old: pa.Table, schema: Schema, domain: TimeDomain
) -> pa.RecordBatch:
    """The events without removals of rows in whose place one was created before, as in a swap of keys."""
    starts = group_starts(ordered, len(schema.key))
    removed = ordered.column(REMOVED).to_numpy(zero_copy_only=False)
    there = np.append(False, ~removed[:-1])
    keys = encode_key(ordered.filter(pa.array(starts)), schema)
    there[starts] = pc.is_in(keys, value_set=encode_key(old, schema)).to_numpy(zero_copy_only=False)
    told = ordered.column(CREATED)
    created, refused = (
        mask.to_numpy(zero_copy_only=False) for mask in (told.is_valid(), pc.fill_null(told, False))
    )
    second = there & created
    if not second.any():
        return ordered
    kept = np.ones(len(second), np.bool_)
    ends = np.concatenate((points[1:], [True]))
    firsts = np.append(starts.nonzero()[0], len(second))
    for group in np.unique((starts.cumsum() - 1)[second]):
        rows = int(there[firsts[group]])
        for at in range(firsts[group], firsts[group + 1]):
            if removed[at]:
                kept[at], rows = rows < 2, max(rows - 1, 0)
            else:
                again = at > firsts[group] and not refused[at] and _is_again(ordered, at, schema, domain)
                rows = rows + 1 if created[at] and not again else max(rows, 1)
            if rows > 1 and ends[at] and refused[firsts[group] : at + 1].any():
                raise InvalidUpdates(_second(encode_key(ordered.slice(at, 1), schema)[0].as_py(), schema))
            rows = min(rows, 1) if ends[at] else rows
    return ordered.filter(pa.array(kept))


def _is_again(ordered: pa.RecordBatch, at: int, schema: Schema, domain: TimeDomain) -> bool:
    """Whether an event has the row and the time of the one before, which may have come again."""
    names = [REMOVED, *(column.name for column in schema.columns), *domain.columns]
    before, event = (ordered.slice(n, 1).select(names) for n in (at - 1, at))
    return bool(before.equals(event))


def _second(key: bytes, schema: Schema) -> str:
    return (
        f"the source has created a second row with the key {key_text(key, schema)}, which would replace "
        "the first, or the removal of the first has not come: if these columns do not tell its rows "
        "apart, take the table into a new collection, with keys=... of columns that do"
    )


def _check_equal(ordered: pa.RecordBatch, ties: Mask, wins: Mask, schema: Schema) -> None:
    """Refuse events that are as good as the winner and differ from it."""
    tie = np.cumsum(ties) - 1
    best = np.zeros(tie[-1] + 1, np.bool_)
    best[tie[wins]] = True
    # Rows of a tie are adjacent, so they are equal if each equals the one before.
    at = (~ties & best[tie]).nonzero()[0]
    if not len(at):
        return
    rows, before = ordered.take(pa.array(at)), ordered.take(pa.array(at - 1))
    unequal: Mask = np.zeros(len(at), np.bool_)
    for column in schema.value:
        unequal |= differ(rows.column(column.name), before.column(column.name))
    # The values of a removal have no meaning.
    gone, gone_before = (batch.column(REMOVED).to_numpy(zero_copy_only=False) for batch in (rows, before))
    unequal = (gone != gone_before) | (unequal & ~gone)
    if unequal.any():
        key = encode_key(rows.slice(int(np.argmax(unequal)), 1), schema)[0].as_py()
        tell = "an order_by that tells which is the last"
        if ORDER in ordered.schema.names:
            tell = "values of order_by that differ"
        raise InvalidUpdates(
            f"several events of the key {key_text(key, schema)} differ, and none is the last: "
            f"give one for each key and time, or {tell}"
        )


def _late(last: pa.RecordBatch, group: Ints, stored: pa.ChunkedArray, number: Ints) -> Mask:
    """Events that are older than the stored row or an earlier event of their key."""
    new = last.column(ORDER)
    both = pa.concat_arrays([*(chunk.cast(new.type) for chunk in stored.chunks), new])
    codes = _codes(both)
    codes[both.is_null().to_numpy(zero_copy_only=False)] = 0
    own = codes[len(stored) :]
    # Codes of different keys get different ranges, so that one running maximum serves all keys.
    span = np.int64(codes.max() + 1)
    base = np.arange(group[-1] + 1, dtype=np.int64) * span
    np.maximum.at(base, number, number * span + codes[: len(stored)])
    first = np.concatenate(([True], group[1:] != group[:-1]))
    place = group * span + own
    reached = place.copy()
    reached[first] = np.maximum(reached[first], base[group[first]])
    reached = np.maximum.accumulate(reached)
    before = np.append(base[0], reached[:-1])
    before[first] = base[group[first]]
    late: Mask = place < before
    return late


def _codes(column: pa.Array) -> Ints:
    """Numbers from 1 in the order of the values."""
    batch = pa.RecordBatch.from_arrays([column], ["order"])
    order = sort_indices(batch, 1)
    codes: Ints = np.empty(len(column), np.int64)
    codes[order.to_numpy()] = np.cumsum(group_starts(batch.take(order), 1))
    return codes


def _differences(
    last: pa.RecordBatch, group: Ints, old: pa.Table, number: Ints, wanted: pa.Schema
) -> pa.Table:
    """Retractions of old rows and additions of new ones, not summed."""
    count = len(group)
    keys = 1 + max(group[-1] if count else -1, number.max() if len(number) else -1)
    begins = np.zeros(keys, np.int64) - 1
    first = np.concatenate(([True], group[1:] != group[:-1])) if count else np.zeros(0, np.bool_)
    begins[group[first]] = first.nonzero()[0]
    touched = begins[number] >= 0
    times = last.column(wanted.names[-2])
    old, at = old.filter(pa.array(touched)), begins[number[touched]]
    present = ~last.column(REMOVED).to_numpy(zero_copy_only=False)
    # The row of an event lasts until the next event of its key.
    ends = (present[:-1] & ~first[1:]).nonzero()[0] if count else np.zeros(0, np.int64)
    return pa.concat_tables(
        [
            _updates(old, times.take(from_numpy(at)), opposite(old.column(DIFF)), wanted),
            _updates(last.filter(pa.array(present)), times.filter(pa.array(present)), 1, wanted),
            _updates(last.take(from_numpy(ends)), times.take(from_numpy(ends + 1)), -1, wanted),
        ]
    )


def _updates(
    rows: pa.RecordBatch | pa.Table, times: pa.Array, diffs: pa.ChunkedArray | int, wanted: pa.Schema
) -> pa.Table:
    if isinstance(diffs, int):
        diffs = from_numpy(np.zeros(rows.num_rows, np.int64) + diffs)
    columns = [rows.column(name) for name in wanted.names[:-2]]
    return pa.Table.from_arrays([*columns, times, diffs], schema=wanted)

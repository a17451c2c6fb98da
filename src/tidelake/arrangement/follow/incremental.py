"""Incremental joins and counts: take changes of the inputs, return corrections of the result.

Owns the arithmetic of one step; the caller decides where changes come from and where corrections go. Both are
exact under retractions: after any step, the sum of all corrections is the result computed from scratch.

Source of the equations: Budiu, Chajed, McSherry, Ryzhyk, Tannen, "DBSP: Automatic Incremental View
Maintenance for Rich Query Languages", VLDB 2023.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.arrangement.arrangement import Arrangement
from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import update_schema
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.model.schema import DIFF, Schema
from tidelake.model.time import Time, parts

Ints = npt.NDArray[np.int64]


def join_changes(
    left: Arrangement, right: Arrangement, left_changes: object, right_changes: object, *, time: Time
) -> pa.Table:
    """One step of an inner join on the key: d(A ⋈ B) = dA ⋈ B + A ⋈ dB + dA ⋈ dB.

    Args:
        left: one side as of the previous step, keyed by the join columns. The changes are appended into it.
        right: the other side, with key columns of the same names and types.
        left_changes: rows appended and retracted since then, with `_diff`, such as `collection.changes`
            returns; columns that the side does not have are ignored.
        right_changes: the same for the right side.
        time: time of the step.

    Returns:
        Updates at `time`, as `append` takes them: key columns, the left's values, the right's. Keys join if
        they are equal as keys; null joins null. Not consolidated. Costs a look-up on each side.

    Raises:
        UsageError: the key columns differ, or both sides have a value column of the same name.
        InvalidUpdates: changes do not fit; or a product of multiplicities overflows int64. Nothing was
            appended then.
    """
    joined = _joined_schema(left, right)
    came = _changes(left, left_changes, time)
    other = _changes(right, right_changes, time)
    others = _sorted(other, right)
    pairs = (
        (came, right.lookup(_keys(came, right))),
        (left.lookup(_keys(other, left)), others),
        (came, others),
    )
    changed = pa.concat_tables([_product(ours, theirs, joined, left, time) for ours, theirs in pairs])
    left.append(came)
    right.append(other)
    return changed


def count_changes(counts: Arrangement, changes: object, *, time: Time) -> pa.Table:
    """One step of a count of rows by key.

    Args:
        counts: the counts as of the previous step: the count is its only value column, an int64; a key
            without rows has no row. The corrections are appended into it.
        changes: rows appended and retracted since then, with `_diff`; columns other than the key are ignored.
        time: time of the step.

    Returns:
        Updates at `time`: for each key whose count changed, a retraction of the old count and an insertion of
        the new one. A count of zero is no row.

    Raises:
        UsageError: `counts` does not have one value column of type int64.
        InvalidUpdates: changes do not fit, or a count overflows int64.
    """
    value = counts.layout.schema.value
    if len(value) != 1 or value[0].type.name != "int64":
        raise UsageError("counts need one value column, of type int64: give the arrangement such a schema")
    keys = Schema(counts.layout.schema.key)
    domain = counts.layout.domain
    table = as_table(changes)
    wanted = [*counts.key, *([DIFF] if DIFF in table.column_names else [])]
    given = normalize(_select(table, wanted), keys, domain, time=time)
    if not given.num_rows:
        return counts.layout.arrow.empty_table()
    number, first = _numbered(counts, given)
    groups = len(first)
    added = _sums(number, given.column(DIFF).to_numpy(), groups)
    distinct = given.take(pa.array(first)).select(list(counts.key))
    before = counts.lookup(distinct)
    # For each existing count, the number of its key in `distinct`.
    own = pc.index_in(counts.layout.encode(before), value_set=counts.layout.encode(distinct)).to_numpy()
    old = np.zeros(groups, np.int64)
    old[own] = before.column(value[0].name).to_numpy()
    new = _added(old, added)
    differs = new != old
    gone, come = pa.array(differs & (old != 0)), pa.array(differs & (new != 0))
    schema = counts.layout.arrow
    corrections = pa.concat_tables(
        [
            _corrections(distinct.filter(gone), pa.array(old).filter(gone), -1, schema, time),
            _corrections(distinct.filter(come), pa.array(new).filter(come), 1, schema, time),
        ]
    )
    counts.append(corrections)
    return corrections


def _changes(side: Arrangement, changes: object, time: Time) -> pa.Table:
    """The changes of one side, canonical, all at one time."""
    table = as_table(changes)
    wanted = [*side.schema.names, *([DIFF] if DIFF in table.column_names else [])]
    return normalize(_select(table, wanted), side.layout.schema, side.layout.domain, time=time)


def _select(table: pa.Table, names: list[str]) -> pa.Table:
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise InvalidUpdates(f"missing column {missing[0]!r}: the changes have {table.column_names}")
    return table.select(names)


def _keys(rows: pa.Table, of: Arrangement) -> pa.Table:
    return rows.select(list(of.key))


def _sorted(rows: pa.Table, of: Arrangement) -> pa.Table:
    """Rows by ascending key."""
    order = pc.sort_indices(of.layout.encode(rows))
    return rows.take(order)


def _joined_schema(left: Arrangement, right: Arrangement) -> pa.Schema:
    ours, theirs = left.layout, right.layout
    if [(c.name, c.type) for c in ours.schema.key] != [(c.name, c.type) for c in theirs.schema.key]:
        raise UsageError(f"{ours.schema} and {theirs.schema} do not have the same key columns")
    if ours.domain != theirs.domain:
        raise UsageError(f"the time unit of one side is {ours.domain}, that of the other is {theirs.domain}")
    twice = {c.name for c in ours.schema.value} & {c.name for c in theirs.schema.value}
    if twice:
        raise UsageError(f"both sides have a value column {min(twice)!r}: rename one of them")
    joined = Schema(ours.schema.key, (*ours.schema.value, *theirs.schema.value))
    return update_schema(joined, ours.domain)


def _product(ours: pa.Table, theirs: pa.Table, joined: pa.Schema, left: Arrangement, time: Time) -> pa.Table:
    """All pairs of equal keys; `theirs` is sorted by key."""
    encoded = left.layout.encode(theirs)
    distinct = encoded.unique()
    group = pc.index_in(encoded, value_set=distinct).to_numpy()
    counts = np.bincount(group, minlength=len(distinct))
    begins = np.cumsum(counts) - counts
    found = pc.index_in(left.layout.encode(ours), value_set=distinct)
    matched = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
    own = found.drop_null().to_numpy()
    times = counts[own]
    left_rows = np.repeat(matched, times)
    # For each pair, its position among the pairs of one left row.
    place = np.arange(len(left_rows)) - np.repeat(np.cumsum(times) - times, times)
    right_rows = np.repeat(begins[own], times) + place
    a, b = ours.take(pa.array(left_rows)), theirs.take(pa.array(right_rows))
    try:
        diff = pc.multiply_checked(a.column(DIFF), b.column(DIFF))
    except pa.ArrowInvalid as error:
        raise InvalidUpdates("the multiplicity of a row of the join overflows int64") from error
    values = _times(time, len(left_rows))
    width = len(joined) - 1 - len(values)
    columns = [
        *((a if name in a.column_names else b).column(name) for name in joined.names[:width]),
        *values,
        diff,
    ]
    return pa.Table.from_arrays(columns, schema=joined)


def _times(time: Time, count: int) -> list[pa.Array]:
    return [pa.array(np.full(count, part, np.int64)) for part in parts(time)]


def _numbered(counts: Arrangement, rows: pa.Table) -> tuple[Ints, Ints]:
    """For each row the number of its key, and for each key its first row."""
    encoded = counts.layout.encode(rows)
    number = pc.index_in(encoded, value_set=encoded.unique()).to_numpy().astype(np.int64)
    _, first = np.unique(number, return_index=True)
    return number, first


def _sums(number: Ints, diffs: Ints, groups: int) -> Ints:
    """The exact sum for each number."""
    low = np.zeros(groups, np.int64)
    high = np.zeros(groups, np.int64)
    np.add.at(low, number, diffs & 0xFFFFFFFF)
    np.add.at(high, number, diffs >> 32)
    high += low >> 32
    if ((high < -(2**31)) | (high >= 2**31)).any():
        raise InvalidUpdates("a count overflows int64")
    return (high << 32) + (low & 0xFFFFFFFF)


def _added(old: Ints, added: Ints) -> Ints:
    try:
        total: Ints = pc.add_checked(pa.array(old), pa.array(added)).to_numpy()
    except pa.ArrowInvalid as error:
        raise InvalidUpdates("a count overflows int64") from error
    return total


def _corrections(keys: pa.Table, counts: pa.Array, diff: int, schema: pa.Schema, time: Time) -> pa.Table:
    n = keys.num_rows
    columns = [*keys.columns, counts, *_times(time, n), pa.array(np.full(n, diff, np.int64))]
    return pa.Table.from_arrays(columns, schema=schema)

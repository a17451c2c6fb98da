"""Conversions between rows of plain values and Arrow tables, for tests."""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from tidelake.model.time import Time, TimeDomain, parts
from tidelake.testing.oracle import Row, canonical, rank

# The schema of `strategies.rows`: text and int keys, double, decimal and list values.
SCHEMA = pa.schema(
    [
        pa.field("k", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("d", pa.decimal128(9, 2)),
        pa.field("l", pa.list_(pa.int64())),
    ]
)
KEY = ("k", "n")


def table(
    updates: Iterable[tuple[Row, Time, int]], domain: TimeDomain, schema: pa.Schema = SCHEMA
) -> pa.Table:
    """Updates as a table with the columns of `schema`, the time column(s) and `_diff`."""
    held = list(updates)
    columns = {
        field.name: pa.array([row[i] for row, _, _ in held], field.type) for i, field in enumerate(schema)
    }
    for i, name in enumerate(domain.columns):
        columns[name] = pa.array([parts(time)[i] for _, time, _ in held], pa.int64())
    columns["_diff"] = pa.array([diff for _, _, diff in held], pa.int64())
    return pa.table(columns)


def updates(answer: pa.Table, domain: TimeDomain) -> list[tuple[Row, Time, int]]:
    """The (row, time, diff) updates of an answer, in its order, as canonical plain values."""
    columns = [answer.column(name).to_pylist() for name in answer.column_names]
    width = len(columns) - 1 - domain.arity
    found: list[tuple[Row, Time, int]] = []
    for values in zip(*columns, strict=True):
        row = tuple(canonical(value) for value in values[:width])
        time = values[width:-1] if domain.unit == "tuple" else values[width]
        found.append((row, time, values[-1]))
    return found


def netted(answer: pa.Table, domain: TimeDomain, time: Time) -> Counter[Row]:
    """Row -> multiplicity of an answer whose times must all be `time`."""
    found = updates(answer, domain)
    check_sorted(found)
    counts = Counter({row: diff for row, _, diff in found})
    if len(counts) != len(found) or 0 in counts.values():
        raise AssertionError("not consolidated: a row twice or a diff of zero")
    if any(t != time for _, t, _ in found):
        raise AssertionError(f"not all times are forwarded to {time}")
    return counts


def by_time(answer: pa.Table, domain: TimeDomain) -> Counter[tuple[Row, Time]]:
    """(row, time) -> diff of an answer; errors as `netted`."""
    found = updates(answer, domain)
    check_sorted(found)
    counts = Counter({(row, time): diff for row, time, diff in found})
    if len(counts) != len(found) or 0 in counts.values():
        raise AssertionError("not consolidated: a row and time twice or a diff of zero")
    return counts


def check_sorted(found: list[tuple[Row, Time, int]]) -> None:
    """Check the order by (key, value, time)."""
    ranks = [(tuple(rank(v) for v in row), parts(time)) for row, time, _ in found]
    for i in range(len(ranks) - 1):
        if ranks[i] > ranks[i + 1]:
            raise AssertionError(f"rows out of order: {found[i]} before {found[i + 1]}")

"""A collection whose rows are replaced again and again, so that it has slices and bases."""

import pyarrow as pa
from damage import SMALL, World

from tidelake.config import Config

KEYS, TIMES = 12, 30
# A slice is three times long, and a base is due about every second one.
TINY = {"slice_rows": 10, "merge_rows_min": 0, "merge_inputs_min": 2}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])


def tiny_world(**settings):
    """Stores in memory, with small slices. Nothing is merged by appends."""
    fields = {
        name: getattr(SMALL, name) for name in ("inline_part_bytes", "row_group_rows", "merge_budget_s")
    }
    return World(Config(**fields | TINY | settings))


def value_at(key, time):
    """The value of a key as of a time: at each time two keys get another one."""
    return time - (time - key) % (KEYS // 2) if time >= key % (KEYS // 2) else -1


def step(key, time):
    """The updates that a key gets at a time: (id, v, time, diff)."""
    old = [] if time == 0 else [(key, value_at(key, time - 1), time, -1)]
    new = [(key, value_at(key, time), time, 1)]
    return [] if old and old[0][1] == new[0][1] else old + new


def updates(first, last):
    """The updates of the times from `first` up to, not including, `last`."""
    rows = [row for time in range(first, last) for key in range(KEYS) for row in step(key, time)]
    columns = zip(("id", "v", "_time", "_diff"), zip(*rows, strict=True), strict=True)
    return pa.table({name: pa.array(cells, pa.int64()) for name, cells in columns})


def append(collection, first, last):
    """Append the updates of each of these times by itself."""
    for time in range(first, last):
        collection.append(updates(time, time + 1))


def upserted(lake, name="c", times=TIMES):
    """A collection of many times, at rest, with several slices and bases."""
    made = lake.create(name, SCHEMA, key=["id"])
    append(made, 0, times)
    assert made.maintain().complete
    state = made.state()
    assert len(state.spine.slices) > 2 and len(state.bases) > 1
    return made


def contents(collection, as_of=None, **asked):
    answer = collection.snapshot(as_of, timeout_s=0, **asked).read_all().to_pylist()
    assert all(row["_diff"] == 1 for row in answer)
    return {row["id"]: row["v"] for row in answer}


def expected(time):
    return {key: value_at(key, time) for key in range(KEYS)}


def check(collection, first=0, last=TIMES - 1):
    """Snapshots at all times, and changes between some."""
    for time in range(first, last + 1):
        assert contents(collection, time) == expected(time), time
    for after in range(first, last, 7):
        for through in range(after + 1, last + 1, 5):
            rows = collection.changes(after, through).read_all().to_pylist()
            new, old = expected(through).items(), expected(after).items()
            want = {(*row, 1) for row in new - old} | {(*row, -1) for row in old - new}
            assert {(row["id"], row["v"], row["_diff"]) for row in rows} == want, (after, through)

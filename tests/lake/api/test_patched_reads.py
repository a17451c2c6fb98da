"""Random histories whose snapshots are a base, patched with few changes, against plain counts."""

import os
import uuid
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from shards import Place

import inside
import tidelake
from clocks import SetClock
from tidelake.config import Config
from tidelake.shard.runs import read
from tidelake.testing.oracle import canonical

SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string()), ("x", pa.float64())])
# A handful of rows is a base of several row groups, and no write merges.
CONFIG = Config(
    fold_rows=256, row_group_rows=8, merge_chunk_rows=16, inline_part_bytes=0, merge_budget_s=0, slice_rows=16
)


@pytest.fixture
def patches(monkeypatch):
    """The reads that were patched, which are those where a merge would cost as little, too."""
    found, before = [], read._patched

    def noted(*given, **more):
        found.append((yield from before(*given, **more)))
        return found[-1]

    monkeypatch.setattr(read, "_PATCHED_SHARE", 1)
    monkeypatch.setattr(read, "_patched", noted)
    return found


def contents(table):
    """Row -> multiplicity; a row stands once, none with 0, and all in order of their keys."""
    *columns, diff = (table[name].to_pylist() for name in [*table.column_names[:-2], "_diff"])
    rows = [tuple(map(canonical, row)) for row in zip(*columns, strict=True)]
    counts = Counter(dict(zip(rows, diff, strict=True)))
    assert len(counts) == len(rows) and 0 not in counts.values()
    ids = [(row[0] is None, row[0] or 0) for row in rows]
    assert ids == sorted(ids)
    return counts


class History:
    """A collection, and what its contents are after each write."""

    def __init__(self, rng, key):
        self.rng = rng
        self.c = tidelake.open(f"memory://{uuid.uuid4().hex}", config=CONFIG).create("c", SCHEMA, key=key)
        self.now, self.then = Counter(), []

    def row(self):
        rng = self.rng
        id_ = None if rng.random() < 0.05 and self.nulls else int(rng.integers(0, 40))
        return id_, [None, "a", "b"][rng.integers(3)], [None, float("nan"), 0.0, 1.5][rng.integers(4)]

    nulls = False

    def write(self, rows):
        """Append rows with their diffs; all at one time."""
        columns = list(zip(*(row for row, _ in rows), strict=True))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.c.schema, strict=True)]
        table = pa.table([*arrays, pa.array([diff for _, diff in rows])], [*self.c.schema.names, "_diff"])
        self.c.append(table)
        for row, diff in rows:
            self.now[tuple(map(canonical, row))] += diff
        self.now = Counter({row: diff for row, diff in self.now.items() if diff})
        self.then.append(Counter(self.now))

    def change(self, wide=()):
        """Take a few rows back, in part, whole or more than whole, and add others."""
        there = sorted(self.now, key=repr)
        some = [there[i] for i in self.rng.integers(0, len(there), 3)] if there else []
        back = [(tuple(map(plain, row)), -int(self.rng.integers(1, 4))) for row in some]
        self.write([*back, *(((*self.row(), *wide), int(self.rng.integers(1, 3))) for _ in range(3))])

    def check(self):
        for time, expected in enumerate(self.then):
            assert contents(self.c.snapshot(time).read_all()) == expected
        last = len(self.then) - 1
        some = Counter({row: diff for row, diff in self.then[-1].items() if row[1] == canonical("a")})
        assert contents(self.c.snapshot(last, where="s = 'a'").read_all()) == some
        ids = self.c.snapshot(last, columns=["s"]).read_all()
        assert sum(ids["_diff"].to_pylist()) == sum(self.then[-1].values())
        changed = self.then[-1].copy()
        changed.subtract(self.then[last // 2])
        expected = Counter({row: diff for row, diff in changed.items() if diff})
        assert contents(self.c.changes(last // 2, last).read_all()) == expected


def plain(value):
    """A value of which `canonical` made another one."""
    return float("nan") if canonical(float("nan")) == value else value


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("key", [["id"], ["id", "s"]])
def test_patched_snapshots_are_those_of_the_oracle(patches, nulls, key):
    rng = np.random.default_rng(int(os.environ["TIDELAKE_TEST_SEED"]))
    history = History(rng, key)
    history.nulls = nulls
    history.write([(history.row(), int(rng.integers(1, 4))) for _ in range(60)])
    for _ in range(4):
        history.change()
    patches.clear()
    history.check()
    assert any(patches)
    history.c.maintain()
    assert len(history.c.state().bases)
    history.change()
    patches.clear()
    history.check()
    assert any(patches)
    gone = next(iter(sorted((row for row in history.now if row[0] is not None), key=repr)))[0]
    if key == ["id"]:
        history.c.erase([gone], reason="a test")
        history.c.maintain()
        left = [Counter({r: d for r, d in then.items() if r[0] != gone}) for then in history.then]
        history.then, history.now = left, Counter(left[-1])
        history.change()
        history.check()
    history.c.evolve(pa.schema([*history.c.schema, pa.field("z", pa.int64())]))
    history.then = [Counter({(*row, canonical(None)): d for row, d in then.items()}) for then in history.then]
    history.now = Counter(history.then[-1])
    history.change(wide=(7,))
    history.check()


def test_a_base_that_is_taken_away_is_not_patched(patches):
    # Changes are the difference of two snapshots where the updates between are more.
    many = [((n, "a", 0.0), 1) for n in range(60)]
    gone = [(row, -diff) for row, diff in many]
    history = History(np.random.default_rng(1), ["id"])
    for rows in (many, gone, many, gone, many, gone, many[:5]):
        history.write(rows)
    history.c.maintain()
    expected = Counter({row: -diff for row, diff in history.then[0].items() if row not in history.then[-1]})
    assert contents(history.c.changes(0, 6).read_all()) == expected


def test_a_base_in_the_state_is_patched(patches):
    config = replace(CONFIG, inline_part_bytes=4096)
    c = tidelake.open(f"memory://{uuid.uuid4().hex}", config=config).create("c", {"id": "int64"}, key=["id"])
    c.append({"id": list(range(20))}, time=0)
    c.append({"id": [3, 20], "_diff": [-1, 1]}, time=1)
    assert c.snapshot().read_all()["id"].to_pylist() == [n for n in range(21) if n != 3]
    assert any(patches)


@pytest.mark.parametrize(
    ("key", "is_patched"), [(["id"], True), (["s"], True), (["s", "id"], False), (["id", "s"], True)]
)
def test_a_third_as_many_changes_are_put_in_where_the_first_column_tells_rows_apart(
    key, is_patched, patches, monkeypatch
):
    monkeypatch.setattr(read, "_PATCHED_SHARE", 8)
    c = tidelake.open(f"memory://{uuid.uuid4().hex}", config=CONFIG).create("c", SCHEMA, key=key)
    rows = pa.table({"id": range(60), "s": [f"text {n}" for n in range(60)], "x": [0.0] * 60})
    c.append(rows)
    some = rows.take(list(range(0, 60, 6)))
    c.upsert(some.set_column(2, "x", [[1.5] * 10]))
    found = c.to_arrow().sort_by("id")
    assert found["id"].to_pylist() == list(range(60))
    assert found["x"].to_pylist() == [0.0 if n % 6 else 1.5 for n in range(60)]
    assert patches == [True] * is_patched


def test_changes_in_the_state_are_put_into_a_stored_base(patches):
    config = replace(CONFIG, inline_part_bytes=1024)
    c = tidelake.open(f"memory://{uuid.uuid4().hex}", config=config).create("c", {"id": "int64"}, key=["id"])
    c.append({"id": list(range(0, 1200, 3))}, time=0)
    # Of one schema, they are read as one, in the order of their times.
    gone = [900, 600, 3, 300]
    for time, id_ in enumerate(gone, 1):
        c.append({"id": [id_, id_ + 1], "_diff": [-1, 1]}, time=time)
    assert [part.inline is None for part in inside.shard(c).version().state.parts()] == [True] + [False] * 4
    expected = sorted({*range(0, 1200, 3), *(id_ + 1 for id_ in gone)} - {*gone})
    assert c.snapshot().read_all()["id"].to_pylist() == expected
    assert any(patches)


def upserted(reads, *, budget_s=0.001):
    """The bases of a collection after nine times an upsert of 15 of 300 keys and some reads; and it."""
    config = replace(CONFIG, merge_budget_s=budget_s, slice_rows=30, part_target_bytes=16384)
    c = Place().lake(config=config, clock=SetClock()).create("c", {"id": "int64", "v": "int64"}, key=["id"])
    c.append({"id": list(range(300)), "v": [0] * 300}, time=0)
    for time in range(1, 10):
        ids = [(time * 31 + n * 7) % 300 for n in range(15)]
        c.upsert({"id": ids, "v": [time] * 15}, time=time)
        reads(c, time)
    return [sum(run.rows for run in base.runs) for base in c.state().bases], c


@pytest.mark.promise(
    "A base is due sooner where reads pay for it, and costs nothing where nothing reads",
    rule="`due_by_reads`, `rows_merged`",
    also=["state/test_bases.py::test_a_base_is_due_once_reads_have_merged_as_many_rows_as_making_it_reads"],
)
@pytest.mark.parametrize("budget_s", [0.001, 0.0002])
def test_reads_of_the_newest_rows_pay_for_a_base(budget_s):
    claimed = []

    def newest(c, _time):
        claimed.append(len(c.state().claims))
        expected = c.lookup({"id": list(range(300))}).select(["id", "v"])
        assert c.snapshot().read_all().select(["id", "v"]) == expected

    bases, c = upserted(newest, budget_s=budget_s)
    # In one piece or in several: it is kept, though it has more than half of the rows that it was made of.
    assert bases == [300] and inside.shard(c).env.recorder.counts["base.made"] == 1
    assert any(claimed) == (budget_s < 0.001)
    for time in range(10):
        assert c.snapshot(time).read_all().num_rows == 300


@pytest.mark.parametrize(
    "reads",
    [
        lambda c, time: None,
        lambda c, time: c.snapshot(max(0, time - 3)).read_all(),
        # One that is given up, and many that are patched.
        lambda c, time: next(iter(c.snapshot())),
        lambda c, time: [c.snapshot().read_all() for _ in range(20 if time == 1 else 0)],
        lambda c, time: c.changes(time - 1, time).read_all(),
    ],
)
def test_writes_and_reads_that_no_base_would_serve_pay_for_none(reads):
    assert upserted(reads)[0] == []

"""Joins and counts kept by changes are, at every step, what they are when computed anew."""

import random
from collections import Counter

import pyarrow as pa
import pytest

import tidelake
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.follow.incremental import count_changes, join_changes
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.testing.oracle import canonical

LEFT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("a", pa.float64())])
RIGHT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("b", pa.string())])
COUNTS = pa.schema([("k", pa.string()), ("count", pa.int64())])
KEYS = [("x", 1), ("x", 2), ("", None), (None, 1), (None, None)]
NAN = float("nan")


def drawn(rng, schema, values, held):
    """Random changes of a multiset: mostly new rows, and some present rows that go."""
    changes = []
    for _ in range(rng.choice((0, 1, 4, 20))):
        if held and rng.random() < 0.45:
            row = rng.choice(sorted(held, key=str))
            diff = -rng.choice((1, held[row]))
        else:
            row, diff = (*rng.choice(KEYS), rng.choice(values)), rng.choice((1, 1, 3))
        changes.append((row, diff))
        held[row] += diff
        if not held[row]:
            del held[row]
    columns = [pa.array([row[i] for row, _ in changes], field.type) for i, field in enumerate(schema)]
    columns.append(pa.array([diff for _, diff in changes], pa.int64()))
    return pa.table(dict(zip([*schema.names, "_diff"], columns, strict=True)))


def summed(total, table, time):
    assert set(table.column("_time").to_pylist()) <= {time}
    for row in zip(*(column.to_pylist() for column in table.drop_columns(["_time"]).columns), strict=True):
        key = tuple(canonical(value) for value in row[:-1])
        total[key] += row[-1]
        if not total[key]:
            del total[key]


@pytest.mark.promise(
    "Joins and counts that are maintained from changes equal those computed from the contents, "
    "retractions included",
    rule="`arrangement/follow/incremental.py`",
    also=[
        "::test_a_count_kept_by_changes_is_the_count_of_what_is_there",
        "::test_a_result_in_a_collection_is_right_at_every_time",
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_join_kept_by_changes_is_the_join_of_what_is_there(seed, tmp_path):
    rng = random.Random(seed)
    lefts, rights, kept = Counter(), Counter(), Counter()
    with (
        Arrangement.create(LEFT, key=["k", "n"], directory=tmp_path) as left,
        Arrangement.create(RIGHT, key=["k", "n"], directory=tmp_path) as right,
    ):
        for time in range(25):
            came = drawn(rng, LEFT, [0.0, 1.5, NAN, None], lefts)
            other = drawn(rng, RIGHT, ["u", "v", None], rights)
            summed(kept, join_changes(left, right, came, other, time=time), time)
            anew = Counter()
            for (k, n, a), many in lefts.items():
                for (k_, n_, b), more in rights.items():
                    if (k, n) == (k_, n_):
                        anew[k, n, canonical(a), b] += many * more
            assert kept == Counter({row: many for row, many in anew.items() if many})
            if time % 7 == 3:
                left.advance_since(time)
                left.merge()


@pytest.mark.parametrize("seed", range(4))
def test_a_count_kept_by_changes_is_the_count_of_what_is_there(seed, tmp_path):
    rng = random.Random(seed)
    rows, kept = Counter(), Counter()
    with Arrangement.create(COUNTS, key=["k"], directory=tmp_path) as counts:
        for time in range(40):
            changes = drawn(rng, RIGHT, ["u", "v", None], rows)
            corrections = count_changes(counts, changes, time=time)
            assert set(corrections.column("_diff").to_pylist()) <= {-1, 1}
            summed(kept, corrections, time)
            anew = Counter()
            for (k, _, _), many in rows.items():
                anew[k] += many
            assert kept == Counter({(k, many): 1 for k, many in anew.items() if many})


def test_a_result_in_a_collection_is_right_at_every_time(tmp_path):
    """What docs/arrangement.md shows, with a crash after each step: the next process goes on by the upper."""
    rng = random.Random(5)
    lefts, rights = Counter(), Counter()
    expected = {}
    with tidelake.open(tmp_path / "lake") as lake:
        a, b = lake.create("a", LEFT, key=["k", "n"]), lake.create("b", RIGHT, key=["k", "n"])
        joined = lake.create("joined", pa.schema([*LEFT, RIGHT.field("b")]), key=["k", "n"])
        for time in range(8):
            for collection, schema, values, held in (
                (a, LEFT, [0.5, None], lefts),
                (b, RIGHT, ["u", None], rights),
            ):
                table = drawn(rng, schema, values, held)
                times = pa.array([time] * table.num_rows, pa.int64())
                collection.append(table.append_column("_time", times), upper=time + 1)
            expected[time] = Counter(
                {
                    (*key, x, y): lefts[*key, x] * rights[*key, y]
                    for *key, x in lefts
                    for *key_, y in rights
                    if key == key_
                }
            )
            done = joined.upper.elements[0]
            if rng.random() < 0.5 and time < 7:
                continue
            with (
                Arrangement.create(LEFT, key=["k", "n"], directory=tmp_path) as left,
                Arrangement.create(RIGHT, key=["k", "n"], directory=tmp_path) as right,
            ):
                if done:
                    left.append(a.snapshot(done - 1).read_all())
                    right.append(b.snapshot(done - 1).read_all())
                for at in range(done, time + 1):
                    # What came at the first time is what is there then.
                    changes = [(c.changes(at - 1, at) if at else c.snapshot(at)).read_all() for c in (a, b)]
                    joined.append(join_changes(left, right, *changes, time=at), upper=at + 1)
        for time, rows in expected.items():
            found = joined.snapshot(time).read_all().to_pylist()
            assert {(r["k"], r["n"], r["a"], r["b"]): r["_diff"] for r in found} == rows


def test_what_cannot_be_joined_or_counted_is_refused(tmp_path):
    with (
        Arrangement.create(LEFT, key=["k", "n"], directory=tmp_path) as left,
        Arrangement.create(LEFT, key=["k"], directory=tmp_path) as other,
        Arrangement.create(RIGHT, key=["k", "n"], directory=tmp_path) as right,
    ):
        nothing = pa.table({"k": pa.array([], pa.string())})
        with pytest.raises(UsageError, match="same key columns"):
            join_changes(left, other, nothing, nothing, time=0)
        with pytest.raises(UsageError, match="'a'"):
            join_changes(left, left, nothing, nothing, time=0)
        with pytest.raises(InvalidUpdates, match="missing column 'n'"):
            join_changes(left, right, nothing, nothing, time=0)
        with pytest.raises(UsageError, match="one value column"):
            count_changes(left, nothing, time=0)
        huge = pa.table({"k": ["x"], "n": [1], "a": [1.0], "_diff": [2**62]})
        join_changes(left, right, huge, drawn(random.Random(0), RIGHT, ["u"], Counter()).slice(0, 0), time=0)
        twice = pa.table({"k": ["x"], "n": [1], "b": ["u"], "_diff": [4]})
        with pytest.raises(InvalidUpdates, match="int64"):
            join_changes(left, right, huge.slice(0, 0), twice, time=1)
        assert len(right) == 0

"""Reads with `columns` and `where`: the rows and columns asked for, and no more read than that."""

import math
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from lakes import SMALL_PARTS

import tidelake
from tidelake.config import Config
from tidelake.data.query.filter import RowFilter
from tidelake.env import Counters, Env
from tidelake.errors import UsageError
from tidelake.lake.api.lake import open_lake
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes, Updates
from tidelake.model.selection import ReadOptions
from tidelake.shard.runs import plan
from tiers import some
from where_reference import FIELDS, condition, random_rows

SCHEMA = pa.schema([field for field, _ in FIELDS])
KEY = ["k", "s"]
CONFIGS = {
    "inline": Config(),
    "stored": replace(SMALL_PARTS, stats_budget_bytes=200),
    "folded": Config(inline_part_bytes=0, row_group_rows=4, merge_budget_s=0.0),
}


@pytest.fixture(params=some(sorted(CONFIGS), 3))
def collection(request, tmp_path):
    opened = tidelake.open(tmp_path / "lake", config=CONFIGS[request.param])
    yield opened.create("c", SCHEMA, key=KEY)
    opened.close()


def fill(c, rng, times=4):
    for _ in range(times):
        table = random_rows(rng, FIELDS, 40)
        # Rows come again and go, so that some of them sum to nothing and others to more than one.
        table = pa.concat_tables([table, table.slice(0, 10)])
        diffs = pa.array([rng.choice([-1, 1, 1, 2]) for _ in range(table.num_rows)], pa.int64())
        c.append(table.append_column("_diff", diffs))


def answers(c, **asked):
    """The same reads by every way in: what is asked for, then the rows."""
    yield c.snapshot(2, **asked).read_all()
    yield c.changes(1, 3, **asked).read_all()
    yield c.updates(2, 4, **asked).read_all()
    for query in (AsOf(2), Changes(1, 3), Updates(Frontier.of(2), Frontier.of(4))):
        planned = c.distributed.plan(query, 3, ReadOptions(**asked))
        batches = [batch for task in planned.tasks for batch in plan.run_task(task)]
        yield pa.Table.from_batches(batches, planned.schema)
    with c.reader("test") as reader:
        yield reader.snapshot(2, **asked).read_all()
        yield reader.changes(1, 3, **asked).read_all()
        yield reader.updates(2, 4, **asked).read_all()


def check(c, rng, fields):
    sql, test = condition(rng, fields)
    sql = sql.replace("TIMESTAMP_NTZ", "TIMESTAMP")
    chosen = rng.choice([None, rng.sample(c.schema.names, rng.randrange(len(c.schema.names)))])
    names = [*(c.schema.names if chosen is None else chosen), "_time", "_diff"]
    for whole, part in zip(answers(c), answers(c, where=sql, columns=chosen), strict=True):
        expected = [{n: row[n] for n in names} for row in whole.to_pylist() if test(row) is True]
        assert part.schema.names == names
        assert str(part.to_pylist()) == str(expected), sql


@pytest.mark.promise(
    "A read with `where` and `columns` is the whole read, narrowed, through every interface, also "
    "under older schemas",
    rule="`shard/runs/scope.py`, `shard/runs/read.py`",
    also=["::test_rows_of_older_schemas_are_asked_as_they_are_read"],
)
@pytest.mark.parametrize("seed", some(range(4), 4, full=2))
def test_a_read_gives_the_rows_and_columns_that_are_asked_for(collection, seed, monkeypatch):
    monkeypatch.setattr(plan, "_TASK_BYTES_MIN", 1)
    rng = random.Random(seed)
    fill(collection, rng)
    for _ in range(2):
        check(collection, rng, FIELDS)
    # One run of one time: nothing is summed any more, and only some columns are decoded.
    collection.advance_since(1)
    collection.merge()
    for _ in range(2):
        check(collection, rng, FIELDS)


@pytest.mark.parametrize("seed", some(range(6), 6, full=3))
def test_rows_of_older_schemas_are_asked_as_they_are_read(collection, seed):
    rng = random.Random(seed)
    fill(collection, rng, 2)
    wider = {"small one": pa.int32(), "d": pa.decimal128(20, 2), "f4": pa.float64()}
    fields = [(f.with_type(wider.get(f.name, f.type)), values) for f, values in FIELDS if f.name != "f"]
    collection.evolve(pa.schema([field for field, _ in fields]), drop=["f"])
    # Another column of a name that was there before: it is null in the old rows.
    fields.insert(5, (pa.field("f", pa.float32()), [1.0, math.nan, None]))
    collection.evolve(pa.schema([field for field, _ in fields]))
    for _ in range(2):
        collection.append(random_rows(rng, fields, 30))
    for _ in range(3):
        check(collection, rng, fields)


def test_a_column_that_was_dropped_and_came_back_is_null_in_old_rows(collection):
    collection.append(full(k=[1, 2], b=[True, True]))
    without = pa.schema([field for field in SCHEMA if field.name != "b"])
    collection.evolve(without, drop=["b"])
    collection.evolve(pa.schema([*without, ("b", pa.bool_())]))
    assert collection.snapshot(0, where="b").read_all().num_rows == 0
    assert collection.snapshot(0, where="b IS NULL").read_all().num_rows == 2


def test_a_column_that_was_dropped_is_null_also_under_its_own_schema(collection):
    collection.append(full(k=[1, 2], b=[True, True]))
    collection.evolve(pa.schema([field for field in SCHEMA if field.name != "b"]), drop=["b"])
    assert collection.snapshot(0, schema_id=0, where="b IS NULL", columns=["b"]).read_all().num_rows == 2
    assert collection.snapshot(0, schema_id=0, where="b").read_all().num_rows == 0


def test_rows_of_several_times_are_summed_before_columns_are_chosen(collection):
    times = pa.array([0, 0, 1, 1], pa.int64())
    collection.append(full(k=[1, 2, 1, 2]).append_column("_time", times))
    found = collection.snapshot(columns=["k"]).read_all()
    assert found["k"].to_pylist() == [1, 2] and found["_diff"].to_pylist() == [2, 2]


@pytest.mark.promise(
    "A run is given as it is decoded only if no two of its rows have to be summed, also after its "
    "times were rewritten",
    rule="`_consolidated` in `shard/runs/read.py`",
    also=["::test_rows_of_several_times_are_summed_before_columns_are_chosen"],
)
@pytest.mark.parametrize("columns", [None, ["k"]])
def test_updates_that_a_rewrite_made_equal_are_summed(columns, collection):
    with collection.builder() as builder:
        builder.add(full(k=[1, 2, 1]).append_column("_time", pa.array([0, 0, 1])))
        batch = builder.finish(Frontier.of(2))
    batch.rewrite_times(Frontier.of(4), Frontier.of(6))
    collection.distributed.append_batches([batch], lower=0, upper=6)
    found = collection.updates(0, 6, columns=columns).read_all()
    assert found["k"].to_pylist() == [1, 2] and found["_time"].to_pylist() == [4, 4]
    assert found["_diff"].to_pylist() == [2, 1]


def test_unsigned_numbers_that_became_signed_are_found(tmp_path):
    lake = tidelake.open(tmp_path / "lake", config=CONFIGS["stored"])
    schema = pa.schema([("k", pa.int64()), ("x", pa.uint32())])
    c = lake.create("c", schema, key=["k"])
    c.append(pa.table({"k": [1, 2], "x": [5, 7]}, schema))
    c.evolve(pa.schema([("k", pa.int64()), ("x", pa.int64())]))
    c.append(pa.table({"k": [3], "x": [-1]}))
    assert c.snapshot(where="x < 6", columns=["k"]).read_all()["k"].to_pylist() == [1, 3]


def full(**columns):
    n = len(next(iter(columns.values())))
    arrays = [pa.array(columns.get(field.name, [None] * n), field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def test_rows_that_are_equal_in_the_columns_stay_apart(collection):
    collection.append(full(k=[1, 1, 2], s=["a", "b", "a"]))
    found = collection.snapshot(columns=["k"]).read_all()
    assert found.schema.names == ["k", "_time", "_diff"]
    assert found["k"].to_pylist() == [1, 1, 2] and found["_diff"].to_pylist() == [1, 1, 1]
    assert collection.snapshot(columns=[]).read_all().num_rows == 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"columns": "k"}, "not a list of column names"),
        ({"columns": [1]}, "not a list of column names"),
        ({"columns": ["nope"]}, "no column named 'nope'"),
        ({"columns": ["_time"]}, "always given"),
        ({"columns": ["k", "k"]}, "appears twice"),
        ({"where": 7}, "not SQL text"),
        ({"where": "k ="}, "cannot be parsed"),
        ({"where": "k = 'a'"}, "'k' is a int64"),
    ],
)
def test_what_cannot_be_asked_is_refused(collection, asked, message):
    collection.append(full(k=[1]))
    with collection.reader("test") as reader:
        for read in (
            lambda: collection.snapshot(0, **asked),
            lambda: collection.changes(0, 0, **asked),
            lambda: collection.updates(0, 1, **asked),
            lambda: collection.distributed.plan(None, 1, ReadOptions(**asked)),
            lambda: reader.snapshot(0, **asked),
        ):
            with pytest.raises(UsageError, match=message):
                read()


ROWS, GROUP = 40_000, 1000


@pytest.fixture(scope="module")
def sorted_rows(tmp_path_factory):
    """Forty row groups in several parts, in order of (region, id); `at` ascends with the id, `v` does not."""
    config = Config(row_group_rows=GROUP, part_target_bytes=256 * 1024, bound_bytes=12)
    counted = Counters()
    lake = open_lake(tmp_path_factory.mktemp("where") / "lake", config=config, env=Env(recorder=counted))
    at, pad = pa.timestamp("us"), pa.binary(64)
    types = [("region", pa.string()), ("id", pa.int64()), ("at", at), ("v", pa.int64()), ("pad", pad)]
    schema = pa.schema(types)
    c = lake.create("c", schema, key=["region", "id"])
    ids = list(range(ROWS))
    rng = random.Random(0)
    rng.shuffle(values := list(range(ROWS)))
    columns = [["north" if i < ROWS // 2 else "south" for i in ids], ids, [i * 10**6 for i in ids], values]
    columns.append([rng.randbytes(64) for _ in ids])
    arrays = [pa.array(x, field.type) for x, field in zip(columns, schema, strict=True)]
    c.append(pa.Table.from_arrays(arrays, schema=schema))
    assert sum(len(list(m.batch.parts())) for m in c.state().spine) > 4
    yield counted.counts, c
    lake.close()


def cost(counts, read):
    """Rows found; parts opened and bytes read for them."""
    before = dict(counts)
    rows = read()
    return rows, *(counts[n] - before.get(n, 0) for n in ("blob.open", "blob.get.bytes"))


@pytest.mark.parametrize(
    ("where", "rows", "groups"),
    [
        ("region = 'south' AND id = 30000", 1, 2),
        ("region = 'south' AND id BETWEEN 30000 AND 30999", 1000, 3),
        ("region IN ('north', 'south') AND id = 123", 1, 2),
        ("id < 10", 10, 1),
        ("at >= TIMESTAMP '1970-01-01 11:06:30'", 10, 1),
        ("region LIKE 'so%' AND at < TIMESTAMP '1970-01-01 05:33:30'", 10, 2),
        ("region = 'west'", 0, 0),
        ("v < 0", 0, 0),
        ("at IS NULL", 0, 0),
        ("id = 1 AND id = 2", 0, 0),
    ],
)
def test_a_selective_read_costs_the_row_groups_that_hold_its_rows(sorted_rows, where, rows, groups):
    counts, c = sorted_rows
    _, parts, size = cost(counts, lambda: c.snapshot().read_all())
    assert parts > 4
    found, opened, read = cost(counts, lambda: c.snapshot(where=where).read_all().num_rows)
    assert found == rows
    assert opened <= groups
    # A row group is a fortieth of all; the end of each part that is opened is read for its footer.
    assert read <= (groups / 40) * size * 1.25 + opened * 17_000
    planned = c.distributed.plan(None, 8, ReadOptions(where=where))
    assert sum(b.num_rows for task in planned.tasks for b in plan.run_task(task)) == rows


def test_tasks_of_a_selective_plan_share_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_TASK_BYTES_MIN", 1)
    config = Config(row_group_rows=4, inline_part_bytes=0)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", pa.schema([("k", pa.int64())]), key=["k"])
        c.append(pa.table({"k": list(range(400))}))
        planned = c.distributed.plan(None, 4, ReadOptions(where="k >= 300"))
        counts = [sum(b.num_rows for b in plan.run_task(task)) for task in planned.tasks]
    # One part: cut among the keys asked for, not among all of its keys.
    assert sum(counts) == 100 and max(counts) <= 40


def test_only_the_columns_that_are_needed_are_decoded(sorted_rows, monkeypatch):
    _, c = sorted_rows
    seen = []
    mask = RowFilter.mask
    monkeypatch.setattr(
        RowFilter, "mask", lambda self, batch: seen.append(batch.schema.names) or mask(self, batch)
    )
    found = c.snapshot(columns=["v"], where="v >= 0").read_all()
    assert found.num_rows == ROWS and found.schema.names == ["v", "_time", "_diff"]
    # All rows have one time, and 1 as their diff, so neither is decoded.
    assert {tuple(names) for names in seen} == {("v",)}

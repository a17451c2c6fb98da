"""Schemas that change: what is read afterwards, who may still write, and what is refused."""

import json
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import inside
import tidelake
from tables import SCHEMA, at
from tidelake.config import Config
from tidelake.errors import CollectionDropped, IncompatibleSchema, InvalidUpdates, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.shard.runs import plan
from tidelake.shard.upkeep.compactor import Compactor, Workers
from tidelake.shard.writing.builder import Uploader
from tidelake.state.core.codec import decode_record
from tidelake.state.life.dropping import drop_shard
from tidelake.state.spine.merging import Policy, everything
from tidelake.state.upkeep.maintenance import collapse_levels

# Parts of a few rows in objects, and merges that stream.
STREAMED = {"part_target_bytes": 1024, "row_group_rows": 2, "merge_chunk_rows": 16, "fold_rows": 1}
STORED = Config(**STREAMED, inline_part_bytes=0)
SMALL = Config(merge_budget_s=0.0)
ID = pa.field("id", pa.int64(), nullable=False)


def of(*fields):
    return pa.schema([ID, *fields])


V, W = pa.field("v", pa.string()), pa.field("w", pa.int32())


@pytest.fixture(params=[STORED, SMALL], ids=["stored", "inline"])
def lake(request, tmp_path):
    opened = tidelake.open(tmp_path / "lake", config=request.param)
    yield opened
    opened.close()


@pytest.fixture
def collection(lake):
    return lake.create("c", SCHEMA, key=["id"])


def rows(collection, as_of=None, **kwargs):
    """The rows, as tuples with their diff, in the order of the answer."""
    answer = collection.snapshot(as_of, timeout_s=0, **kwargs).read_all()
    return [tuple(row.values()) for row in answer.drop_columns(list(collection.domain.columns)).to_pylist()]


def schema_ids(collection):
    return {part.schema_id for member in collection.state().spine for part in member.batch.parts()}


def test_a_new_column_is_null_in_old_rows_wherever_it_stands(collection):
    collection.append(at(0, 1, 2, v="a"))
    assert collection.evolve(of(W, V)) == 1
    assert collection.schema == of(W, V)
    collection.append(pa.table({"id": [2, 3], "w": pa.array([7, 8], pa.int32()), "v": ["a", "b"]}))
    assert rows(collection) == [(1, None, "a", 1), (2, 7, "a", 1), (2, None, "a", 1), (3, 8, "b", 1)]
    # At any time under the newest schema.
    assert rows(collection, 0) == [(1, None, "a", 1), (2, None, "a", 1)]
    assert collection.snapshot(0).schema == collection.update_schema


@pytest.mark.promise(
    "Rows that only a dropped column told apart are summed, and may cancel", rule="`shard/runs/read.py`"
)
def test_the_rows_that_a_dropped_column_told_apart_are_added_up_or_cancel(collection):
    for time, v, diff in ((0, "a", 1), (1, "b", 2), (2, "c", -2)):
        collection.append(at(time, 1, v=v, diff=diff))
    collection.append(at(3, 2, v="a"))
    collection.append(at(4, 2, v="b", diff=-1))
    collection.evolve(of(), drop=["v"])
    assert rows(collection) == [(1, 1)]
    assert rows(collection, 1) == [(1, 3)] and rows(collection, 3) == [(1, 1), (2, 1)]
    collection.merge()
    assert rows(collection) == [(1, 1)] and schema_ids(collection) == {1}


def test_a_name_that_comes_back_does_not_bring_old_values_back(collection):
    collection.append(at(0, 1, v="a"))
    collection.evolve(of(), drop=["v"])
    collection.append(at(1, 2).drop_columns(["v"]))
    assert collection.evolve(of(V)) == 2
    assert rows(collection) == [(1, None, 1), (2, None, 1)]
    collection.append(at(2, 1, v="new"))
    assert rows(collection) == [(1, "new", 1), (1, None, 1), (2, None, 1)]
    collection.merge()
    assert rows(collection) == [(1, "new", 1), (1, None, 1), (2, None, 1)]
    assert schema_ids(collection) == {2}


@pytest.mark.promise(
    "A merge writes the newest schema, also if it began under an older one",
    rule="`Shard.version_of`, `shard/upkeep/compactor.py`",
    also=["::test_a_merge_that_was_begun_under_an_older_schema_goes_on_under_the_newest"],
)
def test_a_merge_writes_the_newest_schema_also_of_a_single_run(collection):
    collection.append(at(0, *range(40)))
    collection.evolve(of(V, W))
    assert schema_ids(collection) == {0}
    assert collection.merge().applied and schema_ids(collection) == {1}
    assert not collection.merge().applied
    collection.evolve(of(pa.field("v", pa.large_string()), pa.field("w", pa.int64())))
    collection.append(at(1, 3, 50))
    assert schema_ids(collection) == {1, 2}
    collection.merge()
    assert schema_ids(collection) == {2} and len(rows(collection)) == 41


def test_an_equal_schema_writes_nothing(collection):
    seqno = collection.state().seqno
    assert collection.evolve(SCHEMA) == 0
    # A large string is the same type here.
    assert collection.evolve(of(pa.field("v", pa.large_string()))) == 0
    assert collection.state().seqno == seqno


def test_not_null_is_given_up_for_keys_and_values(lake):
    strict = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
    c = lake.create("strict", strict, key=["k"])
    with pytest.raises(InvalidUpdates, match="must not be null"):
        c.append(pa.table({"k": pa.array([None], pa.int64()), "v": [1]}))
    c.append(pa.table({"k": [1], "v": [1]}))
    c.evolve(pa.schema([("k", pa.int64()), ("v", pa.int64())]))
    c.append(pa.table({"k": pa.array([None, 1], pa.int64()), "v": pa.array([1, None], pa.int64())}))
    assert rows(c) == [(1, 1, 1), (1, None, 1), (None, 1, 1)]


REFUSED = [
    (of(pa.field("v", pa.int64())), {}, "column 'v' .* from string to int64: .*add another column"),
    (of(V, pa.field("n", pa.int64(), nullable=False)), {}, "new column 'n': int64 must be nullable"),
    (of(pa.field("v", pa.string(), nullable=False)), {}, "string to string not null.*leave it nullable"),
    (pa.schema([pa.field("id", pa.int32(), nullable=False), V]), {}, "key column 'id' .* int64 to int32"),
    (of(V), {"key": ["id", "v"]}, "column 'v' cannot be added to the key"),
    (of(V), {"key": ["v"]}, "key column 'id' cannot be dropped or become a value"),
    (pa.schema([V]), {"key": ["v"]}, "key column 'id' cannot be dropped"),
    (of(W), {}, r"column 'v' is not in the new schema: add it there, or give drop=\['v'\]"),
    (of(V), {"drop": ["v"]}, "column 'v' is in the new schema and in drop"),
    (of(V, W), {"drop": ["x"]}, "there is no column 'x' to drop"),
]


@pytest.mark.parametrize(("schema", "how", "message"), REFUSED)
def test_what_cannot_be_changed_is_refused_and_nothing_is_written(collection, schema, how, message):
    before = collection.state()
    with pytest.raises(IncompatibleSchema, match=message) as caught:
        collection.evolve(schema, **how)
    assert "\n" not in str(caught.value)
    assert collection.state() == before


@pytest.mark.parametrize(
    ("schema", "how", "message"),
    [
        ("x", {}, "give a pyarrow schema"),
        (of(V), {"key": "id"}, r"write \['id'\]"),
        (of(V), {"key": 3}, "not a list of column names"),
        (of(), {"drop": "v"}, r"drop='v' is not a list of names: write drop=\['name', ...\]"),
        (pa.schema([V]), {}, "no column named 'id'"),
        (of(pa.field("_diff", pa.int64())), {}, "reserved"),
    ],
)
def test_what_is_no_schema_is_refused(collection, schema, how, message):
    with pytest.raises(UsageError, match=message):
        collection.evolve(schema, **how)


def test_the_second_of_two_evolvers_is_checked_against_the_first(lake, collection):
    other = lake.collection("c")
    collection.evolve(of(V, W))
    with pytest.raises(IncompatibleSchema, match=r"'w' is not in the new schema: .*drop=\['w'\]"):
        other.evolve(of(V, pa.field("x", pa.bool_())))
    assert other.schema == of(V, W)
    for _ in range(2):
        assert other.evolve(of(V, pa.field("x", pa.bool_())), drop=["w"]) == 2


@pytest.mark.promise(
    "A handle that was opened before a change goes on reading and writing; only the newest schema "
    "refuses its rows. A table with a dropped column is refused",
    rule="`Write.as_now`, `shard/writing/append.py`",
    also=[
        "::test_a_refusal_by_an_older_schema_is_not_believed",
        "::test_values_of_a_name_that_came_back_are_not_written_into_the_old_column",
        "::test_an_old_writer_and_a_new_reader_in_two_processes",
    ],
)
def test_a_handle_from_before_reads_and_writes_on(lake, collection):
    old = lake.collection("c")
    collection.append(at(0, 1))
    collection.evolve(of(W, V))
    # It has not looked since, and writes what it knows.
    assert old.schema == SCHEMA
    old.compare_and_append(at(1, 2), 1, 2)
    assert rows(old) == rows(collection) == [(1, None, "x", 1), (2, None, "x", 1)]
    # A table of the older shape is taken: what it lacks is null.
    old.append(at(2, 3))
    old.append(pa.table({"v": ["y"], "w": pa.array([5], pa.int32()), "id": [4]}))
    assert rows(collection)[2:] == [(3, None, "x", 1), (4, 5, "y", 1)]


def test_a_refusal_by_an_older_schema_is_not_believed(lake, collection):
    old = lake.collection("c")
    collection.evolve(of(V, W))
    new = pa.table({"id": [1], "v": ["a"], "w": pa.array([1], pa.int32())})
    old.compare_and_append(new.append_column("_time", pa.array([0])), 0, 1)
    assert rows(collection) == [(1, "a", 1, 1)]


@pytest.mark.parametrize("look", [False, True])
def test_a_table_with_a_dropped_column_is_refused_by_a_handle_that_knows_and_by_one_that_does_not(
    lake, collection, look
):
    old = lake.collection("c")
    collection.evolve(of(W), drop=["v"])
    if look:
        old.state()
    for write in (
        lambda: old.append(at(0, 1)),
        lambda: old.compare_and_append(at(0, 1), 0, 1),
        lambda: old.append(at(0, 1), lower=0, upper=1),
        lambda: old.append(at(0, 1).drop_columns(["_time"])),
        lambda: old.writer("w").append(at(0, 1)),
    ):
        with pytest.raises(InvalidUpdates, match=r"column 'v' was dropped .*leave it out"):
            write()
        # What was uploaded under the older schema is not left behind.
        assert not [info.name for info in inside.stores(lake).blobs.list() if info.name.startswith(old.id)]
    assert collection.state().upper.elements == (0,)
    old.append(at(0, 1).drop_columns(["v"]))
    assert rows(collection) == [(1, None, 1)]


def test_values_of_a_name_that_came_back_are_not_written_into_the_old_column(lake, collection):
    old = lake.collection("c")
    collection.evolve(of(), drop=["v"])
    collection.evolve(of(V))
    # It still knows the first column of that name, whose values no read would see.
    old.compare_and_append(at(0, 1, v="seen"), 0, 1)
    assert rows(collection) == [(1, "seen", 1)]


def test_what_was_never_there_is_still_missing_or_unknown(collection):
    collection.evolve(of(V, W))
    with pytest.raises(InvalidUpdates, match="missing column 'v'"):
        collection.append(pa.table({"id": [1]}))
    with pytest.raises(InvalidUpdates, match="unknown column 'z'"):
        collection.append(at(0, 1).append_column("z", pa.array([1])))


@pytest.mark.promise(
    "Batches and uploads that were made under an older schema can be appended later",
    rule="`append`",
    also=["::test_a_batch_of_a_schema_that_a_handle_has_not_seen_is_appended"],
)
def test_batches_and_uploads_from_before_are_appended_later(lake, collection):
    builder = collection.builder(0)
    builder.add(at(0, 1, v="built"))
    sent = collection.builder(0)
    sent.add(at(0, 2, v="sent"))
    data = sent.finish(Frontier.of(1)).to_bytes()
    worker = collection.distributed.uploader().to_bytes()
    other = lake.collection("c")
    other.evolve(of(W, V))
    other.evolve(of(W), drop=["v"])
    batch = builder.finish(Frontier.of(1))
    collection.distributed.append_batches(
        [batch, collection.distributed.batch_from_bytes(data)], lower=0, upper=1
    )
    uploaded = Uploader.from_bytes(worker).upload(at(1, 3, 4, v="up").to_batches())
    other.distributed.append_uploaded([uploaded], lower=1, upper=2)
    assert rows(other) == [(1, None, 1), (2, None, 1), (3, None, 1), (4, None, 1)]
    assert schema_ids(other) == {0}
    other.merge()
    assert schema_ids(other) == {2} and len(rows(other)) == 4


def test_a_batch_of_a_schema_that_a_handle_has_not_seen_is_appended(lake, collection):
    old = lake.collection("c")
    collection.evolve(of(V, W))
    with collection.builder(0) as builder:
        builder.add(pa.table({"id": [1], "v": ["a"], "w": pa.array([9], pa.int32()), "_time": [0]}))
        data = builder.finish(Frontier.of(1)).to_bytes()
    old.distributed.append_batches([old.distributed.batch_from_bytes(data)], lower=0, upper=1)
    assert rows(old) == [(1, "a", 9, 1)]


@pytest.mark.promise(
    "A read under an older schema gives the same rows before and after merges",
    rule="`ShardSpec.read_as`, `Projection`",
)
def test_the_schema_as_of_a_state_can_be_asked_for_and_read_under(collection):
    collection.append(at(0, 1, 2, v="a"))
    before = collection.state().seqno
    collection.evolve(of(V, W))
    middle = collection.state().seqno
    collection.append(pa.table({"id": [1, 1], "v": ["a", "b"], "w": pa.array([1, 2], pa.int32())}))
    collection.evolve(of(W), drop=["v"])
    last = collection.state().seqno
    asked = [collection.schema_at(n) for n in (0, before, middle, last - 1, last)]
    assert asked == [SCHEMA, SCHEMA, of(V, W), of(V, W), of(W)]
    with pytest.raises(UsageError, match="none of the states"):
        collection.schema_at(last + 1)
    # What was added since is left out; what was dropped since is null, merged or not.
    for _ in range(2):
        assert rows(collection, schema_id=0) == [(1, None, 3), (2, None, 1)]
        assert rows(collection, schema_id=1) == [
            (1, None, 1, 1),
            (1, None, 2, 1),
            (1, None, None, 1),
            (2, None, None, 1),
        ]
        assert collection.snapshot(schema_id=0).schema.names == ["id", "v", "_time", "_diff"]
        collection.merge()
    with pytest.raises(UsageError, match="schema_id=7 is none of the schemas 0 to 2"):
        collection.snapshot(schema_id=7)
    with pytest.raises(UsageError, match=r"schema_id=\[\] is none"):
        collection.snapshot(schema_id=[])


def test_a_schema_that_todays_rows_do_not_fit_cannot_be_read_under(lake):
    c = lake.create("n", of(W), key=["id"])
    c.append(pa.table({"id": [1], "w": pa.array([1], pa.int32())}))
    c.evolve(of(pa.field("w", pa.int64())))
    with pytest.raises(IncompatibleSchema, match="'w' is int32 there, and was widened to int64 since"):
        c.snapshot(schema_id=0)


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        (pa.int8(), pa.int64(), [-128, -1, 0, 1, 127]),
        (pa.uint16(), pa.uint64(), [0, 1, 255, 256, 65535]),
        (pa.float32(), pa.float64(), [float("-inf"), -1.5, 0.0, 0.5, float("inf")]),
        (pa.decimal128(9, 2), pa.decimal256(60, 2), [-1, 0, 1, 5, 9]),
    ],
    ids=str,
)
def test_key_ranges_hold_across_a_key_that_was_widened(lake, monkeypatch, old, new, values):
    monkeypatch.setattr(plan, "_TASK_BYTES_MIN", 1)
    many = pa.array(values * 40, old if pa.types.is_decimal(old) else None).cast(old)
    c = lake.create("keys", pa.schema([("k", old), ("n", pa.int64())]), key=["k"])
    c.append(pa.table({"k": many, "n": list(range(len(many)))}))
    c.evolve(pa.schema([("k", new), ("n", pa.int64())]))
    # Another first key, so that there is one to cut at.
    others = many.filter(pc.not_equal(many, many[0])).cast(new)
    c.append(pa.table({"k": others, "n": list(range(1000, 1000 + len(others)))}))
    whole = c.snapshot().read_all()
    for parallelism in (2, 5):
        planned = c.distributed.plan(AsOf(1), parallelism)
        pieces = [pa.Table.from_batches(plan.run_task(task), planned.schema) for task in planned.tasks]
        assert pa.concat_tables(pieces).equals(whole)
    assert len(whole) == len(many) + len(others) and whole.schema.field("k").type == new
    if c.state().spine.totals.inline_bytes == 0:
        assert len(planned.tasks) > 1


@pytest.mark.full
def test_a_merge_that_was_begun_under_an_older_schema_goes_on_under_the_newest(tmp_path):
    config = replace(STORED, merge_claim_rows=1, merge_claim_s=0.0, merge_budget_s=0.0)
    with tidelake.open(tmp_path / "claimed", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for time in range(3):
            table = pa.concat_tables(at(time, *range(60), v=v * 30) for v in "abc")
            c.append(table)
        before = sorted(row[0] for row in rows(c))
        shard = inside.shard(c)
        shard.run(collapse_levels)
        asked = everything(shard.known().spine, Policy(16, 1), shard.known().spine.next_id)

        class Died(Exception):
            pass

        done = []

        def some(tasks):
            if done:
                raise Died
            done.append(tasks)
            return [plan.run_merge_task(task, shard.stores.blobs, shard.env) for task in tasks]

        with pytest.raises(Died):
            Compactor(shard, Workers(some, 20)).merge(asked, rewrite=True)
        assert c.state().chunks
        c.evolve(of(W), drop=["v"])
        report = Compactor(shard).merge(asked, rewrite=True)
        assert report.applied and report.resumed == 20 and report.chunks >= 1
        # Parts of one run under two schemas, whose keys are apart.
        assert schema_ids(c) == {0, 1} and c.state().spine.totals.runs == 1
        found = rows(c)
        assert [row[0] for row in found] == sorted(set(before)) and {row[1:] for row in found} == {(None, 9)}
        c.merge()
        assert schema_ids(c) == {1} and rows(c) == found


def test_tasks_carry_every_schema_that_parts_may_have(collection):
    collection.append(at(0, 1))
    collection.evolve(of(V, W))
    (task,) = collection.distributed.plan(AsOf(0), 1).tasks
    assert sorted(decode_record("task", task, plan.Task, "t").spec.schemas) == [0, 1]


def test_inline_rows_that_have_to_be_stored_keep_their_schema(tmp_path):
    config = Config(inline_total_bytes=1, merge_budget_s=0.0)
    with tidelake.open(tmp_path / "full", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        builder = c.builder(0)
        builder.add(at(0, 1, 2, v="a"))
        batch = builder.finish(Frontier.of(1))
        c.evolve(of(W), drop=["v"])
        c.distributed.append_batches([batch], lower=0, upper=1)
        (part,) = [p for m in c.state().spine for p in m.batch.parts()]
        assert part.inline is None and part.schema_id == 0
        assert rows(c) == [(1, None, 1), (2, None, 1)]


def test_the_tail_goes_on_with_the_columns_of_each_step(lake, collection):
    collection.append(at(0, 1))
    steps = lake.collection("c").listen(0, timeout_s=0)
    collection.append(at(1, 2))
    assert next(steps).updates.read_all().column_names == ["id", "v", "_time", "_diff"]
    collection.evolve(of(V, W))
    collection.append(at(2, 3))
    assert next(steps).updates.read_all().column_names == ["id", "v", "w", "_time", "_diff"]


def test_create_opens_with_the_newest_schema_and_says_so_of_an_older_one(lake, collection):
    collection.evolve(of(V, W))
    assert lake.create("c", of(V, W), key=["id"]).schema == of(V, W)
    with pytest.raises(IncompatibleSchema, match=r"a schema that it had: open it with lake.collection"):
        lake.create("c", SCHEMA, key=["id"])
    with pytest.raises(IncompatibleSchema, match="does not equal") as caught:
        lake.create("c", of(W), key=["id"])
    assert "that it had" not in str(caught.value)


def test_a_collection_that_was_dropped_does_not_evolve(collection):
    inside.run(collection, drop_shard)
    with pytest.raises(CollectionDropped):
        collection.evolve(of(V, W))


def test_the_schemas_outlive_a_rollup_and_the_process(lake, collection):
    collection.evolve(of(V, W))
    before = collection.state().seqno
    collection.evolve(of(W), drop=["v"])
    inside.write_rollup(collection)
    again = tidelake.open(lake.url, create=False)
    c = again.collection("c")
    assert c.schema == of(W) and c.schema_at(before) == of(V, W)
    assert c.evolve(of(V, W)) == 3 and c.state().schema.value[0].id == 3
    again.close()


WRITER = """
import json, sys
import pyarrow as pa
import tidelake

lake = tidelake.open(sys.argv[1], create=False)
c = lake.collection("c")
for line in sys.stdin:
    asked = json.loads(line)
    table = {name: pa.array(values) for name, values in asked["table"].items()}
    try:
        answer = c.append(pa.table(table))
        said = {"upper": answer.upper.elements[0]}
    except tidelake.errors.TidelakeError as error:
        said = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps({**said, "names": c.schema.names}), flush=True)
"""


@pytest.fixture
def old_writer(lake, collection):
    """Another process with a handle from before; asks it to append a table of columns."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, lake.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def append(**table):
        child.stdin.write(json.dumps({"table": table}) + "\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())

    yield append
    child.stdin.close()
    assert child.wait(60) == 0
    child.stdout.close()


def test_an_old_writer_and_a_new_reader_in_two_processes(lake, collection, old_writer):
    assert old_writer(id=[1], v=["a"])["upper"] == 1
    collection.evolve(of(W, V))
    assert old_writer(id=[2], v=["b"])["upper"] == 2
    assert rows(collection) == [(1, None, "a", 1), (2, None, "b", 1)]
    collection.evolve(of(W), drop=["v"])
    said = old_writer(id=[3], v=["c"])
    assert said["error"] == "InvalidUpdates" and "column 'v' was dropped" in said["message"]
    assert said["names"] == ["id", "w"]
    assert old_writer(id=[3], w=[7])["upper"] == 3
    assert rows(collection) == [(1, None, 1), (2, None, 1), (3, 7, 1)]


def _renamed(lake, collection):
    """Rows of three times in parts of several kinds; then `v` is `name`, `id` is `key`, and `v` is new."""
    collection.append(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    collection.merge()
    collection.append(pa.table({"id": [3], "v": ["c"]}))
    collection.evolve(rename={"v": "name", "id": "key"})
    collection.evolve(pa.schema([pa.field("key", pa.int64(), nullable=False), ("name", pa.string()), V]))
    collection.append(pa.table({"key": [4], "name": ["d"], "v": ["new"]}))
    return [(1, "a", None, 1), (2, "b", None, 1), (3, "c", None, 1), (4, "d", "new", 1)]


@pytest.mark.parametrize("merged", [False, True])
def test_a_renamed_column_keeps_its_values_and_its_old_name_shows_none_of_them(lake, collection, merged):
    expected = _renamed(lake, collection)
    if merged:
        collection.merge()
    assert rows(collection) == expected
    assert rows(collection, 0) == expected[:2]
    assert collection.key == ("key",)
    # Conditions and statistics, look-ups, histories, changes, forks, and another process.
    assert rows(collection, where="name = 'b'") == expected[1:2]
    assert rows(collection, where="v IS NOT NULL") == expected[3:]
    assert rows(collection, where="key > 2", columns=["v", "name"]) == [(None, "c", 1), ("new", "d", 1)]
    assert collection.lookup(pa.table({"key": [2, 4]}))["name"].to_pylist() == ["b", "d"]
    assert collection.history(3)["name"].to_pylist() == ["c"]
    assert collection.changes(0, 2).to_arrow()["v"].to_pylist() == [None, "new"]
    planned = collection.distributed.plan(AsOf(2), 2)
    assert sum(batch.num_rows for task in planned.tasks for batch in plan.run_task(task)) == 4
    assert rows(lake.fork("c", "f")) == expected
    with collection.arrange() as arranged:
        assert pa.Table.from_batches(arranged.snapshot().scan())["name"].to_pylist() == ["a", "b", "c", "d"]
    collection.upsert(pa.table({"key": [1], "name": ["z"], "v": [None]}, collection.schema))
    assert rows(collection)[0] == (1, "z", None, 1)
    with tidelake.open(lake.url) as again:
        assert rows(again.collection("c"))[1:] == expected[1:]
        assert again.fsck().clean


def test_an_old_schema_has_the_old_names(collection):
    before = collection.state().seqno
    _renamed(None, collection)
    assert collection.schema_at(before).names == ["id", "v"]
    found = collection.snapshot(schema_id=0).to_arrow()
    assert found["v"].to_pylist() == ["a", "b", "c", "d"] and found["id"].to_pylist() == [1, 2, 3, 4]


def test_a_copy_has_the_new_names(lake, collection, tmp_path):
    expected = _renamed(lake, collection)
    lake.copy(tmp_path / "copy")
    with tidelake.open(tmp_path / "copy") as copy:
        assert rows(copy.collection("c")) == expected
        assert copy.fsck().clean


def test_tables_with_an_old_name_are_refused_also_by_a_handle_from_before(lake, collection):
    """Else the values would come into another column, if the name has become that of one."""
    other = tidelake.open(lake.url, config=SMALL).collection("c")
    other.append(pa.table({"id": [1], "v": ["a"]}))
    collection.evolve(rename={"v": "name"})
    with pytest.raises(InvalidUpdates, match=r"column 'v' was dropped from the collection or renamed"):
        other.append(pa.table({"id": [2], "v": ["b"]}))
    third = tidelake.open(lake.url, config=SMALL).collection("c")
    collection.evolve(of(pa.field("name", pa.string()), V))
    third.append(pa.table({"id": [3], "name": ["c"], "v": ["new"]}))
    assert rows(collection) == [(1, "a", None, 1), (3, "c", "new", 1)]


def test_renames_are_refused_with_a_reason_and_a_repeated_one_is_none(collection):
    assert collection.evolve(rename={"v": "name"}) == 1 == collection.evolve(rename={"v": "name"})
    for rename, text in [
        ({"w": "x"}, "there is no column 'w' to rename"),
        ({"name": "id"}, "'id', which is another column"),
    ]:
        with pytest.raises(IncompatibleSchema, match=text):
            collection.evolve(rename=rename)
    for rename, text in [
        ({"name": "_diff"}, "reserved"),
        ({"name": ""}, "needs a name"),
        ({"name": "a", "id": "a"}, "two columns one name"),
        (["name"], "mapping of names"),
        (None, "needs the new schema"),
    ]:
        with pytest.raises(UsageError, match=text):
            collection.evolve(rename=rename)
    with pytest.raises(UsageError, match=r"rename=.*alone"):
        collection.evolve(rename={"name": "v"}, drop=["name"])
    assert collection.schema.names == ["id", "name"]


def test_a_rename_and_other_changes_may_be_one_call(collection):
    collection.append(pa.table({"id": [1], "v": ["a"]}))
    collection.evolve(of(W, pa.field("name", pa.string())), rename={"v": "name"})
    assert rows(collection) == [(1, None, "a", 1)]
    collection.evolve(of(W), rename={"w": "w"}, drop=["name"])
    assert rows(collection) == [(1, None, 1)]

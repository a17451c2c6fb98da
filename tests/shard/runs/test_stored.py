"""Parts that are read as they are stored, beside tasks for the rest: together the exact snapshot."""

from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

import tidelake
from tidelake.config import Config
from tidelake.errors import CorruptionError
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Changes
from tidelake.model.selection import ReadOptions
from tidelake.shard.runs import plan
from tidelake.testing import tables
from tiers import examples

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
CONFIG = Config(
    part_target_bytes=1024,
    row_group_rows=4,
    fold_rows=1,
    merge_chunk_rows=16,
    inline_part_bytes=0,
    merge_budget_s=0.0,
)


def made(folder: Path, schema: pa.Schema = SCHEMA, time: str = "counter") -> tidelake.Collection:
    return tidelake.open(folder, config=CONFIG).create("c", schema, key=["k"], time=time)


def rows(keys, values=None, **more):
    values = [f"v{k}" for k in keys] if values is None else values
    return pa.table({"k": pa.array(keys, pa.int64()), "v": values, **more})


def read(c: tidelake.Collection, time: object) -> tuple[Counter, int, int]:
    """The snapshot as a planned read that leaves parts to its caller; how many parts, how many tasks."""
    planned = c.distributed.plan(AsOf(time), 3, as_stored=True)
    batches = [batch for task in planned.tasks for batch in plan.run_task(task)]
    found = tables.updates(pa.Table.from_batches(batches, planned.schema), c.domain)
    stored = planned.as_stored
    for url in stored.files if stored else ():
        table = pq.read_table(urlsplit(url).path)
        assert table.schema.names == stored.schema.names
        if stored.ones:
            assert set(table.column("_diff").to_pylist()) == {1}
        found += [(row, stored.time, diff) for row, _, diff in tables.updates(table, c.domain)]
    assert len({row for row, _, _ in found}) == len(found)
    assert {at for _, at, _ in found} <= {time}
    return (
        Counter({row: diff for row, _, diff in found}),
        len(stored.files) if stored else 0,
        len(planned.tasks),
    )


def expected(c: tidelake.Collection, time: object) -> Counter:
    return tables.netted(c.snapshot(time).read_all(), c.domain, time)


def test_a_merged_collection_is_read_as_it_is_stored(tmp_path: Path) -> None:
    c = made(tmp_path)
    for start in (0, 100):
        c.append(rows(range(start, start + 100)))
    c.advance_since(1)
    c.merge()
    found, files, tasks = read(c, 1)
    assert found == expected(c, 1) and files > 1 and tasks == 0
    assert c.distributed.plan(AsOf(1), 3, as_stored=True).seqno == c.state().seqno


def test_keys_that_a_later_append_has_are_merged_and_the_others_are_not(tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows(range(400)))
    c.append(rows([3, 390], _diff=pa.array([-1, -1], pa.int64())))
    c.append(rows([1000], ["later"]))
    found, files, tasks = read(c, 1)
    # One run has keys 3 and 390, so its bounds reach over nearly everything.
    assert found == expected(c, 1) and tasks
    c.append(rows([5000, 5001]))
    found, files, tasks = read(c, 3)
    assert found == expected(c, 3) and files >= 2 and tasks


def test_equal_rows_of_several_times_are_summed_by_tasks(tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows([1, 1], ["a", "a"], _time=pa.array([0, 1], pa.int64())))
    found, files, tasks = read(c, 1)
    assert found == Counter({(1, "a"): 2}) and not files and tasks == 1


def test_runs_of_one_time_that_share_keys_are_merged(tmp_path: Path) -> None:
    c = made(tmp_path)
    # Each worker's rows are a run of the one batch.
    tables_ = [
        rows(range(200), _time=pa.array([0] * 200, pa.int64()), _diff=pa.array([diff] * 200, pa.int64()))
        for diff in (1, 1, -1)
    ]
    uploads = [c.distributed.uploader().upload(iter(table.to_batches())) for table in tables_]
    c.distributed.append_uploaded(uploads, lower=0, upper=1)
    assert c.state().spine.totals.runs > 1
    assert read(c, 0)[:2] == (Counter({(k, f"v{k}"): 1 for k in range(200)}), 0)


def test_times_after_the_one_asked_for_are_not_read_as_stored(tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows([1, 2], _time=pa.array([0, 4], pa.int64())), upper=5)
    assert read(c, 2)[:2] == (Counter({(1, "v1"): 1}), 0)


def test_parts_of_an_older_schema_are_left_to_tasks(tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows(range(50)))
    assert read(c, 0)[1]
    c.evolve(pa.schema([*SCHEMA, ("n", pa.int32())]))
    found, files, tasks = read(c, 0)
    assert found == expected(c, 0) and not files and tasks
    c.append(rows(range(100, 150), n=pa.array(range(50), pa.int32())))
    found, files, tasks = read(c, 1)
    assert found == expected(c, 1) and files and tasks


def test_narrowed_batches_are_left_to_tasks(tmp_path: Path) -> None:
    c = made(tmp_path)
    builder = c.builder(0)
    builder.add(rows([1, 2, 3], _time=pa.array([0, 0, 5], pa.int64()), _diff=pa.array([1, 1, 1], pa.int64())))
    c.distributed.append_batches([builder.finish(Frontier.of(6))], lower=0, upper=1)
    assert read(c, 0)[:2] == (Counter({(1, "v1"): 1, (2, "v2"): 1}), 0)


def test_a_condition_and_other_queries_are_left_to_tasks(tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows(range(50)))
    assert c.distributed.plan(AsOf(0), 1, as_stored=True).as_stored
    assert c.distributed.plan(AsOf(0), 1).as_stored is None
    assert c.distributed.plan(AsOf(0), 1, ReadOptions(where="k > 0"), as_stored=True).as_stored is None
    assert c.distributed.plan(Changes(0, 0), 1, as_stored=True).as_stored is None
    memory = tidelake.open("memory://stored", config=CONFIG).create("c", SCHEMA, key=["k"])
    memory.append(rows(range(50)))
    assert memory.distributed.plan(AsOf(0), 1, as_stored=True).as_stored is None


def test_a_damaged_footer_is_found_when_it_is_planned(tmp_path: Path) -> None:
    c = made(tmp_path)
    c.append(rows(range(50)))
    path = next(tmp_path.glob(f"blobs/{c.id}/parts/*.parquet"))
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        c.distributed.plan(AsOf(0), 1, as_stored=True)


@pytest.mark.promise(
    "Parts that are read as they are stored, together with the tasks, are the snapshot",
    rule="`shard/runs/stored.py`",
)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.integers(0, 60), st.integers(1, 40), st.sampled_from([1, 1, 1, -1, 2]), st.integers(0, 2)
            ),
            st.just("merge"),
            st.just("advance"),
        ),
        min_size=1,
        max_size=8,
    ),
    time=st.sampled_from(["counter", "tuple(2)"]),
)
def test_the_snapshot_is_what_is_stored_and_the_tasks_together(
    tmp_path_factory: pytest.TempPathFactory, steps: list, time: str
) -> None:
    c = made(tmp_path_factory.mktemp("stored"), time=time)
    names, now = c.domain.columns, 0
    for step in [*steps, (0, 1, 1, 0)]:
        if step == "advance" and now:
            c.advance_since(now - 1 if time == "counter" else (now - 1,) * 2)
        elif step == "merge":
            c.merge()
        elif not isinstance(step, str):
            start, count, diff, spread = step
            keys = list(range(start, start + count))
            at = {name: pa.array([now + k % (spread + 1) for k in keys], pa.int64()) for name in names}
            upper = now + spread + 1
            table = rows(keys, **at, _diff=pa.array([diff] * count, pa.int64()))
            if time == "counter":
                c.append(table, upper=upper)
            else:
                c.compare_and_append(table, c.upper, [(upper, upper)])
            now = upper
    asked = now - 1 if time == "counter" else (now - 1,) * 2
    assert read(c, asked)[0] == expected(c, asked)

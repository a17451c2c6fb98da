"""Staged updates and the rest of a lake: copies, checks, changes of columns, drops, plans, uploads."""

import pyarrow as pa
import pytest

import inside
import tidelake
from tidelake.config import Config
from tidelake.errors import CollectionDropped, CollectionNotFound, NotYetClosed
from tidelake.model.query import AsOf
from tidelake.model.selection import ReadOptions
from tidelake.shard.runs.plan import run_task
from tidelake.shard.upkeep.compactor import Compactor
from tidelake.state.spine.merging import Policy, requests

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
QUIET = Config(inline_part_bytes=0, merge_budget_s=0)


def at(*times, v="x", **more):
    return pa.table({"id": list(times), "v": [v] * len(times), "_time": list(times), **more})


@pytest.fixture
def lake(tmp_path):
    with tidelake.open(tmp_path / "lake", config=QUIET) as opened:
        yield opened


@pytest.fixture
def c(lake):
    """With closed times that are not drained, and open ones."""
    made = lake.create("c", SCHEMA, key=["id"])
    made.append(at(0), upper=1)
    made.stage(at(1, 3, 7))
    made.stage(at(9))
    made.seal(5)
    assert made.state().drained != made.upper
    return made


def ids(collection, as_of=None, **more):
    return collection.snapshot(as_of, **more).read_all()["id"].to_pylist()


def test_a_copy_has_what_is_staged(lake, c, tmp_path):
    assert lake.copy(tmp_path / "copies", ["c"]).collections[0].rows == 5
    with tidelake.open(tmp_path / "copies", create=False, config=QUIET) as copies:
        copy = copies.collection("c")
        assert ids(copy) == [0, 1, 3] and ids(copy, staged=True) == [0, 1, 3, 7, 9]
        copy.seal(10)
        copy.maintain()
        assert ids(copy) == [0, 1, 3, 7, 9] and copies.fsck(["c"]).left == ()
    assert ids(c, staged=True) == [0, 1, 3, 7, 9]


def test_a_check_reads_what_is_staged(lake, c):
    whole = lake.fsck(["c"])
    assert whole.left == ()
    (first, *_) = [part.name for one in c.state().staged for part in one.batch.parts()]
    inside.stores(lake).blobs.delete(first)
    assert any(first in str(found) for found in lake.fsck(["c"]).left)


def test_columns_change_while_something_is_staged(c):
    c.evolve(SCHEMA.append(pa.field("w", pa.int32())))
    c.stage(at(8, w=pa.array([4], pa.int32())))
    found = c.snapshot(9, staged=True).read_all()
    assert found["w"].to_pylist() == [None, None, None, None, 4, None]
    c.seal(20)
    c.maintain()
    assert c.snapshot().read_all()["w"].to_pylist() == [None, None, None, None, 4, None]


def test_a_drop_takes_along_what_is_staged(lake, c):
    shard_id = c.id
    lake.drop("c")
    with pytest.raises((CollectionDropped, CollectionNotFound)):
        c.stage(at(30))
    with pytest.raises((CollectionDropped, CollectionNotFound)):
        c.seal(30)
    assert not [*inside.stores(lake).blobs.list(f"{shard_id}/parts/")]


def test_a_plan_has_what_is_staged_on_request(c):
    with pytest.raises(NotYetClosed):
        c.distributed.plan(AsOf(8), 2, ReadOptions(timeout_s=0))
    planned = c.distributed.plan(AsOf(8), 2, ReadOptions(timeout_s=0, staged=True))
    found = [batch for task in planned.tasks for batch in run_task(task)]
    assert sorted(pa.Table.from_batches(found)["id"].to_pylist()) == [0, 1, 3, 7]
    last = c.distributed.plan(None, 2, ReadOptions(staged=True))
    assert sum(batch.num_rows for task in last.tasks for batch in run_task(task)) == 5


def test_uploads_that_depend_on_contents_are_refused_if_more_was_staged_since(lake, c):
    c.maintain()
    read_at = c.state().seqno
    upserter = c.distributed.upserter(time=6)
    upload = upserter.upload(pa.table({"id": [6], "v": ["new"]}).to_batches())
    other = lake.collection("c")
    other.stage(at(6, v="old"))
    with pytest.raises(tidelake.errors.UpperMismatch, match="staged"):
        c.distributed.append_uploaded([upload], lower=upserter.lower, upper=7, read_at=read_at)
    # What is staged between the upper and the time of the events: these may have met it or not.
    with pytest.raises(tidelake.errors.UsageError, match="seal the collection up to"):
        c.distributed.append_uploaded([upload], lower=upserter.lower, upper=7, read_at=c.state().seqno)
    c.seal(6)
    read_at, upserter = c.state().seqno, c.distributed.upserter(time=6)
    upload = upserter.upload(pa.table({"id": [6], "v": ["new"]}).to_batches())
    c.distributed.append_uploaded([upload], lower=upserter.lower, upper=7, read_at=read_at)
    assert ids(c, 6) == [0, 1, 3, 6]


def test_a_check_takes_no_run_that_is_folded_further_than_its_batch_for_damage(tmp_path):
    config = Config(inline_part_bytes=0, merge_budget_s=0, merge_fan_in=2, fold_rows=1)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(5):
            c.stage(at(*range(1, 4), v=f"{n}"))
        c.seal(4)
        c.append(at(9), upper=16)
        c.advance_since(6)
        due = next(
            one
            for one in requests(c.state().spine, Policy.idle(inside.shard(c).spec.config))
            if one.positions
        )
        assert Compactor(inside.shard(c)).merge(due).applied
        (batch,) = [one.batch for one in c.state().spine if len(one.batch.runs) > 1]
        assert max(part.time_upper for part in batch.parts()) == 6 and batch.bounds.since != c.since
        assert lake.fsck(["c"]).left == ()

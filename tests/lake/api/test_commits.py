"""The log of a collection tells its commits."""

import pyarrow as pa
import pytest

import tidelake
from tidelake.config import Config
from tidelake.errors import UsageError

SCHEMA = pa.schema([("id", pa.int64())])


def ids(*found: int) -> pa.Table:
    return pa.table({"id": pa.array(found, pa.int64())})


def told(collection, **how):
    return [(one.what, one.rows, one.writers) for one in collection.commits(**how)]


@pytest.fixture
def c(tmp_path):
    with tidelake.open(tmp_path / "lake", config=Config(merge_budget_s=0)) as lake:
        yield lake.create("c", SCHEMA, key=["id"])


def test_commits_tell_what_was_done_newest_first(c) -> None:
    c.append(ids(1, 2, 3))
    c.upsert(ids(3, 4))
    c.stage(pa.table({"id": [7], "_time": [9]}))
    c.seal(10)
    c.writer("w").append(ids(8), sequence=0)
    c.evolve(pa.schema([*SCHEMA, ("v", pa.string())]))
    assert told(c) == [
        ("evolve", 0, ()),
        ("append", 1, ("w",)),
        ("seal", 0, ()),
        ("stage", 1, ()),
        ("append", 1, ()),
        ("append", 3, ()),
        ("create", 0, ()),
    ]
    found = c.commits()
    assert found[1].upper == c.upper
    assert all(one.size_bytes > 0 for one in found if one.rows)
    assert [one.seqno for one in found] == sorted((one.seqno for one in found), reverse=True)
    assert [one.committed_ms for one in found] == sorted((one.committed_ms for one in found), reverse=True)


def test_what_readers_do_not_see_is_told_on_request(c) -> None:
    c.append(ids(1))
    c.retain(5)
    with c.reader("test"):
        pass
    c.merge()
    assert [what for what, _, _ in told(c)] == ["append", "create"]
    assert {what for what, _, _ in told(c, every=True)} >= {"retain", "hold", "append", "create"}


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 6, 100])
def test_a_limit_gives_the_newest_with_their_rows(c, limit) -> None:
    for n in range(5):
        c.append(ids(*range(n)) if n else ids(9))
    assert (
        told(c, limit=limit)
        == [
            *(("append", n, ()) for n in (4, 3, 2, 1, 1)),
            ("create", 0, ()),
        ][:limit]
    )


def test_a_write_of_several_collections_is_a_stage_and_a_seal(c, tmp_path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("d", SCHEMA, key=["id"])
        lake.write({"c": ids(1), "d": ids(1, 2)})
        lake["d"].maintain()
        assert told(lake["d"], limit=2) == [("seal", 0, ()), ("stage", 2, ())]


def test_commits_that_the_log_has_lost_are_left_out() -> None:
    with tidelake.open("memory://commits-of-a-truncated-log") as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(300):
            c.append(ids(n))
        found = c.commits(10_000)
        assert [one.rows for one in found] == [1] * 300 + [0]
        # As a collector does once no reader may need the entries.
        c._shard.stores.log.truncate(c.id, 30)
        left = c.commits(10_000)
        assert left[:-1] == found[: len(left) - 1]
        assert left[-1].rows is None
        assert left[-1].seqno >= 30


@pytest.mark.parametrize("limit", [-1, True, 1.5, "7"])
def test_a_limit_that_is_no_number_is_refused(c, limit) -> None:
    with pytest.raises(UsageError, match="limit"):
        c.commits(limit)

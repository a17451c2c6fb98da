"""The log of a collection tells its commits."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import inside
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
    assert repr(found[0]).startswith(f"CommitEntry(seqno={found[0].seqno}, committed_ms=20")
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
    whole = Config(rollup_bytes_min=1 << 30)
    with tidelake.open("memory://commits-of-a-truncated-log", config=whole) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(300):
            c.append(ids(n))
        found = c.commits(10_000)
        assert [one.rows for one in found] == [1] * 300 + [0]
        # As appends and collectors do.
        inside.shard(c).stores.log.truncate(c.id, 30)
        left = c.commits(10_000)
        assert left[:-1] == found[: len(left) - 1]
        assert left[-1].rows is None
        assert left[-1].seqno >= 30


@pytest.mark.parametrize("limit", [-1, True, 1.5, "7"])
def test_a_limit_that_is_no_number_is_refused(c, limit) -> None:
    with pytest.raises(UsageError, match="limit"):
        c.commits(limit)


def said(collection, **how):
    return [(one.what, one.author, one.message) for one in collection.commits(**how)]


@pytest.mark.promise(
    "Author and message stand in the entry of the very commit that they were given for, also if "
    "several threads are committed together; nothing else has them",
    rule="`CommitRequest.note`, `_noted` in `shard/engine/machine.py`",
    also=[
        "::test_threads_that_commit_together_keep_their_own_notes",
        "::test_a_write_of_several_collections_tells_who_and_why_in_each",
        "::test_notes_that_cannot_be_stored_are_refused_and_nothing_is_written",
        "spark/source/test_format_writes.py::test_commits_have_the_author_and_message_of_the_options_or_the_application",
        "spark/statements/test_spark_sql.py::test_a_change_has_an_author_and_a_message",
    ],
)
def test_commits_tell_who_and_why(tmp_path) -> None:
    with tidelake.open(tmp_path / "lake", config=Config(merge_budget_s=0)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(ids(1), author="ann", message="first\nrows")
        c.upsert(ids(2), author="bob")
        c.replace(ids(3), message="dump")
        c.compare_and_append(pa.table({"id": [4], "_time": [3]}), 3, 4, author="ann")
        c.writer("w").append(ids(5), author="job", message="5")
        c.writer("w").upsert(ids(6), message="6")
        c.append(ids(7))
        c.merge()
    with tidelake.open(tmp_path / "lake") as lake:
        found = said(lake.collection("c"), every=True)
        assert [one for one in found if one[0] == "append"] == [
            ("append", "", ""),
            ("append", "", "6"),
            ("append", "job", "5"),
            ("append", "ann", ""),
            ("append", "", "dump"),
            ("append", "bob", ""),
            ("append", "ann", "first\nrows"),
        ]
        assert {one[1:] for one in found if one[0] != "append"} == {("", "")}
        assert lake.fsck().clean


def test_a_write_of_several_collections_tells_who_and_why_in_each(tmp_path) -> None:
    with tidelake.open(tmp_path / "lake") as lake:
        for name in "ab":
            lake.create(name, SCHEMA, key=["id"])
        lake.write({"a": ids(1), "b": ids(2)}, author="ann", message="both")
        lake.collection("a").append(ids(3), author="bob")
        assert ("stage", "ann", "both") in said(lake.collection("a"))
        assert ("stage", "ann", "both") in said(lake.collection("b"))
        assert "bob" in {author for _, author, _ in said(lake.collection("a"))}


def test_threads_that_commit_together_keep_their_own_notes(c) -> None:
    def write(n: int) -> None:
        c.append(ids(n), message=str(n)) if n % 3 else c.append(ids(n))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(24)))
    found = Counter(message for what, _, message in said(c, limit=100) if what == "append")
    assert found == Counter({str(n): 1 for n in range(24) if n % 3} | {"": 8})


def test_notes_that_cannot_be_stored_are_refused_and_nothing_is_written(c) -> None:
    for how, text in [
        ({"author": "a" * 256}, "author has more than 255 bytes"),
        ({"message": "ä" * 2049}, "message has more than 4,096 bytes"),
        ({"message": 3}, "must be a text"),
        ({"author": "\ud800"}, "not valid Unicode"),
    ]:
        with pytest.raises(UsageError, match=text):
            c.append(ids(1), **how)
    c.append(ids(1), author="a" * 255, message="ä" * 2048)
    c.append(ids(2))
    assert [len(one.message) for one in c.commits()] == [0, 2048, 0]


def test_what_an_append_does_beside_has_no_note(tmp_path) -> None:
    with tidelake.open(tmp_path / "lake", config=Config(merge_budget_s=10.0)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        for n in range(64):
            c.append(ids(n), message="why")
        found = said(c, limit=1000, every=True)
        beside = {message for what, _, message in found if what not in ("append", "create")}
        assert beside == {""} and ("append", "", "why") in found

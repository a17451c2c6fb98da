"""Deletes by key and by a condition; what is counted of removals; writes that have nothing to write."""

from collections import Counter

import pyarrow as pa
import pytest

import tidelake
from tidelake import Frontier
from tidelake.errors import InvalidUpdates, NotYetClosed, UpdateBeforeLower, UsageError

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int64())])
F = Frontier.of


@pytest.fixture
def lake(tmp_path):
    with tidelake.open(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture
def c(lake):
    made = lake.create("c", SCHEMA, key=["id"])
    made.append(rows(1, 2, 3, 3))
    return made


def rows(*ids):
    return pa.table({"id": ids, "v": [f"v{i}" for i in ids], "n": ids}, SCHEMA)


def keys(*ids, **more):
    return pa.table({"id": pa.array(ids, pa.int64()), **more})


def held(collection, as_of=None):
    found = Counter()
    for row in collection.snapshot(as_of).read_all().to_pylist():
        found[row["id"]] += row["_diff"]
    return dict(found)


def counts(done):
    return done.removed, done.absent


@pytest.mark.promise(
    "Deletes remove the rows of their keys, or those that the condition is true for under the "
    "newest columns, in one commit, exactly once under a number; all rows only if words say so",
    rule="`deletion` in `lake/arguments/keys.py`, `Deletion` in `shard/writing/derived.py`",
    also=[
        "::test_rows_that_a_condition_is_true_for_are_deleted",
        "::test_a_condition_is_of_the_newest_columns_and_meets_staged_rows",
        "::test_a_delete_of_everything_is_asked_for_in_words",
        "::test_numbered_deletes_are_in_once",
        "::test_transactions_delete_and_count",
        "spark/writing/test_upsert.py::test_keys_and_rows_of_a_condition_are_deleted_and_absent_keys_counted",
        "cli/test_cli.py::test_rows_are_deleted_by_files_of_keys_or_a_condition",
    ],
)
def test_keys_are_deleted_with_all_their_rows_and_absent_ones_are_counted(c):
    done = c.delete(keys(3, 9, 1), author="ann", message="gone")
    assert (counts(done), done.upper, held(c)) == ((3, 1), F(2), {2: 1})
    assert "ann" in [one.author for one in c.commits()]
    # Each key at its own time, also one that is not there any more.
    done = c.delete(keys(2, 2, _time=[4, 6]))
    assert (counts(done), done.upper, held(c, 3), held(c, 4)) == ((1, 1), F(7), {2: 1}, {})
    nothing = c.delete(keys(8))
    assert nothing.already and counts(nothing) == (0, 1) and c.upper == F(7)
    assert c.delete(keys(8), time=9).upper == F(10)


def test_rows_that_a_condition_is_true_for_are_deleted(c):
    c.append(pa.table({"id": [1, 5], "v": ["other", None], "n": [7, None]}, SCHEMA))
    done = c.delete(where="n >= 2 AND v LIKE 'v%'")
    # Rows, not keys: another row of a key stays, and so does one for which the condition is null.
    assert (counts(done), c.to_arrow()["v"].to_pylist()) == ((3, 0), ["other", "v1", None])
    assert c.delete(where="id = 4").already
    assert c.delete(where="TRUE", time=8).removed == 3
    assert (held(c, 7), held(c)) == ({1: 2, 5: 1}, {})


def test_a_condition_is_of_the_newest_columns_and_meets_staged_rows(c, lake, tmp_path):
    c.stage(pa.table({"id": [7], "v": ["v7"], "n": [7], "_time": [5]}))
    assert c.delete(where="n = 7", time=4).removed == 0
    assert c.delete(where="n = 7", time=6).removed == 1
    with tidelake.open(tmp_path / "lake") as other:
        other["c"].evolve(rename={"n": "w"})
        other["c"].evolve(rename={"v": "n"})
    transaction = lake.transaction()
    transaction.delete("c", where="n = 'v1'")
    assert (transaction.commit().removed, held(c)) == (1, {2: 1, 3: 2})
    with tidelake.open(tmp_path / "lake") as other:
        other["c"].evolve(rename={"n": "v"})
    assert (c.delete(where="v = 'v2'").removed, held(c)) == (1, {3: 2})


@pytest.mark.parametrize("given", [{}, {"keys": None}, {"keys": keys(1), "where": "TRUE"}])
def test_a_delete_of_everything_is_asked_for_in_words(c, lake, given):
    for delete in (c.delete, c.writer("w").delete, lambda **more: lake.transaction().delete("c", **more)):
        with pytest.raises(UsageError, match=r"delete takes keys or where=.*'TRUE' deletes all"):
            delete(**given)
    assert c.delete(keys()).already and c.upper == F(1)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"where": ""}, UsageError, "cannot be parsed"),
        ({"where": True}, UsageError, "is no text"),
        ({"where": "x = 1"}, UsageError, "no column named 'x'"),
        ({"keys": rows(1)}, InvalidUpdates, "column 'v', 'n' is none"),
        ({"keys": pa.table({"v": ["a"]})}, InvalidUpdates, "column 'v' is none"),
        ({"keys": pa.table({"id": ["a"]})}, InvalidUpdates, "'id'"),
    ],
)
def test_what_is_no_delete_is_refused_and_nothing_goes(c, lake, given, error, message):
    transaction = lake.transaction()
    for call in (
        lambda: c.delete(**given),
        lambda: c.writer("w").delete(**given),
        lambda: (transaction.delete("c", **given), transaction.commit()),
    ):
        with pytest.raises(error, match=message):
            call()
    for time in ({"keys": keys(1)}, {"where": "TRUE"}):
        with pytest.raises(UpdateBeforeLower):
            c.delete(**time, time=0)
    assert held(c) == {1: 1, 2: 1, 3: 2}


def test_tuple_times_have_no_deletes(lake):
    c = lake.create("t", SCHEMA, key=["id"], time="tuple(2)")
    for given in ({"keys": keys(1)}, {"where": "TRUE"}):
        with pytest.raises(UsageError, match="times that follow each other"):
            c.delete(**given)


def test_numbered_deletes_are_in_once(c):
    writer = c.writer("w")
    assert counts(writer.delete(keys(1, 8), sequence=0)) == (1, 1)
    assert counts(writer.delete(where="id = 2", sequence=1)) == (1, 0)
    again = writer.delete(where="id = 2", sequence=1)
    assert again.already and counts(again) == (0, 0)
    with pytest.raises(UsageError, match="made of something else"):
        writer.delete(where="TRUE", sequence=1)
    assert held(c) == {3: 2}


def test_transactions_delete_and_count(c, lake):
    d = lake.create("d", SCHEMA, key=["id"])
    lake.write({"d": rows(1, 2)})
    transaction = lake.transaction()
    transaction.delete("c", keys(1, 8))
    transaction.delete("d", where="n = 2")
    with pytest.raises(UsageError, match="gets no other rows"):
        transaction.delete("d", keys(1))
    done = transaction.commit()
    assert (counts(done), held(c), held(d)) == ((2, 1), {2: 1, 3: 2}, {1: 1})


def test_upserts_count_what_their_removals_meet(c, lake):
    feed = keys(1, 8, 7, 7, v=["a", "b", "c", None], n=[1, 1, 1, 1], gone=[False, True, False, True])
    # Key 7 comes and goes at one time: it was there.
    assert counts(c.upsert(feed, delete_column="gone")) == (0, 1)
    assert counts(c.upsert(keys(3, gone=[True]), delete_column="gone")) == (2, 0)
    transaction = lake.transaction()
    transaction.upsert("c", keys(9, gone=[True]), delete_column="gone")
    assert counts(transaction.commit()) == (0, 1)


NOTHING = {
    "append": lambda c: c.append(SCHEMA.empty_table()),
    "upsert": lambda c: c.upsert(SCHEMA.empty_table()),
    "absent": lambda c: c.upsert(keys(1, gone=[True]), delete_column="gone"),
    "replace": lambda c: c.replace(SCHEMA.empty_table()),
    "keys": lambda c: c.delete(keys()),
    "where": lambda c: c.delete(where="TRUE"),
}


@pytest.mark.promise(
    "A first write without rows leaves a collection that can be read, in Python, transactions and "
    "Spark; rows with their own times close none if there are none",
    rule=(
        "`_append` in `shard/writing/derived.py`, `_closed_without_rows` in "
        "`lake/groups/transactions.py`, `_idle_end` in `feeds/commit.py`"
    ),
    also=[
        "::test_rows_with_their_own_times_close_none_if_there_are_none",
        "spark/writing/test_upsert.py::test_a_first_write_without_rows_leaves_a_collection_that_can_be_read",
        "spark/source/test_sink.py::test_an_empty_frame_closes_a_time",
    ],
)
@pytest.mark.parametrize("how", list(NOTHING))
@pytest.mark.parametrize("way", ["collection", "writer", "transaction"])
@pytest.mark.parametrize("unit", ["counter", "ms"])
def test_a_first_write_without_rows_leaves_a_collection_that_can_be_read(lake, how, way, unit):
    c = lake.create("new", SCHEMA, key=["id"], time=unit)
    with pytest.raises(NotYetClosed):
        c.to_arrow()

    def write():
        match way:
            case "collection":
                return NOTHING[how](c)
            case "writer":
                return NOTHING[how](c.writer("w"))
        transaction = lake.transaction()
        NOTHING[how](_Named(transaction, "new"))
        return transaction.commit()

    assert not write().already and c.to_arrow().num_rows == 0
    upper = c.upper
    # Once a time is closed, only what appends closes another.
    assert write().already == (how != "append" and way != "writer")
    assert (c.upper > upper) == (how == "append")


class _Named:
    """A transaction's calls for one collection."""

    def __init__(self, transaction, name):
        self._transaction, self._name = transaction, name

    def append(self, table):
        self._transaction.write(self._name, table)

    def __getattr__(self, verb):
        return lambda *given, **more: getattr(self._transaction, verb)(self._name, *given, **more)


def test_rows_with_their_own_times_close_none_if_there_are_none(lake):
    c = lake.create("new", SCHEMA, key=["id"])
    timed = SCHEMA.append(pa.field("_time", pa.int64())).empty_table()
    assert c.append(timed).already and c.upsert(timed).already and c.upper == F(0)
    lake.write({"new": timed})
    assert c.upper == F(0)
    # Events that change nothing close their times all the same.
    gone = keys(1, _time=[4], gone=[True])
    assert c.upsert(gone, delete_column="gone").upper == F(5)
    transaction = lake.transaction()
    transaction.upsert("new", keys(1, _time=[8], gone=[True]), delete_column="gone")
    assert transaction.commit().upper == F(9)

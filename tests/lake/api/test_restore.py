"""Restorations: the contents of an earlier time come back, exactly, as one commit at an open time."""

import threading
from collections import Counter

import pyarrow as pa
import pytest

import tidelake
from tidelake import Frontier
from tidelake.config import Config
from tidelake.errors import CollectionIsView, HistoryCompacted, NotYetClosed, UpdateBeforeLower, UsageError

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
F = Frontier.of


@pytest.fixture
def lake(tmp_path):
    with tidelake.open(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture
def c(lake):
    made = lake.create("c", SCHEMA, key=["id"])
    made.append(rows((1, "a", 1), (2, "b", 1), (2, "b2", 3)), time=1)
    made.append(rows((1, "a", -1), (1, "x", 1), (2, "b2", -1), (3, "c", 2)), time=2)
    made.delete(where="id = 2", time=3)
    return made


def rows(*given):
    ids, values, diffs = zip(*given, strict=True) if given else ((), (), ())
    return pa.table({"id": pa.array(ids, pa.int64()), "v": values, "_diff": pa.array(diffs, pa.int64())})


def held(collection, as_of=None, **how):
    found = Counter()
    for row in collection.snapshot(as_of, **how).read_all().to_pylist():
        found[row["id"], row["v"]] += row["_diff"]
    return dict(found)


@pytest.mark.promise(
    "A restoration makes the contents those of an earlier time, with their multiplicities, in one commit at "
    "an open time; only the net difference is written, once under a token",
    rule="`Restoration` in `shard/writing/derived.py`",
    also=[
        "::test_only_the_difference_is_written",
        "::test_a_restoration_is_made_once_under_a_token",
        "::test_staged_rows_up_to_the_time_are_taken_back_too",
        "::test_what_others_write_meanwhile_is_taken_back_too",
    ],
)
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("then", [0, 1, 2, 3])
def test_the_contents_come_back_with_their_multiplicities(lake, c, then, merged):
    if merged:
        c.merge()
    before = [held(c, at) for at in range(4)]
    done = c.restore(then, author="ann", message="back")
    assert [held(c, at) for at in range(4)] == before, "history stays"
    assert held(c) == before[then]
    assert done.already == (then == 3) and c.upper == F(4 if then == 3 else 5)
    assert (c.commits(1)[0].author == "ann") == (then != 3)


def test_only_the_difference_is_written(c):
    c.restore(1, time=9)
    found = c.updates(4, 10).read_all().to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (1, "a", 9, 1),
        (1, "x", 9, -1),
        (2, "b", 9, 1),
        (2, "b2", 9, 3),
        (3, "c", 9, -2),
    ]
    assert c.upper == F(10)
    # Nothing differs now, and a time that is asked for is closed all the same.
    assert c.restore(1).already and c.restore(1, time=12).upper == F(13)


def test_a_restoration_is_made_once_under_a_token(c):
    first = c.restore(1, token="t")
    c.append(rows((9, "z", 1)))
    again = c.restore(1, token="t")
    assert (first.already, again.already, again.upper) == (False, True, first.upper)
    assert held(c)[9, "z"] == 1


def test_times_that_cannot_be_restored_are_refused_and_nothing_is_written(lake, c):
    with pytest.raises(NotYetClosed, match="the last closed time is 3"):
        c.restore(4)
    with pytest.raises(UpdateBeforeLower, match=r"docs/corrections\.md"):
        c.restore(1, time=2)
    c.advance_since(2)
    with pytest.raises(HistoryCompacted):
        c.restore(1)
    pairs = lake.create("pairs", SCHEMA, key=["id"], time="tuple(2)")
    with pytest.raises(UsageError, match="follow each other"):
        pairs.restore((0, 0))
    assert c.upper == F(4)
    lake.view("n", "SELECT count(*) AS n FROM c")
    with pytest.raises(CollectionIsView):
        lake.collection("n").restore(3, time=9)


def test_staged_rows_up_to_the_time_are_taken_back_too(c):
    c.stage(rows((7, "staged", 1)).append_column("_time", pa.array([5])))
    c.stage(rows((8, "later", 1)).append_column("_time", pa.array([9])))
    c.restore(3, time=6)
    assert held(c, 6) == held(c, 3) and held(c, 5) == {**held(c, 3), (7, "staged"): 1}
    assert held(c, 9, staged=True) == {**held(c, 3), (8, "later"): 1}


def test_collections_of_a_group_and_new_columns(lake, c):
    other = lake.create("other", SCHEMA, key=["id"])
    lake.write({"c": rows((5, "e", 1)), "other": rows((5, "e", 1))}, time=4)
    c.evolve(pa.schema([*SCHEMA, ("w", pa.int64())]))
    c.append(rows((6, "f", 1)).append_column("w", pa.array([1])))
    c.restore(1)
    assert held(c) == held(c, 1) and held(other) == {(5, "e"): 1}


def test_what_others_write_meanwhile_is_taken_back_too(tmp_path):
    with tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        c.append(rows((1, "a", 1)))
        writers = [
            threading.Thread(target=lambda n=n: [c.append(rows((n, "w", 1))) for _ in range(5)])
            for n in (2, 3)
        ]
        for one in writers:
            one.start()
        times = [c.restore(0) for _ in range(5)]
        for one in writers:
            one.join()
        done = [one for one in times if not one.already]
        assert all(held(c, one.upper.just_before().elements[0]) == held(c, 0) for one in done)

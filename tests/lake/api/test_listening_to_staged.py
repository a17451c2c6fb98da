"""Listening to updates as they are staged: each once, whatever becomes of its batch, then what seals it."""

from collections import Counter

import pyarrow as pa
import pytest
from collecting import before
from hypothesis import given
from hypothesis import strategies as st
from keeping import AGE_S, Kept

import tidelake
from tables import SCHEMA, at
from tidelake.config import Config
from tidelake.errors import HistoryCompacted
from tidelake.lake.api.handle import shard_of
from tidelake.model.frontier import Frontier
from tidelake.shard.reading.unsealed import Records, Sealed
from tidelake.shard.upkeep.drainer import Drainer

# Many batches are combined, few runs are left unread, and nothing is inline.
BUSY = Config(runs_max=4, inline_part_bytes=0, merge_budget_s=0, row_group_rows=8)


def told(steps):
    """All steps: their updates as (id, v, time, diff), or what was sealed."""
    found = []
    for step in steps:
        match step:
            case Records(_, updates):
                rows = updates.read_all().to_pylist()
                assert rows
                found.append(sorted(tuple(row.values()) for row in rows))
            case Sealed(upper):
                found.append(str(upper))
    return found


def now(collection, **more):
    """What a listener is told that does not wait."""
    return told(collection.listen(staged=True, timeout_s=0, **more))


def test_updates_are_told_as_they_are_staged_and_then_the_seal(collection):
    steps = collection.listen(lower=0, staged=True, timeout_s=0)
    collection.stage(at(7, 1, 2))
    assert told([next(steps)]) == [[(1, "x", 7, 1), (2, "x", 7, 1)]]
    collection.stage(at(3, 3))
    collection.stage(at(9, 4))
    assert told([next(steps)]) == [[(3, "x", 3, 1), (4, "x", 9, 1)]]
    collection.seal(5)
    assert next(steps) == Sealed(Frontier.of(5))
    # What an append closes is told before it is sealed.
    collection.append(at(6, 5), upper=8)
    collection.stage(at(8, 1, diff=-1))
    assert told([next(steps)]) == [[(1, "x", 8, -1), (5, "x", 6, 1)]]
    assert next(steps) == Sealed(Frontier.of(8))
    collection.seal(20)
    assert told(steps) == ["[20]"]
    assert not collection.state().holds


def test_a_listener_that_begins_again_gets_what_was_not_sealed(collection):
    collection.stage(at(2, 1))
    collection.stage(at(8, 2))
    collection.seal(5)
    assert now(collection, lower=0) == [[(1, "x", 2, 1), (2, "x", 8, 1)], "[5]"]
    assert now(collection, lower=5) == now(collection, as_of=4) == [[(2, "x", 8, 1)]]
    assert now(collection, lower=0, until=3) == [[(1, "x", 2, 1)], "[3]"]
    assert now(collection, lower=0, until=8, where="id = 2", columns=["v"]) == ["[5]"]
    collection.advance_since(4)
    with pytest.raises(HistoryCompacted):
        now(collection, lower=2)


def test_it_ends_with_the_collection(collection):
    collection.stage(at(4, 1))
    collection.seal(Frontier())
    assert told(collection.listen(lower=0, staged=True)) == [[(1, "x", 4, 1)], "[]"]


@pytest.mark.parametrize("columns", [None, ["id"]])
def test_what_was_combined_or_drained_is_not_told_again(tmp_path, columns):
    with tidelake.open(tmp_path / "lake", config=BUSY) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        steps = c.listen(lower=0, staged=True, timeout_s=0, columns=columns)
        for n in range(4):
            c.stage(pa.table({"id": [n, n], "v": ["x", "y"], "_time": [n, n + 10]}))
        assert len(told([next(steps)])[0]) == 8
        c.seal(2)
        assert told([next(steps)]) == ["[2]"]
        before = {one.name for one in c.state().staged}
        assert Drainer(shard_of(c)).run().rows_read
        drained = {one.name for one in c.state().staged}
        for n in range(4, 9):
            c.stage(pa.table({"id": [n, n], "v": ["x", "y"], "_time": [n + 10, n + 10]}))
        combined = {one.name for one in c.state().staged}
        assert before != drained and not drained <= combined
        (found,) = told([next(steps)])
        assert [(row[0], row[-2], row[-1]) for row in found] == [
            (n, n + 10, 1) for n in range(4, 9) for _ in "xy"
        ]
        assert {len(row) for row in found} == {3 if columns else 4}
        c.seal(20)
        c.maintain()
        c.merge()
        assert told(steps) == ["[20]"]


def test_what_was_told_is_kept_until_it_is_sealed():
    place = Kept()
    lake, c = place.made(appends=1)
    c.stage(at(1_000, 1))
    c.stage(pa.table({"id": [2, 3], "v": ["x", "x"], "_time": [1_000, 2_000]}))
    steps = c.listen(lower=500, staged=True, timeout_s=10 * AGE_S)
    assert len(told([next(steps)])[0]) == 3
    other = place.process().collection("c")

    def later():
        other.seal(1_500)
        other.maintain()
        place.pass_s(3 * AGE_S, lake)
        # The part that was told is in no state any more, and is needed to know what is new.
        place.collect(other)
        other.stage(at(3_000, 4))

    # While it waits.
    with before(place.clock, "sleep", later):
        assert told([next(steps)]) == [[(4, "x", 3_000, 1)]]
    assert next(steps) == Sealed(Frontier.of(1_500))
    steps.close()
    assert not c.state().holds


def test_rows_of_transactions_are_told_when_they_are_decided(lake):
    a, _ = (lake.create(name, SCHEMA, key=["id"]) for name in "ab")
    steps = a.listen(lower=0, staged=True, timeout_s=0)
    lake.write({"a": at(0, 1), "b": at(0, 1)})
    lake.write({"a": at(3, 2), "b": at(3, 2)})
    found = told(steps)
    assert found[:-1] == [[(1, "x", 0, 1), (2, "x", 3, 1)]] and found[-1] == str(a.upper)


def test_columns_may_come_and_go_and_erased_rows_are_taken_back(collection):
    steps = collection.listen(lower=0, staged=True, timeout_s=0)
    collection.stage(at(5, 1, 2))
    assert len(told([next(steps)])[0]) == 2
    collection.evolve(SCHEMA.append(pa.field("more", pa.int64())))
    collection.stage(at(6, 3))
    assert told([next(steps)]) == [[(3, "x", None, 6, 1)]]
    collection.erase([1], reason="asked")
    assert told(steps) == [[(1, "x", None, 5, -1)]]


TIMES = st.integers(0, 9)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("stage"), st.lists(st.integers(0, 9), min_size=1, max_size=4), st.sampled_from([1, -1])
        ),
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("seal"), st.integers(0, 4)),
        st.tuples(st.sampled_from(["look", "gather", "drain", "merge", "maintain", "since"])),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.promise(
    "A listener with `staged=True` gets every update once, as soon as it is staged or appended, and "
    "then the frontier that closes its time, whatever is combined, drained, merged and collected "
    "meanwhile; one that begins again at the last sealed frontier gets what was not sealed",
    rule="`shard/reading/unsealed.py`, `minus` in `shard/runs/difference.py`",
    also=[
        "::test_what_was_combined_or_drained_is_not_told_again",
        "::test_what_was_told_is_kept_until_it_is_sealed",
        "::test_a_listener_that_begins_again_gets_what_was_not_sealed",
        "::test_rows_of_transactions_are_told_when_they_are_decided",
    ],
)
@pytest.mark.grows
@given(actions=ACTIONS, columns=st.sampled_from([None, ["id"]]), restarts=st.booleans(), often=st.booleans())
def test_each_update_is_told_once_whatever_becomes_of_it(actions, columns, restarts, often):
    with tidelake.open("memory://listening", config=BUSY) as lake:
        c = lake.create("c", SCHEMA, key=["id"], allow_recreate=True)
        try:
            _live(c, actions, columns, restarts=restarts, often=often)
        finally:
            lake.drop("c")


def _live(c, actions, columns, *, restarts, often):
    expected, heard, sealed = Counter(), Counter(), 0

    def listen():
        return c.listen(lower=sealed, staged=True, timeout_s=0, columns=columns)

    def is_done():
        return heard == expected and str(c.upper) == f"[{sealed}]"

    steps = listen()
    looked = [one for action in actions for one in (action, ("look",))]
    for action in looked if often else [*actions, ("look",)]:
        upper = c.upper.elements[0]
        match action:
            case ("stage", times, diff):
                rows = {"id": [t % 3 for t in times], "v": ["x"] * len(times)}
                rows |= {"_time": [upper + t for t in times], "_diff": [diff] * len(times)}
                c.stage(pa.table(rows))
                for t in times:
                    expected[t % 3, upper + t] += diff
            case ("append", ahead):
                c.append(at(upper + ahead, 1))
                expected[1, upper + ahead] += 1
            case ("seal", ahead):
                c.seal(upper + ahead)
            case ("look",):
                if restarts:
                    # A process that is killed forgets what was not sealed, and is told it again.
                    steps.close()
                    heard = Counter({row: n for row, n in heard.items() if row[1] < sealed})
                    steps = listen()
                while not is_done():
                    step = next(steps)  # its end is a failure: it has not told all
                    if isinstance(step, Sealed):
                        sealed = step.upper.elements[0]
                        continue
                    for row in step.updates.read_all().to_pylist():
                        assert row["_time"] >= sealed and ("v" in row) == (columns is None)
                        heard[row["id"], row["_time"]] += row["_diff"]
            case ("gather",):
                Drainer(shard_of(c)).make_room()
            case ("drain",):
                Drainer(shard_of(c)).run()
            case ("merge",):
                c.merge()
            case ("maintain",):
                c.maintain()
            case ("since",):
                c.advance_since(max(0, upper - 1))
    assert list(steps) == []

"""Following a collection: contents, then every update once, each before the upper that closes it."""

import threading
import uuid
from collections import Counter

import pyarrow as pa
import pytest

import tidelake
from tables import SCHEMA, at, contents, rows
from tidelake.config import Config
from tidelake.errors import Closed, HistoryCompacted, NotYetClosed, UsageError
from tidelake.model.frontier import Frontier


def told(steps):
    """All steps: their frontiers, and their updates as (id, time, diff)."""
    found = []
    for step in steps:
        table = step.updates.read_all().to_pylist()
        updates = [(row["id"], row["_time"], row["_diff"]) for row in table]
        found.append((str(step.lower), str(step.upper), updates))
    return found


def test_a_subscription_tells_the_contents_and_then_every_later_time(collection):
    collection.append(rows(1, 2))
    collection.append(at(1, 1, diff=-1))
    steps = collection.subscribe(timeout_s=0)
    first = next(steps)
    assert (str(first.lower), str(first.upper)) == ("[0]", "[2]")
    assert first.updates.read_all()["id"].to_pylist() == [2]
    collection.append(at(5, 3))
    collection.append(rows(4))
    assert told(steps) == [("[2]", "[7]", [(3, 5, 1), (4, 6, 1)])]
    assert not collection.state().holds


def test_a_subscription_may_begin_earlier_and_end_at_a_time(collection):
    for n in range(6):
        collection.append(rows(n))
    assert told(collection.subscribe(1, until=4)) == [
        ("[0]", "[2]", [(0, 1, 1), (1, 1, 1)]),
        ("[2]", "[4]", [(2, 2, 1), (3, 3, 1)]),
    ]
    assert told(collection.subscribe(3, until=2)) == [("[0]", "[4]", [(n, 3, 1) for n in range(4)])]
    only = collection.subscribe(4, until=6, where="id < 1 OR id = 5", columns=[])
    assert [step.updates.read_all().to_pylist() for step in only] == [
        [{"_time": 4, "_diff": 1}],
        [{"_time": 5, "_diff": 1}],
    ]


def test_a_subscription_to_what_is_still_empty_begins_with_the_first_time(collection):
    assert told(collection.subscribe(timeout_s=0)) == []
    steps = collection.subscribe(until=1)
    collection.append(rows(1))
    assert told(steps) == [("[0]", "[1]", [(1, 0, 1)])]


def test_a_subscription_waits_for_the_time_that_it_is_to_begin_with(collection):
    collection.append(rows(1))
    with pytest.raises(NotYetClosed):
        next(collection.subscribe(3, timeout_s=0))
    with pytest.raises(NotYetClosed):
        collection.subscribe(3)
    steps = collection.subscribe(3, until=5, timeout_s=60)
    timer = threading.Timer(0.1, lambda: collection.append(at(3, 2), upper=9))
    timer.start()
    assert told(steps) == [("[0]", "[4]", [(1, 3, 1), (2, 3, 1)]), ("[4]", "[5]", [])]
    timer.join()


def test_listening_begins_after_a_time_or_with_one(collection):
    for n in range(4):
        collection.append(rows(n))
    whole = ("[1]", "[4]", [(n, n, 1) for n in range(1, 4)])
    assert told(collection.listen(0, timeout_s=0)) == [whole]
    assert told(collection.listen(lower=1, timeout_s=0)) == [whole]
    assert told(collection.listen(lower=0, until=2)) == [("[0]", "[2]", [(0, 0, 1), (1, 1, 1)])]
    assert told(collection.listen(lower=2, until=2)) == []
    with collection.reader("test") as reader:
        assert told(reader.listen(1, until=3, where="id = 2")) == [("[2]", "[3]", [(2, 2, 1)])]
    for wrong in ({}, {"as_of": 1, "lower": 1}):
        with pytest.raises(UsageError, match="either as_of"):
            collection.listen(**wrong)


def test_what_can_no_longer_be_told_is_refused_at_once(collection):
    for n in range(4):
        collection.append(rows(n))
    collection.advance_since(2)
    before = collection.state().seqno
    for call in (
        lambda: collection.subscribe(1),
        lambda: collection.listen(1),
        lambda: collection.listen(lower=2),
    ):
        with pytest.raises(HistoryCompacted):
            call()
    assert collection.state().seqno == before
    # To ask for updates "at since" is what was refused.
    for call in (lambda: collection.updates(2, 4), lambda: collection.listen(lower=2)):
        with pytest.raises(HistoryCompacted, match="begin after it"):
            call()
    assert told(collection.subscribe(2, until=4))[1] == ("[3]", "[4]", [(3, 3, 1)])
    assert told(collection.listen(lower=3, until=4)) == [("[3]", "[4]", [(3, 3, 1)])]


def test_tuples_are_subscribed_to_at_a_time(lake):
    c = lake.create("t", SCHEMA, key=["id"], time="tuple(2)")
    table = rows(1, 2, _time_0=pa.array([0, 3], pa.int64()), _time_1=pa.array([2, 0], pa.int64()))
    c.compare_and_append(table, (0, 0), [(4, 0), (0, 5)])
    steps = c.subscribe((3, 1), timeout_s=0)
    first = next(steps)
    assert first.upper == Frontier.past((3, 1))
    assert first.updates.read_all()["id"].to_pylist() == [2]
    (second,) = [step.updates.read_all()["id"].to_pylist() for step in steps]
    assert second == [1]
    with pytest.raises(UsageError, match="give as_of"):
        next(c.subscribe())


def test_a_subscription_is_held_from_its_contents_on(collection):
    for n in range(3):
        collection.append(rows(n))
    steps = collection.subscribe(1, timeout_s=0)
    contents_ = next(steps)
    assert str(collection.advance_since(2)) == "[1]"
    collection.append(rows(3))
    collection.advance_since(3)
    collection.merge()
    assert contents_.updates.read_all()["id"].to_pylist() == [0, 1]
    assert told(steps) == [("[2]", "[4]", [(2, 2, 1), (3, 3, 1)])]
    assert str(collection.since) == "[3]"


def test_a_subscription_that_is_left_gives_its_hold_up(collection):
    collection.append(rows(1))
    steps = collection.subscribe()
    assert not collection.state().holds
    next(steps)
    assert len(collection.state().holds) == 1
    steps.close()
    assert not collection.state().holds


class _Followed:
    """What a subscriber was told, judged as it comes."""

    def __init__(self):
        self.sum, self.upper, self.steps = Counter(), Frontier.of(0), 0

    def follow(self, steps):
        for step in steps:
            assert step.lower == self.upper
            table = step.updates.read_all()
            times = table["_time"].to_pylist()
            # Nothing comes after the upper that closes it, and the contents are as of the last time.
            if self.steps or step.lower != Frontier.of(0):
                assert all(step.lower.less_equal(t) and not step.upper.less_equal(t) for t in times)
            for row in table.to_pylist():
                self.sum[row["id"], row["v"]] += row["_diff"]
            self.upper, self.steps = step.upper, self.steps + 1


@pytest.mark.promise(
    "A subscriber gets the contents and then every update once, no later than the upper that closes "
    "it, whatever is appended, merged and folded meanwhile",
    rule="`lake/api/following.py`, `Reader.follow`",
    also=["::test_a_subscription_is_held_from_its_contents_on", "cli/test_tail_command.py"],
)
@pytest.mark.full
def test_subscribers_beside_appends_merges_and_since_miss_nothing_and_get_nothing_twice():
    url = f"memory://{uuid.uuid4().hex}"
    config = Config(inline_part_bytes=64, merge_budget_s=0.01, poll_interval_s=0.01, garbage_age_s=0.2)
    keep = tidelake.open(url, config=config)
    keep.create("c", SCHEMA, key=["id"])
    end = 10_000
    done, failures = threading.Event(), []
    subscribers = [_Followed() for _ in range(4)]

    def write(c, who):
        for n in range(60):
            c.append(rows(*range(who * 1000, who * 1000 + n % 7), v=f"{n % 3}"))
            if n % 4 == 3:
                c.append(rows(who * 1000, v="0", _diff=pa.array([-1], pa.int64())))

    def fold(c, _who):
        while not done.wait(0.002):
            last = c.upper.just_before()
            c.advance_since(last)
            c.maintain()

    def subscribe(c, who):
        # Some from the beginning, some of what is there when they come.
        done.wait(0.05 * who)
        subscribers[who].follow(c.subscribe(until=end))

    def guarded(work, who):
        try:
            with tidelake.open(url, config=config) as lake:
                work(lake.collection("c"), who)
        except BaseException as error:
            failures.append(error)
            raise

    def started(work, count):
        threads = [threading.Thread(target=guarded, args=(work, who), daemon=True) for who in range(count)]
        for thread in threads:
            thread.start()
        return threads

    reading, folding, writing = started(subscribe, 4), started(fold, 1), started(write, 3)
    for thread in writing:
        thread.join(60)
    c = keep.collection("c")
    empty = pa.table({"id": [], "v": [], "_time": []}, pa.schema([*SCHEMA, ("_time", pa.int64())]))
    c.append(empty, upper=end)
    for thread in reading:
        thread.join(60)
    done.set()
    for thread in folding:
        thread.join(60)
    assert not failures
    wanted = contents(c)
    assert wanted
    for one in subscribers:
        assert one.upper == Frontier.of(end)
        assert {key: n for key, n in one.sum.items() if n} == wanted
    assert max(one.steps for one in subscribers) > 5
    assert not c.state().holds
    keep.close()


def test_a_subscription_ends_with_closed_when_its_lake_is_closed(lake, collection):
    collection.append(rows(1))
    steps = collection.subscribe()
    next(steps)
    timer = threading.Timer(0.1, lake.close)
    timer.start()
    with pytest.raises(Closed):
        next(steps)
    timer.join()

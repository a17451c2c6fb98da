"""Commands that arrive together: one commit, an answer for each, and what becomes of them when it fails."""

import linecache
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import Place

import inside
import tidelake
from clocks import MovedClock
from tables import SCHEMA, ids, rows
from threads import at_once
from tidelake.config import Config
from tidelake.env import Counters, Env
from tidelake.errors import (
    CollectionDropped,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.history import History
from tidelake.shard.engine.requestqueue import CommitRequest, Request, RequestQueue
from tidelake.shard.runs.upload import normalized, write_table
from tidelake.state.core import codec
from tidelake.state.core.commands import Commit, Refused, open_writer
from tidelake.state.core.edits import Edits, apply
from tidelake.state.life import dropping
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import AtCommit, Exactly, Write
from tidelake.state.write.write import commit as committed
from tiers import examples

# Only what the appends themselves write.
PLAIN = Config(merge_budget_s=0, runs_max=2**30, rollup_bytes_min=2**30)


class Bay:
    """A collection whose log stops at a compare-and-set of some shard until the test lets it go on."""

    def __init__(self):
        self.place = Place()
        self.lake = self.place.lake(config=PLAIN)
        self.c = self.lake.create("c", SCHEMA, key=["id"])
        self.c.append(rows(0))
        self.shard = inside.shard(self.c)
        self.armed, self.stopped, self.go_on = False, threading.Event(), threading.Event()
        self.then = []
        self._whole = self.place.stores.log.compare_and_set
        self.place.stores.log.compare_and_set = self._stopping
        self.threads, self.answers = [], {}

    def _stopping(self, key, expected, data):
        if key != self.c.id:
            return self._whole(key, expected, data)
        if self.armed and not self.stopped.is_set():
            self.stopped.set()
            assert self.go_on.wait(60)
        elif self.then:
            return self.then.pop(0)(lambda: self._whole(key, expected, data))
        return self._whole(key, expected, data)

    def start(self, name, work):
        """Begin something in a thread of its own, and wait until it waits for the one that leads."""
        before, self.armed = self.line.count(), True

        def run():
            try:
                self.answers[name] = work()
            except BaseException as error:
                self.answers[name] = error

        thread = threading.Thread(target=run)
        self.threads.append(thread)
        thread.start()
        if len(self.threads) == 1:
            assert self.stopped.wait(60)
        else:
            self.until(lambda: self.line.count() > before)

    @property
    def line(self):
        return self.shard.group_commit.commits._lines.get()

    @staticmethod
    def until(reached):
        deadline = time.monotonic() + 60
        while not reached():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def finish(self):
        self.go_on.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.answers

    def entries(self):
        """The deltas of the log; the first one says that the collection has its name."""
        found = self.place.stores.log.scan(self.c.id, 1)
        return [codec.decode_delta(entry.data, "entry") for entry in found]

    def check(self):
        """Other processes see what this one knows, and find nothing wrong."""
        known = self.shard.group_commit.newest.state
        # What is read of it is read from this state on, at the earliest.
        assert all(member.added <= known.seqno for member in known.spine)
        other = self.place.lake()
        assert other.collection("c").state() == known
        assert [f for f in other.fsck().findings if not f.note] == []
        assert codec.decode_state(codec.encode_state(known), "state") == known


@pytest.fixture
def bay():
    return Bay()


def offer(bay, *of):
    return partial(bay.c.append, rows(*of))


# One commit for all


@pytest.mark.promise(
    "Commands that arrive together from threads of one process are one log write, each with the "
    "answer that it would have got one by one",
    rule="`shard/engine/requestqueue.py`, `Machine`",
    also=[
        "::test_a_round_answers_and_leaves_what_its_commands_would_one_by_one",
        "::test_handles_of_one_lake_commit_together_and_those_of_two_lakes_do_not",
    ],
)
def test_commands_that_wait_are_committed_by_one_log_write_each_with_its_own_answer(bay):
    bay.start("first", offer(bay, 1))
    for n in range(2, 10):
        bay.start(n, offer(bay, n))
    answers = bay.finish()
    assert ids(bay.c) == dict.fromkeys(range(10), 1)
    assert [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1, 8]
    times = sorted(answer.lower.elements[0] for answer in answers.values())
    assert times == list(range(1, 10))
    stored = {r["id"]: r["_time"] for r in bay.c.updates(0, bay.c.upper).read_all().to_pylist()}
    assert {n: answers[n].lower.elements[0] for n in range(2, 10)} == {n: stored[n] for n in range(2, 10)}
    bay.check()


def test_handles_of_one_lake_commit_together_and_those_of_two_lakes_do_not(bay):
    bay.start("first", offer(bay, 1))
    handles = [bay.lake.collection("c") for _ in range(3)]
    for n, handle in enumerate(handles, 2):
        bay.start(n, partial(handle.append, rows(n)))
    bay.finish()
    assert [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1, 3]
    # Each knows what was committed for it.
    assert {inside.shard(handle).known().seqno for handle in handles} == {4}
    other = bay.place.lake().collection("c")
    assert inside.shard(other).group_commit is not bay.shard.group_commit
    bay.check()


@pytest.mark.promise(
    "A command that is refused or raises does not affect the commands beside it; each is checked "
    "against the rules separately",
    rule="`Machine._attempt`",
    also=["::test_no_request_commits_after_a_drop_in_the_same_round"],
)
def test_one_that_fails_does_its_neighbours_no_harm(bay):
    old = bay.c.writer("w")
    new = bay.lake.collection("c").writer("w")
    new.append(rows(100))
    before = bay.c.upper.elements[0]
    bay.start("first", offer(bay, 1))

    def numbered(epoch, sequence):
        write = Write((), AtCommit(0), IdempotencyKey("w", epoch, sequence))
        return run(partial(committed, write=write))

    def broken(_state, _now_ms):
        raise ZeroDivisionError("a bug")

    def misfit(_state, _now_ms):
        return Commit(Edits(holds={"none": None}), None)

    def run(command):
        return partial(bay.shard.run, command)

    bay.start("second", offer(bay, 2))
    bay.start("fenced", numbered(old.epoch, 1))
    bay.start("broken", run(broken))
    bay.start("late", lambda: bay.shard.run(exactly(0)))
    bay.start("misfit", run(misfit))
    bay.start("numbered", numbered(new.epoch, 7))
    bay.start("again", numbered(new.epoch, 7))
    bay.start("third", offer(bay, 3))
    answers = bay.finish()
    assert isinstance(answers["fenced"], WriterFenced) and isinstance(answers["broken"], ZeroDivisionError)
    assert isinstance(answers["late"], UpperMismatch) and isinstance(answers["misfit"], TidelakeError)
    # It was told of the upper that those before it made.
    assert answers["late"].current.elements == (before + 2,)
    assert not answers["numbered"].already and answers["again"].already
    assert [answers[n].lower.elements[0] for n in ("first", "second", "third")] == [
        before,
        before + 1,
        before + 3,
    ]
    assert len(bay.entries()[-1].steps) == 3
    bay.check()


def test_no_request_commits_after_a_drop_in_the_same_round(bay):
    bay.start("first", offer(bay, 1))
    bay.start("second", offer(bay, 2))
    bay.start("drop", partial(bay.shard.run, dropping.drop_shard))
    bay.start("third", offer(bay, 3))
    answers = bay.finish()
    assert answers["drop"] is True and isinstance(answers["third"], CollectionDropped)
    assert "'c'" in str(answers["third"])
    assert not isinstance(answers["second"], BaseException)
    last = bay.entries()[-1]
    assert [edits.dropped for edits in last.steps] == [False, True]
    assert History(bay.c.id, bay.place.stores, Env()).dropped_ms() == last.committed_ms


@pytest.mark.promise(
    "A command that uses the state that it is decided on, such as a reader that pins it, is committed alone",
    rule="`Machine.run` (`alone`)",
)
def test_what_uses_the_state_that_it_sees_is_committed_alone(bay):
    """A reader reads the very state that it pins."""
    bay.start("first", offer(bay, 1))
    bay.start("second", offer(bay, 2))
    bay.start("reader", lambda: bay.c.reader("r"))
    bay.start("third", offer(bay, 3))
    reader = bay.finish()["reader"]
    assert [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1, 2, 1]
    (hold,) = bay.shard.known().holds.values()
    assert set(hold.pins) <= {delta.seqno for delta in bay.entries()}
    assert set(ids_of(reader.snapshot())) == {0, 1, 2, 3}
    reader.close()


def test_commands_of_one_thread_share_a_commit_with_those_of_others(bay):
    bay.start("first", offer(bay, 1))
    bay.start("second", offer(bay, 2))
    writers = [partial(open_writer, name=name) for name in "vvw"]
    bay.start("together", partial(bay.shard.run_together, writers))
    bay.start("third", offer(bay, 3))
    answers = bay.finish()
    assert [record.epoch for record in answers["together"]] == [0, 1, 0]
    assert [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1, 5]
    assert ids(bay.c) == dict.fromkeys(range(4), 1)
    bay.check()


def test_a_refusal_among_the_commands_of_one_thread_is_raised_and_the_others_are_in(bay):
    def refused(_state, _now_ms):
        return Refused(UsageError("no"))

    writers = [partial(open_writer, name=name) for name in "vw"]
    with pytest.raises(UsageError, match="no"):
        bay.shard.run_together([writers[0], refused, writers[1]])
    assert set(bay.c.state().writers) == {"v", "w"}
    bay.check()


def ids_of(answer):
    return answer.read_all()["id"].to_pylist()


def test_the_rollup_that_is_due_is_written_by_one(bay):
    bay.shard._machine._config = Config(rollup_bytes_min=1024)
    before = bay.lake.counts["blob.put"]
    bay.start("first", offer(bay, 1))
    for n in range(2, 12):
        bay.start(n, offer(bay, n))
    bay.finish()
    appends = [sum(edits.upper is not None for edits in delta.steps) for delta in bay.entries()]
    assert max(appends) == 10
    # The first one alone may have made one due, and the ten together another.
    assert 1 <= bay.lake.counts["blob.put"] - before <= 2
    bay.check()


# When the storage fails


@pytest.mark.promise(
    "If the store fails, all of them get the error, and memory agrees with the durable log; a lost "
    "reply is decided for all",
    rule="`Machine._carry_out`, `History.commit`",
    also=[
        "::test_a_lost_reply_of_a_round_is_decided_for_all",
        "::test_a_store_that_stays_silent_leaves_all_unsure_and_named_writers_learn_what_is_in",
        "::test_a_round_that_another_process_was_faster_than_is_decided_again",
    ],
)
def test_if_the_store_fails_all_hear_of_it_and_nothing_is_in(bay):
    def refuses(_write):
        raise StoreUnavailable("the disk is full")

    bay.then.append(refuses)
    bay.start("first", offer(bay, 1))
    for n in range(2, 6):
        bay.start(n, offer(bay, n))
    answers = bay.finish()
    errors = [answers[n] for n in range(2, 6)]
    assert all(isinstance(error, StoreUnavailable) for error in errors)
    assert len({id(error) for error in errors}) == 4 and {str(error) for error in errors} == {str(errors[0])}
    assert ids(bay.c) == {0: 1, 1: 1} and [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1]
    bay.check()
    bay.c.append(rows(2))
    assert ids(bay.c) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("is_in", [False, True])
def test_a_lost_reply_of_a_round_is_decided_for_all(bay, is_in):
    def silent(write):
        if is_in:
            assert write()
        raise OutcomeUnknown("no answer")

    bay.then.append(silent)
    bay.start("first", offer(bay, 1))
    for n in range(2, 6):
        bay.start(n, offer(bay, n))
    answers = bay.finish()
    assert not any(isinstance(answer, BaseException) for answer in answers.values())
    assert ids(bay.c) == dict.fromkeys(range(6), 1)
    assert [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1, 4]
    bay.check()


def test_a_store_that_stays_silent_leaves_all_unsure_and_named_writers_learn_what_is_in(bay):
    writers = [bay.lake.collection("c").writer(f"w{n}") for n in range(3)]

    def silent(_write):
        raise OutcomeUnknown("no answer")

    bay.then += [silent] * 40
    bay.start("first", offer(bay, 1))
    for n, writer in enumerate(writers):
        bay.start(n, partial(writer.append, rows(10 + n)))
    answers = bay.finish()
    assert all(isinstance(answers[n], OutcomeUnknown) for n in range(3))
    bay.then.clear()
    for n in range(3):
        assert bay.place.lake().collection("c").writer(f"w{n}").last_sequence is None
    assert ids(bay.c) == {0: 1, 1: 1}


def test_a_round_that_another_process_was_faster_than_is_decided_again(bay):
    elsewhere = bay.place.lake(config=PLAIN).collection("c")

    def late(write):
        elsewhere.append(rows(50))
        return write()

    bay.then.append(late)
    bay.start("first", offer(bay, 1))
    for n in range(2, 5):
        bay.start(n, offer(bay, n))
    bay.start("exactly", lambda: bay.shard.run(exactly(2)))
    answers = bay.finish()
    # It was true of the state that the round was decided on first.
    assert isinstance(answers["exactly"], UpperMismatch) and answers["exactly"].current.elements == (6,)
    assert {answers[n].lower.elements[0] for n in range(2, 5)} == {3, 4, 5}
    assert [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1, 1, 3]
    bay.check()


def exactly(lower):
    return partial(committed, write=Write((), Exactly(Frontier.of(lower), Frontier.of(lower + 1))))


# Threads that end


@pytest.mark.promise(
    "A thread that is interrupted, even in the middle of the commit, leaves no other thread without "
    "an answer",
    rule="`RequestQueue`, `History.resume`",
    also=[
        "::test_a_leader_that_is_interrupted_while_it_decides_leaves_the_others_to_the_next",
        "::test_one_thread_leads_while_any_waits",
        "::test_a_thread_that_is_interrupted_while_it_leaves_stops_no_other_one",
    ],
)
@pytest.mark.parametrize("is_in", [False, True])
def test_a_leader_that_is_interrupted_at_the_store_leaves_no_request_without_an_answer(bay, is_in):
    def interrupted(write):
        if is_in:
            assert write()
        raise KeyboardInterrupt

    bay.then.append(interrupted)
    bay.start("first", offer(bay, 1))
    for n in range(2, 7):
        bay.start(n, offer(bay, n))
    answers = bay.finish()
    stopped = [n for n, answer in answers.items() if isinstance(answer, KeyboardInterrupt)]
    assert stopped == [2]
    told = [n for n, answer in answers.items() if not isinstance(answer, BaseException)]
    assert sorted(map(str, told)) == ["3", "4", "5", "6", "first"]
    # All that were answered are in once. So is the interrupted one: it is not taken out again.
    assert ids(bay.c) == dict.fromkeys(range(7), 1)
    assert [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1, 5]
    bay.check()
    bay.c.append(rows(7))


def test_a_leader_that_is_interrupted_while_it_decides_leaves_the_others_to_the_next(bay):
    interrupts = iter([KeyboardInterrupt()])

    def command(state, _now_ms):
        for error in interrupts:
            raise error
        return open_writer(state, 0, "w")

    bay.start("first", offer(bay, 1))
    bay.start("second", offer(bay, 2))
    bay.start("command", lambda: bay.shard.run(command))
    bay.start("third", offer(bay, 3))
    answers = bay.finish()
    assert isinstance(answers["second"], KeyboardInterrupt)
    assert answers["command"].epoch == 0 and not isinstance(answers["third"], BaseException)
    assert ids(bay.c) == {0: 1, 1: 1, 3: 1}
    bay.check()


class Odd(Exception):
    """Cannot be copied: what it is made from is not what it holds."""

    def __init__(self, text, *, code):
        super().__init__(text)
        self.code = code


@pytest.mark.parametrize("error", [Odd("gone", code=7), StoreUnavailable("gone")])
def test_all_hear_the_error_of_the_store_also_if_it_cannot_be_copied(bay, error):
    def failing(_write):
        raise error

    bay.start("first", offer(bay, 1))
    for name in ("second", "third"):
        bay.start(name, offer(bay, ord(name[0])))
    bay.then = [failing] * 2
    answers = bay.finish()
    assert not isinstance(answers["first"], BaseException)
    heard = [answers["second"], answers["third"]]
    assert [(type(one), str(one)) for one in heard] == [(type(error), str(error))] * 2
    assert ids(bay.c) == {0: 1, 1: 1}
    bay.check()


def test_a_thread_that_leaves_while_it_waits_is_not_waited_for():
    line = RequestQueue()._lines.get()
    leader, waiting, gone, last = (Request() for _ in range(4))
    assert line.enter(leader) is None
    for request in (waiting, gone, last):
        assert not line.enter(request).acquire(blocking=False)
    # Interrupted: before it was taken, or after.
    line.leave(waiting, [])
    taken = line.take(leader, 2)
    assert taken == [leader, gone]
    line.leave(gone, [])
    # The leader fails without an answer: one that is still there leads.
    line.leave(leader, taken)
    assert last.guard.acquire(blocking=False)
    assert line.take(last, 10) == [last]
    last.answered = True
    line.leave(last, [last])
    assert line.enter(Request()) is None


def test_a_thread_that_leaves_when_it_is_to_lead_hands_that_on():
    line = RequestQueue()._lines.get()
    leader, second, third = (Request() for _ in range(3))
    line.enter(leader)
    line.enter(second)
    line.enter(third)
    leader.answered = True
    line.leave(leader, [leader])
    assert second.guard.acquire(blocking=False) and not third.guard.acquire(blocking=False)
    line.leave(second, [])
    assert third.guard.acquire(blocking=False)


@given(st.data())
@settings(max_examples=examples(200))
def test_one_thread_leads_while_any_waits(data):
    """All interleavings of calls of a line; of each thread the next call is one that it may make."""
    line, alive, leading = RequestQueue()._lines.get(), [], {}
    for _ in range(data.draw(st.integers(1, 40))):
        free = [r for r in alive if r.guard is None or r.guard.acquire(blocking=False)]
        for request in free:
            leading.setdefault(id(request), None)
            request.guard = None
        leaders = [r for r in free if not r.answered]
        assert len(leaders) <= 1
        assert leaders or not alive or any(r.answered for r in free)
        choice = data.draw(st.sampled_from(["come", "work", "fail", "interrupt", "end"]))
        if choice == "come":
            request = Request(alone=data.draw(st.booleans()))
            line.enter(request)
            alive.append(request)
        elif choice in ("work", "fail") and leaders:
            taken = line.take(leaders[0], data.draw(st.integers(1, 4)))
            for request in taken if choice == "work" else []:
                request.answered = True
            line.leave(leaders[0], taken)
            alive.remove(leaders[0])
        elif choice == "interrupt" and alive:
            request = data.draw(st.sampled_from(alive))
            line.leave(request, [])
            alive.remove(request)
        elif choice == "end":
            for request in [r for r in free if r.answered]:
                line.leave(request, [])
                alive.remove(request)


def test_a_leader_that_is_interrupted_leaves_commands_of_one_thread_together(bay):
    def interrupted(write):
        assert write()
        raise KeyboardInterrupt

    bay.then.append(interrupted)
    bay.start("first", offer(bay, 1))
    bay.start("second", offer(bay, 2))
    writers = [partial(open_writer, name=name) for name in "vw"]
    bay.start("together", partial(bay.shard.run_together, writers))
    answers = bay.finish()
    assert isinstance(answers["second"], KeyboardInterrupt)
    assert [record.epoch for record in answers["together"]] == [0, 0]
    assert [len(delta.steps) for delta in bay.entries()[1:]] == [1, 1, 3]
    assert ids(bay.c) == dict.fromkeys(range(3), 1)
    bay.check()


# What it costs


def test_a_hurried_thread_waits_for_no_other_and_says_nothing_about_them():
    clock = MovedClock()
    queue, rounds = RequestQueue(clock), []

    def carry_out(taken):
        if not rounds:
            Bay.until(lambda: queue._lines.get().count() == 3)
        rounds.append(len(taken))
        clock.ms += 20
        for request in taken:
            request.answered = True

    threads = [threading.Thread(target=queue.run, args=(Request(), carry_out)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(rounds) == [1, 2]

    def waited_ms(request):
        before = clock.ms
        queue.run(request, carry_out)
        return clock.ms - before - 20

    for _ in range(3):
        assert waited_ms(Request(hurried=True)) == 0
    assert waited_ms(Request()) > 0
    # No other came.
    assert waited_ms(Request()) == 0


def test_a_lone_thread_pays_nothing_for_it():
    place = Place()
    lake = place.lake(config=PLAIN)
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(0))
    before, slept_ms = dict(lake.counts), lake.clock.ms
    c.append(rows(1))
    spent = {name: n - before.get(name, 0) for name, n in lake.counts.items()}
    assert spent["log.compare_and_set"] == 1
    reads = ("log.newer", "log.keys", "log.head", "blob.list", "blob.put")
    assert not any(spent.get(name) for name in reads)
    assert lake.clock.ms == slept_ms
    # Nor does its entry say anything of rounds.
    assert b'"more"' not in place.stores.log.head(c.id).data


@pytest.mark.promise(
    "32 threads make at most one log write for 8 appends, merges and rollups aside; a lone thread "
    "pays nothing",
    rule="`RequestQueue`",
    also=[
        "::test_a_lone_thread_pays_nothing_for_it",
        "::test_threads_that_look_at_once_share_a_store_call",
        "::test_the_rollup_that_is_due_is_written_by_one",
    ],
)
@pytest.mark.full
def test_32_threads_make_at_most_one_log_write_for_8_appends(tmp_path):
    counters = Counters()
    with tidelake.open(tmp_path / "lake", config=PLAIN, env=Env(recorder=counters)) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        before, failures = counters.counts["log.compare_and_set"], []

        def work(n):
            for i in range(20):
                c.append(rows(n * 20 + i))

        at_once(work, range(32))
        assert not failures
        writes = counters.counts["log.compare_and_set"] - before
        assert writes * 8 <= 32 * 20
        assert ids(c) == dict.fromkeys(range(32 * 20), 1)
        stored = c.updates(0, c.upper).read_all()
        assert sorted(stored["_time"].to_pylist()) == list(range(32 * 20))


def test_threads_that_look_at_once_share_a_store_call():
    place = Place()
    lake = place.lake()
    lake.create("c", SCHEMA, key=["id"]).append(rows(0))
    handles = [lake.collection("c") for _ in range(9)]
    looks = inside.shard(handles[0]).group_commit.looks
    whole, stopped, go_on = place.stores.log.newer, threading.Event(), threading.Event()

    def newer(*args):
        if not stopped.is_set():
            stopped.set()
            assert go_on.wait(60)
        return whole(*args)

    place.stores.log.newer = newer
    before, seen = lake.counts["log.newer"], []
    threads = [threading.Thread(target=lambda c=c: seen.append(c.state().seqno)) for c in handles]
    threads[0].start()
    assert stopped.wait(60)
    for thread in threads[1:]:
        thread.start()
    Bay.until(lambda: looks._lines.get().count() == 9)
    # What is committed after they asked is seen by those that come in the next scan.
    newest = place.lake().collection("c")
    go_on.set()
    newest.append(rows(1))
    for thread in threads:
        thread.join()
    assert lake.counts["log.newer"] == before + 2
    assert len(seen) == 9


# The same as one by one

APPENDS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(0, 6)),
        st.one_of(st.none(), st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 3))),
    ),
    max_size=8,
)


@given(st.lists(APPENDS, max_size=4))
@settings(max_examples=examples(60))
def test_a_round_answers_and_leaves_what_its_commands_would_one_by_one(rounds):
    def commands(place, c, round_):
        """Appends at a commit or exactly at some time, by writers or without one."""
        for n, at, idempotency in round_:
            spec = inside.shard(c).version_of(inside.shard(c).known()).spec
            when = AtCommit(0) if at is None else Exactly(Frontier.of(at), Frontier.of(at + 1))
            table = normalized(spec, rows(*range(n)), 0 if at is None else at)
            runs = write_table(spec, place.stores.blobs, inside.shard(c).env, table)
            yield partial(committed, write=Write(runs, when, idempotency and IdempotencyKey(*idempotency)))

    answers, left = [], []
    for group_commit in (False, True):
        place = Place()
        c = place.lake(config=PLAIN).create("c", SCHEMA, key=["id"])
        for name in "ab":
            c.writer(name)
        machine, told = inside.shard(c)._machine, []
        for round_ in rounds:
            asked = [CommitRequest(machine, command, alone=False) for command in commands(place, c, round_)]
            for part in [asked] if group_commit else [[one] for one in asked]:
                machine._carry_out(part)
            for one in asked:
                try:
                    told.append(one.done().result)
                except TidelakeError as error:
                    told.append((type(error), str(error)))
        answers.append(told)
        updates = c.updates(0, c.upper).read_all().to_pylist() if c.upper.elements != (0,) else []
        state = c.state()
        left.append((updates, state.upper, dict(state.writers), state.written))
        other = History(c.id, place.stores, Env()).open()
        assert other.state == state
        if group_commit:
            assert state.seqno <= 3 + len(rounds)
    assert answers[0] == answers[1] and left[0] == left[1]


def test_the_steps_of_a_delta_lead_where_the_delta_does(bay):
    bay.start("first", offer(bay, 1))
    for n in range(2, 6):
        bay.start(n, offer(bay, n))
    first = codec.decode_state(bay.place.stores.log.scan(bay.c.id, 0, 1)[0].data, "first")
    bay.finish()
    state = first
    for delta in bay.entries():
        again = codec.decode_delta(codec.encode_delta(delta), "again")
        assert again == delta
        state = apply(state, delta)
    assert state == bay.c.state()


LEAVING = ("leave", "_open", "<dictcomp>", "<listcomp>")


def interrupting(at):
    """A tracer that interrupts a thread when it comes to a line while it leaves the queue, once."""
    left = [at]

    def trace(frame, event, _):
        inside = Path(frame.f_code.co_filename).name == "requestqueue.py" and frame.f_code.co_name in LEAVING
        if not inside:
            return None
        # Where a lock is taken or given back no interrupt can come between.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not text.startswith("with "):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize("answers", [1, 2])
def test_a_thread_that_is_interrupted_while_it_leaves_stops_no_other_one(answers):
    """Wherever the interrupt comes."""
    at = 0
    while True:
        at += 1
        queue = RequestQueue()
        first, others = Request(), [Request() for _ in range(3)]
        rounds, stopped = [], []

        def carry_out(requests, first=first, rounds=rounds):
            rounds.append(list(requests))
            for request in requests[: answers if first in requests else None]:
                request.answered = True

        def interrupted(at=at, queue=queue, first=first, carry_out=carry_out, stopped=stopped):
            sys.settrace(interrupting(at))
            try:
                queue.run(first, carry_out)
            except KeyboardInterrupt:
                stopped.append(at)
            finally:
                sys.settrace(None)

        queue._before = lambda queue=queue, first=first: until(lambda: first.gone or lined(queue) == 3)
        threads = [threading.Thread(target=interrupted, daemon=True)]
        threads[0].start()
        until(lambda queue=queue: queue._lines.get()._leader is not None)
        threads += [threading.Thread(target=queue.run, args=(o, carry_out), daemon=True) for o in others]
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), at
        assert all(request.answered for request in others)
        assert all(len(set(map(id, together))) == len(together) for together in rounds)
        assert queue._lines.get()._leader is None and not lined(queue)
        if not stopped:
            break
    assert at > 12


def lined(queue):
    return len(queue._lines.get()._waiting)


def until(holds):
    while not holds():
        time.sleep(0.001)

import gc
import os
import signal
import threading
import time
import weakref
from contextvars import ContextVar
from functools import partial

import pytest

from tidelake.errors import UsageError
from tidelake.shard.engine.overlap import Background, beside, mapped, prefetch, prefetch_all, sequential


def threads():
    return [t for t in threading.enumerate() if t.name in ("tidelake-prefetch", "tidelake-background")]


@pytest.mark.promise(
    "Reading ahead and background work change no answer, and their threads end, also if their "
    "caller is interrupted while they start",
    rule="`shard/engine/overlap.py`",
    also=["shard/test_overlap.py"],
)
def test_items_come_in_order_and_the_thread_ends():
    assert list(prefetch(range(100), 3)) == list(range(100))
    assert not threads()


def test_an_error_comes_after_the_items_before_it():
    def source():
        yield 1
        raise KeyError("lost")

    items = prefetch(source())
    assert next(items) == 1
    with pytest.raises(KeyError, match="lost"):
        next(items)
    assert not threads()


def test_closing_early_stops_the_thread_and_closes_the_source():
    made, closed = [], []

    def source():
        try:
            for i in range(1000):
                made.append(i)
                yield i
        finally:
            closed.append(threading.current_thread().name)

    items = prefetch(source(), 2)
    assert next(items) == 0
    items.close()
    assert len(made) <= 4
    assert closed == ["tidelake-prefetch"]
    assert not threads()


@pytest.fixture
def interrupted(monkeypatch):
    """The caller of a thread is interrupted as soon as the thread runs."""
    start = threading.Thread.start

    def started(thread):
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", started)


def test_an_interrupt_while_its_thread_starts_ends_the_thread_and_closes_the_source(interrupted):
    closed = []

    def source():
        try:
            while True:
                yield 1
        finally:
            closed.append(1)

    first = source()
    next(first)
    with pytest.raises(KeyboardInterrupt):
        next(prefetch(first))
    assert closed == [1] and not threads()
    some = [source(), source()]
    for one in some:
        next(one)
    with pytest.raises(KeyboardInterrupt), prefetch_all(some, 2):
        pass
    assert closed == [1, 1, 1] and not threads()


def test_a_job_whose_caller_is_interrupted_while_it_starts_ends_before_close_does(interrupted):
    go, done, background = threading.Event(), [], Background(1, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        background.submit(lambda: go.wait() and done.append(1))
    go.set()
    background.close()
    assert done == [1] and not threads()


def test_it_runs_ahead_by_its_depth_only():
    made = []

    def source():
        for i in range(100):
            made.append(i)
            yield i

    items = prefetch(source(), 2)
    next(items)
    time.sleep(0.05)
    assert 2 <= len(made) <= 4
    items.close()


def test_no_thread_starts_before_the_first_item_is_asked_for():
    items = prefetch(range(3))
    assert not threads()
    items.close()


def test_jobs_run_beside_their_caller_as_many_as_may_be_and_no_more():
    stalls, go_on = [], threading.Event()

    def waiting():
        assert go_on.wait(30)
        return threading.current_thread().name

    background = Background(2, lambda: (stalls.append(1), go_on.set()))
    jobs = [background.submit(waiting) for _ in range(2)]
    assert not stalls and not any(job.done for job in jobs) and len(threads()) == 2
    third = background.submit(lambda: 3)  # had to wait
    assert stalls == [1]
    assert [job.result() for job in jobs] == ["tidelake-background"] * 2 and third.result() == 3
    background.close()
    background.close()
    assert not threads()


def test_an_error_of_a_job_is_raised_by_its_result_and_by_the_next_submit():
    def broken():
        raise KeyError("lost")

    background = Background(1, lambda: None)
    job = background.submit(broken)
    ran = []
    for _ in range(2):
        with pytest.raises(KeyError, match="lost"):
            background.submit(lambda: ran.append(1))
    with pytest.raises(KeyError, match="lost"):
        job.result()
    background.close()
    assert not ran and job.done and not threads()


def test_a_job_that_closes_its_own_background_does_not_wait_for_itself():
    background = Background(1, lambda: None)
    assert background.submit(background.close).result() is None
    background.close()
    assert not threads()


def test_a_job_lets_go_of_its_work_before_there_is_room_for_the_next():
    class Load:
        pass

    background = Background(1, lambda: None)
    load = Load()
    gone = weakref.ref(load)
    job = background.submit(lambda held=load: 1)
    del load
    background.close()
    gc.collect()
    assert job.result() == 1 and gone() is None


def test_what_is_read_ahead_is_refused_in_a_fork_and_goes_on_in_the_parent():
    ahead = prefetch(iter(range(100)))
    assert next(ahead) == 0
    pid = os.fork()
    if not pid:
        code = 1
        try:
            with pytest.raises(UsageError, match="a stream of rows does not survive a fork"):
                next(ahead)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert list(ahead) == list(range(1, 100))


def test_background_work_is_refused_in_a_fork():
    background = Background(1, lambda: None)
    pid = os.fork()
    if pid == 0:
        answer = 1
        try:
            background.submit(lambda: 1)
        except UsageError:
            background.close()
            answer = 0
        finally:
            os._exit(answer)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_many_sources_give_their_items_in_order_and_are_closed_at_the_end():
    closed = []

    def source(i):
        try:
            yield from range(i * 100, i * 100 + i)
        finally:
            closed.append(i)

    with prefetch_all([source(i) for i in range(20)], 3) as ahead:
        # The last first: none may wait for the ones before it.
        for i in reversed(range(10, 20)):
            assert list(ahead[i]) == list(range(i * 100, i * 100 + i))
        assert next(ahead[5]) == 500
    assert sorted(closed) == list(range(20))
    assert not [t for t in threading.enumerate() if t.name == "tidelake-prefetch"]


@pytest.mark.parametrize("depth", [1, 3])
def test_so_many_items_of_each_source_are_held_ahead_of_its_reader(depth):
    made = [0, 0]

    def source(i):
        for n in range(100):
            made[i] += 1
            yield n

    with prefetch_all([source(0), source(1)], 2, depth) as ahead:
        assert [next(ahead[0]) for _ in range(2)] == [0, 1]
        for _ in range(6_000):
            if made == [depth + 2, depth]:
                break
            time.sleep(0.01)
        # Time to make one more.
        time.sleep(0.05)
    assert made == [depth + 2, depth]


def test_an_error_of_one_of_many_sources_comes_after_its_items():
    def failing():
        yield 1
        raise ValueError("no more")

    with prefetch_all([failing(), iter([7, 8])], 2) as ahead:
        assert next(ahead[0]) == 1
        with pytest.raises(ValueError, match="no more"):
            next(ahead[0])
        assert list(ahead[1]) == [7, 8]
    with prefetch_all([], 2) as ahead:
        assert ahead == []


def test_in_sequence_no_thread_starts_and_the_answers_are_the_same():
    seen = []

    def source(n):
        try:
            for i in range(n):
                seen.append(threading.current_thread())
                yield i
        finally:
            seen.append("closed")

    with sequential():
        assert list(prefetch(source(3))) == [0, 1, 2]
        items = prefetch(source(3))
        assert next(items) == 0
        items.close()
        with prefetch_all([source(2), [5]], 2) as lanes:
            assert next(lanes[0]) == 0
            assert list(lanes[1]) == [5]
        background = Background(1, lambda: pytest.fail("nothing stalls"))
        assert [background.submit(lambda n=n: n).result() for n in range(3)] == [0, 1, 2]
        background.submit(threading.current_thread).result()
        background.close()
    assert seen.count("closed") == 3
    assert {one for one in seen if one != "closed"} == {threading.current_thread()}
    assert not threads()


def test_in_sequence_an_error_comes_where_it_came_with_threads():
    def fail():
        raise KeyError("lost")

    with sequential():
        background = Background(1, lambda: None)
        job = background.submit(fail)
        assert job.done
        with pytest.raises(KeyError, match="lost"):
            job.result()
        with pytest.raises(KeyError, match="lost"):
            background.submit(lambda: 1)


def test_after_the_sequence_threads_start_again():
    with sequential():
        pass
    names = []
    assert list(prefetch(names.append(threading.current_thread().name) or i for i in range(2))) == [0, 1]
    assert set(names) == {"tidelake-prefetch"}


class Item:
    pass


def test_an_item_is_let_go_of_while_the_next_is_made():
    seen, refs, go = [], [], threading.Event()

    def source():
        for i in range(3):
            if i:
                # The reader has dropped it, the thread has gone on, and nothing else may hold it.
                go.wait()
                gc.collect()
                seen.append(refs[-1]() is None)
                go.clear()
            item = Item()
            refs.append(weakref.ref(item))
            held = [item]
            del item
            yield held.pop()

    def drained(items):
        for _ in range(3):
            next(items)
            go.set()

    drained(prefetch(source(), 1))
    with prefetch_all([source()], 1) as (items,):
        drained(items)
    assert seen == [True] * 4


def test_a_block_and_what_is_done_beside_it_end_together_and_both_tell_what_went_wrong():
    begun, seen = threading.Event(), []

    def work():
        begun.set()
        seen.append(threading.current_thread().name)
        raise KeyError("work")

    def block(error):
        with beside(work):
            assert begun.wait(30)
            seen.append("block")
            if error is not None:
                raise error

    with pytest.raises(KeyError, match="work"):
        block(None)
    assert set(seen) == {"block", "tidelake-background"}
    with pytest.raises(ValueError, match="block"):
        block(ValueError("block"))
    assert len(seen) == 4
    assert not threads()
    with beside(partial(seen.append, "quiet")):
        pass
    assert seen[-1] == "quiet"


def test_a_fork_that_leaves_a_block_does_not_wait_for_what_is_done_beside_it():
    go_on = threading.Event()
    with beside(partial(go_on.wait, 30)):
        child = os.fork()
        if child == 0:
            # It would wait for ever.
            signal.alarm(20)
        else:
            go_on.set()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_is_made_of_items_comes_in_their_order(count, n):
    def work(i):
        # The later ones are done sooner.
        time.sleep(0.002 * (count - i))
        return i * i

    assert list(mapped(work, range(count), n)) == [i * i for i in range(count)]
    assert not threads()


def test_items_are_worked_on_at_once_and_the_only_one_by_the_caller():
    here = threading.Barrier(2, timeout=10)
    assert list(mapped(lambda _: here.wait() < 2, range(4), 2)) == [True] * 4
    caller = threading.current_thread()
    assert list(mapped(lambda _: threading.current_thread() is caller, [0], 2)) == [True]
    assert list(mapped(lambda _: threading.current_thread() is caller, [0, 1], 1)) == [True, True]
    with sequential():
        assert list(mapped(lambda _: threading.current_thread() is caller, [0, 1], 2)) == [True, True]


def test_no_more_items_are_taken_than_are_worked_on():
    taken = []

    def items():
        for i in range(100):
            taken.append(i)
            yield i

    made = mapped(lambda i: i, items(), 2)
    assert next(made) == 0
    assert len(taken) <= 3
    made.close()
    assert not threads()


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 2, 3])
def test_items_that_were_worked_on_are_let_go_of(n):
    alive = weakref.WeakSet()

    def items():
        for _ in range(8):
            item = Item()
            alive.add(item)
            yield item
            del item

    seen = []
    for i, _ in enumerate(mapped(lambda item: item.__class__, items(), n)):
        # At most some that were begun beside it are left.
        gc.collect()
        seen.append((i, len(alive)))
    assert all(held <= n for _, held in seen), seen


def test_what_is_made_of_items_in_a_fork_is_refused_there_and_comes_in_the_parent():
    go_on = threading.Event()
    made = mapped(lambda i: i if i == 0 else go_on.wait(30), range(2), 2)
    assert next(made) == 0
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            # It would wait for ever.
            signal.alarm(20)
            with pytest.raises(UsageError, match="does not survive a fork"):
                next(made)
            status = 0
        finally:
            os._exit(status)
    go_on.set()
    assert os.waitpid(pid, 0)[1] == 0
    assert list(made) == [True]
    assert not threads()


def test_what_goes_wrong_with_an_item_is_raised():
    def work(i):
        if i == 2:
            raise KeyError("lost")
        return i

    with pytest.raises(KeyError, match="lost"):
        list(mapped(work, range(9), 2))
    assert not threads()


@pytest.mark.parametrize("threads", [1, 2])
def test_an_item_that_was_worked_on_is_let_go_of(threads):
    class Item:
        pass

    made = []

    def items():
        for _ in range(9):
            item = Item()
            made.append(weakref.ref(item))
            yield item
            del item

    for n, _ in enumerate(mapped(lambda _: None, items(), threads)):
        assert [at for at, item in enumerate(made[: max(0, n + 1 - threads)]) if item() is not None] == []


def test_threads_have_what_is_said_of_commits():
    said = ContextVar("said", default="")
    token = said.set("why")
    try:
        assert list(mapped(lambda _: said.get(), range(4), 4)) == ["why"] * 4
    finally:
        said.reset(token)

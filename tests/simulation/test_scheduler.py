"""One thread at a time, in an order that the seed decides, in a time that is not ours."""

import random
import threading

import pytest

from simulation.scheduler import Process, Scheduler, SchedulerLock, Stuck
from tests.doubles.faults import SimulatedCrash


def scheduler(seed=0, steps=10_000):
    return Scheduler(random.Random(seed), steps)


def order(seed):
    hands, seen = scheduler(seed), []

    def work(name):
        for _ in range(20):
            seen.append(name)
            hands.pause()

    for name in "abc":
        hands.start(Process(name), name, lambda name=name: work(name))
    hands.run()
    return "".join(seen)


def test_the_order_is_the_seeds():
    assert order(1) == order(1)
    assert len({order(seed) for seed in range(10)}) > 5
    assert sorted(order(3)) == sorted("abc" * 20)


def test_time_passes_only_when_all_wait():
    hands, seen = scheduler(), []

    def sleeper():
        hands.pause(5_000_000)
        seen.append(("slept", hands.now_us))

    def worker():
        for _ in range(50):
            hands.pause()
        seen.append(("worked", hands.now_us))

    hands.start(Process("a"), "a", sleeper)
    hands.start(Process("b"), "b", worker)
    hands.run()
    assert seen == [("worked", 0), ("slept", 5_000_000)]


def test_a_lock_that_is_held_across_a_pause_makes_others_wait_not_the_baton():
    for seed in range(20):
        hands, inside, most = scheduler(seed), [], []
        lock = SchedulerLock(hands)

        def work(hands=hands, inside=inside, most=most, lock=lock):
            with lock:
                inside.append(1)
                most.append(len(inside))
                hands.pause()
                inside.pop()

        process = Process("p")
        for name in "abcd":
            hands.start(process, name, work)
        hands.run()
        assert most == [1, 1, 1, 1]


def test_threads_that_wait_for_each_other_are_reported():
    hands = scheduler()
    first, second = SchedulerLock(hands), SchedulerLock(hands)

    def work(one, other):
        with one:
            while not (first.locked() and second.locked()):
                hands.pause()
            with other:
                pass

    hands.start(Process("a"), "a", lambda: work(first, second))
    hands.start(Process("b"), "b", lambda: work(second, first))
    hands.run()
    assert isinstance(hands.trouble, Stuck)


def test_a_dead_process_unwinds_at_once_and_pauses_no_more():
    hands, seen = scheduler(), []
    process = Process("p")

    def victim():
        try:
            while True:
                hands.pause()
        finally:
            with pytest.raises(SimulatedCrash):
                hands.pause()
            seen.append("unwound")

    def killer():
        for _ in range(200):
            hands.pause()
        process.dead = True
        hands.pause()
        seen.append("after")

    for name in ("a", "b"):
        hands.start(process, name, victim)
    hands.start(Process("k"), "k", killer)
    hands.run()
    assert seen == ["unwound", "unwound", "after"]
    assert hands.trouble is None


def test_a_run_ends_after_its_steps_and_leaves_no_thread():
    before = set(threading.enumerate())
    hands = scheduler(steps=100)

    def work():
        while True:
            hands.pause()

    for name in "abc":
        hands.start(Process(name), name, work)
    hands.run()
    assert hands.steps == 100
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name in "abc":
            thread.join()
    assert not set(threading.enumerate()) - before


def test_an_error_in_a_thread_ends_the_run_and_is_kept():
    hands = scheduler()

    def fails():
        hands.pause()
        raise KeyError("lost")

    def works():
        while True:
            hands.pause()

    hands.start(Process("a"), "a", fails)
    hands.start(Process("b"), "b", works)
    hands.run()
    assert isinstance(hands.trouble, KeyError)

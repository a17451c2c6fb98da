"""Each of several processes gets its share of the commits on one shard, in a small simulation."""

import heapq
import random
import statistics

import pytest

from tidelake.shard.engine.fairshare import FairShare


class Clock:
    """The time of the simulation. What a process sleeps is added up, and passes when it yields that."""

    def __init__(self):
        self.now_s = self.slept_s = 0.0

    def now_ms(self):
        return int(self.now_s * 1000)

    def monotonic_s(self):
        return self.now_s + self.slept_s

    def sleep(self, seconds):
        self.slept_s += seconds

    def passed(self):
        slept_s, self.slept_s = self.slept_s, 0.0
        return slept_s


class Greedy(FairShare):
    """A process that leaves nothing to others."""

    def give_way(self):
        pass


def commits(processes, seconds, trip_s, after_loss, share=FairShare, work_s=0.001, seed=7):
    """How often each process commits, and how long all of them waited.

    Each commits again and again. That takes a round trip, at whose half the log decides. Who has lost needs
    `after_loss` more round trips to learn the newest state, at the half of the last of which the log is read.
    """
    draw = random.Random(seed)
    clock = Clock()
    head, won, slept = 0, [0] * processes, 0.0

    def process(number):
        nonlocal head, slept

        def trip():
            return trip_s * draw.uniform(0.9, 1.15)

        def passed():
            nonlocal slept
            slept_s = clock.passed()
            slept += slept_s
            return slept_s

        turns, known = share(clock, draw.random), 0
        yield draw.random() * trip_s
        while True:
            yield draw.expovariate(1 / work_s)
            turns.give_way()
            yield passed()
            while True:
                began_s, half_s = clock.now_s, trip() / 2
                yield half_s
                first = head == known
                if first:
                    head = known = head + 1
                yield half_s
                if first:
                    won[number] += 1
                    turns.won(known)
                    break
                for _ in range(after_loss - 1):
                    yield trip()
                half_s = trip() / 2
                yield half_s
                known = head
                yield half_s
                turns.lost(began_s)

    running = [process(number) for number in range(processes)]
    due = [(next(one), number) for number, one in enumerate(running)]
    heapq.heapify(due)
    while due[0][0] < seconds:
        clock.now_s, number = heapq.heappop(due)
        heapq.heappush(due, (clock.now_s + next(running[number]), number))
    return won, slept


WORK_S = (0.0005, 0.001, 0.005)


@pytest.mark.parametrize("processes", [2, 3, 8, 16])
@pytest.mark.parametrize("after_loss", [1, 3])
def test_the_slowest_of_several_processes_gets_half_of_the_mean(processes, after_loss):
    for work_s in WORK_S:
        won, _ = commits(processes, 30, 0.02, after_loss, work_s=work_s)
        greedy, _ = commits(processes, 30, 0.02, after_loss, Greedy, work_s=work_s)
        assert min(won) >= 0.5 * statistics.fmean(won), sorted(won)
        assert sum(won) >= 0.6 * sum(greedy)


def test_in_five_seconds_the_slowest_of_eight_processes_gets_half_of_the_mean_too():
    """Each commits about 25 times, so there is luck in it: without fair shares the slowest has a third."""

    def least(share):
        won = [commits(8, 5, 0.02, 1, share, seed=seed)[0] for seed in range(20)]
        return [min(each) / statistics.fmean(each) for each in won]

    assert min(least(FairShare)) >= 0.5
    assert statistics.median(least(Greedy)) < 0.45


def test_without_it_some_get_less():
    won = [commits(processes, 30, 0.02, 3, Greedy, work_s)[0] for processes in (8, 16) for work_s in WORK_S]
    assert min(min(each) / statistics.fmean(each) for each in won) < 0.5


def test_a_process_alone_never_waits():
    won, slept = commits(1, 60, 0.02, 1)
    assert won[0] > 2_000 and not slept


def test_in_a_store_that_is_near_no_read_waits():
    won, slept = commits(8, 10, 0.0005, 1)
    assert sum(won) > 1_000 and not slept


def test_rivals_that_have_gone_are_forgotten():
    clock = Clock()
    share = FairShare(clock, lambda: 0.5)
    clock.now_s = 1.0
    share.lost(began_s=0.9)
    waited = []
    for seqno in range(20):
        share.won(seqno)
        share.give_way()
        waited.append(clock.passed())
    assert waited == pytest.approx([0.025] * 8 + [0.0] * 12)
    share.lost(began_s=0.9)
    share.won(20)
    clock.now_s += 0.02
    share.give_way()
    assert clock.passed() == pytest.approx(0.005)


def test_a_commit_between_two_of_a_process_shows_a_rival_and_eight_in_a_row_show_that_it_has_gone():
    share = FairShare(Clock(), lambda: 0.5)
    seen = []
    for seqno in (5, 6, 8, *range(9, 18)):
        share.won(seqno)
        seen.append(share.has_rivals)
    assert seen == [False, False, True, *[True] * 7, False, False]

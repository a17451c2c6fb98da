import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake.arrangement.merge.levels import (
    LEVELS,
    WHOLE,
    Fans,
    Fuel,
    inputs,
    level_of,
    merged_size,
    resting_batches_max,
)
from tidelake.arrangement.merge.settings import ArrangementConfig

FANS = ArrangementConfig().fans


@pytest.mark.parametrize(
    ("rows", "level"),
    [(1, 0), (100, 0), (101, 1), (1000, 1), (1001, 2), (10_001, 3), (100 * 10**7, 7), (10**12, 8)],
)
def test_a_level_holds_ten_times_what_the_one_below_holds(rows, level):
    assert level_of(rows, 100) == level


def test_the_result_of_a_merge_counts_more_for_its_retractions():
    assert merged_size(100, 30, 0) == 100
    assert merged_size(100, 30, 2) == 160


@pytest.mark.parametrize(
    ("loose", "level", "forced", "taken"),
    [
        (7, 0, False, 0),
        (8, 0, False, 8),
        (65, 0, False, 64),
        (2, 2, False, 0),
        (3, 2, False, 3),
        (1, 8, False, 0),
        (2, 8, False, 2),
        (0, 0, True, 0),
        (1, 0, True, 1),
        (65, 8, True, 64),
    ],
)
def test_a_merge_takes_what_the_fans_of_its_level_say(loose, level, forced, taken):
    assert inputs(loose, level, FANS, forced=forced) == taken


def test_levels_are_served_in_turn():
    fuel = Fuel()
    served = []
    for _ in range(5):
        level = fuel.next_of([0, 3, 8])
        served.append(level)
        fuel = fuel.served(level)
    assert served == [0, 3, 8, 0, 3]


def test_what_arrives_is_owed_to_every_level_until_it_is_served():
    fuel = Fuel().arrived(100).arrived(900)
    assert fuel.ration(1) == fuel.ration(8) == 1000
    fuel = fuel.served(8)
    assert fuel.ration(1) == 1000
    # What is left is the average: 100, and a sixteenth of the way to 900.
    assert fuel.ration(8) == 150


def test_a_merge_of_level_0_is_one_step():
    assert Fuel().arrived(10).ration(0) == WHOLE


def test_a_step_is_never_of_nothing():
    assert Fuel().ration(3) == 1


@given(st.lists(st.integers(1, 10**6), min_size=1))
def test_the_average_lies_among_the_arrivals(arrivals):
    fuel = Fuel()
    for rows in arrivals:
        fuel = fuel.arrived(rows)
    assert min(arrivals) - 1e-6 <= fuel.average <= max(arrivals) + 1e-6


class Levels:
    """Batches as numbers of rows, merged as a spine does it: one step of each level for each arrival."""

    def __init__(self, first_rows: int) -> None:
        self.first_rows = first_rows
        self.loose: list[list[int]] = [[] for _ in range(LEVELS)]
        self.merging: dict[int, tuple[list[int], int]] = {}
        self.fuel = Fuel()

    def arrive(self, rows: int) -> None:
        self.loose[level_of(rows, self.first_rows)].append(rows)
        self.fuel = self.fuel.arrived(rows)
        self.start()
        for level in sorted(self.merging):
            self.step(level)

    def start(self) -> None:
        for level, loose in enumerate(self.loose):
            count = inputs(len(loose), level, FANS)
            if count and level not in self.merging:
                self.merging[level] = (loose[:count], 0)
                del loose[:count]

    def step(self, level: int) -> None:
        taken, done = self.merging[level]
        done += self.fuel.ration(level)
        self.fuel = self.fuel.served(level)
        if done < sum(taken):
            self.merging[level] = (taken, done)
            return
        del self.merging[level]
        self.loose[level_of(sum(taken), self.first_rows)].append(sum(taken))
        self.start()

    def merge_due(self) -> None:
        while self.merging:
            self.step(self.fuel.next_of(list(self.merging)))

    @property
    def batches(self) -> int:
        return sum(map(len, self.loose)) + sum(len(taken) for taken, _ in self.merging.values())


@pytest.mark.promise(
    "Merges keep pace with appends at every level; at rest there are no more batches than the settings allow",
    rule="`arrangement/merge/levels.py`",
    also=["::test_at_rest_no_more_batches_are_left_than_the_fans_say"],
)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 50), (100, 100), (300, 900), (1, 30_000), (5_000, 5_000)])
def test_merges_keep_pace_with_arrivals_at_any_level(sizes):
    """One level's step for each arrival is enough, wherever it arrives: the batches do not pile up."""
    rng = random.Random(7)
    levels = Levels(100)
    most = 0
    for _ in range(20_000):
        levels.arrive(rng.randint(*sizes))
        most = max(most, levels.batches)
    assert most <= 80
    levels.merge_due()
    assert levels.batches <= resting_batches_max(FANS)


@given(st.lists(st.integers(1, 10**7), max_size=200))
def test_at_rest_no_more_batches_are_left_than_the_fans_say(arrivals):
    levels = Levels(100)
    for rows in arrivals:
        levels.arrive(rows)
    levels.merge_due()
    assert levels.batches <= resting_batches_max(FANS)
    assert sum(map(sum, levels.loose)) == sum(arrivals)


def test_fans_may_be_wider_without_more_batches_at_rest():
    assert resting_batches_max(Fans((2,) * LEVELS, (9,) * LEVELS)) == LEVELS

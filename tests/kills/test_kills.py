"""Real processes that work on one lake, killed with -9 at random moments."""

import time
from collections import Counter

import pytest
from crew import Crew, bring_to_rest
from kills_child import CONFIG, WORKS, contents_of, updates_of

import tidelake
from tiers import rounds

CREW = [("append", "a"), ("append", "b"), *((kind, kind) for kind in WORKS if kind != "append")]
WORDS = ("gone", "dropped", "copied", "forked")
CHECK_EVERY = 5


@pytest.mark.full
@pytest.mark.grows
def test_processes_that_are_killed_lose_and_double_nothing(tmp_path, rng, record_property):
    with Crew(tmp_path / "lake", CREW) as crew:
        for number in rounds(full=15, soak=1500, least=10):
            victim = rng.choice(crew.children)
            # It is at its work, however long it took to start.
            victim.await_ready()
            time.sleep(rng.random() * 0.2)
            crew.kill(victim)
            crew.succeed(victim)
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                crew.check()
        crew.await_work(*WORDS)
        crew.check_at_rest()
    assert not crew.errors
    assert min(crew.acknowledged.values()) > 0
    assert all(crew.done[word] for word in WORDS)
    record_property("figures", crew.figures())


def test_the_books_are_the_sum_of_the_appends():
    found = Counter()
    for last in range(10):
        for row, diff in updates_of("a", last):
            found[row] += diff
        assert (+found == Counter(contents_of("a", last)) and min(found.values()) == 0) or last == 0


def test_a_lake_in_which_no_copy_came_to_its_end_is_brought_to_rest(tmp_path):
    with tidelake.open(tmp_path / "copies", config=CONFIG) as lake:
        bring_to_rest(lake)
        assert lake.list() == []

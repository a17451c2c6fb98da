"""Seeds of the simulation, what makes a seed worth having, and bugs that it must find."""

import os
import subprocess
import sys
from functools import partial

import pytest
import simulation_bugs as bugs

from tidelake.testing.simulation.run import SimulationFailed, shortest, simulate, simulate_all

STEPS = 2000


def chunks(first, count, of):
    return [range(at, at + of) for at in range(first, first + count, of)]


@pytest.mark.parametrize("seeds", chunks(0, 20, 5), ids=str)
def test_no_seed_finds_a_wrong_answer(seeds, record_property):
    figures = simulate_all(seeds, STEPS)
    assert figures.counts["appends in"] and figures.counts["reads"] and figures.counts["merges"]
    record_property("simulated", figures.to_json())


@pytest.mark.full
@pytest.mark.parametrize("seeds", chunks(1000, 200, 25), ids=str)
def test_no_seed_of_many_finds_a_wrong_answer(seeds, record_property):
    record_property("simulated", simulate_all(seeds, STEPS).to_json())


@pytest.mark.soak
@pytest.mark.parametrize("chunk", range(100))
def test_fresh_seeds_find_no_wrong_answer(rng, chunk, record_property):
    first = rng.getrandbits(40) + chunk * 1000
    record_property("simulated", simulate_all(range(first, first + 100), STEPS).to_json())


def test_a_run_depends_on_its_seed_alone():
    """Also in another process, whose hashes of texts are others."""
    seeds = range(6)
    code = (
        "from tidelake.testing.simulation.run import simulate\n"
        f"print([simulate(seed, 800).digest for seed in {seeds}])"
    )
    command = [sys.executable, "-c", code]
    elsewhere = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    digests = [simulate(seed, 800).digest for seed in seeds]
    assert str(digests) == elsewhere.stdout.strip()
    assert len(set(digests)) == len(digests)


def found_within(bug, seeds):
    for seed in seeds:
        try:
            with bug():
                simulate(seed, STEPS)
        except SimulationFailed as failed:
            return failed
    return None


@pytest.mark.parametrize(
    ("bug", "symptom"),
    [
        (bugs.believed_stale_refusal, "stale state"),
        (partial(bugs.skipped_flush, "file"), ""),
        (partial(bugs.skipped_flush, "folder"), "not there"),
        (bugs.lost_reply_taken_for_a_defeat, ""),
        pytest.param(bugs.collection_that_ignores_holds, "which names it", marks=pytest.mark.full),
        (bugs.collection_that_ignores_forks, "names it"),
        pytest.param(bugs.fence_with_a_hole, "writer", marks=pytest.mark.full),
        pytest.param(bugs.round_that_is_told_too_early, "", marks=pytest.mark.full),
        (bugs.readers_that_miss_the_decisions_for_one_collection, ""),
        pytest.param(bugs.group_that_forgets_too_early, "", marks=pytest.mark.full),
        (bugs.reads_without_what_is_not_drained, "rows differ"),
        (bugs.numbers_that_are_forgotten_by_stages, ""),
    ],
)
def test_a_bug_is_found_within_200_seeds(bug, symptom):
    failed = found_within(bug, range(200))
    assert failed is not None
    assert symptom in str(failed)
    simulate(failed.seed, failed.steps)  # without the bug the same seed passes


@pytest.mark.full
@pytest.mark.parametrize("bug", [bugs.hasty_tidying, bugs.collection_without_an_age_limit])
def test_a_rare_bug_is_found_within_200_seeds(bug):
    assert found_within(bug, range(200)) is not None


def test_a_failure_shrinks_to_the_step_that_shows_it_and_says_how_to_repeat_it():
    found = found_within(bugs.believed_stale_refusal, range(200))
    failed = shortest(found.seed, STEPS, bugs.believed_stale_refusal)
    with bugs.believed_stale_refusal():
        simulate(failed.seed, failed.steps - 1)
        with pytest.raises(SimulationFailed) as again:
            simulate(failed.seed, failed.steps)
    assert str(again.value) == str(failed)
    assert f"make sim SEED={failed.seed} STEPS={failed.steps}\n" in str(failed)
    assert "UpperMismatch" in str(failed).splitlines()[-1]

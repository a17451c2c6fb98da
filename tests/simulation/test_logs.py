"""Seeds of the simulation of a log in an object store, and bugs that it must find."""

import pytest
import simulation_bugs as bugs

from simulation.figures import Figures
from simulation.logs import simulate_log
from simulation.run import SimulationFailed
from tiers import rounds

STEPS = 2000


@pytest.mark.grows
def test_no_seed_finds_a_wrong_answer_of_a_log(rng, record_property):
    first, figures = rng.getrandbits(40), Figures()
    for seed in (first + i for i in rounds(fast=3, full=20, soak=900, least=8)):
        figures = figures.plus(simulate_log(seed, STEPS))
    for what in ("commits won", "commits lost", "refreshes", "entries removed"):
        assert figures.counts[what]
    record_property("figures", f"seeds {first} to {first + figures.seeds - 1}")
    record_property("simulated", figures.to_json())


def test_a_run_of_a_log_depends_on_its_seed_alone():
    digests = [simulate_log(seed, 600).digest for seed in range(2)]
    assert [simulate_log(seed, 600).digest for seed in range(2)] == digests
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bugs.writer_that_does_not_look_at_the_floor, marks=pytest.mark.full),
        bugs.refresh_that_does_not_look_at_the_floor,
        bugs.believed_free_seqno,
        bugs.believed_refusal,
        pytest.param(bugs.removal_by_the_clock_of_a_process, marks=pytest.mark.full),
        pytest.param(bugs.error_after_a_put_that_says_that_nothing_happened, marks=pytest.mark.full),
        pytest.param(bugs.refused_floor_taken_for_raised, marks=pytest.mark.full),
    ],
)
def test_a_bug_of_the_log_is_found_within_200_seeds(bug):
    failed = None
    for seed in range(200):
        try:
            with bug():
                simulate_log(seed, STEPS)
        except SimulationFailed as error:
            failed = error
            break
    assert failed is not None
    simulate_log(failed.seed, failed.steps)  # without the bug the same seed passes

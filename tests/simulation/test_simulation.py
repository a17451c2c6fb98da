"""Seeds of the simulation, what makes a seed worth having, and bugs that it must find."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import simulation_bugs as bugs

from simulation.options import Options
from simulation.run import SimulationFailed, repeatable, shortest, simulate, simulate_all
from simulation.scheduler import SchedulerLock
from simulation.world import World
from tidelake.process import PerProcess
from tidelake.shard.runs import partcaches
from tidelake.shard.runs.partcaches import PartCaches
from tiers import rounds

STEPS = 2000


@pytest.mark.grows
@pytest.mark.parametrize("half", range(2))
def test_no_seed_finds_a_wrong_answer(rng, half, record_property):
    first = rng.getrandbits(40) + half * 1_000_000
    seeds = (first + i for i in rounds(fast=3, full=30, soak=1800, least=3))
    figures = simulate_all(seeds, STEPS)
    assert figures.counts["appends in"] and figures.counts["reads"] and figures.counts["merges"]
    record_property("figures", f"seeds {first} to {first + figures.seeds - 1}")
    record_property("simulated", figures.to_json())


def test_a_run_depends_on_its_seed_alone():
    """Also in another process, whose hashes of texts are others."""
    seeds = range(2)
    code = f"from simulation.run import simulate\nprint([simulate(seed, 400).digest for seed in {seeds}])"
    command = [sys.executable, "-c", code]
    elsewhere = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    digests = [simulate(seed, 400).digest for seed in seeds]
    assert str(digests) == elsewhere.stdout.strip()
    assert len(set(digests)) == len(digests)


def test_no_lock_of_the_scheduler_outlives_a_run(monkeypatch):
    fresh = PerProcess(PartCaches)
    monkeypatch.setattr(partcaches, "_CACHES", fresh)
    with repeatable(World(0, 100)):
        assert isinstance(fresh.get().unpacked._lock, SchedulerLock)
    assert not isinstance(fresh.get().unpacked._lock, SchedulerLock)


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
        *(
            pytest.param(bug, symptom, marks=pytest.mark.full)
            for bug, symptom in [
                (partial(bugs.skipped_flush, "folder"), "not there"),
                (bugs.log_that_is_published_and_not_flushed, ""),
                (bugs.log_that_is_not_looked_at_again, " had "),
                (bugs.lost_reply_taken_for_a_defeat, ""),
                (bugs.no_acknowledgement, ""),
                (bugs.fence_with_a_hole, "epoch"),
                (bugs.numbers_that_are_forgotten_by_stages, ""),
                (bugs.reads_without_what_is_not_drained, "rows differ"),
                (bugs.base_that_is_one_update_too_old, "rows differ"),
                (bugs.base_whose_boundary_fell, ""),
            ]
        ),
        *(
            pytest.param(bug, symptom, marks=pytest.mark.soak)
            for bug, symptom in [
                (bugs.collection_that_ignores_holds, "which names it"),
                (bugs.collection_that_ignores_forks, "names it"),
                (bugs.round_that_is_told_too_early, ""),
                (bugs.readers_that_miss_the_decisions_for_one_collection, ""),
                (bugs.group_that_forgets_too_early, ""),
                (bugs.group_that_knows_no_writers, ""),
                (bugs.uploads_that_are_taken_again, ""),
                (bugs.uploads_that_are_forgotten_with_their_parts, "is in "),
            ]
        ),
    ],
)
def test_a_bug_is_found_within_200_seeds(bug, symptom):
    failed = found_within(bug, range(200))
    assert failed is not None
    assert symptom in str(failed)
    simulate(failed.seed, failed.steps)  # without the bug the same seed passes


@pytest.mark.promise(
    "In simulations a log that has lost its newest entries is never believed", rule="`simulation/tails.py`"
)
@pytest.mark.grows
def test_a_log_that_loses_its_newest_entries_is_never_believed(rng, record_property):
    drawn = Options.drawn
    first = rng.getrandbits(40)
    with bugs.replaced(Options, drawn=lambda draw: replace(drawn(draw), framed=False, loses_tail=True)):
        figures = simulate_all((first + i for i in rounds(fast=2, full=10, soak=600, least=5)), STEPS)
    assert figures.injected["lost tail"]
    record_property("figures", f"seeds {first} to {first + figures.seeds - 1}")


@pytest.mark.soak
@pytest.mark.parametrize("bug", [bugs.hasty_tidying, bugs.collection_without_an_age_limit])
def test_a_rare_bug_is_found_within_200_seeds(bug):
    assert found_within(bug, range(200)) is not None


@pytest.mark.full
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

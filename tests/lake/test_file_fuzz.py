"""Whatever is damaged in a lake, each answer is right or says so: many random damages, each tried in turn."""

import subprocess
import sys

import file_fuzz
import pytest
from hypothesis import settings

from tied_process import tied

# The fast tier has a few seconds; the full tier makes a number of trials, whatever they take.
HOW = {"fast": ["--seconds", "3"], "full": ["--trials", "700"], "soak": ["--seconds", "1800"]}


@pytest.mark.promise(
    "After damage to any one file of a lake (parts, rollups, logs and their records, the marker, "
    "checkpoints of arrangements) each answer is right, or an error that says so: no wrong row, no "
    "older answer, no wait without an end, no other error",
    rule="all that reads",
    also=["::test_a_wrong_answer_is_found"],
)
@pytest.mark.grows
@pytest.mark.timeout(1_000)
def test_after_any_damage_to_a_file_each_answer_is_right_or_an_error_that_says_so(rng):
    tier = settings.get_current_profile_name()
    first = rng.randrange(1 << 30)
    how = [*HOW[tier], "--first", str(first), "--failures", "3"]
    # In a process of its own, which a trial that hangs does not survive.
    command = tied(sys.executable, file_fuzz.__file__, *how)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    print(done.stdout[-20_000:])
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-20_000:]


def test_a_wrong_answer_is_found(tmp_path):
    template = file_fuzz.make_template(tmp_path)
    template.held["c"].updates.append((("1", "never written"), 0, 1))
    assert any("instead of" in file_fuzz.trial(template, seed, tmp_path) for seed in range(20))

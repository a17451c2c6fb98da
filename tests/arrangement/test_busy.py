"""Some insert, read and disturb an arrangement at once: every answer is that of the model of its snapshot."""

import os

import pytest
from tests.arrangement.busy_life import BusyLife

SEED = int(os.environ.get("TIDELAKE_TEST_SEED", "0"))


@pytest.mark.parametrize("ranked", [False, True], ids=["retractions", "ranks"])
def test_answers_amid_everything_are_those_of_the_model(ranked, tmp_path):
    life = BusyLife(SEED, tmp_path, 30, ranked=ranked)
    life.run()
    assert set(life.did) > {"_range", "_press"}


@pytest.mark.soak
@pytest.mark.parametrize("ranked", [False, True], ids=["retractions", "ranks"])
@pytest.mark.parametrize("part", range(20))
def test_answers_of_long_lives_are_those_of_the_model(part, ranked, tmp_path):
    BusyLife(1000 * (SEED + 1) + part, tmp_path, 300, ranked=ranked).run()

"""Some append, read and disturb an arrangement at once: every answer is that of the model of its snapshot."""

import pytest

from tests.arrangement.busy_life import BusyLife
from tiers import rounds


@pytest.mark.promise(
    "Whatever threads do at once, each snapshot has whole appends, and its reads are right for "
    "exactly these, under its own filters and `since`",
    rule="`arrangement/merge/merger.py`",
)
@pytest.mark.grows
@pytest.mark.parametrize("ranked", [False, True], ids=["retractions", "ranks"])
def test_answers_amid_everything_are_those_of_the_model(ranked, rng, tmp_path, record_property):
    """Lives of which each is longer than the one before."""
    first = rng.getrandbits(40)
    for number in rounds(full=6, soak=600):
        print(f"seed {first + number}")
        place = tmp_path / str(number)
        place.mkdir()
        life = BusyLife(first + number, place, 30 + 10 * number, ranked=ranked)
        life.run()
        assert set(life.did) > {"_range", "_press"}
    record_property("figures", f"seeds {first} to {first + number}")

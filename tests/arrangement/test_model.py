"""The arrangement and a sorted dict, side by side in random lives: no answer differs.

Blocks and windows are of a few rows, so that a walk crosses many of them.
"""

import pytest

from tests.arrangement.arrangement_rows import KEYS
from tests.arrangement.model_walk import Differs, ModelWalk
from tidelake.arrangement.batch import filebuilder, memory
from tidelake.arrangement.read import keycursor, windows
from tidelake.arrangement.read.cursor import Cursor
from tidelake.arrangement.read.retention import RetentionFilters
from tiers import rounds

LIFE = 500


@pytest.fixture(autouse=True, params=["tiny", "usual"])
def _sizes(request, monkeypatch):
    if request.param == "usual":
        return
    monkeypatch.setattr(memory, "_BLOCK_ROWS", 3)
    monkeypatch.setattr(filebuilder, "_BLOCK_ROWS_MAX", 3)
    for module in (windows, keycursor):
        monkeypatch.setattr(module, "BUDGET_BYTES_MIN", 1)
        monkeypatch.setattr(module, "BUDGET_BYTES_MAX", 256)


def live(seed, folder, kind, steps, *, ranked, threads=False):
    walk = ModelWalk(seed, folder, kind, ranked=ranked, threads=threads)
    try:
        walk.run(steps)
    except Exception as error:
        error.add_note(f"seed {seed}, keys {kind}, ranked {ranked}, step {walk.steps}")
        raise
    finally:
        walk.close()


def lives(first, numbers, folder, steps=LIFE, *, threads=False):
    """Run one life after the other, with all kinds of keys, a third with N-filters; the last seed."""
    kinds = list(KEYS)
    for i in numbers:
        seed = first + i
        live(seed, folder / str(i), kinds[i % len(kinds)], steps, ranked=i % 3 == 0, threads=threads)
    return seed


@pytest.mark.promise(
    "A look-up as of any time from `since` on gives what was appended up to then, through merges, "
    "spills, filters, saves, restores and forks; every cursor walks as over a sorted list",
    rule="`arrangement/merge/spine.py`, `arrangement/read/windows.py`",
    also=["::test_lives_are_those_of_the_model"],
)
@pytest.mark.promise(
    "A filter holds for every read from the call on, and what a merge drops changes no answer",
    rule="`arrangement/read/retention.py`",
)
def test_short_lives_are_those_of_the_model(rng, tmp_path):
    lives(rng.getrandbits(40), range(3), tmp_path, steps=150)


@pytest.mark.full
@pytest.mark.grows
@pytest.mark.parametrize("threads", [False, True], ids=["steps", "threads"])
def test_lives_are_those_of_the_model(threads, rng, tmp_path, record_property):
    """With threads, merges go on beside."""
    first = rng.getrandbits(40)
    last = lives(first, rounds(full=8, soak=600), tmp_path, threads=threads)
    record_property("figures", f"seeds {first} to {last}")


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Cursor, "step_key_reverse", lambda self: None),
        (Cursor, "seek_value", lambda self, value: None),
        (Cursor, "weight", property(lambda self: 1)),
        (RetentionFilters, "satisfying", lambda self, rows: rows),
    ],
    ids=["steps", "seeks", "weights", "filters"],
)
def test_a_defect_is_found(owner, name, broken, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Differs):
        lives(0, range(4), tmp_path)

"""The arrangement and a sorted dict, side by side in random lives: no answer differs.

Blocks and windows are of a few rows, so that a walk crosses many of them.
"""

import os

import pytest
from tests.arrangement.arrangement_rows import KEYS
from tests.arrangement.model_walk import Differs, ModelWalk

from tidelake.arrangement import filebuilder, keycursor, memory, windows
from tidelake.arrangement.cursor import Cursor
from tidelake.arrangement.retention import Retention

SEED = int(os.environ.get("TIDELAKE_TEST_SEED", "0"))
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


def lives(first, count, folder, *, threads=False):
    """Lives one after the other, of all kinds of keys, a third of them with N-filters."""
    kinds = list(KEYS)
    for i in range(count):
        seed = first + i
        live(seed, folder / str(i), kinds[i % len(kinds)], LIFE, ranked=i % 3 == 0, threads=threads)


@pytest.mark.parametrize("ranked", [False, True], ids=["predicates", "ranks"])
@pytest.mark.parametrize("kind", ["int", "pair"])
def test_a_short_life_is_that_of_the_model(kind, ranked, tmp_path):
    live(SEED, tmp_path, kind, 150, ranked=ranked)


@pytest.mark.full
@pytest.mark.parametrize("part", range(5))
def test_fifty_thousand_steps_are_those_of_the_model(part, tmp_path):
    lives(1000 * (SEED + 1) + 100 * part, 10, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("part", range(2))
def test_merges_beside_change_no_answer(part, tmp_path):
    lives(50_000 * (SEED + 1) + 100 * part, 5, tmp_path, threads=True)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_a_million_steps_are_those_of_the_model(part, tmp_path):
    lives(1_000_000 * (SEED + 1) + 1000 * part, 50, tmp_path)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Cursor, "step_key_reverse", lambda self: None),
        (Cursor, "seek_value", lambda self, value: None),
        (Cursor, "weight", property(lambda self: 1)),
        (Retention, "satisfying", lambda self, rows: rows),
    ],
    ids=["steps", "seeks", "weights", "filters"],
)
def test_a_defect_is_found(owner, name, broken, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(Differs):
        lives(0, 4, tmp_path)

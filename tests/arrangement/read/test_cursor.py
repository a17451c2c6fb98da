"""Random walks of a cursor and of a sorted list: every method, both directions."""

from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from arrangement_rows import KEYS, PAIR, Update, file_batch, keys, layout, ranked, sorted_rows, updates
from cursor_model import ModelCursor, Values
from hypothesis import HealthCheck, given, settings
from test_snapshot import taken

from tidelake.arrangement.batch import filebuilder, memory
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.keys import Keys
from tidelake.arrangement.read.cursor import Cursor
from tidelake.arrangement.read.snapshot import Snapshot
from tidelake.errors import HistoryCompacted, InvalidUpdates, UsageError
from tidelake.model.frontier import Frontier
from tidelake.testing.oracle import canonical
from tiers import examples

PLAIN = (
    "rewind",
    "fast_forward",
    *("step_key", "step_key_reverse") * 3,
    *("step_value", "step_value_reverse") * 2,
    "rewind_values",
    "fast_forward_values",
)
KEYED = ("seek_key", "seek_key_reverse", "seek_key_exact", "seek_key_with", "seek_key_with_reverse")
VALUED = ("seek_value", "seek_value_reverse", "seek_value_with", "seek_value_with_reverse")


@pytest.fixture(autouse=True)
def _tiny_blocks_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_BLOCK_ROWS", 3)
    monkeypatch.setattr(memory, "_FILTER_ROWS_MIN", 8)
    monkeypatch.setattr(filebuilder, "_BLOCK_ROWS_MAX", 3)
    monkeypatch.setattr("tidelake.arrangement.read.keycursor.BUDGET_BYTES_MIN", 1)
    monkeypatch.setattr("tidelake.arrangement.read.keycursor.BUDGET_BYTES_MAX", 256)


def same(value: Values) -> Values:
    return tuple(canonical(x) for x in value)


def at_least(bound: Values) -> Callable[[Values], bool]:
    return lambda value: ranked(value) >= ranked(bound)


def at_most(bound: Values) -> Callable[[Values], bool]:
    return lambda value: ranked(value) <= ranked(bound)


def compare(real: Cursor, model: ModelCursor, through: int) -> None:
    """Everything that can be seen at one place."""
    assert real.key_valid == model.key_valid
    assert real.val_valid == model.val_valid
    total, offset = real.position()
    assert 0 <= offset <= total
    seen: list[tuple[Values, int]] = []
    real.map_values(lambda value, weight: seen.append((same(value), weight)))
    assert seen == model.values
    if model.key_valid:
        assert same(real.key) == model.key
    if not model.val_valid:
        with pytest.raises(UsageError, match="at no value"):
            real.value  # noqa: B018
        return
    assert (same(real.value), real.weight) == (model.value, model.weight)
    times: list[tuple[object, int]] = []
    real.map_times(lambda time, weight: times.append((time, weight)))
    assert times == model.times(None)
    times.clear()
    real.map_times_through(max(through, model.since), lambda time, weight: times.append((time, weight)))
    assert times == model.times(max(through, model.since))


@pytest.mark.promise(
    "A cursor does what a cursor over a sorted list does, with every method, in both directions",
    rule="`arrangement/read/keycursor.py`, `arrangement/read/cursor.py`",
)
@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_walk_is_that_of_a_sorted_list(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    of = layout(kind)
    batches = data.draw(st.lists(updates(kind, max_size=15), max_size=4))
    since = data.draw(st.sampled_from((0, 0, 2)))
    as_of = data.draw(st.none() | st.integers(since, 4))
    values = st.tuples(st.sampled_from(("a", "aa", "b", None)), st.sampled_from((0.5, -1.0, 0.0, None)))
    with taken(batches, of, tmp_path, Frontier.of(since)) as snapshot:
        real = snapshot.cursor(as_of)
        model = ModelCursor([u for held in batches for u in held], of.key_width, as_of, since)
        asked: list[object] = []
        compare(real, model, 4)
        for _ in range(data.draw(st.integers(1, 12))):
            name = data.draw(st.sampled_from((*PLAIN, *KEYED, *VALUED)))
            if name in PLAIN:
                getattr(real, name)()
                getattr(model, name)()
                asked = [] if name in ("rewind", "fast_forward") else asked
            else:
                given_ = data.draw(keys(kind) if name in KEYED else values)
                argument: object = given_
                if name.endswith("with"):
                    argument = at_least(given_)
                elif name.endswith("with_reverse"):
                    argument = at_most(given_)
                if name == "seek_key_exact" and asked and ranked(given_) < max(asked):  # type: ignore[type-var]
                    with pytest.raises(UsageError, match="ascending keys, or rewind"):
                        real.seek_key_exact(given_)
                    continue
                if name == "seek_key_exact":
                    asked.append(ranked(given_))
                    assert real.seek_key_exact(given_) == model.seek_key_exact(given_)
                else:
                    getattr(real, name)(argument)
                    getattr(model, name)(argument)
            compare(real, model, data.draw(st.integers(0, 4)))


@pytest.mark.parametrize("missing", [-1, 5, 15, 35, 45])
def test_from_the_place_of_a_missing_key_moves_lead_to_its_neighbours(missing: int, tmp_path: Path) -> None:
    of = layout("int")
    held: list[list[Update]] = [[((key, "a", 0.5), 0, 1)] for key in (0, 10, 20, 30, 40)]
    with taken(held, of, tmp_path) as snapshot:
        model = ModelCursor([u for rows in held for u in rows], 1, None)
        for name in ("step_key", "step_key_reverse"):
            real = snapshot.cursor()
            assert real.seek_key_exact((missing,)) == model.seek_key_exact((missing,)) is False
            getattr(real, name)()
            getattr(model, name)()
            compare(real, model, 4)
        for name in KEYED:
            for target in range(-5, 50, 5):
                real = snapshot.cursor()
                model.rewind()
                if name == "seek_key_exact" and target < missing:
                    continue
                assert real.seek_key_exact((missing,)) == model.seek_key_exact((missing,))
                bound = at_most((target,)) if name.endswith("reverse") else at_least((target,))
                argument = bound if "with" in name else (target,)
                getattr(real, name)(argument)
                getattr(model, name)(argument)
                compare(real, model, 4)


def test_times_of_two_components_are_visited_in_order(tmp_path: Path) -> None:
    of = layout("int", PAIR)
    held = [((1, "a", 0.5), (0, 5), 1), ((1, "a", 0.5), (1, 0), 2), ((1, "a", 0.5), (3, 3), -1)]
    with taken([held], of, tmp_path, Frontier.of((1, 0))) as snapshot:
        cursor = snapshot.cursor()
        seen: list[object] = []
        cursor.map_times(lambda time, weight: seen.append((time, weight)))
        assert seen == [((1, 0), 2), ((1, 5), 1), ((3, 3), -1)]
        seen.clear()
        cursor.map_times_through((1, 5), lambda time, weight: seen.append((time, weight)))
        assert seen == [((1, 0), 2), ((1, 5), 1)]
        with pytest.raises(HistoryCompacted):
            cursor.map_times_through((0, 5), lambda time, weight: None)


def test_a_negative_weight_is_checked(tmp_path: Path) -> None:
    of = layout("int")
    with taken([[((1, "a", 0.5), 0, -2), ((2, "a", 0.5), 0, 3)]], of, tmp_path) as snapshot:
        cursor = snapshot.cursor()
        assert cursor.weight == -2
        with pytest.raises(InvalidUpdates, match="has weight -2"):
            cursor.weight_checked()
        cursor.step_key()
        assert cursor.weight_checked() == 3


def test_a_hash_is_computed_once_for_several_cursors(tmp_path: Path) -> None:
    of = layout("text")
    with taken([[], [(("b", "a", 0.5), 0, 1)]], of, tmp_path) as snapshot:
        there, missing = Keys.of_values([("b",)], of), Keys.of_values([("c",)], of)
        for cursor in (snapshot.cursor(), snapshot.cursor()):
            assert cursor.seek_key_exact(there)
            assert not cursor.seek_key_exact(missing)
            assert not cursor.key_valid
            cursor.step_key_reverse()
            assert cursor.key == ("b",)
        with pytest.raises(UsageError, match="2 keys are given"):
            snapshot.cursor().seek_key_exact(Keys.of_values([("b",), ("c",)], of))


def test_a_key_that_the_filter_denies_reads_no_block(tmp_path: Path) -> None:
    of, cache = layout("int"), BlockCache(1 << 20)
    rows = sorted_rows([((k, "a", 0.5), 0, 1) for k in range(0, 400, 4)], of)
    batch = file_batch(rows, of, tmp_path, "f", cache)
    assert batch is not None
    with Snapshot(of, [batch]) as snapshot:
        batch.release()
        cursor = snapshot.cursor()
        before = (cache.counts.cache_misses, cache.counts.cache_hits)
        assert not cursor.seek_key_exact((1,))
        assert not cursor.seek_key_exact((201,))
        assert (cache.counts.cache_misses, cache.counts.cache_hits) == before
        assert (cache.counts.filter_misses, cache.counts.filter_hits) == (2, 0)
        assert cursor.seek_key_exact((396,))
        assert cache.counts.cache_misses == before[0] + 1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelake.arrangement.merge.levels import LEVELS, Fans
from tidelake.arrangement.merge.pressure import Pressure, Shares, pressure, to_disk
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.errors import UsageError

LOW, MODERATE, HIGH, CRITICAL = Pressure
SHARES = Shares(low=0.5, moderate=0.6, high=0.8, critical=0.9)


def walk(*shares: float) -> list[Pressure]:
    level, seen = LOW, []
    for share in shares:
        level = pressure(share, level, SHARES)
        seen.append(level)
    return seen


def test_pressure_rises_at_once():
    assert walk(0.1, 0.6, 0.8, 0.9) == [LOW, MODERATE, HIGH, CRITICAL]
    assert walk(1.5) == [CRITICAL]


def test_moderate_is_left_below_where_it_was_entered():
    assert walk(0.6, 0.55, 0.5, 0.49) == [MODERATE, MODERATE, MODERATE, LOW]


def test_high_is_left_for_low_only():
    assert walk(0.8, 0.7, 0.55, 0.49) == [HIGH, HIGH, HIGH, LOW]


def test_critical_is_left_at_moderate():
    assert walk(0.9, 0.85, 0.79, 0.55, 0.4) == [CRITICAL, CRITICAL, MODERATE, MODERATE, LOW]
    assert walk(0.9, 0.4) == [CRITICAL, LOW]


@given(st.lists(st.floats(0, 2)), st.floats(0, 2), st.floats(0, 2))
def test_more_use_is_never_less_pressure(before, a, b):
    level = walk(*before)[-1] if before else LOW
    assert pressure(min(a, b), level, SHARES) <= pressure(max(a, b), level, SHARES)


@given(st.floats(0, 2), st.floats(0, 0.09))
def test_a_small_wave_changes_the_pressure_once(share, wave):
    """Whatever is used, going a little down and up again does not move the level to and fro."""
    top = pressure(share, LOW, SHARES)
    down = pressure(share - wave, top, SHARES)
    assert pressure(share, down, SHARES) == top


@pytest.mark.parametrize(
    ("size", "used", "level", "answer"),
    [
        (10, 0, LOW, False),
        (10, 0, MODERATE, True),
        (1, 0, HIGH, True),
        (250, 0, LOW, True),
        (249, 0, LOW, False),
        (100, 499, LOW, False),
        (100, 500, LOW, True),
    ],
)
def test_batches_go_to_disk_if_they_are_large_or_memory_is_short(size, used, level, answer):
    assert to_disk(size, used, level, budget=1000, shares=SHARES, large=0.25) is answer


def test_shares_must_ascend():
    with pytest.raises(UsageError, match="ascend"):
        Shares(low=0.7, moderate=0.6)


@pytest.mark.parametrize(
    "setting",
    [
        {"memory_budget_bytes": 10},
        {"process_budget_bytes": 10},
        {"large_share": 0.0},
        {"idle_s": 0.0},
        {"batches_max": 24},
        {"level_rows": 0},
        {"fans": Fans((2,) * LEVELS, (2,))},
        {"fans": Fans((1,) * LEVELS, (2,) * LEVELS)},
        {"fans": Fans((3,) * LEVELS, (2,) * LEVELS)},
    ],
    ids=str,
)
def test_settings_out_of_their_limits_are_refused(setting):
    with pytest.raises(UsageError, match="must"):
        ArrangementConfig(**setting)


def test_an_append_may_wait_only_for_what_merges_can_reach():
    fans = Fans((2,) * LEVELS, (2,) * LEVELS)
    assert ArrangementConfig(fans=fans, batches_max=LEVELS + 1).batches_max == LEVELS + 1
    with pytest.raises(UsageError, match="batches_max=9 must exceed 9"):
        ArrangementConfig(fans=fans, batches_max=LEVELS)

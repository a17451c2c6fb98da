import pytest

from bench import appends


@pytest.mark.full
@pytest.mark.parametrize("kind", ["upserts", "inserts", "upkeep"])
def test_small_appends_are_measured_and_nothing_is_lost(kind: str) -> None:
    found = appends.measured(kind, 120, 60)
    assert found["appends"] == 120
    assert len(found["latency_ms"]) == len(found["runs_over_history"]) == 120
    assert found["space_amplification"] >= 1
    assert found["write_amplification"] >= 1
    assert found["log_mib"] > 0
    assert found["runs"] <= found["runs_max"]


def test_medians_are_of_stretches_in_order() -> None:
    assert appends.medians([1, 1, 5, 2, 2, 9], 2) == [1, 2]
    assert appends.medians([3, 4], 200) == [3, 4]


def test_growth_is_the_last_median_over_the_first() -> None:
    assert appends.last_to_first([1, 2, 3, 50, 4, 6, 8], 3) == 3

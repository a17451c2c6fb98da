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

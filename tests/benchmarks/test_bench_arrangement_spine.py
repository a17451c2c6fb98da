import pytest

from bench import arrangement_spine as bench


def test_appends_with_merging_are_compared_with_appends_without() -> None:
    found = bench.throughput(100_000)
    assert found["merging_to_paused"] == pytest.approx(found["merging_rows_s"] / found["paused_rows_s"])


@pytest.mark.full
def test_appends_go_on_until_all_is_one_batch() -> None:
    found = bench.latency(200_000)
    assert found["appends"] > 0
    assert found["rows_merged"] >= 200_000
    assert found["p99_to_quiet_median"] == found["merging_p99_ms"] / found["quiet_median_ms"]


def test_a_process_is_held_to_its_budget() -> None:
    found = bench.budget(50_000)
    assert found["appended_mib"] >= bench.TIMES * bench.BUDGET_MIB * 50_000 / 10_000_000
    assert found["imports_mib"] < found["peak_rss_mib"] <= 1.2 * bench.BUDGET_MIB

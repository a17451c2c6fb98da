import pytest

from bench import staging


@pytest.mark.full
def test_processes_that_stage_are_compared_with_synced_commits() -> None:
    found = staging.processes(0.0, 0.4, 2, 1, 1_000)
    assert found["to_limit"] == found["stages_s"] / found["limit_s"] > 0
    assert found["least_to_mean"] > 0


@pytest.mark.full
def test_threads_that_stage_are_committed_together() -> None:
    found = staging.threads(0.001, 0.4, 4, 1, 1_000)
    assert found["to_limit"] > 0 and found["log_writes_each"] > 0


def test_a_stage_uploads_once_and_alone_it_commits_once() -> None:
    found = staging.counted(32, 8)
    assert found["log_compare_and_set_each_alone"] == found["blob_put_each_alone"] == 1
    assert found["blob_put_each_together"] == 1 and found["log_compare_and_set_each_together"] <= 1

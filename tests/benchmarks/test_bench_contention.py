import pytest

from bench import contention


@pytest.mark.full
def test_processes_that_append_to_one_shard_lose_nothing_and_all_get_a_share() -> None:
    found = contention.one_shard(0.0, 0.5, 3, 1, 1_000)
    assert len(found["shares"]) == 3
    assert min(found["shares"]) > 0
    assert found["to_limit"] == found["appends_s"] / found["limit_s"]


@pytest.mark.full
def test_processes_with_a_shard_each_are_compared_with_flushes() -> None:
    found = contention.own_shards(0.001, 0.3, 2, 1, 1_000)
    assert found["scaling"] > 0
    assert 0 < found["flushes_s"] <= 2 / 0.001


def test_appends_to_many_batches_are_compared_with_few() -> None:
    found = contention.many_batches((3, 40), 6)
    assert found["batches"] == 46
    assert found["many_to_few"] > 0

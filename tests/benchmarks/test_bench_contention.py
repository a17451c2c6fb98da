from pathlib import Path

import pytest

from bench import contention
from tidelake.store.framed.log import FramedVersionLog


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


def test_a_slow_flush_is_paid_by_commits_and_not_by_lost_races(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(contention.time, "sleep", pauses.append)
    log = FramedVersionLog(str(tmp_path), files=contention.slow_files(5.0))
    assert log.compare_and_set("a", None, b"0")
    pauses.clear()
    assert log.compare_and_set("a", 0, b"1")
    assert not log.compare_and_set("a", 0, b"2")
    assert pauses == [5.0]
    log.close()

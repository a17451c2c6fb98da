import pytest

from bench import growth, history


@pytest.mark.parametrize("kind", ["directory", "object store"])
def test_commits_and_the_reads_amid_them_are_measured(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "STRETCH", 10)
    monkeypatch.setattr(growth, "HANDLES", 1)
    monkeypatch.setattr(growth, "IN_TURN", 5)
    monkeypatch.setattr(growth, "KEYS", 200)
    found = dict(growth.commits(kind, 40))
    assert [*found] == [f"{n} commits, {kind}" for n in (10, 30, 40)]
    row = found[f"40 commits, {kind}"]
    assert len(row["append_ms_over_history"]) == 4  # type: ignore[arg-type]
    assert 1 <= row["append_calls"] < 2  # type: ignore[operator]
    assert row["append_to_new"] > 0  # type: ignore[operator]


def test_collections_and_a_round_of_upkeep_are_measured() -> None:
    found = dict(growth.collections(30))
    assert [*found] == [f"{n} collections" for n in (1, 3, 10, 30)]
    # A round looks for new names; the collections have been idle for an hour, and are read once a minute.
    assert found["30 collections"]["upkeep_calls"] == 1 + 30 / growth.ROUNDS


def test_the_rows_of_all_runs_and_chunks_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ROUNDS_S", 0.0)
    monkeypatch.setattr(growth, "RUNS", (1, 4))
    monkeypatch.setattr(growth, "CHUNK_ROWS", 1_000)
    assert [*dict(growth.runs(400))] == ["1 runs", "4 runs"]
    assert [*dict(growth.rows(3_500))] == [f"{n:,} rows" for n in (1_000, 3_000, 3_500)]


@pytest.mark.full
def test_processes_that_append_to_one_collection_try_few_times() -> None:
    ((_, found),) = growth.writers([4], 1.0)
    assert 1 <= found["tries_per_append"] < 4  # type: ignore[operator]
    assert 0 < found["least_to_mean"] <= 1  # type: ignore[operator]

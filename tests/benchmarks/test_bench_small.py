import pytest

from bench import first_use, small


@pytest.mark.full
def test_a_tiny_append_is_measured_in_memory_and_in_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "ROUNDS", 1)
    found = small.run(1_000)
    assert [*found] == ["memory", "directory"]
    assert all(row.keys() == {"append_ms", "p50_ms", "calls"} for row in found.values())
    # A directory takes more calls: those of SQLite.
    assert 100 < found["memory"]["calls"] < found["directory"]["calls"] < 10_000


@pytest.mark.full
def test_a_first_use_is_the_sum_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "ROUNDS", 1)
    ((name, row),) = first_use.run(10_000).items()
    assert name == "100 rows"
    total = row.pop("first_use_ms")
    assert total == pytest.approx(sum(row.values()))

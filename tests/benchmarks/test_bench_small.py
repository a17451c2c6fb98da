from pathlib import Path

import pytest

from bench import first_use, fresh, small


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


def test_the_least_of_each_number_counts_without_the_first_round(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = f"""
import json, sys
with open({str(told)!r}, "a+") as file:
    file.write("x")
    count = file.tell()
place = sys.path[1].startswith({str(tmp_path)!r})
print(json.dumps({{"up": count, "down": 100 - count, "elsewhere": place}}))
"""
    assert fresh.least(code, 2)["now"] == {"up": 2, "down": 97, "elsewhere": 0}
    told.unlink()
    found = fresh.least(code, 2, str(tmp_path))
    # They take turns: one of ours, one of the other checkout.
    assert found["now"] == {"up": 3, "down": 95, "elsewhere": 0}
    assert found["before"] == {"up": 4, "down": 94, "elsewhere": 1}

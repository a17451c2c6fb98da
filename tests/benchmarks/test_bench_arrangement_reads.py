from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="answers the same keys: install the group bench")
from bench import arrangement_reads as reads
from bench.floors import FLOORS


def test_all_engines_find_the_same_rows_of_the_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "ASKED", {1: 12, 100: 2})
    found = reads.measured(20_000, tmp_path)
    wanted = {row for module, row, number in FLOORS if module == "arrangement_reads"}
    assert wanted <= set(found)
    for row in found.values():
        assert row["duckdb_to_lookup"] == row["duckdb_ms"] / row["lookup_ms"]

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidelake
from bench import updates

pytest.importorskip("duckdb", reason="the answer is compared with DuckDB's: install the group bench")

UPDATES, BATCH = 20_000, 1_000


@pytest.mark.full
def test_a_snapshot_under_merges_by_another_process_is_what_duckdb_answers() -> None:
    found = updates.measured(200_000, 10_000)
    assert found["appends"]["updates"] == 200_000
    assert found["snapshot"]["rows_left"] > 50_000
    assert found["merges"]["merges"] > 0
    assert found["merges"]["runs"] == 1
    assert found["merges"]["space_amplification"] == 1
    assert found["merges"]["worker_peak_rss_mib"] < updates.MEMORY_MIB


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("updates")
    (folder / "raw").mkdir()
    with tidelake.open(folder / "lake") as lake:
        collection = lake.create("c", updates.SCHEMA, key=["key"])
        updates.ingest(collection, folder / "raw", UPDATES, BATCH)
        updates.write_snapshot(collection, folder / "snapshot.parquet")
    return folder / "snapshot.parquet"


def _checked(snapshot: Path, rows: pa.Table) -> int:
    changed = snapshot.parent / "changed.parquet"
    pq.write_table(rows, changed)
    oracle = updates.Oracle(snapshot.parent)
    try:
        return oracle.check(changed)
    finally:
        oracle.close()


@pytest.mark.parametrize("column", ["key", "n", "x", "text", "_diff"])
def test_one_changed_value_is_found(snapshot: Path, column: str) -> None:
    rows = pq.read_table(snapshot)
    values = rows[column].to_pylist()
    values[7] = values[7] + ("!" if column == "text" else 1)
    at = rows.column_names.index(column)
    with pytest.raises(ValueError, match="digest"):
        _checked(snapshot, rows.set_column(at, rows.schema.field(at), pa.array(values)))

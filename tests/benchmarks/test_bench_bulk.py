import pytest

from bench import bulk

NUMBERS = {"zstd_to_ours", "defaults_to_ours", "processor_zstd_to_ours", "processor_defaults_to_ours"}


@pytest.mark.full
def test_appends_and_reads_are_compared_with_plain_files() -> None:
    pytest.importorskip("duckdb", reason="reads are compared with DuckDB's")
    rows = bulk.integers_and_text(bulk.ids(5_000, in_order=False))
    assert bulk.appended(rows).keys() > NUMBERS
    read = bulk.read(rows)
    assert len(read) == 6
    assert all(row.keys() > NUMBERS for row in read.values())


@pytest.mark.full
def test_the_memory_of_an_append_is_that_of_a_process_of_its_own() -> None:
    found = bulk.remembered(200_000, "in no order", 10_000)
    assert 0 < found["mib_beside_table"] < 1_000

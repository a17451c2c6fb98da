import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench import history
from bench.workload import SCHEMA


def left(tables: list[pa.Table]) -> pa.Table:
    summed = pa.concat_tables(tables).group_by(SCHEMA.names).aggregate([("_diff", "sum")])
    return summed.filter(pc.not_equal(summed["_diff_sum"], 0))


@pytest.mark.parametrize("workload", history.WORKLOADS)
def test_a_history_is_one_row_of_each_key_at_any_time(workload: str) -> None:
    found = list(history.made(workload, 200, 8_000).tables(500))
    assert sum(table.num_rows for table, _ in found) in (7_998, 7_999, 8_000)
    for end in range(1, len(found) + 1):
        table, upper = found[end - 1]
        assert pc.max(table["_time"]).as_py() == upper - 1
        rows = left([table for table, _ in found[:end]])
        assert pc.min_max(rows["_diff_sum"]).as_py() == {"min": 1, "max": 1}
        assert len(pc.unique(rows["key"])) == rows.num_rows
    assert left([table for table, _ in found]).num_rows == (8_000 if workload == "inserts" else 200)


@pytest.mark.full
def test_all_of_a_history_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ROUNDS", 1)
    monkeypatch.setattr(history, "ROUNDS_S", 0.0)
    found = history.grown("upserts, uniform", 200, [4_000, 40_000])
    name = "upserts, uniform, 200 rows"
    assert found[f"{name}, 40,000 updates"]["slices"] > 0
    assert set(found[f"{name}, growth at rest"]) == {f"{read}_ratio" for read in history.READS}
    gone = found[f"{name}, 40,000 updates, 90 % let go"]
    assert gone["rows_after"] < gone["rows_before"] and gone["written_to_base_and_slice"] <= 1

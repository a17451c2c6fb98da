import pyarrow as pa
import pyarrow.compute as pc

from bench import appends
from bench.workload import SCHEMA, Workload


def _net(tables: list[pa.Table], columns: list[str]) -> pa.Table:
    summed = pa.concat_tables(tables).group_by(columns).aggregate([("_diff", "sum")])
    return summed.filter(pc.not_equal(summed["_diff_sum"], 0))


def test_every_prefix_of_the_workload_is_a_set_of_rows_by_key() -> None:
    batches = list(Workload(20_000, 1_000))
    for end in range(1, len(batches) + 1):
        left = _net(batches[:end], SCHEMA.names)
        assert pc.min_max(left["_diff_sum"]).as_py() == {"min": 1, "max": 1}
        assert len(pc.unique(left["key"])) == left.num_rows


def test_upserts_leave_one_row_for_each_key() -> None:
    tables = [appends.base(50), *appends.upserts(40, 50)]
    left = _net(tables, appends.SCHEMA.names)
    assert [t.num_rows for t in tables[1:]] == [10] * 40
    assert sorted(left["key"].to_pylist()) == list(range(50))
    assert set(left["_diff_sum"].to_pylist()) == {1}
    # 40 appends change five rows each; a balance is a thousand times the key, plus the version.
    assert sum(left["balance"].to_pylist()) == 1_000 * sum(range(50)) + 200

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench import appends
from bench.texts import texts
from bench.workload import SCHEMA, Workload, zipfian


def _net(tables: list[pa.Table], columns: list[str]) -> pa.Table:
    summed = pa.concat_tables(tables).group_by(columns).aggregate([("_diff", "sum")])
    return summed.filter(pc.not_equal(summed["_diff_sum"], 0))


def test_every_prefix_of_the_workload_is_a_set_of_rows_by_key() -> None:
    batches = list(Workload(20_000, 1_000))
    for end in range(1, len(batches) + 1):
        left = _net(batches[:end], SCHEMA.names)
        assert pc.min_max(left["_diff_sum"]).as_py() == {"min": 1, "max": 1}
        assert len(pc.unique(left["key"])) == left.num_rows


def test_the_workload_has_the_updates_asked_for_and_mostly_new_rows() -> None:
    batches = list(Workload(20_500, 1_000))
    assert [b.num_rows for b in batches] == [1_000] * 20 + [500]
    assert [pc.unique(b["_time"]).to_pylist() for b in batches] == [[i] for i in range(21)]
    taken = sum(pc.sum(pc.less(b["_diff"], 0)).as_py() for b in batches)
    added = len(pc.unique(pa.concat_tables(batches)["key"]))
    assert 0.5 * 20_500 < added < 0.65 * 20_500
    assert 0.2 * 20_500 < taken < 0.3 * 20_500


def test_the_workload_follows_from_its_seed() -> None:
    first, again, other = (pa.concat_tables(Workload(5_000, 1_000, seed)) for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


def test_low_ranks_are_drawn_much_more_often() -> None:
    drawn = zipfian(np.random.default_rng(0), 10_000, 50_000)
    assert drawn.min() == 0
    assert drawn.max() < 10_000
    counts = np.bincount(drawn, minlength=10_000)
    # The law with exponent 0.99 gives rank 9 about a tenth of what it gives rank 0.
    assert 5 < counts[0] / counts[9] < 20


def test_upserts_leave_one_row_for_each_key() -> None:
    tables = [appends.base(50), *appends.upserts(40, 50)]
    left = _net(tables, appends.SCHEMA.names)
    assert [t.num_rows for t in tables[1:]] == [10] * 40
    assert sorted(left["key"].to_pylist()) == list(range(50))
    assert set(left["_diff_sum"].to_pylist()) == {1}
    # 40 appends change five rows each; a balance is a thousand times the key, plus the version.
    assert sum(left["balance"].to_pylist()) == 1_000 * sum(range(50)) + 200


def test_inserts_bring_every_key_once() -> None:
    tables = list(appends.inserts(30))
    assert [t.num_rows for t in tables] == [10] * 30
    assert sorted(pa.concat_tables(tables)["key"].to_pylist()) == list(range(300))


def test_texts_follow_from_numbers() -> None:
    made = texts(np.array([1, 2, 1]), 24).to_pylist()
    assert made[0] == made[2] != made[1]
    assert {len(text) for text in made} == {24}
    assert all(set(text) <= set("0123456789abcdef") for text in made)

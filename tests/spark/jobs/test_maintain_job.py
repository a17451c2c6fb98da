"""Maintenance of several collections at once: what is due together is one job."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.config import Config
from tidelake.errors import Closed, CollectionNotFound, CorruptionError, InvalidUpdates
from tidelake.spark import MaintainReport, maintain
from tidelake.spark.jobs.maintain import Round
from tidelake.spark.jobs.merge import carried_out, workers
from tidelake.spark.jobs.rounds import Rounds

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
CONFIG = Config(inline_part_bytes=0, row_group_rows=16, merge_budget_s=0.0)


def lake_of(folder: Path, names: tuple[str, ...]) -> tidelake.Lake:
    lake = tidelake.open(folder / "lake", config=CONFIG)
    for n, name in enumerate(names):
        c = lake.create(name, SCHEMA, key=["k"])
        for time in range(5 + n):
            c.append(pa.table({"k": range(100 * n, 100 * n + 40), "v": [f"{name}{time % 2}"] * 40}))
        c.advance_since(3)
    return lake


def contents(c: tidelake.Collection, as_of: int) -> Counter[Any]:
    rows = c.snapshot(as_of).read_all().to_pylist()
    return Counter({(row["k"], row["v"]): row["_diff"] for row in rows})


def damaged(lake: tidelake.Lake, name: str) -> None:
    c = lake.collection(name)
    part = next(part for member in c.state().spine for part in member.batch.parts())
    path = Path(lake.url.removeprefix("file://")) / "blobs" / part.name
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)


@pytest.mark.promise(
    "Maintenance of many collections runs the merges of all as one job a round; one that cannot be "
    "merged keeps no other one waiting",
    rule="`spark/jobs/maintain.py`, `spark/jobs/rounds.py`",
    also=[
        "::test_a_collection_that_cannot_be_merged_keeps_no_other_one_waiting",
        "::test_a_job_that_fails_ends_all_threads_and_leaves_the_collections_as_they_were",
    ],
)
@pytest.mark.full
def test_the_merges_of_all_collections_are_one_job_a_round(spark: Any, tmp_path: Path) -> None:
    names = tuple(f"c{i}" for i in range(6))
    lake = lake_of(tmp_path, names)
    before = {name: [contents(lake.collection(name), t) for t in (3, 4)] for name in names}
    rounds: list[Round] = []
    report = maintain(spark, lake, progress=rounds.append)
    assert isinstance(report, MaintainReport) and not report.failed
    assert sorted(report.collections) == list(names)
    assert all(done.complete and done.merges for done in report.collections.values())
    # Every collection asks in the first round; one job for each of them would be six.
    assert rounds[0].collections == 6 and rounds[0].key_ranges >= 6
    assert [r.number for r in rounds] == list(range(1, report.rounds + 1)) and report.rounds < 6
    assert report.key_ranges == sum(r.key_ranges for r in rounds) and report.seconds > 0
    for name in names:
        c = lake.collection(name)
        assert c.state().spine.totals.runs == 1 and not c.state().claims
        assert [contents(c, t) for t in (3, 4)] == before[name]
    again = maintain(spark, lake)
    assert (again.rounds, again.key_ranges) == (0, 0) and len(again.collections) == 6


@pytest.mark.full
def test_more_collections_than_threads_are_all_maintained(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelake.spark.jobs.maintain._AT_ONCE", 2)
    lake = lake_of(tmp_path, ("a", "b", "c"))
    rounds: list[Round] = []
    report = maintain(spark, lake, ["a", "c", "b", "a"], progress=rounds.append)
    assert sorted(report.collections) == ["a", "b", "c"]
    assert max(r.collections for r in rounds) == 2
    assert all(lake.collection(name).state().spine.totals.runs == 1 for name in "abc")


def test_a_collection_that_cannot_be_merged_keeps_no_other_one_waiting(spark: Any, tmp_path: Path) -> None:
    lake = lake_of(tmp_path, ("bad", "good"))
    damaged(lake, "bad")
    report = maintain(spark, lake)
    assert list(report.collections) == ["good"] and list(report.failed) == ["bad"]
    assert isinstance(report.failed["bad"], CorruptionError)
    assert lake.collection("good").state().spine.totals.runs == 1


def test_only_named_collections_are_maintained_and_unknown_ones_are_named_first(
    spark: Any, tmp_path: Path
) -> None:
    lake = lake_of(tmp_path, ("a", "b"))
    with pytest.raises(CollectionNotFound, match="other"):
        maintain(spark, lake, ["a", "other"])
    assert lake.collection("a").state().spine.totals.runs == 5
    maintain(spark, lake, ["b"])
    assert [lake.collection(name).state().spine.totals.runs for name in "ab"] == [5, 1]
    assert maintain(spark, lake, []).rounds == 0


def test_a_job_that_fails_ends_all_threads_and_leaves_the_collections_as_they_were(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_of(tmp_path, ("a", "b"))

    def failing(*_: Any) -> Any:
        raise RuntimeError("no executor left")

    monkeypatch.setattr("tidelake.spark.jobs.maintain.carried_out", failing)
    with pytest.raises(RuntimeError, match="no executor left"):
        maintain(spark, lake)
    assert not [t for t in threading.enumerate() if t.name.startswith("tidelake-maintain")]
    assert [lake.collection(name).state().spine.totals.runs for name in "ab"] == [5, 6]


@pytest.mark.promise(
    "A merge that cannot be done raises its own error, also from a worker of Spark",
    rule="`_FAULTS` in `spark/jobs/merge.py`",
)
def test_a_sum_that_does_not_fit_is_told_by_its_name(spark: Any, tmp_path: Path) -> None:
    lake = tidelake.open(tmp_path / "lake", config=CONFIG)
    c = lake.create("c", SCHEMA, key=["k"])
    for _ in range(2):
        c.append(pa.table({"k": [1], "v": ["x"], "_diff": pa.array([2**62], pa.int64())}))
    c.advance_since(1)
    for told in (None, workers(spark, "sums")):
        with pytest.raises(InvalidUpdates, match="does not fit into an int64: k=1"):
            c.merge(told)


def test_a_task_that_cannot_be_done_is_an_answer_and_no_failure_of_the_job(
    spark: Any, tmp_path: Path
) -> None:
    assert carried_out(spark, []) == []
    (answer,) = carried_out(spark, [b"no task"])
    assert isinstance(answer, CorruptionError)


def test_rounds_begin_when_all_wait_and_end_for_all() -> None:
    rounds = Rounds(2)
    got: dict[str, Any] = {}

    def member(name: str, tasks: list[bytes]) -> None:
        try:
            got[name] = rounds.run(tasks)
        except Exception as error:
            got[name] = error
        rounds.leave()

    threads = [
        threading.Thread(target=member, args=("a", [b"1", b"2"])),
        threading.Thread(target=member, args=("b", [b"3"])),
    ]
    for thread in threads:
        thread.start()
    asked = rounds.gather()
    tasks = [task for one in asked for task in one.tasks]
    assert sorted(tasks) == [b"1", b"2", b"3"]
    fault = InvalidUpdates("no")
    rounds.answer(asked, [fault if task == b"3" else task * 2 for task in tasks])
    for thread in threads:
        thread.join()
    assert got == {"a": [b"11", b"22"], "b": fault}
    assert rounds.gather() == []
    rounds.end()
    with pytest.raises(Closed):
        rounds.run([b"4"])

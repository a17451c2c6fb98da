"""What the format reads is held: for how long, by whom, and who lets go of it."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import inside

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

import tidelake
from tidelake.config import Config
from tidelake.env import Env, SystemClock
from tidelake.errors import UsageError
from tidelake.lake.api.lake import open_lake
from tidelake.spark import release
from tidelake.spark.columns import frame_schema
from tidelake.spark.reading.frames import _Read
from tidelake.spark.reading.holds import Lasting, _released_all, hold_plans, kept
from tidelake.spark.source.batch import BatchReader, ReadTask

pytestmark = pytest.mark.full

HASTY = Config(inline_part_bytes=0, merge_budget_s=0.0, garbage_age_s=0.0, retry_deadline_s=0.1)
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


class Late(SystemClock):
    """A clock that is so many seconds late."""

    def __init__(self, seconds: int) -> None:
        self._late_ms = seconds * 1000

    def now_ms(self) -> int:
        return super().now_ms() - self._late_ms


def made(tmp_path: Path, env: Env | None = None) -> tidelake.Collection:
    """Two runs, which a merge replaces by one; garbage is old at once."""
    c = open_lake(tmp_path / "lake", config=HASTY, env=env).create("c", SCHEMA, key=["k"])
    for k in (1, 2):
        c.append(pa.table({"k": [k], "v": ["x"]}))
    return c


def load(spark: Any, c: tidelake.Collection, **options: Any) -> Any:
    return spark.read.format("tidelake").options(**options).load(f"{inside.shard(c).spec.url}/{c.name}")


def holds_of(c: tidelake.Collection) -> dict[str, Any]:
    return dict(c.state().holds)


def replaced(c: tidelake.Collection) -> None:
    """Everything that is stored is merged, and what is not held is deleted."""
    c.append(pa.table({"k": [3], "v": ["y"]}))
    assert c.merge().applied
    c.collect()


@pytest.mark.promise(
    "The version that the format reads is held for `holdFor`, until the driver releases it or ends; "
    "once its parts are collected, reads raise `LeaseExpired`",
    rule="`spark/reading/holds.py`",
    also=["::test_a_hold_that_expires_lets_the_frame_go", "::test_holds_end_with_the_driver"],
)
def test_what_is_read_is_held_for_a_day_and_released_by_the_driver(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    frame = load(spark, c)
    assert not holds_of(c)
    assert frame.count() == 2
    (hold,) = holds_of(c).values()
    assert (hold.lease_ms, hold.since.closed) == (86_400_000, True)
    assert hold.purpose.startswith("DataFrames of Spark application")
    replaced(c)
    assert frame.count() == 2
    assert release(c) == 1 and not holds_of(c) and release(c) == 0
    c.collect()
    with pytest.raises(PySparkException, match=r"LeaseExpired(.|\n)*load it again, with a longer holdFor"):
        frame.collect()
    assert load(spark, c).count() == 3


def test_a_hold_that_expires_lets_the_frame_go(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    frame = load(spark, c, holdFor="100ms")
    assert frame.count() == 2
    (hold,) = holds_of(c).values()
    assert hold.lease_ms == 100
    while time.time() * 1000 <= hold.expires_ms + 100:
        time.sleep(0.02)
    replaced(c)
    with pytest.raises(PySparkException, match="LeaseExpired"):
        frame.collect()


@pytest.mark.promise(
    "An application has one hold on a version, however often it reads it; it ends only its own holds",
    rule="`open_plan_hold`, `release_owned`",
    also=[
        "shard/test_lease.py::test_what_an_owner_holds_of_one_version_is_one_hold",
        "shard/test_lease.py::test_an_owner_whose_name_begins_as_anothers_gives_up_its_own_holds_only",
    ],
)
def test_reads_of_one_version_share_a_hold_and_none_asks_for_none(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    assert load(spark, c, holdFor="none").count() == 2
    assert not holds_of(c)
    for options in ({}, {"asOf": 0}, {"lower": 0}, {"where": "k = 1"}):
        assert load(spark, c, **options).count() in (1, 2)
    assert len(holds_of(c)) == 1
    assert load(spark, c, holdFor="2h").count() == 2
    assert sorted(hold.lease_ms for hold in holds_of(c).values()) == [7_200_000, 86_400_000]
    replaced(c)
    assert load(spark, c).count() == 3
    assert len(holds_of(c)) == 3
    assert release(c) == 3


def test_a_read_that_needs_no_object_holds_nothing(spark: Any, tmp_path: Path) -> None:
    c = tidelake.open(tmp_path / "lake").create("c", SCHEMA, key=["k"])
    c.append(pa.table({"k": [1], "v": ["x"]}))
    assert load(spark, c).count() == 1
    assert not holds_of(c)


def test_a_frame_of_another_application_is_not_released(spark: Any, tmp_path: Path) -> None:
    c = made(tmp_path)
    theirs = c.distributed.hold([c.distributed.plan(None, 1)], 60, "theirs", owner="spark-0123456789abcdef")
    assert load(spark, c).count() == 2
    assert release(c) == 1
    assert list(holds_of(c)) == [theirs]


def test_frames_of_a_lake_that_was_closed_are_released_like_others(tmp_path: Path) -> None:
    lake = open_lake(tmp_path / "lake", config=HASTY)
    c = lake.create("c", SCHEMA, key=["k"])
    c.append(pa.table({"k": [1], "v": ["x"]}))
    other = made(tmp_path / "other")
    release()  # what other tests of this process hold
    for held in (c, other):
        hold_plans(held, [held.distributed.plan(None, 1)], 3_600)
    lake.close()
    assert release() == 2 and release() == 0
    assert not holds_of(other) and not holds_of(tidelake.open(tmp_path / "lake").collection("c"))


def test_a_lake_that_is_gone_keeps_no_other_hold(tmp_path: Path) -> None:
    theirs = sorted((made(tmp_path / place) for place in "ab"), key=lambda c: c.id)
    folder = tmp_path / "notes"
    folder.mkdir()
    for c in theirs:
        c.distributed.hold([c.distributed.plan(None, 1)], 60, "theirs", owner="spark-0")
        (folder / c.id).write_text(json.dumps(c.distributed.lake_url))
    shutil.rmtree(theirs[0].distributed.lake_url.removeprefix("file://"))
    assert _released_all("spark-0", folder) == 1 and not holds_of(theirs[1])
    assert not list(folder.iterdir())
    folder.rmdir()
    assert _released_all("spark-0", folder) == 0


# In a worker


def lasting(c: tidelake.Collection, seconds: float, age_s: float) -> Lasting:
    hold = c.distributed.hold([c.distributed.plan(None, 1)], seconds, "a DataFrame")
    assert hold is not None
    return Lasting(inside.shard(c).spec.url, c.id, hold, seconds, int((time.time() - age_s) * 1000))


def batches(n: int = 3) -> Any:
    return iter([pa.record_batch({"k": [i]}) for i in range(n)])


def test_a_task_that_begins_soon_and_is_short_writes_nothing(tmp_path: Path) -> None:
    c = made(tmp_path)
    held = lasting(c, 3_600, age_s=400)
    seqno = c.state().seqno
    assert len(list(kept(batches(), held))) == 3
    assert c.state().seqno == seqno
    # It does not even look: this would be refused.
    nowhere = replace(held, url="ftp://nowhere")
    assert len(list(kept(batches(), nowhere))) == 3
    with pytest.raises(UsageError, match="no place of a lake"):
        list(kept(batches(), replace(nowhere, taken_ms=0)))


@pytest.mark.promise(
    "Tasks that read for long extend their hold; short ones write nothing",
    rule="`kept`, `extend_plan_hold`",
    also=[
        "::test_a_task_that_begins_soon_and_is_short_writes_nothing",
        "shard/test_lease.py::test_a_hold_is_extended_when_it_is_old_and_only_while_it_is_there",
    ],
)
def test_a_task_that_begins_late_extends_its_hold_once(tmp_path: Path) -> None:
    # Its hold was opened 1.5 hours ago, by the clock of this process.
    c = made(tmp_path, replace(Env(), clock=Late(5_400)))
    held = lasting(c, 7_200, age_s=5_400)
    open_lake(tmp_path / "lake").rename("c", "another name")
    opened = c.state().holds[held.hold]
    seqno = c.state().seqno
    assert len(list(kept(batches(), held))) == 3
    extended = c.state().holds[held.hold]
    assert c.state().seqno == seqno + 1
    assert extended.expires_ms - opened.expires_ms >= 5_400_000 and extended.pins == opened.pins
    # Others of the same plan see that it was done.
    assert len(list(kept(batches(), held))) == 3
    assert c.state().seqno == seqno + 1


def test_a_task_of_the_helpers_extends_its_hold_too(tmp_path: Path) -> None:
    c = made(tmp_path, replace(Env(), clock=Late(5_400)))
    held = lasting(c, 7_200, age_s=5_400)
    opened = c.state().holds[held.hold]
    plan = c.distributed.plan(None, 1)
    found = [row for batch in _Read(plan.schema, held)(plan.tasks[0]) for row in batch.to_pylist()]
    assert [row["k"] for row in found] == [1, 2]
    assert c.state().holds[held.hold].expires_ms > opened.expires_ms


def test_a_task_whose_hold_is_gone_reads_on_while_there_is_something_to_read(tmp_path: Path) -> None:
    c = made(tmp_path)
    held = lasting(c, 3_600, age_s=3_000)
    c.distributed.release(held.hold)
    assert len(list(kept(batches(), held))) == 3
    assert not holds_of(c)


def test_a_task_reads_on_while_the_lake_is_away(tmp_path: Path) -> None:
    c = made(tmp_path)
    held = replace(lasting(c, 3_600, age_s=3_000), url=(tmp_path / "elsewhere").as_uri())
    assert len(list(kept(batches(), held))) == 3


@pytest.mark.promise(
    "Workers that read need neither pandas nor the parser of conditions", rule="`spark/source/batch.py`"
)
def test_tasks_are_small_and_workers_need_no_pandas(tmp_path: Path) -> None:
    c = made(tmp_path)
    options = {"path": f"{inside.shard(c).spec.url}/c", "lower": "0", "changeFeed": "true", "holdFor": "none"}
    from tidelake.spark.source.options import shape
    from tidelake.spark.source.planning import shown

    reader = BatchReader(options, frame_schema(shown(c.schema, c.domain, shape(options))))
    (task,) = reader.partitions()
    assert isinstance(task, ReadTask) and len(pickle.dumps(task)) < 8_000
    (tmp_path / "sent").write_bytes(pickle.dumps((reader, task)))
    code = """
        import pickle, sys

        class Hidden:
            def find_spec(self, name, *_):
                if name.partition(".")[0] in ("pandas", "py4j_unused", "sqlglot", "click", "rich"):
                    raise ModuleNotFoundError(name)

        sys.meta_path.insert(0, Hidden())
        reader, task = pickle.load(open(sys.argv[1], "rb"))
        print([row["k"] for batch in reader.read(task) for row in batch.to_pylist()])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "sent")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "[1, 2]", done.stderr


# When the driver ends


DRIVER = """
    import sys

    import quick

    from tidelake.spark import register

    spark = quick.session(1)
    register(spark)
    frame = spark.read.format("tidelake").load(sys.argv[1])
    assert frame.count() == 2
    if sys.argv[2] == "stop":
        spark.stop()
    elif sys.argv[2] == "fail":
        raise ValueError("a driver that fails")
"""


@pytest.mark.spark
@pytest.mark.parametrize("end", ["stop", "leave", "fail"])
def test_holds_end_with_the_driver(tmp_path: Path, end: str) -> None:
    c = made(tmp_path)
    before = c.state().seqno
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER), f"{inside.shard(c).spec.url}/c", end],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == (1 if end == "fail" else 0), done.stderr
    assert c.state().seqno == before + 2 and not holds_of(c)
    assert not list(tmp_path.glob("tidelake-*"))

"""Views that a streaming query keeps up to their inputs, also if its driver is killed."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

import tidelake
from tidelake import spark as ts
from tidelake.model.frontier import Frontier
from tidelake.spark import refresh_stream
from tiers import rounds

pytestmark = pytest.mark.spark
DRIVER = Path(__file__).parents[1] / "refresh_driver.py"
VIEWS = {
    "sums": "SELECT k, count(*) AS n, sum(x) AS s FROM a GROUP BY k",
    "top": "SELECT k, x, id FROM (SELECT *, row_number() OVER (PARTITION BY k ORDER BY x DESC, id) AS r "
    "FROM a) WHERE r <= 2",
    "groups": "SELECT n, count(*) AS groups FROM sums GROUP BY n",
}


def filled(place: Path, spark: Any = None) -> tidelake.Lake:
    """A lake with a chain of views, of the SQL of DuckDB or of a session."""
    lake = tidelake.open(place)
    lake.create("a", {"id": "int64", "k": "int64", "x": "int64"}, key=["id"])
    view = lake.view if spark is None else partial(ts.view, spark, lake)
    for name, sql in VIEWS.items():
        view(name, sql)
    return lake


def wait_for(lake: Any, names: Any) -> None:
    """Wait until views are as far as their input."""
    deadline_s = time.monotonic() + 300
    while any(lake[name].upper != lake["a"].upper for name in names):
        assert time.monotonic() < deadline_s, {name: str(lake[name].upper) for name in names}
        time.sleep(0.02)


def test_views_follow_their_inputs_and_one_that_fails_ends_the_query(spark: Any, tmp_path: Path) -> None:
    lake, told = filled(tmp_path / "lake"), []
    lake.view("small", "SELECT id, CAST(x AS TINYINT) AS x FROM a")
    query = refresh_stream(spark, lake, interval_s=0.05, progress=told.append)
    try:
        lake["a"].append(pa.table({"id": [1, 2], "k": [1, 1], "x": [5, 6]}))
        wait_for(lake, [*VIEWS, "small"])
        assert lake.verify("groups").equal and query.isActive
        assert {one.view for done in told for one in done} == {*VIEWS, "small"}
        lake["a"].append(pa.table({"id": [3], "k": [1], "x": [500]}))
        wait_for(lake, VIEWS)
        with pytest.raises(Exception, match="view 'small' cannot be refreshed"):
            query.awaitTermination(60)
    finally:
        query.stop()
        lake.close()


@pytest.mark.promise(
    "`refresh_stream` whose driver is killed at any point goes on, and each update of a view is there once",
    rule="`compare_and_append`, in `views/refresh.py`; it needs no checkpoint",
)
@pytest.mark.full
@pytest.mark.grows
@pytest.mark.timeout(3600)
def test_killed_at_random_moments(tmp_path: Path, rng: Random) -> None:
    lake, n = filled(tmp_path / "lake"), 0
    for _ in rounds(full=4, soak=600, least=2):
        n = killed(tmp_path, lake, rng, n)
    lake.refresh()
    times = sorted({0, n - 1, *(rng.randrange(n) for _ in range(10))})
    assert all(lake.verify(name, at=time).equal for name in VIEWS for time in times)
    twin = filled(tmp_path / "twin")
    twin["a"].append(lake["a"].updates(0, n).read_all(), upper=n)
    twin.refresh()
    same_updates(lake, twin, n)


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("by", ["driver", "executors"])
def test_views_of_sparks_sql_killed_at_random_moments(
    spark: Any, tmp_path: Path, rng: Random, by: str
) -> None:
    lake, n = filled(tmp_path / "lake", spark), 0
    for number in range(25):
        commits = rng.randrange(1, 8)
        n = killed(tmp_path, lake, rng, n, by, commits=commits, pause_s=0.3, worker=number % 3 == 2)
    assert Frontier.of(0) < lake["sums"].upper
    ts.refresh(spark, lake)
    times = sorted({0, n - 1, *(rng.randrange(n) for _ in range(10))})
    assert all(ts.verify(spark, lake, name, time).equal for name in VIEWS for time in times)
    twin = filled(tmp_path / "twin", spark)
    twin["a"].append(lake["a"].updates(0, n).read_all(), upper=n)
    ts.refresh(spark, twin)
    same_updates(lake, twin, n)


def killed(
    place: Path,
    lake: Any,
    rng: Random,
    n: int,
    by: str = "driver",
    *,
    commits: int = 0,
    pause_s: float = 0,
    worker: bool = False,
) -> int:
    """Write while a driver refreshes, until it is killed at a random moment. Returns the next time.

    Args:
        place: has the lake.
        lake: is written.
        rng: chooses.
        n: the time of the first write.
        by: what computes.
        commits: so many of the refreshes are waited for.
        pause_s: between two writes.
        worker: before, a worker is killed as well.
    """
    with (place / "out").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(place / "lake"), by],
            stdout=subprocess.PIPE,
            stderr=out,
            start_new_session=True,
        )
    assert process.stdout is not None and process.stdout.readline(), (place / "out").read_text()
    wanted, deadline_s = refreshed(lake) + commits, time.monotonic() + 300
    for victim in ("worker", "driver") if worker else ("driver",):
        until = time.monotonic() + rng.uniform(0.2, 3)
        while (now := time.monotonic()) < until or (refreshed(lake) < wanted and now < deadline_s):
            many = rng.randint(1, 5)
            ids = [rng.randrange(20) for _ in range(many)]
            values = {"id": ids, "k": [one % 4 for one in ids], "x": [rng.randrange(99) for _ in ids]}
            lake["a"].append(pa.table(values | {"_time": [n] * many}), upper=n + 1)
            n += 1
            time.sleep(pause_s)
        if victim == "driver":
            os.killpg(process.pid, signal.SIGKILL)
        elif workers := workers_of(process.pid):
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
    process.communicate()
    return n


def refreshed(lake: Any) -> int:
    """How many commits there are of views, and of what they keep."""
    return sum(lake[name].state().seqno for name in lake.list(parts=True) if name != "a")


def workers_of(driver: int) -> list[int]:
    """The Python processes that Spark has started for tasks of a driver, which leads a session."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_worker = b"pyspark.worker" in (one / "cmdline").read_bytes()
            if is_worker and os.getsid(int(one.name)) == driver:
                found.append(int(one.name))
    return found


def same_updates(lake: Any, twin: Any, n: int) -> None:
    """Each update is stored once, as in a lake that no kill has met. Closes both."""
    for name in VIEWS:
        stored = [sorted(map(str, of[name].updates(0, n).read_all().to_pylist())) for of in (lake, twin)]
        assert stored[0] == stored[1]
    lake.close()
    twin.close()

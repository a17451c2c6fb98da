"""A stream whose driver is killed with -9, again and again, or whose tasks fail, writes each row once."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

pytest.importorskip("pyspark")

import stream_source

import tidelake
from tidelake.testing import tables
from tiers import rounds

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200), pytest.mark.usefixtures("killed_jvms")]

DRIVER = Path(__file__).with_name("stream_driver.py")
Row: TypeAlias = dict[str, Any]
History: TypeAlias = Counter[tuple[tuple[Any, ...], int]]


class Rows:
    """Rows that are added; each has the time of its commit."""

    envelope, columns = "updates", "id bigint, v string"

    def __init__(self, rng: Random) -> None:
        self.rng, self.files = rng, 0
        self.rows: Counter[tuple[Any, ...]] = Counter()

    def file(self) -> list[Row]:
        rows = [self.row() for _ in range(self.rng.randrange(30))]
        self.rows.update((row["id"], row["v"]) for row in rows)
        self.files += 1
        return rows

    def row(self) -> Row:
        # The id tells the file.
        return {"id": self.files * 100 + self.rng.randrange(10), "v": self.rng.choice(["a", "ü", "", None])}

    def check(self, history: History, upper: int) -> None:
        """Every row is there once, those of a file at one time, later files not earlier.

        A driver that dies between the two logs that Spark keeps of files has two files in its next batch.
        """
        found: Counter[tuple[Any, ...]] = Counter()
        for (row, _), diff in history.items():
            found[row] += diff
        assert found == self.rows
        at = sorted({(row[0] // 100, time) for row, time in history})
        assert len(dict(at)) == len(at)
        times = [time for _, time in at]
        assert times == sorted(times) and set(times) == set(range(upper))


class Changes(Rows):
    """Updates with times and diffs of their own."""

    columns = "id bigint, v string, _time bigint, _diff bigint"

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.time = 0
        self.history: History = Counter()

    def file(self) -> list[Row]:
        rows = [
            {"id": self.rng.randrange(30), "v": self.rng.choice(["a", "ü", "", None])}
            | {"_time": self.time + self.rng.randrange(3), "_diff": self.rng.choice([-1, 1, 2])}
            for _ in range(self.rng.randrange(30))
        ]
        for row in rows:
            self.history[(row["id"], row["v"]), row["_time"]] += row["_diff"]
        self.time = max((row["_time"] + 1 for row in rows), default=self.time)
        return rows

    def check(self, history: History, upper: int) -> None:
        assert upper == self.time
        assert history == Counter({key: diff for key, diff in self.history.items() if diff})


class Upserts(Rows):
    """Events of few keys. The last one counts, also of several in one file."""

    envelope, columns = "upsert", "id bigint, v string, n bigint"

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.count = 0
        self.states: list[dict[int, str | None]] = [{}]

    def file(self) -> list[Row]:
        state, rows = dict(self.states[-1]), []
        for _ in range(self.rng.randrange(30)):
            key, value = self.rng.randrange(40), self.rng.choice(["a", "ü", "", None])
            rows.append({"id": key, "v": value, "n": self.count})
            self.count += 1
            state[key] = value
        self.states.append(state)
        self.rng.shuffle(rows)
        return rows

    def check(self, history: History, upper: int) -> None:
        """At every time the contents are those after some files; at later times, after no fewer files."""
        contents: Counter[tuple[Any, ...]] = Counter()
        files = 0
        for at in range(upper):
            contents.update({row: diff for (row, then), diff in history.items() if then == at})
            there = Counter({row: n for row, n in contents.items() if n})
            same = [k for k in range(files, len(self.states)) if there == Counter(self.states[k].items())]
            assert same, f"the contents at {at} were never those of the source"
            files = same[0]
        assert Counter({row: n for row, n in contents.items() if n}) == Counter(self.states[-1].items())


class Runs:
    """A lake, a folder of files, and drivers that write it, each in a process group of its own."""

    def __init__(self, root: Path, way: str, source: Rows) -> None:
        self.root, self.source, self.way = root, source, way
        self.log = root / "stderr.txt"
        for name in ("in", "marks"):
            (root / name).mkdir()
        self.files = 0
        tidelake.open(root / "lake").create("c", stream_source.SCHEMA, key=["id"])

    def put(self, files: int) -> None:
        """More for the drivers to write."""
        for number in range(self.files, self.files + files):
            stream_source.put(self.root / "in", number, self.source.file())
        self.files += files

    def start(self, *extra: str) -> subprocess.Popen[str]:
        arguments = [str(self.root), self.way, self.source.envelope, self.source.columns, *extra]
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, str(DRIVER), *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def finish(self, *extra: str) -> list[str]:
        """Run until everything is in; what the driver said."""
        process = self.start(*extra)
        try:
            said, _ = process.communicate()
        except BaseException:
            kill(process)
            raise
        assert process.returncode == 0, self.log.read_text()[-4000:]
        return said.splitlines()

    def check(self) -> None:
        """The collection holds what the source says, and nothing else."""
        c = tidelake.open(self.root / "lake").collection("c")
        history = tables.by_time(c.updates(0, c.upper).read_all(), c.domain)
        self.source.check(history, c.upper.elements[0])


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a driver and its JVM: the group that `start` made, and no other."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.grows
@pytest.mark.parametrize(
    ("source", "way"),
    [
        pytest.param(Rows, "helper", marks=pytest.mark.soak),
        pytest.param(Rows, "format", marks=pytest.mark.soak),
        pytest.param(Changes, "helper", marks=pytest.mark.soak),
        pytest.param(Changes, "format", marks=pytest.mark.soak),
        pytest.param(Upserts, "helper", marks=pytest.mark.soak),
        pytest.param(Upserts, "format", marks=pytest.mark.full),
    ],
)
def test_killed_at_random_moments(
    tmp_path: Path, rng: Random, source: Callable[[Random], Rows], way: str, record_property: Any
) -> None:
    runs = Runs(tmp_path, way, source(rng))
    kills = 0
    for _ in rounds(full=10, soak=600):
        # Each life takes some eight batches at most before it is killed, so that none can finish early.
        runs.put(10)
        process = runs.start()
        try:
            assert process.stdout is not None
            if rng.random() < 0.1:
                time.sleep(rng.uniform(0.1, 5))  # somewhere on the way up
            else:
                for _ in range(rng.randrange(1, 5)):  # "ready", then a batch each
                    process.stdout.readline()
                time.sleep(rng.uniform(0, 0.6))
            assert process.poll() is None, runs.log.read_text()[-4000:]
        finally:
            kill(process)
        kills += 1
    runs.finish()
    runs.check()
    record_property("figures", f"{kills} kills")


@pytest.mark.promise(
    "Retried tasks, which failed before or after their upload, count once", rule="one answer of each task"
)
@pytest.mark.parametrize(
    ("way", "source"),
    [
        pytest.param("helper", Upserts, marks=pytest.mark.full),
        pytest.param("format", Rows, marks=pytest.mark.soak),
    ],
)
def test_tasks_that_fail_are_tried_again_and_count_once(
    tmp_path: Path, rng: Random, way: str, source: Callable[[Random], Rows]
) -> None:
    runs = Runs(tmp_path, way, source(rng))
    runs.put(15)
    runs.finish("0.1")
    moments = Counter(mark.name.partition("-")[0] for mark in (tmp_path / "marks").iterdir())
    assert moments["before"] and moments["after"]
    runs.check()

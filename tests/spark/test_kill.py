"""An ingest whose driver is killed with -9, again and again, writes each event exactly once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import tidelake
from tidelake.model.frontier import Frontier
from tidelake.testing import tables
from tiers import rounds

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600), pytest.mark.usefixtures("killed_jvms")]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("n", pa.float64())])
DRIVER = Path(__file__).with_name("ingest_driver.py")
Row = tuple[int, str | None, float | None]


class Source:
    """A table that changes at random, its change files, and what a reader must see."""

    def __init__(self, directory: Path, rng: Random) -> None:
        self.directory, self.rng = directory, rng
        self.rows: dict[int, Row] = {}
        self.updates: Counter[tuple[Row, int]] = Counter()
        self.time = self.files = 0

    def write_file(self) -> None:
        """One file of change events, some of which are bare, wrapped, tombstones or heartbeats."""
        lines = [self._line() for _ in range(self.rng.randrange(1, 40))]
        # Time goes on in the next file.
        lines.append(json.dumps({"op": "h", "source": {"lsn": self.time}}))
        path = self.directory / f"{self.files:05}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_000_000_000 + self.files,) * 2)
        self.files += 1
        self.time += 1

    def _line(self) -> str:
        if self.rng.random() < 0.1:
            return self.rng.choice(["", "null", json.dumps({"op": "h", "source": {"lsn": self.time}})])
        self.time += self.rng.randrange(3)
        key = self.rng.randrange(30)
        old = self.rows.pop(key, None)
        new: Row | None = (key, self.rng.choice(["a", "ü", "", None]), self.rng.choice([0.5, -1e300, None]))
        if old is not None and self.rng.random() < 0.3:
            new = None
        if new is not None:
            self.rows[key] = new
            self.updates[new, self.time] += 1
        if old is not None:
            self.updates[old, self.time] -= 1
        op = "u" if old and new else "c" if new else "d"
        event: Any = {"op": op, "before": _object(old), "after": _object(new), "source": {"lsn": self.time}}
        return json.dumps({"schema": None, "payload": event} if self.rng.random() < 0.3 else event)


def _object(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else dict(zip(SCHEMA.names, row, strict=True))


class Driver:
    """Starts ingests of one folder, each in a process group of its own, and kills such groups."""

    def __init__(self, root: Path) -> None:
        self.arguments = [str(root / name) for name in ("lake", "in", "checkpoint")]
        self.log = root / "stderr.txt"

    def start(self, *extra: str) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, str(DRIVER), *self.arguments, *extra],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def finish(self) -> list[str]:
        """Run until everything is in; what the driver said."""
        process = self.start()
        said, _ = process.communicate()
        assert process.returncode == 0, self.log.read_text()[-4000:]
        return said.splitlines()


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a driver and its JVM: the group that `start` made, and no other."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def set_up(root: Path, rng: Random, files: int) -> tuple[Source, Driver]:
    (root / "in").mkdir()
    tidelake.open(root / "lake").create("c", SCHEMA, key=["id"])
    source = Source(root / "in", rng)
    for _ in range(files):
        source.write_file()
    return source, Driver(root)


def check(root: Path, source: Source) -> None:
    """The collection holds every update once, at its time, and nothing else."""
    c = tidelake.open(root / "lake").collection("c")
    assert c.upper == Frontier.of(source.time)
    contents = tables.netted(c.snapshot().read_all(), c.domain, source.time - 1)
    assert contents == Counter(dict.fromkeys(source.rows.values(), 1))
    history = tables.by_time(c.updates(0, c.upper).read_all(), c.domain)
    assert history == Counter({key: diff for key, diff in source.updates.items() if diff})


@pytest.mark.full
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_the_append(tmp_path: Path, rng: Random, moment: str, killed_jvms: Path) -> None:
    source, driver = set_up(tmp_path, rng, 3)
    process = driver.start(moment, "1")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, driver.log.read_text()[-4000:]
    assert said.splitlines() == ["ready", "batch 0 False"]
    # What the JVM could not take away is not in the system's directory.
    assert list(killed_jvms.glob("blockmgr-*"))
    again = driver.finish()
    assert again == ["ready", f"batch 1 {moment == 'after'}", "batch 2 False", "done"]
    check(tmp_path, source)


@pytest.mark.promise(
    "Events are held back by the compare-and-set that adds the other ones: an event is in the "
    "collection or held back, never both or neither, also after a kill",
    rule="`with_held` in `cdc/times/heldevents.py`",
    also=["spark/envelopes/test_commit_times.py::test_a_record_of_a_writer_keeps_what_it_was_given"],
)
@pytest.mark.full
@pytest.mark.parametrize("moment", ["before", "after"])
def test_transactions_that_are_held_back_outlive_a_kill(tmp_path: Path, moment: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    c = tidelake.open(tmp_path / "lake").create("c", SCHEMA, key=["id"])
    lines = []
    for id_ in range(16):
        # Three events a transaction; each file ends within one.
        begin = 100 * (id_ // 3)
        told = {"connector": "postgresql", "ts_ms": begin, "sequence": f'["{begin}","{id_}"]', "lsn": id_}
        event = {"op": "c", "before": None, "after": _object((id_, "a", 0.5)), "source": told}
        lines.append(json.dumps(event) + "\n")
    for number in range(4):
        path = folder / f"{number}.json"
        path.write_text("".join(lines[4 * number : 4 * number + 4]))
        os.utime(path, (1_000_000_000 + number,) * 2)
    driver = Driver(tmp_path)
    process = driver.start(moment, "2")
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, driver.log.read_text()[-4000:]
    driver.finish()
    # The event of the last transaction is held back.
    wanted = {(id_, 100 * (id_ // 3) + 99, 1) for id_ in range(15)}
    rows = c.updates(0, c.upper).read_all().select(["id", "_time", "_diff"]).to_pylist()
    assert {tuple(row.values()) for row in rows} == wanted and len(rows) == len(wanted)
    assert c.upper == Frontier.of(500)


@pytest.mark.full
@pytest.mark.grows
def test_killed_at_random_moments(
    tmp_path: Path, rng: Random, killed_jvms: Path, record_property: Any
) -> None:
    source, driver = set_up(tmp_path, rng, files=3)
    kills = 0
    for _ in rounds(full=12, soak=1200):
        # Each life takes some eight batches at most before it is killed, so that none can finish early.
        for _ in range(15):
            source.write_file()
        process = driver.start()
        assert process.stdout is not None
        if rng.random() < 0.1:
            time.sleep(rng.uniform(0.1, 5))  # somewhere on the way up
        else:
            for _ in range(rng.randrange(1, 5)):  # "ready", then a batch each
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.4))
        assert process.poll() is None, driver.log.read_text()[-4000:]
        kill(process)
        kills += 1
    driver.finish()
    check(tmp_path, source)
    record_property("figures", f"{kills} kills")

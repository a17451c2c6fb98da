"""A streaming read whose driver is killed with -9, again and again, gives each row exactly once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tail_source import NAME, SCHEMA, expected, offsets, random_updates, sink

import tidelake
from tidelake.config import Config
from tiers import rounds

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600), pytest.mark.usefixtures("killed_jvms")]

DRIVER = Path(__file__).with_name("tail_driver.py")


class Driver:
    """Starts streams into one sink, each in a process group of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / "stderr.txt"

    def start(self, *extra: str) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, str(DRIVER), str(self.root / "lake"), str(self.root), *extra],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text()[-4000:]


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a driver and its JVM: the group that `start` made, and no other."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.full
@pytest.mark.grows
def test_killed_at_random_moments(tmp_path: Path, rng: Random, record_property: Any) -> None:
    lake = tidelake.open(tmp_path / "lake", config=Config(inline_part_bytes=0))
    c = lake.create(NAME, SCHEMA, key=["ключ"])
    history, upper = [], 0

    def append() -> None:
        nonlocal upper
        lower, upper = upper, upper + rng.randrange(1, 5)
        history.append(random_updates(rng, lower, upper, rng.randrange(25)))
        c.append(history[-1], upper=upper)
        if rng.random() < 0.1:
            c.advance_since(upper - 1)
            c.merge()

    driver = Driver(tmp_path)
    append()
    for number in rounds(full=12, soak=1200, least=2):
        process = driver.start()
        assert process.stdout is not None
        process.stdout.readline()
        if not number:
            # Killed before it has planned a batch, Spark leaves a checkpoint that it refuses.
            process.stdout.readline()
        until = time.monotonic() + rng.uniform(0, 5)
        while time.monotonic() < until:
            append()
            time.sleep(rng.uniform(0, 0.1))
        assert process.poll() is None, driver.said()
        kill(process)
    process = driver.start("once")
    process.communicate()
    assert process.returncode == 0, driver.said()
    first = offsets(tmp_path)[0]
    at = first["frontier"][0] - 1
    assert first["first"] == "snapshot"
    assert sink(tmp_path) == expected(history, at, at + 1, upper)
    # One hold, in every process.
    assert len(c.state().holds) <= 2 + number and all(o["hold"] == first["hold"] for o in offsets(tmp_path))

"""What tests of Spark share, beside the session."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(params=[pytest.param("tasks", marks=pytest.mark.full), "driver"])
def both_ways(request: pytest.FixtureRequest, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Lets tasks do the work of every write, then the driver; which of them it is."""
    from tidelake.spark import tasks

    # Frames that are made of Python's values are of unknown size, which is left to tasks.
    monkeypatch.setattr(tasks, "_UNKNOWN_BYTES", 2**64)
    most = {"tasks": "0", "driver": str(2**63)}[request.param]
    spark.conf.set("spark.tidelake.driverBytesMax", most)
    yield request.param
    spark.conf.unset("spark.tidelake.driverBytesMax")


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts reads and merges of a handful of rows into several tasks."""
    from tidelake.shard.runs import plan

    monkeypatch.setattr(plan, "_TASK_BYTES_MIN", 1)


@pytest.fixture
def by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sends what the test module defines to the workers by value: they cannot import tests."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def killed_jvms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory for the JVMs that a test starts in other processes, which it kills.

    A JVM that is killed does not clean up, and knows no TMPDIR. It puts sockets there, whose paths must be
    short: pytest's own directories are not.
    """
    with tempfile.TemporaryDirectory(prefix="killed-") as folder:
        there = os.environ.get("JDK_JAVA_OPTIONS", "")
        monkeypatch.setenv("JDK_JAVA_OPTIONS", f"{there} -Djava.io.tmpdir={folder}".strip())
        yield Path(folder)

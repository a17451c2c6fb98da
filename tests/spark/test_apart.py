"""A cluster without a shared disk: the lake is in an S3 server, its log there too or in PostgreSQL.

Master, workers and driver are on machines of their own (`apart.Machines`). Executors have the core package
and obstore, and no access to the log. Executors are killed now and then, and drivers too.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("obstore")

import apart
from apart import Machines
from cluster import HOSTS, SOURCES, core_python, standalone_cluster
from matrix_data import History, real_history, row_hash, small_history
from matrix_driver import PATHS
from test_matrix import CLUSTER, FAULTY, FEW, HERE, Run, tasks_of

import tidelake
from tests.store import servers
from tied_process import tied

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]
# Spark writes an export itself, and has no scheme of S3 here.
WITHOUT_A_SHARED_DISK = tuple(path for path in PATHS if path != "helper export")
SOME = ("helper append", "helper merge", "stream sink")


@dataclass
class Site:
    """A lake in an S3 server, and a cluster of machines that have no disk in common.

    Attributes:
        machines: of the cluster, and that of drivers.
        master: URL of the cluster's master.
        lake: URL of the lake.
        driver: environment of drivers.
        data: where machines find their copy of the history.
        conf: configuration of sessions.
    """

    machines: Machines
    master: str
    lake: str
    driver: dict[str, str]
    data: Path
    conf: dict[str, str]

    def start(self, script: str, **asked: Any) -> "subprocess.Popen[str]":
        """Start a driver on its machine, in a process group of its own."""
        packages = os.pathsep.join([str(SOURCES), str(HERE), os.environ.get("PYTHONPATH", "")])
        asked |= {"master": self.master, "conf": self.conf, "lake": self.lake, "data": str(self.data)}
        command = self.machines.on("driver", [sys.executable, str(HERE / script), json.dumps(asked)])
        return subprocess.Popen(
            tied(*command),
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": packages, **self.driver},
            stdout=subprocess.PIPE,
            stderr=(self.machines.home("driver") / "stderr.txt").open("a"),
            text=True,
            start_new_session=True,
        )

    def errors(self) -> str:
        """What drivers have written to stderr."""
        return (self.machines.home("driver") / "stderr.txt").read_text()

    def executors(self) -> list[int]:
        """The pids of the executors: they work in folders of the workers' disks."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                here = Path(os.readlink(process / "cwd")).is_relative_to(self.machines.folder)
                if here and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found

    def collection(self, name: str) -> "tidelake.Collection":
        """A collection of the lake, for this process."""
        return tidelake.open(self.lake, create=False).collection(name)


@contextlib.contextmanager
def site(
    folder: Path, history: History, log: str, monkeypatch: pytest.MonkeyPatch, s3: str = "versitygw"
) -> Iterator[Site]:
    """Start all of it. `log` is "objects" or "postgresql", `s3` a function of `servers`."""
    apart.skip_unless_permitted()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(getattr(servers, s3)())
        access = server.environment()
        driver = dict(access)
        if log == "postgresql":
            postgres = stack.enter_context(servers.postgres())
            driver["TIDELAKE_LOG"] = postgres.url(postgres.new_database())
        for name, value in driver.items():
            monkeypatch.setenv(name, value)
        lake = f"s3://{server.new_bucket()}/some/lake"
        tidelake.open(lake, log=driver.get("TIDELAKE_LOG")).close()
        # Spark plans reads of the format in the driver, by the same Python; executors do not reach the log.
        drivers = ("psycopg", "psycopg-binary") if log == "postgresql" else ()
        python = core_python(folder / "python", "obstore", *drivers)
        machines = Machines(folder / "machines", [folder / "python", SOURCES, Path(sys.prefix)])
        data = machines.give(history.folder, ["driver", *HOSTS])
        for name in ("work", "events"):
            (machines.home("driver") / name).mkdir()
        url = stack.enter_context(standalone_cluster(folder / "logs", machines, access))
        conf = {**CLUSTER, **{f"spark.executorEnv.{name}": value for name, value in FAULTY.items()}}
        conf |= {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": (machines.home("driver") / "events").as_uri(),
            "spark.pyspark.python": str(python),
            "spark.pyspark.driver.python": sys.executable,
        }
        yield Site(machines, url, lake, driver | {"PYSPARK_PYTHON": str(python)}, data, conf)


@contextlib.contextmanager
def killing_executors(there: Site, every_s: float, most: int) -> Iterator[list[int]]:
    """Kill an executor now and then; the pids of those that were killed."""
    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while len(killed) < most and not done.wait(every_s):
            there_are = there.executors()
            if len(there_are) == len(HOSTS):
                killed.append(there_are[len(killed) % len(HOSTS)])
                os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def take(there: Site, history: History, paths: tuple[str, ...], looks: int) -> Run:
    """Take paths of the matrix, and check that all of it was done, by whom it should be."""
    home = there.machines.home("driver")
    driver = there.start(
        "matrix_driver.py", engine="cluster", work=str(home / "work"), looks=looks, paths=paths
    )
    said, _ = driver.communicate(timeout=3000)
    assert driver.returncode == 0, there.errors()[-6000:]
    found = json.loads(said.splitlines()[-1])
    run = Run("cluster", found, history, there.errors(), tasks_of(home / "events"))
    run.check(*paths)
    assert found["workers"]["packages"] == [""]
    # A machine sees its own disk and its copy of the data. One may have taken all of these few tasks.
    seen = set(found["workers"]["see"])
    assert seen and seen <= {",".join(sorted((apart.COPY, host))) for host in HOSTS}, seen
    assert all(run.tasks[host] for host in HOSTS), run.tasks
    return run


@pytest.mark.promise(
    "A cluster whose machines have no disk in common gives the truth, also if an executor or a "
    "driver is killed",
    rule="`tidelake.store.objects`, `ShardSpec`",
    also=[
        "::test_a_driver_that_is_killed_goes_on_and_writes_each_event_once",
        "::test_of_two_drivers_the_first_is_fenced",
    ],
)
@pytest.mark.full
def test_some_paths_are_the_truth_and_executors_get_lost(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    real = shared_folder / "dotgov"
    history = real_history(real, tmp_path / "h", 4, FEW) if real.is_dir() else small_history(tmp_path / "h")
    place = site(tmp_path, history, "objects", monkeypatch, "s3_server")
    with place as there, killing_executors(there, 8, 1) as killed:
        run = take(there, history, SOME, 3)
    record_property("figures", f"{run.tasks['Success']} tasks, {len(killed)} executors killed")


@pytest.mark.soak
@pytest.mark.parametrize("log", ["objects", "postgresql"])
def test_dotgov_is_the_truth_by_every_path_and_executors_get_lost(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, record_property: Any
) -> None:
    history = real_history(shared_data / "dotgov", tmp_path / "dotgov", 8)
    with site(tmp_path, history, log, monkeypatch) as there, killing_executors(there, 40, 9) as killed:
        run = take(there, history, WITHOUT_A_SHARED_DISK, 9)
    assert killed and run.tasks["injected"] >= 3
    record_property("figures", f"{run.tasks['Success']} tasks, {len(killed)} executors killed")


def check(there: Site, history: History) -> None:
    """The collection is the truth at every version."""
    c = there.collection("c")
    for version in range(history.versions):
        rows = c.snapshot(version).read_all()
        assert set(rows["_diff"].to_pylist()) <= {1}
        columns = [rows[name].to_pylist() for name in history.columns]
        found = [row_hash(row) for row in zip(*columns, strict=True)]
        assert (len(found), f"{sum(found) % 2**128:032x}") == history.truth.of(None, version)


@pytest.mark.soak
@pytest.mark.parametrize("log", ["objects", "postgresql"])
def test_a_driver_that_is_killed_goes_on_and_writes_each_event_once(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    history = real_history(shared_data / "dotgov", tmp_path / "dotgov", 24, 60)
    with site(tmp_path, history, log, monkeypatch) as there:
        for batches in (0, 2, 1, 3, 2):
            driver = there.start("apart_driver.py", name="c")
            assert driver.stdout is not None
            for _ in range(batches + 1):  # "ready", then a batch each
                assert driver.stdout.readline(), there.errors()[-6000:]
            time.sleep(0.3)
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()
        last = there.start("apart_driver.py", name="c")
        said, _ = last.communicate(timeout=1500)
        assert last.returncode == 0 and said.splitlines()[-1] == "done", there.errors()[-6000:]
        check(there, history)


@pytest.mark.soak
@pytest.mark.parametrize("log", ["objects", "postgresql"])
def test_of_two_drivers_the_first_is_fenced(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    """The first one stands still, and the second one goes on from the same checkpoint."""
    history = real_history(shared_data / "dotgov", tmp_path / "dotgov", 6, 12)
    with site(tmp_path, history, log, monkeypatch) as there:
        # Each has half of the cores: the cluster keeps those of a driver that stands still for it.
        first = there.start("apart_driver.py", name="c", cores="2")
        assert first.stdout is not None
        for _ in range(3):
            assert first.stdout.readline(), there.errors()[-6000:]
        os.killpg(first.pid, signal.SIGSTOP)
        second = there.start("apart_driver.py", name="c", cores="2")
        said, _ = second.communicate(timeout=1500)
        assert second.returncode == 0 and said.splitlines()[-1] == "done", there.errors()[-6000:]
        check(there, history)
        os.killpg(first.pid, signal.SIGCONT)
        said, _ = first.communicate(timeout=600)
        assert first.returncode != 0 and "done" not in said
        # Tidelake refuses it if it stood still before an append. If after, Spark does, at the checkpoint.
        refused = ("WriterFenced", "CONCURRENT", "Multiple streaming queries are concurrently using")
        assert any(reason in there.errors() for reason in refused), there.errors()[-6000:]
        check(there, history)

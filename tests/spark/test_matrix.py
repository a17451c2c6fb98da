"""Every path over a whole history, by a local session, a standalone cluster and Spark Connect: the truth.

Some tasks fail at their end, on every engine. On the cluster others are slow, and speculation gives them
to the other worker. The executors there have the core package only.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import quick
from cluster import HOSTS, SOURCES, connect_server, core_python, standalone_cluster
from matrix_data import History, real_history, small_history
from matrix_driver import PATHS

HERE = Path(__file__).parent
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

FAULTY = {"PYTHONPATH": os.pathsep.join([str(HERE / "faults"), str(SOURCES)]), "TIDELAKE_TEST_FAULTS": "10"}
# Plans of few rows are run faster than they are compiled; the local engine compiles them, as users'
# sessions do.
UNCOMPILED = {name: value for name, value in quick.CONF.items() if name.startswith("spark.sql.")}
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SPECULATIVE = {
    "spark.executorEnv.TIDELAKE_TEST_SLOW": "10",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "500ms",
    # Copies may go to another host than the one that the data is near to.
    "spark.locality.wait": "0s",
}
CLUSTER = {
    **LOOPBACK,
    **SPECULATIVE,
    "spark.driver.extraJavaOptions": quick.JVM,
    "spark.executor.extraJavaOptions": quick.JVM,
    "spark.executor.memory": "768m",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    **UNCOMPILED,
    "spark.sql.shuffle.partitions": "4",
}

FEW = 10
# A path of each kind of work that tasks do; the soak takes all of them with every engine.
ONE_OF_EACH = (
    "helper append",
    "helper changes",
    "helper merge",
    "ingest",
    "format snapshot",
    "helper upsert",
    "stream read",
    "stream sink",
)

# What does not go by Spark Connect, and what the user is told.
REFUSED = {
    ("connect", "ingest"): "UsageError: an ingest needs a session with a driver of its own",
}


@dataclass
class Run:
    """What a driver printed, and what Spark's event log says of its tasks."""

    engine: str
    found: dict[str, Any]
    history: History
    log: str
    tasks: Counter[str]

    def wrong(self, path: str) -> str:
        """Why a path is not right; empty if it is."""
        claims = self.found[path]
        refusal = REFUSED.get((self.engine, path))
        if refusal is not None:
            return "" if isinstance(claims, str) and claims.startswith(refusal) else f"not refused: {claims}"
        if isinstance(claims, str) or not claims:
            return f"{path}: {claims}"
        wrong = [
            f"{path}: {through} less {after}: {(rows, digest)}, not {self.history.truth.of(after, through)}"
            for after, through, rows, digest in claims
            if (rows, digest) != self.history.truth.of(after, through)
        ]
        return "\n".join(wrong[:5])

    def check(self, *paths: str) -> None:
        wrong = list(filter(None, map(self.wrong, paths)))
        assert not wrong, "\n".join([*wrong, self.log[-3000:]])


def tasks_of(events: Path) -> Counter[str]:
    """How many tasks ended how, and how many were speculative."""
    tasks: Counter[str] = Counter()
    for path in (path for path in events.rglob("*") if path.is_file()):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line) if line.startswith('{"Event":"SparkListenerTaskEnd"') else None
            if event is not None:
                tasks[event["Task End Reason"]["Reason"]] += 1
                tasks[event["Task Info"]["Host"]] += 1
                tasks["speculative"] += event["Task Info"]["Speculative"]
                tasks["injected"] += "InjectedFault" in json.dumps(event["Task End Reason"])
    return tasks


@contextlib.contextmanager
def _engine(name: str, root: Path) -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """Start an engine: its master, what a session is configured with, and the driver's environment."""
    (root / "events").mkdir()
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": (root / "events").as_uri()}
    # Files that can be read while they are written, and are complete after a kill.
    conf["spark.eventLog.compress"] = "false"
    workers = {f"spark.executorEnv.{name}": value for name, value in FAULTY.items()}
    if name == "connect":
        pytest.importorskip("grpc")
        packages = os.environ.get("PYTHONPATH", "")
        server = FAULTY | {"PYTHONPATH": os.pathsep.join([FAULTY["PYTHONPATH"], packages])}
        with connect_server(root / "connect", server, UNCOMPILED | conf) as url:
            yield url, {}, {}
    elif name == "cluster":
        python = core_python(root / "python")
        with standalone_cluster(root / "cluster") as url:
            yield url, {**CLUSTER, **workers, **conf}, {"PYSPARK_PYTHON": str(python)}
    else:
        settings = {"spark.driver.extraJavaOptions": quick.JVM, "spark.sql.shuffle.partitions": "2"}
        yield "local", {**settings, **workers, **conf}, {}


def run(
    engine: str,
    history: History,
    root: Path,
    looks: int = 9,
    paths: Sequence[str] = (*PATHS,),
    python: str = sys.executable,
) -> Run:
    """Take paths with an engine, in a process of its own, by the PySpark of a Python."""
    (root / "work").mkdir(parents=True)
    with _engine(engine, root) as (master, conf, environment):
        asked = {"engine": engine, "master": master, "conf": conf, "looks": looks, "paths": [*paths]}
        asked |= {"data": str(history.folder), "work": str(root / "work")}
        packages = os.pathsep.join([str(SOURCES), str(HERE), os.environ.get("PYTHONPATH", "")])
        own = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": packages, **environment}
        command = [python, str(HERE / "matrix_driver.py"), json.dumps(asked)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=own, cwd=root, timeout=1500, check=False
        )
    assert done.returncode == 0, done.stderr[-6000:]
    return Run(
        engine, json.loads(done.stdout.splitlines()[-1]), history, done.stderr, tasks_of(root / "events")
    )


@pytest.mark.parametrize(
    ("engine", "versions"),
    [
        pytest.param("local", FEW, marks=pytest.mark.full),
        pytest.param("cluster", FEW, marks=pytest.mark.full),
        pytest.param("connect", FEW, marks=pytest.mark.full),
        # Among them one that empties the table, and one that restores it.
        pytest.param("local", 100, marks=pytest.mark.soak),
        *(pytest.param(engine, None, marks=pytest.mark.soak) for engine in ("local", "cluster", "connect")),
    ],
)
def test_dotgov_is_the_truth_by_every_path(
    shared_data: Path, tmp_path: Path, engine: str, versions: int | None
) -> None:
    history = real_history(shared_data / "dotgov", tmp_path / "dotgov", 8, versions)
    paths = ONE_OF_EACH if versions == FEW and engine != "local" else (*PATHS,)
    done = run(engine, history, tmp_path / engine, looks=9 if versions is None else 5, paths=paths)
    done.check(*paths)
    assert done.tasks["injected"] >= 3, done.tasks
    if engine == "cluster":
        assert done.tasks["speculative"] >= 1, done.tasks
        # Executors have the core package alone, and both workers work.
        assert done.found["workers"] == {"packages": [""], "slots": 4}
        assert all(done.tasks[host] for host in HOSTS), done.tasks
    if engine == "connect":
        assert done.found["workers"]["slots"] == 2


@pytest.mark.full
def test_a_small_history_is_the_truth_by_every_path(tmp_path: Path, shared_folder: Path) -> None:
    """Where there is no real data: with it, the test above takes the same paths."""
    if shared_folder.is_dir():
        pytest.skip("real data is there")
    done = run("local", small_history(tmp_path / "history"), tmp_path / "local", looks=5)
    done.check(*PATHS)
    assert done.tasks["injected"], done.tasks

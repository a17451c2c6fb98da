"""Spark as processes of their own, from the pip package alone: a standalone cluster, and a Connect server.

Everything listens on the loopback addresses, on ports that were free. Each process is started as the
leader of a process group, and what is left of the group is killed when the block ends, however it ends.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import quick
from apart import Machines

import tidelake

SOURCES = Path(tidelake.__file__).resolve().parent.parent
# Spark takes workers on one host for one machine, and gives a speculative copy only to another.
HOSTS = ("127.0.0.1", "127.0.0.2")
_START_S = 240


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def spark_home() -> Path:
    """Where pip has put Spark."""
    import pyspark

    return Path(pyspark.__file__).parent


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it is gone, killed for instance."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def process(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in a file and nothing of this process' Python environment."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME", "LANG") if name in os.environ}
    environment = {**keep, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    with log.open("wb") as output:
        started = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # it calls prctl and nothing else
        )
    try:
        yield started
    finally:
        started.terminate()  # a worker then ends its executors
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


class Ready:
    """Whether a port answers; for a master, with so many workers."""

    def __init__(self, port: int, workers: int | None = None) -> None:
        self.port, self.workers = port, workers

    def __call__(self) -> bool:
        try:
            if self.workers is None:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return True
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/json/", timeout=5) as page:
                return bool(json.load(page)["aliveworkers"] >= self.workers)
        except (OSError, ValueError):
            return False


def await_start(what: str, ready: Ready, started: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a process is ready; say what it has logged if it will not be."""
    deadline = time.monotonic() + _START_S
    while not ready():
        if started.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{what} does not start:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.1)


@contextlib.contextmanager
def standalone_cluster(
    folder: Path, machines: Machines | None = None, workers: dict[str, str] | None = None
) -> Iterator[str]:
    """A master and two workers of two cores each; the master's URL. Logs are in `folder`.

    Args:
        folder: for logs, and for the files of workers on this machine.
        machines: that these processes run on, by their names: "master" and `HOSTS`; default: this machine.
        workers: more of the environment of workers and their executors.
    """
    folder.mkdir()

    def on(machine: str, *command: str) -> list[str]:
        return [*command] if machines is None else machines.on(machine, command)

    start = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy"]
    memory = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": quick.JVM}
    port, page = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        where = ["--host", HOSTS[0], "--port", str(port), "--webui-port", str(page)]
        command = on("master", start[0], f"{start[1]}.master.Master", *where)
        master = stack.enter_context(process(command, log, **memory))
        await_start("the master", Ready(page, 0), master, log)
        for host in HOSTS:
            disk = folder if machines is None else machines.home(host)
            size = ["--cores", "2", "--memory", "2g", "--webui-port", str(free_port(host))]
            size += ["--work-dir", str(disk / f"work-{host}")]
            log = folder / f"worker-{host}.log"
            command = on(host, start[0], f"{start[1]}.worker.Worker", "--host", host, *size)
            local = {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(disk / f"local-{host}")}
            own = {**memory, **local, **(workers or {})}
            stack.enter_context(process([*command, f"spark://{HOSTS[0]}:{port}"], log, **own))
        await_start("the workers", Ready(page, len(HOSTS)), master, folder / "master.log")
        yield f"spark://{HOSTS[0]}:{port}"


@contextlib.contextmanager
def connect_server(folder: Path, environment: dict[str, str], conf: dict[str, str]) -> Iterator[str]:
    """A Spark Connect server on `local[2]`; its URL for `SparkSession.builder.remote`.

    Python on the server runs what clients send, and finds there what the server's environment names:
    `spark.executorEnv` of a client does not reach it.
    """
    folder.mkdir()
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": quick.JVM,
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **conf,
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2,4]"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = folder / "connect.log"
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(folder), **environment}
    with process(command, log, **own) as server:
        await_start("the Connect server", Ready(port), server, log)
        yield f"sc://127.0.0.1:{port}"


def core_python(folder: Path, *more: str) -> Path:
    """A Python with `tidelake` and what it requires without extras, and `more`; its executable.

    PySpark is not in it: Spark's executors bring their own.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"))
    for package in SOURCES.iterdir():
        (packages / package.name).symlink_to(package)
    for name in {*_required("tidelake"), *more}.union(*map(_required, more)):
        for entry in {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            (packages / entry).symlink_to(Path(str(distribution(name).locate_file(entry))))
    return folder / "bin" / "python"


def _required(name: str) -> set[str]:
    """What a package requires, directly or not, without extras."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        lines = distribution(waiting.pop()).requires or []
        for line in (line for line in lines if "extra ==" not in line and "python_version <" not in line):
            match = re.match(r"[\w.-]+", line)
            assert match is not None, line
            if match[0] not in found:
                found.add(match[0])
                waiting.append(match[0])
    return found

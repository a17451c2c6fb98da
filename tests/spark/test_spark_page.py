"""The examples of docs/spark.md that need more than a local session: a cluster, Connect, Pipelines.

`<!-- no-run: cluster -->` before a block of the page says which test here runs it. Addresses and folders of
the page are exchanged for those of the test, and nothing else.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from cluster import SOURCES, Ready, await_start, connect_server, free_port, process, spark_home

import tidelake
from run_page import blocks

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "spark.md"
KINDS = ("cluster", "connect", "pipelines")
SCHEMA = pa.schema([pa.field("sku", pa.string(), nullable=False), ("price", pa.float64())])
pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(600)]


def special(kind: str, language: str, **exchanged: str) -> str:
    """The one block of the page of a kind and a language, with some of its words exchanged."""
    page = blocks(PAGE.read_text(encoding="utf-8"))
    (found,) = ["\n".join(b.lines) for b in page if (b.no_run, b.language) == (kind, language)]
    for old, new in exchanged.items():
        assert old in found, f"{old} is not in the block: {found}"
        found = found.replace(old, new)
    return found


def environment() -> dict[str, str]:
    """Of a driver or a Connect server."""
    packages = os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])
    return {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": packages, "PYSPARK_PYTHON": sys.executable}


def run(command: list[str], folder: Path) -> str:
    """What a program prints; it must end well."""
    own = {**os.environ, **environment(), "SPARK_HOME": str(spark_home())}
    done = subprocess.run(
        command, capture_output=True, text=True, env=own, cwd=folder, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def example(code: str, folder: Path) -> None:
    script = folder / "example.py"
    script.write_text(code)
    run([sys.executable, str(script)], folder)


@contextlib.contextmanager
def started(commands: str, port: int, folder: Path) -> Iterator[None]:
    """Each line of a shell block as a process of its own, the first of which listens at a port."""
    own = {
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOG_DIR": str(folder),
        "SPARK_PID_DIR": str(folder),
    }
    own |= {name: environment()[name] for name in ("PYTHONPATH", "PYSPARK_PYTHON")}
    with contextlib.ExitStack() as stack:
        for number, command in enumerate(commands.splitlines()):
            log = folder / f"{number}.log"
            one = stack.enter_context(process(["bash", "-c", f"exec {command}"], log, **own))
            if not number:
                await_start(command, Ready(port), one, log)
        yield


def test_what_the_page_leaves_out_is_run_here() -> None:
    left_out = [(b.no_run, b.language) for b in blocks(PAGE.read_text(encoding="utf-8")) if b.no_run]
    assert sorted(left_out) == sorted(
        [(kind, language) for kind in KINDS[:2] for language in ("python", "sh")]
        + [("pipelines", "python"), ("pipelines", "yaml")]
    )


def test_the_cluster_of_the_page_runs_its_example(tmp_path: Path) -> None:
    port = free_port()
    with started(special("cluster", "sh", **{"7077": str(port)}), port, tmp_path):
        places = {"7077": str(port), "/mnt/shared": str(tmp_path), "/opt/tidelake/bin/python": sys.executable}
        code = special("cluster", "python", **places)
        loopback = "spark.driver.host", "spark.driver.bindAddress"
        settings = "".join(f'.config("{name}", "127.0.0.1")' for name in loopback)
        example(code.replace(".getOrCreate()", f"{settings}.getOrCreate()"), tmp_path)


def test_the_connect_server_of_the_page_runs_its_example(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    port = free_port()
    with started(special("connect", "sh", **{"15002": str(port)}), port, tmp_path):
        places = {"15002": str(port), "/mnt/shared": str(tmp_path)}
        example(special("connect", "python", **places), tmp_path)


def test_the_pipeline_of_the_page_reads_and_writes_collections(tmp_path: Path) -> None:
    """A materialized view is what a view of the lake is; the sink gets a snapshot, then each update once."""
    pytest.importorskip("grpc")
    pytest.importorskip("yaml")
    lake = tidelake.open(tmp_path / "lake")
    prices, expensive = (lake.create(name, SCHEMA, key=["sku"]) for name in ("prices", "expensive"))
    (tmp_path / "transformations").mkdir()
    lake.view("cheap", "SELECT sku, price FROM prices WHERE price < 30")
    places = {"/mnt/shared": str(tmp_path), 'load(f"{LAKE}/prices")\n\n\n': 'load(f"{LAKE}/cheap")\n\n\n'}
    code = special("pipelines", "python", **places)
    (tmp_path / "transformations" / "shop.py").write_text(code)
    spec = special("pipelines", "yaml", **{"/mnt/shared": str(tmp_path)})
    (tmp_path / "spark-pipeline.yml").write_text(spec)

    def contents(place: Path) -> list[tuple[str, float]]:
        table = pq.read_table(place)
        return sorted(zip(table["sku"].to_pylist(), table["price"].to_pylist(), strict=True))

    with connect_server(tmp_path / "server", environment(), {}) as url:
        command = [str(spark_home() / "bin" / "spark-pipelines"), "--remote", url, "run"]
        command += ["--spec", str(tmp_path / "spark-pipeline.yml")]
        prices.append(pa.table({"sku": ["tea", "pot"], "price": [4.5, 30.0], "_time": [1, 2]}), upper=5)
        lake.refresh()
        assert "Run is COMPLETED" in run(command, tmp_path)
        assert expensive.snapshot(as_of=4).read_all().to_pydict()["sku"] == ["pot"]
        again = pa.table(
            {"sku": ["pot", "pan"], "price": [30.0, 25.0], "_time": [6, 7], "_diff": [-1, 1]},
        )
        prices.append(again, upper=9)
        lake.refresh()
        assert "Run is COMPLETED" in run(command, tmp_path)
    assert contents(tmp_path / "server" / "warehouse" / "contents") == [("pan", 25.0), ("tea", 4.5)]
    got = expensive.updates(0, expensive.upper).read_all().sort_by("_time").to_pydict()
    assert (got["sku"], got["_time"], got["_diff"]) == (["pot", "pot", "pan"], [4, 6, 7], [1, -1, 1])

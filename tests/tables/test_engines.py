"""Other engines on published tables: DuckDB and Spark, each in an environment of its own."""

import datetime
import json
import os
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidelake
from bench.peers.run import PLACE
from bench.peers.spark.run import python as spark_python
from tidelake.config import Config
from tidelake.tables import publish

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.float64()),
        ("note", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("sum", pa.decimal128(10, 2)),
        ("big", pa.decimal128(38, 4)),
        ("yes", pa.bool_()),
        ("bytes", pa.binary()),
        ("f", pa.float32()),
        ("i", pa.int32()),
    ]
)
UTC = datetime.UTC


def rows(ids: Any, add: float = 0.0) -> pa.Table:
    found = [*ids]

    def some(values: list[Any]) -> list[Any]:
        return [value if i % 11 else None for i, value in zip(found, values, strict=True)]

    moment = datetime.datetime(1901, 2, 3, 4, 5, 6, 789)  # noqa: DTZ001 - the column has no zone
    return pa.table(
        {
            "id": found,
            "price": some([i + add if i % 7 else float("nan") for i in found]),
            "note": some([f"n{i % 5}" for i in found]),
            "day": some([datetime.date(1500, 1, 1) + datetime.timedelta(i) for i in found]),
            "at": some([moment.replace(tzinfo=UTC) + datetime.timedelta(hours=i) for i in found]),
            "local": some([moment + datetime.timedelta(hours=i) for i in found]),
            "sum": some([Decimal(i) / 4 for i in found]),
            "big": some([Decimal(i) * 10**20 for i in found]),
            "yes": some([i % 2 == 0 for i in found]),
            "bytes": some([b"%d" % i for i in found]),
            "f": some([i / 4 for i in found]),
            "i": found,
        },
        SCHEMA,
    )


def cases(folder: Path) -> Iterator[dict[str, Any]]:
    """Published versions with the contents that a reader must find, whatever happened to the collection."""
    config = Config(inline_part_bytes=0, garbage_age_s=0, part_target_bytes=64 * 1024)
    with tidelake.open(folder / "a lake", config=config) as lake:
        for name in ("changed", "erased"):
            of = lake.create(name, SCHEMA, key=["id"])
            made: list[dict[str, Any]] = []

            def note(of: Any = of, made: list[dict[str, Any]] = made) -> None:
                wanted = folder / f"{of.name}-{len(made)}.parquet"
                pq.write_table(of.to_arrow(), wanted)
                for format_ in ("delta", "iceberg"):
                    report = publish(of, format=format_, keep=3)
                    made.append(
                        {
                            "format": format_,
                            "table": report.table,
                            "metadata": report.metadata,
                            "version": report.version,
                            "wanted": str(wanted),
                            "names": of.schema.names,
                            "newest": False,
                        }
                    )

            of.append(rows(range(30_000)))
            note()
            of.upsert(rows([5, 60_000], 1))
            of.append(rows([8]).append_column("_diff", pa.array([2], pa.int64())))
            of.append(rows([7]).append_column("_diff", pa.array([-1], pa.int64())))
            note()
            if name == "erased":
                of.erase([9, 60_000], reason="ticket")
                made.clear()
                note()
            else:
                of.evolve(rename={"price": "cost"})
                note()
                fields = [f for f in of.schema if f.name != "note"]
                of.evolve(pa.schema([*fields, pa.field("price", pa.string())]), drop=["note"])
                of.upsert(of.to_arrow().slice(0, 2).set_column(11, "price", pa.array(["x", None])))
                note()
                wider = [f.with_type(pa.int64()) if f.name == "i" else f for f in of.schema]
                of.evolve(pa.schema(wider))
                note()
                of.advance_since(of.last_time())
                of.maintain()
                of.collect(thorough=True)
                of.upsert(of.to_arrow().slice(0, 3))
                of.append(of.to_arrow().slice(5, 1).append_column("_diff", pa.array([-1], pa.int64())))
                note()
            for one in made[-2:]:
                one["newest"] = True
            yield from made[-6:]


def ask(command: list[Any], environment: dict[str, str] | None = None) -> Any:
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert not done.returncode, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_every_engine_reads_the_snapshot(engine: str, tmp_path: Path) -> None:
    if engine == "duckdb":
        python: Path | None = PLACE / "ducklake" / "bin" / "python"
        if not python.exists():
            pytest.skip("no DuckDB with extensions: setup/peers.sh ducklake installs it")
        command: list[Any] = [python, HERE / "duckdb_reader.py", tmp_path / "cases.json"]
    else:
        python = spark_python()
        jars = [*PLACE.glob("spark-delta/*.jar"), *PLACE.glob("spark-iceberg/*.jar")]
        if python is None or not jars:
            pytest.skip(
                "setup/sparks.sh 4.1 and setup/peers.sh spark-delta spark-iceberg install what this needs"
            )
        command = [python, HERE / "spark_reader.py", tmp_path / "cases.json", ",".join(map(str, jars))]
    every = list(cases(tmp_path))
    # Spark takes seconds for each.
    listed = [one for i, one in enumerate(every) if engine == "duckdb" or one["newest"] or i in (2, 3)]
    (tmp_path / "cases.json").write_text(json.dumps(listed))
    found = ask(command, {"SPARK_LOCAL_IP": "127.0.0.1"})
    assert found == [[0, 0, one["names"]] for one in listed]
    assert len(every) == 8

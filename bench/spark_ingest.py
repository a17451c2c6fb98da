"""Change events of Debezium, as a PostgreSQL with four connections gives them, into a collection.

    from bench.spark_ingest import run; run(10_000_000)

A tenth as many events as rows, like those of a real table of accounts: transactions of one to six events, in
the order of their commits, with the positions of records that were written at once. They lie in files of
100,000 lines; an ingest takes all of them in one micro-batch, and another one two files at a time. *Lines* is
Spark's own scan of the same files: what reading the text costs before it is parsed.
"""

import json
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidelake
from bench.kernels import best
from tidelake.spark import ingest, local_session

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("owner", pa.int32()),
        ("bal", pa.int64()),
        ("note", pa.string()),
    ]
)
_FILE_LINES = 100_000
_SOURCE = (
    '"source":{"version":"3.0.8.Final","connector":"postgresql","name":"shop","ts_ms":%d,"snapshot":"false",'
    '"db":"shop","sequence":"[\\"%d\\",\\"%d\\"]","ts_us":%d,"ts_ns":%d,"schema":"public","table":"acc",'
    '"txId":%d,"lsn":%d,"xmin":null},"transaction":null,"op":"%s","ts_ms":%d,"ts_us":%d,"ts_ns":%d}'
)


def events(folder: Path, wanted: int) -> int:
    """Write so many events; returns how many rows they leave."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 7, wanted)
    choices = rng.random(wanted)
    rows: dict[int, str] = {}
    free = count()
    commit, us, lines, file = 200_000_000, 1_795_353_920_000_000, [], 0
    folder.mkdir()
    done = 0
    for number in count():
        size = min(int(sizes[number]), wanted - done)
        before, us = commit, us + 700
        # Its records were written while others committed.
        lsns = [before - 900 + 300 * i for i in range(size)]
        commit = max(before, lsns[-1]) + 48
        for lsn in lsns:
            choice = choices[done]
            key = int(choice * 1e9) % max(1, len(rows)) if rows and choice > 0.35 else next(free)
            old = rows.get(key)
            op = "c" if old is None else "d" if choice > 0.87 else "u"
            new = None if op == "d" else json.dumps(
                {"id": key, "owner": number % 4, "bal": 100 + done % 50, "note": "n"}, separators=(",", ":")
            )  # fmt: skip
            if new is None:
                del rows[key]
            else:
                rows[key] = new
            ms = us // 1000
            told = (ms, before, lsn, us, us * 1000, number, lsn, op, ms + 700, us + 700_000, us * 1000)
            lines.append(f'{{"before":{old or "null"},"after":{new or "null"},' + _SOURCE % told)
            done += 1
        if len(lines) >= _FILE_LINES or done >= wanted:
            (folder / f"{file:04}.json").write_text("\n".join(lines) + "\n")
            lines, file = [], file + 1
        if done >= wanted:
            return len(rows)
    raise AssertionError


def ingested(spark: Any, folder: Path, wanted: int) -> dict[str, float]:
    left = events(folder / "in", wanted)
    lake = tidelake.open(folder / "lake")
    numbers = count()

    def taken(files: int | None) -> None:
        number = next(numbers)
        c = lake.create(f"c{number}", SCHEMA, key=["id"])
        report = ingest(
            spark,
            c,
            folder / "in",
            folder / f"check{number}",
            envelope="debezium",
            max_files_per_trigger=files,
        )
        # What the last transaction did is held back.
        rows = c.snapshot(columns=["id"]).read_all().num_rows
        if report.events + report.held != wanted or abs(rows - left) > report.held:
            raise ValueError(f"the ingest has added or lost rows: {report}, {rows} rows and not {left}")

    def scanned() -> None:
        spark.read.text(str(folder / "in")).write.format("noop").mode("overwrite").save()

    whole_s, pieces_s, lines_s = best(lambda: taken(None), lambda: taken(2), scanned, repeat=3)
    return {
        "events": wanted,
        "ingest_events_s": wanted / whole_s,
        "two_files_at_a_time_events_s": wanted / pieces_s,
        "lines_events_s": wanted / lines_s,
    }


def run(rows: int = 10_000_000, cores: int = 2) -> dict[str, dict[str, float]]:
    """Events a second; see the module."""
    spark = local_session("bench", cores, **{"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory() as name:
        found = {"ingest of change events": ingested(spark, Path(name), max(1, rows // 10))}
    spark.stop()
    return found


if __name__ == "__main__":
    for name, numbers in run().items():
        print(name, numbers)

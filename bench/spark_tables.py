"""Micro-batches of change events of ten tables in one group, against as many events of one table.

    from bench.spark_tables import run; run(10_000_000)

*Whole*: a micro-batch as `foreachBatch` gets it, lines of a file, in processor time of this process and of
Spark's Java process. *Driver*: the driver's work on few lines, without Spark's own share, which is the same
for both; in processor time of this process. Medians of eight micro-batches after some to warm up, in turn.
"""

import json
import os
import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

import tidelake
from tidelake.feeds.reading import AS_TEXT
from tidelake.feeds.tablelines import FewLines
from tidelake.spark import local_session, tables_sink
from tidelake.spark.writing.tablelines import lines_of

_FIELDS = [{"field": "id", "type": "int64", "optional": False}, {"field": "v", "type": "string"}]
_SCHEMA = {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": _FIELDS}]}
_TABLES, _COUNTED = (1, 10), 8
# Java compiles what it does often.
_FIRST, _FIRST_WHOLE = 2, 6
# What Spark guesses of the size of a micro-batch from the one before.
_EXPECTED_BYTES = 1 << 20


class Feed:
    """Micro-batches of some tables: transactions of three events each."""

    def __init__(self, tables: int, folder: Path) -> None:
        self._tables, self._random, self._commit, self._number = tables, random.Random(0), 1000, 0
        self._folder = folder
        self._sink = tables_sink(tidelake.open(folder / "lake"), "shop", keys=["id"])

    def driver_s(self, events: int) -> float:
        """Write so many events without Spark; the processor time that it takes."""
        batch = _lines(self._texts(events))
        start = time.process_time()
        self._sink.write(lambda held: FewLines([*([] if held is None else [held]), batch]), "q", self._number)
        self._number += 1
        return time.process_time() - start

    def whole_s(self, events: int, spark: Any, java: int) -> float:
        """Write so many events as Spark reads them; the processor time that it takes, with Java's."""
        file = self._folder / f"{self._number}.json"
        file.write_text("\n".join(self._texts(events)) + "\n")
        frame = spark.read.text(str(file))
        start = time.process_time() + _process_s(java)
        self._sink.write(lambda held: lines_of(frame, held, _EXPECTED_BYTES), "q", self._number)
        self._number += 1
        return time.process_time() + _process_s(java) - start

    def _texts(self, events: int) -> list[str]:
        lines: list[str] = []
        before = self._commit
        for i in range(events):
            if i % 3 == 0:
                before, self._commit = self._commit, self._commit + 100
            source = {"connector": "postgresql", "db": "d", "schema": "s", "table": f"t{i % self._tables}"}
            source |= {"lsn": before + i % 3, "sequence": json.dumps([str(before), "0"]), "ts_ms": 1}
            row = {"id": self._random.randrange(events), "v": "x" * 20}
            payload = {"before": None, "after": row, "op": "u", "source": source}
            lines.append(json.dumps({"schema": _SCHEMA, "payload": payload}))
        return lines


def _process_s(process: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _lines(lines: list[str]) -> pa.RecordBatch:
    kinds = {"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64()}
    given: dict[str, Any] = {"value": lines, "offset": range(1, len(lines) + 1)}
    columns = [
        pa.array(given.get(name, [None] * len(lines)), kinds.get(name, pa.string())) for name in AS_TEXT
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(AS_TEXT))


def run(rows: int = 10_000_000, cores: int = 2) -> dict[str, dict[str, float]]:
    """Processor time of micro-batches with a thousandth and a ten-thousandth as many events as rows."""
    spark = local_session("bench", cores)
    java: int = spark.sparkContext._gateway.proc.pid
    found = {}
    for events in (max(30, rows // 1000), max(30, rows // 10_000)):
        told: dict[str, float] = {}
        for name, first in (("whole", _FIRST_WHOLE), ("driver", _FIRST)):
            with tempfile.TemporaryDirectory() as folder:
                feeds = [_feed(tables, Path(folder) / str(tables)) for tables in _TABLES]
                took = [
                    [
                        f.driver_s(events) if name == "driver" else f.whole_s(events, spark, java)
                        for f in feeds
                    ]
                    for _ in range(first + _COUNTED)
                ][first:]
            one_s, ten_s = (median(times) for times in zip(*took, strict=True))
            told |= {f"{name}_one_table_ms": one_s * 1000, f"{name}_ten_tables_ms": ten_s * 1000}
            told[f"{name}_ten_to_one"] = ten_s / one_s
        found[f"micro-batch of {events} events"] = told
    spark.stop()
    return found


def _feed(tables: int, folder: Path) -> Feed:
    folder.mkdir()
    return Feed(tables, folder)


if __name__ == "__main__":
    for name, numbers in run().items():
        print(name, numbers)

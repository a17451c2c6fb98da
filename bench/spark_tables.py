"""Micro-batches of change events of ten tables in one group, against as many events of one table.

    from bench.spark_tables import run; run(10_000_000)

The driver's work on few lines, without Spark's own share of a micro-batch, which is the same for both. The
figures are processor time of this process: medians of eight micro-batches after two, in turn.
"""

import json
import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

import tidelake
from tidelake.spark import tables_sink
from tidelake.spark.envelopes.read import AS_TEXT
from tidelake.spark.writing.tablelines import FewLines

_FIELDS = [{"field": "id", "type": "int64", "optional": False}, {"field": "v", "type": "string"}]
_SCHEMA = {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": _FIELDS}]}
_BATCHES, _FIRST = 10, 2


class Feed:
    """Micro-batches of some tables: transactions of three events each."""

    def __init__(self, tables: int, folder: Path) -> None:
        self._tables, self._random, self._commit, self._number = tables, random.Random(0), 1000, 0
        self._sink = tables_sink(tidelake.open(folder), "shop", keys=["id"])

    def taken(self, events: int) -> float:
        """Write so many events; the processor time that it takes."""
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
        batch = _lines(lines)
        start = time.process_time()
        self._sink.write(lambda held: FewLines([*([] if held is None else [held]), batch]), "q", self._number)
        self._number += 1
        return time.process_time() - start


def _lines(lines: list[str]) -> pa.RecordBatch:
    kinds = {"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64()}
    given: dict[str, Any] = {"value": lines, "offset": range(1, len(lines) + 1)}
    columns = [
        pa.array(given.get(name, [None] * len(lines)), kinds.get(name, pa.string())) for name in AS_TEXT
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(AS_TEXT))


def run(rows: int = 10_000_000) -> dict[str, dict[str, float]]:
    """Processor time of micro-batches with a thousandth and a ten-thousandth as many events as rows."""
    found = {}
    for events in (max(30, rows // 1000), max(30, rows // 10_000)):
        with tempfile.TemporaryDirectory() as name:
            feeds = [Feed(tables, Path(name) / str(tables)) for tables in (1, 10)]
            took = [[feed.taken(events) for feed in feeds] for _ in range(_BATCHES)][_FIRST:]
        one_s, ten_s = (median(times) for times in zip(*took, strict=True))
        found[f"micro-batch of {events} events"] = {
            "one_table_ms": one_s * 1000,
            "ten_tables_ms": ten_s * 1000,
            "ten_to_one": ten_s / one_s,
        }
    return found


if __name__ == "__main__":
    for name, numbers in run().items():
        print(name, numbers)

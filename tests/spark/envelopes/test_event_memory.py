"""Change events of many times the memory that a task has for them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

pytestmark = pytest.mark.full

_MIB = 1 << 20
_BATCHES, _LINES, _NOTE_BYTES = 60, 2_000, 1_000
_CODE = f"""
import json, sys
import pyarrow as pa, tidelake
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.read import AS_TEXT
from tidelake.spark.uploads import total

lake = tidelake.open(sys.argv[1], config=tidelake.Config(part_target_bytes={_MIB}, inline_part_bytes=0))
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
c = lake.create("c", schema, key=["id"])
given = 0

def batches():
    global given
    note = "n" * {_NOTE_BYTES}
    for start in range(0, {_BATCHES * _LINES}, {_LINES}):
        lines = [
            json.dumps({{"op": "c", "after": {{"id": n, "note": note}}, "source": {{"lsn": n}}}})
            for n in range(start, start + {_LINES})
        ]
        given += sum(map(len, lines))
        kinds = {{"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64()}}
        none = {{name: pa.nulls({_LINES}, kinds.get(name, pa.string())) for name in AS_TEXT}}
        yield pa.RecordBatch.from_pydict(none | {{"value": pa.array(lines)}})

work = Debezium("source.lsn").work(c, AS_TEXT, Frontier.of(0))
answer = total(pa.Table.from_batches(work(batches())))
upper = Frontier.of({_BATCHES * _LINES})
c.distributed.append_uploaded(answer.uploads, lower=c.upper, upper=upper)
peak = pa.default_memory_pool().max_memory()
print(json.dumps([given, answer.counts.events, peak]))
"""


def test_a_task_takes_more_events_than_its_memory_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CODE, str(tmp_path / "lake")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    given, events, peak = json.loads(done.stdout)
    assert events == _BATCHES * _LINES
    assert given > 120 * _MIB and peak < 48 * _MIB

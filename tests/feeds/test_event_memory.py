"""Change events of many times the memory that a task has for them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

_MIB = 1 << 20
_BATCHES, _LINES, _NOTE_BYTES = 60, 2_000, 1_000
_CODE = f"""
import json, sys
import pyarrow as pa, tidelake
from tidelake.model.frontier import Frontier
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.reading import AS_TEXT
from tidelake.feeds.answers import total

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


_ROWS = 30_000
_FEED = f"""
import json, os, sys
from pathlib import Path
import pyarrow as pa, tidelake

place, how = Path(sys.argv[1]), sys.argv[2]
config = tidelake.Config(part_target_bytes={_MIB}, merge_memory_bytes={16 * _MIB}, lookup_cache_bytes=0)
lake = tidelake.open(place / "lake", config=config)
fields = [{{"field": "id", "type": "int64", "optional": False}}, {{"field": "note", "type": "string"}}]
schema = [{{"type": "struct", "fields": fields, "field": side}} for side in ("before", "after")]
columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
lake.create("c", columns, key=["id"])
given, count = 0, {_ROWS}

def line(op, n, at, commit):
    row = {{"id": n, "note": os.urandom(1500).hex()}}
    source = {{"connector": "postgresql", "db": "d", "schema": "public", "table": "t", "lsn": at}}
    source["sequence"] = json.dumps([str(commit), "0"])
    payload = {{"op": op, "before": None, "after": row, "source": source}}
    told = {{"schema": {{"type": "struct", "fields": schema}}, "payload": payload}}
    return json.dumps(told if how == "tables" else payload)

def lines():
    global given
    for n in range(count):
        # Keys in no order, as a transaction changes them.
        text = line("c", n * 7919 % count, 1000 + n, 100)
        given += len(text)
        yield text
    yield line("c", count, 1000 + 2 * count, 1000 + count)

more = {{"tables": True, "keys": ["id"]}} if how == "tables" else {{"old_rows": how}}
report = lake.ingest(lines(), "shop" if how == "tables" else "c", batch_bytes={4 * _MIB}, **more)
peak = pa.default_memory_pool().max_memory()
found = lake["shop.public.t" if how == "tables" else "c"].snapshot(999 + count)
print(json.dumps([given, report.events, sum(batch.num_rows for batch in found), peak]))
"""


@pytest.mark.promise(
    "A transaction that is larger than the memory is taken in this process, also if old rows are looked up",
    rule="`by_key` in `feeds/storing.py`, `LineFiles` in `feeds/linefiles.py`",
)
@pytest.mark.parametrize("how", ["stored", "tables"])
def test_a_transaction_is_larger_than_the_memory_that_its_ingest_takes(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", _FEED, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    given, events, found, peak = json.loads(done.stdout)
    assert events == found == _ROWS
    assert given > 85 * _MIB and peak < 80 * _MIB, (given, peak)

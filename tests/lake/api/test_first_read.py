"""What a fresh process loads before its first answer: nothing that the answer does not need."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tidelake

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        ("price", pa.float64()),
        ("sold", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us")),
    ]
)
ROWS = pa.table(
    {
        "name": ["mug", "tea", "tea leaves"],
        "price": [9.0, None, float("nan")],
        "sold": [True, None, False],
        "tags": [["a", "b"], None, []],
        "at": [1, None, 3],
    }
)
# What pyarrow, or a lake elsewhere, would load: some of it takes longer than all that is needed.
HEAVY = ("asyncio", "difflib", "obstore", "pandas", "polars", "psycopg", "pyspark", "rich", "sqlglot")

READS = """
    c.changes(after=1, through=2).read_all()
    c.lookup(rows.select(["name"]))
    c.lookup(rows.select(["name"]), as_of=1)
"""


@pytest.fixture(params=["small", "large"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One whose rows are in the log, or in parts."""
    config = (
        tidelake.Config(inline_part_bytes=0, inline_total_bytes=0)
        if request.param == "large"
        else tidelake.Config()
    )
    with tidelake.open(tmp_path / "lake", config=config) as made:
        rows = ROWS.set_column(4, "at", ROWS["at"].cast(pa.timestamp("us")))
        made.create("prices", SCHEMA, key=["name"]).upsert(rows, time=1)
        made["prices"].upsert(rows.slice(1, 1).set_column(1, "price", pa.array([2.5])), time=2)
    return tmp_path / "lake"


def loaded(lake: Path, work: str) -> set[str]:
    """The heavy modules that a process has loaded after it read a collection and did some work on it."""
    script = f"""
import json, sys, pyarrow, tidelake
with tidelake.open({str(lake)!r}) as opened:
    c = opened["prices"]
    rows = c.snapshot(as_of=2).read_all().select({SCHEMA.names!r}).slice(0, 1)
    {work}
    print(json.dumps(sorted(set({HEAVY!r}) & {{name.partition(".")[0] for name in sys.modules}})))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pyarrow cannot load pandas")
def test_first_answers_load_nothing_heavy(lake: Path) -> None:
    assert loaded(lake, READS) == set()
    assert loaded(lake, "pyarrow.array([1])") == {"pandas"}, "the test would not find it"


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_looked_for_while_the_package_is_loaded(collects: bool) -> None:
    script = f"""
import gc, pyarrow, tidelake
if not {collects}: gc.disable()
looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
tidelake.open
print(gc.isenabled(), len(looks) < 10)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == [str(collects), "True"]

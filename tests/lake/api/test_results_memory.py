"""Large answers take the memory of their rows once, and a bounded rest; pandas that of one column twice."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import tidelake
from tidelake.config import Config

ROWS, COLUMNS, MIB = 4_000_000, 8, 2**20
SIZE_MIB = ROWS * COLUMNS * 8 / MIB
# What a process needs whatever the answer: code that is touched for the first time, one batch of each
# part, and what the allocators keep.
FIXED_MIB = 150
CHILD = """
import json, sys
from pathlib import Path
import tidelake

def peak():
    # Unlike ru_maxrss, it does not begin with the parent's.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

place, how = sys.argv[1:]
with tidelake.open(place) as lake:
    c = lake.collection("c")
    def answer(**few):
        if how == "pandas":
            return c.to_pandas(**few)
        return c.to_polars(**few).collect() if how == "polars" else c.to_arrow(**few)
    answer(where="c0 < 1000")
    before = peak()
    found = answer()
    print(json.dumps({"growth": peak() - before, "rows": len(found)}))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("results") / "lake"
    names = [f"c{n}" for n in range(COLUMNS)]
    with tidelake.open(place, config=Config(merge_budget_s=0)) as lake:
        c = lake.create("c", dict.fromkeys(names, "int64"), key=["c0"])
        for begin in range(0, ROWS, 1_000_000):
            ids = np.arange(begin, begin + 1_000_000)
            c.append(pa.table({name: ids + n for n, name in enumerate(names)}))
    return place


@pytest.mark.promise(
    "A large answer as a table of Arrow or a frame of polars is in memory once, as a frame of "
    "pandas once and one column twice, with a bounded rest",
    rule="`data/answer/rows.py`",
)
@pytest.mark.full
@pytest.mark.parametrize("how", ["arrow", "polars", "pandas"])
def test_an_answer_is_in_memory_once(place, how):
    pytest.importorskip({"arrow": "pyarrow"}.get(how, how))
    command = [sys.executable, "-c", CHILD, str(place), how]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["rows"] == ROWS
    # A second copy would be twice the size.
    column = SIZE_MIB / COLUMNS if how == "pandas" else 0
    assert SIZE_MIB <= found["growth"] <= SIZE_MIB * 1.1 + column + FIXED_MIB

"""What each process of a read on Spark loads: neither pandas, nor what only writes need."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import tidelake

# As Spark does it: a process asks for the schema, one for the partitions, and workers read them.
READ = """
import sys
from tidelake.spark.source.format import TidelakeSource
source = TidelakeSource({"path": sys.argv[1], "holdFor": "none"})
reader = source.reader(source.schema())
print(sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)))
print(*{"pandas", "tidelake.spark.source.sink"} & set(sys.modules))
"""


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pyarrow cannot load pandas")
@pytest.mark.parametrize("repeated", [1, 3])
def test_a_read_by_the_format_loads_only_what_it_needs(repeated: int, tmp_path: Path) -> None:
    rows = pa.table({"name": ["mug", "tea"] * repeated, "price": [9.0, None] * repeated})
    with tidelake.open(tmp_path / "lake") as lake:
        lake.create("prices", rows.schema, key=["name"]).append(rows)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "lake" / "prices")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(2 * repeated)]

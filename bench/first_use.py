"""A first use: what a fresh process needs to import Tidelake, to open a lake and to read a collection.

    from bench.first_use import run; run(10_000_000)
    python -m bench.first_use ../before    (in turn with the code of another checkout)

Processor time of all threads after Python's start and the import of pyarrow, the least of `ROUNDS`
processes. Python has stored the bytecode before.
"""

import sys
import tempfile

from bench.fresh import Row, least, show

ROUNDS = 7
CODE = """
import json, os, time, pyarrow
folder = os.path.join({folder!r}, os.environ["PYTHONPATH"].replace(os.sep, "_"))
if not os.path.exists(folder):
    import tidelake
    from bench.appends import SCHEMA, base
    with tidelake.open(folder) as lake:
        lake.create("c", SCHEMA, key=["key"]).append(base({rows}))
seconds = [time.process_time()]
import tidelake
seconds.append(time.process_time())
collection = tidelake.open(folder)["c"]
seconds.append(time.process_time())
if sum(batch.num_rows for batch in collection.snapshot()) != {rows}:
    raise ValueError("rows are missing")
seconds.append(time.process_time())
names = ("import_ms", "open_ms", "read_ms")
row = {{name: 1_000 * (after - before) for name, before, after in zip(names, seconds, seconds[1:])}}
print(json.dumps(row | {{"first_use_ms": 1_000 * (seconds[-1] - seconds[0])}}))
"""


def run(rows: int = 10_000_000, before: str | None = None) -> dict[str, Row]:
    """The collection has a hundredth of the rows that are asked for; each checkout makes its own first."""
    count = max(1, rows // 100)
    with tempfile.TemporaryDirectory() as folder:
        told = least(CODE.format(folder=folder, rows=count), ROUNDS, before)
    return told if before else {f"{count:,} rows": told["now"]}


if __name__ == "__main__":
    show(run(before=(sys.argv[1:] or [None])[0]))

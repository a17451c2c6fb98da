"""A process that appends, or maintains, until it is killed.

Usage: maintenance_child.py LAKE append NAME | maintain. Appends are numbered, and told once they are in.
"""

import itertools
import sys

import pyarrow as pa

import tidelake
from tidelake.config import Config

CONFIG = Config(
    part_target_bytes=4096,
    row_group_rows=32,
    merge_chunk_rows=256,
    inline_part_bytes=0,
    merge_fan_in=3,
    merge_inputs_min=2,
    merge_rows_min=0,
    merge_claim_rows=0,
    merge_claim_s=0.2,
    slice_rows=64,
    runs_max=6,
    fold_rows=1,
    rollup_bytes_min=4096,
)
ROWS = 20


def rows_of(number):
    """What append number so many consists of: it takes back half of the one before."""
    ids = [number * ROWS + i for i in range(ROWS)]
    gone = [(number - 1) * ROWS + i for i in range(0, ROWS, 2)] if number else []
    return pa.table(
        {"id": pa.array(ids + gone, pa.int64()), "_diff": pa.array([1] * len(ids) + [-1] * len(gone))}
    )


def appending(collection, name):
    writer = collection.writer(name)
    first = 0 if writer.last_sequence is None else writer.last_sequence + 1
    for number in itertools.count(first):
        table = rows_of(number).append_column("v", pa.array([name] * (ROWS + ROWS // 2 * (number > 0))))
        writer.append(table, sequence=number)
        print(number, flush=True)
        if number % 8 == 7:
            collection.advance_since(collection.last_time())


def maintaining(collection):
    while True:
        collection.maintain(progress=lambda request: print("merging", request.rows, flush=True))


if __name__ == "__main__":
    opened = tidelake.open(sys.argv[1], config=CONFIG).collection("c")
    if sys.argv[2] == "append":
        appending(opened, sys.argv[3])
    else:
        maintaining(opened)

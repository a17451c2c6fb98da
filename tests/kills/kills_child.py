"""A process that does one kind of work on one lake until it is killed.

Usage: kills_child.py LAKE WORK NAME. It tells `ready` when it has opened the lake (a writer also the number
of its last append that is in), `in N` when append N is in, and `error CLASS RETRYABLE MESSAGE` when the store
refused something; then it tries again.
"""

import itertools
import sys
import time

import pyarrow as pa

import tidelake
from tidelake.config import Config
from tidelake.errors import OutcomeUnknown, StoreUnavailable

# Small enough that appends, merges in several key ranges and rollups all come within a second.
CONFIG = Config(
    part_target_bytes=4096,
    row_group_rows=32,
    merge_chunk_rows=256,
    inline_part_bytes=1024,
    inline_total_bytes=16 * 1024,
    merge_fan_in=3,
    merge_inputs_min=2,
    merge_rows_min=0,
    merge_claim_rows=500,
    merge_claim_s=0.2,
    runs_max=12,
    fold_rows=1,
    rollup_bytes_min=4096,
    retry_deadline_s=1.0,
)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
ROWS = 12


def updates_of(name, number):
    """Append `number` of a writer as `((id, v), diff)`: it takes back half of the one before.

    Every third one is too large to be kept inline.
    """
    size = ROWS * (8 if number % 3 == 0 else 1)
    added = [((number * 1000 + i, name), 1) for i in range(size)]
    before = ROWS * (8 if (number - 1) % 3 == 0 else 1)
    gone = [(((number - 1) * 1000 + i, name), -1) for i in range(0, before, 2)] if number else []
    return added + gone


def table_of(name, number):
    rows, diffs = zip(*updates_of(name, number), strict=True)
    ids, texts = zip(*rows, strict=True)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": pa.array(texts), "_diff": pa.array(diffs, pa.int64())}
    )


def tell(*words):
    print(*words, flush=True)


def again(work):
    """The result of `work`, repeated while the store refuses it."""
    while True:
        try:
            return work()
        except (StoreUnavailable, OutcomeUnknown) as error:
            message = " ".join(str(error).split())
            tell("error", type(error).__name__, getattr(error, "retryable", "-"), message)
            time.sleep(0.01)


def appending(collection, name):
    writer = again(lambda: collection.writer(name))
    last = -1 if writer.last_sequence is None else writer.last_sequence
    tell("ready", last)
    for number in itertools.count(last + 1):
        table = table_of(name, number)
        again(lambda table=table, number=number: writer.append(table, sequence=number))
        tell("in", number)
        if number % 8 == 7:
            again(lambda: collection.advance_since(collection.last_time()))


def maintaining(collection, name):
    tell("ready")
    while True:
        again(collection.maintain)


WORKS = {"append": appending, "maintain": maintaining}


if __name__ == "__main__":
    place, kind, own_name = sys.argv[1:]
    WORKS[kind](again(lambda: tidelake.open(place, config=CONFIG).collection("c")), own_name)

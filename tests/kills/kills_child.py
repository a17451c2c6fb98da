"""A process that does one kind of work on one lake until it is killed.

Usage: kills_child.py PLACE WORK NAME. It tells `ready` when it has opened the lake (a writer also the number
of its last append that is in), and what it has done: `in N` when append N is in, `gone N` when it has deleted
N objects and log entries, `dropped`, `copied` and `forked`; and `error CLASS RETRYABLE MESSAGE` when the
store refused something; then it tries again.
"""

import itertools
import sys
import time
from dataclasses import replace

import pyarrow as pa
from places import Place

from tidelake.config import Config
from tidelake.errors import (
    BlobNotFound,
    CollectionDropped,
    CollectionExists,
    CollectionNotFound,
    ForkExpired,
    LeaseExpired,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionExpired,
    UploadExpired,
)

# Small enough that appends, merges in several key ranges, rollups and collections all come within a second.
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
    lease_s=2.0,
    garbage_age_s=0.2,
    upload_age_s=1.0,
    rollup_bytes_min=4096,
    retry_deadline_s=1.0,
)
# Where a call takes milliseconds, and faults cost seconds.
FAR = replace(
    CONFIG, lease_s=8.0, garbage_age_s=2.0, upload_age_s=8.0, merge_claim_s=2.0, retry_deadline_s=4.0
)
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
ROWS = 12


def rows_of(name, number):
    """The rows that append `number` of a writer brings. Every third one is too large to be kept inline."""
    if number < 0:
        return []
    return [(number * 1000 + i, name) for i in range(ROWS * (8 if number % 3 == 0 else 1))]


def updates_of(name, number):
    """Append `number` of a writer as `((id, v), diff)`.

    It takes back half of the one before, and all that is left but for a row of the one before that.
    """
    gone = rows_of(name, number - 1)[::2] + rows_of(name, number - 2)[3::2]
    return [(row, 1) for row in rows_of(name, number)] + [(row, -1) for row in gone]


def contents_of(name, last):
    """The rows that are there after append `last` of a writer, each once."""
    stayed = [rows_of(name, number)[1] for number in range(last - 1)]
    return stayed + rows_of(name, last - 1)[1::2] + rows_of(name, last)


def table_of(name, number):
    rows, diffs = zip(*updates_of(name, number), strict=True)
    ids, texts = zip(*rows, strict=True)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": pa.array(texts), "_diff": pa.array(diffs, pa.int64())}
    )


def tell(*words):
    print(*words, flush=True)


def again(work):
    """The result of `work`, repeated while the store refuses it, or it took longer than may be."""
    while True:
        try:
            return work()
        except (StoreUnavailable, OutcomeUnknown) as error:
            message = " ".join(str(error).split())
            tell("error", type(error).__name__, getattr(error, "retryable", "-"), message)
        except (UploadExpired, LeaseExpired, TransactionExpired):
            pass
        time.sleep(0.01)


def appending(lake, name, place):
    collection = again(lambda: lake.collection("c"))
    writer = again(lambda: collection.writer(name))
    last = -1 if writer.last_sequence is None else writer.last_sequence
    tell("ready", last)
    for number in itertools.count(last + 1):
        table = table_of(name, number)
        again(lambda table=table, number=number: writer.append(table, sequence=number))
        tell("in", number)
        if number % 8 == 7:
            again(lambda: collection.advance_since(collection.last_time()))


def maintaining(lake, name, place):
    collection = again(lambda: lake.collection("c"))
    tell("ready")
    while True:
        again(collection.maintain)


def collecting(lake, name, place):
    collection = again(lambda: lake.collection("c"))
    tell("ready")
    while True:
        collected, removed = again(lambda: collection.collect(thorough=True)), again(lake.collect)
        if number := collected.total + removed.blobs:
            tell("gone", number)


def dropping(lake, name, place):
    """Collections that come and go; one that a killed process left is dropped by its successor."""
    drop_others(lake, name)
    tell("ready")
    while True:
        passing = f"{name} {time.time_ns()}"
        try:
            made = again(lambda passing=passing: lake.create(passing, SCHEMA, key=["id"]))
            for number in (0, 3, 6):
                again(lambda made=made, number=number: made.append(table_of(name, number)))
            again(lambda passing=passing: lake.drop(passing))
            tell("dropped")
        except (CollectionDropped, CollectionExists):
            # It took so long to give it a name that a collector took it for a leak.
            drop_others(lake, name)


def copying(lake, name, place):
    """Copies in another lake, of which the newest is kept, and brought up to date a few times."""
    with again(lambda: place.copies.open(CONFIG)) as other:
        tell("ready")
        copy = ""
        for number in itertools.count():
            copy = copy if number % 4 else f"{name} {time.time_ns()}"
            try:
                again(lambda copy=copy: lake.copy(other, ["c"], as_name=copy))
                tell("copied")
            except (BlobNotFound, UploadExpired):
                # Parts of it were taken for a leak.
                continue
            drop_others(other, name, copy)
            again(other.collect)


def forking(lake, name, place):
    """Forks of the collection and of its forks; the newest is kept, every third is merged."""
    tell("ready")
    source = "c"
    for number in itertools.count():
        fork = f"{name} {time.time_ns()}"
        try:
            made = again(lambda source=source, fork=fork: lake.fork(source, fork))
            tell("forked")
            if number % 3 == 2:
                again(made.merge)
            again(made.maintain)
        except (CollectionExists, CollectionNotFound, ForkExpired):
            # In after all, though the reply was lost; or it took so long that it was collected.
            source = "c"
            continue
        drop_others(lake, name, fork)
        source = fork if number % 2 else "c"


def drop_others(lake, name, kept=None):
    for one in again(lake.list):
        if one.startswith(f"{name} ") and one != kept:
            again(lambda one=one: lake.drop(one, force=True))


WORKS = {
    "append": appending,
    "maintain": maintaining,
    "collect": collecting,
    "drop": dropping,
    "copy": copying,
    "fork": forking,
}


if __name__ == "__main__":
    where, kind, own_name = sys.argv[1:]
    config = CONFIG if Place.of(where).is_local else FAR
    with again(lambda: Place.of(where).open(config)) as opened:
        WORKS[kind](opened, own_name, Place.of(where))

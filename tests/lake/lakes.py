"""Lakes of each kind, and what must not change when a call is refused."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import tidelake
from tidelake.config import Config
from tidelake.errors import TidelakeError

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


# Parts, row groups and chunks of few rows, and bounds that are cut: every edge occurs in a small collection.
SMALL_PARTS = Config(
    part_target_bytes=2048,
    row_group_rows=4,
    merge_chunk_rows=16,
    fold_rows=1,
    inline_part_bytes=0,
    bound_bytes=9,
)


class SetClock:
    """A clock that shows what the test says, and moves by what is slept."""

    def __init__(self, ms=1_700_000_000_000):
        self.ms = ms
        self.slept_s = 0.0

    def now_ms(self):
        return self.ms

    def monotonic_s(self):
        return self.slept_s

    def sleep(self, seconds):
        self.slept_s += seconds


def place_of(kind, tmp_path):
    return f"memory://{uuid.uuid4().hex}" if kind == "memory" else str(tmp_path / "lake")


def rows(*ids, v="x", **more):
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids)), **more})


def at(time, *ids, diff=1, v="x"):
    """Updates at one time."""
    n = len(ids)
    return rows(*ids, v=v, _time=pa.array([time] * n, pa.int64()), _diff=pa.array([diff] * n, pa.int64()))


def contents(collection, as_of=None):
    """Rows with their multiplicity."""
    answer = collection.snapshot(as_of, timeout_s=0).read_all().to_pylist()
    return {(row["id"], row["v"]): row["_diff"] for row in answer}


def trace(lake, collection):
    """Everything that a refused call must leave alone: the state, and each object of the store."""
    blobs = lake._stores.blobs
    return collection.state(), {info.name: blobs.get(info.name) for info in blobs.list()}


@contextmanager
def refused(lake, collection, kind, match=None) -> Iterator[pytest.ExceptionInfo]:
    """The block is refused with one clear line, and leaves nothing behind."""
    before = trace(lake, collection)
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert isinstance(caught.value, TidelakeError)
    assert trace(lake, collection) == before
    # Another process sees the same: nothing is in flight in this one.
    again = tidelake.open(lake.url, create=False)
    assert again.collection(collection.name).state() == before[0]
    again.close()
    message = str(caught.value)
    assert message and "\n" not in message and len(message) < 600

"""Lakes of each kind, and what must not change when a call is refused."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import inside
import tidelake
from tidelake.config import Config
from tidelake.errors import TidelakeError

# Parts, row groups and chunks of few rows, and bounds that are cut: every edge occurs in a small collection.
SMALL_PARTS = Config(
    part_target_bytes=2048,
    row_group_rows=4,
    merge_chunk_rows=16,
    fold_rows=1,
    inline_part_bytes=0,
    bound_bytes=9,
)


def place_of(kind, tmp_path):
    return f"memory://{uuid.uuid4().hex}" if kind == "memory" else str(tmp_path / "lake")


def trace(lake, collection):
    """Everything that a refused call must leave alone: the state, and each object of the store."""
    blobs = inside.stores(lake).blobs
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

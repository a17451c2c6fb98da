"""The caches of a process: one budget for their files, and one way to forget a part."""

import pyarrow as pa
import pytest

import tidelake
from tidelake.config import MIB, Config
from tidelake.process import PerProcess
from tidelake.shard.runs import cache, partcaches, rangecache
from tidelake.shard.runs.cache import identity
from tidelake.shard.runs.partcaches import PartCaches, part_caches

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS = 4_000
ANYWHERE = pa.table({"id": list(range(0, ROWS, 7))})


@pytest.fixture(autouse=True)
def empty():
    """Nothing is kept in this process, and the disk is not nearly full, whatever others do on it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(partcaches, "_CACHES", PerProcess(PartCaches))
        for module in (cache, rangecache):
            patched.setattr(module, "spare_bytes", lambda: 1 << 40)
        yield


def unpacked_in(path, config):
    """A collection whose parts look-ups have unpacked, and the identities of these."""
    lake = tidelake.open(path, config=config)
    c = lake.create("c", SCHEMA, key=["id"])
    for first in range(2):
        ids = pa.array(range(first, ROWS, 2), pa.int64())
        c.append(pa.table({"id": ids, "v": pa.array([f"{n}" for n in ids.to_pylist()])}))
    for _ in range(4):
        c.lookup(ANYWHERE)
    spec = c.distributed.uploader().spec
    parts = [part for member in c.state().spine for part in member.batch.parts()]
    return c, [identity(spec, part) for part in parts]


def test_files_of_ranges_and_unpacked_parts_share_one_bound(tmp_path):
    config = Config(lookup_cache_bytes=8 * MIB, inline_part_bytes=0, merge_inputs_min=100)
    _, ids = unpacked_in(tmp_path / "lake", config)
    caches = part_caches()
    assert all(map(caches.unpacked.has, ids))
    near = caches.budget(config, is_far=False)
    assert near.unpacked_bytes == config.lookup_cache_bytes and near.ranges_bytes == 0
    # A lake elsewhere, of which ranges are kept until they leave memory: its file takes a part of the disk.
    small = Config(lookup_cache_bytes=160_000)
    for n in range(200):
        caches.keep_range(("far", f"{n}", "sum"), 0, bytes(1_000), small)
    assert 0 < caches.ranges.disk_bytes <= small.lookup_cache_bytes // 4
    assert not all(map(caches.unpacked.has, ids))
    budget = caches.budget(small, is_far=False)
    assert budget == caches.budget(small, is_far=True)
    assert budget.unpacked_bytes + budget.ranges_bytes == small.lookup_cache_bytes
    assert caches.unpacked.size_bytes() + caches.ranges.disk_bytes <= small.lookup_cache_bytes


def test_all_that_is_kept_of_a_part_is_forgotten_at_once(tmp_path):
    config = Config(inline_part_bytes=0, merge_inputs_min=100)
    c, (first, second) = unpacked_in(tmp_path / "lake", config)
    caches, expected = part_caches(), c.lookup(ANYWHERE).to_pylist()
    for id_ in (first, second):
        caches.keep_range(id_, 0, b"here", config)
    caches.forget(first)
    assert not caches.unpacked.has(first) and caches.unpacked.has(second)
    assert not caches.filters.has(first)
    assert caches.ranges.get(first, 0, 4) is None and caches.ranges.get(second, 0, 4) == b"here"
    assert c.lookup(ANYWHERE).to_pylist() == expected

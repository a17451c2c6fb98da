"""A merge holds a bounded part of its input, whatever the size of the input is."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from tidelake.config import MIB, Config
from tidelake.data.kernel.types import schema_from_arrow
from tidelake.env import Env, SystemClock
from tidelake.errors import CorruptionError, StoreUnavailable, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.query import Fold
from tidelake.model.time import TimeDomain
from tidelake.shard.engine.allocator import lean_memory
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.plan import Task, run_merge_task
from tidelake.shard.runs.read import KeyRange, Source
from tidelake.shard.runs.upload import write_run
from tidelake.state.core.codec import encode_record
from tidelake.store.files import SystemFiles, no_flush
from tidelake.store.local import LocalBlobStore
from tidelake.store.memory import MemoryBlobStore

DOMAIN = TimeDomain("counter")
SCHEMA = schema_from_arrow(
    pa.schema([pa.field("key", pa.int64(), nullable=False), ("text", pa.binary())]), ["key"]
)
# What a process needs whatever the bound is: code of Arrow that is touched for the first time, stacks of
# threads, codecs, and what the allocators keep, which is more where single values are large. By width.
FIXED_MIB = {32: 110, 512: 110, 4096: 180}

CHILD = """
import json, sys
from pathlib import Path
from tidelake.shard.runs.plan import decode_run, run_merge_task
from tidelake.store.files import SystemFiles, no_flush
from tidelake.store.local import LocalBlobStore

def peak():
    # Unlike ru_maxrss, it does not begin with the parent's.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

root = Path(sys.argv[1])
blobs, task = LocalBlobStore(str(root / "blobs"), SystemFiles(no_flush)), (root / "task").read_bytes()
before = peak()
run = decode_run(run_merge_task(task, blobs))
growth = peak() - before
print(json.dumps({"growth": growth, "rows": run.rows, "sizes": [p.size_bytes for p in run.parts]}))
"""


def rows(seed, begin, end, step, width):
    """Updates with keys of one run, which lie between those of all the others."""
    keys = np.arange(begin, end) * step + seed
    rng = np.random.default_rng([seed, begin])
    offsets = (np.arange(len(keys) + 1) * width).astype(np.int32)
    text = pa.py_buffer(rng.bytes(len(keys) * width))
    texts = pa.Array.from_buffers(pa.binary(), len(keys), [None, pa.py_buffer(offsets), text])
    ones = pa.array(np.ones(len(keys), np.int64))
    names = ["key", "text", "_time", "_diff"]
    return pa.RecordBatch.from_arrays([pa.array(keys), texts, ones, ones], names)


def merged(tmp_path, *, runs, input_mib, bound_mib, width):
    blobs = LocalBlobStore(str(tmp_path / "blobs"), SystemFiles(no_flush))
    config = Config(merge_memory_bytes=bound_mib * MIB)
    spec = ShardSpec(tmp_path.as_uri(), "0" * 32, DOMAIN, 0, {0: SCHEMA}, config)
    count = input_mib * MIB // (width + 28) // runs
    sources = []
    for seed in range(runs):
        cuts = [*range(0, count, 2048), count]
        batches = (rows(seed, a, b, runs, width) for a, b in pairwise(cuts))
        run = write_run(spec, blobs, Env(), batches)
        sources.append(Source(run, Frontier.of(0), Frontier.of(2)))
    task = Task.of(spec, sources, KeyRange(), Fold(Frontier.of(2)))
    (tmp_path / "task").write_bytes(encode_record("task", task))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["rows"] == count * runs
    assert all(size <= bound_mib * MIB // 8 + 4 * MIB for size in found["sizes"])
    return found["growth"]


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")


@pytest.mark.promise(
    "7",
    rule="`data/kernel/merge.py`, `merge_memory_bytes`",
    also=["::test_a_merge_of_ten_times_the_bound_stays_near_it"],
)
@pytest.mark.full
@needs_proc
def test_a_merge_of_three_times_the_bound_stays_near_it(tmp_path):
    assert merged(tmp_path, runs=4, input_mib=200, bound_mib=20, width=512) < 20 + FIXED_MIB[512]


@needs_proc
@pytest.mark.soak
@pytest.mark.parametrize("runs", [2, 8, 16])
@pytest.mark.parametrize("width", [32, 4096])
def test_a_merge_of_ten_times_the_bound_stays_near_it(tmp_path, runs, width):
    assert merged(tmp_path, runs=runs, input_mib=330, bound_mib=32, width=width) < 32 + FIXED_MIB[width]


def test_a_bound_too_small_is_refused():
    with pytest.raises(UsageError, match="merge_memory_bytes"):
        Config(merge_memory_bytes=16 * MIB - 1)


def test_arrow_allocates_as_before_once_the_last_merge_has_ended():
    before = pa.default_memory_pool().backend_name
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with lean_memory():
            entered.set()
            leave.wait()

    other = threading.Thread(target=hold)
    with lean_memory():
        during = pa.default_memory_pool().backend_name
        other.start()
        entered.wait()
    assert pa.default_memory_pool().backend_name == during
    assert during == "jemalloc" or "jemalloc" not in pa.supported_memory_backends()
    leave.set()
    other.join()
    assert pa.default_memory_pool().backend_name == before


def task_over(blobs, count, runs=3):
    """A merge of several runs of `count` rows each, too many to be read whole."""
    spec = ShardSpec("memory://x", "0" * 32, DOMAIN, 0, {0: SCHEMA}, Config(fold_rows=1))
    made = [write_run(spec, blobs, Env(), [rows(seed, 0, count, runs, 32)]) for seed in range(runs)]
    sources = [Source(run, Frontier.of(0), Frontier.of(2)) for run in made]
    return Task.of(spec, sources, KeyRange(), Fold(Frontier.of(2)))


def prefetching():
    return [thread for thread in threading.enumerate() if thread.name == "tidelake-prefetch"]


def test_a_merge_that_is_given_up_leaves_no_threads():
    blobs = MemoryBlobStore(SystemClock())
    answer = task_over(blobs, 200_000).rows(blobs)
    assert next(answer).num_rows
    assert prefetching()
    answer.close()
    assert not prefetching()


@pytest.mark.parametrize("early", [True, False])
def test_damage_in_the_midst_of_a_merge_leaves_no_threads_and_no_parts(early):
    blobs = MemoryBlobStore(SystemClock())
    task = task_over(blobs, 200_000)
    part = task.needed[1].run.parts[0]
    data = bytearray(blobs.get(part.name))
    data[100 if early else len(data) // 2] ^= 1
    blobs.delete(part.name)
    blobs.put(part.name, bytes(data))
    before = {info.name for info in blobs.list("")}
    with pytest.raises(CorruptionError, match="checksum"):
        run_merge_task(encode_record("task", task), blobs)
    assert not prefetching()
    assert {info.name for info in blobs.list("")} == before


class Full(MemoryBlobStore):
    def put(self, name, data):
        if self.full:
            raise StoreUnavailable("no room")
        super().put(name, data)


def test_a_put_that_fails_in_the_midst_of_a_merge_leaves_no_threads():
    blobs = Full(SystemClock())
    blobs.full = False
    task = task_over(blobs, 200_000)
    task = replace(task, spec=replace(task.spec, config=replace(task.spec.config, part_target_bytes=1024)))
    blobs.full = True
    with pytest.raises(StoreUnavailable, match="no room") as caught:
        run_merge_task(encode_record("task", task), blobs)
    # The error is at hand still, and with it the frames that it came through.
    assert caught.tb
    assert not prefetching()

"""Row groups of a run that is read alone are decoded in several threads, in order, and not far ahead."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import inside
import tidelake
from tidelake.config import Config
from tidelake.data.part import scan
from tidelake.errors import CorruptionError
from tidelake.shard.runs import read

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
# A row group is a batch, and all rows are more than few.
CONFIG = Config(row_group_rows=10, merge_chunk_rows=16, fold_rows=100, inline_part_bytes=0)
GROUPS = 25
ROWS = pa.table({"k": range(10 * GROUPS), "v": [f"v{k}" for k in range(10 * GROUPS)]}, schema=SCHEMA)


@pytest.fixture
def cpus() -> Iterator[None]:
    before = pa.cpu_count()
    yield
    pa.set_cpu_count(before)


def made(folder: Path) -> tidelake.Collection:
    c = tidelake.open(folder, config=CONFIG).create("c", SCHEMA, key=["k"], time="counter")
    c.append(ROWS)
    return c


def working() -> int:
    """How many threads work for readers."""
    return sum(t.name in ("tidelake-prefetch", "tidelake-background") for t in threading.enumerate())


class Watch:
    """Counts the row groups that are decoded; `at_once` of them wait for each other, after the first one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_once: int = 1) -> None:
        self.begun = self.running = self.most = 0
        self._lock, self._together = threading.Lock(), threading.Barrier(at_once)
        self._check = scan.check_groups
        monkeypatch.setattr(scan, "check_groups", self)

    def __call__(self, *given: object) -> None:
        with self._lock:
            self.begun += 1
            self.running += 1
            self.most = max(self.most, self.running)
            is_first = self.begun == 1
        if not is_first:
            self._together.wait(60)
        with self._lock:
            self.running -= 1
        self._check(*given)


@pytest.mark.promise(
    "A run that is read alone is decoded in as many threads as Arrow may use, at most eight, in "
    "order, no further ahead of its reader; damage ends the read",
    rule="`_direct` in `shard/runs/read.py`, `read_part` in `data/part/scan.py`",
    also=["shard/runs/test_decoders.py"],
)
@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize(("cpus_", "at_once"), [(1, 1), (2, 2), (4, 4), (8, 8), (50, 8)])
def test_as_many_row_groups_are_decoded_at_once_as_arrow_may_use_processors(
    cpus_: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = made(tmp_path)
    pa.set_cpu_count(cpus_)
    watch = Watch(monkeypatch, at_once)
    found = c.to_arrow()
    assert found.select(["k", "v"]).equals(ROWS.cast(found.select(["k", "v"]).schema))
    assert (watch.begun, watch.most) == (GROUPS, at_once)


@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize(("cpus_", "at_once"), [(1, 1), (2, 2), (4, 4), (50, 4)])
def test_as_many_batches_are_patched_at_once_but_at_most_four(
    cpus_: int, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = made(tmp_path)
    c.append(ROWS.slice(0, 20).append_column("_diff", pa.array([-1] * 20, pa.int64())))
    pa.set_cpu_count(cpus_)
    lock, together, counts, put = threading.Lock(), threading.Barrier(at_once), [0, 0, 0], read.put

    def watched(share: Any) -> pa.RecordBatch | None:
        with lock:
            counts[0] += 1
            counts[1] += 1
            counts[2] = max(counts[2], counts[1])
            # One for each row group, and one for changes after the last; of these 24 divide by all numbers.
            waits = counts[0] <= 24
        if waits:
            together.wait(60)
            # Time for one more to begin.
            time.sleep(0.05)
        with lock:
            counts[1] -= 1
        return put(share)

    monkeypatch.setattr(read, "put", watched)
    assert c.to_arrow()["k"].to_pylist() == list(range(20, 10 * GROUPS))
    assert (counts[0], counts[2]) == (GROUPS + 1, at_once)


@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize(("cpus_", "ahead"), [(1, 1), (4, 4), (50, 8)])
def test_a_reader_that_pauses_has_few_rows_ahead_and_leaves_no_thread(
    cpus_: int, ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = made(tmp_path)
    pa.set_cpu_count(cpus_)
    watch = Watch(monkeypatch)
    with c.snapshot() as rows:
        next(rows)
        for _ in range(6_000):
            if watch.begun > ahead:
                break
            time.sleep(0.01)
    # The reader had one, and the others were begun after it.
    assert (watch.begun, working()) == (1 + ahead, 0)


@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize("cpus_", [1, 4])
def test_damage_of_any_row_group_ends_the_read(cpus_: int, tmp_path: Path) -> None:
    c = made(tmp_path)
    pa.set_cpu_count(cpus_)
    (part,) = inside.shard(c).version().state.parts()
    (path,) = tmp_path.rglob(f"*{part.name}*")
    data = path.read_bytes()
    with path.open("rb") as file:
        footer = scan.read_footer(file, part)
    for group in range(GROUPS):
        damaged = bytearray(data)
        damaged[footer.ends[group] - 1] ^= 1
        path.chmod(0o600)
        path.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=f"the checksum of row group {group} does not match"):
            c.to_arrow()
        assert not working()

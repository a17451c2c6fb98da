"""What reads cost as history grows: the same reads of collections with few and with many updates kept.

All times are processor time of all threads.

    from bench.history import run; run(10_000_000)

A collection begins with 1,000 rows, or with a tenth of the rows that are asked for. Updates follow, two at
each time, up to three times the rows that are asked for, in appends of 4,000. All history is kept. The
largest history is compared with the smallest one of several slices. A read may grow with the rows that it
answers, so each *ratio* is the growth of its time over the growth of the rows answered plus one slice.

- *upserts, zipfian* and *upserts, uniform*: each time replaces one row.
- *inserts*: each time brings two rows.
- *growth, mass delete*: two rows at each time; then all but those that it began with go, in one append; a
  tenth of the updates are upserts after that.

Everything is read as the appends left it and, from a copy, at rest after `maintain()`.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

import tidelake
from bench.texts import texts
from bench.updates import write_raw
from bench.workload import SCHEMA, zipfian
from tidelake.model.batch import Part
from tidelake.state.upkeep.slices import slice_rows

LEAST, APPEND_ROWS, TIMES_READ, KEYS, RANDOM = 10_000, 4_000, 100, 10, 3
ROUNDS, ROUNDS_S = 7, 0.5
CONFIG = tidelake.Config(merge_claim_s=1.0)
# Of a small collection.
SEVERAL_SLICES = 4 * tidelake.Config().slice_rows
_ODD, _MASK = np.uint64(0x9E3779B97F4A7C15), np.uint64(2**62 - 1)
WORKLOADS = ("upserts, zipfian", "upserts, uniform", "inserts", "growth, mass delete")
READS = ("latest", "then", "last_changes", "random_changes", "lookup_now", "lookup_then", "listener")
# More rows than any slice of a lake of this bench has: history as one spine.
_UNSLICED = 1 << 40
Numbers = dict[str, float]


@dataclass(frozen=True)
class Updates:
    """Updates by columns, ascending by time: ids and versions of rows, which rows follow from."""

    ids: np.ndarray
    versions: np.ndarray
    times: np.ndarray
    diffs: np.ndarray

    def tables(self, rows: int) -> Iterator[tuple[pa.Table, int]]:
        """Tables of at least so many updates, each with the time that closes it; a time is in one of them."""
        start = 0
        while start < len(self.times):
            last = self.times[min(start + rows, len(self.times)) - 1]
            end = int(np.searchsorted(self.times, last, side="right"))
            yield _table(self, slice(start, end)), int(last) + 1
            start = end

    def since(self, time: int) -> "Updates":
        """Those after time 0, each so much later."""
        later = self.times > 0
        columns = self.ids[later], self.versions[later], self.times[later] + time, self.diffs[later]
        return Updates(*columns)


def _table(updates: Updates, part: slice) -> pa.Table:
    n = updates.ids[part] * 1_000_003 + updates.versions[part]
    columns = [pa.array(keys_of(updates.ids[part])), pa.array(n), pa.array(n / 7), texts(n, 24)]
    times, diffs = pa.array(updates.times[part]), pa.array(updates.diffs[part])
    return pa.table([*columns, times, diffs], names=[*SCHEMA.names, "_time", "_diff"])


def keys_of(ids: np.ndarray) -> np.ndarray:
    """The keys of rows, scattered over all integers."""
    return (ids.astype(np.uint64) * _ODD & _MASK).astype(np.int64)


def made(workload: str, contents: int, updates: int) -> Updates:
    """The updates of a workload; those of the rows that it begins with are at time 0 and count."""
    rng = np.random.default_rng(18)
    first = np.arange(contents)
    left = updates - contents
    if workload.startswith("upserts"):
        return _upserts(rng, contents, left // 2, zipf=workload.endswith("zipfian"))
    inserted = left if workload == "inserts" else left * 9 // 20
    ids, times = np.arange(contents + inserted), 1 + np.arange(inserted) // 2
    grown = _joined(_one_each(first, 0 * first, 1), _one_each(ids[contents:], times, 1))
    if workload == "inserts":
        return grown
    last = int(times[-1]) + 1
    after = _upserts(rng, contents, left // 20, zipf=False).since(last)
    return _joined(grown, _one_each(ids[contents:], np.full(inserted, last), -1), after)


def _one_each(ids: np.ndarray, times: np.ndarray, diff: int) -> Updates:
    """One update of each row, in its first version."""
    return Updates(ids, np.zeros(len(ids), np.int64), times, np.full(len(ids), diff))


def _joined(*parts: Updates) -> Updates:
    names = [field.name for field in fields(Updates)]
    return Updates(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _upserts(rng: np.random.Generator, contents: int, operations: int, *, zipf: bool) -> Updates:
    drawn = zipfian(rng, contents, operations) if zipf else rng.integers(0, contents, operations)
    # The operation before on the same row; 0: none, the row is as it was at first.
    order = np.argsort(drawn, kind="stable")
    before = np.zeros(operations, np.int64)
    same = drawn[order[1:]] == drawn[order[:-1]]
    before[order[1:][same]] = order[:-1][same] + 1
    now = 1 + np.arange(operations)
    zeros = np.zeros(contents, np.int64)
    return Updates(
        np.concatenate([np.arange(contents), np.repeat(drawn, 2)]),
        np.concatenate([zeros, np.stack([before, now], axis=1).ravel()]),
        np.concatenate([zeros, np.repeat(now, 2)]),
        np.concatenate([zeros + 1, np.tile([-1, 1], operations)]),
    )


@dataclass(frozen=True)
class Kept:
    """A collection with a history: where it is, and how it was filled."""

    folder: Path
    contents: int
    updates: int
    last: int
    config: tidelake.Config
    append_s: float

    def open(self) -> tidelake.Lake:
        return tidelake.open(self.folder, create=False, config=self.config)

    def copy(self, folder: Path) -> "Kept":
        """The same lake in another place."""
        shutil.copytree(self.folder, folder)
        return replace(self, folder=folder)


def filled(folder: Path, workload: str, contents: int, updates: int, config: tidelake.Config) -> Kept:
    """Append the updates of a workload, with the maintenance that appends do."""
    seconds, last, rows = 0.0, 0, 0
    with tidelake.open(folder, config=config) as lake:
        collection = lake.create("c", SCHEMA, key=["key"])
        for table, upper in made(workload, contents, updates).tables(APPEND_ROWS):
            seconds += busy(partial(collection.append, table, upper=upper))
            rows, last = rows + table.num_rows, upper - 1
    return Kept(folder, contents, rows, last, config, seconds)


def reads(collection: tidelake.Collection, kept: Kept) -> dict[str, list[Callable[[], int]]]:
    """The reads by name, each at some times; a read returns how many rows it answered."""
    rng = np.random.default_rng(7)
    last, span = kept.last, min(TIMES_READ, kept.last)
    thens = [int(time) for time in rng.integers(span, last + 1, RANDOM)]
    asked = pa.table({"key": keys_of(rng.integers(0, kept.contents, KEYS))})

    def first_step() -> int:
        steps = collection.listen(last - max(1, last // 100), timeout_s=0)
        try:
            return _rows(next(steps).updates)
        finally:
            # The end of a listener's hold is a part of its cost.
            del steps

    def snapshot(then: int | None = None) -> int:
        return _rows(collection.snapshot(then))

    def changes(through: int) -> int:
        return _rows(collection.changes(through - span, through))

    def lookup(then: int | None = None) -> int:
        return int(collection.lookup(asked, then).num_rows)

    return {
        "latest": [snapshot],
        "then": [partial(snapshot, then) for then in thens],
        "last_changes": [partial(changes, last)],
        "random_changes": [partial(changes, then) for then in thens],
        "lookup_now": [lookup],
        "lookup_then": [partial(lookup, then) for then in thens],
        "listener": [first_step],
    }


def _rows(reader: pa.RecordBatchReader) -> int:
    return sum(batch.num_rows for batch in reader)


def read(kept: Kept) -> tuple[Numbers, Numbers]:
    """Milliseconds of each read, the mean over its times, and the rows that it answers plus a slice."""
    times, rows = dict[str, float](), dict[str, float]()
    with kept.open() as lake:
        collection = lake.collection("c")
        one_slice = slice_rows(collection.state().spine, tidelake.Config().slice_rows)
        for name, works in reads(collection, kept).items():
            rows[name] = one_slice + sum(work() for work in works) / len(works)
            times[name] = 1000 * sum(map(least, works)) / len(works)
    return times, rows


def busy(work: Callable[[], object]) -> float:
    """Seconds of processor time of all threads: other work on the machine hardly changes them."""
    start = time.process_time()
    work()
    return time.process_time() - start


def least(work: Callable[[], object]) -> float:
    """The shortest of several rounds, in seconds; a work of milliseconds has more of them."""
    seconds = [busy(work) for _ in range(ROUNDS)]
    while sum(seconds) < ROUNDS_S:
        seconds.append(busy(work))
    return min(seconds)


def stored(collection: tidelake.Collection) -> int:
    """Bytes of all parts of updates and of bases."""
    state = collection.state()
    parts: list[Part] = [part for member in state.spine for part in member.batch.parts()]
    parts += [part for base in state.bases for part in base.parts()]
    return sum(part.size_bytes for part in parts)


def plain(folder: Path, workload: str, contents: int, updates: int) -> int:
    """Bytes of the same updates in a plain Parquet file."""
    tables = [table for table, _ in made(workload, contents, updates).tables(APPEND_ROWS)]
    path = folder / "plain.parquet"
    write_raw(pa.concat_tables(tables), path)
    return os.stat(path).st_size


def let_go(kept: Kept) -> Numbers:
    """Give up 90 % of the history and maintain: rows written, and seconds."""
    with kept.open() as lake:
        collection = lake.collection("c")
        state, since = collection.state(), kept.last * 9 // 10
        base = _rows(collection.snapshot(since))
        bound = base + slice_rows(state.spine, tidelake.Config().slice_rows)
        advance_s = busy(lambda: collection.advance_since(since))
        maintain_s = busy(collection.maintain)
        after = collection.state()
    written = after.written.merged_rows - state.written.merged_rows
    return {
        "rows_before": state.spine.totals.rows,
        "rows_after": after.spine.totals.rows,
        "rows_written": written,
        "written_to_base_and_slice": written / bound,
        "advance_s": advance_s,
        "maintain_s": maintain_s,
    }


def at_rest(kept: Kept) -> float:
    """Maintain until nothing is left to do; the seconds that it took."""
    with kept.open() as lake:
        collection = lake.collection("c")

        def maintain() -> None:
            # What the appends began is theirs until their claim ends.
            while not collection.maintain().complete:
                time.sleep(0.05)

        return busy(maintain)


def costs(kept: Kept, plain_bytes: int) -> Numbers:
    """What a history takes and took to store."""
    with kept.open() as lake:
        state = lake.collection("c").state()
        written = state.written
        return {
            "slices": len(state.spine.slices),
            "bases": len(state.bases),
            "append_rows_s": kept.updates / kept.append_s,
            "written_to_appended": (written.appended_rows + written.merged_rows) / written.appended_rows,
            "stored_to_plain": stored(lake.collection("c")) / plain_bytes,
        }


def grown(workload: str, contents: int, sizes: Sequence[int]) -> dict[str, Numbers]:
    """One workload, from its smallest to its largest history: a row for each, and one of their ratios."""
    found: dict[str, Numbers] = {}
    seen: dict[str, list[tuple[Numbers, Numbers]]] = {"as appended": [], "at rest": []}
    for size in sizes:
        largest = size == sizes[-1]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            kept = filled(folder / "lake", workload, contents, size, CONFIG)
            rest = kept.copy(folder / "rest")
            rest_s = at_rest(rest)
            row = f"{workload}, {contents:,} rows, {kept.updates:,} updates"
            for how, lake in (("as appended", kept), ("at rest", rest)):
                times, rows = read(lake)
                seen[how].append((times, rows))
                found[f"{row}, {how}"] = {f"{read}_ms": times[read] for read in READS}
            found[row] = {**costs(rest, plain(folder, workload, contents, size)), "rest_s": rest_s}
            if largest:
                found[f"{workload}, {contents:,} rows, sliced to unsliced"] = _to_unsliced(
                    kept, folder, workload
                )
            found[f"{row}, 90 % let go"] = let_go(rest)
    for how, measured in seen.items():
        first, last = measured[-2:]
        found[f"{workload}, {contents:,} rows, growth {how}"] = {
            f"{read}_ratio": (last[0][read] / first[0][read]) / max(1.0, last[1][read] / first[1][read])
            for read in READS
        }
    return found


def _to_unsliced(kept: Kept, folder: Path, workload: str) -> Numbers:
    """The costs of appends over those without slices and bases."""
    config = replace(kept.config, slice_rows=_UNSLICED)
    whole = filled(folder / "whole", workload, kept.contents, kept.updates, config)
    return {
        "append_s_ratio": kept.append_s / whole.append_s,
        "rows_written_ratio": _written(kept) / _written(whole),
    }


def _written(kept: Kept) -> int:
    with kept.open() as lake:
        written = lake.collection("c").state().written
    return written.appended_rows + written.merged_rows


def run(rows: int = 10_000_000) -> dict[str, Numbers]:
    """Contents of 1,000 and of a tenth of `rows`; up to three times as many updates as `rows`."""
    found: dict[str, Numbers] = {}
    for contents in (1_000, rows // 10):
        sizes = [max(LEAST, 2 * contents), 3 * rows]
        if sizes[0] < SEVERAL_SLICES:
            sizes.insert(1, SEVERAL_SLICES)
        for workload in WORKLOADS:
            print(f"  {workload}, {contents:,} rows ...", file=sys.stderr, flush=True)
            found |= grown(workload, contents, sizes)
    return found


if __name__ == "__main__":
    for name, numbers in run(int(sys.argv[1])).items():
        print(name, {key: round(value, 3) for key, value in numbers.items()}, flush=True)

"""Building a batch: what is refused, what is left in the store, and how much memory it takes."""

import gc
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from shards import Place, stored

import inside
from tables import SCHEMA, ids, rows
from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from tidelake.config import MIB, Config
from tidelake.data.ingest.updates import normalize
from tidelake.errors import (
    InvalidUpdates,
    OutcomeUnknown,
    StoreUnavailable,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.shard.writing.mergetree import (
    next_merge,
    runs_waiting_max,
    similar_neighbours,
    smallest_neighbours,
)
from tiers import some

SMALL = Config(part_target_bytes=2048, row_group_rows=32, inline_part_bytes=0, retry_deadline_s=0)


def made(config=SMALL, faults=None, time="counter"):
    """A place, and a collection in it that a lake with these faults opened."""
    place = Place()
    place.lake(config=config).create("c", SCHEMA, key=["id"], time=time)
    return place, place.lake(faults, config).collection("c")


def at(time, *ids_, diff=1, v="x"):
    n = len(ids_)
    return (
        rows(*ids_, v=v)
        .append_column("_time", pa.array([time] * n, pa.int64()))
        .append_column("_diff", pa.array([diff] * n, pa.int64()))
    )


def many(start, count=500, time=3):
    return at(time, *range(start, start + count))


def background():
    return [t for t in threading.enumerate() if t.name == "tidelake-background"]


# What it answers


def test_add_says_how_many_rows_it_took_and_whether_a_part_was_cut():
    place, c = made()
    with c.builder() as builder:
        few = builder.add(at(0, 1, 2))
        assert (few.rows, few.cut) == (2, False)
        lots = builder.add(many(10))
        assert (lots.rows, lots.cut) == (500, True)
        batch = builder.finish(Frontier.of(9))
    assert batch.rows == 502 and batch.runs > 1
    assert set(batch.part_names) == stored(place, c)
    assert repr(batch).startswith("Batch([[0], [9]) since [0], rows=502, runs=")
    c.distributed.append_batches([batch], lower=0, upper=9)
    assert ids(c) == dict.fromkeys([1, 2, *range(10, 510)], 1)


def test_the_lower_of_a_builder_is_the_upper_of_the_collection():
    _, c = made()
    c.append(at(4, 1))
    batch = c.builder().finish(Frontier.of(9))
    assert (str(batch.bounds.lower), str(batch.bounds.upper)) == ("[5]", "[9]")


def test_sorted_input_is_one_run_and_disorder_makes_another():
    _, c = made()
    tables_ = [many(n * 300, 300) for n in range(6)]

    def runs(order):
        with c.builder(0, sorted=True) as builder:
            for n in order:
                builder.add(tables_[n])
            batch = builder.finish(Frontier.of(9))
        assert batch.rows == 1800
        batch.delete()
        return batch.runs

    assert runs([0, 1, 2, 3, 4, 5]) == 1
    assert 2 <= runs([3, 4, 5, 0, 1, 2]) <= 3  # one load may hold rows of both sequences
    assert 2 <= runs([5, 4, 3, 2, 1, 0]) <= SMALL.builder_runs_max


def test_one_row_given_a_million_times_is_one_row():
    _, c = made()
    with c.builder(0, sorted=True) as builder:
        builder.add(at(3, 1))
        for _ in range(20):
            builder.add(at(3, *[2] * 1_000, diff=2**62))
            builder.add(at(3, *[2] * 1_000, diff=-(2**62)))
        builder.add(at(3, *[2] * 5, diff=7))
        builder.add(at(3, 3))
        batch = builder.finish(Frontier.of(9))
    assert (batch.rows, batch.runs) == (3, 1)
    c.distributed.append_batches([batch], lower=0, upper=9)
    assert ids(c) == {1: 1, 2: 35, 3: 1}


def test_what_cancels_is_not_stored():
    place, c = made()
    for is_sorted in (False, True):
        with c.builder(0, sorted=is_sorted) as builder:
            for n in range(300):
                builder.add(pa.concat_tables([at(1, n, diff=2), at(1, n, diff=-2)]))
            batch = builder.finish(Frontier.of(2))
        assert batch.part_names == () and (batch.rows, batch.runs) == (0, 0)
        assert stored(place, c) == set()


@pytest.mark.parametrize("runs_max", [1, 2, 5])
def test_runs_of_unsorted_input_are_bounded_and_their_inputs_deleted(runs_max):
    config = Config(part_target_bytes=1024, inline_part_bytes=0, builder_runs_max=runs_max, merge_fan_in=3)
    place, c = made(config)
    with c.builder(0) as builder:
        for n in range(60):
            builder.add(at(n % 4, *((n * 7919 + i * 104_729) % 9973 for i in range(50))))
        batch = builder.finish(Frontier.of(9))
    assert 1 <= batch.runs <= runs_max
    assert stored(place, c) == set(batch.part_names)
    c.distributed.append_batches([batch], lower=0, upper=9)
    assert sum(ids(c).values()) == 3000


def test_the_neighbours_that_are_merged_are_alike_or_small():
    assert similar_neighbours([90, 1, 1, 2, 90], 3) == (1, 4)
    assert similar_neighbours([90, 1, 2, 90, 2], 3) is None
    assert smallest_neighbours([90, 1, 2, 90, 1], 2) == (1, 3)
    assert next_merge([1, 1, 1], 3, 2, last=True) is None
    assert next_merge([9, 1, 1, 9], 3, 16, last=True) == (1, 3)
    assert next_merge([9, 1, 9, 1], 1, 3, last=True) == (1, 4)


@pytest.mark.parametrize("fan_in", [2, 4, 16])
@pytest.mark.parametrize("runs_max", [1, 2, 8])
@pytest.mark.parametrize("grow", [lambda n: 1, lambda n: 1 + n * 7919 % 40, lambda n: 2 ** (n % 11)])
def test_a_byte_is_rewritten_once_a_level_however_many_parts_come(fan_in, runs_max, grow):
    sizes, written = [], 0

    def merge_all(last):
        nonlocal written
        while (found := next_merge(sizes, runs_max, fan_in, last=last)) is not None:
            start, end = found
            assert 2 <= end - start <= fan_in
            sizes[start:end] = [sum(sizes[start:end])]
            written += sizes[start]
            if not last:
                break

    added = [grow(n) for n in range(1000)]
    for size in added:
        sizes.append(size)
        merge_all(last=False)
        assert len(sizes) <= runs_max + runs_waiting_max(fan_in) + 1
    merge_all(last=True)
    assert len(sizes) <= runs_max and sum(sizes) == sum(added)
    assert written / sum(added) < {2: 18, 4: 12, 16: 5}[fan_in]


def test_a_batch_of_nothing_moves_the_upper():
    place, c = made()
    with c.builder() as builder:
        builder.add(rows().append_column("_time", pa.array([], pa.int64())))
        batch = builder.finish(Frontier.of(5))
    c.distributed.append_batches([batch], lower=0, upper=5)
    assert c.upper == Frontier.of(5) and stored(place, c) == set()
    c.distributed.append_batches([], lower=5, upper=6)
    assert c.upper == Frontier.of(6)


# What it refuses, and what is left then


def refused(act, error, match, config=SMALL, time="counter"):
    """A builder that has stored parts, an act that is refused; then nothing is in the store."""
    place, c = made(config, time=time)
    builder = c.builder([(2, 2)] if time != "counter" else 2)
    for n in range(4):
        builder.add(many(n * 500) if time == "counter" else pairs((3, 3), count=500, start=n * 500))
    builder._background.close()
    assert stored(place, c)
    with pytest.raises(error, match=match) as caught:
        act(builder)
    assert stored(place, c) == set() and not background()
    with pytest.raises(UsageError, match="finished or closed"):
        builder.add(many(0))
    with pytest.raises(UsageError, match="finished or closed"):
        builder.finish(Frontier.of(99))
    assert c.upper == Frontier.of(c.domain.minimum)
    return caught.value


def pairs(*times, count=1, start=0):
    n = len(times) * count
    return (
        rows(*range(start, start + n))
        .append_column("_time_0", pa.array([t[0] for t in times] * count, pa.int64()))
        .append_column("_time_1", pa.array([t[1] for t in times] * count, pa.int64()))
    )


def test_a_time_before_the_lower_is_refused_and_nothing_is_left():
    error = refused(lambda b: b.add(at(1, 7)), UpdateBeforeLower, r"time 1 .* lower frontier \[2\]")
    assert (error.time, str(error.lower)) == (1, "[2]")
    refused(lambda b: b.add(pairs((5, 1))), UpdateBeforeLower, r"time \(5, 1\)", time="tuple(2)")


@pytest.mark.parametrize("upper", [2, 3])
def test_a_time_at_the_upper_is_refused_and_nothing_is_left(upper):
    error = refused(lambda b: b.finish(Frontier.of(upper)), UpdateNotBeforeUpper, "time 3 .* upper frontier")
    assert (error.time, error.upper) == (3, Frontier.of(upper))


def test_an_update_at_the_upper_is_refused_even_if_it_cancels():
    def act(builder):
        builder.add(pa.concat_tables([at(8, 1), at(8, 1, diff=-1)]))
        builder.finish(Frontier.of(8))

    assert refused(act, UpdateNotBeforeUpper, "time 8 ").time == 8


@pytest.mark.parametrize("many_times", [False, True])
def test_tuple_times_are_checked_one_by_one(many_times):
    """The greatest components together need not be a time that was added."""
    extra = [(3 + i, 203 - i) for i in range(200)] if many_times else [(3, 9), (9, 3)]

    def act(upper):
        def acted(builder):
            builder.add(pairs(*extra))
            return builder.finish(Frontier.of_all(upper))

        return acted

    _, c = made(time="tuple(2)")
    wide = [(4, 204), (204, 4), *((4 + i, 204 - i) for i in range(200))] if many_times else [(4, 10), (10, 4)]
    inside = [*wide, (10, 10)] if not many_times else wide
    batch = act(inside)(c.builder([(2, 2)]))
    assert batch.rows == len(extra)
    batch.delete()
    late = extra[len(extra) // 2]
    error = refused(act([*inside, late]), UpdateNotBeforeUpper, "upper frontier", time="tuple(2)")
    assert Frontier.of(late).less_equal(error.time)


def test_an_upper_before_the_lower_is_refused_and_nothing_is_left():
    refused(lambda b: b.finish(Frontier.of(1)), UsageError, "must not be after the upper")


def test_a_table_that_does_not_fit_is_refused_and_nothing_is_left():
    refused(lambda b: b.add(pa.table({"id": [1]})), InvalidUpdates, "missing column")
    refused(lambda b: b.add(5), InvalidUpdates, "cannot read updates from a int")


def test_a_sum_that_fits_no_int64_surfaces_at_the_next_call_and_nothing_is_left():
    def act(builder):
        builder.add(pa.concat_tables([at(3, 1, diff=2**63 - 1)] * 2))
        builder.finish(Frontier.of(9))

    refused(act, InvalidUpdates, str(2**64 - 2))


def test_closing_or_leaving_by_an_error_deletes_what_was_stored():
    place, c = made()

    def interrupted():
        with c.builder() as builder:
            assert builder.add(many(0)).cut
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert stored(place, c) == set() and not background()
    builder = c.builder()
    builder.add(many(0))
    builder.close()
    builder.close()
    assert stored(place, c) == set()
    with c.builder() as builder:
        builder.add(many(0))
    assert stored(place, c) == set()  # left without finish


def test_a_generator_that_is_closed_closes_its_builder():
    place, c = made()

    def rows_taken():
        with c.builder() as builder:
            n = 0
            while True:
                builder.add(many(n))
                yield n
                n += 500

    running = rows_taken()
    for _ in range(3):
        next(running)
    running.close()
    assert stored(place, c) == set() and not background()


# Stores that fail


def build_or_fail(c):
    """A batch of several parts; None if the store failed, and then as it does."""
    try:
        with c.builder(0) as builder:
            for n in range(8):
                builder.add(many(n * 100, 100))
            return builder.finish(Frontier.of(9))
    except (StoreUnavailable, OutcomeUnknown):
        return None


@pytest.mark.promise(
    "A builder that is refused, closed or failed leaves nothing in the store",
    rule="`shard/writing/builder.py`",
)
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
@pytest.mark.parametrize("operation", ["blob.put", "blob.open", "blob.read"])
@pytest.mark.parametrize("runs_max", some([1, 8], 2))
def test_a_store_that_fails_half_way_leaves_nothing(fault, operation, runs_max):
    config = Config(
        part_target_bytes=2048, inline_part_bytes=0, retry_deadline_s=0, builder_runs_max=runs_max
    )
    failed = 0
    for seed in range(12):
        faults = FaultPlan(seed)
        place, c = made(config, faults)
        faults.rates_by_operation = {operation: {fault: 0.08}}
        batch = build_or_fail(c)
        if batch is None:
            failed += 1
        assert stored(place, c) == set(batch.part_names if batch else ()) and not background()
        if batch:
            batch.delete()
        assert stored(place, c) == set()
    # Only merges read, and few runs need them.
    assert failed > 2 or (operation != "blob.put" and (runs_max == 8 or fault is Fault.UNKNOWN_AFTER))


def test_an_error_in_the_background_surfaces_at_the_next_add():
    faults = FaultPlan()
    place, c = made(faults=faults)
    builder = c.builder(0)
    faults.rates_by_operation = {"blob.put": {Fault.UNAVAILABLE: 1.0}}
    added = (builder.add(many(n * 100, 100)) for n in range(50))
    with pytest.raises(StoreUnavailable, match="injected"):
        list(added)
    assert stored(place, c) == set()


def test_what_cannot_be_deleted_is_counted_and_does_not_hide_the_error():
    faults = FaultPlan()
    place, c = made(faults=faults)
    builder = c.builder(2)
    builder.add(many(0))
    builder._background.close()
    faults.rates_by_operation = {"blob.delete": {Fault.UNAVAILABLE: 1.0}}
    with pytest.raises(UpdateBeforeLower):
        builder.add(at(0, 1))
    counts = inside.shard(c).env.recorder.counts
    assert counts["discard.failed"] == len(stored(place, c)) > 0


def test_a_crash_passes_through():
    faults = FaultPlan()
    _, c = made(faults=faults)
    builder = c.builder(0)
    faults.rates_by_operation = {"blob.put": {Fault.CRASH_BEFORE: 1.0}}
    added = (builder.add(many(n * 100, 100)) for n in range(50))
    with pytest.raises(SimulatedCrash):
        list(added)


# Threads, forks, memory


@pytest.mark.parametrize(("is_far", "at_once"), [(False, 1), (True, SMALL.upload_parts_max)])
def test_adding_waits_while_as_many_parts_are_under_way_as_may_be(is_far, at_once):
    place, c = made()
    inside.shard(c).stores.blobs.is_far = is_far
    go_on, under_way, most = threading.Event(), [], []
    put = place.stores.blobs.put

    def slow(name, data):
        under_way.append(name)
        most.append(len(under_way))
        assert go_on.wait(30)
        under_way.remove(name)
        put(name, data)

    place.stores.blobs.put = slow
    recorder = inside.shard(c).env.recorder
    with c.builder(0) as builder:
        for _ in range(at_once):
            while not builder.add(many(0, 60)).cut:
                pass
        assert recorder.counts["builder.stalled"] == 0
        threading.Timer(0.05, go_on.set).start()
        while recorder.counts["builder.stalled"] == 0:
            builder.add(many(200, 60))
        assert go_on.is_set()  # the add that had to wait came back only then
        builder.finish(Frontier.of(9)).delete()
    assert max(most) == at_once and not background()


def test_a_builder_is_of_no_use_in_a_fork():
    place, c = made()
    builder = c.builder(0)
    builder.add(many(0))
    pid = os.fork()
    if pid == 0:
        answer = 1
        try:
            try:
                builder.finish(Frontier.of(9))
            except UsageError as error:
                answer = 0 if "process that made it" in str(error) else 2
            builder.close()
        finally:
            os._exit(answer)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    batch = builder.finish(Frontier.of(9))
    assert stored(place, c) == set(batch.part_names)
    batch.delete()


def test_a_builder_that_is_forgotten_says_what_it_leaves():
    place, c = made()
    held = [c.builder(0)]
    held[0].add(many(0))
    held[0]._background.close()
    with pytest.warns(ResourceWarning, match="neither finished nor closed") as caught:
        held.clear()
    assert all(name in str(caught[0].message) for name in stored(place, c))
    assert stored(place, c)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c.builder(0)
        gc.collect()


def test_a_slice_of_a_large_table_does_not_keep_it_alive():
    _, c = made(Config(part_target_bytes=64 * 1024))
    builder = BatchBuilder(
        inside.shard(c).version().spec, inside.shard(c).stores.blobs, inside.shard(c).env, Frontier.of(0)
    )
    large = normalize(many(0, 200_000), inside.shard(c).known().schema, c.domain)
    before = pa.total_allocated_bytes()
    builder.add(large)
    builder._background.close()
    size = large.nbytes
    del large
    assert pa.total_allocated_bytes() < before - 0.8 * size + 1024 * 1024
    builder.close()


def test_a_load_is_a_quarter_of_the_memory_of_a_merge_at_most():
    _, c = made(Config(merge_memory_bytes=16 * MIB))
    with c.builder(0) as builder:
        table = many(0, 20_000)
        cut_after = next(i for i in range(1000) if builder.add(table).cut) * table.nbytes
        assert 3 * MIB < cut_after < 5 * MIB


@pytest.mark.parametrize("count", [10, 10_000])
def test_arrays_that_are_filled_anew_for_each_table_change_nothing_that_was_added(count):
    _, c = made(Config(part_target_bytes=1024 * 1024))
    numbers = np.arange(count)
    table = pa.table({"id": numbers, "v": ["x"] * count, "_time": np.zeros(count, np.int64)})
    with c.builder(0) as builder:
        builder.add(table)
        numbers += count
        builder.add(table)
        numbers[:] = -1
        batch = builder.finish(Frontier.of(1))
    c.distributed.append_batches([batch], lower=0, upper=1)
    assert list(ids(c)) == list(range(2 * count))


CHILD = """
import resource, sys
import numpy as np, pyarrow as pa, pyarrow.compute as pc, tidelake
place, target, size, is_sorted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "sorted"
lake = tidelake.open(place, config=tidelake.Config(
    part_target_bytes=target, merge_chunk_rows=8192, fold_rows=8192, row_group_rows=2048, merge_fan_in=4
))
c = lake.create("c", pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]), key=["id"])
rng = np.random.default_rng(0)
def table(n, rows):
    ids = np.arange(n * rows, (n + 1) * rows) if is_sorted else rng.integers(0, 2**62, rows)
    text = pa.array(rng.integers(10**17, 10**18, rows)).cast(pa.string())
    return pa.table({"id": ids, "v": pc.binary_repeat(text, 10), "_time": np.full(rows, n)})
def build(size, rows):
    added = n = taken = 0
    with c.builder(0, sorted=is_sorted) as builder:
        while added < size:
            t = table(n, rows)
            added += t.nbytes
            n += 1
            taken += builder.add(t).rows
        batch = builder.finish(tidelake.Frontier.of(n))
    assert batch.rows == taken, batch
    assert batch.runs == 1 if is_sorted else batch.runs <= 8
    batch.delete()
    return added
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
build(20_000, 10)  # so that modules and pools are there
before = peak()
added = build(size, 4096)
print(added, pa.default_memory_pool().max_memory(), peak() - before)
"""


def grown(tmp_path, target, size, order):
    """Bytes that a child added to a builder; most that Arrow held at once; by how much the process grew."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "lake"), str(target), str(size), order],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        # Arrow's own allocator keeps memory for each thread that there was; this one shows what is held.
        env={
            **os.environ,
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src"),
        },
    )
    assert done.returncode == 0, done.stderr
    added, held, growth = map(int, done.stdout.split())
    return added, held, growth


@pytest.mark.promise(
    "The memory of a builder does not grow with its input", rule="`shard/writing/builder.py`"
)
@pytest.mark.full
@pytest.mark.parametrize("order", ["sorted", "unsorted"])
@pytest.mark.parametrize(
    ("target", "times"), [(MIB // 2, 4), pytest.param(16 * MIB, 10, marks=pytest.mark.soak)]
)
def test_memory_does_not_grow_with_the_input(tmp_path, target, times, order):
    """A buffer, three copies of two parts under way, and four runs that are merged."""
    bound = (1 + 2 * 3) * target + 4 * 4 * MIB
    added, held, growth = grown(tmp_path, target, times * bound, order)
    assert added >= times * bound
    assert held <= bound
    # The allocator keeps some of what was freed.
    assert growth <= 1.5 * bound + 32 * MIB

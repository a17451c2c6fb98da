"""Parts that look-ups decode again and again are unpacked on local disk: the same rows, without the store."""

import gc
import io
import os
import random
import resource
import shutil
import tempfile

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from shards import Place

import inside
import tidelake
from threads import at_once
from tidelake.config import MIB, Config
from tidelake.data.kernel.types import schema_from_arrow, update_schema
from tidelake.data.keys.keyset import KeySet
from tidelake.data.part.unpacked import unpack
from tidelake.env import Counters, Env
from tidelake.errors import StoreUnavailable, UsageError
from tidelake.lake.api.lake import open_lake
from tidelake.model.query import Changes
from tidelake.model.time import TimeDomain
from tidelake.process import PerProcess
from tidelake.shard.runs import cache, partcaches
from tidelake.shard.runs.partcaches import PartCaches, part_caches
from tidelake.shard.runs.read import sources
from tidelake.shard.runs.scope import Scope
from tidelake.shard.runs.stream import chunk_limits, streams
from tidelake.store import unnamed
from tidelake.store.url import open_stores
from where_reference import FIELDS, random_rows

ALL_TYPES = pa.schema([field for field, _ in FIELDS])
# Of each family of key types one, every one with nulls, NaN and zeros of both signs where it has them.
KEYS = [["k", "s"], ["f"], ["s"], ["d", "b"], ["small one"]]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS = 4_000


@pytest.fixture(autouse=True)
def empty():
    """Nothing is unpacked in this process, and the disk is not nearly full, whatever others do on it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(partcaches, "_CACHES", PerProcess(PartCaches))
        patched.setattr(cache, "spare_bytes", lambda: 1 << 40)
        yield


def config(**settings):
    """Of parts of 4,000 rows, in row groups of 100."""
    return Config(**{"row_group_rows": 100, "inline_part_bytes": 0, "merge_budget_s": 0.0} | settings)


def made(tmp_path, parts=1, **settings):
    """A collection of so many appends, each of all ids, in an empty process, and its counters."""
    recorder = Counters()
    lake = open_lake(str(tmp_path / "lake"), config=config(**settings), env=Env(recorder=recorder))
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(parts):
        c.append(rows(range(ROWS), f"{n}"))
    return c, recorder


def rows(ids, text):
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "v": [f"{text} of {id_}" for id_ in ids]}, schema=SCHEMA
    )


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


ANYWHERE = keys(*range(0, ROWS, 50))


def size(c):
    """Of what is unpacked of its lake."""
    spec = c.distributed.uploader().spec
    return part_caches().unpacked.size_bytes(spec.url)


def opened(recorder, do):
    """How many parts something opened."""
    before = recorder.counts["blob.open"]
    do()
    return recorder.counts["blob.open"] - before


def test_what_look_ups_have_decoded_once_over_is_unpacked(tmp_path):
    c, recorder = made(tmp_path)
    expected = c.lookup(ANYWHERE)
    assert expected.column("id").to_pylist() == list(range(0, ROWS, 50))
    assert size(c) == 0
    # Once to see how much of the part is needed, and once for all of it.
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 2
    assert size(c) > 0
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0
    assert c.lookup(ANYWHERE) == expected


@pytest.mark.promise(
    "A look-up or upsert of keys that lie together reads only the row groups that hold them",
    rule="`_meets` in `data/part/rowgroups.py`",
    also=[
        "lake/api/test_lookup.py::test_a_lookup_of_clustered_keys_reads_the_row_groups_that_hold_them",
        "lake/api/test_lookup.py::test_a_lookup_between_two_row_groups_reads_none",
        "lake/api/test_upserts.py::test_an_upsert_of_clustered_keys_reads_the_row_groups_that_hold_them",
    ],
)
def test_keys_that_lie_together_read_the_row_groups_that_hold_them_however_often(tmp_path):
    c, recorder = made(tmp_path)
    together = keys(*range(1_000, 1_150))
    c.lookup(together)
    before = recorder.counts["blob.get.bytes"]
    c.lookup(together)
    each = recorder.counts["blob.get.bytes"] - before
    (part,) = (part for member in c.state().spine for part in member.batch.parts())
    for n in range(2 * ROWS // 100):
        before = recorder.counts["blob.get.bytes"]
        c.upsert(rows(range(1_000, 1_150), "0")) if n % 2 else c.lookup(together)
        # Now and then the footer is read once more.
        assert recorder.counts["blob.get.bytes"] - before <= 2 * each
    assert 2 * each < part.size_bytes
    assert size(c) == 0
    # Who needs all of it has it unpacked.
    for _ in range(3):
        c.lookup(ANYWHERE)
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0


@pytest.mark.promise(
    "Unpacked rows equal the rows of the store, for all types of keys and older schemas; merges and "
    "snapshots read the store; without room, or a disk, look-ups read the store; files stay within "
    "their bound, together with those of ranges of far parts, and have no name",
    rule="`shard/runs/partcaches.py`, `shard/runs/cache.py`, `data/part/unpacked.py`, `store/unnamed.py`",
    also=[
        "::test_an_old_part_is_read_under_the_new_columns",
        "::test_merges_and_snapshots_read_the_store_and_a_merged_part_is_unpacked_at_once",
        "::test_maintenance_unpacks_what_it_merged_only_for_look_ups_that_go_on",
        "::test_maintenance_unpacks_nothing_for_look_ups_of_a_few_rows",
        "::test_maintenance_does_not_read_what_it_did_not_make",
        "::test_what_cannot_be_unpacked_does_not_fail_the_maintenance",
        "::test_a_merged_part_takes_the_room_of_what_it_replaced",
        "::test_a_merged_part_takes_the_room_of_its_own_collection",
        "::test_what_does_not_fit_is_read_from_the_store_and_what_is_in_use_stays",
        "::test_a_small_file_counts_more_than_it_has_since_a_process_maps_only_so_many",
        "::test_small_parts_that_have_none_of_the_keys_are_kept_as_well",
        "::test_a_disk_that_is_not_there_or_full_only_costs_time",
        "::test_files_have_no_name",
        "shard/runs/test_partcaches.py::test_files_of_ranges_and_unpacked_parts_share_one_bound",
        "spark/test_arranged.py::test_upserts_that_look_up_in_workers_leave_what_others_leave",
    ],
)
@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_unpacked_rows_are_those_of_the_store(key, tmp_path):
    rng = random.Random(f"{key}")
    settings = {"row_group_rows": 4, "inline_part_bytes": 0, "merge_inputs_min": 100, "fold_rows": 1}
    with tidelake.open(tmp_path / "lake", config=Config(**settings)) as lake:
        c = lake.create("c", ALL_TYPES, key=key)
        there = []
        for _ in range(4):
            table = random_rows(rng, FIELDS, 60)
            there.append(table.select(key))
            diffs = pa.array([rng.choice([-1, 1, 1, 2]) for _ in range(60)], pa.int64())
            c.append(table.append_column("_diff", diffs))
        with tidelake.open(tmp_path / "lake", config=Config(**settings, lookup_cache_bytes=0)) as plain:
            stored = plain.collection("c")
            assert size(stored) == 0
            for _ in range(12):
                asked = random_rows(rng, FIELDS, rng.choice([1, 30])).select(key)
                # Filters deny most of them, so there are keys that no filter denies.
                asked = pa.concat_tables([asked, rng.choice(there).slice(rng.randrange(50), 10)])
                as_of = rng.choice([None, 1, 2])
                assert str(c.lookup(asked, as_of).to_pylist()) == str(stored.lookup(asked, as_of).to_pylist())
        assert size(c) > 0


@pytest.mark.full
def test_rows_that_fill_the_memory_are_the_same_rows(tmp_path):
    # An eighth of it is gathered; all rows are several times as many.
    c, _ = made(tmp_path, parts=12, merge_memory_bytes=16 * MIB)
    text = random.Random(1).randbytes(1_000).hex()
    c.append(pa.table({"id": list(range(ROWS)), "v": [text] * ROWS}))
    for _ in range(4):
        found = c.lookup(keys(*range(ROWS)))
        assert found.sort_by([("id", "ascending"), ("v", "ascending")]) == c.snapshot().read_all().sort_by(
            [("id", "ascending"), ("v", "ascending")]
        )
    assert found.num_rows == 13 * ROWS and found.nbytes > 4 * MIB


def test_an_old_part_is_read_under_the_new_columns(tmp_path):
    c, _ = made(tmp_path)
    for _ in range(3):
        c.lookup(ANYWHERE)
    c.evolve(pa.schema([*SCHEMA, pa.field("w", pa.int64())]))
    found = c.lookup(keys(50))
    assert found.to_pylist() == [{"id": 50, "v": "0 of 50", "w": None, "_time": 0, "_diff": 1}]


def test_a_few_keys_among_many_rows_that_are_no_numbers_are_found(tmp_path):
    with tidelake.open(tmp_path / "lake", config=config(row_group_rows=1_000)) as lake:
        c = lake.create("c", pa.schema([("k", pa.string()), ("v", pa.int64())]), key=["k"])
        names = [f"{n:06}" for n in range(20_000)]
        c.append(pa.table({"k": [None, *names, *names[:100]], "v": list(range(20_101))}))
        asked = pa.table({"k": ["", "000000", "000099", "000099x", "019999", "02", None]})
        for _ in range(3):
            c.lookup(pa.table({"k": names[::100]}))
        for _ in range(2):
            found = c.lookup(asked)
            assert [(row["k"], row["v"]) for row in found.to_pylist()] == [
                *(("000000", 1), ("000000", 20_001), ("000099", 100), ("000099", 20_100)),
                *(("019999", 20_000), (None, 0)),
            ]
        assert size(c) > 0


def test_keys_that_are_not_there_are_not_found(tmp_path):
    c, _ = made(tmp_path)
    for _ in range(3):
        assert c.lookup(keys(-1, ROWS, 2**62, None)).num_rows == 0
        c.lookup(ANYWHERE)
    assert size(c) > 0


def test_merges_and_snapshots_read_the_store_and_a_merged_part_is_unpacked_at_once(tmp_path):
    c, recorder = made(tmp_path, parts=3, merge_inputs_min=100)
    for _ in range(3):
        c.lookup(ANYWHERE)
    assert opened(recorder, lambda: c.snapshot().read_all()) == 3
    # Three parts are merged, and the result is unpacked.
    assert opened(recorder, c.merge) == 3 + 1
    assert c.snapshot().read_all().num_rows == 3 * ROWS
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0
    assert c.lookup(ANYWHERE).num_rows == 3 * ANYWHERE.num_rows


def test_maintenance_unpacks_what_it_merged_only_for_look_ups_that_go_on(tmp_path):
    c, recorder = made(tmp_path, merge_inputs_min=100)
    for lookups, unpacked in (3, 1), (1, 1), (0, 0), (0, 0):
        for _ in range(lookups):
            c.lookup(ANYWHERE)
        c.append(rows(range(100), "more"))
        assert opened(recorder, c.merge) == 2 + unpacked
    for _ in range(3):
        c.lookup(ANYWHERE)
    c.append(rows(range(100), "last"))
    assert opened(recorder, c.maintain) == 2 + 1
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0
    assert pc.sum(c.lookup(keys(*range(100)))["_diff"]).as_py() == 6 * 100


def test_maintenance_unpacks_nothing_for_look_ups_of_a_few_rows(tmp_path):
    c, recorder = made(tmp_path, merge_inputs_min=100)
    for lookups, unpacked in (3, 1), (0, 0):
        for _ in range(lookups):
            c.lookup(ANYWHERE)
        c.append(rows(range(100), "more"))
        assert opened(recorder, c.merge) == 2 + unpacked
        for n in range(10):
            c.lookup(keys(n))


def test_maintenance_does_not_read_what_it_did_not_make(tmp_path):
    slices = {"merge_inputs_min": 3, "slice_rows": 1_000, "merge_rows_min": 100_000, "merge_whole_rows": 0}
    c, recorder = made(tmp_path, **slices)
    c.maintain()
    c.append(rows(range(10_000, 11_500), "cold"))
    c.maintain()
    (cold,) = [p.name for m in c.state().spine for p in m.batch.parts() if p.rows == 1_500]
    for _ in range(4):
        c.lookup(ANYWHERE)
    (tmp_path / "lake" / "blobs" / cold).unlink()
    sizes = [size(c)]
    for _ in range(3):
        for _ in range(5):
            c.append(rows(range(3_900, ROWS), "more"))
        assert c.maintain().merges
        sizes.append(size(c))
    assert not recorder.counts["lookup.unpack.failed"]
    # The part that look-ups use is still there, but none has used it since.
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]


def test_what_cannot_be_unpacked_does_not_fail_the_maintenance(tmp_path):
    faults = OpensFail()
    lake = Place().lake(faults, config(merge_inputs_min=100, retry_deadline_s=0.0))
    c = lake.create("c", SCHEMA, key=["id"])
    for maintained in c.maintain, c.merge:
        c.append(rows(range(ROWS), "some"))
        for _ in range(4):
            c.lookup(ANYWHERE)
        c.append(rows(range(100), "more"))
        faults.left = sum(len(list(member.batch.parts())) for member in c.state().spine)
        before = lake.counts["lookup.unpack.failed"]
        maintained()
        assert lake.counts["lookup.unpack.failed"] == before + 1
        assert c.state().spine.totals.runs == 1
        faults.left = None
    assert pc.sum(c.lookup(ANYWHERE)["_diff"]).as_py() == 2 * (ANYWHERE.num_rows + 2)


class OpensFail:
    """Faults of a store that opens so many parts more; None: all."""

    def __init__(self):
        self.left = None

    def run(self, operation, call):
        if operation == "blob.open" and self.left is not None:
            if not self.left:
                raise StoreUnavailable("no more parts are opened")
            self.left -= 1
        return call()


def test_a_merged_part_takes_the_room_of_its_own_collection(tmp_path):
    one = size_of_one(tmp_path)
    limited = config(merge_inputs_min=100, lookup_cache_bytes=2 * one + one // 4 + MIB)
    with tidelake.open(tmp_path / "lake", config=limited) as lake:
        a, b = (lake.create(name, SCHEMA, key=["id"]) for name in "ab")
        # The one that is merged was asked for last.
        for c in b, a:
            c.append(rows(range(ROWS), c.name))
            for _ in range(4):
                c.lookup(ANYWHERE)
        assert is_kept(a) and is_kept(b)
        a.append(rows(range(100), "more"))
        a.merge()
        assert is_kept(a) and is_kept(b)


def is_kept(c):
    """Whether all parts of a collection are in the cache."""
    spec = inside.shard(c).version().spec
    parts = [part for member in c.state().spine for part in member.batch.parts()]
    return all(part_caches().unpacked.has(cache.identity(spec, part)) for part in parts)


def test_a_merged_part_takes_the_room_of_what_it_replaced(tmp_path):
    one = size_of_one(tmp_path)
    c, recorder = made(tmp_path, parts=2, lookup_cache_bytes=3 * one + MIB, merge_inputs_min=100)
    for _ in range(3):
        c.lookup(ANYWHERE)
    assert size(c) == 2 * one
    c.merge()
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0
    assert size(c) == pytest.approx(2 * one, rel=0.1)


def test_upserts_find_old_rows_in_unpacked_parts(tmp_path):
    c, _ = made(tmp_path, merge_inputs_min=100)
    expected = {id_: f"0 of {id_}" for id_ in range(ROWS)}
    for n in range(1, 8):
        changed = list(range(n, ROWS, 50))
        c.upsert(rows(changed, f"{n}"))
        expected |= {id_: f"{n} of {id_}" for id_ in changed}
        found = c.snapshot().read_all()
        assert dict(zip(*found.select(["id", "v"]).to_pydict().values(), strict=True)) == expected
        assert found.num_rows == ROWS
    assert size(c) > 0


def test_what_is_new_is_caught_up_with_if_most_is_here(tmp_path):
    c, recorder = made(tmp_path, merge_inputs_min=100)
    c.append(rows(range(ROWS // 2), "new"))
    c.distributed.upserter().catch_up()
    assert size(c) == 0
    for _ in range(3):
        # Of the first part all, of the second little.
        c.lookup(keys(0, *range(ROWS // 2 - 200, ROWS)))
    first = size(c)
    assert first > 0
    for _ in range(2):
        c.distributed.upserter().catch_up()
        assert size(c) == pytest.approx(1.5 * first, rel=0.1)
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0


def test_what_is_new_may_have_far_wider_rows(tmp_path):
    c, _ = made(tmp_path, merge_inputs_min=100)
    for _ in range(3):
        c.lookup(ANYWHERE)
    first, noise = size(c), random.Random(1).randbytes(2_000_000).hex()
    c.append(pa.table({"id": range(1_000), "v": [noise[4_000 * n :][:4_000] for n in range(1_000)]}))
    c.distributed.upserter().catch_up()
    assert size(c) > first + 4_000_000


def size_of_one(tmp_path):
    c, _ = made(tmp_path / "one")
    for _ in range(3):
        c.lookup(ANYWHERE)
    return size(c)


def test_what_does_not_fit_is_read_from_the_store_and_what_is_in_use_stays(tmp_path):
    # Room is promised with something to spare.
    bound = 3 * size_of_one(tmp_path) + MIB
    c, recorder = made(tmp_path, parts=8, lookup_cache_bytes=bound, merge_inputs_min=100)
    each = [opened(recorder, lambda: c.lookup(ANYWHERE)) for _ in range(20)]
    assert 0 < size(c) <= bound
    assert 5 <= each[-1] < 8
    assert set(each[4:]) == {each[-1]}


def test_what_was_merged_away_makes_room(tmp_path):
    bound = 3 * size_of_one(tmp_path) + 2 * MIB
    c, recorder = made(tmp_path, parts=2, lookup_cache_bytes=bound, merge_inputs_min=100)
    for n in range(5):
        for _ in range(5):
            c.lookup(ANYWHERE)
        assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0
        assert size(c) <= bound
        c.append(rows(range(ROWS), f"more {n}").append_column("_diff", [[1] * ROWS]))
        c.append(rows(range(ROWS), f"more {n}").append_column("_diff", [[-1] * ROWS]))
        c.advance_since(c.upper.just_before())
        c.merge()


def test_files_have_no_name(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    c, recorder = made(tmp_path)
    for _ in range(3):
        c.lookup(ANYWHERE)
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0
    assert os.listdir(tmp_path / "tmp") == []


def test_a_disk_that_is_not_there_or_full_only_costs_time(tmp_path, monkeypatch):
    c, _ = made(tmp_path)
    expected = c.lookup(ANYWHERE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert all(c.lookup(ANYWHERE) == expected for _ in range(5))
    monkeypatch.undo()
    with monkeypatch.context() as full:
        full.setattr(unnamed, "spare_bytes", lambda: 0)
        full.setattr("tidelake.shard.runs.cache.spare_bytes", lambda: 0)
        assert all(c.lookup(ANYWHERE) == expected for _ in range(5))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # So that the file cannot be as large as it would be: the system refuses in the middle.
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
        assert all(c.lookup(ANYWHERE) == expected for _ in range(5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert size(c) == 0
    for _ in range(2):
        c.lookup(ANYWHERE)
    assert size(c) > 0


def test_a_store_that_fails_while_a_part_is_unpacked_is_told_of(tmp_path, monkeypatch):
    c, _ = made(tmp_path)
    c.lookup(ANYWHERE)
    (part,) = (part for member in c.state().spine for part in member.batch.parts())
    path = next((tmp_path / "lake").rglob(part.name.rpartition("/")[2]))
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[: len(data) // 4] + b"?" + data[len(data) // 4 + 1 :])
    with pytest.raises(tidelake.errors.CorruptionError):
        c.lookup(ANYWHERE)
    path.write_bytes(data)
    for _ in range(3):
        assert c.lookup(ANYWHERE).num_rows == ANYWHERE.num_rows


def test_damage_is_told_only_to_look_ups_of_damaged_rows(tmp_path):
    c, _ = made(tmp_path)
    (part,) = (part for member in c.state().spine for part in member.batch.parts())
    path = next((tmp_path / "lake").rglob(part.name.rpartition("/")[2]))
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[: len(data) // 4] + b"?" + data[len(data) // 4 + 1 :])
    for _ in range(2 * ROWS // 100):
        assert c.lookup(keys(7)).num_rows == 1
    for _ in range(4):
        with pytest.raises(tidelake.errors.CorruptionError, match=part.name):
            c.lookup(ANYWHERE)
    assert size(c) == 0


def test_threads_that_look_up_at_once_get_the_same(tmp_path):
    c, recorder = made(tmp_path, parts=3, merge_inputs_min=100)
    expected = c.lookup(ANYWHERE)
    wrong = []

    def look(_):
        wrong.extend(1 for _ in range(8) if c.lookup(ANYWHERE) != expected)

    at_once(look, range(6))
    assert not wrong
    assert opened(recorder, lambda: c.lookup(ANYWHERE)) == 0


def test_parts_of_few_rows_are_kept_as_well(tmp_path):
    c, recorder = made(tmp_path, row_group_rows=ROWS, merge_inputs_min=100)
    for n in range(5):
        c.upsert(rows([50 * n], f"new {n}"))
    expected = [c.lookup(ANYWHERE) for _ in range(3)]
    assert opened(recorder, lambda: expected.append(c.lookup(ANYWHERE))) == 0
    assert all(found == expected[0] for found in expected)
    assert expected[0].column("v")[0].as_py() == "new 0 of 0"


def test_small_parts_that_have_none_of_the_keys_are_kept_as_well(tmp_path):
    c, recorder = made(tmp_path, row_group_rows=ROWS, merge_inputs_min=100)
    for n in range(5):
        c.append(rows(range(n, ROWS, 50), "so wide a value that the keys are looked at first"))
    absent = keys(2_025)
    expected = c.lookup(absent)
    # All that is opened is the large part, whose filter does not deny the key, and then nothing.
    each = [opened(recorder, lambda: c.lookup(absent)) for _ in range(2)]
    assert each[0] > 5 and each[1] == 0
    assert c.lookup(absent) == expected and expected["v"].to_pylist() == ["0 of 2025"]


def test_a_small_file_counts_more_than_it_has_since_a_process_maps_only_so_many(tmp_path):
    floor = 64 * 1024
    bound = MIB + 10 * floor
    c, recorder = made(tmp_path, row_group_rows=ROWS, lookup_cache_bytes=bound, merge_inputs_min=100)
    for n in range(30):
        c.append(rows([50 * n], f"more {n}"))
    each = [opened(recorder, lambda: c.lookup(ANYWHERE)) for _ in range(6)]
    # The first one is larger, and each of the others has room for itself while it is written.
    assert 1 + 30 - 10 <= each[-1] <= 1 + 30 - 5
    assert 5 * 1024 < size(c) < 5 * floor


def test_look_ups_of_some_columns_or_with_a_condition_are_right(tmp_path):
    c, _ = made(tmp_path)
    for _ in range(3):
        c.lookup(ANYWHERE)
    some = c.lookup(ANYWHERE, columns=["v"], where="id >= 100 AND id < 200")
    assert some.column("v").to_pylist() == ["0 of 100", "0 of 150"]


def test_a_size_that_is_none_is_refused():
    with pytest.raises(UsageError, match="lookup_cache_bytes=-1"):
        Config(lookup_cache_bytes=-1)


@pytest.mark.parametrize("but", [0, 1])
def test_what_is_taken_of_many_runs_at_once_is_as_small_as_what_is_decoded(but, tmp_path):
    c, _ = made(tmp_path, merge_memory_bytes=16 * MIB)
    c.append(pa.table({"id": list(range(ROWS)), "v": [random.Random(1).randbytes(500).hex()] * ROWS}))
    for _ in range(3):
        c.lookup(ANYWHERE)
    spec = c.distributed.uploader().spec
    (source,) = sources(c.state().batches(), Changes(0, 1))
    most = chunk_limits(spec.config)[1] // 16
    scope = Scope(spec, among=KeySet.of(keys(*range(but, ROWS)), spec.schema))
    recorder = Counters()
    blobs = open_stores(spec.url, spec.config, Env(recorder=recorder), create=False).blobs
    (run,) = streams(spec, blobs, [source], scope, runs=[source] * 16)
    batches = list(run)
    assert recorder.counts["blob.open"] == 0
    assert sum(batch.num_rows for batch in batches) == ROWS - but
    assert len(batches) > 100 and max(batch.nbytes for batch in batches) <= 1.1 * most


def test_files_take_no_descriptors(tmp_path):
    c, recorder = made(tmp_path, part_target_bytes=2_000, row_group_rows=10)
    each = keys(*range(0, ROWS, 10))
    c.lookup(each)
    parts = [part for member in c.state().spine for part in member.batch.parts()]
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(8):
        c.lookup(each)
    assert opened(recorder, lambda: c.lookup(each)) == 0
    assert len(parts) >= 30
    assert len(set(os.listdir("/proc/self/fd")) - before) < 10


def test_all_lakes_of_a_process_have_one_bound_together(tmp_path):
    bound = 3 * size_of_one(tmp_path) + MIB
    for n in range(12):
        c, recorder = made(tmp_path / f"{n}", lookup_cache_bytes=bound)
        for _ in range(6):
            c.lookup(ANYWHERE)
        assert opened(recorder, lambda c=c: c.lookup(ANYWHERE)) == 0
        assert size(c) <= part_caches().unpacked.size_bytes() <= bound


class Numbered:
    """Ids that are the same each time."""

    def __init__(self):
        self.count = 0

    def fresh(self):
        self.count += 1
        return f"{self.count:032x}"


def test_a_lake_in_the_place_of_one_that_was_deleted_has_its_own_rows(tmp_path):
    names = []
    for text in ("old", "new"):
        with open_lake(str(tmp_path / "lake"), config=config(), env=Env(ids=Numbered())) as lake:
            c = lake.create("c", SCHEMA, key=["id"])
            c.append(rows(range(ROWS), text))
            for _ in range(3):
                found = c.lookup(ANYWHERE)
            assert found.column("v")[1].as_py() == f"{text} of 50"
            assert size(c) > 0
            names += [part.name for member in c.state().spine for part in member.batch.parts()]
        shutil.rmtree(tmp_path / "lake")
    assert len(names) == 2 and len(set(names)) == 1


def test_a_file_is_not_larger_than_it_may_be():
    # Of few rows and many columns, whose descriptions take most of it.
    names = [f"c{n}" for n in range(500)]
    described = schema_from_arrow(pa.schema([(name, pa.int64()) for name in names]), ["c0"])
    domain = TimeDomain("counter", 1)
    batch = pa.RecordBatch.from_pydict(
        {field.name: [1] for field in update_schema(described, domain)},
        schema=update_schema(described, domain),
    )
    whole = io.BytesIO()
    assert unpack([batch], described, whole, MIB)
    at = len(whole.getvalue())
    assert unpack([batch], described, io.BytesIO(), at)
    assert not unpack([batch], described, io.BytesIO(), at - 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_lets_go_of_what_its_parent_has_unpacked(tmp_path):
    gc.collect()
    before = files_held()
    c, _ = made(tmp_path)
    for _ in range(3):
        c.lookup(ANYWHERE)
    assert files_held() == before + 1
    child = os.fork()
    if not child:
        part_caches()
        # All that was unpacked, also by what ran before in this process.
        os._exit(files_held() > before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert part_caches().unpacked.size_bytes() > 0


def files_held():
    """How many files without a name this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sum("(deleted)" in line and tempfile.gettempdir() in line for line in maps)

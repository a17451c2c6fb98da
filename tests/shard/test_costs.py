"""What operations cost in store calls and bytes: counted, never timed."""

from collections import Counter
from functools import partial

import pyarrow as pa
import pytest
from shards import Place

import inside
from tables import SCHEMA, rows
from tidelake.config import Config
from tidelake.data.part import scan
from tidelake.model.frontier import Frontier
from tidelake.model.query import Updates
from tidelake.shard.runs import plan, upload
from tidelake.shard.runs.plan import run_task
from tidelake.state.core.backlog import Limits

CALLS = ("log.head", "log.newer", "log.compare_and_set", "blob.get", "blob.put", "blob.list", "blob.open")


def filled(appends):
    """A place with one collection of so many appends, and the sizes of the deltas that they wrote."""
    place = Place()
    lake = place.lake()
    c = lake.create("c", SCHEMA, key=["id"])
    sizes = []
    for n in range(appends):
        before = lake.counts["log.compare_and_set.bytes"]
        c.append(rows(n))
        sizes.append(lake.counts["log.compare_and_set.bytes"] - before)
    return place, c, sizes


def opened(place):
    """The counts of opening the collection in another process."""
    lake = place.lake()
    shard_id = inside.catalog(lake).read().shards["c"]
    base = dict(lake.counts)
    lake._shards.open(shard_id)
    return {name: lake.counts[name] - base.get(name, 0) for name in lake.counts}


@pytest.fixture(scope="module")
def hundred():
    return filled(100)


@pytest.fixture(scope="module")
def ten_thousand():
    return filled(10_000)


@pytest.mark.promise(
    "Opening takes the same number of store calls, however long the history is",
    rule="`shard/engine/history.py`",
)
@pytest.mark.full
def test_opening_costs_as_many_calls_after_10000_appends_as_after_100(hundred, ten_thousand):
    few, many = (store_calls_of(opened(place)) for place in (hundred[0], ten_thousand[0]))
    assert many <= 2 * few
    assert many <= 3


def store_calls_of(counts):
    return sum(counts.get(name, 0) for name in CALLS)


@pytest.mark.promise("A commit writes only what it changes", rule="`Edits`")
@pytest.mark.full
def test_an_append_writes_what_it_changes_however_long_the_history(ten_thousand):
    _, _, sizes = ten_thousand
    # A commit that is followed by a rollup writes the rollup's entry too; look at the plain ones.
    plain = sorted(sizes[9_900:])[50]
    assert plain <= sorted(sizes[5:105])[50] + 128  # its numbers have more digits
    assert plain <= 3072


@pytest.mark.promise(
    "A delta is small compared with the rows that it carries, also with 10,000 batches", rule="`Edits`"
)
@pytest.mark.full
def test_the_delta_of_an_append_to_10000_batches_is_small_beside_its_inline_rows():
    # Nothing is merged or held back: each append is a batch of its own.
    config = Config(merge_budget_s=0, runs_max=2**30, inline_total_bytes=2**40)
    lake = Place().lake(config=config)
    c = lake.create("c", SCHEMA, key=["id"])
    deltas, added, rolled = 0, 0, 0
    inline_bytes = 0
    for n in range(10_000):
        before = dict(lake.counts)
        c.append(rows(*range(10 * n, 10 * n + 10)))
        cost = {name: lake.counts[name] - before.get(name, 0) for name in lake.counts}
        size, rolls = cost["log.compare_and_set.bytes"], cost.get("blob.put", 0)
        assert cost["log.compare_and_set"] == 1 + rolls
        assert not cost.get("blob.list") and not cost.get("log.head")
        came, inline_bytes = -inline_bytes, c.state().spine.totals.inline_bytes
        came += inline_bytes
        # The text of the log has four characters for three bytes.
        assert rolls or size - (4 * came + 8) // 3 <= 2048
        deltas, rolled, added = deltas + size, rolled + cost.get("blob.put.bytes", 0), added + rolls
    assert len(c.state().spine) == 10_000
    assert added > 3 and 0 < rolled <= 2 * deltas


def test_merges_of_tiny_appends_bring_no_rollups_of_their_own():
    lake = Place().lake()
    c = lake.create("c", SCHEMA, key=["id"])
    seqnos = []
    for n in range(300):
        c.append(rows(*range(40 * n, 40 * n + 40)))
        seqnos.append(c.state().rollup.seqno)
    assert lake.counts["merge"] > 5
    written = lake.counts["log.compare_and_set.bytes"]
    assert 3 < len({*seqnos}) <= 2 + written // Config().rollup_bytes_min


@pytest.mark.promise("Rollups together cost no more than the deltas", rule="`Machine._rollup_due`")
@pytest.mark.full
def test_rollups_cost_no_more_than_the_deltas(ten_thousand):
    place, c, sizes = ten_thousand
    shard = c.id
    stored = sum(b.size_bytes for b in place.stores.blobs.list(f"{shard}/rollups/"))
    assert 0 < stored <= 2 * sum(sizes)


@pytest.mark.promise("A state that has shrunk gets a new rollup", rule="`Machine._rollup_due`")
@pytest.mark.full
def test_after_a_full_merge_opening_reads_no_more_bytes_than_a_small_shard(hundred, ten_thousand):
    costs = []
    for place, c, _ in (hundred, ten_thousand):
        assert c.merge().applied
        costs.append(opened(place))
    few, many = costs
    assert read_bytes_of(many) <= 2 * read_bytes_of(few)
    assert store_calls_of(many) <= 2 * store_calls_of(few)
    c = ten_thousand[1]
    assert c.snapshot().read_all()["id"].to_pylist() == list(range(10_000))
    assert sum(len(item.batch.runs) for item in c.state().spine) == 1


def read_bytes_of(counts):
    return counts.get("log.newer.bytes", 0) + counts.get("blob.get.bytes", 0)


@pytest.mark.promise(
    "A small append costs one log write and no call of the blob store; following costs one store call a step",
    rule="`data/part/inline.py`",
    also=["::test_following_costs_one_store_call_a_step_and_no_other_call_of_the_log"],
)
@pytest.mark.parametrize("inline", [True, False])
def test_a_small_append_is_one_log_write_and_one_upload_where_parts_are_not_inline(inline):
    lake = Place().lake(config=Config() if inline else Config(inline_part_bytes=0))
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1))
    before = dict(lake.counts)
    c.append(rows(2))
    cost = {name: lake.counts[name] - before.get(name, 0) for name in CALLS}
    assert cost["log.compare_and_set"] == 1 and cost["blob.put"] == (0 if inline else 1)
    assert cost["blob.list"] == cost["blob.get"] == cost["blob.open"] == cost["log.head"] == 0
    assert cost["log.newer"] <= 1
    assert c.snapshot().read_all()["id"].to_pylist() == [1, 2]
    assert lake.counts["blob.open"] == (0 if inline else 2)


def test_a_large_append_is_not_inline_nor_encoded_twice(monkeypatch):
    lake = Place().lake()
    c = lake.create("c", SCHEMA, key=["id"])
    asked = []
    monkeypatch.setattr(upload, "encode_inline", lambda *a, **k: asked.append(a))
    c.append(rows(*range(10_000)))
    assert not asked and lake.counts["blob.put"] == 1


def test_an_empty_append_uploads_nothing():
    lake = Place().lake()
    c = lake.create("c", SCHEMA, key=["id"])
    before = lake.counts["blob.put"]
    c.compare_and_append(
        pa.table(
            {
                "id": pa.array([], pa.int64()),
                "v": pa.array([], pa.string()),
                "_time": pa.array([], pa.int64()),
            }
        ),
        0,
        5,
    )
    assert lake.counts["blob.put"] == before


def test_following_costs_one_store_call_a_step_and_no_other_call_of_the_log():
    lake = Place().lake()
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(1))
    steps = c.listen(0, timeout_s=0)
    c.append(rows(2))
    next(steps)
    for n in range(3, 30):
        c.append(rows(n))
        before = dict(lake.counts)
        assert next(steps).updates.read_all()["id"].to_pylist() == [n]
        cost = {name: lake.counts[name] - before.get(name, 0) for name in CALLS}
        assert cost["log.newer"] == 1
        assert cost["log.compare_and_set"] == cost["log.head"] == cost["blob.list"] == 0


@pytest.mark.promise("Parts that cannot hold the times asked for are not read", rule="`sources`")
def test_a_read_skips_the_parts_that_cannot_hold_its_times():
    lake = Place().lake(config=Config(inline_part_bytes=0))
    c = lake.create("c", SCHEMA, key=["id"])
    for n in range(20):
        c.append(rows(n))
    before = lake.counts["blob.open"]
    c.changes(17, 18).read_all()
    assert lake.counts["blob.open"] - before == 1


# --- Reads of a long history ---

KEYS, CHANGED, PER_APPEND, SLICE = 50, 10, 10, 200


def long_history(times):
    """At rest: of 50 rows, ten are replaced at each time. A slice holds the times of one append."""
    config = Config(slice_rows=SLICE, inline_part_bytes=0, row_group_rows=64, lookup_cache_bytes=0)
    lake = Place().lake(config=config)
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(*range(KEYS), v="0"))
    held = ["0"] * KEYS
    for first in range(1, times, PER_APPEND):
        updates = []
        for time in range(first, first + PER_APPEND):
            for id_ in ((time * CHANGED + i) * 7 % KEYS for i in range(CHANGED)):
                updates += [(id_, held[id_], time, -1), (id_, str(time), time, 1)]
                held[id_] = str(time)
        columns = zip(("id", "v", "_time", "_diff"), zip(*updates, strict=True), strict=True)
        c.append(pa.table({name: list(column) for name, column in columns}), upper=first + PER_APPEND)
    assert c.maintain(thorough=True).complete
    # So that none becomes due while calls are counted, by the holds of listeners.
    inside.write_rollup(c)
    return lake, c


# The key, the value, the time and the diff.
COLUMNS = 4


def costs(lake, c, read, monkeypatch):
    """Rows that a read decodes, and the store calls that it makes. Some columns of a row count in part."""
    decoded, found = scan._decoded, []

    def counted(*args, **kwargs):
        for batch in decoded(*args, **kwargs):
            found.append(batch.num_rows * batch.num_columns / COLUMNS)
            yield batch

    before = Counter(lake.counts)
    with monkeypatch.context() as patch:
        patch.setattr(scan, "_decoded", counted)
        read(c)
    return sum(found), store_calls_of(Counter(lake.counts) - before)


@pytest.fixture(scope="module")
def short():
    return long_history(101)


@pytest.fixture(scope="module")
def long():
    return long_history(401)


# At a part of the time: what is read, and how many rows it may decode.
READS = {
    "latest snapshot": (lambda c, _: c.snapshot().read_all(), KEYS),
    "old snapshot": (lambda c, at: c.snapshot(at).read_all(), 2 * KEYS + SLICE),
    "changes": (lambda c, at: c.changes(at, at + 5).read_all(), KEYS + 2 * SLICE),
    "updates": (lambda c, at: c.updates(at, at + 5).read_all(), KEYS + 2 * SLICE),
    "look-up": (lambda c, _: c.lookup(pa.table({"id": [3, 7]})), KEYS),
    "look-up in the past": (lambda c, at: c.lookup(pa.table({"id": [3, 7]}), as_of=at), 2 * KEYS + SLICE),
    "first step of a listener": (
        lambda c, _: next(c.listen(c.last_time() - 6, timeout_s=0)).updates.read_all(),
        SLICE,
    ),
}


@pytest.mark.promise(
    "Rows decoded and store calls of each kind of read stay as history grows; all merges and bases "
    "write about as many rows as came",
    rule="`sources_of` in `shard/runs/read.py`",
    also=["::test_bases_and_merges_of_a_long_history_write_about_as_many_rows_as_came"],
)
@pytest.mark.parametrize("kind", READS)
def test_a_read_costs_what_it_answers_however_long_the_history(kind, short, long, monkeypatch):
    read, decoded_max = READS[kind]
    assert len(long[1].state().spine.slices) >= 3 * len(short[1].state().spine.slices) > 6
    worst = []
    for lake, c in (short, long):
        last = c.last_time()
        found = [
            costs(lake, c, lambda c, at=last * n // 16: read(c, at), monkeypatch) for n in range(1, 16, 2)
        ]
        assert max(decoded for decoded, _ in found) <= decoded_max
        worst.append(max(calls for _, calls in found))
    assert worst[1] <= worst[0] + 1


GROUP = 64


def inserted(times):
    """At rest: 50 rows at first, then 200 more at each time. So the only base is at the head."""
    config = Config(slice_rows=SLICE, inline_part_bytes=0, row_group_rows=GROUP, lookup_cache_bytes=0)
    lake = Place().lake(config=config)
    c = lake.create("c", SCHEMA, key=["id"])
    # Neighbouring times bring keys from all over, so that each slice has its share of every range of keys.
    ids = [2 * (n * 7919 % 100_003) for n in range(KEYS + 20 * times)]
    c.append(rows(*ids[:KEYS], v="0"))
    for first in range(1, times, PER_APPEND):
        there = ids[KEYS + 20 * (first - 1) : KEYS + 20 * (first - 1 + PER_APPEND)]
        c.append(rows(*there, v=str(first)))
    assert c.maintain(thorough=True).complete
    return lake, c, ids


@pytest.mark.promise(
    "A look-up decodes what it finds, and opens no slice that is known to lack its keys; so does a "
    "read with a condition that fixes the key",
    rule="`shard/runs/filters.py`, `keys_asked` in `model/predicate.py`",
    also=[
        "::test_the_history_of_a_key_opens_what_has_the_key_however_many_slices_have_not",
        "data/test_where.py::test_rows_that_satisfy_a_condition_have_the_keys_that_it_fixes",
    ],
)
def test_a_lookup_decodes_what_it_finds_however_many_slices_have_no_such_key(monkeypatch):
    # A slice has at least a sixteenth of the contents, so the number of slices grows slowly.
    found = []
    for times in (101, 801):
        lake, c, ids = inserted(times)
        asked = pa.table({"id": [*ids[3:8], 60_001, 100_001]})
        before = c.last_time() - 1
        assert c.lookup(asked, before).num_rows == c.lookup(asked).num_rows == 5
        read = partial(type(c).lookup, keys=asked, as_of=before)
        found.append((len(c.state().spine.slices), *costs(lake, c, read, monkeypatch)))
    (few, _, _), (many, decoded, calls) = found
    assert many > few > 8
    # Five keys, of which each is in one row group of the first slice; and about one key in fifty passes.
    assert decoded <= (5 + 2) * GROUP
    # The filters are known by now, so slices without the keys are not opened. Each would take two calls.
    assert calls < many


def test_the_history_of_a_key_opens_what_has_the_key_however_many_slices_have_not(monkeypatch):
    lake, c, ids = inserted(801)
    slices = len(c.state().spine.slices)

    def history(c):
        return c.updates(0, c.upper.elements[0], where=f"id = {ids[3]}").read_all()

    assert history(c).num_rows == 1
    decoded, calls = costs(lake, c, history, monkeypatch)
    # By now the filters are known: one slice has the key, and in about one of fifty it is not denied.
    assert decoded <= 2 * GROUP
    assert calls <= 10 < slices


@pytest.mark.promise(
    "A listener that was away decodes at most three times the rows that it gets, also in many small "
    "steps; what is kept for later steps gives the rows that a read gives. A step of `listen` goes "
    "not past one slice",
    rule="`shard/reading/readahead.py`, `_step_end` in `shard/reading/reader.py`",
    also=[
        "::test_a_step_of_a_listener_that_was_away_is_no_more_than_a_slice",
        "shard/reading/test_readahead.py",
    ],
)
@pytest.mark.parametrize("how", ["read", "plan"])
def test_a_listener_that_was_away_decodes_no_slice_again_in_many_small_steps(how, long, monkeypatch):
    lake, c = long
    monkeypatch.setattr(plan, "stores_of", lambda spec: inside.stores(lake))
    tail = c.tail(poll_s=0.0)
    seen = []

    def follow(c):
        start = tail.begin(Frontier.of(101))
        while (end := tail.step(start, Limits(times=2))) != start:
            asked = Updates(start, end)
            if how == "read":
                seen.append(tail.read(asked, start).read_all())
            else:
                tasks = tail.plan(asked, start, 2).tasks
                seen.append(pa.Table.from_batches(batch for task in tasks for batch in run_task(task)))
            start = end

    decoded, _ = costs(lake, c, follow, monkeypatch)
    expected = c.updates(101, c.upper).read_all()
    found = pa.concat_tables(seen)
    order = [(name, "ascending") for name in ("id", "v", "_time")]
    assert found.sort_by(order).equals(expected.combine_chunks().sort_by(order))
    assert len(seen) >= 150 and expected.num_rows <= decoded <= 3 * expected.num_rows
    tail.release()


def test_a_step_of_a_listener_that_was_away_is_no_more_than_a_slice(long, monkeypatch):
    lake, c = long
    slices = c.state().spine.slices
    steps = []

    def listen(c):
        for step in c.listen(101, timeout_s=0):
            steps.append((step.lower, step.upper, step.updates.read_all()))

    decoded, _ = costs(lake, c, listen, monkeypatch)
    ends = [held.bounds.upper for held in slices if not held.bounds.upper.less_equal(102)]
    assert [upper for _, upper, _ in steps][: len(ends)] == ends and steps[-1][1] == c.upper
    assert [lower for lower, _, _ in steps] == [Frontier.of(102), *(upper for _, upper, _ in steps[:-1])]
    order = [(name, "ascending") for name in ("id", "v", "_time")]
    expected, found = c.updates(102, c.upper).read_all(), pa.concat_tables(table for *_, table in steps)
    assert found.sort_by(order).equals(expected.combine_chunks().sort_by(order))
    assert len(ends) > 5 and decoded <= 1.5 * expected.num_rows


def test_bases_and_merges_of_a_long_history_write_about_as_many_rows_as_came(long):
    _, c = long
    state = c.state()
    kept = sum(part.rows for base in state.bases for part in base.parts())
    assert 0 < kept <= state.spine.totals.rows == state.written.appended_rows
    assert state.written.merged_rows <= 1.2 * state.written.appended_rows

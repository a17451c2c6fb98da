"""Batches as handles: used once, rewritten, narrowed, sent away; and what an append of them refuses."""

import gc
import warnings
from dataclasses import replace

import pyarrow as pa
import pytest
from collecting import CONFIG, GARBAGE_S, World, before
from shards import Place, stored
from test_builder import SMALL, at, made, many, pairs

import inside
import tidelake
from tables import SCHEMA, ids, rows
from tests.doubles.faults import Fault, FaultPlan
from tidelake.config import Config
from tidelake.errors import (
    AlreadyTaken,
    BatchConsumed,
    CorruptionError,
    FormatTooNew,
    InvalidBatchBounds,
    InvalidRewrite,
    OutcomeUnknown,
    StoreUnavailable,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.spec import ShardPlace
from tidelake.shard.writing.batch import Batch, SentBatch
from tidelake.state.core.codec import encode_record


def built(c, *tables, lower=0, upper=10, is_sorted=False):
    with c.builder(lower, sorted=is_sorted) as builder:
        for table in tables:
            builder.add(table)
        return builder.finish(Frontier.of_all(upper if isinstance(upper, list) else [upper]))


def times(c, upper):
    return sorted((r["id"], r["_time"]) for r in c.updates(c.domain.minimum, upper).read_all().to_pylist())


def spread():
    """Rows 0..9 at the times 0..9."""
    return pa.concat_tables([at(n, n) for n in range(10)])


# Used once


USES = {
    "append": lambda c, b: c.distributed.append_batches([b], lower=0, upper=10),
    "delete": lambda c, b: b.delete(),
    "to_bytes": lambda c, b: b.to_bytes(),
}
LATER = USES | {"rewrite_times": lambda c, b: b.rewrite_times(Frontier.of(1), Frontier.of(10))}


@pytest.mark.promise(
    "A batch is used once; after a refusal its owner still has it, after an unknown outcome it "
    "counts as used",
    rule="`shard/writing/batch.py`, `shard/writing/batches.py`",
    also=[
        "::test_after_a_refusal_the_batches_are_the_callers_as_before",
        "::test_after_an_unknown_outcome_a_batch_counts_as_used",
    ],
)
@pytest.mark.parametrize("use", USES)
def test_a_batch_is_used_once(use):
    place, c = made()
    batch = built(c, many(0))
    USES[use](c, batch)
    left = stored(place, c)
    assert bool(left) == (use != "delete")
    for again in LATER.values():
        with pytest.raises(BatchConsumed, match=r"was (appended|deleted|sent away) already: a batch is used"):
            again(c, batch)
    assert stored(place, c) == left


def test_a_batch_that_is_forgotten_says_what_it_leaves():
    place, c = made()
    held = [built(c, many(0))]
    names = held[0].part_names
    with pytest.warns(ResourceWarning, match="neither appended nor deleted") as caught:
        held.clear()
    assert len(caught) == 1 and all(name in str(caught[0].message) for name in names)
    assert stored(place, c) == set(names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # One that is empty leaves nothing.
        built(c)
        for use in USES.values():
            place, c = made()
            use(c, built(c, many(0)))
        gc.collect()


def test_a_batch_of_inline_parts_that_is_forgotten_says_what_is_lost():
    place, c = made(Config())
    held = [built(c, at(0, 1))]
    (name,) = held[0].part_names
    with pytest.warns(ResourceWarning, match="its rows are lost") as caught:
        held.clear()
    assert len(caught) == 1 and name in str(caught[0].message)
    assert stored(place, c) == set()


def test_deleting_a_batch_of_inline_parts_asks_nothing_of_the_store():
    _, c = made(Config())
    batch = built(c, at(0, 1, 2))
    deletes = inside.shard(c).env.recorder.counts["blob.delete"]
    batch.delete()
    assert inside.shard(c).env.recorder.counts["blob.delete"] == deletes


# Several at once, and on the way


def test_batches_of_several_writers_are_one_append():
    _, c = made()
    before = inside.shard(c).env.recorder.counts["log.compare_and_set"]
    batches = [built(c, many(n * 1000)) for n in range(3)]
    answer = c.distributed.append_batches(batches, lower=0, upper=10)
    assert (str(answer.lower), str(answer.upper), answer.already) == ("[0]", "[10]", False)
    assert inside.shard(c).env.recorder.counts["log.compare_and_set"] == before + 1
    assert len(c.state().spine) == 1 and len(ids(c)) == 1500
    assert c.merge().applied and len(ids(c)) == 1500


def test_bytes_are_a_checked_record_of_one_shard():
    place, c = made()
    other = place.lake(config=SMALL).create("d", SCHEMA, key=["id"])
    batch = built(c, many(0))
    hollow = batch.hollow
    data = batch.to_bytes()
    assert data.startswith(b"tidelake:batch 1 ")
    assert data == encode_record("batch", SentBatch(c.id, hollow))
    for at_ in range(0, len(data), 11):
        damaged = bytearray(data)
        damaged[at_] ^= 1
        with pytest.raises((CorruptionError, FormatTooNew)):
            c.distributed.batch_from_bytes(bytes(damaged))
    with pytest.raises(FormatTooNew):
        c.distributed.batch_from_bytes(data.replace(b"tidelake:batch 1 ", b"tidelake:batch 9 ", 1))
    with pytest.raises(UsageError, match=f"for shard {c.id} cannot be used with {other.id}"):
        other.distributed.batch_from_bytes(data)
    for no_bytes in (None, "text", 5, batch):
        with pytest.raises(UsageError, match="a batch comes as bytes"):
            c.distributed.batch_from_bytes(no_bytes)
    assert isinstance(inside.shard(c).spec, ShardPlace)
    c.distributed.batch_from_bytes(data).delete()
    # There may be other copies.
    assert stored(place, c) == {part.name for part in hollow.parts()}


def test_a_batch_that_names_a_part_of_another_shard_is_refused():
    place, c = made()
    other = place.lake(config=SMALL).create("d", SCHEMA, key=["id"])
    theirs = built(other, many(0))
    with pytest.raises(CorruptionError, match="a part of another shard"):
        c.distributed.batch_from_bytes(encode_record("batch", SentBatch(c.id, theirs.hollow)))
    theirs.delete()


def test_a_spec_is_enough_to_take_a_batch():
    lake = tidelake.open("memory://spec-is-enough")
    c = lake.create("c", SCHEMA, key=["id"])
    batch = Batch.from_bytes(inside.shard(c).spec, built(c, many(0)).to_bytes())
    assert batch.rows == 500
    c.distributed.append_batches([batch], lower=0, upper=10)
    assert len(ids(c)) == 500


# Rewritten times


def test_rewriting_moves_early_times_and_stores_nothing():
    _, c = made()
    batch = built(c, spread())
    puts = inside.shard(c).env.recorder.counts["blob.put"]
    batch.rewrite_times(Frontier.of(4), Frontier.of(12))
    batch.rewrite_times(Frontier.of(6), Frontier.of(12))
    assert (str(batch.bounds.lower), str(batch.bounds.upper)) == ("[0]", "[12]")
    c.distributed.append_batches([batch], lower=0, upper=12)
    assert times(c, 12) == [(n, max(n, 6)) for n in range(10)]
    assert inside.shard(c).env.recorder.counts["blob.put"] == puts
    c.append(at(12, 12))
    assert c.merge().applied and times(c, 13) == [*((n, max(n, 6)) for n in range(10)), (12, 12)]


def test_a_plain_time_is_no_frontier():
    place, c = made()
    with c.builder() as builder:
        builder.add(many(0))
        with pytest.raises(UsageError, match=r"upper=10 is no frontier: give tidelake.Frontier.of"):
            builder.finish(10)
        batch = builder.finish(Frontier.of(10))
    for frontier, upper in ((5, Frontier.of(10)), (Frontier.of(5), 10)):
        with pytest.raises(UsageError, match="is no frontier"):
            batch.rewrite_times(frontier, upper)
    batch.delete()
    assert stored(place, c) == set()


@pytest.mark.promise(
    "Each condition of a rewrite and of narrowing is checked",
    rule="`shard/writing/batch.py`, `state/write/narrowing.py`",
    also=[
        "::test_widening_is_refused_with_both_intervals",
        "::test_a_rewritten_batch_keeps_its_upper_and_raises_its_lower_to_the_rewrite",
    ],
)
def test_each_condition_of_a_rewrite_is_checked_in_order():
    _, pair = made(time="tuple(2)")
    batch = built(pair, pairs((1, 1)), lower=[(0, 0)], upper=[(9, 9)])
    for frontier in (Frontier.of((0, 0)), Frontier.of((99, 99)), Frontier()):
        with pytest.raises(InvalidRewrite, match="no total order"):
            batch.rewrite_times(frontier, Frontier.of((9, 9)))
    batch.delete()

    _, c = made()
    batch = built(c, many(0), lower=2, upper=10)
    batch.rewrite_times(Frontier.of(4), Frontier.of(10))
    before = batch.hollow
    for frontier, new_upper, reason in (
        # Each breaks its rule and every later one that it can.
        (Frontier.of(9), Frontier.of(9), r"\[9\] is not before the new upper \[9\]"),
        (Frontier(), Frontier(), r"\[\] is not before the new upper \[\]"),
        (Frontier.of(1), Frontier.of(9), r"the new upper \[9\] is before the batch's \[10\]"),
        (Frontier.of(1), Frontier.of(10), r"the frontier \[1\] is before the batch's lower \[2\]"),
        (Frontier.of(3), Frontier.of(10), r"\[3\] is before that of an earlier rewrite, \[4\]"),
    ):
        with pytest.raises(InvalidRewrite, match=reason):
            batch.rewrite_times(frontier, new_upper)
        assert batch.hollow == before
    folded = Bounds(before.bounds.lower, before.bounds.upper, Frontier.of(1))
    data = encode_record("batch", SentBatch(c.id, HollowBatch(folded, before.runs)))
    batch.to_bytes()
    batch = c.distributed.batch_from_bytes(data)
    with pytest.raises(InvalidRewrite, match=r"the batch was folded to \[1\]"):
        batch.rewrite_times(Frontier.of(3), Frontier.of(10))
    batch.delete()


def test_a_rewritten_batch_keeps_its_upper_and_raises_its_lower_to_the_rewrite():
    _, c = made()
    c.append(at(3, 100))
    assert c.upper == Frontier.of(4)

    def rewritten():
        batch = built(c, spread())
        batch.rewrite_times(Frontier.of(4), Frontier.of(20))
        return batch

    batch = rewritten()
    for lower, upper, reason in (
        (4, 19, "so the upper must be the batch's"),
        (5, 20, "rewritten to 4, which lies before that"),
        (4, 21, "narrowed, not widened"),
    ):
        with pytest.raises(
            InvalidBatchBounds, match=rf"\[\[0\], \[20\]\) .* to \[\[{lower}\], \[{upper}\]\): .*{reason}"
        ):
            c.distributed.append_batches([batch], lower=lower, upper=upper)
    c.distributed.append_batches([batch], lower=4, upper=20)
    assert not any(run.truncated for item in c.state().spine for run in item.batch.runs)
    assert times(c, 20) == sorted([(100, 3), *((n, max(n, 4)) for n in range(10))])


# Narrowed


def test_only_what_lies_inside_a_narrower_append_is_read():
    _, c = made()
    c.append(at(3, 100))
    batch = built(c, spread(), upper=[])
    c.distributed.append_batches([batch], lower=4, upper=8)
    assert times(c, 8) == [(4, 4), (5, 5), (6, 6), (7, 7), (100, 3)]
    hollow = [item.batch for item in c.state().spine][-1]
    assert [run.truncated for run in hollow.runs] == [True]
    assert hollow.diff_sum is None and hollow.rows == 10
    c.append(at(8, 8))
    assert c.merge().applied
    assert times(c, 9) == [(4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (100, 3)]


def test_a_run_whose_times_lie_inside_anyway_is_not_truncated():
    for time, upper in (("counter", [8]), ("tuple(2)", [(6, 6)])):
        _, c = made(time=time)
        table = spread().slice(2, 3) if time == "counter" else pairs((2, 2), (3, 4))
        batch = built(c, table, lower=c.domain.minimum, upper=[])
        c.distributed.append_batches([batch], lower=c.domain.minimum, upper=upper)
        (item,) = c.state().spine
        assert [run.truncated for run in item.batch.runs] == [False]
        assert item.batch.diff_sum == table.num_rows == c.updates(c.domain.minimum, upper).read_all().num_rows


def test_parts_wholly_outside_are_left_out_and_deleted():
    place, c = made()
    batch = built(c, many(0, time=1), many(1000, time=5), many(2000, time=9), is_sorted=True)
    parts = list(batch.hollow.parts())
    kept = {p.name for p in parts if p.time_lower <= 5 <= p.time_upper}
    assert 0 < len(kept) < len(parts)
    c.distributed.append_batches([built(c)], lower=0, upper=2)
    c.distributed.append_batches([batch], lower=2, upper=8)
    assert stored(place, c) == kept
    assert [i for i, _ in times(c, 8)] == list(range(1000, 1500))


def test_nothing_is_left_out_of_the_store_when_the_append_is_refused():
    place, c = made()
    batch = built(c, many(0, time=1), many(1000, time=5))
    with pytest.raises(UpperMismatch):
        c.distributed.append_batches([batch], lower=2, upper=8)
    assert stored(place, c) == set(batch.part_names)
    c.distributed.append_batches([batch], lower=0, upper=8)
    assert len(ids(c)) == 1000


def test_widening_is_refused_with_both_intervals():
    _, c = made()
    batch = built(c, many(0), lower=2, upper=10)
    for lower, upper in ((1, 9), (2, 11), (0, 12), (2, [])):
        with pytest.raises(
            InvalidBatchBounds, match=r"a batch of \[\[2\], \[10\]\) cannot be appended to \["
        ):
            c.distributed.append_batches([batch], lower=lower, upper=upper)
    with pytest.raises(InvalidBatchBounds, match="no time lies in that"):
        c.distributed.append_batches([batch], lower=5, upper=5)
    with pytest.raises(UsageError, match=r"lower frontier \[6\] is not at or before the upper \[5\]"):
        c.distributed.append_batches([batch], lower=6, upper=5)
    batch.delete()
    _, pair = made(time="tuple(2)")
    batch = built(pair, pairs((1, 1)), lower=[(1, 0)], upper=[(9, 9)])
    with pytest.raises(InvalidBatchBounds):
        pair.distributed.append_batches([batch], lower=(0, 0), upper=[(9, 9)])
    batch.delete()


# Refusals, and failures of the store


def test_after_a_refusal_the_batches_are_the_callers_as_before():
    _, c = made()
    c.append(at(0, 1))
    batches = [built(c, many(1000, time=2)), built(c, many(2000, time=3))]
    with pytest.raises(UpperMismatch) as caught:
        c.distributed.append_batches(batches, lower=0, upper=10)
    assert caught.value.current == Frontier.of(1)
    c.distributed.append_batches(batches, lower=1, upper=10)
    assert len(ids(c)) == 1001


def test_a_conflict_that_is_met_only_at_the_commit_gives_the_batches_back(monkeypatch):
    place, c = made()
    batch = built(c, many(0))
    monkeypatch.setattr(inside.shard(c), "preview", lambda command: None)
    place.lake(config=SMALL).collection("c").append(at(0, 9_999))
    with pytest.raises(UpperMismatch):
        c.distributed.append_batches([batch], lower=0, upper=10)
    c.distributed.append_batches([batch], lower=1, upper=10)
    assert len(ids(c)) == 501


def test_what_is_no_batch_of_this_shard_or_given_twice_is_refused():
    place, c = made()
    other = place.lake(config=SMALL).create("d", SCHEMA, key=["id"])
    batch = built(c, many(0))
    with pytest.raises(UsageError, match="a bytes is no batch"):
        c.distributed.append_batches([batch, b"x"], lower=0, upper=10)
    with pytest.raises(UsageError, match=f"for shard {c.id} cannot be appended to {other.id}"):
        other.distributed.append_batches([batch], lower=0, upper=10)
    with pytest.raises(UsageError, match="a batch is given twice"):
        c.distributed.append_batches([batch, batch], lower=0, upper=10)
    empty = built(c)
    with pytest.raises(BatchConsumed):
        c.distributed.append_batches([batch, empty, empty], lower=0, upper=10)
    c.distributed.append_batches([batch, empty], lower=0, upper=10)  # a refusal of one gives all back
    assert len(ids(c)) == 500


@pytest.mark.promise(
    "Of several copies of one batch only one is appended, also when its parts were merged away and deleted",
    rule="`shard/writing/batches.py`",
    also=[
        "::test_copies_of_a_batch_whose_parts_are_merged_away_are_still_refused",
        "::test_a_copy_is_refused_if_the_other_one_comes_in_while_it_looks",
    ],
)
def test_copies_of_the_same_bytes_are_appended_once():
    _, c = made()
    data = built(c, spread(), upper=[]).to_bytes()
    first, second, third = (c.distributed.batch_from_bytes(data) for _ in range(3))
    with pytest.raises(UsageError, match="given twice"):
        c.distributed.append_batches([first, second], lower=0, upper=5)
    c.distributed.append_batches([first], lower=0, upper=5)
    with pytest.raises(UsageError, match="was taken in before"):
        c.distributed.append_batches([second], lower=5, upper=10)
    assert times(c, 5) == [(n, n) for n in range(5)]
    for copy in (second, third):
        copy.take("left alone")


@pytest.mark.parametrize("gone", ["merged", "collected"])
def test_copies_of_a_batch_whose_parts_are_merged_away_are_still_refused(gone):
    world = World(config=replace(CONFIG, part_target_bytes=1024))
    batch = built(world.c, many(1, time=1), many(1000, time=5), is_sorted=True)
    data = batch.to_bytes()
    world.c.distributed.append_batches([world.c.distributed.batch_from_bytes(data)], lower=0, upper=5)
    world.c.append(at(5, 2000), upper=6)
    before = ids(world.c)
    world.c.merge()
    if gone == "collected":
        world.later(GARBAGE_S)
        assert world.c.collect().blobs
    late = world.process()
    copy = late.distributed.batch_from_bytes(data)
    with pytest.raises(UsageError, match="was taken in before"):
        late.distributed.append_batches([copy], lower=6, upper=10)
    assert ids(world.process()) == before
    copy.take("left alone")


def test_a_copy_is_refused_if_the_other_one_comes_in_while_it_looks():
    """Between the state that it looks at and its own commit."""
    world = World(config=replace(CONFIG, part_target_bytes=1024))
    data = built(world.c, many(1, time=1), many(1000, time=5), is_sorted=True).to_bytes()
    late, other = world.process(), world.process()
    copy = late.distributed.batch_from_bytes(data)

    def others():
        other.distributed.append_batches([other.distributed.batch_from_bytes(data)], lower=0, upper=5)

    with before(world.place.stores.blobs, "get", others) as calls, pytest.raises(AlreadyTaken):
        late.distributed.append_batches([copy], lower=0, upper=10)
    assert calls[0] and len(ids(world.process())) == 500
    with pytest.raises(UsageError, match="was taken in before"):
        late.distributed.append_batches([copy], lower=5, upper=10)
    copy.take("left alone")


def test_what_a_copy_leaves_out_of_its_append_is_not_deleted_by_a_stalled_process():
    """Between the commit and the deletion: what it left out may be in by another copy."""
    world = World(config=replace(CONFIG, part_target_bytes=1024))
    data = built(world.c, many(1, time=1), many(1000, time=5), is_sorted=True).to_bytes()
    copy = world.c.distributed.batch_from_bytes(data)
    world.c.distributed.append_batches([copy], lower=0, upper=5)
    assert {*copy.part_names} <= world.stored()


@pytest.mark.promise(
    "A copy that is refused, deleted or narrowed takes no part from another copy",
    rule="`shard/writing/batch.py`, `shard/writing/batches.py`",
    also=["::test_what_a_copy_leaves_out_of_its_append_is_not_deleted_by_a_stalled_process"],
)
def test_a_copy_that_was_refused_deletes_nothing_that_the_other_one_appended():
    world = World()
    data = built(world.c, many(0, time=1)).to_bytes()
    winner, loser = (
        world.c.distributed.batch_from_bytes(data),
        world.process().distributed.batch_from_bytes(data),
    )
    world.c.distributed.append_batches([winner], lower=0, upper=10)
    with pytest.raises(AlreadyTaken):
        world.process().distributed.append_batches([loser], lower=0, upper=10)
    loser.delete()
    assert len(ids(world.process())) == 500


def test_after_an_unknown_outcome_a_batch_counts_as_used():
    faults = FaultPlan()
    place, c = made(faults=faults)
    batch = built(c, many(0))
    faults.rates_by_operation = {
        "log.compare_and_set": {Fault.UNKNOWN_AFTER: 1.0},
        "log.newer": {Fault.UNAVAILABLE: 1.0},
    }
    inside.shard(c).preview = lambda command: None
    with pytest.raises(OutcomeUnknown):
        c.distributed.append_batches([batch], lower=0, upper=10)
    faults.rates_by_operation = {}
    with pytest.raises(BatchConsumed):
        batch.delete()
    assert len(ids(place.lake().collection("c"))) == 500  # it was in


def test_after_a_failure_that_certainly_did_nothing_a_batch_may_be_offered_again():
    faults = FaultPlan()
    place, c = made(faults=faults)
    batch = built(c, many(0))
    faults.rates_by_operation = {"log.compare_and_set": {Fault.UNAVAILABLE: 1.0}}
    with pytest.raises(StoreUnavailable):
        c.distributed.append_batches([batch], lower=0, upper=10)
    faults.rates_by_operation = {}
    c.distributed.append_batches([batch], lower=0, upper=10)
    assert len(ids(c)) == 500
    # Deleting after such a failure leaves the parts: one too many does no harm.
    batch = built(c, many(1000, time=12), lower=10, upper=20)
    names = set(batch.part_names)
    faults.rates_by_operation = {"log.compare_and_set": {Fault.UNAVAILABLE: 1.0}}
    with pytest.raises(StoreUnavailable):
        c.distributed.append_batches([batch], lower=10, upper=20)
    batch.delete()
    assert names <= stored(place, c)


def test_a_failure_before_anything_was_tried_leaves_the_batch_as_it_was():
    faults = FaultPlan()
    place, c = made(faults=faults)
    c.append(at(0, 1))
    batch = built(c, many(0))
    faults.rates_by_operation = {"log.newer": {Fault.UNAVAILABLE: 1.0}}
    with pytest.raises(StoreUnavailable):
        c.distributed.append_batches([batch], lower=0, upper=10)  # not the upper: it would look again
    batch.delete()
    assert stored(place, c) & set(batch.part_names) == set()


# Named writers, and uploads


def test_a_numbered_append_of_batches_is_in_once():
    place, c = made()
    writer = c.writer("w")
    writer.append_batches([built(c, many(0))], lower=0, upper=10, sequence=0)
    again = built(c, many(0))
    names = set(again.part_names)
    assert writer.append_batches([again], lower=0, upper=10, sequence=0).already
    with pytest.raises(BatchConsumed):
        again.delete()
    assert names <= stored(place, c)  # they might have been the ones that are in
    c.writer("w")
    batch = built(c, many(1000, time=12), lower=10, upper=20)
    with pytest.raises(WriterFenced):
        writer.append_batches([batch], lower=10, upper=20)
    c.distributed.append_batches([batch], lower=10, upper=20)
    assert len(ids(c)) == 1000


@pytest.fixture
def uploading():
    lake = tidelake.open("memory://uploading-" + Place().lake().url[9:])
    return lake, lake.create("c", SCHEMA, key=["id"])


def test_uploads_outside_of_the_append_are_refused_and_not_truncated(uploading):
    _, c = uploading
    upload = c.distributed.uploader().upload(spread().to_batches())
    with pytest.raises(UpdateNotBeforeUpper):
        c.distributed.append_uploaded([upload], lower=0, upper=9)
    c.append(at(0, 100))
    with pytest.raises(UpdateBeforeLower):
        c.distributed.append_uploaded([upload], lower=1, upper=10)
    with pytest.raises(UpperMismatch):
        c.distributed.append_uploaded([upload], lower=0, upper=10)
    upload = c.distributed.uploader().upload(spread().slice(1).to_batches())
    c.distributed.append_uploaded([upload, b""], lower=1, upper=10)
    assert len(ids(c)) == 10


def test_uploads_of_another_shard_or_of_nothing(uploading):
    lake, c = uploading
    other = lake.create("d", SCHEMA, key=["id"])
    upload = c.distributed.uploader().upload(spread().to_batches())
    with pytest.raises(UsageError, match=f"for shard {c.id} cannot be used with {other.id}"):
        other.distributed.append_uploaded([upload], lower=0, upper=10)
    assert c.distributed.uploader().upload(iter(())) == b""
    cancelled = pa.concat_tables([at(1, 1), at(1, 1, diff=-1)])
    assert c.distributed.uploader().upload(cancelled.to_batches()) == b""


def test_an_upload_of_tuple_times_is_for_the_interval_that_it_was_checked_against():
    lake = tidelake.open("memory://tuple-uploads")
    c = lake.create("c", SCHEMA, key=["id"], time="tuple(2)")
    lower, upper = (0, 0), [(4, 0), (0, 4)]
    table = pairs((0, 3), (3, 0))
    for uploader, match in (
        (c.distributed.uploader(), r"\[\[\(0, 0\)\], \[\]\)"),
        (c.distributed.uploader(lower, [(9, 9)]), "same"),
    ):
        upload = uploader.upload(table.to_batches())
        with pytest.raises(UsageError, match=match):
            c.distributed.append_uploaded([upload], lower=lower, upper=upper)
    with pytest.raises(UpdateNotBeforeUpper):
        c.distributed.uploader(lower, [(3, 0), (0, 9)]).upload(table.to_batches())
    c.distributed.append_uploaded(
        [c.distributed.uploader(lower, upper).upload(table.to_batches())], lower=lower, upper=upper
    )
    assert c.updates(lower, upper).read_all().num_rows == 2


def test_an_upload_that_fails_leaves_nothing(uploading):
    lake, c = uploading
    small = tidelake.open(lake.url, config=SMALL).collection("c")

    def broken():
        for n in range(10):
            yield from many(n * 500).to_batches()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        small.distributed.uploader().upload(broken())
    with pytest.raises(UpdateBeforeLower):
        small.distributed.uploader(lower=5).upload(spread().to_batches())
    assert not list(inside.stores(lake).blobs.list(f"{c.id}/parts/"))


# Inline parts in a shard


def test_inline_parts_are_read_by_key_range_rewritten_truncated_and_merged():
    place, c = made(Config())
    first = built(c, spread())
    assert all(part.inline is not None for part in first.hollow.parts())
    first.rewrite_times(Frontier.of(3), Frontier.of(10))
    c.distributed.append_batches([first], lower=0, upper=10)
    c.distributed.append_batches(
        [built(c, *(at(10 + n, 10 + n) for n in range(10)), upper=99)], lower=10, upper=15
    )
    expected = [(n, max(n, 3)) for n in range(15)]
    assert times(c, 15) == expected and stored(place, c) == set()
    assert c.merge().applied
    assert times(c, 15) == expected and len(stored(place, c)) == 1
    assert all(part.inline is None for item in c.state().spine for part in item.batch.parts())


@pytest.mark.promise(
    "Inline parts stay below their total; an append that would reach it makes room first, or is stored",
    rule="`make_room`, `InlineFull`",
    also=["::test_what_is_inline_and_larger_than_the_total_is_stored"],
)
def test_inline_parts_that_reach_the_total_are_merged_into_stored_ones_first():
    place, c = made(Config(inline_total_bytes=8_000, merge_budget_s=0))
    most, flushes, before = 0, 0, 0
    for n in range(100):
        c.append(at(n, n))
        totals = c.state().spine.totals
        most = max(most, totals.inline_bytes)
        if totals.inline_bytes < before:
            # All that was inline is stored; only the append itself is inline now.
            assert sum(item.batch.inline_bytes > 0 for item in c.state().spine) == 1
            flushes += 1
        before = totals.inline_bytes
    assert 4_000 < most < 8_000 and 2 <= flushes <= 10
    assert 0 < len(stored(place, c)) < 100
    assert times(c, 100) == [(n, n) for n in range(100)]


def test_what_is_inline_and_larger_than_the_total_is_stored():
    place, c = made(Config(inline_total_bytes=500, merge_budget_s=0))
    c.append(at(0, 0))
    c.distributed.append_batches(
        [built(c, *(at(n, n) for n in range(1, 60)), lower=1, upper=60)], lower=1, upper=60
    )
    assert c.state().spine.totals.inline_bytes == 0 and len(stored(place, c)) == 2
    assert times(c, 60) == [(n, n) for n in range(60)]


def test_tiny_merges_of_inline_parts_stay_inline():
    place, c = made(Config())
    for n in range(64):
        c.append(at(n, n))
    totals = c.state().spine.totals
    assert totals.runs < 40 and totals.rows == 64 and totals.inline_bytes == totals.size_bytes
    assert stored(place, c) == set() and times(c, 64) == [(n, n) for n in range(64)]


def test_inline_parts_that_find_no_room_may_become_several_stored_ones():
    place = Place()
    config = Config(
        inline_part_bytes=65_536, inline_total_bytes=1024, row_group_rows=16, part_target_bytes=1024
    )
    lake = place.lake(config=config)
    c = lake.create("c", SCHEMA, key=["id"])
    c.append(rows(*range(1_500)))
    ((run,),) = [member.batch.runs for member in c.state().spine]
    assert len(run.parts) > 1 and all(part.inline is None for part in run.parts)
    assert ids(c) == dict.fromkeys(range(1_500), 1)
    assert stored(place, c) == {part.name for part in run.parts}


def test_a_damaged_inline_part_is_named(monkeypatch):
    from tidelake.data.part import inline

    _, c = made(Config())
    c.append(rows(1, 2))
    (part,) = next(iter(c.state().spine)).batch.parts()
    monkeypatch.setattr(inline.pa.ipc, "read_record_batch", lambda *a: pa.record_batch({"x": [1]}))
    with pytest.raises(CorruptionError, match=part.name):
        c.snapshot().read_all()


def test_times_of_uploads_may_be_advanced_to_the_upper_that_they_are_appended_at(uploading):
    _, c = uploading
    upload = c.distributed.uploader().upload(spread().to_batches())
    c.append(at(3, 100), upper=4)
    with pytest.raises(UpdateNotBeforeUpper):
        c.distributed.append_uploaded([upload], lower=4, upper=9, advance=True)
    c.distributed.append_uploaded([upload], lower=4, upper=10, advance=True)
    assert times(c, 10)[:10] == [(n, max(n, 4)) for n in range(10)]
    # Also after a merge has written it so.
    before = times(c, 10)
    c.merge()
    assert times(c, 10) == before


def test_what_cancels_once_its_times_are_advanced_is_not_there(uploading):
    _, c = uploading
    table = pa.concat_tables([at(0, 1), at(3, 1, diff=-1), at(3, 2)])
    upload = c.distributed.uploader().upload(table.to_batches())
    c.append(at(4, 99))
    c.distributed.append_uploaded([upload], lower=5, upper=6, advance=True)
    assert times(c, 6) == [(2, 5), (99, 4)]


def test_tuple_times_are_not_advanced():
    c = tidelake.open("memory://advance-tuples").create("c", SCHEMA, key=["id"], time="tuple(2)")
    with pytest.raises(UsageError, match="cannot be advanced"):
        c.distributed.append_uploaded([], lower=(1, 1), upper=(2, 2), advance=True)

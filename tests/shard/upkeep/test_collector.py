"""Collection: what goes, what stays, and that neither crashes nor stalled processes change either."""

import contextlib
from dataclasses import replace
from functools import partial

import pytest
from collecting import CONFIG, GARBAGE_S, UPLOAD_S, World, before, named
from hypothesis import given, settings
from hypothesis import strategies as st

import inside
from tables import ids, rows
from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from threads import at_once
from tidelake.errors import (
    CorruptionError,
    LeaseExpired,
    OutcomeUnknown,
    StoreUnavailable,
    UploadExpired,
    UsageError,
)
from tidelake.model import names
from tidelake.model.frontier import Frontier
from tidelake.shard.runs.upload import write_table
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.compactor import Workers
from tidelake.shard.upkeep.reports import CollectReport
from tidelake.state.core import commands
from tidelake.state.life import collecting, holds
from tiers import examples, some

WRITES = ("log.compare_and_set", "log.truncate", "log.delete", "blob.put", "blob.delete")


def calls(c, *operations):
    return sum(inside.shard(c).env.recorder.counts[name] for name in operations)


def open_hold(c, hold_id="slow", **more):
    return inside.run(c, partial(holds.open_hold, hold_id=hold_id, purpose="t", lease_ms=10**9, **more))


def leak(c, value=-1):
    """What a process uploads that dies before it appends: the names of the parts."""
    shard = inside.shard(c)
    table = rows(value).append_column("_time", [[0]]).append_column("_diff", [[1]])
    runs = write_table(
        shard.version_of(shard.known()).spec, shard.stores.blobs, shard.env, table.cast(c.update_schema)
    )
    return {part.name for run in runs for part in run.parts}


# What goes


@pytest.mark.promise(
    "3",
    rule="`Collector.run`",
    also=[
        "::test_uploads_that_were_not_appended_go_when_they_are_old_enough",
        "::test_the_log_is_truncated_to_the_oldest_rollup_that_is_left",
        "lake/catalog/test_drop.py::test_objects_whose_shard_has_no_log_go_when_they_are_old_enough",
    ],
)
def test_after_maintenance_of_an_idle_shard_only_what_the_state_names_is_left():
    world = World(40)
    parts_before = {name for name in world.stored() if names.uploaded_at(name) is not None}
    report = world.c.maintain()
    assert report.collected == CollectReport() and parts_before <= world.stored()  # too young
    world.later(GARBAGE_S)
    report = world.c.collect()
    assert report.blobs >= 40 and report.entries > 0 and not parts_before & world.stored()
    world.later(GARBAGE_S)
    world.c.maintain()
    world.check_clean()


def test_garbage_that_is_younger_than_the_age_stays():
    world = World(10)
    world.c.merge()
    held = world.stored()
    world.later(GARBAGE_S - 0.001)
    assert not world.c.collect().total and world.stored() == held
    world.later(0.001)
    assert world.c.collect().blobs >= 10


@pytest.mark.promise("4", rule="`raise_floor`")
def test_maintenance_of_an_idle_shard_comes_to_rest_and_writes_nothing_more():
    world = World(30)
    leak(world.c)
    world.tidy_up()
    world.check_clean()
    c = world.process()
    c.maintain()
    costs = dict(inside.shard(c).env.recorder.counts)
    for _ in range(5):
        assert not c.maintain().collected.total
    counts = inside.shard(c).env.recorder.counts
    assert {name for name in counts if counts[name] != costs.get(name, 0)} <= {
        "log.newer",
        "log.newer.entries",
        "log.newer.bytes",
    }
    for _ in range(20):
        world.later(UPLOAD_S)
        c.maintain()
    assert calls(c, *WRITES) == sum(costs.get(name, 0) for name in WRITES)


def test_the_log_is_truncated_to_the_oldest_rollup_that_is_left():
    world = World(config=replace(CONFIG, rollup_bytes_min=10**6))
    shard = inside.shard(world.c)
    for _ in range(3):
        world.append()
        shard.write_rollup()
    assert world.entries()[0] == 0
    state = world.c.state()
    oldest = min(names.rolled_up_at(name) for name in state.garbage)
    world.later(GARBAGE_S)
    world.append()
    shard.write_rollup()  # one more that is young
    young = {name for name, found in world.c.state().garbage.items() if found.removed_ms == world.clock.ms}
    report = world.c.collect()
    (left,) = young
    assert report.blobs == 2 and world.entries()[0] == names.rolled_up_at(left) > oldest
    world.check_readable()


@pytest.mark.promise(
    "A reader keeps parts, but neither the log nor rollups", rule="`_left` in `state/core/edits.py`"
)
def test_a_reader_keeps_parts_and_not_the_log():
    world = World(5)
    with world.process().reader("slow") as reader:
        pinned = world.c.state()
        world.append()
        world.c.merge()
        inside.write_rollup(world.c)
        world.later(GARBAGE_S)
        assert world.c.collect().entries > 0
        # Of the state that is read there is no entry and no rollup any more, and all of its parts.
        assert world.entries()[0] > pinned.seqno
        assert {part.name for m in pinned.spine for part in m.batch.parts()} <= world.stored()
        assert ids(reader, 4) == dict.fromkeys(range(5), 1)
    world.check_readable()


def test_without_a_rollup_the_log_stays_whole():
    world = World(3, replace(CONFIG, rollup_bytes_min=10**6))
    world.c.merge()
    assert world.c.state().rollup.size_bytes == 0
    world.later(GARBAGE_S)
    assert world.c.collect(thorough=True).blobs == 3
    assert world.entries()[0] == 0
    world.check_readable()


def test_many_blobs_take_several_commits(monkeypatch):
    monkeypatch.setattr("tidelake.shard.upkeep.collector._NAMES_MAX", 7)
    world = World(30)
    world.c.merge()
    world.later(GARBAGE_S)
    before_ = calls(world.c, "log.compare_and_set")
    assert world.c.collect().blobs >= 30
    assert calls(world.c, "log.compare_and_set") - before_ >= 2 * (30 // 7)
    assert max(len(e.data) for e in world.place.stores.log.scan(world.id, world.c.state().seqno - 8)) < 2048


# What stays


@pytest.mark.promise(
    "A slow reader keeps its parts, and no others",
    rule="`free`",
    also=["::test_a_state_that_has_lost_a_part_is_never_pinned"],
)
def test_a_slow_reader_keeps_what_it_reads_and_other_garbage_goes():
    world = World(5)
    open_hold(world.c)
    (pin,) = world.c.state().holds["slow"].pins
    read = {part.name for member in world.c.state().spine for part in member.batch.parts()}
    for _ in range(3):
        world.append()
        world.append()
        world.c.merge()
    world.later(GARBAGE_S)
    world.c.collect()
    state = world.c.state()
    assert read <= world.stored()
    assert {name for name in state.garbage if names.uploaded_at(name) is not None} == read
    assert all(state.garbage[name].read_by(pin) for name in read)
    inside.run(world.c, partial(holds.close_hold, hold_id="slow"))
    world.c.collect()
    assert not read & world.stored()


def test_a_state_that_has_lost_a_part_is_never_pinned():
    world = World(5)
    past = world.c.state().seqno
    world.c.merge()
    world.later(GARBAGE_S)
    open_hold(world.c, "early", pins=(past,))
    inside.run(world.c, partial(holds.close_hold, hold_id="early"))
    world.c.collect()
    with pytest.raises(LeaseExpired):
        open_hold(world.c, "late", pins=(past,))


# Leaked uploads


def test_uploads_that_were_not_appended_go_when_they_are_old_enough():
    world = World(3)
    lost = leak(world.c)
    c = world.process()
    assert c.collect(thorough=True).leaked == 0
    world.later(UPLOAD_S - 0.001)
    assert not c.collect(thorough=True).leaked and lost <= world.stored()
    world.later(0.001)
    report = c.collect()  # a mark is due, so it looks without being asked
    assert report.leaked == 1 and report.leaked_bytes > 0 and not lost & world.stored()
    world.check_readable()


@pytest.mark.promise("An upload that is appended while the floor rises stays", rule="`Collector._leaked`")
def test_an_upload_that_comes_in_between_the_listing_and_the_floor_stays():
    world = World(3)
    slow = world.process()
    table = rows(99).append_column("_time", [[3]]).append_column("_diff", [[1]]).cast(slow.update_schema)
    batch = slow.builder(lower=3)
    batch.add(table)
    built = batch.finish(Frontier.of(4))
    assert built.part_names
    c = world.process()
    c.collect(thorough=True)
    world.later(UPLOAD_S)
    # The mark is old: this run lists the upload, and then raises the floor past it.
    with before(
        world.place.stores.log,
        "compare_and_set",
        lambda: slow.distributed.append_batches([built], lower=3, upper=4),
    ):
        report = c.collect(thorough=True)
    assert c.state().sweep.floor > min(names.uploaded_at(name) for name in built.part_names)
    assert report.leaked == 0 and set(built.part_names) <= world.stored()
    world.held.add(99)
    world.check_readable()


def swept(world):
    """Two collections a long time apart, by another process, so that what was uploaded before is refused."""
    c = world.process()
    c.collect(thorough=True)
    world.later(UPLOAD_S)
    c.collect(thorough=True)
    return c


@pytest.mark.promise(
    "Collection 2: writers, mergers and rollups that come late",
    rule="`too_late`, `add_rollup`, `floor-never-goes-back`",
    also=[
        "::test_a_stalled_merger_resurrects_nothing",
        "::test_a_stalled_writer_of_rollups_adds_nothing_old",
    ],
)
def test_a_stalled_writer_resurrects_nothing_and_uploads_again():
    world = World(3)
    slow = world.process()
    blobs = world.place.stores.blobs
    # The upload is there; the writer stalls before its commit.
    with before(world.place.stores.log, "compare_and_set", lambda: swept(world)):
        slow.append(rows(7))
    world.held.add(7)
    assert world.c.state().sweep.floor > 0
    world.check_readable()
    assert all(blobs.get(name) for name in named(world.c.state()))


@pytest.mark.promise(
    "An upload that was given up is certainly not in",
    rule="`NOT_IN`",
    also=["::test_what_workers_uploaded_long_ago_is_refused_clearly"],
)
def test_an_upload_that_is_given_up_leaves_the_number_of_a_writer_usable():
    world = World(3)
    slow = world.process()
    writer = slow.writer("w")
    table = rows(7).append_column("_time", [[3]]).append_column("_diff", [[1]])
    builder = slow.builder(lower=3)
    builder.add(table.cast(slow.update_schema))
    built = builder.finish(Frontier.of(4))
    swept(world)
    with pytest.raises(UploadExpired, match="upload again"):
        writer.append_batches([built], lower=3, upper=4)
    # Nothing was used up: neither the batch, which can be deleted, nor the number.
    built.delete()
    assert writer.append(rows(8)).lower.elements == (3,)
    assert writer.last_sequence == 0
    world.held.add(8)
    world.check_readable()


def test_what_workers_uploaded_long_ago_is_refused_clearly():
    world = World(3)
    slow = world.process()
    builder = slow.builder(lower=3)
    builder.add(rows(7).append_column("_time", [[3]]).append_column("_diff", [[1]]).cast(slow.update_schema))
    sent = builder.finish(Frontier.of(4)).to_bytes()
    swept(world)
    with pytest.raises(UploadExpired, match="uploaded under version"):
        slow.distributed.append_uploaded([sent], lower=3, upper=4)
    world.check_readable()
    world.tidy_up()
    world.check_clean()


def test_a_stalled_merger_resurrects_nothing():
    world = World(6)
    slow = world.process()
    with before(world.place.stores.log, "compare_and_set", lambda: swept(world), 2):
        slow.merge()
    world.check_readable()
    world.tidy_up()
    world.check_clean()


@pytest.mark.promise(
    "Collection 1: the recorded parts of a merge under way, and a rollup that is about to be added, stay",
    rule="`_unnamed`, `_may_still_be_added` in `shard/upkeep/collector.py`",
    also=["::test_a_rollup_that_is_about_to_be_added_stays"],
)
def test_what_a_merge_that_is_under_way_has_recorded_stays():
    config = replace(
        CONFIG, part_target_bytes=4096, row_group_rows=8, merge_chunk_rows=16, merge_claim_rows=0
    )
    world = World(config=config)
    c, done = world.process(config=config), []
    for n in range(4):
        c.append(rows(*range(n, 240, 4)))

    def dies(tasks):
        if len(done) == 2:
            raise SimulatedCrash("in a merge")
        done.append(tasks)
        return Workers.here(inside.shard(c)).run(tasks)

    with pytest.raises(SimulatedCrash):
        c.merge(Workers(dies))
    chunks = {part.name for parts in c.state().chunks.values() for part in parts}
    lost = leak(c)
    swept(world)
    assert c.state().sweep.floor > max(names.uploaded_at(name) for name in chunks)
    assert len(chunks) >= 2 and chunks <= world.stored() and not lost & world.stored()
    world.held.update(range(240))
    world.process(config=config).merge()
    world.check_readable()


def test_a_stalled_writer_of_rollups_adds_nothing_old():
    world = World(3)
    slow = world.process()
    rollup = inside.shard(slow)._history.write_rollup(slow.state())
    name = names.rollup(world.id, rollup.seqno, rollup.id)
    world.append()
    inside.write_rollup(world.c)
    # Refused from now on, so it can go at once.
    assert world.process().collect(thorough=True).leaked == 1 and name not in world.stored()
    assert inside.run(slow, partial(commands.add_rollup, rollup=rollup)) is False
    assert slow.state().rollup.seqno > rollup.seqno
    world.check_readable()


def test_a_rollup_that_is_about_to_be_added_stays():
    world = World(3)
    slow = world.process()
    rollup = inside.shard(slow)._history.write_rollup(slow.state())
    world.process().collect(thorough=True)
    assert inside.run(slow, partial(commands.add_rollup, rollup=rollup)) is True
    world.check_readable()


def test_a_rollup_whose_writer_died_goes_also_if_no_newer_one_is_due():
    world = World(3, replace(CONFIG, rollup_bytes_min=10**6))
    slow = world.process()
    rollup = inside.shard(slow)._history.write_rollup(slow.state())
    world.later(UPLOAD_S + 1)
    world.process().collect(thorough=True)
    assert names.rollup(world.id, rollup.seqno, rollup.id) not in world.stored()
    assert inside.run(slow, partial(commands.add_rollup, rollup=rollup)) is False
    world.check_readable()


def test_objects_of_others_in_the_folder_are_left_alone():
    world = World(3)
    world.place.stores.blobs.put(f"{world.id}/parts/notes.txt", b"x")
    world.tidy_up()
    assert f"{world.id}/parts/notes.txt" in world.stored()


# Crashes, stalls and failures


def messy():
    """A world in which every kind of work is to be done."""
    world = World(6)
    inside.write_rollup(world.c)
    world.c.merge()
    leak(world.c)
    world.process().collect(thorough=True)
    world.append()
    inside.write_rollup(world.c)
    rollup = inside.shard(world.c)._history.write_rollup(world.c.state())
    world.append()
    inside.write_rollup(world.c)
    assert rollup.seqno < world.c.state().rollup.seqno
    world.later(UPLOAD_S)
    return world


def store_calls_of_a_collection():
    world = messy()
    plan = FaultPlan()
    c = world.process(plan)
    before = len(plan.calls)
    report = c.collect()
    assert report.blobs and report.leaked and report.entries
    return plan.calls[before:]


CALLS = store_calls_of_a_collection()


@pytest.mark.promise(
    "Collection 1: a crash at any call of the store; failures of deletions",
    rule="`Collector`",
    also=[
        "::test_what_cannot_be_deleted_is_doomed_for_the_next_run",
        "::test_a_blob_that_cannot_be_deleted_does_not_keep_the_others",
        "shard/upkeep/test_far_collector.py::test_an_object_that_cannot_be_deleted_does_not_keep_the_others",
        "shard/upkeep/test_far_collector.py::test_after_a_lost_reply_all_are_deleted_again",
    ],
)
@pytest.mark.parametrize("at", some(range(len(CALLS)), 8, full=2), ids=lambda n: f"{n}-{CALLS[n]}")
def test_a_crash_at_any_call_loses_nothing_and_another_process_finishes(at):
    world = messy()
    plan = FaultPlan()
    c = world.process(plan)
    plan.follow([Fault.NONE] * at + [Fault.CRASH_AFTER])
    with pytest.raises(SimulatedCrash):
        c.collect()
    world.check_readable()
    world.process().collect(thorough=True)
    world.check_readable()
    world.tidy_up()
    world.check_clean()


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_what_cannot_be_deleted_is_doomed_for_the_next_run(fault):
    world = messy()
    plan = FaultPlan(rates_by_operation={"blob.delete": {fault: 1.0}}, rates={})
    c = world.process(plan)
    with pytest.raises((StoreUnavailable, OutcomeUnknown)):
        c.collect()
    assert c.state().doomed
    world.check_readable()
    world.tidy_up()
    world.check_clean()


def test_a_blob_that_cannot_be_deleted_does_not_keep_the_others():
    world = World(6)
    world.c.merge()
    world.later(GARBAGE_S)
    stuck = min(world.c.state().garbage)
    blobs = world.place.stores.blobs
    whole = blobs.delete

    def delete(name):
        if name == stuck:
            raise StoreUnavailable("no permission", False)
        return whole(name)

    blobs.delete = delete
    with pytest.raises(StoreUnavailable, match="no permission"):
        world.c.collect()
    assert set(world.c.state().doomed) == {stuck} and not world.c.state().garbage
    blobs.delete = whole
    assert world.c.collect().blobs == 1 and not world.c.state().doomed


@pytest.mark.promise(
    "Collection 1: a collector that stalls; several at once",
    rule="doomed never goes back (`doomed-once`)",
    also=["::test_several_collectors_at_once_do_no_harm"],
)
def test_a_stalled_collector_destroys_nothing():
    """It has read what is doomed and stalls; others collect, append and merge, for days."""
    world = World(8)
    inside.write_rollup(world.c)
    world.c.merge()
    world.later(GARBAGE_S)
    stalled = world.process()

    def go_on():
        for _ in range(3):
            for _ in range(4):
                world.append()
            inside.write_rollup(world.c)
            world.c.merge()
            world.later(UPLOAD_S)
            world.process().collect(thorough=True)

    with before(world.place.stores.blobs, "delete", go_on, 2):
        stalled.collect()
    world.check_readable()
    # The same at the truncation and at the burial.
    for operation, store in (
        ("truncate", world.place.stores.log),
        ("compare_and_set", world.place.stores.log),
    ):
        inside.write_rollup(world.c)
        world.append()
        inside.write_rollup(world.c)
        world.later(GARBAGE_S)
        with before(store, operation, go_on, 2 if operation == "compare_and_set" else 1):
            world.process().collect()
        world.check_readable()
    world.tidy_up()
    world.check_clean()


def test_several_collectors_at_once_do_no_harm():
    world = messy()
    reports = at_once(lambda c: c.collect(thorough=True), [world.process() for _ in range(6)])
    alone = messy().process().collect(thorough=True)
    # Each object is deleted by one of them.
    assert sum(report.blobs for report in reports) == alone.blobs
    assert sum(report.leaked for report in reports) == alone.leaked
    world.tidy_up()
    world.check_clean()


@pytest.mark.parametrize(("operation", "number"), [("compare_and_set", 2), ("truncate", 1), ("newer", 2)])
def test_a_collector_whose_shard_is_dropped_meanwhile_ends_quietly(operation, number):
    world = messy()
    c = world.process()

    def drop():
        world.place.lake(config=CONFIG, clock=world.clock).drop("c")

    with before(world.place.stores.log, operation, drop, number) as count:
        c.collect(thorough=True)
    assert count[0] == number and c.state().dropped
    assert not world.stored() and not world.entries()


# Beside appends


def test_appends_collect_a_little_if_no_other_process_does():
    world = World()
    config = inside.shard(world.c).spec.config
    busy = world.process(
        config=type(CONFIG)(garbage_age_s=GARBAGE_S, inline_part_bytes=0, merge_inputs_min=2)
    )
    for _ in range(150):
        world.append(busy)
        world.later(2)
    assert config.merge_budget_s == 0
    state = busy.state()
    # Garbage of a hundred seconds, and of the time until the next look.
    assert (
        max((world.clock.ms - g.removed_ms for g in state.garbage.values()), default=0) <= 2_000 * GARBAGE_S
    )
    assert calls(busy, "blob.delete") > 50 and not calls(busy, "blob.list")
    world.check_readable()


@pytest.mark.promise(
    "The cost of an append does not grow with the amount of garbage",
    rule="`beside_append`",
    also=["::test_appends_collect_a_little_if_no_other_process_does"],
)
def test_an_append_looks_for_garbage_now_and_then_only():
    world = World(100)
    world.c.merge()
    c, asked = world.process(), []
    garbage = c.state().garbage
    assert len(garbage) > 100
    collector = Collector(inside.shard(c))
    plain = collecting.doom

    def watched(*args, **more):
        asked.append(1)
        return plain(*args, **more)

    collecting.doom = watched
    try:
        for _ in range(50):
            assert not collector.beside_append().total
        assert len(asked) == 1
        world.later(GARBAGE_S)
        before_ = calls(c, "blob.delete")
        assert 0 < collector.beside_append().blobs == calls(c, "blob.delete") - before_ < 50
    finally:
        collecting.doom = plain


# Opening meanwhile


def replaced(world, times=1):
    """Another process writes rollups, and collects the ones before and their log entries."""
    for _ in range(times):
        world.append()
        inside.write_rollup(world.c)
        world.later(GARBAGE_S)
        world.append()
        inside.write_rollup(world.c)
        world.later(GARBAGE_S)
        world.c.collect()


@pytest.mark.promise(
    "Opening and refreshing start over when a collection deletes what they read",
    rule="`History.open`",
    also=["::test_a_handle_that_slept_across_a_truncation_opens_anew"],
)
@pytest.mark.parametrize(("operation", "number"), [("get", 1), ("newer", 1)])
@pytest.mark.parametrize("rollups", [0, 1])
def test_opening_while_others_collect_starts_over(operation, number, rollups):
    world = World(3, replace(CONFIG, rollup_bytes_min=10**6))
    for _ in range(rollups):
        inside.write_rollup(world.c)
    lake = world.place.lake(config=CONFIG, clock=world.clock)
    shard_id = inside.catalog(lake).read().shards["c"]
    store = world.place.stores.blobs if operation == "get" else world.place.stores.log
    with before(store, operation, partial(replaced, world), number):
        opened = lake._shards.open(shard_id)
    if operation == "newer" or rollups:
        assert world.entries()[0] > 3
    assert opened.known() == world.c.state()


def test_a_handle_that_slept_across_a_truncation_opens_anew():
    world = World(3)
    slow = world.process()
    seqno = slow.state().seqno
    replaced(world, 2)
    assert world.entries()[0] > seqno + 1
    assert slow.state() == world.c.state()
    slow.append(rows(77))
    world.held.add(77)
    world.check_readable()


def test_a_rollup_that_is_really_lost_is_reported():
    world = World(3)
    inside.write_rollup(world.c)
    last = world.c.state().rollup
    world.place.stores.blobs.delete(names.rollup(world.id, last.seqno, last.id))
    with pytest.raises(CorruptionError, match="named by the log but missing"):
        world.process()


@pytest.mark.promise(
    "A hole in the log and a lost rollup are reported",
    rule="`History.open`",
    also=["::test_a_rollup_that_is_really_lost_is_reported"],
)
def test_a_log_with_a_hole_is_reported():
    world = World(3, replace(CONFIG, rollup_bytes_min=10**6))
    world.place.stores.log.truncate(world.id, 2)
    with pytest.raises(CorruptionError, match="no entry 0 to start from"):
        world.process()


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_a_lost_reply_whose_entry_was_collected_is_unknown_to_the_nameless_and_known_to_a_writer(fault):
    world = World(3)
    plan = FaultPlan()
    slow = world.process(plan)
    writer = slow.writer("w")
    log = world.place.stores.log
    plan.rates_by_operation = {"log.compare_and_set": {fault: 1.0}}

    def meanwhile():
        plan.rates_by_operation = {}
        replaced(world, 2)

    # The reply is lost, and before the log is read the entry is collected.
    with before(log, "newer", meanwhile, 1), pytest.raises(OutcomeUnknown, match="collected before"):
        writer.append(rows(50))
    with pytest.raises(UsageError, match="the outcome of append 0"):
        writer.append(rows(51))
    again = world.process().writer("w")
    assert again.last_sequence == (None if fault is Fault.UNKNOWN_BEFORE else 0)
    again.append(rows(50), sequence=0)
    world.held.add(50)
    world.check_readable()


# Any history


STEPS = st.tuples(
    st.sampled_from(
        [
            *["append"] * 4,
            *["merge", "maintain", "rollup", "collect", "collect", "sweep", "leak", "late_rollup"],
            *["pin", "pin_past", "renew", "unpin", "sleep", "sleep_long", "crash", "stale"],
        ]
    ),
    st.integers(0, 30),
)


class Histories(World):
    """A world that goes through random steps, and what must be readable in it."""

    def __init__(self):
        super().__init__(2)
        self.named, self.pins, self.count = {}, {}, 0
        self.other = self.process()

    def step(self, kind, n):  # noqa: PLR0912 - a table of steps
        state = self.c.state()
        c = self.c if n % 2 else self.other
        match kind:
            case "append":
                self.append(c)
            case "merge":
                c.merge()
            case "maintain":
                c.maintain(thorough=n % 3 > 0)
            case "rollup":
                inside.write_rollup(c)
            case "collect":
                c.collect()
            case "sweep":
                c.collect(thorough=True)
            case "leak":
                leak(c)
            case "late_rollup":
                inside.shard(c)._history.write_rollup(inside.shard(c).known())
            case "pin":
                self.pin(c, None)
            case "pin_past":
                self.pin(c, (max(0, state.seqno - n),))
            case "renew":
                for hold_id in list(self.pins)[: n % 3]:
                    inside.run(c, partial(holds.renew_hold, hold_id=hold_id))
            case "unpin" if self.pins:
                hold_id = sorted(self.pins)[n % len(self.pins)]
                self.pins.pop(hold_id)
                inside.run(c, partial(holds.close_hold, hold_id=hold_id))
            case "sleep":
                self.later(n * GARBAGE_S / 10)
            case "sleep_long":
                self.later(UPLOAD_S * n / 20)
            case "crash":
                plan = FaultPlan()
                dying = self.process(plan)
                plan.follow([Fault.NONE] * n + [Fault.CRASH_AFTER if n % 2 else Fault.CRASH_BEFORE])
                with contextlib.suppress(SimulatedCrash):
                    dying.collect(thorough=True)
            case "stale":
                self.other = self.process()

    def pin(self, c, pins):
        self.count += 1
        hold_id = f"h{self.count}"
        try:
            hold = open_hold(c, hold_id, pins=pins)
        except LeaseExpired:
            assert pins is not None
            return
        self.pins[hold_id] = hold.pins

    def check(self):
        state = self.c.state()
        self.named.setdefault(state.seqno, named(state))
        stored = self.stored()
        assert named(state) <= stored
        for pins in self.pins.values():
            for pin in pins:
                # Of states that came and went between two looks nothing is known here.
                parts = {name for name in self.named.get(pin, ()) if names.uploaded_at(name) is not None}
                assert parts <= stored, pin
        self.check_readable()


@pytest.mark.promise(
    "Collection 1, 2: on random histories with pins, crashes, leaks and stale handles",
    rule="`doom`, `pins-keep-parts`, `garbage-stays`, `garbage-is-not-named`",
)
@settings(max_examples=examples(60))
@given(st.lists(STEPS, max_size=25))
def test_whatever_happens_pinned_states_stay_readable_and_at_last_everything_else_is_gone(steps):
    world = Histories()
    for kind, n in steps:
        world.step(kind, n)
        world.check()
    for hold_id in world.pins:
        inside.run(world.c, partial(holds.close_hold, hold_id=hold_id))
    world.tidy_up()
    world.check_clean()
    assert ids(world.process()) == dict.fromkeys(world.held, 1)


def test_a_past_state_that_lost_nothing_but_a_rollup_or_a_chunk_can_be_pinned():
    """Readers of a state need neither, so a plan that is held late must not be refused for them."""
    world = World(3, replace(CONFIG, rollup_bytes_min=10**6))
    shard = inside.shard(world.c)
    shard.write_rollup()
    past = world.c.state().seqno
    world.append()
    shard.write_rollup()
    world.later(GARBAGE_S)
    assert world.c.collect().blobs == 1
    open_hold(world.c, "late", pins=(past,))


@pytest.mark.parametrize("how", ["builder", "uploader"])
def test_a_handle_that_was_idle_for_days_uploads_as_of_now(how):
    """Not as of the state that it saw last: uploads of that age may have been given up."""
    world = World(2)
    idle = world.process()
    for _ in range(3):
        world.append()
    leak(world.c)
    world.c.collect(thorough=True)
    world.later(UPLOAD_S)
    world.c.collect(thorough=True)
    state = world.c.state()
    assert state.sweep.floor > inside.shard(idle).known().seqno
    (lower,) = state.upper
    table = rows(77).append_column("_time", [[lower]]).append_column("_diff", [[1]])
    if how == "builder":
        with idle.builder(lower) as builder:
            builder.add(table)
            batch = builder.finish(Frontier.of(lower + 1))
        idle.distributed.append_batches([batch], lower=lower, upper=lower + 1)
    else:
        assert idle.distributed.uploader().spec.seqno == state.seqno
    assert (77 in ids(world.process())) == (how == "builder")

"""Maintenance, case by case: resumption, takeovers, lost replies, backpressure, upkeep."""

import threading
import warnings

import pyarrow as pa
import pytest
from shards import Place

import inside
import tidelake
from clocks import MovedClock, TickingClock
from tables import SCHEMA, ids, rows
from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from threads import at_once
from tidelake.config import Config
from tidelake.errors import (
    BlobNotFound,
    CorruptionError,
    InvalidUpdates,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeWarning,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.shard.runs.upload import write_table
from tidelake.shard.upkeep.compactor import Compactor, Workers
from tidelake.shard.upkeep.maintain import Maintainer
from tidelake.shard.writing import committing
from tidelake.state.spine.fuel import level_of
from tidelake.state.spine.merging import Policy, everything, request, unmerged
from tidelake.state.upkeep import claims, maintenance
from tidelake.state.write.write import Exactly, Write
from tidelake.store.advisory import FileAdvisoryLocks

QUIET = {"inline_part_bytes": 0, "merge_budget_s": 0.0, "runs_max": 10**6}
CHUNKED = Config(part_target_bytes=4096, row_group_rows=8, merge_chunk_rows=16, merge_claim_rows=0, **QUIET)
SIMPLE = Config(**QUIET)
CLAIM_MS = int(CHUNKED.merge_claim_s * 1000)
INT64_MAX = 2**63 - 1
# An append may merge some 1,000 rows.
PATIENT = Config(
    part_target_bytes=1024, row_group_rows=64, merge_budget_s=0.001, merge_rows_min=64, merge_inputs_min=2
)


def collection_of(place, config=CHUNKED, appends=4, each=60):
    """A collection of some appends whose ids interleave, and what it holds."""
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    for n in range(appends):
        c.append(rows(*range(n, appends * each, appends)))
    return c, dict.fromkeys(range(appends * each), 1)


def timed(time, *numbers, diff=1):
    """Updates at one time."""
    columns = {"_time": time, "_diff": diff}
    table = rows(*numbers)
    for name, value in columns.items():
        table = table.append_column(name, pa.array([value] * len(numbers), pa.int64()))
    return table


def heartbeat(c, upper):
    c.append(timed(0), upper=upper)


def stored(place, c):
    return {blob.name for blob in place.stores.blobs.list(f"{c.id}/parts/")}


def named(c):
    state = c.state()
    parts = {part.name for member in state.spine for part in member.batch.parts()}
    return parts | {part.name for recorded in state.chunks.values() for part in recorded}


def garbage(c):
    """Parts that the state has named and names no more."""
    state = c.state()
    return {name for name in (*state.garbage, *state.doomed) if "/parts/" in name}


def another(place, config=CHUNKED, later_ms=0, **more):
    """Another process, later."""
    lake = place.lake(config=config, **more)
    lake.clock.ms += later_ms
    return lake.collection("c")


def counting(c, tasks, before=None):
    """Workers of this process that tell of each task, and do something before it."""

    def run(asked):
        for _ in asked:
            tasks.append(1)
            if before is not None:
                before(len(tasks))
        return Workers.here(inside.shard(c)).run(asked)

    return Workers(run)


def dies_at(number):
    def die(count):
        if count == number:
            raise SimulatedCrash("killed")

    return die


def whole_merge():
    """How many chunks the merge has, and how many parts it writes."""
    place = Place()
    c, held = collection_of(place)
    before, tasks = stored(place, c), []
    assert c.merge(counting(c, tasks)).applied
    assert ids(c) == held
    return len(tasks), len(stored(place, c) - before)


CHUNKS, PARTS = whole_merge()


# Resumption


def test_a_large_merge_is_cut_into_chunks():
    assert CHUNKS >= 5 and PARTS >= CHUNKS


@pytest.mark.promise(
    "Maintenance 5: a killed worker loses a key range",
    rule="`record_chunk`",
    also=[
        "::test_merges_that_a_crash_lost_are_found_again_in_the_state",
        "shard/upkeep/test_maintain_kill.py::test_writers_and_maintainers_that_are_killed_lose_and_double_nothing",
    ],
)
@pytest.mark.parametrize("done", range(CHUNKS))
def test_a_merge_that_was_killed_goes_on_where_it_stood(done):
    place = Place()
    c, held = collection_of(place)
    before = stored(place, c)
    with pytest.raises(SimulatedCrash):
        c.merge(counting(c, [], dies_at(done + 1)))
    recorded = {part.name for parts in c.state().chunks.values() for part in parts}
    assert len(c.state().chunks) == done
    heir, tasks = another(place, later_ms=CLAIM_MS), []
    counts = inside.shard(heir).env.recorder.counts
    puts = counts["blob.put"]
    assert heir.merge(counting(heir, tasks)).applied
    assert len(tasks) == CHUNKS - done
    assert counts["blob.put"] - puts == PARTS - len(recorded)
    assert recorded <= named(heir)
    assert stored(place, c) - before == named(heir)
    assert (heir.state().spine.totals.runs, len(heir.state().claims), ids(heir)) == (1, 0, held)


def test_a_merge_that_is_under_way_is_left_alone_until_its_claim_expires():
    place = Place()
    c, held = collection_of(place)
    with pytest.raises(SimulatedCrash):
        c.merge(counting(c, [], dies_at(3)))
    left = c.state().seqno
    for later_ms in (0, CLAIM_MS - 1):
        waiting, tasks = another(place, later_ms=later_ms), []
        report = waiting.maintain(workers=counting(waiting, tasks))
        assert (report.merges, report.refused, report.complete, tasks) == (0, 0, False, [])
        # One that does not look at claims finds this one when it makes its own.
        assert not waiting.merge(counting(waiting, tasks)).applied and not tasks
    assert c.state().seqno == left
    assert another(place, later_ms=CLAIM_MS).maintain().complete
    assert c.state().spine.totals.runs == 1 and ids(c) == held


@pytest.mark.parametrize("relieving", [False, True])
def test_what_stands_beside_a_claim_is_merged_by_itself(relieving):
    place = Place()
    c, held = collection_of(place)
    with pytest.raises(SimulatedCrash):
        c.merge(counting(c, [], dies_at(3)))
    for n in range(1000, 1004):
        c.append(rows(n))
    inside.run(c, maintenance.collapse_levels)
    beside = another(place, SIMPLE)
    report = Maintainer(inside.shard(beside)).relieve(4) if relieving else beside.maintain()
    assert (report.merges, report.refused, report.complete) == (1, 0, False)
    assert [len(member.batch.runs) for member in c.state().spine] == [1] * 5
    assert len(c.state().claims) == 1 and len(c.state().chunks) == 2
    # The claim is as good as before.
    heir, tasks = another(place, later_ms=CLAIM_MS), []
    (claim,) = heir.state().claims.values()
    members = list(heir.state().spine.range(claim.id))
    assert Compactor(inside.shard(heir), counting(heir, tasks)).merge(request(members)).resumed == 2
    assert len(tasks) == CHUNKS - 2 and ids(heir) == {**held, **dict.fromkeys(range(1000, 1004), 1)}


def test_progress_renews_a_claim():
    place = Place()
    c, _ = collection_of(place)

    def slowly(count):
        inside.shard(c).env.clock.ms += CLAIM_MS - 1
        elsewhere = another(place, later_ms=inside.shard(c).env.clock.ms - MovedClock().ms)
        assert elsewhere.maintain().merges == 0 and count <= CHUNKS

    assert c.merge(counting(c, [], slowly)).applied


def test_a_merge_goes_on_with_the_cuts_and_the_since_with_which_it_began():
    place = Place()
    c, held = collection_of(place)
    with pytest.raises(SimulatedCrash):
        c.merge(counting(c, [], dies_at(4)))
    (claim,) = c.state().claims.values()
    c.advance_since(2)
    # Other settings would make other chunks.
    coarse = Config(part_target_bytes=8192, row_group_rows=8, merge_claim_rows=0, **QUIET)
    heir, tasks = another(place, coarse, CLAIM_MS), []

    def looks(_):
        (now,) = heir.state().claims.values()
        assert (now.cuts, now.since) == (claim.cuts, claim.since) == (claim.cuts, Frontier.of(0))

    def first_merge(asked):
        looks(asked)
        if len(tasks) < CHUNKS - 3:
            tasks.append(1)
            return Workers.here(inside.shard(heir)).run(asked)
        raise SimulatedCrash("all chunks that were left are done")

    heir.maintain(workers=Workers(first_merge), thorough=True)
    assert len(tasks) == CHUNKS - 3
    assert [member.batch.bounds.since for member in heir.state().spine if member.batch.runs] == [claim.since]
    assert ids(heir) == held


def test_thorough_maintenance_ends_claims_of_dead_processes():
    place = Place()
    c, held = collection_of(place)
    assert c.merge().applied
    c.advance_since(3)
    with pytest.raises(SimulatedCrash):
        c.merge(counting(c, [], dies_at(3)))
    assert len(c.state().chunks) == 2
    before = named(c)
    tidy = another(place, later_ms=CLAIM_MS)
    assert tidy.maintain().merges == 0  # one run without retractions: there is nothing to gain
    assert not tidy.state().claims and not tidy.state().chunks
    assert before - named(tidy) and garbage(tidy) >= before - named(tidy)
    assert ids(tidy) == held


def test_only_expired_claims_are_ended():
    place = Place()
    c, _ = collection_of(place)
    with pytest.raises(SimulatedCrash):
        c.merge(counting(c, [], dies_at(3)))
    recorded = {part.name for parts in c.state().chunks.values() for part in parts}
    early, late = another(place, later_ms=CLAIM_MS - 1), another(place, later_ms=CLAIM_MS)
    inside.run(early, claims.end_expired)
    assert len(c.state().claims) == 1 and not garbage(c)
    inside.run(late, claims.end_expired)
    assert garbage(c) == recorded
    assert not c.state().claims and not c.state().chunks


# Two runners


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("at", [1, 2])
def test_a_runner_whose_claim_was_taken_over_deletes_what_it_made(width, at):
    place = Place()
    c, held = collection_of(place)
    before, asked_for = stored(place, c), []

    def overtaken(asked):
        outputs = Workers.here(inside.shard(c)).run(asked)
        asked_for.append(len(asked))
        if len(asked_for) == at:
            assert another(place, later_ms=CLAIM_MS).merge().applied
        return outputs

    assert not c.merge(Workers(overtaken, width)).applied
    assert len(asked_for) == at and width in asked_for
    assert stored(place, c) - before == named(c)
    assert (c.state().spine.totals.runs, len(c.state().claims), ids(c)) == (1, 0, held)


@pytest.mark.parametrize("heir_did", [0, 1])
def test_a_runner_records_nothing_under_a_claim_that_another_holds(heir_did):
    place = Place()
    c, held = collection_of(place)
    before = stored(place, c)

    def overtaken(count):
        if count == 3:
            heir = another(place, later_ms=CLAIM_MS)
            with pytest.raises(SimulatedCrash):
                heir.merge(counting(heir, [], dies_at(heir_did + 1)))

    assert not c.merge(counting(c, [], overtaken)).applied
    # Two chunks of the first runner and some of the second; what the first made of the third is gone.
    assert len(c.state().chunks) == 2 + heir_did and stored(place, c) - before == named(c) - before
    last, tasks = another(place, later_ms=2 * CLAIM_MS), []
    assert last.merge(counting(last, tasks)).applied
    assert len(tasks) == CHUNKS - 2 - heir_did and ids(last) == held


def after_commits(place, number, act):
    """Do something once, before the commit with this number from now on (1 is the next)."""
    whole, count = place.stores.log.compare_and_set, [0]

    def watched(*args):
        count[0] += 1
        if count[0] == number:
            place.stores.log.compare_and_set = whole
            act()
        return whole(*args)

    place.stores.log.compare_and_set = watched


def test_a_result_whose_recorded_parts_another_runner_deleted_is_refused():
    """It has recorded its last chunk, sleeps, and another one ends its claim for a merge of its own."""
    place = Place()
    c, held = collection_of(place)
    inside.run(c, maintenance.collapse_levels)
    overtaken = threading.Event()

    def overtake():
        other = another(place, later_ms=CLAIM_MS)
        assert len(other.state().chunks) == CHUNKS
        other.append(rows(1000))
        with pytest.raises(SimulatedCrash):
            other.merge(counting(other, [], dies_at(1)))
        assert not other.state().chunks
        overtaken.set()

    # A claim, a commit for each chunk, and then the one that applies.
    after_commits(place, 1 + CHUNKS + 1, overtake)
    c.merge()
    assert overtaken.is_set() and named(c) <= stored(place, c)
    assert ids(c) == {**held, 1000: 1}
    late = another(place, later_ms=2 * CLAIM_MS)
    assert late.maintain().complete and ids(late) == {**held, 1000: 1}
    # Of what the three wrote nothing is forgotten.
    assert stored(place, c) == named(late) | garbage(late)


def test_a_widened_run_inside_a_claim_takes_nothing_from_it():
    """Widening changes no run, so the inputs of the claim are still there when its chunks are not."""
    place = Place()
    c, held = collection_of(place)
    heartbeat(c, 10)
    inside.run(c, maintenance.collapse_levels)
    ready = threading.Event()

    def widen():
        other = another(place, Config(merge_inputs_min=2, **QUIET), CLAIM_MS)
        spine = other.state().spine
        last = [member for member in spine if member.batch.runs][-1]
        empty = [member for member in spine if member.id.lo >= last.id.hi]
        assert empty and Compactor(inside.shard(other)).merge(request([last, *empty])).applied
        assert not other.state().chunks
        ready.set()

    after_commits(place, 1 + CHUNKS + 1, widen)
    c.merge()
    assert ready.is_set()
    assert named(c) <= stored(place, c) and ids(c) == held


def test_two_threads_of_one_handle_merge_at_once_and_lose_nothing():
    place = Place()
    c, held = collection_of(place)
    before = stored(place, c)
    at_once(lambda _: c.merge(), range(3))
    assert named(c) <= stored(place, c)
    assert c.maintain().complete and ids(c) == held
    assert stored(place, c) - before == named(c)


@pytest.mark.parametrize("config", [SIMPLE, CHUNKED], ids=["one chunk", "chunks"])
def test_a_result_whose_inputs_were_merged_meanwhile_leaves_nothing_behind(config):
    place = Place()
    c, held = collection_of(place, config)
    before, tasks = stored(place, c), []

    def faster(count):
        if count == 1:
            other = another(place, SIMPLE)
            found = inside.shard(other)
            other.append(rows(1000))
            found.run(maintenance.collapse_levels)
            # Claims only save work: a merge without one wins.
            assert (
                Compactor(found)
                .merge(everything(other.state().spine, Policy.idle(found.spec.config)))
                .applied
            )

    assert not another(place, config).merge(counting(c, tasks, faster)).applied or len(tasks) > 1
    other_parts = stored(place, c) - before
    assert named(c) <= stored(place, c)
    assert ids(c) == {**held, 1000: 1}
    # The append of the other process went into the run and is no longer named.
    assert len(other_parts - named(c)) <= 1


# Lost replies


@pytest.mark.promise(
    "Parts of a refused result are deleted only when no state can name them",
    rule="`shard/upkeep/compactor.py`",
    also=["::test_a_result_whose_inputs_were_merged_meanwhile_leaves_nothing_behind"],
)
@pytest.mark.parametrize("config", [SIMPLE, CHUNKED], ids=["one chunk", "chunks"])
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
@pytest.mark.parametrize("silent", [False, True])
def test_a_lost_reply_of_the_applying_commit_never_costs_a_part_that_is_in(config, fault, silent):
    place = Place()
    c, held = collection_of(place, config)
    inside.run(c, maintenance.collapse_levels)
    before = stored(place, c)
    plan = FaultPlan()
    runner = another(place, config, faults=plan)
    commits = 2 + CHUNKS if config is CHUNKED else 1

    def go_silent():
        # The very commit that is under way went through a plan without faults.
        plan.rates_by_operation = {"log.compare_and_set": {fault: 1.0}}
        if silent:
            plan.rates_by_operation["log.newer"] = {Fault.UNAVAILABLE: 1.0}

    if config is CHUNKED:
        after_commits(place, commits - 1, go_silent)
        merging = Workers.here(inside.shard(runner))
    else:
        merging = counting(runner, [], lambda _: go_silent())
    known_in = fault is Fault.UNKNOWN_AFTER and not silent
    if known_in:
        assert runner.merge(merging).applied
    else:
        with pytest.raises((OutcomeUnknown, StoreUnavailable)):
            runner.merge(merging)
    fresh = another(place)
    applied = fresh.state().spine.totals.runs == 1
    assert applied == (fault is Fault.UNKNOWN_AFTER)
    assert named(fresh) <= stored(place, c)
    assert ids(fresh) == held
    # Nothing was deleted: it may have been in for all that the runner knew.
    assert stored(place, c) > before


# Beside other commands


def test_maintenance_ends_although_appends_go_on():
    place = Place()
    c, held = collection_of(place, SIMPLE, appends=6, each=10)
    c.append(timed(6, 0, 1, 2, diff=-1))
    c.advance_since(6)
    writer, merges = another(place, SIMPLE), []

    def beside(count):
        assert count < 40
        writer.append(rows(1000 + count))
        writer.append(rows(1000 + count).append_column("_diff", pa.array([-1])))
        writer.advance_since(writer.last_time())

    report = c.maintain(workers=counting(c, merges, beside))
    assert report.merges and merges
    for number in (0, 1, 2):
        del held[number]
    assert ids(c) == held
    assert c.merge(counting(c, merges, beside)).applied and ids(c) == held
    # What came in meanwhile is merged by the next.
    assert c.maintain().complete and c.state().spine.totals.rows == len(held)


def test_since_may_move_while_a_merge_is_under_way():
    place = Place()
    c, held = collection_of(place)
    c.append(timed(4, *range(100), diff=-1))
    other = another(place)
    since = iter((1, 2, 4))
    report = c.maintain(workers=counting(c, [], lambda _: other.advance_since(next(since, 4))))
    assert report.merges
    held = {number: 1 for number in held if number >= 100}
    assert ids(c) == held
    assert c.maintain().complete and ids(c) == held
    assert (c.state().spine.totals.runs, c.state().spine.totals.rows) == (1, len(held))


@pytest.mark.full
def test_a_batch_of_many_runs_is_merged_in_several_passes():
    place = Place()
    config = Config(merge_fan_in=4, fold_rows=1, merge_claim_rows=0, **QUIET)
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    runs = []
    for n in range(200):
        table = timed(0, n, n + 1).cast(c.update_schema)
        runs += write_table(
            inside.shard(c).version().spec, inside.shard(c).stores.blobs, inside.shard(c).env, table
        )
    committing.carry_out(inside.shard(c), Write(tuple(runs), Exactly(Frontier.of(0), Frontier.of(1))))
    assert c.state().spine.totals.runs == 200
    held = ids(c)
    seen = []
    report = c.maintain(progress=seen.append)
    assert report.merges == len(seen) > 200 // 4
    assert max(request.sources for request in seen) <= 4
    assert c.state().spine.totals.runs == 1 and not c.state().claims
    assert ids(c) == held == {0: 1, **dict.fromkeys(range(1, 200), 2), 200: 1}


def test_a_run_with_empty_neighbours_is_widened_without_reading_or_writing():
    place = Place()
    config = Config(merge_inputs_min=2, **QUIET)
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    c.append(timed(0, *range(50)), upper=1)
    heartbeat(c, 10)
    inside.run(c, maintenance.collapse_levels)
    assert len(c.state().spine) == 2
    counts = inside.shard(c).env.recorder.counts
    moved = ("blob.get", "blob.open", "blob.put", "blob.delete")
    before = {name: counts[name] for name in moved}
    report = c.maintain()
    assert (report.merges, len(c.state().spine), c.state().spine.totals.runs) == (1, 1, 1)
    assert {name: counts[name] for name in moved} == before
    assert ids(c, 9) == dict.fromkeys(range(50), 1)


def test_a_widened_run_is_folded_no_further_than_it_was():
    """Its empty neighbours were fused at a later since, and it has a retraction that must still go."""
    place = Place()
    config = Config(merge_inputs_min=2, **QUIET)
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    c.append(pa.concat_tables([timed(0, *range(50)), timed(1, 7, diff=-1)]), upper=2)
    c.advance_since(1)
    for upper in (10, 20, 30):
        heartbeat(c, upper)
    inside.run(c, maintenance.collapse_levels)
    empty = [member for member in c.state().spine if not member.batch.runs]
    assert any(member.batch.bounds.since == Frontier.of(1) for member in empty)
    assert c.maintain(thorough=False).merges == 1
    (member,) = c.state().spine
    assert member.batch.bounds.since == Frontier.of(0)
    assert c.maintain().merges == 1
    assert c.state().spine.totals.rows == 49 and 7 not in ids(c)


def test_a_truncated_run_with_empty_neighbours_keeps_what_it_hides():
    config = Config(merge_inputs_min=2, **QUIET)
    c = Place().lake(config=config).create("c", SCHEMA, key=["id"])
    heartbeat(c, 1)
    # Its updates at time 0 come too late.
    c.append(pa.concat_tables([timed(0, *range(5)), timed(1, *range(5, 9))]), lower=0, upper=2)
    heartbeat(c, 5)
    inside.run(c, maintenance.collapse_levels)
    assert [run.truncated for member in c.state().spine for run in member.batch.runs] == [True]
    assert ids(c, 4) == dict.fromkeys(range(5, 9), 1)
    assert c.maintain(thorough=False).merges == 1
    assert ids(c, 4) == dict.fromkeys(range(5, 9), 1)
    (member,) = c.state().spine
    assert [(run.truncated, run.rows) for run in member.batch.runs] == [(False, 4)]


def test_a_widening_that_comes_too_late_deletes_nothing():
    place = Place()
    config = Config(merge_inputs_min=2, **QUIET)
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    c.append(timed(0, *range(50)), upper=1)
    heartbeat(c, 10)
    inside.run(c, maintenance.collapse_levels)
    first = request(list(c.state().spine))
    assert first.sources == 1

    def widen_further():
        other = another(place, config)
        heartbeat(other, 20)
        inside.run(other, maintenance.collapse_levels)
        assert Compactor(inside.shard(other)).merge(request(list(other.state().spine))).applied

    after_commits(place, 1, widen_further)
    assert not Compactor(inside.shard(c)).merge(first).applied
    assert named(c) <= stored(place, c)
    assert ids(c, 19) == dict.fromkeys(range(50), 1)


def test_merges_that_a_crash_lost_are_found_again_in_the_state():
    place = Place()
    plan = FaultPlan()
    eager = Config(inline_part_bytes=0, merge_inputs_min=2)
    c = place.lake(config=SIMPLE).create("c", SCHEMA, key=["id"])
    writer = another(place, eager, faults=plan)
    writer.append(rows(0))
    lost = 0
    for n in range(1, 12):
        plan.rates_by_operation = {"blob.open": {Fault.CRASH_BEFORE: 1.0}}
        try:
            writer.append(rows(n))
        except SimulatedCrash:
            lost += 1
            plan.restart()
            plan.rates_by_operation = {}
            writer = another(place, eager, faults=plan)
    assert lost >= 3 and unmerged(c.state().spine) >= 3
    assert another(place).maintain().complete
    assert c.state().spine.totals.runs <= 1 + level_of(12) and unmerged(c.state().spine) == 0
    assert ids(c) == dict.fromkeys(range(12), 1)


# Sums that do not fit


@pytest.mark.parametrize("config", [SIMPLE, CHUNKED], ids=["one chunk", "chunks"])
def test_a_merge_that_overflows_when_it_folds_keeps_the_times_apart(config):
    place = Place()
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    c.append(timed(0, *range(100)))
    c.append(timed(1, 7, diff=INT64_MAX))
    c.append(timed(2, *range(100)))
    c.advance_since(2)
    assert c.maintain().complete
    assert (c.state().spine.totals.runs, c.state().spine.totals.rows) == (1, 201)
    with pytest.raises(InvalidUpdates, match="id=7"):
        c.merge()
    assert (c.state().spine.totals.runs, c.state().spine.totals.rows) == (1, 201)
    assert not c.state().claims and named(c) <= stored(place, c)
    c.append(timed(3, 7, diff=-INT64_MAX))
    assert ids(c, 3) == dict.fromkeys(range(100), 2)
    c.advance_since(3)
    assert c.maintain().complete
    assert c.state().spine.totals.rows == 100 and ids(c, 3) == dict.fromkeys(range(100), 2)


def test_a_partial_sum_that_overflows_is_no_failure_if_the_whole_fits():
    """The levels ask for the merge of two runs that are folded to one time; only all four can be merged."""
    c = Place().lake(config=SIMPLE).create("c", SCHEMA, key=["id"])
    for time, diff in enumerate((INT64_MAX, INT64_MAX, -INT64_MAX, -INT64_MAX)):
        c.append(timed(time, 7, diff=diff), upper=time + 1)
    c.advance_since(3)
    for member in list(c.state().spine):
        assert Compactor(inside.shard(c)).merge(request([member]), rewrite=True).applied
    assert unmerged(c.state().spine) == 1
    report = c.maintain()
    assert (report.merges, report.refused) == (1, 1)
    assert (c.state().spine.totals.rows, ids(c)) == (0, {})


@pytest.mark.full
def test_an_overflow_keeps_neither_appends_nor_other_merges_from_going_on():
    """Two runs that are folded to one time, so that their sum fits in no way."""
    place = Place()
    config = Config(inline_part_bytes=0, merge_budget_s=0, runs_max=4)
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    for time in (0, 1):
        c.append(timed(time, 7, diff=INT64_MAX), upper=time + 1)
    c.advance_since(1)
    for time in (0, 1):
        # Each alone can be folded.
        member = [m for m in c.state().spine if m.batch.runs][time]
        assert Compactor(inside.shard(c)).merge(request([member]), rewrite=True).applied
    most = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TidelakeWarning)
        for n in range(100, 180):
            c.append(rows(n))
            most = max(most, c.state().spine.totals.runs)
        c.append(rows(7).append_column("_diff", pa.array([-INT64_MAX])))
    assert most <= 24
    with pytest.raises(InvalidUpdates, match="id=7"):
        c.maintain()
    assert inside.shard(c).state().upper == Frontier.of(83)
    stored_sums = sum(part.diff_sum for member in c.state().spine for part in member.batch.parts())
    assert stored_sums == INT64_MAX + 80


# Backpressure


@pytest.mark.promise("6", rule="`admit`", also=["::test_runs_stay_bounded_beside_claims_of_the_dead"])
def test_a_writer_that_outruns_merging_merges_first_and_says_so():
    place = Place()
    config = Config(inline_part_bytes=0, merge_budget_s=0, runs_max=4)
    lake = place.lake(config=config, clock=TickingClock())
    c = lake.create("c", SCHEMA, key=["id"])
    waited = []
    for n in range(60):
        waited.append(c.append(rows(n)).waited_s)
        assert c.state().spine.totals.runs <= 4 + 1 + 2 * (1 + level_of(60))
    held = [seconds for seconds in waited if seconds]
    assert 5 < len(held) < 30
    assert lake.counts["append.backpressure"] == len(held)
    assert lake.counts["append.backpressure.ms"] == sum(round(seconds * 1000) for seconds in held) > 0
    assert ids(c) == dict.fromkeys(range(60), 1)


def test_merges_that_writers_wait_for_are_one_commit():
    place = Place()
    inline = Config(merge_budget_s=0.0, runs_max=10**6)
    c = place.lake(config=inline).create("c", SCHEMA, key=["id"])
    for n in range(45):
        c.append(rows(n))
    waiting = another(place, inline)
    counts = inside.shard(waiting).env.recorder.counts
    assert unmerged(waiting.state().spine) > 36
    before = counts["log.compare_and_set"]
    report = Maintainer(inside.shard(waiting)).relieve(8)
    # Batches of 32, 8 and 4 runs: what makes the most room comes first, and the last one can stay.
    assert report.merges == 2 and unmerged(waiting.state().spine) <= 4
    assert counts["log.compare_and_set"] == before + 1
    assert ids(waiting) == dict.fromkeys(range(45), 1)
    assert place.lake().fsck().clean


def test_heartbeats_after_a_single_row_do_not_grow_the_state_for_ever():
    place = Place()
    c = place.lake(config=Config(merge_budget_s=0, runs_max=4)).create("c", SCHEMA, key=["id"])
    c.append(rows(7))
    most = 0
    for upper in range(2, 60):
        heartbeat(c, upper)
        most = max(most, len(c.state().spine))
    assert most <= 4 + 3
    assert (ids(c), c.upper) == ({7: 1}, Frontier.of(59))


def test_runs_stay_bounded_beside_claims_of_the_dead():
    place = Place()
    config = Config(inline_part_bytes=0, merge_budget_s=0, runs_max=4, merge_claim_rows=0)
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    for n in range(4):
        c.append(rows(n))
    dead = another(place, config)
    with pytest.raises(SimulatedCrash):
        dead.merge(counting(dead, [], dies_at(1)))
    writer = another(place, config)
    most = 0
    for n in range(4, 120):
        writer.append(rows(n))
        most = max(most, writer.state().spine.totals.runs)
    assert len(writer.state().claims) == 1
    assert most <= 4 + 4 + 1 + 2 * (1 + level_of(120))
    assert another(place, config, int(config.merge_claim_s * 1000)).maintain().complete
    assert unmerged(writer.state().spine) == 0 and not writer.state().claims
    assert ids(writer) == dict.fromkeys(range(120), 1)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE])
def test_an_append_that_cannot_wait_for_its_merge_is_not_in_and_leaves_no_part(fault):
    place = Place()
    plan = FaultPlan()
    config = Config(inline_part_bytes=0, merge_budget_s=0, runs_max=4, retry_deadline_s=0)
    place.lake(config=config).create("c", SCHEMA, key=["id"])
    c = another(place, config, faults=plan)
    n = 0
    while unmerged(c.state().spine) <= 4:
        c.append(rows(n))
        n += 1
    before = stored(place, c)
    plan.rates_by_operation = {"log.compare_and_set": {fault: 1.0}}
    with pytest.raises(StoreUnavailable):
        c.append(rows(n))
    plan.rates_by_operation = {}
    # The merge may have left its part, which might be in; the append did not.
    assert len(stored(place, c) - before) <= 1
    assert ids(another(place)) == dict.fromkeys(range(n), 1)
    assert c.append(rows(n)).already is False


@pytest.mark.promise(
    "A merge that fails beside an append does not fail the append",
    rule="`tend`",
    also=["::test_a_store_that_fails_a_merge_after_an_append_does_not_even_warn"],
)
def test_a_merge_that_fails_after_an_append_only_warns():
    place = Place()
    config = Config(inline_part_bytes=0, merge_inputs_min=2)
    c = place.lake(config=config).create("c", SCHEMA, key=["id"])
    c.append(rows(0))
    (name,) = stored(place, c)
    damage(place, name)
    with pytest.warns(TidelakeWarning, match="a merge after an append failed"):
        answers = [c.append(rows(n)) for n in range(1, 5)]
    assert not any(answer.already for answer in answers)
    assert c.upper == Frontier.of(5)


def test_a_store_that_fails_a_merge_after_an_append_does_not_even_warn():
    place, plan = Place(), FaultPlan()
    config = Config(inline_part_bytes=0, merge_inputs_min=2, retry_deadline_s=0)
    lake = place.lake(plan, config)
    c = lake.create("c", SCHEMA, key=["id"])
    plan.rates_by_operation = {"blob.open": {Fault.UNAVAILABLE: 1.0}}
    for n in range(5):
        assert not c.append(rows(n)).already
    assert lake.counts["tend.failed"] > 0 and c.upper == Frontier.of(5)


# Upkeep


class Rounds:
    """A spawner whose work goes on when the test says so, in the test's thread."""

    def __init__(self):
        self.stopped = False
        self.work = None

    def spawn(self, name, work):
        self.work = work
        return self

    def stop(self):
        self.stopped = True

    def go(self, rounds=1):
        """So many rounds over all collections."""
        self.left = rounds
        self.work(self)

    def wait(self, timeout):
        if timeout:
            self.left -= 1
        return self.stopped or self.left == 0


def upkept(place, config=SIMPLE, **more):
    rounds = Rounds()
    lake = place.lake(config=config, spawner=rounds, **more)
    return lake, rounds


def test_upkeep_brings_an_idle_collection_to_rest_without_any_append():
    place = Place()
    c, held = collection_of(place, SIMPLE, appends=20, each=5)
    c.append(timed(20, 0, 1, diff=-1))
    c.advance_since(20)
    del held[0], held[1]
    lake, rounds = upkept(place)
    upkeep = lake.upkeep()
    rounds.go(4)
    assert (upkeep.failures, c.state().spine.totals.runs, c.state().spine.totals.rows) == (0, 1, len(held))
    at_rest, calls = c.state().seqno, lake.counts["log.compare_and_set"]
    scans = lake.counts["log.newer"]
    rounds.go(5)
    # A look at a collection at rest costs one scan, and one for the list of names.
    assert (c.state().seqno, lake.counts["log.compare_and_set"]) == (at_rest, calls)
    assert lake.counts["log.newer"] - scans <= 5 * 3
    assert ids(c) == held


def test_upkeep_does_not_forget_what_came_in_beside_its_last_merge():
    place = Place()
    c = place.lake(config=SIMPLE).create("c", SCHEMA, key=["id"])
    c.append(rows(*range(640)))
    for n in range(1000, 1003):
        c.append(rows(n))
    assert unmerged(c.state().spine) == 1
    lake, rounds = upkept(place, Config(merge_whole_rows=0, **QUIET))
    upkeep = lake.upkeep()
    rounds.go(1)
    assert upkeep.merges == 0  # not worth its while, unless the collection turns out to be idle
    writer, whole = another(place, SIMPLE), place.stores.blobs.put

    def put_and_append(name, data):
        place.stores.blobs.put = whole
        whole(name, data)
        for n in range(2000, 2008):
            writer.append(rows(n))

    place.stores.blobs.put = put_and_append
    rounds.go(1)
    assert upkeep.merges >= 1 and unmerged(c.state().spine) > 0
    rounds.go(4)
    assert unmerged(c.state().spine) == 0 and not lake.collection("c").maintain().merges
    assert ids(c) == dict.fromkeys([*range(640), *range(1000, 1003), *range(2000, 2008)], 1)


def test_upkeep_collects_an_idle_collection_when_its_garbage_has_grown_old():
    place = Place()
    c, held = collection_of(place, SIMPLE, appends=20, each=5)
    lake, rounds = upkept(place)
    upkeep = lake.upkeep()
    rounds.go(5)
    state = c.state()
    assert upkeep.merges and state.garbage and not upkeep.collected.total
    # At rest: no look for garbage before it is old enough.
    scans = lake.counts["log.newer"]
    rounds.go(5)
    assert c.state().seqno == state.seqno and lake.counts["log.newer"] - scans <= 5 * 3
    lake.clock.ms += int(SIMPLE.garbage_age_s * 1000)
    rounds.go(3)
    assert upkeep.collected.blobs == len(state.garbage) and not c.state().garbage
    assert stored(place, c) == named(c) and ids(c) == held
    at_rest = c.state().seqno
    for _ in range(4):
        lake.clock.ms += int(SIMPLE.upload_age_s * 1000)
        rounds.go(2)
    assert (c.state().seqno, upkeep.failures) == (at_rest, 0)


@pytest.mark.promise(
    "Maintenance 4: upkeep looks at a collection at rest once a minute at least, and in the next "
    "round if its own process wrote",
    rule="`_Left.looked`",
    also=["::test_upkeep_forgets_what_it_knew_of_a_collection_whose_name_is_another_ones_now"],
)
def test_upkeep_looks_seldom_at_idle_collections_and_sees_what_its_own_process_writes():
    place = Place()
    c = place.lake(config=SIMPLE).create("c", SCHEMA, key=["id"])
    c.append(rows(1))
    seen = []
    lake, rounds = upkept(place)
    lake.upkeep(progress=lambda name, report: seen.append(name))

    def looks(seconds):
        """How often the log of the collection is read in so many seconds; that of the names is in each."""
        before = lake.counts["log.newer"]
        for _ in range(seconds):
            lake.clock.ms += 1_000
            rounds.go(1)
        return lake.counts["log.newer"] - before - seconds

    rounds.go(4)
    assert looks(10) >= 9
    lake.clock.ms += 90_000
    rounds.go(1)
    # It was not written to for 100 seconds.
    assert [looks(9), looks(1)] == [0, 1]
    seen.clear()
    lake.collection("c").append(rows(2))
    looks(1)
    assert seen == ["c"]
    rounds.go(4)
    lake.clock.ms += 400_000
    rounds.go(1)
    seen.clear()
    # Another process: the next look comes after a tenth of 400 seconds.
    c.append(rows(3))
    looks(39)
    assert not seen
    looks(1)
    assert seen == ["c"]
    # At most a minute, when nothing is left to collect.
    for _ in range(3):
        lake.clock.ms += 100_000_000
        rounds.go(4)
    assert [looks(59), looks(1)] == [0, 1]


def test_upkeep_forgets_what_it_knew_of_a_collection_whose_name_is_another_ones_now():
    place = Place()
    c, _ = collection_of(place, SIMPLE)
    lake, rounds = upkept(place)
    upkeep = lake.upkeep()
    rounds.go(4)
    at_rest = c.state().seqno
    assert upkeep.merges
    other = place.lake(config=SIMPLE)
    other.drop("c")
    rounds.go(1)
    new = other.create("c", SCHEMA, key=["id"], allow_recreate=True)
    while new.state().seqno < at_rest:
        new.append(rows(new.state().seqno))
    assert new.state().seqno == at_rest and unmerged(new.state().spine)
    rounds.go(4)
    assert (unmerged(new.state().spine), upkeep.failures) == (0, 0)


@pytest.mark.promise(
    "Maintenance 4: upkeep of a lake maintains the collection that a name leads to now, also after "
    "names were exchanged",
    rule="`Upkeep._look`",
)
def test_upkeep_follows_the_names_when_collections_are_renamed():
    place = Place()
    c, _ = collection_of(place, SIMPLE)
    lake, rounds = upkept(place)
    new = lake.create("new", SCHEMA, key=["id"])
    upkeep = lake.upkeep()
    rounds.go(4)
    place.lake(config=SIMPLE).rename_all({"c": "old", "new": "c"})
    rounds.go(1)
    for n in range(4):
        new.append(rows(n))
    assert unmerged(new.state().spine)
    rounds.go(4)
    assert (unmerged(new.state().spine), unmerged(c.state().spine), upkeep.failures) == (0, 0, 0)


def test_upkeep_takes_over_from_a_runner_that_died_once_its_claim_has_expired():
    place = Place()
    c, held = collection_of(place)
    with pytest.raises(SimulatedCrash):
        c.merge(counting(c, [], dies_at(3)))
    lake, rounds = upkept(place, CHUNKED)
    upkeep = lake.upkeep()
    rounds.go(4)
    assert upkeep.merges == 0
    lake.clock.ms += CLAIM_MS
    rounds.go(3)
    assert (upkeep.merges, c.state().spine.totals.runs, ids(c)) == (1, 1, held)


def damage(place, name):
    whole = place.stores.blobs.get(name)
    place.stores.blobs.delete(name)
    place.stores.blobs.put(name, whole[:-1] + bytes([whole[-1] ^ 1]))
    return whole


def test_upkeep_counts_its_failures_and_goes_on():
    place = Place()
    c, held = collection_of(place, SIMPLE)
    other = place.lake(config=SIMPLE).create("other", SCHEMA, key=["id"])
    for n in range(4):
        other.append(rows(n))
    name = min(stored(place, c))
    whole = damage(place, name)
    plan = FaultPlan()
    lake, rounds = upkept(place, Config(retry_deadline_s=0, **QUIET), faults=plan)
    upkeep = lake.upkeep(interval_s=2.0)
    rounds.go(5)
    failed = upkeep.failures
    assert failed == lake.counts["upkeep.failed"] >= 2
    assert isinstance(upkeep.last_error, CorruptionError)
    assert unmerged(other.state().spine) == 0
    place.stores.blobs.delete(name)
    place.stores.blobs.put(name, whole)
    plan.rates_by_operation = {"log.newer": {Fault.UNAVAILABLE: 1.0}}
    rounds.go(3)
    # Not even the names can be listed.
    assert upkeep.failures == failed + 3 and isinstance(upkeep.last_error, StoreUnavailable)
    plan.rates_by_operation = {}
    rounds.go(4)
    assert (upkeep.failures, unmerged(c.state().spine)) == (failed + 3, 0)
    assert ids(c) == held


def test_upkeep_leaves_dropped_collections_and_finds_new_ones():
    place = Place()
    c, _ = collection_of(place, SIMPLE)
    lake, rounds = upkept(place)
    seen = []
    upkeep = lake.upkeep(progress=lambda name, report: seen.append(name))
    rounds.go(1)
    assert set(seen) == {"c"}
    lake.drop("c")
    seen.clear()
    new = lake.create("new", SCHEMA, key=["id"])
    for n in range(4):
        new.append(rows(n))
    left = c.state().seqno
    rounds.go(4)
    assert set(seen) == {"new"} and upkeep.failures == 0
    assert c.state().seqno == left
    assert unmerged(new.state().spine) == 0


def test_upkeep_of_a_named_collection_that_is_dropped_does_not_fail():
    place = Place()
    collection_of(place, SIMPLE)
    lake, rounds = upkept(place)
    with pytest.raises(UsageError, match="nearest"):
        lake.upkeep(["cc"])
    upkeep = lake.upkeep(["c"])
    lake.drop("c")
    rounds.go(3)
    assert upkeep.failures == 0


def test_upkeep_ends_between_two_merges_when_it_is_stopped():
    place = Place()
    c, held = collection_of(place, Config(merge_fan_in=2, fold_rows=1, **QUIET), appends=16, each=2)
    lake, rounds = upkept(place, Config(merge_fan_in=2, fold_rows=1, **QUIET))
    upkeep = lake.upkeep()
    whole = place.stores.blobs.put

    def put_and_stop(name, data):
        whole(name, data)
        upkeep.stop()

    place.stores.blobs.put = put_and_stop
    rounds.go(9)
    assert c.state().spine.totals.runs == 15  # the merge that was under way is in
    assert (upkeep.failures, ids(c)) == (0, held)


def workers():
    return sum(thread.name == "tidelake-upkeep" for thread in threading.enumerate())


def test_upkeep_runs_beside_its_caller_and_ends_with_the_lake():
    place = Place()
    c, held = collection_of(place, SIMPLE)
    lake = place.lake(config=SIMPLE)
    merged = threading.Event()
    upkeep = lake.upkeep(interval_s=0.001, progress=lambda name, report: report.complete and merged.set())
    assert workers() == 1
    assert merged.wait(60)
    lake.close()
    assert workers() == 0
    assert upkeep.failures == 0 and ids(c) == held
    upkeep.stop()
    with place.lake(config=SIMPLE).upkeep(interval_s=60):
        assert workers() == 1
    assert workers() == 0


def test_upkeep_ends_when_what_it_tells_closes_the_lake():
    place = Place()
    collection_of(place, SIMPLE)
    lake = place.lake(config=SIMPLE)
    told = threading.Event()

    def close(name, report):
        lake.close()
        told.set()

    upkeep = lake.upkeep(interval_s=0.001, progress=close)
    assert told.wait(60)
    upkeep.stop()
    assert upkeep.failures == 0


@pytest.mark.promise(
    "Appends do a large merge one key range at a time, and continue what a dead process left",
    rule="`within_budget`",
    also=["::test_appends_go_on_with_a_large_merge_that_another_process_left_behind"],
)
def test_appends_merge_something_large_one_chunk_at_a_time():
    place = Place()
    collection_of(place, SIMPLE, each=1000)
    c = place.lake(config=PATIENT).collection("c")  # whose clock stands still
    progress = []
    for n in range(4000, 4080):
        c.append(rows(n))
        progress.append((len(c.state().claims), len(c.state().chunks)))
    begun = progress.index((1, 1))
    ended = progress.index((0, 0), begun)
    assert progress[begun:ended] == [(1, n) for n in range(1, ended - begun + 1)]
    assert ended - begun >= 3
    oldest = next(iter(c.state().spine))
    assert len(oldest.batch.runs) == 1 and oldest.batch.rows >= 4000
    assert ids(c) == dict.fromkeys(range(4080), 1)


@pytest.mark.promise("Maintenance 1: all but one update in eight in one run", rule="`has_tail`")
def test_a_large_shard_at_rest_has_nearly_all_updates_in_one_run():
    place = Place()
    c = place.lake(config=Config(merge_whole_rows=0, **QUIET)).create("c", SCHEMA, key=["id"])
    c.append(rows(*range(800)))
    c.append(rows(*range(800, 914)))
    assert c.maintain().merges == 0  # one update in eight may be elsewhere
    c.append(rows(914))
    assert c.maintain().complete
    assert next(member.batch.rows for member in c.state().spine if member.batch.rows) == 915
    assert ids(c) == dict.fromkeys(range(915), 1)


def test_appends_go_on_with_a_large_merge_that_another_process_left_behind():
    place = Place()
    collection_of(place, SIMPLE, each=1000)
    c, n = another(place, PATIENT), 4000
    while not c.state().claims:
        c.append(rows(n))
        n += 1
    (left,) = c.state().claims.values()
    heir = another(place, PATIENT, int(PATIENT.merge_claim_s * 1000))
    heir.append(rows(n))
    (taken_over,) = heir.state().claims.values()
    assert (taken_over.id, taken_over.cuts) == (left.id, left.cuts) and taken_over.runner != left.runner
    for more in range(n + 1, n + 40):
        heir.append(rows(more))
    oldest = next(iter(heir.state().spine))
    assert len(oldest.batch.runs) == 1 and oldest.batch.rows >= 4000
    assert ids(heir) == dict.fromkeys(range(n + 40), 1)


def test_a_large_merge_of_a_lake_that_was_closed_is_gone_on_with_at_once():
    place = Place()
    collection_of(place, SIMPLE, each=1000)
    lake = place.lake(config=PATIENT)
    c, n = lake.collection("c"), 4000
    while not c.state().chunks:
        c.append(rows(n))
        n += 1
    (left,) = c.state().claims.values()
    lake.close()
    heir = another(place, PATIENT)
    assert [claim.id for claim in heir.state().claims.values()] == [left.id]
    report = heir.maintain()
    assert report.complete and not heir.state().claims
    assert ids(heir) == dict.fromkeys(range(n), 1)


def test_upkeep_rewrites_a_large_collection_only_after_it_was_idle_for_long():
    place = Place()
    c = place.lake(config=SIMPLE).create("c", SCHEMA, key=["id"])
    c.append(rows(*range(100_000)))
    c.append(timed(5, 7, diff=-1))
    c.advance_since(5)
    lake, rounds = upkept(place)
    upkeep = lake.upkeep()
    for _ in range(3):
        rounds.go(2)
        assert upkeep.merges == 0  # the clock stands still
    lake.clock.sleep(0.9)
    rounds.go(1)
    assert upkeep.merges == 0
    lake.clock.sleep(0.2)
    rounds.go(3)
    assert upkeep.merges == 1
    assert c.state().spine.totals.rows == 99_999


def test_a_lost_part_stops_neither_other_merges_nor_appends():
    place = Place()
    c = place.lake(config=Config(inline_part_bytes=0, merge_budget_s=0, runs_max=4)).create(
        "c", SCHEMA, key=["id"]
    )
    for n in range(5):
        c.append(rows(n))
    place.stores.blobs.delete(min(stored(place, c)))
    for n in range(5, 25):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TidelakeWarning)
            assert not c.append(rows(n)).already
    with pytest.raises(BlobNotFound):
        c.maintain()
    assert c.upper == Frontier.of(25)
    assert c.state().spine.totals.runs < 25  # what does not need it was merged


def test_an_append_merges_nothing_while_another_process_of_the_machine_does(tmp_path):
    config = Config(merge_fan_in=3, merge_inputs_min=2, merge_rows_min=0, runs_max=1000)
    with tidelake.open(tmp_path / "lake", config=config) as lake:
        c = lake.create("c", SCHEMA, key=["id"])
        with FileAdvisoryLocks(str(tmp_path / "lake" / "log")).take(c.id, "merge") as is_ours:
            assert is_ours
            for n in range(20):
                c.append(rows(n))
        assert c.state().spine.totals.runs == 20
        for n in range(20, 24):
            c.append(rows(n))
        assert c.state().spine.totals.runs < 10
        assert sorted(ids(c)) == list(range(24))


def test_a_merge_takes_no_times_for_keys():
    """A cut by time was left. Another process merges that run, and cuts it at keys of its own."""
    place, config = Place(), {"merge_claim_rows": 0, "part_target_bytes": 1024, "row_group_rows": 8, **QUIET}
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int64())])
    large, small = Config(slice_rows=130, **config), Config(slice_rows=10, **config)
    c = place.lake(config=large).create("c", schema, key=["k"])
    for time in range(13):
        keys = [f"{n}" for n in range(10)]
        c.append(pa.table({"k": keys, "v": [time] * 10}, schema), time=time, upper=time + 1)
    assert c.maintain().complete
    cutting = another(place, small)
    with pytest.raises(SimulatedCrash):
        cutting.maintain(workers=counting(cutting, [], dies_at(2)))
    (left,) = c.state().claims.values()
    assert left.by_time and left.cuts == tuple(str(time).encode() for time in range(1, 13))
    c.evolve(schema.append(pa.field("w", pa.int64())))
    heir, held = another(place, large, CLAIM_MS), sorted(c.snapshot().read_all().to_pylist(), key=str)
    tasks = []
    assert heir.merge(counting(heir, tasks)).applied
    assert sorted(heir.snapshot().read_all().to_pylist(), key=str) == held
    assert len(tasks) == len(keys)  # not one for each time

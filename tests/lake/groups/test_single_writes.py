"""Writes of one collection in a group: all calls work there as they do alone, with the same guarantees."""

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from together import ACCOUNTS, AGE_S, QUIET, STORED, Places, at, awaiting, rows, totals

import inside
from tests.doubles.faults import Fault, FaultPlan, SimulatedCrash
from threads import at_once
from tidelake.errors import (
    AlreadyTaken,
    OutcomeUnknown,
    StoreUnavailable,
    UpdateBeforeLower,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model.frontier import Frontier
from tidelake.shard.writing.proposal import Proposal
from tidelake.state.core.codec import encode_state
from tidelake.store import url
from tiers import calls, some

F = Frontier.of


@pytest.fixture
def lake(places):
    return grouped(places)


def grouped(places, **env):
    """Collections a and b in a group, and c alone; none of them is written to yet."""
    lake = places.banks("a", "b", "c", **env)
    # For what works in other processes.
    url._memory_lakes[lake.url] = places.stores
    lake.seal({"a": 0, "b": 0})
    return lake


def contents(collection):
    """All updates, staged ones as well."""
    return sorted(map(str, collection.snapshot(100, staged=True).read_all().to_pylist()))


def built(collection, table, upper):
    builder = collection.builder()
    builder.add(table)
    return builder.finish(F(upper))


def uploads(collection, table, upper=50):
    builder = collection.builder(lower=0)
    builder.add(table)
    return [builder.finish(F(upper)).to_bytes()]


def upserted(collection):
    upserter = collection.distributed.upserter(time=collection.upper.elements[0])
    read_at = collection.distributed.newest_state().seqno
    found = upserter.upload(rows(1, v=70).to_batches())
    lower = upserter.lower.elements[0]
    return collection.distributed.append_uploaded([found], lower=lower, upper=lower + 1, read_at=read_at)


def replaced(collection):
    read_at, time = collection.distributed.newest_state().seqno, collection.upper.elements[0]
    stored = uploads(collection, at([time], [9]))
    made = [one.upload()[0] for one in collection.distributed.replacements(stored, time=time, parallelism=1)]
    collection.distributed.discard_uploaded(stored)
    return collection.distributed.append_uploaded(made, lower=time, upper=time + 1, read_at=read_at)


WRITES = {
    "append": lambda c: c.append(rows(1, v=5)),
    "append nothing": lambda c: c.append(rows()),
    "append at times": lambda c: c.append(at([7, 3], [1, 2])),
    "append up to": lambda c: c.append(at([7], [1]), upper=12),
    "append of many writers": lambda c: [c.append(at([3], [1]), lower=0, upper=5) for _ in range(2)],
    "compare and append": lambda c: c.compare_and_append(at([6], [1]), c.upper, 9),
    "compare and append nothing": lambda c: c.compare_and_append(at([], []), c.upper, 9),
    "stage": lambda c: c.stage(at([30, 10], [1, 2])),
    "stage with a token": lambda c: [c.stage(at([30], [1]), token="x") for _ in range(2)],
    "stage what is uploaded": lambda c: c.distributed.stage_uploaded(uploads(c, at([30, 9], [1, 2]))),
    "seal": lambda c: c.seal(8),
    "seal again": lambda c: [c.seal(8), c.seal(8), c.seal(3)],
    "stage and seal": lambda c: [c.stage(at([4, 9], [1, 2])), c.seal(6), c.seal(20)],
    "upsert": lambda c: [c.upsert(rows(1, 2, v=v)) for v in (3, 4, 4)],
    "upsert at a time": lambda c: [c.upsert(rows(1, v=v), time=time) for v, time in ((3, 4), (5, 9))],
    "replace": lambda c: [c.replace(rows(1, 2)), c.replace(rows(2, 3))],
    "upsert of what is staged": lambda c: [c.stage(at([0], [5])), c.upsert(rows(0, v=6), time=0)],
    "batches": lambda c: c.distributed.append_batches([built(c, at([6], [1]), 9)], lower=c.upper, upper=9),
    "a narrowed batch": lambda c: c.distributed.append_batches(
        [built(c, at([1, 6], [1, 2]), 9)], lower=c.upper, upper=4
    ),
    "uploads": lambda c: c.distributed.append_uploaded(uploads(c, at([6], [1])), lower=c.upper, upper=9),
    "late uploads": lambda c: [
        c.seal(8),
        c.distributed.append_uploaded(uploads(c, at([6], [1])), lower=8, upper=9, advance=True),
    ],
    "upserter": upserted,
    "replacements": lambda c: [c.append(rows(1)), replaced(c)],
    "a writer": lambda c: [
        (w := c.writer("w")).append(rows(1), sequence=0),
        w.append(rows(1), sequence=0),
        w.stage(at([30], [1]), sequence=1),
        w.stage(at([30], [1]), sequence=1),
        w.seal(20, sequence=2),
        w.seal(40, sequence=2),
        w.upsert(rows(1, v=8), sequence=3),
        w.replace(rows(2, v=8), sequence=4),
        w.replace(rows(2, v=8), sequence=4),
        told(w.replace, rows(2, v=9), sequence=4),
        w.compare_and_append(at([50], [1]), c.upper, 60, sequence=5),
        w.append_batches([], lower=c.upper, upper=70, sequence=6),
        w.stage_uploaded([], seal=80, sequence=7),
        (c.writer("w").epoch, c.writer("w").last_sequence),
    ],
    "what is refused": lambda c: [
        c.seal(5),
        told(c.append, at([3], [1])),
        told(c.stage, at([3], [1])),
        told(c.distributed.append_uploaded, uploads(c, at([3], [1])), lower=5, upper=9),
        told(c.compare_and_append, at([6], [1]), 4, 9),
        told(c.append, at([6], [1]), lower=7, upper=9),
        told(c.upsert, rows(1), time=3),
        told(c.writer("w").append, rows(1), sequence=-1),
        told(c.append, pa.table({"nope": [1]})),
    ],
    "the end": lambda c: [c.seal([]), told(c.append, rows(1)), told(c.stage, at([5], [1])), told(c.seal, [])],
}


def told(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.promise(
    "All calls work in a group as for a collection alone, with the same answers, errors and "
    "contents; so do tokens, numbers and epochs of writers, also across joining and leaving",
    rule="`shard/writing/committing.py`; `plan` works a write out alone and in a group",
    also=[
        "::test_writers_go_on_whatever_their_collection_joins_or_leaves",
        "::test_a_fenced_writer_gets_nothing_in",
    ],
)
@pytest.mark.parametrize("name", WRITES)
def test_what_works_alone_works_in_a_group_with_the_same_answers(lake, name):
    """The answers, the errors, the upper, and what is there then, staged or closed."""
    alone, member = lake.collection("c"), lake.collection("a")
    write, found = WRITES[name], []
    for collection in (alone, member):
        inside.shard(collection).title = "it"
        found.append((told(write, collection), collection.upper, collection.writers()))
    assert found[0] == found[1]
    assert isinstance(found[0][0], tuple) is False
    for collection in (alone, member):
        if not collection.upper.closed:
            collection.seal(101)
        found.append(contents(collection))
    assert found[2] == found[3]
    assert not awaiting(lake, "a")
    assert lake.collection("b").upper == F(0)
    assert lake.leave("a")
    assert contents(member) == contents(alone)
    assert member.writers() == alone.writers()
    assert lake.fsck().clean


def test_a_write_costs_one_write_of_the_collection_and_one_that_decides(places, lake):
    a = lake.collection("a")
    for _ in range(3):
        a.append(rows(1))
        places.counts.clear()
        a.append(rows(2))
        assert places.counts["log.compare_and_set"] == 2
        assert places.counts["blob.put"] == (places.config is STORED)
    places.counts.clear()
    a.seal(50)
    assert places.counts["log.compare_and_set"] == 1


def test_decisions_of_single_writes_do_not_pile_up(lake):
    a = lake.collection("a")
    for number in range(40):
        a.append(rows(number))
    assert len(a.group().decisions) <= 1
    assert len(a.state().staged) <= 1


def test_a_seal_of_several_sees_what_many_have_staged_in_each(lake):
    """What groups are for."""
    for number in range(4):
        for name in "ab":
            lake.collection(name).stage(at([number, number + 10], [1, 1]), token=f"{name}{number}")
    done = lake.seal({"a": 10, "b": 10})
    assert done.upper == F(10)
    assert totals(lake, 9, "ab") == [4, 4]


def test_single_writes_and_transactions_take_turns(lake):
    a = lake.collection("a")
    a.append(rows(1))
    assert lake.write({"a": rows(2), "b": rows(2)}).upper == F(2)
    assert a.append(rows(3)).lower == F(2)
    assert lake.write({"b": rows(4)}).upper == F(3)
    assert a.append(rows(5)).lower == F(3)
    assert totals(lake, 2, "ab") == [3, 2]
    assert totals(lake, 3, "a") == [4]


# --- races


def racing(monkeypatch, do):
    """Let `do` happen once, between what a write has staged and what the group decides of it."""
    real = Proposal.decide
    done = []

    def decide(*args):
        if not done:
            done.append(True)
            do()
        return real(*args)

    monkeypatch.setattr(Proposal, "decide", decide)


RACES = {
    "append": (lambda c: c.append(rows(1, v=5)), 5),
    "append at times": (lambda c: c.append(at([9], [5])), 5),
    "stage": (lambda c: c.stage(at([9], [5])), 5),
    "upsert": (lambda c: c.upsert(rows(7, v=5)), 5),
    "replace": (lambda c: c.replace(rows(8, v=5)), 5),
    "seal": (lambda c: c.seal(20), 0),
    "writer": (lambda c: c.writer("w").append(rows(1, v=5)), 5),
}


@pytest.mark.promise(
    "A single write of a collection in a group comes in once or not at all, whatever other writers, "
    "crashes and leaves come between",
    rule=(
        "`decide`: one compare-and-set of the group says what the write depended on, its number and "
        "that it is in"
    ),
    also=[
        "::test_after_a_crash_at_any_call_a_number_comes_in_once",
        "::test_whatever_the_store_fails_a_number_that_is_repeated_comes_in_once",
        "::test_an_upload_that_is_offered_again_after_a_failure_is_in_once",
    ],
)
@pytest.mark.parametrize("name", RACES)
@pytest.mark.parametrize("other", ["transaction", "append", "leave", "leave and come back", "expire", "tidy"])
def test_what_is_written_comes_in_once_if_others_come_between(places, lake, monkeypatch, name, other):
    second = places.process()

    def between():
        if other == "transaction":
            second.write({"a": rows(7, v=1), "b": rows(7, v=1)})
            second.collect()
        elif other == "append":
            second.collection("a").append(rows(7, v=1))
            second.collect()
        elif other.startswith("leave"):
            second.leave("a")
            if other != "leave":
                second.seal({"a": 1, "b": 1})
        elif other == "expire":
            places.clock.ms += int(AGE_S * 1000)
            second.collect()
        else:
            second.collect()

    racing(monkeypatch, between)
    write, sum_ = RACES[name]
    a = lake.collection("a")
    write(a)
    a.seal(50)
    theirs = 1 if other in ("transaction", "append") else 0
    # The row of the others is taken away by an upsert of its key, and by a replacement.
    assert totals(lake, 49, "a") == [sum_ + (0 if name in ("upsert", "replace") else theirs)]
    assert not awaiting(lake, "a")
    assert lake.fsck().clean


READING = {
    "upsert": lambda lake: lake.collection("a").upsert(rows(5, v=7), time=9),
    "replace": lambda lake: lake.collection("a").replace(rows(8, v=7), time=9),
    "transaction": lambda lake: transacted(lake, time=9),
}


def transacted(lake, time):
    with lake.transaction(time=time) as transaction:
        transaction.upsert("a", rows(5, v=7))
        transaction.write("b", rows(1))


@pytest.mark.parametrize("name", READING)
def test_what_is_staged_before_the_time_of_a_write_that_reads_it_is_read(places, lake, monkeypatch, name):
    racing(monkeypatch, lambda: places.process().collection("a").stage(at([5], [1])))
    READING[name](lake)
    lake.collection("a").seal(50)
    assert totals(lake, 49, "a") == [7]


def test_a_conflict_names_the_upper_of_the_collection(lake, monkeypatch):
    a = lake.collection("a")
    racing(monkeypatch, lambda: lake.write({"b": rows(1)}, time=5))
    with pytest.raises(UpperMismatch) as error:
        a.compare_and_append(at([3], [1]), 0, 4)
    assert error.value.current == F(6)
    assert not awaiting(lake, "a")
    with pytest.raises(UpdateBeforeLower):
        a.stage(at([5], [1]))


@pytest.mark.promise(
    "A write that depends on contents is refused if rows were let in since, also rows that were "
    "staged before",
    rule="`ShardState.let_in`, `ShardState.latest`",
    also=["::test_what_is_staged_before_the_time_of_a_write_that_reads_it_is_read"],
)
def test_what_was_let_in_since_an_upsert_was_worked_out_is_a_conflict(lake):
    """It was staged before, and decided after: only the group knows when."""
    a = lake.collection("a")
    a.append(rows(1, v=1))
    transaction = lake.transaction()
    transaction.stage("a", at([5], [9]))
    group, joined = lake._groups.of(transaction._draft.shards)
    from tidelake.lake.groups.attempt import Attempt

    transaction._attempt = Attempt("t", group, transaction._draft.shards, joined)
    transaction._attempt.prepare(transaction._draft.rows, None)
    read_at = a.distributed.newest_state().seqno
    upserter = a.distributed.upserter(time=5)
    found = upserter.upload(rows(5, v=70).to_batches())
    transaction.commit()
    with pytest.raises(UpperMismatch):
        a.distributed.append_uploaded([found], lower=1, upper=6, read_at=read_at)
    a.distributed.newest_state()
    with pytest.raises(UpperMismatch):
        a.distributed.append_uploaded([found], lower=1, upper=6, read_at=read_at)
    a.upsert(rows(5, v=70), time=5)
    assert totals(lake, 5, "a") == [71]


@pytest.mark.promise(
    "Uploads and batches that met a conflict may be offered again, and come in once",
    rule="`park`, `apply_decided` (`taken`)",
    also=["::test_a_batch_that_met_a_conflict_is_given_up_with_its_parts"],
)
def test_uploads_and_batches_that_met_a_conflict_are_offered_again_and_taken_once(places, lake):
    a = lake.collection("a")
    found, batch = uploads(a, at([3], [5])), built(a, at([3, 7], [5, 5]), 9)
    lake.write({"a": rows(1), "b": rows(1)}, time=1)
    for _ in range(3):
        with pytest.raises(UpperMismatch):
            a.distributed.append_uploaded(found, lower=0, upper=9)
        with pytest.raises(UpperMismatch):
            a.distributed.append_batches([batch], lower=1, upper=9)
    assert a.distributed.append_uploaded(found, lower=2, upper=5).upper == F(5)
    for again in (
        lambda: a.distributed.append_uploaded(found, lower=5, upper=9, advance=True),
        lambda: a.distributed.stage_uploaded(found),
        lambda: a.writer("w").append_uploaded(found, lower=5, upper=9, advance=True),
    ):
        with pytest.raises(AlreadyTaken):
            again()
    a.merge()
    with pytest.raises(AlreadyTaken):
        a.distributed.append_uploaded(found, lower=5, upper=9, advance=True)
    a.distributed.append_batches([batch], lower=5, upper=9)
    assert totals(lake, 8, "a") == [11]
    assert not awaiting(lake, "a")
    assert lake.fsck().clean


def test_a_batch_that_met_a_conflict_is_given_up_with_its_parts(places, lake):
    a = lake.collection("a")
    batch = built(a, at([3], [5]), 9)
    a.seal(1)
    with pytest.raises(UpperMismatch):
        a.distributed.append_batches([batch], lower=0, upper=9)
    batch.delete()
    assert lake.fsck().clean
    places.clock.ms += int(AGE_S * 1000)
    lake.collect()
    assert not awaiting(lake, "a")
    assert lake.fsck().clean


def test_a_fenced_writer_gets_nothing_in(places, lake, monkeypatch):
    a = lake.collection("a")
    old = a.writer("w")
    old.append(rows(1))
    new = []

    def takes_over():
        new.append(places.process().collection("a").writer("w"))
        new[0].append(rows(2))

    racing(monkeypatch, takes_over)
    for write in (lambda: old.append(rows(3)), lambda: old.seal(40), lambda: old.stage(at([30], [1]))):
        with pytest.raises(WriterFenced):
            write()
    assert a.upper == F(2)
    assert totals(lake, 1, "a") == [2]
    assert not awaiting(lake, "a")


@pytest.mark.parametrize("when", ["joins", "leaves", "leaves and comes back"])
def test_writers_go_on_whatever_their_collection_joins_or_leaves(lake, when):
    names = ("c", "b") if when == "joins" else ("a", "b")
    collection = lake.collection(names[0])
    writer, stale = collection.writer("w"), lake.collection(names[0])
    writer.append(rows(1))
    if when == "joins":
        lake.seal(dict.fromkeys(names, 0))
    else:
        lake.leave("a")
        if when != "leaves":
            lake.seal(dict.fromkeys(names, 0))
    assert writer.append(rows(1), sequence=0).already
    assert not writer.append(rows(2), sequence=1).already
    assert writer.append(rows(2), sequence=1).already
    again = stale.writer("w")
    assert (again.last_sequence, again.epoch) == (1, writer.epoch + 1)
    with pytest.raises(WriterFenced):
        writer.append(rows(3))
    assert totals(lake, 1, names[:1]) == [2]


def test_a_number_with_other_rows_is_refused_after_a_leave_as_well(lake):
    a = lake.collection("a")
    writer = a.writer("w")
    writer.append_uploaded(uploads(a, at([1], [1])), lower=0, upper=2, sequence=0, content="x")
    for _ in range(2):
        with pytest.raises(UsageError, match="something else"):
            writer.append_uploaded([], lower=2, upper=3, sequence=0, content="y")
        lake.leave("a")


def test_threads_on_members_lose_nothing(places):
    lake = grouped(places)

    def work(number):
        a = lake.collection("a")
        for turn in range(8):
            match (number + turn) % 4:
                case 0:
                    a.append(rows(turn))
                case 1:
                    a.stage(at([1000 + turn], [1]))
                case 2:
                    lake.write({"a": rows(turn), "b": rows(turn)})
                case _:
                    a.upsert(rows(100 + number * 10 + turn))

    at_once(work, range(4))
    lake.collection("a").seal(2000)
    assert totals(lake, 1999, "a") == [32]
    assert lake.fsck().clean


# --- crashes and faults

NUMBERED = {
    "append": lambda w: w.append(rows(1, v=5), sequence=1),
    "append at times": lambda w: w.append(at([4], [5]), sequence=1),
    "stage": lambda w: w.stage(at([4], [5]), sequence=1),
    "upsert": lambda w: w.upsert(rows(1, v=5), sequence=1),
    "seal": lambda w: w.seal(10, sequence=1),
    "stage and seal": lambda w: w.stage_uploaded(uploads(w.collection, at([4], [5])), seal=F(3), sequence=1),
}


def numbered(lake, name, **options):
    collection = lake.collection("a")
    writer = collection.writer("w", owner="query", **options)
    writer.collection = collection
    return partial(NUMBERED[name], writer)


@pytest.mark.grows
@pytest.mark.parametrize("name", some(NUMBERED, 6))
def test_after_a_crash_at_any_call_a_number_comes_in_once(name):
    for call in calls(most=100, fast=3):
        places = Places(config=STORED if call % 2 else QUIET)
        grouped(places).collection("a").writer("w", owner="query").append(rows(0, v=0), sequence=0)
        lake = places.process(faults=FaultPlan(script=[Fault.NONE] * call + [Fault.CRASH_AFTER]))
        try:
            numbered(lake, name)()
        except SimulatedCrash:
            pass
        else:
            break
        other = places.process()
        numbered(other, name)()
        numbered(other, name, resume=True)()
        other.collection("a").seal(50)
        places.clock.ms += int(AGE_S * 1000)
        other.collect()
        assert totals(other, 49, "a") == [0 if name == "seal" else 5], call
        assert not awaiting(other, "a")
        assert other.fsck().clean
    assert call > 4


@pytest.mark.full
@pytest.mark.grows
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
@pytest.mark.parametrize("name", NUMBERED)
def test_whatever_the_store_fails_a_number_that_is_repeated_comes_in_once(name, fault):
    for call in calls(most=60, full=3):
        places = Places(config=STORED if call % 2 else QUIET)
        grouped(places).collection("a").writer("w", owner="query").append(rows(0, v=0), sequence=0)
        plan = FaultPlan(script=[Fault.NONE] * call + [fault] * 20)
        lake = places.process(faults=plan, retries=False)
        for _ in range(60):
            try:
                numbered(lake, name, resume=True)()
                break
            except (OutcomeUnknown, StoreUnavailable):
                continue
        other = places.process()
        other.collection("a").seal(50)
        assert totals(other, 49, "a") == [0 if name == "seal" else 5], (call, fault)
        places.clock.ms += int(AGE_S * 1000)
        other.collect()
        assert not awaiting(other, "a")
        assert other.fsck().clean
        if not plan.injected:
            break


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.UNKNOWN_BEFORE, Fault.UNKNOWN_AFTER])
def test_an_upload_that_is_offered_again_after_a_failure_is_in_once(fault):
    """The first offer may have been staged, and the process that made it may still decide it."""
    for call in range(40):
        places = Places(config=QUIET)
        grouped(places)
        plan = FaultPlan()
        lake = places.process(faults=plan, retries=False)
        a = lake.collection("a")
        writer, found = a.writer("w"), uploads(a, at([4], [5]))
        plan.follow([Fault.NONE] * call + [fault] * 3)
        for _ in range(20):
            try:
                writer.append_uploaded(found, lower=0, upper=5, sequence=0)
                break
            except (OutcomeUnknown, StoreUnavailable):
                continue
        assert totals(places.process(), 4, "a") == [5], call
        if not plan.injected:
            break


# --- what is bounded


@pytest.mark.promise(
    "Refused transactions leave nothing in their group; maintenance of its collections clears the "
    "decisions and the log of a group",
    rule="`refuse`, `Groups.maintain`",
    also=[
        "::test_maintenance_of_a_collection_clears_its_group_and_the_log_of_that_stays_short",
        "::test_decisions_of_single_writes_do_not_pile_up",
    ],
)
def test_refused_transactions_leave_nothing_in_the_group(lake):
    lake.seal({"a": 5, "b": 5})
    size = len(encode_state(lake.collection("a").group()))
    for number in range(30):
        with pytest.raises(UpdateBeforeLower):
            lake.write({"a": rows(number), "b": rows(number)}, time=3)
    group = lake.collection("a").group()
    assert not group.decisions
    assert len(encode_state(group)) <= size + 20
    assert not awaiting(lake, "a", "b")


def test_maintenance_of_a_collection_clears_its_group_and_the_log_of_that_stays_short(places):
    places = Places(config=replace(QUIET, rollup_bytes_min=1_024, garbage_age_s=1.0))
    lake = grouped(places)
    for number in range(60):
        lake.write({"a": rows(number), "b": rows(number)})
        places.clock.ms += 100
    group = lake.collection("a").group()
    places.clock.ms += 10_000
    for name in "ab":
        lake.collection(name).maintain()
    assert not lake.collection("a").group().decisions
    assert len(places.stores.log.scan(group.shard_id, 0)) < 60 / 2
    assert totals(lake, 59, "ab") == [60, 60]


def test_a_handle_from_before_its_collection_joined_lets_history_go(lake):
    stale = lake.collection("c")
    lake.seal({"c": 0, "b": 0})
    lake.write({"c": rows(1), "b": rows(1)}, time=9)
    assert stale.advance_since(3) == F(3)


@pytest.mark.promise(
    "A seal of several collections returns the upper of each; collections that cannot be in one "
    "group are refused before any joins",
    rule="`Committed.uppers`, `Groups.of`",
    also=["::test_collections_that_cannot_be_in_one_group_are_told_before_anything_joins"],
)
def test_a_seal_of_several_answers_with_what_is_sealed(lake):
    done = lake.seal({"a": 5, "b": 7})
    assert (done.upper, done.uppers, done.already) == (F(5), {"a": F(5), "b": F(7)}, False)
    done = lake.seal({"a": 5, "b": 7})
    assert (done.upper, done.uppers, done.already) == (F(5), {"a": F(5), "b": F(7)}, True)
    assert lake.write({"a": rows(1)}).uppers == {"a": F(6)}


@pytest.mark.parametrize("time", ["tuple(2)", "ms"])
def test_collections_that_cannot_be_in_one_group_are_told_before_anything_joins(places, lake, time):
    lake.create("other", ACCOUNTS, key=["k"], time=time)
    places.counts.clear()
    with pytest.raises(UsageError, match="no total order" if "tuple" in time else "unit"):
        lake.seal({"a": 5, "other": (5, 5) if "tuple" in time else 5})
    assert places.counts["log.compare_and_set"] == places.counts["blob.put"] == 0
    assert lake.collection("other").group() is None

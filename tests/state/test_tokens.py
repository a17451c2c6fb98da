"""Records that a state keeps of writers, tokens and decisions: how many there are, and for how long."""

from dataclasses import replace

import pytest
import writes as appends
from pyrsistent import pmap, pset
from shard_states import F, Shard

from tidelake.errors import UsageError
from tidelake.state.core.agreed import AS_MADE
from tidelake.state.core.codec import decode_state, encode_delta, encode_state
from tidelake.state.core.commands import Commit, NoOp, Refused, open_writer
from tidelake.state.core.decisions import Decision, GroupView, Membership
from tidelake.state.core.edits import Delta, Edits, stepped
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.core.state import WriterRecord
from tidelake.state.core.tokens import DAY_MS
from tidelake.state.group import applying, deciding, joining, memberwriters
from tidelake.state.group.deciding import Intent, Share
from tidelake.state.life import collecting
from tidelake.state.life.mending import mended
from tidelake.state.write.idempotency import IdempotencyKey, advanced
from tidelake.state.write.write import Exactly

MANY = 100_000
AGE_MS = AS_MADE.token_age_ms


class Large(Shard):
    """One whose whole state is not checked at each commit."""

    def commit(self, edits, now_ms=10):
        committed_ms = max(now_ms, self.state.committed_ms)
        after = stepped(self.state, edits, committed_ms)
        check_step(self.state, after, edits)
        self.state = after


def begin(shard, token, now_ms=10, **kwargs):
    return shard.do(open_writer, name=f"token:{token}", now_ms=now_ms, **kwargs)


def write(shard, token, now_ms=10):
    """A write under a token; whether it came in now."""
    record = shard.state.writers[f"token:{token}"]
    at = shard.state.upper.elements[0]
    idempotency = IdempotencyKey(f"token:{token}", record.epoch, 0)
    outcome = shard.do(appends.append, (), Exactly(F(at), F(at + 1)), idempotency, now_ms=now_ms)
    return isinstance(outcome, Commit)


def forget(shard, now_ms, names_max=1000):
    return shard.do(collecting.forget_tokens, now_ms=now_ms, names_max=names_max).result


def with_tokens(count, days):
    """A shard with so many tokens that are in, of days one after the other."""
    shard = Large()
    names = [f"token:job {n}" for n in range(count)]
    record = WriterRecord(0, 0, "", F(0))
    tokens = pmap({day: pset(names[day::days]) for day in range(days)})
    writers = pmap(dict.fromkeys(names, record)).set("named", WriterRecord(0, 7, "", F(0)))
    shard.state = replace(shard.state, writers=writers, tokens=tokens, committed_ms=(days - 1) * DAY_MS)
    return shard


@pytest.mark.promise(
    "A token is remembered for `token_age_s` after a write under it last began, and forgotten a day "
    "later by maintenance or beside appends, in groups too; a write that slept so long is refused. "
    "Named writers are never forgotten, whatever their names",
    rule="`tidelake.state.core.tokens`, `forget_tokens`; `tokens-last`, `tokens-known`",
    also=[
        "::test_a_token_counts_from_the_last_write_that_began_under_it",
        "::test_a_write_that_slept_while_its_token_was_forgotten_is_refused",
        "::test_a_writer_that_has_written_another_number_is_never_forgotten_whatever_its_name",
        "::test_a_group_forgets_tokens_of_its_members_and_of_transactions",
        "::test_a_collection_that_leaves_its_group_takes_tokens_along_and_forgets_them_in_time",
        "::test_a_state_whose_tokens_break_the_rules_is_mended_and_keeps_those_that_are_sound",
        "lake/catalog/test_settings.py::test_a_job_that_is_run_again_within_a_month_writes_once_and_its_token_is_then_forgotten",
        "lake/catalog/test_settings.py::test_tokens_are_forgotten_beside_writes_without_maintenance",
        "lake/catalog/test_settings.py::test_tokens_of_a_group_and_of_its_members_are_forgotten",
        "state/test_invariants.py",
    ],
)
def test_a_token_is_remembered_for_its_age_and_a_day_at_most():
    shard = Shard()
    begin(shard, "a")
    assert write(shard, "a") and not write(shard, "a")
    assert forget(shard, AGE_MS + 10) == 0
    # A job that runs again before that is told that it is in.
    assert not write(shard, "a", AGE_MS + 10)
    assert forget(shard, AGE_MS + DAY_MS) == 1
    assert not shard.state.writers and not shard.state.tokens
    begin(shard, "a", AGE_MS + DAY_MS)
    assert write(shard, "a", AGE_MS + DAY_MS)


def test_a_token_counts_from_the_last_write_that_began_under_it():
    shard = Shard()
    begin(shard, "a")
    begin(shard, "a", AGE_MS)
    assert forget(shard, AGE_MS + DAY_MS) == 0
    begin(shard, "a", AGE_MS + 2 * DAY_MS, resume=True)
    assert set(shard.state.tokens) == {AGE_MS // DAY_MS + 2}
    # On one day it is noted once.
    assert isinstance(begin(shard, "a", AGE_MS + 2 * DAY_MS + 5, resume=True), NoOp)
    assert forget(shard, 2 * AGE_MS + 3 * DAY_MS) == 1


def test_a_write_that_slept_while_its_token_was_forgotten_is_refused():
    shard = Shard()
    begin(shard, "a")
    forget(shard, AGE_MS + DAY_MS)
    error = shard.refused(appends.append, (), Exactly(F(0), F(1)), IdempotencyKey("token:a", 0, 0))
    assert isinstance(error, UsageError) and "is not open" in str(error)


def test_a_clock_that_is_behind_dates_no_token_back():
    shard = Shard()
    shard.commit(Edits(), 5 * DAY_MS)
    begin(shard, "a", now_ms=1)
    assert set(shard.state.tokens) == {5}


def test_a_writer_that_has_written_another_number_is_never_forgotten_whatever_its_name():
    shard = Shard()
    begin(shard, "w")
    for sequence in range(3):
        outcome = shard.do(
            appends.append, (), Exactly(F(sequence), F(sequence + 1)), IdempotencyKey("token:w", 0, sequence)
        )
        assert isinstance(outcome, Commit)
    begin(shard, "w", 2 * DAY_MS)
    assert not shard.state.tokens
    assert forget(shard, 99 * AGE_MS) == 0 and "token:w" in shard.state.writers


def test_an_age_of_tokens_that_becomes_shorter_takes_nothing_from_those_who_count_on_it():
    shard = Shard()
    begin(shard, "a")
    shard.commit(Edits(agreed=AS_MADE.changed(10, 1, {"token_age_ms": 1})))
    assert forget(shard, 2 * DAY_MS) == 0
    assert forget(shard, AGE_MS + DAY_MS) == 1


def test_a_group_forgets_tokens_of_its_members_and_of_transactions():
    group = Shard()
    members = {"c": Membership(F(0), 1)}
    group.commit(Edits(memberships=members))
    opened = {"member": "c", "joined": 1, "record": None, "upper": F(0)}
    group.do(memberwriters.open_member_writer, name="token:a", **opened)
    group.do(memberwriters.open_member_writer, name="w", **opened)
    begin(group, "t", resume=True)
    assert group.state.tokens == pmap({0: pset(["c:token:a", "token:t"])})
    assert forget(group, AGE_MS + DAY_MS) == 2
    assert set(group.state.writers) == {"c:w"}


def test_a_collection_that_leaves_its_group_takes_tokens_along_and_forgets_them_in_time():
    shard = Shard()
    shard.do(joining.join, "g", 1, shard.state.seqno)
    view = GroupView("g", 5, F(0), 1, leaving=True)
    taken = {"token:a": WriterRecord(0, 0, "", F(0)), "w": WriterRecord(0, 3, "", F(0))}
    shard.do(applying.apply_decided, view, leave=taken, now_ms=3 * DAY_MS)
    assert not shard.state.group and shard.state.tokens == pmap({3: pset(["token:a"])})
    assert forget(shard, 4 * DAY_MS + AGE_MS) == 1 and set(shard.state.writers) == {"w"}


@pytest.mark.promise(
    "What a state keeps of tokens, named writers, decisions and dropped names has a bound, tried "
    "with 100,000 of each: tokens of one age; a record for each name of a writer; decisions that "
    "not every collection has applied, until the next tidying; a row for each name. No step looks "
    "at all of them",
    rule="`days_of`, `advanced`, `forget`, `Catalog.look`",
    also=[
        "::test_what_a_write_stores_does_not_grow_with_the_number_of_tokens",
        "::test_a_named_writer_has_one_record_however_often_it_writes",
        "::test_a_group_forgets_a_hundred_thousand_decisions_and_remembers_nothing_of_them",
        "::test_a_write_of_a_member_forgets_the_decisions_that_it_has_applied",
        "state/test_every_step.py::test_tokens_begin_and_are_forgotten_at_the_same_cost_however_many_there_are",
        "lake/catalog/test_names.py::test_a_hundred_thousand_names_that_were_dropped_are_a_short_row_each",
    ],
)
@pytest.mark.full
def test_of_a_hundred_thousand_tokens_those_of_the_age_stay_and_no_step_looks_at_all():
    days = 100
    shard = with_tokens(MANY, days)
    now_ms = shard.state.committed_ms
    left = MANY
    while (gone := forget(shard, now_ms)) > 0:
        assert gone <= 1000
        left -= gone
    kept = AGE_MS // DAY_MS + 1
    assert left == kept * MANY // days and len(shard.state.writers) == left + 1
    assert min(shard.state.tokens) == days - kept
    check_state(shard.state)
    assert decode_state(encode_state(shard.state), "s") == shard.state


@pytest.mark.parametrize("count", [1000, MANY])
def test_what_a_write_stores_does_not_grow_with_the_number_of_tokens(count):
    shard = with_tokens(count, 30)
    outcome = open_writer(shard.state, 10, "token:new")
    delta = Delta("s", 1, 10, "n", shard.state.rollup, outcome.edits)
    assert len(encode_delta(delta)) < 500
    gone = collecting.forget_tokens(shard.state, 99 * AGE_MS, names_max=250)
    assert len(gone.edits.writers_gone) == 250


@pytest.mark.full
def test_a_named_writer_has_one_record_however_often_it_writes():
    shard = Large()
    shard.do(open_writer, name="w")
    for sequence in range(MANY):
        record = advanced(shard.state.writers["w"], IdempotencyKey("w", 0, sequence), F(sequence + 1))
        shard.commit(Edits(writers={"w": record}))
    assert set(shard.state.writers) == {"w"} and not shard.state.tokens
    assert len(encode_state(shard.state)) < 3_000


@pytest.mark.full
def test_a_group_forgets_a_hundred_thousand_decisions_and_remembers_nothing_of_them():
    group = Shard()
    group.commit(Edits(memberships={"c": Membership(F(0), 1)}))
    empty = len(encode_state(group.state))
    made = {f"{n:032x}": Decision(("c",), 5) for n in range(MANY)}
    group.commit(Edits(decisions=made))
    assert len(encode_state(group.state)) > 50 * MANY
    group.do(deciding.forget, frozenset(made))
    assert not group.state.decisions and len(encode_state(group.state)) < empty + 100


def test_a_write_of_a_member_forgets_the_decisions_that_it_has_applied():
    """A collection with writes leaves no more decisions than those its state has not applied."""
    group = Shard()
    group.commit(Edits(memberships={"c": Membership(F(0), 1)}))
    applied = frozenset()
    for n in range(50):
        share = Share(1, F(0), (n, n), seal=F(n + 1), applied=applied)
        wanted = Intent(f"t{n}", group.state.seqno, {"c": share}, own_times=True, alone=True)
        assert not isinstance(group.do(deciding.decide, wanted), Refused)
        applied = frozenset([f"t{n}"])
        assert len(group.state.decisions) == 1


def test_a_state_whose_tokens_break_the_rules_is_mended_and_keeps_those_that_are_sound():
    shard = Shard()
    begin(shard, "a")
    begin(shard, "b")
    shard.do(open_writer, name="w")
    broken = pmap({0: pset(["token:a", "token:gone"]), 3: pset(["token:a", "token:b", "w"])})
    state = mended(replace(shard.state, tokens=broken)).state
    check_state(state)
    assert state.tokens == pmap({3: pset(["token:a", "token:b"])}) and len(state.writers) == 3

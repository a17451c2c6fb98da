"""Transactions as pure steps: any order of joining, staging, deciding, applying, giving up and leaving.

The oracle is a list: each transaction with its rows, and when it was decided. What a reader would see, of
the group first and then of the collection, is compared with it after every step.
"""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from shard_states import SCHEMA, F, run
from writes import seal

from tidelake.errors import LeftGroup, TransactionExpired, UpdateBeforeLower, UpperMismatch
from tidelake.model.batch import HollowBatch
from tidelake.model.bounds import Bounds
from tidelake.model.time import TimeDomain
from tidelake.state.core import codec, commands
from tidelake.state.core.commands import Commit, NoOp, Refused
from tidelake.state.core.decisions import GroupView
from tidelake.state.core.edits import Delta, apply
from tidelake.state.core.invariants import check_state, check_step
from tidelake.state.group import applying, awaiting, deciding, joining
from tidelake.state.group.deciding import Intent, Share
from tidelake.state.life.holds import settle
from tidelake.state.spine.staged import Awaited
from tidelake.state.write.write import Addition
from tiers import examples

MEMBERS = ("a", "b", "c")


class Log:
    """A shard whose every state is also made from the bytes of its log."""

    def __init__(self, id_):
        self.state = commands.initial(id_, TimeDomain("counter"), SCHEMA, 0)
        self.replayed = codec.decode_state(codec.encode_state(self.state), id_)

    def do(self, command, *args, **kwargs):
        outcome = command(self.state, 0, *args, **kwargs)
        if isinstance(outcome, Commit):
            edits = settle(self.state, outcome.edits, 0)
            delta = Delta(self.state.shard_id, self.state.seqno + 1, 0, "n", self.state.rollup, edits)
            after = apply(self.state, delta)
            check_step(self.state, after, edits)
            check_state(after)
            self.replayed = apply(self.replayed, codec.decode_delta(codec.encode_delta(delta), "log"))
            assert self.replayed == after
            self.state = after
        return outcome


def waiting(state, *runs, floats=None):
    """Rows that wait for a decision: at times of their own, or at one that may become a later one."""
    batch = HollowBatch(Bounds(state.upper, state.upper, state.minimum), runs)
    return Addition(batch, stays_open=floats is None, floats=floats)


@dataclass
class Begun:
    """A transaction of the oracle.

    Attributes:
        joined: since when its collections are in the group, and their uppers.
        rows: the time of each part, by its name.
        decided: the time that all rows get; -1: they keep their own; None: it is not in.
    """

    id: str
    begun: int
    joined: dict[str, tuple[int, object]]
    own_times: bool
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    decided: int | None = None
    over: bool = False


class Transactions(RuleBasedStateMachine):
    """Two or three collections and a group, as several processes drive them with states that are old."""

    @initialize()
    def begin(self):
        self.group = Log("g")
        self.logs = {name: Log(name) for name in MEMBERS}
        self.begun: list[Begun] = []
        self.final: dict[tuple[str, int], frozenset[str]] = {}
        self.views = []

    def _pick(self, data, of):
        return data.draw(st.sampled_from(of)) if of else None

    @rule(names=st.sets(st.sampled_from(MEMBERS), min_size=1), own_times=st.booleans())
    def start(self, names, own_times):
        """Join, as far as that works, and begin a transaction."""
        outcome = self.group.do(joining.admit, tuple(sorted(names)))
        if isinstance(outcome, Refused):
            assert isinstance(outcome.error, LeftGroup)
            return
        for name in sorted(names):
            log = self.logs[name]
            log.do(joining.join, "g", outcome.result[name], log.state.seqno)
        joined = {name: (outcome.result[name], self.logs[name].state.upper) for name in names}
        self.begun.append(Begun(f"t{len(self.begun)}", self.group.state.seqno, joined, own_times))

    @rule(data=st.data(), ahead=st.integers(-2, 3))
    def stage(self, data, ahead):
        """Stage one more part, at the upper that readers see, or a little later or earlier."""
        one = self._pick(data, [t for t in self.begun if t.decided is None and not t.over])
        if one is None:
            return
        name = data.draw(st.sampled_from(sorted(one.joined)))
        log = self.logs[name]
        seen = self.seen(name)
        at = max(0, seen.upper.elements[0] + (abs(ahead) if one.own_times else ahead))
        part = f"{one.id}-{len(one.rows)}"
        view = replace(deciding.view(self.group.state, name), admitted=one.joined[name][0])
        outcome = log.do(
            awaiting.park,
            view,
            Awaited(one.id, one.begun, 0),
            waiting(seen, run(part, at, at), floats=None if one.own_times else at),
            checked=seen.upper,
        )
        if isinstance(outcome, Refused):
            assert isinstance(outcome.error, LeftGroup)
            assert not view.is_of(log.state.group, log.state.joined)
        else:
            one.rows[part] = (name, at)

    @rule(data=st.data(), later=st.integers(-2, 4), timed=st.booleans())
    def decide(self, data, later, timed):
        one = self._pick(data, [t for t in self.begun if not t.over])
        if one is None:
            return
        shares = {name: Share(joined, floor) for name, (joined, floor) in one.joined.items()}
        for name, at in one.rows.values():
            first, last = shares[name].times or (at, at)
            shares[name] = replace(shares[name], times=(min(first, at), max(last, at)))
        last = max((at for _, at in one.rows.values()), default=0)
        time = max(0, last + later) if timed and not one.own_times else None
        upper = F(last + 1) if one.own_times else None
        wanted = Intent(one.id, one.begun, shares, time=time, own_times=one.own_times, upper=upper)
        before = self.group.state.upper
        outcome = self.group.do(deciding.decide, wanted)
        if isinstance(outcome, Refused):
            if isinstance(outcome.error, LeftGroup | TransactionExpired):
                one.over = one.decided is None
                assert isinstance(outcome.error, LeftGroup) or one.begun < self.group.state.expired
            else:
                assert isinstance(outcome.error, UpperMismatch | UpdateBeforeLower | ValueError)
        elif one.decided is None and one.rows:
            assert isinstance(outcome, Commit)
            decision = self.group.state.decisions[one.id]
            assert decision.members == tuple(sorted({name for name, _ in one.rows.values()}))
            one.decided = -1 if decision.time is None else decision.time
            assert one.decided == -1 or one.decided >= before.elements[0]
        elif not one.rows:
            one.over = True

    @rule(name=st.sampled_from(MEMBERS))
    def look(self, name):
        """A process reads the group, and goes on later."""
        self.views.append((name, deciding.view(self.group.state, name)))

    @rule(data=st.data(), leaves=st.booleans())
    def write_down(self, data, leaves):
        """Apply an old look, or leave by it."""
        if self.views:
            name, view = data.draw(st.sampled_from(self.views))
            leave = {} if leaves and (view.leaving or view.admitted is None) else None
            self.logs[name].do(applying.apply_decided, view, leave=leave)

    @rule(name=st.sampled_from(MEMBERS))
    def retire(self, name):
        member = self.group.state.memberships.get(name)
        if member is not None:
            self.group.do(joining.retire, name, member.admitted)

    @rule(name=st.sampled_from(MEMBERS), closes=st.integers(0, 9))
    def leave(self, name, closes):
        """All steps of a leave; then the collection goes on alone."""
        log, member = self.logs[name], self.group.state.memberships.get(name)
        if member is not None:
            self.group.do(joining.retire, name, member.admitted)
            log.do(applying.apply_decided, deciding.view(self.group.state, name), leave={})
            self.group.do(deciding.forget, members={name: member.admitted})
        if closes:
            self.close_alone(name, closes)

    @rule()
    def forget(self):
        """Forget, as `Groups.tidy` does, what the collections have applied, and those that have left."""
        state = self.group.state
        left = {}
        for name, member in state.memberships.items():
            log = self.logs[name]
            if (log.state.group, log.state.joined) == ("g", member.admitted):
                log.do(applying.apply_decided, deciding.view(state, name))
            elif member.leaving:
                left[name] = member.admitted
        self.group.do(deciding.forget, frozenset(state.decisions), left)

    @rule(data=st.data())
    def give_up(self, data):
        """Expire, and withdraw what is staged for those that were given up."""
        before = data.draw(st.integers(0, self.group.state.seqno))
        self.group.do(deciding.expire, before)
        state = self.group.state
        for log in self.logs.values():
            never = frozenset(
                awaited.transaction
                for _, awaited in log.state.staged.awaiting()
                if awaited.begun < state.expired and awaited.transaction not in state.decisions
            )
            log.do(awaiting.withdraw, never)

    @rule(name=st.sampled_from(MEMBERS), more=st.integers(1, 5))
    def closes_alone(self, name, more):
        """A collection in no group closes some times by itself."""
        self.close_alone(name, more)

    def close_alone(self, name, more):
        log = self.logs[name]
        if not log.state.group:
            log.do(seal, F(log.state.upper.elements[0] + more))

    def seen(self, name):
        """A collection as readers see it now."""
        return applying.seen_through(self.logs[name].state, deciding.view(self.group.state, name))

    @invariant()
    def readers_see_what_is_decided_and_nothing_else(self):
        if not hasattr(self, "logs"):
            return
        for name in MEMBERS:
            state = self.seen(name)
            check_state(replace(state, seqno=state.seqno + 1))
            found = {p.name: p.seen_times[0] for batch in state.batches() for p in batch.parts()}
            expected = {
                part: at if one.decided == -1 else one.decided
                for one in self.begun
                if one.decided is not None
                for part, (whose, at) in one.rows.items()
                if whose == name
            }
            assert found == expected
            for at in range(state.upper.elements[0]):
                closed = frozenset(part for part, time in found.items() if time <= at)
                assert self.final.setdefault((name, at), closed) == closed


Transactions.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50)
TestTransactions = Transactions.TestCase


@pytest.mark.parametrize("leaves", [False, True])
def test_applying_twice_is_harmless(leaves):
    group, log = Log("g"), Log("a")
    admitted = group.do(joining.admit, ("a",)).result["a"]
    log.do(joining.join, "g", admitted, log.state.seqno)
    view = deciding.view(group.state, "a")
    log.do(
        awaiting.park, view, Awaited("t", 1, 0), waiting(log.state, run("p", 0, 0), floats=0), checked=F(0)
    )
    group.do(deciding.decide, Intent("t", 1, {"a": Share(admitted, F(0), (0, 0))}, time=3))
    if leaves:
        group.do(joining.retire, "a", admitted)
    view = deciding.view(group.state, "a")
    leave = {} if leaves else None
    assert isinstance(log.do(applying.apply_decided, view, leave=leave), Commit)
    assert isinstance(log.do(applying.apply_decided, view, leave=leave), NoOp)
    assert (log.state.upper, log.state.group) == (F(4), "" if leaves else "g")


def joined_pair():
    """A group that has taken in one collection, which has a part staged for a transaction."""
    group, log = Log("g"), Log("a")
    admitted = group.do(joining.admit, ("a",)).result["a"]
    log.do(joining.join, "g", admitted, log.state.seqno)
    view = deciding.view(group.state, "a")
    log.do(
        awaiting.park, view, Awaited("t", 1, 0), waiting(log.state, run("p", 0, 0), floats=0), checked=F(0)
    )
    return group, log, admitted


def returned(group, log, admitted):
    """The collection left, and came back."""
    group.do(joining.retire, "a", admitted)
    log.do(applying.apply_decided, deciding.view(group.state, "a"), leave={})
    group.do(deciding.forget, members={"a": admitted})
    again = group.do(joining.admit, ("a",)).result["a"]
    log.do(joining.join, "g", again, log.state.seqno)
    return again


def wanted(admitted, floor=0, time=3, times=(0, 0)):
    return Intent("t", 1, {"a": Share(admitted, F(floor), times)}, time=time)


def error_of(outcome):
    assert isinstance(outcome, Refused)
    return outcome.error


def test_what_a_collection_had_closed_alone_is_told_to_the_group():
    group, _, admitted = joined_pair()
    error = error_of(group.do(deciding.decide, wanted(admitted, floor=100, time=50)))
    assert isinstance(error, UpdateBeforeLower) and error.lower == F(100)


def test_a_time_before_the_rows_is_refused():
    group, _, admitted = joined_pair()
    assert "written at 7" in str(error_of(group.do(deciding.decide, wanted(admitted, times=(0, 7)))))


def test_nothing_is_staged_or_decided_for_an_earlier_stay():
    group, log, admitted = joined_pair()
    again = returned(group, log, admitted)
    assert again > admitted and not len(log.state.staged)
    assert isinstance(error_of(group.do(deciding.decide, wanted(admitted))), LeftGroup)
    view = replace(deciding.view(group.state, "a"), admitted=admitted)
    late = log.do(awaiting.park, view, Awaited("t", 1, 0), waiting(log.state, run("q", 0, 0)), checked=F(0))
    assert isinstance(error_of(late), LeftGroup)


def test_a_late_join_does_not_bring_an_earlier_stay_back():
    group, log, admitted = joined_pair()
    again = returned(group, log, admitted)
    assert isinstance(log.do(joining.join, "g", admitted, log.state.seqno), NoOp)
    assert log.state.joined == again
    log.do(applying.apply_decided, replace(deciding.view(group.state, "a"), leaving=True), leave={})
    before = log.state
    assert not before.group
    # It was seen before it had come back and left.
    late = log.do(joining.join, "g", again, before.seqno - 1)
    assert isinstance(error_of(late), LeftGroup) and log.state == before


def test_what_is_given_up_is_not_decided_and_what_is_decided_stays():
    group, _, admitted = joined_pair()
    group.do(deciding.expire, 2)
    assert isinstance(error_of(group.do(deciding.decide, wanted(admitted))), TransactionExpired)
    group, _, admitted = joined_pair()
    group.do(deciding.decide, wanted(admitted))
    group.do(deciding.expire, 2)
    assert group.do(deciding.decide, wanted(admitted)).result.already


def test_a_collection_leaves_only_when_the_group_decides_nothing_more_for_it():
    group, log, admitted = joined_pair()
    assert isinstance(log.do(applying.apply_decided, deciding.view(group.state, "a"), leave={}), NoOp)
    assert log.state.group == "g"
    group.do(joining.retire, "a", admitted)
    assert isinstance(error_of(group.do(deciding.decide, wanted(admitted))), LeftGroup)
    assert isinstance(error_of(group.do(joining.admit, ("a",))), LeftGroup)


def test_a_look_at_another_stay_lets_nothing_in():
    _, log, admitted = joined_pair()
    other = GroupView("g", 9, F(5), admitted + 1, decided={"t": 1})
    assert isinstance(log.do(applying.apply_decided, other), NoOp)


def test_a_refusal_takes_the_place_of_a_late_decision_and_nothing_is_remembered():
    group, _, _ = joined_pair()
    before = group.state
    assert group.do(deciding.refuse, "t").result
    assert group.state == replace(before, seqno=before.seqno + 1)
    group, _, admitted = joined_pair()
    group.do(deciding.decide, wanted(admitted))
    assert not group.do(deciding.refuse, "t").result

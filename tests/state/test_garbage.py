"""Objects that leave the state are garbage, are kept while they are read, and never come back."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_states import F, Shard, doom, part, raise_floor, run
from writes import append

from tidelake.errors import LeaseExpired, UploadExpired
from tidelake.model import names
from tidelake.model.batch import Run
from tidelake.state.core.commands import NoOp, add_rollup
from tidelake.state.core.state import FIRST, Rollup
from tidelake.state.life import holds
from tidelake.state.life.collecting import bury
from tidelake.state.upkeep.maintenance import apply_merge, collapse_levels
from tidelake.state.write.write import Exactly
from tiers import examples


@pytest.fixture
def shard():
    return Shard()


def named(state):
    return {p.name for member in state.spine for p in member.batch.parts() if p.inline is None}


def appended(shard, *runs, **kwargs):
    at = shard.state.upper.elements[0]
    return shard.do(append, runs, Exactly(F(at), F(at + 1)), **kwargs)


def name(n, at=0):
    return names.part("s", at, f"{n:032x}")


@dataclass
class World:
    """A shard, the parts of all states that it had, and what was deleted."""

    shard: Shard = field(default_factory=Shard)
    now_ms: int = 10
    count: int = 0
    states: dict = field(default_factory=dict)
    deleted: set = field(default_factory=set)

    def do(self, command, *args, **kwargs):
        return self.shard.do(command, *args, now_ms=self.now_ms, **kwargs)

    def fresh(self):
        self.count += 1
        return name(self.count, self.shard.state.seqno)

    def append(self, n):
        at = self.shard.state.upper.elements[0]
        parts = Run(tuple(part(self.fresh(), at, at) for _ in range(1 + n % 2)))
        self.do(append, (parts,), Exactly(F(at), F(at + 1)))

    def merge(self, n):
        """Merge some neighbours of one spine batch; some merges take parts over as they are."""
        batches = self.shard.state.spine.batches
        if not batches:
            return
        members = list(self.shard.state.spine.range(batches[n % len(batches)].id))
        first = n % len(members)
        inputs = members[first : first + 1 + n % 3]
        held = [p for member in inputs for p in member.batch.parts()]
        kept = held[: n % 2]
        if len(held) > len(kept):
            rest = sum(p.diff_sum for p in held) - sum(p.diff_sum for p in kept)
            made = Run((*kept, part(self.fresh(), diff_sum=rest)))
            self.do(apply_merge, self.shard.result(inputs[0].id.lo, inputs[-1].id.hi, made))

    def open(self, n):
        self.do(holds.open_hold, f"h{n % 4}", "test", lease_ms=20)

    def open_late(self, n):
        """Begin to hold a state of some time ago."""
        at = max(0, self.shard.state.seqno - n)
        self.do(holds.open_hold, f"h{n % 4}", "late", lease_ms=20, pins=(at,), since=F())

    def renew(self, n):
        self.do(holds.renew_hold, f"h{n % 4}", pins=(self.shard.state.seqno,) if n % 2 else None)

    def close(self, n):
        self.do(holds.close_hold, f"h{n % 4}")

    def sleep(self, n):
        self.now_ms += n

    def collect(self, n):
        self.do(doom, age_ms=n % 7, names_max=3)
        if n % 2:
            gone = tuple(sorted(self.shard.state.doomed))[: 1 + n % 3]
            self.deleted |= set(gone)
            self.do(bury, gone)

    def check(self):
        state = self.shard.state
        self.states.setdefault(state.seqno, named(state))
        lost = self.deleted | set(state.doomed)
        assert not lost & named(state)
        for hold in state.holds.values():
            for pin in hold.pins:
                assert not self.states.get(pin, set()) & lost, (pin, hold)
        ever = set().union(*self.states.values())
        assert ever <= named(state) | set(state.garbage) | lost


STEPS = st.tuples(
    st.sampled_from(
        ["append", "append", "merge", "merge", "open", "open_late", "renew", "close", "sleep", "collect"]
    ),
    st.integers(0, 11),
)


@pytest.mark.promise(
    "On random histories, parts that a pin needs are kept, and all others are given up",
    rule="`free`, `_intact` in `state/life/holds.py`",
)
@pytest.mark.promise(
    "A step that removes an object from the state makes it garbage in the same step",
    rule="`leaving`",
    also=["state/test_garbage.py"],
)
@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=50))
def test_no_part_of_a_state_that_a_hold_pins_is_given_up_and_none_is_forgotten(steps):
    world = World()
    for step, n in steps:
        getattr(world, step)(n)
        world.check()
    # Once nothing is read, all garbage goes.
    world.now_ms += 1_000
    while world.do(doom, age_ms=0, names_max=3).result:
        world.do(bury, tuple(world.shard.state.doomed))
    assert not world.shard.garbage


def two_and_a_merge(shard):
    """A reader has seen parts 1 and 2, which were merged; 3 and 4 came and went after it had begun."""
    appended(shard, run(name(1)))
    appended(shard, run(name(2), 1, 1))
    shard.do(holds.open_hold, "slow", "test", lease_ms=1_000)
    appended(shard, run(name(3), 2, 2))
    appended(shard, run(name(4), 3, 3))
    shard.do(collapse_levels)
    for n, (lo, hi) in enumerate([(0, 2), (2, 4)]):
        shard.do(apply_merge, shard.result(lo, hi, run(name(5 + n), diff_sum=2)))


def test_a_slow_reader_keeps_what_it_reads_and_nothing_else(shard):
    two_and_a_merge(shard)
    assert shard.garbage == {name(n) for n in (1, 2, 3, 4)}
    assert set(shard.do(doom, age_ms=0, names_max=10).result) == {name(3), name(4)}
    shard.do(holds.close_hold, "slow")
    assert set(shard.do(doom, age_ms=0, names_max=10).result) == shard.garbage


def test_garbage_is_kept_for_its_age(shard):
    two_and_a_merge(shard)
    assert shard.do(doom, age_ms=5, names_max=10, now_ms=14).result == ()
    assert set(shard.do(doom, age_ms=5, names_max=10, now_ms=15).result) == {name(3), name(4)}


def test_a_pin_of_a_state_that_has_lost_parts_is_refused(shard):
    two_and_a_merge(shard)
    before = shard.state.seqno - 1
    shard.do(doom, age_ms=0, names_max=10)
    late = {"lease_ms": 9, "since": F()}
    assert isinstance(shard.refused(holds.open_hold, "late", "t", pins=(before,), **late), LeaseExpired)
    shard.do(holds.open_hold, "now", "t", pins=(shard.state.seqno,), **late)
    assert isinstance(shard.refused(holds.renew_hold, "now", pins=(before,)), LeaseExpired)
    # Nor one of a state to come: it is not read yet.
    to_come = (shard.state.seqno + 1,)
    assert isinstance(shard.refused(holds.open_hold, "late", "t", pins=to_come, **late), LeaseExpired)


def test_a_replaced_rollup_is_garbage(shard):
    for n in (1, 2):
        appended(shard)
        shard.do(add_rollup, Rollup(n, "a" * 32, 5, 1))
    assert shard.garbage == {names.rollup("s", 1, "a" * 32)}
    assert shard.state.rollup != FIRST


def test_inline_parts_are_no_garbage(shard):
    appended(shard, run("p", inline=b"rows"))
    shard.do(apply_merge, shard.result(0, 1, run("q", inline=b"r")))
    assert not shard.garbage


def test_uploads_below_the_floor_are_refused_and_what_is_in_stays(shard):
    appended(shard, run(name(1, at=0)))
    assert shard.do(raise_floor, age_ms=100, unnamed_max=0, now_ms=1_000).result.floor == 0
    mark = shard.state.seqno
    appended(shard, run(name(2, at=mark - 1), 1, 1), now_ms=1_050)
    assert shard.do(raise_floor, age_ms=100, unnamed_max=None, now_ms=1_100).result.floor == mark
    error = shard.refused(append, (run(name(3, at=mark - 1), 2, 2),), Exactly(F(2), F(3)))
    assert isinstance(error, UploadExpired) and (error.seqno, error.floor) == (mark - 1, mark)
    appended(shard, run(name(4, at=mark), 2, 2))
    # A result of a merge is an upload as well; one that takes an old part over is none of it.
    late = shard.result(0, 2, run(name(5, at=1), diff_sum=2))
    assert isinstance(shard.do(apply_merge, late), NoOp)
    kept = Run((part(name(1, at=0)), part(name(6, at=mark))))
    assert shard.do(apply_merge, shard.result(0, 2, kept)).result.applied


def test_marks_are_noted_only_for_uploads_that_nothing_names_and_not_often(shard):
    appended(shard, run(name(1)))
    idle = shard.state.seqno
    for now_ms in range(0, 5_000, 40):
        shard.do(raise_floor, age_ms=100, unnamed_max=None, now_ms=now_ms)
    assert shard.state.seqno == idle
    for now_ms in range(5_000, 6_000, 10):
        shard.do(raise_floor, age_ms=100, unnamed_max=idle, now_ms=now_ms)
    # One commit notes the mark, and one raises the floor past the upload.
    assert shard.state.seqno == idle + 2 and shard.state.sweep.floor == idle + 1
    for now_ms in range(6_000, 7_000, 10):
        # A busy writer always has an upload under way.
        shard.do(raise_floor, age_ms=100, unnamed_max=shard.state.seqno, now_ms=now_ms)
        assert len(shard.state.sweep.marks) <= 3

"""Random forks, forks of forks, drops and collections among random appends and merges, against the oracle.

Whatever is done to one of them, all others go on answering as they did.
"""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, precondition, rule
from test_against_oracle import CONFIGS, IntMachine, TupleMachine

import tidelake
from tidelake.errors import HistoryCompacted, NotYetClosed
from tidelake.model.frontier import Frontier
from tidelake.testing import tables
from tidelake.testing.oracle import Oracle
from tiers import examples

# What is garbage may go at once, so that a part that is not kept is missed at once.
EAGER = [replace(config, garbage_age_s=0.0, inline_part_bytes=0) for config in CONFIGS]


@pytest.mark.promise(
    "A fork answers as its source did, up to the time of the fork, whatever happens later to the "
    "source and to forks of the fork",
    rule="`forked`; a cut batch was folded no further than `since`, and the time lies at it or after it",
    also=[
        "shard/care/test_forks_against_oracle.py",
        "state/test_forking.py::test_a_cut_spine_keeps_all_rules_and_can_be_written_on",
        "lake/catalog/test_fork.py::test_a_fork_at_a_time_ends_there_and_is_written_from_there_on",
    ],
)
class Forks:
    """Rules for a machine that has one collection, `c`, and the `oracle` of it."""

    @initialize(config=st.sampled_from(EAGER))
    def start(self, config):
        super().start(config=config)
        self.lake = tidelake.open(self.url, config=config)
        self.oracles = {"c": self.oracle}
        self.count = 0

    @rule()
    def reopen(self):
        self.c = tidelake.open(self.url, config=self.config).collection(self.c.name)

    @rule(data=st.data())
    def fork(self, data):
        as_of = data.draw(st.one_of(st.none(), st.sampled_from(self.probe_times())))
        self.count += 1
        name = f"f{self.count}"
        if as_of is not None and not self.oracle.since.less_equal(as_of):
            with pytest.raises(HistoryCompacted):
                self.lake.fork(self.c.name, name, as_of)
        elif as_of is not None and self.oracle.upper.less_equal(as_of):
            with pytest.raises(NotYetClosed):
                self.lake.fork(self.c.name, name, as_of)
        else:
            upper = self.oracle.upper if as_of is None else self.oracle.upper.meet(Frontier.past(as_of))
            made = self.lake.fork(self.c.name, name, as_of)
            # What is staged comes along, unless the fork is to end at a time.
            kept = [u for u in self.oracle.updates if as_of is None or not upper.less_equal(u[1])]
            self.oracles[name] = Oracle(upper, self.oracle.since, kept)
            if data.draw(st.booleans()):
                self.c, self.oracle = made, self.oracles[name]

    @precondition(lambda self: len(self.oracles) > 1)
    @rule(data=st.data())
    def go_on_with_another(self, data):
        name = data.draw(st.sampled_from(sorted(self.oracles)))
        self.c, self.oracle = self.lake.collection(name), self.oracles[name]

    @precondition(lambda self: len(self.oracles) > 1)
    @rule(data=st.data())
    def drop_another(self, data):
        name = data.draw(st.sampled_from(sorted(self.oracles.keys() - {self.c.name})))
        assert self.lake.drop(name)
        del self.oracles[name]

    @rule()
    def collect(self):
        self.c.maintain()
        self.lake.collect()

    @rule(data=st.data())
    def all_others_are_as_they_were(self, data):
        for name, oracle in self.oracles.items():
            times = [
                t for t in self.probe_times() if oracle.since.less_equal(t) and not oracle.upper.less_equal(t)
            ]
            if times:
                time = data.draw(st.sampled_from(times))
                answer = self.lake.collection(name).snapshot(time).read_all()
                assert tables.netted(answer, self.domain, time) == oracle.snapshot(time)

    def teardown(self):
        if hasattr(self, "lake"):
            assert self.lake.fsck().left == ()
        super().teardown()


class IntForks(Forks, IntMachine):
    pass


class TupleForks(Forks, TupleMachine):
    pass


TestIntForks = IntForks.TestCase
TestTupleForks = TupleForks.TestCase
TestIntForks.settings = TestTupleForks.settings = settings(max_examples=examples(40), stateful_step_count=30)

"""Times of clocks are not closed too far ahead of the clock; they may be staged."""

import pytest
from shard_states import F, Shard, run
from writes import append, expected, seal, stage

from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.time import TimeDomain
from tidelake.state.life import agreeing
from tidelake.state.write.write import AtCommit, Exactly

NOW, DAY = 1_700_000_000_000, 86_400_000


@pytest.fixture(params=["ms", "us", "date"])
def clock(request):
    """A shard of a clock, and what gives its time at a moment in milliseconds."""
    domain = TimeDomain(request.param)
    return Shard(domain), domain.now


@pytest.mark.promise(
    "Clock times are not closed further ahead of the clock than the lake allows; they may be staged",
    rule="`too_far`",
    also=[
        "::test_times_to_come_may_be_staged_and_are_closed_when_they_come",
        "lake/catalog/test_settings.py::test_a_time_a_year_ahead_is_refused_by_every_write_and_allowed_for_the_whole_lake",
    ],
)
def test_times_more_than_a_day_ahead_are_not_closed_by_any_command(clock):
    shard, at = clock
    last = at(NOW + DAY)
    wide = Exactly(F(0), F(last + 2))
    for command, *args in (
        (append, (run("p", last + 1, last + 1),), wide),
        (append, (), wide),
        (expected, wide),
        (seal, F(last + 2)),
        (append, (run("p", last + 1, last + 1),), AtCommit(last + 1)),
    ):
        error = shard.refused(command, *args, now_ms=NOW)
        assert isinstance(error, UsageError) and "lake.settings(max_ahead_s=" in str(error)
    assert isinstance(shard.refused(stage, (), F(0), seal_to=F(last + 2), now_ms=NOW), UsageError)
    shard.do(seal, F(last + 1), now_ms=NOW)
    assert shard.state.upper == F(last + 1)


def test_times_to_come_may_be_staged_and_are_closed_when_they_come(clock):
    shard, at = clock
    year = at(NOW + 365 * DAY)
    shard.do(stage, (run("p", year, year),), F(0), now_ms=NOW)
    shard.do(seal, F(at(NOW)), now_ms=NOW)
    assert len(shard.state.staged) == 1
    shard.do(seal, F(year + 1), now_ms=NOW + 365 * DAY)
    assert shard.state.upper == F(year + 1) and not len(shard.state.staged)


def test_the_past_may_be_written_and_a_collection_may_be_closed_for_good(clock):
    shard, _ = clock
    shard.do(append, (run("p", 5, 5),), Exactly(F(0), F(6)), now_ms=NOW)
    shard.do(seal, Frontier(), now_ms=NOW)
    assert shard.state.upper.closed


def test_the_lake_says_how_far_and_what_is_far_ahead_already_can_be_written_to(clock):
    shard, at = clock
    ahead = at(NOW + 90 * DAY)
    shard.do(agreeing.adopt, agreed=shard.state.agreed.changed(0, 1, {"max_ahead_ms": 100 * DAY}))
    shard.do(seal, F(ahead), now_ms=NOW)
    shard.do(agreeing.adopt, agreed=shard.state.agreed.changed(0, 2, {"max_ahead_ms": DAY}))
    shard.do(append, (run("p", at(NOW), at(NOW)),), AtCommit(at(NOW)), now_ms=NOW)
    assert shard.state.upper == F(ahead + 1)
    assert isinstance(shard.refused(seal, F(ahead + 3), now_ms=NOW), UsageError)


def test_times_that_are_no_clock_have_no_such_bound():
    for domain, far in ((TimeDomain(), 10**18), (TimeDomain("tuple", 2), (10**18, 0))):
        shard = Shard(domain)
        shard.do(seal, F(far), now_ms=NOW)
        assert shard.state.upper == F(far)

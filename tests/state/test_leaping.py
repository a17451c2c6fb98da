"""A write without a time is refused if its collection's writers gave times of long ago."""

from functools import partial

import pytest
from shard_states import F, Shard, run
from writes import append, expected, seal

from tidelake.errors import UsageError
from tidelake.model.time import TimeDomain
from tidelake.state.write.write import AtCommit, Exactly

DAY = 86_400_000
NOON = 20_000 * DAY + DAY // 2


@pytest.fixture(params=["ms", "us", "date"])
def clock(request):
    """A shard of a clock, and what gives its time at a moment in milliseconds."""
    domain = TimeDomain(request.param)
    return Shard(domain), domain.now


def picked(at, now_ms, what=append):
    """A write that gives no time, at this moment."""
    return partial(what, when=AtCommit(at(now_ms)), **({"runs": ()} if what is append else {}))


@pytest.mark.promise(
    "A write that gives no time closes no times that a writer may still give: it is refused if the "
    "last time had been over for more than a day when it was closed, by every call, in groups, "
    "forks and copies",
    rule="`state/write/clockbounds.py`",
    also=[
        "state/test_leaping.py",
        "lake/api/test_given_times.py::test_a_write_without_a_time_closes_nothing_that_a_writer_may_still_give",
        "lake/api/test_given_times.py::test_who_always_writes_now_is_never_asked_for_a_time",
        "lake/api/test_given_times.py::test_what_a_group_closed_at_its_time_is_no_older_because_it_is_applied_later",
        "lake/api/test_given_times.py::test_forks_and_copies_know_that_times_were_given",
        "spark/writing/test_spark_given_times.py::test_writes_without_a_time_are_refused_after_a_time_of_long_ago",
    ],
)
def test_a_time_of_long_ago_was_given_and_the_next_write_must_give_one_too(clock):
    shard, at = clock
    shard.do(seal, F(at(NOON - 3 * DAY) + 1), now_ms=NOON)
    for what in (append, expected):
        error = shard.refused(picked(at, NOON, what), now_ms=NOON)
        assert isinstance(error, UsageError) and "time='now'" in str(error)
    # A time that is given closes all that the writer means, and is as new as the clock then.
    shard.do(append, (), Exactly(shard.state.upper, F(at(NOON) + 1)), now_ms=NOON)
    shard.do(picked(at, NOON + 40 * DAY), now_ms=NOON + 40 * DAY)


def test_a_last_time_that_was_new_when_it_was_closed_lets_the_next_write_follow(clock):
    """It may have been picked: by a commit that came hours, and a midnight, later."""
    shard, at = clock
    shard.do(picked(at, NOON), now_ms=NOON + DAY)
    shard.do(picked(at, NOON + 3 * DAY), now_ms=NOON + 3 * DAY)
    shard.do(picked(at, NOON + 400 * DAY), now_ms=NOON + 400 * DAY)


def test_nothing_leaps_in_an_empty_collection_and_where_times_are_counted(clock):
    shard, at = clock
    shard.do(picked(at, NOON), now_ms=NOON)
    counted = Shard(TimeDomain("counter"))
    counted.do(seal, F(3), now_ms=NOON)
    counted.do(append, (run("p", 3, 3),), AtCommit(3), now_ms=NOON)

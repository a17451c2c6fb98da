"""Commands that commit a `Write`, as functions of its parts."""

from dataclasses import replace

from tidelake.model.frontier import Frontier
from tidelake.state.core.commands import Refused
from tidelake.state.write.write import OpenTimes, Write, commit
from tidelake.state.write.write import expected as expected_of


def append(state, now_ms, runs, when, idempotency=None, **more):
    return commit(state, now_ms, Write(runs, when, idempotency, **more))


def stage(state, now_ms, runs, checked, idempotency=None, *, seal_to=None, **more):
    """Its result is whether rows were staged."""
    outcome = commit(state, now_ms, Write(runs, OpenTimes(checked, seal_to), idempotency, **more))
    if isinstance(outcome, Refused):
        return outcome
    return replace(outcome, result=bool(runs) and not outcome.result.already)


def seal(state, now_ms, upper, idempotency=None):
    return commit(state, now_ms, Write((), OpenTimes(Frontier.of(state.domain.minimum), upper), idempotency))


def expected(state, now_ms, when, idempotency=None):
    return expected_of(state, now_ms, Write((), when, idempotency))

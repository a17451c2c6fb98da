"""The commands by which records of tokens are forgotten, in portions: when a token may be is in `tokens`."""

from itertools import islice

from tidelake.state.commands import Commit, NoOp, Outcome
from tidelake.state.edits import Edits
from tidelake.state.state import ShardState
from tidelake.state.tokens import PREFIX, over, writes_once


def forget_tokens(state: ShardState, now_ms: int, *, names_max: int) -> Outcome[int]:
    """Forget some tokens under which no write has begun for `token_age_ms`; how many. O(removed) and O(days).

    Args:
        state: of a collection or a group.
        now_ms: wall clock.
        names_max: how many at most.
    """
    old = (
        name for day in sorted(state.tokens) if over(day, state.agreed, now_ms) for name in state.tokens[day]
    )
    names = () if state.dropped else tuple(sorted(islice(old, names_max)))
    return Commit(Edits(writers_gone=names), len(names)) if names else NoOp(0)


def date_tokens(state: ShardState, _now_ms: int, *, names_max: int) -> Outcome[int]:
    """Let some tokens that an earlier version wrote, without a day, be of this one; how many. O(records)."""
    if state.dropped:
        return NoOp(0)
    dated = {name for there in state.tokens.values() for name in there}
    undated = (
        name
        for name, record in state.writers.items()
        if _names_token(state, name) and record.owner == "" and writes_once(record) and name not in dated
    )
    names = tuple(sorted(islice(undated, names_max)))
    return Commit(Edits(tokens=names), len(names)) if names else NoOp(0)


def _names_token(state: ShardState, name: str) -> bool:
    if name.startswith(PREFIX):
        return True
    member, _, rest = name.partition(":")
    return member in state.memberships and rest.startswith(PREFIX)

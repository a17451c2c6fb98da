"""The commands of garbage collection: doom what is free, bury what is deleted, refuse and forget what is old.

`tidelake.state.core.garbage` says why nothing is needed again once it is deleted, however long a process
stalls.
"""

import itertools
from dataclasses import replace

from tidelake.state.core.commands import Commit, NoOp, Outcome
from tidelake.state.core.edits import Edits
from tidelake.state.core.forks import fork_pins
from tidelake.state.core.garbage import Sweep, free
from tidelake.state.core.state import ShardState
from tidelake.state.core.tokens import over
from tidelake.state.life.erasing import released
from tidelake.state.life.holds import reader_pins


def doom(state: ShardState, now_ms: int, *, names_max: int) -> Outcome[tuple[str, ...]]:
    """Doom garbage that no reader or fork needs and that is old enough.

    Readers that keep erased rows for longer than garbage is kept lose the versions that they hold.

    Returns:
        The names of all that is doomed now, by this command or an earlier one: delete these, then bury them.
    """
    holds = released(state, now_ms)
    pins = [*reader_pins(replace(state, holds=state.holds.update(holds)), now_ms), *fork_pins(state)]
    found = tuple(
        itertools.islice(free(state.garbage, pins, now_ms - state.agreed.garbage_ms(now_ms)), names_max)
    )
    doomed = (*sorted(state.doomed), *found)
    return Commit(Edits(doomed=found, holds=holds), doomed) if found else NoOp(doomed)


def bury(state: ShardState, _now_ms: int, names: tuple[str, ...]) -> Outcome[None]:
    """Forget doomed blobs that have been deleted."""
    left = tuple(name for name in names if name in state.doomed)
    return Commit(Edits(buried=left), None) if left else NoOp(None)


def raise_floor(state: ShardState, now_ms: int, *, unnamed_max: int | None) -> Outcome[Sweep]:
    """Refuse uploads that were begun more than `upload_age_ms` ago, with a delay of up to half as long."""
    sweep, age_ms = state.sweep, state.agreed.upload_ms(now_ms)
    last = max((*([] if unnamed_max is None else [unnamed_max]), *state.taken), default=None)
    over = [seqno for seqno, noted_ms in sweep.marks if noted_ms + age_ms <= now_ms]
    marks = tuple(mark for mark in sweep.marks if mark[0] not in over)
    after = Sweep(max([sweep.floor, *over]), marks)
    wanted = last is not None and all(seqno <= last for seqno in (after.floor, *(m[0] for m in marks)))
    if wanted and all(noted_ms + age_ms // 2 <= now_ms for _, noted_ms in marks):
        after = replace(after, marks=(*marks, (state.seqno + 1, now_ms)))
    return NoOp(sweep) if after == sweep else Commit(Edits(sweep=after), after)


def forget_tokens(state: ShardState, now_ms: int, *, names_max: int) -> Outcome[int]:
    """Forget tokens under which no write has begun for `token_age_ms`; how many. O(removed) and O(days)."""
    old = (
        name for day in sorted(state.tokens) if over(day, state.agreed, now_ms) for name in state.tokens[day]
    )
    names = () if state.dropped else tuple(sorted(itertools.islice(old, names_max)))
    return Commit(Edits(writers_gone=names), len(names)) if names else NoOp(0)

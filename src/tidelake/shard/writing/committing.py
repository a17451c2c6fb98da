"""Carries out every write to one collection, whether the collection is in a group or not.

Outside a group, a write is one command on the collection. In a group it is an implicit transaction with one
member: its rows are staged in the collection, and the group decides (`tidelake.state.group.deciding`). If the
state that it depends on has changed meanwhile, it is computed again on the newest state, without another
upload.

Batches and uploads of workers may be tried again after a refusal: they stay staged until the next attempt
replaces them, or they are too old.

INVARIANT: after a refusal of other rows, none of them is staged, so that their parts may be deleted.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from tidelake.errors import (
    AlreadyTaken,
    CollectionInGroup,
    CollectionNotFound,
    LeftGroup,
    TidelakeError,
    TransactionExpired,
    UpdateBeforeLower,
    UploadExpired,
    UpperMismatch,
)
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import parts
from tidelake.shard.engine.requests import Done
from tidelake.shard.engine.shard import LogView, Shard
from tidelake.shard.upkeep.parting import free, part
from tidelake.shard.writing.proposal import Proposal, expire_earlier, expired
from tidelake.state.core import commands
from tidelake.state.core.commands import Command, Commit, NoOp, Refused
from tidelake.state.core.decisions import GroupView
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.group import applying, awaiting
from tidelake.state.group.deciding import Intent, Share
from tidelake.state.group.memberwriters import alone, known_writer, open_member_writer
from tidelake.state.spine.staged import Awaited
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import Addition, Appended, Write, commit, plan

R = TypeVar("R")
Rebase: TypeAlias = Callable[[Write], Write | None]
# Errors after which a write must be computed again on the newest state.
_STALE = (UpperMismatch, UpdateBeforeLower, LeftGroup, TransactionExpired)


def carry_out(shard: Shard, write: Write, rebase: Rebase | None = None) -> Done[Appended]:
    """Write to a collection. One log write; in a group two log scans and a log write of the group.

    In a group, rows are staged first, which is a log write of the collection as well.

    Args:
        shard: the collection's shard.
        write: the write.
        rebase: makes the write again for another upper, if it can; it raises if the write is refused there.

    Raises:
        StoreUnavailable: the write is certainly not in.
        OutcomeUnknown: the write may be in.
        TidelakeError: the command was refused; nothing is in.
    """
    attempt: _Single | None = None
    with shard.group_commit.command():
        while True:
            if not shard.known().group:
                try:
                    return shard.carry_out(partial(commit, write=write))
                except CollectionInGroup:
                    # It has joined a group, which this handle knows now.
                    continue
                except AlreadyTaken as error:
                    if attempt is None:
                        raise
                    # The runs may have been staged in a group that the collection has left.
                    raise attempt.told(error) from error
                except UpperMismatch:
                    rebased = None if rebase is None else rebase(write)
                    if rebased is None:
                        raise
                    write = rebased
                    continue
            look = shard.look()
            if _is_member(shard, look):
                attempt = attempt or _Single(shard, shard.group(look.state.group), write)
                done = attempt.tried(look)
                if done is not None:
                    return done
            shard.env.recorder.count("append.single.again")


def _wherever(shard: Shard, alone: Callable[[], R], in_group: Callable[[LogView, GroupView], R]) -> R:
    """Do something for a collection, or in its group, whichever decides its writes when that is done."""
    while True:
        if not shard.known().group:
            try:
                return alone()
            except CollectionInGroup:
                # It has joined a group, which this handle knows now.
                continue
        look = shard.look()
        if look.view is None or not _is_member(shard, look):
            continue
        try:
            return in_group(look, look.view)
        except (LeftGroup, CollectionNotFound):
            continue


def preview(
    shard: Shard,
    command: Command[R],
    idempotency: IdempotencyKey | None = None,
    offered: tuple[Part, ...] = (),
) -> R | None:
    """The result of a command that would write nothing; None if it would write. Raises if refused.

    Usually no store call; in a group two log scans.
    """
    grouped = partial(_previewed, shard, command, idempotency, offered)
    return _wherever(shard, partial(shard.preview, command), grouped)


def _previewed(
    shard: Shard,
    command: Command[R],
    idempotency: IdempotencyKey | None,
    offered: tuple[Part, ...],
    look: LogView,
    _view: GroupView,
) -> R | None:
    runs = (Run(offered),) if offered else ()
    match command(_base_state(look, idempotency, runs), shard.env.clock.now_ms()):
        case Commit(_, _, _):
            return None
        case NoOp(result):
            return result
        case Refused(error):
            raise shard.named(error)


def open_writer(
    shard: Shard, name: str, owner: str = "", *, take_over: bool = False, resume: bool = False
) -> WriterRecord:
    """`commands.open_writer`, on the collection, or on its group, which has its writers. One log write."""
    command = partial(commands.open_writer, name=name, owner=owner, take_over=take_over, resume=resume)

    def in_group(look: LogView, view: GroupView) -> WriterRecord:
        state = look.state
        opened = partial(
            open_member_writer,
            member=state.shard_id,
            joined=state.joined,
            record=state.writers.get(name),
            upper=applying.seen_through(state, view).upper,
            name=name,
            owner=owner,
            take_over=take_over,
            resume=resume,
        )
        return shard.group(state.group).run(opened)

    return _wherever(shard, partial(shard.run, command), in_group)


def writer_record(shard: Shard, name: str) -> WriterRecord | None:
    """The record of a writer; None if there is none. One log scan; in a group two."""
    look = shard.look()
    if look.group is None:
        return look.state.writers.get(name)
    return known_writer(look.group, look.state, name)


def _is_member(shard: Shard, look: LogView) -> bool:
    """Whether the collection and its group know of each other; if not, take the collection out of it."""
    state, view = look.state, look.view
    if view is None or not state.group:
        return False
    if look.group is None:
        free(shard, state.group)
        return False
    if view.is_of(state.group, state.joined) and not view.leaving:
        return True
    part(shard.group(state.group), state.shard_id, shard)
    return False


def _base_state(look: LogView, idempotency: IdempotencyKey | None, runs: tuple[Run, ...] = ()) -> ShardState:
    """The state to compute a write on: as readers see it, without the staged rows of its earlier attempts."""
    seen = applying.seen_through(look.state, look.view)
    seen = awaiting.without(seen, awaiting.waiting_for(seen, runs))
    return seen if look.group is None else alone(seen, look.group, idempotency)


class _Single:
    """A write as a transaction with one member. It keeps its id however often it is computed again.

    Args:
        shard: the collection's shard.
        group: its group.
        write: the write.
    """

    def __init__(self, shard: Shard, group: Shard, write: Write) -> None:
        # Runs that may be tried again must keep their names, so their inline parts are never moved to stored
        # ones.
        self._write = replace(write, inline_bytes_max=None) if write.offered else write
        self._shard = shard
        self._proposal = Proposal(shard.env.ids.fresh(), group)
        self._given_up: frozenset[str] = frozenset()

    def tried(self, look: LogView) -> Done[Appended] | None:
        """Try the write on a state of collection and group; None: compute it again on a newer one."""
        write, view, group, proposal = self._write, look.view, look.group, self._proposal
        if view is None or group is None or self._has_given_up_others(look, group):
            return None
        seen = _base_state(look, write.idempotency, write.runs)
        found = self._worked_out(seen)
        if isinstance(found, NoOp):
            self._withdraw()
            return Done(found.result, rollup_due=False)
        proposal.begin(self._shard.group(group.shard_id), group.seqno)
        staged = self._staged(view, found, seen.upper)
        if found.runs and not staged.result:
            return None
        try:
            decided = proposal.decide(_wanted(found, seen, look, proposal.awaited, write))
        except _STALE:
            return None
        except TidelakeError:
            if not proposal.asked:
                self._refused()
            raise
        if decided.already and proposal.id not in proposal.group.known().decisions:
            self._withdraw()
        bounds = decided.bounds.get(self._shard.spec.shard_id, (decided.upper, decided.upper))
        said = Appended(*bounds, already=decided.already)
        return Done(said, rollup_due=False, merges_due=staged.merges_due)

    def _worked_out(self, seen: ShardState) -> Addition | NoOp[Appended]:
        """Compute the write on a state; raises if it is refused."""
        try:
            found = plan(seen, self._write)
            if isinstance(found, Refused):
                raise found.error
        except AlreadyTaken as error:
            raise self.told(error) from error
        except TidelakeError as error:
            self._refused()
            raise self._shard.named(error) from None
        return found

    def told(self, error: AlreadyTaken) -> AlreadyTaken | UploadExpired:
        """The error to raise when a part is taken already.

        If this attempt had staged the parts, another one has removed and barred them since: the upload has
        expired, and is in no state.
        """
        return expired(error, self._shard.known().seqno) if self._proposal.is_staged else error

    def _has_given_up_others(self, look: LogView, group: ShardState) -> bool:
        """Make sure that no earlier attempt with the same runs can be committed; False if there is none."""
        known = frozenset((self._proposal.id, *self._given_up))
        others = expire_earlier(self._shard.group(group.shard_id), look, self._write.runs, known)
        # If one of them was decided before, the next look shows that.
        self._given_up |= others
        return bool(others)

    def _staged(self, view: GroupView, found: Addition, checked: Frontier) -> Done[bool]:
        try:
            return self._proposal.park(
                self._shard,
                view,
                found,
                checked=checked,
                given_up=self._given_up,
                inline_bytes_max=self._write.inline_bytes_max,
                as_now=self._write.as_now,
            )
        except (LeftGroup, UpperMismatch, UpdateBeforeLower):
            # The collection has changed since this look.
            return Done(False, rollup_due=False)
        except AlreadyTaken as error:
            raise self.told(error) from error
        except TidelakeError:
            self._refused()
            raise

    def _refused(self) -> None:
        if not self._write.offered:
            self._withdraw()

    def _withdraw(self) -> None:
        """Remove the staged rows of a write that is not in; errors as `Proposal.withdraw`."""
        if self._proposal.is_staged:
            self._proposal.withdraw([self._shard])


def _wanted(found: Addition, seen: ShardState, look: LogView, awaited: Awaited, write: Write) -> Intent:
    """The question to the group: whether the write may be committed."""
    state, group, view = look.state, look.group, look.view
    times = [parts(time)[0] for run in found.runs for part in run.parts for time in part.seen_times]
    floats = None if found.floats is None else parts(found.floats)[0]
    at_any = found.stays_open or floats is not None
    share = Share(
        state.joined,
        seen.upper,
        (min(times), max(times)) if times else None,
        lower=None if at_any else seen.upper,
        seal=None if floats is not None else found.bounds.upper,
        behind=True,
        latest=group.seqno if write.seen is not None and group is not None else None,
        applied=frozenset(view.decided) if found.runs and view is not None else frozenset(),
    )
    key = write.idempotency
    return Intent(
        awaited.transaction,
        awaited.begun,
        {state.shard_id: share},
        own_times=floats is None,
        least=floats,
        alone=True,
        picked=True,
        number=None if key is None else replace(key, member=state.shard_id),
        record=None if key is None else state.writers.get(key.writer),
    )

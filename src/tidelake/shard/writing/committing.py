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
    InlineFull,
    LeftGroup,
    TidelakeError,
    TransactionExpired,
    UpdateBeforeLower,
    UploadExpired,
    UpperMismatch,
)
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.frozen import with_fields
from tidelake.model.time import parts
from tidelake.shard.engine.requestqueue import Done
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import LogView
from tidelake.shard.upkeep.parting import free, part
from tidelake.shard.upkeep.tending import admit, tend_if_due
from tidelake.shard.writing.proposal import Proposal, expire_earlier, expired, times_of
from tidelake.shard.writing.uploads import Uploads
from tidelake.state.core import commands
from tidelake.state.core.commands import Command, Commit, NoOp, Refused
from tidelake.state.core.decisions import GroupView
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.group import applying, awaiting
from tidelake.state.group.deciding import IntentTimes
from tidelake.state.group.memberwriters import alone, known_writer, open_member_writer
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import Addition, Appended, Write, already_in, commit, expected, plan

R = TypeVar("R")
T = TypeVar("T")
Rebase: TypeAlias = Callable[[Write], Write | None]
# Errors after which a write must be computed again on the newest state.
_STALE = (UpperMismatch, UpdateBeforeLower, LeftGroup, TransactionExpired)


def committed(tried: Callable[[], T | None], uploads: Uploads | None = None) -> T:
    """The commit loop of writes and transactions: try until the answer is not None.

    Each try works out the write on the newest state. None: that has changed meanwhile. If it has no room for
    inline parts, the uploads are made to fit.
    """
    while True:
        try:
            done = tried()
        except InlineFull:
            if uploads is None or not uploads.fit():
                raise
        else:
            if done is not None:
                return done


def append(shard: Shard, uploads: Uploads, write: Write, rebase: Rebase | None = None) -> Appended:
    """Commit a write of uploaded runs, with backpressure before and merges after it; see `carry_out`."""
    waited_s = admit(shard)
    done = carry_out(shard, write, rebase, uploads)
    tend_if_due(shard, done)
    return replace(done.result, waited_s=waited_s) if waited_s else done.result


def carry_out(
    shard: Shard, write: Write, rebase: Rebase | None = None, uploads: Uploads | None = None
) -> Done[Appended]:
    """Write to a collection. One log write; in a group two log scans and a log write of the group.

    In a group, rows are staged first, which is a log write of the collection as well.

    Args:
        shard: the collection's shard.
        write: the write.
        rebase: makes the write again for another upper, if it can; it raises if the write is refused there.
        uploads: more runs of it.

    Raises:
        StoreUnavailable: the write is certainly not in.
        OutcomeUnknown: the write may be in.
        TidelakeError: the command was refused; nothing is in.
    """
    done = committed(_Single(shard, write, rebase, uploads).tried, uploads)
    if uploads is not None:
        uploads.answered(needed=not done.result.already)
    return done


def _offered(shard: Shard, write: Write, runs: tuple[Run, ...] = ()) -> Write:
    """The write with its runs, its writer, and the room that the settings leave for inline parts."""
    limit = shard.spec.config.inline_total_bytes
    return with_fields(write, runs=write.runs + runs, inline_bytes_max=limit, owner=shard.writes_as)


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


def known_answer(shard: Shard, key: IdempotencyKey | None) -> Appended | None:
    """The answer to a numbered write that is in; None if it is not. Errors and costs as `foreseen`."""
    return None if key is None else _preview(shard, partial(already_in, idempotency=key), key)


def foreseen(shard: Shard, write: Write) -> Appended | None:
    """The answer to a write that would write nothing, whatever its runs are; None if it would write.

    Usually no store call; in a group two log scans. Raises if the write would be refused.
    """
    command = partial(expected, write=_offered(shard, write))
    return _preview(shard, command, write.idempotency, write.offered)


def _preview(
    shard: Shard, command: Command[R], key: IdempotencyKey | None, offered: tuple[Part, ...] = ()
) -> R | None:
    def in_group(look: LogView, _view: GroupView) -> R | None:
        runs = (Run(offered),) if offered else ()
        match command(_base_state(look, key, runs), shard.env.clock.now_ms()):
            case Commit(_, _, _):
                return None
            case NoOp(result):
                return result
            case Refused(error):
                raise shard.named(error)

    return _wherever(shard, partial(shard.preview, command), in_group)


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
    """A write of one collection. In a group it is a transaction with one member.

    It keeps the id of that however often it is computed again.

    Args:
        shard: the collection's shard.
        write: the write.
        rebase: makes it again for another upper.
        uploads: more runs of it.
    """

    def __init__(self, shard: Shard, write: Write, rebase: Rebase | None, uploads: Uploads | None) -> None:
        self._shard, self._write, self._rebase, self._uploads = shard, write, rebase, uploads
        self._proposal: Proposal | None = None
        self._given_up: frozenset[str] = frozenset()

    def tried(self) -> Done[Appended] | None:
        """Try the write where its collection is now; None: try again."""
        shard = self._shard
        write = _offered(shard, self._write, () if self._uploads is None else self._uploads.offer())
        if shard.known().group:
            with shard.group_commit.command():
                look = shard.look()
                done = self._in_group(look, write) if _is_member(shard, look) else None
            if done is None:
                shard.env.recorder.count("append.single.again")
            return done
        try:
            return shard.carry_out(partial(commit, write=write))
        except CollectionInGroup:
            # It has joined a group, which this handle knows now.
            return None
        except AlreadyTaken as error:
            # The runs may have been staged in a group that the collection has left.
            if self._proposal is None:
                raise
            raise self._told(error) from error
        except UpperMismatch:
            rebased = None if self._rebase is None else self._rebase(self._write)
            if rebased is None:
                raise
            self._write = rebased
            return None

    def _in_group(self, look: LogView, write: Write) -> Done[Appended] | None:
        """Try the write on a state of collection and group."""
        view, group = look.view, look.group
        if view is None or group is None:
            return None
        place = self._shard.group(group.shard_id)
        proposal = self._proposal = self._proposal or Proposal(self._shard.env.ids.fresh(), [self._shard])
        # Runs that may be tried again keep their names, so their inline parts are never moved to stored ones.
        write = replace(write, inline_bytes_max=None) if write.offered else write
        known = frozenset((proposal.id, *self._given_up))
        if others := expire_earlier(place, look, write.runs, known):
            # If one of them was decided before, the next look shows that.
            self._given_up |= others
            return None
        seen = _base_state(look, write.idempotency, write.runs)
        found = self._worked_out(seen, write)
        if isinstance(found, NoOp):
            self._withdraw()
            return Done(found.result, rollup_due=False)
        state, floats = look.state, None if found.floats is None else parts(found.floats)[0]
        proposal.begin(place, {state.shard_id: state.joined}, group.seqno)
        staged = self._staged(proposal, view, found, seen.upper, write)
        if found.batch.runs and not staged.result:
            return None
        proposal.shares[state.shard_id] = replace(
            proposal.shares[state.shard_id].reaching(times_of(found.batch.runs)),
            lower=None if found.stays_open or floats is not None else seen.upper,
            seal=None if floats is not None else found.batch.bounds.upper,
            behind=True,
            latest=group.seqno if write.seen is not None else None,
            applied=frozenset(view.decided) if found.batch.runs else frozenset(),
        )
        terms = IntentTimes(own_times=floats is None, least=floats, alone=True, picked=True)
        key = write.idempotency
        try:
            decided = proposal.decide(terms, None if key is None else replace(key, member=state.shard_id))
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

    def _worked_out(self, seen: ShardState, write: Write) -> Addition | NoOp[Appended]:
        """Compute the write on a state; raises if it is refused."""
        try:
            found = plan(seen, write)
            if isinstance(found, Refused):
                raise found.error
        except AlreadyTaken as error:
            raise self._told(error) from error
        except TidelakeError as error:
            self._refused()
            raise self._shard.named(error) from None
        return found

    def _told(self, error: AlreadyTaken) -> AlreadyTaken | UploadExpired:
        """The error to raise when a part is taken already.

        If this attempt had staged the parts, another one has removed and barred them since: the upload has
        expired, and is in no state.
        """
        staged = self._proposal is not None and self._proposal.is_staged
        return expired(error, self._shard.known().seqno) if staged else error

    def _staged(
        self, proposal: Proposal, view: GroupView, found: Addition, checked: Frontier, write: Write
    ) -> Done[bool]:
        try:
            return proposal.park(
                self._shard,
                view,
                found,
                checked=checked,
                given_up=self._given_up,
                inline_bytes_max=write.inline_bytes_max,
                as_now=write.as_now,
            )
        except (LeftGroup, UpperMismatch, UpdateBeforeLower):
            # The collection has changed since this look.
            return Done(False, rollup_due=False)
        except AlreadyTaken as error:
            raise self._told(error) from error
        except TidelakeError:
            self._refused()
            raise

    def _refused(self) -> None:
        if not self._write.offered:
            self._withdraw()

    def _withdraw(self) -> None:
        """Remove the staged rows of a write that is not in; errors as `Proposal.withdraw`."""
        if self._proposal is not None and self._proposal.is_staged:
            self._proposal.withdraw()
            self._proposal = None

"""Carries out every write to one collection, whether the collection is in a group or not.

Outside a group, a write is one command on the collection. In a group it is an implicit transaction with one
member: its rows are staged in the collection, and the group decides (`tidelake.state.single`). If the state
that it depends on has changed meanwhile, it is computed again on the newest state, without another upload.

Batches and uploads of workers may be tried again after a refusal: they stay staged until the next attempt
replaces them, or they are too old.

INVARIANT: after a refusal of other rows, none of them is staged, so that their parts may be deleted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from tidelake.errors import (
    AlreadyTaken,
    CollectionInGroup,
    CollectionNotFound,
    LeftGroup,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    TransactionExpired,
    UpdateBeforeLower,
    UploadExpired,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model import names
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.shard.requests import Done
from tidelake.shard.shard import LogView, Shard
from tidelake.shard.upkeep.parting import free, part
from tidelake.state import append as appending
from tidelake.state import applying, awaiting, commands, deciding
from tidelake.state.append import Addition, Appended, When
from tidelake.state.commands import Command, Commit, NoOp, Refused
from tidelake.state.grouped import GroupView
from tidelake.state.idempotency import IdempotencyKey
from tidelake.state.single import Single, alone, decide_single, known_writer, open_member_writer
from tidelake.state.staged import Awaited
from tidelake.state.staging import Seen
from tidelake.state.state import ShardState, WriterRecord

R = TypeVar("R")
# Errors after which a write must be computed again on the newest state.
_STALE = (UpperMismatch, UpdateBeforeLower, LeftGroup, TransactionExpired, CollectionNotFound)


@dataclass(frozen=True)
class Write(Generic[R]):
    """A write to one collection.

    Attributes:
        command: carries it out outside a group.
        on: computes it on a state, in a group.
        told: makes the answer from the group's decision and the answer of `on`.
        runs: the runs to write.
        idempotency: the claim of a writer, if one writes.
        seen: whether it depends on the contents of the collection.
        keeps: whether the same runs may be tried again after a refusal, so that they stay staged.
        inline_bytes_max: as for `tidelake.state.append.append`.
    """

    command: Command[R]
    on: Callable[[ShardState], Addition[R] | NoOp[R] | Refused]
    told: Callable[[Appended, R], R]
    runs: tuple[Run, ...] = ()
    idempotency: IdempotencyKey | None = None
    seen: bool = False
    keeps: bool = False
    inline_bytes_max: int | None = None


def an_append(
    runs: tuple[Run, ...],
    when: When,
    idempotency: IdempotencyKey | None = None,
    *,
    inline_bytes_max: int | None = None,
    as_now: bool = False,
    seen: Seen | None = None,
    offered: tuple[Part, ...] = (),
    keeps: bool = True,
) -> Write[Appended]:
    """`tidelake.state.append.append` as a write. With `offered` and `keeps`, the runs may be tried again."""
    what = partial(appending.append, runs=runs, when=when, idempotency=idempotency, as_now=as_now, seen=seen)
    on = partial(appending.append_on, runs=runs, when=when, idempotency=idempotency, as_now=as_now, seen=seen)
    kept = bool(offered) and keeps
    # Runs that may be tried again must keep their names, so inline parts are never moved to stored parts.
    limit = None if kept else inline_bytes_max
    return Write(
        partial(what, inline_bytes_max=inline_bytes_max, offered=offered),
        partial(on, inline_bytes_max=limit, offered=offered),
        lambda said, _: said,
        runs,
        idempotency,
        seen is not None,
        kept,
        limit,
    )


def at_any_upper(write: Write[Appended], when: Callable[[Frontier], When]) -> Write[Appended]:
    """The append, changed so that in a group it is at the newest upper: `when` maps that to `When`."""

    def on(state: ShardState) -> Addition[Appended] | NoOp[Appended] | Refused:
        return appending.append_on(
            state,
            write.runs,
            when(state.upper),
            write.idempotency,
            inline_bytes_max=write.inline_bytes_max,
            as_now=True,
        )

    return replace(write, on=on)


def a_stage(
    runs: tuple[Run, ...],
    checked: Frontier,
    idempotency: IdempotencyKey | None = None,
    *,
    inline_bytes_max: int | None = None,
    seal_to: Frontier | None = None,
    as_now: bool = False,
    offered: tuple[Part, ...] = (),
) -> Write[bool]:
    """`tidelake.state.append.stage` as a write; `offered` as for `an_append`."""
    what = partial(
        appending.stage, runs=runs, checked=checked, idempotency=idempotency, seal_to=seal_to, as_now=as_now
    )
    on = partial(
        appending.stage_on,
        runs=runs,
        checked=checked,
        idempotency=idempotency,
        seal_to=seal_to,
        as_now=as_now,
    )
    limit = None if offered else inline_bytes_max
    return Write(
        partial(what, inline_bytes_max=inline_bytes_max, offered=offered),
        partial(on, inline_bytes_max=limit, offered=offered),
        lambda said, kept: kept and not said.already,
        runs,
        idempotency,
        keeps=bool(offered),
        inline_bytes_max=limit,
    )


def a_seal(upper: Frontier, idempotency: IdempotencyKey | None = None) -> Write[Appended]:
    """`tidelake.state.append.seal` as a write."""
    return Write(
        partial(appending.seal, upper=upper, idempotency=idempotency),
        partial(appending.seal_on, upper=upper, idempotency=idempotency),
        lambda said, _: said,
        idempotency=idempotency,
    )


def carry_out(shard: Shard, write: Write[R]) -> Done[R]:
    """Write to a collection. One log write; in a group two log scans and a log write of the group.

    In a group, rows are staged first, which is a log write of the collection as well.

    Raises:
        StoreUnavailable: the write is certainly not in.
        OutcomeUnknown: the write may be in.
        TidelakeError: the command was refused; nothing is in.
    """
    with shard.group_commit.command():
        attempt = _Attempt(shard, write)
        while True:
            if not shard.known().group:
                try:
                    return shard.carry_out(write.command)
                except CollectionInGroup:
                    # It has joined a group, which this handle knows now.
                    continue
                except AlreadyTaken as error:
                    # The runs were staged in a group that the collection has left.
                    raise attempt.told(error) from error
            look = shard.look()
            if _is_member(shard, look):
                done = attempt.tried(look)
                if done is not None:
                    return done
            shard.env.recorder.count("append.single.again")


def preview(
    shard: Shard,
    command: Command[R],
    idempotency: IdempotencyKey | None = None,
    offered: tuple[Part, ...] = (),
) -> R | None:
    """The result of a command that would write nothing; None if it would write. Raises if refused.

    Usually no store call; in a group two log scans.
    """
    while True:
        if not shard.known().group:
            try:
                return shard.preview(command)
            except CollectionInGroup:
                continue
        look = shard.look()
        if look.view is None or not _is_member(shard, look):
            continue
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
    while True:
        if not shard.known().group:
            try:
                return shard.run(command)
            except CollectionInGroup:
                continue
        look = shard.look()
        if look.view is None or look.group is None or not _is_member(shard, look):
            continue
        state = look.state
        opened = partial(
            open_member_writer,
            member=state.shard_id,
            joined=state.joined,
            record=state.writers.get(name),
            upper=applying.seen_through(state, look.view).upper,
            name=name,
            owner=owner,
            take_over=take_over,
            resume=resume,
        )
        try:
            return shard.group(state.group).run(opened)
        except (LeftGroup, CollectionNotFound):
            continue


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


class _Attempt(Generic[R]):
    """A write as a transaction with one member. It keeps its id however often it is computed again.

    Args:
        shard: the collection's shard.
        write: the write.
    """

    def __init__(self, shard: Shard, write: Write[R]) -> None:
        self._shard, self._write = shard, write
        self._id = shard.env.ids.fresh()
        self._given_up: frozenset[str] = frozenset()
        self._is_staged = False

    def tried(self, look: LogView) -> Done[R] | None:
        """Try the write on a state of collection and group; None: compute it again on a newer one."""
        write, view, group = self._write, look.view, look.group
        if view is None or group is None or self._has_given_up_others(look, group):
            return None
        seen = _base_state(look, write.idempotency, write.runs)
        found = self._worked_out(seen)
        if isinstance(found, NoOp):
            self._withdraw()
            return Done(found.result, rollup_due=False)
        if not found.runs and found.bounds.empty and write.idempotency is None:
            return Done(found.answer, rollup_due=False)
        awaited = Awaited(self._id, group.seqno, self._shard.env.clock.now_ms())
        staged: Done[bool] = Done(False, rollup_due=False)
        if found.runs:
            staged = self._staged(view, awaited, found, seen.upper)
            if not staged.result:
                return None
        said = self._decided(_wanted(found, seen, look, awaited, write))
        if said is None:
            return None
        if said.already:
            self._withdraw()
        return Done(write.told(said, found.answer), rollup_due=False, merges_due=staged.merges_due)

    def _worked_out(self, seen: ShardState) -> Addition[R] | NoOp[R]:
        """Compute the write on a state; raises if it is refused."""
        try:
            found = self._write.on(seen)
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
        if not self._is_staged:
            return error
        return UploadExpired(error.name, names.uploaded_at(error.name) or 0, self._shard.known().seqno)

    def _has_given_up_others(self, look: LogView, group: ShardState) -> bool:
        """Make sure that no earlier attempt with the same runs can be committed; False if there is none.

        SUBTLE: such an attempt may still be running, so expire it in the group.
        """
        seen = applying.seen_through(look.state, look.view)
        waiting = awaiting.waiting_for(seen, self._write.runs).values()
        others = [one for one in waiting if one.transaction not in {self._id, *self._given_up}]
        if not others:
            return False
        before = max(one.begun for one in others) + 1
        self._shard.group(group.shard_id).run(partial(deciding.expire, before=before))
        # If one of them was decided before, the next look shows that.
        self._given_up |= {one.transaction for one in others}
        return True

    def _staged(self, view: GroupView, awaited: Awaited, found: Addition[R], checked: Frontier) -> Done[bool]:
        step = partial(
            awaiting.stage_single,
            view=view,
            awaited=awaited,
            found=found,
            checked=checked,
            given_up=self._given_up,
            inline_bytes_max=self._write.inline_bytes_max,
        )
        try:
            done = self._shard.carry_out(step)
        except (LeftGroup, UpperMismatch, UpdateBeforeLower):
            # The collection has changed since this look.
            return Done(False, rollup_due=False)
        except OutcomeUnknown as error:
            message = f"the write is not in, and it is not known whether its rows are staged: {error}"
            raise StoreUnavailable(message) from error
        except AlreadyTaken as error:
            raise self.told(error) from error
        except TidelakeError:
            self._refused()
            raise
        self._is_staged = self._is_staged or done.result
        return done

    def _decided(self, wanted: Single) -> Appended | None:
        """Ask the group for its decision; None: the state that the write depends on has changed."""
        try:
            group = self._shard.group(wanted.group)
            return group.run(partial(decide_single, wanted=wanted))
        except _STALE:
            return None
        except (WriterFenced, UsageError, StoreUnavailable):
            # The write is certainly not in.
            self._refused()
            raise

    def _refused(self) -> None:
        if not self._write.keeps:
            self._withdraw()

    def _withdraw(self) -> None:
        """Remove the staged rows of a write that is not in.

        Raises:
            StoreUnavailable: the rows may still be staged, so their parts must stay.
        """
        if not self._is_staged:
            return
        try:
            self._shard.run(partial(awaiting.withdraw, transactions=frozenset([self._id])))
        except OutcomeUnknown as error:
            message = f"the write is not in, and it is not known whether what it staged is removed: {error}"
            raise StoreUnavailable(message) from error
        self._is_staged = False


def _wanted(found: Addition[R], seen: ShardState, look: LogView, awaited: Awaited, write: Write[R]) -> Single:
    """The question to the group: whether the write may be committed."""
    firsts = [part.seen_times[0] for run in found.runs for part in run.parts]
    first = min(firsts) if firsts and found.stays_open else found.floats
    state, group, view = look.state, look.group, look.view
    at_any = found.stays_open or found.floats is not None
    return Single(
        awaited.transaction,
        awaited.begun,
        state.group,
        state.shard_id,
        state.joined,
        seen.upper,
        first,
        found.bounds.upper,
        has_rows=bool(found.runs),
        lower=None if at_any else seen.upper,
        floats=found.floats is not None,
        latest=group.seqno if write.seen and group is not None else None,
        idempotency=write.idempotency,
        record=None if write.idempotency is None else state.writers.get(write.idempotency.writer),
        applied=frozenset(view.decided) if found.runs and view is not None else frozenset(),
    )

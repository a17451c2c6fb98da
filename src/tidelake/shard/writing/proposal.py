"""What a write asks of a group: rows that are staged under one id, and whether the group has decided them.

A write of one collection and a transaction of several are the same here: rows are staged in each collection,
then one command of the group lets them all in.

INVARIANT: an error other than `OutcomeUnknown` means that the group has not let the rows in.
"""

from collections.abc import Iterable, Mapping
from functools import partial

from tidelake.errors import (
    AlreadyTaken,
    CollectionDropped,
    CollectionNotFound,
    LeftGroup,
    OutcomeUnknown,
    StoreUnavailable,
    UploadExpired,
)
from tidelake.model import names
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import parts
from tidelake.shard.engine.requestqueue import Done
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import LogView
from tidelake.shard.writing.uploads import REFUSED
from tidelake.state.core.decisions import GroupView
from tidelake.state.group import applying, awaiting, deciding
from tidelake.state.group.deciding import Decided, Intent, IntentTimes, Share
from tidelake.state.spine.staged import Awaited
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import Addition


class Proposal:
    """Rows staged under an id, for a group to decide. Not thread-safe.

    Args:
        id_: a fresh id.
        shards: the collections.

    Attributes:
        id: the id.
        shards: the collections by id.
        group: the group.
        awaited: the id and when it began, as staged rows carry them.
        shares: what each collection asks of the group, by id.
        is_staged: whether rows were staged under it, and not withdrawn since.
        asked: whether it may be decided already.
    """

    group: Shard
    awaited: Awaited
    shares: dict[str, Share]

    def __init__(self, id_: str, shards: Iterable[Shard]) -> None:
        self.id, self.shards = id_, {shard.spec.shard_id: shard for shard in shards}
        self.is_staged = self.asked = False

    def begin(self, group: Shard, joined: Mapping[str, int], seqno: int | None = None) -> None:
        """Begin, or begin again, when all collections have joined. No store call.

        Rows that are staged after that take the place of those before.

        Args:
            group: the group that decides.
            joined: when each collection joined it, by id.
            seqno: of its state; None: the known one.
        """
        self.group = group
        seqno = group.known().seqno if seqno is None else seqno
        self.awaited = Awaited(self.id, seqno, group.env.clock.now_ms())
        self.shares = {id_: Share(joined[id_], shard.known().upper) for id_, shard in self.shards.items()}

    def park(
        self,
        shard: Shard,
        view: GroupView,
        found: Addition,
        *,
        checked: Frontier,
        given_up: frozenset[str] = frozenset(),
        inline_bytes_max: int | None = None,
        as_now: bool = False,
    ) -> Done[bool]:
        """Stage rows; False if there are none, or as `awaiting.park`. One log write.

        Arguments and errors as for that; `StoreUnavailable` also if it is unknown whether they are staged.
        """
        if not found.batch.runs:
            return Done(False, rollup_due=False)
        step = partial(
            awaiting.park,
            view=view,
            awaited=self.awaited,
            found=found,
            checked=checked,
            given_up=given_up,
            inline_bytes_max=inline_bytes_max,
            as_now=as_now,
            owner=shard.writes_as,
        )
        try:
            done = shard.carry_out(step)
        except OutcomeUnknown as error:
            message = f"the write is not in, and it is not known whether its rows are staged: {error}"
            raise StoreUnavailable(message) from error
        self.is_staged = self.is_staged or done.result
        return done

    def decide(self, terms: IntentTimes, number: IdempotencyKey | None) -> Decided:
        """Let the group decide: one log write. Arguments as for `Intent`, errors as for `deciding.decide`.

        Raises:
            LeftGroup: also if the group ended when its last collection left.
            OutcomeUnknown: the rows may be in. Asking again lets them in at most once.
        """
        # The collection that keeps the writer's record may have brought it from another group.
        register = None if number is None else self.shards.get(number.member)
        record = None if number is None or register is None else register.known().writers.get(number.writer)
        wanted = Intent(self.id, self.awaited.begun, dict(self.shares), number, record, **vars(terms))
        before, self.asked = self.asked, True
        try:
            return self.group.run(partial(deciding.decide, wanted=wanted))
        except (CollectionNotFound, CollectionDropped) as error:
            self.asked = before
            raise LeftGroup(min(wanted.shares)) from error
        except (*REFUSED, StoreUnavailable):
            self.asked = before
            raise

    def withdraw(self, kept: frozenset[str] = frozenset()) -> None:
        """Remove the staged rows, except for parts that are `kept`.

        Raises:
            StoreUnavailable: the rows may still be staged, so their parts must stay.
        """
        step = partial(awaiting.withdraw, transactions=frozenset([self.id]), kept=kept)
        for shard in self.shards.values():
            try:
                shard.run(step)
            except OutcomeUnknown as error:
                message = f"the write is not in, and what it staged may be there still: {error}"
                raise StoreUnavailable(message) from error
        self.is_staged = False


def times_of(runs: Iterable[Run]) -> tuple[int, int] | None:
    """The first and the last time of rows; None: there are none."""
    found = [parts(time)[0] for run in runs for part in run.parts for time in part.seen_times]
    return (min(found), max(found)) if found else None


def expired(error: AlreadyTaken, seqno: int) -> UploadExpired:
    """The error for an upload that was staged, and has been removed and barred since."""
    return UploadExpired(error.name, names.uploaded_at(error.name) or 0, seqno)


def expire_earlier(
    group: Shard, look: LogView, runs: tuple[Run, ...], known: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Make sure that no earlier attempt with the same runs can still be committed; `known` are left out.

    SUBTLE: an earlier attempt may still be running, so expire it in the group, which then refuses every
    transaction that began before.

    Returns:
        The transactions of these attempts.
    """
    waiting = awaiting.waiting_for(applying.seen_through(look.state, look.view), runs).values()
    others = [one for one in waiting if one.transaction not in known]
    before = max((one.begun + 1 for one in others), default=0)
    if before > group.known().expired:
        group.run(partial(deciding.expire, before=before))
    return frozenset(one.transaction for one in others)

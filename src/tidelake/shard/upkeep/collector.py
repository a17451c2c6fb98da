"""Garbage collection: deletes objects that no state names and no reader needs. It may stop at any point.

Garbage is condemned in the state (`doom`), deleted, and purged from the state (`bury`). Log entries before
the oldest remaining rollup are removed between the last two steps, so that after a crash the state still
shows that they must go. Uploads that were never appended are found by listing, once the state refuses them
because of their age. `tidelake.state.core.garbage` says what may be deleted, and why it can never be needed
again.

INVARIANT: only condemned objects, and objects that no later state can name, are deleted. So collections may
overlap, stall and die without harm.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

from tidelake.errors import CollectionDropped, OutcomeUnknown, StoreUnavailable, UsageError
from tidelake.model import names
from tidelake.shard.engine.history import check_reaches
from tidelake.shard.engine.shard import Shard
from tidelake.shard.upkeep import publications
from tidelake.shard.upkeep.forkpins import ForkPins
from tidelake.shard.upkeep.reports import CollectReport
from tidelake.state.core.commands import Command, NoOp, R
from tidelake.state.core.forks import is_borrowed
from tidelake.state.core.state import FIRST, ShardState
from tidelake.state.life import collecting, erasing
from tidelake.store.protocols import BlobInfo

# The most names in one commit, to keep the log entry small.
_NAMES_MAX = 1_000
# An append deletes at most this many blobs, and starts only if there are at least as many.
_NAMES_BESIDE = 32
# An append forgets at most this many tokens.
_TOKENS_BESIDE = 250
# A handle looks for garbage this many times within the age of garbage, and lists uploads likewise.
_LOOKS = 4
_PAUSE_S_MIN = 1.0


class Collector:
    """Collects the garbage of one shard. Several collectors may run at once."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._lending = ForkPins(shard.stores, shard.env, shard.spec.config)

    @property
    def _garbage_ms(self) -> int:
        """How long garbage is kept, as of the newest known state."""
        return self._shard.known().agreed.garbage_ms(self._shard.env.clock.now_ms())

    @property
    def _upload_ms(self) -> int:
        """How long an upload may take, as of the newest known state."""
        return self._shard.known().agreed.upload_ms(self._shard.env.clock.now_ms())

    def run(self, *, thorough: bool = False) -> CollectReport:
        """Delete garbage that is old enough, and log entries that it needed; look for leaked uploads.

        Also release the origin of a fork that needs no part of it any more. An origin forgets forks that were
        never created when it looks for leaked uploads.

        Costs one log scan if there is nothing to do; otherwise two log writes for each thousand blobs, and a
        call for each blob, or for each thousand in a store that is far. If this handle has not listed the
        uploads for some time, also a listing.
        """
        try:
            state = self._shard.state()
            publications.withdraw_erased(self._shard)
            report = self._garbage(state, _NAMES_MAX)
            state = self._shard.known()
            if not state.dropped and (thorough or self._listing_due(state)):
                report = report.plus(self._leaked())
                self._lending.forget_uncreated(self._shard.known())
            self._forget()
            self._lending.let_go(self._shard)
            report = report.plus(self._erased())
        except CollectionDropped:
            # The process that dropped it deletes everything.
            return CollectReport()
        self._shard.collected.tried_s = self._shard.env.clock.monotonic_s()
        return report

    def run_if_due(self) -> CollectReport:
        """`run`, if this handle has not collected for some time."""
        return self.run() if self._due(self._shard.collected.tried_s, self._garbage_ms) else CollectReport()

    def beside_append(self) -> CollectReport:
        """Delete a few blobs, if there is enough garbage and this handle has not looked for some time."""
        self._age()
        collected, state = self._shard.collected, self._shard.known()
        enough = len(state.garbage) + len(state.doomed) >= _NAMES_BESIDE
        if state.dropped or not enough or not self._due(collected.tried_s, self._garbage_ms):
            return CollectReport()
        report = self._garbage(state, _NAMES_BESIDE, once=True)
        if report.blobs < _NAMES_BESIDE:
            # If the limit was reached there may be more, so the next append goes on at once.
            collected.tried_s = self._shard.env.clock.monotonic_s()
        return report

    def _age(self) -> None:
        """Forget names of taken uploads, and tokens, that are too old, even if uploads are never listed."""
        collected, state = self._shard.collected, self._shard.known()
        is_empty = state.dropped or not (state.taken or state.tokens)
        if is_empty or not self._due(collected.aged_s, self._upload_ms):
            return
        if state.taken:
            self._run_unless_noop(state, partial(collecting.raise_floor, unnamed_max=None))
        forgotten = self._run_unless_noop(state, partial(collecting.forget_tokens, names_max=_TOKENS_BESIDE))
        if forgotten < _TOKENS_BESIDE:
            # If the limit was reached there may be more, so the next append goes on at once.
            collected.aged_s = self._shard.env.clock.monotonic_s()

    def _forget(self) -> None:
        """Forget all tokens that are old enough."""
        forget = partial(collecting.forget_tokens, names_max=_NAMES_MAX)
        while self._run_unless_noop(self._shard.known(), forget):
            pass

    def pause_s(self) -> float:
        """How long an idle shard can be left alone: until garbage is old enough or a listing is due."""
        state, now_ms = self._shard.known(), self._shard.env.clock.now_ms()
        ages = [(found.removed_ms, self._garbage_ms) for found in state.garbage.values()]
        ages += [(noted_ms, self._upload_ms) for _, noted_ms in state.sweep.marks]
        erased = [one.erased_ms for one in erasing.not_gone(state).values()]
        ages += [(at_ms, self._garbage_ms) for at_ms in erased if at_ms + self._garbage_ms > now_ms]
        waits_s = [_pause_s(self._upload_ms)]
        # Garbage that is old enough and still there is being read, or could not be deleted.
        waits_s += [_pause_s(self._garbage_ms)] if state.doomed else []
        waits_s += [max((at_ms + age - now_ms) / 1000, _pause_s(age)) for at_ms, age in ages]
        return min(waits_s)

    def _due(self, last_s: float | None, age_ms: int) -> bool:
        now_s = self._shard.env.clock.monotonic_s()
        return last_s is None or now_s - last_s >= _pause_s(age_ms)

    def _garbage(self, state: ShardState, names_max: int, *, once: bool = False) -> CollectReport:
        """Condemn, delete, truncate and purge, until nothing more may be deleted."""
        report = CollectReport()
        while state.garbage or state.doomed:
            doomed = self._run_unless_noop(state, partial(collecting.doom, names_max=names_max))
            if not doomed:
                break
            deleted, blobs, error = self._deleted(doomed)
            entries = self._truncate(deleted)
            if deleted:
                self._shard.run(partial(collecting.bury, names=deleted))
            report = report.plus(CollectReport(blobs, entries=entries))
            if error is not None:
                raise error
            if once:
                break
            state = self._shard.known()
        return report

    def _run_unless_noop(self, state: ShardState, command: Command[R]) -> R:
        """The result of a command. Not run if it is a no-op on `state`, which was read just before."""
        outcome = command(state, self._shard.env.clock.now_ms())
        return outcome.result if isinstance(outcome, NoOp) else self._shard.run(command)

    def _deleted(
        self, doomed: Iterable[str]
    ) -> tuple[tuple[str, ...], int, StoreUnavailable | OutcomeUnknown | None]:
        """Delete blobs. Returns the names that are done, how many existed, and the error that stopped it."""
        names_, id_, store = list(doomed), self._shard.spec.shard_id, self._shard.stores.blobs
        done = [name for name in names_ if is_borrowed(name, id_)]  # The origin deletes them.
        own = [name for name in names_ if not is_borrowed(name, id_)]
        at_once = _NAMES_MAX if store.is_far else 1
        pages = deque(own[start : start + at_once] for start in range(0, len(own), at_once))
        blobs, failed = 0, None
        while pages:
            page = pages.popleft()
            try:
                blobs += store.delete_all(page) if len(page) > 1 else store.delete(page[0])
                done += page
            except (StoreUnavailable, OutcomeUnknown) as error:
                # One blob that cannot be deleted must not block the others; but stop if the store is away.
                if not isinstance(error, StoreUnavailable) or error.retryable:
                    failed = error
                    break
                if len(page) > 1:
                    pages.extendleft([name] for name in reversed(page))
                else:
                    failed = error
        return tuple(done), blobs, failed

    def _truncate(self, deleted: Iterable[str]) -> int:
        """Remove the log entries that only deleted rollups needed. Returns their number."""
        if not any(names.rolled_up_at(name) is not None for name in deleted):
            return 0
        state = self._shard.known()
        if state.rollup == FIRST or state.dropped:
            return 0
        oldest = self._needed_from(state, deleted)
        try:
            return self._shard.stores.log.truncate(state.shard_id, oldest)
        except UsageError:
            if self._shard.state().dropped:
                return 0
            raise

    def _needed_from(self, state: ShardState, deleted: Iterable[str] = ()) -> int:
        """The first entry of the log that a rollup needs, once some of them are deleted."""
        left = (names.rolled_up_at(name) for name in {*state.garbage, *state.doomed}.difference(deleted))
        return min([state.rollup.seqno, *(seqno for seqno in left if seqno is not None)])

    def _erased(self) -> CollectReport:
        """Delete the last bytes of erased rows, once they are as old as garbage may be, and note that.

        The objects are garbage as usual. This removes the entries of the log, and looks for abandoned uploads
        and for what a repair has set aside, from before the erasure. No store call if there was none, or its
        bytes are gone.
        """
        shard, report = self._shard, CollectReport()
        state, now_ms = shard.known(), shard.env.clock.now_ms()
        found = [o for o in erasing.not_gone(state).values() if o.erased_ms + self._garbage_ms <= now_ms]
        if state.dropped or not found:
            return report
        if state.rollup.seqno < max(one.seqno for one in found):
            # The process that erased died before it wrote one.
            shard.write_rollup()
            state = shard.known()
        gone = [one for one in found if not erasing.keeps_bytes(state, one)]
        if not gone:
            return report
        report = report.plus(self._leaked())
        state = shard.known()
        listed = shard.stores.blobs.list(names.parts(state.shard_id))
        first = min((at for at, _ in _unnamed(listed, state)), default=state.seqno)
        # What a repair has set aside is removed by people.
        set_aside = shard.stores.blobs.list(names.asides(state.shard_id))
        aside = [names.aside_at(info.name) for info in set_aside if names.is_aside(info.name)]
        oldest = self._needed_from(state)
        entries = shard.stores.log.truncate(state.shard_id, oldest)
        self._run_unless_noop(state, partial(erasing.note_gone, before=min([first, oldest, *aside])))
        return report.plus(CollectReport(entries=entries))

    def _listing_due(self, state: ShardState) -> bool:
        """Whether a listing may find something: the floor can rise or has risen, or the last one is old."""
        collected, now_ms = self._shard.collected, self._shard.env.clock.now_ms()
        over = any(noted_ms + self._upload_ms <= now_ms for _, noted_ms in state.sweep.marks)
        return over or state.sweep.floor > collected.floor or self._due(collected.listed_s, self._upload_ms)

    def _leaked(self) -> CollectReport:
        """Delete uploads and rollups that no state can name any more, and note when others will be that old.

        SUBTLE: an upload below the floor of a state that is not in that state is in no later state. The check
        must use a state that has that floor: until the floor rose, others may have appended a listed upload.
        """
        shard, id_ = self._shard, self._shard.spec.shard_id
        listed_s = shard.env.clock.monotonic_s()
        parts = list(shard.stores.blobs.list(names.parts(id_)))
        rollups = list(shard.stores.blobs.list(names.rollups(id_)))
        published = list(shard.stores.blobs.list(names.publications(id_)))
        state = shard.state()
        if shard.stores.clock is not None:
            # Logs on one machine have a witness instead, and may have lost entries that a repair gave up.
            check_reaches(id_, state.seqno, (info.name for info in (*parts, *rollups)))
        unnamed_max = max((at for at, _ in _unnamed(parts, state) if at <= state.seqno), default=None)
        self._run_unless_noop(state, partial(collecting.raise_floor, unnamed_max=unnamed_max))
        state = shard.known()
        before_ms = shard.env.clock.now_ms() - self._upload_ms
        if any(info.modified_ms <= before_ms and _may_still_be_added(info.name, state) for info in rollups):
            # Its writer may be asleep and add it later. Once there is a newer rollup, it cannot.
            shard.write_rollup()
            state = shard.known()
        lost = [info for at, info in _unnamed(parts, state) if at < state.sweep.floor]
        lost += [info for info in rollups if _is_superseded(info.name, state)]
        lost += publications.unheld(state, published)
        _, blobs, error = self._deleted(info.name for info in lost)
        if error is not None:
            raise error
        shard.collected.listed_s, shard.collected.floor = listed_s, state.sweep.floor
        return CollectReport(leaked=blobs, leaked_bytes=sum(info.size_bytes for info in lost))


def _pause_s(age_ms: int) -> float:
    return max(_PAUSE_S_MIN, age_ms / 1000 / _LOOKS)


def _unnamed(parts: Iterable[BlobInfo], state: ShardState) -> Iterator[tuple[int, BlobInfo]]:
    """The stored parts that a state does not name, each with the seqno that its uploader knew."""
    named = {part.name for part in state.parts()}
    named.update(part.name for chunk in state.chunks.values() for part in chunk)
    for info in parts:
        at = names.uploaded_at(info.name)
        gone = info.name in state.garbage or info.name in state.doomed
        if at is not None and not gone and info.name not in named:
            yield at, info


def _may_still_be_added(name: str, state: ShardState) -> bool:
    """Whether it is a rollup that is not in the state but may still be added: its writer was interrupted."""
    seqno = names.rolled_up_at(name)
    return seqno is not None and state.rollup.seqno < seqno <= state.seqno


def _is_superseded(name: str, state: ShardState) -> bool:
    """Whether it is a rollup that is not in the state and never will be: a state adds only newer ones."""
    seqno, last = names.rolled_up_at(name), state.rollup
    if seqno is None or name in state.garbage or name in state.doomed:
        return False
    return seqno <= last.seqno and name != names.rollup(state.shard_id, last.seqno, last.id)

"""Collection: deleting what no state names and nobody reads, in an order that may stop anywhere.

Garbage is doomed in the state, deleted, and buried in the state; log entries before the oldest rollup that
is left go between the last two, so that whoever comes after a crash sees that they are still to go. Uploads
that nobody appended are found by listing, once the state takes them in no more. What may be deleted, and
why nobody can need it again, is said in `tidelake.state.garbage`.

INVARIANT: only what was doomed, or what no later state can name, is deleted. So runs may overlap, stall and
die without harm.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tidelake.errors import CollectionDropped, OutcomeUnknown, StoreUnavailable, UsageError
from tidelake.model import names
from tidelake.shard.shard import Shard
from tidelake.shard.upkeep.lending import Lending
from tidelake.state import collection, forgetting
from tidelake.state.commands import Command, NoOp, R
from tidelake.state.forking import is_borrowed
from tidelake.state.state import FIRST, ShardState
from tidelake.store.protocols import BlobInfo

# Names in one commit: it is an entry of the log like any other.
_NAMES_MAX = 1_000
# An append deletes so many blobs at most, and looks only if there are as many.
_NAMES_BESIDE = 32
# And forgets so many tokens at most.
_TOKENS_BESIDE = 250
# A handle looks for garbage so many times while it grows old, and lists uploads likewise.
_LOOKS = 4
_PAUSE_S_MIN = 1.0


@dataclass(frozen=True)
class CollectReport:
    """What a collection removed.

    Attributes:
        blobs: objects that the state had named.
        leaked: objects that no state has named: uploads that were given up, rollups that came too late.
        leaked_bytes: theirs.
        entries: of the log.
    """

    blobs: int = 0
    leaked: int = 0
    leaked_bytes: int = 0
    entries: int = 0

    @property
    def objects(self) -> int:
        """All objects that were removed."""
        return self.blobs + self.leaked

    @property
    def total(self) -> int:
        """These, and log entries."""
        return self.objects + self.entries

    def plus(self, other: "CollectReport") -> "CollectReport":
        """Both together."""
        return CollectReport(
            self.blobs + other.blobs,
            self.leaked + other.leaked,
            self.leaked_bytes + other.leaked_bytes,
            self.entries + other.entries,
        )


class Collector:
    """Collects what one shard no longer needs. Several may be at it."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._lending = Lending(shard.stores, shard.env, shard.spec.config)

    @property
    def _garbage_ms(self) -> int:
        """How long garbage stays, as far as this handle knows."""
        return self._shard.known().agreed.garbage_ms(self._shard.env.clock.now_ms())

    @property
    def _upload_ms(self) -> int:
        """How long an upload may take, as far as this handle knows."""
        return self._shard.known().agreed.upload_ms(self._shard.env.clock.now_ms())

    def run(self, *, thorough: bool = False) -> CollectReport:
        """Delete the garbage that is old enough, and what it kept in the log; look for leaked uploads.

        A fork lets its origin go when it needs no part of it any more; of forks that were never made the
        origin finds out where it looks for uploads.

        Costs one log scan if there is nothing to do; otherwise two log writes for a thousand blobs, and a
        call for each. Uploads are listed if it is some time since this handle did; then it is a listing.

        Args:
            thorough: list the uploads in any case.

        Raises:
            StoreUnavailable, OutcomeUnknown: something could not be deleted. It is left for the next run;
                what comes before it is done.
        """
        try:
            report = self._garbage(self._shard.state(), _NAMES_MAX)
            state = self._shard.known()
            if not state.dropped and (thorough or self._listing_due(state)):
                report = report.plus(self._leaked())
                self._lending.settle(self._shard.known())
            self._forget()
            self._lending.let_go(self._shard)
        except CollectionDropped:
            # Whoever dropped it deletes everything.
            return CollectReport()
        self._shard.collected.tried_s = self._shard.env.clock.monotonic_s()
        return report

    def run_if_due(self) -> CollectReport:
        """`run`, if it is some time since this handle did."""
        return self.run() if self._due(self._shard.collected.tried_s, self._garbage_ms) else CollectReport()

    def beside_append(self) -> CollectReport:
        """Delete a few blobs, if there is enough garbage and it is some time since this handle looked."""
        self._age()
        collected, state = self._shard.collected, self._shard.known()
        enough = len(state.garbage) + len(state.doomed) >= _NAMES_BESIDE
        if state.dropped or not enough or not self._due(collected.tried_s, self._garbage_ms):
            return CollectReport()
        report = self._garbage(state, _NAMES_BESIDE, once=True)
        if report.blobs < _NAMES_BESIDE:
            # With as many there may be more: the next append goes on at once.
            collected.tried_s = self._shard.env.clock.monotonic_s()
        return report

    def _age(self) -> None:
        """Let what was taken, and tokens, be forgotten in time also where nobody lists uploads."""
        collected, state = self._shard.collected, self._shard.known()
        is_empty = state.dropped or not (state.taken or state.tokens)
        if is_empty or not self._due(collected.aged_s, self._upload_ms):
            return
        if state.taken:
            self._wanted(state, partial(collection.raise_floor, beyond=None))
        forgotten = self._wanted(state, partial(forgetting.forget_tokens, names_max=_TOKENS_BESIDE))
        if forgotten < _TOKENS_BESIDE:
            # With as many there may be more: the next append goes on at once.
            collected.aged_s = self._shard.env.clock.monotonic_s()

    def _forget(self) -> None:
        """Forget all tokens that are old enough; those of earlier versions are counted from now on."""
        collected, forget = self._shard.collected, partial(forgetting.forget_tokens, names_max=_NAMES_MAX)
        date = partial(forgetting.date_tokens, names_max=_NAMES_MAX)
        while not collected.dated and self._wanted(self._shard.known(), date):
            pass
        collected.dated = True
        while self._wanted(self._shard.known(), forget):
            pass

    def pause_s(self) -> float:
        """How long a shard at rest can be left alone: until something is old enough, or the next listing."""
        state, now_ms = self._shard.known(), self._shard.env.clock.now_ms()
        ages = [(found.removed_ms, self._garbage_ms) for found in state.garbage.values()]
        ages += [(noted_ms, self._upload_ms) for _, noted_ms in state.sweep.marks]
        waits_s = [_pause_s(self._upload_ms)]
        # What is old enough and still there is read, or could not be deleted.
        waits_s += [_pause_s(self._garbage_ms)] if state.doomed else []
        waits_s += [max((at_ms + age - now_ms) / 1000, _pause_s(age)) for at_ms, age in ages]
        return min(waits_s)

    def _due(self, last_s: float | None, age_ms: int) -> bool:
        now_s = self._shard.env.clock.monotonic_s()
        return last_s is None or now_s - last_s >= _pause_s(age_ms)

    def _garbage(self, state: ShardState, names_max: int, *, once: bool = False) -> CollectReport:
        """Doom, delete, truncate, bury; until nothing more is free."""
        report = CollectReport()
        while state.garbage or state.doomed:
            doomed = self._wanted(state, partial(collection.doom, names_max=names_max))
            if not doomed:
                break
            deleted, blobs, error = self._deleted(doomed)
            entries = self._truncate(deleted)
            if deleted:
                self._shard.run(partial(collection.bury, names=deleted))
            report = report.plus(CollectReport(blobs, entries=entries))
            if error is not None:
                raise error
            if once:
                break
            state = self._shard.known()
        return report

    def _wanted(self, state: ShardState, command: Command[R]) -> R:
        """The result of a command. A state that was just read says as well that there is nothing to do."""
        outcome = command(state, self._shard.env.clock.now_ms())
        return outcome.result if isinstance(outcome, NoOp) else self._shard.run(command)

    def _deleted(
        self, doomed: Iterable[str]
    ) -> tuple[tuple[str, ...], int, StoreUnavailable | OutcomeUnknown | None]:
        """Delete blobs: their names, how many were there, and what kept it from going on."""
        done: list[str] = []
        blobs, failed = 0, None
        for name in doomed:
            if is_borrowed(name, self._shard.spec.shard_id):
                done.append(name)  # Whose it is deletes it.
                continue
            try:
                blobs += self._shard.stores.blobs.delete(name)
                done.append(name)
            except (StoreUnavailable, OutcomeUnknown) as error:
                failed = error
                # One that cannot be deleted must not keep the others for ever; a store that is away would.
                if not isinstance(error, StoreUnavailable) or error.retryable:
                    break
        return tuple(done), blobs, failed

    def _truncate(self, deleted: Iterable[str]) -> int:
        """Remove the log entries that only deleted rollups needed; how many."""
        if not any(names.rolled_up_at(name) is not None for name in deleted):
            return 0
        state = self._shard.known()
        if state.rollup == FIRST or state.dropped:
            return 0
        left = (names.rolled_up_at(name) for name in {*state.garbage, *state.doomed}.difference(deleted))
        oldest = min([state.rollup.seqno, *(seqno for seqno in left if seqno is not None)])
        try:
            return self._shard.stores.log.truncate(state.shard_id, oldest)
        except UsageError:
            if self._shard.state().dropped:
                return 0
            raise

    def _listing_due(self, state: ShardState) -> bool:
        """Whether a listing may find something: the floor can rise or has risen, or it is long ago."""
        collected, now_ms = self._shard.collected, self._shard.env.clock.now_ms()
        over = any(noted_ms + self._upload_ms <= now_ms for _, noted_ms in state.sweep.marks)
        return over or state.sweep.floor > collected.floor or self._due(collected.listed_s, self._upload_ms)

    def _leaked(self) -> CollectReport:
        """Delete uploads and rollups that no state can name any more, and note when more of them will be.

        SUBTLE: what is listed, lies below the floor of a state, and is not in that state, is in none that
        comes after. The state must have that floor: before it rose, others may have appended what was listed.
        """
        shard, id_ = self._shard, self._shard.spec.shard_id
        listed_s = shard.env.clock.monotonic_s()
        parts = list(shard.stores.blobs.list(names.parts(id_)))
        rollups = list(shard.stores.blobs.list(names.rollups(id_)))
        state = shard.state()
        beyond = max((at for at, _ in _unnamed(parts, state) if at <= state.seqno), default=None)
        self._wanted(state, partial(collection.raise_floor, beyond=beyond))
        state = shard.known()
        before_ms = shard.env.clock.now_ms() - self._upload_ms
        if any(info.modified_ms <= before_ms and _is_early(info.name, state) for info in rollups):
            # Its writer may be asleep and add it still. Once there is a newer one, nobody can.
            shard.write_rollup()
            state = shard.known()
        lost = [info for at, info in _unnamed(parts, state) if at < state.sweep.floor]
        lost += [info for info in rollups if _came_too_late(info.name, state)]
        _, blobs, error = self._deleted(info.name for info in lost)
        if error is not None:
            raise error
        shard.collected.listed_s, shard.collected.floor = listed_s, state.sweep.floor
        return CollectReport(leaked=blobs, leaked_bytes=sum(info.size_bytes for info in lost))


def _pause_s(age_ms: int) -> float:
    return max(_PAUSE_S_MIN, age_ms / 1000 / _LOOKS)


def _unnamed(parts: Iterable[BlobInfo], state: ShardState) -> Iterator[tuple[int, BlobInfo]]:
    """The stored parts that a state does not name, with the seqno that their uploaders knew."""
    named = {part.name for part in state.parts()}
    named.update(part.name for chunk in state.chunks.values() for part in chunk)
    for info in parts:
        at = names.uploaded_at(info.name)
        gone = info.name in state.garbage or info.name in state.doomed
        if at is not None and not gone and info.name not in named:
            yield at, info


def _is_early(name: str, state: ShardState) -> bool:
    """Whether it is a rollup that is not in the state, but could be: of a writer that did not come so far."""
    seqno = names.rolled_up_at(name)
    return seqno is not None and state.rollup.seqno < seqno <= state.seqno


def _came_too_late(name: str, state: ShardState) -> bool:
    """Whether it is a rollup that is not in the state, and never will be: it takes in only newer ones."""
    seqno, last = names.rolled_up_at(name), state.rollup
    if seqno is None or name in state.garbage or name in state.doomed:
        return False
    return seqno <= last.seqno and name != names.rollup(state.shard_id, last.seqno, last.id)

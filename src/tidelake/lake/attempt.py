"""One attempt to bring a transaction in: under an id of its own, in one group, staged first and then decided.

What is staged under an id stays there until that id is decided, refused or given up, so an attempt may be
gone on with after any refusal: nothing is stored twice. An attempt of which it is not known what is staged
is never decided; the next one begins under another id.

INVARIANT: an id is decided only when all of its rows are staged, each once.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tidelake.errors import (
    CollectionNotFound,
    LeftGroup,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
    TransactionExpired,
    UsageError,
)
from tidelake.model.frontier import Frontier
from tidelake.model.time import parts
from tidelake.shard.shard import Shard
from tidelake.shard.writing.append import REFUSALS, commit_floor
from tidelake.shard.writing.transaction import (
    Changes,
    Given,
    Offered,
    Stay,
    free_offered,
    prepare,
    prepare_changes,
    prepare_offered,
)
from tidelake.state import transactions
from tidelake.state.append import Appended, Claim
from tidelake.state.staged import Awaited
from tidelake.state.transactions import Share, Wanted


class Attempt:
    """Stages and decides. Not for several threads at once.

    Args:
        id_: of the transaction, fresh.
        group: that decides.
        shards: the collections by name, all of them in the group.
        joined: since when, by their ids.

    Attributes:
        id: of the transaction.
        group: that decides.
        doubtful: whether it is unknown what is staged.
        asked: whether it may be decided already.
        at: the time of all rows, if one was chosen for it.
    """

    def __init__(
        self, id_: str, group: Shard, shards: Mapping[str, Shard], joined: Mapping[str, int]
    ) -> None:
        self.id, self.group = id_, group
        self._shards, self._joined = dict(shards), dict(joined)
        # As it was right after all of them had joined, and so were they.
        self._awaited = Awaited(id_, group.known().seqno, group.env.clock.now_ms())
        self._floors = {shard.spec.shard_id: shard.known().upper for shard in shards.values()}
        self._staged: dict[int, tuple[str, tuple[int, int] | None]] = {}
        # Of what depends on contents: after which state of the group they may not change.
        self._latest: dict[str, int] = {}
        self.at: int | None = None
        # What may be offered again, and stays staged until then.
        self._kept: frozenset[str] = frozenset()
        self.doubtful = self.asked = False

    @classmethod
    def begun(
        cls,
        id_: str,
        group: Shard,
        shards: Mapping[str, Shard],
        joined: Mapping[str, int],
        rows: Sequence[tuple[str, Given]],
    ) -> "Attempt":
        """One that takes the place of earlier attempts with the same offers. Arguments as of the class."""
        for name, given in rows:
            if isinstance(given, Offered) and given.runs:
                free_offered(shards[name], group, given)
        return cls(id_, group, shards, joined)

    @property
    def is_old(self) -> bool:
        """Whether it has lasted for so long that anybody may give it up."""
        now_ms = self.group.env.clock.now_ms()
        return now_ms - self._awaited.noted_ms >= self.group.known().agreed.upload_ms(now_ms)

    @property
    def times(self) -> tuple[int, int] | None:
        """The first and the last time of what is staged."""
        found = [times for _, times in self._staged.values() if times is not None]
        return (min(first for first, _ in found), max(last for _, last in found)) if found else None

    def floor(self) -> int:
        """The earliest time that rows without times may get now in all its collections. Two log scans each.

        Raises:
            UpperMismatch: one is closed for good.
        """
        floors = [commit_floor(shard, shard.readable()) for shard in self._shards.values()]
        return max(parts(floor)[0] for floor in floors)

    def is_staged(self, rows: Sequence[object]) -> bool:
        """Whether all of that is staged."""
        return len(self._staged) == len(rows)

    def uppers(self) -> dict[str, Frontier]:
        """Up to where this has seen the times of each collection closed, by name. No store call."""
        group = self.group.known()
        return {
            name: transactions.view(group, shard.spec.shard_id).upper.join(shard.known().upper)
            for name, shard in self._shards.items()
        }

    def prepare(self, rows: Sequence[tuple[str, Given]], time: int | None) -> None:
        """Stage those rows that are not staged yet, in their order. A log write each.

        Errors as `tidelake.shard.writing.transaction.prepare`. What came before one stays staged.
        """
        for number, (name, given) in enumerate(rows):
            if number in self._staged:
                continue
            shard = self._shards[name]
            stay = Stay(self.group.spec.shard_id, self._joined[shard.spec.shard_id])
            try:
                self._staged[number] = (shard.spec.shard_id, self._one(shard, stay, given, time))
            except (*REFUSALS, UsageError, TransactionExpired):
                raise
            except BaseException:
                self.doubtful = True
                raise

    def _one(self, shard: Shard, stay: Stay, given: Given, time: int | None) -> tuple[int, int] | None:
        if isinstance(given, Changes):
            times, latest = prepare_changes(shard, stay, self._awaited, given, time)
            self._latest[shard.spec.shard_id] = latest
            return times
        if not isinstance(given, Offered):
            return prepare(shard, stay, self._awaited, given, time)
        self._kept |= {part.name for part in given.parts}
        return prepare_offered(shard, stay, self._awaited, given)

    def decide(
        self,
        seals: Mapping[str, Frontier],
        time: int | None,
        *,
        own_times: bool,
        upper: Frontier | None,
        lower: Frontier | None,
        claim: Claim | None,
    ) -> Appended:
        """Let it in: one log write. Arguments and errors as `Wanted` and `decide` say.

        Raises:
            OutcomeUnknown: it may be in. Decided again, it comes in once.
        """
        if self.asked and self._applied():
            return Appended(self.group.known().upper, self.group.known().upper, already=True)
        shares = {
            id_: Share(self._joined[id_], floor, latest=self._latest.get(id_))
            for id_, floor in self._floors.items()
        }
        for name, seal in seals.items():
            id_ = self._shards[name].spec.shard_id
            joint = seal.join(shares[id_].seal or seal)
            shares[id_] = replace(shares[id_], seal=joint)
        for id_, times in self._staged.values():
            share = shares[id_]
            if times is not None:
                first, last = share.times or times
                within = (min(first, times[0]), max(last, times[1]))
                shares[id_] = replace(share, times=within)
        wanted = Wanted(
            self.id, self._awaited.begun, shares, None if own_times else time, own_times, upper, lower
        )
        before, self.asked = self.asked, True
        try:
            return self.group.run(partial(transactions.decide, wanted=wanted, claim=claim))
        except CollectionNotFound as error:
            # The group ended when the last one had left it.
            self.asked = before
            raise LeftGroup(min(shares)) from error
        except (*REFUSALS, UsageError, TransactionExpired, StoreUnavailable):
            # Certainly not this time.
            self.asked = before
            raise

    def forgotten(self) -> OutcomeUnknown:
        """The error where it was decided or not, and whoever could tell has forgotten it."""
        return OutcomeUnknown(
            f"it is not known whether transaction {self.id} is in: the group that could tell has forgotten "
            "it; look for its rows before you write them again"
        )

    def abort(self) -> bool:
        """Decide that it never comes in, and remove what is staged but offers; False if it is in.

        Raises:
            OutcomeUnknown: it may be in, and nobody knows any more.
        """
        if self.asked and not self._refused():
            return False
        self._withdraw()
        return True

    def _refused(self) -> bool:
        """Whether it never comes in, from now on."""
        try:
            applied = self._applied()
            if applied is None:
                raise self.forgotten()
            return not applied and self.group.run(partial(transactions.refuse, transaction=self.id))
        except CollectionNotFound as error:
            # The group is gone, and nobody decides in it any more.
            raise self.forgotten() from error

    def give_up(self) -> None:
        """Remove what is staged, of one that was refused for good. What fails is left until it is old."""
        with suppress(TidelakeError):
            self._withdraw()

    def _withdraw(self) -> None:
        for shard in self._shards.values():
            shard.run(partial(transactions.withdraw, transactions=frozenset([self.id]), kept=self._kept))

    def _applied(self) -> bool | None:
        """Whether it is decided, and its rows are in their collections: then the group may have forgotten.

        None: nobody knows, since all its collections have left, or what was not decided was given up.
        """
        ids = {id_ for id_, times in self._staged.values() if times is not None}
        states = [shard.alive() for shard in self._shards.values() if shard.spec.shard_id in ids]
        stayed = [state for state in states if state.joined == self._joined[state.shard_id]]
        # SUBTLE: the group last. What was given up where it was staged was given up in the group before.
        group = self.group.state()
        waits = any(
            self.id == awaited.transaction for state in stayed for _, awaited in state.staged.awaiting()
        )
        if waits or not ids or self.id in group.decisions:
            return False
        return None if not stayed or self._awaited.begun < group.expired else True

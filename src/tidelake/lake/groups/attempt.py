"""One attempt to commit a transaction: its rows are staged under a fresh id, then the group decides.

Rows stay staged under an id until that id is decided, refused or given up. So the same attempt can continue
after a refusal, and stores nothing twice. If it is unknown which rows an attempt has staged, it is never
decided; the next attempt begins under another id.

INVARIANT: an id is decided only when all of its rows are staged, each once.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tidelake.errors import (
    CollectionNotFound,
    OutcomeUnknown,
    TidelakeError,
    UpperMismatch,
)
from tidelake.model.frontier import Frontier
from tidelake.model.time import parts
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing.append import commit_floor
from tidelake.shard.writing.derived import ContentChange
from tidelake.shard.writing.memberwrite import MemberWrite, Offered
from tidelake.shard.writing.parking import (
    Changed,
    Stay,
    prepare,
    prepare_changes,
    prepare_offered,
)
from tidelake.shard.writing.proposal import Proposal, expire_earlier
from tidelake.shard.writing.uploads import REFUSED
from tidelake.state.group import deciding
from tidelake.state.group.deciding import Decided, IntentTimes
from tidelake.state.write.idempotency import IdempotencyKey


class Attempt:
    """Stages the rows of a transaction and lets the group decide it. Not thread-safe.

    Args:
        id_: a fresh id for the transaction.
        group: the group that decides.
        shards: the collections by name; all of them are in the group.
        joined: when each of them joined the group, by shard id.

    Attributes:
        id: the id of the transaction.
        group: the group that decides.
        doubtful: whether it is unknown which rows are staged.
        at: the time of all rows, if this attempt chose one.
        changed: what its changes of contents do, by the number of the entry.
    """

    def __init__(
        self, id_: str, group: Shard, shards: Mapping[str, Shard], joined: Mapping[str, int]
    ) -> None:
        self.id, self.group = id_, group
        self._shards, self._joined = dict(shards), dict(joined)
        # Two names may lead to one collection.
        self._proposal = Proposal(id_, shards.values())
        self._proposal.begin(group, joined)
        self._staged: dict[int, tuple[int, int] | None] = {}
        self.changed: dict[int, Changed] = {}
        self.at: int | None = None
        # Parts that the caller may offer again: they stay staged until then.
        self._kept: frozenset[str] = frozenset()
        self.doubtful = False

    @classmethod
    def begun(
        cls,
        id_: str,
        group: Shard,
        shards: Mapping[str, Shard],
        joined: Mapping[str, int],
        entries: Sequence[MemberWrite],
    ) -> "Attempt":
        """An attempt that replaces earlier ones with the same offers. Arguments as for the class."""
        for entry in entries:
            if isinstance(entry.given, Offered) and entry.given.runs:
                expire_earlier(group, shards[entry.name].look(), entry.given.runs)
        return cls(id_, group, shards, joined)

    @property
    def asked(self) -> bool:
        """Whether it may be decided already."""
        return self._proposal.asked

    @property
    def is_old(self) -> bool:
        """Whether it is older than `upload_age_s`, so that any process may give it up."""
        now_ms = self.group.env.clock.now_ms()
        return now_ms - self._proposal.awaited.noted_ms >= self.group.known().agreed.upload_ms(now_ms)

    @property
    def times(self) -> tuple[int, int] | None:
        """The first and the last time of the staged rows."""
        found = [times for times in self._staged.values() if times is not None]
        return (min(first for first, _ in found), max(last for _, last in found)) if found else None

    def last(self, entries: Sequence[MemberWrite]) -> int | None:
        """The last time of the staged rows that no upper was given for, or of events that change nothing."""
        ends = [
            one.end
            for number, one in self.changed.items()
            if one.end is not None and entries[number].upper is None
        ]
        for number, times in self._staged.items():
            if times is not None and entries[number].upper is None:
                ends.append(times[1])
        return max(ends, default=None)

    def floor(self) -> int:
        """The earliest time that is open now in all its collections. Two log scans for each.

        Raises:
            UpperMismatch: a collection is closed for good.
        """
        floors = [commit_floor(shard, shard.version().state) for shard in self._shards.values()]
        return max(parts(floor)[0] for floor in floors)

    def is_staged(self, entries: Sequence[MemberWrite]) -> bool:
        """Whether all of `entries` are staged."""
        return len(self._staged) == len(entries)

    def uppers(self) -> dict[str, Frontier]:
        """The upper of each collection as far as this has seen it, by name. No store call."""
        group = self.group.known()
        return {
            name: deciding.view(group, shard.spec.shard_id).upper.join(shard.known().upper)
            for name, shard in self._shards.items()
        }

    def prepare(self, entries: Sequence[MemberWrite], time: int | None) -> None:
        """Stage the rows that are not staged yet, in their order. One log write for each entry.

        Errors as `tidelake.shard.writing.parking.prepare`. Rows staged before an error stay staged.
        """
        for number, entry in enumerate(entries):
            if number in self._staged:
                continue
            shard = self._shards[entry.name]
            id_ = shard.spec.shard_id
            stay = Stay(self.group.spec.shard_id, self._joined[id_])
            try:
                times, latest = self._one(number, shard, stay, entry, time)
            except REFUSED:
                raise
            except BaseException:
                self.doubtful = True
                raise
            self._staged[number] = times
            share = self._proposal.shares[id_].reaching(times)
            self._proposal.shares[id_] = share if latest is None else replace(share, latest=latest)

    def _one(
        self, number: int, shard: Shard, stay: Stay, entry: MemberWrite, time: int | None
    ) -> tuple[tuple[int, int] | None, int | None]:
        """Stage rows; their times, and `Share.latest` if they depend on contents."""
        given = entry.given
        if isinstance(given, ContentChange):
            changed = prepare_changes(shard, stay, self._proposal, given, time=time, upper=entry.upper)
            self.changed[number] = changed
            return changed.times, changed.latest
        if not isinstance(given, Offered):
            return prepare(shard, stay, self._proposal, given, time=time, upper=entry.upper), None
        self._kept |= {part.name for part in given.parts}
        return prepare_offered(shard, stay, self._proposal, given, entry.upper), given.read_at

    def decide(
        self,
        lowers: Mapping[str, Frontier],
        seals: Mapping[str, Frontier],
        terms: IntentTimes,
        number: IdempotencyKey | None,
    ) -> Decided:
        """Let the group commit it: one log write. Arguments and errors as for `Proposal.decide`.

        Raises:
            OutcomeUnknown: it may be committed. Calling this again commits it at most once; but what only
                closes times leaves no trace by which it could tell.
        """
        if self.asked and self._applied():
            return Decided(self.group.known().upper, already=True)
        shares = self._proposal.shares
        for name, shard in self._shards.items():
            share = shares[shard.spec.shard_id]
            lower = lowers.get(name, share.lower)
            seal = seals[name].join(share.seal or seals[name]) if name in seals else share.seal
            shares[shard.spec.shard_id] = replace(share, lower=lower, seal=seal, name=name)
        asked = self.asked
        try:
            return self._proposal.decide(terms, number)
        except UpperMismatch as error:
            if asked and self.times is None and lowers:
                raise self.forgotten() from error
            raise

    def forgotten(self) -> OutcomeUnknown:
        """The error for a transaction whose outcome the group has forgotten."""
        return OutcomeUnknown(
            f"it is not known whether transaction {self.id} is in: the group that could tell has forgotten "
            "it; look for its rows before you write them again"
        )

    def abort(self) -> bool:
        """Decide that it is never committed, and remove its staged rows, except offered parts.

        Returns:
            False if it is committed already.

        Raises:
            OutcomeUnknown: it may be committed, and no record of that is left.
            StoreUnavailable: it is not committed, but rows may be staged still.
        """
        if self.asked and not self._refused():
            return False
        self._proposal.withdraw(self._kept)
        return True

    def _refused(self) -> bool:
        """Make sure that it is never committed; False if it is committed already."""
        try:
            applied = self._applied()
            if applied is None:
                raise self.forgotten()
            return not applied and self.group.run(partial(deciding.refuse, transaction=self.id))
        except CollectionNotFound as error:
            # The group is gone, and with it the record of its decisions.
            raise self.forgotten() from error

    def give_up(self) -> None:
        """Remove the staged rows of an attempt that was refused for good.

        What cannot be removed now is collected when it is older than `upload_age_s`.
        """
        with suppress(TidelakeError):
            self._proposal.withdraw(self._kept)

    def _applied(self) -> bool | None:
        """Whether it is committed and applied to its collections: then the group may have forgotten it.

        None: unknown, because all its collections have left the group, or undecided transactions of its age
        were given up.
        """
        written = [id_ for id_, share in self._proposal.shares.items() if share.times is not None]
        states = [self._proposal.shards[id_].alive() for id_ in written]
        stayed = [state for state in states if state.joined == self._joined[state.shard_id]]
        # SUBTLE: read the group last. A transaction is given up in the group before its staged rows go.
        group = self.group.state()
        waits = any(
            self.id == awaited.transaction for state in stayed for _, awaited in state.staged.awaiting()
        )
        if waits or not written or self.id in group.decisions:
            return False
        return None if not stayed or self._proposal.awaited.begun < group.expired else True

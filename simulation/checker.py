"""The checker: sees every effect on the true stores, and has a judge for each collection.

Owns the checks that must pass at every moment: states keep the rules, the blobs that they name exist, no
blob is deleted that a hold reads, and a log is deleted only after a tombstone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

from simulation.books import Books, JudgeOfAccounts, is_account
from simulation.judge import Judge
from simulation.record import Violation, named
from simulation.witness import Actor
from tidelake.errors import CollectionDropped, CollectionInUse, CollectionNotFound, InternalError
from tidelake.lake.catalog.catalog import SHARD_ID as CATALOG
from tidelake.state.core import codec
from tidelake.state.core.edits import apply
from tidelake.state.core.invariants import check_state
from tidelake.state.core.state import ShardState
from tidelake.store.protocols import Entry


class Checker:
    """The observer of the stores; see `Observer`.

    Attributes:
        judges: judge by shard id, for all collections that ever existed.
        books: the books of the transfers between accounts.
        counts: how often each thing was done or judged.
        names: names of the small collections that a client has begun to create.
        made: shard id by name, for the collections of `names` whose creation was acknowledged.
        drops: names that a client has begun to drop.
        loose: names that a client has begun to rename or swap.
        short_us: a read without a hold that takes less time than this finds all parts.
        named_by: see `Bench`.
    """

    def __init__(
        self,
        clock: Callable[[], tuple[int, int]],
        short_us: int,
        report: Callable[[BaseException], None],
        present: Callable[[str], bool],
        named_by: Callable[[str], object],
    ) -> None:
        self.judges: dict[str, Judge] = {}
        self.books = Books(self.wrong)
        self.counts: Counter[str] = Counter()
        self.names: list[str] = []
        self.made: dict[str, str] = {}
        self.drops: set[str] = set()
        self.loose: set[str] = set()
        self.clock, self.short_us = clock, short_us
        self._report, self._present, self.named_by = report, present, named_by
        self._states: dict[str, ShardState] = {}
        self._named: dict[str, frozenset[str]] = {}

    def wrong(self, message: str) -> NoReturn:
        """End the run with a violation, even if a caller catches the error."""
        error = Violation(message)
        self._report(error)
        raise error

    def entered(self, key: str, entry: Entry, actor: Actor) -> None:
        """Judge a new entry of a log."""
        before, delta = self._states.get(key), None
        if before is None:
            state = codec.decode_state(entry.data, key)
        else:
            delta = codec.decode_delta(entry.data, key)
            state = apply(before, delta)
        self._states[key] = state
        try:
            check_state(state)
        except InternalError as error:
            self.wrong(f"{key}@{entry.seqno}: {error}")
        known, self._named[key] = self._named.get(key, frozenset()), frozenset(self._counted_on(state))
        self._check_present(key, self._named[key] - known)
        if key == CATALOG:
            return
        if before is not None and delta is not None:
            self.judges[key].advanced(before, state, delta, actor)
        elif key not in self.judges:
            source = None if state.origin is None else self.judges[state.origin.shard_id]
            kind = JudgeOfAccounts if is_account(state) else Judge
            self.judges[key] = kind(self, state, source)
        elif self.judges[key].appends and any(named(state)):
            self.wrong(f"{key} was deleted, and is there again")

    def _counted_on(self, state: ShardState) -> Iterator[str]:
        """The names of the blobs that must exist for a state.

        A fork that its origin does not know was made too late: it needs none, as no client was told of it.
        """
        origin = None if state.origin is None else self._states.get(state.origin.shard_id)
        is_late = state.origin is not None and (origin is None or state.shard_id not in origin.forks)
        return iter(()) if is_late and not state.seqno else named(state)

    def ending(self, key: str) -> None:
        """Judge a deletion of a log, which is about to happen."""
        state = self._states.pop(key, None)
        self._named.pop(key, None)
        if state is not None and state.seqno and not state.dropped:
            self.wrong(f"the log of {key} is deleted at {state.seqno}, and it was not dropped")

    def survived(self) -> None:
        """Check after a crash of the machine that every blob that a newest state names is still there."""
        for key, wanted in self._named.items():
            self._check_present(key, wanted)

    def deleting(self, name: str) -> None:
        """Judge a deletion of a blob, which is about to happen."""
        # Look at all states: forks name parts of other collections.
        for key, state in self._states.items():
            if name in self._named[key]:
                self.wrong(f"{name} is deleted, but {key}@{state.seqno} names it")
            pins = [(id_, pin) for id_, hold in state.holds.items() for pin in hold.pins]
            for id_, pin in pins if key in self.judges else ():
                if name in self.judges[key].parts_at[pin]:
                    self.wrong(f"{name} is deleted, but hold {id_} reads {key}@{pin}, which names it")

    def _check_present(self, key: str, wanted: Collection[str]) -> None:
        for name in sorted(wanted):
            if not self._present(name):
                self.wrong(f"{key}@{self._states[key].seqno} names {name}, which is not there")

    # Answers to clients that create and drop collections.

    def _judge(self, name: str) -> Judge | None:
        """The judge of a small collection, if its shard is known."""
        return self.judges.get(self.made.get(name, ""))

    def dropped(self, name: str) -> bool:
        """Whether a small collection is known to be dropped."""
        judge = self._judge(name)
        return judge is not None and judge.dropped is not None

    def gone(self) -> frozenset[str]:
        """The shard ids of the collections that are known to be dropped."""
        return frozenset(key for key, judge in self.judges.items() if judge.dropped is not None)

    def not_found(self, name: str, error: CollectionNotFound, *, made: bool) -> None:
        """Judge an answer that a collection does not exist or was dropped; `made`: it was created before."""
        if not made or name in self.loose:
            return
        if not isinstance(error, CollectionDropped) and name not in self.drops:
            self.wrong(f"{name} was made, and is not found: {error!r}")
        if not self.dropped(name):
            self.wrong(f"{name} is there, and was not found: {error!r}")

    def holds_since(self, name: str) -> int:
        """Number of steps of the log of a small collection when a drop of it begins, for `in_use`."""
        judge = self._judge(name)
        return 0 if judge is None else len(judge.held)

    def in_use(self, name: str, entries: int, force: bool, error: CollectionInUse) -> None:
        """Judge a drop that was refused because of holds."""
        self.counts["drops refused"] += 1
        judge = self._judge(name)
        if name in self.loose:
            return
        if force or (judge is not None and not any(judge.held[max(0, entries - 1) :])):
            self.wrong(f"a drop of {name} was refused for nothing: {error!r}")

    def was_dropped(self, name: str) -> None:
        """Judge a drop that was answered with success."""
        self.counts["drops"] += 1
        if name in self.made and name not in self.loose and not self.dropped(name):
            self.wrong(f"{name} was dropped, and is there")

    def listed(self, names: Collection[str], made: Collection[str], gone: Collection[str]) -> None:
        """Judge a list of names; before the call `made` existed, and of these `gone` were dropped."""
        for name in sorted(set(made) - self.loose):
            if name not in names and name not in self.drops:
                self.wrong(f"{name} was made, and is not in the list")
            if name in names and name in gone:
                self.wrong(f"{name} was dropped, and is in the list")

    def states(self) -> dict[str, ShardState]:
        """The newest state of every log, that of the catalog included."""
        return dict(self._states)

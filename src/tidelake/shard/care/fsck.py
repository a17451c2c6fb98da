"""Checks one shard: its log, its rollups, its parts and leftover objects; and repairs it.

Owns the order of the checks. Writes nothing unless it is told to repair. May run beside writers, readers and
collectors: before an object is reported as missing, a newer state is asked whether it still needs it.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from tidelake.config import Config
from tidelake.env import Env
from tidelake.errors import (
    BlobNotFound,
    CorruptionError,
    ErasureWaits,
    InvalidUpdates,
    OutcomeUnknown,
    StoreUnavailable,
    SymbolicLink,
    UnknownFormat,
)
from tidelake.model import names
from tidelake.model import time as times
from tidelake.model.batch import Run
from tidelake.model.query import AsOf
from tidelake.model.time import TIME_MAX
from tidelake.shard.care import basechecks
from tidelake.shard.care.finding import Finding
from tidelake.shard.care.leftovers import Leftover, leftovers, pinned, tell_aside, tell_erasures, tell_garbage
from tidelake.shard.care.mend import Mending, Plan
from tidelake.shard.care.partchecks import PartsCheck, Watch, check_held, named_parts
from tidelake.shard.care.replay import Replayed, replay
from tidelake.shard.engine.history import History, LoadedVersion
from tidelake.shard.engine.machine import Machine
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.reading.negatives import may_be_negative, negatives
from tidelake.shard.runs.read import rows, sources_of
from tidelake.shard.upkeep.collector import Collector
from tidelake.shard.upkeep.eraser import Eraser
from tidelake.state.core import commands, forks
from tidelake.state.core.state import ShardState
from tidelake.state.life.erasing import pending
from tidelake.state.life.mending import all_parts
from tidelake.state.spine.bases import Base
from tidelake.state.upkeep import basing
from tidelake.store.protocols import BlobInfo
from tidelake.store.url import Stores

# Kinds of findings that are settled by a repair of the state.
_MENDED = frozenset(
    {"rule-broken", "log-damaged", "log-misfit", "log-gap", "log-unreadable", "rollup-damaged"}
    | {"rollup-missing", "rollup-differs", "set-aside"}
)


@dataclass(frozen=True)
class Checked:
    """What a check of a shard found.

    Attributes:
        findings: the findings, in the order of the checks.
        state: the newest state; None if it cannot be read.
    """

    findings: tuple[Finding, ...]
    state: ShardState | None
    parts: int = 0
    rows: int = 0
    size_bytes: int = 0


class ShardCheck:
    """Checks one shard."""

    def __init__(
        self,
        shard_id: str,
        name: str,
        stores: Stores,
        *,
        url: str,
        env: Env,
        config: Config,
        deep: bool = True,
    ) -> None:
        """Prepare a check; reads nothing yet."""
        self._id, self._name, self._stores, self._env, self._config = shard_id, name, stores, env, config
        self._url, self._deep = url, deep
        self._found: list[Finding] = []

    def run(self, *, repair: bool = False, watch: Watch | None = None) -> Checked:
        """Check everything.

        Costs a read of the log and two listings; if deep, also two reads of each part, and one of the updates
        between two bases, and one more of each base for itself and for the next one.
        """
        try:
            return self._looked(repair=repair, watch=watch)
        except SymbolicLink as error:
            # Nothing is lost: the data is behind the link.
            self._tell("symbolic-link", error.name, error.reason)
            return Checked(tuple(self._found), None)
        except (StoreUnavailable, OutcomeUnknown) as error:
            # A finding rather than an error, so that the other shards are checked nevertheless.
            self._tell("unavailable", self._id, f"the store refuses it, so the rest is unchecked: {error}")
            return Checked(tuple(self._found), None)

    def _looked(self, *, repair: bool, watch: Watch | None) -> Checked:
        listed = list(self._stores.blobs.list(f"{self._id}/"))
        try:
            replayed = replay(self._id, self._stores, self._tell)
        except UnknownFormat as error:
            # This version must not repair what another version wrote.
            self._tell("unknown-format", error.name, str(error))
            return Checked(tuple(self._found), None)
        tell_aside(listed, self._tell)
        if replayed.state is None or not replayed.keeps_rules:
            replayed = self._brought_back(replayed, frozenset(), repair=repair)
        state = replayed.state
        if state is None:
            return Checked(tuple(self._found), None)
        parts = self._parts(state, listed, watch)
        spoilt = self._bases(state)
        lost = frozenset(one.object for one in self._found if one.kind == "part-missing")
        if lost - {part.name for base in spoilt for part in base.parts()} and replayed.keeps_rules:
            # A repair of that forgets all bases as well.
            state = self._brought_back(replayed, lost, repair=repair).state or state
            replayed = replace(replayed, state=state)
        elif spoilt and repair:
            state = self._forget(state, spoilt)
            replayed = replace(replayed, state=state)
        elif spoilt:
            told = f"--repair would forget {len(spoilt)} bases; nothing is lost, maintenance makes new ones"
            self._tell("mendable", self._id, told)
        if self._deep and not self._found:
            self._negative(state)
        now_ms = self._env.clock.now_ms()
        self._readable(pinned(state, now_ms) - {info.name for info in listed}, state)
        if not state.dropped:
            check_held(
                state,
                listed,
                self._stores.blobs,
                lambda: self._history().refresh(LoadedVersion(state, 0)).state,
                self._tell,
                deep=self._deep,
            )
        tell_garbage(state, listed, now_ms, self._tell)
        tell_erasures(state, self._tell)
        left = [] if state.dropped else leftovers(state, listed, self._stores.blobs, now_ms)
        for leftover in left:
            self._tell(leftover.kind, leftover.name, leftover.message)
        if repair:
            self._mend(replayed, left)
        return Checked(tuple(self._found), state, parts.parts, parts.rows, parts.size_bytes)

    def _brought_back(self, replayed: Replayed, lost: frozenset[str], *, repair: bool) -> Replayed:
        """Report how a shard that breaks rules or lacks parts can be repaired; with `repair`, repair it.

        Returns the state to check further: the repaired one, or the one that a repair would make.
        """
        mending = Mending(self._id, self._stores, self._env)
        plan = mending.plan(replayed, lost)
        if plan is None:
            return replayed
        broken = replayed.state is None or not replayed.keeps_rules
        if plan.sound is not None and broken:
            self._tell(
                "mendable",
                f"{self._id}@{plan.sound}",
                f"the last state that keeps the rules is {plan.sound}: tidelake fork --to-seqno {plan.sound} "
                "makes another collection of it",
            )
        if plan.after is None:
            return replayed
        refusal = self._refusal(plan, lost)
        if refusal:
            self._tell("mendable", self._id, f"--repair leaves it as it is: {refusal}")
            return replayed
        would = f"--repair would restore it with the upper {plan.after.domain.text(plan.after.upper)}"
        aside = [f"{one.what} ({one.rule})" for one in plan.aside]
        if not repair:
            told = f"{would}, and set aside {len(aside)} things and {plan.rows} updates: {'; '.join(aside)}"
            self._tell("mendable", self._id, told if aside else f"{would}, and keep everything")
            # A broken state cannot be checked further, so go on with the one that a repair would make.
            return Replayed(plan.after, True) if broken and not plan.own else replayed
        if not mending.carry_out(plan):
            self._tell("mendable", self._id, "another process wrote to it meanwhile: repair it again")
            return replayed
        for one in plan.aside:
            if one.rule == "erasure-lost":
                self._tell(one.rule, self._id, one.what)
                continue
            kept = "but its part stays in use" if one.doubled else f"with {one.rows} updates"
            object_ = self._id if one.part is None else one.part.name
            self._tell("set-aside", object_, f"{one.what} breaks {one.rule}: set aside, {kept}")
        self._found = [
            replace(one, repaired=True) if one.kind in _MENDED or one.object in lost else one
            for one in self._found
        ]
        self._erase_again(plan.after)
        state = self._history().refresh(LoadedVersion(plan.after, 0)).state
        return Replayed(state, True)

    def _erase_again(self, state: ShardState) -> None:
        """Carry out the erasures that a repair has taken back. If it cannot be done, they are reported."""
        if not pending(state):
            return
        shard = Shard.open(self._stores, self._env, self._url, self._id, self._config)
        with suppress(ErasureWaits, CorruptionError, BlobNotFound, StoreUnavailable, OutcomeUnknown):
            Eraser(shard).run_with_forks()

    def _refusal(self, plan: Plan, lost: frozenset[str]) -> str:
        """Why a plan must not be carried out; empty if it may be."""
        loses = plan.rows or plan.left_out
        if loses and (plan.before.memberships or plan.before.decisions or self._id == "catalog"):
            return "other collections depend on what would be set aside: restore a copy"
        stored = {part.name for part in all_parts(plan.before) if part.inline is None}
        if len(stored) > 1 and stored <= lost:
            return "all of its objects are missing, so they may be somewhere else: is their folder mounted?"
        return ""

    def _tell(self, kind: str, object_: str, message: str) -> None:
        self._found.append(Finding(kind, self._name, object_, message))

    def _parts(self, state: ShardState, listed: list[BlobInfo], watch: Watch | None) -> PartsCheck:
        found: list[Finding] = []

        def tell(kind: str, object_: str, message: str) -> None:
            found.append(Finding(kind, self._name, object_, message))

        sizes = {info.name: info.size_bytes for info in [*listed, *self._origin_parts(state)]}
        check = PartsCheck(state, self._stores.blobs, sizes, tell, deep=self._deep, watch=watch)
        for batch in (*state.batches(), *(base.batch(state.minimum) for base in state.bases)):
            check.batch(batch)
        # Check these too: their group may have committed them, although this shard does not say so yet.
        for staged, _ in state.staged.awaiting():
            for run in staged.batch.runs:
                check.run(run)
        for parts in state.chunks.values():
            if parts:
                check.run(Run(parts))
        self._found += self._still_needed(found, state)
        return check

    def _bases(self, state: ShardState) -> list[Base]:
        """Report the bases that differ from what they should be; they, and those with damaged parts."""
        spoilt = basechecks.unsound(state, self._found)
        if self._deep:
            spoilt += basechecks.differing(
                state, self._spec(state), self._stores.blobs, self._tell, without=spoilt
            )
        return spoilt

    def _forget(self, state: ShardState, spoilt: list[Base]) -> ShardState:
        """Forget bases; the state afterwards."""
        shard = Shard.open(self._stores, self._env, self._url, self._id, self._config)
        shard.run(partial(basing.forget_bases, his=tuple(base.hi for base in spoilt)))
        objects = {basechecks.object_of(state, base) for base in spoilt}
        objects |= {part.name for base in spoilt for part in base.parts()}
        self._found = [replace(one, repaired=True) if one.object in objects else one for one in self._found]
        return shard.known()

    def _spec(self, state: ShardState) -> ShardSpec:
        schemas = {id_: version.schema for id_, version in state.schemas.items()}
        return ShardSpec(self._url, self._id, state.domain, state.schema_id, schemas, self._config)

    def _negative(self, state: ShardState) -> None:
        """Report rows whose multiplicity at the last closed time is negative, or too large for reads.

        Only if all parts are whole.

        Times that are tuples have no last one: nothing is reported then.
        """
        if not state.domain.total_order or state.dropped or not may_be_negative(state):
            return
        last = TIME_MAX if state.upper.closed else times.parts(state.upper.elements[0])[0] - 1
        if last < 0 or not state.since.less_equal(last):
            return
        needed, query = sources_of(state, AsOf(last))
        contents = rows(self._spec(state), self._stores.blobs, needed, query)
        try:
            found = negatives(contents)
        except BlobNotFound:
            return  # It existed a moment ago, so a newer state needs it no more.
        except InvalidUpdates as error:
            self._tell("sum-too-large", self._id, f"as of {state.domain.text(last)} reads fail: {error}")
            return
        if found.rows:
            message = (
                f"as of {state.domain.text(last)}, {found.rows} rows have a negative multiplicity, such as "
                f"{found.example}: they were deleted more often than they were added"
            )
            self._tell("negative-rows", self._id, message)

    def _origin_parts(self, state: ShardState) -> list[BlobInfo]:
        """The stored parts of the shards that this one has borrowed from. A listing each."""
        owners = {names.owner(part.name) for part in forks.borrowed_parts(state)}
        return [
            info
            for owner in sorted(filter(None, owners))
            for info in self._stores.blobs.list(names.parts(owner))
        ]

    def _still_needed(self, found: list[Finding], state: ShardState) -> list[Finding]:
        """The findings without missing parts that the newest state needs no more."""
        if not any(finding.kind == "part-missing" for finding in found):
            return found
        newest = self._history().refresh(LoadedVersion(state, 0)).state
        named = {part.name for part in named_parts(newest)}
        return [one for one in found if one.kind != "part-missing" or one.object in named]

    def _readable(self, unlisted: set[str], state: ShardState) -> None:
        """Report objects that readers or forks need and that are gone. Asks again, as the listing is old."""
        gone = [name for name in sorted(unlisted) if not any(True for _ in self._stores.blobs.list(name))]
        if not gone:
            return
        # An object is deleted only after a state has condemned it, which a state read now shows.
        newest = self._history().refresh(LoadedVersion(state, 0)).state
        for name in pinned(newest, self._env.clock.now_ms()).intersection(gone):
            self._tell(
                "pinned-missing", name, "a reader or a fork needs a state that names it, and it is gone"
            )

    def mend_log(self) -> tuple[Finding, ...]:
        """Let the store recover the sound entries of a damaged log; report what is lost. Reads the log."""
        try:
            listed = self._stores.blobs.list(names.rollups(self._id))
            found = (names.rolled_up_at(info.name) for info in listed)
            starts = sorted(seqno for seqno in found if seqno is not None)
            mended = self._stores.log.mend(self._id, starts)
        except (CorruptionError, UnknownFormat, StoreUnavailable, OutcomeUnknown):
            return ()  # The next read of the log raises the same error.
        if mended is None:
            return ()
        self._tell("log-damaged", self._id, f"{mended.reason}; what was damaged is kept in {mended.kept}")
        self._repaired(("log-damaged",), {self._id})
        if mended.lost is not None:
            first, last = mended.lost
            message = (
                f"its entries {first} to {last} were acknowledged, and are lost; if they noted an erasure, "
                "erase these keys again"
            )
            self._tell("log-lost", self._id, message)
        return tuple(self._found)

    def _history(self) -> History:
        return History(self._id, self._stores, self._env)

    def _mend(self, replayed: Replayed, left: list[Leftover]) -> None:
        """Replace a damaged rollup, and remove objects that no state can name."""
        state = replayed.state
        if state is None or state.dropped:
            return
        if not replayed.rollup_ok:
            self._new_rollup(state)
        if not left or any(one.kind == "log-behind" for one in left):
            # With a log that lost entries, objects that look left over may be all that is left of the data.
            return
        Collector(Shard.open(self._stores, self._env, self._url, self._id, self._config)).run(thorough=True)
        there = {info.name for info in self._stores.blobs.list(f"{self._id}/")}
        self._repaired(("leaked-part", "leaked-rollup"), {one.name for one in left} - there)

    def _new_rollup(self, state: ShardState) -> None:
        # Not by opening the shard, which would need the rollup.
        machine = Machine(self._history(), self._config, self._env)
        machine.adopt(LoadedVersion(state, 0))
        bad = state.rollup
        rollup = self._history().write_rollup(machine.refresh())
        if not machine.run(partial(commands.add_rollup, rollup=rollup)).result:
            self._stores.blobs.delete(names.rollup(self._id, rollup.seqno, rollup.id))
        kinds = ("rollup-missing", "rollup-damaged", "rollup-differs")
        self._repaired(kinds, {names.rollup(self._id, bad.seqno, bad.id)})

    def _repaired(self, kinds: tuple[str, ...], objects: set[str]) -> None:
        self._found = [
            replace(one, repaired=True) if one.kind in kinds and one.object in objects else one
            for one in self._found
        ]

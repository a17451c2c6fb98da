"""Repair of a state that breaks rules: a state that keeps them all, and all the contents that it can.

No command makes such a state, and a log that holds one cannot be opened. `mended` is for `fsck --repair`: it
builds the state anew, from batches that are checked one by one. What has no place in it is *set aside*:
named, with the rule that it breaks.

Batches that overlap become one, a hole becomes an empty batch, and of a part that is named twice the first
one stays. Merges under way are begun again. A tombstone stays one.

Pure: `tidelake.shard.care.mend` finds out which parts are there, and copies parts of other shards.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pyrsistent import PMap, pmap

from tidelake.errors import IncompatibleSchema
from tidelake.model import names
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.evolution import evolved
from tidelake.model.frontier import Frontier
from tidelake.model.schema import SchemaVersion
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.forks import is_borrowed, lender
from tidelake.state.core.garbage import NEVER_READ, Garbage
from tidelake.state.core.partnames import indexed
from tidelake.state.core.state import FIRST, CriticalHold, Hold, ShardState
from tidelake.state.core.tokens import by_last_day
from tidelake.state.spine import fuel
from tidelake.state.spine.bases import NO_BASES
from tidelake.state.spine.spine import Member, Spine, SpineId
from tidelake.state.spine.staged import Staged, Staging, begins_before


@dataclass(frozen=True)
class SetAside:
    """Something that a mended state cannot keep.

    Attributes:
        rule: the rule that it breaks; `part-missing`: its object is gone.
        part: the part whose rows are no longer in; None: it held none.
        doubled: whether the same part stays elsewhere, so that no row is lost.
    """

    rule: str
    what: str
    part: Part | None = None
    doubled: bool = False

    @property
    def rows(self) -> int:
        """Updates that are lost."""
        return 0 if self.part is None or self.doubled else self.part.rows


@dataclass(frozen=True)
class Mended:
    """A state that was mended."""

    state: ShardState
    aside: tuple[SetAside, ...]


def mended(
    state: ShardState, lost: frozenset[str] = frozenset(), own: Mapping[str, str] | None = None
) -> Mended:
    """The state that keeps all rules and as much of `state` as possible. Costs O(state).

    The caller checks the result with `check_state`: a state that has lost its schemas cannot be mended.
    """
    return _Mending(state, lost, own or {}).run()


def not_ours(state: ShardState) -> list[Part]:
    """The stored parts that a state must not name: another shard's, or doomed ones.

    Copies of them can be kept.
    """
    found = {part.name: part for part in all_parts(state) if part.inline is None}
    return [
        part
        for name, part in found.items()
        if name in state.doomed or (lender(state) is None and is_borrowed(name, state.shard_id))
    ]


def all_parts(state: ShardState) -> Iterator[Part]:
    """All parts that a state names for readers, even where batches do not tile."""
    for member in state.spine.held():
        yield from member.batch.parts()
    for staged in state.staged.batches.values():
        yield from staged.batch.parts()


class _Mending:
    def __init__(self, state: ShardState, lost: frozenset[str], own: Mapping[str, str]) -> None:
        self._state, self._lost, self._own = state, lost, own
        self._aside: list[SetAside] = []
        self._seen: set[str] = set()

    def run(self) -> Mended:
        state = self._schemas(self._state)
        members = self._tiled([self._member(member, state) for member in state.spine.held()])
        since = self._since(state, members)
        retained = state.retained if since <= state.retained else since
        state = replace(
            state,
            since=since,
            retained=retained,
            claims=pmap(),
            chunks=pmap(),
            tokens=by_last_day(state.tokens.items(), state.writers),
            erasures=_erasures(state),
            holds=pmap({name: hold for name, hold in state.holds.items() if self._held(name, hold, since)}),
            critical=pmap({name: self._moved(name, hold, since) for name, hold in state.critical.items()}),
        )
        state = self._with_batches(state, members)
        state = self._with_garbage(_ended(state) if state.dropped else state)
        return Mended(state, tuple(self._aside))

    def _tell(self, rule: str, what: str) -> None:
        self._aside.append(SetAside(rule, what))

    def _schemas(self, state: ShardState) -> ShardState:
        """The schemas that are numbered from 0 without a gap and may each follow those before."""
        kept: dict[int, SchemaVersion] = {}
        seqno = 0
        for id_ in sorted(state.schemas):
            version = state.schemas[id_]
            if id_ != len(kept) or not _follows(kept, version):
                self._tell("schema-evolves", f"schema {id_} of state {version.seqno}")
                continue
            seqno = min(max(seqno, version.seqno), state.seqno)
            kept[id_] = replace(version, seqno=seqno)
        return replace(state, schemas=pmap(kept))

    def _member(self, member: Member, state: ShardState) -> Member:
        return replace(member, batch=self._kept(member.batch, state))

    def _kept(self, batch: HollowBatch, state: ShardState) -> HollowBatch:
        """A batch without the parts that cannot be kept."""
        runs: list[Run] = []
        for run in batch.runs:
            parts = tuple(kept for part in run.parts if (kept := self._part(part, batch, state)) is not None)
            if parts:
                runs.append(replace(run, parts=parts))
        return replace(batch, runs=tuple(runs))

    def _part(self, part: Part, batch: HollowBatch, state: ShardState) -> Part | None:
        rule = self._broken(part, batch, state)
        if rule:
            first, last = part.seen_times
            what = f"part {part.name} of {part.rows} updates at times {first} to {last}"
            self._aside.append(SetAside(rule, what, part, rule == "part-named-once"))
            return None
        self._seen.add(part.name)
        own = self._own.get(part.name)
        return part if own is None else replace(part, name=own)

    def _broken(self, part: Part, batch: HollowBatch, state: ShardState) -> str:
        """The rule because of which a part cannot stay; empty: it can."""
        stored = part.inline is None
        if part.name in self._seen:
            return "part-named-once"
        if stored and part.name in self._lost:
            return "part-missing"
        if part.schema_id not in state.schemas:
            return "schema-registered"
        if part.rows <= 0 or part.size_bytes <= 0:
            return "part-has-rows"
        if part.rewrite is not None and not state.domain.total_order:
            return "rewrite-total-order"
        if batch.bounds.empty:
            return "empty-bounds-hold-nothing"
        copied = part.name in self._own
        if stored and not copied and lender(state) is None and is_borrowed(part.name, state.shard_id):
            return "borrowed-from-origin"
        if stored and not copied and part.name in state.doomed:
            return "garbage-is-not-named"
        return ""

    def _tiled(self, members: Iterable[Member]) -> list[Member]:
        """Batches that tile: those that overlap are joined, and a hole is filled with an empty one."""
        found: list[Member] = []
        start = at = self._state.minimum
        for member in members:
            bounds = member.batch.bounds
            if bounds.lower == at:
                found.append(member)
            elif at <= bounds.lower:
                self._tell("batches-tile", f"nothing is known of times {at} to {bounds.lower}")
                found.append(replace(member, batch=HollowBatch(Bounds(at, bounds.lower, start))))
                found.append(member)
            else:
                found.append(self._joined(found, member))
            at = found[-1].batch.bounds.upper
        return found

    def _joined(self, found: list[Member], member: Member) -> Member:
        """One batch of a member and those found before that it overlaps, which are taken out of `found`."""
        minimum = self._state.minimum
        while True:
            last = found.pop() if found else None
            bounds = member.batch.bounds
            lower = minimum if last is None else last.batch.bounds.lower
            if last is not None:
                other = last.batch.bounds
                bounds = Bounds(
                    lower.meet(bounds.lower), other.upper.join(bounds.upper), other.since.join(bounds.since)
                )
                runs = last.batch.runs + member.batch.runs
                member = replace(member, batch=HollowBatch(bounds, runs), added=min(last.added, member.added))
            if last is None or bounds.lower == lower:
                batch = replace(member.batch, bounds=replace(bounds, lower=lower))
                return replace(member, batch=batch)

    def _since(self, state: ShardState, members: Iterable[Member]) -> Frontier:
        """The earliest since that holds and owner want, but no earlier than what was folded."""
        wanted = state.since.meet(state.retained)
        for since in (
            *(hold.since for hold in state.holds.values()),
            *(held.since for held in state.critical.values()),
        ):
            wanted = wanted.meet(since)
        if state.dropped:
            return state.since
        for member in members:
            wanted = wanted.join(member.batch.bounds.since)
        return wanted

    def _held(self, name: str, hold: Hold, since: Frontier) -> bool:
        if since <= hold.since:
            return True
        self._tell(
            "holds-keep-since", f"hold {name} of {hold.purpose!r} at {hold.since}, now past by {since}"
        )
        return False

    def _moved(self, name: str, hold: CriticalHold, since: Frontier) -> CriticalHold:
        if since <= hold.since:
            return hold
        moved = hold.since.join(since)
        self._tell("holds-keep-since", f"history before {since} of critical hold {name!r}, moved to {moved}")
        return replace(hold, since=moved)

    def _with_batches(self, state: ShardState, members: list[Member]) -> ShardState:
        """The state with a spine of these batches, and with what is staged past its end."""
        end = members[-1].batch.bounds.upper if members else state.minimum
        upper = state.upper.join(end)
        staged = {
            kept.name: kept
            for name in sorted(state.staged.batches)
            if (kept := self._staged(state.staged.batches[name], end, state)) is not None
        }
        waits = any(one.awaits is None and begins_before(one.batch, upper) for one in staged.values())
        if end != upper and not waits:
            rest = HollowBatch(Bounds(end, upper, state.minimum))
            members = [*members, Member(SpineId(0, 0), rest, state.seqno)]
        spine = Spine(spent=state.spine.spent)
        for member in members:
            spine = spine.edited(fuel.push(spine, member.batch, state.since, member.added).edit)
        # Maintenance cuts slices and makes bases anew; a base may have been made of what is lost.
        return replace(
            state, upper=upper, spine=spine, staged=Staging.of(staged), bases=NO_BASES, unpaid=None
        )

    def _staged(self, staged: Staged, end: Frontier, state: ShardState) -> Staged | None:
        if staged.awaits is None and begins_before(staged.batch, end):
            # The spine may have these rows already, or not; it cannot be told.
            for part in staged.batch.parts():
                first, last = part.seen_times
                what = f"part {part.name} of {part.rows} updates, staged at times {first} to {last}"
                self._aside.append(SetAside("staged-is-open", what, part, part.name in self._seen))
            return None
        kept = replace(staged, batch=self._kept(staged.batch, state))
        return kept if kept.batch.runs else None

    def _with_garbage(self, state: ShardState) -> ShardState:
        """Make garbage of what the state no longer names, and of nothing that it names."""
        before = self._state
        named = {part.name for part in state.parts()}
        doomed = {name: lost for name, lost in before.doomed.items() if name not in named}
        garbage = {
            name: lost for name, lost in before.garbage.items() if name not in named and name not in doomed
        }
        read = [*((part.name, 0) for part in all_parts(before) if part.inline is None)]
        read += [(part.name, 0) for base in before.bases for part in base.parts() if part.inline is None]
        read += [(part.name, NEVER_READ) for parts in before.chunks.values() for part in parts]
        for name, added in read:
            if name in named or name in garbage or name in doomed or name in self._lost:
                continue
            if is_borrowed(name, state.shard_id) and lender(state) is None:
                continue  # Its shard deletes it.
            garbage[name] = Garbage(min(added, state.seqno), state.seqno, state.committed_ms)
        if lender(state) is None:
            garbage = {name: lost for name, lost in garbage.items() if not is_borrowed(name, state.shard_id)}
            doomed = {name: lost for name, lost in doomed.items() if not is_borrowed(name, state.shard_id)}
        rollup = state.rollup
        old = names.rollup(state.shard_id, rollup.seqno, rollup.id)
        if rollup.seqno > state.seqno or old in garbage or old in doomed:
            rollup = FIRST
        return replace(
            state, garbage=pmap(garbage), doomed=pmap(doomed), rollup=rollup, part_names=indexed(state)
        )


def _follows(before: Mapping[int, SchemaVersion], version: SchemaVersion) -> bool:
    """Whether a schema may follow these."""
    if not before:
        return True
    try:
        versions = {id_: one.schema for id_, one in before.items()}
        return evolved(versions, version.schema, renamed=version.renamed) == version.schema
    except IncompatibleSchema:
        return False


def _erasures(state: ShardState) -> PMap[str, Erasure]:
    """The erasures: those that are done have no keys, and the others are known by their keys."""
    known = {id_: one if one.pending else replace(one, keys=()) for id_, one in state.erasures.items()}
    return pmap({id_: one for id_, one in known.items() if one.keys or not one.pending})


def _ended(state: ShardState) -> ShardState:
    """The state as a tombstone, which names and holds nothing."""
    end = Frontier()
    spine = Spine()
    batch = HollowBatch(Bounds(state.minimum, end, end))
    spine = spine.edited(fuel.push(spine, batch, end, state.seqno).edit)
    return replace(
        state,
        since=end,
        upper=end,
        retained=end,
        spine=spine,
        staged=Staging(),
        bases=NO_BASES,
        holds=pmap(),
        critical=pmap(),
    )

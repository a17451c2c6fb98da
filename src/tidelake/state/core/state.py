"""What a shard remembers: one version of it, a frozen value that shares structure with its predecessors.

`tidelake.state.core.edits` makes the next version of one. A field is declared once, in `StateFields`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pyrsistent import PMap, PSet, pmap, pset

from tidelake.model.batch import HollowBatch, Part
from tidelake.model.frontier import Frontier
from tidelake.model.names import NoOrPlainName, ObjectName, PlainName
from tidelake.model.schema import Schema, SchemaVersion
from tidelake.model.time import TimeDomain
from tidelake.state.core.agreed import AS_MADE, Agreed
from tidelake.state.core.decisions import Decision, Membership
from tidelake.state.core.erasures import Erasure, last_erased
from tidelake.state.core.fields import (
    Declared,
    Entries,
    Growing,
    Moving,
    OfState,
    Value,
    by_rule,
    declares,
    entries,
    flag,
    growing,
    moving,
    of_state,
    value,
)
from tidelake.state.core.garbage import Garbage, Sweep
from tidelake.state.spine.bases import NO_BASES, Base, Bases, Unpaid
from tidelake.state.spine.spine import Spine, SpineEdit, SpineId
from tidelake.state.spine.staged import Staged, Staging
from tidelake.tabletext import as_html, number


@dataclass(frozen=True)
class WriterRecord:
    """What the shard remembers of a named writer.

    Attributes:
        epoch: of the process that may write; a process with a lower one is fenced.
        sequence: number of the last append that is in; None before the first, -1 after a take-over.
        owner: identifies who counts the sequence, such as a streaming query's id; may be empty.
        upper: the shard's upper right after that append.
        content: identifies the data of that append, such as a digest of file names; may be empty.
    """

    epoch: int
    sequence: int | None
    owner: str
    upper: Frontier
    content: str = ""


@dataclass(frozen=True)
class Hold:
    """A leased hold: keeps history and parts for a reader until its lease ends.

    Attributes:
        purpose: for people.
        since: the shard's `since` stays at or before it; closed: this hold keeps no history.
        opened_ms: wall clock.
        pins: seqnos of the states that it reads: the parts of these are not collected.
        lease_ms: how long it lasts unless it is renewed.
        expires_ms: the first commit at or after this time ends it.
    """

    purpose: str
    since: Frontier
    opened_ms: int
    pins: tuple[int, ...]
    lease_ms: int
    expires_ms: int


@dataclass(frozen=True)
class CriticalHold:
    """A hold on `since` by name, which lasts until it is dropped.

    Attributes:
        since: the shard's `since` stays at or before it.
        token: its owner's; moving the hold needs it, so that a new token fences the owner before.
        opened_ms: wall clock.
    """

    since: Frontier
    token: str
    opened_ms: int


@dataclass(frozen=True)
class Retention:
    """How much history the owner wants: `window` times before `upper`; None: all, unless it is advanced."""

    window: int | None = None


@dataclass(frozen=True)
class MergeClaim:
    """A large merge that a process has taken on, one key range after the other.

    It only keeps others from doing the same work; whether a result is right does not depend on it. A process
    that takes over an expired claim continues with the chunks that are recorded.

    Attributes:
        id: of the members that are merged.
        positions: of the runs in the one member; empty: all runs of all members.
        inputs: digest of the runs that go in.
        since: the times are advanced to it.
        runner: the process.
        expires_ms: from then on others may take over.
        cuts: the keys between the chunks, encoded and ascending; with `by_time` the times, in decimal digits.
        base: a base is made instead, whose rows have this time; None: the members are merged.
        by_time: the one member is cut by time instead.
        saves: of the base that is made, as in `MergeRequest`.
    """

    id: SpineId
    positions: tuple[int, ...]
    inputs: str
    since: Frontier
    runner: str
    expires_ms: int
    cuts: tuple[bytes, ...]
    base: int | None = None
    by_time: bool = False
    saves: int = 0

    @property
    def name(self) -> str:
        """Its key in the state."""
        return f"{self.id.lo}-{self.id.hi}"

    def chunk(self, index: int) -> str:
        """The key in the state of what a chunk has become."""
        return f"{self.name}/{index}"


@dataclass(frozen=True)
class Fork:
    """Another shard, which has begun as a version of this one: a pin without a lease while it needs parts.

    Attributes:
        seqno: of that version. Its parts are not collected until the fork is freed.
        noted_ms: wall clock when the fork was requested, before it was made.
        freed: it needs no part any more. It is known because what is erased here is erased there.
    """

    seqno: int
    noted_ms: int
    freed: bool = False


@dataclass(frozen=True)
class Origin:
    """The shard that a fork began from. It keeps the parts that are not the fork's own.

    Attributes:
        seqno: of the version that it keeps for the fork.
        freed: the fork has parts of its own only.
    """

    shard_id: PlainName
    seqno: int
    freed: bool = False


@dataclass(frozen=True)
class Written:
    """Totals over the shard's whole life.

    What appends wrote (`appended_rows`, `appended_bytes`), and what merges wrote again (`merged_rows`,
    `merged_bytes`).
    """

    appended_rows: int = 0
    appended_bytes: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0


@dataclass(frozen=True)
class Rollup:
    """A state stored whole. The first rollup of a shard is the first entry of its log.

    Attributes:
        seqno: of the state.
        id: together with the seqno it makes the name of the blob.
        size_bytes: of the blob; 0 for the first one.
        batches: members in its spine; once a state has far fewer, a new rollup is worth its cost.
    """

    seqno: int
    id: PlainName
    size_bytes: int
    batches: int


@dataclass(frozen=True)
class Owned:
    """The program that alone writes to a shard.

    Attributes:
        definition: how it knows what to write, as text.
    """

    by: str
    definition: str


FIRST = Rollup(0, "0" * 32, 0, 0)
UNSWEPT = Sweep()
UNSTAGED = Staging()
_ZERO = Frontier((0,))
Taken = PMap[int, PSet[str]]
Tokens = PMap[int, PSet[str]]


@declares
class StateFields:
    """What edits change of a state, each field once. The second type is that in edits.

    In a state:

    Attributes:
        since: reads from here on are exact; the meet of `retained` and all holds, never going back.
        upper: every time strictly before it is final.
        retained: the owner allows history before it to go. Holds alone never make history go: a reader that
            comes, moves and leaves takes no as-of read from others.
        spine: the batches, up to where closed times are drained.
        schemas: by id.
        writers: by name.
        holds: by id.
        critical: critical holds, by name.
        retention: how `retained` follows `upper`.
        dropped: the shard is a tombstone.
        doomed: garbage that may be deleted at any moment, by name: it must not be read any more. Edits have
            the names of garbage that becomes so.
        sweep: how far uploads that were never appended are given up.
        rollup: the newest one.
        claims: merges that processes have taken on, by name.
        chunks: the finished parts of each finished chunk of a claim, by its key.
        written: totals of what was written.
        staged: batches at times that the spine does not have yet, by name.
        group: id of the group of collections that decides its writes; empty: it is in none.
        joined: seqno of the group's state that took it in; see `Membership.admitted`.
        memberships: of a group: its collections, by id.
        decisions: of a group: transactions that some members may not have applied yet, by id.
        expired: of a group: transactions that began before this seqno can no longer be decided.
        forks: the shards that have begun as versions of this one, by id. A tombstone has them as well.
        taken: ids of uploads that came in and of which others may hold copies, by the seqnos in their names,
            until the sweep's floor has passed these; see `tidelake.state.core.partnames`.
        agreed: settings that all processes of the lake agree on.
        tokens: names of writers that are tokens, by the day on which a write under them last began. Edits
            have the names of those under which writes begin.
        bases: contents at boundaries of the spine. Edits have new ones by their boundary, and do not name a
            base whose boundary goes.
        unpaid: the last base that was made and not kept.
        erasures: those that were asked for, by id.
        closed_ms: wall clock when the last time before `upper` was closed; 0: unknown. Edits have it if that
            was in another commit, of the group.
        owned: who alone writes to it; None: any writer.
    """

    since: Moving = moving()
    upper: Moving = moving()
    retained: Moving = moving()
    spine: Declared[Spine, SpineEdit | None] = by_rule(Spine(), lambda: None)
    schemas: Growing[int, SchemaVersion] = growing()
    writers: Declared[PMap[str, WriterRecord], dict[str, WriterRecord]] = by_rule(pmap())
    holds: Entries[str, Hold] = entries()
    critical: Entries[str, CriticalHold] = entries()
    retention: Value[Retention] = value(Retention())
    dropped: Declared[bool, bool] = flag()
    doomed: Declared[PMap[ObjectName, Garbage], tuple[ObjectName, ...]] = by_rule(pmap(), tuple)
    sweep: Value[Sweep] = value(UNSWEPT)
    rollup: Value[Rollup] = value(FIRST)
    claims: Entries[str, MergeClaim] = entries()
    chunks: Entries[str, tuple[Part, ...]] = entries()
    written: Value[Written] = value(Written())
    staged: Declared[Staging, dict[ObjectName, Staged | None]] = by_rule(UNSTAGED)
    group: Value[NoOrPlainName] = value("")
    joined: Value[int] = value(0)
    memberships: Entries[PlainName, Membership] = entries()
    decisions: Entries[str, Decision] = entries()
    expired: Value[int] = value(0)
    forks: Entries[PlainName, Fork] = entries()
    taken: Declared[Taken, dict[int, tuple[str, ...]]] = by_rule(pmap())
    agreed: Value[Agreed] = value(AS_MADE)
    tokens: Declared[Tokens, tuple[str, ...]] = by_rule(pmap(), tuple)
    bases: Declared[Bases, dict[int, Base | None]] = by_rule(NO_BASES)
    unpaid: Value[Unpaid | None] = value(None)
    erasures: Growing[str, Erasure] = growing(anew=True)
    closed_ms: Declared[int, int | None] = by_rule(0, lambda: None)
    owned: Value[Owned | None] = value(None)


@of_state
class ShardState(StateFields, OfState):
    """One version of a shard: the fields of `StateFields`, and those that follow from edits of others.

    Attributes:
        shard_id: of the shard.
        domain: unit of its times.
        seqno: of this version.
        committed_ms: wall clock of its commit.
        garbage: blobs that are no longer named, by name.
        collected_to: states of this seqno and later ones have all their parts.
        origin: of a fork: the shard that it began from; None: of any other shard.
        let_in: by name of a staged batch that awaited a transaction: seqno of the first state in which it no
            longer did.
        latest: of a group: by id of a collection, seqno of the group's last state that let rows in for it.
        part_names: of all parts in it. Not stored: it follows from the other fields.
    """

    shard_id: PlainName
    domain: TimeDomain
    seqno: int
    committed_ms: int
    garbage: PMap[ObjectName, Garbage] = pmap()
    collected_to: int = 0
    origin: Origin | None = None
    let_in: PMap[ObjectName, int] = pmap()
    latest: PMap[PlainName, int] = pmap()
    part_names: PSet[str] = pset()

    def _repr_html_(self) -> str:
        """What a notebook shows: sizes and frontiers, and not each batch."""
        text, totals = self.domain.text, self.spine.totals
        counts = {
            "seqno": self.seqno,
            "batches": len(self.spine),
            "runs": totals.runs,
            "updates": totals.rows,
            "bytes": totals.size_bytes,
            "slices": len(self.spine.slices),
            "bases": len(self.bases),
            "staged updates": self.staged.totals.rows,
            "merges claimed": len(self.claims),
            "writers": len(self.writers),
            "holds": len(self.holds) + len(self.critical),
            "garbage objects": len(self.garbage) + len(self.doomed),
        }
        rows = [("time", self.domain), ("since", text(self.since)), ("upper", text(self.upper))]
        rows += [(name, number(count)) for name, count in counts.items()]
        return as_html(["state", "value"], rows, title=f"state of {self.shard_id}")

    @property
    def erased(self) -> int:
        """Seqno of the first state without the rows of any finished erasure; 0: there was none."""
        return last_erased(self.erasures) if self.erasures else 0

    @property
    def minimum(self) -> Frontier:
        """The frontier of the first time."""
        first = self.domain.minimum
        return _ZERO if first == 0 else Frontier((first,))

    @property
    def drained(self) -> Frontier:
        """Where the spine ends: at `upper`, or earlier if updates before `upper` are still staged."""
        levels = self.spine.batches
        end = levels[-1].bounds.upper if levels else self.spine.end
        return self.minimum if end is None else end

    def batches(self) -> Iterator[HollowBatch]:
        """All batches that readers may see, of closed times and of open ones."""
        yield from (member.batch for member in self.spine)
        yield from (staged.batch for staged in self.staged)

    def parts(self) -> Iterator[Part]:
        """The parts of all batches, including staged ones that await a transaction, and of all bases."""
        for base in self.bases:
            yield from base.parts()
        for batch in self.batches():
            yield from batch.parts()
        for staged, _ in self.staged.awaiting():
            yield from staged.batch.parts()

    @property
    def schema_id(self) -> int:
        """The id of the newest schema."""
        return max(self.schemas)

    @property
    def schema(self) -> Schema:
        """The newest schema."""
        return self.schemas[self.schema_id].schema

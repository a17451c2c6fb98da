"""What a shard remembers: one version of it, a frozen value that shares structure with its predecessors.

How one version becomes the next is `tidelake.state.edits`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pyrsistent import PMap, PSet, pmap, pset

from tidelake.model.batch import HollowBatch, Part
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Schema, SchemaVersion
from tidelake.model.time import TimeDomain
from tidelake.state.agreed import AS_MADE, Agreed
from tidelake.state.garbage import Garbage, Sweep
from tidelake.state.grouped import Decision, Membership
from tidelake.state.spine import Spine, SpineId
from tidelake.state.staged import Staging
from tidelake.state.tokens import Tokens


@dataclass(frozen=True)
class WriterRecord:
    """What the shard remembers of a named writer.

    Attributes:
        epoch: of the process that may write; a higher one fences the lower.
        sequence: number of the last append that is in; None before the first, -1 after a take-over.
        owner: whose sequence numbers these are, such as a streaming query's id; may be empty.
        upper: the shard's upper right after that append.
        content: what that append said it was made of, such as a digest of file names; may be empty.
    """

    epoch: int
    sequence: int | None
    owner: str
    upper: Frontier
    content: str = ""


@dataclass(frozen=True)
class Hold:
    """A reader that keeps history and parts from going, for as long as it says so now and then.

    Attributes:
        purpose: for people.
        since: the shard's `since` stays at or before it; closed: this one keeps none back.
        opened_ms: wall clock.
        pins: seqnos of the states that it reads: the parts of these are not collected.
        lease_ms: how long it lasts without a renewal.
        expires_ms: from then on whoever commits next ends it.
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
        since: the shard's stays at or before it.
        token: of its owner; moving the hold needs it, so another token fences the owner before.
        opened_ms: wall clock.
    """

    since: Frontier
    token: str
    opened_ms: int


@dataclass(frozen=True)
class Retention:
    """How much history the owner wants: `window` times before `upper`; None: all that nobody lets go."""

    window: int | None = None


@dataclass(frozen=True)
class MergeClaim:
    """A large merge that a process has taken on, key range by key range.

    It keeps others from doing the same work twice; no result is right or wrong because of it. Whoever
    takes an expired claim over goes on where it stands.

    Attributes:
        id: of the members that are merged.
        positions: of the runs in the one member; empty: all runs of all members.
        inputs: digest of the runs that go in.
        since: their times are advanced by it.
        runner: the process.
        expires_ms: from then on others may take over.
        cuts: keys, encoded and ascending, that part one chunk from the next.
    """

    id: SpineId
    positions: tuple[int, ...]
    inputs: str
    since: Frontier
    runner: str
    expires_ms: int
    cuts: tuple[bytes, ...]

    @property
    def name(self) -> str:
        """Its key in the state."""
        return f"{self.id.lo}-{self.id.hi}"

    def chunk(self, index: int) -> str:
        """The key in the state of what a chunk has become."""
        return f"{self.name}/{index}"


@dataclass(frozen=True)
class Fork:
    """A pin without a lease: another shard has begun as a version of this one, and needs its parts.

    Attributes:
        seqno: of that version. No part that it names is collected while the fork is noted.
        noted_ms: wall clock of when that was asked for, before there was any fork.
    """

    seqno: int
    noted_ms: int


@dataclass(frozen=True)
class Origin:
    """The shard that a fork began from, and that keeps the parts which are not the fork's own.

    Attributes:
        shard_id: of the other shard.
        seqno: of the version that it keeps for the fork.
    """

    shard_id: str
    seqno: int


@dataclass(frozen=True)
class Written:
    """What was written into the shard over its whole life: by appends, and again by merges."""

    appended_rows: int = 0
    appended_bytes: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0


@dataclass(frozen=True)
class Rollup:
    """A state stored whole. The first one of a shard is the first entry of its log.

    Attributes:
        seqno: of the state.
        id: with the seqno it makes the name of the blob.
        size_bytes: of the blob; 0 for the first one.
        batches: how many members its spine has; a state that shrank much since is worth a new rollup.
    """

    seqno: int
    id: str
    size_bytes: int
    batches: int


FIRST = Rollup(0, "0" * 32, 0, 0)
UNSWEPT = Sweep()
UNSTAGED = Staging()


@dataclass(frozen=True)
class ShardState:
    """One version of a shard.

    Attributes:
        shard_id: of the shard.
        domain: unit of its times.
        seqno: of this version.
        committed_ms: wall clock of its commit.
        since: reads from here on are exact; the meet of `retained` and all holds, never going back.
        upper: every time strictly before it is final.
        retained: history before it may go as far as its owner is concerned. Holds alone never let
            history go: a reader that comes, follows and leaves costs nobody else an as-of read.
        spine: the batches, up to where closed times are drained.
        schemas: by id.
        writers: by name.
        holds: by id.
        critical: holds that last, by name.
        retention: how `retained` follows `upper`.
        dropped: the shard is a tombstone.
        garbage: blobs that are named no more, by name.
        doomed: those of them that may be deleted at any moment, by name: nobody may read them again.
        collected_to: states of this seqno and later ones have lost no part.
        sweep: how far leaked uploads are given up.
        rollup: the newest one.
        claims: merges that processes have taken on, by name.
        chunks: the finished parts of each finished chunk of a claim, by its key.
        written: in all.
        staged: batches at times that the spine does not have yet.
        group: id of the group of collections that it belongs to, which decides its writes.
        joined: seqno of the group's state that took it in; see `Membership.admitted`.
        memberships: of collections in this group, if it is one, by their ids.
        decisions: transactions that some members may not have applied yet, by id.
        expired: transactions that began before this seqno of the group are not decided any more.
        let_in: seqno of the first state in which a staged batch no longer awaited its transaction, by its
            name.
        latest: of a group: seqno of its last state that let rows in for a collection, by the ids of these.
        forks: what other shards need of this one, by their ids. A tombstone has them as well.
        origin: of a fork that may need parts of the shard it began from; None: of any other shard.
        taken: ids of uploads that came in and of which others may hold copies, by the seqnos in their names,
            until these are below the sweep's floor; see `tidelake.state.taken`.
        part_names: of all parts in it. Not stored: it follows from the other fields.
        agreed: settings that all processes go by.
        tokens: names of writers that are tokens, by the days on which writes under them last began.
    """

    shard_id: str
    domain: TimeDomain
    seqno: int
    committed_ms: int
    since: Frontier
    upper: Frontier
    retained: Frontier
    spine: Spine = field(default_factory=Spine)
    schemas: PMap[int, SchemaVersion] = field(default_factory=pmap)
    writers: PMap[str, WriterRecord] = field(default_factory=pmap)
    holds: PMap[str, Hold] = field(default_factory=pmap)
    critical: PMap[str, CriticalHold] = field(default_factory=pmap)
    retention: Retention = Retention()
    dropped: bool = False
    garbage: PMap[str, Garbage] = field(default_factory=pmap)
    doomed: PMap[str, Garbage] = field(default_factory=pmap)
    collected_to: int = 0
    sweep: Sweep = UNSWEPT
    rollup: Rollup = FIRST
    claims: PMap[str, MergeClaim] = field(default_factory=pmap)
    chunks: PMap[str, tuple[Part, ...]] = field(default_factory=pmap)
    written: Written = Written()
    staged: Staging = UNSTAGED
    group: str = ""
    joined: int = 0
    memberships: PMap[str, Membership] = field(default_factory=pmap)
    decisions: PMap[str, Decision] = field(default_factory=pmap)
    expired: int = 0
    forks: PMap[str, Fork] = field(default_factory=pmap)
    origin: Origin | None = None
    taken: PMap[int, PSet[str]] = field(default_factory=pmap)
    let_in: PMap[str, int] = field(default_factory=pmap)
    latest: PMap[str, int] = field(default_factory=pmap)
    part_names: PSet[str] = field(default_factory=pset)
    agreed: Agreed = AS_MADE
    tokens: Tokens = field(default_factory=pmap)

    @property
    def minimum(self) -> Frontier:
        """The frontier of the first time."""
        return Frontier((self.domain.minimum,))

    @property
    def drained(self) -> Frontier:
        """Where the spine ends: at `upper`, or before it if updates between them are staged still."""
        return self.spine.end(self.minimum)

    def batches(self) -> Iterator[HollowBatch]:
        """All that readers may see, of closed times and of open ones."""
        yield from (member.batch for member in self.spine)
        yield from (staged.batch for staged in self.staged)

    def parts(self) -> Iterator[Part]:
        """All parts of these, and of what awaits a transaction."""
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

"""Copies: shards that have the contents of a shard of another lake, as of one of its states.

Parts keep the ids in their names, so a state of the source and a state of the copy tell which parts of the
source the copy has already. The copy remembers its source as a named writer: which shard, as of which seqno,
what was copied (`contents`), and how the copy was left (`own_marks`). So the commit that brings new contents
also records where they are from, and a later run finds out whether anything is new, and whether the copy
itself was written to.

INVARIANT: a part of a copy is a part of its source, byte by byte, and has its id.

Pure: `tidelake.shard.care.copy` copies the parts.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyrsistent import pmap

from tidelake.model import names
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.state.core import codec
from tidelake.state.core.agreed import AS_MADE, Agreed
from tidelake.state.core.edits import Edits
from tidelake.state.core.erasures import Erasure
from tidelake.state.core.garbage import NEVER_READ, Garbage
from tidelake.state.core.partnames import indexed
from tidelake.state.core.state import ShardState, WriterRecord
from tidelake.state.core.tokens import by_last_day
from tidelake.state.core.writername import WriterName
from tidelake.state.group.applying import taken_along
from tidelake.state.life.forking import started
from tidelake.state.life.holds import settle
from tidelake.state.spine.staged import Staged

# Names of writers that users choose have no control characters.
WRITER = "\0copy"


@dataclass(frozen=True)
class CopyRecord:
    """What a copy remembers of its source.

    Attributes:
        source: id of the shard that it is a copy of.
        contents: identifies what was copied; see `contents_of`.
        own: identifies how the copy was left; see `own_marks`.
    """

    source: str
    seqno: int
    contents: str
    own: str

    @classmethod
    def of(cls, state: ShardState) -> "CopyRecord | None":
        """What a shard remembers; None: it is no copy."""
        record = state.writers.get(WRITER)
        if record is None:
            return None
        contents, _, own = record.content.partition(" ")
        return cls(record.owner, record.sequence or 0, contents, own)

    def writer(self, upper: Frontier) -> WriterRecord:
        """The record of the writer, of a copy that is at this upper; see `of`."""
        return WriterRecord(0, self.seqno, self.source, upper, f"{self.contents} {self.own}")

    def is_own(self, state: ShardState) -> bool:
        """Whether the copy itself was written to since it was made."""
        return own_marks(state) != self.own


def part_id(part: Part) -> str:
    """What the names of a part and of its copies have in common."""
    return names.upload(part.name)[1]


def own_marks(state: ShardState) -> str:
    """Identifies what only writes to the shard change; merges, readers and collectors do not.

    `since` and `retained` are no part of it: a copy may keep less history than its source.
    """
    numbers = Frontier.__str__  # whatever the frontier prints for people
    critical = [
        (name, numbers(hold.since), hold.token, hold.opened_ms)
        for name, hold in sorted(state.critical.items())
    ]
    told = (
        numbers(state.upper),
        state.retention.window,
        critical,
        len(state.schemas),
        state.group,
        state.written.appended_rows,
        state.written.appended_bytes,
        state.dropped,
    )
    return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()


def contents_of(state: ShardState) -> str:
    """Identifies everything that a copy takes over from a state. Costs O(state)."""
    # Names stay: they identify parts. What belongs to the copy is the same for all.
    whole = copied(state, "", {part.name: part for part in copied_parts(state)}, 0, AS_MADE)
    return hashlib.blake2b(codec.encode_state(whole), digest_size=16).hexdigest()


def with_group(state: ShardState, group: ShardState | None) -> ShardState:
    """The state of a collection as if it had just left its group, with all that it would take along."""
    if group is None:
        return replace(state, group="", joined=0)
    writers = state.writers.update(taken_along(state, group))
    named = {name: WriterName.of(name) for name in group.writers}
    known = {
        writer.name: name
        for name, writer in named.items()
        if writer.member in ("", state.shard_id) and writer.name in writers
    }
    days = [(day, there) for day, there in group.tokens.items()]
    of_group = [(day, [w for w, name in known.items() if name in there]) for day, there in days]
    tokens = by_last_day([*state.tokens.items(), *of_group], writers)
    return replace(state, group="", joined=0, writers=writers, tokens=tokens)


def copied_parts(state: ShardState) -> Iterable[Part]:
    """All parts that a copy of the state has: those that readers may see."""
    for held in (*state.batches(), *state.bases):
        yield from held.parts()


def copied(
    state: ShardState, shard_id: str, parts: Mapping[str, Part], now_ms: int, agreed: Agreed
) -> ShardState:
    """The first state of a copy: the contents of a state, without its holds, garbage, forks and group."""

    def batch(of: HollowBatch) -> HollowBatch:
        runs = tuple(Run(tuple(parts[part.name] for part in run.parts), run.truncated) for run in of.runs)
        return replace(of, runs=runs)

    members = [replace(member, batch=batch(member.batch)) for member in state.spine]
    whole = state.spine.with_members(members)
    staged = [Staged(batch(old.batch), 0) for old in state.staged]
    bases = [replace(base, runs=batch(base.batch(state.minimum)).runs) for base in state.bases]
    writers = state.writers.discard(WRITER)
    return replace(
        started(state, shard_id, now_ms, whole, staged=staged, bases=bases),
        writers=writers,
        tokens=by_last_day(state.tokens.items(), writers),
        critical=state.critical,
        written=state.written,
        # The settings of the lake of the copy.
        agreed=replace(agreed, told=True),
        closed_ms=state.closed_ms,
    )


def recorded(copy: ShardState, source: ShardState, contents: str) -> ShardState:
    """A copy that remembers its source, and how it is left.

    Its `since` is what its owner and its own holds allow, as after any commit to it: readers of the source
    hold back none of its history. A hold that is over by now ends with its next commit.
    """
    moved = settle(copy, Edits(), 0)
    copy = replace(
        copy,
        since=copy.since if moved.since is None else moved.since.after,
        retained=copy.retained if moved.retained is None else moved.retained.after,
    )
    record = CopyRecord(source.shard_id, source.seqno, contents, own_marks(copy))
    return replace(copy, writers=copy.writers.set(WRITER, record.writer(copy.upper)))


def erased_since(source: ShardState, before: ShardState) -> dict[str, Erasure]:
    """The erasures that took rows out of a source since it was copied last, as its copy notes them.

    What the copy has stored has these rows, so its collector deletes that as the source's does.
    """
    record = CopyRecord.of(before)
    if record is None:
        return {}
    return {
        id_: replace(one, seqno=before.seqno + 1, gone_ms=0)
        for id_, one in source.erasures.items()
        if one.seqno > record.seqno
    }


def succeeding(before: ShardState, copy: ShardState, erased: Mapping[str, Erasure]) -> ShardState:
    """A state of the same seqno as `before` with the contents of a newer copy. Costs O(state).

    What belongs to the copy itself stays: its readers, forks, garbage and settings, and a `since` that was
    advanced further than that of its source. A part that is no longer named becomes garbage of the next
    state; readers and forks keep it as usual. A reader whose history the source has let go loses its hold.

    REQUIRES: `before` is a copy of an earlier state of the same shard, that was not written to itself.
    """
    since = before.since.join(copy.since)
    named = {part.name for part in copy.parts()}
    next_seqno = before.seqno + 1
    gone = {part.name: 0 for part in before.parts() if part.inline is None}
    gone |= {
        part.name: NEVER_READ for parts in before.chunks.values() for part in parts if part.inline is None
    }
    garbage = {
        name: Garbage(min(added, next_seqno), next_seqno, max(copy.committed_ms, before.committed_ms))
        for name, added in gone.items()
        if name not in named
    }
    made = replace(
        copy,
        seqno=before.seqno,
        committed_ms=max(copy.committed_ms, before.committed_ms),
        since=since,
        retained=before.retained.join(copy.retained),
        holds=pmap({id_: hold for id_, hold in before.holds.items() if since <= hold.since}),
        critical=pmap(
            {name: replace(hold, since=hold.since.join(since)) for name, hold in copy.critical.items()}
        ),
        garbage=before.garbage.update(garbage),
        doomed=before.doomed,
        collected_to=before.collected_to,
        sweep=before.sweep,
        rollup=before.rollup,
        forks=before.forks,
        origin=before.origin,
        taken=before.taken,
        agreed=before.agreed,
        erasures=before.erasures.update(
            {
                id_: replace(one, erased_ms=max(copy.committed_ms, before.committed_ms))
                for id_, one in erased.items()
            }
        ),
    )
    return replace(made, part_names=indexed(made))

"""Which physical merges a shard needs, and how their results come in.

The levels decide which batches belong together (`tidelake.state.spine.fuel`). The merges that are still to be
done are not stored: `requests` computes them from the state, so no merge is lost if a process dies.

INVARIANT: a result takes the place of exactly the runs that it was made from, or of nothing. So it may come
late or twice, and never brings a part back.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tidelake.config import Config
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.bounds import Bounds
from tidelake.model.frontier import Frontier
from tidelake.state.spine.spine import Member, Spine, SpineEdit, SpineId

# A batch in which one update in so many is a retraction is worth a merge with fewer rows than usual.
_NEGATIVE_SHARE = 4
_NEGATIVE_ROWS_MIN = 1_024
# A merge costs as much as reading so many rows besides its own.
_ROWS_ALWAYS = 4_096


@dataclass(frozen=True)
class Policy:
    """When a merge is worth its cost.

    Attributes:
        fan_in: runs that one merge reads side by side.
        fold_rows: the smallest runs, up to so many rows together, count as one: they are merged in memory.
        inputs_min: so many members are worth a merge, however few rows they have. Twice so many with rows in
            the state, which cost a read little, count as one.
        rows_min: so many rows are worth a merge of two members.
    """

    fan_in: int
    fold_rows: int
    inputs_min: int = 2
    rows_min: int = 0

    @classmethod
    def busy(cls, config: Config) -> "Policy":
        """That while a shard is being written to."""
        return cls(config.merge_fan_in, config.fold_rows, config.merge_inputs_min, config.merge_rows_min)

    @classmethod
    def idle(cls, config: Config) -> "Policy":
        """That for an idle shard: one run for each spine batch."""
        return cls(config.merge_fan_in, config.fold_rows)


def unmerged(spine: Spine) -> int:
    """Number of runs or of members, whichever is larger, in excess of one for each spine batch.

    Members count since appends without rows add members without runs, which make the state grow until they
    are merged.
    """
    runs = spine.totals.runs - len([batch for batch in spine.batches if batch.rows]) - len(spine.slices)
    return max(runs, spine.totals.members - len(spine.batches) - len(spine.slices))


@dataclass(frozen=True)
class MergeRequest:
    """Members of one spine batch that shall become one batch, or runs of one member that shall become a run.

    Attributes:
        positions: of the runs in the one member; empty: all runs of all members.
        rows: an upper bound on the rows to read.
        size_bytes: an upper bound on the stored bytes to read.
        times: cut the one member by time: the times at which pieces begin, except for the first.
        base: make a base instead, which ends where the members end: the time of its rows. Then the rows to
            read are those of the base before, and of the members.
        saves: keep that base if it has at least one row in so many less than is read; 0: in any case.
    """

    id: SpineId
    positions: tuple[int, ...]
    inputs: str
    rows: int
    size_bytes: int
    sources: int
    times: tuple[int, ...] = ()
    base: int | None = None
    saves: int = 0


def digest(runs: Iterable[Run]) -> str:
    """Identifies a sequence of runs: a digest of the names of all parts, in order."""
    hashed = hashlib.blake2b(digest_size=16)
    for run in runs:
        for part in run.parts:
            hashed.update(part.name.encode() + b"\n")
        hashed.update(b"\n")
    return hashed.hexdigest()


def requests(spine: Spine, policy: Policy, taken: Sequence[SpineId] = ()) -> Iterator[MergeRequest]:
    """The merges that are worth their cost, newest members first. Costs O(members that are not merged).

    A spine batch with more runs than one merge may read is merged piece by piece: ask again once these
    results are in.
    """
    for batch in reversed(spine.batches):
        for members in _apart(spine.range(batch.id), taken):
            if _worthwhile(members, policy):
                yield bounded(members, policy)
    # A slice is complete, so it is merged for good, and at once.
    at_once = replace(policy, inputs_min=2, rows_min=0)
    for lo in sorted(spine.unmerged, reverse=True):
        held = spine.holder(spine.members[lo].id)
        for members in _apart(spine.range(held.id), taken) if held is not None else ():
            if _worthwhile(members, at_once):
                yield bounded(members, at_once)


def worth_merging(spine: Spine, id_: SpineId, policy: Policy) -> bool:
    """Whether the members of a range are there, and worth a merge. Costs O(members in it)."""
    members = spine.tiling(id_)
    return members is not None and _worthwhile(members, policy)


def _apart(members: Iterable[Member], taken: Sequence[SpineId]) -> list[list[Member]]:
    """The stretches of members that no other process merges, newest first."""
    stretches: list[list[Member]] = [[]]
    for member in members:
        if any(id_.overlaps(member.id) for id_ in taken):
            stretches.append([])
        else:
            stretches[-1].append(member)
    return [stretch for stretch in reversed(stretches) if stretch]


def _worthwhile(members: Sequence[Member], policy: Policy) -> bool:
    runs = inline = rows = negative = 0
    for member in members:
        batch = member.batch
        runs += len(batch.runs)
        inline += len(batch.runs) if batch.inline_bytes else 0
        rows += batch.rows
        negative += batch.negative_rows
    if not runs or (runs == 1 and len(members) == 1):
        return False
    others = max(runs, len(members)) - inline
    if others + inline / (2 * policy.inputs_min) >= policy.inputs_min:
        return True
    return rows >= policy.rows_min or (
        runs > 1 and rows >= _NEGATIVE_ROWS_MIN and negative * _NEGATIVE_SHARE >= rows
    )


def bounded(members: list[Member], policy: Policy) -> MergeRequest:
    """All members, or as many neighbours as one merge may read, or some runs of a member with too many."""
    if _fits([run for member in members for run in member.batch.runs], policy):
        return request(members)
    windows: list[list[Member]] = [[]]
    for member in members:
        runs = member.batch.runs
        if not _fits(runs, policy):
            smallest = sorted(range(len(runs)), key=lambda i: (runs[i].rows, i))
            count = max(n for n in range(2, len(runs)) if _fits([runs[i] for i in smallest[:n]], policy))
            return request([member], tuple(sorted(smallest[:count])))
        if not _fits([run for m in (*windows[-1], member) for run in m.batch.runs], policy):
            windows.append([])
        windows[-1].append(member)
    several = [w for w in windows if sum(len(member.batch.runs) for member in w) > 1]
    return request(min(several, key=lambda window: sum(member.batch.rows for member in window)))


def _fits(runs: Sequence[Run], policy: Policy) -> bool:
    """Whether one merge may read these runs: small ones are merged in memory first and count as one."""
    if len(runs) <= policy.fan_in:
        return True
    small = [run.rows for run in runs if run.rows * policy.fan_in <= policy.fold_rows]
    return len(runs) - len(small) < policy.fan_in and sum(small) <= policy.fold_rows


def request(members: Sequence[Member], positions: tuple[int, ...] = ()) -> MergeRequest:
    """The request to merge some neighbours, or some runs of a single member."""
    runs = chosen(members, positions)
    return MergeRequest(
        SpineId(members[0].id.lo, members[-1].id.hi),
        positions,
        digest(runs),
        sum(run.rows for run in runs),
        sum(run.size_bytes for run in runs),
        len(runs),
    )


def chosen(members: Sequence[Member], positions: tuple[int, ...]) -> list[Run]:
    """The runs that a request names; empty if a position is past the end."""
    runs = [run for member in members for run in member.batch.runs]
    if not positions:
        return runs
    return [runs[i] for i in positions] if max(positions) < len(runs) else []


def inline_requests(spine: Spine, policy: Policy, taken: Sequence[SpineId] = ()) -> Iterator[MergeRequest]:
    """Merges after which no inline part is left in the state, if their results are stored as objects."""
    for batch in reversed(list(spine.all_batches())):
        for members in _apart(spine.range(batch.id), taken):
            held = [i for i, member in enumerate(members) if member.batch.inline_bytes]
            if held:
                yield bounded(members[held[0] : held[-1] + 1], policy)


def everything(spine: Spine, policy: Policy, end: int | None = None) -> MergeRequest | None:
    """The request to merge the oldest batch of the levels, or its first part; None if they have no batch."""
    members = spine.range(spine.batches[0].id) if spine.batches else []
    wanted = [member for member in members if end is None or member.id.lo < end]
    return bounded(wanted, policy) if wanted else None


def cheapest(found: Iterable[MergeRequest], runs: int) -> list[MergeRequest]:
    """The requests that leave `runs` fewer runs, or all; first those with the least cost for each run."""

    def cost(request: MergeRequest) -> float:
        return (request.rows + _ROWS_ALWAYS) / max(request.sources - 1, 1)

    taken: list[MergeRequest] = []
    for one in sorted(found, key=cost):
        if runs <= 0:
            break
        taken.append(one)
        runs -= max(one.sources - 1, 0)
    return taken


class Fit(Enum):
    """How a merge result fits the spine."""

    EXACT = "applied exact"
    SUBSET = "applied subset"
    ALREADY = "already applied"
    NO_MATCH = "no match"
    INVALID_SINCE = "invalid since"
    TOO_MANY_UPDATES = "too many updates"
    UNPAID = "a read would not cost half"

    @property
    def applied(self) -> bool:
        """Whether the result is in the state."""
        return self in (Fit.EXACT, Fit.SUBSET, Fit.ALREADY)


@dataclass(frozen=True)
class MergeResult:
    """The result of carrying out a request.

    Attributes:
        positions: of the runs in the one member; empty: all runs of all members.
        since: the frontier to which its times were advanced.
        output: the run that replaces the inputs; None if no row is left.
        times: the one member was cut at these times.
        pieces: the runs between them; None for one without rows.
    """

    id: SpineId
    positions: tuple[int, ...]
    inputs: str
    since: Frontier
    output: Run | None
    times: tuple[int, ...] = ()
    pieces: tuple[Run | None, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What was written."""
        runs = (self.output, *self.pieces)
        return tuple(part for run in runs if run is not None for part in run.parts)


def placed(spine: Spine, result: MergeResult, since: Frontier, seqno: int) -> tuple[Fit, SpineEdit | None]:
    """How a result fits, and the edit that puts it in the place of its inputs. Costs O(inputs)."""
    holder = spine.holder(result.id)
    if holder is None or spine.tiling(result.id) is None:
        return Fit.NO_MATCH, None
    members = spine.range(result.id)
    output = () if result.output is None else (result.output,)
    if len(members) == 1 and result.output is not None and result.output in members[0].batch.runs:
        return Fit.ALREADY, None
    runs = chosen(members, result.positions)
    if digest(runs) != result.inputs or (result.positions and len(members) > 1):
        return Fit.NO_MATCH, None
    folded = result.since
    # A batch without rows cannot have been folded further.
    inputs = [member.batch.bounds.since for member in members if member.batch.runs]
    if not all(before <= folded for before in inputs) or not folded <= since:
        return Fit.INVALID_SINCE, None
    if sum(run.rows for run in output) > sum(run.rows for run in runs):
        return Fit.TOO_MANY_UPDATES, None
    first, last = members[0].batch, members[-1].batch
    kept = [run for i, run in enumerate(first.runs) if result.positions and i not in result.positions]
    # Runs that stay keep their since, and a batch has one since for all its runs.
    bounds = Bounds(first.bounds.lower, last.bounds.upper, first.bounds.since if kept else folded)
    batch = HollowBatch(bounds, (*kept, *output))
    rows = holder.rows - sum(member.batch.rows for member in members) + batch.rows
    held = replace(holder, bounds=replace(holder.bounds, since=holder.bounds.since.join(folded)), rows=rows)
    edit = SpineEdit(
        spine.next_id,
        spine.spent,
        members_gone=tuple(member.id for member in members),
        members=(Member(result.id, batch, _added(members, batch, seqno)),),
        batches_gone=(holder.id,) if held != holder else (),
        batches=(held,) if held != holder else (),
    )
    return Fit.EXACT if holder.id == result.id and not result.positions else Fit.SUBSET, edit


def _added(members: list[Member], batch: HollowBatch, seqno: int) -> int:
    """The seqno from which readers may have read parts of a batch: parts that stay were read before."""
    before = {part.name for member in members for part in member.batch.parts()}
    stays = any(part.name in before for part in batch.parts())
    return min(member.added for member in members) if stays else seqno

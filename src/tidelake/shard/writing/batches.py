"""Appending batches that were built before: here, or by other processes.

Owns the way from handles and bytes to one append command, and who answers for the parts afterwards: the
state if the append is in, the caller if it was refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

from tidelake.errors import BlobNotFound, StoreUnavailable, UpperMismatch, UsageError
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.shard.runs.upload import discard
from tidelake.shard.shard import Shard
from tidelake.shard.writing.append import REFUSALS, commit, settle
from tidelake.shard.writing.batch import Batch, decode_batch
from tidelake.state.append import Appended, Claim, Exactly, append
from tidelake.state.narrowing import narrowed
from tidelake.state.staging import Seen

_USED = "appended"


def append_batches(
    shard: Shard,
    batches: Sequence[Batch],
    lower: Frontier,
    upper: Frontier,
    claim: Claim | None = None,
    *,
    seen: Seen | None = None,
) -> Appended:
    """Add what the batches hold of `[lower, upper)` iff the shard's upper equals `lower`. One log write.

    What depends on contents says what it has `seen` of them.

    After a success the batches are used. After a refusal they are the caller's as before, and may be
    offered again. If the store certainly failed they may be offered again too; after any other error
    they count as used, since they may be in.

    Batches that came as bytes cost a log scan more, and a look at each stored part.

    Raises:
        InvalidBatchBounds: a batch does not cover the interval; names both.
        BatchConsumed: a batch was used before.
        UpperMismatch: the upper is another one.
        UsageError: a batch is another shard's, given twice, or in already.
    """
    for batch in batches:
        if not isinstance(batch, Batch):
            raise UsageError(f"a {type(batch).__name__} is no batch: use builder().finish(upper)")
        if batch.shard_id != shard.spec.shard_id:
            raise UsageError(
                f"a batch for shard {batch.shard_id} cannot be appended to {shard.spec.shard_id}: "
                "append it to the collection that it was written for"
            )
    _check_once([name for batch in batches for name in batch.part_names], "a batch")
    with _Offer(batches) as offer:
        left = [narrowed(batch.hollow, lower, upper) for batch in batches]
        sent = [part for batch in batches if batch.sent for part in batch.hollow.parts()]
        if sent:
            shard.state()
        command = partial(append, when=Exactly(lower, upper), claim=claim, seen=seen)
        known = shard.preview(partial(command, runs=()))
        if known is not None and known.already:
            # A number that is in: what is offered may be what is in, and stays.
            return known
        _check_no_copy_is_in(shard, lower, sent)
        offer.tried = True
        limit = shard.spec.config.inline_total_bytes
        answer = settle(
            shard,
            tuple(run for narrow in left for run in narrow.runs),
            lambda runs: shard.carry_out(partial(command, runs=runs, inline_bytes_max=limit)),
        )
    if not answer.already:
        # What a copy leaves out may be what another one is appended for.
        dropped = [
            Run(narrow.dropped)
            for batch, narrow in zip(batches, left, strict=True)
            if narrow.dropped and not batch.sent
        ]
        discard(shard.stores.blobs, shard.env, dropped)
    return answer


class _Offer:
    """The batches of one append: used by it, or given back if it is refused."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self._taken: list[Batch] = []
        self.tried = False

    def __enter__(self) -> "_Offer":
        try:
            for batch in self._batches:
                batch.take(_USED)
                self._taken.append(batch)
        except BaseException:
            self._give_back(offered=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # SUBTLE: only a refusal by the state makes it certain that parts may be deleted.
        if error is not None and (not self.tried or isinstance(error, REFUSALS)):
            self._give_back(offered=False)
        elif isinstance(error, StoreUnavailable):
            self._give_back(offered=True)

    def _give_back(self, *, offered: bool) -> None:
        for batch in self._taken:
            batch.give_back(offered=offered)


def _check_no_copy_is_in(shard: Shard, lower: Frontier, sent: Sequence[Part]) -> None:
    """Refuse parts that came as bytes, of which there may be copies, if one of these was appended.

    Looks at the whole newest state, and into each stored part: one that was appended and merged away is
    garbage of the state until it is deleted.

    SUBTLE: an append of a copy later than the state that is looked at moves `upper`, so this one is refused.

    Raises:
        UpperMismatch: that has happened.
        UsageError: a part is in, or is gone.
    """
    if not sent:
        return
    state = shard.known()
    if state.upper != lower:
        raise UpperMismatch(lower, state.upper)
    known = {part.name for part in state.parts()}
    for part in sent:
        if part.name in known or part.name in state.garbage or part.name in state.doomed:
            raise UsageError(f"a copy of this batch was appended before: part {part.name} is in already")
        try:
            if part.inline is None:
                shard.stores.blobs.get(part.name, 0, 1)
        except BlobNotFound as error:
            message = f"a copy of this batch was appended before, or deleted: part {part.name} is gone"
            raise UsageError(message) from error


def append_uploaded(
    shard: Shard,
    uploads: Sequence[bytes],
    lower: Frontier,
    upper: Frontier,
    claim: Claim | None = None,
    *,
    advance: bool = False,
    seen: Seen | None = None,
) -> Appended:
    """Add what workers uploaded, in one command. Errors as `compare_and_append`.

    What depends on contents says what it has `seen` of them.

    With `advance`, times before `lower` become `lower`; times must be single numbers then. Nothing is
    rewritten in the store: the description of the parts says so.

    Unlike `append_batches` it refuses times outside of the interval. After a conflict the same uploads may
    be offered again at another frontier, if their times allow; uploads that are never appended stay in
    the store until collection finds them.
    """
    found = [decode_batch(shard.spec, data) for data in uploads if data]
    for upload in found:
        checked = (upload.bounds.lower, upload.bounds.upper)
        if not shard.spec.domain.total_order and checked != (lower, upper):
            raise UsageError(
                f"an upload checked against [{checked[0]}, {checked[1]}) cannot be appended to "
                f"[{lower}, {upper}): times of {shard.spec.domain} need the same interval "
                "in uploader(lower, upper)"
            )
    runs = _all_runs(found)
    if advance:
        runs = _advanced(shard, runs, lower)
    return settle(shard, runs, partial(commit, shard, Exactly(lower, upper), claim, as_now=False, seen=seen))


def uploaded(shard: Shard, uploads: Sequence[bytes]) -> tuple[tuple[Run, ...], Frontier]:
    """The runs of uploads, and a frontier that all their times were checked to lie beyond."""
    found = [decode_batch(shard.spec, data) for data in uploads if data]
    checked = Frontier.of(shard.spec.domain.minimum)
    if found:
        checked = reduce(Frontier.meet, (upload.bounds.lower for upload in found))
    return _all_runs(found), checked


def _all_runs(found: Sequence[HollowBatch]) -> tuple[Run, ...]:
    runs = tuple(run for upload in found for run in upload.runs)
    _check_once([part.name for run in runs for part in run.parts], "an upload")
    return runs


def _advanced(shard: Shard, runs: tuple[Run, ...], lower: Frontier) -> tuple[Run, ...]:
    """The runs with all times at or after `lower`; those that are so anyway stay as they are."""
    if not shard.spec.domain.total_order:
        raise UsageError(f"times of {shard.spec.domain} cannot be advanced: they have no total order")

    def moved(part: Part) -> Part:
        if lower.closed or lower.less_equal(part.time_lower):
            return part
        return replace(part, rewrite=lower.elements[0])

    return tuple(replace(run, parts=tuple(map(moved, run.parts))) for run in runs)


def discard_uploaded(shard: Shard, uploads: Sequence[bytes]) -> None:
    """Delete the parts of uploads that were never offered to an append."""
    runs = [run for data in uploads if data for run in decode_batch(shard.spec, data).runs]
    discard(shard.stores.blobs, shard.env, runs)


def _check_once(names: list[str], what: str) -> None:
    if len(set(names)) < len(names):
        raise UsageError(f"{what} is given twice: give each once")

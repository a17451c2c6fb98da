"""Appends batches that were built before, by this process or others.

Owns the way from handles and bytes to one write.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from tidelake.errors import BlobNotFound, UsageError
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.shard.engine.shard import Shard
from tidelake.shard.writing import committing
from tidelake.shard.writing.batch import Batch, decode_batch
from tidelake.shard.writing.uploads import Handles, Uploads
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.narrowing import narrowed
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import Appended, Exactly, UpTo, When, Write, left_out


def append_batches(
    shard: Shard,
    batches: Sequence[Batch],
    lower: Frontier,
    upper: Frontier,
    idempotency: IdempotencyKey | None = None,
) -> Appended:
    """Add the updates of the batches in `[lower, upper)` iff the shard's upper equals `lower`. One log write.

    After a success the batches are used. After a refusal they are the caller's as before, and may be tried
    again. If the store certainly failed, or a part of a batch is in already, they are the caller's too, but
    their parts are never deleted by the handles. After any other error they count as used, since they may be
    in.

    Batches that came as bytes cost one more log scan, and one read for each stored part. A batch is taken
    once, however many copies of it exist, and whatever became of its rows since: see `append_uploaded`.

    Args:
        shard: the shard to append to.
        batches: the batches, each of which must cover the interval.
        lower: lower of the interval.
        upper: upper of the interval.
        idempotency: the claim of a writer, if one appends.

    Raises:
        InvalidBatchBounds: a batch does not cover the interval; names both.
        BatchConsumed: a batch was used before.
        AlreadyTaken: a batch, or a copy of it, is in.
        UpperMismatch: the upper is another one.
        UsageError: a batch is another shard's, or given twice.
    """
    check_own(shard, batches)
    with Handles(shard, batches) as handles:
        left = [narrowed(batch.hollow, lower, upper) for batch in batches]
        runs = tuple(run for narrow in left for run in narrow.runs)
        answer = _offered(shard, handles, runs, Exactly(lower, upper), idempotency)
    if not answer.already:
        for batch, narrow in zip(batches, left, strict=True):
            handles.drop(batch, narrow.dropped)
    return answer


def append_batch(shard: Shard, batch: Batch, idempotency: IdempotencyKey | None = None) -> Appended:
    """Add the updates of a batch at times that are still open, for writers of identical data. One log write.

    If the shard's upper is at or past the batch's, this succeeds without writing: another writer was first,
    and the batch's own parts are deleted. Otherwise the answer says which times were written. In both cases
    the batch is used; after an error, see `append_batches`.

    Raises:
        UpperMismatch: the shard's upper has not reached the batch's lower. Nothing was written.
        BatchConsumed: it was used before.
        UsageError: it belongs to another shard.
    """
    check_own(shard, [batch])
    with Handles(shard, [batch]) as handles:
        hollow = batch.hollow
        when = UpTo(hollow.bounds.lower, hollow.bounds.upper)
        answer = _offered(shard, handles, hollow.runs, when, idempotency)
    if answer.already and idempotency is None:
        batch.discard()
    elif not answer.already:
        late = (part for part in hollow.parts() if left_out(part, answer.lower, shard.spec.domain))
        handles.drop(batch, tuple(late))
    return answer


def check_own(shard: Shard, batches: Sequence[Batch]) -> None:
    """Refuse objects that are not batches of this shard, and batches that are given twice.

    Raises:
        UsageError: one is refused.
    """
    for batch in batches:
        if not isinstance(batch, Batch):
            raise UsageError(f"a {type(batch).__name__} is no batch: use builder().finish(upper)")
        if batch.shard_id != shard.spec.shard_id:
            raise UsageError(
                f"a batch for shard {batch.shard_id} cannot be appended to {shard.spec.shard_id}: "
                "append it to the collection that it was written for"
            )
    check_once([name for batch in batches for name in batch.part_names], "a batch")


def _offered(
    shard: Shard, handles: Handles, runs: tuple[Run, ...], when: When, idempotency: IdempotencyKey | None
) -> Appended:
    """Append runs of batches. The state remembers the batches, and takes neither them nor copies again."""
    parts = tuple(part for batch in handles.batches for part in batch.hollow.parts())
    sent = [part for batch in handles.batches if batch.sent for part in batch.hollow.parts()]
    if sent:
        shard.state()
    write = Write((), when, idempotency, offered=parts)
    known = committing.foreseen(shard, write)
    if known is not None and known.already:
        # The writer's number is in, perhaps with these very parts, so they stay.
        return known
    check_stored(shard, sent)
    with Uploads(shard, runs, owned=False) as handles.uploads:
        return committing.append(shard, handles.uploads, write)


def check_stored(shard: Shard, sent: Sequence[Part]) -> None:
    """Refuse parts of batches that came as bytes, if a part is no longer in the store. One read each.

    Raises:
        UsageError: a part is gone.
    """
    for part in sent:
        if part.inline is not None:
            continue
        try:
            shard.stores.blobs.get(part.name, 0, 1)
        except BlobNotFound as error:
            message = f"a copy of this batch was appended before, or deleted: part {part.name} is gone"
            raise UsageError(message) from error


def append_uploaded(
    shard: Shard,
    uploads: Sequence[bytes],
    lower: Frontier,
    upper: Frontier,
    idempotency: IdempotencyKey | None = None,
    *,
    advance: bool = False,
    seen: Seen | None = None,
) -> Appended:
    """Add uploads of workers, in one command. Errors as `compare_and_append`.

    With `advance`, times before `lower` become `lower`; times must be single numbers then. Nothing is
    rewritten in the store: the description of each part records the change. `seen` is the contents that the
    uploads depend on, if any.

    Unlike `append_batches`, this refuses times outside the interval. After a conflict the same uploads may be
    tried again at another frontier, if their times allow. Uploads that are never appended stay in the store
    until garbage collection finds them.

    An upload is taken once: `AlreadyTaken` if one of them is in, even if its rows were merged or rewritten
    since. The state remembers the names of uploads for as long as an upload may take (`upload_age_s`); after
    that it refuses an upload because of its age (`UploadExpired`).
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
    parts = tuple(part for run in runs for part in run.parts)
    with Uploads(shard, runs, owned=False) as offer:
        return committing.append(shard, offer, Write((), Exactly(lower, upper), idempotency, seen, parts))


def uploaded(shard: Shard, uploads: Sequence[bytes]) -> tuple[tuple[Run, ...], Frontier]:
    """The runs of uploads, and a frontier: all their times were checked to be at or after it."""
    found = [decode_batch(shard.spec, data) for data in uploads if data]
    checked = Frontier.of(shard.spec.domain.minimum)
    if found:
        checked = reduce(Frontier.meet, (upload.bounds.lower for upload in found))
    return _all_runs(found), checked


def _all_runs(found: Sequence[HollowBatch]) -> tuple[Run, ...]:
    runs = tuple(run for upload in found for run in upload.runs)
    check_once([part.name for run in runs for part in run.parts], "an upload")
    return runs


def _advanced(shard: Shard, runs: tuple[Run, ...], lower: Frontier) -> tuple[Run, ...]:
    """The runs with times before `lower` moved to `lower`; parts without such times stay as they are."""
    if not shard.spec.domain.total_order:
        raise UsageError(f"times of {shard.spec.domain} cannot be advanced: they have no total order")

    def moved(part: Part) -> Part:
        if lower.closed or lower.less_equal(part.seen_times[0]):
            return part
        return replace(part, rewrite=lower.elements[0])

    return tuple(replace(run, parts=tuple(map(moved, run.parts))) for run in runs)


def check_once(names: Sequence[str], what: str) -> None:
    """Refuse a list of part names that has duplicates. `what` names the thing in the message.

    Raises:
        UsageError: a name occurs twice.
    """
    if len(set(names)) < len(names):
        raise UsageError(f"{what} is given twice: give each once")

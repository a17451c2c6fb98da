"""Appending batches that were built before: here, or by other processes.

Owns the way from handles and bytes to one append command, and who answers for the parts afterwards: the
state if the append is in, the caller if it was refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

from tidelake.errors import AlreadyTaken, BlobNotFound, Closed, StoreUnavailable, UsageError
from tidelake.model.batch import HollowBatch, Part, Run
from tidelake.model.frontier import Frontier
from tidelake.shard.asked import Done
from tidelake.shard.runs.upload import discard
from tidelake.shard.shard import Shard
from tidelake.shard.writing import single
from tidelake.shard.writing.append import REFUSALS, commit, settle
from tidelake.shard.writing.batch import Batch, decode_batch
from tidelake.state.append import Appended, Claim, Exactly, UpTo, When, append, left_out
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
    keeps: bool = True,
) -> Appended:
    """Add what the batches hold of `[lower, upper)` iff the shard's upper equals `lower`. One log write.

    What depends on contents says what it has `seen` of them, and does not keep what is refused for another
    attempt.

    After a success the batches are used. After a refusal they are the caller's as before, and may be
    offered again. If the store certainly failed, or a part of one is in already, they stay the caller's too,
    but their parts are left alone; after any other error they count as used, since they may be in.

    Batches that came as bytes cost a log scan more, and a look at each stored part. A batch is taken once,
    whoever has a copy of it, whatever is left of it since: see `append_uploaded`.

    Raises:
        InvalidBatchBounds: a batch does not cover the interval; names both.
        BatchConsumed: a batch was used before.
        AlreadyTaken: a batch is in, or a copy of it.
        UpperMismatch: the upper is another one.
        UsageError: a batch is another shard's, or given twice.
    """
    check_own(shard, batches)
    with _Offer(shard, batches, keeps=keeps) as offer:
        left = [narrowed(batch.hollow, lower, upper) for batch in batches]
        runs = tuple(run for narrow in left for run in narrow.runs)
        when = Exactly(lower, upper)
        answer = _offered(shard, offer, runs, when, claim, seen=seen, keeps=keeps)
    if not answer.already:
        # What a copy leaves out may be what another one is appended for.
        dropped = [
            Run(narrow.dropped)
            for batch, narrow in zip(batches, left, strict=True)
            if narrow.dropped and not batch.sent
        ]
        discard(shard.stores.blobs, shard.env, dropped)
    return answer


def append_batch(shard: Shard, batch: Batch, claim: Claim | None = None) -> Appended:
    """Add what is still open of a batch, for writers that all write the same data. One log write.

    If the shard's upper is at or past the batch's, that is success without writing: another writer was
    first, and the batch's own parts are deleted. Otherwise the answer says which times were written. In
    both cases the batch is used; after an error as with `append_batches`.

    Raises:
        UpperMismatch: the shard's upper has not reached the batch's lower. Nothing was written.
        BatchConsumed: it was used before.
        UsageError: it is another shard's.
    """
    check_own(shard, [batch])
    with _Offer(shard, [batch]) as offer:
        hollow = batch.hollow
        when = UpTo(hollow.bounds.lower, hollow.bounds.upper)
        answer = _offered(shard, offer, hollow.runs, when, claim)
    domain = shard.spec.domain
    if answer.already and claim is None:
        batch.discard()
    elif not answer.already and not batch.sent:
        late = tuple(part for part in hollow.parts() if left_out(part, answer.lower, domain))
        discard(shard.stores.blobs, shard.env, [Run(late)] if late else [])
    return answer


def check_own(shard: Shard, batches: Sequence[Batch]) -> None:
    """Refuse what is no batch of a shard, or is given twice.

    Raises:
        UsageError: one is.
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
    shard: Shard,
    offer: "_Offer",
    runs: tuple[Run, ...],
    when: When,
    claim: Claim | None,
    *,
    seen: Seen | None = None,
    keeps: bool = True,
) -> Appended:
    """Append runs of batches, which the state remembers: it takes neither them nor copies of them again."""
    parts = tuple(part for batch in offer.batches for part in batch.hollow.parts())
    sent = [part for batch in offer.batches if batch.sent for part in batch.hollow.parts()]
    if sent:
        shard.state()
    command = partial(append, runs=(), when=when, claim=claim, seen=seen, offered=parts)
    known = single.preview(shard, command, claim, parts)
    if known is not None and known.already:
        # A number that is in: what is offered may be what is in, and stays.
        return known
    check_stored(shard, sent)
    limit = shard.spec.config.inline_total_bytes

    def attempt(offered: tuple[Run, ...]) -> Done[Appended]:
        offer.tried = True
        write = single.an_append(
            offered, when, claim, inline_bytes_max=limit, seen=seen, offered=parts, keeps=keeps
        )
        return single.carry_out(shard, write)

    return settle(shard, runs, attempt)


class _Offer:
    """The batches of one append: used by it, or given back if it is refused."""

    def __init__(self, shard: Shard, batches: Sequence[Batch], *, keeps: bool = True) -> None:
        self.batches = batches
        self._shard, self._keeps = shard, keeps
        self._taken: list[Batch] = []
        self.tried = False

    def __enter__(self) -> "_Offer":
        try:
            for batch in self.batches:
                batch.take(_USED)
                self._taken.append(batch)
        except BaseException:
            self._give_back(offered=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # SUBTLE: only a refusal by the state makes it certain that parts may be deleted, or that the lake was
        # closed: what a lake lets in it answers.
        if error is not None and (not self.tried or isinstance(error, (*REFUSALS, Closed))):
            # In a group it stays staged, for another attempt, until that comes or it is too old.
            self._give_back(offered=self._keeps and self.tried and bool(self._shard.known().group))
        elif isinstance(error, StoreUnavailable | AlreadyTaken):
            self._give_back(offered=True)

    def _give_back(self, *, offered: bool) -> None:
        for batch in self._taken:
            batch.give_back(offered=offered)


def check_stored(shard: Shard, sent: Sequence[Part]) -> None:
    """Refuse parts that came as bytes and that somebody has deleted.

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

    An upload is taken once: `AlreadyTaken` if one of them is in, also where its rows were merged or written
    again since. The state remembers its name for as long as an upload may take (`upload_age_s`), and
    refuses it for its age (`UploadExpired`) after that.
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
    when = Exactly(lower, upper)
    attempt = partial(commit, shard, when, claim, as_now=False, seen=seen, offered=parts)
    return settle(shard, runs, attempt)


def uploaded(shard: Shard, uploads: Sequence[bytes]) -> tuple[tuple[Run, ...], Frontier]:
    """The runs of uploads, and a frontier that all their times were checked to lie beyond."""
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
    """The runs with all times at or after `lower`; those that are so anyway stay as they are."""
    if not shard.spec.domain.total_order:
        raise UsageError(f"times of {shard.spec.domain} cannot be advanced: they have no total order")

    def moved(part: Part) -> Part:
        if lower.closed or lower.less_equal(part.seen_times[0]):
            return part
        return replace(part, rewrite=lower.elements[0])

    return tuple(replace(run, parts=tuple(map(moved, run.parts))) for run in runs)


def discard_uploaded(shard: Shard, uploads: Sequence[bytes]) -> None:
    """Delete the parts of uploads that were never offered to an append."""
    runs = [run for data in uploads if data for run in decode_batch(shard.spec, data).runs]
    discard(shard.stores.blobs, shard.env, runs)


def check_once(names: Sequence[str], what: str) -> None:
    """Refuse names of parts of which one is there twice.

    Raises:
        UsageError: one is.
    """
    if len(set(names)) < len(names):
        raise UsageError(f"{what} is given twice: give each once")

"""Appending batches that were built before: here, or by other processes.

Owns the way from handles and bytes to one append command, and who answers for the parts afterwards: the
state if the append is in, the caller if it was refused.
"""

from collections.abc import Sequence
from functools import partial

from tidelake.errors import StoreUnavailable, UsageError
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.shard.append import REFUSALS, commit, settle
from tidelake.shard.batch import Batch, decode_batch
from tidelake.shard.shard import Shard
from tidelake.shard.upload import discard
from tidelake.state.append import Appended, Claim, Exactly, When, append
from tidelake.state.commands import Commit, Outcome, Refused
from tidelake.state.narrowing import narrowed
from tidelake.state.state import ShardState

_USED = "appended"


def append_batches(
    shard: Shard, batches: Sequence[Batch], lower: Frontier, upper: Frontier, claim: Claim | None = None
) -> Appended:
    """Add what the batches hold of `[lower, upper)` iff the shard's upper equals `lower`. One log write.

    After a success the batches are used. After a refusal they are the caller's as before, and may be
    offered again. If the store certainly failed they may be offered again too; after any other error
    they count as used, since they may be in.

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
        # Of bytes there may be copies, and one of them may be in.
        sent = frozenset(name for batch in batches if batch.sent for name in batch.part_names)
        command = partial(_append_new, when=Exactly(lower, upper), claim=claim, sent=sent)
        known = shard.preview(partial(command, runs=()))
        if known is not None and known.already:
            # A number that is in: what is offered may be what is in, and stays.
            return known
        offer.tried = True
        limit = shard.spec.config.inline_total_bytes
        answer = settle(
            shard,
            tuple(run for narrow in left for run in narrow.runs),
            lambda runs: shard.carry_out(partial(command, runs=runs, inline_bytes_max=limit)),
        )
    if not answer.already:
        dropped = [Run(narrow.dropped) for narrow in left if narrow.dropped]
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


def _append_new(
    state: ShardState,
    now_ms: int,
    *,
    runs: tuple[Run, ...],
    when: When,
    claim: Claim | None,
    sent: frozenset[str],
    inline_bytes_max: int | None = None,
) -> Outcome[Appended]:
    """Append, unless one of the parts in `sent` is in already. Looks at the whole state if there are any."""
    outcome = append(state, now_ms, runs, when, claim, inline_bytes_max=inline_bytes_max)
    if sent and isinstance(outcome, Commit):
        known = sent.intersection(part.name for item in state.spine for part in item.batch.parts())
        if known:
            return Refused(
                UsageError(f"a copy of this batch was appended before: part {min(known)} is in already")
            )
    return outcome


def append_uploaded(
    shard: Shard, uploads: Sequence[bytes], lower: Frontier, upper: Frontier, claim: Claim | None = None
) -> Appended:
    """Add what workers uploaded, in one command. Errors as `compare_and_append`.

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
    runs = tuple(run for upload in found for run in upload.runs)
    _check_once([part.name for run in runs for part in run.parts], "an upload")
    return settle(shard, runs, partial(commit, shard, Exactly(lower, upper), claim, as_now=False))


def _check_once(names: list[str], what: str) -> None:
    if len(set(names)) < len(names):
        raise UsageError(f"{what} is given twice: give each once")

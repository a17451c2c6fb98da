"""Stages tables: uploads parts first, then runs one command that keeps the parts beside the spine.

Stages never conflict with each other: a stage is refused only if one of its times is closed. A refused stage
deletes its parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidelake.data.given import as_table
from tidelake.errors import InlineFull, UploadExpired, UpperMismatch
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.shard.requests import Done
from tidelake.shard.runs.upload import check_times, discard, normalized, stored, write_table
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.tending import make_room, tend_if_due
from tidelake.shard.writing import single
from tidelake.shard.writing.append import REFUSALS, UPLOADS_MAX, under_newest_schema, with_fingerprint
from tidelake.shard.writing.batches import uploaded
from tidelake.state import append as commands
from tidelake.state.append import Appended
from tidelake.state.idempotency import IdempotencyKey


def stage(shard: Shard, updates: object, idempotency: IdempotencyKey | None = None) -> bool:
    """Keep updates at open times: they are durable at once, and visible when their times are closed.

    One log write, and one `put` for each part that is not inline.

    Returns:
        False if nothing was written: there are no rows, or the claim's number is in.

    Raises:
        UpdateBeforeLower: a time is closed; nothing was written.
        UpperMismatch: all times are closed for good.
        InvalidUpdates: the table does not fit the collection.
    """
    given = as_table(updates)
    return under_newest_schema(shard, lambda spec: _stage(shard, spec, given, idempotency))


def _stage(shard: Shard, spec: ShardSpec, given: pa.Table, idempotency: IdempotencyKey | None) -> bool:
    table = normalized(spec, given)
    idempotency = with_fingerprint(idempotency, table)
    known = (
        single.preview(shard, partial(commands.already_in, idempotency=idempotency), idempotency)
        if idempotency
        else None
    )
    if known is not None:
        return False
    # With a claim and outside a group, the preview has just read the newest state.
    checked = (shard.known() if idempotency and not shard.known().group else shard.version()).upper
    if checked.closed:
        raise UpperMismatch("any frontier", checked)
    check_times(table, spec.domain, checked, None)
    Drainer(shard).make_room()
    attempt = partial(_commit, shard, table, checked, idempotency)
    for _ in range(UPLOADS_MAX - 1):
        try:
            return offer_staged(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)
        except UploadExpired:
            # The refusal was made on the newest state, which the next upload names.
            spec = replace(spec, seqno=shard.known().seqno)
    return offer_staged(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)


def stage_uploaded(
    shard: Shard,
    uploads: Sequence[bytes],
    idempotency: IdempotencyKey | None = None,
    seal_to: Frontier | None = None,
) -> bool:
    """Stage uploads of workers, in one command; see `stage`. One log scan and one log write.

    With `seal_to`, the same command also closes all times before it, as `seal`; the staged rows before it are
    included.

    Uploads that are refused or not needed stay in the store until garbage collection finds them, since they
    may have been offered before. Times that are tuples must be checked by the uploader, against a lower that
    is still open.

    Raises:
        UpdateBeforeLower: a time is closed; nothing was written.
        UpperMismatch: times are tuples, and some were closed since the uploader was made; or all are closed.
    """
    runs, checked = uploaded(shard, uploads)
    shard.alive()
    Drainer(shard).make_room()
    parts = tuple(part for run in runs for part in run.parts)
    limit = shard.spec.config.inline_total_bytes

    def attempt(offered: tuple[Run, ...]) -> Done[bool]:
        write = single.a_stage(
            offered, checked, idempotency, inline_bytes_max=limit, seal_to=seal_to, offered=parts
        )
        return single.carry_out(shard, write)

    try:
        done = attempt(runs)
    except InlineFull:
        done = attempt(stored(shard.version_of(shard.known()).spec, shard.stores.blobs, shard.env, runs))
    tend_if_due(shard, done)
    return done.result


def offer_staged(shard: Shard, runs: tuple[Run, ...], attempt: Callable[[tuple[Run, ...]], bool]) -> bool:
    """Stage uploaded runs; delete them if they are certainly in no state, as `append.offer` does."""
    try:
        try:
            kept = attempt(runs)
        except InlineFull:
            make_room(shard)
            # Only inline parts are replaced, and those are in no store, so nothing is left behind.
            runs = stored(shard.version_of(shard.known()).spec, shard.stores.blobs, shard.env, runs)
            kept = attempt(runs)
    except REFUSALS:
        discard(shard.stores.blobs, shard.env, runs)
        raise
    if not kept:
        discard(shard.stores.blobs, shard.env, runs)
    return kept


def _commit(
    shard: Shard,
    table: pa.Table,
    checked: Frontier,
    idempotency: IdempotencyKey | None,
    runs: tuple[Run, ...],
) -> bool:
    limit = shard.spec.config.inline_total_bytes
    while True:
        try:
            return single.carry_out(
                shard, single.a_stage(runs, checked, idempotency, inline_bytes_max=limit, as_now=True)
            ).result
        except UpperMismatch as error:
            # If times are tuples, the parts do not tell whether one was closed meanwhile; the rows do.
            checked = shard.last_version().upper
            if checked.closed:
                raise UpperMismatch("any frontier", checked) from error
            check_times(table, shard.spec.domain, checked, None)


def seal(shard: Shard, upper: Frontier, idempotency: IdempotencyKey | None = None) -> Appended:
    """Close all times before a frontier. Closed times stay closed. One log write.

    Updates that are staged at these times become visible at once. If they share parts with updates at later
    times, maintenance separates them; this call does a little of that work.
    """
    done = single.carry_out(shard, single.a_seal(upper, idempotency))
    tend_if_due(shard, done)
    return done.result

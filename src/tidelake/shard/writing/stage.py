"""Staging tables: upload first, then one command that keeps the parts beside the spine.

Stagers never conflict: a stage is refused only for times that are closed. Nothing is uploaded twice; what a
closed time refuses is deleted.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidelake.data.ingest import as_table
from tidelake.errors import InlineFull, UploadExpired, UpperMismatch
from tidelake.model.batch import Run
from tidelake.model.frontier import Frontier
from tidelake.shard.asked import Done
from tidelake.shard.runs.upload import check_times, discard, normalized, stored, write_table
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.drainer import Drainer
from tidelake.shard.upkeep.maintain import make_room, tend_if_due
from tidelake.shard.writing import single
from tidelake.shard.writing.append import REFUSALS, UPLOADS_MAX, under_newest_schema
from tidelake.shard.writing.batches import uploaded
from tidelake.state import append as commands
from tidelake.state.append import Appended, Claim


def stage(shard: Shard, updates: object, claim: Claim | None = None) -> bool:
    """Keep updates at open times: durable at once, seen when their times are closed.

    One log write, and one `put` a part that is not tiny.

    Returns:
        False if nothing had to be kept: there are no rows, or the claim's number is in.

    Raises:
        UpdateNotBeyondLower: a time is closed; nothing is kept.
        UpperMismatch: all times are closed for good.
        InvalidUpdates: the table does not fit the collection.
    """
    given = as_table(updates)
    return under_newest_schema(shard, lambda spec: _stage(shard, spec, given, claim))


def _stage(shard: Shard, spec: ShardSpec, given: pa.Table, claim: Claim | None) -> bool:
    known = single.preview(shard, partial(commands.claimed, claim=claim), claim) if claim else None
    if known is not None:
        return False
    table = normalized(spec, given)
    # Whether the number is in was asked of the newest state.
    checked = (shard.known() if claim and not shard.known().group else shard.readable()).upper
    if checked.closed:
        raise UpperMismatch("any frontier", checked)
    check_times(table, spec.domain, checked, None)
    Drainer(shard).make_room()
    attempt = partial(_commit, shard, table, checked, claim)
    for _ in range(UPLOADS_MAX - 1):
        try:
            return offer_staged(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)
        except UploadExpired:
            # The refusal was made on the newest state, which the next upload names.
            spec = replace(spec, seqno=shard.known().seqno)
    return offer_staged(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)


def stage_uploaded(
    shard: Shard, uploads: Sequence[bytes], claim: Claim | None = None, seal_to: Frontier | None = None
) -> bool:
    """Stage what workers uploaded, in one command; see `stage`. One log scan and one log write.

    The same command closes all times before `seal_to`, as `seal`; rows before it that are still open count.

    Uploads that are refused, or not needed, stay in the store until collection finds them: they may have been
    offered before. Times of tuples are to be checked by the uploader, against a lower that is still open.

    Raises:
        UpdateNotBeyondLower: a time is closed; nothing is kept.
        UpperMismatch: times of tuples were closed since the uploader was made; or all times are.
    """
    runs, checked = uploaded(shard, uploads)
    shard.alive()
    Drainer(shard).make_room()
    parts = tuple(part for run in runs for part in run.parts)
    limit = shard.spec.config.inline_total_bytes

    def attempt(offered: tuple[Run, ...]) -> Done[bool]:
        write = single.a_stage(
            offered, checked, claim, inline_bytes_max=limit, seal_to=seal_to, offered=parts
        )
        return single.carry_out(shard, write)

    try:
        done = attempt(runs)
    except InlineFull:
        done = attempt(stored(shard.spec, shard.stores.blobs, shard.env, runs))
    tend_if_due(shard, done)
    return done.result


def offer_staged(shard: Shard, runs: tuple[Run, ...], attempt: Callable[[tuple[Run, ...]], bool]) -> bool:
    """Stage uploaded runs; they are deleted if they certainly did not get in, as by `append.offer`."""
    try:
        try:
            kept = attempt(runs)
        except InlineFull:
            make_room(shard)
            # What was inline is in no store, so nothing is left behind.
            runs = stored(shard.spec, shard.stores.blobs, shard.env, runs)
            kept = attempt(runs)
    except REFUSALS:
        discard(shard.stores.blobs, shard.env, runs)
        raise
    if not kept:
        discard(shard.stores.blobs, shard.env, runs)
    return kept


def _commit(
    shard: Shard, table: pa.Table, checked: Frontier, claim: Claim | None, runs: tuple[Run, ...]
) -> bool:
    limit = shard.spec.config.inline_total_bytes
    while True:
        try:
            return single.carry_out(
                shard, single.a_stage(runs, checked, claim, inline_bytes_max=limit)
            ).result
        except UpperMismatch as error:
            # Of tuples the parts do not tell whether a time was closed meanwhile; the rows do.
            checked = shard.last_readable().upper
            if checked.closed:
                raise UpperMismatch("any frontier", checked) from error
            check_times(table, shard.spec.domain, checked, None)


def seal(shard: Shard, upper: Frontier, claim: Claim | None = None) -> Appended:
    """Close all times before a frontier; those that are closed already stay so. One log write.

    What is staged for them is seen at once. Where it is mixed with what is staged for later, maintenance
    parts the two; a little of it is done here.
    """
    done = single.carry_out(shard, single.a_seal(upper, claim))
    tend_if_due(shard, done)
    return done.result

"""Appending tables: upload first, then one command that adds the parts and moves `upper`.

The parts of a refused append are deleted, since it is certain that they are not in. After any other
error it is not certain, and they stay.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa

from tidelake.data.fingerprint import fingerprint
from tidelake.data.ingest import as_table
from tidelake.errors import (
    CollectionDropped,
    CollectionInGroup,
    IncompatibleSchema,
    InlineFull,
    InvalidUpdates,
    LeftGroup,
    TidelakeError,
    UpdateBeyondUpper,
    UpdateNotBeyondLower,
    UploadExpired,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model import time as times
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.shard.asked import Done
from tidelake.shard.runs.upload import check_times, discard, normalized, stored, time_range, write_table
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.maintain import admit, make_room, tend_if_due
from tidelake.shard.writing import single
from tidelake.state.append import Appended, AtCommit, Claim, Exactly, UpTo, When, claimed, expected
from tidelake.state.staging import Seen
from tidelake.state.state import ShardState

# What only the state says: that an append is certainly not in. A `UsageError` may come from anywhere.
REFUSALS = (
    CollectionInGroup,
    LeftGroup,
    UpperMismatch,
    WriterFenced,
    UpdateNotBeyondLower,
    UpdateBeyondUpper,
    UploadExpired,
    CollectionDropped,
    IncompatibleSchema,
)


# An upload that is given up is made anew, so many times in all.
UPLOADS_MAX = 4

R = TypeVar("R")
Attempt: TypeAlias = Callable[[tuple[Run, ...]], Done[Appended]]


def compare_and_append(
    shard: Shard, updates: object, lower: Frontier, upper: Frontier, claim: Claim | None = None
) -> Appended:
    """Add all updates of `[lower, upper)` iff the shard's upper equals `lower`.

    Raises:
        UpperMismatch: it does not; nothing was written.
        UpdateNotBeyondLower, UpdateBeyondUpper: a time lies outside the interval.
        InvalidUpdates: the table does not fit the collection.
    """
    return _append_within(shard, as_table(updates), Exactly(lower, upper), claim)


def append_up_to(
    shard: Shard, updates: object, lower: Frontier, upper: Frontier, claim: Claim | None = None
) -> Appended:
    """Add what is still open of `[lower, upper)`, for writers that all write the same data.

    Success without writing if the shard's upper is already past `upper`; errors as
    `compare_and_append`, and `UpperMismatch` if the shard's upper has not reached `lower`.
    """
    return _append_within(shard, as_table(updates), UpTo(lower, upper), claim)


def _append_within(shard: Shard, given: pa.Table, when: Exactly | UpTo, claim: Claim | None) -> Appended:
    def attempt(spec: ShardSpec) -> Appended:
        table = normalized(spec, given)
        check_times(table, spec.domain, when.lower, when.upper)
        return _append(shard, spec, table, when, claim)

    return under_newest_schema(shard, attempt)


def append_rows(
    shard: Shard, updates: object, upper: Frontier | None = None, claim: Claim | None = None
) -> Appended:
    """Add updates from the shard's present upper on, whatever it is.

    Without a time column all rows get one time, picked at the commit: `upper` of a counter, and for a
    clock the wall clock if that is later. With one, `upper` moves to the given frontier or just past
    the last time. A conflict with another writer is tried again, without another upload, as long as
    no time has fallen below the new upper.
    """
    domain = shard.spec.domain
    given = as_table(updates)
    if set(domain.columns) & set(given.column_names):
        return under_newest_schema(shard, lambda spec: _append_timed(shard, spec, given, upper, claim))
    if upper is not None:
        raise UsageError(
            f"upper={upper} needs times: add the column {', '.join(domain.columns)}, or leave it out"
        )

    def attempt(spec: ShardSpec) -> Appended:
        floor = commit_floor(shard, shard.readable())
        return _append(shard, spec, normalized(spec, given, floor), AtCommit(floor), claim)

    return under_newest_schema(shard, attempt)


def _append_timed(
    shard: Shard, spec: ShardSpec, given: pa.Table, upper: Frontier | None, claim: Claim | None
) -> Appended:
    table = normalized(spec, given)
    claim = _of_rows(claim, table)
    lower = shard.readable().upper
    # The claim first: the times of an append that is in lie below the upper that it made.
    known = single.preview(shard, partial(claimed, claim=claim), claim) if claim else None
    if known is not None:
        return known
    end = _end(shard, table, upper)
    check_times(table, spec.domain, lower, end)
    return _upload(shard, spec, table, partial(_append_at_upper, shard, table, end, claim))


def under_newest_schema(shard: Shard, attempt: Callable[[ShardSpec], R]) -> R:
    """An append, tried again if the schema under which it was refused is not the newest one.

    SUBTLE: what is caught here says that nothing was written: the table did not fit, or the state refused.
    """
    while True:
        spec = shard.spec
        try:
            return attempt(spec)
        except (InvalidUpdates, IncompatibleSchema):
            shard.state()
            if shard.spec.schema_id == spec.schema_id:
                raise


def _append_at_upper(
    shard: Shard, table: pa.Table, end: Frontier, claim: Claim | None, runs: tuple[Run, ...]
) -> Done[Appended]:
    """Offer uploaded runs at the present upper until nobody else is faster."""

    def within(lower: Frontier) -> Exactly:
        check_times(table, shard.spec.domain, lower, end)
        # Without rows there may be nothing left to close, but a claim is still to be recorded.
        return Exactly(lower, lower if end <= lower and not table.num_rows else end)

    while True:
        at_upper = within(shard.readable().upper)
        limit = shard.spec.config.inline_total_bytes
        write = single.an_append(runs, at_upper, claim, inline_bytes_max=limit, as_now=True)
        try:
            # In a group it is worked out again without being refused first.
            return single.carry_out(shard, single.at_any_upper(write, within))
        except UpperMismatch:
            continue


def _end(shard: Shard, table: pa.Table, upper: Frontier | None) -> Frontier:
    if upper is not None:
        return upper
    if not shard.spec.domain.total_order:
        raise UsageError(f"times of {shard.spec.domain} have no single last one: give upper=[...]")
    ends = time_range(table, shard.spec.domain)
    if ends is None:
        return shard.readable().upper
    return past_last(ends[1])


def past_last(time: Time) -> Frontier:
    """The upper after an append whose last time this is.

    Raises:
        UsageError: there is no later time.
    """
    end = Frontier.past(time)
    if end.closed:
        raise UsageError(
            f"time {time} is the last there is, and appending it closes the collection for good: "
            "give upper=[] if that is meant"
        )
    return end


def commit_floor(shard: Shard, state: ShardState) -> Time:
    """The earliest time that an append without times may get now.

    Raises:
        UsageError: times are tuples.
        UpperMismatch: the collection is closed for good.
    """
    domain = shard.spec.domain
    if not domain.total_order:
        raise UsageError(
            f"times of {domain} have no commit time: add the columns {', '.join(domain.columns)}"
        )
    if state.upper.closed:
        raise UpperMismatch("any frontier", state.upper)
    now_ms = shard.env.clock.now_ms()
    now = {"ms": now_ms, "us": now_ms * 1000}.get(domain.unit, 0)
    return times.join(state.upper.elements[0], now)


def _of_rows(claim: Claim | None, table: pa.Table, without: tuple[str, ...] = ()) -> Claim | None:
    """The claim of an append that says which rows it was made of, if it does not say what of."""
    if claim is None or claim.content:
        return claim
    return replace(claim, content=fingerprint(table, without))


def _append(shard: Shard, spec: ShardSpec, table: pa.Table, when: When, claim: Claim | None) -> Appended:
    # A time that was picked at the commit is another one when it is tried again.
    claim = _of_rows(claim, table, spec.domain.columns if isinstance(when, AtCommit) else ())
    # Asked before the upload, so that a writer that is behind or fenced does not upload in vain.
    known = single.preview(shard, partial(expected, when=when, claim=claim), claim)
    if known is not None and known.already:
        return known
    return _upload(shard, spec, table, partial(commit, shard, when, claim))


def _upload(shard: Shard, spec: ShardSpec, table: pa.Table, attempt: Attempt) -> Appended:
    """Upload and append; anew if the upload is given up.

    It was as old as what this handle knew, or staged in a group that the collection has left.
    """
    for _ in range(UPLOADS_MAX - 1):
        try:
            return offer(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)
        except UploadExpired:
            # The refusal was made on the newest state, which the next upload names.
            spec = replace(spec, seqno=shard.known().seqno)
    return offer(shard, write_table(spec, shard.stores.blobs, shard.env, table), attempt)


def commit(
    shard: Shard,
    when: When,
    claim: Claim | None,
    runs: tuple[Run, ...],
    *,
    as_now: bool = True,
    seen: Seen | None = None,
    offered: tuple[Part, ...] = (),
) -> Done[Appended]:
    """One attempt to append runs. One log write if it is the first.

    Raises:
        InlineFull: the state has no room for the inline parts among them.
        IncompatibleSchema: with `as_now`, a column of the runs was dropped since they were written.
    """
    limit = shard.spec.config.inline_total_bytes
    write = single.an_append(
        runs, when, claim, inline_bytes_max=limit, as_now=as_now, seen=seen, offered=offered
    )
    return single.carry_out(shard, write)


def offer(shard: Shard, runs: tuple[Run, ...], attempt: Attempt) -> Appended:
    """The answer of an attempt; the parts are deleted if they certainly did not get in.

    SUBTLE: only a refusal by the state makes that certain, or that nothing was tried. Any other error may
    have come after the commit, and a part that is in must never be deleted; one too many is found by
    collection.
    """
    tried = False

    def noted(offered: tuple[Run, ...]) -> Done[Appended]:
        nonlocal tried
        tried = True
        return attempt(offered)

    try:
        answer = settle(shard, runs, noted)
    except TidelakeError as error:
        if not tried or isinstance(error, REFUSALS):
            discard(shard.stores.blobs, shard.env, runs)
        raise
    if answer.already:
        discard(shard.stores.blobs, shard.env, runs)
    return answer


def settle(shard: Shard, runs: tuple[Run, ...], attempt: Attempt) -> Appended:
    """An attempt, with all that belongs to an append: room before it, and merges after it.

    If the state has no room for inline parts, those in it are merged into stored ones first; if that
    does not help, what is offered is stored.
    """
    waited_s = admit(shard)
    try:
        done = attempt(runs)
    except InlineFull:
        make_room(shard)
        try:
            done = attempt(runs)
        except InlineFull:
            done = _stored_first(shard, runs, attempt)
    tend_if_due(shard, done)
    return replace(done.result, waited_s=waited_s) if waited_s else done.result


def _stored_first(shard: Shard, runs: tuple[Run, ...], attempt: Attempt) -> Done[Appended]:
    moved = stored(shard.spec, shard.stores.blobs, shard.env, runs)
    before = {part.name for run in runs for part in run.parts}
    fresh = [Run((part,)) for run in moved for part in run.parts if part.name not in before]
    try:
        done = attempt(moved)
    except REFUSALS:
        discard(shard.stores.blobs, shard.env, fresh)
        raise
    if done.result.already:
        discard(shard.stores.blobs, shard.env, fresh)
    return done

"""Appends tables: uploads parts first, then runs one command that adds the parts and moves `upper`.

The parts of a refused append are deleted, since they are certainly in no state. After any other error they
may be in a state, so they stay.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

import pyarrow as pa

from tidelake.data.fingerprint import fingerprint
from tidelake.data.given import as_table
from tidelake.errors import (
    CollectionDropped,
    CollectionInGroup,
    IncompatibleSchema,
    InlineFull,
    InvalidUpdates,
    LeftGroup,
    TidelakeError,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UploadExpired,
    UpperMismatch,
    UsageError,
    WriterFenced,
)
from tidelake.model import time as times
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.shard.requests import Done
from tidelake.shard.runs.upload import check_times, discard, normalized, stored, time_range, write_table
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.shard.upkeep.tending import admit, make_room, tend_if_due
from tidelake.shard.writing import single
from tidelake.state.append import Appended, AtCommit, Exactly, UpTo, When, already_in, expected
from tidelake.state.idempotency import IdempotencyKey
from tidelake.state.leaping import leap
from tidelake.state.staging import Seen
from tidelake.state.state import ShardState

# Errors that only a state's refusal raises, so that the append is certainly not in. `UsageError` is not among
# them, since it may come from anywhere.
REFUSALS = (
    CollectionInGroup,
    LeftGroup,
    UpperMismatch,
    WriterFenced,
    UpdateBeforeLower,
    UpdateNotBeforeUpper,
    UploadExpired,
    CollectionDropped,
    IncompatibleSchema,
)


# The most uploads of one append: an upload that expired before its commit is made again.
UPLOADS_MAX = 4

R = TypeVar("R")
Attempt: TypeAlias = Callable[[tuple[Run, ...]], Done[Appended]]


def compare_and_append(
    shard: Shard, updates: object, lower: Frontier, upper: Frontier, idempotency: IdempotencyKey | None = None
) -> Appended:
    """Add all updates of `[lower, upper)` iff the shard's upper equals `lower`.

    Raises:
        UpperMismatch: the upper is another one; nothing was written.
        UpdateBeforeLower, UpdateNotBeforeUpper: a time lies outside the interval.
        InvalidUpdates: the table does not fit the collection.
    """
    return _append_within(shard, as_table(updates), Exactly(lower, upper), idempotency)


def append_up_to(
    shard: Shard, updates: object, lower: Frontier, upper: Frontier, idempotency: IdempotencyKey | None = None
) -> Appended:
    """Add the updates at the times of `[lower, upper)` that are still open, for writers of identical data.

    Succeeds without writing if the shard's upper is at or past `upper`. Errors as `compare_and_append`;
    `UpperMismatch` if the shard's upper has not reached `lower`.
    """
    return _append_within(shard, as_table(updates), UpTo(lower, upper), idempotency)


def _append_within(
    shard: Shard, given: pa.Table, when: Exactly | UpTo, idempotency: IdempotencyKey | None
) -> Appended:
    def attempt(spec: ShardSpec) -> Appended:
        table = normalized(spec, given)
        check_times(table, spec.domain, when.lower, when.upper)
        return _append(shard, spec, table, when, idempotency)

    return under_newest_schema(shard, attempt)


def append_rows(
    shard: Shard,
    updates: object,
    upper: Frontier | None = None,
    idempotency: IdempotencyKey | None = None,
    time: Time | None = None,
) -> Appended:
    """Add updates at or after the shard's current upper.

    Without a time column, all rows get `time`, or one that is picked at the commit: the shard's upper, or
    with clock times the wall clock if that is later. With times, `upper` moves to the given frontier, or just
    past the last time. After a conflict with another writer this tries again, without another upload, as long
    as no time of the rows is before the new upper.
    """
    domain = shard.spec.domain
    given = as_table(updates)
    if time is not None or set(domain.columns) & set(given.column_names):
        return under_newest_schema(
            shard, lambda spec: _append_timed(shard, spec, given, upper, idempotency, time=time)
        )
    if upper is not None:
        raise UsageError(
            f"upper={upper} needs times: give time=, add the column {', '.join(domain.columns)}, or leave it "
            "out"
        )

    def attempt(spec: ShardSpec) -> Appended:
        floor = commit_floor(shard, shard.version_to_write().state)
        return _append(shard, spec, normalized(spec, given, floor), AtCommit(floor), idempotency)

    return under_newest_schema(shard, attempt)


def _append_timed(
    shard: Shard,
    spec: ShardSpec,
    given: pa.Table,
    upper: Frontier | None,
    idempotency: IdempotencyKey | None,
    *,
    time: Time | None,
) -> Appended:
    table = normalized(spec, given, time)
    # The time of the call is no part of the rows: a retry at `now` has another one.
    idempotency = with_fingerprint(idempotency, table, () if time is None else spec.domain.columns)
    lower = shard.version_to_write().upper
    # Check the claim first: if the append is in already, its times are closed and `check_times` would refuse.
    known = (
        single.preview(shard, partial(already_in, idempotency=idempotency), idempotency)
        if idempotency
        else None
    )
    if known is not None:
        return known
    end = _end(shard, table, upper, time)
    check_times(table, spec.domain, lower, end)
    return _upload(shard, spec, table, partial(_append_at_upper, shard, table, end, idempotency))


def under_newest_schema(shard: Shard, attempt: Callable[[ShardSpec], R]) -> R:
    """Run an attempt; run it again if it was refused under a schema that is not the newest one.

    The attempt gets the spec of the newest known state, which saves a look at the log.

    SUBTLE: so its command must be refused if a column that it writes has another name by then (`as_now`). The
    errors caught here mean that nothing was written: the table did not fit, or the state refused.
    """
    while True:
        spec = shard.version_of(shard.known()).spec
        try:
            return attempt(spec)
        except (InvalidUpdates, IncompatibleSchema):
            if shard.state().schema_id == spec.schema_id:
                raise


def _append_at_upper(
    shard: Shard, table: pa.Table, end: Frontier, idempotency: IdempotencyKey | None, runs: tuple[Run, ...]
) -> Done[Appended]:
    """Try to append uploaded runs at the current upper, again after each conflict."""

    def within(lower: Frontier) -> Exactly:
        check_times(table, shard.spec.domain, lower, end)
        # Without rows all times before `end` may be closed; an empty append still records the claim.
        return Exactly(lower, lower if end <= lower and not table.num_rows else end)

    version = shard.version_to_write()
    while True:
        at_upper = within(version.upper)
        limit = shard.spec.config.inline_total_bytes
        write = single.an_append(runs, at_upper, idempotency, inline_bytes_max=limit, as_now=True)
        try:
            # In a group it is recomputed at the newest upper, without a refusal in between.
            return single.carry_out(shard, single.at_any_upper(write, within))
        except UpperMismatch:
            version = shard.version()


def _end(shard: Shard, table: pa.Table, upper: Frontier | None, time: Time | None) -> Frontier:
    if upper is not None:
        return upper
    if time is not None and shard.spec.domain.total_order:
        return past_last(time)
    if not shard.spec.domain.total_order:
        raise UsageError(f"times of {shard.spec.domain} have no single last one: give upper=[...]")
    ends = time_range(table, shard.spec.domain)
    if ends is None:
        return shard.version().upper
    return past_last(ends[1])


def past_last(time: Time) -> Frontier:
    """The upper after an append whose last time this is.

    Raises:
        UsageError: `time` is the last time of its unit, so the upper would close the collection for good.
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
        UsageError: times are tuples, or it is long after the last one, which was given (`state.leaping`).
        UpperMismatch: the collection is closed for good.
    """
    domain = shard.spec.domain
    if not domain.total_order:
        raise UsageError(
            f"times of {domain} have no commit time: add the columns {', '.join(domain.columns)}"
        )
    if state.upper.closed:
        raise UpperMismatch("any frontier", state.upper)
    at = times.join(state.upper.elements[0], domain.now(shard.env.clock.now_ms()))
    leaps = leap(state, at)
    if leaps is not None:
        raise leaps
    return at


def with_fingerprint(
    idempotency: IdempotencyKey | None, table: pa.Table, without: tuple[str, ...] = ()
) -> IdempotencyKey | None:
    """The claim with a fingerprint of the rows as its content, if it has no content yet."""
    if idempotency is None or idempotency.content:
        return idempotency
    return replace(idempotency, content=fingerprint(table, without))


def _append(
    shard: Shard, spec: ShardSpec, table: pa.Table, when: When, idempotency: IdempotencyKey | None
) -> Appended:
    # Leave a time that is picked at the commit out of the fingerprint: a retry picks another one.
    idempotency = with_fingerprint(
        idempotency, table, spec.domain.columns if isinstance(when, AtCommit) else ()
    )
    # Preview before the upload, so that a writer that is late or fenced uploads nothing.
    if idempotency is not None or not isinstance(when, AtCommit) or not _stays_inline(spec, table):
        known = single.preview(shard, partial(expected, when=when, idempotency=idempotency), idempotency)
        if known is not None and known.already:
            return known
    return _upload(shard, spec, table, partial(commit, shard, when, idempotency))


def _stays_inline(spec: ShardSpec, table: pa.Table) -> bool:
    """Whether nothing is uploaded for these rows, most probably."""
    return int(table.get_total_buffer_size()) < spec.config.inline_part_bytes


def _upload(shard: Shard, spec: ShardSpec, table: pa.Table, attempt: Attempt) -> Appended:
    """Upload and append; start over if the upload has expired.

    It expires if the state that this handle knew, whose seqno it names, is too old, or if it was staged in a
    group that the collection has left.
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
    idempotency: IdempotencyKey | None,
    runs: tuple[Run, ...],
    *,
    as_now: bool = True,
    seen: Seen | None = None,
    offered: tuple[Part, ...] = (),
) -> Done[Appended]:
    """Try once to append runs. One log write if no other commit is first.

    Raises:
        InlineFull: the state has no room for the inline parts among them.
        IncompatibleSchema: with `as_now`, a column of the runs was dropped since they were written.
    """
    limit = shard.spec.config.inline_total_bytes
    write = single.an_append(
        runs, when, idempotency, inline_bytes_max=limit, as_now=as_now, seen=seen, offered=offered
    )
    return single.carry_out(shard, write)


def offer(shard: Shard, runs: tuple[Run, ...], attempt: Attempt) -> Appended:
    """Run an attempt, and delete the parts if they are certainly in no state.

    SUBTLE: this is certain only after a refusal by the state, or if nothing was tried. Any other error may
    have come after the commit, and a part that a state names must never be deleted. Garbage collection finds
    a part that stays for nothing.
    """
    tried = False

    def noted(offered: tuple[Run, ...]) -> Done[Appended]:
        nonlocal tried
        tried = True
        return attempt(offered)

    try:
        answer = attempt_with_upkeep(shard, runs, noted)
    except TidelakeError as error:
        if not tried or isinstance(error, REFUSALS):
            discard(shard.stores.blobs, shard.env, runs)
        raise
    if answer.already:
        discard(shard.stores.blobs, shard.env, runs)
    return answer


def attempt_with_upkeep(shard: Shard, runs: tuple[Run, ...], attempt: Attempt) -> Appended:
    """Run an attempt, with the backpressure before it and the merges after it that belong to an append.

    If the state has no room for inline parts, merge those in it into stored parts and try again; if that does
    not help, store the inline parts of these runs.
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
    moved = stored(shard.version_of(shard.known()).spec, shard.stores.blobs, shard.env, runs)
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

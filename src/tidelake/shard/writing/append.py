"""Appends tables: uploads parts first, then commits one write that adds them and moves `upper`."""

from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa

from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.fingerprint import fingerprint
from tidelake.errors import UpperMismatch, UsageError
from tidelake.model import time as times
from tidelake.model.batch import Part, Run
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.shard.engine.requests import Done
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.runs.upload import check_times, normalized, time_range
from tidelake.shard.writing import committing
from tidelake.shard.writing.uploads import Uploads, appended, remade
from tidelake.state.core.state import ShardState
from tidelake.state.write.clockbounds import leap
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import (
    Appended,
    AtCommit,
    Exactly,
    FromUpper,
    OpenTimes,
    UpTo,
    When,
    Write,
    already_in,
    expected,
)

R = TypeVar("R")


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

    return remade(shard, attempt)


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
        return remade(shard, lambda spec: _append_timed(shard, spec, given, upper, idempotency, time=time))
    if upper is not None:
        raise UsageError(
            f"upper={upper} needs times: give time=, add the column {', '.join(domain.columns)}, or leave it "
            "out"
        )

    def attempt(spec: ShardSpec) -> Appended:
        floor = commit_floor(shard, shard.version_to_write().state)
        return _append(shard, spec, normalized(spec, given, floor), AtCommit(floor), idempotency)

    return remade(shard, attempt)


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
        committing.preview(shard, partial(already_in, idempotency=idempotency), idempotency)
        if idempotency
        else None
    )
    if known is not None:
        return known
    end = _end(shard, table, upper, time)
    check_times(table, spec.domain, lower, end)
    return _upload(shard, spec, table, FromUpper(lower, end), idempotency)


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
        UsageError: times are tuples, or it is long after the last one, which was given (`state.clockbounds`).
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
        known = committing.preview(
            shard, partial(expected, write=write_of(shard, (), when, idempotency)), idempotency
        )
        if known is not None and known.already:
            return known
    return _upload(shard, spec, table, when, idempotency)


def _stays_inline(spec: ShardSpec, table: pa.Table) -> bool:
    """Whether nothing is uploaded for these rows, most probably."""
    # Of its own rows: a slice shares the buffers of the whole table.
    return int(table.nbytes) < spec.config.inline_part_bytes


def _upload(
    shard: Shard, spec: ShardSpec, table: pa.Table, when: When, idempotency: IdempotencyKey | None
) -> Appended:
    def attempt(runs: tuple[Run, ...]) -> Done[Appended]:
        write = write_of(shard, runs, when, idempotency, as_now=True)
        return committing.carry_out(shard, write, rechecks(shard, table))

    with Uploads.of(shard, spec, table) as uploads:
        return appended(shard, uploads, attempt)


def rechecks(shard: Shard, table: pa.Table) -> committing.Rebase | None:
    """How the rows of a table come to another upper, if their times are tuples: they are checked again.

    The parts do not tell whether one of them was closed meanwhile; the rows do. None: the parts tell.
    """
    if shard.spec.domain.total_order:
        return None

    def rebased(write: Write) -> Write | None:
        if not isinstance(write.when, FromUpper | OpenTimes):
            return None
        checked = shard.last_version().upper
        if checked.closed:
            return None
        end = write.when.upper if isinstance(write.when, FromUpper) else None
        check_times(table, shard.spec.domain, checked, end)
        return replace(write, when=replace(write.when, checked=checked))

    return rebased


def write_of(
    shard: Shard,
    runs: tuple[Run, ...],
    when: When,
    idempotency: IdempotencyKey | None,
    *,
    seen: Seen | None = None,
    offered: tuple[Part, ...] = (),
    as_now: bool = False,
) -> Write:
    """A write within the room that the settings leave for inline parts."""
    limit = shard.spec.config.inline_total_bytes
    return Write(runs, when, idempotency, seen, offered, as_now, limit, shard.writes_as)

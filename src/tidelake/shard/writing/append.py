"""Appends tables: uploads parts first, then commits one write that adds them and moves `upper`."""

from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.fingerprint import fingerprint
from tidelake.errors import UpperMismatch, UsageError
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.shard.engine.shard import Shard
from tidelake.shard.runs.upload import check_times, normalized, time_range
from tidelake.shard.writing import committing
from tidelake.shard.writing.uploads import Uploads, remade
from tidelake.state.core.state import ShardState
from tidelake.state.write.clockbounds import leap
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.write import (
    Appended,
    AtCommit,
    Exactly,
    FromUpper,
    OpenTimes,
    UpTo,
    When,
    Write,
)


def append_within(
    shard: Shard, updates: object, when: Exactly | UpTo, idempotency: IdempotencyKey | None = None
) -> Appended:
    """Add updates of an interval, all of them or those at times that are still open.

    Raises:
        UpperMismatch: the shard's upper is not, or has not reached, the lower; nothing was written.
        UpdateBeforeLower, UpdateNotBeforeUpper: a time lies outside the interval.
        InvalidUpdates: the table does not fit the collection.
    """
    return remade(shard, partial(_append, shard, as_table(updates), when, idempotency))


def append_rows(
    shard: Shard,
    updates: object,
    upper: Frontier | None = None,
    time: Time | None = None,
    idempotency: IdempotencyKey | None = None,
) -> Appended:
    """Add updates at or after the shard's current upper.

    Without a time column, all rows get `time`, or one that is picked at the commit: the shard's upper, or
    with clock times the wall clock if that is later. With times, `upper` moves to the given frontier, or just
    past the last time. After a conflict with another writer this tries again, without another upload, as long
    as no time of the rows is before the new upper.
    """
    domain = shard.spec.domain
    given = as_table(updates)
    if time is not None or not set(domain.columns).isdisjoint(given.column_names):
        return remade(shard, partial(_append_timed, shard, given, upper, idempotency, time=time))
    if upper is not None:
        raise UsageError(
            f"upper={upper} needs times: give time=, add the column {', '.join(domain.columns)}, or leave it "
            "out"
        )
    return remade(shard, partial(_append, shard, given, None, idempotency))


def _append_timed(
    shard: Shard,
    given: pa.Table,
    upper: Frontier | None,
    idempotency: IdempotencyKey | None,
    *,
    time: Time | None,
) -> Appended:
    spec = shard.version_of(shard.known()).spec
    table = normalized(spec, given, time)
    # The time of the call is no part of the rows: a retry at `now` has another one.
    idempotency = with_fingerprint(idempotency, table, () if time is None else spec.domain.columns)
    lower = shard.version_to_write().upper
    # Check the claim first: if the append is in already, its times are closed and `check_times` would refuse.
    known = committing.known_answer(shard, idempotency)
    if known is not None:
        return known
    end = _end(shard, table, upper, time)
    check_times(table, spec.domain, lower, end)
    with Uploads.of(shard, spec, table) as uploads:
        write = Write((), FromUpper(lower, end), idempotency, as_now=True)
        return committing.append(shard, uploads, write, rechecks(shard, table))


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
    leaps = leap(domain, state.upper, state.closed_ms, at)
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
    shard: Shard, given: pa.Table, interval: Exactly | UpTo | None, idempotency: IdempotencyKey | None
) -> Appended:
    """Append the rows of an interval; None: at one time, which is picked at the commit."""
    picked = interval is None
    version = shard.version_to_write() if picked else shard.version_of(shard.known())
    spec = version.spec
    when: When = AtCommit(commit_floor(shard, version.state)) if interval is None else interval
    table = normalized(spec, given, when.floor if isinstance(when, AtCommit) else None)
    if interval is not None:
        check_times(table, spec.domain, interval.lower, interval.upper)
    # Leave a time that is picked at the commit out of the fingerprint: a retry picks another one.
    key = with_fingerprint(idempotency, table, spec.domain.columns if picked else ())
    write = Write((), when, key, as_now=True)
    # Of its own rows: a slice shares the buffers of the whole table.
    stays_inline = int(table.nbytes) < spec.config.inline_part_bytes
    # Ask before the upload, so that a writer that is late or fenced uploads nothing.
    if key is not None or not picked or not stays_inline:
        known = committing.foreseen(shard, write)
        if known is not None and known.already:
            return known
    with Uploads.of(shard, spec, table) as uploads:
        return committing.append(shard, uploads, write, rechecks(shard, table))


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

"""Writes that are computed from contents: upserts, replacements, deletes and restorations, by this process.

Another such write is a function that returns a `Derivation`, beside those here. Differences are valid only at
the upper that they were computed for, so after another writer's append they are computed again (`remade`).
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.events import EventColumns, read_events
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.query.selection import bind
from tidelake.errors import HistoryCompacted, NotYetClosed
from tidelake.model import time as times
from tidelake.model.batch import Run
from tidelake.model.counts import Removals
from tidelake.model.query import AsOf, Changes
from tidelake.model.schema import DIFF
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.engine.lease import Lease
from tidelake.shard.engine.requests import Done
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.engine.version import Version
from tidelake.shard.runs.difference import differences, negated
from tidelake.shard.runs.read import rows, sources_of
from tidelake.shard.runs.upload import normalized
from tidelake.shard.writing import committing
from tidelake.shard.writing.append import (
    commit_floor,
    past_last,
    with_fingerprint,
    write_of,
)
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.shard.writing.replacement import check_open, check_total
from tidelake.shard.writing.uploads import Uploads, appended, remade
from tidelake.shard.writing.upserter import OldRows, Upserter
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import Appended, Exactly, already_in


@dataclass
class Difference:
    """The updates that one attempt appends.

    Attributes:
        seen: the contents that they depend on.
        updates: the updates, sorted and consolidated.
        end: the last time that was asked for, known once `updates` was read to its end; None: there is none,
            and without updates nothing has to be written.
        picked: the time that was picked, since none was asked for; None: none was.
        removals: what removals did, known as `end` is.
    """

    seen: Seen
    updates: Iterator[pa.RecordBatch]
    end: Time | None
    picked: Time | None = None
    removals: Removals = field(default_factory=Removals)


Derivation: TypeAlias = Callable[[Version], Difference]
"""What computes a write from the contents of a version."""


def upsert(
    shard: Shard,
    data: object,
    columns: EventColumns,
    time: Time | None = None,
    idempotency: IdempotencyKey | None = None,
    *,
    old_rows: OldRows | None = None,
) -> Appended:
    """Replace the rows of the keys of a table by its rows.

    Args:
        shard: the shard to write to.
        data: events, as `tidelake.data.ingest.events.read_events` takes them. Of tied events the later row
            wins.
        columns: the columns that order events and mark deletes.
        time: the time of all events; None: they have a time column, or get a time at the commit.
        idempotency: the claim to append under.
        old_rows: a source of the present rows that is asked before the store.

    Raises:
        InvalidUpdates, UpdateBeforeLower: an event cannot be taken. Nothing was written.
    """
    given = as_table(data)

    # The time of the call is no part of the rows: a retry at `now` has another one.
    def fitted(spec: ShardSpec) -> pa.Table:
        return read_events(
            given,
            spec.schema,
            spec.domain,
            columns,
            time=time if _has_times(spec.domain, given) else spec.domain.minimum,
            optional=spec.optional,
            dropped=spec.dropped,
        )

    attempt = upserting(shard, given, columns, time, old_rows=old_rows)
    return _written(shard, attempt, idempotency, fitted)


def upserting(
    shard: Shard,
    given: pa.Table,
    columns: EventColumns,
    time: Time | None = None,
    *,
    old_rows: OldRows | None = None,
) -> Derivation:
    """A function that computes an upsert on a version; arguments and errors as `upsert`."""
    timed = _has_times(shard.spec.domain, given)

    def difference(version: Version) -> Difference:
        state, spec = version.state, version.spec
        columns.check(spec.schema, spec.domain)
        picked = commit_floor(shard, state) if time is None and not timed else None
        upserter = Upserter.at(version, columns, picked if time is None else time)
        last = _last_time(given, spec, columns) if time is None and timed and len(state.staged) else None
        reach = last if last is not None and last > upserter.as_of else None
        if reach is not None:
            upserter = upserter.reaching(state, reach)
        seen = Seen(state.seqno, upserter.as_of if reach is None else reach)
        found = Difference(seen, iter(()), time, picked)

        def updates() -> Iterator[pa.RecordBatch]:
            for events, changed in upserter.resolved(shard.stores.blobs, [given], old_rows, last=reach):
                found.removals = found.removals.plus(changed)
                if timed:
                    last = pc.max(events.column(spec.domain.columns[0])).as_py()
                    found.end = last if found.end is None else max(found.end, last)
                yield from changed.updates.to_batches()

        found.updates = updates()
        return found

    return difference


def _last_time(given: pa.Table, spec: ShardSpec, columns: EventColumns) -> int | None:
    """The last time of events that have times of their own."""
    events = read_events(
        given, spec.schema, spec.domain, columns, optional=spec.optional, dropped=spec.dropped
    )
    last: int | None = pc.max(events.column(spec.domain.columns[0])).as_py()
    return last


def replace(
    shard: Shard, data: object, time: Time | None = None, idempotency: IdempotencyKey | None = None
) -> Appended:
    """Replace the contents by the rows of a table. Whole rows are compared, with their multiplicity.

    Args:
        shard: the shard to write to.
        data: key and value columns, as `tidelake.data.ingest.updates.normalize` takes them. A `_diff` column,
            if present, is the multiplicity of each row.
        time: the time of the change; None: picked at the commit.
        idempotency: the claim to append under.

    Raises:
        InvalidUpdates, UpdateBeforeLower: the table or the time cannot be taken. Nothing was written.
    """
    given = as_table(data)

    def fitted(spec: ShardSpec) -> pa.Table:
        return normalized(spec, given, spec.domain.minimum)

    return _written(shard, replacing(shard, given, time), idempotency, fitted)


def replacing(shard: Shard, given: pa.Table, time: Time | None = None) -> Derivation:
    """A function that computes a replacement on a version; arguments and errors as `replace`."""

    def updates(version: Version, at: Time, _: Difference) -> Iterator[pa.RecordBatch]:
        spec = version.spec
        new = consolidate(normalized(spec, given, at), spec.schema, spec.domain)
        old, _query = sources_of(version.state, AsOf(at))
        return differences(spec, shard.stores.blobs, old, new.to_batches(), at=at)

    return _at_one_time(shard, time, updates)


def _at_one_time(
    shard: Shard,
    time: Time | None,
    make: Callable[[Version, Time, Difference], Iterator[pa.RecordBatch]],
) -> Derivation:
    """A derivation whose updates all have one time: the given one, or (None) one that is picked.

    Args:
        shard: the shard.
        time: the time.
        make: checks what depends on the version, and gives the updates at the time; may note removals.
    """
    check_total(shard.spec)

    def difference(version: Version) -> Difference:
        state = version.state
        at = commit_floor(shard, state) if time is None else time
        check_open(state, at)
        seen = Seen(state.seqno, times.parts(at)[0])
        found = Difference(seen, iter(()), time, None if time is not None else at)
        found.updates = make(version, at, found)
        return found

    return difference


def delete(
    shard: Shard, where: str, time: Time | None = None, idempotency: IdempotencyKey | None = None
) -> Appended:
    """Remove the rows that a condition is true for.

    Args:
        shard: the shard to write to.
        where: the condition, as for reads.
        time: the time of the change; None: picked at the commit.
        idempotency: the claim to append under.

    Raises:
        UsageError, UpdateBeforeLower: the condition or the time cannot be taken. Nothing was written.
    """
    asked = pa.table({"where": [where]})
    return _written(shard, deleting(shard, where, time), idempotency, lambda _spec: asked)


def deleting(shard: Shard, where: str, time: Time | None = None) -> Derivation:
    """A function that computes a delete on a version; arguments and errors as `delete`."""
    options = ReadOptions(where=where)

    def updates(version: Version, at: Time, found: Difference) -> Iterator[pa.RecordBatch]:
        selection = bind(options, version.spec.schema)
        old, query = sources_of(version.state, AsOf(at))
        there = rows(version.spec, shard.stores.blobs, old, query, selection=selection)
        return _removed(there, found)

    return _at_one_time(shard, time, updates)


def _removed(there: Generator[pa.RecordBatch], found: Difference) -> Iterator[pa.RecordBatch]:
    """The updates that take rows away, which are counted as removals."""
    with closing(there):
        for batch in map(negated, there):
            gone = -(pc.sum(batch.column(DIFF)).as_py() or 0)
            found.removals = found.removals.plus(Removals(removed=gone))
            yield batch


def restore(
    shard: Shard, as_of: Time, time: Time | None = None, idempotency: IdempotencyKey | None = None
) -> Appended:
    """Change the contents back to what they were.

    Args:
        shard: the shard to write to.
        as_of: when they were so: a closed time, at or after `since`.
        time: the time of the change; None: picked at the commit.
        idempotency: the claim to append under.

    Raises:
        NotYetClosed, HistoryCompacted, UpdateBeforeLower: a time cannot be taken. Nothing was written.
    """
    asked = pa.table({"as_of": [as_of]})
    return _written(shard, restoring(shard, as_of, time), idempotency, lambda _spec: asked)


def restoring(shard: Shard, as_of: Time, time: Time | None = None) -> Derivation:
    """A function that computes a restoration on a version; arguments and errors as `restore`."""

    def updates(version: Version, at: Time, _: Difference) -> Iterator[pa.RecordBatch]:
        state = version.state
        if state.upper.less_equal(as_of):
            raise NotYetClosed(as_of, state.upper.elements[0], 0).of(state.domain.unit)
        if not state.since.less_equal(as_of):
            raise HistoryCompacted(as_of, state.since).of(state.domain.unit)
        since, query = sources_of(state, Changes(as_of, at))
        return _negated(rows(version.spec, shard.stores.blobs, since, query))

    return _at_one_time(shard, time, updates)


def _negated(there: Generator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with closing(there):
        yield from map(negated, there)


def change(
    shard: Shard,
    updates: Callable[[Version, Time], list[pa.Table]],
    content: str,
    time: Time | None = None,
    idempotency: IdempotencyKey | None = None,
) -> Appended:
    """Append updates that are computed from contents: only if these are the newest, else they are made again.

    Args:
        shard: the shard to write to.
        updates: makes them of the contents of a version at the time of the change, without times.
        content: tells this change from others under a claim.
        time: the time of the change; None: picked at the commit.
        idempotency: the claim to append under.

    Raises:
        InvalidUpdates, UpdateBeforeLower: the updates or the time cannot be taken. Nothing was written.
    """

    def made(version: Version, at: Time, _: Difference) -> Iterator[pa.RecordBatch]:
        spec = version.spec
        whole = pa.concat_tables([normalized(spec, table, at) for table in updates(version, at)])
        return iter(consolidate(whole, spec.schema, spec.domain).to_batches())

    derivation = _at_one_time(shard, time, made)
    return _written(shard, derivation, idempotency, lambda _spec: pa.table({"content": [content]}))


def _has_times(domain: TimeDomain, given: pa.Table) -> bool:
    return any(name in given.column_names for name in domain.columns)


def _written(
    shard: Shard,
    attempt: Derivation,
    claimed: IdempotencyKey | None,
    fitted: Callable[[ShardSpec], pa.Table],
) -> Appended:
    """Commit what an attempt computes, under a claim whose content is the fingerprint of the fitted rows."""

    def made(spec: ShardSpec) -> Appended:
        idempotency = None if claimed is None else with_fingerprint(claimed, fitted(spec))
        version = shard.apply_decided()
        if idempotency is not None:
            known = committing.preview(shard, partial(already_in, idempotency=idempotency), idempotency)
            if known is not None:
                return known
        return _append(shard, version, attempt(version), idempotency)

    return remade(shard, made, depends=True)


def _append(
    shard: Shard, version: Version, found: Difference, idempotency: IdempotencyKey | None
) -> Appended:
    spec, lower, last = version.spec, version.upper, -1
    updates = Lease(shard).watch(version, found.updates)
    with BatchBuilder(spec, shard.stores.blobs, shard.env, lower, sorted=True) as builder, closing(updates):
        for batch in updates:
            last = max(last, pc.max(batch.column(spec.domain.columns[0])).as_py())
            builder.add(batch)
        end = found.end if found.end is not None else last
        if end == -1 and found.picked is not None and lower.less_equal(spec.domain.minimum):
            # Nothing is closed yet: from now on the collection can be read.
            end = found.picked
        upper = lower if end == -1 else past_last(end)
        built = builder.finish(upper)
    if upper == lower and idempotency is None:
        return Appended.before(lower).plus(found.removals)
    built.take("appended")
    when = Exactly(lower, upper)

    def attempt(runs: tuple[Run, ...]) -> Done[Appended]:
        return committing.carry_out(
            shard, write_of(shard, runs, when, idempotency, seen=found.seen, as_now=True)
        )

    with Uploads(shard, built.hollow.runs) as uploads:
        done = appended(shard, uploads, attempt)
    return done if done.already else done.plus(found.removals)

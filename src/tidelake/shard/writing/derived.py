"""Writes that are computed from contents: upserts, replacements, deletes and restorations, by this process.

A change of contents is a value (`ContentChange`), and `derivation` says what computes it. Differences are
valid only at the upper that they were computed for, so after another writer's append they are computed again
(`remade`).
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.astable import as_table
from tidelake.data.ingest.events import EventColumns, read_events
from tidelake.data.kernel.consolidate import consolidate
from tidelake.data.query.selection import bind
from tidelake.errors import HistoryCompacted, NotYetClosed
from tidelake.model import time as times
from tidelake.model.counts import Removals
from tidelake.model.frozen import with_fields
from tidelake.model.query import AsOf, Changes
from tidelake.model.schema import DIFF
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time, TimeDomain
from tidelake.shard.engine.lease import Lease
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
)
from tidelake.shard.writing.builder import BatchBuilder, add_canonical
from tidelake.shard.writing.replacement import check_open, check_total
from tidelake.shard.writing.uploads import Uploads, remade
from tidelake.shard.writing.upserter import OldRows, Upserter
from tidelake.state.write.idempotency import IdempotencyKey
from tidelake.state.write.staging import Seen
from tidelake.state.write.write import Appended, Exactly, Write


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


@dataclass(frozen=True)
class RowChanges:
    """The rows of an upsert or a replacement, as `read_events` or `normalize` take them.

    Attributes:
        table: the rows, in any Arrow form.
        columns: the event columns of an upsert; None: the rows replace all contents.
        time: of all rows; None: they have times of their own, or get one at the commit.
        old_rows: a source of the present rows that is asked before the store.
    """

    table: object
    columns: EventColumns | None
    time: Time | None = None
    old_rows: OldRows | None = None


@dataclass(frozen=True)
class Deletion:
    """A delete of the rows that a condition is true for.

    Attributes:
        where: the condition, as for reads.
        time: of the delete; None: picked at the commit.
    """

    where: str
    time: Time | None = None


@dataclass(frozen=True)
class Restoration:
    """A change of the contents back to what they were.

    Attributes:
        as_of: when they were so: a closed time, at or after `since`.
        time: of the change; None: picked at the commit.
    """

    as_of: Time
    time: Time | None = None


@dataclass(frozen=True)
class ComputedChange:
    """Any change that is computed from contents.

    Attributes:
        updates: makes the updates, without times, of the contents of a version at the time of the change.
        content: tells this change from others under a claim.
        time: of the change; None: picked at the commit.
    """

    updates: Callable[[Version, Time], list[pa.Table]]
    content: str
    time: Time | None = None


ContentChange: TypeAlias = RowChanges | Deletion | Restoration | ComputedChange


def commit_change(shard: Shard, wanted: ContentChange, idempotency: IdempotencyKey | None = None) -> Appended:
    """Commit a change of contents, under a claim whose content is the fingerprint of what was asked for.

    Raises:
        InvalidUpdates, UpdateBeforeLower: the rows or the time cannot be taken. Nothing was written.
        NotYetClosed, HistoryCompacted: contents cannot be read as of that time.
        UsageError: times are tuples; or a condition or column cannot be read.
    """
    if isinstance(wanted, RowChanges):
        # A stream is read once.
        wanted = with_fields(wanted, table=as_table(wanted.table))
    derive = derivation(shard, wanted)

    def made() -> Appended:
        key = idempotency
        if key is not None:
            key = with_fingerprint(key, _told(shard.version_of(shard.known()).spec, wanted))
        version = shard.apply_decided()
        known = committing.known_answer(shard, key)
        return _append(shard, version, derive(version), key) if known is None else known

    return remade(shard, made, depends=True)


def derivation(shard: Shard, wanted: ContentChange) -> Derivation:
    """What computes a change; errors as `commit_change`."""
    match wanted:
        case RowChanges(columns=EventColumns() as columns):
            return _upserting(shard, wanted, columns)
        case RowChanges():
            updates = _replacing(shard, as_table(wanted.table))
        case Deletion():
            updates = _deleting(shard, wanted.where)
        case Restoration():
            updates = _restoring(shard, wanted.as_of)
        case ComputedChange():
            updates = _computing(wanted)
    return _at_one_time(shard, wanted.time, updates)


def _told(spec: ShardSpec, wanted: ContentChange) -> pa.Table:
    """What tells a change from others: its rows, or a row that says what is asked for."""
    minimum = spec.domain.minimum
    match wanted:
        case RowChanges(columns=EventColumns() as columns):
            # The time of the call is no part of the rows: a retry at `now` has another one.
            given = as_table(wanted.table)
            return _events(given, spec, columns, wanted.time if _has_times(spec.domain, given) else minimum)
        case RowChanges():
            return normalized(spec, wanted.table, minimum)
        case Deletion():
            return pa.table({"where": [wanted.where]})
        case Restoration():
            return pa.table({"as_of": [wanted.as_of]})
        case ComputedChange():
            return pa.table({"content": [wanted.content]})


def _events(given: pa.Table, spec: ShardSpec, columns: EventColumns, time: Time | None = None) -> pa.Table:
    return read_events(
        given, spec.schema, spec.domain, columns, time=time, optional=spec.optional, dropped=spec.dropped
    )


def _upserting(shard: Shard, wanted: RowChanges, columns: EventColumns) -> Derivation:
    given, time = as_table(wanted.table), wanted.time
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
            for events, changed in upserter.resolved(
                shard.stores.blobs, [given], wanted.old_rows, last=reach
            ):
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
    last: int | None = pc.max(_events(given, spec, columns).column(spec.domain.columns[0])).as_py()
    return last


_Updates: TypeAlias = Callable[[Version, Time, Difference], Iterator[pa.RecordBatch]]
"""Checks what depends on the version, and gives the updates at the time; may note removals."""


def _replacing(shard: Shard, given: pa.Table) -> _Updates:
    def updates(version: Version, at: Time, _: Difference) -> Iterator[pa.RecordBatch]:
        spec = version.spec
        new = consolidate(normalized(spec, given, at), spec.schema, spec.domain)
        old, _query = sources_of(version.state, AsOf(at))
        return differences(spec, shard.stores.blobs, old, new.to_batches(), at=at)

    return updates


def _at_one_time(shard: Shard, time: Time | None, make: _Updates) -> Derivation:
    """A derivation whose updates all have one time: the given one, or (None) one that is picked."""
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


def _deleting(shard: Shard, where: str) -> _Updates:
    options = ReadOptions(where=where)

    def updates(version: Version, at: Time, found: Difference) -> Iterator[pa.RecordBatch]:
        selection = bind(options, version.spec.schema)
        old, query = sources_of(version.state, AsOf(at))
        there = rows(version.spec, shard.stores.blobs, old, query, selection=selection)
        return _removed(there, found)

    return updates


def _removed(there: Generator[pa.RecordBatch], found: Difference) -> Iterator[pa.RecordBatch]:
    """The updates that take rows away, which are counted as removals."""
    with closing(there):
        for batch in map(negated, there):
            gone = -(pc.sum(batch.column(DIFF)).as_py() or 0)
            found.removals = found.removals.plus(Removals(removed=gone))
            yield batch


def _restoring(shard: Shard, as_of: Time) -> _Updates:
    def updates(version: Version, at: Time, _: Difference) -> Iterator[pa.RecordBatch]:
        state = version.state
        if state.upper.less_equal(as_of):
            raise NotYetClosed(as_of, state.upper.elements[0], 0).of(state.domain.unit)
        if not state.since.less_equal(as_of):
            raise HistoryCompacted(as_of, state.since).of(state.domain.unit)
        since, query = sources_of(state, Changes(as_of, at))
        return _negated(rows(version.spec, shard.stores.blobs, since, query))

    return updates


def _negated(there: Generator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with closing(there):
        yield from map(negated, there)


def _computing(wanted: ComputedChange) -> _Updates:
    def updates(version: Version, at: Time, _: Difference) -> Iterator[pa.RecordBatch]:
        spec = version.spec
        whole = pa.concat_tables([normalized(spec, table, at) for table in wanted.updates(version, at)])
        return iter(consolidate(whole, spec.schema, spec.domain).to_batches())

    return updates


def _has_times(domain: TimeDomain, given: pa.Table) -> bool:
    return not set(domain.columns).isdisjoint(given.column_names)


def _append(
    shard: Shard, version: Version, found: Difference, idempotency: IdempotencyKey | None
) -> Appended:
    spec, lower, last = version.spec, version.upper, -1
    updates = Lease(shard).watch(version, found.updates)
    with BatchBuilder(spec, shard.stores.blobs, shard.env, lower, sorted=True) as builder, closing(updates):
        for batch in updates:
            last = max(last, pc.max(batch.column(spec.domain.columns[0])).as_py())
            add_canonical(builder, pa.Table.from_batches([batch]))
        end = found.end if found.end is not None else last
        if end == -1 and found.picked is not None and lower.less_equal(spec.domain.minimum):
            # Nothing is closed yet: from now on the collection can be read.
            end = found.picked
        upper = lower if end == -1 else past_last(end)
        built = builder.finish(upper)
    if upper == lower and idempotency is None:
        return Appended.before(lower).plus(found.removals)
    built.take("appended")
    write = Write((), Exactly(lower, upper), idempotency, found.seen, as_now=True)
    with Uploads(shard, built.hollow.runs) as uploads:
        done = committing.append(shard, uploads, write)
    return done if done.already else done.plus(found.removals)

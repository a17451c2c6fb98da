"""Upserts from any process: takes events, returns the bytes of a batch.

Owns what a worker is sent so that it can look up the old rows of its keys and store the resulting updates.
The bytes that it returns are appended by `tidelake.shard.writing.batches.append_uploaded`, at exactly the
upper that they were made for: at a later upper the old rows may differ.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.events import EventColumns, advanced, read_events, truncated
from tidelake.data.ingest.upsert import Resolved, UpsertRules, resolve_among
from tidelake.data.kernel.encode import encode_key
from tidelake.data.kernel.sums import opposite
from tidelake.data.kernel.types import update_schema
from tidelake.data.keys.keyranges import RangeLimits, key_ranges
from tidelake.data.keys.keyset import KeySet
from tidelake.errors import BlobNotFound, UpdateBeforeLower, UpperMismatch
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.frozen import with_fields
from tidelake.model.query import AsOf, Query, Updates
from tidelake.model.schema import DIFF
from tidelake.model.time import Time
from tidelake.shard.engine.lease import explained_by
from tidelake.shard.engine.overlap import mapped
from tidelake.shard.engine.spec import ShardSpec, decoded, env_here, stores_of
from tidelake.shard.engine.version import Version
from tidelake.shard.runs.gather import catch_up
from tidelake.shard.runs.read import rows, sources_of
from tidelake.shard.runs.scope import Source
from tidelake.shard.runs.upload import check_times
from tidelake.shard.writing.builder import BatchBuilder, add_canonical
from tidelake.state.core.codec import encode_record
from tidelake.state.core.state import ShardState
from tidelake.state.spine.staged import begins_before
from tidelake.store.protocols import BlobStore

OldRows: TypeAlias = Callable[[ShardSpec, Frontier, pa.Table], pa.Table | None]
"""A source of old rows other than the store, called with the spec and upper of a version, and some events.

Returns all rows of the keys of the events, as of the last time before the upper: canonical, consolidated
updates with any time and the multiplicity in `_diff`. None if it does not know them.
"""

# A range is this fraction of the memory, which holds its events, these sorted, the old rows and the updates.
_RANGE_SHARE = 8
# The most ranges at once. Two ranges that share a row group both read it.
_RANGES_MAX = 2


@dataclass(frozen=True)
class Upserter:
    """Turns events into updates of the contents of one state. Goes to other processes as bytes.

    Attributes:
        spec: the shard.
        needed: the runs of the state that may have to be read.
        lower: upper of the state; the events' times must be at or after it.
        columns: the columns that order events and mark deletes.
        time: the time of all events; None: they have times of their own, or get a time at the commit.
        rows_count: whether of events that tie the later row wins; else they must be equal.
        advance: whether events at closed times move to `lower`; else they are refused.
        meets_staged: whether the old rows include staged updates.
    """

    spec: ShardSpec
    needed: tuple[Source, ...]
    lower: Frontier
    columns: EventColumns
    time: Time | None = None
    rows_count: bool = True
    advance: bool = False
    meets_staged: bool = False

    @classmethod
    def at(
        cls,
        version: Version,
        columns: EventColumns,
        time: Time | None = None,
        *,
        rows_count: bool = True,
        advance: bool = False,
    ) -> "Upserter":
        """An upserter on the contents of a version.

        Raises:
            UsageError: times are tuples, or the columns do not fit the schema.
            UpperMismatch: all times are closed for good.
            UpdateBeforeLower: the time is closed.
        """
        state, spec = version.state, version.spec
        columns.check(spec.schema, spec.domain)
        if state.upper.closed:
            raise UpperMismatch("any frontier", state.upper)
        if time is not None and not state.upper.less_equal(time):
            raise UpdateBeforeLower(time, state.upper).of(state.domain.unit)
        made = cls(spec, (), state.upper, columns, time, rows_count, advance)
        end = Frontier.past(made.as_of)
        met = any(begins_before(one.batch, end) for one in state.staged)
        needed, _ = sources_of(state, AsOf(made.as_of))
        return with_fields(made, needed=tuple(needed), meets_staged=met)

    def reaching(self, state: ShardState, last: int) -> "Upserter":
        """An upserter that also has what is staged up to a last time, for events with times of their own.

        Its `resolved` gets the same `last`. For this process: other ones know no staged times.
        """
        needed, _ = sources_of(state, AsOf(last))
        return with_fields(self, needed=tuple(needed), meets_staged=True)

    @property
    def as_of(self) -> int:
        """The time to read the old rows at: the time of all events if they have one, else `lower`.

        All updates of the spine are before `lower`, so either time shows all of them; staged updates count
        up to this time.
        """
        return times.parts(self.lower.elements[0] if self.time is None else self.time)[0]

    def to_bytes(self) -> bytes:
        """A form for another process: the spec and descriptions of parts; no credentials."""
        return encode_record("upserter", self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Upserter":
        """Read `to_bytes`."""
        return decoded("upserter", data, cls, "upserter")

    def catch_up(self) -> None:
        """Unpack new parts of the shard if this process has unpacked most of it for look-ups.

        Otherwise the next look-up unpacks them. Errors as `upload`, cost as
        `tidelake.shard.runs.gather.catch_up`.
        """
        with self._explained():
            catch_up(self.spec, stores_of(self.spec).blobs, self.needed)

    def upload(
        self,
        batches: Iterable[pa.RecordBatch],
        watch: Callable[[pa.Table, pa.Table], None] = lambda _events, _updates: None,
        old_rows: OldRows | None = None,
        truncates: Sequence[tuple[int, bytes]] = (),
        count: Callable[[Resolved], None] = lambda _found: None,
    ) -> bytes:
        """Look up old rows, compute updates and store them; the bytes go to `append_uploaded`.

        A look-up costs an `open` and some reads for each part that may hold one of the keys, unless this
        process has unpacked the part (`lookup_cache_bytes`). If there are many keys and Arrow has two threads
        (`pyarrow.cpu_count`), two ranges are worked on at once, and both may read the same part. Then one
        `put` for each part. Memory: `merge_memory_bytes` for the ranges, besides their reads and
        `BatchBuilder`. If it fails, what was stored is deleted.

        Args:
            batches: events, as `tidelake.data.ingest.events.read_events` takes them. All events of a key must
                be in one call. More than `merge_chunk_rows` must be sorted by key.
            watch: called with the events of each range and the updates that they result in.
            old_rows: a source of old rows that is asked before the store.
            truncates: the time and the order of each truncation, which removes all rows before it; only if
                all events have an order, and the call gets the events of all keys. Then the whole contents
                are read.
            count: called after `watch`, with what removals did.

        Returns:
            The bytes; `b""` if nothing changes.

        Raises:
            InvalidUpdates, UpdateBeforeLower: an event cannot be taken.
            UsageError: more events than fit into memory are not sorted by key.
            LeaseExpired: a part that is needed was collected meanwhile.
        """
        blobs, upper = stores_of(self.spec).blobs, Frontier()
        with (
            self._explained(),
            BatchBuilder(self.spec, blobs, env_here(), self.lower, sorted=True, upper=upper) as builder,
        ):
            keys: list[pa.Array] = []
            for events, found in self.resolved(blobs, batches, old_rows, truncates):
                watch(events, found.updates)
                count(found)
                add_canonical(builder, found.updates)
                if truncates:
                    keys.append(encode_key(events, self.spec.schema))
            if truncates:
                for updates in self._emptied(blobs, keys, min(truncates)[0]):
                    watch(updates, updates)
                    add_canonical(builder, updates)
            built = builder.finish(upper)
        return built.to_bytes() if built.runs else b""

    def resolved(
        self,
        blobs: BlobStore,
        given: Iterable[object],
        old_rows: OldRows | None = None,
        truncates: Sequence[tuple[int, bytes]] = (),
        last: int | None = None,
    ) -> Iterator[tuple[pa.Table, Resolved]]:
        """The events of each range of keys, and what they result in; both in ascending order.

        With `last`, each event meets the contents of its own time, up to this one; see `reaching`.
        """
        spec, config = self.spec, self.spec.config
        own = {column.name for column in spec.schema.value}
        rules = UpsertRules(self.columns.order_by if self.columns.order_by in own else None, self.rows_count)
        # Arrow's thread count is the limit: it is one in a Spark task, as Spark runs one task per core.
        threads = max(1, min(pa.cpu_count(), _RANGES_MAX)) if old_rows is None else 1
        limits = RangeLimits(config.merge_chunk_rows, config.merge_memory_bytes // _RANGE_SHARE, threads)

        def resolved(events: pa.Table) -> tuple[pa.Table, Resolved]:
            # `old_rows` knows closed times only, so it cannot answer if staged updates count.
            known = old_rows(spec, self.lower, events) if old_rows and not self.meets_staged else None
            old = self._stored(blobs, events, AsOf(self.as_of)) if known is None else known
            later = old.slice(0, 0)
            if last is not None:
                open_times = Updates(Frontier.past(self.as_of), Frontier.past(last))
                later = self._stored(blobs, events, open_times)
            events = truncated(events, truncates, spec.schema, spec.domain) if truncates else events
            return events, resolve_among(events, old, later, spec.schema, spec.domain, rules=rules)

        yield from mapped(resolved, key_ranges(map(self._events, given), spec.schema, limits), threads)

    def _stored(self, blobs: BlobStore, events: pa.Table, query: Query) -> pa.Table:
        """What a query finds of the keys of events."""
        among = KeySet.of(events, self.spec.schema)
        found = rows(self.spec, blobs, list(self.needed), query, among=among)
        return pa.Table.from_batches(found, update_schema(self.spec.schema, self.spec.domain))

    def _emptied(self, blobs: BlobStore, keys: Sequence[pa.Array], time: int) -> Iterator[pa.Table]:
        """Retractions, at a time, of all stored rows of other keys than these."""
        spec = self.spec
        others = pa.chunked_array(keys, pa.binary()).combine_chunks() if keys else pa.array([], pa.binary())
        wanted = update_schema(spec.schema, spec.domain)
        for batch in rows(spec, blobs, list(self.needed), AsOf(self.as_of)):
            left = batch.filter(pc.invert(pc.is_in(encode_key(batch, spec.schema), value_set=others)))
            if left.num_rows:
                more = [
                    pa.repeat(pa.scalar(time, pa.int64()), left.num_rows),
                    opposite(left.column(DIFF)),
                ]
                yield pa.Table.from_arrays([*left.columns[:-2], *more], schema=wanted)

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except BlobNotFound as error:
            raise explained_by(self.spec, error.name) from error

    def _events(self, given: object) -> pa.Table:
        spec = self.spec
        read = partial(read_events, optional=spec.optional, dropped=spec.dropped)
        events = read(given, spec.schema, spec.domain, self.columns, time=self.time)
        if self.advance:
            return advanced(events, spec.domain, self.lower.elements[0])
        # Checked here, since events that change nothing never reach the builder's check.
        check_times(events, spec.domain, self.lower, None)
        return events

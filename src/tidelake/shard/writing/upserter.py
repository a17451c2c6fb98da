"""Upserting from any process: events in, the bytes of a batch out.

Owns what is sent to a worker so that it can look up the old rows of its keys and store what follows from
them. What it gives back is appended by `tidelake.shard.writing.batches.append_uploaded`, at the very upper
that it was made for: later old rows may be others.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from tidelake.data.events import EventColumns, advanced, read_events
from tidelake.data.keyranges import Limits, key_ranges
from tidelake.data.keyset import KeySet
from tidelake.data.types import update_schema
from tidelake.data.upsert import Rules, resolve
from tidelake.env import Env
from tidelake.errors import BlobNotFound, UpdateNotBeyondLower, UpperMismatch
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.model.time import Time
from tidelake.shard.lease import explained_by
from tidelake.shard.runs.read import rows, sources
from tidelake.shard.runs.scope import Source
from tidelake.shard.runs.upload import check_times
from tidelake.shard.spec import ShardSpec, stores_of
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.state.codec import decode_record, encode_record
from tidelake.state.state import ShardState
from tidelake.store.protocols import BlobStore

OldRows: TypeAlias = Callable[[Frontier, pa.Table], pa.Table | None]
"""Knows what is stored without a look into the store, at the last time before an upper, of a table's keys.

Gives canonical updates, consolidated, of any time: all rows of these keys, each with its multiplicity in
`_diff`. None: it does not know.
"""

# Events, the same sorted, their old rows and the differences of both are in memory at once.
_RANGE_SHARE = 8


@dataclass(frozen=True)
class Upserter:
    """Events of keys to updates, against the contents as of one state. Goes to other processes as bytes.

    Attributes:
        spec: the shard.
        needed: the runs of the state.
        lower: its upper, from which on events have their times.
        columns: what orders events, and what removes.
        time: of all events; None: they have times of their own.
        rows_count: whether of equally good events the later row wins; else they must be equal.
        advance: whether events whose times are closed happen at `lower`; else they are refused.
    """

    spec: ShardSpec
    needed: tuple[Source, ...]
    lower: Frontier
    columns: EventColumns
    time: Time | None = None
    rows_count: bool = True
    advance: bool = False

    @classmethod
    def at(
        cls,
        state: ShardState,
        spec: ShardSpec,
        columns: EventColumns,
        time: Time | None = None,
        *,
        rows_count: bool = True,
        advance: bool = False,
    ) -> "Upserter":
        """Of the contents of a state, taken before the spec.

        Raises:
            UsageError: times are tuples, or the columns cannot mean that.
            UpperMismatch: all times are closed for good.
            UpdateNotBeyondLower: the time is closed.
        """
        columns.check(spec.schema, spec.domain)
        if state.upper.closed:
            raise UpperMismatch("any frontier", state.upper)
        if time is not None and not state.upper.less_equal(time):
            raise UpdateNotBeyondLower(time, state.upper)
        # At the upper, which no update has reached: that is before it, whatever was folded.
        needed = sources((member.batch for member in state.spine), AsOf(state.upper.elements[0]))
        return cls(spec, tuple(needed), state.upper, columns, time, rows_count, advance)

    def to_bytes(self) -> bytes:
        """A form for another process: a reference and descriptions of parts; no credentials."""
        return encode_record("upserter", self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Upserter":
        """Read `to_bytes`."""
        return decode_record("upserter", data, cls, "upserter")

    def upload(
        self,
        batches: Iterable[pa.RecordBatch],
        watch: Callable[[pa.Table, pa.Table], None] = lambda _events, _updates: None,
        old_rows: OldRows | None = None,
    ) -> bytes:
        """Look up, resolve and store; the returned bytes go to `append_uploaded`, `b""` if nothing changes.

        Args:
            batches: events, as `tidelake.data.events.read_events` takes them; all of a key come to one call.
                More than `merge_chunk_rows` come sorted by key.
            watch: is told of each range of events, and the updates that it amounts to.
            old_rows: is asked before the store.

        A look-up costs an `open` and some reads for each part that may hold one of the keys; then one `put`
        a part. Memory: `merge_memory_bytes` for a range of keys, beside what a read and `BatchBuilder` take.
        If it fails, what was stored is deleted.

        Raises:
            InvalidUpdates, UpdateNotBeyondLower: an event cannot be taken.
            UsageError: more events than fit into memory are not sorted by key.
            LeaseExpired: a part that is needed was collected meanwhile.
        """
        blobs, upper = stores_of(self.spec).blobs, Frontier()
        try:
            with BatchBuilder(self.spec, blobs, Env(), self.lower, sorted=True, upper=upper) as builder:
                for events, updates in self.resolved(blobs, batches, old_rows):
                    watch(events, updates)
                    builder.add(updates)
                built = builder.finish(upper)
        except BlobNotFound as error:
            raise explained_by(self.spec, error.name) from error
        return built.to_bytes() if built.runs else b""

    def resolved(
        self, blobs: BlobStore, given: Iterable[object], old_rows: OldRows | None = None
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Events of each range of keys, and the updates that they amount to; both in ascending order."""
        spec, config = self.spec, self.spec.config
        own = {column.name for column in spec.schema.value}
        rules = Rules(self.columns.order_by if self.columns.order_by in own else None, self.rows_count)
        limits = Limits(config.merge_chunk_rows, config.merge_memory_bytes // _RANGE_SHARE)
        for events in key_ranges(map(self._events, given), spec.schema, limits):
            known = old_rows(self.lower, events) if old_rows is not None else None
            old = self._stored(blobs, events) if known is None else known
            yield events, resolve(events, old, spec.schema, spec.domain, rules)

    def _stored(self, blobs: BlobStore, events: pa.Table) -> pa.Table:
        keys = KeySet.of(events, self.spec.schema)
        found = rows(self.spec, blobs, list(self.needed), AsOf(self.lower.elements[0]), among=keys)
        with closing(found):
            return pa.Table.from_batches(found, update_schema(self.spec.schema, self.spec.domain))

    def _events(self, given: object) -> pa.Table:
        spec = self.spec
        read = partial(read_events, optional=spec.optional, dropped=spec.dropped)
        events = read(given, spec.schema, spec.domain, self.columns, time=self.time)
        if self.advance:
            return advanced(events, spec.domain, self.lower.elements[0])
        # Also of those that will change nothing.
        check_times(events, spec.domain, self.lower, None)
        return events

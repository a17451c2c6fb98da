"""Upserting from any process: events in, the bytes of a batch out.

Owns what is sent to a worker so that it can look up the old rows of its keys and store what follows from
them. What it gives back is appended by `tidelake.shard.writing.batches.append_uploaded`, at the very upper
that it was made for: later old rows may be others.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf
from tidelake.model.time import Time
from tidelake.shard.lease import explained_by
from tidelake.shard.overlap import mapped
from tidelake.shard.records import decoded
from tidelake.shard.runs.gather import catch_up
from tidelake.shard.runs.read import rows, sources
from tidelake.shard.runs.scope import Source
from tidelake.shard.runs.upload import check_times
from tidelake.shard.spec import ShardSpec, stores_of
from tidelake.shard.writing.builder import BatchBuilder
from tidelake.state.codec import encode_record
from tidelake.state.staged import begins_before
from tidelake.state.state import ShardState
from tidelake.store.protocols import BlobStore

OldRows: TypeAlias = Callable[[Frontier, pa.Table], pa.Table | None]
"""Knows what is stored without a look into the store, at the last time before an upper, of a table's keys.

Gives canonical updates, consolidated, of any time: all rows of these keys, each with its multiplicity in
`_diff`. None: it does not know.
"""

# Events, the same sorted, their old rows and the differences of both are in memory at once.
_RANGE_SHARE = 8
# Ranges at once: two that have one row group in common both read it.
_RANGES_MAX = 2


@dataclass(frozen=True)
class Upserter:
    """Events of keys to updates, against the contents as of one state. Goes to other processes as bytes.

    Attributes:
        spec: the shard.
        needed: the runs of the state.
        lower: its upper, from which on events have their times.
        columns: what orders events, and what removes.
        time: of all events; None: they have times of their own, or get one at the commit.
        rows_count: whether of equally good events the later row wins; else they must be equal.
        advance: whether events whose times are closed happen at `lower`; else they are refused.
        meets_staged: whether updates that are staged for their times are among what they meet.
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
        made = cls(spec, (), state.upper, columns, time, rows_count, advance)
        end = Frontier.past(made.as_of)
        met = any(begins_before(one.batch, end) for one in state.staged)
        needed = tuple(sources(state.batches(), AsOf(made.as_of)))
        return replace(made, needed=needed, meets_staged=met)

    @property
    def as_of(self) -> int:
        """The time of the contents that events meet: theirs, with what is staged for it, or the upper.

        No update of the spine has reached the upper: that is before it, whatever was folded.
        """
        return times.parts(self.lower.elements[0] if self.time is None else self.time)[0]

    def to_bytes(self) -> bytes:
        """A form for another process: a reference and descriptions of parts; no credentials."""
        return encode_record("upserter", self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Upserter":
        """Read `to_bytes`."""
        return decoded("upserter", data, cls, "upserter")

    def catch_up(self) -> None:
        """Unpack what is new of the shard if look-ups of this process have had most of it unpacked.

        The next look-up would do it. Errors as `upload`, and costs as `tidelake.shard.runs.gather.catch_up`.
        """
        with self._explained():
            catch_up(self.spec, stores_of(self.spec).blobs, self.needed)

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

        A look-up costs an `open` and some reads for each part that may hold one of the keys, unless this
        process has unpacked it (`lookup_cache_bytes`). Many keys are two ranges, for a thread each if there
        are so many for Arrow (`pyarrow.cpu_count`), and both may read one part. Then one `put` a part.
        Memory: `merge_memory_bytes` for the ranges, beside what their reads and `BatchBuilder` take.
        If it fails, what was stored is deleted.

        Raises:
            InvalidUpdates, UpdateNotBeyondLower: an event cannot be taken.
            UsageError: more events than fit into memory are not sorted by key.
            LeaseExpired: a part that is needed was collected meanwhile.
        """
        blobs, upper = stores_of(self.spec).blobs, Frontier()
        with (
            self._explained(),
            BatchBuilder(self.spec, blobs, Env(), self.lower, sorted=True, upper=upper) as builder,
        ):
            for events, updates in self.resolved(blobs, batches, old_rows):
                watch(events, updates)
                builder.add(updates)
            built = builder.finish(upper)
        return built.to_bytes() if built.runs else b""

    def resolved(
        self, blobs: BlobStore, given: Iterable[object], old_rows: OldRows | None = None
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Events of each range of keys, and the updates that they amount to; both in ascending order."""
        spec, config = self.spec, self.spec.config
        own = {column.name for column in spec.schema.value}
        rules = Rules(self.columns.order_by if self.columns.order_by in own else None, self.rows_count)
        # Arrow knows how many threads there are for it: one in a task of Spark, of which each core has one.
        threads = max(1, min(pa.cpu_count(), _RANGES_MAX)) if old_rows is None else 1
        limits = Limits(config.merge_chunk_rows, config.merge_memory_bytes // _RANGE_SHARE, threads)

        def resolved(events: pa.Table) -> tuple[pa.Table, pa.Table]:
            # What is staged is in no copy of the closed times.
            known = old_rows(self.lower, events) if old_rows and not self.meets_staged else None
            old = self._stored(blobs, events) if known is None else known
            return events, resolve(events, old, spec.schema, spec.domain, rules)

        yield from mapped(resolved, key_ranges(map(self._events, given), spec.schema, limits), threads)

    def _stored(self, blobs: BlobStore, events: pa.Table) -> pa.Table:
        """The rows of the keys of events."""
        among = KeySet.of(events, self.spec.schema)
        found = rows(self.spec, blobs, list(self.needed), AsOf(self.as_of), among=among)
        return pa.Table.from_batches(found, update_schema(self.spec.schema, self.spec.domain))

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
        # Also of those that will change nothing.
        check_times(events, spec.domain, self.lower, None)
        return events

"""Answers from one version of a shard: as a stream, as several, for some keys, or as a plan of tasks.

Everything that is read is of the `Version` and immutable, so appends, merges and changes of the schema that
happen meanwhile do not change an answer. Must not know how the version was chosen: see
`tidelake.shard.reading.query`.

INVARIANT: the streams of a split, one after the other, are the answer: disjoint ranges of keys, ascending.
"""

import hashlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from tidelake.data.answer.rows import Rows
from tidelake.data.kernel import timestamps
from tidelake.data.keys.keyset import KeySet
from tidelake.data.query.selection import bind
from tidelake.errors import BlobNotFound, IncompatibleSchema, TidelakeError, UsageError
from tidelake.model.evolution import why_not_readable_as
from tidelake.model.query import AsOf, Query
from tidelake.model.selection import ReadOptions, Selection
from tidelake.shard.engine.lease import explained
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardSpec
from tidelake.shard.engine.version import Version
from tidelake.shard.runs.difference import minus
from tidelake.shard.runs.read import rows, rows_merged, shown, sources_of, with_small_held
from tidelake.shard.runs.scope import KeyRange, Scope, Source, matching
from tidelake.shard.runs.shares import share_keys
from tidelake.state.core.state import ShardState
from tidelake.state.upkeep import basing
from tidelake.store.protocols import BlobStore

if TYPE_CHECKING:
    from tidelake.shard.runs.plan import ReadPlan, TaskOptions

_ALL = ReadOptions()


@dataclass(frozen=True)
class VersionRead:
    """A read of a version that knows the whole answer.

    Attributes:
        version: of the shard, pinned or less than a third of `garbage_age_s` old. What pins it keeps what is
            read; if nothing does, nothing keeps it.
        spec: of the version, with the schema to read under.
        held: the runs that are read, of which some may be in memory, and what to ask of them; None: those of
            the version.
    """

    shard: Shard
    version: Version
    query: Query
    spec: ShardSpec
    selection: Selection
    as_timestamps: bool = False
    held: tuple[list[Source], Query] | None = None

    @classmethod
    def of(cls, shard: Shard, version: Version, query: Query, options: ReadOptions = _ALL) -> "VersionRead":
        """A read as a user asks for it; what was to be waited for is closed."""
        spec, as_timestamps = version.spec.read_as(options.schema_id), options.times == "timestamp"
        if options.complete and (reason := outgrown(version.spec, options)):
            raise IncompatibleSchema(
                f"collection {shard.title!r} cannot be read with the columns that it had before: {reason}; "
                "begin again with those that it has now"
            )
        if as_timestamps:
            timestamps.check_clock(spec.domain)
        return cls(shard, version, query, spec, bind(options, spec.schema), as_timestamps)

    def stream(self) -> Rows:
        """The answer, sorted by (key, value, time), consolidated, in bounded memory.

        Columns as `tidelake.data.kernel.types.update_schema`, as far as the selection has them.
        """
        return self._rows(self._counted(self._batches(self.needed)))

    def _counted(self, batches: Generator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        yield from batches
        self._count()

    def _count(self) -> None:
        """Note what was merged for want of a base."""
        query, state = self.query, self.version.state
        if isinstance(query, AsOf) and isinstance(query.time, int) and basing.serves(state, query.time):
            self.shard.group_commit.merged.add(rows_merged(self.spec, self.needed, query), state)

    def between(self, keys: KeyRange) -> Generator[pa.RecordBatch]:
        """The rows of a range of keys, as `stream`. Errors as there."""
        return self._batches(self.needed, keys)

    def holding_small(self, starts: Iterable[bytes]) -> "VersionRead":
        """The same read for ranges that begin at these keys: small runs are read now, once for all ranges.

        Errors as `stream`.
        """
        needed, asked = self._sources
        try:
            held = with_small_held(self.spec, self._blobs, needed, asked, sorted(starts))
        except BlobNotFound as error:
            raise self._explained(error) from error
        return replace(self, held=(held, asked))

    def as_one(self, batches: Generator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """The batches of several reads of it, each of which may be too short to keep what is read."""
        return self.version.watch(batches) if _any_stored(self.needed) else batches

    def difference(self, more: list[Source], less: list[Source]) -> Generator[pa.RecordBatch]:
        """The answer of some runs less that of others, as `stream`; an earlier version may have had them."""
        where = self.selection.where
        if where is not None:
            scope = Scope(self.spec, where=where)
            more, less = matching(more, scope), matching(less, scope)
        found = minus(self.spec, self._blobs, more, less, self.query, selection=self.selection)
        if self.as_timestamps:
            found = timestamps.stream(found, self.spec.domain)
        return self.version.watch(found)

    def stream_of(self, batches: Iterable[pa.RecordBatch]) -> Rows:
        """As `stream`, of batches with all columns that were read already."""
        names = shown(self.spec, self.selection).names
        found = (batch.select(names) for batch in batches)
        return self._rows(timestamps.stream(found, self.spec.domain) if self.as_timestamps else found)

    def among(self, keys: KeySet) -> pa.Table:
        """The rows of some keys, as `stream`, in memory. Errors as there."""
        return pa.Table.from_batches(self._batches(self.needed, among=keys), self.schema)

    def split(self, n: int) -> list[Rows]:
        """The answer in `n` streams of about equal size; where there are fewer keys, some are empty.

        Each is for a thread of this process; `plan` does the same for other processes. Errors as `stream`.
        """
        needed, asked = self._sources
        try:
            cuts = share_keys(self.spec, self._blobs, needed, asked, n, selection=self.selection)
        except BlobNotFound as error:
            raise self._explained(error) from error
        edges = [None, *cuts, None]
        ranges = [KeyRange(edges[i], edges[i + 1]) for i in range(len(edges) - 1)]
        streams = [self._rows(self._batches(needed, keys)) for keys in ranges]
        return streams + [self._rows(self._batches([])) for _ in range(n - len(streams))]

    def plan(self, tasks: "TaskOptions") -> "ReadPlan":
        """The answer, cut into tasks for other processes; their times are int64. Errors as `stream`.

        Nothing keeps what they read for longer than `garbage_age_s`; see `tidelake.shard.reading.planholds`.
        """
        from tidelake.shard.runs.plan import plan_read

        if self.as_timestamps:
            raise UsageError("times='timestamp': the tasks of a plan give int64: convert what they return")
        needed, asked = self._sources
        try:
            cut = plan_read(self.spec, self._blobs, needed, asked, tasks, selection=self.selection)
        except BlobNotFound as error:
            raise self._explained(error) from error
        if not _any_stored(needed):
            return cut
        self._count()
        state = self.version.state
        return replace(cut, seqno=state.seqno, version=_digest(state))

    def plan_of(self, batches: list[pa.RecordBatch]) -> "ReadPlan | None":
        """As `plan`, of batches with all columns that were read already: one task that holds them.

        None if they are too large to be sent.
        """
        from tidelake.shard.runs.plan import plan_held

        return plan_held(self.spec, batches, self.query, selection=self.selection)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the answer."""
        found = shown(self.spec, self.selection)
        return timestamps.timestamp_schema(found, self.spec.domain) if self.as_timestamps else found

    @property
    def _blobs(self) -> BlobStore:
        return self.shard.stores.blobs

    @cached_property
    def _sources(self) -> tuple[list[Source], Query]:
        """The runs, without the parts that cannot hold rows of the answer, and what to ask of them."""
        if self.held is not None:
            return self.held
        found, asked = sources_of(self.version.state, self.query)
        where = self.selection.where
        return (found if where is None else matching(found, Scope(self.spec, where=where))), asked

    @property
    def needed(self) -> list[Source]:
        """The runs that are read, without the parts that cannot hold rows of the answer."""
        return self._sources[0]

    def _batches(
        self, needed: list[Source], keys: KeyRange | None = None, among: KeySet | None = None
    ) -> Generator[pa.RecordBatch]:
        asked = self._sources[1]
        found = rows(self.spec, self._blobs, needed, asked, keys, selection=self.selection, among=among)
        if self.as_timestamps:
            found = timestamps.stream(found, self.spec.domain)
        return self.version.watch(found) if _any_stored(needed) else found

    def _rows(self, batches: Generator[pa.RecordBatch]) -> Rows:
        return Rows(self.schema, batches, self.spec.domain)

    def _explained(self, error: BlobNotFound) -> TidelakeError:
        return explained(self.shard, error.name, self.version.state.seqno, self.version.hold_id)


def _any_stored(needed: list[Source]) -> bool:
    """Whether the store is needed at all: inline parts are in the state itself."""
    return any(part.inline is None for source in needed for part in source.run.parts)


def _digest(state: ShardState) -> str:
    """A word for the stored parts that a state names."""
    parts = (part for part in state.parts() if part.inline is None)
    return hashlib.sha256("\n".join(sorted(part.name for part in parts)).encode()).hexdigest()[:16]


def outgrown(spec: ShardSpec, options: ReadOptions) -> str:
    """Why present rows do not fit what was read under an earlier schema; empty if they do.

    If a column is dropped, rows that are removed later have null there, and match nothing that was read.
    """
    if options.schema_id is None or options.schema_id == max(spec.schemas):
        return ""
    schema = spec.schemas[options.schema_id]
    for column in bind(options, schema).needs(schema):
        if column.id not in spec.live:
            return f"column {column.name!r} was dropped since"
    return why_not_readable_as(spec.schemas[max(spec.schemas)], schema)

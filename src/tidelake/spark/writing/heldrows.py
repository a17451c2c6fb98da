"""The rows that a stream of transactions holds back, in objects of the store if they are many.

Owns these objects: who names, writes, reads and deletes them. The record of the stream's writer names those
that are needed (`tidelake.cdc.times.heldevents`). They are no parts: a row may be held back for longer than
an upload may take, so garbage collection leaves them alone; a drop of the collection deletes them.

INVARIANT: an object that a record names, or will name, is never deleted. Only what was there before a commit
of the writer, and is not named by it, is deleted after it: older holders of the writer's name cannot commit
any more, and a newer one would have fenced this commit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.times import heldevents as held
from tidelake.cdc.times.heldevents import Held
from tidelake.cdc.times.surveys import fingerprints
from tidelake.cdc.times.timeline import Progress
from tidelake.errors import BlobNotFound, CorruptionError, OutcomeUnknown, StoreUnavailable
from tidelake.lake.api.collection import Collection
from tidelake.model import names
from tidelake.shard.engine.spec import ShardSpec, env_here, stores_of
from tidelake.shard.writing.uploader import Uploader
from tidelake.spark.columns import convert, frame_arrow
from tidelake.spark.tasks import one_thread
from tidelake.spark.versions import arrow_schema, from_arrow
from tidelake.state.write.heldback import digest_of

_OBJECT = "object"


@dataclass(frozen=True)
class HeldRows:
    """Rows that a micro-batch held back.

    Attributes:
        told: what the record says of them.
        uploader: of the collection whose record it is, as bytes: it tells the store.
    """

    told: Held
    uploader: bytes

    @property
    def many(self) -> bool:
        """Whether they are in objects: then tasks take them, and not this process."""
        return bool(self.told.stored)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, with the columns of `AS_TEXT`; of many, those of one object at a time."""
        if self.told.rows:
            yield held.unpacked(self.told.rows)
        yield from _read(self.uploader, self.told.stored)

    def fingerprints(self) -> pa.Array:
        """What tells their events apart."""
        found = [fingerprints(as_bytes(batch.column("value"))) for batch in self.batches()]
        return pa.concat_arrays(found)

    def frame(self, spark: SparkSession, schema: StructType) -> DataFrame:
        """A frame of the rows."""
        if not self.many:
            return from_arrow(spark, next(self.batches()), schema)
        stored = spark.createDataFrame([(name,) for name in self.told.stored], f"{_OBJECT} string")
        return stored.mapInArrow(_ReadObjects(self.uploader, frame_arrow(arrow_schema(schema))), schema)


@dataclass(frozen=True)
class _ReadObjects:
    """In a worker: the rows of objects, by their names."""

    uploader: bytes
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        for batch in batches:
            for rows in _read(self.uploader, batch.column(0).to_pylist()):
                yield convert(rows, self.schema)


def _read(uploader: bytes, stored: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of objects, in their order."""
    for one in stored:
        spec = Uploader.from_bytes(uploader).spec
        name = names.held(spec.shard_id, one)
        digest = names.held_digest(name)
        if digest is None:
            raise CorruptionError("the record of a stream's writer", f"it names {name[:99]!r} as its own")
        try:
            data = stores_of(spec).blobs.get(name)
        except BlobNotFound as error:
            raise CorruptionError(
                name, "these events of a stream, which were held back until their transaction ends, are gone"
            ) from error
        if digest_of(data) != digest:
            raise CorruptionError(name, "these events of a stream, which were held back, are other ones now")
        yield held.unpacked(data)


def held_rows(collection: Collection, before: Held | None) -> HeldRows | None:
    """The rows that the record of a collection's writer says are held back; None: none are."""
    if before is None or not before.any:
        return None
    return HeldRows(before, collection.distributed.uploader().to_bytes() if before.stored else b"")


class HeldStore:
    """Writes and deletes the objects of one writer. Takes one micro-batch.

    Args:
        collection: whose record the writer's is.
        writer: the name of the writer.
        before: what the record says before the micro-batch.
        first: whether the writer has committed nothing since it was opened: then what a process has left
            that was killed is looked for.
    """

    def __init__(self, collection: Collection, writer: str, before: Held | None, *, first: bool) -> None:
        self._collection, self._before, self._first = collection, before, first
        self._writer = blake2b(writer.encode(), digest_size=8).hexdigest()
        self._there: list[str] = []
        self._kept: tuple[str, ...] = ()

    def keep(self, progress: Progress, several: Sequence[bytes]) -> Held:
        """What a commit is to say. Few rows are in the record; of many, each object costs one `put`.

        Args:
            progress: how far the stream is.
            several: the rows that are held back, as `packed` made them.
        """
        several = [data for data in several if data]
        self._kept = ()
        many = sum(map(len, several)) > held.BYTES_MAX
        if not many and not self._first and not (self._before is not None and self._before.stored):
            return Held(progress, held.merged(several))
        spec = self._spec()
        blobs, stored = stores_of(spec).blobs, list[str]()
        for data in held.grouped(several) if many else ():
            stored.append(names.held_as(self._writer, env_here().ids.fresh(), digest_of(data)))
            blobs.put(names.held(spec.shard_id, stored[-1]), data)
        self._there = [info.name for info in blobs.list(names.helds(spec.shard_id, self._writer))]
        self._kept = tuple(stored)
        return Held(progress, b"" if many else held.merged(several), self._kept)

    def committed(self) -> None:
        """Delete what the commit does not need any more. What cannot be deleted is left to a later one."""
        gone = sorted({*self._there} - {names.held(self._spec().shard_id, one) for one in self._kept})
        for name in gone:
            try:
                stores_of(self._spec()).blobs.delete(name)
            except (StoreUnavailable, OutcomeUnknown):
                env_here().failed("held.discard.failed")

    def _spec(self) -> ShardSpec:
        return self._collection.distributed.uploader().spec

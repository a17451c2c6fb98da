"""The rows that a stream of transactions holds back, in objects of the store if they are many.

Owns these objects: who names, writes, reads and deletes them. The record of the stream's writer names those
that are needed (`tidelake.cdc.times.heldevents`). They are no parts: a row may be held back for longer than
an upload may take, so garbage collection leaves them alone; a drop of the collection deletes them.

INVARIANT: an object that a record names, or will name, is never deleted. Only what was there before a commit
of the writer, and is not named by it, is deleted after it: older holders of the writer's name cannot commit
any more, and a newer one would have fenced this commit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import pyarrow as pa

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.times import heldevents as held
from tidelake.cdc.times.heldevents import Held
from tidelake.cdc.times.surveys import fingerprints
from tidelake.cdc.times.timeline import Progress
from tidelake.errors import BlobNotFound, CorruptionError, OutcomeUnknown, StoreUnavailable
from tidelake.lake.api.collection import Collection
from tidelake.model import names
from tidelake.shard.engine.spec import ShardSpec, env_here, stores_of
from tidelake.shard.writing.builder import Uploader
from tidelake.state.write.heldback import as_stored, digest_of


@dataclass(frozen=True)
class HeldRows:
    """Rows that a micro-batch held back; to iterate over them reads them.

    Attributes:
        told: what the record says of them.
        uploader: of the collection whose record it is, as bytes: it tells the store.
    """

    told: Held
    uploader: bytes

    @property
    def many(self) -> bool:
        """Whether they are in objects: with Spark tasks take them then, and not this process."""
        return bool(self.told.objects)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """The rows, with the columns of `AS_TEXT`; of many, those of one object at a time."""
        if self.told.rows:
            yield from held.pieces(self.told.rows)
        yield from objects(self.uploader, self.told.objects)

    def survey(self, schema: pa.Schema) -> pa.Table:
        """What stands for the rows among the surveys of lines, with these columns."""
        name = self.told.surveyed_in
        found = self.told.survey if name is None else held.survey_in(_object(self.uploader, name))
        return held.survey_of(found, schema)

    def before(self, position: int) -> "HeldRows":
        """What is not held back as a whole at and after a position."""
        return replace(self, told=self.told.before(position))

    def fingerprints(self, place: tuple[int, int]) -> pa.Array | None:
        """What tells events apart that may be at or after a place in the log; None: there are none."""
        near = replace(self, told=self.told.reaching(place))
        found = [fingerprints(as_bytes(batch.column("value"))) for batch in near]
        return pa.concat_arrays(found) if found else None


def objects(uploader: bytes, stored: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of objects, in their order."""
    for one in stored:
        yield from held.pieces(_object(uploader, one))


def _object(uploader: bytes, own: str) -> bytes:
    spec = Uploader.from_bytes(uploader).spec
    name = names.held(spec.shard_id, own)
    if names.held_digest(name) is None:
        raise CorruptionError("the record of a stream's writer", f"it names {name[:99]!r} as its own")
    try:
        data = stores_of(spec).blobs.get(name)
    except BlobNotFound as error:
        raise CorruptionError(
            name, "these events of a stream, which were held back until their transaction ends, are gone"
        ) from error
    return as_stored(name, data)


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

    def keep(self, progress: Progress, survey: bytes, several: Sequence[bytes]) -> Held:
        """What a commit is to say. Few rows are in the record; of many, each object costs one `put`.

        Pieces of before that are held back as a whole stay as they are.
        """
        before = self._before or Held(progress)
        stays = before.since(progress.held)
        several = [data for data in (stays.rows, *several) if data]
        self._kept = stays.stored
        many = sum(map(len, several)) > held.BYTES_MAX
        if not many and not self._first and not before.stored and len(survey) <= held.SURVEY_MAX:
            return Held(progress, held.merged(several), survey=survey)
        spans = stays.spans
        for data in held.grouped(several) if many else ():
            self._put(data)
            spans += (held.span_of(data),)
        if len(survey) > held.SURVEY_MAX:
            self._put(held.survey_object(survey))
            survey = b""
        spec = self._spec()
        found = stores_of(spec).blobs.list(names.helds(spec.shard_id, self._writer))
        self._there = [info.name for info in found]
        return Held(progress, b"" if many else held.merged(several), self._kept, spans, survey)

    def _put(self, data: bytes) -> None:
        spec = self._spec()
        self._kept += (names.held_as(self._writer, env_here().ids.fresh(), digest_of(data)),)
        stores_of(spec).blobs.put(names.held(spec.shard_id, self._kept[-1]), data)

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

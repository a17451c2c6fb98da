"""The work of a write through the format in the tasks, and its way to the commit.

Owns the plan that the driver sends to the tasks, and their messages. Must not know options, nor Spark's
interface. Tasks of envelopes that need equal keys together hand their rows over, sorted by key;
`tidelake.spark.writing.uploaded` commits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelake.data.ingest.convert import convert
from tidelake.errors import UsageError
from tidelake.feeds.answers import Answer, answered, answers_to_bytes
from tidelake.feeds.batches import written
from tidelake.feeds.commit import Numbered
from tidelake.feeds.loop import open_upper
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.reports import WriteReport, WrittenBatch
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.writer import Writer
from tidelake.lake.arguments.tokens import noted
from tidelake.model.frontier import Frontier
from tidelake.shard.writing.shufflespill import ShuffleSpill
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.reading.holds import application
from tidelake.spark.source.target import Target
from tidelake.spark.tasks import one_thread
from tidelake.spark.writing.uploaded import commit_uploads, hands_over


@dataclass(frozen=True)
class Uploaded(WriterCommitMessage):
    """The message of a task to the driver.

    Attributes:
        answers: rows of `uploads.answer_schema()`.
        handed: names of runs of rows that were handed over.
        rows: number of rows that the task got.
        query: id of the streaming query; empty for a batch write.
        target: the collection for which the rows were stored.
    """

    answers: bytes
    handed: tuple[str, ...]
    rows: int
    query: str
    target: Target


@dataclass(frozen=True)
class _Plan:
    """What a task does with its rows.

    Attributes:
        target: the collection to write to.
        work: work of the envelope; None: the rows are handed over.
        spill: bytes of the `ShuffleSpill`.
        names: names of the columns.
        key: the key columns.
    """

    target: Target
    work: ArrowMap | None
    spill: bytes
    names: tuple[str, ...]
    key: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch], query: str) -> Uploaded:
        one_thread()
        rows = 0
        handed: tuple[str, ...] = ()

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                yield batch

        def hand_over(_answer: Answer) -> bytes:
            nonlocal handed
            handed = ShuffleSpill.from_bytes(self.spill).put(counted(), self._keys)
            return b""

        done = answered(hand_over) if self.work is None else self.work(counted())
        return Uploaded(answers_to_bytes(done), handed, rows, query, self.target)

    def _keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return convert(batch.rename_columns(self.names), self.key)


class Upload:
    """One write as Spark plans it: made in the driver, pickled for the tasks.

    SUBTLE: Spark makes a stream's writer anew for the commit and for an abort, and pickles only the one
    that goes to the tasks. So the work of the tasks is planned when the writer is pickled.
    """

    def __init__(
        self,
        target: Target,
        collection: Collection,
        schema: StructType,
        envelope: Envelope,
        *,
        author: str = "",
        message: str = "",
    ) -> None:
        envelope.check(schema, collection)
        with noted(author, message):
            pass  # Faults are told before anything runs.
        self.target = target
        self._author, self._message = author, message
        # Not known where the commit is made.
        self._application = application()
        self.envelope = envelope
        self.names = tuple(schema.names)
        self._plan: _Plan | None = None
        self.hands_over = hands_over(envelope)
        if self.hands_over and not set(collection.key) <= set(self.names):
            raise UsageError(
                f"rows of the envelope {type(envelope).__name__.lower()!r} must be brought together by keys "
                "that are no columns, which a data source cannot do: use tidelake.spark.write, or "
                "writeStream.foreachBatch(tidelake.spark.sink(...))"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": self._planned()}

    def _planned(self) -> _Plan:
        if self._plan is None:
            collection = self.target.collection()
            uploader, key = collection.distributed.uploader(), collection.key
            work: ArrowMap | None = None
            if not self.hands_over:
                work = self.envelope.work(collection, self.names, open_upper(collection))
            fields = pa.schema([collection.schema.field(name) for name in key])
            spill = ShuffleSpill(uploader.spec).to_bytes()
            self._plan = _Plan(self.target, work, spill, self.names, fields)
        return self._plan

    def store(self, batches: Iterator[pa.RecordBatch], query: str = "") -> Uploaded:
        """In a task: store the rows."""
        return self._planned()(batches, query)

    def commit(
        self, collection: Collection, messages: Sequence[Uploaded], numbered: Numbered[Writer] | None
    ) -> WriteReport:
        """In the driver: append what the tasks uploaded, maybe as a micro-batch of a stream."""
        answers = [message.answers for message in messages]
        handed = [name for message in messages for name in message.handed]
        with noted(self._application, ""), noted(self._author, self._message):
            return commit_uploads(
                collection, self.envelope, self.names, answers, handed=handed, numbered=numbered
            )


@dataclass(frozen=True)
class IntoUploaded:
    """Appends what the tasks of a micro-batch have uploaded: `Into` for a stream through the format.

    Attributes:
        upload: the write, as Spark planned it.
        collection: the collection.
    """

    upload: Upload
    collection: Collection

    @property
    def upper(self) -> Frontier:
        """As `Into`."""
        return self.collection.upper

    def open(self, writer: str, query: str, *, take_over: bool) -> Writer:
        """As `Into`.

        All processes that run the query share its checkpoint, so they
        have the same rows under a number, and one of them commits it: `resume` fences none.
        """
        return self.collection.writer(writer, owner=query, take_over=take_over, resume=True)

    def write(self, rows: Sequence[Uploaded], numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`."""
        return written(numbered, self.upload.commit(self.collection, rows, numbered))

    def finish(self, rows: Sequence[Uploaded], numbered: Numbered[Writer]) -> WrittenBatch:  # noqa: ARG002
        """As `Into`."""
        return WrittenBatch(numbered.sequence, True, self.upper)

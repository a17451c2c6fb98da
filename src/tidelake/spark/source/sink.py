"""Writing through the format: `df.write.format("tidelake")` and `df.writeStream.format("tidelake")`.

Owns what Spark asks of a Python data source that is written to. A writer checks the columns when it is
made, in the driver, before anything runs; its tasks upload, and the driver commits once what their
messages describe, by the loop of all other writes.

A data source cannot ask Spark for a distribution: rows arrive as they are spread. That is enough for
envelopes whose rows mean themselves. Others are refused; `tidelake.spark.write` and `tidelake.spark.sink`
shuffle for them.

INVARIANT: nothing is ever deleted here. Spark calls `abort` with all messages also when `commit` raised,
which it may do after the commit. What is in vain is found by collection.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelake.config import Config
from tidelake.errors import InternalError, UpdateNotBeyondLower, UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.lake import open_lake
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.named import named
from tidelake.spark.tasks import ArrowMap
from tidelake.spark.uploads import answers_from_bytes, answers_to_bytes, total
from tidelake.spark.writing.commit import Numbered, commit, open_upper
from tidelake.spark.writing.exactly_once import DEFAULT_WRITER, QUERY_ID, is_in
from tidelake.spark.writing.token import TokenWriter

SNAPSHOT = "snapshot"


@dataclass(frozen=True)
class Uploaded(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        answers: rows of `uploads.answer_schema()`.
        lower: elements of the upper that the rows were uploaded for.
        query: id of the streaming query; empty for a batch write.
    """

    answers: bytes
    lower: tuple[Any, ...]
    query: str = ""


@dataclass(frozen=True)
class Target:
    """The collection to write to, for any process.

    Attributes:
        url: of the lake.
        name: of the collection.
        config: settings of the lake.
    """

    url: str
    name: str
    config: Config

    def open(self) -> Collection:
        """The collection, by a lake of this process."""
        return open_lake(self.url, create=False, config=self.config).collection(self.name)


class _Upload:
    """One write as Spark plans it: made in the driver, pickled for the tasks.

    SUBTLE: Spark makes a stream's writer anew for the commit and for an abort, and pickles only the one
    that goes to the tasks. So the work is planned when that is pickled, and the one that commits learns
    from the messages what it was planned for.
    """

    def __init__(self, collection: Collection, schema: StructType, envelope: Envelope) -> None:
        if not envelope.rebases:
            raise UsageError(
                f"rows of the envelope {type(envelope).__name__.lower()!r} must be brought together, which a "
                "data source cannot ask Spark for: use tidelake.spark.write, or "
                "writeStream.foreachBatch(tidelake.spark.sink(...))"
            )
        # Asked for first: its schema is the one that the store knows now.
        collection.state()
        envelope.check(schema, collection)
        spec = collection.uploader().spec
        self.target = Target(spec.url, collection.name, spec.config)
        self.envelope = envelope
        self.names: Sequence[str] = schema.names
        self._collection: Collection | None = collection
        self._planned: tuple[ArrowMap, tuple[Any, ...]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planned": self._plan(), "_collection": None}

    def _plan(self) -> tuple[ArrowMap, tuple[Any, ...]]:
        if self._planned is None:
            lower = open_upper(self.collection)
            self._planned = (self.envelope.work(self.collection, self.names, lower), lower.elements)
        return self._planned

    @property
    def collection(self) -> Collection:
        """The collection, opened if this is another process than the one that planned."""
        if self._collection is None:
            self._collection = self.target.open()
        return self._collection

    def upload(self, batches: Iterator[pa.RecordBatch], query: str = "") -> Uploaded:
        """In a task: store the rows."""
        work, lower = self._plan()
        return Uploaded(answers_to_bytes(work(batches)), lower, query)

    def commit(self, messages: Sequence[Uploaded], numbered: Numbered | None) -> None:
        """In the driver: append what the tasks uploaded.

        Raises:
            InvalidUpdates: a task found data that cannot be stored.
            UpdateNotBeyondLower: a time is closed.
        """
        answer = total(answers_from_bytes(message.answers for message in messages))
        lower = Frontier.of_all(element for message in messages[:1] for element in message.lower)
        if not messages:
            lower = open_upper(self.collection)
        rebases = self.envelope.rebases
        done = commit(self.collection, answer, lower, rebases=rebases, numbered=numbered)
        if done is None:
            # The rows are not here to be uploaded again, and only rows with times of their own get here.
            raise UpdateNotBeyondLower(answer.time_lower, self.collection.upper)


def chosen(
    schema: StructType, overwrite: bool, envelope: str | None, options: Mapping[str, object]
) -> Envelope:
    """The envelope of a write through the format.

    Args:
        schema: of the frame.
        overwrite: whether Spark was asked for `mode("overwrite")`, or a stream for `complete`.
        envelope: its name; None: `updates` if the frame has `_diff`, otherwise `append`; of an overwrite
            `snapshot`.
        options: what it takes.

    Raises:
        UsageError: it cannot overwrite, or takes no such option.
    """
    if not overwrite:
        return named(envelope or ("updates" if DIFF in schema.names else "append"), options)
    if envelope not in (None, SNAPSHOT):
        raise UsageError(
            f"the envelope {envelope!r} adds to what is there: use mode('append'), or outputMode('append') "
            f"of a stream; to replace the contents, use the envelope {SNAPSHOT!r}"
        )
    return named(SNAPSHOT, options)


class BatchWriter(DataSourceArrowWriter):
    """Of `df.write`, and of INSERT INTO a temporary view."""

    def __init__(
        self, collection: Collection, schema: StructType, envelope: Envelope, token: str | None = None
    ) -> None:
        self._upload = _Upload(collection, schema, envelope)
        self._token = token
        if token is not None:
            TokenWriter(collection, token)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """In a task: upload its rows."""
        return self._upload.upload(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: append once, unless the token is in."""
        numbered: Numbered | None = None
        if self._token is not None:
            tokens = TokenWriter(self._upload.collection, self._token)
            if tokens.done() is not None:
                return
            numbered = tokens.open()
        self._upload.commit(_uploaded(messages), numbered)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what the tasks uploaded may have been published, and is else found by collection."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Of `df.writeStream`: one commit for a micro-batch, exactly once."""

    def __init__(
        self,
        collection: Collection,
        schema: StructType,
        envelope: Envelope,
        writer: str | None = None,
        take_over: bool = False,
    ) -> None:
        self._upload = _Upload(collection, schema, envelope)
        self._writer = DEFAULT_WRITER if writer is None else writer
        self._take_over = take_over

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """In a task: upload its rows. Only here Spark says which query this is."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        if not query:
            raise UsageError("this is no task of a streaming query")
        return self._upload.upload(iterator, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: append once, under the number of the micro-batch, unless it is in."""
        found = _uploaded(messages)
        queries = {message.query for message in found}
        if len(queries) != 1:
            raise InternalError(f"the tasks of micro-batch {batchId} belong to {len(queries)} queries")
        collection = self._upload.collection
        writer = collection.writer(self._writer, owner=queries.pop(), take_over=self._take_over)
        if not is_in(writer, batchId):
            self._upload.commit(found, Numbered(writer, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing; see `BatchWriter.abort`."""


def _uploaded(messages: Sequence[WriterCommitMessage | None]) -> list[Uploaded]:
    """The messages of all tasks. Spark commits only if each of them came to an end and sent one."""
    found = [message for message in messages if isinstance(message, Uploaded)]
    if len(found) != len(messages):
        raise InternalError(f"{len(messages) - len(found)} of {len(messages)} tasks sent no message")
    return found

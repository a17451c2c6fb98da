"""Writing through the format: `df.write.format("tidelake")` and `df.writeStream.format("tidelake")`.

Implements Spark's interface for Python data sources that are written to. A writer checks the columns when it
is made, in the driver, before anything runs; its tasks upload, and the driver commits their uploads once,
by the commit loop of all other writes.

A data source cannot ask Spark for a distribution: rows arrive as they are. That suffices for envelopes whose
rows do not depend on others. For those that need equal keys together, the tasks hand rows over, sorted by
key, and the commit merges these and does the envelope's work, in one process and bounded memory. Large writes
of this kind should use `tidelake.spark.write` and `tidelake.spark.sink`, which shuffle.

INVARIANT: uploads that were offered to a commit are never deleted here. Spark also calls `abort` with all
messages if `commit` raised, which may happen after the commit. Garbage collection removes unused uploads.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidelake.errors import CollectionNotFound, InternalError, UsageError
from tidelake.feeds.batches import Batches, Identity
from tidelake.feeds.commit import Numbered
from tidelake.feeds.note import BatchNote
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.lake.api.writer import Writer
from tidelake.lake.arguments.schemas import schema_of
from tidelake.lake.arguments.tokens import writer_of
from tidelake.model.schema import DIFF
from tidelake.model.time import TimeDomain
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.named import DEFAULT, named
from tidelake.spark.source.interface import DataSourceStreamArrowWriter
from tidelake.spark.source.options import WriteOptions, write_options
from tidelake.spark.source.place import create, located
from tidelake.spark.source.sentences import told
from tidelake.spark.source.target import Target
from tidelake.spark.source.times import written_at
from tidelake.spark.source.uploading import IntoUploaded, Upload, Uploaded
from tidelake.spark.writing.exactly_once import DEFAULT_WRITER
from tidelake.spark.writing.microbatch import QUERY_ID, planned_in
from tidelake.spark.writing.token import TokenWriter

SNAPSHOT = "snapshot"
# Envelopes whose option `time` may also be one time for all rows.
AT_ONE_TIME = (DEFAULT, SNAPSHOT, "upsert")
# Envelopes whose rows have the columns of the collection.
OF_COLUMNS = (DEFAULT, SNAPSHOT, "upsert")


def chosen(collection: Collection, schema: StructType, overwrite: bool, given: WriteOptions) -> Envelope:
    """The envelope of a write through the format."""
    name = given.envelope
    if overwrite and name not in (None, SNAPSHOT):
        raise UsageError(
            f"the envelope {name!r} adds to what is there: use mode('append'), or outputMode('append') of a "
            f"stream; to replace the contents, use the envelope {SNAPSHOT!r}"
        )
    if name is None:
        name = SNAPSHOT if overwrite else DEFAULT
    time: object = given.time
    if given.time is not None and name in AT_ONE_TIME and given.time not in schema.names:
        time = written_at(given.time, times_of(collection), "time")
    options = {
        "time": time,
        "delete_column": given.delete_column,
        "order_by": given.order_by,
        "late": given.late,
        "rejects": given.rejects,
        "encodings": given.encodings,
        "old_rows": given.old_rows,
        "table": given.table,
        "missing": given.missing,
    }
    return named(name, options)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "BatchWriter":
    """The writer of `df.write`. A few store calls."""
    given = write_options(options)
    if given.writer is not None or given.take_over:
        raise UsageError("options writer and takeOver are of streams: a batch write is recognised by a token")
    if given.token is not None:
        writer_of(given.token)
    return BatchWriter(_upload(options, schema, overwrite, given), given.token)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> "StreamWriter":
    """The writer of `df.writeStream`. Errors as for `batch_writer`."""
    given = write_options(options)
    if given.token is not None:
        raise UsageError("option token is of batch writes: a stream is recognised by its checkpoint")
    upload = _upload(options, schema, overwrite, given)
    return StreamWriter(upload, given.writer, given.take_over, given.checkpoint)


def _upload(options: Mapping[str, str], schema: StructType, overwrite: bool, given: WriteOptions) -> Upload:
    try:
        target = located(options)
    except CollectionNotFound:
        if given.key is None:
            raise
        create(options, _columns(schema, given), given.key, given.time_unit)
        target = located(options)
    collection = target.collection()
    if given.key is not None and given.key != collection.key:
        raise UsageError(
            f"option key={','.join(given.key)}: the key of the collection is {', '.join(collection.key)}"
        )
    envelope = chosen(collection, schema, overwrite, given)
    return Upload(target, collection, schema, envelope, author=given.author, message=given.message)


def _columns(schema: StructType, given: WriteOptions) -> pa.Schema:
    """The columns of a collection that is made for the rows of a frame."""
    if given.envelope not in (None, *OF_COLUMNS):
        raise UsageError(
            f"option key: rows of the envelope {given.envelope!r} are not those of the collection: make it "
            "by lake.create first"
        )
    domain = TimeDomain.parse(given.time_unit or "counter")
    others = {DIFF, *domain.columns, given.delete_column, given.time}
    return schema_of(StructType([field for field in schema if field.name not in others]))


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`, and of INSERT INTO a temporary view."""

    def __init__(self, upload: Upload, token: str | None = None) -> None:
        self.upload, self._token = upload, token

    @told
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """In a task: upload its rows."""
        return self.upload.store(iterator)

    @told
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: append once, unless the token is committed already."""
        found = _uploaded(messages)
        collection = _target(found, self.upload.target).collection()
        numbered: Numbered[Writer] | None = None
        if self._token is not None:
            tokens = TokenWriter(collection, self._token)
            if tokens.done() is not None:
                return
            numbered = tokens.open()
        self.upload.commit(collection, found, numbered)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the uploads may be committed; if they are not, garbage collection removes them."""


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`: one commit for each micro-batch, exactly once."""

    def __init__(
        self,
        upload: Upload,
        writer: str | None = None,
        take_over: bool = False,
        checkpoint: str | None = None,
    ) -> None:
        self.upload = upload
        self._writer = DEFAULT_WRITER if writer is None else writer
        self._take_over = take_over
        self._checkpoint = checkpoint

    @told
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """In a task: upload its rows. Only here Spark says which query this is."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        if not query:
            raise UsageError("this is no task of a streaming query")
        return self.upload.store(iterator, query)

    @told
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: append once, under the number of the micro-batch, unless it is committed already."""
        found = _uploaded(messages)
        queries = {message.query for message in found}
        if len(queries) != 1:
            raise InternalError(f"the tasks of micro-batch {batchId} belong to {len(queries)} queries")
        collection = _target(found, self.upload.target).collection()
        # Without the checkpoint only the number of rows is known. That is a weak check: a repeated batch may
        # have another number, and a different batch the same.
        note = planned_in(self._checkpoint, batchId)
        note = note if note.what else BatchNote(f"{sum(m.rows for m in found)} rows")
        # Spark makes a writer for each batch.
        batches = Batches(IntoUploaded(self.upload, collection), self._writer, self._take_over)
        batches.write(found, queries.pop(), batchId, Identity.told(note))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing; see `BatchWriter.abort`."""


def _uploaded(messages: Sequence[WriterCommitMessage | None]) -> list[Uploaded]:
    """The messages of all tasks. Spark commits only if every task ended and sent one."""
    found = [message for message in messages if isinstance(message, Uploaded)]
    if len(found) != len(messages):
        raise InternalError(f"{len(messages) - len(found)} of {len(messages)} tasks sent no message")
    return found


def _target(found: Sequence[Uploaded], planned: Target) -> Target:
    """The collection for which the tasks stored rows. A stream's writer looks it up again for the commit."""
    targets = {message.target for message in found} or {planned}
    if len(targets) != 1:
        raise InternalError(f"the tasks of one write stored rows for {len(targets)} collections")
    return targets.pop()

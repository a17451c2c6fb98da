"""Files of a directory into a collection, each row exactly once, whatever dies when.

Owns the stream: Spark's file source lists what is new, workers parse and upload, and the driver
appends once for each micro-batch. The order of commits makes it exactly-once with nothing to configure:

1. Spark writes which files batch n has into the checkpoint. From then on batch n is those files.
2. One compare-and-set appends the rows of batch n and records "writer W has written n for query Q".
3. Spark writes into the checkpoint that n is done.

A driver that dies between 2 and 3 runs batch n again, and the record says that it is in. A driver
that was thought dead is fenced by the epoch of the one that opened the writer after it. A lost
checkpoint is another query Q, which may not write on under the name W.

Spark's file source takes files in the order of their modification times, each path once, and does not
see files whose name begins with `.` or `_`, files in subdirectories, nor a change of a file that it
has taken: write files elsewhere and move them into the directory when they are complete.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tidelake.errors import TidelakeError, UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.changes import Late, OldRows
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.named import EnvelopeLike, named
from tidelake.spark.jobs.files import FILE, ROWS_FILE, Format, ours, rows_of, text_of
from tidelake.spark.tasks import remote
from tidelake.spark.writing.commit import Numbered, write
from tidelake.spark.writing.exactly_once import is_in, query_of
from tidelake.state.append import other_content

DEFAULT_WRITER = "spark-ingest"


@dataclass(frozen=True)
class IngestedBatch:
    """What one micro-batch did.

    Attributes:
        batch: its number in the checkpoint.
        already: it was in before; its files were not read again.
        upper: the collection's upper after it.
        events: change events read.
        updates: rows they made, before consolidation.
        heartbeats: heartbeat lines read.
        tombstones: lines ignored.
        late: events whose time was closed when they were read, moved to the least that is open.
        rejects: lines that could not be read, kept in the folder of rejects.
        files: files read.
    """

    batch: int
    already: bool
    upper: Frontier
    events: int = 0
    updates: int = 0
    heartbeats: int = 0
    tombstones: int = 0
    late: int = 0
    rejects: int = 0
    files: int = 0


@dataclass
class IngestReport:
    """What a run of the ingest did, added up over its micro-batches; see `IngestedBatch`.

    Attributes:
        batches: micro-batches that were appended.
        already: micro-batches that were in before.
        upper: the collection's upper after the last one; if there was none, at the end. None before that.
    """

    batches: int = 0
    already: int = 0
    events: int = 0
    updates: int = 0
    heartbeats: int = 0
    tombstones: int = 0
    late: int = 0
    rejects: int = 0
    files: int = 0
    upper: Frontier | None = None

    def add(self, batch: IngestedBatch) -> None:
        """Count one more micro-batch."""
        self.batches += not batch.already
        self.already += batch.already
        for name in ("events", "updates", "heartbeats", "tombstones", "late", "rejects", "files"):
            setattr(self, name, getattr(self, name) + getattr(batch, name))
        self.upper = batch.upper


Progress = Callable[[IngestedBatch], None]


def ingest(
    spark: SparkSession,
    collection: Collection,
    directory: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    envelope: EnvelopeLike = "debezium",
    format: Format | None = None,  # noqa: A002 - as Spark calls it
    available_now: bool = True,
    max_files_per_trigger: int | None = None,
    writer: str = DEFAULT_WRITER,
    take_over: bool = False,
    progress: Progress | None = None,
    **options: object,
) -> IngestReport:
    """Follow a directory of files.

    A micro-batch is one commit. The ingest may be killed and run again at any point.

    Args:
        spark: the session.
        collection: to append to.
        directory: of the files, also compressed.
        checkpoint: a directory of this ingest alone. Do not share, copy or delete it.
        envelope: what rows mean, by name or made already; see `tidelake.spark.write`.
        format: of the files: `"text"` (lines of change events; the default, and all that the envelope
            `debezium` reads but Parquet), `"jsonl"`, `"csv"` (with a header) or `"parquet"`.
        available_now: stop when everything that is there has been taken; otherwise follow until the
            query is stopped or the caller interrupted.
        max_files_per_trigger: files in a micro-batch at most; default: all that are new.
        writer: name of the writer's record in the collection. One ingest, one name.
        take_over: write on under a name that another checkpoint has used. For files that the other
            one has not ingested; the same files again would be in twice.
        progress: called after each micro-batch.
        **options: of the envelope, such as `time="ts_ms"` or `rejects="folder"`.

    Returns:
        What was done.

    Raises:
        InvalidUpdates: a line cannot be read or is late; names file, line and reason. The micro-batch
            it is in was not appended, all earlier ones were. Mend the file in place and run again.
        UsageError: the checkpoint is not the one that this writer name belongs to, times are tuples, or the
            session is one of Spark Connect, where the driver's part would run in the server.
        WriterFenced: another ingest under this name was started.
    """
    if remote(spark):
        raise UsageError("an ingest needs a session with a driver of its own, not one of Spark Connect")
    made = named(envelope, options)
    folder, most = os.fspath(directory), max_files_per_trigger
    kept = made.rejects if isinstance(made, Debezium) else None
    if kept is not None and os.path.realpath(kept) == os.path.realpath(folder):
        raise UsageError(f"rejects={kept!r} is the directory that is read: what is kept would be taken next")
    kind: Format = "text" if format is None else format
    if kind == "text":
        if not isinstance(made, Debezium):
            raise UsageError("lines of text are change events: give format='jsonl', 'csv' or 'parquet'")
        frame = text_of(spark, folder, most)
    else:
        frame = rows_of(spark, collection, folder, kind, files=most, file_column=_file_column(made))
    # Before a query is started, whose error would be a text.
    made.check((frame if kind == "text" else frame.drop(_file_column(made))).schema, collection)
    sink = _Sink(collection, made, writer, take_over, progress)
    stream = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", os.fspath(checkpoint))
    query = (stream.trigger(availableNow=True) if available_now else stream).start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    except StreamingQueryException:
        # Spark has only the text of what our function raised.
        if sink.error is not None:
            raise sink.error from None
        raise
    if sink.report.upper is None:
        sink.report.upper = collection.upper
    return sink.report


def ingest_change_files(
    spark: SparkSession,
    collection: Collection,
    directory: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    time_field: str | None = None,
    late: Late = "refuse",
    old_rows: OldRows = "events",
    order_by: str | None = None,
    encodings: str = "",
    rejects: str | os.PathLike[str] | None = None,
    **how: Any,
) -> IngestReport:
    """Follow a directory of Debezium change files; see `tidelake.spark.envelopes.changes` for the lines.

    Rows are at their own times, and the collection's upper moves just past the last time seen, so that
    time must not go on in a later file unless `late="advance"`.

    Args:
        spark: the session.
        collection: to append to; its times must be single numbers.
        directory: of the change files, JSON lines, also compressed.
        checkpoint: as of `ingest`.
        time_field: where in an event its time is: names, separated by dots; default: as of `Debezium`.
        late: what to do with an event before the collection's upper: `"refuse"` stops with an error
            that names it, `"advance"` gives it the upper as its time.
        old_rows: where old rows are: `"events"`, or `"stored"` in the collection.
        order_by: where in an event is what orders those of one key and time, with `"stored"`.
        encodings: of columns, where no schema says them.
        rejects: a folder for lines that cannot be read; default: they stop the ingest.
        **how: the other arguments of `ingest`.

    Returns and raises:
        As `ingest`.
    """
    folder = None if rejects is None else os.fspath(rejects)
    envelope = Debezium(time_field, late, old_rows, order_by, encodings, folder)
    return ingest(spark, collection, directory, checkpoint, envelope=envelope, **how)


def content_of(files: Iterable[str]) -> str:
    """A digest of the files of a micro-batch: the same for the same files."""
    return hashlib.blake2b("\n".join(sorted(files)).encode(), digest_size=16).hexdigest()


@dataclass
class _Sink:
    """What Spark calls for each micro-batch, on a thread of its own."""

    collection: Collection
    envelope: Envelope
    name: str
    take_over: bool
    progress: Progress | None
    report: IngestReport = field(default_factory=IngestReport)
    error: Exception | None = None
    _writer: Writer | None = None

    def take(self, frame: DataFrame, batch: int) -> None:
        """Append one micro-batch, unless it is in."""
        try:
            if self._writer is None:
                self._writer = self.collection.writer(
                    self.name, owner=query_of(frame), take_over=self.take_over
                )
            done = self._ingest(self._writer, frame, batch)
            self.report.add(done)
            if self.progress is not None:
                self.progress(done)
        except TidelakeError as error:
            self.error = error
            raise
        except Exception as error:
            # Of the driver or a worker, and not always of PySpark's own classes.
            self.error = ours(error) or error
            raise

    def _ingest(self, writer: Writer, frame: DataFrame, batch: int) -> IngestedBatch:
        lines = isinstance(self.envelope, Debezium) and "value" in frame.columns
        if is_in(writer, batch):
            if content_of(self._files(frame)) != writer.last_content:
                # A driver that died before it finished its last batch repeats that one, with the same files.
                # A checkpoint that is older than the collection gives its number to new files; to take them
                # for repeated would lose them without a word.
                raise UsageError(other_content(writer.name, batch))
            return IngestedBatch(batch, True, self.collection.upper)
        # Lines come with their files. Of other rows, they are asked for.
        files = None if lines else self._files(frame)
        written = write(
            self.collection,
            frame if lines else frame.drop(_file_column(self.envelope)),
            self.envelope,
            numbered=Numbered(
                writer, batch, lambda answer: content_of(answer.files if files is None else files)
            ),
            title=f"tidelake: ingest batch {batch} into {self.collection.name}",
        )
        answer, appended = written.answer, written.appended
        return IngestedBatch(
            batch,
            appended.already,
            appended.upper,
            answer.events,
            answer.rows,
            answer.heartbeats,
            answer.tombstones,
            answer.late,
            len(answer.rejects),
            len(answer.files if files is None else files),
        )

    def _files(self, frame: DataFrame) -> tuple[str, ...]:
        """The files that a micro-batch is made of, but for those without a row."""
        return tuple(row[0] for row in frame.select(_file_column(self.envelope)).distinct().collect())


def _file_column(envelope: Envelope) -> str:
    """Where a micro-batch has the file of each row."""
    return FILE if isinstance(envelope, Debezium) else ROWS_FILE

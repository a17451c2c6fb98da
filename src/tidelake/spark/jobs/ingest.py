"""Taking the files of a directory into a collection, each row exactly once, also after crashes.

Owns the stream: Spark's file source lists new files, workers parse and upload, and the driver appends once
for each micro-batch. The order of commits makes it exactly-once, with nothing to configure:

1. Spark writes which files batch n has into the checkpoint. From then on batch n is those files.
2. One compare-and-set appends the rows of batch n and records "writer W has written n for query Q".
3. Spark writes into the checkpoint that n is done.

If a driver dies between 2 and 3, the next one runs batch n again, and the record says that it is committed.
A driver that was wrongly taken for dead is fenced by the epoch of the next driver that opens the writer. A
lost checkpoint means another query Q, which is refused under the name W.

Spark's file source takes files in the order of their modification times, each path once. It ignores files
whose names begin with `.` or `_`, files in subdirectories, and changes of files that it has taken: write
files elsewhere and move them into the directory when they are complete.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidelake.errors import TidelakeError, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.changes import Late, OldRows
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.dms import Dms
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.held import split
from tidelake.spark.envelopes.named import DEFAULT, EnvelopeLike, named
from tidelake.spark.jobs.files import FILE, ROWS_FILE, Format, check_rejects, ours, rows_of, run, text_of
from tidelake.spark.tasks import remote
from tidelake.spark.writing.commit import Numbered, write
from tidelake.spark.writing.exactly_once import BatchSink, is_in, query_of
from tidelake.state.write.idempotency import other_content

DEFAULT_WRITER = "spark-ingest"


@dataclass(frozen=True)
class IngestedBatch:
    """What one micro-batch did.

    Attributes:
        batch: its number in the checkpoint.
        already: it was committed before; its files were not read again.
        upper: the collection's upper after it.
        events: change events read.
        updates: rows they made, before consolidation.
        heartbeats: heartbeat lines read.
        tombstones: lines ignored.
        late: events whose time was closed when they were read, moved to the least open time.
        rejects: lines that could not be read, stored in the folder of rejects.
        files: files read.
        held: events that are held back: the commit, or the end, of their transaction is not known yet.
        repeated: events ignored, since their transactions are in the collection.
        absent: removals of keys that had no row, as far as old rows were looked up.
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
    held: int = 0
    repeated: int = 0
    absent: int = 0


_SUMMED = ("events", "updates", "heartbeats", "tombstones", "late", "rejects", "files", "repeated", "absent")


@dataclass
class IngestReport:
    """What a run of the ingest did, added up over its micro-batches; see `IngestedBatch`.

    Attributes:
        batches: micro-batches that were appended.
        already: micro-batches that were committed before.
        held: events that are held back after the last micro-batch.
        upper: the collection's upper after the last micro-batch or, without any, at the end of the run. None
            before that.
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
    held: int = 0
    repeated: int = 0
    absent: int = 0
    upper: Frontier | None = None

    def add(self, batch: IngestedBatch) -> None:
        """Count one more micro-batch."""
        self.batches += not batch.already
        self.already += batch.already
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(batch, name))
        self.held = self.held if batch.already else batch.held
        self.upper = batch.upper


Progress = Callable[[IngestedBatch], None]


def ingest(
    spark: SparkSession,
    collection: Collection,
    directory: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    envelope: EnvelopeLike = DEFAULT,
    format: Format = "jsonl",  # noqa: A002 - as Spark calls it
    follow: bool = False,
    max_files_per_trigger: int | None = None,
    writer: str = DEFAULT_WRITER,
    take_over: bool = False,
    progress: Progress | None = None,
    **options: object,
) -> IngestReport:
    """Take the files of a directory into a collection, and optionally follow the directory.

    A micro-batch is one commit. The ingest may be killed and run again at any point.

    Args:
        spark: the session.
        collection: the collection to append to.
        directory: the directory of the files, which may be compressed.
        checkpoint: a directory only for this ingest. Do not share, copy or delete it.
        envelope: what rows mean, as a name or an envelope object; see `tidelake.spark.write`.
        format: format of the files: `"jsonl"` (JSON lines), `"csv"` (with a header) or `"parquet"`; or
            `"keyed"`, lines of a key, a tab and a JSON value, as Kafka's console consumer prints messages
            with `print.key=true`. The envelope `debezium` reads `"jsonl"`, `"keyed"` and `"parquet"`,
            `maxwell` and `canal` read `"jsonl"` and `"keyed"`, and `dms` reads messages as these and files
            with a column `Op` as the others.
        follow: go on with new files until the query is stopped or the caller is interrupted; False: stop
            when all present files are taken.
        max_files_per_trigger: the most files in a micro-batch; default: all new files.
        writer: name of the writer's record in the collection. Each ingest needs its own name.
        take_over: take over a name that another checkpoint has used. Only for files that the other one has
            not ingested: the same files would be appended twice.
        progress: called after each micro-batch.
        **options: options of the envelope, such as `time="ts_ms"` or `rejects="folder"`.

    Returns:
        Totals of what was done.

    Raises:
        InvalidUpdates: a line cannot be read or is late; names file, line and reason. Its micro-batch was not
            appended, all earlier ones were. Correct the file in place and run again.
        UsageError: this writer name belongs to another checkpoint, times are tuples, or the session is one of
            Spark Connect, where the driver's part would run in the server.
        WriterFenced: another ingest under this name was started.
    """
    if remote(spark):
        raise UsageError("an ingest needs a session with a driver of its own, not one of Spark Connect")
    made = named(envelope, options)
    frame = _frame(spark, collection, os.fspath(directory), made, format=format, files=max_files_per_trigger)
    sink = _Sink(collection, made, writer, take_over, progress)
    run(frame, sink, os.fspath(checkpoint), follow=follow)
    if sink.report.upper is None:
        sink.report.upper = collection.upper
    return sink.report


def _frame(
    spark: SparkSession,
    collection: Collection,
    folder: str,
    envelope: Envelope,
    *,
    format: Format,  # noqa: A002 - as Spark calls it
    files: int | None,
) -> DataFrame:
    """The files of a folder as a stream, checked: once a query runs, Spark has only the text of an error."""
    check_rejects(envelope.rejects if isinstance(envelope, Debezium) else None, folder)
    if isinstance(envelope, Debezium) and format in ("jsonl", "keyed"):
        frame = text_of(spark, folder, files, format)
        envelope.check(frame.schema, collection)
        return frame
    # Rows may have any column names; the parser of events tells its errors with the column `file`.
    of_events = isinstance(envelope, Debezium) and not isinstance(envelope, Dms)
    file_column = FILE if of_events else ROWS_FILE
    frame = rows_of(spark, collection, folder, format, files=files, file_column=file_column)
    envelope.check(frame.drop(file_column).schema, collection)
    return frame


def ingest_change_files(
    spark: SparkSession,
    collection: Collection,
    directory: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    time: str | None = None,
    late: Late = "refuse",
    old_rows: OldRows = "events",
    order_by: str | None = None,
    encodings: str = "",
    rejects: str | os.PathLike[str] | None = None,
    **how: Any,
) -> IngestReport:
    """Follow a directory of Debezium change files; see `tidelake.spark.envelopes.changes` for the lines.

    Rows have their own times, and the collection's upper moves just past the last time seen. So a later file
    must not have events of an earlier or the same time, unless `late="advance"`.

    Args:
        spark: the session.
        collection: the collection to append to; its times must be single numbers.
        directory: the directory of change files: JSON lines, which may be compressed.
        checkpoint: as for `ingest`.
        time: path of the time in an event: names, separated by dots; default: as for `Debezium`.
        late: what to do with an event before the collection's upper: `"refuse"` stops with an error
            that names it, `"advance"` gives it the upper as its time.
        old_rows: where old rows are: in the `"events"`, or `"stored"` in the collection.
        order_by: path of the value that orders events of one key and time, with `"stored"`.
        encodings: encodings of columns, used if the events have no schema.
        rejects: a folder for lines that cannot be read; default: they stop the ingest.
        **how: the other arguments of `ingest`.

    Returns and raises:
        As `ingest`.
    """
    folder = None if rejects is None else os.fspath(rejects)
    envelope = Debezium(time, late, old_rows, order_by, encodings, folder)
    return ingest(spark, collection, directory, checkpoint, envelope=envelope, **how)


def content_of(files: Iterable[str]) -> str:
    """A digest of the files of a micro-batch: the same for the same files."""
    return hashlib.blake2b("\n".join(sorted(files)).encode(), digest_size=16).hexdigest()


@dataclass
class _Sink(BatchSink[IngestedBatch, Writer]):
    """The function that Spark calls for each micro-batch, in another thread."""

    collection: Collection
    envelope: Envelope
    name: str
    take_over: bool
    progress: Progress | None
    report: IngestReport = field(default_factory=IngestReport)

    def _take(self, frame: DataFrame, batch: int) -> IngestedBatch:
        done = self._ingest(self._writer(query_of(frame)), frame, batch)
        self.report.add(done)
        return done

    def _open(self, query: str) -> Writer:
        return self.collection.writer(self.name, owner=query, take_over=self.take_over)

    def _own(self, error: Exception) -> Exception:
        # The error may come from the driver or a worker, and is not always one of PySpark's classes.
        return error if isinstance(error, TidelakeError) else ours(error) or error

    def _ingest(self, writer: Writer, frame: DataFrame, batch: int) -> IngestedBatch:
        lines = ROWS_FILE not in frame.columns and "value" in frame.columns
        if is_in(writer, batch):
            if content_of(self._files(frame)) != split(writer.last_content)[0]:
                # After a crash Spark repeats the last batch, with the same files. An old copy of the
                # checkpoint gives the number to new files: to skip these as repeated would lose them
                # silently.
                raise UsageError(other_content(writer.name, batch))
            return IngestedBatch(batch, True, self.collection.upper)
        # Lines come with their files. For other rows, query the files.
        files = None if lines else self._files(frame)
        written = write(
            self.collection,
            frame if lines else frame.drop(_file_column(frame)),
            self.envelope,
            numbered=Numbered(
                writer,
                batch,
                lambda answer: content_of(answer.files if files is None else files),
                stream=True,
                first=self._first,
            ),
            title=f"tidelake: ingest batch {batch} into {self.collection.name}",
        )
        self._first = False
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
            answer.held_events,
            answer.repeated,
            answer.absent,
        )

    def _files(self, frame: DataFrame) -> tuple[str, ...]:
        """The files of a micro-batch, except those without rows."""
        return tuple(row[0] for row in frame.select(_file_column(frame)).distinct().collect())


def _file_column(frame: DataFrame) -> str:
    """The column with the file of each row."""
    return ROWS_FILE if ROWS_FILE in frame.columns else FILE

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
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidelake.cdc.parse.parser import Late, OldRows
from tidelake.errors import UsageError
from tidelake.feeds.batches import Identity, Progress
from tidelake.feeds.commit import Numbered
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.note import BatchNote
from tidelake.feeds.reports import IngestReport, WrittenBatch
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.debezium import EventFrames
from tidelake.spark.envelopes.dms import DmsFrames
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.named import DEFAULT, EnvelopeLike, named
from tidelake.spark.jobs.files import FILE, ROWS_FILE, Format, check_rejects, rows_of, run, text_of
from tidelake.spark.tasks import remote
from tidelake.spark.writing.exactly_once import IntoCollection, Sink

DEFAULT_WRITER = "spark-ingest"


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
    sink = Sink(_IntoFromFiles(IntoCollection(collection, made)), writer, take_over, progress)
    return run(frame, sink, os.fspath(checkpoint), follow=follow)


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
    check_rejects(envelope.feed.rejects if isinstance(envelope, EventFrames) else None, folder)
    if isinstance(envelope, EventFrames) and format in ("jsonl", "keyed"):
        frame = text_of(spark, folder, files, format)
        envelope.check(frame.schema, collection)
        return frame
    # Rows may have any column names; the parser of events tells its errors with the column `file`.
    of_events = isinstance(envelope, EventFrames) and not isinstance(envelope, DmsFrames)
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
    """Follow a directory of Debezium change files; see `tidelake.cdc.parse.parser` for the lines.

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
    envelope = EventFrames(Debezium(time, late, old_rows, order_by, encodings, folder))
    return ingest(spark, collection, directory, checkpoint, envelope=envelope, **how)


@dataclass(frozen=True)
class _Files:
    """The rows of a micro-batch, with their files."""

    frame: DataFrame

    @property
    def are_lines(self) -> bool:
        """Whether they are lines, which are read with their files."""
        return ROWS_FILE not in self.frame.columns and "value" in self.frame.columns

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The files, except those without rows. Runs a job."""
        return tuple(row[0] for row in self.frame.select(_file_column(self.frame)).distinct().collect())


@dataclass(frozen=True)
class _IntoFromFiles:
    """Appends micro-batches of files to a collection, each known by the names of its files.

    After a crash Spark repeats the last batch, with the same files. An old copy of the checkpoint gives the
    number to new files: to skip these as repeated would lose them silently.
    """

    into: IntoCollection

    @property
    def title(self) -> str:
        """As `Into`."""
        return self.into.title

    @property
    def upper(self) -> Frontier:
        """As `Into`."""
        return self.into.upper

    def open(self, writer: str, query: str, *, take_over: bool) -> Writer:
        """As `Into`."""
        return self.into.open(writer, query, take_over=take_over)

    def rows(
        self,
        frame: DataFrame,
        query: str,  # noqa: ARG002
        batch: int,  # noqa: ARG002
        expected_bytes: int | None,  # noqa: ARG002
    ) -> tuple[_Files, Identity]:
        """As `Into`."""
        files = _Files(frame)
        return files, Identity(
            lambda: BatchNote(content_of(files.names)),
            lambda answer: BatchNote(content_of(answer.files if files.are_lines else files.names)),
        )

    def write(self, rows: _Files, numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`."""
        if rows.are_lines:
            return self.into.write(rows.frame, numbered)
        done = self.into.write(rows.frame.drop(_file_column(rows.frame)), numbered)
        return replace(done, files=len(rows.names))

    def finish(self, rows: _Files, numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`."""
        return self.into.finish(rows.frame, numbered)


def content_of(files: Iterable[str]) -> str:
    """A digest of the files of a micro-batch: the same for the same files."""
    return hashlib.blake2b("\n".join(sorted(files)).encode(), digest_size=16).hexdigest()


def _file_column(frame: DataFrame) -> str:
    """The column with the file of each row."""
    return ROWS_FILE if ROWS_FILE in frame.columns else FILE

"""Change files into a collection, each event exactly once, whatever dies when.

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
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from tidelake.errors import UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.writer import Writer
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.changes import ChangeParser, Late
from tidelake.spark.tasks import ArrowMap, remote
from tidelake.spark.uploads import Answer, upload
from tidelake.spark.writing.commit import Numbered, write
from tidelake.state.append import other_content


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
    """

    batch: int
    already: bool
    upper: Frontier
    events: int = 0
    updates: int = 0
    heartbeats: int = 0
    tombstones: int = 0
    late: int = 0


@dataclass
class IngestReport:
    """What a run of the ingest did, added up over its micro-batches; see `IngestedBatch`.

    Attributes:
        batches: micro-batches that were appended.
        already: micro-batches that were in before.
        upper: the collection's upper after the last one; None if there was none.
    """

    batches: int = 0
    already: int = 0
    events: int = 0
    updates: int = 0
    heartbeats: int = 0
    tombstones: int = 0
    late: int = 0
    upper: Frontier | None = None

    def add(self, batch: IngestedBatch) -> None:
        """Count one more micro-batch."""
        self.batches += not batch.already
        self.already += batch.already
        self.events += batch.events
        self.updates += batch.updates
        self.heartbeats += batch.heartbeats
        self.tombstones += batch.tombstones
        self.late += batch.late
        self.upper = batch.upper


Progress = Callable[[IngestedBatch], None]


def ingest_change_files(
    spark: SparkSession,
    collection: Collection,
    directory: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    time_field: str = "source.lsn",
    available_now: bool = True,
    max_files_per_trigger: int | None = None,
    late: Late = "refuse",
    writer: str = "spark-ingest",
    take_over: bool = False,
    progress: Progress | None = None,
) -> IngestReport:
    """Follow a directory of Debezium change files; see `tidelake.spark.envelopes.debezium` for the lines.

    A micro-batch is one commit: its rows are at their own times, and the collection's upper moves just
    past the last time seen, so that time must not go on in a later file unless `late="advance"`.
    It may be killed and run again at any point.

    Args:
        spark: the session.
        collection: to append to; its times must be single numbers.
        directory: of the change files, JSON lines, also compressed.
        checkpoint: a directory of this ingest alone. Do not share, copy or delete it.
        time_field: where in an event its time is: names, separated by dots.
        available_now: stop when everything that is there has been taken; otherwise follow until the
            query is stopped or the caller interrupted.
        max_files_per_trigger: files in a micro-batch at most; default: all that are new.
        late: what to do with an event before the collection's upper: `"refuse"` stops with an error
            that names it, `"advance"` gives it the upper as its time.
        writer: name of the writer's record in the collection. One ingest, one name.
        take_over: write on under a name that another checkpoint has used. For files that the other
            one has not ingested; the same files again would be in twice.
        progress: called after each micro-batch.

    Returns:
        What was done.

    Raises:
        InvalidUpdates: a line cannot be read or is late; names file, line and reason. The micro-batch
            it is in was not appended, all earlier ones were. Mend the file in place and run again.
        UsageError: the checkpoint is not the one that this writer name belongs to, times are tuples, or the
            session is one of Spark Connect, where the driver's part would run in the server.
        WriterFenced: another ingest under this name was started.
    """
    if not collection.domain.total_order:
        raise UsageError(f"times of {collection.domain} cannot be read from change events: use an int time")
    if remote(spark):
        raise UsageError("an ingest needs a session with a driver of its own, not one of Spark Connect")
    parser = ChangeParser(collection.schema, time_field=time_field, late=late)
    sink = _Sink(collection, parser, writer, take_over, progress)
    lines = _lines(spark, os.fspath(directory), max_files_per_trigger)
    stream = lines.writeStream.foreachBatch(sink.take).option("checkpointLocation", os.fspath(checkpoint))
    query = (stream.trigger(availableNow=True) if available_now else stream).start()
    sink.begin(str(query.id))
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    except StreamingQueryException:
        # Spark has only the text of what our function raised.
        if sink.error is not None:
            raise sink.error from None
        raise
    return sink.report


def _lines(spark: SparkSession, directory: str, files: int | None) -> DataFrame:
    """The lines of new files, each with the name of its file."""
    reader = spark.readStream.format("text")
    # Without these, Spark skips files older than a week than the newest, or that it cannot read, silently.
    reader = reader.option("maxFileAge", "36500d").option("ignoreCorruptFiles", "false")
    reader = reader.option("ignoreMissingFiles", "false")
    if files is not None:
        if files < 1:
            raise UsageError(f"max_files_per_trigger={files} must be at least 1")
        reader = reader.option("maxFilesPerTrigger", files)
    try:
        found = reader.load(_literal(directory))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise UsageError(
            f"there is no directory of change files at {directory!r}: create it first"
        ) from error
    return found.select("value", col("_metadata.file_path").alias("file"))


@dataclass(frozen=True)
class _UploadLines:
    """In a worker: lines become parts in the store, and one answer."""

    uploader: bytes
    parser: ChangeParser

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return upload(self.uploader, lambda answer: self._updates(batches, answer))

    def _updates(self, batches: Iterator[pa.RecordBatch], answer: Answer) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            answer.see_files(batch.column(1))
            parsed = self.parser.parse(batch.column(0), batch.column(1).to_pylist())
            answer.see_rows(parsed.rows, "_time")
            answer.advances = self.parser.late == "advance"
            answer.see_times(None, parsed.time_upper)
            answer.events += parsed.events
            answer.heartbeats += parsed.heartbeats
            answer.tombstones += parsed.tombstones
            answer.late += parsed.late
            if parsed.rows.num_rows:
                yield parsed.rows


@dataclass(frozen=True)
class _Changes:
    """The envelope of lines; `parser` gets its lower at each upload."""

    parser: ChangeParser

    @property
    def rebases(self) -> bool:
        return True

    def check(self, frame: StructType, collection: Collection) -> None:
        """Lines are read in the tasks."""

    def arrange(self, frame: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        return frame

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:  # noqa: ARG002
        floor = lower.elements[0]
        if not isinstance(floor, int):
            raise UsageError(f"times of {collection.domain} cannot be read from change events")
        return _UploadLines(collection.uploader().to_bytes(), replace(self.parser, lower=floor))


def content_of(files: Iterable[str]) -> str:
    """A digest of the files of a micro-batch: the same for the same files."""
    return hashlib.blake2b("\n".join(sorted(files)).encode(), digest_size=16).hexdigest()


def _literal(directory: str) -> str:
    """A directory's name as a pattern that matches only itself: Spark reads paths as patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", directory)


@dataclass
class _Sink:
    """What Spark calls for each micro-batch, on a thread of its own."""

    collection: Collection
    parser: ChangeParser
    name: str
    take_over: bool
    progress: Progress | None
    report: IngestReport = field(default_factory=IngestReport)
    error: Exception | None = None
    _query_id: str = ""
    _begun: threading.Event = field(default_factory=threading.Event)
    _writer: Writer | None = None

    def begin(self, query_id: str) -> None:
        """Tell whose batches these are: Spark gives the id only after the first batch may have started."""
        self._query_id = query_id
        self._begun.set()

    def take(self, lines: DataFrame, batch: int) -> None:
        """Append one micro-batch, unless it is in."""
        try:
            self._begun.wait()
            if self._writer is None:
                self._writer = self.collection.writer(
                    self.name, owner=self._query_id, take_over=self.take_over
                )
            done = self._ingest(self._writer, lines, batch)
            self.report.add(done)
            if self.progress is not None:
                self.progress(done)
        except Exception as error:
            self.error = error
            raise

    def _ingest(self, writer: Writer, lines: DataFrame, batch: int) -> IngestedBatch:
        if writer.last_sequence is not None and batch <= writer.last_sequence:
            self._check_replay(writer, lines, batch)
            return IngestedBatch(batch, True, self.collection.upper)
        written = write(
            self.collection,
            lines,
            _Changes(self.parser),
            numbered=Numbered(writer, batch, lambda answer: content_of(answer.files)),
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
        )

    def _check_replay(self, writer: Writer, lines: DataFrame, batch: int) -> None:
        """Check that a batch that comes again is the one that is in.

        A driver that died before it finished its last batch repeats that one, with the same files. A
        checkpoint that is older than the collection (a restored copy, or one that lost its tail) gives
        known numbers to new files; to take them for repeated would lose them without a word.
        """
        files = tuple(row.file for row in lines.select("file").distinct().collect())
        if batch != writer.last_sequence or content_of(files) != writer.last_content:
            raise UsageError(other_content(writer.name, batch))

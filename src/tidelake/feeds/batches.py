"""Micro-batches of a stream, each committed once, also after crashes.

Owns what is left of a micro-batch that may be in already, by its number in the record of the stream's writer
and the note beside it. What a stream is written into (`Into`) says how one micro-batch is committed, and
nothing else.

INVARIANT: a stream repeats only its last micro-batch, as it was planned. A number before the last one, or the
last one planned otherwise, comes from a checkpoint that is older than the collection (a restored copy). Its
rows may be different: it is refused, never taken for done.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from tidelake.cdc.core.topicpartition import TopicPartition
from tidelake.errors import UsageError
from tidelake.feeds.answers import Answer
from tidelake.feeds.commit import Numbered, W
from tidelake.feeds.note import BatchNote
from tidelake.feeds.reports import IngestReport, WriteReport, WrittenBatch
from tidelake.lake.api.writer import Writer
from tidelake.lake.arguments.numbers import check_not_fenced
from tidelake.lake.groups.groupwriter import GroupWriter
from tidelake.model.frontier import Frontier
from tidelake.state.write.idempotency import other_content

G = TypeVar("G")
Given = TypeVar("Given", contravariant=True)

Progress = Callable[[WrittenBatch], None]


@dataclass(frozen=True)
class Identity:
    """What tells a micro-batch from another one with its number.

    Attributes:
        again: the note, found out without reading the rows for their own sake.
        of: the same, once they were read.
    """

    again: Callable[[], BatchNote]
    of: Callable[[Answer], BatchNote]

    @classmethod
    def told(cls, note: BatchNote) -> "Identity":
        """One that is known."""
        return cls(lambda: note, lambda _answer: note)


def is_in(writer: Writer | GroupWriter, batch: int, note: BatchNote) -> bool:
    """Whether a micro-batch is committed already."""
    if writer.last_sequence is None or batch > writer.last_sequence:
        return False
    known = BatchNote.of(writer.last_content)
    if batch < writer.last_sequence or (note.what and known.what and note.what != known.what):
        raise UsageError(other_content(writer.name, batch))
    if note.run and note.run == known.run:
        raise UsageError(
            f"something was written under writer {writer.name!r} in this micro-batch, {batch}, already: if a "
            "micro-batch writes to one collection several times, give each sink a writer name of its own"
        )
    return True


class Into(Protocol[Given, W]):
    """What the micro-batches of a stream are written into."""

    @property
    def upper(self) -> Frontier:
        """Its upper."""

    def open(self, writer: str, query: str, *, take_over: bool) -> W:
        """Open the named writer for a query: that fences older drivers."""

    def write(self, rows: Given, numbered: Numbered[W]) -> WrittenBatch:
        """Commit a micro-batch under its number, once."""

    def finish(self, rows: Given, numbered: Numbered[W]) -> WrittenBatch:
        """Do what is left of a micro-batch that is committed."""


@dataclass
class Batches(Generic[G, W]):
    """Commits the micro-batches of one stream, each once.

    Attributes:
        into: what is written into.
        writer: name of the stream's record there.
        take_over: whether to take over a name that another query has used.
        report: what all micro-batches did.
    """

    into: Into[G, W]
    writer: str
    take_over: bool = False
    report: IngestReport = field(default_factory=IngestReport, init=False, repr=False)
    _opened: tuple[str, W] | None = field(default=None, init=False, repr=False)
    _failed: int | None = field(default=None, init=False, repr=False)
    # Whether no micro-batch was committed since the writer was opened.
    _first: bool = field(default=True, init=False, repr=False)
    # For most streams Spark has no estimate of a micro-batch's size: use that of the last one.
    _taken_bytes: int | None = field(default=None, init=False, repr=False)

    def write(
        self,
        rows: G,
        query: str,
        batch: int,
        identity: Identity | None = None,
        planned: Collection[TopicPartition] = (),
        *,
        files: int | None = None,
        repeated: int = 0,
    ) -> WrittenBatch:
        """Commit the rows of one micro-batch, unless it is committed already.

        Args:
            rows: the rows, as `Into.write` takes them.
            query: identifies the stream.
            batch: number of the micro-batch.
            identity: tells it from another one with this number; None: that is not known.
            planned: partitions of Kafka that it is made of.
            files: number of files that it ends; None: as the lines say.
            repeated: events that were left out before, as repeated.
        """
        writer = self.opened(query)
        identity = identity or Identity.told(BatchNote())
        numbered = Numbered(writer, batch, identity.of, True, planned, self._first, self._taken_bytes)
        if self._is_in(writer, batch, identity):
            done = self.into.finish(rows, numbered)
        else:
            try:
                done = self.into.write(rows, numbered)
            except UsageError:
                # What another process has taken meanwhile looks late.
                check_not_fenced(writer)
                raise
            done = replace(done, repeated=done.repeated + repeated)
            done = done if files is None else replace(done, files=files)
            self._first, self._taken_bytes = False, done.taken_bytes
        self.report = self.report.then(done)
        return done

    def opened(self, query: str) -> W:
        """The writer, opened once for each query."""
        if self._opened is None or self._opened[0] != query:
            writer = self.into.open(self.writer, query, take_over=self.take_over)
            self._opened, self._first = (query, writer), True
        return self._opened[1]

    def _is_in(self, writer: W, batch: int, identity: Identity) -> bool:
        """As `is_in`."""
        if writer.last_sequence is None or batch > writer.last_sequence:
            return False
        note = identity.again()
        return is_in(writer, batch, note.without_run() if batch == self._failed else note)


def written(numbered: Numbered[W], done: WriteReport) -> WrittenBatch:
    """What a micro-batch did that was one write."""
    appended, taken_bytes = done.appended, done.taken_bytes
    return WrittenBatch(numbered.sequence, appended.already, appended.upper, taken_bytes, **done.counts())

"""What goes into one collection, change events or rows of files, as micro-batches of this process."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.lineerrors import place
from tidelake.cdc.times.heldevents import Held
from tidelake.cdc.times.partitions import partitions, seen_again
from tidelake.cdc.times.timeline import Progress
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.errors.base import TimedError
from tidelake.feeds.answers import Answer, total
from tidelake.feeds.batches import written
from tidelake.feeds.commit import CollectionWrite, Numbered, OneTime, keeping
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.eventfiles import OP, ColumnEvents, op_rows
from tidelake.feeds.heldrows import held_rows
from tidelake.feeds.loop import CommitPoint, committed
from tidelake.feeds.note import BatchNote
from tidelake.feeds.opcolumn import REMOVED
from tidelake.feeds.reading import AS_TEXT, DECODED, PLACES, decoded
from tidelake.feeds.reports import WriteReport, WrittenBatch
from tidelake.feeds.rowfiles import RowFiles
from tidelake.feeds.rows import RowUpdates, RowUpserts
from tidelake.feeds.storing import in_key_order
from tidelake.feeds.survey import Surveyed, check_none_held, timed
from tidelake.feeds.tablelines import seen_rows
from tidelake.feeds.tools import Dms
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.writer import Writer
from tidelake.model.frontier import Frontier

_NUMBER, _FRACTION = r"^[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?$", r"\..*$"


@dataclass(frozen=True)
class _Into:
    """What is the same of all that goes into one collection.

    Attributes:
        collection: the collection.
    """

    collection: Collection

    @property
    def upper(self) -> Frontier:
        """As `Into`."""
        return self.collection.upper

    def open(self, writer: str, query: str, *, take_over: bool) -> Writer:
        """As `Into`."""
        return self.collection.writer(writer, owner=query, take_over=take_over)

    def finish(self, rows: object, numbered: Numbered[Writer]) -> WrittenBatch:  # noqa: ARG002
        """As `Into`."""
        return WrittenBatch(numbered.sequence, True, self.upper)


@dataclass(frozen=True)
class IntoOne(_Into):
    """Appends micro-batches of lines to a collection.

    Attributes:
        feed: what the lines mean.
    """

    feed: Debezium

    def write(self, rows: Sequence[pa.RecordBatch], numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`."""
        before = BatchNote.of(numbered.writer.last_content).held
        known = {} if before is None else before.progress.partitions
        lines, feed, times = [decoded(batch) for batch in rows], self.feed, None
        placed = any(PLACES[0] in batch.schema.names for batch in lines)
        work = Surveyed.of(self.collection, placed=placed, timed=feed.by_transaction)
        found = pa.Table.from_batches(work(iter(lines)), schema=work.found)
        count = sum(batch.num_rows for batch in lines)
        if work.placed and (offsets := seen_again(found, known)):
            lines = [batch.filter(pa.array(~seen_rows(batch, offsets))) for batch in lines]
            found = pa.Table.from_batches(work(iter(lines)), schema=work.found)
        repeated = count - sum(batch.num_rows for batch in lines)
        held = held_rows(self.collection, before)
        due: Iterable[pa.RecordBatch] = ()
        if feed.by_transaction:
            times = timed(work, feed, found, before, held, whole=False, repeated=repeated)
        if times is None:
            check_none_held(before)
        else:
            feed, due = feed.at(times.timeline), times.due or ()
            numbered = keeping(self.collection, numbered, times)
        if times is None and (work.placed or known):
            note = numbered.note
            reached = partitions(found, known, ()) if work.placed else None
            progress = Progress("", partitions=known if reached is None else reached.known)
            numbered = replace(numbered, note=lambda answer: replace(note(answer), held=Held(progress)))
        counts = {"repeated": repeated, "held": 0 if times is None else times.held}
        making = _FromLines(self.collection, feed, due, lines, counts)
        report: WriteReport = committed(
            CollectionWrite(self.collection, making, numbered=numbered, taken=times)
        )
        return written(numbered, report)


@dataclass
class _Here:
    """Makes the uploads of a write in this process.

    Attributes:
        collection: the target.
    """

    collection: Collection

    def all_at(self, start: Frontier) -> OneTime | None:  # noqa: ARG002
        """As `Making`: a micro-batch without updates closes no time."""
        return None

    def ready(self) -> None:
        """As `Making`."""

    def forget(self) -> None:
        """As `Making`: nothing is kept."""

    def done(self) -> None:
        """As `Making`."""


@dataclass
class _FromLines(_Here):
    """Makes the uploads of lines.

    Attributes:
        feed: what the lines mean.
        due: lines that were held back before, which are read anew for each try.
        lines: the others.
        counts: of events that are not among them.
    """

    feed: Debezium
    due: Iterable[pa.RecordBatch]
    lines: Sequence[pa.RecordBatch]
    counts: Mapping[str, int]

    @property
    def rebases(self) -> bool:
        """As `Making`."""
        return self.feed.rebases

    def answer(self, at: CommitPoint, start: Frontier) -> Answer:  # noqa: ARG002
        """As `Making`."""
        names = [*AS_TEXT, DECODED]
        lines = [batch.select([name for name in names if name in batch.schema.names]) for batch in self.lines]
        answer = self.feed.answer(self.collection, chain(self.due, lines), start)
        answer.count(**self.counts)
        answer.taken_bytes = sum(batch.nbytes for batch in lines)
        return answer


@dataclass(frozen=True)
class IntoRows(_Into):
    """Appends micro-batches of files of rows to a collection.

    Attributes:
        rows: what the rows mean.
        files: reads them.
    """

    rows: RowUpdates | RowUpserts | ColumnEvents
    files: RowFiles

    def write(self, rows: Sequence[str], numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`: of files by their names."""
        making = _FromFiles(self.collection, self.rows, self.files, rows)
        try:
            return written(numbered, committed(CollectionWrite(self.collection, making, numbered=numbered)))
        except UsageError as error:
            told = str(error).removesuffix(f"; {place(None)}")
            is_named = "file=" in told or str(self.files.folder.resolve()) in told
            if is_named or not isinstance(error, InvalidUpdates | TimedError):
                raise
            raise InvalidUpdates(f"{told}; {making.place}") from error


@dataclass(frozen=True)
class IntoEvents(_Into):
    """Appends micro-batches of events in files of rows to a collection.

    Attributes:
        feed: what the events mean.
        files: reads those that are no lines.
    """

    feed: Debezium
    files: RowFiles

    def write(self, rows: Sequence[pa.RecordBatch | str], numbered: Numbered[Writer]) -> WrittenBatch:
        """As `Into`: of lines, or of files by their names."""
        lines = [one for one in rows if not isinstance(one, str)]
        if lines:
            self.feed.check(self.collection)
            return IntoOne(self.collection, self.feed).write(lines, numbered)
        check_none_held(BatchNote.of(numbered.writer.last_content).held)
        names = [one for one in rows if isinstance(one, str)]
        columns = next(filter(None, map(self.files.columns, names)), pa.schema([]))
        files = replace(self.files, collection=self.collection)
        if not (isinstance(self.feed, Dms) and OP in columns.names):
            return IntoRows(self.collection, ColumnEvents(self.feed), files).write(names, numbered)
        if self.feed.old_rows == "events":
            raise UsageError("files of AWS DMS have no old rows: leave old_rows out, or use 'stored'")
        time = None if self.feed.time in self.collection.schema.names else self.feed.time
        meaning = RowUpserts(self.feed.order_by, REMOVED, self.feed.time, self.feed.late)
        files = replace(files, prepare=partial(op_rows, time))
        return IntoRows(self.collection, meaning, files).write(names, numbered)


@dataclass
class _FromFiles(_Here):
    """Makes the uploads of files of rows.

    Attributes:
        rows: what the rows mean.
        files: reads them.
        names: the files, which are read anew for each try.
    """

    rows: RowUpdates | RowUpserts | ColumnEvents
    files: RowFiles
    names: Sequence[str]

    @property
    def rebases(self) -> bool:
        """As `Making`."""
        return self.rows.rebases

    @property
    def place(self) -> str:
        """The files, for messages."""
        first, *_, last = [place((self.files.folder / name).resolve().as_uri()) for name in self.names] * 2
        several = f"{len(self.names)} files, of which max_files_per_trigger=1 takes one at a time: "
        return f"{several}{first} to {last}" if len(self.names) > 1 else first

    def answer(self, at: CommitPoint, start: Frontier) -> Answer:  # noqa: ARG002
        """As `Making`."""
        # Of the newest schema.
        self.collection.state()
        with closing(self.files.read(self.names, partial(self.rows.check_columns, self.collection))) as found:
            first = next(found, None)
            if first is None:
                return Answer()
            if isinstance(self.rows, ColumnEvents):
                rest = chain([first], found)
                return self.rows.answer(self.collection, rest, first.schema.names, start)
            kinds = self.rows.stored(self.collection, first.schema)
            work = self.rows.work_on(self.collection, first.schema.names, start, kinds)
            rows: Iterator[pa.RecordBatch] = chain([first], found)
            if isinstance(self.rows, RowUpserts) and self.files.format == "csv":
                rows = _sortable(rows, self.rows.order_by, self.collection.schema.names)
            if not self.rebases:
                rows = in_key_order(self.collection, rows)
            return total(pa.Table.from_batches(work(rows)))


def _sortable(
    rows: Iterator[pa.RecordBatch], order_by: str | None, known: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Rows of CSV, where an undeclared column that orders them is of texts: "9" would come after "10"."""
    if order_by is None or order_by in known:
        yield from rows
        return
    digits = set[int]()
    for batch in rows:
        texts = batch.column(order_by)
        numbers = texts.filter(pc.match_substring_regex(texts, _NUMBER))
        digits.update(
            pc.unique(pc.binary_length(pc.replace_substring_regex(numbers, _FRACTION, ""))).to_pylist()
        )
        odd = pc.any(pc.match_substring_regex(numbers, "[-+eE]"), min_count=0).as_py()
        if len(digits) > 1 or odd:
            raise InvalidUpdates(
                f"order_by={order_by!r} has numbers, and is no column of the collection, so that CSV has "
                "texts there, which sort otherwise: give numbers as many digits, or take jsonl or parquet"
            )
        yield batch

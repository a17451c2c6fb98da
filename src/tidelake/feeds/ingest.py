"""Taking lines of change feeds, and files of rows, into collections in this process, each once.

Owns where micro-batches begin and end. The order of commits makes it exactly-once:

1. The journal of a directory says which lines micro-batch n has. From then on n is those.
2. One compare-and-set appends the rows of n and records "writer W has written n".

A process that dies before 2 leaves parts that no state names, and the next one makes micro-batch n anew.
Lines from elsewhere have no journal: messages of Kafka are known by their offsets, transactions of Debezium
by their positions.

Micro-batches end amid a file if the times of its events are those of transactions, whose rest is held back;
else files are taken whole, as their lines may be in any order. Files of rows are read while they are stored.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike, path
from pathlib import Path
from typing import Any, TypeAlias, cast

import pyarrow as pa

from tidelake.cdc.debezium.decoded import decode
from tidelake.cdc.times.positions import positions
from tidelake.cdc.wire.decoder import Decoder, Tombstones, decoder_of
from tidelake.env import Clock
from tidelake.errors import UsageError
from tidelake.feeds.batches import Batches, Identity, Progress
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.directory import Directory, Journal, ReadPiece, Taken, turn
from tidelake.feeds.eventfiles import lines_of
from tidelake.feeds.lines import after, batches_of, check_format, piece_of
from tidelake.feeds.named import FEEDS, ROWS, made
from tidelake.feeds.note import BatchNote
from tidelake.feeds.onecollection import IntoEvents, IntoOne, IntoRows
from tidelake.feeds.reports import IngestReport
from tidelake.feeds.rowfiles import RowFiles, RowFormat
from tidelake.feeds.tablelines import FewLines
from tidelake.feeds.tables import IntoTables
from tidelake.feeds.tabletargets import table_targets
from tidelake.feeds.tools import Dms
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.ingesting import Ingesting

Source: TypeAlias = str | PathLike[str] | Iterable[Any]
WRITER = "ingest"
BATCH_BYTES = 1 << 26
# So many lines tell whether the feed has transactions.
_LOOKED_AT = 256
_POLL_S = 1.0
# Who numbers lines that have no journal.
_LINES = "lines"
_FORMAT, _UNIT = "jsonl", "counter"


def ingest(
    lake: Ingesting,
    source: Source,
    into: Collection | str,
    envelope: str = "debezium",
    *,
    tables: bool = False,
    format: str = _FORMAT,  # noqa: A002 - as Spark calls it
    checkpoint: str | PathLike[str] | None = None,
    follow: bool = False,
    max_files_per_trigger: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    writer: str = WRITER,
    take_over: bool = False,
    progress: Progress | None = None,
    time_unit: str = _UNIT,
    names: Mapping[str, str] | None = None,
    keys: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    schemas: str | PathLike[str] | None = None,
    flattened: bool = False,
    tombstones: Tombstones = "refuse",
    rename: Mapping[str, str] | None = None,
    **options: Any,
) -> IngestReport:
    """As `Lake.ingest`."""
    to: IntoOne | IntoTables | IntoRows | IntoEvents
    feed: Debezium | None = None
    read: ReadPiece | None = None
    folder = Path(source) if isinstance(source, str | PathLike) else None
    if not tables:
        _refuse("is for tables=True", names=names, keys=keys, time_unit=time_unit != _UNIT and time_unit)
    if folder is None:
        given = {"checkpoint": checkpoint, "follow": follow, "max_files_per_trigger": max_files_per_trigger}
        _refuse("is for a directory of files", **given, format=format != _FORMAT and format)
    decoder = decoder_of(schemas, flattened, tombstones, rename)
    if decoder is not None:
        _check_decoder(decoder, envelope, None if folder is None else format)
    if tables:
        if not isinstance(into, str) or envelope != "debezium":
            raise UsageError(
                "tables=True takes the name of a register, and events of the envelope 'debezium'"
            )
        targets = table_targets(lake, into, time_unit=time_unit, names=names, keys=keys, options=options)
        feed, to, name = targets.envelope(), IntoTables(targets, by_offsets=True), into
    else:
        collection = lake.collection(into) if isinstance(into, str) else into
        found = made(envelope, options, {**FEEDS, **ROWS})
        name = collection.name
        if isinstance(found, Debezium):
            feed, to = found, IntoOne(collection, found)
            if folder is not None and format in ("csv", "parquet"):
                files = RowFiles(folder, cast(RowFormat, format), None)
                to, read = IntoEvents(collection, found, files), partial(lines_of, files)
            # Rows of files of AWS DMS may have other times and types than its messages.
            if read is None or not isinstance(found, Dms):
                found.check(collection)
        elif folder is None:
            raise UsageError(f"the envelope {envelope!r} takes files of a directory: append other rows")
        else:
            to = IntoRows(collection, found, RowFiles(folder, cast(RowFormat, format), collection))
    batches: Batches[Any, Any] = Batches(to, writer, take_over)
    stream = _Stream(batches, feed, tables, format == "keyed", decoder, lake.env.clock, progress)
    if folder is None:
        return stream.lines(batches_of(cast(Iterable[Any], source), batch_bytes))
    if feed is not None and read is None:
        check_format(format)
    if feed is not None and feed.rejects is not None and path.realpath(feed.rejects) == path.realpath(folder):
        raise UsageError(
            f"rejects={feed.rejects!r} is the directory that is read: rejected lines would be read again"
        )
    if checkpoint == "":
        raise UsageError("checkpoint='' is no directory: give its path, or leave it out")
    read = read or partial(piece_of, folder, format)
    directory = Directory(folder, read, max_files_per_trigger, batch_bytes)
    place = folder / f".checkpoint-{name}" if checkpoint is None else Path(checkpoint)
    return stream.directory(directory, place, lake.env.ids.fresh(), follow=follow)


def _check_decoder(decoder: Decoder, envelope: str, files: str | None) -> None:
    """Refuse to decode what is no message of Debezium; files have a format."""
    given = {"schemas": decoder.schemas, "flattened": decoder.flattened, "rename": decoder.rename or None}
    if envelope != "debezium":
        _refuse("is for the envelope 'debezium'", **given)
    if files is not None:
        _refuse("is for messages, and not for lines of files", schemas=decoder.schemas)
    if files in ("csv", "parquet"):
        _refuse("is for lines and messages, and not for columns of files", **given)


def _refuse(why: str, **options: object) -> None:
    """Refuse options that were given, and that nothing would read."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise UsageError(f"{name}={value!r} {why}: leave it out")


@dataclass
class _Stream:
    """Makes micro-batches.

    Attributes:
        batches: commits them.
        feed: what the lines mean; None: these are files of rows.
        tables: whether they are of many tables.
        keyed: whether the lines of files have keys before them.
        decoder: makes lines of messages; None: they are lines.
        clock: waits for new files.
        progress: is told of each.
    """

    batches: Batches[Any, Any]
    feed: Debezium | None
    tables: bool
    keyed: bool
    decoder: Decoder | None
    clock: Clock
    progress: Progress | None
    _timed: bool = False

    def lines(self, several: Iterable[tuple[pa.RecordBatch, int]]) -> IngestReport:
        """Take what `batches_of` gives."""
        for batch, repeated in several:
            last = self.batches.opened(_LINES).last_sequence
            number = 0 if last is None else last + 1
            self._write([after(self._decoded(batch), number)], _LINES, number, keyed=True, repeated=repeated)
        return self._done()

    def directory(self, directory: Directory, place: Path, fresh: str, *, follow: bool) -> IngestReport:
        """Take the files of a directory, with the journal of a place; a new one gets the id `fresh`."""
        with turn(place, self.clock):
            journal = Journal.at(place, fresh)
            writer = self.batches.opened(journal.query)
            journal.begin(writer.last_sequence, BatchNote.of(writer.last_content).what, writer.name)
        with closing(journal):
            directory.go_on(journal.pieces())
            names = directory.new()
            try:
                while True:
                    taken = self._next(directory, names)
                    if taken is None and not follow:
                        return self._done()
                    if taken is None:
                        self.clock.sleep(_POLL_S)
                    else:
                        number = journal.next
                        journal.add(number, taken.pieces)
                        self._write(taken.batches, journal.query, number, keyed=self.keyed, taken=taken)
                        directory.go_on(taken.pieces)
                        if journal.is_long:
                            with turn(place, self.clock) as is_sure:
                                if is_sure:
                                    journal.shorten()
                    there = directory.new()
                    still = {*there}
                    names = there if follow else [name for name in names if name in still]
            except KeyboardInterrupt:
                if not follow:
                    raise
                return self._done()

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if self.decoder is None else self.decoder.batch(batch)

    def _next(self, directory: Directory, names: list[str]) -> Taken | None:
        """The next lines; of files as a whole, if the lines do not tell transactions."""
        if self.feed is None:
            return directory.files(names)
        taken = self._taken(directory, names, cuts=self.feed.by_transaction)
        if taken is None:
            return directory.files(names)
        if taken.pieces[-1].end is None or self._timed:
            return taken
        self._timed = any(
            positions(decode(batch.column("value").slice(0, _LOOKED_AT))).connector for batch in taken.batches
        )
        return taken if self._timed else self._taken(directory, names, cuts=False)

    def _taken(self, directory: Directory, names: list[str], *, cuts: bool) -> Taken | None:
        taken = directory.next(names, cuts=cuts)
        return taken and replace(taken, batches=tuple(map(self._decoded, taken.batches)))

    def _write(
        self,
        lines: Sequence[pa.RecordBatch],
        query: str,
        number: int,
        *,
        keyed: bool,
        taken: Taken | None = None,
        repeated: int = 0,
    ) -> None:
        rows = self._rows(lines, keyed=keyed) if taken is None or taken.batches else taken.names
        note = BatchNote("" if taken is None else taken.content)
        files = 0 if taken is None else sum(piece.end is None for piece in taken.pieces)
        done = self.batches.write(rows, query, number, Identity.told(note), files=files, repeated=repeated)
        if self.progress is not None:
            self.progress(done)

    def _rows(self, lines: Sequence[pa.RecordBatch], *, keyed: bool) -> Any:
        """Lines as `Into` takes them."""
        # In one batch, so that what is delivered again is found.
        some = [batch for batch in lines if batch.num_rows] or lines[:1]
        whole = pa.Table.from_batches(some).combine_chunks().to_batches() or lines[:1]
        if self.feed is None or not self.tables:
            return whole
        paths = [tuple(one.split(".")) for one in (self.feed.time, self.feed.order_by) if one]
        return lambda _: FewLines(whole, keyed=keyed, paths=paths)

    def _done(self) -> IngestReport:
        report = self.batches.report
        return report if report.batches else replace(report, upper=self.batches.into.upper)

"""Taking change feeds in. Owns the method; `tidelake.feeds` does the work."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from tidelake.lake.api.collection import Collection
from tidelake.lake.api.naming import Naming
from tidelake.lake.api.transacting import Transacting

if TYPE_CHECKING:
    from tidelake.cdc.wire.decoder import Tombstones
    from tidelake.feeds.reports import IngestReport, WrittenBatch


class Ingesting(Naming, Transacting):
    """Methods of a lake about change feeds."""

    def ingest(
        self,
        source: str | PathLike[str] | Iterable[Any],
        into: Collection | str,
        envelope: str = "debezium",
        *,
        tables: bool = False,
        format: str = "jsonl",  # noqa: A002 - as Spark calls it
        checkpoint: str | PathLike[str] | None = None,
        follow: bool = False,
        max_files_per_trigger: int | None = None,
        batch_bytes: int = 1 << 26,
        writer: str = "ingest",
        take_over: bool = False,
        progress: "Callable[[WrittenBatch], None] | None" = None,
        names: Mapping[str, str] | None = None,
        keys: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
        time_unit: str = "counter",
        schemas: str | PathLike[str] | None = None,
        flattened: bool = False,
        tombstones: "Tombstones" = "refuse",
        rename: Mapping[str, str] | None = None,
        **options: Any,
    ) -> "IngestReport":
        """Take a change feed, or files of rows, into a collection, or one for each table, in this process.

        Each micro-batch is one commit. The files of a directory are taken once each, also if the call is
        killed and made again: move files there when they are complete. Messages of Kafka are taken once by
        their offsets. Lines from elsewhere are taken as they come; of Debezium's transactions, those that are
        in are known by their positions.

        Args:
            source: a directory of files, which may be compressed; or lines (texts, bytes or None); or
                messages of Kafka: anything with `topic`, `partition`, `offset`, `value` and, if there are,
                `key` and `timestamp` (ms), as attributes, methods or in a mapping.
            into: the collection, or its name; with `tables` the name of the register.
            envelope: who wrote the events: `"debezium"`, `"maxwell"`, `"canal"`, `"dms"`, `"ticdc"`,
                `"wal2json"`, `"goldengate"` or `"dynamodb"`. Or what the rows of files mean: `"updates"` or
                `"upsert"`, as for `tidelake.spark.write`.
            tables: the events are of many tables of Debezium, each of which gets a collection; see
                `tidelake.spark.tables_sink`.
            format: of files: `"jsonl"`; `"csv"` (with a header) or `"parquet"`, also with events of one table
                in a column `value`, in columns, or of AWS DMS with a column `Op`; of events also `"keyed"` (a
                key, a tab and JSON).
            checkpoint: a directory only for this ingest, which says what was taken; default:
                `.checkpoint-COLLECTION` in the directory. Do not share, copy or delete it.
            follow: go on with new files until the caller is interrupted.
            max_files_per_trigger: the most files in a micro-batch.
            batch_bytes: about so many bytes are in memory at once, several times over. So is a transaction
                whose old rows are looked up, as a whole, and a file of events that do not tell transactions.
            writer: name of the stream's record. Each stream needs its own name.
            take_over: take over a name that another checkpoint has used. Only for other files.
            progress: called after each micro-batch.
            names: with `tables`, as for `tables_sink`, like the next two.
            keys: likewise.
            time_unit: likewise.
            schemas: messages of Avro or Protobuf have their schemas there, as for
                `tidelake.spark.decode_events`, like the next three.
            flattened: likewise.
            tombstones: likewise.
            rename: likewise.
            **options: options of the envelope, such as `old_rows="stored"` or `rejects="folder"`.

        Returns:
            Totals of what was done.

        Raises:
            InvalidUpdates: a line cannot be read or is late; names it. Its micro-batch was not appended, all
                earlier ones were. Correct the file in place and call again.
            IncompatibleSchema: a table changed in a way that its collection cannot follow.
            UsageError: the writer name belongs to another checkpoint, or an option does not fit.
            WriterFenced: another ingest under this name was started.
        """
        self._guard.check()
        from tidelake.feeds.ingest import ingest

        return ingest(
            self,
            source,
            into,
            envelope,
            tables=tables,
            format=format,
            checkpoint=checkpoint,
            follow=follow,
            max_files_per_trigger=max_files_per_trigger,
            batch_bytes=batch_bytes,
            writer=writer,
            take_over=take_over,
            progress=progress,
            names=names,
            keys=keys,
            time_unit=time_unit,
            schemas=schemas,
            flattened=flattened,
            tombstones=tombstones,
            rename=rename,
            **options,
        )

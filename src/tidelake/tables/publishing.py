"""Published tables: other engines read a collection as a table of Delta Lake or Iceberg, from the lake.

Owns what a version of such a table consists of, and the order of the steps; `deltalog` and `icebergfiles`
write the metadata. It names the stored parts of the collection. Other rows are in a file of its own.

INVARIANT: the parts of a version are pinned before it can be read, and until it cannot be read any more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from tidelake.data.answer.tablerows import expanded
from tidelake.data.kernel.types import row_schema
from tidelake.errors import BlobExists, BlobNotFound, LeaseExpired, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import last_before, shard_of
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.version import Version
from tidelake.shard.reading.inplace import Division, divide, in_place
from tidelake.shard.upkeep import publications
from tidelake.shard.upkeep.maintain import Maintainer
from tidelake.tables.mirroring import check_installed
from tidelake.tables.plaintypes import as_plain, is_plain_as_stored, plain_schema
from tidelake.tables.publishedfiles import (
    PublishedContents,
    PublishedTable,
    PublishedVersion,
    TableFile,
    TableFolder,
    with_ids,
)
from tidelake.tables.target import TableFormat

# A run makes a new base first if it would copy more rows than this, and more than this part of the others.
_APART_ROWS = 65_536
_APART_SHARE = 4
_TRIES = 8


@dataclass(frozen=True)
class PublishReport:
    """What a run did.

    Attributes:
        table: where the table is: what engines take that read a folder.
        metadata: what they take that ask for a file of metadata, which is new for each version of Iceberg.
        format: `"delta"` or `"iceberg"`.
        version: number of the newest version.
        through: its time.
        changed: whether this run wrote it.
        rows: rows that it has; 0 if this run wrote none.
        copied: how many of these were written for it, since no part has them as they are.
    """

    table: str
    metadata: str
    format: TableFormat
    version: int
    through: int
    changed: bool
    rows: int
    copied: int


def publish(
    collection: Collection,
    *,
    format: TableFormat,  # noqa: A002 - as in an export
    keep: int = 3,
) -> PublishReport:
    """Let other engines read the newest closed contents as a table of Delta Lake or Iceberg.

    The table's metadata is in a folder of the lake, and names the parts of the collection as they lie there.
    Rows that have changed since a base, or are there several times, are written into a file of the table, and
    all rows while there is no base. Where these are many, the collection first gets a new base. Engines only
    read the table: no one else may write to it, or delete its files.

    The parts of the last versions are kept until `unpublish`; before it, only `Lake.drop(name, force=True)`
    drops the collection, and the table with it.
    After `Collection.erase` the table is gone: publish again.

    Args:
        collection: the collection, which may be a view. Its times must not be tuples.
        format: `"delta"` or `"iceberg"`.
        keep: how many versions can be read at least, this one included. Each says its time
            (`tidelake.time`), for engines that travel in time.

    Returns:
        What was done. Costs a read of the changes since the last base and of the keys around them; nothing
        is written if the newest version has this time.

    Raises:
        UsageError: the format is unknown or its library is missing, a column has a type that it lacks, the
            lake is in memory, or other processes published all the time.
        InvalidUpdates: a row has a negative multiplicity, which a table cannot show.
        NotYetClosed: no time is closed yet.
    """
    if type(keep) is not int or keep < 1:
        raise UsageError(f"keep={keep!r} must be a whole number of versions, at least 1")
    if not collection.domain.total_order:
        raise UsageError(
            f"a published table needs times that follow each other, and those of {collection.name!r} do not"
        )
    shard, table, folder = _table(collection, format)
    publications.withdraw_erased(shard)
    work = _Work(collection, shard, table, folder, format, keep)
    for _ in range(_TRIES):
        found = work.once()
        if found is not None:
            return found
    raise UsageError(f"{collection.name!r} is published by other processes all the time: try again later")


def unpublish(collection: Collection, *, format: TableFormat) -> bool:  # noqa: A002 - as in an export
    """End a published table: delete its metadata, and no longer keep its parts. Whether there was one."""
    shard, _, _ = _table(collection, format)
    return publications.withdraw(shard, format) > 0


def _table(collection: Collection, format_: TableFormat) -> tuple[Shard, PublishedTable, TableFolder]:
    check_installed(format_)
    shard = shard_of(collection)
    folder = TableFolder(shard.stores.blobs, shard.spec.shard_id, format_)
    if format_ == "delta":
        from tidelake.tables.deltalog import DeltaLog

        return shard, DeltaLog(folder), folder
    from tidelake.tables.icebergfiles import IcebergFiles

    return shard, IcebergFiles(folder), folder


@dataclass
class _Work:
    """One run."""

    collection: Collection
    shard: Shard
    table: PublishedTable
    folder: TableFolder
    format: TableFormat
    keep: int
    asked_base: bool = False

    def once(self) -> PublishReport | None:
        """Publish the newest version, unless that is done; None: begin again."""
        # In this order: then no version is older than one before it.
        try:
            known, number = self.table.read()
        except BlobNotFound:
            return None
        version = self.shard.version()
        through = cast(int, last_before(self.collection, version.upper))
        newest = known[-1] if known else None
        if newest is not None and newest.place != self.folder.place:
            # The lake has moved: what the table names is elsewhere.
            publications.withdraw(self.shard, self.format)
            return None
        now = (number - 1, through, version.state.schema_id)
        if newest is not None and (newest.number, newest.through, newest.schema_id) == now:
            return self._finished(known, None)
        # No type of another format comes before the check of the columns.
        plain = plain_schema(row_schema(version.spec.schema))
        # pyiceberg refuses files with other time zones than UTC.
        zones = self.format != "iceberg"
        stored = is_plain_as_stored(row_schema(version.spec.schema), zones=zones)
        division = divide(version, through, plain=stored)
        if stored and not self.asked_base and _is_scattered(division):
            self.asked_base = True
            Maintainer(self.shard).base_at_head()
            return None
        try:
            publications.pin(self.shard, self.format, version.state.seqno)
        except LeaseExpired:
            return None
        fresh = self.shard.env.ids.fresh
        new = PublishedVersion(
            number,
            fresh(),
            version.state.seqno,
            through,
            version.state.schema_id,
            self.folder.place,
            self.shard.env.clock.now_ms(),
            fresh() if newest is None else newest.table,
        )
        what = self._contents(version, division, new, plain)
        needs = {*(newest.features if newest is not None else ()), *self.table.features(what)}
        new = replace(new, features=tuple(sorted(needs)))
        kept = known[max(0, len(known) - self.keep + 1) :]
        try:
            self.table.commit(kept, new, what)
        except (BlobExists, BlobNotFound):
            # They may have rows that were erased since.
            self.folder.delete_unless(lambda name: new.id not in name)
            return None
        return self._finished((*kept, new), what)

    def _finished(
        self, kept: Sequence[PublishedVersion], what: PublishedContents | None
    ) -> PublishReport | None:
        """Let go what is no longer kept; None: begin again, since others have changed or ended the table."""
        self.table.finish(kept)
        newest, seqnos = kept[-1], tuple(one.seqno for one in kept)
        try:
            publications.keep(self.shard, self.format, seqnos)
        except LeaseExpired:
            if publications.may_show_erased(self.shard, seqnos) or not self._has_gone_on(newest):
                publications.withdraw(self.shard, self.format)
            return None
        files = () if what is None else what.files
        return PublishReport(
            self.folder.url,
            self.table.metadata(newest),
            self.format,
            newest.number,
            newest.through,
            what is not None,
            sum(file.rows - len(file.gone) for file in files),
            sum(file.rows for file in files if file.url.startswith(self.folder.url)),
        )

    def _has_gone_on(self, after: PublishedVersion) -> bool:
        """Whether the table has later versions than one, which others may have let go."""
        try:
            known, _ = self.table.read()
        except BlobNotFound:
            return False
        return bool(known) and known[-1].table == after.table and known[-1].number > after.number

    def _contents(
        self, version: Version, division: Division, new: PublishedVersion, plain: pa.Schema
    ) -> PublishedContents:
        spec, blobs = version.spec, self.shard.stores.blobs
        found = in_place(version, blobs, new.through, division)
        none = TableFile("", 0, 0).gone
        files = [
            TableFile(
                f"{self.folder.place}/{part.name}",
                part.size_bytes,
                part.rows,
                found.gone.get(part.name, none),
            )
            for part in found.parts
        ]
        columns = spec.schema.columns
        schema = with_ids(plain, {column.name: column.id for column in columns})
        stored = pa.schema(
            [field.with_name(division.names[one.id]) for field, one in zip(schema, columns, strict=True)]
        )
        rows: Iterator[pa.RecordBatch] = (piece for batch in found.apart for piece in expanded(batch))
        files += self.folder.put_rows(f"data/{new.number}-{new.id}", stored, as_plain(rows, plain))
        return PublishedContents(schema, tuple(files), division.names, spec.domain.columns)


def _is_scattered(division: Division) -> bool:
    """Whether so many rows stand apart that a base costs less."""
    return division.rows_apart > max(_APART_ROWS, division.rows_in_place // _APART_SHARE)

"""Options of the feeds of other tools; `tidelake.cdc.dialects.dialect` owns how their messages are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import pyarrow as pa

from tidelake.cdc.core.tablename import name_parts
from tidelake.cdc.dialects.canal import CANAL
from tidelake.cdc.dialects.dialect import Dialect, MessageReader, ZeroTimes
from tidelake.cdc.dialects.dms import DMS, dms
from tidelake.cdc.dialects.dynamodb import DYNAMODB
from tidelake.cdc.dialects.goldengate import GOLDENGATE
from tidelake.cdc.dialects.maxwell import MAXWELL
from tidelake.cdc.dialects.messageparser import DialectParser
from tidelake.cdc.dialects.ticdc import TICDC
from tidelake.cdc.dialects.wal2json import WAL2JSON
from tidelake.cdc.parse.parser import ChangeParser, OldRows
from tidelake.errors import UsageError
from tidelake.feeds.debezium import Debezium, Target
from tidelake.lake.api.collection import Collection

Missing: TypeAlias = Literal["refuse", "null"]
# Fields with rows, or with descriptions of tables.
_ROWS = ("data", "old", "def", "before", "after", "columns", "identity", "change", "tableSchema")


@dataclass(frozen=True)
class ToolMessages(Debezium):
    """Each row is a message of a tool that reads a database's log: a column `value` of JSON texts.

    Attributes:
        table: only events of this table are read, such as `"shop.orders"`, or `"orders"` of any database;
            others only move time. A part of a name that has a dot is quoted: `shop."a.b"`. None: all events
            must be of one table.
        missing: what a column is that a row leaves out, such as one that the table did not have yet:
            `"refuse"` is an error, `"null"` means null.
        zero_times: what MySQL's `0000-00-00` is in columns of dates and timestamps, likewise.
    """

    table: str | None = None

    missing: Missing = field(default="refuse", kw_only=True)
    zero_times: ZeroTimes = field(default="refuse", kw_only=True)

    refuses: ClassVar[frozenset[str]] = frozenset({"idle"})
    texts: ClassVar[tuple[str, ...]] = (*Debezium.texts, "table")
    dialect: ClassVar[Dialect]
    # If a statement of the source may swap the keys of rows: whether each of these has a time of its own.
    swaps: ClassVar[bool | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = () if self.table is None else name_parts(self.table)
        if len(parts) > 2 or not all(parts):
            raise UsageError(
                f"table={self.table!r}: write DATABASE.TABLE or TABLE, and quote a part that has a dot"
            )
        if self.missing not in get_args(Missing):
            raise UsageError(f"missing={self.missing!r} is unknown: use 'refuse' or 'null'")
        if self.zero_times not in get_args(ZeroTimes):
            raise UsageError(f"zero_times={self.zero_times!r} is unknown: use 'refuse' or 'null'")
        if self.missing == "null" and self.old_rows == "events":
            raise UsageError(
                "missing='null' needs old_rows='stored': in an old row it cannot be told from a column that "
                "the source did not log, or that it had not yet"
            )

    def time_of(self, collection: Target) -> str:
        """The path of the time in messages for a collection."""
        unit, dialect = collection.domain.unit, self.dialect
        if self.time is None:
            if unit not in dialect.defaults:
                raise UsageError(
                    f"messages of {dialect.tool} have no time for collection {collection.name!r} of time "
                    f"{unit!r}: {dialect.no_time}"
                )
            return dialect.defaults[unit]
        if unit != "counter" and dialect.is_position(self.time):
            raise UsageError(
                f"time={self.time!r} is a position in a log, and the times of collection {collection.name!r} "
                f"are {unit} since 1970: take another field, or a collection of time 'counter'"
            )
        if unit == "date" and self.time in dialect.numbers:
            raise UsageError(
                f"time={self.time!r} is a moment, and the times of collection {collection.name!r} are days: "
                "take another field, or a collection of time 'ms'"
            )
        if self.time.partition(".")[0] in _ROWS:
            raise UsageError(f"time={self.time!r} must be a field of the message, and not of a row")
        return self.time

    @property
    def by_transaction(self) -> bool:
        """False: a message has a time of its own."""
        return False

    def parser(self, collection: Target, lower: int = 0) -> ChangeParser:
        """As `Debezium`."""
        made = super().parser(collection, lower)
        unread = [name for name, encoding in made.encodings if encoding.form in ("bytes", "scaled")]
        if unread:
            raise UsageError(
                f"encodings give {unread[0]!r} as bytes, and {self.dialect.tool} writes decimals as numbers"
            )
        reader = MessageReader(
            self.of_messages,
            self.time_of(collection),
            self.order_by,
            collection.domain.unit,
            collection.schema,
            None if self.table is None else name_parts(self.table),
            tuple(collection.key),
            self.old_rows == "stored",
            frozenset(name for name, _ in made.encodings),
            self.zero_times,
            refuses_second=self.swaps if self.late == "refuse" else None,
        )
        return DialectParser.of(made, reader, **self._parsing(collection.schema))

    @property
    def of_messages(self) -> Dialect:
        """The dialect with the options of its own."""
        return self.dialect

    def _parsing(self, schema: pa.Schema) -> Mapping[str, Any]:
        if self.missing == "refuse":
            return {}
        return {"optional": frozenset(one.name for one in schema if one.nullable)}


@dataclass(frozen=True)
class Maxwell(ToolMessages):
    """Each row is a message of Maxwell's daemon, which reads MySQL's binlog.

    Attributes:
        time: path of the time in a message. Default: `ts` (seconds) for clocks; for counters `position`, the
            number of the log's file times 2^32, plus the position in it (needs `output_binlog_position`).
    """

    dialect: ClassVar[Dialect] = MAXWELL


@dataclass(frozen=True)
class Canal(ToolMessages):
    """Each row is a message of Canal, which reads MySQL's binlog, in its flat JSON form.

    Attributes:
        time: path of the time in a message. Default: `es` (milliseconds, of the statement) for clocks; for
            counters it must be given, such as `_tidb.commitTs` for TiCDC.
    """

    dialect: ClassVar[Dialect] = CANAL


@dataclass(frozen=True)
class Ticdc(ToolMessages):
    """Each row is a message of TiCDC in its protocol `simple`, as JSON.

    Attributes:
        time: path of the time in a message; default: `commitTs`, and of a clock the milliseconds in it.
    """

    dialect: ClassVar[Dialect] = TICDC


@dataclass(frozen=True)
class Wal2Json(ToolMessages):
    """Each row is a message of wal2json, a plug-in of PostgreSQL.

    Attributes:
        time: path of the time in a message. Default: for counters `nextlsn`, the end of the transaction
            (version 1 with `include-lsn`); for clocks `timestamp`, its commit (`include-timestamp`).
    """

    old_rows: OldRows = "stored"
    dialect: ClassVar[Dialect] = WAL2JSON
    swaps: ClassVar[bool | None] = False


@dataclass(frozen=True)
class GoldenGate(ToolMessages):
    """Each row is a message of Oracle GoldenGate for Big Data, in its form `json`.

    Attributes:
        time: path of the time in a message; default: `pos` for counters.
    """

    old_rows: OldRows = "stored"
    dialect: ClassVar[Dialect] = GOLDENGATE
    swaps: ClassVar[bool | None] = True


@dataclass(frozen=True)
class DynamoDb(ToolMessages):
    """Each row is a record of a stream of DynamoDB, its own or one of Kinesis.

    Attributes:
        time: path of the time in a record; default: `dynamodb.ApproximateCreationDateTime` for clocks.
    """

    old_rows: OldRows = "stored"
    dialect: ClassVar[Dialect] = DYNAMODB


@dataclass(frozen=True)
class Dms(ToolMessages):
    """Each row is a message of AWS DMS, or a row of its files with the column `Op`.

    Files are read as by `Upsert`: each row is the new row of its key or, with `Op` `D`, removes it.

    Attributes:
        time: for messages the path of the time; default: `metadata.commit-timestamp` for clocks (needs
            `IncludeTransactionDetails`); for counters it must be given. A row of the full load has no such
            time, and gets the least open one. For files: the column with the time of each row; default: the
            time of the commit.
        order_by: of the events of one key and time, the one with the greatest value wins; for files a column.
        missing: what a column is that a message leaves out: `"refuse"` is an error, `"null"` means null. DMS
            leaves nulls out unless the endpoint has `IncludeNullAndEmpty`.
        before_image: the field of the before image, as the task's `BeforeImageSettings` name it.
    """

    old_rows: OldRows = "stored"
    before_image: str = "before-image"

    dialect: ClassVar[Dialect] = DMS

    def check(self, collection: Collection) -> None:
        """As `Debezium`."""
        binary = [one.name for one in collection.schema if pa.types.is_binary(one.type)]
        if binary:
            raise UsageError(
                f"column {binary[0]!r} is binary, and AWS DMS writes bytes as hexadecimal text: use a column "
                "of type string"
            )
        super().check(collection)

    @property
    def of_messages(self) -> Dialect:
        """As `ToolMessages`."""
        return dms(self.before_image)

"""What the envelopes of other tools' messages have in common.

Owns the options that they take; `tidelake.cdc.dialects.dialect` owns how messages are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import pyarrow as pa
from pyspark.sql import types as t

from tidelake.cdc.core.tablename import name_parts
from tidelake.cdc.dialects.canal import CanalDialect
from tidelake.cdc.dialects.dialect import Dialect, ZeroTimes
from tidelake.cdc.dialects.dynamodb import DynamoDbDialect
from tidelake.cdc.dialects.goldengate import GoldenGateDialect
from tidelake.cdc.dialects.maxwell import MaxwellDialect
from tidelake.cdc.dialects.messageparser import DialectParser
from tidelake.cdc.dialects.ticdc import TicdcDialect
from tidelake.cdc.dialects.wal2json import Wal2JsonDialect
from tidelake.cdc.parse.parser import ChangeParser, OldRows
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.target import Target

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
    dialect: ClassVar[type[Dialect]]

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
        """The path of the time in messages for a collection.

        Raises:
            UsageError: there is no field for such times, or `time` is a position in a log and they are a
                clock.
        """
        unit, tool = collection.domain.unit, self.dialect.tool
        if self.time is None:
            if unit not in self.dialect.defaults:
                raise UsageError(
                    f"messages of {tool} have no time for collection {collection.name!r} of time {unit!r}: "
                    f"{self.dialect.no_time}"
                )
            return self.dialect.defaults[unit]
        if unit == "date" and self.time in self.dialect.clocks:
            raise UsageError(
                f"time={self.time!r} is a moment, and the times of collection {collection.name!r} are days: "
                "take another field, or a collection of time 'ms'"
            )
        if unit != "counter" and self.time in self.dialect.positions:
            raise UsageError(
                f"time={self.time!r} is a position in a log, and the times of collection {collection.name!r} "
                f"are {unit} since 1970: take another field, or a collection of time 'counter'"
            )
        if self.time.partition(".")[0] in _ROWS:
            raise UsageError(f"time={self.time!r} must be a field of the message, and not of a row")
        return self.time

    @property
    def by_transaction(self) -> bool:
        """False: a message has a time of its own."""
        return False

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        kinds = {field.name: field.dataType for field in frame}
        if not isinstance(kinds.get("value"), t.StringType | t.BinaryType):
            raise InvalidUpdates(
                f"messages of {self.dialect.tool} are a column 'value' of JSON texts: there is "
                f"{', '.join(map(repr, frame.names)) or 'no column'}"
            )
        super().check(frame, collection)

    def parser(self, collection: Target, lower: int = 0) -> ChangeParser:
        """As `Debezium`."""
        made = super().parser(collection, lower)
        unread = [name for name, encoding in made.encodings if encoding.form in ("bytes", "scaled")]
        if unread:
            raise UsageError(
                f"encodings give {unread[0]!r} as bytes, and {self.dialect.tool} writes decimals as numbers"
            )
        dialect = self.made(
            time=self.time_of(collection),
            order=self.order_by,
            unit=collection.domain.unit,
            schema=collection.schema,
            table=None if self.table is None else name_parts(self.table),
            key=tuple(collection.key),
            stored=self.old_rows == "stored",
            counted=frozenset(name for name, _ in made.encodings),
            zero_times=self.zero_times,
        )
        return DialectParser.of(made, dialect, **self._parsing(collection.schema))

    def made(self, **given: Any) -> Dialect:
        """The dialect with these settings."""
        return self.dialect(**given)

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

    dialect: ClassVar[type[Dialect]] = MaxwellDialect


@dataclass(frozen=True)
class Canal(ToolMessages):
    """Each row is a message of Canal, which reads MySQL's binlog, in its flat JSON form.

    Attributes:
        time: path of the time in a message. Default: `es` (milliseconds, of the statement) for clocks; for
            counters it must be given, such as `_tidb.commitTs` for TiCDC.
    """

    dialect: ClassVar[type[Dialect]] = CanalDialect


@dataclass(frozen=True)
class Ticdc(ToolMessages):
    """Each row is a message of TiCDC in its protocol `simple`, as JSON.

    Attributes:
        time: path of the time in a message; default: `commitTs`, and of a clock the milliseconds in it.
    """

    dialect: ClassVar[type[Dialect]] = TicdcDialect


@dataclass(frozen=True)
class Wal2Json(ToolMessages):
    """Each row is a message of wal2json, a plug-in of PostgreSQL.

    Attributes:
        time: path of the time in a message. Default: for counters `nextlsn`, the end of the transaction
            (version 1 with `include-lsn`); for clocks `timestamp`, its commit (`include-timestamp`).
    """

    old_rows: OldRows = "stored"
    dialect: ClassVar[type[Dialect]] = Wal2JsonDialect


@dataclass(frozen=True)
class GoldenGate(ToolMessages):
    """Each row is a message of Oracle GoldenGate for Big Data, in its form `json`.

    Attributes:
        time: path of the time in a message; default: `pos` for counters.
    """

    old_rows: OldRows = "stored"
    dialect: ClassVar[type[Dialect]] = GoldenGateDialect


@dataclass(frozen=True)
class DynamoDb(ToolMessages):
    """Each row is a record of a stream of DynamoDB, its own or one of Kinesis.

    Attributes:
        time: path of the time in a record; default: `dynamodb.ApproximateCreationDateTime` for clocks.
    """

    old_rows: OldRows = "stored"
    dialect: ClassVar[type[Dialect]] = DynamoDbDialect

"""What the envelopes of other tools' messages have in common.

Owns the options that they take; `tidelake.cdc.dialects.dialect` owns how messages are read.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import types as t

from tidelake.cdc.core.tablename import name_parts
from tidelake.cdc.dialects.dialect import Dialect
from tidelake.cdc.dialects.messageparser import DialectParser
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.spark.envelopes.debezium import Debezium
from tidelake.spark.envelopes.target import Target

# Fields with rows, or with descriptions of tables.
_ROWS = ("data", "old", "def")


@dataclass(frozen=True)
class ToolMessages(Debezium):
    """Each row is a message of a tool that reads a database's log: a column `value` of JSON texts.

    Attributes:
        table: only events of this table are read, such as `"shop.orders"`, or `"orders"` of any database;
            others only move time. A part of a name that has a dot is quoted: `shop."a.b"`. None: all events
            must be of one table.
    """

    table: str | None = None

    refuses: ClassVar[frozenset[str]] = frozenset({"idle"})
    # The dialect, the field of the time by unit, and fields that are positions and no times.
    dialect: ClassVar[type[Dialect]]
    defaults: ClassVar[Mapping[str, str]]
    positions: ClassVar[frozenset[str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = () if self.table is None else name_parts(self.table)
        if len(parts) > 2 or not all(parts):
            raise UsageError(
                f"table={self.table!r}: write DATABASE.TABLE or TABLE, and quote a part that has a dot"
            )

    @abstractmethod
    def no_time(self) -> str:
        """What to do if there is no field for the collection's times, for messages."""

    def time_of(self, collection: Target) -> str:
        """The path of the time in messages for a collection.

        Raises:
            UsageError: there is no field for such times, or `time` is a position in a log and they are a
                clock.
        """
        unit, tool = collection.domain.unit, self.dialect.tool
        if self.time is None:
            if unit not in self.defaults:
                raise UsageError(
                    f"messages of {tool} have no time for collection {collection.name!r} of time {unit!r}: "
                    f"{self.no_time()}"
                )
            return self.defaults[unit]
        if unit == "date" and self.time in self.dialect.clocks:
            raise UsageError(
                f"time={self.time!r} is a moment, and the times of collection {collection.name!r} are days: "
                "take another field, or a collection of time 'ms'"
            )
        if unit != "counter" and self.time in self.positions:
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
        )
        return DialectParser.of(made, dialect, **self.parsing(collection.schema))

    def made(self, **given: Any) -> Dialect:
        """The dialect with these settings."""
        return self.dialect(**given)

    def parsing(self, schema: pa.Schema) -> Mapping[str, Any]:  # noqa: ARG002 - for those that override it
        """Settings of the parser that the tool needs."""
        return {}

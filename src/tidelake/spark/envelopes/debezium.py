"""Debezium change events on DataFrames.

Owns which columns such a DataFrame has, and how its rows get to the tasks;
`tidelake.cdc.parse.parser` owns the meaning of events.

Events come as text or as columns:

| column | if events are texts | if events are columns |
|---|---|---|
| `value` | one JSON text, as string or binary | |
| `key` | the message's key as JSON; may be missing | |
| `file`, `block`, `modified` | where the line is from; may be missing | |
| `offset` | offset of the message in its partition; may be missing | |
| `op` | | string; null is a tombstone |
| `before`, `after` | | structs with the collection's columns |
| the first name of `time`, of `order_by` | | a number, or a struct with it inside |
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tidelake.cdc.core.lineerrors import place
from tidelake.cdc.core.ops import INCREMENTAL, REPEATED
from tidelake.cdc.core.unmade import Unmade
from tidelake.cdc.parse.parser import ChangeParser, Late, OldRows
from tidelake.cdc.times.timeline import Timeline
from tidelake.data.json.encoding import Encoding, encoding
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.arguments.spans import DurationLike, duration_s
from tidelake.model.frontier import Frontier
from tidelake.spark.columns import check_frame, convert, frame_arrow, frame_schema, quoted
from tidelake.spark.envelopes.read import AS_COLUMNS, AS_TEXT, NOTE, PLACES, ReadEvents, StoreChanges, is_text
from tidelake.spark.envelopes.storing import StoreEvents, event_schema
from tidelake.spark.envelopes.target import Target
from tidelake.spark.envelopes.upsert import Upsert, by_key
from tidelake.spark.tasks import ArrowMap, one_thread

_DEFAULT = {"counter": "source.lsn", "ms": "source.ts_ms", "us": "source.ts_us"}
# Fields with log positions, of the connectors of PostgreSQL, MySQL, SQL Server, Oracle, MongoDB and Db2.
_POSITIONS = frozenset({"lsn", "commit_lsn", "change_lsn", "scn", "commit_scn", "pos", "txid", "xmin", "ord"})
# 1990: an earlier time in the default time field is most likely in seconds.
_FIRST = {"ms": 631_152_000_000, "us": 631_152_000_000_000}


@dataclass(frozen=True)
class Debezium:
    """Each row is a change event.

    Attributes:
        time: path of the time in an event: names, separated by dots, such as `source.txId` or `ts_ms`; the
            values are whole numbers. Default: the commit of the event's transaction, if events are texts and
            `source.connector` is known (`tidelake.cdc.times.positions`); otherwise `source.ts_ms` for
            times of unit `ms`, `source.ts_us` for `us`, and `source.lsn` for counters.
        late: what to do with events whose time is closed: `"refuse"` is an error that names the line,
            `"advance"` gives them the least open time.
        old_rows: `"events"`: `before` has the complete old row. `"stored"`: the old row is looked up in the
            collection, and `before` or the message's key need only the key columns; the last event of a key
            wins, and all rows of the key are replaced. Then also truncations are carried out, and values that
            the source left out are looked up.
        order_by: path of the value that orders events of one key and time; only with `"stored"`. Ties, or all
            events without it, are ordered by the modification times of their files and then by line, or by
            the messages' offsets. If these do not decide, unequal events of one key and time are refused.
        encodings: encodings of columns, such as `price=bytes, at=us`, used if the events have no schema; see
            `tidelake.data.json.encoding`.
        idle: bound for partitions of Kafka without messages: no message becomes visible longer than this
            after one that was sent later, so that a time closes although a partition has not passed it. A
            timedelta, seconds, or a text such as `"1m"`; None: each partition must pass it.
        timeline: the times of the transactions in a micro-batch; set by `at`.
        rejects: a folder that the driver can write to: lines that cannot be read are stored there, as JSON
            lines with file, line and reason, and the rest is appended. None: such a line fails the batch.
    """

    time: str | None = None
    late: Late = "refuse"
    old_rows: OldRows = "events"
    order_by: str | None = None
    encodings: str = ""
    rejects: str | None = None
    timeline: Timeline | None = field(default=None, init=False, repr=False)
    idle: DurationLike | None = field(default=None, kw_only=True)

    # The class of the parser, and the options that are for other envelopes of this family.
    parses: ClassVar[type[ChangeParser]] = ChangeParser
    refuses: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if self.idle is not None:
            duration_s(self.idle, "idle")
            if not self.by_transaction:
                remedy = "leave it out" if self.time is None else "give no time"
                raise UsageError(f"idle={self.idle!r} is for the times of transactions: {remedy}")
        if self.order_by is not None and self.old_rows != "stored":
            raise UsageError(
                f"order_by={self.order_by!r} is for old_rows='stored': with whole old rows in the events "
                "their order does not matter"
            )
        self._encodings()
        path = _DEFAULT["counter"] if self.time is None else self.time
        ChangeParser(pa.schema([]), (), path, 0, self.late, self.old_rows, self.order_by)

    def time_of(self, collection: Target) -> str:
        """The path of the time in events of a collection.

        Raises:
            UsageError: `time` is a log position, and the collection's times are a clock; or the times are
                days, and there is no `time`.
        """
        unit = collection.domain.unit
        if unit == "date" and (self.time is None or self.time in _DEFAULT.values()):
            raise UsageError(
                "change events have positions and moments, and the times of collection "
                f"{collection.name!r} are days: give time=PATH with days since 1970, or take a "
                "collection of time 'ms'"
            )
        if self.time is None:
            return _DEFAULT.get(unit, _DEFAULT["counter"])
        if unit in _FIRST and self.time.rpartition(".")[2].lower() in _POSITIONS:
            raise UsageError(
                f"time={self.time!r} is a position in a log, and the times of collection {collection.name!r} "
                f"are {unit} since 1970: take {_DEFAULT[unit]!r}, or a collection of time 'counter'"
            )
        return self.time

    def at(self, timeline: Timeline) -> Self:
        """This envelope with the times of the transactions in a micro-batch."""
        made = replace(self)
        object.__setattr__(made, "timeline", timeline)
        return made

    @property
    def by_transaction(self) -> bool:
        """Whether times are those of transactions, if events are texts that tell them."""
        return self.time is None

    @property
    def idle_ms(self) -> int | None:
        """`idle` in milliseconds."""
        return None if self.idle is None else round(duration_s(self.idle, "idle") * 1000)

    @property
    def rebases(self) -> bool:
        """False if old rows are looked up: they may differ at a later upper."""
        return self.old_rows == "events"

    def parser(self, collection: Target, lower: int = 0) -> ChangeParser:
        """The parser for events of a collection.

        Raises:
            UsageError: the collection has a column that cannot be read from JSON.
        """
        optional: Iterable[str] = ()
        if not isinstance(collection, Unmade):
            # First: it looks at the newest state, of which the columns are as well.
            optional = collection.distributed.uploader().spec.optional
        return self.parses(
            collection.schema,
            tuple(collection.key),
            self.time_of(collection),
            lower,
            self.late,
            self.old_rows,
            self.order_by,
            self._encodings(),
            self.rejects is not None,
            frozenset(optional),
            # A user who names the field knows what it holds, so check only the default.
            _FIRST.get(collection.domain.unit, 0) if self.time is None else 0,
            self.timeline,
            self.by_transaction and self.timeline is None,
        )

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        if not collection.domain.total_order:
            raise UsageError(
                f"times of {collection.domain} cannot be read from change events: use an int time"
            )
        self.parser(collection)
        if holds_texts(frame):
            return
        kinds = {field.name: field.dataType for field in frame}
        missing = [name for name in ("op", "before", "after") if name not in kinds]
        if missing:
            raise InvalidUpdates(
                "change events are a column 'value' of JSON texts, or columns 'op', 'before' and 'after': "
                f"there is no {missing[0]!r} but {', '.join(map(repr, frame.names)) or 'nothing'}"
            )
        if not isinstance(kinds["op"], t.StringType):
            raise InvalidUpdates(f"column 'op' is {kinds['op'].simpleString()} and not string: cast it")
        layout = self.parser(collection).layout
        for name, schema in (("before", layout.before), ("after", layout.after)):
            _check_rows(kinds[name], name, schema, layout.optional)
        for what, path in (("time", self.time_of(collection)), ("order_by", self.order_by)):
            if path is not None:
                _check_number(frame, what, path)

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:
        """As `Envelope`: the columns to read; with `old_rows="stored"` the parsed events."""
        parser = replace(self.parser(collection), late="advance")
        columns = texts(frame) if holds_texts(frame.schema) else self._columns(frame, parser)
        if self.old_rows == "events":
            return columns
        output = event_schema(collection.schema)
        # Lateness is judged by the task that looks up old rows: only there the closed times are known.
        read = ReadEvents(parser, tuple(columns.columns), frame_arrow(output))
        named = columns.select(*(f.col(name).alias(f"c{i}") for i, name in enumerate(columns.columns)))
        return named.mapInArrow(read, frame_schema(output))

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """With `old_rows="stored"`, bring the events of each key into one task."""
        return prepared if self.old_rows == "events" else Upsert().spread(prepared, collection)

    def alone(self, prepared: DataFrame, collection: Collection) -> DataFrame | None:
        """As `Emptying`: the notes come first, then the events, sorted by key."""
        if self.old_rows == "events":
            return None
        by = (f.col(NOTE).isNull(), *by_key(prepared, collection))
        return prepared.repartition(1).sortWithinPartitions(*by)

    def looks_up_bytes(self, collection: Collection) -> int:
        """As for an upsert, or 0."""
        return 0 if self.old_rows == "events" else Upsert().looks_up_bytes(collection)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        # The look-up reads at its own upper, which may be later than `lower`.
        upserter = StoreEvents.upserter(collection) if self.old_rows == "stored" else None
        floor = (lower if upserter is None else upserter.lower).elements[0]
        if not isinstance(floor, int):
            raise UsageError(f"times of {collection.domain} cannot be read from change events")
        parser = self.parser(collection, floor)
        if upserter is None:
            return StoreChanges(
                collection.distributed.uploader().to_bytes(), parser, tuple(columns), self.rejects
            )
        return StoreEvents(upserter.to_bytes(), parser, tuple(columns), self.rejects)

    def _encodings(self) -> tuple[tuple[str, Encoding], ...]:
        found = []
        for word in filter(None, (word.strip() for word in self.encodings.split(","))):
            name, equals, text = word.rpartition("=")
            if not equals or not name.strip():
                raise UsageError(f"encodings={word!r} must be COLUMN=ENCODING, such as price=bytes")
            found.append((name.strip(), encoding(text.strip())))
        return tuple(found)

    def _columns(self, frame: DataFrame, parser: ChangeParser) -> DataFrame:
        layout = parser.layout
        order = f.lit(None).cast("bigint") if layout.order is None else _path(layout.order).cast("bigint")
        selected = {
            "op": _op(frame) if self.old_rows == "events" else f.col("op"),
            "before": _struct(frame, "before", layout.before),
            "after": _struct(frame, "after", layout.after),
            "time": _path(tuple(parser.time.split("."))).cast("bigint"),
            "order": order,
        }
        return frame.select(*(selected[name].alias(name) for name in AS_COLUMNS))


def holds_texts(frame: t.StructType) -> bool:
    """Whether the rows of a frame are events as texts."""
    kinds = {field.name: field.dataType for field in frame}
    return is_text(kinds) and isinstance(kinds["value"], t.StringType | t.BinaryType)


def texts(frame: DataFrame, *, placed: bool = False) -> DataFrame:
    """The columns of `AS_TEXT`; those that are missing are null.

    Args:
        frame: the lines, or messages of Kafka, which have moments where lines have modification times.
        placed: with those of `PLACES`.
    """
    kinds = {"value": None, "key": None, "file": "string", "block": "bigint", "modified": "bigint"}
    kinds |= {"offset": "bigint", "topic": "string", "partition": "int"}
    sent = of_kafka(frame.schema) and "modified" not in frame.columns
    selected = []
    for name in (*AS_TEXT, *PLACES) if placed else AS_TEXT:
        kind = kinds[name]
        there = f.col(name) if name in frame.columns else f.lit(None).cast(kind or "string")
        if sent and name == "modified":
            there = f.unix_millis("timestamp")
        selected.append((there if kind is None else there.cast(kind)).alias(name))
    return frame.select(*selected)


def lines_arrow(lines: DataFrame) -> pa.Schema:
    """The columns of lines, as a frame has them."""
    kinds = {"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64(), "file": pa.string()}
    kinds |= {"topic": pa.string(), "partition": pa.int32()}
    for name in ("value", "key"):
        binary = lines.schema[name].dataType.simpleString() == "binary"
        kinds[name] = pa.binary() if binary else pa.string()
    return pa.schema([(name, kinds[name]) for name in lines.columns])


def of_kafka(frame: t.StructType) -> bool:
    """Whether rows have the columns by which Kafka's source tells where a message is and when it was sent."""
    kinds = {field.name: field.dataType for field in frame}
    return {*PLACES, "offset"} <= kinds.keys() and isinstance(kinds.get("timestamp"), t.TimestampType)


def _path(path: tuple[str, ...]) -> Column:
    return f.col(".".join(map(quoted, path)))


def _op(frame: DataFrame) -> Column:
    """The op of each event, where the old rows of incremental snapshots are not looked up."""
    source = frame.schema["source"].dataType if "source" in frame.columns else None
    there = (
        source["snapshot"].dataType
        if isinstance(source, t.StructType) and "snapshot" in source.names
        else None
    )
    if not isinstance(there, t.StringType):
        return f.col("op")
    again = (f.col("op") == "r") & (f.col("source.snapshot") == INCREMENTAL)
    return f.when(again, f.lit(REPEATED)).otherwise(f.col("op"))


def _struct(frame: DataFrame, name: str, schema: pa.Schema) -> Column:
    """The columns of `schema`, in their order; null where the struct is null."""
    there = frame.schema[name].dataType
    known = there.names if isinstance(there, t.StructType) else []
    kinds = frame_schema(schema)
    inner = [
        f.col(f"{name}.{quoted(field.name)}") if field.name in known else f.lit(None).cast(field.dataType)
        for field in kinds
    ]
    named = [column.alias(field.name) for column, field in zip(inner, kinds, strict=True)]
    return f.when(f.col(name).isNotNull(), f.struct(*named))


def _check_rows(kind: t.DataType, name: str, schema: pa.Schema, optional: frozenset[str]) -> None:
    if not isinstance(kind, t.StructType):
        raise InvalidUpdates(f"column {name!r} is {kind.simpleString()} and no struct: parse it first")
    wanted = t.StructType([field for field in kind if field.name in schema.names])
    try:
        check_frame(wanted, schema, optional=optional)
    except InvalidUpdates as error:
        raise InvalidUpdates(f"column {name!r}: {error}") from None


def _check_number(frame: t.StructType, what: str, path: str) -> None:
    kind: t.DataType = frame
    for name in path.split("."):
        fields = {field.name: field.dataType for field in kind} if isinstance(kind, t.StructType) else {}
        if name not in fields:
            raise InvalidUpdates(f"there is no column {path!r}: set {what} to where the events have it")
        kind = fields[name]
    if not isinstance(kind, t.IntegralType):
        raise InvalidUpdates(f"column {path!r} is {kind.simpleString()} and no whole number: cast it")


@dataclass(frozen=True)
class _ParseLines:
    parser: ChangeParser
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        for batch in batches:
            parsed = self.parser.parse(batch.column(0), partial(_place, batch.column(1)))
            yield convert(parsed.rows, self.schema)


def _place(files: pa.Array, row: int) -> str:
    return place(files[row].as_py())


def parse_changes(lines: DataFrame, collection: Collection, time: str | None = None) -> DataFrame:
    """Convert a DataFrame of change events, streaming or not, to one of updates.

    Args:
        lines: column `value` has a line of text; column `file`, if there is one, its file.
        collection: its key and value columns are read from the rows of the events.
        time: path of the time in an event; default: as for `Debezium`.

    Returns:
        Key and value columns, `_time` and `_diff`; a heartbeat yields no row. A line that cannot be
        read fails the job with `InvalidUpdates`, wrapped in Spark's `PythonException`.
    """
    path = Debezium(time).time_of(collection)
    earliest = _FIRST.get(collection.domain.unit, 0) if time is None else 0
    parser = ChangeParser(collection.schema, time=path, earliest=earliest)
    output = parser.schema_of_rows
    if "file" not in lines.columns:
        lines = lines.withColumn("file", f.lit(None).cast("string"))
    return lines.select("value", "file").mapInArrow(
        _ParseLines(parser, frame_arrow(output)), frame_schema(output)
    )

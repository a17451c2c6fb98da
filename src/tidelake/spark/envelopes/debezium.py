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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from tidelake.cdc.core.lineerrors import place
from tidelake.cdc.core.ops import INCREMENTAL, REPEATED
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.data.ingest.convert import convert
from tidelake.errors import InvalidUpdates
from tidelake.feeds.debezium import FIRST, Debezium
from tidelake.feeds.eventfiles import check_names
from tidelake.feeds.reading import AS_COLUMNS, AS_TEXT, NOTE, PLACES, ArrowMap, ReadEvents, is_text
from tidelake.feeds.storing import event_schema
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.columns import check_frame, frame_arrow, frame_schema, quoted
from tidelake.spark.envelopes.upsert import Upsert, by_key
from tidelake.spark.tasks import OneThread, one_thread


@dataclass(frozen=True)
class EventFrames:
    """Each row is a change event.

    Attributes:
        feed: what the events mean.
    """

    feed: Debezium

    @property
    def rebases(self) -> bool:
        """As `Envelope`."""
        return self.feed.rebases

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        if not holds_texts(frame):
            check_names(self.feed, frame.names)
        self.feed.check(collection)
        if holds_texts(frame):
            return
        kinds = {field.name: field.dataType for field in frame}
        if not isinstance(kinds["op"], t.StringType):
            raise InvalidUpdates(f"column 'op' is {kinds['op'].simpleString()} and not string: cast it")
        layout = self.feed.parser(collection).layout
        for name, schema in (("before", layout.before), ("after", layout.after)):
            _check_rows(kinds[name], name, schema, layout.optional)
        for what, path in (("time", self.feed.time_of(collection)), ("order_by", self.feed.order_by)):
            if path is not None:
                _check_number(frame, what, path)

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:
        """As `Envelope`: the columns to read; with `old_rows="stored"` the parsed events."""
        parser = replace(self.feed.parser(collection), late="advance")
        columns = texts(frame) if holds_texts(frame.schema) else self._columns(frame, parser)
        if self.feed.old_rows == "events":
            return columns
        output = event_schema(collection.schema)
        # Lateness is judged by the task that looks up old rows: only there the closed times are known.
        read = ReadEvents(parser, tuple(columns.columns), frame_arrow(output))
        named = columns.select(*(f.col(name).alias(f"c{i}") for i, name in enumerate(columns.columns)))
        return named.mapInArrow(OneThread(read), frame_schema(output))

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """With `old_rows="stored"`, bring the events of each key into one task."""
        return prepared if self.feed.old_rows == "events" else Upsert().spread(prepared, collection)

    def alone(self, prepared: DataFrame, collection: Collection) -> DataFrame | None:
        """As `Emptying`: the notes come first, then the events, sorted by key."""
        if self.feed.old_rows == "events":
            return None
        by = (f.col(NOTE).isNull(), *by_key(prepared, collection))
        return prepared.repartition(1).sortWithinPartitions(*by)

    def looks_up_bytes(self, collection: Collection) -> int:
        """As `Envelope`."""
        return self.feed.looks_up_bytes(collection)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        return self.feed.work(collection, columns, lower)

    def _columns(self, frame: DataFrame, parser: ChangeParser) -> DataFrame:
        layout = parser.layout
        order = f.lit(None).cast("bigint") if layout.order is None else _path(layout.order).cast("bigint")
        selected = {
            "op": _op(frame) if self.feed.old_rows == "events" else f.col("op"),
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
    """The columns of `AS_TEXT`; those that are missing are null."""
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
    earliest = FIRST.get(collection.domain.unit, 0) if time is None else 0
    parser = ChangeParser(collection.schema, time=path, earliest=earliest)
    output = parser.schema_of_rows
    if "file" not in lines.columns:
        lines = lines.withColumn("file", f.lit(None).cast("string"))
    return lines.select("value", "file").mapInArrow(
        _ParseLines(parser, frame_arrow(output)), frame_schema(output)
    )

"""Debezium change events, one JSON text a line, as updates.

Owns the meaning of an event. It must not know Spark's streams nor how updates are stored; the parser
runs wherever lines are, and `parse_changes` puts it on a DataFrame.

    {"op": "c", "before": null, "after": {...}, "source": {"lsn": 7}}     +1 after, at time 7
    {"op": "r", ...}                                                      the same, from a first copy
    {"op": "u", "before": {...}, "after": {...}, ...}                     -1 before, +1 after
    {"op": "d", "before": {...}, "after": null, ...}                      -1 before
    {"op": "h", "source": {"lsn": 9}}                                     no rows; time has reached 9
    null, blank line                                                      ignored (a tombstone of Kafka)

An event may be wrapped in `{"schema": ..., "payload": <event>}`. Fields of a row that the collection
does not have are ignored; every column of the collection must be there.

INVARIANT: a line is either counted as tombstone, heartbeat or event, or it is an error that names the
file, the line and the reason. There is no fourth way.
"""

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame

from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.collection import Collection
from tidelake.model.schema import DIFF
from tidelake.model.time import TIME_MAX
from tidelake.spark.columns import convert, frame_arrow, frame_schema
from tidelake.spark.envelopes.jsonvalues import UnfitValue, check_readable, column, loads
from tidelake.spark.tasks import one_thread

Late: TypeAlias = Literal["refuse", "advance"]
_FULL = "set REPLICA IDENTITY FULL (or its like) at the source, so that events carry the old row"
# What Debezium's PostgreSQL connector puts for a large value that did not change; base64 in binary columns.
_UNAVAILABLE = {"__debezium_unavailable_value", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="}
# op: (needs a row before, needs a row after)
_OPS = {"c": (False, True), "r": (False, True), "u": (True, True), "d": (True, False)}


@dataclass
class Parsed:
    """What a batch of lines said.

    Attributes:
        updates: key and value columns, `_time`, `_diff`; unsorted.
        events: change events; an update has two rows.
        heartbeats: lines that only move time.
        tombstones: lines that say nothing.
        late: events that were moved to a later time.
        time_upper: the greatest time of any event or heartbeat; None without.
    """

    updates: pa.RecordBatch
    events: int
    heartbeats: int
    tombstones: int
    late: int
    time_upper: int | None


@dataclass
class _Rows:
    """Rows found so far; position i of each list belongs to row i."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    diffs: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)

    def add(self, row: dict[str, Any], time: int, diff: int, line: int, side: str) -> None:
        self.rows.append(row)
        self.times.append(time)
        self.diffs.append(diff)
        self.lines.append(line)
        self.sides.append(side)


class _Unfit(Exception):
    """The line at hand cannot be read."""


@dataclass(frozen=True)
class ChangeParser:
    """Reads lines into updates of one collection. Picklable.

    Attributes:
        schema: key and value columns.
        time_field: where in the event its time is: names, separated by dots.
        lower: events before this time are late.
        late: `"refuse"` makes a late event an error, `"advance"` moves it to `lower`.
    """

    schema: pa.Schema
    time_field: str = "source.lsn"
    lower: int = 0
    late: Late = "refuse"

    def __post_init__(self) -> None:
        check_readable(self.schema)
        if not all(self.time_field.split(".")):
            raise UsageError(f"time_field={self.time_field!r} is not a path: give names separated by dots")
        if self.late not in ("refuse", "advance"):
            raise UsageError(f"late={self.late!r} is unknown: use 'refuse' or 'advance'")

    @property
    def update_schema(self) -> pa.Schema:
        """Of the updates: the columns, `_time` and `_diff`."""
        return pa.schema([*self.schema, _required("_time"), _required(DIFF)])

    def parse(self, lines: Sequence[bytes | None], files: Sequence[str | None]) -> Parsed:
        """Read lines; `files[i]` is where `lines[i]` is from, for messages.

        Raises:
            InvalidUpdates: a line cannot be read, names its file, its beginning and the reason.
        """
        found = _Rows()
        events = heartbeats = tombstones = late = 0
        time_upper: int | None = None
        for number, line in enumerate(lines):
            try:
                event = _event(line)
                if event is None:
                    tombstones += 1
                    continue
                time = self._time(event)
                time_upper = time if time_upper is None else max(time, time_upper)
                if event["op"] == "h":
                    heartbeats += 1
                    continue
                events += 1
                if time < self.lower:
                    late += 1
                    time = self._late(time)
                self._rows(event, time, number, found)
            except _Unfit as unfit:
                raise _error(files[number], line, str(unfit)) from None
        updates = self._updates(found, lines, files)
        return Parsed(updates, events, heartbeats, tombstones, late, time_upper)

    def _time(self, event: dict[str, Any]) -> int:
        value: Any = event
        for name in self.time_field.split("."):
            if not isinstance(value, dict) or value.get(name) is None:
                raise _Unfit(f"no time at {self.time_field!r}: set time_field to where the event has it")
            value = value[name]
        if type(value) is not int or not 0 <= value <= TIME_MAX:
            raise _Unfit(
                f"the time at {self.time_field!r} is {value!r}, not a whole number from 0 to 2^63 - 1"
            )
        return value

    def _late(self, time: int) -> int:
        if self.late == "refuse":
            raise _Unfit(
                f"its time {time} is late, all times before {self.lower} are closed: "
                "deliver files in the order of their times, or use late='advance'"
            )
        return self.lower

    def _rows(self, event: dict[str, Any], time: int, line: int, found: _Rows) -> None:
        op = event["op"]
        if op not in _OPS:
            raise _Unfit(f"op {op!r} is unknown: known are c, r, u, d and h")
        for side, needed, diff in zip(("before", "after"), _OPS[op], (-1, 1), strict=True):
            row = event.get(side)
            if not needed:
                if row is not None:
                    raise _Unfit(f"op {op!r} must not have a row in {side!r}")
                continue
            if row is None:
                raise _Unfit(f"op {op!r} without {side!r}" + (f": {_FULL}" if side == "before" else ""))
            if not isinstance(row, dict):
                raise _Unfit(f"{side!r} is not an object")
            found.add(row, time, diff, line, side)

    def _updates(
        self, found: _Rows, lines: Sequence[bytes | None], files: Sequence[str | None]
    ) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        for wanted in self.schema:
            try:
                columns.append(_values(found.rows, wanted))
            except UnfitValue as unfit:
                line = found.lines[unfit.index]
                reason = f"column {wanted.name!r} of {found.sides[unfit.index]!r}: {unfit.reason}"
                raise _error(files[line], lines[line], reason) from None
        columns += [pa.array(found.times, pa.int64()), pa.array(found.diffs, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=self.update_schema)


def _event(line: bytes | None) -> dict[str, Any] | None:
    """The event of a line, unwrapped; None for a tombstone."""
    if line is None or not line.strip():
        return None
    try:
        event = loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _Unfit(f"not UTF-8: {error}") from None
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise _Unfit(f"not JSON: {error}") from None
    if isinstance(event, dict) and "payload" in event and "op" not in event:
        event = event["payload"]
    if event is None:
        return None
    if not isinstance(event, dict):
        raise _Unfit("not a JSON object")
    if not isinstance(event.get("op"), str):
        raise _Unfit("no 'op': not a Debezium change event")
    return event


def _values(rows: list[dict[str, Any]], wanted: pa.Field) -> pa.Array:
    try:
        values = list(map(operator.itemgetter(wanted.name), rows))
    except KeyError:
        index = next(i for i, row in enumerate(rows) if wanted.name not in row)
        raise UnfitValue(index, "is missing") from None
    if not wanted.nullable and None in values:
        raise UnfitValue(
            values.index(None), f"is null, but the column is not nullable; for an old row: {_FULL}"
        )
    for index, value in enumerate(values):
        if type(value) is str and value in _UNAVAILABLE:
            raise UnfitValue(index, f"the source left the value out: {_FULL}")
    return column(values, wanted.type)


def _error(file: str | None, line: bytes | None, reason: str) -> InvalidUpdates:
    text = (line or b"").decode("utf-8", "backslashreplace")
    shown = text if len(text) <= 200 else text[:197] + "..."
    place = unquote(re.sub("^file:(//)?(?=/)", "", file or "?"))
    return InvalidUpdates(f"cannot read a change event: {reason}; file={place} line={shown}")


def _required(name: str) -> pa.Field:
    return pa.field(name, pa.int64(), nullable=False)


def line_bytes(values: pa.Array) -> list[bytes | None]:
    """Text as it came from Spark, undecoded: Spark does not check that text files are UTF-8."""
    width = pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary()
    result: list[bytes | None] = values.view(width).to_pylist()
    return result


@dataclass(frozen=True)
class _ParseLines:
    parser: ChangeParser
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        for batch in batches:
            parsed = self.parser.parse(line_bytes(batch.column(0)), batch.column(1).to_pylist())
            yield convert(parsed.updates, self.schema)


def parse_changes(lines: DataFrame, collection: Collection, time_field: str = "source.lsn") -> DataFrame:
    """A DataFrame of updates from one of change events, streaming or not.

    Args:
        lines: column `value` has a line of text, column `file`, if there is one, its file.
        collection: its key and value columns are looked for in the rows of the events.
        time_field: where in the event its time is.

    Returns:
        Key and value columns, `_time` and `_diff`; a heartbeat yields no row. A line that cannot be
        read fails the job with `InvalidUpdates`, wrapped in Spark's `PythonException`.
    """
    parser = ChangeParser(collection.schema, time_field)
    output = parser.update_schema
    if "file" not in lines.columns:
        from pyspark.sql.functions import lit

        lines = lines.withColumn("file", lit(None).cast("string"))
    return lines.select("value", "file").mapInArrow(
        _ParseLines(parser, frame_arrow(output)), frame_schema(output)
    )

"""Change events in the tasks: rows of Spark in; updates, or events for an upsert, out.

Owns the batches that come from Spark, the line numbers in files, and the texts of rejected lines.
"""

import base64
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.lineerrors import as_bytes, place
from tidelake.cdc.core.ops import INCREMENTAL, REPEATED
from tidelake.cdc.core.outcome import Parsed, Truncates
from tidelake.cdc.debezium.decoded import Decoded
from tidelake.cdc.parse import structcolumns as as_columns
from tidelake.cdc.parse.linenumbers import LineNumbers
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.rows import LEFT_OUT, LINE, ORDER, REMOVED, TIME
from tidelake.cdc.times.heldevents import ROWS_MAX, packed
from tidelake.cdc.times.positions import MARK, positions
from tidelake.cdc.times.timeline import Timeline
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.spark.columns import convert
from tidelake.spark.tasks import one_thread
from tidelake.spark.uploads import Answer, encoded_answer, upload

AS_TEXT = ("value", "key", "file", "block", "modified", "offset")
# Columns of Kafka's source that tell where a message is, beside its offset.
PLACES = ("topic", "partition")
# A column beside those of texts: the lines, if they are decoded already.
DECODED = "_decoded"
AS_COLUMNS = ("op", "before", "after", "time", "order")
# Limit for one task. More rejects mean a wrong kind of file, and they all go through the driver's memory.
_REJECTS_MAX = 10_000
# Columns of events on their way to the tasks that look up, beside the collection's own.
NOTE = "_debezium_note"
GONE = "_debezium_removed"
BEST = "_debezium_order"
UNTOLD = "_debezium_left_out"
# The note of a truncation.
EMPTIED = "truncate"


@dataclass
class EventReader:
    """Reads the batches of one task, in their order.

    Attributes:
        parser: parses the events.
        columns: names of the batches' columns: `AS_TEXT`, `AS_COLUMNS`, or those of an unprepared frame.
        answer: collects the counts.
    """

    parser: ChangeParser
    columns: tuple[str, ...]
    answer: Answer
    _lines: LineNumbers = field(default_factory=LineNumbers)
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _packed: list[bytes] = field(default_factory=list)

    def read(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Parsed, "Places"]:
        """Parse a batch: the rows that it makes, the rest of the result, and where the events are from.

        Raises:
            InvalidUpdates: an event cannot be read, and rejects are not kept; or there are too many.
        """
        column = None
        if DECODED in batch.schema.names:
            column = batch.column(DECODED)
            batch = batch.drop_columns([DECODED])
        named = batch.rename_columns(list(self.columns))
        text = is_text(self.columns)
        if self.columns not in (AS_TEXT, AS_COLUMNS):
            named = as_text(named) if text else _as_columns(named, self.parser)
        places = self._places(named, text)
        if not text:
            parsed = self._columns(named)
        else:
            parsed, named, places = self._text(named, column, places)
        answer = self.answer
        answer.see_times(None, parsed.time_upper)
        answer.count(
            events=parsed.events,
            heartbeats=parsed.heartbeats,
            tombstones=parsed.tombstones,
            late=parsed.late,
        )
        self._reject(parsed, named, places)
        return parsed.rows, parsed, places

    def finish(self) -> None:
        """Add what is held back to the answer, after the last batch."""
        self._pack()
        self.answer.held = tuple(self._packed)

    def _hold(self, rows: pa.RecordBatch) -> None:
        """Hold rows back. They are packed soon, since a transaction may be larger than the memory."""
        self._held.append(rows)
        if sum(batch.num_rows for batch in self._held) >= ROWS_MAX:
            self._pack()

    def _pack(self) -> None:
        rows, self._held = packed(self._held), []
        self._packed += [rows] if rows else []

    def _text(
        self, batch: pa.RecordBatch, column: pa.StructArray | None, places: "Places"
    ) -> tuple[Parsed, pa.RecordBatch, "Places"]:
        """Parse lines, which may be decoded already; with those that are not held back, and their places."""
        # Rows that were held back were counted with the micro-batch that they are from.
        new = pc.fill_null(pc.greater_equal(batch.column("block"), 0), True)
        self.answer.see_files(batch.column("file").filter(new).drop_null())
        found = self.parser.decoded(as_bytes(batch.column("value")), column)
        times: npt.NDArray[np.int64] | None = None
        timeline = self.parser.timeline
        if timeline is not None:
            again = not pc.any(new, min_count=0).as_py()
            found, batch, places, times = self._in_time(found, batch, places, timeline, again=again)
        keys = batch.column("key")
        keys = None if keys.null_count == len(keys) else keys
        return self.parser.parse(found, places.text, keys, times), batch, places

    def _in_time(
        self,
        decoded: Decoded,
        batch: pa.RecordBatch,
        places: "Places",
        timeline: Timeline,
        *,
        again: bool,
    ) -> tuple[Decoded, pa.RecordBatch, "Places", npt.NDArray[np.int64]]:
        """The lines whose times are known, where they are from, and their times; the others are held back.

        `again` says that the lines were held back before.
        """
        found = positions(decoded, timeline.clock)
        times, held, old = timeline.split(found)
        if not again:
            old = old | timeline.again(as_bytes(batch.column("value")), found)
            held = held & ~old
        told = int((held & ((found.roles & MARK) == 0)).sum())
        self.answer.count(held=told, repeated=int(old.sum()))
        if held.any():
            kept = {"offset": places.numbers, "block": -1 - places.blocks}
            rows = batch
            for name, values in kept.items():
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, rows.schema.field(at), pa.array(values))
            self._hold(rows.filter(pa.array(held)))
        if places.files.null_count == len(places.files):
            # Messages of several partitions, in the order of the log.
            places = replace(places, modified=found.starts, blocks=found.ends)
        rest = ~(held | old)
        if rest.all():
            return decoded, batch, places, times
        return decoded.chosen(rest), batch.filter(pa.array(rest)), places.chosen(rest), times[rest]

    def _columns(self, batch: pa.RecordBatch) -> Parsed:
        layout = self.parser.layout
        sides = [
            pa.field(n, pa.struct(list(s))) for n, s in (("before", layout.before), ("after", layout.after))
        ]
        rows = convert(batch.select(["before", "after"]), pa.schema(sides))
        order = None if layout.order is None else batch.column("order")
        both = (rows.column("before"), rows.column("after"))
        found, bad = as_columns.events(batch.column("op"), both, batch.column("time"), order, layout)
        return self.parser.from_events(found, bad)

    def _places(self, batch: pa.RecordBatch, text: bool) -> "Places":
        count = batch.num_rows
        if not text:
            none = np.zeros(count, np.int64)
            return Places(pa.nulls(count, pa.string()), none, none, none)
        files, offsets = batch.column("file"), batch.column("offset")
        blocks, modified = _numbers(batch.column("block")), _numbers(batch.column("modified"))
        # Rows that were held back: with their line numbers, and the complement of where these begin.
        blocks = np.where(blocks < 0, -1 - blocks, blocks)
        if offsets.null_count < count:
            # The moments of messages do not order them.
            modified = np.where(files.is_null().to_numpy(zero_copy_only=False), 0, modified)
            return Places(files, blocks, modified, _numbers(offsets))
        if files.null_count == count:
            return Places(files, blocks, modified, np.zeros(count, np.int64))
        return Places(files, blocks, modified, self._lines.of(files, blocks))

    def _reject(self, parsed: Parsed, batch: pa.RecordBatch, places: "Places") -> None:
        texts = []
        for reject in parsed.rejects:
            told: dict[str, object] = places.told(reject.line) | {"reason": reject.reason}
            if "value" in batch.schema.names:
                line = as_bytes(batch.column("value").slice(reject.line, 1))[0].as_py()
                told |= _line(self.parser.origin(line))
            else:
                told["line"] = str(batch.slice(reject.line, 1).to_pylist()[0])
            texts.append(json.dumps(told, ensure_ascii=False))
        self.answer.rejects += tuple(texts)
        if len(self.answer.rejects) > _REJECTS_MAX:
            raise InvalidUpdates(
                f"more than {_REJECTS_MAX} lines of one task cannot be read, so their format is probably "
                f"another one; the first: {self.answer.rejects[0][:400]}"
            )


@dataclass(frozen=True)
class Places:
    """Where the rows of a batch are from; element i of each array belongs to row i.

    Attributes:
        files: names of the files, if the rows are from files.
        blocks: byte offset in the file at which the line numbers begin.
        modified: modification times of the files, in any unit; of messages of transactions their positions in
            the log, and `blocks` those of the events.
        numbers: line numbers from 1, or offsets of messages; 0 if neither is known.
    """

    files: pa.Array
    blocks: npt.NDArray[np.int64]
    modified: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def chosen(self, which: npt.NDArray[np.bool_]) -> "Places":
        """Those of some rows."""
        files = self.files.filter(pa.array(which))
        return Places(files, self.blocks[which], self.modified[which], self.numbers[which])

    def text(self, row: int) -> str:
        """The place of one row, for messages."""
        return place(self.files[row].as_py(), int(self.numbers[row]) or None)

    def told(self, row: int) -> dict[str, object]:
        """The place of one row, as fields of a reject."""
        file = self.files[row].as_py()
        told: dict[str, object] = {"file": None if file is None else place(file).removeprefix("file=")}
        told["number"] = int(self.numbers[row]) if self.numbers[row] else None
        return told | ({"block": int(self.blocks[row])} if file is not None and self.blocks[row] else {})

    def orders(self, rows: pa.RecordBatch) -> pa.Array:
        """A binary sort key for each event of `ChangeParser.schema_of_rows`: greater is later.

        Made of the time, the order field, the file's modification time and name, and the place in the file.
        """
        return self._orders(*(rows.column(name).to_numpy() for name in (LINE, TIME, ORDER)))

    def of_truncates(self, found: Truncates) -> pa.Array:
        """The sort keys of truncations."""
        return self._orders(found.lines, found.times, found.orders)

    def _orders(
        self, at: npt.NDArray[np.int64], times: npt.NDArray[np.int64], orders: npt.NDArray[np.int64]
    ) -> pa.Array:
        first = [times, orders, self.modified[at]]
        last = [self.blocks[at], self.numbers[at]]
        files = pc.fill_null(self.files.take(pa.array(at)), "").cast(pa.binary())
        nothing = pa.scalar(b"")
        return pc.binary_join_element_wise(_big_endian(first), files, _big_endian(last), nothing)


def is_text(names: Collection[str]) -> bool:
    """Whether a frame of such columns holds change events as texts."""
    return "op" not in names and "value" in names


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of `AS_TEXT`; missing ones are null."""
    kinds = {"block": pa.int64(), "modified": pa.int64(), "offset": pa.int64(), "file": pa.string()}
    columns = []
    for name in AS_TEXT:
        there = name in batch.schema.names
        values = batch.column(name) if there else pa.nulls(batch.num_rows, kinds.get(name, pa.string()))
        columns.append(values.cast(kinds[name]) if name in kinds else values)
    return pa.RecordBatch.from_arrays(columns, names=list(AS_TEXT))


def _as_columns(batch: pa.RecordBatch, parser: ChangeParser) -> pa.RecordBatch:
    """The columns of `AS_COLUMNS`, from those of a frame."""
    layout, time = parser.layout, tuple(parser.time.split("."))
    order = pa.nulls(batch.num_rows, pa.int64()) if layout.order is None else _inside(batch, layout.order)
    sides = [_chosen(batch.column(n), s) for n, s in (("before", layout.before), ("after", layout.after))]
    columns = [_op(batch, parser), *sides, _inside(batch, time), order]
    return pa.RecordBatch.from_arrays(columns, names=list(AS_COLUMNS))


def _op(batch: pa.RecordBatch, parser: ChangeParser) -> pa.Array:
    """The op of each event; of an incremental snapshot's another one, unless old rows are looked up."""
    op = batch.column("op")
    source = batch.column("source") if "source" in batch.schema.names else None
    if parser.old_rows == "stored" or source is None or not pa.types.is_struct(source.type):
        return op
    if source.type.get_field_index("snapshot") < 0 or not pa.types.is_string(source.field("snapshot").type):
        return op
    again = pc.and_(pc.equal(op, "r"), pc.equal(pc.struct_field(source, "snapshot"), INCREMENTAL))
    return pc.if_else(pc.fill_null(again, False), REPEATED, op)


def _inside(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    values = batch.column(path[0])
    for name in path[1:]:
        values = pc.struct_field(values, name)
    return values.cast(pa.int64())


def _chosen(rows: pa.StructArray, schema: pa.Schema) -> pa.StructArray:
    """The columns of `schema` from structs, in their order."""
    there = [rows.type.field(i).name for i in range(rows.type.num_fields)]
    children = [
        rows.field(field.name) if field.name in there else pa.nulls(len(rows), field.type) for field in schema
    ]
    return pa.StructArray.from_arrays(children, names=schema.names, mask=rows.is_null())


def _big_endian(parts: list[npt.NDArray[np.int64]]) -> pa.Array:
    # Stack before the conversion: stacking would change the byte order back.
    whole = np.stack(parts, axis=1).astype(">i8").tobytes()
    kind = pa.binary(8 * len(parts))
    return pa.Array.from_buffers(kind, len(parts[0]), [None, pa.py_buffer(whole)]).cast(pa.binary())


def _numbers(values: pa.Array) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = pc.fill_null(values, 0).to_numpy()
    return found


def _line(line: bytes | None) -> dict[str, object]:
    try:
        return {"line": None if line is None else line.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(line or b"").decode()}


@dataclass(frozen=True)
class StoreChanges:
    """In a worker: store events that have complete old rows as parts, and yield one answer."""

    uploader: bytes
    parser: ChangeParser
    columns: tuple[str, ...]
    rejects_to: str | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        return upload(self.uploader, lambda answer: self._updates(batches, answer))

    def _updates(self, batches: Iterator[pa.RecordBatch], answer: Answer) -> Iterator[pa.RecordBatch]:
        answer.advances = self.parser.late == "advance"
        answer.rejects_to = self.rejects_to
        reader = EventReader(self.parser, self.columns, answer)
        for batch in batches:
            rows, _, _ = reader.read(batch)
            answer.see_rows(rows, TIME)
            if rows.num_rows:
                yield rows
        reader.finish()


@dataclass(frozen=True)
class ReadEvents:
    """In a worker: parse events into rows for the tasks that look up, and a last row with the counts.

    Attributes:
        parser: parses the events; accepts late ones.
        columns: names of the input columns.
        schema: schema of the output in Spark's types, see `storing.event_schema`.
    """

    parser: ChangeParser
    columns: tuple[str, ...]
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        one_thread()
        answer, fault = Answer(), None
        reader = EventReader(self.parser, self.columns, answer)
        try:
            for batch in batches:
                rows, parsed, places = reader.read(batch)
                if parsed.truncates is not None:
                    yield self._truncates(parsed.truncates, places)
                yield convert(self._events(rows, places), self.schema)
            reader.finish()
        except UsageError as error:
            fault = str(error)
        note = base64.b64encode(encoded_answer(answer, fault)).decode()
        yield pa.RecordBatch.from_pylist([{NOTE: note}], schema=self.schema)

    def _events(self, rows: pa.RecordBatch, places: Places) -> pa.RecordBatch:
        names = [name for name in rows.schema.names if name not in (REMOVED, ORDER, LINE, LEFT_OUT)]
        own = [rows.column(name) for name in names]
        no_note = pa.nulls(rows.num_rows, pa.string())
        more = [rows.column(REMOVED), places.orders(rows), rows.column(LEFT_OUT), no_note]
        return pa.RecordBatch.from_arrays([*own, *more], names=[*names, GONE, BEST, UNTOLD, NOTE])

    def _truncates(self, found: Truncates, places: Places) -> pa.RecordBatch:
        """Rows without a key, one for each truncation."""
        given = {
            TIME: pa.array(found.times),
            GONE: pa.repeat(pa.scalar(True), len(found.lines)),
            BEST: places.of_truncates(found),
            NOTE: pa.repeat(pa.scalar(EMPTIED), len(found.lines)),
        }
        columns = [
            given[field.name].cast(field.type)
            if field.name in given
            else pa.nulls(len(found.lines), field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

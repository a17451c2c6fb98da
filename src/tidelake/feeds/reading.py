"""Change events: batches of lines in; updates, or events for an upsert, out.

Owns the batches, the line numbers in files, and the texts of rejected lines. Tasks of Spark do this work, or
this process.
"""

import base64
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.lineerrors import as_bytes
from tidelake.cdc.core.ops import INCREMENTAL, REPEATED
from tidelake.cdc.core.outcome import Parsed, Truncates
from tidelake.cdc.debezium.connectors import connector_of
from tidelake.cdc.debezium.decoded import Decoded, Path, decode
from tidelake.cdc.parse import structcolumns as as_columns
from tidelake.cdc.parse.linenumbers import LineNumbers
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.rows import LEFT_OUT, LINE, ORDER, REMOVED, TIME
from tidelake.cdc.times.heldevents import PIECE_BYTES, ROWS_MAX, HeldSpan, packed
from tidelake.cdc.times.positions import MARK, positions
from tidelake.cdc.times.timeline import Timeline
from tidelake.data.ingest.convert import convert
from tidelake.data.ingest.events import CREATED
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.answers import Answer, encoded_answer, upload
from tidelake.feeds.places import Places

ArrowMap: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
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
    _held: list[tuple[pa.RecordBatch, HeldSpan]] = field(default_factory=list)
    _packed: list[bytes] = field(default_factory=list)

    def read(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Parsed, Places]:
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

    def _hold(self, rows: pa.RecordBatch, span: HeldSpan) -> None:
        """Hold rows back. They are packed soon, since a transaction may be larger than the memory."""
        self._held.append((rows, span))
        held = [batch for batch, _ in self._held]
        if sum(batch.num_rows for batch in held) >= ROWS_MAX or sum(map(_size, held)) >= PIECE_BYTES:
            self._pack()

    def _pack(self) -> None:
        if self._held:
            rows, spans = zip(*self._held, strict=True)
            self._packed.append(packed(list(rows), reduce(HeldSpan.with_, spans)))
            self._held = []

    def _text(
        self, batch: pa.RecordBatch, column: pa.StructArray | None, places: Places
    ) -> tuple[Parsed, pa.RecordBatch, Places]:
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
        parsed = self.parser.parse(found, places.text, keys, times)
        if self.parser.old_rows == "stored":
            parsed = replace(parsed, created=self._created(found, parsed, is_keyed=keys is not None))
        return parsed, batch, places

    def _created(self, found: Decoded, parsed: Parsed, *, is_keyed: bool) -> pa.Array | None:
        """As `Parsed.created`."""
        timeline, rows = self.parser.timeline, parsed.rows
        connector = connector_of("" if timeline is None else timeline.connector)
        refuses = self.parser.refuses_second
        if not connector.swaps and refuses is None:
            return None
        of_rows, removed = rows.column(LINE), rows.column(REMOVED)
        changes = of_rows if parsed.steps is None else pa.array(parsed.steps)
        # A row that gets another key is new there.
        new = moved = pc.and_not(pc.is_in(changes, value_set=changes.filter(removed)), removed)
        if connector.swaps:
            # What comes again was left out. A key that only the caller named may not tell rows apart.
            told = pc.and_(pc.equal(pc.struct_field(found.fields, "op"), "c"), pa.array(found.known))
            new = pc.or_(moved, pc.and_not(told.take(of_rows), removed))
            return pc.if_else(new, pa.scalar(connector.creates_once and not is_keyed), None)
        if not pc.any(moved, min_count=0).as_py():
            return None
        once = pa.array(_once(rows, moved, self.parser.key), pa.uint64())
        is_once = pc.is_in(pa.array(range(rows.num_rows), pa.uint64()), value_set=once)
        return pc.if_else(is_once, pa.scalar(refuses), None)

    def _in_time(
        self,
        decoded: Decoded,
        batch: pa.RecordBatch,
        places: Places,
        timeline: Timeline,
        *,
        again: bool,
    ) -> tuple[Decoded, pa.RecordBatch, Places, npt.NDArray[np.int64]]:
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
            self._hold(rows.filter(pa.array(held)), HeldSpan.of(found, held))
        if places.files.null_count == len(places.files):
            # Messages of several partitions, in the order of the log; where that tells events apart.
            own = found.ends if connector_of(found.connector).gives_before else places.blocks
            places = replace(places, modified=found.starts, blocks=own)
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

    def _places(self, batch: pa.RecordBatch, text: bool) -> Places:
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

    def _reject(self, parsed: Parsed, batch: pa.RecordBatch, places: Places) -> None:
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


def _once(rows: pa.RecordBatch, moved: pa.Array, key: Sequence[str]) -> list[int]:
    """The rows that came to their keys; not those that come again with their times and are no second ones."""
    told, gone = set[tuple[str, int]](), Counter[tuple[Any, ...]]()
    there = rows.drop_columns([LINE])
    some = pc.is_in(rows.column(key[0]), value_set=rows.column(key[0]).filter(moved))
    found = list[int]()
    for at in pc.indices_nonzero(some).to_pylist():
        row = there.slice(at, 1).to_pylist()[0]
        point = (*(row[name] for name in key), row[TIME])
        gone[point] += row[REMOVED]
        if moved[at].as_py() and (one := (str(row), gone[point])) not in told:
            told.add(one)
            found.append(at)
    return found


def _size(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes)


def decoded(batch: pa.RecordBatch, paths: Collection[Path] = ()) -> pa.RecordBatch:
    """A batch of lines, with the lines decoded beside them."""
    return batch.append_column(DECODED, decode(as_bytes(batch.column("value")), paths).column)


def is_text(names: Collection[str]) -> bool:
    """Whether a frame of such columns holds change events as texts."""
    return "op" not in names and "value" in names


def is_word(kind: pa.DataType) -> bool:
    """Whether values of a type are texts."""
    is_ = pa.types
    kind = kind.value_type if is_.is_dictionary(kind) else kind
    return bool(is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind))


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
    op = batch.column("op").cast(pa.string())
    source = batch.column("source") if "source" in batch.schema.names else None
    if parser.old_rows == "stored" or source is None or not pa.types.is_struct(source.type):
        return op
    if source.type.get_field_index("snapshot") < 0 or not is_word(source.field("snapshot").type):
        return op
    snapshot = pc.struct_field(source, "snapshot").cast(pa.string())
    again = pc.and_(pc.equal(op, "r"), pc.equal(snapshot, INCREMENTAL))
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
        answer, fault = Answer(), None
        reader = EventReader(self.parser, self.columns, answer)
        try:
            for batch in batches:
                rows, parsed, places = reader.read(batch)
                if parsed.truncates is not None:
                    yield self._truncates(parsed.truncates, places)
                yield convert(self._events(rows, parsed, places), self.schema)
            reader.finish()
        except UsageError as error:
            fault = str(error)
        note = base64.b64encode(encoded_answer(answer, fault)).decode()
        yield pa.RecordBatch.from_pylist([{NOTE: note}], schema=self.schema)

    def _events(self, rows: pa.RecordBatch, parsed: Parsed, places: Places) -> pa.RecordBatch:
        names = [name for name in rows.schema.names if name not in (REMOVED, ORDER, LINE, LEFT_OUT)]
        own = [rows.column(name) for name in names]
        no_note = pa.nulls(rows.num_rows, pa.string())
        made = pa.nulls(rows.num_rows, pa.bool_()) if parsed.created is None else parsed.created
        best = places.orders(rows, parsed.steps)
        more = [rows.column(REMOVED), best, rows.column(LEFT_OUT), made, no_note]
        return pa.RecordBatch.from_arrays([*own, *more], names=[*names, GONE, BEST, UNTOLD, CREATED, NOTE])

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

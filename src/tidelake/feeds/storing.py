"""Events whose old rows are looked up: from the tasks that parse lines to the tasks that store updates.

Owns the rows between the two, and their order: events, and one note from each parsing task, which has no key:
its counts, and the reason if it failed.
"""

import base64
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.cdc.core.lineerrors import late_reason, place, unreadable
from tidelake.cdc.parse.parser import ChangeParser
from tidelake.cdc.parse.rows import TIME
from tidelake.data.ingest.convert import convert
from tidelake.data.ingest.events import CREATED, LEFT_OUT, REMOVED
from tidelake.errors import InvalidUpdates
from tidelake.feeds.answers import Answer, answered, decoded_answer
from tidelake.feeds.reading import BEST, EMPTIED, GONE, NOTE, UNTOLD
from tidelake.lake.api.collection import Collection
from tidelake.shard.writing.shufflespill import ShuffleSpill
from tidelake.shard.writing.upserter import Upserter

# In `BEST`.
_PLACE_FROM, _PLACE_TO, _NUMBER = 24, -24, slice(-16, -8)


def event_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of rows between the tasks: the collection's columns, all nullable, and those of events."""
    more = [(TIME, pa.int64()), (GONE, pa.bool_()), (BEST, pa.binary())]
    more += [(UNTOLD, pa.string()), (CREATED, pa.bool_()), (NOTE, pa.string())]
    return pa.schema([*(field.with_nullable(True) for field in schema), *(pa.field(*one) for one in more)])


@dataclass(frozen=True)
class StoreEvents:
    """In a worker: store all events of some keys as parts, and yield one answer.

    Attributes:
        upload: bytes of the upserter.
        parser: has the lower of the upserter, and says what to do with late events.
        columns: names of the input columns.
        rejects_to: the folder for rejects.
    """

    upload: bytes
    parser: ChangeParser
    columns: tuple[str, ...]
    rejects_to: str | None

    @staticmethod
    def upserter(collection: Collection) -> Upserter:
        """The upserter for `upload`."""
        # Row order decides nothing here: two events of one key and place must be equal.
        return collection.distributed.upserter(
            order_by=BEST, delete_column=GONE, left_out=UNTOLD, rows_count=False
        )

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `reading.ArrowMap`."""
        return answered(lambda answer: self._store(batches, answer))

    def _store(self, batches: Iterator[pa.RecordBatch], answer: Answer) -> bytes:
        answer.rejects_to = self.rejects_to

        def watch(events: pa.Table, updates: pa.Table) -> None:
            self._check_deletions(events, updates)
            answer.count(updates=updates.num_rows)
            ends = pc.min_max(events.column(TIME)).as_py()
            answer.see_times(ends["min"], ends["max"])

        truncates: list[tuple[int, bytes]] = []
        events = self._events(batches, answer, truncates)
        # A task that has to know truncations gets them first; see `EventFrames.alone`.
        first = list(islice(events, 1))
        known = len(truncates)
        try:
            stored = Upserter.from_bytes(self.upload).upload(
                chain(first, events),
                watch,
                truncates=tuple(truncates),
                count=answer.see_removals,
            )
        finally:
            # Also if events are refused: a truncation that is not known yet may be why.
            answer.truncates = len(truncates)
        if known:
            times = [time for time, _ in truncates]
            answer.see_times(min(times), max(times))
        return stored

    def _check_deletions(self, events: pa.Table, updates: pa.Table) -> None:
        """Refuse deletions that leave their key out: the rows that they mean would stay."""
        if LEFT_OUT not in events.schema.names or events.column(LEFT_OUT).null_count == events.num_rows:
            return
        without = events.filter(pc.and_(events.column(REMOVED), events.column(LEFT_OUT).is_valid()))
        if not without.num_rows:
            return
        key = list(self.parser.key)
        there = events.filter(pc.invert(events.column(REMOVED)))
        known = {tuple(row.values()) for rows in (updates, there) for row in rows.select(key).to_pylist()}
        for row in without.select([*key, LEFT_OUT]).to_pylist():
            names = row.pop(LEFT_OUT)
            if tuple(row.values()) not in known:
                raise InvalidUpdates(
                    f"a deletion names no row of the collection: its key columns {names} are 0 or empty, as "
                    "with REPLICA IDENTITY USING INDEX of other columns, and nothing tells which row it "
                    "means. Set REPLICA IDENTITY DEFAULT or FULL, and take the table into a new collection, "
                    "with a copy"
                )

    def _events(
        self, batches: Iterator[pa.RecordBatch], answer: Answer, truncates: list[tuple[int, bytes]]
    ) -> Iterator[pa.RecordBatch]:
        schema = event_schema(self.parser.schema)
        kept = [name for name in schema.names if name != NOTE]
        for batch in batches:
            rows = convert(batch.rename_columns(list(self.columns)), schema)
            notes = rows.column(NOTE)
            if notes.null_count < len(notes):
                emptied = rows.filter(pc.fill_null(pc.equal(notes, EMPTIED), False)).select(kept)
                if emptied.num_rows:
                    emptied = self._in_time(emptied, answer)
                    times, orders = (emptied.column(name).to_pylist() for name in (TIME, BEST))
                    truncates += zip(times, orders, strict=True)
                for note in notes.drop_null().to_pylist():
                    if note != EMPTIED:
                        _hear(note, answer)
                rows = rows.filter(notes.is_null())
            if rows.num_rows:
                yield self._in_time(rows.select(kept), answer)

    def _in_time(self, rows: pa.RecordBatch, answer: Answer) -> pa.RecordBatch:
        """The events, with late times moved to the least open time or refused."""
        times, lower = rows.column(TIME), self.parser.lower
        late = pc.less(times, lower)
        count = pc.sum(late).as_py() or 0
        if not count:
            return rows
        if self.parser.late == "refuse":
            first = rows.filter(late).slice(0, 1)
            data = first.column(BEST)[0].as_py()
            number = int.from_bytes(data[_NUMBER], "big")
            where = place(data[_PLACE_FROM:_PLACE_TO].decode(), number or None)
            raise unreadable(late_reason(first.column(TIME)[0].as_py(), lower), where)
        answer.count(late=count)
        open_times = pc.if_else(late, pa.scalar(lower, pa.int64()), times)
        return rows.set_column(rows.schema.get_field_index(TIME), TIME, open_times)


def by_key(collection: Collection, rows: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """Rows of `event_schema` as `StoreEvents` takes them: first the notes, then the events."""
    notes = list[pa.RecordBatch]()

    def events() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            is_note = batch.column(NOTE).is_valid()
            notes.append(batch.filter(is_note))
            yield batch.filter(pc.invert(is_note))

    yield from in_key_order(collection, events(), notes)


def in_key_order(
    collection: Collection, rows: Iterator[pa.RecordBatch], first: Sequence[pa.RecordBatch] = ()
) -> Generator[pa.RecordBatch]:
    """Rows in one batch or, if they are more than fit into memory, in the order of their keys."""
    spill = ShuffleSpill(collection.distributed.uploader().spec)
    few, size = list[pa.RecordBatch](), 0
    for batch in rows:
        few.append(batch)
        size += batch.nbytes
        if size > spill.run_bytes:
            break
    else:
        yield from _as_one(first)
        yield from _as_one(few)
        return
    key = pa.schema([collection.schema.field(name).with_nullable(True) for name in collection.key])
    left = chain((few.pop(0) for _ in range(len(few))), rows)
    stored = spill.put(left, lambda batch: convert(batch, key))
    try:
        yield from _as_one(first)
        yield from spill.rows(stored, collection.distributed.newest_state())
    finally:
        spill.discard(stored)


def _as_one(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = (
        pa.Table.from_batches(batches).combine_chunks().to_batches() if batches else []
    )
    return found


def check_parsed(rows: pa.Table | pa.RecordBatch) -> None:
    """Check what a task has parsed, as `ReadEvents` gives it."""
    for note in rows.column(NOTE).drop_null().to_pylist():
        if note != EMPTIED:
            _hear(note, Answer())


def _hear(note: str, answer: Answer) -> None:
    """Add the note of a parsing task to the answer."""
    told, fault = decoded_answer(base64.b64decode(note))
    if fault is not None:
        raise InvalidUpdates(fault)
    answer.add(told)

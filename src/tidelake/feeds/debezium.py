"""Options of change feeds, and the parser and the work that they mean: Debezium's events as texts or columns.

Must not know where the events come from; `tidelake.cdc.parse.parser` owns what they mean.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, TypeAlias

import pyarrow as pa

from tidelake.cdc.core.unmade import Unmade
from tidelake.cdc.parse.parser import ChangeParser, Late, OldRows
from tidelake.cdc.times.timeline import Timeline
from tidelake.data.json.encoding import Encoding, encoding
from tidelake.errors import UsageError
from tidelake.feeds.answers import Answer, total
from tidelake.feeds.reading import AS_TEXT, ArrowMap, ReadEvents, StoreChanges
from tidelake.feeds.storing import StoreEvents, by_key, event_schema
from tidelake.lake.api.collection import Collection
from tidelake.lake.arguments.spans import DurationLike, duration_s
from tidelake.model.frontier import Frontier

# A collection, or one that is to be made when its first events are checked.
Target: TypeAlias = Collection | Unmade
_DEFAULT = {"counter": "source.lsn", "ms": "source.ts_ms", "us": "source.ts_us"}
# Fields with log positions, of the connectors of PostgreSQL, MySQL, SQL Server, Oracle, MongoDB and Db2.
_POSITIONS = frozenset({"lsn", "commit_lsn", "change_lsn", "scn", "commit_scn", "pos", "txid", "xmin", "ord"})
# 1990: an earlier time in the default time field is most likely in seconds.
FIRST = {"ms": 631_152_000_000, "us": 631_152_000_000_000}


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

    # The class of the parser, the options that other envelopes of this family have, and those that are texts.
    parses: ClassVar[type[ChangeParser]] = ChangeParser
    refuses: ClassVar[frozenset[str]] = frozenset()
    texts: ClassVar[tuple[str, ...]] = ("time", "order_by", "encodings", "rejects")

    def __post_init__(self) -> None:
        for name in self.texts:
            value = getattr(self, name)
            if not (value is None or isinstance(value, str)):
                raise UsageError(f"{name}={value!r} must be a text")
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
        """The path of the time in events of a collection."""
        unit = collection.domain.unit
        if unit == "date" and (self.time is None or self.time in _DEFAULT.values()):
            raise UsageError(
                "change events have positions and moments, and the times of collection "
                f"{collection.name!r} are days: give time=PATH with days since 1970, or take a "
                "collection of time 'ms'"
            )
        if self.time is None:
            return _DEFAULT.get(unit, _DEFAULT["counter"])
        if unit in FIRST and self.time.rpartition(".")[2].lower() in _POSITIONS:
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
        """The parser for events of a collection."""
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
            FIRST.get(collection.domain.unit, 0) if self.time is None else 0,
            self.timeline,
            self.by_transaction and self.timeline is None,
        )

    def check(self, collection: Collection) -> None:
        """Check that a collection can take such events."""
        if not collection.domain.total_order:
            raise UsageError(
                f"times of {collection.domain} cannot be read from change events: use an int time"
            )
        self.parser(collection)

    def looks_up_bytes(self, collection: Collection) -> int:
        """The most stored bytes that the work may read: all, as the keys may be in all row groups."""
        return 0 if self.old_rows == "events" else collection.state().spine.totals.size_bytes

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """The work on lines, or with `old_rows="stored"` on parsed events, at an upper."""
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

    def answer(
        self,
        collection: Collection,
        rows: Iterable[pa.RecordBatch],
        lower: Frontier,
        columns: Sequence[str] = AS_TEXT,
    ) -> Answer:
        """Store the events of rows with some columns, in this process. Errors as `total`."""
        if self.old_rows == "events":
            return total(pa.Table.from_batches(self.work(collection, columns, lower)(iter(rows))))
        schema = event_schema(collection.schema)
        # Lateness is judged with the look-up: only there the closed times are known.
        parse = ReadEvents(replace(self.parser(collection), late="advance"), tuple(columns), schema)
        work = self.work(collection, schema.names, lower)
        with closing(by_key(collection, parse(iter(rows)))) as events:
            return total(pa.Table.from_batches(work(events)))

    def _encodings(self) -> tuple[tuple[str, Encoding], ...]:
        found = []
        for word in filter(None, (word.strip() for word in self.encodings.split(","))):
            name, equals, text = word.rpartition("=")
            if not equals or not name.strip():
                raise UsageError(f"encodings={word!r} must be COLUMN=ENCODING, such as price=bytes")
            found.append((name.strip(), encoding(text.strip())))
        return tuple(found)

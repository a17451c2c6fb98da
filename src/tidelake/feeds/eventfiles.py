"""Change events in files of rows, CSV or Parquet: as texts, as columns, or as rows with a column `Op`.

Owns which of these a file has, and the checks of its columns; `tidelake.cdc.parse` owns what events mean.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from tidelake.cdc.core.lineerrors import place
from tidelake.data.ingest.astable import first_line
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import UNFIT
from tidelake.errors import InvalidUpdates
from tidelake.feeds.answers import Answer
from tidelake.feeds.debezium import Debezium
from tidelake.feeds.lines import LINES, MESSAGES, STAY, Piece, reading
from tidelake.feeds.opcolumn import REMOVED, is_among, with_instants
from tidelake.feeds.reading import PLACES, is_text, is_word
from tidelake.feeds.rowfiles import RowFiles
from tidelake.feeds.tools import Dms, ToolMessages
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier

# The column of files of AWS DMS, and its words.
OP = "Op"
ADDED, GONE = ("I", "U"), ("D",)


def holds_lines(columns: pa.Schema) -> bool:
    """Whether the rows of a file are events as texts."""
    if not is_text(columns.names) or OP in columns.names or columns.names.count("value") > 1:
        return False
    kind = columns.field("value").type
    return is_word(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def lines_of(files: RowFiles, begun: Piece, bytes_max: int | None) -> tuple[pa.RecordBatch, Piece] | None:
    """The next events of a file, and the piece that they are; None if they are no texts.

    Pieces count rows, also as the numbers of lines.
    """
    path = files.path(begun.name)
    with reading(path):
        modified = path.stat().st_mtime_ns // 1000
    batches, count, size, left = list[pa.RecordBatch](), 0, 0, False
    with closing(files.of(path, begun.begin)) as rows:
        for batch in rows:
            if not holds_lines(batch.schema):
                if not begun.begin:
                    return None
                raise InvalidUpdates(f"{place(path.as_uri())} had a column 'value' when it was begun: {STAY}")
            room = max(0, batch.nbytes if bytes_max is None else bytes_max - size)
            left = batch.nbytes > room
            taken = batch.slice(0, batch.num_rows * room // batch.nbytes or not count) if left else batch
            try:
                batches.append(_as_lines(taken, path.as_uri(), modified, begun.line + count))
            except UNFIT as error:
                raise InvalidUpdates(f"{place(path.as_uri())}: {first_line(error)}") from error
            count, size = count + taken.num_rows, size + taken.nbytes
            if left:
                break
    schema = batches[0].schema if batches else LINES
    (lines,) = pa.Table.from_batches(batches, schema).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], schema)
    ]
    return lines, Piece(begun.name, begun.begin, begun.line, begun.begin + count if left else None, count)


def _as_lines(rows: pa.RecordBatch, file: str, modified: int, before: int) -> pa.RecordBatch:
    """Rows with the columns of lines; of messages of Kafka with their places as well."""
    count, names = rows.num_rows, rows.schema.names
    sent = {*PLACES, "offset", "timestamp"} <= {*names} and pa.types.is_timestamp(rows["timestamp"].type)
    given = {
        "file": pa.repeat(pa.scalar(file), count),
        "block": pa.repeat(pa.scalar(0, pa.int64()), count),
        "modified": rows["timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        if sent
        else pa.repeat(pa.scalar(modified, pa.int64()), count),
        "offset": pa.array(range(before + 1, before + 1 + count), pa.int64()),
    }
    wanted, columns = MESSAGES if sent else LINES, list[pa.Array]()
    for field in wanted:
        if field.name in names and field.name != "file":
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(given.get(field.name, pa.nulls(count, field.type)))
        if sent and field.name in (*PLACES, "offset") and columns[-1].null_count:
            raise pa.ArrowInvalid(f"column {field.name!r} has a null, and messages of Kafka have none there")
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def op_rows(time: str | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of AWS DMS as those of an upsert, which say by `REMOVED` which keys are gone."""
    if (found := batch.schema.names.count(OP)) != 1:
        raise InvalidUpdates(f"there are {found} columns {OP!r}")
    removed = is_among(batch.column(OP), OP, ADDED, GONE)
    rows = batch.drop_columns([OP]).append_column(REMOVED, removed)
    return rows if time is None else with_instants(rows, time)


def check_names(feed: Debezium, names: Sequence[str]) -> None:
    """Check that rows, which are no events as texts, may be events as columns."""
    there = ", ".join(map(repr, names))
    if isinstance(feed, Dms):
        raise InvalidUpdates(
            f"changes of AWS DMS are a column 'value' of JSON texts, or rows with a column {OP!r}: there is "
            f"{there or 'no column'}; for a full load without {OP!r} set IncludeOpForFullLoad, or use the "
            "envelope 'upsert'"
        )
    if isinstance(feed, ToolMessages):
        raise InvalidUpdates(
            f"messages of {feed.dialect.tool} are a column 'value' of JSON texts: there is "
            f"{there or 'no column'}"
        )
    missing = [name for name in ("op", "before", "after") if name not in names]
    if missing:
        raise InvalidUpdates(
            "change events are a column 'value' of JSON texts, or columns 'op', 'before' and 'after': "
            f"there is no {missing[0]!r} but {there or 'nothing'}"
        )


@dataclass(frozen=True)
class ColumnEvents:
    """Each row is a change event with the columns `op`, `before` and `after`, and a time.

    Attributes:
        feed: what the events mean.
    """

    feed: Debezium

    @property
    def rebases(self) -> bool:
        """As `Making`."""
        return self.feed.rebases

    def check_columns(self, collection: Collection, given: pa.Schema) -> None:
        """Check the columns of rows.

        Raises:
            InvalidUpdates: a column is missing, or of another type.
        """
        check_names(self.feed, given.names)
        doubled = [name for name in given.names if given.names.count(name) > 1]
        if doubled:
            raise InvalidUpdates(f"column {doubled[0]!r} appears twice")
        kind = given.field("op").type
        if not is_word(kind):
            raise InvalidUpdates(f"column 'op' is {kind} and not string: cast it")
        layout = self.feed.parser(collection).layout
        for name, wanted in (("before", layout.before), ("after", layout.after)):
            _check_side(collection, name, given.field(name).type, wanted.names)
        for what, path in (("time", self.feed.time_of(collection)), ("order_by", self.feed.order_by)):
            if path is not None:
                _check_number(given, what, path)

    def answer(
        self, collection: Collection, rows: Iterator[pa.RecordBatch], names: Sequence[str], lower: Frontier
    ) -> Answer:
        """Store the events. Errors as `Debezium.answer`."""
        return self.feed.answer(collection, rows, lower, names)


def _check_side(collection: Collection, name: str, kind: pa.DataType, wanted: Sequence[str]) -> None:
    """Check the type of old or new rows, of which some columns are read."""
    if not pa.types.is_struct(kind):
        raise InvalidUpdates(f"column {name!r} is {kind} and no struct: parse it first")
    spec = collection.distributed.uploader().spec
    kinds = pa.schema([kind.field(at) for at in range(kind.num_fields) if kind.field(at).name in wanted])
    unread = [column for column in collection.schema.names if column not in wanted]
    try:
        normalize(kinds.empty_table(), spec.schema, spec.domain, time=0, optional=(*spec.optional, *unread))
    except InvalidUpdates as error:
        raise InvalidUpdates(f"column {name!r}: {error}") from None


def _check_number(given: pa.Schema, what: str, path: str) -> None:
    kind: pa.DataType = pa.struct(list(given))
    for name in path.split("."):
        at = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if at < 0:
            raise InvalidUpdates(f"there is no column {path!r}: set {what} to where the events have it")
        kind = kind.field(at).type
    if not pa.types.is_integer(kind):
        raise InvalidUpdates(f"column {path!r} is {kind} and no whole number: cast it")

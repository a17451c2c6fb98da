"""What a stream of transactions keeps from one micro-batch to the next, as text in the record of its writer.

Owns what is kept: how far the stream is, and the rows of the micro-batch that were held back, as they came,
or the names of the objects that have them, if they are many. It is written by the compare-and-set that adds
the other rows, so that a row is in the collection or held back, and never both or neither, whenever a process
dies. `tidelake.state.write.heldback` owns its form.

INVARIANT: held rows are not read before a transaction of theirs ends. Until then their survey stands for
them, and a `HeldSpan` for each piece of them.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from typing import Any, Self

import pyarrow as pa

from tidelake.cdc.core.events import Mask
from tidelake.cdc.core.topicpartition import Reached, TopicPartition
from tidelake.cdc.times.positions import MARK, ROWS, Positions
from tidelake.cdc.times.surveys import merged_surveys
from tidelake.cdc.times.timeline import Progress
from tidelake.data.keys.mentions import held_lines
from tidelake.errors import CorruptionError, FormatTooNew
from tidelake.state.write.heldback import FORM, RECORD, STORED, StreamContent

# The record is read with each state of the collection: more goes into objects of their own.
BYTES_MAX = 1 << 20
# So many rows of a task are packed at once, or bytes of them, and about so many packed bytes are one object.
ROWS_MAX = 8192
PIECE_BYTES = 1 << 22
OBJECT_BYTES = 1 << 20
# A larger survey is in an object too.
SURVEY_MAX = 1 << 17
FORMAT = 2
# The first form has no spans and no survey.
_FIRST = {one.name for one in fields(Progress)} | {STORED}
_FIELDS = {1: _FIRST, FORMAT: _FIRST | {"spans", "survey"}}
# Columns of surveys that are of messages only.
_OF_PLACES = ("topic", "partition", "first", "offset", "begin")
_SPAN, _SURVEY = b"tidelake:span", b"tidelake:survey"


@dataclass(frozen=True)
class HeldSpan:
    """Which events a piece of held rows has.

    Attributes:
        first: all of them are held back while events at this position are.
        last: position of the last transaction.
        end: the last position in it that one of them has.
        events: how many there are, without marks.
    """

    first: int
    last: int
    end: int
    events: int

    @classmethod
    def of(cls, found: Positions, which: Mask) -> Self:
        """That of some lines, at least one."""
        starts, ends, marks = found.starts[which], found.ends[which], (found.roles[which] & MARK) > 0
        # A mark is held back after its position, see `Timeline.split`.
        last = int(starts.max())
        return cls(int((starts - marks).min()), last, int(ends[starts == last].max()), int((~marks).sum()))

    def with_(self, other: Self) -> Self:
        """That of both."""
        last, end = max((self.last, self.end), (other.last, other.end))
        return replace(
            self, first=min(self.first, other.first), last=last, end=end, events=self.events + other.events
        )

    def reaches(self, position: tuple[int, int]) -> bool:
        """Whether an event may be at or after a place in the log."""
        return (self.last, self.end) >= position


@dataclass(frozen=True)
class Held:
    """What is kept.

    Attributes:
        progress: how far the stream is.
        rows: bytes of the rows that were held back, as `packed` made them; empty: none were, or not these.
        stored: names of objects that have rows, without their shard, in their order, and then of one with
            the survey, if it is large.
        spans: of the objects with rows.
        survey: the survey of all rows, as `packed` makes it; empty: there are none, or it is in an object,
            or a record of the first form has the rows.
    """

    progress: Progress
    rows: bytes = field(default=b"", repr=False)
    stored: tuple[str, ...] = ()
    spans: tuple[HeldSpan, ...] = ()
    survey: bytes = field(default=b"", repr=False)

    @property
    def any(self) -> bool:
        """Whether rows were held back."""
        return bool(self.rows or self.stored)

    @property
    def objects(self) -> tuple[str, ...]:
        """Names of the objects with rows."""
        return self.stored[: len(self.spans)]

    @property
    def surveyed_in(self) -> str | None:
        """The name of the object with the survey, if it is in one."""
        return self.stored[-1] if len(self.stored) > len(self.spans) else None

    @property
    def is_surveyed(self) -> bool:
        """Whether there is a survey of the rows."""
        return bool(self.survey) or self.surveyed_in is not None

    @property
    def events(self) -> int:
        """How many events the rows are; those of a record of the first form are not counted."""
        own = span_of(self.rows).events if self.rows else 0
        return own + sum(span.events for span in self.spans)

    def before(self, position: int) -> Self:
        """Those pieces of rows that are not all held back at and after a position."""
        return self._pieces(lambda span: span.first < position)

    def since(self, position: int) -> Self:
        """The other pieces."""
        return self._pieces(lambda span: span.first >= position)

    def reaching(self, place: tuple[int, int]) -> Self:
        """The pieces that may have events at or after a place in the log."""
        return self._pieces(lambda span: span.reaches(place))

    def _pieces(self, has: Callable[[HeldSpan], bool]) -> Self:
        found = [one for one in zip(self.objects, self.spans, strict=True) if has(one[1])]
        rows = self.rows if self.rows and has(span_of(self.rows)) else b""
        return replace(
            self,
            rows=rows,
            stored=tuple(name for name, _ in found),
            spans=tuple(span for _, span in found),
            survey=b"",
        )


_UNKNOWN = HeldSpan(-(2**63), 2**63 - 1, 2**63 - 1, 0)
"""Of a piece in a record of the first form: it is read with the next micro-batch."""


def span_of(data: bytes) -> HeldSpan:
    """The span of rows that `packed` made."""
    try:
        told = pa.ipc.open_stream(data).schema.metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(RECORD, "the rows that it holds back cannot be read") from error
    return _spans([json.loads(told[_SPAN])])[0] if _SPAN in told else _UNKNOWN


def _spans(told: Any) -> tuple[HeldSpan, ...]:
    try:
        return tuple(HeldSpan(*one) for one in told)
    except TypeError as error:
        raise CorruptionError(RECORD, "it does not say which rows it holds back") from error


def unpacked(data: bytes) -> pa.RecordBatch:
    """The rows of a result of `packed` that is not empty."""
    return held_lines(data).combine_chunks().to_batches()[0]


def pieces(data: bytes) -> list[pa.RecordBatch]:
    """The same rows, not many at a time."""
    return list(held_lines(data).to_batches())


def packed(rows: list[pa.RecordBatch], span: HeldSpan | None = None) -> bytes:
    """Rows of one schema as bytes, with their span; empty for no rows."""
    if not any(batch.num_rows for batch in rows):
        return b""
    table = pa.Table.from_batches(rows)
    # Large pieces are read one by one.
    table = table if table.nbytes > PIECE_BYTES else table.combine_chunks()
    told = None if span is None else {_SPAN: json.dumps([*asdict(span).values()])}
    return _stream(table.replace_schema_metadata(told))


def _stream(table: pa.Table) -> bytes:
    stream = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue())


def merged(several: Iterable[bytes]) -> bytes:
    """The rows of several results of `packed`, as one."""
    there = [data for data in several if data]
    if len(there) < 2:
        return there[0] if there else b""
    span = reduce(HeldSpan.with_, map(span_of, there))
    rows = [batch.replace_schema_metadata() for data in there for batch in pieces(data)]
    return packed(rows, span)


def grouped(several: Iterable[bytes]) -> Iterator[bytes]:
    """The same rows in the same order, in results of `packed` that are small, and not many."""
    size, group = 0, list[bytes]()
    for data in several:
        if group and size + len(data) > OBJECT_BYTES:
            yield merged(group)
            size, group = 0, []
        group.append(data)
        size += len(data)
    yield merged(group)


def kept_survey(found: pa.Table, held: int) -> bytes:
    """What of a merged survey stands for the rows that are held back at and after a position."""
    starts, roles = found.column("start").to_numpy(), found.column("roles").to_numpy()
    there = ((roles & ROWS) > 0) & (starts >= held) | ((roles & MARK) > 0) & (starts > held)
    kept = found.filter(pa.array(there))
    for name in _OF_PLACES:
        if name in kept.schema.names:
            # They are no messages of the next micro-batch.
            at = kept.schema.get_field_index(name)
            kept = kept.set_column(at, kept.schema.field(at), pa.nulls(len(kept), kept.schema.field(at).type))
    return packed(merged_surveys(kept).combine_chunks().to_batches()) if len(kept) else b""


def survey_of(data: bytes, schema: pa.Schema) -> pa.Table:
    """The survey that `kept_survey` made, perhaps of other columns."""
    if not data:
        return schema.empty_table()
    found = pa.ipc.open_stream(data).read_all()
    columns = [
        found.column(field.name) if field.name in found.schema.names else pa.nulls(len(found), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def survey_object(survey: bytes) -> bytes:
    """An object with a survey, which has no rows."""
    none = {name: pa.nulls(0, pa.binary()) for name in ("value", "key")}
    return _stream(pa.table(none).replace_schema_metadata({_SURVEY: survey}))


def survey_in(data: bytes) -> bytes:
    """The survey in such an object."""
    found: bytes = pa.ipc.open_stream(data).schema.metadata[_SURVEY]
    return found


def with_held(content: str, held: Held) -> str:
    """The text of a record: what identifies the micro-batch, and what is kept."""
    by_topic: dict[str, list[list[int]]] = {}
    for (topic, partition), reached in held.progress.partitions.items():
        by_topic.setdefault(topic, []).append([partition, *reached])
    progress = asdict(replace(held.progress, partitions={})) | {"partitions": by_topic}
    spans = [[*asdict(span).values()] for span in held.spans]
    survey = base64.b85encode(held.survey).decode()
    kept = {FORM: FORMAT, **progress, STORED: held.stored, "spans": spans, "survey": survey}
    return StreamContent.keeping(content, kept, held.rows).text


def split(content: str | None) -> tuple[str, Held | None]:
    """The two parts of such a text; None if it holds only the first."""
    told = StreamContent.of(content or "")
    if told.kept is None:
        return told.what, None
    found = json.loads(told.kept)
    number = found.pop(FORM, 0)
    if number > FORMAT:
        raise FormatTooNew(RECORD, number, FORMAT)
    if found.keys() != _FIELDS.get(number) or [*told.stored] != found[STORED]:
        raise CorruptionError(RECORD, "it does not say how far the stream is")
    found["partitions"] = {
        TopicPartition(topic, partition): Reached(*reached)
        for topic, listed in found["partitions"].items()
        for partition, *reached in listed
    }
    spans, survey = (_UNKNOWN,) * len(told.stored), b""
    if number != 1:
        spans, survey = _spans(found.pop("spans")), base64.b85decode(found.pop("survey"))
    del found[STORED]
    return told.what, Held(Progress(**found), told.rows, told.stored, spans, survey)

"""The answer of a worker that uploads, as one row for the driver.

Owns that row, and its format: driver and worker may be of two versions. The worker writes rows of data into
the store. The driver gets only descriptors of the stored parts, counts, and the reason if the data cannot be
stored.

INVARIANT: data that cannot be stored is an answer, not a failed task: Spark would retry the task and then
hide the reason in a trace. A store that fails does fail the task.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.data.ingest.upsert import Resolved
from tidelake.errors import CorruptionError, FormatTooNew, InvalidUpdates, UsageError
from tidelake.feeds.reports import Counts
from tidelake.shard.writing.builder import Uploader

FORMAT = 1
# What `encoded_answer` makes, and the size in memory of the task's input rows, which is known last.
ANSWER = pa.schema(
    [pa.field("answer", pa.binary(), nullable=False), pa.field("taken_bytes", pa.int64(), nullable=False)]
)
_MAGIC = b"tidelake:answer "
_NAME = "the answer of a task"
_TEXTS = pa.list_(pa.string())
# The counts, and how they are called in the packed answer.
_COUNTED = {
    "updates": "rows",
    "events": "events",
    "heartbeats": "heartbeats",
    "tombstones": "tombstones",
    "late": "late",
    "held": "held_events",
    "repeated": "repeated",
    "removed": "removed",
    "absent": "absent",
}
_PACKED = pa.schema(
    [
        pa.field("uploads", pa.list_(pa.binary()), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("time_lower", pa.int64()),
        pa.field("time_upper", pa.int64()),
        pa.field("events", pa.int64(), nullable=False),
        pa.field("heartbeats", pa.int64(), nullable=False),
        pa.field("tombstones", pa.int64(), nullable=False),
        pa.field("late", pa.int64(), nullable=False),
        pa.field("files", _TEXTS, nullable=False),
        pa.field("advances", pa.bool_(), nullable=False),
        pa.field("rejects", _TEXTS, nullable=False),
        pa.field("rejects_to", pa.string()),
        pa.field("held", pa.list_(pa.binary()), nullable=False),
        pa.field("held_events", pa.int64(), nullable=False),
        pa.field("repeated", pa.int64(), nullable=False),
        pa.field("truncates", pa.int64(), nullable=False),
        pa.field("removed", pa.int64(), nullable=False),
        pa.field("absent", pa.int64(), nullable=False),
        pa.field("fault", pa.string()),
    ]
)


@dataclass
class Answer:
    """What one task, or several together, did.

    Attributes:
        uploads: for `append_uploaded`.
        counts: the numbers; `rejects` and `files` are counted by `counted`.
        taken_bytes: size in memory of the input rows.
        time_lower: the least time of a row; None without rows, or if times are tuples.
        time_upper: the greatest time of a row, a change event or a heartbeat; None as for `time_lower`.
        files: names of the files that the rows came from, if any.
        advances: whether rows whose times are closed at the commit get the least open time.
        rejects: JSON texts of the lines that could not be read.
        rejects_to: the folder where rejects are stored before the rest is appended; None: rejects are errors.
        held: the rows that are held back until the time of their transaction is known, one item a task.
        truncates: truncations of the collection, which only one task that gets all events can carry out.
    """

    uploads: tuple[bytes, ...] = field(default=(), repr=False)
    counts: Counts = field(default_factory=Counts)
    taken_bytes: int = 0
    time_lower: int | None = None
    time_upper: int | None = None
    files: tuple[str, ...] = ()
    advances: bool = False
    rejects: tuple[str, ...] = ()
    rejects_to: str | None = None
    held: tuple[bytes, ...] = field(default=(), repr=False)
    truncates: int = 0

    @property
    def counted(self) -> Counts:
        """The numbers, with those of rejects and of files."""
        return replace(self.counts, rejects=len(self.rejects), files=len(self.files))

    def count(self, **more: int) -> None:
        """Add to the counts of these names."""
        given: dict[str, Any] = more
        self.counts = self.counts.plus(Counts(**given))

    def see_files(self, names: pa.Array) -> None:
        """Remember which files there were."""
        self.files = tuple(sorted({*self.files, *names.unique().to_pylist()}))

    def see_rows(self, batch: pa.RecordBatch, time_column: str | None) -> None:
        """Count the rows of a batch, and look at their times."""
        self.count(updates=batch.num_rows)
        if time_column is not None and batch.num_rows:
            ends = pc.min_max(batch.column(time_column)).as_py()
            self.see_times(ends["min"], ends["max"])

    def see_removals(self, found: Resolved) -> None:
        """Count what removals did."""
        self.counts = self.counts.plus(found)

    def see_times(self, lower: int | None, upper: int | None) -> None:
        """Widen the range of times."""
        self.time_lower = _pick(min, self.time_lower, lower)
        self.time_upper = _pick(max, self.time_upper, upper)

    def add(self, other: "Answer") -> None:
        """Add the answer of another task."""
        self.uploads += other.uploads
        self.counts = self.counts.plus(other.counts)
        self.see_times(other.time_lower, other.time_upper)
        self.taken_bytes += other.taken_bytes
        self.files = tuple(sorted({*self.files, *other.files}))
        self.advances = self.advances or other.advances
        self.rejects += tuple(other.rejects)
        self.rejects_to = other.rejects_to if self.rejects_to is None else self.rejects_to
        self.held += tuple(other.held)
        self.truncates += other.truncates


def _pick(choose: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return choose(a, b)


def upload(
    uploader: bytes, updates: Callable[[Answer], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """In a worker: upload what `updates` yields while it fills in the answer; yield the answer's row."""
    return answered(lambda answer: Uploader.from_bytes(uploader).upload(updates(answer)))


def answered(work: Callable[[Answer], bytes]) -> Iterator[pa.RecordBatch]:
    """In a worker: call `work`, which fills in the answer and returns an upload; yield the answer's row."""
    answer, fault = Answer(), None
    try:
        stored = work(answer)
        answer.uploads = (stored,) if stored else ()
    except UsageError as error:
        fault = str(error)
    row = {"answer": encoded_answer(answer, fault), "taken_bytes": 0}
    yield pa.RecordBatch.from_pylist([row], schema=ANSWER)


def encoded_answer(answer: Answer, fault: str | None) -> bytes:
    """In a worker: what a task did, and why it could not do all of it, for a process of any version."""
    told = {packed: getattr(answer.counts, name) for name, packed in _COUNTED.items()}
    row = {name: getattr(answer, name) for name in _PACKED.names[:-1] if name not in told}
    row |= told | {"fault": fault}
    rows = pa.RecordBatch.from_pylist([row], schema=_PACKED)
    return b"%b%d\n%b" % (_MAGIC, FORMAT, rows.serialize())


def decoded_answer(data: bytes) -> tuple[Answer, str | None]:
    """The two values that `encoded_answer` was given."""
    head, newline, body = data.partition(b"\n")
    number = head.removeprefix(_MAGIC)
    if not newline or number == head or not number.isdigit():
        raise CorruptionError(_NAME, "it has no format number")
    if int(number) > FORMAT:
        raise FormatTooNew(_NAME, int(number), FORMAT)
    (row,) = pa.ipc.read_record_batch(pa.py_buffer(body), _PACKED).to_pylist()
    fault = row.pop("fault")
    counts = Counts(**{name: row.pop(packed) for name, packed in _COUNTED.items()})
    lists = {name: tuple(found) for name, found in row.items() if isinstance(found, list)}
    return Answer(counts=counts, **row | lists), fault


def weighing(answer: pa.RecordBatch, taken_bytes: int) -> pa.RecordBatch:
    """In a worker: the answer's row, with the size of the input rows."""
    at = ANSWER.get_field_index("taken_bytes")
    return answer.set_column(at, ANSWER.field(at), pa.array([taken_bytes], pa.int64()))


def has_truncates(answers: pa.Table) -> bool:
    """Whether a task saw a truncation: then what others refused, which did not see it, may be right."""
    return any(decoded_answer(row)[0].truncates for row in answers.column("answer").to_pylist())


def total(answers: pa.Table) -> Answer:
    """The sum of the answers of several tasks."""
    found = [(*decoded_answer(row["answer"]), row["taken_bytes"]) for row in answers.to_pylist()]
    faults = sorted(fault for _, fault, _ in found if fault is not None)
    if faults:
        raise InvalidUpdates(faults[0] + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""))
    result = Answer()
    for answer, _, taken_bytes in found:
        answer.taken_bytes = taken_bytes
        result.add(answer)
    return result


def answers_to_bytes(answers: Iterator[pa.RecordBatch]) -> bytes:
    """In a worker: pack what `upload` yielded, for a driver that gets messages instead of rows."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, ANSWER) as writer:
        for batch in answers:
            writer.write_batch(batch)
    return bytes(stream.getvalue())


def answers_from_bytes(messages: Iterable[bytes]) -> pa.Table:
    """In the driver: unpack the rows of `answers_to_bytes`, for `total`."""
    tables = [pa.ipc.open_stream(message).read_all() for message in messages]
    return pa.concat_tables([ANSWER.empty_table(), *tables])

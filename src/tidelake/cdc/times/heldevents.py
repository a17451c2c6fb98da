"""What a stream of transactions keeps from one micro-batch to the next, as text in the record of its writer.

Owns that text: how far the stream is, and the rows of the micro-batch that were held back, as they came, or
the names of the objects that have them, if they are many. It is written by the compare-and-set that adds the
other rows, so that a row is in the collection or held back, and never both or neither, whenever a process
dies.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace

import pyarrow as pa

from tidelake.cdc.core.topicpartition import Reached, TopicPartition
from tidelake.cdc.times.timeline import Progress
from tidelake.errors import CorruptionError, FormatTooNew
from tidelake.state.write.heldback import MARK, STORED, stored_in

# The record is read with each state of the collection: more goes into objects of their own.
BYTES_MAX = 1 << 20
# So many rows of a task are packed at once, and about so many bytes are one object.
ROWS_MAX = 8192
OBJECT_BYTES = 1 << 20
FORMAT = 1
_FIELDS = {one.name for one in fields(Progress)} | {STORED}
_NAME = "the record of the stream's writer"


@dataclass(frozen=True)
class Held:
    """What is kept.

    Attributes:
        progress: how far the stream is.
        rows: bytes of the rows that were held back, as `packed` made them; empty: none were.
        stored: names of the objects that have them instead, without their shard, in their order.
    """

    progress: Progress
    rows: bytes = field(default=b"", repr=False)
    stored: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether rows were held back."""
        return bool(self.rows or self.stored)


def unpacked(data: bytes) -> pa.RecordBatch:
    """The rows of a result of `packed` that is not empty."""
    return pa.ipc.open_stream(data).read_all().combine_chunks().to_batches()[0]


def packed(rows: list[pa.RecordBatch]) -> bytes:
    """Rows of one schema as bytes; empty for no rows."""
    if not any(batch.num_rows for batch in rows):
        return b""
    table = pa.Table.from_batches(rows).combine_chunks()
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
    return packed(pa.Table.from_batches(map(unpacked, there)).combine_chunks().to_batches())


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


def with_held(content: str, held: Held) -> str:
    """The text of a record: what identifies the micro-batch, and what is kept."""
    by_topic: dict[str, list[list[int]]] = {}
    for (topic, partition), reached in held.progress.partitions.items():
        by_topic.setdefault(topic, []).append([partition, *reached])
    progress = asdict(replace(held.progress, partitions={})) | {"partitions": by_topic}
    told = json.dumps({"tidelake": FORMAT, **progress, STORED: held.stored}, separators=(",", ":"))
    return f"{content}{MARK}{told} {base64.b85encode(held.rows).decode()}"


def split(content: str | None) -> tuple[str, Held | None]:
    """The two parts of such a text; None if it holds only the first.

    Raises:
        FormatTooNew: a newer version has left something there.
        CorruptionError: it is not what `with_held` made.
    """
    text = content or ""
    at = text.find(MARK)
    if at < 0:
        return text, None
    told, _, rows = text[at + len(MARK) :].partition(" ")
    found = json.loads(told)
    number = found.pop("tidelake", 0)
    if number > FORMAT:
        raise FormatTooNew(_NAME, number, FORMAT)
    if number != FORMAT or found.keys() != _FIELDS:
        raise CorruptionError(_NAME, "it does not say how far the stream is")
    found["partitions"] = {
        TopicPartition(topic, partition): Reached(*reached)
        for topic, listed in found["partitions"].items()
        for partition, *reached in listed
    }
    del found[STORED]
    return text[:at], Held(Progress(**found), base64.b85decode(rows), stored_in(text))

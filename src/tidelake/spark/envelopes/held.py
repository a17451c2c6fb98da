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

from tidelake.errors import UsageError
from tidelake.spark.envelopes.places import Reached, TopicPartition
from tidelake.spark.envelopes.positions import NONE
from tidelake.spark.envelopes.timeline import Progress

# The record is read with each state of the collection: more goes into objects of their own.
BYTES_MAX = 1 << 20
# So many rows of a task are packed at once, and about so many bytes are one object.
ROWS_MAX = 8192
OBJECT_BYTES = 1 << 20
POSITION_MAX = 2**63 - 1
_MARK = " transactions "
_FIELDS = {one.name for one in fields(Progress)}


@dataclass(frozen=True)
class Held:
    """What is kept.

    Attributes:
        progress: how far the stream is.
        rows: bytes of the rows that were held back, as `packed` made them; empty: none were.
        stored: names of the objects that have them instead, in their order.
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
    progress = asdict(replace(held.progress, partitions={}))
    # Versions that know no partitions read what has none.
    del progress["partitions"]
    if held.progress.partitions:
        by_topic: dict[str, list[list[int]]] = {}
        for (topic, partition), reached in held.progress.partitions.items():
            by_topic.setdefault(topic, []).append([partition, *reached])
        progress["partitions"] = by_topic
    if held.progress.copied_at == NONE:
        del progress["copied_at"]
    if held.stored:
        progress["stored"] = held.stored
    told = json.dumps(progress, separators=(",", ":"))
    return f"{content}{_MARK}{told} {base64.b85encode(held.rows).decode()}"


def split(content: str | None) -> tuple[str, Held | None]:
    """The two parts of such a text; None if it holds only the first.

    Raises:
        UsageError: a newer version has left something there that this one does not know.
    """
    text = content or ""
    at = text.find(_MARK)
    if at < 0:
        return text, None
    told, _, rows = text[at + len(_MARK) :].partition(" ")
    found = json.loads(told)
    partitions = {
        TopicPartition(topic, partition): Reached(*reached)
        for topic, listed in found.pop("partitions", {}).items()
        for partition, *reached in listed
    }
    stored = tuple(found.pop("stored", ()))
    # Versions before this one took one topic with one partition.
    if topic := found.pop("topic", None):
        partitions = {TopicPartition(topic, 0): Reached(start=found["last"], end=POSITION_MAX)}
    if strange := sorted(found.keys() - _FIELDS):
        raise UsageError(
            f"the record of the stream's writer has {strange[0]!r}: a newer version of Tidelake wrote it, so "
            "go on with that version"
        )
    return text[:at], Held(Progress(**found, partitions=partitions), base64.b85decode(rows), stored)

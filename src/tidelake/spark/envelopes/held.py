"""What a stream of transactions keeps from one micro-batch to the next, as text in the record of its writer.

Owns that text: how far the stream is, and the rows of the micro-batch that were held back, as they came. It
is written by the compare-and-set that adds the other rows, so that a row is in the collection or held back,
and never both or neither, whenever a process dies.
"""

import base64
import json
from dataclasses import asdict, dataclass, field, fields, replace

import pyarrow as pa

from tidelake.errors import InvalidUpdates, UsageError
from tidelake.spark.envelopes.places import Reached, TopicPartition
from tidelake.spark.envelopes.positions import NONE
from tidelake.spark.envelopes.timeline import Progress

# The record is read with each state of the collection.
BYTES_MAX = 4 << 20
POSITION_MAX = 2**63 - 1
_MARK = " transactions "
_FIELDS = {one.name for one in fields(Progress)}


@dataclass(frozen=True)
class Held:
    """What is kept.

    Attributes:
        progress: how far the stream is.
        rows: bytes of the rows that were held back, as `packed` made them; empty: none were.
    """

    progress: Progress
    rows: bytes = field(default=b"", repr=False)

    def batch(self) -> pa.RecordBatch | None:
        """The rows that were held back; None if none were."""
        if not self.rows:
            return None
        table = pa.ipc.open_stream(self.rows).read_all().combine_chunks()
        return table.to_batches()[0]


def packed(rows: list[pa.RecordBatch]) -> bytes:
    """Rows of one schema as bytes; empty for no rows.

    Raises:
        InvalidUpdates: they are larger than `BYTES_MAX`.
    """
    if not any(batch.num_rows for batch in rows):
        return b""
    table = pa.Table.from_batches(rows).combine_chunks()
    stream = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(stream, table.schema, options=options) as writer:
        writer.write_table(table)
    data = bytes(stream.getvalue())
    if len(data) > BYTES_MAX:
        raise InvalidUpdates(
            f"{table.num_rows} events would have to be held back, {len(data)} bytes and at most {BYTES_MAX}: "
            "their transaction did not end in this micro-batch. Take larger micro-batches, so that what "
            "follows the transaction comes with it, or let the connector tell its end "
            "(provide.transaction.metadata=true). If they wait for a partition without messages, give a "
            "bound: idle='1m'"
        )
    return data


def merged(several: list[bytes]) -> bytes:
    """The rows of several results of `packed`, as one. Errors as `packed`."""
    there = [data for data in several if data]
    if len(there) < 2:
        return there[0] if there else b""
    tables = [pa.ipc.open_stream(data).read_all() for data in there]
    return packed(pa.concat_tables(tables).combine_chunks().to_batches())


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
    # Versions before this one took one topic with one partition.
    if topic := found.pop("topic", None):
        partitions = {TopicPartition(topic, 0): Reached(start=found["last"], end=POSITION_MAX)}
    if strange := sorted(found.keys() - _FIELDS):
        raise UsageError(
            f"the record of the stream's writer has {strange[0]!r}: a newer version of Tidelake wrote it, so "
            "go on with that version"
        )
    return text[:at], Held(Progress(**found, partitions=partitions), base64.b85decode(rows))

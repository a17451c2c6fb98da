"""Messages of Kafka that are no JSON texts of Debezium's events, made such.

Owns how the messages get to the tasks; `tidelake.cdc.wire` owns what they mean.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from tidelake.cdc.wire.decoder import Decoder, Tombstones
from tidelake.errors import InvalidUpdates
from tidelake.spark.tasks import one_thread


def decode_events(
    frame: DataFrame,
    schemas: str | os.PathLike[str] | None = None,
    *,
    flattened: bool = False,
    tombstones: Tombstones = "refuse",
    rename: Mapping[str, str] | None = None,
) -> DataFrame:
    """Make the messages of a DataFrame, streaming or not, JSON texts that the envelope `debezium` reads.

    All that is said of Debezium's events then holds: times of transactions, many tables, their columns and
    keys. A message that cannot be decoded becomes a text that says why, and is refused or set aside as a line
    that cannot be read.

    Args:
        frame: `value` has the messages, and `key` their keys, if there is one; other columns stay.
        schemas: where the schemas of messages of Avro or Protobuf are, in the wire format of schema
            registries: the address of a registry, such as `"http://registry:8081"`, or a directory that all
            workers reach, with the schema of the id 7 in `7.avsc` or, made by
            `protoc --include_imports -o 7.desc`, in `7.desc`. Needs the extra `avro` or `protobuf`. None:
            messages are JSON texts. User and password of the registry stand in `~/.netrc` of each machine,
            as for curl.
        flattened: the connector's transform `ExtractNewRecordState` has flattened the events.
        tombstones: what a message without a value is then: `"refuse"` is an error, `"ignore"` says that each
            follows an event on its deletion, as with `delete.tombstone.handling.mode=rewrite-with-tombstone`.

        rename: other names of columns, by name, such as `{"_time": "time"}`: a collection has columns `_time`
            and `_diff` of its own.

    Raises:
        InvalidUpdates: there is no column `value` of texts or bytes.
        UsageError: there is nothing to decode; in a task: a schema is missing, is none, or is one of Protobuf
            that cannot be exact, such as one that writes a null like 0.
    """
    kinds = {field.name: field.dataType for field in frame.schema}
    if not isinstance(kinds.get("value"), t.StringType | t.BinaryType):
        raise InvalidUpdates("messages are a column 'value' of texts or bytes: there is none")
    decoder = Decoder(None if schemas is None else os.fspath(schemas), flattened, tombstones, rename or {})
    made = t.StructType(
        [
            t.StructField(field.name, t.BinaryType(), True) if field.name in ("value", "key") else field
            for field in frame.schema
        ]
    )
    return frame.mapInArrow(_Decode(decoder), made)


@dataclass(frozen=True)
class _Decode:
    decoder: Decoder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one_thread()
        for batch in batches:
            yield self.decoder.batch(batch)

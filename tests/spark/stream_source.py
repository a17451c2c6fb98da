"""A folder of JSON lines as a stream, and the two ways to write it to a collection: for tests of streams."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flaky
import pyarrow as pa
from pyspark import cloudpickle

from tidelake.spark.source.format import TidelakeSource
from tidelake.spark.source.sink import StreamWriter

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
# What envelopes are given, to the helper and as options of the format.
OPTIONS: dict[str, dict[str, Any]] = {"updates": {}, "upsert": {"order_by": "n"}}
FORMAT_OPTIONS: dict[str, dict[str, str]] = {"updates": {}, "upsert": {"orderBy": "n"}}


class FlakySource(TidelakeSource):
    """The format, with tasks that fail as the environment says."""

    @classmethod
    def name(cls) -> str:
        return "flaky"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        writer = super().streamWriter(schema, overwrite)
        writer.upload.envelope = flaky.Flaky.of_environment(writer.upload.envelope)
        return writer


def register_flaky(spark: Any) -> str:
    """Make the failing format known; its name."""
    for module in (sys.modules[__name__], flaky):
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(FlakySource)
    return FlakySource.name()


def put(folder: Path, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """File `number`, complete when it appears, later than those before."""
    path = folder / f"{number:05}.json"
    hidden = path.with_name("." + path.name)
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(hidden, (1_000_000_000 + number,) * 2)
    hidden.rename(path)


def lines(spark: Any, folder: Path, schema: str = "id bigint, v string", files: int = 1) -> Any:
    """The rows of the files, so many files in a micro-batch."""
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files)
    return reader.option("maxFileAge", "36500d").json(str(folder))


def start(
    frame: Any,
    collection: Any,
    checkpoint: Path,
    sink: Any,
    form: str = "tidelake",
    mode: str = "append",
    **options: Any,
) -> Any:
    """Start writing what there is: by `sink` in `foreachBatch`, or, without one, through the format."""
    stream = frame.writeStream.option("checkpointLocation", str(checkpoint)).outputMode(mode)
    stream = stream.trigger(availableNow=True)
    if sink is not None:
        return stream.foreachBatch(sink).start()
    spec = collection.distributed.uploader().spec
    return stream.format(form).options(**options).start(f"{spec.url}/{collection.name}")

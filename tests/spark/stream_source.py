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
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

import tidelake
from tidelake.spark.source.sink import BatchWriter, StreamWriter, chosen

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
COLUMNS = {"append": "id bigint, v string", "updates": "id bigint, v string, _time bigint, _diff bigint"}
# Of an envelope, when the tests use it by name.
OPTIONS: dict[str, dict[str, Any]] = {"append": {}, "updates": {}}


class TestFormat(DataSource):
    """Only the writers."""

    __test__ = False

    @classmethod
    def name(cls) -> str:
        return "sinks"

    def schema(self) -> str:
        return "id bigint, v string"

    def _collection(self) -> tidelake.Collection:
        url, _, name = self.options["path"].rpartition("/")
        return tidelake.open(url, create=False).collection(name)

    def _envelope(self, schema: StructType, overwrite: bool) -> Any:
        taken = {name: self.options.get(name) for name in ("time", "late")}
        envelope: Any = chosen(schema, overwrite, self.options.get("envelope"), taken)
        if "failRate" in self.options:
            envelope = flaky.Flaky(envelope, float(self.options["failRate"]), self.options["marks"])
        return envelope

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        envelope = self._envelope(schema, overwrite)
        return BatchWriter(self._collection(), schema, envelope, self.options.get("token"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        take_over = self.options.get("takeOver") == "true"
        envelope = self._envelope(schema, overwrite)
        return StreamWriter(self._collection(), schema, envelope, self.options.get("writer"), take_over)


def register(spark: Any) -> str:
    """Make the format known; its name."""
    for module in (sys.modules[__name__], flaky):
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(TestFormat)
    return TestFormat.name()


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


def start(frame: Any, collection: Any, checkpoint: Path, sink: Any, **options: Any) -> Any:
    """Start writing what there is: by `sink` in `foreachBatch`, or, without one, through the format."""
    stream = frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    if sink is not None:
        return stream.foreachBatch(sink).start()
    form = register(frame.sparkSession)
    spec = collection.uploader().spec
    return stream.format(form).options(**options).start(f"{spec.url}/{collection.name}")

"""Changes of AWS DMS: messages of its targets Kinesis and Kafka, and the files of its target S3.

Owns the meaning of a file's columns: `Op` (I, U, D) and those of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from tidelake.errors import UsageError
from tidelake.feeds.eventfiles import ADDED, GONE, OP
from tidelake.feeds.reading import ArrowMap
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.debezium import EventFrames
from tidelake.spark.envelopes.opcolumn import KindUpsert, Words

_FILES = Words(OP, added=ADDED, removed=GONE)


@dataclass(frozen=True)
class DmsFrames(EventFrames):
    """Each row is a message of AWS DMS, or a row of its files with the column `Op`."""

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        if OP in frame.names:
            if self.feed.old_rows == "events":
                raise UsageError("files of AWS DMS have no old rows: leave old_rows out, or use 'stored'")
            self._files.check(frame, collection)
            return
        super().check(frame, collection)

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:
        """As `Envelope`."""
        return frame if OP in frame.columns else super().prepare(frame, collection)

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """Bring the events of each key into one task."""
        if OP in prepared.columns:
            return self._files.spread(prepared, collection)
        return super().spread(prepared, collection)

    def alone(self, prepared: DataFrame, collection: Collection) -> DataFrame | None:
        """As `Emptying`; rows of files empty nothing."""
        return None if OP in prepared.columns else super().alone(prepared, collection)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        if OP in columns:
            return self._files.work(collection, columns, lower)
        return super().work(collection, columns, lower)

    @property
    def _files(self) -> KindUpsert:
        return KindUpsert(_FILES, (), self.feed.order_by, self.feed.time, self.feed.late)

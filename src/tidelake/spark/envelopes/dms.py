"""Changes of AWS DMS: messages of its targets Kinesis and Kafka, and the files of its target S3.

Owns the meaning of a file's columns: `Op` (I, U, D) and those of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from tidelake.errors import InvalidUpdates, UsageError
from tidelake.feeds.reading import ArrowMap
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.debezium import EventFrames
from tidelake.spark.envelopes.opcolumn import KindUpsert, Words

_OP = "Op"
_FILES = Words(_OP, added=("I", "U"), removed=("D",))


@dataclass(frozen=True)
class DmsFrames(EventFrames):
    """Each row is a message of AWS DMS, or a row of its files with the column `Op`."""

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        if _OP in frame.names:
            if self.feed.old_rows == "events":
                raise UsageError("files of AWS DMS have no old rows: leave old_rows out, or use 'stored'")
            self._files.check(frame, collection)
            return
        if "value" not in frame.names:
            raise InvalidUpdates(
                "changes of AWS DMS are a column 'value' of JSON texts, or rows with a column 'Op': there is "
                f"{', '.join(map(repr, frame.names)) or 'no column'}; for a full load without 'Op' set "
                "IncludeOpForFullLoad, or use the envelope 'upsert'"
            )
        super().check(frame, collection)

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:
        """As `Envelope`."""
        return frame if _OP in frame.columns else super().prepare(frame, collection)

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """Bring the events of each key into one task."""
        if _OP in prepared.columns:
            return self._files.spread(prepared, collection)
        return super().spread(prepared, collection)

    def alone(self, prepared: DataFrame, collection: Collection) -> DataFrame | None:
        """As `Emptying`; rows of files empty nothing."""
        return None if _OP in prepared.columns else super().alone(prepared, collection)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        if _OP in columns:
            return self._files.work(collection, columns, lower)
        return super().work(collection, columns, lower)

    @property
    def _files(self) -> KindUpsert:
        return KindUpsert(_FILES, (), self.feed.order_by, self.feed.time, self.feed.late)

"""Changes of AWS DMS: messages of its targets Kinesis and Kafka, and the files of its target S3.

Owns the options, and the meaning of a file's columns: `Op` (I, U, D) and those of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from tidelake.cdc.dialects.dialect import Dialect
from tidelake.cdc.dialects.dms import DmsDialect
from tidelake.cdc.parse.parser import OldRows
from tidelake.errors import InvalidUpdates, UsageError
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.dialectmessages import ToolMessages
from tidelake.spark.envelopes.opcolumn import KindUpsert, Words
from tidelake.spark.tasks import ArrowMap

_OP = "Op"
_FILES = Words(_OP, added=("I", "U"), removed=("D",))


@dataclass(frozen=True)
class Dms(ToolMessages):
    """Each row is a message of AWS DMS, or a row of its files with the column `Op`.

    Files are read as by `Upsert`: each row is the new row of its key or, with `Op` `D`, removes it.

    Attributes:
        time: for messages the path of the time; default: `metadata.commit-timestamp` for clocks (needs
            `IncludeTransactionDetails`); for counters it must be given. A row of the full load has no such
            time, and gets the least open one. For files: the column with the time of each row; default: the
            time of the commit.
        order_by: of the events of one key and time, the one with the greatest value wins; for files a column.
        missing: what a column is that a message leaves out: `"refuse"` is an error, `"null"` means null. DMS
            leaves nulls out unless the endpoint has `IncludeNullAndEmpty`.
        before_image: the field of the before image, as the task's `BeforeImageSettings` name it.
    """

    old_rows: OldRows = "stored"
    before_image: str = "before-image"

    dialect: ClassVar[type[Dialect]] = DmsDialect

    def check(self, frame: t.StructType, collection: Collection) -> None:
        """As `Envelope`."""
        if _OP in frame.names:
            if self.old_rows == "events":
                raise UsageError("files of AWS DMS have no old rows: leave old_rows out, or use 'stored'")
            self._files.check(frame, collection)
            return
        if "value" not in frame.names:
            raise InvalidUpdates(
                "changes of AWS DMS are a column 'value' of JSON texts, or rows with a column 'Op': there is "
                f"{', '.join(map(repr, frame.names)) or 'no column'}; for a full load without 'Op' set "
                "IncludeOpForFullLoad, or use the envelope 'upsert'"
            )
        binary = [one.name for one in collection.schema if pa.types.is_binary(one.type)]
        if binary:
            raise UsageError(
                f"column {binary[0]!r} is binary, and AWS DMS writes bytes as hexadecimal text: use a column "
                "of type string"
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

    def made(self, **given: Any) -> Dialect:
        """As `ToolMessages`."""
        return super().made(image=self.before_image, **given)

    @property
    def _files(self) -> KindUpsert:
        return KindUpsert(_FILES, (), self.order_by, self.time, self.late)

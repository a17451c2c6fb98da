"""What the rows of a DataFrame mean, and how they become updates.

Owns the contract between the commit loop (`tidelake.spark.writing.commit`) and those who know what rows
mean. An envelope is a frozen value that is small and can be pickled; it has no handle inside. It decides
in the driver whether the columns fit, how rows are to be spread over the tasks, and what a task does with
them; of few rows the driver does that itself. It must not know when, how often or under which number its
updates are committed.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidelake.lake.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.tasks import ArrowMap
from tidelake.spark.uploads import Answer


@runtime_checkable
class Envelope(Protocol):
    """What rows mean."""

    @property
    def rebases(self) -> bool:
        """Whether what was uploaded is right at a later upper too, as long as its times are still open.

        False for what depends on the collection's contents: that is uploaded again. Times that are closed
        meanwhile do not matter if the tasks say that they may advance (`uploads.Answer.advances`).
        """

    def check(self, frame: StructType, collection: Collection) -> None:
        """Check the columns in the driver, before anything runs.

        Raises:
            InvalidUpdates: they do not fit; names all that is wrong.
            UsageError: the envelope itself cannot be used with this collection.
        """

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:
        """The columns that are worked on, of rows wherever they are."""

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """A prepared frame as several tasks are to get it: shuffled iff rows must meet, such as equal keys.

        Not called where one task gets all rows.
        """

    def looks_up_bytes(self, collection: Collection) -> int:
        """How much of the collection, as it is stored, the work may read at most."""

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """What a task does: batches of the prepared frame in, rows of `uploads.answer_schema()` out.

        Args:
            collection: to upload for; only bytes of it may go to the worker.
            columns: names of the prepared frame's columns. In the batches they come in this order, under
                other names. Rows come as `spread` says, or all of them in one batch, in any order.
            lower: the upper that the updates are to be appended at.
        """


@runtime_checkable
class Unpacking(Protocol):
    """An envelope whose work looks into parts that a process has unpacked from one write to the next."""

    def catch_up(self, collection: Collection) -> None:
        """Unpack what the work will need, if this process has most of it, so that the work need not.

        Called in another thread while Spark brings the rows.
        """


@runtime_checkable
class Compared(Protocol):
    """An envelope whose rows are stored first, whatever the upper is, and compared with what is there."""

    def difference(
        self, collection: Collection, stored: Answer, lower: Frontier, spark: SparkSession | None
    ) -> Answer:
        """What is to be appended at an upper in the place of what the tasks uploaded.

        Args:
            collection: to compare with.
            stored: what the tasks did.
            lower: the upper.
            spark: whose workers do it; None: this process.
        """

    def discard(self, collection: Collection, stored: Answer) -> None:
        """Delete what the tasks uploaded, which is appended nowhere."""

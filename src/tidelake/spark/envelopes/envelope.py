"""What the rows of a DataFrame mean, and how they become updates.

Owns the contract between the commit loop (`tidelake.feeds.loop`) and the envelopes, which know what
rows mean. An envelope is a small frozen value that can be pickled; it has no handle inside. In the driver it
decides whether the columns fit, how rows are spread over the tasks, and what a task does with them; if there
are few rows, the driver does the work of the task. An envelope must not know when, how often or under which
number its updates are committed.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidelake.feeds.answers import Answer
from tidelake.feeds.commit import OneTime
from tidelake.feeds.reading import ArrowMap
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier


@runtime_checkable
class Envelope(Protocol):
    """What rows mean."""

    @property
    def rebases(self) -> bool:
        """Whether uploads stay right at a later upper, as long as their times are still open.

        False for uploads that depend on the collection's contents: these are made again. Times that are
        closed meanwhile do not matter if the tasks allow them to advance (`uploads.Answer.advances`).
        """

    def check(self, frame: StructType, collection: Collection) -> None:
        """Check the columns in the driver, before anything runs."""

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:
        """Select the columns that the work needs. Moves no rows."""

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """Distribute a prepared frame over tasks: shuffled iff rows, such as equal keys, must be together.

        Not called if one task gets all rows.
        """

    def looks_up_bytes(self, collection: Collection) -> int:
        """The most stored bytes of the collection that the work may read."""

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """The work of a task: batches of the prepared frame in, rows of `uploads.answer_schema()` out."""


class RowByRow:
    """What is the same for all envelopes whose rows are updates, each on its own."""

    @property
    def rebases(self) -> bool:
        """True: rows do not depend on the contents of the collection."""
        return True

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        """As `Envelope`: the tasks take the columns as they are."""
        return frame

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        """No row needs to meet another one."""
        return prepared

    def looks_up_bytes(self, collection: Collection) -> int:  # noqa: ARG002
        """Nothing."""
        return 0


@runtime_checkable
class AtOneTime(Protocol):
    """Work that may give all rows one time."""

    @property
    def all_at(self) -> OneTime | None:
        """The time; None: the rows have times of their own."""


@runtime_checkable
class Unpacking(Protocol):
    """An envelope whose work reads parts that a process keeps decoded from one write to the next."""

    def catch_up(self, collection: Collection) -> None:
        """Decode the new parts in advance, if this process has most of the parts already.

        Called in another thread while Spark fetches the rows.
        """


@runtime_checkable
class Emptying(Protocol):
    """An envelope whose rows may empty the collection: then one task must get all of them."""

    def alone(self, prepared: DataFrame, collection: Collection) -> DataFrame | None:
        """Bring all rows of a prepared frame into one task, what empties the collection first.

        None: the rows cannot empty the collection.
        """


@runtime_checkable
class Compared(Protocol):
    """An envelope whose rows are stored first, whatever the upper is, then compared with the contents."""

    def difference(
        self, collection: Collection, stored: Answer, lower: Frontier, spark: SparkSession | None
    ) -> Answer:
        """Compute the difference to append at an upper, instead of what the tasks uploaded."""

    def discard(self, collection: Collection, stored: Answer) -> None:
        """Delete what the tasks uploaded; it is never appended itself."""

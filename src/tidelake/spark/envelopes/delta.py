"""The change data feed of a Delta table, as Spark reads it with the option `readChangeFeed`.

Owns its words and columns: the table's, `_change_type`, `_commit_version` and `_commit_timestamp`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from tidelake.errors import UsageError
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.rows import Late, check_late
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.envelope import RowByRow
from tidelake.spark.envelopes.opcolumn import KindUpdates, Words

_VERSION, _TIMESTAMP = "_commit_version", "_commit_timestamp"
_WORDS = Words(
    "_change_type",
    added=("insert", "update_postimage"),
    removed=("update_preimage", "delete"),
    besides=(_VERSION, _TIMESTAMP),
)


@dataclass(frozen=True)
class DeltaFeed(RowByRow):
    """Each row is one of a Delta table's change data feed.

    Attributes:
        time: the column with the time of each row. Default: `_commit_version` for counters,
            `_commit_timestamp` for clocks. A commit is one time, so that no time shows half of it.
        late: what to do with rows whose time is closed: `"refuse"` is an error, `"advance"` gives them the
            least time that is open at the commit.
    """

    time: str | None = None
    late: Late = "refuse"

    def __post_init__(self) -> None:
        check_late(self.late)

    def _rows(self, collection: Collection) -> KindUpdates:
        if self.time is None and collection.domain.unit == "date":
            raise UsageError(
                f"the time of each row is a moment ({_TIMESTAMP}), and the times of collection "
                f"{collection.name!r} are days: give time=COLUMN with dates, or take a "
                "collection of time 'ms'"
            )
        default = _VERSION if collection.domain.unit == "counter" else _TIMESTAMP
        return KindUpdates(_WORDS, self.time or default, self.late)

    def check(self, frame: StructType, collection: Collection) -> None:
        """As `Envelope`."""
        self._rows(collection).check(frame, collection)

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        return self._rows(collection).work(collection, columns, lower)

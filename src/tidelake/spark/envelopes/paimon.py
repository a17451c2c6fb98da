"""The changelog of a Paimon table, as Spark reads its system table `audit_log`.

Owns its words and columns: the table's, `rowkind` and, if it is asked for, `_SEQUENCE_NUMBER`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidelake.cdc.parse.parser import OldRows
from tidelake.errors import UsageError
from tidelake.feeds.reading import ArrowMap
from tidelake.feeds.rows import Late, check_late
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.envelopes.opcolumn import KindUpdates, KindUpsert, Words

_OLD = "-U"
_BESIDES = ("_SEQUENCE_NUMBER",)
_WORDS = Words("rowkind", added=("+I", "+U"), removed=(_OLD, "-D"), besides=_BESIDES)
_KEYED = Words("rowkind", added=("+I", "+U"), removed=("-D",), besides=_BESIDES)


@dataclass(frozen=True)
class Paimon:
    """Each row is one of a Paimon table's changelog: `rowkind` is `+I`, `-U`, `+U` or `-D`.

    Attributes:
        time: as for `Updates`: the column with the time of each row; default: the time of the commit.
        late: as for `Updates`.
        old_rows: `"events"`: the changelog is complete (`changelog-producer` is `lookup` or
            `full-compaction`), so that each `+U` comes with its `-U`. `"stored"`: the old row is looked up in
            the collection; `-U` is not needed, and ignored.
        order_by: with `"stored"`: of the rows of one key and time, the one with the greatest value in this
            column wins, such as `_SEQUENCE_NUMBER`.
    """

    time: str | None = None
    late: Late = "refuse"
    old_rows: OldRows = "events"
    order_by: str | None = None

    def __post_init__(self) -> None:
        check_late(self.late)
        if self.old_rows not in get_args(OldRows):
            raise UsageError(f"old_rows={self.old_rows!r} is unknown: use 'events' or 'stored'")
        if self.order_by is not None and self.old_rows != "stored":
            raise UsageError(
                f"order_by={self.order_by!r} is for old_rows='stored': with whole old rows in the changelog "
                "their order does not matter"
            )

    @property
    def _rows(self) -> KindUpdates | KindUpsert:
        if self.old_rows == "events":
            return KindUpdates(_WORDS, self.time, self.late)
        return KindUpsert(_KEYED, (_OLD,), self.order_by, self.time, self.late)

    @property
    def rebases(self) -> bool:
        """False if old rows are looked up: they may differ at a later upper."""
        return self.old_rows == "events"

    def check(self, frame: StructType, collection: Collection) -> None:
        """As `Envelope`."""
        self._rows.check(frame, collection)

    def prepare(self, frame: DataFrame, collection: Collection) -> DataFrame:  # noqa: ARG002
        """As `Envelope`: the tasks take the columns as they are."""
        return frame

    def spread(self, prepared: DataFrame, collection: Collection) -> DataFrame:
        """With `old_rows="stored"`, bring the rows of each key into one task."""
        rows = self._rows
        return rows.spread(prepared, collection) if isinstance(rows, KindUpsert) else prepared

    def looks_up_bytes(self, collection: Collection) -> int:
        """As for an upsert, or 0."""
        rows = self._rows
        return rows.looks_up_bytes(collection) if isinstance(rows, KindUpsert) else 0

    def work(self, collection: Collection, columns: Sequence[str], lower: Frontier) -> ArrowMap:
        """As `Envelope`."""
        return self._rows.work(collection, columns, lower)

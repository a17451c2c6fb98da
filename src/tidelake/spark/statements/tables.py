"""The tables of a statement as DataFrames, and the statement, or pieces of it, carried out by Spark.

Owns how DataFrames get into a text: through a mark in the place of each name. The rest of a text stays as
it was written.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tidelake.data.sql.changes import TextSpan
from tidelake.data.sql.statement import Statement, TableReference, quoted
from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.handle import times_of
from tidelake.lake.api.lake import Lake
from tidelake.lake.api.tablereads import collection_name, table_reads
from tidelake.lake.arguments.spans import DurationLike
from tidelake.model.instants import TimeLike
from tidelake.model.time import Time, parts
from tidelake.spark.columns import check_case
from tidelake.spark.reading.newest import newest
from tidelake.spark.reading.tables import table

# Of Unicode's private use: no text of SQL needs them.
_BEGIN, _END = "\ue000", "\ue001"
Args = Mapping[str, Any] | Sequence[Any] | None


def mark(name: str) -> str:
    """What stands in a text for the DataFrame of this name."""
    return f"{_BEGIN}{name}{_END}"


@dataclass(frozen=True)
class SqlTables:
    """Where the tables of a statement are, and how they are read; see `tidelake.spark.sql`."""

    spark: SparkSession
    lake: Lake
    as_of: TimeLike | None
    args: Args
    timeout_s: float | None
    hold_for: DurationLike | None
    author: str = ""
    message: str = ""
    time: TimeLike | None = None

    def at(self, collection: Collection) -> int | None:
        """The time of what the statement writes, if the caller gave one."""
        return None if self.time is None else parts(times_of(collection).at(self.time, "time"))[0]

    def frames(
        self, parsed: Statement, apart: Iterable[int] = (), own: tuple[Collection, Time] | None = None
    ) -> dict[str, DataFrame]:
        """The collections that a statement names, as DataFrames, by `name_of` their positions."""
        hidden = {i for i, one in enumerate(parsed.tables) if self._is_view(one)}
        skipped = {*hidden, *apart}
        reads = table_reads(self.lake, parsed, self.as_of, self.timeout_s, apart=skipped, own=own)
        frames = {}
        for i, read in reads.items():
            frame, one = table(self.spark, read, self.hold_for), parsed.tables[i]
            ends = one.version is not None or (one.changes is not None and one.changes[1] is not None)
            # What the statement itself writes is checked by the commit.
            ends = ends or read.options.staged
            is_newest = not ends and (self.as_of is None or one.changes is not None)
            frames[name_of(i)] = newest(frame, read.collection, read.asked) if is_newest else frame
        return frames

    def target(self, parsed: Statement, index: int) -> Collection:
        """The collection that a statement changes."""
        one = parsed.tables[index]
        if self._is_view(one):
            raise UsageError(f"{one.name!r} is a temporary view here: drop it, or use spark.sql")
        return self.lake.collection(collection_name(one, self.lake.list(), "spark") or one.name)

    def means(self, one: TableReference, collection: Collection) -> bool:
        """Whether a table is this collection."""
        return not self._is_view(one) and collection_name(one, self.lake.list(), "spark") == collection.name

    def run(self, text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
        """Carry a text out in which marks stand for DataFrames."""
        used = {name: frame for name, frame in frames.items() if mark(name) in text}
        args: Any = dict(self.args) if isinstance(self.args, Mapping) else self.args and list(self.args)
        if used:
            text = text.replace("{", "{{").replace("}", "}}")
            for name in used:
                text = text.replace(mark(name), f"{{{name}}}")
        try:
            return self.spark.sql(text, args=args, **used)
        except AnalysisException as error:
            if "AMBIGUOUS_REFERENCE" in str(error):
                for frame in used.values():
                    check_case(self.spark, frame.columns)
            raise

    def _is_view(self, one: TableReference) -> bool:
        """Whether a name is that of a temporary view, which hides a collection as it hides other tables."""
        if one.changes is not None or one.version is not None or len(one.node.parts) > 1:
            return False
        try:
            return bool(self.spark.catalog.getTable(quoted(one.name, "spark")).isTemporary)
        except AnalysisException:
            return False


def name_of(index: int) -> str:
    """The name of the DataFrame of a table of a statement."""
    return f"table_{index}"


def piece(parsed: Statement, frames: Mapping[str, DataFrame], span: TextSpan | None = None) -> str:
    """The text of a statement, or a piece of it, with marks for DataFrames."""
    if _BEGIN in parsed.text or _END in parsed.text:
        raise UsageError("the statement has characters of private use (U+E000, U+E001): use parameters")
    names = {i: mark(name_of(i)) for i in range(len(parsed.tables)) if name_of(i) in frames}
    return parsed.replaced(names) if span is None else parsed.replaced(names, span.start, span.end)

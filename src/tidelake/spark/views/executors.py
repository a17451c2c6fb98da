"""Spark as the engine of a refresh that reads much: executors read, compute and write the rows.

Owns frames: those that executors read of collections, and those that they keep of each stage until the span
is written. The texts are those of `SparkEngine`.

INVARIANT: no row gets into the driver but keys, which Spark broadcasts as long as they are few.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from tidelake.data.ingest.convert import convert
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import update_schema
from tidelake.errors import InvalidUpdates
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.embedded import Scan
from tidelake.lake.api.handle import shard_of
from tidelake.lake.groups.transactions import Transaction
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Updates
from tidelake.model.schema import DIFF, Schema
from tidelake.model.time import TIME_MAX, TimeDomain
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.columns import quoted as quoted_name
from tidelake.spark.envelopes import updates as envelopes
from tidelake.spark.reading.frames import snapshot, updates
from tidelake.spark.reading.holds import released_afterwards
from tidelake.spark.tasks import described
from tidelake.spark.versions import spark_type, to_arrow
from tidelake.spark.views.analyzer import reason
from tidelake.spark.views.dialect import rendered
from tidelake.spark.views.engine import REPLANS, WIDTH, Settings, SparkEngine, arrow_of, shown, typed
from tidelake.spark.writing.commit import write
from tidelake.spark.writing.running import checked_rows
from tidelake.views.engine import KeyRows, Named, Output, StoredScan
from tidelake.views.plan import Columns, quoted
from tidelake.views.reach import Need, distinct

BROADCAST_ROWS_MAX = 1_000_000
"""So many keys go to all executors; more meet the state by a shuffle."""
PLANNED_ONCE_MAX = 10_000_000
"""Of more rows Spark plans again amid a job: it splits what is skewed, and takes a job for each shuffle."""
_TASK_ROWS = 100_000
FEW_ROWS = 10_000
"""So many rows the driver may write, if they are small."""
_TIME = "_time"
_COUNT_MAX = 2**63 - 1
_TOO_OFTEN = "a row is there more often than can be stored"


@dataclass(frozen=True)
class FrameKeys:
    """KeyRows in executors; see `KeyRows`."""

    frame: DataFrame
    num_rows: int

    @property
    def column_names(self) -> list[str]:
        """See `KeyRows`."""
        return self.frame.columns

    def select(self, columns: list[str]) -> "FrameKeys":
        """See `KeyRows`."""
        return FrameKeys(self.frame.select(*map(quoted_name, columns)), self.num_rows)

    def rename_columns(self, names: list[str]) -> "FrameKeys":
        """See `KeyRows`."""
        return FrameKeys(self.frame.toDF(*names), self.num_rows)


@dataclass(frozen=True)
class FrameOutput:
    """Rows in executors, which write them; see `Output`."""

    frame: DataFrame
    num_rows: int

    @property
    def table(self) -> pa.Table:
        """See `Output`."""
        with _told():
            return to_arrow(self.frame)

    def called(self, names: Sequence[str]) -> "FrameOutput":
        """See `Output`."""
        return FrameOutput(self.frame.toDF(*names), self.num_rows)

    def without(self, name: str) -> "FrameOutput":
        """See `Output`."""
        return FrameOutput(self.frame.drop(quoted_name(name)), self.num_rows)

    def having(self, name: str, value: int, type_: pa.DataType) -> "FrameOutput":
        """See `Output`."""
        column = f.lit(value).cast(spark_type(type_))
        return FrameOutput(self.frame.withColumn(name, column), self.num_rows)

    def within(self, name: str, first: int, last: int) -> "FrameOutput":
        """See `Output`."""
        return FrameOutput(self.frame.where(f.col(quoted_name(name)).between(first, last)), self.num_rows)

    def normalized(self, of: Collection) -> "FrameOutput":
        """See `Output`."""
        work = Normalized(tuple(self.frame.columns), shard_of(of).known().schema, of.domain)
        numbered = self.frame.toDF(*(f"c{n}" for n in range(len(work.names))))
        shown = frame_schema(work.shown)
        renamed = StructType([StructField(f"c{n}", one.dataType) for n, one in enumerate(shown)])
        return FrameOutput(numbered.mapInArrow(work, renamed).toDF(*work.shown.names), self.num_rows)

    def append_to(self, of: Collection, lower: Frontier, upper: Frontier) -> None:
        """See `Output`."""
        by_tasks = self.num_rows > FEW_ROWS
        with _told():
            write(of, self.frame, envelopes.Updates(), lower=lower, upper=upper, by_tasks=by_tasks)

    def write_in(self, transaction: Transaction, of: Collection, lower: Frontier, upper: Frontier) -> None:
        """See `Output`."""
        envelope, by_tasks = envelopes.Updates(), self.num_rows > FEW_ROWS
        with _told(), described(self.frame.sparkSession, f"tidelake: write to {of.name}"):
            rows = checked_rows(self.frame, envelope, of, by_tasks=by_tasks)
            uploads = rows.answer(envelope.work(of, rows.names, lower)).uploads
        if uploads:
            transaction.write(of.name, [*uploads], lower=lower, upper=upper)


@dataclass(frozen=True)
class Normalized:
    """In a worker: updates as a read of their collection shows them.

    Attributes:
        names: of the columns, in order.
        schema: of the collection.
        domain: of its times.
    """

    names: tuple[str, ...]
    schema: Schema
    domain: TimeDomain

    @property
    def shown(self) -> pa.Schema:
        """The columns that it makes."""
        return update_schema(self.schema, self.domain)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `ArrowMap`."""
        given = pa.schema([self.shown.field(name) for name in self.names])
        spark = frame_arrow(self.shown)
        called = [f"c{n}" for n in range(len(spark))]
        for batch in batches:
            rows = convert(batch.rename_columns(self.names), given)
            for one in normalize(rows, self.schema, self.domain).to_batches():
                yield convert(one, spark).rename_columns(called)


@contextmanager
def _told() -> Iterator[None]:
    """Tell what only shows as rows are written as what no collection keeps."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise InvalidUpdates(reason(error)) from error


class SparkExecutors(SparkEngine):
    """Texts over frames that executors have; see `Engine`."""

    place, holds_rows = "executors", False

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        super().__init__(spark, settings)
        # SUBTLE: a union over a local checkpoint fails in the optimizer if that knows constraints of other
        # columns than the checkpoint has.
        self._session.conf.set("spark.sql.constraintPropagation.enabled", "false")
        self._counts: dict[str, int] = {}
        self._moved = 0
        self._holds: ExitStack | None = None

    def fill(self, table: str, columns: Columns, query: str, most: int | None = None) -> int:
        """See `Engine`. A job, unless rows need not be counted."""
        frame = self._keep_frame(self._session.sql(rendered(typed(columns, query))))
        return self._name(table, frame, self._counted(frame) if most is None else most)

    def take(self, table: str, columns: Columns, scan: Scan, time: int | None) -> int:
        """See `Engine`. A job for changes; of contents, which may be large, it tells what is stored."""
        if not isinstance(scan, StoredScan):
            raise AssertionError("executors look up by keys that they have, so nothing was looked up before")
        if self._holds is None:
            self._holds = ExitStack()
            self._holds.enter_context(released_afterwards())
        rows = reduce(DataFrame.unionAll, [self._read(scan, one) for one in scan.asked])
        if isinstance(scan.keys, FrameKeys):
            rows = _some(rows, scan.keys)
        given = [*map(quoted_name, scan.names), _TIME if time is None else f"{time}L", DIFF]
        shown = [
            f"CAST({old} AS {new.type}) AS {quoted(new.name)}"
            for old, new in zip(given, columns, strict=True)
        ]
        rows = rows.selectExpr(*map(rendered, shown))
        if not any(isinstance(one, AsOf) for one in scan.asked):
            rows = self._keep_frame(rows)
            return self._name(table, rows, self._counted(rows))
        # Not 0, as decisions of a group may not be in it.
        most = max(1, shard_of(scan.of).known().spine.totals.rows)
        most += sum(one.num_rows for one in scan.asked if not isinstance(one, AsOf | Updates))
        if scan.keys is not None:
            return self._name(table, self._keep_frame(rows), most)
        self._moved = max(self._moved, most)
        return self._name(table, rows, most)

    def read(self, table: str, columns: Named, timed: Named, order: str | None) -> FrameOutput:
        """See `Engine`. No job."""
        del order
        *shown, (old, new, type_) = (*columns, *timed)
        told = [f"CAST({quoted(one)} AS {kind}) AS {quoted(name)}" for one, name, kind in shown]
        checked = (
            f"CASE WHEN abs({quoted(old)}) <= {_COUNT_MAX} THEN {quoted(old)} ELSE error('{_TOO_OFTEN}') END"
        )
        told.append(f"CAST({checked} AS {type_}) AS {quoted(new)}")
        frame = self._session.sql(rendered(f"SELECT {', '.join(told)} FROM {table}"))
        return FrameOutput(frame, self._counts.get(table, 0))

    def values(self, table: str, need: Need) -> KeyRows:
        """See `Engine`. A job where it is not known that they are few."""
        frame, rows = self._session.sql(rendered(distinct(need, table))), self._counts.get(table)
        if rows is None or rows > BROADCAST_ROWS_MAX:
            frame = self._keep_frame(frame)
            rows = self._counted(frame)
        return FrameKeys(frame, rows)

    def times(self, table: str, column: str) -> list[int]:
        """See `Engine`. A job."""
        found = self.answer(f"SELECT DISTINCT {quoted(column)} FROM {table}")
        return sorted(found.column(0).to_pylist())

    def clear(self) -> None:
        """See `Engine`."""
        super().clear()
        self._counts.clear()
        self._moved = 0

    def release(self) -> None:
        """See `Engine`."""
        if self._holds is not None:
            self._holds.close()
            self._holds = None

    def _read(self, scan: StoredScan, asked: AsOf | Updates | Output) -> DataFrame:
        match asked:
            case AsOf():
                found = snapshot(self._session, scan.of, asked.time, columns=scan.names)
            case Updates():
                found = updates(self._session, scan.of, asked.lower, asked.upper, columns=scan.names)
            case FrameOutput():
                found = asked.frame
            case _:
                found = shown(self._session, arrow_of(asked.table.to_batches(), asked.table.schema))
        found = found.select(*map(quoted_name, [*scan.names, _TIME, DIFF]))
        if scan.every == 1 and scan.first == 0:
            return found
        moved = f"greatest({_TIME}, {scan.first}L)"
        last = TIME_MAX // scan.every * scan.every
        at = f"CASE WHEN {moved} > {last}L THEN {TIME_MAX}L ELSE {moved} + pmod(-{moved}, {scan.every}L) END"
        return found.withColumn(_TIME, f.expr(at))

    def _keep_frame(self, frame: DataFrame) -> DataFrame:
        """Let executors keep the rows of a frame as long as it is used; the first job that reads it has them.

        SUBTLE: a frame that is only persisted is planned with all that it is made of, so that after some
        stages planning takes all memory.
        """
        replans = str(self._moved > PLANNED_ONCE_MAX)
        self._set({REPLANS: replans, WIDTH: str(1 + self._moved // _TASK_ROWS)})
        return frame.localCheckpoint(eager=False)

    def _counted(self, frame: DataFrame) -> int:
        """How many rows a frame has; later ones are planned for so many."""
        rows = frame.count()
        self._moved = max(self._moved, rows)
        return rows

    def _name(self, table: str, frame: DataFrame, rows: int) -> int:
        frame.createOrReplaceTempView(quoted_name(table))
        self._named.append(table)
        self._counts[table] = rows
        return rows


def _some(rows: DataFrame, keys: FrameKeys) -> DataFrame:
    """The rows that have one of some keys in the columns of these. The rows are not moved for few keys."""
    called = [f"tidelake_key_{number}" for number in range(len(keys.column_names))]
    pairs = zip(keys.column_names, called, strict=True)
    same = reduce(Column.__and__, [f.col(quoted_name(old)).eqNullSafe(f.col(new)) for old, new in pairs])
    wanted = keys.frame.toDF(*called)
    if keys.num_rows <= BROADCAST_ROWS_MAX:
        wanted = f.broadcast(wanted)
    return rows.join(wanted, same, "left_semi")

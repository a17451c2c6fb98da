"""Spark as the engine of a refresh: texts over temporary views, in a session of its own.

Owns the settings that change what a query means. Rows come from the driver, and go back to it, as long as
they are few; then from executors (`tidelake.spark.views.executors`).

INVARIANT: the user's session is not touched.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidelake.data.ingest.convert import convert
from tidelake.errors import TidelakeError, UsageError
from tidelake.lake.api.embedded import Scan
from tidelake.model.query import AsOf
from tidelake.model.schema import DIFF
from tidelake.spark.columns import frame_arrow, frame_schema
from tidelake.spark.columns import quoted as quoted_name
from tidelake.spark.reading.frames import snapshot
from tidelake.spark.reading.holds import released_afterwards
from tidelake.spark.tasks import remote
from tidelake.spark.versions import arrow_schema, frame_of, needs, spark_schema, to_arrow
from tidelake.spark.views.analyzer import SparkAnalyzer, reason, type_name
from tidelake.spark.views.dialect import rendered
from tidelake.views.engine import (
    Engine,
    KeyRows,
    LocalOutput,
    Named,
    Outgrown,
    Output,
    Schemas,
    StoredScan,
)
from tidelake.views.plan import Columns, PlanColumn, ViewPlan, quoted
from tidelake.views.query.compile import compiled
from tidelake.views.reach import Need, distinct
from tidelake.views.rules import REPEATS_MAX
from tidelake.views.verifying import too_often

# What a user may set, and a view records.
RECORDED = ("spark.sql.ansi.enabled", "spark.sql.session.timeZone")
# What is the same in all views.
FIXED = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Plans are compared as texts.
    "spark.sql.debug.maxToStringFields": "1000000",
    "spark.sql.maxPlanStringLength": "100000000",
}
# Such of the application, which no session need have set, change it as well.
_MEANING = ("spark.sql.legacy.", "spark.sql.parser.", "spark.sql.ansi.")
_NULLS = ("null order", "first, as least")
DRIVER_ROWS_MAX = 1_000_000
"""So many rows a span may bring into the driver; of more, executors have each stage."""
Settings: TypeAlias = tuple[tuple[str, str], ...]
Larger: TypeAlias = Callable[[Settings], Engine]
DIFFERING_MAX = 100_000
"""So many rows that differ `verify` brings into the driver."""
WIDTH, REPLANS = "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"
# Rows come from the driver: one task for all of them, and no job for a shuffle or a broadcast.
_ONE_JOB = {WIDTH: "1", REPLANS: "false", "spark.sql.autoBroadcastJoinThreshold": "-1"}
_STORED, _WANTED, _TIME = "tidelake_stored", "tidelake_wanted", "_time"


class SparkEngine:
    """Texts over temporary views of a session of its own; see `Engine`.

    Args:
        spark: the session of the user, whose settings a view records when it is made.
        settings: those of a view that is there; default: of the session.
        larger: makes the engine, with these settings, of spans that are too large for the driver; None: none
            is too large.
    """

    dialect, has_sort_keys = "spark", False
    place, holds_rows = "driver", True
    errors: tuple[type[Exception], ...] = (
        PySparkException,
        Py4JError,
        pa.ArrowException,
        OSError,
        RuntimeError,
    )

    def __init__(
        self, spark: SparkSession, settings: Settings | None = None, larger: Larger | None = None
    ) -> None:
        needs("a view of Spark's SQL", (4, 0))
        try:
            if settings is None:
                settings = (*((name, str(spark.conf.get(name))) for name in RECORDED), _NULLS)
            self._session = spark.newSession()
        except self.errors as error:
            raise UsageError(
                "the session of Spark was stopped, or cannot be reached: give one that runs"
            ) from error
        self.settings, self._larger = settings, None if larger is None else cache(partial(larger, settings))
        self.version = f"spark {spark.version}"
        given = {} if remote(spark) else dict(spark.sparkContext.getConf().getAll())
        for name in given:
            if name.startswith(_MEANING) and self._session.conf.isModifiable(name):
                self._session.conf.unset(name)
        self._usual = {name: str(spark.conf.get(name)) for name in _ONE_JOB}
        recorded = {name: value for name, value in settings if name.startswith("spark.")}
        self._set({**FIXED, **recorded, **_ONE_JOB})
        self._rows: dict[str, pa.Table] = {}
        self._held = 0
        self._named: list[str] = []
        self._plans: list[tuple[str, dict[str, Mapping[str, str] | None], ViewPlan]] = []
        self._types: dict[str, pa.DataType] = {}
        self._empty: dict[Columns, DataFrame] = {}

    def compiled(self, sql: str, schema_of: Schemas) -> ViewPlan:
        """See `Engine`."""
        for known, told, plan in self._plans:
            if known == sql and all(schema_of(name) == columns for name, columns in told.items()):
                return plan
        asked = dict[str, Mapping[str, str] | None]()

        def asking(name: str) -> Mapping[str, str] | None:
            return asked.setdefault(name, schema_of(name))

        plan = compiled(sql, asking, partial(SparkAnalyzer, self._session))
        self._plans.append((sql, asked, plan))
        return plan

    def types_of(self, schema: pa.Schema) -> dict[str, str]:
        """See `Engine`."""
        return {one.name: type_name(one.dataType) for one in frame_schema(schema)}

    def schema_of(self, columns: Columns) -> pa.Schema:
        """See `Engine`."""
        return pa.schema([(one.name, self._arrow(one.type)) for one in columns])

    def empty(self, table: str, columns: Columns) -> None:
        """See `Engine`."""
        if columns not in self._empty:
            told = ", ".join(f"CAST(NULL AS {one.type}) AS {quoted(one.name)}" for one in columns)
            self._empty[columns] = self._session.sql(rendered(f"SELECT {told} WHERE false"))
        self._empty[columns].createOrReplaceTempView(table)
        self._named.append(table)
        self._rows[table] = self.schema_of(columns).empty_table()

    def fill(self, table: str, columns: Columns, query: str, most: int | None = None) -> int:
        """See `Engine`. One job."""
        del most
        limit = "" if self._larger is None else f" LIMIT {DRIVER_ROWS_MAX - self._held + 1}"
        rows = to_arrow(self._session.sql(rendered(typed(columns, query) + limit)))
        return self._keep(table, columns, rows.cast(self.schema_of(columns)))

    def call(self, table: str, query: str) -> None:
        """See `Engine`."""
        self._session.sql(rendered(query)).createOrReplaceTempView(table)
        self._named.append(table)

    def take(self, table: str, columns: Columns, scan: Scan, time: int | None) -> int:
        """See `Engine`. No job."""
        rows = arrow_of(scan.batches(), scan.schema, self._hold)
        *names, _, count = (one.name for one in columns)
        when = rows[_TIME] if time is None else pa.array([time] * rows.num_rows, pa.int64())
        schema = self.schema_of(columns)
        given = [*rows.columns[: len(names)], when, rows[DIFF]]
        rows = pa.table(dict(zip(schema.names, given, strict=True))).cast(schema)
        if time is None and _compared(schema):
            rows = _added(rows, count)
        return self._keep(table, columns, rows)

    def read(self, table: str, columns: Named, timed: Named, order: str | None) -> Output:
        """See `Engine`. No job."""
        del order
        told = tuple(PlanColumn(new, type_) for _, new, type_ in (*columns, *timed))
        found = self._rows[table].select([old for old, _, _ in (*columns, *timed)])
        return LocalOutput(found.rename_columns([one.name for one in told]).cast(self.schema_of(told)))

    def values(self, table: str, need: Need) -> KeyRows:
        """See `Engine`. A job only for what Arrow does not compare."""
        rows = self._rows.get(table)
        found = None if rows is None else rows.select(list(need.values))
        if found is None or not _compared(found.schema):
            return cast("KeyRows", self.answer(distinct(need, table)))
        found = found.rename_columns(list(need.by))
        for name, null in zip(need.by, need.nulls, strict=True):
            if not null:
                found = found.filter(pc.is_valid(found[name]))
        return cast("KeyRows", found.group_by(list(need.by), use_threads=False).aggregate([]))

    def times(self, table: str, column: str) -> list[int]:
        """See `Engine`. No job."""
        found: list[int] = pc.unique(self._rows[table][column]).sort().to_pylist()
        return found

    def answer(self, query: str) -> pa.Table:
        """See `Engine`. One job."""
        frame = self._session.sql(rendered(query))
        return to_arrow(frame).cast(arrow_schema(frame.schema))

    def clear(self) -> None:
        """See `Engine`."""
        self._rows.clear()
        self._held = 0
        while self._named:
            self._session.catalog.dropTempView(self._named.pop())

    def release(self) -> None:
        """See `Engine`."""

    def differing(
        self, text: str, tables: Mapping[str, StoredScan], stored: StoredScan
    ) -> tuple[int, pa.Table, pa.Table]:
        """See `Engine`. Of rows that differ, the driver has the first ones."""
        self._set(self._usual)
        wanted: DataFrame | None = None
        try:
            with released_afterwards():
                for name, scan in {**tables, _STORED: stored}.items():
                    self._named.append(name)
                    _repeated(self._session, scan).createOrReplaceTempView(quoted_name(name))
                have = frame_schema(stored.schema)
                wanted = self._session.sql(text).toDF(*have.names)
                typed_ = [f.col(quoted_name(one.name)).cast(one.dataType) for one in have]
                wanted = wanted.select(*typed_).toDF(*have.names).persist()
                self._named.append(_WANTED)
                wanted.createOrReplaceTempView(_WANTED)
                pair = [f"SELECT * FROM {quoted(one)}" for one in (_WANTED, _STORED)]
                most = f" LIMIT {DIFFERING_MAX + 1}"
                missing, more = (self.answer(" EXCEPT ALL ".join(both) + most) for both in (pair, pair[::-1]))
                rows = wanted.count()
        except self.errors as error:
            if isinstance(error, TidelakeError):
                raise
            raise UsageError(f"Spark: {reason(error)}") from error
        finally:
            if wanted is not None:
                wanted.unpersist()
            self._set(_ONE_JOB)
            self.clear()
        if min(missing.num_rows, more.num_rows) > DIFFERING_MAX and not _compared(stored.schema):
            raise UsageError(
                f"view {stored.of.name!r} has more than {DIFFERING_MAX:,} rows that its query has otherwise, "
                "perhaps in the last digits of floats only, and too many to compare one by one: rebuild the "
                "view, or verify it at a time at which it has fewer rows"
            )
        return rows, missing, more

    def _set(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            self._session.conf.set(name, value)

    def _arrow(self, type_: str) -> pa.DataType:
        if type_ not in self._types:
            (field,) = arrow_schema(self._session.sql(rendered(f"SELECT CAST(NULL AS {type_})")).schema)
            self._types[type_] = field.type
        return self._types[type_]

    def _keep(self, table: str, columns: Columns, rows: pa.Table) -> int:
        self._hold(rows.num_rows)
        if rows.num_rows:
            shown(self._session, rows).createOrReplaceTempView(quoted_name(table))
            self._named.append(table)
            self._rows[table] = rows
        else:
            self.empty(table, columns)
        return int(rows.num_rows)

    def _hold(self, rows: int) -> None:
        """Count rows that the driver holds."""
        self._held += rows
        if self._larger is not None and self._held > DRIVER_ROWS_MAX:
            raise Outgrown(self._larger())


def typed(columns: Columns, query: str) -> str:
    """A query whose columns have the names and types of others, by position."""
    names = ", ".join(quoted(one.name) for one in columns)
    shown = ", ".join(f"CAST({quoted(one.name)} AS {one.type}) AS {quoted(one.name)}" for one in columns)
    return f"SELECT {shown} FROM ({query}) AS q({names})"


def arrow_of(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, hold: Callable[[int], None] = lambda _: None
) -> pa.Table:
    """Rows of a collection in the types that Spark takes."""
    taken, found = frame_arrow(schema), list[pa.RecordBatch]()
    for batch in batches:
        hold(batch.num_rows)
        found.append(convert(batch, taken))
    return pa.Table.from_batches(found, taken)


def shown(session: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows of this process in types that Spark takes, for one task."""
    return frame_of(session, rows, spark_schema(rows.schema)).coalesce(1)


def _repeated(session: SparkSession, scan: StoredScan) -> DataFrame:
    """The rows of a collection under other names, each as often as it is there."""
    (time,) = (one.time for one in scan.asked if isinstance(one, AsOf))
    rows, many = snapshot(session, scan.of, time, columns=scan.names), f.col(DIFF)
    columns = [f.col(quoted_name(one)) for one in scan.names]
    begin, _, end = too_often(scan.of.name, "\0").partition("\0")
    refused = f.raise_error(f.concat(f.lit(begin), many.cast("string"), f.lit(end))).cast("long")
    each = f.when(many.between(1, REPEATS_MAX), many).otherwise(refused)
    times = f.explode(f.sequence(f.lit(1).cast("long"), each))
    return rows.select(*columns, times.alias(DIFF)).toDF(*scan.schema.names, DIFF).drop(DIFF)


def _compared(schema: pa.Schema) -> bool:
    """Whether Arrow finds equal rows as Spark does: not where NaN is, nor in lists."""
    return not any(pa.types.is_floating(one.type) or pa.types.is_nested(one.type) for one in schema)


def _added(rows: pa.Table, count: str) -> pa.Table:
    """Rows, each once; those whose multiplicities add up to 0 are gone."""
    names = [name for name in rows.schema.names if name != count]
    total = rows.group_by(names, use_threads=False).aggregate([(count, "sum")])
    added = total.rename_columns([*names, count]).cast(rows.schema)
    return added.filter(pc.not_equal(added[count], pa.scalar(0, added[count].type)))

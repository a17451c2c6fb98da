"""What Spark says of a query: how it reads the text, which types it finds, and what a view may not call.

Owns a session in which tables are empty; must not know plans.

INVARIANT: the user's session is not touched, and no setting of it but the recorded ones is in an answer.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from sqlglot import exp, parse
from sqlglot.errors import SqlglotError

from tidelake.errors import UsageError
from tidelake.spark.columns import quoted
from tidelake.spark.tasks import remote
from tidelake.spark.views.dialect import (
    AGGREGATES,
    INSTEAD,
    RANKING,
    SCALARS,
    SparkTexts,
    as_double,
    is_rounded,
    linear,
    of_list,
    of_rows,
    rendered,
)
from tidelake.views.functions import Linear
from tidelake.views.plan import Columns, PlanColumn
from tidelake.views.query.engine import UNREAD
from tidelake.views.query.tables import refuse

# Other names of aggregates.
_SAME: dict[str, Any] = {
    "every": exp.LogicalAnd,
    "any": exp.LogicalOr,
    "some": exp.LogicalOr,
    "mean": exp.Avg,
}
_HEAD = re.compile(r"([A-Za-z_]\w*)\s*\(")
_ATOMS: dict[type[t.DataType], str] = {
    t.ByteType: "TINYINT",
    t.ShortType: "SMALLINT",
    t.IntegerType: "INT",
    t.LongType: "BIGINT",
    t.FloatType: "FLOAT",
    t.DoubleType: "DOUBLE",
    t.BooleanType: "BOOLEAN",
    t.StringType: "STRING",
    t.BinaryType: "BINARY",
    t.DateType: "DATE",
    t.TimestampType: "TIMESTAMP",
    t.TimestampNTZType: "TIMESTAMP_NTZ",
}


def type_name(kind: t.DataType) -> str:
    """What a plan calls a type of Spark's: a name that its SQL reads back."""
    match kind:
        case t.DecimalType():
            return f"DECIMAL({kind.precision},{kind.scale})"
        case t.ArrayType():
            return f"ARRAY<{type_name(kind.elementType)}>"
        case t.StructType():
            return f"STRUCT<{', '.join(f'{quoted(f.name)}: {type_name(f.dataType)}' for f in kind)}>"
        case _:
            return _ATOMS.get(type(kind)) or kind.simpleString().upper()


def reason(error: Exception) -> str:
    """What Spark says, without its plans and places."""
    return " ".join(str(error).partition(" SQLSTATE")[0].partition("\n\nJVM stacktrace")[0].split())


class SparkAnalyzer:
    """A session with empty tables; see `Analyzer`.

    Args:
        session: of its own, with the recorded settings.
    """

    dialect, title, orders_by_selected, has_using_first = SparkTexts, "Spark", True, True
    has_group_of_nothing = False

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._defined = set[str]()

    def close(self) -> None:
        """See `Analyzer`."""
        for name in self._defined:
            self._session.catalog.dropTempView(name)

    def read(self, text: str) -> Any:
        """See `Analyzer`."""
        try:
            found = [one for one in parse(text, dialect=self.dialect) if one is not None]
        except SqlglotError as error:
            raise UsageError(UNREAD.format(str(error).splitlines()[0])) from error
        if len(found) != 1:
            raise UsageError(f"a view is one query, and this text has {len(found)}: keep one")
        if (hint := found[0].find(exp.Hint)) is not None:
            # Its tables are aliases, and the stages are other queries.
            raise refuse(f"hints, such as {hint.expressions[0].sql(self.dialect)}", "leave them out")
        self._check(found[0])
        for one in list(found[0].find_all(exp.Anonymous)):
            if (made := _SAME.get(one.name.lower())) is not None:
                one.replace(made(this=one.expressions[0]))
        return found[0]

    def check_read(self, text: str, node: Any) -> None:
        """See `Analyzer`."""
        if not remote(self._session):
            # With tables that the optimizer knows to be empty, all queries would be the same.
            for name in self._defined:
                schema = self._session.table(quoted(name)).schema
                self._session.createDataFrame([], schema).createOrReplaceTempView(quoted(name))
        given, read = self._frame(text), self._frame(node.sql(dialect=self.dialect, comments=False))
        if not (given.sameSemantics(read) or self._same(given, read)):
            raise UsageError(UNREAD.format("it means something else to the parser than to Spark"))
        if not remote(self._session) and not given._jdf.queryExecution().analyzed().deterministic():
            raise UsageError("the query calls a function whose result is another one each time: leave it out")

    def _same(self, one: DataFrame, other: DataFrame) -> bool:
        """Whether the optimizer makes one plan of two queries: there are many ways to write a literal.

        The parser calls a comma a cross join, which is an inner one.
        """
        if remote(self._session):
            return False
        plans = [frame._jdf.queryExecution().optimizedPlan().canonicalized() for frame in (one, other)]
        told = [str(plan.toString()).replace("Join Cross", "Join Inner") for plan in plans]
        return one.schema == other.schema and told[0] == told[1]

    def answered(self, text: str) -> Columns:
        """See `Analyzer`."""
        return tuple(PlanColumn(one.name, type_name(one.dataType)) for one in self._frame(text).schema)

    def described(self, sql: str) -> Columns:
        """See `Analyzer`."""
        return self.answered(rendered(sql))

    def define(self, name: str, columns: Mapping[str, str]) -> None:
        """See `Analyzer`."""
        told = ", ".join(f"CAST(NULL AS {type_}) AS {quoted(one)}" for one, type_ in columns.items())
        self._frame(rendered(f"SELECT {told} WHERE false")).createOrReplaceTempView(quoted(name))
        self._defined.add(name)

    def check_calls(self, sql: str) -> None:
        """See `Analyzer`."""
        for one in parse(sql, dialect=self.dialect):
            self._check(one)

    def _check(self, tree: Any) -> None:
        for node in tree.find_all(exp.Func):
            if isinstance(node, exp.Connector):
                continue
            match = _HEAD.match(node.sql(dialect=self.dialect))
            name = (match[1] if match else node.sql_name()).lower()
            if name in AGGREGATES | RANKING | SCALARS | {*_SAME}:
                continue
            raise UsageError(
                f"{name}() cannot be in a view of Spark's SQL, whose answer is a function of the contents of "
                f"its inputs alone: write {INSTEAD.get(name, 'a column that has the value')}"
            )

    def linear(self, name: str, argument: str | None, type_: str, present: str) -> Linear | None:
        """See `Analyzer`."""
        return linear(name, argument, type_, present)

    def of_rows(self, name: str, argument: str, type_: str, *, distinct: bool, present: str) -> str:
        """See `Analyzer`."""
        return of_rows(name, argument, type_, distinct=distinct, present=present)

    def of_list(self, name: str, argument: str, type_: str, present: str) -> tuple[str, str] | None:
        """See `Analyzer`."""
        if not is_rounded(name, type_):
            return None
        return f"collect_list({as_double(argument, present)})", of_list(name, "{0}")

    def bucket(self, texts: Sequence[str], number: int) -> str:
        """See `Analyzer`."""
        return f"CAST(pmod(xxhash64({', '.join(texts)}), {number}) AS INT)"

    def _frame(self, text: str) -> DataFrame:
        try:
            return self._session.sql(text)
        except PySparkException as error:
            raise UsageError(f"Spark: {reason(error)}") from error

"""Views of Spark's SQL: made, refreshed, verified, explained, made again. `tidelake.views` does the work."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from pyspark.sql import SparkSession

from tidelake.handle import door
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.lake.arguments.names import check_list, check_name
from tidelake.lake.arguments.spans import WindowLike
from tidelake.model.instants import TimeLike
from tidelake.spark.views.engine import Settings, SparkEngine
from tidelake.spark.views.executors import SparkExecutors
from tidelake.views import life, making
from tidelake.views.definition import Definition
from tidelake.views.engine import Engine
from tidelake.views.explaining import Explained
from tidelake.views.refreshed import Refreshed
from tidelake.views.request import ViewRequest
from tidelake.views.verifying import Verified
from tidelake.views.workroom import workroom


@door
def view(
    spark: SparkSession,
    lake: Lake,
    name: str,
    sql: str,
    *,
    key: Sequence[str] | None = None,
    every: WindowLike | None = None,
    max_lag: WindowLike | None = None,
    together: str = "",
    replace: bool = False,
    allow_recreate: bool = False,
) -> Collection:
    """Make a view of a query in Spark's SQL, which means what Spark says.

    The version of Spark, and of the session ANSI mode and zone, are part of the view. Its columns have the
    types that Spark finds. Arguments, promise and errors are else those of `Lake.view`.

    Args:
        spark: the session.
        lake: whose collections the query reads, and that gets the view.
        name: of the view.
        sql: one query.
        key: see `Lake.view`, as for the others.
        every: a grid of times.
        max_lag: how far it holds the history of its inputs.
        together: the views that change by one commit.
        replace: take the place of a view of another query.
        allow_recreate: if a collection of this name was dropped or renamed, take the name.
    """
    lake._guard.check()
    check_name(name, "name of a view")
    wanted = ViewRequest(sql, key, every, max_lag, together, replace, allow_recreate)
    return making.make(lake, name, wanted, _engine(spark))


@door
def refresh(spark: SparkSession, lake: Lake, names: Sequence[str] | None = None) -> list[Refreshed]:
    """Bring views up to their inputs, as `Lake.refresh` does: those of Spark's SQL by Spark.

    Args:
        spark: the session.
        lake: that has them.
        names: of views; default: all. What they stand on is refreshed, too.
    """
    lake._guard.check()
    if names is not None:
        check_list(names, "names")
    with _Engines(spark, lake) as engines:
        return life.refresh(lake, names, engines)


@door
def verify(spark: SparkSession, lake: Lake, name: str, at: TimeLike | None = None) -> Verified:
    """Compare a view with its query, as `Lake.verify` does, by jobs of Spark."""
    lake._guard.check()
    with _Engines(spark, lake) as engines:
        return life.verify(lake, name, at, engines)


@door
def explain(spark: SparkSession, lake: Lake, name: str) -> Explained:
    """The stages of a view, as `Lake.explain` tells them."""
    lake._guard.check()
    with _Engines(spark, lake) as engines:
        return life.explain(lake, name, engines)


@door
def rebuild(spark: SparkSession, lake: Lake, name: str) -> Collection:
    """Make a view again, as `Lake.rebuild` does. It gets the settings that the session has now."""
    lake._guard.check()
    with _Engines(spark, lake) as engines:
        return making.rebuild(lake, name, engines.now)


def _engine(spark: SparkSession, settings: Settings | None = None) -> Engine:
    return SparkEngine(spark, settings, partial(SparkExecutors, spark))


class _Engines:
    """What the views of a lake need: DuckDB, and Spark with the settings of each."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark, self._lake = spark, lake
        self._stack = ExitStack()
        self._known: dict[tuple[str, Settings], Engine] = {}

    def __call__(self, definition: Definition) -> Engine:
        return self._of(definition.dialect, definition.settings)

    def now(self, definition: Definition) -> Engine:
        """For a view that is made again."""
        return _engine(self._spark) if definition.dialect == SparkEngine.dialect else self(definition)

    def _of(self, dialect: str, settings: Settings) -> Engine:
        if (dialect, settings) not in self._known:
            if dialect == SparkEngine.dialect:
                self._known[dialect, settings] = _engine(self._spark, settings)
            else:
                self._known[dialect, settings] = self._stack.enter_context(workroom(self._lake).database())
        return self._known[dialect, settings]

    def __enter__(self) -> "_Engines":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

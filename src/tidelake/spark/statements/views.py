"""What a statement reads of its own collection through views of frames, and of the format."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.spark.reading.newest import marked
from tidelake.spark.tasks import remote


def uppers_shown(frame: DataFrame, collection: Collection) -> frozenset[Frontier]:
    """The uppers whose contents a frame shows of a collection; nothing is known under Spark Connect."""
    uppers = set()
    for node in () if remote(frame.sparkSession) else _nodes(frame._jdf.queryExecution().analyzed()):
        kind = str(node.getClass().getSimpleName())
        if kind == "SubqueryAlias" and (shown := marked(str(node.alias()), collection)) is not None:
            uppers.add(shown)
        elif kind == "DataSourceV2Relation" and str(node.table().name()) == "tidelake":
            _check(dict(node.options().asCaseSensitiveMap()), collection)
    return frozenset(uppers)


def _check(options: dict[str, str], collection: Collection) -> None:
    # PySpark 3.5 has no data sources, so no plan has one.
    from tidelake.spark.source.options import read_options
    from tidelake.spark.source.place import located

    if not read_options(options).ends and located(options).id == collection.id:
        raise UsageError(
            f"a view of the format reads {collection.name!r}, which the statement writes: name the "
            "collection in the statement, or make the view of ts.sql(...)"
        )


def _nodes(plan: Any) -> Iterator[Any]:
    """The nodes of a plan and of the subqueries in its expressions."""
    yield plan
    for found in (plan.children(), plan.subqueries()):
        for i in range(found.size()):
            yield from _nodes(found.apply(i))

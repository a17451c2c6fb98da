"""The mark of a DataFrame that shows the newest contents of a collection, as they were when it was made.

Frames of a time that was asked for have no mark. `tidelake.spark.statements.views` finds marks in plans.
"""

from pyspark.sql import DataFrame

from tidelake.lake.api.collection import Collection
from tidelake.model.frontier import Frontier
from tidelake.model.query import AsOf, Query, Updates

# As an alias it is a node of the plan, which Spark keeps in views and leaves out of the work.
_MARK = "tidelake newest"


def newest(frame: DataFrame, collection: Collection, query: Query) -> DataFrame:
    """Mark a frame that shows the last closed time, or changes until then."""
    match query:
        case AsOf(int(time)):
            return frame.alias(f"{_MARK} {collection.id} {time + 1}")
        case Updates(_, upper) if len(upper.elements) == 1 and isinstance(upper.elements[0], int):
            return frame.alias(f"{_MARK} {collection.id} {upper.elements[0]}")
        case _:
            return frame


def marked(alias: str, collection: Collection) -> Frontier | None:
    """The upper that an alias says a frame of a collection shows; None: it is no mark of one."""
    if not alias.startswith(f"{_MARK} {collection.id} "):
        return None
    return Frontier.of(int(alias.rpartition(" ")[2]))

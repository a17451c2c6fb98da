"""Writing a large history into a collection, as one commit of many uploads.

Owns how the rows get to the tasks: by ranges of their keys, so that the parts of different tasks do not
    overlap
and reads need not merge them. Apart from that it is an ordinary write.
"""

from pyspark.sql import DataFrame

from tidelake.feeds.reports import WriteReport
from tidelake.lake.api.collection import Collection
from tidelake.lake.arguments.times import FrontierLike
from tidelake.spark.columns import quoted
from tidelake.spark.envelopes.named import DEFAULT, EnvelopeLike
from tidelake.spark.writing.append import write


def backfill(
    collection: Collection,
    frame: DataFrame,
    *,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    ranges: int | None = None,
    token: str | None = None,
    envelope: EnvelopeLike = DEFAULT,
) -> WriteReport:
    """Write a DataFrame that does not fit into the memory of all tasks, sorted by key, in one commit.

    The rows are shuffled by ranges of the key; each task sorts and stores one range, in bounded memory.
    A job that fails appends nothing; the parts that it stored are collected later.

    Args:
        collection: the collection to write to.
        frame: as for `tidelake.spark.write`. It is evaluated twice, since Spark samples it for the ranges.
        lower: write iff the collection's upper equals it.
        upper: close all times before it; default: just past the last time.
        ranges: number of key ranges; default: as many as Spark makes (`spark.sql.shuffle.partitions`, small
            ones combined).
        token: identifies this write: a backfill that is repeated under the same token is written once.
        envelope: what the rows mean.

    Raises:
        InvalidUpdates, UpdateBeforeLower, UpperMismatch: as `tidelake.spark.write`; nothing was appended.
    """
    if ranges is None:
        # Without a number, Spark may combine small neighbouring ranges. The key's name is that of now.
        collection.state()
        frame = frame.repartitionByRange(*map(quoted, collection.key))
    return write(collection, frame, envelope, lower=lower, upper=upper, ranges=ranges, token=token)

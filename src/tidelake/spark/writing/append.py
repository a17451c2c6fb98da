"""A DataFrame into a collection, all or nothing: the helpers for users.

Owns the arguments of a batch write; what rows mean is the envelope's, and how they get in is
`tidelake.spark.writing.commit`.
"""

from pyspark.sql import DataFrame

from tidelake.errors import UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.frontiers import FrontierLike
from tidelake.spark.columns import quoted
from tidelake.spark.envelopes.envelope import Envelope
from tidelake.spark.envelopes.updates import Updates
from tidelake.spark.writing import commit
from tidelake.state.append import Appended


def append(
    collection: Collection,
    frame: DataFrame,
    *,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    ranges: int | None = None,
) -> Appended:
    """Append a DataFrame of updates in one commit.

    Args:
        collection: to append to.
        frame: the key and value columns, by name in any order, types as `tidelake.spark.columns` maps
            them. Without `_time` all rows get one time, the collection's upper (of a clock: now, if
            that is later); without `_diff` all are `+1`. Columns that a change of the schema added may
            be missing, and are null. It is evaluated once.
        lower: append iff the collection's upper equals it; default: whatever the upper is.
        upper: close all times before it; default: just past the last time. Tuple times need both.
        ranges: first sort the rows into so many key ranges (a shuffle), so that the parts do not
            overlap and later reads merge fewer runs; worth it from some ten million rows on.

    Returns:
        The times written, and the upper after it.

    Raises:
        InvalidUpdates: columns do not fit (nothing ran), or values do not (nothing was appended).
        UpdateNotBeyondLower, UpdateBeyondUpper: a time lies outside the interval.
        UpperMismatch: the collection's upper is not `lower`.
    """
    domain = collection.domain
    start = None if lower is None else collection.frontier(lower, "lower")
    end = None if upper is None else collection.frontier(upper, "upper")
    timed = any(name in frame.columns for name in domain.columns)
    if not timed and (start is not None or end is not None):
        raise UsageError(f"lower and upper need times: add {', '.join(domain.columns)}, or leave them out")
    interval = None if domain.total_order or start is None or end is None else (start, end)
    envelope: Envelope = Updates(interval=interval)
    if ranges is not None:
        frame = frame.repartitionByRange(ranges, *map(quoted, collection.key))
    title = f"tidelake: append to {collection.name}"
    return commit.write(collection, frame, envelope, lower=start, upper=end, title=title).appended

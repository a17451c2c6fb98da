"""A large history into a collection, as one commit of many uploads.

Owns how the rows get to the tasks: range by range of their keys, so that what one task stores overlaps with
nothing of another, and reads afterwards merge nothing. What is stored and committed is an ordinary write.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from tidelake.env import Env
from tidelake.lake.collection import Collection
from tidelake.lake.frontiers import FrontierLike
from tidelake.spark.columns import quoted
from tidelake.spark.envelopes.named import EnvelopeLike
from tidelake.spark.writing.append import write
from tidelake.state.append import Appended


@dataclass(frozen=True)
class BackfillReport:
    """What a backfill did.

    Attributes:
        appended: the times written, and the upper after it.
        rows: updates read, before consolidation; 0 if it was in already.
        uploads: of which the one commit consists.
        seconds: wall clock.
    """

    appended: Appended
    rows: int
    uploads: int
    seconds: float


def backfill(
    collection: Collection,
    frame: DataFrame,
    *,
    lower: FrontierLike | None = None,
    upper: FrontierLike | None = None,
    ranges: int | None = None,
    token: str | None = None,
    envelope: EnvelopeLike = "updates",
) -> BackfillReport:
    """Write a DataFrame that is too large for the memory of the tasks together, sorted by key, in one commit.

    The rows are shuffled by ranges of the key, of which each task sorts and stores one, in bounded memory.
    A job that fails appends nothing; what it stored is collected later.

    Args:
        collection: to write to.
        frame: as for `tidelake.spark.write`. It is evaluated twice, since Spark samples it for the ranges.
        lower: write iff the collection's upper equals it.
        upper: close all times before it; default: just past the last time.
        ranges: of keys; default: as many as Spark makes of them (`spark.sql.shuffle.partitions`, put together
            where they are small).
        token: of this very write: with one, a backfill that is run again after it succeeded does nothing.
        envelope: what the rows mean.

    Raises:
        InvalidUpdates, UpdateNotBeyondLower, UpperMismatch: as `tidelake.spark.write`; nothing was appended.
    """
    clock = Env().clock
    started_s = clock.monotonic_s()
    if ranges is None:
        # Without a number Spark may put small ranges together, always neighbours.
        frame = frame.repartitionByRange(*map(quoted, collection.key))
    done = write(collection, frame, envelope, lower=lower, upper=upper, ranges=ranges, token=token)
    seconds = clock.monotonic_s() - started_s
    return BackfillReport(done.appended, done.answer.rows, len(done.answer.uploads), seconds)

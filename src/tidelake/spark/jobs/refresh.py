"""A streaming query that keeps views up to their inputs."""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidelake.errors import UsageError
from tidelake.lake.api.lake import Lake
from tidelake.lake.arguments.names import check_list
from tidelake.spark.tasks import remote
from tidelake.spark.views.life import refresh
from tidelake.views.refreshed import Refreshed


def refresh_stream(
    spark: SparkSession,
    lake: Lake,
    names: Sequence[str] | None = None,
    *,
    interval_s: float = 1.0,
    progress: Callable[[list[Refreshed]], object] | None = None,
) -> StreamingQuery:
    """Start a query that refreshes views as soon as their inputs have closed times, until it is stopped.

    It needs no checkpoint: how far a view is, it says itself. So any number of these queries may run, and
    their drivers be killed at any point: each update is there once. If a view fails, all others are
    refreshed, and then the query ends with the error.

    Args:
        spark: a session of this process.
        lake: that has the views.
        names: of views, which are refreshed with what they stand on; default: all.
        interval_s: so often it looks; one log scan for each collection if nothing was closed.
        progress: called with what was done, if something was.

    Raises:
        UsageError: the session is one of Spark Connect, whose queries run elsewhere.
    """
    if names is not None:
        check_list(names, "names")
    if remote(spark):
        raise UsageError(
            "refresh_stream runs in the process of the session, and Connect has none: use tidelake maintain"
        )

    def look(_frame: DataFrame, _batch: int) -> None:
        done = [one for one in refresh(spark, lake, names) if not one.already]
        if done and progress is not None:
            progress(done)

    # A source of one row for each look: the views say whether there is something to do.
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = ticks.writeStream.foreachBatch(look).queryName(f"tidelake refresh {lake.url}")
    return writer.trigger(processingTime=f"{max(1, round(interval_s * 1000))} milliseconds").start()

"""What commands that use Spark share: a local session, and an error where PySpark is missing."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelake import errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelake.lake.lake import Lake
    from tidelake.spark.jobs.maintain import MaintainReport


@contextlib.contextmanager
def session(description: str, flag: str = "--spark") -> Iterator["SparkSession"]:
    """A local Spark session for one command; one that is there already is used, and left running.

    Args:
        description: name of the application.
        flag: what needs it.

    Raises:
        UsageError: PySpark is not installed, or there is no Java that can start it.
    """
    try:
        from pyspark.sql import SparkSession

        from tidelake.spark.session import local_session
    except ImportError as error:
        raise errors.UsageError(f"{flag} needs: pip install 'tidelake[spark]' ({error})") from error
    there = SparkSession.getActiveSession() is not None
    made = local_session(description)
    try:
        yield made
    finally:
        if not there:
            made.stop()


def maintained(opened: "Lake", names: list[str] | None) -> tuple[list[dict[str, Any]], "MaintainReport"]:
    """Bring collections to rest with Spark, with a line on each job in a terminal; a line on each of them."""
    from tidelake.cli import maintenance, output

    with session("tidelake maintain") as spark, output.status() as say:
        from tidelake.spark.jobs.maintain import Round, maintain

        def progress(job: Round) -> None:
            say(f"round {job.number}: {job.key_ranges} key ranges of {job.collections} collections")

        report = maintain(spark, opened, names, progress=progress)
    done = sorted(report.collections.items())
    return [maintenance.maintained_as(opened.collection(name), one) for name, one in done], report

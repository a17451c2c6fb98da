"""Shared by commands that use Spark: a local session, and an error if PySpark is missing."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelake import errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelake.lake.api.lake import Lake
    from tidelake.spark.jobs.maintain import MaintainReport


@contextlib.contextmanager
def session(description: str, flag: str = "--spark") -> Iterator["SparkSession"]:
    """A local Spark session for one command. An active session is used and left running."""
    try:
        from pyspark.sql import SparkSession

        from tidelake.spark.session import local_session
    except ImportError as error:
        raise errors.UsageError(f"{flag} needs Spark ({error}): {errors.to_install('spark')}") from error
    there = SparkSession.getActiveSession() is not None
    made = local_session(description)
    try:
        yield made
    finally:
        if not there:
            made.stop()


def maintained(opened: "Lake", names: list[str] | None) -> tuple[list[dict[str, Any]], "MaintainReport"]:
    """Maintain collections thoroughly with Spark, and show each job; a row for each, and the report."""
    from tidelake.cli import maintenance, output

    with session("tidelake maintain") as spark, output.status() as say:
        from tidelake.spark.jobs.maintain import Round, maintain

        def progress(job: Round) -> None:
            say(f"round {job.number}: {job.key_ranges} key ranges of {job.collections} collections")

        report = maintain(spark, opened, names, progress=progress)
    done = sorted(report.collections.items())
    return [maintenance.maintained_as(opened.collection(name), one) for name, one in done], report

"""Taking the change events of many tables from a directory into the collections of one group, exactly once.

Owns the stream of files; `tidelake.spark.writing.tables` writes each micro-batch.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from tidelake.errors import UsageError
from tidelake.feeds.batches import Progress
from tidelake.feeds.lines import TextFormat
from tidelake.feeds.reports import IngestReport
from tidelake.lake.api.lake import Lake
from tidelake.spark.jobs.files import check_rejects, run, text_of
from tidelake.spark.tasks import remote
from tidelake.spark.writing.tables import tables_sink


def ingest_tables(
    spark: SparkSession,
    lake: Lake,
    directory: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    into: str,
    keys: Mapping[str, Sequence[str]] | Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    format: TextFormat = "jsonl",  # noqa: A002 - as Spark calls it
    follow: bool = False,
    max_files_per_trigger: int | None = None,
    rejects: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> IngestReport:
    """Take the change events of many tables from the files of a directory; each table has a collection.

    A micro-batch is one commit of all tables. The ingest may be killed and run again at any point.

    Args:
        spark: the session.
        lake: the lake.
        directory: the directory of the files, which may be compressed.
        checkpoint: a directory only for this ingest. Do not share, copy or delete it.
        into: name of the register: collections are called `INTO.SCHEMA.TABLE`; see `tables_sink`.
        keys: as for `tables_sink`; JSON lines have no message keys, so new collections need it.
        names: as for `tables_sink`.
        format: `"jsonl"`, or `"keyed"` as for `ingest`.
        follow: go on with new files until the query is stopped or the caller is interrupted; False: stop
            when all present files are taken.
        max_files_per_trigger: the most files in a micro-batch; default: all new files.
        rejects: a folder for lines that cannot be read; default: they stop the ingest.
        progress: called after each micro-batch.
        **options: other arguments of `tables_sink`, such as `time="source.ts_ms"` or `take_over=True`.

    Returns and raises:
        As `ingest`; errors also as `tables_sink`.
    """
    if remote(spark):
        raise UsageError("an ingest needs a session with a driver of its own, not one of Spark Connect")
    folder = os.fspath(directory)
    kept = None if rejects is None else os.fspath(rejects)
    check_rejects(kept, folder)
    sink = tables_sink(lake, into, keys=keys, names=names, rejects=kept, progress=progress, **options)
    frame = text_of(spark, folder, max_files_per_trigger, format)
    return run(frame, sink, os.fspath(checkpoint), follow=follow)

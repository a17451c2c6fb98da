"""Tidelake on Spark: reads, writes, ingest and merges as Spark jobs.

The only package that imports PySpark. It is thin: planning, sorting, consolidating and committing are
`tidelake.shard`; here is how they reach the workers. What goes there is bytes and schemas, never a
handle and never a credential.
"""

from tidelake.spark.append import append
from tidelake.spark.debezium import parse_changes
from tidelake.spark.frames import changes, release, snapshot, snapshots, updates
from tidelake.spark.ingest import IngestedBatch, IngestReport, ingest_change_files
from tidelake.spark.merge import merge, workers
from tidelake.spark.session import local_session

__all__ = [
    "IngestReport",
    "IngestedBatch",
    "append",
    "changes",
    "ingest_change_files",
    "local_session",
    "merge",
    "parse_changes",
    "release",
    "snapshot",
    "snapshots",
    "updates",
    "workers",
]

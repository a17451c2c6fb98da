"""Tidelake on Spark: reads, writes, ingest and merges as Spark jobs.

The only package that imports PySpark. It is thin: `tidelake.shard` plans, sorts, consolidates and commits;
this package brings the work to the workers. Only bytes and schemas go there, never a handle or a credential.

Importing it raises `ImportError`, with the remedy, if the PySpark that is installed is older than 4.3.
"""

import pyspark

if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 3):
    raise ImportError(
        f"tidelake.spark needs PySpark 4.3, and PySpark {pyspark.__version__} is installed: "
        "pip install 'tidelake[spark]'",
        name="pyspark",
    )

from tidelake.spark.envelopes.debezium import parse_changes
from tidelake.spark.jobs.backfill import BackfillReport, backfill
from tidelake.spark.jobs.export import ExportReport, export
from tidelake.spark.jobs.ingest import IngestedBatch, IngestReport, ingest, ingest_change_files
from tidelake.spark.jobs.maintain import MaintainReport, maintain
from tidelake.spark.jobs.merge import merge, workers
from tidelake.spark.reading.frames import changes, history, snapshot, snapshots, updates
from tidelake.spark.reading.holds import release
from tidelake.spark.session import local_session
from tidelake.spark.source.format import TidelakeSource, register
from tidelake.spark.writing.append import append, write
from tidelake.spark.writing.exactly_once import Sink, WrittenBatch, sink
from tidelake.spark.writing.stage import stage
from tidelake.spark.writing.upsert import replace, upsert

__all__ = [
    "BackfillReport",
    "ExportReport",
    "IngestReport",
    "IngestedBatch",
    "MaintainReport",
    "Sink",
    "TidelakeSource",
    "WrittenBatch",
    "append",
    "backfill",
    "changes",
    "export",
    "history",
    "ingest",
    "ingest_change_files",
    "local_session",
    "maintain",
    "merge",
    "parse_changes",
    "register",
    "release",
    "replace",
    "sink",
    "snapshot",
    "snapshots",
    "stage",
    "updates",
    "upsert",
    "workers",
    "write",
]

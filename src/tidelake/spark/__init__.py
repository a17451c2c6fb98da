"""Tidelake on Spark: reads, writes, ingest and merges as Spark jobs.

The only package that imports PySpark. It is thin: `tidelake.shard` plans, sorts, consolidates and commits;
this package brings the work to the workers. Only bytes and schemas go there, never a handle or a credential.

Works with PySpark 3.5 and newer; without one, or with an older one, importing it raises `ImportError`, with
the remedy. Each name is imported when it is first used: what a version of PySpark lacks stops nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

import tidelake.spark.installed as _installed  # noqa: F401  # raises if there is no PySpark
from tidelake.spark.idle import end_quietly

end_quietly()

if TYPE_CHECKING:
    from tidelake.feeds.reports import IngestReport, WriteReport, WrittenBatch
    from tidelake.spark.envelopes.debezium import parse_changes
    from tidelake.spark.envelopes.decoding import decode_events
    from tidelake.spark.jobs.backfill import backfill
    from tidelake.spark.jobs.export import ExportReport, export
    from tidelake.spark.jobs.ingest import ingest, ingest_change_files
    from tidelake.spark.jobs.maintain import MaintainReport, maintain
    from tidelake.spark.jobs.merge import merge, workers
    from tidelake.spark.jobs.refresh import refresh_stream
    from tidelake.spark.jobs.tables import ingest_tables
    from tidelake.spark.reading.frames import changes, history, snapshot, snapshots, updates
    from tidelake.spark.reading.holds import release
    from tidelake.spark.registering import register
    from tidelake.spark.session import local_session
    from tidelake.spark.source.format import TidelakeSource
    from tidelake.spark.statements.query import sql
    from tidelake.spark.views.life import explain, rebuild, refresh, verify, view
    from tidelake.spark.writing.append import append, write
    from tidelake.spark.writing.exactly_once import Sink, sink
    from tidelake.spark.writing.stage import stage
    from tidelake.spark.writing.tables import tables_sink
    from tidelake.spark.writing.upsert import delete, replace, upsert

_MODULES = {
    "envelopes.debezium": ("parse_changes",),
    "envelopes.decoding": ("decode_events",),
    "jobs.backfill": ("backfill",),
    "jobs.export": ("ExportReport", "export"),
    "jobs.ingest": ("ingest", "ingest_change_files"),
    "jobs.maintain": ("MaintainReport", "maintain"),
    "jobs.merge": ("merge", "workers"),
    "jobs.refresh": ("refresh_stream",),
    "jobs.tables": ("ingest_tables",),
    "reading.frames": ("changes", "history", "snapshot", "snapshots", "updates"),
    "reading.holds": ("release",),
    "registering": ("register",),
    ".feeds.reports": ("IngestReport", "WriteReport", "WrittenBatch"),
    "session": ("local_session",),
    "source.format": ("TidelakeSource",),
    "statements.query": ("sql",),
    "views.life": ("explain", "rebuild", "refresh", "verify", "view"),
    "writing.append": ("append", "write"),
    "writing.exactly_once": ("Sink", "sink"),
    "writing.stage": ("stage",),
    "writing.tables": ("tables_sink",),
    "writing.upsert": ("delete", "replace", "upsert"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ExportReport",
    "IngestReport",
    "MaintainReport",
    "Sink",
    "TidelakeSource",
    "WriteReport",
    "WrittenBatch",
    "append",
    "backfill",
    "changes",
    "decode_events",
    "delete",
    "explain",
    "export",
    "history",
    "ingest",
    "ingest_change_files",
    "ingest_tables",
    "local_session",
    "maintain",
    "merge",
    "parse_changes",
    "rebuild",
    "refresh",
    "refresh_stream",
    "register",
    "release",
    "replace",
    "sink",
    "snapshot",
    "snapshots",
    "sql",
    "stage",
    "tables_sink",
    "updates",
    "upsert",
    "verify",
    "view",
    "workers",
    "write",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Reports of arrangements and of checkpoints as plain rows, for people, logs and metrics.

Owns names and units of what is shown; must not know where it is printed. docs/arrangement.md lists the
counters.
"""

from dataclasses import asdict, replace

from tidelake.arrangement.batch.cache import ReadCounts
from tidelake.arrangement.checkpoint.saved import Checkpoint
from tidelake.arrangement.merge.levels import LEVELS, level_of
from tidelake.arrangement.merge.report import LevelReport, SpineReport
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.env import Recorder

Row = dict[str, int | float | str | bool]


def report_of(checkpoint: Checkpoint) -> SpineReport:
    """The report of an arrangement right after a checkpoint is restored; opens no batch file."""
    level_rows = ArrangementConfig().level_rows
    levels = [LevelReport(level) for level in range(LEVELS)]
    for batch in checkpoint.batches:
        at = level_of(batch.rows, level_rows)
        levels[at] = replace(
            levels[at],
            loose=levels[at].loose + 1,
            rows_on_disk=levels[at].rows_on_disk + batch.rows,
            negative_rows=levels[at].negative_rows + batch.negative_rows,
        )
    return SpineReport(
        levels=tuple(levels),
        bytes_in_memory=0,
        bytes_on_disk=checkpoint.size_bytes,
        used_bytes=0,
        pressure="low",
        waits=0,
        waited_s=0.0,
        sweeping=False,
        paused=False,
        reads=ReadCounts(),
    )


def totals(report: SpineReport) -> Row:
    """One row with the totals of a report."""
    merged, reads = report.merged, report.reads
    return {
        "batches": report.batches,
        "updates": report.rows,
        "retractions": report.negative_rows,
        "bytes_in_memory": report.bytes_in_memory,
        "bytes_on_disk": report.bytes_on_disk,
        "used_bytes": report.used_bytes,
        "pressure": report.pressure,
        "merges": merged.merges,
        "merge_s": round(merged.seconds, 3),
        "merge_reduction": round(merged.reduction, 4),
        "waits": report.waits,
        "waited_s": round(report.waited_s, 3),
        "sweeping": report.sweeping,
        "paused": report.paused,
        **asdict(reads),
    }


def level_rows(report: SpineReport) -> list[Row]:
    """One row for each level that has batches or has merged some."""
    return [
        {
            "level": level.level,
            "loose": level.loose,
            "merging": level.merging,
            "updates_in_memory": level.rows_in_memory,
            "updates_on_disk": level.rows_on_disk,
            "retractions": level.negative_rows,
            "merges": level.merged.merges,
            "inputs": level.merged.inputs,
            "steps": level.merged.steps,
            "merge_s": round(level.merged.seconds, 3),
            "merge_reduction": round(level.merged.reduction, 4),
        }
        for level in report.levels
        if level.loose or level.merging or level.merged.merges
    ]


# The totals that never decrease. Counters are whole numbers, so times are in milliseconds.
_COUNTED = (
    "merges",
    "waits",
    "cache_hits",
    "cache_misses",
    "range_misses",
    "filter_misses",
    "filter_hits",
    "filter_errors",
)


def counters(report: SpineReport) -> dict[str, int]:
    """The current values of counters by name: `arrangement.merges`, `arrangement.waited_ms` and so on."""
    all_ = totals(report)
    merged = report.merged
    return {
        **{f"arrangement.{name}": int(all_[name]) for name in _COUNTED},
        "arrangement.merge_inputs": merged.inputs,
        "arrangement.merge_rows_read": merged.rows_read,
        "arrangement.merge_rows_written": merged.rows_written,
        "arrangement.merge_ms": int(merged.seconds * 1000),
        "arrangement.waited_ms": int(report.waited_s * 1000),
    }


class Metrics:
    """Adds the difference between two successive reports to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: dict[str, int] = {}

    def tell(self, report: SpineReport) -> None:
        """Count what happened since the last call."""
        for level in report.levels:
            batches, name = level.loose + level.merging, f"{level.level}"
            self._recorder.gauge("arrangement.level.batches", batches, name)
            self._recorder.gauge("arrangement.level.updates", level.rows_in_memory + level.rows_on_disk, name)
        now = counters(report)
        for name, value in now.items():
            if value > self._told.get(name, 0):
                self._recorder.count(name, value - self._told.get(name, 0))
        self._told = now

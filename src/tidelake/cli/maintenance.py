"""The output of `merge` and `maintain`: progress, and what they did."""

import queue
import sys
from collections.abc import Sequence
from typing import Any

import click

from tidelake.cli import jsonlines, output, show
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.lake import Lake
from tidelake.shard.upkeep.reports import MaintenanceReport, MergeReport
from tidelake.state.spine.merging import MergeRequest


def merged(report: MergeReport) -> list[dict[str, Any]]:
    """Two rows: the collection before and after a merge."""
    return [
        {"": when, **show.counts(shape)}
        for when, shape in (("before", report.before), ("after", report.after))
    ]


def maintained(collection: Collection) -> dict[str, Any]:
    """Maintain a collection thoroughly, and show each merge in a terminal. Returns one row of the result."""
    with output.status() as say:

        def watch(request: MergeRequest) -> None:
            say(f"{collection.name}: merging {request.rows:,} updates of {request.sources} runs")

        report = collection.maintain(progress=watch)
    return maintained_as(collection, report)


def maintained_as(collection: Collection, report: MaintenanceReport) -> dict[str, Any]:
    """One row: what was done for a collection, and its current size."""
    return {**_maintained(collection.name, report), **_at_rest(collection)}


def keep_up(lake: Lake, names: Sequence[str] | None, interval_s: float, as_json: bool) -> None:
    """Maintain until interrupted; print a line whenever something was merged or deleted."""
    # This thread prints, not the worker, so that a closed pipe ends the command.
    reports = queue.SimpleQueue[tuple[str, MaintenanceReport]]()
    told = set[str]()
    with lake.upkeep(names, interval_s=interval_s, progress=lambda *seen: reports.put(seen)) as upkeep:
        # Ends when an interrupt or a signal ends the process.
        while True:
            found = {str(error) for error in (*list(upkeep.errors.values()), upkeep.last_error) if error}
            # Each once, however often upkeep meets it.
            for message in sorted(found - told):
                click.echo(f"tidelake: {message}", err=True)
            told = found
            try:
                name, report = reports.get(timeout=0.2)
            except queue.Empty:
                continue
            if (report.merges or report.collected.total) and as_json:
                click.echo(jsonlines.dump(output.with_lists(_maintained(name, report))))
                continue
            if report.merges:
                done = f"{report.rows_read:,} updates became {report.rows_written:,}"
                click.echo(f"{name}: {report.merges} merges, {done}, {report.seconds:.1f} s")
            if report.collected.total:
                gone = report.collected
                click.echo(f"{name}: {gone.objects:,} objects and {gone.entries:,} log entries deleted")
            sys.stdout.flush()


def _maintained(name: str, report: MaintenanceReport) -> dict[str, Any]:
    return {
        "collection": name,
        "merges": report.merges,
        "updates read": report.rows_read,
        "updates written": report.rows_written,
        "bytes written": report.bytes_written,
        "objects deleted": report.collected.objects,
        "complete": report.complete,
    }


def _at_rest(collection: Collection) -> dict[str, Any]:
    state = collection.state()
    return {"runs": state.spine.totals.runs, "updates": state.spine.totals.rows, **show.amplification(state)}

"""The output of `show --arrangement`: a saved checkpoint, or the arrangement restored from it."""

from pathlib import Path
from typing import Any

import click

from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory
from tidelake.arrangement.checkpoint.saved import Checkpoint
from tidelake.arrangement.merge.report import SpineReport
from tidelake.arrangement.overview import level_rows, report_of, totals
from tidelake.cli import jsonlines, output
from tidelake.lake.api.collection import Collection


def show_saved(path: Path, as_json: bool) -> None:
    """Print the newest checkpoint of a directory and its levels, and a line for each checkpoint."""
    directory = CheckpointDirectory(path)
    newest = directory.find()
    checkpoints = [_checkpoint(found) for found in directory.checkpoints()]
    _show(_checkpoint(newest), report_of(newest), checkpoints, as_json)


def show_live(collection: Collection, path: Path, as_json: bool) -> None:
    """Print the arrangement of a collection, restored from a checkpoint if there is one, and caught up."""
    with collection.arrange(restore=path, follow=False) as arrangement:
        last = arrangement.catch_up()
        domain = collection.domain
        head = {
            "collection": collection.name,
            "last_time": output.TimeCell(last, domain),
            "since": output.TimeCell(arrangement.since, domain),
            "keys": arrangement.key_count(),
        }
        _show(head, arrangement.report(), [], as_json)


def _checkpoint(found: Checkpoint) -> dict[str, Any]:
    followed = found.followed
    line = {
        "checkpoint": found.number,
        "saved_ms": found.saved_ms,
        "since": found.frontier,
        "collection": "" if followed is None else followed.name,
        "position": "" if followed is None else followed.position,
        "batches": len(found.batches),
        "updates": found.rows,
        "bytes": found.size_bytes,
    }
    return output.timed(line, found.domain)


def _show(
    head: dict[str, Any], report: SpineReport, checkpoints: list[dict[str, Any]], as_json: bool
) -> None:
    if as_json:
        there = [output.with_lists(row) for row in checkpoints]
        head = output.with_lists(head)
        lists = {"levels": level_rows(report), "checkpoints": there}
        click.echo(jsonlines.dump({**head, **totals(report), **lists}))
        return
    output.table([head], False)
    click.echo()
    # Too many for one line.
    output.table([{"in all": name, "": value} for name, value in totals(report).items()], False)
    for title, rows in (("levels", level_rows(report)), ("checkpoints", checkpoints)):
        if rows:
            click.echo()
            output.table([dict(row) for row in rows], False, title)

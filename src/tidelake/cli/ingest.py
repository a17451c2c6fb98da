"""The command ingest: files of a directory into a collection, by Spark."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelake import errors
from tidelake.cli.group import JSON, LAKE, NAME, cli
from tidelake.cli.spark import session

if TYPE_CHECKING:
    from tidelake.spark.jobs.ingest import IngestedBatch, IngestReport

_ENVELOPES = ("append", "debezium", "updates", "upsert")
# Of the command: of the envelope.
_OPTIONS = {"late": "late", "old_rows": "old_rows", "order_by": "order_by", "delete_column": "delete_column"}


@cli.command()
@LAKE
@NAME
@click.option(
    "--from",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    help="The directory of the files. Each is taken once: move files into it when they are complete.",
)
@click.option(
    "--envelope",
    type=click.Choice(_ENVELOPES),
    default="debezium",
    show_default=True,
    help="What rows mean: change events; rows that are added; rows with _time and _diff; new rows of keys.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="Of the files; default: JSON lines. Change events are JSON lines or Parquet.",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="What has been taken; default: .checkpoint-COLLECTION in the directory. Never share or delete it.",
)
@click.option("--follow", is_flag=True, help="Go on until interrupted, instead of taking what is there.")
@click.option("--max-files", type=click.IntRange(min=1), help="Files in one commit at most; default: all.")
@click.option(
    "--time",
    "time_",
    metavar="PATH",
    help="Where the time is: of change events a path (default: source.lsn, for ms source.ts_ms, for us "
    "source.ts_us), otherwise a column.",
)
@click.option(
    "--late", type=click.Choice(["refuse", "advance"]), help="What to do with times that are closed."
)
@click.option(
    "--old-rows",
    type=click.Choice(["events", "stored"]),
    help="Change events: whether old rows are in them, whole, or have to be looked up.",
)
@click.option("--order-by", metavar="PATH", help="Which of several events of a key and time is the last.")
@click.option("--delete-column", metavar="COLUMN", help="Upserts: true where a key is removed.")
@click.option(
    "--encoding",
    "encodings",
    multiple=True,
    metavar="COLUMN=ENCODING",
    help="Change events without a schema: bytes, bytes:SCALE (decimals), days, s, ms, us or ns.",
)
@click.option(
    "--rejects",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep lines that cannot be read in this folder, with the reason; default: they end the ingest.",
)
@click.option(
    "--writer", default="spark-ingest", show_default=True, help="Name of this ingest in the collection."
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Write on under a name that another checkpoint has used, with other files.",
)
@JSON
def ingest(lake: str, collection: str, as_json: bool, **given: Any) -> None:
    """Take the files of a directory into a collection, each exactly once, by Spark on this machine.

    It may be killed and started again at any point. Each commit is a batch of files.
    """
    import tidelake
    from tidelake.cli import output

    directory: Path = given["directory"]
    if not directory.is_dir():
        raise errors.UsageError(f"there is no directory {str(directory)!r}: create it, or check --from")
    with (
        tidelake.open(lake, create=False) as opened,
        session(f"tidelake ingest {collection}", "ingest") as spark,
    ):
        into = opened.collection(collection)
        with _progress() as progress:
            report = _run(spark, into, given, progress)
    output.table([_shown(collection, report)], as_json)


def _run(spark: Any, into: Any, given: dict[str, Any], progress: Any) -> "IngestReport":
    from tidelake.spark.jobs.ingest import ingest as run

    debezium, directory = given["envelope"] == "debezium", given["directory"]
    options = {name: given[option] for option, name in _OPTIONS.items()}
    if given["time_"] is not None:
        options["time"] = given["time_"]
    if given["encodings"]:
        options["encodings"] = ",".join(given["encodings"])
    if given["rejects"] is not None:
        options["rejects"] = str(given["rejects"])
    format_: Any = given["format_"] or "jsonl"
    if debezium and format_ == "jsonl":
        format_ = "text"
    return run(
        spark,
        into,
        directory,
        # Spark does not take files whose names begin with a dot for input.
        given["checkpoint"] or directory / f".checkpoint-{into.name}",
        envelope=given["envelope"],
        format=format_,
        available_now=not given["follow"],
        max_files_per_trigger=given["max_files"],
        writer=given["writer"],
        take_over=given["take_over"],
        progress=progress,
        **options,
    )


def _shown(collection: str, report: "IngestReport") -> dict[str, Any]:
    shown = {"collection": collection, **asdict(report)}
    shown["upper"] = report.upper
    return shown


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """Shows what has been taken, in a terminal; quiet otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        taken = {"batches": 0, "files": 0, "updates": 0}

        def seen(batch: "IngestedBatch") -> None:
            taken["batches"] += 1
            taken["files"] += batch.files
            taken["updates"] += batch.updates
            counts = ", ".join(f"{count:,} {name}" for name, count in taken.items())
            bar.update(task, description=f"{counts}, upper {batch.upper}")

        yield seen

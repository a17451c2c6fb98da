"""The command ingest: takes the files of a directory into a collection."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelake import errors
from tidelake.cli.group import JSON, LAKE, NAME, FilePath, cli

if TYPE_CHECKING:
    from tidelake.feeds.reports import IngestReport, WrittenBatch
    from tidelake.lake.api.lake import Lake
    from tidelake.model.time import TimeDomain

_WRITER = "spark-ingest"
_FEEDS = ("debezium", "maxwell", "canal", "dms", "ticdc", "wal2json", "goldengate", "dynamodb")
_ENVELOPES = ("updates", "upsert", *_FEEDS)


@cli.command()
@LAKE
@NAME
@click.argument("directory", type=FilePath())
@click.option(
    "--envelope",
    metavar="NAME",
    type=click.Choice(_ENVELOPES),
    default="updates",
    show_default=True,
    help="What rows mean. updates: rows to add or, by _diff, to remove; upsert: the new rows of their keys; "
    "debezium, maxwell, canal, dms, ticdc, wal2json, goldengate, dynamodb: change events of these tools.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl", "keyed", "csv", "parquet"]),
    default="jsonl",
    show_default=True,
    help="Format of the files; keyed: lines of a key, a tab and JSON, of change events.",
)
@click.option(
    "--checkpoint",
    type=FilePath(),
    help="Records which files are taken; default: .checkpoint-COLLECTION in the directory. Never share or "
    "delete it.",
)
@click.option(
    "--follow", is_flag=True, help="Run until interrupted; otherwise take the present files and end."
)
@click.option(
    "--max-files-per-trigger",
    metavar="N",
    type=click.IntRange(min=1),
    help="The most files in one commit; default: all.",
)
@click.option(
    "--time",
    "time_",
    metavar="PATH",
    help="Where the time is: for change events a path (default for debezium: the commit of the transaction "
    "or, of an unknown source.connector, source.lsn, for ms source.ts_ms, for us source.ts_us), otherwise a "
    "column.",
)
@click.option(
    "--late", type=click.Choice(["refuse", "advance"]), help="What to do with times that are closed."
)
@click.option(
    "--old-rows",
    type=click.Choice(["events", "stored"]),
    help="Change events: whether they contain the complete old rows, or these must be looked up.",
)
@click.option("--order-by", metavar="PATH", help="The value that orders the events of one key and time.")
@click.option(
    "--table",
    metavar="NAME",
    help="Messages of tools: only those of this table, such as shop.orders.",
)
@click.option(
    "--missing",
    type=click.Choice(["refuse", "null"]),
    help="Messages of tools: what a column is that a message leaves out.",
)
@click.option("--delete-column", metavar="COLUMN", help="Upserts: true where a key is removed.")
@click.option(
    "--encodings",
    metavar="COLUMN=ENCODING,...",
    help="Change events without a schema: bytes, bytes:SCALE (decimals), days, s, ms, us or ns.",
)
@click.option(
    "--rejects",
    type=FilePath(file_okay=False),
    help="Store lines that cannot be read in this folder, with the reason; default: such a line is an error.",
)
@click.option("--writer", default=_WRITER, show_default=True, help="Name of this ingest in the collection.")
@click.option(
    "--take-over",
    is_flag=True,
    help="Take over a writer name that another checkpoint has used for other files.",
)
@click.option(
    "--tables",
    is_flag=True,
    help="The files have change events of many tables. Each table goes to a collection of its own, "
    "COLLECTION.SCHEMA.TABLE, and each commit has all of them.",
)
@click.option(
    "--key",
    "keys",
    metavar="[TABLE=]COLUMN,...",
    multiple=True,
    help="With --tables: the key of a new collection, or of all; may be repeated.",
)
@click.option(
    "--time-unit",
    type=click.Choice(["counter", "ms", "us"]),
    help="With --tables: what times of new collections count (default: counter).",
)
@JSON
def ingest(lake: str, collection: str, as_json: bool, **given: Any) -> None:
    """Take files of a directory into a collection, each once.

    Each file of DIRECTORY is taken once: move files into it when they are complete. The command may be
    killed and restarted at any point. Each commit takes one batch of files.
    """
    import tidelake
    from tidelake.cli import output
    from tidelake.model.time import TimeDomain

    directory: Path = given["directory"]
    if not directory.is_dir():
        raise errors.UsageError(f"there is no directory {str(directory)!r}: create it first")
    _check_tables(given)
    # In the input directory: files whose names begin with a dot are ignored.
    given["checkpoint"] = given["checkpoint"] or directory / f".checkpoint-{collection}"
    with tidelake.open(lake, create=False) as opened:
        domain = TimeDomain.parse(given["time_unit"] or "counter")
        if not given["tables"]:
            domain = opened.collection(collection).domain
        with _progress(domain) as progress:
            report = _run(opened, collection, given, progress)
    told = _told(report)
    if given["tables"]:
        output.table([output.timed({"register": collection, **told}, domain)], as_json)
        return
    # What is told of several tables is empty here.
    told = {name: value for name, value in told.items() if not isinstance(value, dict | list)}
    output.table([output.timed({"collection": collection, **told}, domain)], as_json)


def _run(lake: "Lake", into: str, given: dict[str, Any], progress: Any) -> "IngestReport":
    """Take the files."""
    directory, tables = given["directory"], given["tables"]
    options = {"late": given["late"], "order_by": given["order_by"], "time": given["time_"]}
    options |= {"encodings": given["encodings"], "rejects": given["rejects"] and str(given["rejects"])}
    if tables:
        options |= {"keys": _keys(given["keys"]), "time_unit": given["time_unit"]}
        writer = "spark-tables" if given["writer"] == _WRITER else given["writer"]
    else:
        options |= {name: given[name] for name in ("old_rows", "delete_column", "table", "missing")}
        writer = given["writer"]
    options = {name: value for name, value in options.items() if value is not None}
    place = given["checkpoint"]
    how = {"format": given["format_"], "follow": given["follow"], "writer": writer}
    how |= {name: given[name] for name in ("take_over", "max_files_per_trigger")} | {"progress": progress}
    envelope = "debezium" if tables else given["envelope"]
    return lake.ingest(directory, into, envelope, tables=tables, checkpoint=place, **how, **options)


# Options that `--tables` does not take, and what they are by default.
_NOT_TABLES = {"old_rows": None, "delete_column": None, "table": None, "missing": None}


def _check_tables(given: dict[str, Any]) -> None:
    """Refuse options that do not go together with `--tables`, or without it."""
    if not given["tables"]:
        for name in ("keys", "time_unit"):
            if given[name]:
                raise errors.UsageError(f"--{name.replace('keys', 'key').replace('_', '-')} needs --tables")
        return
    wrong = [name for name, usual in _NOT_TABLES.items() if given[name] != usual]
    wrong += ["format_"] if given["format_"] not in ("jsonl", "keyed") else []
    if given["envelope"] not in ("updates", "debezium") or wrong:
        what = (
            f"--envelope {given['envelope']}" if not wrong else f"--{wrong[0].rstrip('_').replace('_', '-')}"
        )
        raise errors.UsageError(
            f"{what} does not go with --tables, which reads change events as JSON lines and looks old rows up"
        )


def _keys(words: tuple[str, ...]) -> Any:
    """The keys by table, or of all tables; None if none are given."""
    by_table: dict[str, list[str]] = {}
    for word in words:
        table, equals, columns = word.partition("=")
        if not equals:
            if len(words) > 1:
                raise errors.UsageError(f"--key {word} is for all tables, and goes with no other --key")
            return word.split(",")
        by_table[table] = columns.split(",")
    return by_table or None


def _told(report: "IngestReport") -> dict[str, Any]:
    about = {"batches": report.batches, "already": report.already}
    counts = {name: list(one) if isinstance(one, tuple) else one for name, one in report.counts().items()}
    return about | counts | {"upper": report.upper}


@contextlib.contextmanager
def _progress(domain: "TimeDomain") -> Iterator[Any]:
    """Show progress in a terminal; nothing otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        taken = {"batches": 0, "files": 0, "updates": 0}

        def seen(batch: "WrittenBatch") -> None:
            taken["batches"] += 1
            taken["files"] += batch.files
            taken["updates"] += batch.updates
            counts = ", ".join(f"{count:,} {name}" for name, count in taken.items())
            bar.update(task, description=f"{counts}, upper {domain.text(batch.upper)}")

        yield seen

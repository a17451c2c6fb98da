"""The commands mirror, publish and import: tables of Delta Lake and Iceberg, without Spark."""

from dataclasses import asdict
from typing import Any

import click

from tidelake import errors
from tidelake.cli.group import COLUMNS, JSON, LAKE, NAME, TIMEOUT, cli

_FORMAT = click.option(
    "--format",
    "format_",
    type=click.Choice(["delta", "iceberg"]),
    required=True,
    help="Format of the table.",
)
_OPTIONS = click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="Of the store of a Delta table, or of the catalog of an Iceberg table; may be repeated.",
)
_TABLE = click.argument("table")


@cli.command()
@LAKE
@NAME
@_TABLE
@_FORMAT
@click.option(
    "--changes", is_flag=True, help="The table holds every change, with _time and _diff, not the contents."
)
@click.option("--as-of", metavar="TIME", help="Bring it to this time; default: the last closed one.")
@COLUMNS
@click.option("--afresh", is_flag=True, help="Write all rows, and replace those that the table has.")
@_OPTIONS
@TIMEOUT
@JSON
def mirror(
    lake: str,
    collection: str,
    table: str,
    format_: Any,
    changes: bool,
    as_of: str | None,
    columns: str | None,
    afresh: bool,
    options: tuple[str, ...],
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Bring a Delta or Iceberg table to a collection's contents.

    The first run makes it; later runs write what has changed since. TABLE is a path or URL for Delta Lake,
    and CATALOG.NAMESPACE.TABLE for Iceberg. Needs the extra delta or iceberg, and no Spark. The command may
    be killed and run again at any point.
    """
    import tidelake
    from tidelake.cli import files, output
    from tidelake.tables import mirror as run

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        report = run(
            of,
            table,
            format=format_,
            holds="changes" if changes else "contents",
            as_of=files.time(as_of, of, "--as-of"),
            columns=files.names(columns),
            afresh=afresh,
            options=_pairs(options),
            timeout_s=timeout_s,
        )
    line = asdict(report)
    line["through"] = output.TimeCell(report.through, of.domain)
    line["after"] = None if report.after is None else output.TimeCell(report.after, of.domain)
    output.table([line], as_json)


@cli.command()
@LAKE
@NAME
@click.option(
    "--as", "format_", type=click.Choice(["delta", "iceberg"]), required=True, help="Format of the table."
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="So many versions can be read, the newest one included.",
)
@click.option("--end", is_flag=True, help="End the table: delete its metadata, and keep nothing for it.")
@JSON
def publish(lake: str, collection: str, format_: Any, keep: int, end: bool, as_json: bool) -> None:
    """Let other engines read a collection as Delta or Iceberg.

    The table's metadata names the collection's files. Rows that changed since a base are copied, and all rows
    while there is no base. Prints where the table is. Each run brings it to the last closed time. The command
    may be killed and run again at any point.
    """
    import tidelake
    from tidelake.cli import output
    from tidelake.tables import publish as run
    from tidelake.tables import unpublish

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        if end:
            ended = unpublish(of, format=format_)
            output.table([{"collection": collection, "format": format_, "ended": ended}], as_json)
            return
        report = run(of, format=format_, keep=keep)
    output.table([asdict(report) | {"through": output.TimeCell(report.through, of.domain)}], as_json)


@cli.command("import")
@LAKE
@NAME
@_TABLE
@_FORMAT
@click.option("--key", metavar="COLUMN,...", help="Key columns of a new collection.")
@click.option(
    "--time-unit",
    type=click.Choice(["counter", "ms", "us"]),
    default="counter",
    show_default=True,
    help="Times of a new collection: counter for numbers of versions, otherwise when they were committed.",
)
@click.option("--first", type=int, metavar="N", help="Begin with this version; default: the oldest listed.")
@_OPTIONS
@JSON
def import_(
    lake: str,
    collection: str,
    table: str,
    format_: Any,
    key: str | None,
    time_unit: str,
    first: int | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Take versions of a Delta or Iceberg table as times.

    Each is taken once. TABLE as for mirror. The first run creates the collection; later runs take the
    versions that have come since. Needs the extra delta or iceberg, and no Spark.
    """
    import tidelake
    from tidelake.cli import files, output
    from tidelake.tables import import_history

    with tidelake.open(lake) as opened:
        report = import_history(
            opened,
            collection,
            table,
            format=format_,
            key=files.names(key),
            time_unit=time_unit,
            first=first,
            options=_pairs(options),
        )
        domain = opened.collection(collection).domain
    output.table([{**asdict(report), "through": output.TimeCell(report.through, domain)}], as_json)


def _pairs(options: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise errors.UsageError(f"--option {option}: write NAME=VALUE")
        found[name] = value
    return found

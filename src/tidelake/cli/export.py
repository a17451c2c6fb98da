"""The command export: writes a snapshot or changes as a table of another format, by Spark."""

import os
from typing import TYPE_CHECKING, Any

import click

from tidelake import errors
from tidelake.cli.group import COLUMNS, JSON, LAKE, NAME, TIMEOUT, WHERE, cli

if TYPE_CHECKING:
    from tidelake.model.selection import TimesAs
    from tidelake.model.time import TimeDomain
    from tidelake.spark.jobs.export import ExportReport


@cli.command()
@LAKE
@NAME
@click.argument("path")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Format of the table. Delta Lake and Iceberg need their own packages in Spark.",
)
@click.option(
    "--as-of", metavar="TIME", help="Export the contents at this time; default: the last closed one."
)
@click.option(
    "--changes", nargs=2, metavar="AFTER THROUGH", help="Export the changes between two times instead."
)
@COLUMNS
@WHERE
@click.option(
    "--with-diff/--expanded",
    "with_diff",
    default=None,
    help="Write each row once with its multiplicity in _diff, or repeat it so many times; default: "
    "--expanded for contents, --with-diff for changes.",
)
@click.option(
    "--mode",
    type=click.Choice(["error", "overwrite", "append"]),
    default="error",
    show_default=True,
    help="What to do if PATH exists.",
)
@click.option(
    "--times",
    type=click.Choice(["int64", "timestamp"]),
    help="Also write the time of the contents or changes, in _time, as it is stored or as a timestamp.",
)
@TIMEOUT
@JSON
def export(
    lake: str,
    collection: str,
    path: str,
    format_: str,
    as_of: str | None,
    changes: tuple[str, str] | None,
    columns: str | None,
    where: str | None,
    with_diff: bool | None,
    mode: str,
    times: "TimesAs | None",
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Write contents or changes as Parquet, Delta or Iceberg.

    Runs as a Spark job on this machine. Readers of PATH see all of it or nothing.
    """
    import tidelake
    from tidelake.cli import files, output
    from tidelake.cli.spark import session

    if as_of is not None and changes:
        raise errors.UsageError("give --as-of or --changes, not both")
    if mode == "error":
        _check_free(path, format_)
    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        at = files.time(as_of, of, "--as-of")
        between = tuple(files.time(time, of, "--changes") for time in changes) if changes else None
        asked: dict[str, Any] = {
            "as_of": at,
            "changes": between,
            "columns": files.names(columns),
            "where": where,
            "with_diff": with_diff,
            "mode": mode,
            "times": times,
            "timeout_s": timeout_s,
            "format": format_,
        }
        with session("tidelake export", "export") as spark, output.status() as say:
            from tidelake.spark.jobs.export import export as exported

            say(f"exporting {collection} to {path}")
            report = exported(spark, of, path, **asked)
    output.table([_line(report, of.domain)], as_json)


def _check_free(path: str, format_: str) -> None:
    """Refuse a place that is taken before Spark is started, which takes long, and would say the same."""
    if "HADOOP_CONF_DIR" in os.environ or format_ == "iceberg":
        return  # a path may be one of another file system, and a table of Iceberg is a name
    place = path.removeprefix("file://")
    if os.path.exists(os.path.join(place, "_delta_log") if format_ == "delta" else place):
        raise errors.UsageError(
            f"there is something at {path!r}: choose another place, or give --mode overwrite"
        )


def _line(report: "ExportReport", domain: "TimeDomain") -> dict[str, Any]:
    from tidelake.cli.output import TimeCell

    times = {"through": TimeCell(report.through, domain)}
    if report.after is not None:
        times = {"after": TimeCell(report.after, domain), **times}
    return {
        "path": report.path,
        "format": report.format,
        "rows": report.rows,
        **times,
        "s": round(report.seconds, 1),
    }

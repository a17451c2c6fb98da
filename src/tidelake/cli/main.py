"""The `tidelake` command: its subcommands, and errors as one line with an exit code.

Exit codes: 0 done, 1 the demo found a difference or a bug in Tidelake, 2 mend the call, 3 a conflict with
another writer, 4 the time asked for is folded or still open, 5 the store did not do it (or did not say),
6 stored bytes are damaged or of a newer version.
"""

import sys
from pathlib import Path
from typing import Any

import click

from tidelake import errors

_EXIT_CODES: tuple[tuple[type[errors.TidelakeError], int], ...] = (
    (errors.UsageError, 2),
    (errors.UpperMismatch, 3),
    (errors.WriterFenced, 3),
    (errors.LeaseExpired, 3),
    (errors.HistoryCompacted, 4),
    (errors.NotYetClosed, 4),
    (errors.StoreUnavailable, 5),
    (errors.OutcomeUnknown, 5),
    (errors.CorruptionError, 6),
    (errors.BlobNotFound, 6),
    (errors.FormatTooNew, 6),
)

_lake = click.argument("lake")
_name = click.argument("collection")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON document, for programs.")
_rows = click.option("--json", "as_json", is_flag=True, help="One JSON object a row, for programs.")
_limit = click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Rows to print."
)
_out = click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to .parquet, .csv or .jsonl."
)
_timeout = click.option(
    "--timeout", "timeout_s", type=float, help="Seconds to wait for the time to be closed."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidelake")
def cli() -> None:
    """Collections that change over time: exact as-of reads and exact changes, with no server.

    LAKE is a directory (or file:/// URL). Every command prints a table, or JSON with --json.
    """


@cli.command()
@_lake
@_name
@click.option("--key", "keys", multiple=True, required=True, help="A key column; repeat for several.")
@click.option("--column", "columns", multiple=True, help="NAME:TYPE, as id:int64 or price:decimal128(10,2).")
@click.option(
    "--like", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Take the columns of a file."
)
@click.option("--time", default="counter", show_default=True, help="counter, ms, us or tuple(n).")
def create(
    lake: str, collection: str, keys: tuple[str, ...], columns: tuple[str, ...], like: Path | None, time: str
) -> None:
    """Make a collection (and the lake, if the directory is empty)."""
    import tidelake
    from tidelake.cli import files

    schema = files.schema_of(columns, keys, like)
    with tidelake.open(lake) as opened:
        made = opened.create(collection, schema, key=keys, time=time)
        click.echo(f"{collection}: {made.schema.to_string(show_schema_metadata=False)}".replace("\n", ", "))


@cli.command("ls")
@_lake
@_json
def list_(lake: str, as_json: bool) -> None:
    """List the collections of a lake."""
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        shown = [output.summary(opened.collection(name)) for name in opened.list()]
    output.table(shown, as_json, empty="no collections yet: make one with tidelake create")


@cli.command()
@_lake
@_name
@_json
def show(lake: str, collection: str, as_json: bool) -> None:
    """Show a collection's schema, frontiers, batches, writers and holds."""
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        output.show(opened.collection(collection), as_json)


@cli.command()
@_lake
@_name
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--time", help="Give all rows this time; otherwise the column _time, or the commit's.")
@click.option("--upper", help="Close all times before this one.")
@_json
def append(
    lake: str, collection: str, paths: tuple[Path, ...], time: str | None, upper: str | None, as_json: bool
) -> None:
    """Append updates from Parquet, CSV or JSON-lines files.

    Columns _time and _diff are used where they are; without them all rows are added at the commit.
    """
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        into = opened.collection(collection)
        table = files.read(paths, into, files.time(time, into.domain, "--time"))
        answer = into.append(table, upper=files.time(upper, into.domain, "--upper"))
    shown = {"rows": table.num_rows, "lower": str(answer.lower), "upper": str(answer.upper)}
    output.table([shown], as_json)


@cli.command()
@_lake
@_name
@click.option("--as-of", help="The time; default: the last closed one.")
@_limit
@_out
@_timeout
@_rows
def snapshot(
    lake: str,
    collection: str,
    as_of: str | None,
    limit: int,
    out: Path | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Print or write the exact contents as of a time."""
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        output.rows(
            of.snapshot(files.time(as_of, of.domain, "--as-of"), timeout_s=timeout_s), limit, out, as_json
        )


@cli.command()
@_lake
@_name
@click.argument("after")
@click.argument("through")
@_limit
@_out
@_timeout
@_rows
def changes(
    lake: str,
    collection: str,
    after: str,
    through: str,
    limit: int,
    out: Path | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Print or write the netted changes between two times."""
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        start, end = files.time(after, of.domain, "AFTER"), files.time(through, of.domain, "THROUGH")
        if start is None or end is None:
            raise errors.UsageError("give two times: AFTER and THROUGH")
        output.rows(of.changes(start, end, timeout_s=timeout_s), limit, out, as_json)


@cli.command()
@_lake
@_name
@click.option("--since", help="First let history before this time be folded.")
@click.option("--spark", is_flag=True, help="Run the merge as a Spark job.")
@_json
def merge(lake: str, collection: str, since: str | None, spark: bool, as_json: bool) -> None:
    """Merge all batches of a collection into one sorted run."""
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        wanted = files.time(since, of.domain, "--since")
        if wanted is not None:
            of.advance_since(wanted)
        if spark:
            from tidelake.spark.merge import merge as merge_by_spark
            from tidelake.spark.session import local_session

            session = local_session("tidelake merge")
            try:
                report = merge_by_spark(session, of)
            finally:
                session.stop()
        else:
            report = of.merge()
    output.table(output.merge_rows(report), as_json)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> None:
    """Run the main job on the history of a git repository; see tidelake demo --help."""
    from tidelake.cli.demo.command import demo as command

    command.main(list(arguments), prog_name="tidelake demo", standalone_mode=False)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    try:
        answer: Any = cli.main(arguments, prog_name="tidelake", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except errors.TidelakeError as error:
        click.echo(f"tidelake: {' '.join(str(error).split())}", err=True)
        sys.exit(next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1))
    except BrokenPipeError:
        # Somebody piped into `head`. Without this, Python complains again when it flushes at exit.
        sys.stdout = None
        sys.exit(0)
    sys.exit(answer if isinstance(answer, int) else 0)


if __name__ == "__main__":
    main()

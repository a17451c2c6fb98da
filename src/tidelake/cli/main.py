"""The `tidelake` command: its subcommands, and errors as one line with an exit code.

Exit codes: 0 done, 1 fsck or the demo found something, or a bug in Tidelake, 2 mend the call, 3 a conflict
with another writer, 4 the time asked for is folded or still open, 5 the store did not do it (or did not
say), 6 stored bytes are damaged or of a newer version.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelake import errors

if TYPE_CHECKING:
    from tidelake.lake.lake import Lake
    from tidelake.shard.upkeep.compactor import Workers

_EXIT_CODES: tuple[tuple[type[errors.TidelakeError], int], ...] = (
    (errors.UsageError, 2),
    (errors.UpperMismatch, 3),
    (errors.WriterFenced, 3),
    (errors.LeaseExpired, 3),
    (errors.UploadExpired, 3),
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
    "--limit", type=click.IntRange(min=0), help="At most so many rows; default: 20 in a table, otherwise all."
)
_out = click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to .parquet, .csv or .jsonl."
)
_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    help="Seconds to wait for the time to be closed; default: 30.",
)


class _Commands(click.Group):
    """The group, which takes a closed pipe for the end of the output: somebody piped into `head`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes again at exit, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return answer


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidelake")
def cli() -> None:
    """Collections that change over time: exact as-of reads and exact changes, with no server.

    LAKE is a directory (or file:/// URL). What shows something prints a table, or JSON with --json.

    \b
      tidelake create LAKE users --key id --column id:int64 --column name:string
      tidelake append LAKE users monday.csv
      tidelake snapshot LAKE users

    Exit codes: 1 fsck found something, 2 mend the call, 3 conflict with another writer, 4 the time is folded
    or still open, 5 the store did not do it, 6 damaged or of a newer version.
    """  # noqa: D301 - click looks for the very character


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
        shown = list(_summaries(opened))
    output.table(shown, as_json, empty="no collections yet: make one with tidelake create")


def _summaries(opened: "Lake") -> Iterator[dict[str, Any]]:
    """A line on each collection, but for those that are dropped meanwhile."""
    from tidelake.cli import output

    for name in opened.list():
        with contextlib.suppress(errors.CollectionNotFound):
            yield output.summary(opened.collection(name))


@cli.command()
@_lake
@_name
@_json
def show(lake: str, collection: str, as_json: bool) -> None:
    """Show a collection's schema, frontiers, retention, batches, writers, holds and garbage."""
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
@click.option(
    "--time", metavar="TIME", help="Give all rows this time; default: the column _time, or the commit's."
)
@click.option(
    "--upper", metavar="TIME", help="Close all times before this one; default: just past the last time."
)
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
        end = files.time(upper, into.domain, "--upper")
        table = files.read(paths, into, files.time(time, into.domain, "--time"))
        if not set(into.domain.columns) & set(table.column_names):
            named = ", ".join(into.domain.columns)
            if not into.domain.total_order or end is not None:
                raise errors.UsageError(f"the rows need times: give --time, or columns {named} in the file")
        elif end is None and not into.domain.total_order:
            raise errors.UsageError("tuples have no single last time: give --upper")
        answer = into.append(table, upper=end)
    shown = {"rows": table.num_rows, "lower": answer.lower, "upper": answer.upper}
    if answer.waited_s:
        shown["waited s"] = round(answer.waited_s, 3)
    output.table([shown], as_json)


@cli.command()
@_lake
@_name
@click.option("--as-of", metavar="TIME", help="The time; default: the last closed one.")
@click.option("--columns", metavar="NAMES", help="Names of columns, separated by commas; default: all.")
@click.option("--where", metavar="SQL", help='What is true of the rows to give, such as "price > 10".')
@_limit
@_out
@_timeout
@_rows
def snapshot(
    lake: str,
    collection: str,
    as_of: str | None,
    columns: str | None,
    where: str | None,
    limit: int | None,
    out: Path | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Print or write the exact contents as of a time."""
    import tidelake
    from tidelake.cli import files, output

    output.check_out(out)
    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        at = files.time(as_of, of.domain, "--as-of")
        if at is None and not of.domain.total_order:
            raise errors.UsageError("tuples have no single last time: give --as-of")
        names = None if columns is None else [name.strip() for name in columns.split(",")]
        found = of.snapshot(at, columns=names, where=where, timeout_s=timeout_s)
        output.rows(found, limit, out, as_json)


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
    limit: int | None,
    out: Path | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Print or write the netted changes between two times."""
    import tidelake
    from tidelake.cli import files, output

    output.check_out(out)
    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        start, end = files.time(after, of.domain, "AFTER"), files.time(through, of.domain, "THROUGH")
        if start is None or end is None:
            raise errors.UsageError("give two times: AFTER and THROUGH")
        output.rows(of.changes(start, end, timeout_s=timeout_s), limit, out, as_json)


@cli.command()
@_lake
@_name
@click.option("--since", metavar="TIME", help="First let history before this time be folded.")
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
        with _workers(spark, "tidelake merge") as workers:
            report = of.merge(workers)
    output.table(output.merge_rows(report), as_json)


@contextlib.contextmanager
def _workers(spark: bool, description: str) -> Iterator["Workers | None"]:
    """Who carries out merges: a local Spark session, or this process."""
    if not spark:
        yield None
        return
    try:
        from tidelake.spark.merge import workers
        from tidelake.spark.session import local_session
    except ImportError as error:
        raise errors.UsageError(f"--spark needs: pip install 'tidelake[spark]' ({error})") from error
    session = local_session(description)
    try:
        yield workers(session, description)
    finally:
        session.stop()


@cli.command()
@_lake
@_name
@click.option("--force", is_flag=True, help="Also if readers hold it: their holds end.")
@_json
def drop(lake: str, collection: str, force: bool, as_json: bool) -> None:
    """Drop a collection and delete all that it has stored. Its name cannot be used again.

    Finishes a drop that was interrupted.
    """
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        done = opened.drop(collection, force=force)
    output.table([{"collection": collection, "dropped": "now" if done else "before"}], as_json)


@cli.command()
@_lake
@click.argument("collections", nargs=-1)
@click.option("--once", is_flag=True, help="Bring the collections to rest, and leave.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Without --once: seconds between two rounds.",
)
@click.option("--spark", is_flag=True, help="With --once: run the merges as Spark jobs.")
@_json
def maintain(
    lake: str, collections: tuple[str, ...], once: bool, interval_s: float, spark: bool, as_json: bool
) -> None:
    """Carry out the merges that collections need: all, or those named. Runs until it is interrupted.

    Afterwards a read merges few runs, and no update is stored that a later one has cancelled, as far as
    history may go. What is no longer needed is deleted. Several may run at once; they keep out of each
    other's way.
    """
    import tidelake
    from tidelake.cli import output

    if spark and not once:
        raise errors.UsageError("--spark needs --once: a session is started for one round")
    with tidelake.open(lake, create=False) as opened:
        if not once:
            output.keep_up(opened, collections or None, interval_s, as_json)
            return
        if not collections:
            # First: what is half dropped is in the list, and cannot be opened.
            opened.collect()
        names = collections or tuple(opened.list())
        # All are opened first, so that a name that is none is told before the work begins.
        named = [opened.collection(name) for name in names]
        with _workers(spark, "tidelake maintain") as workers:
            shown = [output.maintained(one, workers) for one in named]
    output.table(shown, as_json, empty="no collections yet: make one with tidelake create")


@cli.command()
@_lake
@click.argument("collection", required=False)
@_json
def holds(lake: str, collection: str | None, as_json: bool) -> None:
    """Show who keeps history and parts back, and since when: of one collection, or of all.

    A leased hold ends when its reader shows no sign of life, with the next commit; a critical one when it
    is dropped. The versions that one has pinned are what keeps replaced files.
    """
    import tidelake
    from tidelake.cli import holds as shown
    from tidelake.cli import output
    from tidelake.env import SystemClock

    now_ms = SystemClock().now_ms()
    with tidelake.open(lake, create=False) as opened:
        names = [collection] if collection is not None else opened.list()
        lines = [line for name in names for line in shown.rows(opened.collection(name), now_ms)]
    output.table(lines, as_json, empty="nobody holds anything")


@cli.command()
@_lake
@_name
@click.argument("window")
@_json
def retain(lake: str, collection: str, window: str, as_json: bool) -> None:
    """Keep WINDOW of history before the upper, from now on: all, a number of times, or 7d, 12h, 30m, 45s.

    Spans are for times of unit ms and us. Holds keep more for as long as they last.
    """
    import tidelake
    from tidelake.cli import holds as shown
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        of.retain(shown.window(window))
        line = shown.retained(of)
    output.table([line], as_json)


@cli.command()
@_lake
@click.argument("collections", nargs=-1)
@click.option("--repair", is_flag=True, help="Mend what can be mended safely; no data is removed or made up.")
@click.option("--quick", is_flag=True, help="Do not read the parts: only logs, names and sizes.")
@_json
def fsck(lake: str, collections: tuple[str, ...], repair: bool, quick: bool, as_json: bool) -> int:
    """Check that what is stored is whole: all of a lake, or the collections named.

    May run beside everything else. Leaves with exit code 1 if findings are left.
    """
    import tidelake
    from tidelake.cli import integrity

    with tidelake.open(lake, create=False) as opened:
        return integrity.check(opened, collections or None, repair=repair, deep=not quick, as_json=as_json)


_as = click.option("--as", "as_name", metavar="NAME", help="Name of the copy; default: the same.")


@cli.command()
@_lake
@_name
@click.argument("to_lake")
@_as
@_json
def backup(lake: str, collection: str, to_lake: str, as_name: str | None, as_json: bool) -> None:
    """Copy a collection, as it is now, into TO_LAKE (made if empty), with its history and writers.

    Readers of TO_LAKE see all of it or nothing. What fails or is killed is repeated by the same call.
    """
    import tidelake
    from tidelake.cli import integrity

    with tidelake.open(lake, create=False) as opened:
        integrity.copied(
            lambda watch: opened.backup(collection, to_lake, as_name=as_name, watch=watch),
            collection,
            as_json,
        )


@cli.command()
@_lake
@_name
@click.argument("from_lake")
@_as
@_json
def restore(lake: str, collection: str, from_lake: str, as_name: str | None, as_json: bool) -> None:
    """Copy a collection of FROM_LAKE into LAKE (made if empty): a backup seen from the other side."""
    import tidelake
    from tidelake.cli import integrity

    with tidelake.open(from_lake, create=False) as source:
        # Looked for first: where there is nothing to restore, no lake is made.
        source.collection(collection)
    with tidelake.open(lake) as opened:
        integrity.copied(
            lambda watch: opened.restore(collection, from_lake, as_name=as_name, watch=watch),
            collection,
            as_json,
        )


# Its own parser does the work, --help included, so that nothing of it is loaded for the other commands.
@cli.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> object:
    """See it work: the history of a git repository, checked against git."""
    from tidelake.cli.demo.command import demo as command

    return command.main(list(arguments), prog_name="tidelake demo", standalone_mode=False)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    try:
        answer: Any = cli.main(arguments, prog_name="tidelake", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("tidelake: interrupted", err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(_usage(error), err=True)
        sys.exit(error.exit_code)
    except errors.TidelakeError as error:
        click.echo(f"tidelake: {' '.join(str(error).split())}", err=True)
        sys.exit(next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1))
    sys.exit(answer if isinstance(answer, int) else 0)


def _usage(error: click.ClickException) -> str:
    """What click has to say, in one line like our own errors."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "tidelake"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{path}: {message[:1].lower()}{message[1:]}; see {path} --help"


if __name__ == "__main__":
    main()

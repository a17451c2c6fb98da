"""Commands on collections and their rows: create, ls, show, append, snapshot, changes, history."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelake import errors
from tidelake.cli.group import (
    COLUMNS,
    DELETE_COLUMN,
    JSON,
    LAKE,
    LIMIT,
    NAME,
    ORDER_BY,
    OUT,
    PATHS,
    READ_ONLY,
    ROWS,
    STAGED,
    TIMEOUT,
    TIMES,
    WHERE,
    FilePath,
    cli,
    noted,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelake.lake.api.collection import Collection
    from tidelake.model.instants import TimeLike
    from tidelake.model.selection import TimesAs
    from tidelake.state.write.write import Appended


def _reading(find: Callable[..., "pa.RecordBatchReader"]) -> Callable[..., None]:
    """A command that prints or writes what `find` reads of a collection.

    `find` gets the collection, the arguments that all reads have, and the options of its own.
    """

    @wraps(find)
    def run(
        lake: str,
        collection: str,
        *,
        columns: str | None,
        where: str | None,
        limit: int | None,
        out: Path | None,
        timeout_s: float | None,
        staged: bool,
        times: "TimesAs | None",
        as_json: bool,
        read_only: bool,
        **own: object,
    ) -> None:
        import tidelake
        from tidelake.cli import files, output

        output.check_out(out)
        with tidelake.open(lake, create=False, read_only=read_only) as opened:
            of = opened.collection(collection)
            how = {
                "columns": files.names(columns),
                "where": where,
                "timeout_s": timeout_s,
                "staged": staged,
                "times": times or "int64",
            }
            found = find(of, how, **own)
            output.rows(found, limit, out, as_json, of.domain.text if times is None else str)

    for option in (READ_ONLY, ROWS, TIMES, STAGED, TIMEOUT, OUT, LIMIT, WHERE, COLUMNS):
        run = option(run)
    return run


@cli.command()
@LAKE
@NAME
@click.option("--key", "keys", multiple=True, required=True, help="A key column; repeat for several.")
@click.option("--column", "columns", multiple=True, help="NAME:TYPE, as id:int64 or price:decimal128(10,2).")
@click.option(
    "--like",
    type=FilePath(exists=True, dir_okay=False),
    help="Use the columns of this file; --column adds one, or gives one another type.",
)
@click.option("--time", default="counter", show_default=True, help="counter, ms, us, date or tuple(n).")
@click.option(
    "--allow-recreate", is_flag=True, help="Also if a collection of this name was dropped or renamed."
)
def create(
    lake: str,
    collection: str,
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    like: Path | None,
    time: str,
    allow_recreate: bool,
) -> None:
    """Make a collection, and the lake if there is none."""
    import tidelake
    from tidelake.cli import files

    schema = files.schema_of(columns, keys, like)
    with tidelake.open(lake) as opened:
        made = opened.create(collection, schema, key=keys, time=time, allow_recreate=allow_recreate)
        click.echo(f"{collection}: {made.schema.to_string(show_schema_metadata=False)}".replace("\n", ", "))


@cli.command("ls")
@LAKE
@JSON
@READ_ONLY
def list_(lake: str, as_json: bool, read_only: bool) -> None:
    """List the collections of a lake."""
    import tidelake
    from tidelake.cli import output
    from tidelake.cli.show import summary

    with tidelake.open(lake, create=False, read_only=read_only) as opened:
        failed = output.CommandFailed()
        names = {*opened.list()}
        shown = [summary(one) for one in opened.collections(failed.add) if one.name in names]
    output.table(shown, as_json, empty="no collections yet: make one with tidelake create", failed=failed)
    failed.check()


@cli.command()
@click.argument("lake", required=False)
@click.argument("collection", required=False)
@click.option(
    "--arrangement",
    "saved",
    type=FilePath(file_okay=False),
    help="Show the arrangement saved in this directory; with LAKE and COLLECTION, caught up with it.",
)
@JSON
@READ_ONLY
def show(
    lake: str | None, collection: str | None, saved: Path | None, as_json: bool, read_only: bool
) -> None:
    """Show a collection's columns, times, batches and holds.

    With --arrangement, show an arrangement: its contents and merges, level by level.
    """
    if lake is None and saved is not None:
        from tidelake.cli import arrangement

        arrangement.show_saved(saved, as_json)
        return
    if lake is None or collection is None:
        raise click.UsageError("give LAKE and COLLECTION, or --arrangement DIRECTORY, or all three")
    import tidelake

    with tidelake.open(lake, create=False, read_only=read_only) as opened:
        if saved is not None:
            from tidelake.cli import arrangement

            arrangement.show_live(opened.collection(collection), saved, as_json)
            return
        from tidelake.cli.show import show_collection

        show_collection(opened.collection(collection), as_json, opened.names)


@cli.command()
@LAKE
@NAME
@PATHS
@click.option(
    "--time", metavar="TIME", help="Time of all rows; default: the column _time, or one set at the commit."
)
@click.option(
    "--upper", metavar="TIME", help="Close all times before this one; default: just past the last time."
)
@click.option(
    "--envelope",
    type=click.Choice(["updates", "upsert", "snapshot"]),
    default="updates",
    show_default=True,
    help="What rows mean. updates: rows to add or, by _diff, to remove; upsert: the new rows of their keys; "
    "snapshot: the new contents.",
)
@ORDER_BY
@DELETE_COLUMN
@noted
@JSON
def append(
    lake: str,
    collection: str,
    paths: tuple[Path, ...],
    time: str | None,
    upper: str | None,
    envelope: str,
    order_by: str | None,
    delete_column: str | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Append updates from Parquet, CSV or JSON-lines files.

    A file - is standard input. Columns _time and _diff are used if present; without them all rows are added,
    at a time chosen at the commit. With --envelope upsert or snapshot, old rows are looked up and only
    differences are appended.
    """
    import tidelake
    from tidelake.cli import files

    if envelope != "updates" and upper is not None:
        raise errors.UsageError(f"--upper is for updates: leave it out with --envelope {envelope}")
    if envelope != "upsert" and (order_by is not None or delete_column is not None):
        raise errors.UsageError("--order-by and --delete-column are for --envelope upsert")
    with tidelake.open(lake, create=False) as opened:
        into = opened.collection(collection)
        at = files.time(time, into, "--time", read=False)
        end = files.time(upper, into, "--upper", read=False)
        with files.rows(paths, into, at if envelope == "updates" else None) as table:
            if envelope == "updates":
                answer = _append(into, table, end, **said)
            elif envelope == "upsert":
                answer = into.upsert(table, time=at, order_by=order_by, delete_column=delete_column, **said)
            else:
                answer = into.replace(table, time=at, **said)
    _print_answer(into, answer, as_json, said["token"], rows=0 if answer.already else table.num_rows)


@cli.command()
@LAKE
@NAME
@PATHS
@click.option("--time", metavar="TIME", help="Time of all rows; default: one set at the commit.")
@ORDER_BY
@DELETE_COLUMN
@noted
@JSON
def upsert(
    lake: str,
    collection: str,
    paths: tuple[Path, ...],
    time: str | None,
    order_by: str | None,
    delete_column: str | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Replace the rows of keys by the rows of some files.

    A file - is standard input. Rows of other keys stay. --delete-column says which rows remove their keys.
    """
    import tidelake
    from tidelake.cli import files

    with tidelake.open(lake, create=False) as opened:
        into = opened.collection(collection)
        at = files.time(time, into, "--time", read=False)
        with files.rows(paths, into, None) as table:
            answer = into.upsert(table, time=at, order_by=order_by, delete_column=delete_column, **said)
    _print_answer(into, answer, as_json, said["token"], rows=0 if answer.already else table.num_rows)


@cli.command()
@LAKE
@NAME
@click.argument("paths", nargs=-1, type=FilePath(exists=True, dir_okay=False, allow_dash=True))
@click.option("--key", "key", multiple=True, metavar="KEY", help="A key, as for history; repeat per column.")
@click.option("--where", metavar="SQL", help="Delete the rows that match; 'TRUE' deletes all.")
@click.option("--time", metavar="TIME", help="Time of the change; default: one set at the commit.")
@noted
@JSON
def delete(
    lake: str,
    collection: str,
    paths: tuple[Path, ...],
    key: tuple[str, ...],
    where: str | None,
    time: str | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Remove rows by their keys or by a condition.

    The files have the key columns only; - is standard input.
    """
    import tidelake
    from tidelake.cli import files

    if bool(paths) + bool(key) + (where is not None) != 1:
        raise errors.UsageError(
            "give one of --key, FILES with keys, and --where, which deletes all rows if it is 'TRUE'"
        )
    with tidelake.open(lake, create=False) as opened:
        into = opened.collection(collection)
        at = files.time(time, into, "--time", read=False)
        one = nullcontext(files.key(key, into) if key else None)
        with files.rows(paths, into, None) if paths else one as keys:
            answer = into.delete(keys, where=where, time=at, **said)
    _print_answer(into, answer, as_json, said["token"], removed=answer.removed, absent=answer.absent)


@cli.command()
@LAKE
@NAME
@click.option("--as-of", metavar="TIME", required=True, help="The time whose contents come back.")
@click.option("--time", metavar="TIME", help="Time of the change; default: one set at the commit.")
@noted
@JSON
def restore(
    lake: str,
    collection: str,
    as_of: str,
    time: str | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Bring back the contents of an earlier time. That is a change at an open time; history stays."""
    import tidelake
    from tidelake.cli import files

    with tidelake.open(lake, create=False) as opened:
        into = opened.collection(collection)
        then, at = files.time(as_of, into, "--as-of"), files.time(time, into, "--time", read=False)
        if then is None:
            raise errors.UsageError("give --as-of, the time whose contents come back")
        answer = into.restore(then, time=at, **said)
    _print_answer(into, answer, as_json, said["token"])


def _print_answer(
    into: "Collection", answer: "Appended", as_json: bool, token: str | None, **shown: Any
) -> None:
    from tidelake.cli import output

    shown |= {"lower": answer.lower, "upper": answer.upper}
    if answer.absent:
        shown["absent"] = answer.absent
    if token is not None:
        shown["already"] = answer.already
    if answer.waited_s:
        shown["waited s"] = round(answer.waited_s, 3)
    output.table([output.timed(shown, into.domain)], as_json)


def _append(into: "Collection", table: "pa.Table", end: "TimeLike | None", **said: Any) -> "Appended":
    if not set(into.domain.columns) & set(table.column_names):
        named = ", ".join(into.domain.columns)
        if not into.domain.total_order or end is not None:
            raise errors.UsageError(f"the rows need times: give --time, or {named} in the file")
    elif end is None and not into.domain.total_order:
        raise errors.UsageError("tuples have no single last time: give --upper")
    return into.append(table, upper=end, **said)


@cli.command()
@LAKE
@NAME
@click.option(
    "--as-of",
    metavar="TIME",
    help="The time; default: the last closed one or, with --staged, the last one with updates.",
)
@_reading
def snapshot(of: "Collection", how: dict[str, Any], as_of: str | None) -> "pa.RecordBatchReader":
    """Print or write the exact contents as of a time."""
    from tidelake.cli import files

    at = files.time(as_of, of, "--as-of")
    if at is None and not of.domain.total_order:
        raise errors.UsageError("tuples have no single last time: give --as-of")
    return of.snapshot(at, **how)


@cli.command()
@LAKE
@NAME
@click.argument("after")
@click.argument("through")
@_reading
def changes(of: "Collection", how: dict[str, Any], after: str, through: str) -> "pa.RecordBatchReader":
    """Print or write the net changes between two times."""
    from tidelake.cli import files

    start, end = files.time(after, of, "AFTER"), files.time(through, of, "THROUGH")
    if start is None or end is None:
        raise errors.UsageError("give two times: AFTER and THROUGH")
    return of.changes(start, end, **how)


@cli.command()
@LAKE
@NAME
@click.argument("key", nargs=-1, required=True)
@click.option("--lower", metavar="TIME", help="Begin with updates at TIME; default: with all that is known.")
@click.option("--upper", metavar="TIME", help="End before TIME; default: with the last closed time.")
@_reading
def history(
    of: "Collection", how: dict[str, Any], key: tuple[str, ...], lower: str | None, upper: str | None
) -> "pa.RecordBatchReader":
    """Print or write the updates of a key in order of time.

    KEY is the value of the key column; of several key columns, their values in order.
    """
    from tidelake.cli import files

    start = files.time(lower, of, "--lower", read=False)
    end = files.time(upper, of, "--upper", read=False)
    return of.history(files.key(key, of), start, end, **how).to_reader()

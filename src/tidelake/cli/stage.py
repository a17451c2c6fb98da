"""Commands on open times and on several collections at once: stage, seal, write, join, leave."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelake import errors
from tidelake.cli.group import JSON, LAKE, NAME, PATHS, TOKEN, cli

if TYPE_CHECKING:
    from tidelake.model.instants import TimeLike


@cli.command()
@LAKE
@NAME
@PATHS
@click.option("--time", metavar="TIME", help="Give all rows this time; default: the column _time.")
@TOKEN
@JSON
def stage(
    lake: str, collection: str, paths: tuple[Path, ...], time: str | None, token: str | None, as_json: bool
) -> None:
    """Stage updates from files at open times. They are visible when these are closed."""
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        into = opened.collection(collection)
        at = files.time(time, into, "--time", read=False)
        with files.rows(paths, into, at) as table:
            if not set(into.domain.columns) <= set(table.column_names):
                named = ", ".join(into.domain.columns)
                raise errors.UsageError(f"the rows need times: give --time, or {named} in the file")
            kept = into.stage(table, token=token)
        one = {"rows": table.num_rows if kept else 0, "upper": into.upper, "already": not kept}
        output.table([output.timed(one, into.domain)], as_json)


@cli.command()
@LAKE
@click.argument("closed", nargs=-1, required=True, metavar="COLLECTION UPPER | COLLECTION=UPPER...")
@JSON
def seal(lake: str, closed: tuple[str, ...], as_json: bool) -> None:
    """Close times: updates that are staged for them are seen.

    UPPER is the first time that stays open. The times of several collections, given as COLLECTION=UPPER, are
    closed at one instant.
    """
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        if len(closed) == 2 and "=" not in closed[1]:
            of = opened.collection(closed[0])
            end = files.time(closed[1], of, "UPPER", read=False)
            answer = of.seal(_required(end))
            one = {"lower": answer.lower, "upper": answer.upper, "already": answer.already}
            output.table([output.timed(one, of.domain)], as_json)
            return
        given = pairs(closed, "UPPER")
        uppers = {name: files.time(end, opened.collection(name), name, read=False) for name, end in given}
        done = opened.seal({name: _required(end) for name, end in uppers.items()})
        members = [opened.collection(name) for name in uppers]
        shown = [
            output.timed({"collection": of.name, "upper": of.upper, "already": done.already}, of.domain)
            for of in members
        ]
        output.table(shown, as_json)


@cli.command()
@LAKE
@click.argument("written", nargs=-1, required=True, metavar="COLLECTION=FILE...")
@click.option("--time", metavar="TIME", help="Time of all rows; default: _time, or one chosen at the commit.")
@TOKEN
@JSON
def write(lake: str, written: tuple[str, ...], time: str | None, token: str | None, as_json: bool) -> None:
    """Append files to several collections at one instant.

    All of them are committed, or none. From then on the collections form a group: their times are closed
    together, until they leave it.
    """
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        at = domain = None
        with opened.transaction(token=token) as transaction:
            for name, path in pairs(written, "FILE"):
                into = opened.collection(name)
                domain = into.domain
                at = files.time(time, into, "--time", read=False)
                file = Path(path).expanduser()
                if not file.is_file():
                    raise errors.UsageError(f"there is no file {path!r}, of collection {name!r}")
                with files.rows((file,), into, at) as table:
                    transaction.write(name, table)
            done = transaction.commit()
        one = {"upper": done.upper, "already": done.already}
        output.table([one if domain is None else output.timed(one, domain)], as_json)


@cli.command()
@LAKE
@click.argument("collections", nargs=-1, required=True, metavar="COLLECTION...")
@JSON
def join(lake: str, collections: tuple[str, ...], as_json: bool) -> None:
    """Let collections form a group. From then on their times are closed together, until they `leave` it."""
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        opened.join(collections)
        output.table([{"collection": name, "joined": True} for name in collections], as_json)


@cli.command()
@LAKE
@NAME
@JSON
def leave(lake: str, collection: str, as_json: bool) -> None:
    """Remove a collection from its group. From then on it is written to alone."""
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        left = opened.leave(collection)
    if left or as_json:
        output.table([{"collection": collection, "left": left}], as_json)
    else:
        click.echo(f"{collection} is in no group: nothing was changed")


def pairs(given: Sequence[str], what: str) -> list[tuple[str, str]]:
    """Split each argument at its last `=` into the name of a collection and a value."""
    found = [one.rpartition("=")[::2] for one in given]
    bare = next((one for one, (name, value) in zip(given, found, strict=True) if not (name and value)), None)
    if bare is not None:
        raise errors.UsageError(f"{bare!r} names no collection, or nothing for it: give COLLECTION={what}")
    return [(name, value) for name, value in found]


def _required(end: "TimeLike | None") -> "TimeLike":
    if end is None:
        raise errors.UsageError("give a time: UPPER")
    return end

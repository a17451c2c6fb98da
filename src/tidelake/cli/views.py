"""Commands about views: make one, bring them up to their inputs, check one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelake.cli.group import JSON, LAKE, NAME, FilePath, cli

if TYPE_CHECKING:
    from tidelake.views.explaining import Explained
    from tidelake.views.refreshed import Refreshed


@cli.command()
@LAKE
@click.argument("name")
@click.argument("query", type=FilePath(exists=True, dir_okay=False, allow_dash=True))
@click.option("--key", metavar="NAMES", help="Key columns, separated by commas; default: the first column.")
@click.option(
    "--every", metavar="SPAN", help="Exact at multiples of this only, such as 1h; default: at all times."
)
@click.option("--max-lag", metavar="SPAN", help="Hold no more history of the inputs than this; default: all.")
@click.option(
    "--together", metavar="NAME", default="", help="Change by one commit with all views of this NAME."
)
@click.option("--replace", is_flag=True, help="Take the place of a view of another query.")
@click.option("--allow-recreate", is_flag=True, help="Also if one called NAME was dropped or renamed.")
@JSON
def view(
    lake: str,
    name: str,
    query: Path,
    key: str | None,
    every: str | None,
    max_lag: str | None,
    together: str,
    replace: bool,
    allow_recreate: bool,
    as_json: bool,
) -> None:
    """Make a collection of the answer of a query. The query comes from a file or (-) from standard input."""
    import tidelake

    text = _query(query)
    columns = None if key is None else [one.strip() for one in key.split(",")]
    with tidelake.open(lake, create=False) as opened:
        before = opened.names()
        made = opened.view(
            name,
            text,
            key=columns,
            every=_span(every),
            max_lag=_span(max_lag),
            together=together,
            replace=replace,
            allow_recreate=allow_recreate,
        )
        _show(opened.explain(name), as_json)
        if made.id in before and not as_json:
            click.echo(f"{name} has this query already: nothing was changed; rebuild makes it again")


@cli.command()
@LAKE
@NAME
@click.option("--by", metavar="NAMES", required=True, help="The columns to look up by, separated by commas.")
@JSON
def index(lake: str, collection: str, by: str, as_json: bool) -> None:
    """Keep all rows of a collection by another key. Views and look-ups by these columns use it."""
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        made = opened.index(collection, [one.strip() for one in by.split(",")])
        output.table([output.timed({"index": made.name, "upper": made.upper}, made.domain)], as_json)


def _query(path: Path) -> str:
    from tidelake.errors import UsageError

    try:
        # Editors of some systems begin a file with a mark.
        with click.open_file(str(path), encoding="utf-8-sig") as file:
            return str(file.read())
    except UnicodeDecodeError as error:
        raise UsageError(f"the query in {str(path)!r} is no text in UTF-8: save it as such") from error


def _span(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


@cli.command()
@LAKE
@click.argument("collection", required=False)
@JSON
def refresh(lake: str, collection: str | None, as_json: bool) -> None:
    """Bring views up to their inputs: all, or the one named.

    One comes with the views that it stands on. A view that fails stops no other one; the first error decides
    the exit code.
    """
    import tidelake
    from tidelake import errors
    from tidelake.cli import output
    from tidelake.tabletext import harmless

    failed, shown, waits = output.CommandFailed(), list[dict[str, object]](), dict[str, tuple[str, ...]]()
    with tidelake.open(lake, create=False) as opened:
        for name, one in opened._refreshes(collection):
            if isinstance(one, errors.TidelakeError):
                failed.add(name, one)
            else:
                read = sum(one.read.values())
                shown.append({"view": name, "upper": one.upper, "rows": one.rows, "read": read})
                waits[name] = one.waits_for
    lines = [one | {"waits_for": list(waits[str(one["view"])])} for one in shown] if as_json else shown
    output.table(lines, as_json, empty="no views", failed=failed)
    for name, inputs in () if as_json else waits.items():
        for of in inputs:
            how = "" if of in waits else ": append to it or seal it"
            click.echo(harmless(f"{name} waits for {of!r}{how}"))
    failed.check()


@cli.command()
@LAKE
@NAME
@JSON
def explain(lake: str, collection: str, as_json: bool) -> None:
    """Show what a view computes, waits for and keeps."""
    import tidelake

    with tidelake.open(lake, create=False) as opened:
        _show(opened.explain(collection), as_json)


def _show(found: "Explained", as_json: bool) -> None:
    """Print what a view computes."""
    from tidelake.cli import jsonlines, output
    from tidelake.tabletext import harmless

    if not as_json:
        click.echo("\n".join(map(harmless, str(found).split("\n"))))
        return
    inputs = [{"input": name, "upper": upper, "behind": behind} for name, upper, behind in found.inputs]
    told = {
        "view": found.view,
        "sql": found.sql,
        "engine": found.engine,
        "birth": found.birth,
        "upper": found.upper,
        "stages": [dict(zip(("stage", "rule", "of", "what"), one, strict=True)) for one in found.stages],
        "whole": found.whole,
        "inputs": [output.with_lists(one) for one in inputs],
        "kept": [{"kept": name, "updates": rows, "bytes": size} for name, rows, size in found.kept],
        "notes": found.notes,
        "last_refresh": None if found.last is None else _told(found.last),
    }
    click.echo(jsonlines.dump(output.with_lists(told)))


def _told(last: "Refreshed") -> dict[str, object]:
    from tidelake.cli import output

    stages = [dict(zip(("stage", "read", "updates", "how"), one, strict=True)) for one in last.stages]
    told = {"lower": last.lower, "upper": last.upper, "rows": last.rows, "read": last.read, "stages": stages}
    return output.with_lists(told | {"took_s": last.took_s, "place": last.place})


@cli.command()
@LAKE
@NAME
@JSON
def rebuild(lake: str, collection: str, as_json: bool) -> None:
    """Make a view again from what its inputs have now. Until it has caught up, readers see the old one."""
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        made = opened.rebuild(collection)
        output.table([output.timed({"view": collection, "upper": made.upper}, made.domain)], as_json)


@cli.command()
@LAKE
@NAME
@click.option("--as-of", metavar="TIME", help="The time; default: the last closed one.")
@JSON
def verify(lake: str, collection: str, as_of: str | None, as_json: bool) -> None:
    """Compare a view with the answer of its query. Exit code 1 says that they differ."""
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        time = files.time(as_of, opened.collection(collection), "--as-of")
        found = opened.verify(collection, time)
    rows = [{"row": str(row), "is": "missing"} for row in found.missing]
    rows += [{"row": str(row), "is": "unexpected"} for row in found.unexpected]
    output.table(rows, as_json, empty=f"{found.rows:,} rows, as the query says")
    for note in found.notes:
        click.echo(note, err=True)
    if not found.equal:
        raise click.exceptions.Exit(1)

"""Commands about views: make one, bring them up to their inputs, check one."""

from pathlib import Path

import click

from tidelake.cli.group import JSON, LAKE, NAME, FilePath, cli


@cli.command()
@LAKE
@click.argument("name")
@click.argument("query", type=FilePath(exists=True, dir_okay=False, allow_dash=True))
@click.option("--key", metavar="NAMES", help="Key columns, separated by commas; default: the first column.")
@click.option(
    "--every", metavar="SPAN", help="Exact at multiples of this only, such as 1h; default: at all times."
)
@click.option("--max-lag", metavar="SPAN", help="Hold no more history of the inputs than this; default: all.")
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
    replace: bool,
    allow_recreate: bool,
    as_json: bool,
) -> None:
    """Make a collection of the answer of a query, from a file or (-) from standard input."""
    import tidelake
    from tidelake.cli import output

    with click.open_file(str(query), encoding="utf-8") as file:
        text = file.read()
    columns = None if key is None else [one.strip() for one in key.split(",")]
    with tidelake.open(lake, create=False) as opened:
        made = opened.view(
            name,
            text,
            key=columns,
            every=_span(every),
            max_lag=_span(max_lag),
            replace=replace,
            allow_recreate=allow_recreate,
        )
        stages = [
            {"stage": number, "rule": rule, "of": of, "what": what}
            for number, rule, of, what in opened.explain(name).stages
        ]
        output.table(stages, as_json, title=f"{name}, upper {made.domain.text(made.upper)}")


def _span(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


@cli.command()
@LAKE
@click.argument("collection", required=False)
@JSON
def refresh(lake: str, collection: str | None, as_json: bool) -> None:
    """Bring all views up to their inputs, or one with the views that it stands on."""
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        done = [
            {"view": one.view, "upper": one.upper, "rows": one.rows, "read": sum(one.read.values())}
            for one in opened.refresh(collection)
        ]
    output.table(done, as_json, empty="no views")


@cli.command()
@LAKE
@NAME
@click.option("--as-of", metavar="TIME", help="The time; default: the last closed one.")
@JSON
def verify(lake: str, collection: str, as_of: str | None, as_json: bool) -> None:
    """Compute the query of a view over its inputs, and compare; exit code 1 if they differ."""
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        time = files.time(as_of, opened.collection(collection), "--as-of")
        found = opened.verify(collection, time)
    rows = [{"row": str(row), "is": "missing"} for row in found.missing]
    rows += [{"row": str(row), "is": "unexpected"} for row in found.unexpected]
    output.table(rows, as_json, empty=f"{found.rows:,} rows, as the query says")
    if not found.equal:
        raise click.exceptions.Exit(1)

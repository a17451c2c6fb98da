"""Commands on open times: stage, seal."""

from pathlib import Path

import click

from tidelake import errors
from tidelake.cli.group import JSON, LAKE, NAME, cli


@cli.command()
@LAKE
@NAME
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--time", metavar="TIME", help="Give all rows this time; default: the column _time.")
@click.option("--token", metavar="TEXT", help="A name for this very call: given again, it stages nothing.")
@JSON
def stage(
    lake: str, collection: str, paths: tuple[Path, ...], time: str | None, token: str | None, as_json: bool
) -> None:
    """Keep updates of Parquet, CSV or JSON-lines files at times that are open, until they are closed."""
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        into = opened.collection(collection)
        table = files.read(paths, into, files.time(time, into.domain, "--time"))
        if not set(into.domain.columns) <= set(table.column_names):
            named = ", ".join(into.domain.columns)
            raise errors.UsageError(f"the rows need times: give --time, or columns {named} in the file")
        kept = into.stage(table, token=token)
        output.table(
            [{"rows": table.num_rows if kept else 0, "upper": into.upper, "already": not kept}], as_json
        )


@cli.command()
@LAKE
@NAME
@click.argument("upper", metavar="UPPER")
@JSON
def seal(lake: str, collection: str, upper: str, as_json: bool) -> None:
    """Close all times before UPPER: what is staged for them is in the collection from then on."""
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        end = files.time(upper, of.domain, "UPPER")
        if end is None:
            raise errors.UsageError("give a time: UPPER")
        answer = of.seal(end)
        output.table([{"lower": answer.lower, "upper": answer.upper, "already": answer.already}], as_json)

"""Commands by which collections get another name, are forked and dropped."""

import os

import click

from tidelake import errors
from tidelake.cli.group import JSON, LAKE, NAME, cli


@cli.command()
@LAKE
@NAME
@click.argument("new_name")
@click.option("--swap", is_flag=True, help="NEW_NAME is also a collection: exchange the two names at once.")
@click.option("--allow-recreate", is_flag=True, help="Also if one called NEW_NAME was dropped or renamed.")
@JSON
def rename(
    lake: str, collection: str, new_name: str, swap: bool, allow_recreate: bool, as_json: bool
) -> None:
    """Give a collection another name. Processes that have it open continue with it.

    The old name is kept like that of a dropped collection, so that jobs that still use it get an error that
    says so.
    """
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        if swap:
            opened.swap(collection, new_name)
        else:
            opened.rename(collection, new_name, allow_recreate=allow_recreate)
    lines = [{"collection": collection, "is now": new_name}]
    output.table(lines + [{"collection": new_name, "is now": collection}] * swap, as_json)


@cli.command()
@LAKE
@NAME
@click.argument("new_name")
@click.option(
    "--as-of", metavar="TIME", help="The last closed time of the fork; default: that of COLLECTION."
)
@click.option(
    "--to-seqno",
    type=click.IntRange(min=0),
    help="Fork this version (fsck names them), also of a damaged collection. Its parts are copied.",
)
@click.option("--allow-recreate", is_flag=True, help="Also if one called NEW_NAME was dropped or renamed.")
@JSON
def fork(
    lake: str,
    collection: str,
    new_name: str,
    as_of: str | None,
    to_seqno: int | None,
    allow_recreate: bool,
    as_json: bool,
) -> None:
    """Make a collection with the contents of another one.

    Those of now, or of an earlier time. Nothing is copied, except with --to-seqno. Afterwards both are
    independent, and either may be dropped.
    """
    import tidelake
    from tidelake.cli import files, output, show

    with tidelake.open(lake, create=False) as opened:
        # Open the source only for --as-of: a damaged collection cannot be opened, and need not be.
        at = None if as_of is None else files.time(as_of, opened.collection(collection), "--as-of")
        made = opened.fork(collection, new_name, at, to_seqno=to_seqno, allow_recreate=allow_recreate)
        output.table([show.summary(made)], as_json)


@cli.command()
@LAKE
@NAME
@click.option("--force", is_flag=True, help="Drop it even if readers hold it: their holds end.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@JSON
def drop(lake: str, collection: str, force: bool, yes: bool, as_json: bool) -> None:
    """Drop a collection and delete all its objects.

    Its name is not reused by accident. Also finishes an interrupted drop. Without a terminal to ask in, it
    needs --yes.
    """
    import tidelake
    from tidelake.cli import output

    if not yes:
        if not os.isatty(0):
            raise errors.UsageError(f"{collection!r} and its history would be deleted: give --yes to agree")
        click.confirm(f"Delete {collection!r} with its history from {lake!r}?", abort=True, err=True)
    with tidelake.open(lake, create=False) as opened:
        done = opened.drop(collection, force=force)
    output.table([{"collection": collection, "dropped": "now" if done else "before"}], as_json)

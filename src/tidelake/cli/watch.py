"""Commands that tell what happens and has happened to collections: log, diff, top."""

from typing import TYPE_CHECKING, Any

import click

from tidelake import errors
from tidelake.cli.group import COLUMNS, JSON, LAKE, NAME, READ_ONLY, STAGED, TIMEOUT, WHERE, cli

if TYPE_CHECKING:
    from tidelake.lake.api.lake import Lake


@cli.command("log")
@LAKE
@NAME
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="At most so many commits."
)
@click.option("--all", "every", is_flag=True, help="Also commits that readers do not see: merges, holds.")
@JSON
@READ_ONLY
def log_(lake: str, collection: str, limit: int, every: bool, as_json: bool, read_only: bool) -> None:
    """List the newest commits of a collection.

    The log goes back to the newest rollup at least; the first commits are gone in time.
    """
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False, read_only=read_only) as opened:
        of = opened.collection(collection)
        lines = [
            {
                "seqno": one.seqno,
                "committed_ms": one.committed_ms,
                "what": one.what,
                "writer": ", ".join(one.writers) or None,
                "updates": one.rows,
                "bytes": one.size_bytes,
                "upper": one.upper,
                "author": one.author or None,
                "message": one.message or None,
            }
            for one in of.commits(limit, every=every)
        ]
        output.table([output.timed(line, of.domain) for line in lines], as_json, empty="no commits")


@cli.command()
@LAKE
@NAME
@click.argument("after")
@click.argument("through")
@COLUMNS
@WHERE
@click.option(
    "--limit", type=click.IntRange(min=0), default=100, show_default=True, help="At most so many rows."
)
@TIMEOUT
@STAGED
@READ_ONLY
def diff(
    lake: str,
    collection: str,
    after: str,
    through: str,
    columns: str | None,
    where: str | None,
    limit: int,
    timeout_s: float | None,
    staged: bool,
    read_only: bool,
) -> None:
    """Print what changed between two times, for people.

    Rows that went have a - and are red; those that came have a + and are green. `changes` gives the same for
    programs.
    """
    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False, read_only=read_only) as opened:
        of = opened.collection(collection)
        start, end = files.time(after, of, "AFTER"), files.time(through, of, "THROUGH")
        if start is None or end is None:
            raise errors.UsageError("give two times: AFTER and THROUGH")
        found = of.changes(
            start, end, columns=files.names(columns), where=where, timeout_s=timeout_s, staged=staged
        )
        key = [name for name in of.key if name in found.schema.names]
        output.diff(found, limit, key, of.domain.columns)


@cli.command()
@LAKE
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once, and end.")
@JSON
@READ_ONLY
def top(lake: str, interval_s: float, once: bool, as_json: bool, read_only: bool) -> None:
    """Show the large merges that are under way, and by whom.

    Runs until interrupted. Each look reads the state of every collection.
    """
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False, read_only=read_only) as opened:
        while True:
            lines = _merging(opened)
            if not once and not as_json:
                output.console().clear()
            output.table(lines, as_json, empty="no merges under way")
            if once:
                return
            opened.env.clock.sleep(interval_s)


def _merging(lake: "Lake") -> list[dict[str, Any]]:
    """One row for each merge under way."""
    from tidelake.cli import output, show

    failed = output.CommandFailed()
    lines = [
        {"collection": one.name, **line}
        for one in lake.collections(failed.add)
        for line in show.claims(one.state(), lake.env.clock.now_ms())
    ]
    failed.check()
    return lines

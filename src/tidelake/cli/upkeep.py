"""Commands that keep a lake in order: merges, names, what is kept and for whom, checks, copies."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tidelake import errors
from tidelake.cli.group import JSON, LAKE, NAME, READ_ONLY, cli

if TYPE_CHECKING:
    from tidelake.shard.upkeep.compactor import Workers


@cli.command()
@LAKE
@NAME
@click.option("--since", metavar="TIME", help="First let history before this time be folded.")
@click.option("--spark", is_flag=True, help="Run the merge as a Spark job.")
@JSON
def merge(lake: str, collection: str, since: str | None, spark: bool, as_json: bool) -> None:
    """Merge all batches of a collection into one sorted run."""
    import tidelake
    from tidelake.cli import files, maintenance, output

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        wanted = files.time(since, of.domain, "--since")
        if wanted is not None:
            of.advance_since(wanted)
        with _workers(spark, "tidelake merge") as workers:
            report = of.merge(workers)
    output.table(maintenance.merged(report), as_json)


@contextlib.contextmanager
def _workers(spark: bool, description: str) -> Iterator["Workers | None"]:
    """Who carries out merges: a local Spark session, or this process."""
    if not spark:
        yield None
        return
    from tidelake.cli.spark import session

    with session(description) as made:
        from tidelake.spark.jobs.merge import workers

        yield workers(made, description)


@cli.command()
@LAKE
@NAME
@click.argument("new_name")
@click.option("--swap", is_flag=True, help="NEW_NAME is a collection, too: they change their names at once.")
@click.option("--allow-recreate", is_flag=True, help="Also if one called NEW_NAME was dropped or renamed.")
@JSON
def rename(
    lake: str, collection: str, new_name: str, swap: bool, allow_recreate: bool, as_json: bool
) -> None:
    """Give a collection another name. Whoever has it open goes on with it.

    The old name is kept like that of a dropped collection, so that whoever still uses it is told.
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
@click.option("--as-of", metavar="TIME", help="The last time that the fork has; default: all that is closed.")
@click.option(
    "--to-seqno",
    type=click.IntRange(min=0),
    help="The version that it begins with, as fsck names it; of a damaged collection, too. Copies it.",
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
    """Make a collection that begins as another one is, or was. Nothing is copied, but with --to-seqno.

    Both go their own ways from then on, and either may be dropped.
    """
    import tidelake
    from tidelake.cli import files, output, show

    with tidelake.open(lake, create=False) as opened:
        # A damaged one cannot be opened, and need not be.
        at = None if as_of is None else files.time(as_of, opened.collection(collection).domain, "--as-of")
        made = opened.fork(collection, new_name, at, to_seqno=to_seqno, allow_recreate=allow_recreate)
        output.table([show.summary(made)], as_json)


@cli.command()
@LAKE
@NAME
@click.option("--force", is_flag=True, help="Also if readers hold it: their holds end.")
@JSON
def drop(lake: str, collection: str, force: bool, as_json: bool) -> None:
    """Drop a collection and delete all that it has stored. Its name does not come back by accident.

    Finishes a drop that was interrupted.
    """
    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        done = opened.drop(collection, force=force)
    output.table([{"collection": collection, "dropped": "now" if done else "before"}], as_json)


@cli.command()
@LAKE
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
@click.option("--spark", is_flag=True, help="With --once: run the merges of all as Spark jobs.")
@JSON
def maintain(
    lake: str, collections: tuple[str, ...], once: bool, interval_s: float, spark: bool, as_json: bool
) -> None:
    """Carry out the merges that collections need: all, or those named. Runs until it is interrupted.

    Afterwards a read merges few runs, and no update is stored that a later one has cancelled, as far as
    history may go. What is no longer needed is deleted. Several may run at once; they keep out of each
    other's way.
    """
    import tidelake
    from tidelake.cli import maintenance, output

    if spark and not once:
        raise errors.UsageError("--spark needs --once: a session is started for one round")
    with tidelake.open(lake, create=False) as opened:
        if not once:
            maintenance.keep_up(opened, collections or None, interval_s, as_json)
            return
        left: tuple[str, ...] = ()
        if not collections:
            # First: what is half dropped is in the list, and cannot be opened.
            left = opened.collect().damaged
        failed = output.Failed()
        # All are opened first, so that a name that is none is told before the work begins.
        named = [opened.collection(name) for name in collections] or [*opened.collections(failed.add)]
        if spark and named:
            from tidelake.cli.spark import maintained

            shown, report = maintained(opened, [one.name for one in named])
            for name, error in sorted(report.failed.items()):
                failed.add(name, error)
        else:
            shown = []
            for one in named:
                try:
                    shown.append(maintenance.maintained(one))
                except errors.TidelakeError as error:
                    # The others are maintained all the same.
                    failed.add(one.name, error)
    output.table(shown, as_json, empty="no collections yet: make one with tidelake create")
    for message in left:
        click.echo(f"tidelake: {message}", err=True)
    failed.check()


@cli.command()
@LAKE
@click.argument("collection", required=False)
@JSON
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
        failed = output.Failed()
        named = opened.collections(failed.add) if collection is None else [opened.collection(collection)]
        lines = [line for one in named for line in shown.rows(one, now_ms)]
    output.table(lines, as_json, empty="no holds")
    failed.check()


@cli.command()
@LAKE
@click.argument("collections", nargs=-1)
@click.argument("window")
@click.option("--all", "all_", is_flag=True, help="All collections of the lake, in the place of names.")
@JSON
def retain(lake: str, collections: tuple[str, ...], window: str, all_: bool, as_json: bool) -> None:
    """Keep WINDOW of history before the upper, from now on: all, a number of times, or 7d, 12h, 30m, 45s.

    Of one collection, several, or all. Spans are for times of unit ms and us; "7 days" will do, too. Holds
    keep more for as long as they last.
    """
    import tidelake
    from tidelake.cli import holds as shown
    from tidelake.cli import output

    if all_ == bool(collections):
        raise errors.UsageError("say which collections: give names, or --all")
    with tidelake.open(lake, create=False) as opened:
        kept = shown.window(window)
        failed = output.Failed()
        named = (
            [*opened.collections(failed.add)] if all_ else [opened.collection(name) for name in collections]
        )
        # Of all first, so that one whose times are no clock changes none.
        for of in named:
            shown.check(kept, of)
        for of in named:
            of.retain(kept)
        lines = [shown.retained(of) for of in named]
    output.table(lines, as_json, empty="no collections yet: make one with tidelake create")
    failed.check()


@cli.command("advance-since")
@LAKE
@click.argument("frontiers", nargs=-1, required=True, metavar="COLLECTION=TIME...")
@JSON
def advance_since(lake: str, frontiers: tuple[str, ...], as_json: bool) -> None:
    """Let history before TIME be folded, of several collections: in all of them or in none.

    Holds keep it back for as long as they last. TIME may be past the upper; the last closed time can be read
    in any case.
    """
    import tidelake
    from tidelake.cli import files, output
    from tidelake.cli import holds as shown

    with tidelake.open(lake, create=False) as opened:
        given = {}
        for word in frontiers:
            name, equals, text = word.rpartition("=")
            if not equals or name in given:
                raise errors.UsageError(f"{word!r} is no COLLECTION=TIME, or its collection comes twice")
            of = opened.collection(name)
            given[name] = of.frontier([t for t in [files.time(text, of.domain, name)] if t is not None])
        opened.advance_since(given)
        lines = [shown.retained(opened.collection(name)) for name in given]
    output.table(lines, as_json)


@cli.command()
@LAKE
@click.argument("collections", nargs=-1)
@click.option("--repair", is_flag=True, help="Mend what can be mended safely; no data is removed or made up.")
@click.option("--quick", is_flag=True, help="Do not read the parts: only logs, names and sizes.")
@JSON
@READ_ONLY
def fsck(
    lake: str, collections: tuple[str, ...], repair: bool, quick: bool, as_json: bool, read_only: bool
) -> int:
    """Check that what is stored is whole: all of a lake, or the collections named.

    May run beside everything else. Leaves with exit code 1 if findings are left.
    """
    import tidelake
    from tidelake.cli import integrity

    with tidelake.open(lake, create=False, read_only=read_only) as opened:
        return integrity.check(opened, collections or None, repair=repair, deep=not quick, as_json=as_json)


_as = click.option("--as", "as_name", metavar="NAME", help="Name of the copy; default: the same.")


@cli.command()
@LAKE
@NAME
@click.argument("to_lake")
@_as
@JSON
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
@LAKE
@NAME
@click.argument("from_lake")
@_as
@JSON
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


@cli.command()
@LAKE
@click.argument("changes", nargs=-1, metavar="[NAME=SECONDS]...")
@JSON
def settings(lake: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Show the settings that all processes of a lake go by, or change some: upload_age_s=2592000.

    What becomes longer holds at once; an age that becomes shorter stays in force for as long as it was.
    """
    from dataclasses import asdict

    import tidelake
    from tidelake.cli import output

    wanted = dict(_setting(change) for change in changes)
    with tidelake.open(lake, create=False) as opened:
        found = opened.settings(**wanted)
    output.table([asdict(found)], as_json)


def _setting(change: str) -> tuple[str, float]:
    name, _, value = change.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise errors.UsageError(
            f"{change!r} sets nothing: give NAME=SECONDS, such as upload_age_s=2592000"
        ) from None

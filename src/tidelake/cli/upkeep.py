"""Administrative commands: merges, holds and retention, checks, copies, settings."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from tidelake import errors
from tidelake.cli.group import JSON, LAKE, NAME, READ_ONLY, FilePath, as_commands, cli

if TYPE_CHECKING:
    from tidelake.shard.upkeep.compactor import Workers


@cli.command()
@LAKE
@NAME
@click.option("--since", metavar="TIME", help="First allow history before this time to be compacted.")
@click.option("--spark", is_flag=True, help="Run the merge as a Spark job.")
@JSON
def merge(lake: str, collection: str, since: str | None, spark: bool, as_json: bool) -> None:
    """Merge each slice of a collection into one sorted run."""
    import tidelake
    from tidelake.cli import files, maintenance, output

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        wanted = files.time(since, of, "--since")
        if wanted is not None:
            of.advance_since(wanted)
        with _workers(spark, "tidelake merge") as workers:
            report = of.merge(workers)
    output.table(maintenance.merged(report), as_json)


@contextlib.contextmanager
def _workers(spark: bool, description: str) -> Iterator["Workers | None"]:
    """What carries out the merges: a local Spark session, or (None) this process."""
    if not spark:
        yield None
        return
    from tidelake.cli.spark import session

    with session(description) as made:
        from tidelake.spark.jobs.merge import workers

        yield workers(made, description)


@cli.command()
@LAKE
@click.argument("collections", nargs=-1)
@click.option("--once", is_flag=True, help="Maintain the collections thoroughly, and end.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Without --once: seconds between two rounds.",
)
@click.option("--spark", is_flag=True, help="With --once: run all merges as Spark jobs.")
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Without --once: answer Prometheus at http://HOST:PORT/metrics; default host: 127.0.0.1.",
)
@JSON
def maintain(
    lake: str,
    collections: tuple[str, ...],
    once: bool,
    interval_s: float,
    spark: bool,
    metrics: str | None,
    as_json: bool,
) -> None:
    """Merge what collections need merged, and refresh views.

    Of all collections or the named ones. Runs until interrupted. Afterwards a read merges few runs, and
    updates before since that cancel each other are gone. Objects that are no longer needed are deleted.
    Several processes may run this at once; each merge is done by one. An error of one collection or view
    stops no other.
    """
    import tidelake
    from tidelake.cli import maintenance, output

    if spark and not once:
        raise errors.UsageError("--spark needs --once: a session is started for one round")
    if metrics is not None and once:
        raise errors.UsageError("--metrics is for a maintain that goes on: leave --once out")
    address = None if metrics is None else address_of(metrics, "--metrics")
    with tidelake.open(lake, create=False) as opened:
        if not once:
            if address is not None:
                _prometheus().listen(opened.recorder, *address)
            maintenance.keep_up(opened, collections or None, interval_s, as_json)
            return
        left: tuple[str, ...] = ()
        if not collections:
            # Collect first: a half-dropped collection is still listed, but cannot be opened.
            left = opened.collect().damaged
        failed = output.CommandFailed()
        # Open all first, so that an unknown name is reported before the work begins.
        named = [opened.collection(name) for name in collections] or [*opened.collections(failed.add)]
        for name, done in opened._fresh(named):
            if isinstance(done, errors.TidelakeError):
                failed.add(name, done)
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
                    # Continue with the others.
                    failed.add(one.name, error)
    output.table(shown, as_json, empty="no collections yet: make one with tidelake create", failed=failed)
    for message in left:
        click.echo(f"tidelake: {message}", err=True)
    failed.check()


def address_of(text: str, option: str) -> tuple[str, int]:
    """Host and port of `[HOST:]PORT`; the host is 127.0.0.1 if none is given."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) < 1 << 16:
        raise errors.UsageError(f"{option} {text!r} is no address: give PORT or HOST:PORT, such as 9464")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _prometheus() -> ModuleType:
    """The exporter."""
    try:
        from tidelake.exporters import prometheus
    except ImportError as error:
        raise errors.UsageError(f"metrics need an extra: {errors.to_install('metrics')}") from error
    return prometheus


@cli.command()
@LAKE
@click.argument("collection", required=False)
@JSON
def holds(lake: str, collection: str | None, as_json: bool) -> None:
    """Show the holds that keep history, and since when.

    Of one collection, or of all. A leased hold ends with the next commit after its reader has stopped
    renewing it; a critical hold ends when it is dropped. The pinned versions of a hold keep replaced parts
    from being deleted.
    """
    import tidelake
    from tidelake.cli import holds as shown
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        now_ms = opened.env.clock.now_ms()
        failed = output.CommandFailed()
        named = opened.collections(failed.add) if collection is None else [opened.collection(collection)]
        lines = [line for one in named for line in shown.rows(one, now_ms)]
    output.table(lines, as_json, empty="no holds", failed=failed)
    failed.check()


@cli.command()
@LAKE
@click.argument("collections", nargs=-1)
@click.argument("window")
@click.option("--all", "all_", is_flag=True, help="All collections of the lake, instead of names.")
@JSON
def retain(lake: str, collections: tuple[str, ...], window: str, all_: bool, as_json: bool) -> None:
    """Keep a window of history before the upper, from now on.

    WINDOW is all, a number of times, or 7d, 12h, 30m, 45s. Applies to one collection, several, or all. Spans
    such as 7d need times of unit ms, us or date; counters take a number. Holds keep more history as long as
    they last.
    """
    import tidelake
    from tidelake.cli import holds as shown
    from tidelake.cli import output
    from tidelake.state.core.owned import is_part

    if all_ == bool(collections):
        raise errors.UsageError("say which collections: give names, or --all")
    with tidelake.open(lake, create=False) as opened:
        kept = shown.window(window)
        failed = output.CommandFailed()
        named = (
            # What a view keeps follows the view.
            [one for one in opened.collections(failed.add) if not is_part(one.state())]
            if all_
            else [opened.collection(name) for name in collections]
        )
        # Check all collections first, so that an error for one changes none.
        for of in named:
            shown.check(kept, of)
        for of in named:
            of.retain(kept)
        lines = [shown.retained(of) for of in named]
    output.table(lines, as_json, empty="no collections yet: make one with tidelake create", failed=failed)
    failed.check()


@cli.command("advance-since")
@LAKE
@click.argument("frontiers", nargs=-1, required=True, metavar="COLLECTION=TIME...")
@JSON
def advance_since(lake: str, frontiers: tuple[str, ...], as_json: bool) -> None:
    """Allow history before TIME to be compacted.

    Of several collections in all or in none. Holds keep history as long as they last. Some closed time must
    stay readable.
    """
    import tidelake
    from tidelake.cli import files, output
    from tidelake.cli import holds as shown

    with tidelake.open(lake, create=False) as opened:
        given = {}
        for word in frontiers:
            name, equals, text = word.rpartition("=")
            if not equals or name in given:
                raise errors.UsageError(f"{word!r} is not COLLECTION=TIME, or names a collection twice")
            of = opened.collection(name)
            given[name] = [t for t in [files.time(text, of, name)] if t is not None]
        opened.advance_since(given)
        lines = [shown.retained(opened.collection(name)) for name in given]
    output.table(lines, as_json)


@cli.command()
@LAKE
@click.argument("collections", nargs=-1)
@click.option(
    "--repair", is_flag=True, help="Repair what can be repaired safely; no data is removed or made up."
)
@click.option("--quick", is_flag=True, help="Check only logs, names and sizes; do not read the parts.")
@JSON
@READ_ONLY
def fsck(
    lake: str, collections: tuple[str, ...], repair: bool, quick: bool, as_json: bool, read_only: bool
) -> int:
    """Check a lake, or the named collections, for damage.

    May run beside everything else. Ends with exit code 1 if findings are left.
    """
    import tidelake
    from tidelake.cli import integrity

    with tidelake.open(lake, create=False, read_only=read_only) as opened:
        return integrity.check(opened, collections or None, repair=repair, quick=quick, as_json=as_json)


@cli.command()
@click.argument("from_lake", metavar="FROM")
@click.argument("to_lake", metavar="TO")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--as-name", metavar="NEW", help="Name of the copy of one collection; default: the same.")
@click.option("--delete", is_flag=True, help="Drop copies of collections that were dropped in FROM.")
@click.option("--quick", is_flag=True, help="Compare sizes only; do not read back what is stored.")
@JSON
def copy(
    from_lake: str,
    to_lake: str,
    names: tuple[str, ...],
    as_name: str | None,
    delete: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Copy a lake, or some collections, into another one.

    TO is made if it is empty. Run again, it copies what is new. Copies have history, writers and settings of
    FROM. Readers of TO see the last finished run. After a failure, repeat the same call: it goes on where it
    was.
    """
    import tidelake
    from tidelake.cli import integrity

    with tidelake.open(from_lake, create=False) as opened:
        for name in names:
            # Look for them first: if there is nothing to copy, no lake is made.
            opened.collection(name)
        with integrity.bars() as show:
            report = opened.copy(
                to_lake,
                names or None,
                as_name=as_name,
                delete=delete,
                quick=quick,
                progress=integrity.summed(show),
            )
        integrity.copied(report, as_json)


@cli.command()
@LAKE
@click.argument("changes", nargs=-1, metavar="[NAME=SECONDS]...")
@JSON
def settings(lake: str, changes: tuple[str, ...], as_json: bool) -> None:
    """Show or change the settings of all processes of a lake.

    To change one, give upload_age_s=2592000. A longer age takes effect at once; a shorter one only after the
    old age has passed.
    """
    from dataclasses import asdict

    import tidelake
    from tidelake.cli import output

    wanted = dict(_setting(change) for change in changes)
    with tidelake.open(lake, create=False) as opened:
        found = opened.settings(**wanted)
    output.table([asdict(found)], as_json)


@cli.command()
@LAKE
@NAME
@click.option(
    "--keys",
    "path",
    required=True,
    type=FilePath(exists=True, dir_okay=False, allow_dash=True),
    help="A file with the key columns, such as .jsonl, .csv or .parquet; - is standard input.",
)
@click.option("--reason", required=True, help="Why, such as the number of a ticket; it is kept.")
@JSON
def erase(lake: str, collection: str, path: Path, reason: str, as_json: bool) -> None:
    """Erase the rows of some keys for good, at all times.

    The forks lose them too. The bytes go like other garbage: maintain the lake once garbage_age_s has passed.
    Prints what remains elsewhere.
    """
    from dataclasses import asdict

    import tidelake
    from tidelake.cli import files, output

    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        with files.rows([path], of, None) as keys:
            report = of.erase(keys, reason=reason)
    shown = asdict(report)
    if not as_json:
        shown.pop("remains")
    output.table([shown], as_json)
    for line in () if as_json else report.remains:
        click.echo(f"remains: {as_commands(line)}")


@cli.command()
@LAKE
@JSON
def upgrade(lake: str, as_json: bool) -> None:
    """Let this version write all that it can.

    Versions before it can no longer open the lake. First upgrade all processes that use the lake. Shows the
    format before and after. There is no way back.
    """
    from dataclasses import asdict

    import tidelake
    from tidelake.cli import output

    with tidelake.open(lake, create=False) as opened:
        report = opened.upgrade()
    output.table([asdict(report)], as_json)


def _setting(change: str) -> tuple[str, float]:
    name, _, value = change.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise errors.UsageError(
            f"{change!r} sets nothing: give NAME=SECONDS, such as upload_age_s=2592000"
        ) from None

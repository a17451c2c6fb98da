"""The command that follows a collection."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tidelake import errors
from tidelake.cli.group import COLUMNS, LAKE, NAME, TIMES, WHERE, cli

if TYPE_CHECKING:
    from tidelake.model.selection import TimesAs
    from tidelake.shard.reading.reader import Step
    from tidelake.shard.reading.unsealed import StagedStep


@cli.command()
@LAKE
@NAME
@click.option(
    "--as-of", metavar="TIME", help="Begin with the contents at TIME; default: the last closed one."
)
@click.option("--lower", metavar="TIME", help="Skip the contents: begin with the updates at TIME.")
@click.option(
    "--no-snapshot",
    is_flag=True,
    help="Skip the contents: print only updates of times that are closed from now on.",
)
@click.option("--until", metavar="TIME", help="End when all times before this one are printed.")
@click.option("--once", is_flag=True, help="End when all times that were closed at the start are printed.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    help="End after so many seconds without updates; default: never.",
)
@click.option(
    "--staged", is_flag=True, help="With --lower or --no-snapshot: print updates as soon as they are staged."
)
@COLUMNS
@WHERE
@TIMES
def tail(
    lake: str,
    collection: str,
    as_of: str | None,
    lower: str | None,
    no_snapshot: bool,
    until: str | None,
    once: bool,
    timeout_s: float | None,
    staged: bool,
    columns: str | None,
    where: str | None,
    times: "TimesAs | None",
) -> None:
    """Print contents, then every update, until interrupted.

    Each line is a JSON object. A line {"_upper": [TIME]} means that all updates before TIME have been
    printed, each once. To continue later, start with --lower the last such TIME. History that is still to be
    printed is held. With --staged, updates after that TIME, which no seal has closed yet, are then printed
    again.
    """
    import tidelake
    from tidelake.cli import files

    if sum((as_of is not None, lower is not None, no_snapshot)) > 1:
        raise errors.UsageError(
            "--as-of, --lower and --no-snapshot are different beginnings: give one of them"
        )
    if once and until is not None:
        raise errors.UsageError("--once and --until are different ends: give one of them")
    if staged and (once or not (no_snapshot or lower is not None)):
        raise errors.UsageError("--staged needs --lower or --no-snapshot, and no --once")
    with tidelake.open(lake, create=False) as opened:
        of = opened.collection(collection)
        at, start = files.time(as_of, of, "--as-of"), files.time(lower, of, "--lower", read=False)
        last = files.time(until, of, "--until", read=False)
        end = of.upper if once else last
        patience_s = 0.0 if once and timeout_s is None else timeout_s
        how: dict[str, Any] = {"columns": files.names(columns), "where": where, "times": times or "int64"}
        begin = of.upper if start is None else start
        steps: Iterator[Step | StagedStep]
        if staged:
            steps = of.listen(lower=begin, until=end, staged=True, timeout_s=patience_s, **how)
        elif start is not None or no_snapshot:
            steps = of.listen(lower=begin, until=end, timeout_s=patience_s, **how)
        else:
            if at is None and not of.domain.total_order:
                raise errors.UsageError(
                    "tuples have no single last time: give --as-of, --lower or --no-snapshot"
                )
            steps = of.subscribe(at, until=end, timeout_s=patience_s, **how)
        _print(steps)


def _print(steps: "Iterator[Step | StagedStep]") -> None:
    from tidelake.cli import jsonlines
    from tidelake.shard.reading.unsealed import Records, Sealed

    # Close the steps before the lake, so that the hold is released at once.
    with contextlib.closing(steps):  # type: ignore[type-var] # a generator
        for step in steps:
            for batch in () if isinstance(step, Sealed) else step.updates:
                for line in jsonlines.lines(batch):
                    click.echo(line)
            if not isinstance(step, Records):
                click.echo(jsonlines.dump({"_upper": list(step.upper.elements)}))
            sys.stdout.flush()

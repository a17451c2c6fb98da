"""The group of all commands, and the arguments and options that several of them share."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tidelake.env import expanded
from tidelake.errors import TidelakeError


def _names(context: click.Context, _parameter: click.Parameter, begin: str) -> list[str]:
    """Names of collections of the lake on the line, for a shell that completes them."""
    import tidelake

    try:
        with tidelake.open(context.params["lake"], create=False, read_only=True) as lake:
            return [name for name in lake.list() if name.startswith(begin)]
    except TidelakeError:
        return []  # a shell has no place for an error; the command will tell it


class FilePath(click.Path):
    """A path in this file system, as a `Path`; `~` is the home directory, also behind `--out=`."""

    def __init__(self, **how: Any) -> None:
        super().__init__(path_type=Path, **how)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path of a text."""
        return super().convert(expanded(value), param, ctx)


LAKE = click.argument("lake")
NAME = click.argument("collection", shell_complete=_names)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for programs.")
ROWS = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for each row, for programs."
)
COLUMNS = click.option(
    "--columns", metavar="NAMES", help="Names of columns, separated by commas; default: all."
)
WHERE = click.option("--where", metavar="SQL", help='Only rows that match, such as "price > 10".')
LIMIT = click.option(
    "--limit", type=click.IntRange(min=0), help="At most so many rows; default: 20 in a table, otherwise all."
)
OUT = click.option(
    "--out",
    type=FilePath(dir_okay=False, allow_dash=True),
    help="Write to .parquet, .csv or .jsonl; - prints JSON lines.",
)
PATHS = click.argument(
    "paths",
    nargs=-1,
    required=True,
    type=FilePath(exists=True, dir_okay=False, allow_dash=True),
)
ORDER_BY = click.option(
    "--order-by", metavar="COLUMN", help="For upsert: the row with the greatest value wins."
)
DELETE_COLUMN = click.option(
    "--delete-column", metavar="COLUMN", help="For upsert: true where the key is removed."
)
TOKEN = click.option(
    "--token", metavar="TEXT", help="Identifies this call: repeated with the same token, it writes nothing."
)
_AUTHOR = click.option("--author", default="", metavar="NAME", help="Who makes the commit, for the log.")
_MESSAGE = click.option("--message", default="", metavar="TEXT", help="Why, for the log of commits.")
READ_ONLY = click.option(
    "--read-only", is_flag=True, help="Write nothing to the lake, not even a hold on what is read."
)
STAGED = click.option(
    "--staged", is_flag=True, help="Include updates that are staged at open times; do not wait."
)
TIMES = click.option(
    "--times",
    type=click.Choice(["int64", "timestamp"]),
    help="The type of times: as they are stored, or timestamps. Default: int64; in a table, text for people.",
)
TIMEOUT = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    help="Seconds to wait for the time to be closed; default: 0, an open time is an error at once.",
)


def noted(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options `token`, `author` and `message`."""
    for option in (_MESSAGE, _AUTHOR, TOKEN):
        command = option(command)
    return command


_REBUILD = re.compile(r"\blake\.rebuild\(([^()]*)\)")
_CALLS = {
    "mode='overwrite'": "--mode overwrite",
    "lake.view makes": "tidelake view makes",
    "(timeout_s)": "(--timeout)",
    "where='": "--where '",
}
_FLAG = re.compile(r"\b(afresh|allow_recreate|force|replace|with_diff)=True\b")
_BACK = re.compile(r"-\d[\d.]* ?[A-Za-z]+")


def as_commands(text: str) -> str:
    """A message of the library, with what the command line has for a call in Python."""
    text = _REBUILD.sub(r"tidelake rebuild LAKE \1", text)
    for call, command in _CALLS.items():
        text = text.replace(call, command)
    return _FLAG.sub(lambda found: f"--{found[1].replace('_', '-')}", text)


class _Command(click.Command):
    """A command whose arguments may be times back, such as -1d."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line. Behind a space, a time back is no option; times are read without it."""
        end = args.index("--") if "--" in args else len(args)
        words = [f" {word}" if _BACK.fullmatch(word) else word for word in args[:end]]
        return super().parse_args(ctx, words + args[end:])


class _Commands(click.Group):
    """The group. A closed pipe, as with `| head`, ends the command without an error."""

    command_class = _Command

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Python flushes again at exit, which would print an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return answer


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidelake")
def cli() -> None:
    """Collections that change over time: exact as-of reads and exact changes, with no server.

    LAKE is a directory or a URL, such as s3://bucket/lake. Output is a table, or JSON with --json.

    \b
      tidelake create LAKE users --key id --column id:int64 --column name:string
      tidelake append LAKE users monday.csv
      tidelake snapshot LAKE users

    Exit codes: 1 fsck or verify found something, 2 wrong usage, 3 conflict with another writer, 4 the time is
    folded or still open, or a view has to be made again, 5 the store failed, 6 damaged or written by a newer
    version.
    """  # noqa: D301 - click looks for the very character

"""The `tidelake` command: its subcommands, and errors as one line with an exit code.

Exit codes: 0 done, 1 fsck or verify found something, or a bug in Tidelake, 2 wrong usage, 3 a conflict with
another writer, 4 the time asked for is folded or still open, or a view has to be made again, 5 the store
failed (or its answer is unknown), 6 stored bytes are damaged or written by a newer version.
"""

import io
import re
import sys
from typing import Any

import click

from tidelake import errors
from tidelake.cli import export, ingest, naming, rows, serve, sql, stage, tables, tail, upkeep, views, watch
from tidelake.cli.group import as_commands, cli
from tidelake.tabletext import harmless

# Importing these modules registers their commands with the group.
COMMANDS = (rows, sql, stage, tail, upkeep, naming, watch, export, ingest, tables, views, serve)

_EXIT_CODES: tuple[tuple[type[errors.TidelakeError], int], ...] = (
    (errors.UsageError, 2),
    (errors.RefreshFailed, 2),
    (errors.ViewsFailed, 2),
    (errors.UpperMismatch, 3),
    (errors.WriterFenced, 3),
    (errors.LeaseExpired, 3),
    (errors.UploadExpired, 3),
    (errors.LeftGroup, 3),
    (errors.TransactionExpired, 3),
    (errors.ForkExpired, 3),
    (errors.ErasureWaits, 3),
    (errors.RowsErased, 3),
    (errors.HistoryCompacted, 4),
    (errors.NotYetClosed, 4),
    (errors.RebuildNeeded, 4),
    (errors.StoreUnavailable, 5),
    (errors.OutcomeUnknown, 5),
    (errors.OutOfThreads, 5),
    (errors.CorruptionError, 6),
    (errors.BlobNotFound, 6),
    (errors.UnknownFormat, 6),
)
# What click says of numbers, in the words of our own errors.
_PLAIN = (
    (re.compile(r"is not a valid integer( range)?$"), "is no whole number"),
    (re.compile(r"is not a valid float( range)?$"), "is no number"),
    (re.compile(r"is not in the range x>=(\S+)$"), r"is not \1 or more"),
    (re.compile(r"is not in the range (\S+)<=x<=(\S+)$"), r"is not from \1 to \2"),
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    run(cli, "tidelake", arguments)


def run(command: click.Command, name: str, arguments: list[str] | None = None) -> None:
    """Run a command and exit with its exit code; every error is one line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # whatever the locale: rows may have any text
    try:
        answer: Any = command.main(arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("tidelake: interrupted", err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(_usage(error), err=True)
        sys.exit(error.exit_code)
    except errors.TidelakeError as error:
        click.echo(f"tidelake: {harmless(as_commands(' '.join(str(error).split())))}", err=True)
        sys.exit(next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1))
    sys.exit(answer if isinstance(answer, int) else 0)


def _usage(error: click.ClickException) -> str:
    """Format an error of click as one line, like Tidelake's own errors."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "tidelake"
    message = harmless(" ".join(error.format_message().split())).rstrip(".")
    for said, plain in _PLAIN:
        message = said.sub(plain, message)
    return f"{path}: {message[:1].lower()}{message[1:]}; see {path} --help"


if __name__ == "__main__":
    main()

"""The command `sql`: one statement, or a prompt for several."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tidelake import errors
from tidelake.cli.group import LAKE, LIMIT, OUT, READ_ONLY, TIMEOUT, cli, noted

if TYPE_CHECKING:
    from tidelake.data.answer.rows import Rows
    from tidelake.lake.api.lake import Lake

HISTORY = "TIDELAKE_SQL_HISTORY"
"""The variable that names the file of earlier statements; default: `~/.tidelake_sql_history`."""
_HISTORY_LINES, _LEAVE = 1_000, ("exit", "quit", ".exit", ".quit", r"\q")
_HELP = ("help", ".help", "?", r"\?", r"\h")
_HINT = "Statements end with ;  SHOW TABLES; lists collections, help shows this, exit or Ctrl-D leaves."


@cli.command()
@LAKE
@click.argument("statement", required=False)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How rows are printed; json prints one object for each row.",
)
@click.option("--as-of", metavar="TIME", help="Time of the tables that name none; default: the last closed.")
@click.option("--time", metavar="TIME", help="Time of a change; default: one set at the commit.")
@LIMIT
@OUT
@TIMEOUT
@noted
@READ_ONLY
def sql(
    lake: str,
    statement: str | None,
    format_: Literal["table", "csv", "json"],
    as_of: str | None,
    time: str | None,
    limit: int | None,
    out: Path | None,
    timeout_s: float | None,
    read_only: bool,
    **said: Any,
) -> None:
    """Carry out SQL, in which collections are tables.

    Without STATEMENT, or with -, statements are read from standard input; each ends with a ; at the end of a
    line. In a terminal there is a prompt, with a history of earlier statements. --token and --out are for one
    statement. Needs the extra sql.
    """
    import tidelake
    from tidelake.cli import files, output
    from tidelake.lake.arguments.times import whole_of

    output.check_out(out)

    def instant(text: str | None, name: str) -> Any:
        if text is None:
            return None
        whole = whole_of(text.strip())
        return files.in_utc(text.strip(), name) if whole is None else whole

    given = {"as_of": instant(as_of, "--as-of"), "time": instant(time, "--time"), "timeout_s": timeout_s}
    given, token = given | said, said["token"]

    def carry_out(opened: "Lake", text: str) -> None:
        with opened.sql(text, **given) as rows:
            _print(_told_apart(rows), format_, limit, out)

    with tidelake.open(lake, create=False, read_only=read_only) as opened:
        if statement is not None and statement != "-":
            carry_out(opened, statement)
        elif statement is None and sys.stdin.isatty():
            _check_one(2, token, out)
            with _history():
                _prompt(lambda text: carry_out(opened, text))
        else:
            texts = _statements(lambda _: sys.stdin.readline())
            if token is not None or out is not None:
                texts = iter(listed := list(texts))
                _check_one(len(listed), token, out)
            for text in texts:
                carry_out(opened, text)


def _check_one(count: int, token: str | None, out: Path | None) -> None:
    """Refuse options under which a second statement would do nothing, or undo the first."""
    if count > 1 and (token is not None or out is not None):
        option = "--out" if token is None else "--token"
        raise errors.UsageError(
            f"{option} is for one statement, and there may be several: give one STATEMENT"
        )


def _told_apart(rows: "Rows") -> "Rows":
    """Rows whose columns have different names: of equal ones the later get a number, as DuckDB gives it."""
    import pyarrow as pa

    from tidelake.data.answer.rows import Rows

    names: list[str] = []
    for name in rows.schema.names:
        others = (f"{name}_{number}" for number in count(1))
        names.append(next(one for one in chain([name], others) if one not in names))
    if names == rows.schema.names:
        return rows
    fields = [field.with_name(name) for field, name in zip(rows.schema, names, strict=True)]
    return Rows(pa.schema(fields), (batch.rename_columns(names) for batch in rows))


def _print(rows: "Rows", format_: str, limit: int | None, out: Path | None) -> None:
    from tidelake.cli import output

    if format_ == "csv" and out is None:
        output.csv(rows, limit)
    else:
        output.rows(rows, limit, out, format_ == "json")


def _statements(read: Callable[[str], str]) -> Iterator[str]:
    """Statements of some lines, each without its semicolon; the last one may have none."""
    from tidelake.data.sql.statement import split

    text = ""
    while line := read("tidelake> " if not text else "       -> "):
        is_first, text = not text, text + line
        if is_first and (not line.strip() or line.strip().lower() in _LEAVE + _HELP):
            yield from text.split()
            text = ""
        elif ";" in line and (found := split(text, "duckdb")) is not None:
            text = ""
            yield from found
    yield from split(text, "duckdb", is_all=True) or []


def _prompt(carry_out: Callable[[str], None]) -> None:
    """Ask for statements until the user leaves; an error ends a statement only."""
    from tidelake.cli import output

    def read(prompt: str) -> str:
        try:
            return f"{input(prompt)}\n"
        except EOFError:
            click.echo()
            return ""

    click.echo(_HINT, err=True)
    while True:
        try:
            for text in _statements(read):
                if text.strip().lower() in _LEAVE:
                    return
                if text.strip().lower() in _HELP:
                    click.echo(_HINT, err=True)
                    continue
                try:
                    carry_out(text)
                except errors.TidelakeError as error:
                    output.failed(error)
            return
        except KeyboardInterrupt:
            click.echo()


@contextmanager
def _history() -> Iterator[None]:
    """Earlier statements in the prompt, where this Python can edit lines."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = Path(os.environ.get(HISTORY) or "~/.tidelake_sql_history").expanduser()
    readline.set_history_length(_HISTORY_LINES)
    with suppress(OSError):  # there is none yet
        readline.read_history_file(path)
    try:
        yield
    finally:
        # A history that cannot be kept is no error of a statement.
        with suppress(OSError):
            path.touch(mode=0o600)
            readline.write_history_file(path)

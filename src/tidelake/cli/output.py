"""Printing: tables for people, JSON for programs, and writing rows to files.

Must not know what is printed; `tidelake.cli.show` describes collections.
"""

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidelake import tabletext
from tidelake.cli import jsonlines
from tidelake.cli.group import as_commands
from tidelake.data.answer.rows import Rows
from tidelake.data.answer.timecells import texts
from tidelake.data.kernel.types import UNFIT
from tidelake.errors import StoreUnavailable, TidelakeError, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.schema import DIFF
from tidelake.model.time import Time, TimeDomain
from tidelake.tabletext import harmless, printable
from tidelake.timetext import span

STREAM = Path("-")
"""Stands for standard input and output."""
_ROWS = 20
# Columns of an output that is no terminal: programs read it, and people paste from it.
_WIDE = 10_000
_WALL = TimeDomain("ms")
_WALL_MS = "_ms"


@dataclass(frozen=True)
class TimeCell:
    """A time or frontier in a row. A table shows it as people write times; JSON has what is stored."""

    value: Time | Frontier
    domain: TimeDomain

    def __str__(self) -> str:
        return self.domain.text(self.value)


@dataclass(frozen=True)
class SpanCell:
    """A number of units of time in a row, likewise."""

    count: int
    domain: TimeDomain

    def __str__(self) -> str:
        return span(self.count, self.domain.unit)


class CommandFailed:
    """Collects the errors of some collections, while a command continues with the others."""

    def __init__(self) -> None:
        self._errors: list[tuple[str, TidelakeError]] = []

    def add(self, name: str, error: TidelakeError) -> None:
        """Record the error of a collection."""
        self._errors.append((name, error))

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._errors)

    def check(self) -> None:
        """Raise the first error, which decides the exit code; print the others before."""
        for name, error in self._errors[1:]:
            failed(f"{name}: {error}")
        if self._errors:
            raise self._errors[0][1]


def failed(error: object) -> None:
    """Print an error as one line, in which nothing is an order to a terminal."""
    click.echo(f"tidelake: {harmless(as_commands(' '.join(str(error).split())))}", err=True)


class _Console(Console):
    """A console that raises on a closed pipe, so that the command group can handle it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """A console on standard output: as wide as the terminal; without one no line is broken."""
    return _Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False)


def table(
    shown: Sequence[dict[str, Any]],
    as_json: bool,
    title: str | None = None,
    empty: str = "nothing",
    failed: CommandFailed | None = None,
) -> None:
    """Print dictionaries with equal keys as a table, or as one JSON list.

    Without any it says `empty`, unless some `failed`, so that nothing is known of these.
    In JSON a frontier is a list. A column `..._ms` has times of the wall clock: a table shows them as texts.
    """
    if as_json:
        click.echo(jsonlines.dump([with_lists(row) for row in shown]))
        return
    if not shown:
        if not failed:
            click.echo(empty)
        return
    if title:
        console().print(Text(harmless(title), style="bold"))
    screen, drawn = console(), Table(box=None, pad_edge=False, header_style="dim")
    headers = [printable(column.removesuffix(_WALL_MS)) for column in shown[0]]
    cells = [[printable(_text(_of_wall(*cell))) for cell in row.items()] for row in shown]
    for header, (column, value) in zip(headers, shown[0].items(), strict=True):
        number = isinstance(value, int) and not isinstance(value, bool)
        number = number and not column.endswith(_WALL_MS)
        drawn.add_column(Text(header), justify="right" if number else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*map(Text, row))
    columns = zip(headers, *cells, strict=True)
    words = [max(map(len, " ".join(column).split()), default=0) for column in columns]
    if sum(words) + 2 * len(words) <= screen.width:
        screen.print(drawn)
        return
    # A word of a column would be broken, such as a path or an id.
    wide = max(map(len, headers))
    for index, row in enumerate(cells):
        if index:
            screen.print()
        for header, cell in zip(headers, row, strict=True):
            screen.print(Text.assemble((header.ljust(wide), "dim"), f"  {cell}"), soft_wrap=True)


def rows(
    reader: Rows,
    limit: int | None,
    out: Path | None,
    as_json: bool,
    times: Callable[[int], str] = str,
) -> None:
    """Print rows, or write them to a file. Streams them, and reads no further than the limit."""
    if out is not None and out != STREAM:
        written = write(_first(reader, limit), reader.schema, out)
        if as_json:
            click.echo(jsonlines.dump({"rows": written, "out": str(out)}))
        else:
            click.echo(f"{written:,} rows written to {out}")
    elif as_json or out == STREAM:
        for batch in _first(reader, limit):
            for line in jsonlines.lines(batch):
                click.echo(line)
    else:
        most = _ROWS if limit is None else limit
        # Convert to text, so that ids get no thousands separators. Read one more row to see if there are
        # more.
        head = [
            {name: None if value is None else _cell(name, value, times) for name, value in row.items()}
            for batch in _first(reader, most + 1)
            for row in texts(batch).to_pylist()
        ]
        if most or not head:
            table(head[:most], False, empty="no rows")
        if len(head) > most:
            click.echo("... and more rows; see --limit, --out and --json")


def csv(reader: Rows, limit: int | None) -> None:
    """Print rows as CSV, with the names of the columns in the first line."""
    try:
        if sys.stdout.isatty():
            kept = io.BytesIO()
            _write_csv(kept, reader, limit)
            # As they are in a file, but for orders to the terminal.
            click.echo("\n".join(map(harmless, kept.getvalue().decode().split("\n"))), nl=False)
        else:
            _write_csv(sys.stdout.buffer, reader, limit)
    except UNFIT as error:
        reason = str(error).split("\n", 1)[0]
        raise UsageError(f"CSV cannot hold these rows: {reason}; use --format json") from error


def _write_csv(file: Any, reader: Rows, limit: int | None) -> None:
    with pyarrow.csv.CSVWriter(file, reader.schema) as text:
        for batch in _first(reader, limit):
            text.write_batch(batch)


def diff(changes: Rows, limit: int, key: Sequence[str], times: Sequence[str]) -> None:
    """Print changes, a line each: what went with `-`, what came with `+`, in colours in a terminal."""
    screen = console()
    # One more row, to see if there are more.
    rows = (row for batch in changes for row in texts(batch).to_pylist())
    ordered = tabletext.removals_first(rows, lambda row: [row[name] for name in key], lambda row: row[DIFF])
    head = list(islice(ordered, limit + 1))
    for row in head[:limit]:
        count = row.pop(DIFF)
        cells = [
            f"{printable(name)}={tabletext.cell(value)}" for name, value in row.items() if name not in times
        ]
        sign, colour = ("+", "green") if count > 0 else ("-", "red")
        times_ = f" (×{abs(count):,})" if abs(count) > 1 else ""
        screen.print(Text(f"{sign} {', '.join(cells)}{times_}", style=colour), soft_wrap=True)
    if not head:
        click.echo("no changes")
    elif len(head) > limit:
        click.echo("... and more rows; see --limit")


def _cell(name: str, value: object, times: Callable[[int], str]) -> str:
    """The text of a value of a row."""
    return times(value) if name == "_time" and isinstance(value, int) else str(value)


def _first(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows; None: all."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= min(left, batch.num_rows)
        if not left:
            return


def check_out(out: Path | None) -> None:
    """Check that a file of this name can be written, before anything is read."""
    if out is None or out == STREAM:
        return
    if out.suffix.lower() not in (".parquet", ".csv", ".jsonl"):
        raise UsageError(f"--out {out} has an unknown format: use .parquet, .csv or .jsonl")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no directory {str(out.parent)!r}; make it first")


def write(batches: Iterable[pa.RecordBatch], schema: pa.Schema, out: Path) -> int:
    """Write rows to a file. Returns how many.

    Writes to a temporary name beside `out` and renames it, so that `out` is either complete or unchanged.
    """
    check_out(out)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    total = 0
    try:
        with _writer(part, out.suffix.lower(), schema) as put:
            for batch in batches:
                put(batch)
                total += batch.num_rows
        part.replace(out)
    except UNFIT as error:
        reason = str(error).split("\n", 1)[0]
        raise UsageError(f"--out {out} cannot hold these rows: {reason}; use .parquet") from error
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise StoreUnavailable(
            f"cannot write --out {out}: {reason}; choose another place or make room", False
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return total


@contextmanager
def _writer(path: Path, suffix: str, schema: pa.Schema) -> Iterator[Callable[[pa.RecordBatch], object]]:
    match suffix:
        case ".parquet":
            with pq.ParquetWriter(path, schema) as parquet:
                yield parquet.write_batch
        case ".csv":
            with pyarrow.csv.CSVWriter(path, schema) as text:
                yield text.write_batch
        case _:
            with path.open("w", encoding="utf-8", newline="\n") as file:
                yield lambda batch: file.writelines(f"{line}\n" for line in jsonlines.lines(batch))


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a status line in a terminal; nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(file=sys.stderr).status("") as status:
        yield status.update


def _text(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _of_wall(column: str, value: object) -> object:
    """A time of the wall clock as a cell, if that is what the column has; any other value as it is."""
    return TimeCell(value, _WALL) if column.endswith(_WALL_MS) and isinstance(value, int) else value


def timed(row: dict[str, Any], domain: TimeDomain) -> dict[str, Any]:
    """A row whose frontiers are times of a collection."""
    return {k: TimeCell(v, domain) if isinstance(v, Frontier) else v for k, v in row.items()}


def with_lists(row: dict[str, Any]) -> dict[str, Any]:
    """Prepare a row for JSON: frontiers become lists, spaces in names become underscores."""
    return {k.replace(" ", "_"): _stored(v) for k, v in row.items()}


def _stored(value: object) -> object:
    """A value as JSON has it."""
    if isinstance(value, SpanCell):
        return value.count
    if isinstance(value, TimeCell):
        value = value.value
    return list(value.elements) if isinstance(value, Frontier) else value

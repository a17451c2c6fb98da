"""What the commands print: tables for people, JSON for programs, and rows into files."""

import datetime
import decimal
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from tidelake.errors import UsageError
from tidelake.lake.collection import Collection
from tidelake.shard.compactor import MergeReport, Shape
from tidelake.state.state import ShardState

_LINES_MAX = 40


def console() -> Console:
    """Where people look. As wide as the terminal; wide enough for a row where there is none."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False)


def table(
    shown: Sequence[dict[str, Any]], as_json: bool, title: str | None = None, empty: str = "nothing"
) -> None:
    """Print dictionaries of equal keys: as a table, or as one JSON list."""
    if as_json:
        click.echo(json.dumps(list(shown), default=_plain))
        return
    if not shown:
        click.echo(empty)
        return
    if title:
        console().print(title, style="bold")
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for column, value in shown[0].items():
        drawn.add_column(column, justify="right" if isinstance(value, int) else "left", overflow="fold")
    for row in shown:
        drawn.add_row(*(_text(value) for value in row.values()))
    console().print(drawn)


def rows(reader: pa.RecordBatchReader, limit: int, out: Path | None, as_json: bool) -> None:
    """Print rows, or write all of them to a file. Streams: no more than a batch is in memory."""
    if out is not None:
        click.echo(f"{_write(reader, out):,} rows written to {out}")
    elif as_json:
        for batch in reader:
            for row in batch.to_pylist():
                click.echo(json.dumps(row, default=_plain, ensure_ascii=False))
    else:
        head: list[dict[str, Any]] = []
        total = 0
        for batch in reader:
            head.extend(batch.slice(0, max(0, limit - len(head))).to_pylist())
            total += batch.num_rows
        # Text, so that ids are not shown with thousands separators.
        table(
            [{name: None if v is None else str(v) for name, v in row.items()} for row in head],
            False,
            empty="no rows",
        )
        if total > len(head):
            click.echo(f"... {total - len(head):,} more rows; see --limit, --out and --json")


def _write(reader: pa.RecordBatchReader, out: Path) -> int:
    """Write to a temporary name beside `out`, so that `out` is whole or not there."""
    if out.suffix not in (".parquet", ".csv", ".jsonl"):
        raise UsageError(f"--out {out} has an unknown format: use .parquet, .csv or .jsonl")
    part = out.with_name(f".{out.name}.part")
    total = 0
    try:
        match out.suffix:
            case ".parquet":
                with pq.ParquetWriter(part, reader.schema) as parquet:
                    for batch in reader:
                        parquet.write_batch(batch)
                        total += batch.num_rows
            case ".csv":
                with pyarrow.csv.CSVWriter(part, reader.schema) as text:
                    for batch in reader:
                        text.write_batch(batch)
                        total += batch.num_rows
            case _:
                with part.open("w", encoding="utf-8") as lines:
                    for batch in reader:
                        for row in batch.to_pylist():
                            lines.write(json.dumps(row, default=_plain, ensure_ascii=False) + "\n")
                        total += batch.num_rows
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return total


def summary(collection: Collection) -> dict[str, Any]:
    """One line on a collection."""
    state = collection.state()
    shape = _shape(state)
    return {
        "collection": collection.name,
        "time": str(state.domain),
        "since": str(state.since),
        "upper": str(state.upper),
        "batches": shape.batches,
        "runs": shape.runs,
        "parts": shape.parts,
        "updates": shape.rows,
        "bytes": shape.size_bytes,
    }


def show(collection: Collection, as_json: bool) -> None:
    """Everything that a collection's state says."""
    state = collection.state()
    columns = [
        {"column": c.name, "type": str(c.type), "role": role, "nullable": c.nullable}
        for role, group in (("key", state.schema.key), ("value", state.schema.value))
        for c in group
    ]
    batches = [
        {
            "ids": f"[{item.lo}, {item.hi})",
            "lower": str(item.batch.bounds.lower),
            "upper": str(item.batch.bounds.upper),
            "since": str(item.batch.bounds.since),
            "runs": len(item.batch.runs),
            "parts": sum(1 for _ in item.batch.parts()),
            "updates": item.batch.rows,
            "bytes": item.batch.size_bytes,
        }
        for item in state.spine
    ]
    writers = [
        {"writer": name, "epoch": w.epoch, "sequence": w.sequence, "owner": w.owner, "upper": str(w.upper)}
        for name, w in sorted(state.writers.items())
    ]
    holds = [
        {"hold": key, "purpose": h.purpose, "since": str(h.since), "opened_ms": h.opened_ms}
        for key, h in sorted(state.holds.items())
    ]
    head = {**summary(collection), "id": collection.id, "seqno": state.seqno}
    if as_json:
        click.echo(
            json.dumps({**head, "columns": columns, "batch": batches, "writer": writers, "hold": holds})
        )
        return
    table([head], False)
    for title, shown in (("columns", columns), ("batches", batches), ("writers", writers), ("holds", holds)):
        if shown:
            click.echo()
            table(
                shown[-_LINES_MAX:],
                False,
                title if len(shown) <= _LINES_MAX else f"last {_LINES_MAX} {title}",
            )


def merge_rows(report: MergeReport) -> list[dict[str, Any]]:
    """A merge, before and after."""

    def line(when: str, shape: Shape) -> dict[str, Any]:
        return {
            "": when,
            "batches": shape.batches,
            "runs": shape.runs,
            "parts": shape.parts,
            "updates": shape.rows,
            "bytes": shape.size_bytes,
        }

    return [line("before", report.before), line("after", report.after)]


def _shape(state: ShardState) -> Shape:
    return Shape.of([item.batch for item in state.spine])


def _text(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _plain(value: object) -> object:
    """What JSON has no form for: times as ISO text, decimals as text, bytes as hexadecimal."""
    match value:
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case decimal.Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case _:
            raise TypeError(f"no JSON form for {type(value).__name__}")

"""What the commands print: tables for people, JSON for programs, and rows into files."""

import os
import queue
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidelake.cli import jsonlines
from tidelake.errors import StoreUnavailable, TidelakeError, UsageError
from tidelake.lake.collection import Collection
from tidelake.lake.lake import Lake
from tidelake.model import time as times
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time
from tidelake.shard.upkeep.compactor import MergeReport, Shape
from tidelake.shard.upkeep.maintain import MaintenanceReport
from tidelake.state.forking import borrowed_parts
from tidelake.state.merging import MergeRequest
from tidelake.state.space import live_rows_min
from tidelake.state.state import ShardState

_LINES_MAX = 40
_ROWS = 20


class _Console(Console):
    """A console that leaves a closed pipe to `main`, as everything else that prints does."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Where people look. As wide as the terminal; wide enough for a row where there is none."""
    return _Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160, highlight=False)


def table(
    shown: Sequence[dict[str, Any]], as_json: bool, title: str | None = None, empty: str = "nothing"
) -> None:
    """Print dictionaries of equal keys: as a table, or as one JSON list, in which a frontier is a list."""
    if as_json:
        click.echo(jsonlines.dump([with_lists(row) for row in shown]))
        return
    if not shown:
        click.echo(empty)
        return
    if title:
        console().print(title, style="bold")
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for column, value in shown[0].items():
        number = isinstance(value, int) and not isinstance(value, bool)
        drawn.add_column(_printable(column), justify="right" if number else "left", overflow="fold")
    for row in shown:
        drawn.add_row(*(Text(_printable(_text(value))) for value in row.values()))
    console().print(drawn)


def rows(reader: pa.RecordBatchReader, limit: int | None, out: Path | None, as_json: bool) -> None:
    """Print rows, or write them to a file. Streams, and reads no further than the limit.

    Args:
        reader: of the rows.
        limit: how many; None: 20 in a table, otherwise all.
        out: the file to write to.
        as_json: JSON for programs.
    """
    if out is not None:
        written = write(_first(reader, limit), reader.schema, out)
        if as_json:
            click.echo(jsonlines.dump({"rows": written, "out": str(out)}))
        else:
            click.echo(f"{written:,} rows written to {out}")
    elif as_json:
        for batch in _first(reader, limit):
            for line in jsonlines.lines(batch):
                click.echo(line)
    else:
        most = _ROWS if limit is None else limit
        # Text, so that ids are not shown with thousands separators. One more row tells that there are more.
        head = [
            {name: None if value is None else str(value) for name, value in row.items()}
            for batch in _first(reader, most + 1)
            for row in jsonlines.texts(batch).to_pylist()
        ]
        if most or not head:
            table(head[:most], False, empty="no rows")
        if len(head) > most:
            click.echo("... and more rows; see --limit, --out and --json")


def _first(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first rows, all of them if there is no limit."""
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
    """Check that a file of this name can be written, before anything is read.

    Raises:
        UsageError: unknown format, or no such directory.
    """
    if out is None:
        return
    if out.suffix.lower() not in (".parquet", ".csv", ".jsonl"):
        raise UsageError(f"--out {out} has an unknown format: use .parquet, .csv or .jsonl")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no directory {str(out.parent)!r}; make it first")


def write(batches: Iterable[pa.RecordBatch], schema: pa.Schema, out: Path) -> int:
    """Write to a temporary name beside `out`, so that `out` is whole or as it was; how many rows.

    Raises:
        UsageError: the format cannot hold a column.
        StoreUnavailable: the file cannot be written; `out` is as it was.
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
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
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


def summary(collection: Collection) -> dict[str, Any]:
    """One line on a collection."""
    state = collection.state()
    shape = _shape(state)
    return {
        "collection": collection.name,
        "time": str(state.domain),
        "since": state.since,
        # Of one in a group, where the group has closed its times.
        "upper": collection.upper if state.group else state.upper,
        "batches": shape.batches,
        "runs": shape.runs,
        "parts": shape.parts,
        "updates": shape.rows,
        "bytes": shape.size_bytes,
    }


def show(collection: Collection, as_json: bool, names: Callable[[], dict[str, str]] = dict) -> None:
    """Everything that a collection's state says.

    Args:
        collection: to show.
        as_json: one JSON document.
        names: gives the names of collections by their ids, for those that share parts with this one.
    """
    state = collection.state()
    columns = [
        {"column": c.name, "type": str(c.type), "role": role, "nullable": c.nullable}
        for role, group in (("key", state.schema.key), ("value", state.schema.value))
        for c in group
    ]
    batches = [
        {
            "ids": f"[{item.id.lo}, {item.id.hi})",
            "lower": item.batch.bounds.lower,
            "upper": item.batch.bounds.upper,
            "since": item.batch.bounds.since,
            "runs": len(item.batch.runs),
            "parts": sum(1 for _ in item.batch.parts()),
            "updates": item.batch.rows,
            "bytes": item.batch.size_bytes,
            "inline": item.batch.inline_bytes,
            "level": getattr(state.spine.holder(item.id), "level", None),
        }
        for item in state.spine
    ]
    staged = [
        {
            "staged": one.name,
            "first time": _shown(reduce(times.meet, (part.seen_times[0] for part in one.batch.parts()))),
            "last time": _shown(reduce(times.join, (part.seen_times[1] for part in one.batch.parts()))),
            "runs": len(one.batch.runs),
            "updates": one.batch.rows,
            "bytes": one.batch.size_bytes,
            "inline": one.batch.inline_bytes,
        }
        for one in state.staged
    ]
    claims = [
        {
            "claim": f"[{claim.id.lo}, {claim.id.hi})",
            "runner": claim.runner,
            "chunks": len(claim.cuts) + 1,
            "done": sum(1 for key in state.chunks if key.startswith(f"{claim.name}/")),
            "expires_ms": claim.expires_ms,
        }
        for claim in sorted(state.claims.values(), key=lambda claim: claim.id)
    ]
    writers = [
        {"writer": name, "epoch": w.epoch, "sequence": w.sequence, "owner": w.owner, "upper": w.upper}
        for name, w in sorted(state.writers.items())
    ]
    holds = [
        {"hold": key, "kind": "leased", "purpose": h.purpose, "since": h.since, "opened_ms": h.opened_ms}
        for key, h in sorted(state.holds.items())
    ] + [
        {"hold": name, "kind": "critical", "purpose": "", "since": h.since, "opened_ms": h.opened_ms}
        for name, h in sorted(state.critical.items())
    ]
    shared = sharing(state, names)
    group, awaited = grouping(collection, names)
    waits = {"drained": state.drained, "staged updates": state.staged.totals.rows}
    head = {
        **summary(collection),
        "id": collection.id,
        "seqno": state.seqno,
        # The table is wide enough without.
        **(waits if as_json or len(state.staged) else {}),
        **amplification(state),
    }
    if as_json:
        lists: dict[str, list[dict[str, Any]]] = {
            "columns": columns,
            "spine": batches,
            "staged": staged,
            "writers": writers,
            "holds": holds,
            "claims": claims,
            "shared": shared,
            "group": group,
            "awaiting": awaited,
        }
        parts = {name: [with_lists(row) for row in found] for name, found in lists.items()}
        garbage = len(state.garbage) + len(state.doomed)
        kept = {"retention": state.retention.window, "garbage": garbage}
        click.echo(jsonlines.dump({**with_lists(head), **kept, **parts}))
        return
    table([head], False)
    if state.retention.window is not None:
        click.echo(f"retention: since follows upper at a distance of {state.retention.window:,}")
    lists_shown: dict[str, list[dict[str, Any]]] = {
        "columns": columns,
        "batches": batches,
        "staged batches": staged,
        "writers": writers,
        "holds": holds,
        "merges under way": claims,
        "shared parts": shared,
        "group": group,
        "awaiting transactions": awaited,
    }
    for title, shown in lists_shown.items():
        if shown:
            click.echo()
            table(
                shown[-_LINES_MAX:],
                False,
                title if len(shown) <= _LINES_MAX else f"last {_LINES_MAX} {title}",
            )
    if state.garbage or state.doomed:
        waiting = {"objects that nothing names": len(state.garbage), "being deleted": len(state.doomed)}
        click.echo()
        table([waiting], False, "garbage")


def grouping(
    collection: Collection, names: Callable[[], dict[str, str]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line for each collection of its group, and one for each transaction that is not applied to it yet."""
    found = collection.group()
    if found is None:
        return [], []
    named = names()
    members = [
        {
            "collection": named.get(id_),
            "id": id_,
            "upper": member.upper.join(found.upper),
            "leaving": member.leaving,
        }
        for id_, member in sorted(found.memberships.items())
    ]
    awaited = [
        {
            "transaction": awaited.transaction,
            "staged": one.name,
            "updates": one.batch.rows,
            "decided": awaited.transaction in found.decisions,
            "noted_ms": awaited.noted_ms,
        }
        for one, awaited in collection.state().staged.awaiting()
    ]
    return members, awaited


def sharing(state: ShardState, names: Callable[[], dict[str, str]]) -> list[dict[str, Any]]:
    """A line for each shard that a collection shares parts with: the one it was forked from, and its forks.

    Of the former, how much of what the collection holds is still the other's; of the latter, how many
    objects are kept for it only.
    """
    if state.origin is None and not state.forks:
        return []
    named = names()
    lines = []
    if state.origin is not None:
        parts = list(borrowed_parts(state))
        lines.append(("forked from", state.origin.shard_id, state.origin.seqno, len(parts)))
    for id_, fork in sorted(state.forks.items()):
        kept = sum(1 for lost in state.garbage.values() if lost.read_by(fork.seqno))
        lines.append(("fork", id_, fork.seqno, kept))
    return [
        {"is": what, "collection": named.get(id_), "id": id_, "version": seqno, "parts": parts}
        for what, id_, seqno, parts in lines
    ]


def amplification(state: ShardState) -> dict[str, float | None]:
    """How much was written for what was appended, and is at most stored for what is live.

    The latter by the counts in the state; None if they show no bound.
    """
    written, live = state.written, live_rows_min(state.spine, state.since)
    appended, stored = written.appended_bytes, state.spine.totals.rows
    return {
        "write amplification": round((appended + written.merged_bytes) / appended, 2) if appended else None,
        "space amplification at most": round(stored / live, 2) if live else None,
    }


def maintained(collection: Collection) -> dict[str, Any]:
    """Bring a collection to rest, with a line on each merge in a terminal; one line on what was done."""
    with status() as say:

        def watch(request: MergeRequest) -> None:
            say(f"{collection.name}: merging {request.rows:,} updates of {request.sources} runs")

        report = collection.maintain(watch=watch)
    return maintained_as(collection, report)


def maintained_as(collection: Collection, report: MaintenanceReport) -> dict[str, Any]:
    """One line on what was done for a collection, and how it is now."""
    return {**_maintained(collection.name, report), **_at_rest(collection)}


def keep_up(lake: Lake, names: Sequence[str] | None, interval_s: float, as_json: bool) -> None:
    """Maintain until interrupted; a line for each look that merged or deleted something."""
    # Printed here and not by the worker: a closed pipe has to end the command.
    reports = queue.SimpleQueue[tuple[str, MaintenanceReport]]()
    told: TidelakeError | None = None
    with lake.upkeep(names, interval_s=interval_s, seen=lambda *seen: reports.put(seen)) as upkeep:
        # Until an interrupt or a signal ends the process.
        while True:
            if upkeep.last_error is not told:
                told = upkeep.last_error
                click.echo(f"tidelake: {told}", err=True)
            try:
                name, report = reports.get(timeout=0.2)
            except queue.Empty:
                continue
            if (report.merges or report.collected.total) and as_json:
                click.echo(jsonlines.dump(with_lists(_maintained(name, report))))
                continue
            if report.merges:
                done = f"{report.rows_read:,} updates became {report.rows_written:,}"
                click.echo(f"{name}: {report.merges} merges, {done}, {report.seconds:.1f} s")
            if report.collected.total:
                gone = report.collected
                click.echo(f"{name}: {gone.objects:,} objects and {gone.entries:,} log entries deleted")
            sys.stdout.flush()


def _maintained(name: str, report: MaintenanceReport) -> dict[str, Any]:
    return {
        "collection": name,
        "merges": report.merges,
        "updates read": report.rows_read,
        "updates written": report.rows_written,
        "bytes written": report.bytes_written,
        "objects deleted": report.collected.objects,
        "complete": report.complete,
    }


def _at_rest(collection: Collection) -> dict[str, Any]:
    state = collection.state()
    return {"runs": state.spine.totals.runs, "updates": state.spine.totals.rows, **amplification(state)}


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Says what is being done, in a terminal; quiet otherwise."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(file=sys.stderr).status("") as status:
        yield status.update


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


def _shown(time: Time) -> object:
    return list(time) if isinstance(time, tuple) else time


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


def _printable(text: str) -> str:
    """The text without what would move the cursor, or worse: control characters are shown as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def with_lists(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: frontiers as lists, names without spaces."""
    return {k.replace(" ", "_"): list(v.elements) if isinstance(v, Frontier) else v for k, v in row.items()}

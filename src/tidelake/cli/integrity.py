"""The output of `fsck`, `backup` and `restore`: a progress bar in a terminal, then the result."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tidelake.cli import jsonlines, output
from tidelake.lake.admin.backup import BackupReport
from tidelake.lake.admin.fsck import FsckReport
from tidelake.lake.api.lake import Lake


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function of a name, the bytes done and the total, which draws a bar per name in a terminal."""
    if not sys.stderr.isatty():
        yield lambda _name, _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=total)
            progress.update(tasks[name], completed=done, total=total)

        yield show


def check(lake: Lake, names: Sequence[str] | None, *, repair: bool, quick: bool, as_json: bool) -> int:
    """Check a lake and print the findings. Returns the exit code: 1 if findings are left."""
    with bars() as show:
        report = lake.fsck(names, repair=repair, quick=quick, progress=show)
    if as_json:
        click.echo(jsonlines.dump(_document(report)))
    else:
        shown = [{**asdict(one), "repaired": _state(one.repaired, one.note)} for one in report.findings]
        if shown:
            output.table(shown, False)
        click.echo(_summary(report))
    return 0 if report.clean else 1


def _document(report: FsckReport) -> dict[str, Any]:
    return {
        "clean": report.clean,
        "findings": [{**asdict(one), "note": one.note} for one in report.findings],
        "collections": report.collections,
        "parts": report.parts,
        "updates": report.rows,
        "bytes": report.size_bytes,
    }


def _state(repaired: bool, note: bool) -> str:
    return "note" if note else "yes" if repaired else "no"


def _summary(report: FsckReport) -> str:
    seen = f"{report.collections:,} collections, {report.parts:,} parts, {report.rows:,} updates read"
    repaired = sum(one.repaired for one in report.findings)
    mended = f", {repaired:,} repaired" if repaired else ""
    mended += f", {len(report.set_aside):,} things set aside" if report.set_aside else ""
    return f"{seen}: {f'{len(report.left):,} findings' if report.left else 'clean'}{mended}"


def copied(copy: Callable[[Callable[[int, int], None]], BackupReport], name: str, as_json: bool) -> None:
    """Run a copy and print what was copied."""
    with bars() as show:
        report = copy(lambda done, total: show(name, done, total))
    line = {
        "collection": report.name,
        "since": report.since,
        "upper": report.upper,
        "parts": report.parts,
        "updates": report.rows,
        "bytes": report.size_bytes,
    }
    output.table([line], as_json)

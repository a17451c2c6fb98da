"""The output of `fsck` and `copy`: a progress bar in a terminal, then the result."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tidelake.cli import jsonlines, output
from tidelake.lake.admin.copyreport import CopyReport
from tidelake.lake.admin.fsck import FsckReport
from tidelake.lake.api.lake import Lake
from tidelake.timetext import many


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
    seen = ", ".join(
        (many(report.collections, "collection"), many(report.parts, "part"), many(report.rows, "update"))
    )
    repaired = sum(one.repaired for one in report.findings)
    mended = f", {repaired:,} repaired" if repaired else ""
    mended += f", {many(len(report.set_aside), 'thing')} set aside" if report.set_aside else ""
    notes = sorted({one.kind for one in report.findings if one.note})
    mended += f"; notes: {', '.join(notes)}" if notes else ""
    return f"{seen} read: {many(len(report.left), 'finding') if report.left else 'clean'}{mended}"


def summed(show: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
    """Show one bar for all collections."""
    known: dict[str, tuple[int, int]] = {}

    def sums(name: str, done: int, total: int) -> None:
        known[name] = (done, total)
        show("copy", sum(done for done, _ in known.values()), sum(total for _, total in known.values()))

    return sums


def copied(report: CopyReport, as_json: bool) -> None:
    """Print what a copy did."""
    shown = [
        output.timed(
            {
                "collection": one.name,
                "copy": one.what,
                "since": one.since,
                "upper": one.upper,
                "updates": one.rows,
                "parts": one.parts,
                "bytes": one.size_bytes,
                "found": one.found,
            },
            one.domain,
        )
        for one in report.collections
    ]
    if as_json:
        told = {"renamed": report.renamed, "dropped": report.dropped, "left": report.left}
        click.echo(jsonlines.dump({"collections": [output.with_lists(row) for row in shown], **told}))
        return
    output.table(shown, False, empty="no collections")
    for old, new in report.renamed.items():
        click.echo(f"renamed {old!r} to {new!r}, as in the source")
    for name in report.dropped:
        click.echo(f"dropped {name!r}, as in the source")
    for name in report.left:
        click.echo(f"{name!r} is no longer in the source, and stays: --delete drops it")

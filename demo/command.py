"""`python -m demo`: the main job from end to end, with a report for people.

Owns the order of the steps and what is printed; other modules carry out the steps. Ends with exit code 1
if one row differs from the truth.
"""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from demo.job import Check, DemoJob, own_files, repository
from demo.revenue import revenue
from tidelake.cli import output
from tidelake.errors import UsageError, to_install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A git repository; default: this project's own checkout.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only the last so many commits.")
@click.option(
    "--change-files",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Ingest Debezium-style change files of your own instead.",
)
@click.option("--key", "keys", multiple=True, help="With --change-files: a key column; repeat for several.")
@click.option(
    "--time",
    "time_path",
    default="source.lsn",
    show_default=True,
    help="With --change-files: where the time is.",
)
@click.option(
    "--lake",
    "directory",
    type=click.Path(path_type=Path),
    help="Where to keep the lake; default: a temporary directory that is removed.",
)
@click.option("--cores", default="*", show_default=True, help="Spark tasks at once.")
def demo(
    *,
    repo: Path | None,
    limit: int | None,
    change_files: Path | None,
    keys: Sequence[str],
    time_path: str,
    directory: Path | None,
    cores: str,
) -> int:
    """Run the main job on the history of a git repository.

    Every commit is a time, every path a key. The history goes through change files and a Spark stream
    into a lake; what the lake says as of five commits, and of the changes between two, is compared with
    what git says, before and after all batches are merged into one. At the end a late correction changes a
    view.
    """
    if change_files is not None and (repo is not None or limit is not None):
        raise UsageError("--change-files takes the place of --repo and --limit: give one of them")
    if change_files is not None and not keys:
        raise UsageError("--change-files needs --key COLUMN: which columns identify a row?")
    console = output.console()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidelake-demo-") as scratch:
        root = _root(directory, Path(scratch))
        # The export, which needs no Spark, comes first: so an unreadable repository is reported at once.
        prepare = own_files(change_files, keys, time_path) if change_files else repository(repo, limit)
        job = prepare(root, console)
        with _session(console, cores, Path(scratch) / "java.log") as session:
            checks = _run(job, session, console)
    wrong = [check for check in checks if not check.equal]
    seconds = time.monotonic() - started
    console.print()
    if wrong:
        console.print(f"[bold red]{len(wrong)} of {len(checks)} comparisons differ[/] after {seconds:.0f} s")
    else:
        rows = sum(check.rows for check in checks)
        console.print(
            f"[bold green]All {len(checks)} comparisons are equal[/]: {rows:,} rows, {seconds:.0f} s"
        )
    if directory is not None:
        shown = f"tidelake show {shlex.quote(str(directory / 'lake'))} {job.name}"
        console.print(f"The lake is kept; look around with: {shown}", markup=False, soft_wrap=True)
    return 1 if wrong else 0


def _root(directory: Path | None, scratch: Path) -> Path:
    if directory is None:
        return scratch
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"--lake {directory} is not empty: name a new or empty directory")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def _session(console: Console, cores: str, log: Path) -> "Iterator[SparkSession]":
    """The session of this process, or a new one that ends with the block."""
    try:
        from pyspark.sql import SparkSession

        from tidelake.spark.session import local_session
    except ImportError as error:
        raise UsageError(f"the demo runs on Spark ({error}): {to_install('spark')}") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    with console.status("Starting Spark ..."):
        session = _started(lambda: local_session("tidelake demo", cores), log)
    try:
        yield session
    finally:
        session.stop()


def _started(start: "Callable[[], SparkSession]", log: Path) -> "SparkSession":
    try:
        with _stderr_to(log):
            return start()
    except UsageError:
        raise
    except Exception:
        click.echo(log.read_text(encoding="utf-8", errors="replace"), err=True)
        raise


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Have a process that is started in here write its errors to a file.

    Java prints a line on its incubator modules, which no option turns off. PySpark raises later errors as
    exceptions, so nothing is lost.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 2)
    os.close(target)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _run(job: DemoJob, session: "SparkSession", console: Console) -> list[Check]:
    job.ingest(session)
    checks = job.reads(session, "before the merge")
    job.merge(session)
    checks += job.reads(session, "after the merge")
    checks += revenue(job.root / "lake", console)
    for check in checks:
        for example in check.examples:
            console.print(f"  {check.what} {check.when}: {example}", style="red", markup=False)
    return checks

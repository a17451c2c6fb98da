"""The steps of the demo on one lake: ingest, reads that are compared, merge.

Owns how each step is carried out and reported; must not decide their order. A *check* is one comparison
of what the lake says with what the source of the history says by itself.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import tidelake
from demo import replay, truth
from demo.export import COMMITS_PER_FILE
from demo.repository import RepositorySource, open_source
from demo.rows import KEY, SCHEMA
from tidelake.cli import maintenance, output
from tidelake.errors import UsageError
from tidelake.lake.api.collection import Collection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelake.feeds.reports import IngestReport

_FILES_MIN = 16
_BATCHES = 8


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        what: what was compared.
        when: before or after the merge.
        rows: number of rows compared.
        equal: whether no row differs.
        examples: some rows that differ.
    """

    what: str
    when: str
    rows: int
    equal: bool
    examples: tuple[str, ...] = ()


@contextmanager
def bar(console: Console, title: str, total: int | None) -> Iterator[Callable[[int, int], None]]:
    """A progress bar in a terminal, one line when done elsewhere; yields `set(done, total)`."""
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)

        def update(done: int, out_of: int) -> None:
            progress.update(task, completed=done, total=out_of)

        yield update


@dataclass
class DemoJob:
    """A lake that is being filled, and what it is compared with."""

    console: Console
    root: Path
    landing: Path
    times: int | None
    keys: Sequence[str]
    source: RepositorySource | None = None
    time: str = "source.lsn"
    collection: Collection | None = None
    _seen: dict[str, pa.Table] = field(default_factory=dict)
    _replayed: Counter[str] | None = None

    @property
    def name(self) -> str:
        """The name of the collection in the lake."""
        return "files" if self.source is not None else "changes"

    def ingest(self, session: "SparkSession") -> None:
        """Stream the change files into a new lake."""
        from tidelake.feeds.reports import WrittenBatch
        from tidelake.spark.jobs.ingest import ingest_change_files

        schema = SCHEMA if self.source is not None else _inferred(session, self.landing, self.keys)
        lake = tidelake.open(self.root / "lake")
        collection = lake.create(self.name, schema, key=list(self.keys))
        self.collection = collection
        files = sum(1 for path in self.landing.iterdir() if path.name[:1] not in "._")
        with bar(self.console, "Spark streaming ingest", self.times) as update:

            def report(batch: WrittenBatch) -> None:
                if self.times is not None and not batch.upper.closed:
                    reached = batch.upper.elements[0]
                    update(reached if isinstance(reached, int) else 0, self.times)

            done = ingest_change_files(
                session,
                collection,
                self.landing,
                self.root / "checkpoint",
                time=self.time,
                max_files_per_trigger=max(1, -(-files // _BATCHES)),
                late="refuse" if self.source else "advance",
                progress=report,
            )
        self._told(done)

    def _told(self, done: "IngestReport") -> None:
        late = f", {done.late:,} late events moved to the next open time" if done.late else ""
        self.console.print(
            f"  {done.events:,} events in {done.batches} micro-batches: {done.updates:,} updates, "
            f"upper {done.upper}\n  {done.tombstones:,} tombstones and {done.heartbeats:,} heartbeats{late}"
        )

    def reads(self, session: "SparkSession", when: str) -> list[Check]:
        """As-of reads at some times and the changes between two, each compared with the truth."""
        if self.source is None:
            return list(self._compared_with_files(session, when))
        return list(self._compared_with_git(session, self.source, when))

    def _compared_with_git(
        self, session: "SparkSession", source: RepositorySource, when: str
    ) -> Iterator[Check]:
        from tidelake.spark.reading import frames
        from tidelake.spark.versions import to_arrow

        shown = []
        total = len(source.checked) + 1
        with bar(self.console, f"Compare {when}", total) as update:
            for done, index in enumerate(source.checked, 1):
                commit = source.commits[index]
                found = _expanded(
                    to_arrow(frames.snapshot(session, self._lake(), index, timeout_s=0, hold_for=None))
                )
                whole = truth.compare(source.tree(commit.sha), found)
                sampled = truth.compare_sample(source.sample(commit.sha), found)
                what = f"as of {index} ({commit.sha[:10]})"
                equal = whole.equal and sampled.equal
                yield Check(what, when, whole.rows, equal, whole.examples + sampled.examples)
                shown.append(
                    {"read": what, "rows": found.num_rows, "git": "ls-tree -r", "equal": _tick(equal)}
                )
                update(done, total)
            a, b = source.pair
            found = to_arrow(frames.changes(session, self._lake(), a, b, timeout_s=0, hold_for=None))
            expected = source.diff(source.commits[a].sha, source.commits[b].sha)
            got = truth.diff_of(_sides(found, -1), _sides(found, 1))
            wrong = tuple(str(entry) for entry in sorted(expected ^ got)[:5])
            what = f"changes {a} to {b}"
            yield Check(what, when, len(expected), not wrong, wrong)
            shown.append({"read": what, "rows": len(got), "git": "diff --raw", "equal": _tick(not wrong)})
            update(total, total)
        click.echo()
        output.table(shown, False, f"Reads {when}, compared with git row by row")

    def _compared_with_files(self, session: "SparkSession", when: str) -> Iterator[Check]:
        """Compare the last contents with a plain replay, and every read with that before the merge.

        The time of a late event depends on the micro-batches, so the files alone determine only the last
        contents.
        """
        from tidelake.spark.reading import frames
        from tidelake.spark.versions import to_arrow

        lake = self._lake()
        upper = lake.upper.elements[0]
        last = upper - 1 if isinstance(upper, int) else 0
        if self._replayed is None:
            self._replayed = replay.replay(self.landing, lake.schema)
        shown = []
        for time_ in sorted({last * i // 4 for i in range(5)}):
            found = to_arrow(frames.snapshot(session, lake, time_, timeout_s=0, hold_for=None))
            what = f"as of {time_}"
            judged = []
            if time_ == last:
                result = replay.compare(self._replayed, found, lake.schema)
                judged.append("a replay of the files")
                yield Check(what, when, result.rows, result.equal, result.examples)
                equal = result.equal
            else:
                equal = True
            if what in self._seen:
                judged.append("the read before the merge")
                same = found.equals(self._seen[what])
                yield Check(f"{what}, again", when, found.num_rows, same)
                equal = equal and same
            self._seen.setdefault(what, found)
            tick = _tick(equal) if judged else "–"
            shown.append(
                {
                    "read": what,
                    "rows": found.num_rows,
                    "compared with": " and ".join(judged) or "–",
                    "equal": tick,
                }
            )
        click.echo()
        output.table(shown, False, f"Reads {when}")

    def merge(self, session: "SparkSession") -> None:
        """Merge all batches by a Spark job."""
        from tidelake.spark.jobs.merge import merge

        with self.console.status("Merging as a Spark job ..."):
            report = merge(session, self._lake())
        click.echo()
        output.table(maintenance.merged(report), False, "Merge of all batches, a Spark job")

    def _lake(self) -> Collection:
        if self.collection is None:
            raise UsageError("nothing was ingested yet")
        return self.collection


def repository(repo: Path | None, limit: int | None) -> Callable[[Path, Console], DemoJob]:
    """A job on the history of a git repository: exports it as change files."""

    def prepare(root: Path, console: Console) -> DemoJob:
        source = open_source(repo, limit=limit)
        about = f"{source.description}: {len(source.commits):,} commits"
        console.print(Text.assemble(("Tidelake demo", "bold"), f" on {about}"))
        if source.note:
            console.print(f"  {source.note}", markup=False)
        console.print("  Each commit is a time, each path a key, and git judges every answer.")
        landing = root / "landing"
        # Enough files that even a young repository makes several micro-batches, which the demo is to show.
        each = max(1, min(COMMITS_PER_FILE, len(source.commits) // _FILES_MIN))
        with bar(console, "Export as change files", len(source.commits)) as update:
            done = source.write_change_files(landing, update, commits_per_file=each)
        lines = done.creates + done.updates + done.deletes + done.reads
        console.print(
            f"  {lines:,} changes ({done.creates + done.reads:,} new, {done.updates:,} updated, "
            f"{done.deletes:,} deleted) in {done.files:,} files, {done.bytes:,} bytes"
        )
        return DemoJob(console, root, landing, len(source.commits), KEY, source)

    return prepare


def own_files(directory: Path, keys: Sequence[str], time: str) -> Callable[[Path, Console], DemoJob]:
    """A job on change files that the user brings."""

    def prepare(root: Path, console: Console) -> DemoJob:
        console.print(Text.assemble(("Tidelake demo", "bold"), f" on the change files in {directory}"))
        return DemoJob(console, root, directory, None, keys, time=time)

    return prepare


def _inferred(session: "SparkSession", directory: Path, keys: Sequence[str]) -> pa.Schema:
    """The columns of the rows in change files, as Spark infers them from all lines."""
    from pyspark.sql.types import StructType

    from tidelake.spark.versions import arrow_schema

    envelope = session.read.option("dropFieldIfAllNull", "true").json(str(directory)).schema
    if "payload" in envelope.fieldNames() and isinstance(envelope["payload"].dataType, StructType):
        envelope = envelope["payload"].dataType
    rows = envelope["after"].dataType if "after" in envelope.fieldNames() else None
    if not isinstance(rows, StructType):
        raise UsageError(f"{directory} holds no change events with rows in 'after': give Debezium JSON lines")
    missing = [name for name in keys if name not in rows.fieldNames()]
    if missing:
        raise UsageError(
            f"--key {missing[0]} is not a column of the events: they have {', '.join(rows.fieldNames())}"
        )
    schema = arrow_schema(rows)
    return pa.schema([f.with_nullable(f.name not in keys) for f in schema])


def _expanded(found: pa.Table) -> pa.Table:
    """Each row as often as its multiplicity says; a negative row twice, so that it shows as surplus."""
    counts = found["_diff"]
    if pc.all(pc.equal(counts, 1)).as_py() is not False:
        return found
    repeats = [i for i, n in enumerate(counts.to_pylist()) for _ in range(n if n > 0 else 2)]
    return found.take(repeats)


def _sides(found: pa.Table, sign: int) -> list[truth.TruthSide]:
    """The rows of a change with one sign. A path may occur once for each sign."""
    kept = found.filter(pc.equal(pc.sign(found["_diff"]), sign))
    sides = [
        truth.TruthSide(*values)
        for values in zip(*(kept[n].to_pylist() for n in truth.TruthSide._fields), strict=True)
    ]
    double = [path for path, n in Counter(side.path for side in sides).items() if n > 1]
    if double:
        raise tidelake.errors.InternalError(f"changes hold path {double[0]!r} twice with one sign")
    return sides


def _tick(equal: bool) -> str:
    return "yes" if equal else "NO"

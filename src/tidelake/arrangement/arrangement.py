"""The arrangement as users meet it: an index of updates, with tables in any Arrow form and its whole life.

Owns names of arguments, checkpoints, forks and where files are; how rows are kept and read is below. Must
not know where updates come from.
"""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.arrangement.batch import Batch, FilterPlan
from tidelake.arrangement.checkpoint import CheckpointDirectory, Saved
from tidelake.arrangement.cursor import Cursor
from tidelake.arrangement.filebuilder import FileBuilder
from tidelake.arrangement.fileformat import SUFFIX
from tidelake.arrangement.files import FileBatch, open_batch
from tidelake.arrangement.home import Home
from tidelake.arrangement.layout import Layout
from tidelake.arrangement.overview import Metrics
from tidelake.arrangement.report import SpineReport
from tidelake.arrangement.retention import Ranked
from tidelake.arrangement.saved import Checkpoint, Followed, SavedBatch
from tidelake.arrangement.settings import ArrangementConfig
from tidelake.arrangement.snapshot import Snapshot
from tidelake.arrangement.spine import Spine
from tidelake.data.ingest import normalize
from tidelake.data.types import row_schema, schema_from_arrow
from tidelake.env import Env
from tidelake.errors import InternalError
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain

A = TypeVar("A", bound="Arrangement")


@dataclass(frozen=True)
class Captured:
    """What a checkpoint is made of.

    Attributes:
        batches: all; whoever has this has a user of each.
        frontier: of the arrangement.
        content: id of just these contents.
        followed: who was followed, and how far.
    """

    batches: Sequence[Batch]
    frontier: Frontier
    content: str
    followed: Followed | None = None


class Arrangement:
    """An indexed multiset of updates in this process, merged in the background. Thread-safe; to be closed.

    Make one with `create`, `restore`, or `collection.arrange(...)`.

    Attributes:
        layout: of its rows.
    """

    def __init__(self, spine: Spine, home: Home, env: Env, content: str) -> None:
        """Take over a spine whose files are in a folder.

        Args:
            spine: that holds the rows.
            home: where its files are.
            env: clock, ids and recorder.
            content: id of what the spine holds now.
        """
        self.layout = spine.layout
        self._spine, self._home, self._env = spine, home, env
        self._content = (spine.contents, content)
        # Rules of the spine are read, changed and written back.
        self._rules_turn = threading.Lock()
        self._save_turn = threading.Lock()
        self._metrics = Metrics(env.recorder)
        self._closed = False

    @classmethod
    def create(
        cls,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        value: Sequence[str] | None = None,
        time: str = "counter",
        directory: str | os.PathLike[str] | None = None,
        config: ArrangementConfig | None = None,
        env: Env | None = None,
    ) -> "Arrangement":
        """An empty arrangement, for updates that the caller inserts.

        Args:
            schema: of key and value columns.
            key: the key columns, in the order that rows are to be sorted by.
            value: the value columns; default: all others.
            time: the unit of times, as for `lake.create`.
            directory: below which batches on disk are kept; default: that of temporary files.
            config: settings.
            env: clock, ids, recorder and spawner.

        Raises:
            UsageError: the columns cannot be kept.
            StoreUnavailable: the directory cannot be written.
        """
        layout = Layout(schema_from_arrow(schema, key, value), TimeDomain.parse(time))
        world = Env() if env is None else env
        home = Home(directory, world.ids.fresh())
        spine = Spine(layout, config, directory=home.path, env=world)
        return cls(spine, home, world, world.ids.fresh())

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        number: int | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        config: ArrangementConfig | None = None,
        env: Env | None = None,
    ) -> "Arrangement":
        """An arrangement as it was saved. Filters are not saved: set them again.

        Its files are shared with the checkpoint where the file system has hard links, else copied.

        Args:
            path: given to `save`.
            number: of the checkpoint; default: the newest.
            directory: as for `create`, and so are the others.
            config: settings.
            env: clock, ids, recorder and spawner.

        Raises:
            UsageError: there is no such checkpoint.
            CorruptionError: a file is gone or damaged; names it. Blocks are checked when they are read.
            FormatTooNew: a newer version saved it.
        """
        world = Env() if env is None else env
        spine, home, found = restored(path, number, directory=directory, config=config, env=world)
        return cls(spine, home, world, found.content)

    # What is in it

    @property
    def schema(self) -> pa.Schema:
        """Key columns, then value columns."""
        return row_schema(self.layout.schema)

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self.layout.key_names

    @property
    def frontier(self) -> Frontier:
        """Answers as of times beyond it are exact."""
        return self._spine.frontier

    def insert(self, updates: object) -> None:
        """Insert updates; waits while there are too many batches, or memory is about to run out.

        Args:
            updates: a table in any Arrow form with key and value columns and the time column(s); a missing
                `_diff` is +1. Times before the frontier are folded to it.

        Raises:
            InvalidUpdates: the table does not fit, or a sum of diffs leaves int64. Nothing was inserted.
            StoreUnavailable: the disk took it not. Nothing was inserted.
            TidelakeError: what went wrong in the background since the last call. Nothing was inserted.
        """
        self._spine.insert(self._canonical(updates))

    def insert_nowait(self, updates: object) -> bool:
        """`insert` without waiting; whether the caller had better `wait` before the next one."""
        return self._spine.insert_nowait(self._canonical(updates))

    def wait(self) -> None:
        """Wait until inserts are welcome again; at once if they are."""
        self._spine.wait()

    def set_frontier(self, frontier: Frontier | Time) -> None:
        """Let merges fold times before it. Answers as of times beyond it stay exact; earlier ones are refused.

        Args:
            frontier: or one time; at or after the one before.

        Raises:
            UsageError: it goes back, or is no time.
        """
        domain = self.layout.domain
        wanted = frontier if isinstance(frontier, Frontier) else Frontier.of(domain.check(frontier))
        with self._rules_turn:
            self._spine.set_frontier(wanted)

    def retain_keys(self, predicate: pc.Expression) -> None:
        """Drop all keys that do not satisfy a condition: for every read from now on, physically at merges.

        Args:
            predicate: over key columns. Meant to be set again and again, each time stricter. Not saved.

        Raises:
            UsageError: it is no condition over key columns.
        """
        with self._rules_turn:
            self._spine.retain_keys(predicate)

    def retain_values(self, rule: pc.Expression | Ranked) -> None:
        """Drop all values that do not satisfy a condition or rank, as `retain_keys`.

        Args:
            rule: over key and value columns; or `last_n`, `top_n`, `bottom_n` of
                `tidelake.arrangement.retention`, which rank the live values of each key at the frontier.

        Raises:
            UsageError: it is no such condition, or ranks by columns that are not there.
        """
        with self._rules_turn:
            self._spine.retain_values(rule)

    # Reading

    def snapshot(self) -> Snapshot:
        """What is in it at this moment, for as long as it is open: several reads of the very same contents.

        Raises:
            Closed: the arrangement was closed.
            TidelakeError: what went wrong in the background since the last call.
        """
        batches, rules = self._spine.held()
        try:
            return Snapshot(self.layout, batches, rules.retention, rules.frontier)
        finally:
            _let_go(batches)

    def fetch(
        self, keys: object, as_of: Time | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of some keys, sorted by key and value, each with its multiplicity in `_diff`.

        Args:
            keys: a table in any Arrow form with the key columns; a key may come several times.
            as_of: the time; default: all that is in.
            columns: those to give, before `_diff`; default: all.

        Returns:
            Keys without rows give none. Filters answer for most batches that do not have a key; of each
            other batch on disk the blocks are read that may hold one and are not in memory, each once.

        Raises:
            InvalidUpdates: the table is none of keys; names the column and the row.
            HistoryCompacted: `as_of` is before the frontier.
            CorruptionError: a file is damaged; names it.
        """
        with self.snapshot() as snapshot:
            return snapshot.fetch(keys, as_of, columns)

    def range(
        self,
        lower: tuple[object, ...] | None = None,
        upper: tuple[object, ...] | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
        as_of: Time | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of the keys in `[lower, upper)`, the first ones, or with `reverse` the last ones first.

        Args:
            lower: values of the key columns, or of the first of them; default: from the least key on.
            upper: likewise; default: to the greatest.
            limit: rows at most; default: all.
            reverse: whether rows come in descending order.
            as_of: as `fetch`, and so are `columns` and the errors.
            columns: to give.
        """
        with self.snapshot() as snapshot:
            return snapshot.range(
                lower, upper, limit=limit, reverse=reverse, as_of=as_of, columns=columns
            )

    def sample_keys(self, n: int, seed: int | None = None, as_of: Time | None = None) -> pa.Table:
        """Some of the keys that have rows, all equally likely, sorted; all of them if there are no more.

        Args:
            n: how many.
            seed: the same keys again for the same contents and batches; default: others each time.
            as_of: as `fetch`.
        """
        with self.snapshot() as snapshot:
            return snapshot.sample_keys(n, seed, as_of)

    def partition_keys(self, n: int, seed: int | None = None, as_of: Time | None = None) -> pa.Table:
        """At most n - 1 keys, ascending, that cut all keys into n ranges of about as many; by a sample."""
        with self.snapshot() as snapshot:
            return snapshot.partition_keys(n, seed, as_of)

    def key_count(self, as_of: Time | None = None) -> int:
        """How many keys have rows. Reads everything."""
        with self.snapshot() as snapshot:
            return snapshot.key_count(as_of)

    @contextmanager
    def cursor(self, as_of: Time | None = None) -> Iterator[Cursor]:
        """A context with a cursor over a snapshot, at the first key."""
        with self.snapshot() as snapshot:
            yield snapshot.cursor(as_of)

    def __len__(self) -> int:
        """How many updates are held, those included that cancel out or that a filter hides."""
        with self.snapshot() as snapshot:
            return len(snapshot)

    @property
    def byte_size(self) -> int:
        """Of all batches: in memory, and of the files."""
        report = self._spine.report()
        return report.bytes_in_memory + report.bytes_on_disk

    # Merging

    def pause(self) -> None:
        """Merge nothing from now on; returns when nothing is being merged. Inserts do not wait meanwhile."""
        self._spine.pause()

    def resume(self) -> None:
        """Merge again."""
        self._spine.resume()

    def compact(self) -> None:
        """Ask for all that is there to become one batch; returns at once. Requests coalesce."""
        self._spine.compact()

    @property
    def is_compact(self) -> bool:
        """Whether there is at most one batch, nothing is being merged, and no request is left."""
        return self._spine.is_compact

    def consolidate(self) -> None:
        """Make one batch of all that is there, and wait for it.

        Raises:
            UsageError: merging is paused.
            StoreUnavailable: the disk has no room for it.
            TidelakeError: what else went wrong in a merge.
        """
        self._spine.consolidate()

    def report(self) -> SpineReport:
        """What it holds, merges and waits for; also counts in the recorder what happened since the last call.

        `tidelake.arrangement.overview` makes plain rows of it.
        """
        report = self._spine.report()
        self._metrics.tell(report)
        return report

    # Life

    def fork(self) -> "Arrangement":
        """Another arrangement of the same contents, frontier and filters, which goes its own way from now on.

        Costs as much as there are batches: they are shared, in memory and on disk.
        """
        spine = self._forked()
        return Arrangement(spine, self._home.acquire(), self._env, self._content_id())

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Save a checkpoint: it is complete, or not there; the last two of a directory are kept.

        Files are shared with the directory where the file system has hard links, else copied; batches in
        memory are written. What is inserted meanwhile is not in it. If the contents are those of the newest
        checkpoint there, nothing is written.

        Args:
            path: a directory for the checkpoints of this arrangement only; made if it is not there.

        Raises:
            StoreUnavailable: it was not saved; the checkpoints that were there are as they were.
            OutcomeUnknown: it may be saved; saving again decides.
            CorruptionError: a list there is damaged, or all lists are gone and batch files are there.
            IncompatibleSchema: checkpoints of other columns are there.
        """
        return self._save(path, self._captured)

    def close(self) -> None:
        """Stop merging, and let go of all rows and files. May be repeated."""
        if not self._closed:
            self._closed = True
            self._metrics.tell(self._spine.report())
            self._spine.close()
            self._home.release()

    def __enter__(self: A) -> A:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _canonical(self, updates: object) -> pa.Table:
        return normalize(updates, self.layout.schema, self.layout.domain)

    def _content_id(self) -> str:
        """The id of what is in it now: the one before, if it is still the same."""
        with self._save_turn:
            contents = self._spine.contents
            if self._content[0] != contents:
                self._content = (contents, self._env.ids.fresh())
            return self._content[1]

    def _captured(self) -> Captured:
        """What a checkpoint of this moment is made of, with a user more for each batch."""
        while True:
            content = self._content_id()
            batches, rules = self._spine.held()
            if content == self._content_id():
                return Captured(batches, rules.frontier, content)
            _let_go(batches)

    def _forked(self) -> Spine:
        batches, rules = self._spine.held()
        spine = Spine(
            self.layout,
            self._spine.config,
            directory=self._home.path,
            env=self._env,
            cache=self._spine.cache,
            frontier=rules.frontier,
            retention=rules.retention,
        )
        spine.adopt(batches)
        return spine

    def _save(self, path: str | os.PathLike[str], capture: Callable[[], Captured]) -> Saved:
        directory = CheckpointDirectory(path)
        captured = capture()
        try:
            # A fork may be writing the very same batches.
            folder = tempfile.mkdtemp(prefix="save-", dir=self._home.path)
            try:
                saved = self._saved(directory, captured, folder)
            finally:
                os.rmdir(folder)
        finally:
            _let_go(captured.batches)
        self._env.recorder.count("arrangement.saved" if saved.is_new else "arrangement.unchanged")
        return saved

    def _saved(self, directory: CheckpointDirectory, captured: Captured, folder: str) -> Saved:
        known = {b.name: b for checkpoint in directory.checkpoints() for b in checkpoint.batches}
        by_name = {batch.id + SUFFIX: batch for batch in captured.batches}
        written: dict[str, FileBatch] = {}

        def file_of(batch: Batch) -> FileBatch:
            if isinstance(batch, FileBatch):
                return batch
            if batch.id not in written:
                written[batch.id] = self._written(batch, folder)
            return written[batch.id]

        try:
            listed = tuple(
                known.get(name) or SavedBatch(name, batch.rows, batch.negative_rows, file_of(batch).size_bytes)
                for name, batch in by_name.items()
            )
            wanted = Checkpoint(
                number=0,
                content=captured.content,
                saved_ms=self._env.clock.now_ms(),
                schema=self.layout.schema,
                domain=self.layout.domain,
                frontier=captured.frontier,
                batches=listed,
                followed=captured.followed,
            )
            return directory.save(wanted, lambda name: file_of(by_name[name]).path)
        finally:
            _let_go(list(written.values()))

    def _written(self, batch: Batch, folder: str) -> FileBatch:
        """A file of the rows of a batch in memory, which goes when it is let go."""
        plan = FilterPlan(batch.rows, batch.key_lower, batch.key_upper)
        builder = FileBuilder(self.layout, folder, batch.id, plan, self._spine.cache)
        try:
            for rows in batch.scan():
                builder.add(rows)
            built = builder.finish()
        except BaseException:
            builder.abandon()
            raise
        if built is None:
            raise InternalError(f"batch {batch.id} has no rows")
        return built


def restored(
    path: str | os.PathLike[str],
    number: int | None,
    *,
    directory: str | os.PathLike[str] | None,
    config: ArrangementConfig | None,
    env: Env,
) -> tuple[Spine, Home, Checkpoint]:
    """What is needed of a checkpoint to make an arrangement; arguments and errors as `Arrangement.restore`."""
    home = Home(directory, env.ids.fresh())
    try:
        found, files = CheckpointDirectory(path).restore(home.path, number)
        spine = Spine(
            Layout(found.schema, found.domain),
            config,
            directory=home.path,
            env=env,
            frontier=found.frontier,
        )
        batches: list[Batch] = []
        try:
            for file in files.values():
                batches.append(open_batch(file, spine.layout, spine.cache, delete=True))
            spine.adopt(batches)
        except BaseException:
            _let_go(batches)
            spine.close()
            raise
    except BaseException:
        home.release()
        raise
    return spine, home, found


def _let_go(batches: Sequence[Batch]) -> None:
    for batch in batches:
        batch.release()

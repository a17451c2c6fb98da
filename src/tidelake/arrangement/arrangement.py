"""The arrangement as users meet it: an index of updates, with tables in any Arrow form and its whole life.

Owns names of arguments, and what happens to contents in forks and checkpoints; must not know where updates
come from. Reads are in `reading`, files of checkpoints in `saving`.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.arrangement import given
from tidelake.arrangement.checkpoint import Saved
from tidelake.arrangement.forgotten import Holdings, Watch
from tidelake.arrangement.home import Home
from tidelake.arrangement.layout import Layout
from tidelake.arrangement.overview import Metrics
from tidelake.arrangement.reading import Reads
from tidelake.arrangement.report import SpineReport
from tidelake.arrangement.retention import Ranked, Retention
from tidelake.arrangement.saving import Captured, let_go, restored, save
from tidelake.arrangement.settings import ArrangementConfig
from tidelake.arrangement.snapshot import Snapshot
from tidelake.arrangement.spine import Spine
from tidelake.data.ingest import normalize
from tidelake.data.types import row_schema, schema_from_arrow
from tidelake.env import Env
from tidelake.model.frontier import Frontier
from tidelake.model.time import Time, TimeDomain

A = TypeVar("A", bound="Arrangement")


class Arrangement(Reads):
    """An indexed multiset of updates in this process, merged in the background. Thread-safe; to be closed.

    One that is forgotten warns, and is closed beside its caller.

    Make one with `create`, `restore`, or `collection.arrange(...)`.

    Attributes:
        layout: of its rows.
    """

    def __init__(self, spine: Spine, home: Home, env: Env, content: str, id_: str | None = None) -> None:
        """Take over a spine whose files are in a folder.

        Args:
            spine: that holds the rows.
            home: where its files are.
            env: clock, ids and recorder.
            content: id of what the spine holds now.
            id_: of the arrangement, for its checkpoints; default: that of what it begins with.
        """
        self.layout = spine.layout
        self._id = content if id_ is None else id_
        self._spine, self._home, self._env = spine, home, env
        self._content = (spine.contents, content)
        self._turn = threading.Lock()
        self._metrics = Metrics(env.recorder)
        self._closed = False
        self._holdings = Holdings("an arrangement", [spine.close, home.release], env.recorder)
        self._watch = Watch(self, self._holdings)

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
        try:
            spine = Spine(layout, config, directory=home.path, env=world)
        except BaseException:
            home.release()
            raise
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
        # Of what followed a collection another arrangement comes, which follows nobody.
        id_ = found.owner if found.followed is None else world.ids.fresh()
        return cls(spine, home, world, found.content, id_)

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
        """Answers as of times at or after it are exact."""
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
        """Let merges fold times before it: answers as of times at or after it stay exact, others are refused.

        Args:
            frontier: or one time; at or after the one before.

        Raises:
            UsageError: it goes back, or is no time.
        """
        domain = self.layout.domain
        wanted = frontier if isinstance(frontier, Frontier) else Frontier.of(domain.check(frontier))
        self._spine.set_frontier(wanted)

    def retain_keys(self, predicate: pc.Expression) -> None:
        """Drop all keys that do not satisfy a condition: for every read from now on, physically at merges.

        Args:
            predicate: over key columns. Meant to be set again and again, each time stricter. Not saved.

        Raises:
            UsageError: it is no condition over key columns.
        """
        self._spine.retain_keys(predicate)

    def retain_values(self, rule: pc.Expression | Ranked) -> None:
        """Drop all values that do not satisfy a condition or rank, as `retain_keys`.

        Args:
            rule: over key and value columns; or `last_n`, `top_n`, `bottom_n` of
                `tidelake.arrangement.retention`, which rank the live values of each key at the frontier.

        Raises:
            UsageError: it is no such condition, or ranks by columns that are not there.
        """
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
            let_go(batches)

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
        """Ask for all that is there to become one batch; returns at once. Requests coalesce.

        Raises:
            TidelakeError: what went wrong in the background since the last call. Nothing was asked for.
        """
        self._spine.compact()

    @property
    def is_compact(self) -> bool:
        """Whether there is at most one batch, nothing is being merged, and no request is left.

        Raises:
            StoreUnavailable: the disk has no room for what was asked for.
            TidelakeError: what else went wrong in the background since the last call; it is tried again.
        """
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
        captured, retention = self._captured_with_filters()
        spine = Spine(
            self.layout,
            self._spine.config,
            directory=self._home.path,
            env=self._env,
            machine=self._spine.machine,
            cache=self._spine.cache,
            frontier=captured.frontier,
            retention=retention,
        )
        try:
            spine.adopt(captured.batches)
        except BaseException:
            captured.let_go()
            spine.close()
            raise
        return Arrangement(spine, self._home.acquire(), self._env, captured.content, self._env.ids.fresh())

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Save a checkpoint: it is complete, or not there; the last two of a directory are kept.

        Files are shared with the directory where the file system has hard links, else copied; batches in
        memory are written. What is inserted meanwhile is not in it. If the contents are those of the newest
        checkpoint there, nothing is written.

        Args:
            path: a directory for the checkpoints of this arrangement only; made if it is not there. Whoever
                restores it from there is this arrangement as well, a fork is another one.

        Raises:
            UsageError: checkpoints of another arrangement are there, which are left as they are.
            StoreUnavailable: it was not saved; the checkpoints that were there are as they were.
            OutcomeUnknown: it may be saved; saving again decides.
            CorruptionError: a list there is damaged, or all lists are gone and batch files are there.
            IncompatibleSchema: checkpoints of other columns are there.
        """
        return self._save(path, self._captured)

    def close(self) -> None:
        """Stop merging, and let go of all rows and files. May be repeated."""
        with self._turn:
            closed, self._closed = self._closed, True
        if not closed:
            self._watch.end()
            try:
                self._metrics.tell(self._spine.report())
            finally:
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
        with self._turn:
            contents = self._spine.contents
            if self._content[0] != contents:
                self._content = (contents, self._env.ids.fresh())
            return self._content[1]

    def _captured(self) -> Captured:
        """What a checkpoint of this moment is made of, with a user more for each batch."""
        return self._captured_with_filters()[0]

    def _captured_with_filters(self) -> tuple[Captured, Retention]:
        while True:
            content = self._content_id()
            batches, rules = self._spine.held()
            if content == self._content_id():
                return Captured(batches, rules.frontier, content, arrangement=self._id), rules.retention
            let_go(batches)

    def _save(self, path: str | os.PathLike[str], capture: Callable[[], Captured]) -> Saved:
        # Before anything is captured.
        folder = given.directory(path, "path")
        saved = save(capture(), folder, self._spine, self._env)
        self._env.recorder.count("arrangement.saved" if saved.is_new else "arrangement.unchanged")
        return saved

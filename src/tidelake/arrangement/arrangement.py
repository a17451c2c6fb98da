"""The public class `Arrangement`: an index of updates that can be read, merged, forked and saved.

Owns the interface that users call, and how an arrangement is forked and saved. Must not know where updates
come from. Reads are in `reading`, the files of checkpoints in `saving`.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.arrangement import arguments
from tidelake.arrangement.batch.batch import release_all
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.checkpoint.checkpoint import Saved
from tidelake.arrangement.checkpoint.home import Home
from tidelake.arrangement.checkpoint.saving import Captured, restored, save
from tidelake.arrangement.forgotten import Holdings, Watch
from tidelake.arrangement.merge.report import SpineReport
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.arrangement.overview import Metrics
from tidelake.arrangement.read.reading import ArrangementReads
from tidelake.arrangement.read.retention import Ranked, RetentionFilters
from tidelake.arrangement.read.snapshot import Snapshot
from tidelake.data.ingest.updates import normalize
from tidelake.data.kernel.types import row_schema, schema_from_arrow
from tidelake.env import Env
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.time import TimeDomain

A = TypeVar("A", bound="Arrangement")


class Arrangement(ArrangementReads):
    """An indexed multiset of updates in this process, merged in the background. Thread-safe; to be closed.

    If it is garbage collected before it is closed, it warns, and a background thread closes it.

    Make one with `create`, `restore`, or `collection.arrange(...)`.

    Attributes:
        layout: the columns of its rows.
    """

    def __init__(self, spine: AsyncSpine, home: Home, env: Env, content: str, id_: str | None = None) -> None:
        """Take ownership of a spine and of the folder with its files.

        Args:
            spine: holds the rows.
            home: the folder with its files.
            env: clock, ids and recorder.
            content: id of the contents that the spine has now.
            id_: id of the arrangement, for its checkpoints; default: `content`.
        """
        # SUBTLE: it has a spine rather than being one: threads refer to the spine, and would keep it alive.
        self.layout = spine.layout
        self._id = content if id_ is None else id_
        self._spine, self._home, self._env = spine, home, env
        self._content = (spine.contents, content)
        self._lock = threading.Lock()
        self._metrics = Metrics(env.recorder)
        self._closed = False
        self._holdings = Holdings("an arrangement", [spine.close, home.release], env.recorder)
        self._watch = Watch(self, self._holdings, env.spawner)

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
        """An empty arrangement, for updates that the caller appends.

        Args:
            schema: the key and value columns.
            key: names of the key columns, in sort order.
            value: names of the value columns; default: all others.
            time: the unit of times, as for `lake.create`.
            directory: parent of the folder with batches on disk; default: the system's temporary directory.
            config: settings.
            env: clock, ids, recorder and spawner.

        Raises:
            UsageError: a column, the time unit or the directory is not valid.
            StoreUnavailable: the directory cannot be written.
        """
        layout = Layout(schema_from_arrow(schema, key, value), TimeDomain.parse(time))
        world = Env() if env is None else env
        home = Home(directory, world.ids.fresh())
        try:
            spine = AsyncSpine(layout, config, directory=home.path, env=world)
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
        """Restore an arrangement from a checkpoint. Filters are not saved: set them again.

        Its files are hard links to those of the checkpoint, or copies where the file system has no links.

        Args:
            path: the directory that was given to `save`.
            number: number of the checkpoint; default: the newest.
            directory: as for `create`.
            config: settings.
            env: clock, ids, recorder and spawner.

        Raises:
            UsageError: there is no such checkpoint.
            CorruptionError: a file is missing or damaged; names it. Blocks are checked when they are read.
            FormatTooNew: a newer version saved it.
        """
        world = Env() if env is None else env
        spine, home, found = restored(path, number, directory=directory, config=config, env=world)
        # A checkpoint that followed a collection becomes a new arrangement, which follows none.
        id_ = found.arrangement if found.followed is None else world.ids.fresh()
        return cls(spine, home, world, found.content, id_)

    # Contents

    @property
    def schema(self) -> pa.Schema:
        """Key columns, then value columns."""
        return row_schema(self.layout.schema)

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self.layout.key_names

    @property
    def since(self) -> Frontier:
        """Reads as of times at or after `since` are exact; earlier times are refused."""
        return self._spine.since

    def append(self, updates: object) -> None:
        """Append updates; waits while there are too many batches, or memory is about to run out.

        Args:
            updates: a table in any Arrow form with key and value columns and the time column(s); a missing
                `_diff` is +1. Times before `since` are folded to it.

        Raises:
            InvalidUpdates: the table does not fit, or a sum of diffs overflows int64. Nothing was appended.
            StoreUnavailable: the disk refused the write. Nothing was appended.
            TidelakeError: a background merge failed since the last call. Nothing was appended.
        """
        self._spine.append(self._canonical(updates))

    def append_nowait(self, updates: object) -> bool:
        """Append without waiting; returns whether the caller should `wait` before the next append."""
        return self._spine.append_nowait(self._canonical(updates))

    def wait(self) -> None:
        """Wait until there are few enough batches and enough memory for the next append."""
        self._spine.wait()

    def advance_since(self, since: Frontier | TimeLike) -> None:
        """Let merges fold times before `since`. Reads as of earlier times are refused from now on.

        Args:
            since: the new `since`, or one time; at or after the current `since`.

        Raises:
            UsageError: it is before the current `since`, or is not a time.
        """
        domain = self.layout.domain
        wanted = since if isinstance(since, Frontier) else Frontier.of(domain.check(since))
        self._spine.advance_since(wanted)

    def retain_keys(self, predicate: pc.Expression) -> None:
        """Keep only keys that satisfy a condition. Reads apply it at once, merges delete the rows later.

        Args:
            predicate: a condition over key columns. Replaces the one before; make it stricter each time,
                as with a watermark. Checkpoints do not save it.

        Raises:
            UsageError: it is not a condition over key columns.
        """
        self._spine.retain(lambda filters: filters.with_keys(predicate))

    def retain_values(self, rule: pc.Expression | Ranked) -> None:
        """Keep only values that satisfy a condition or rank; takes effect as `retain_keys` does.

        Args:
            rule: a condition over key and value columns; or `last_n`, `top_n`, `bottom_n` of
                `tidelake.arrangement.read.retention`, which rank the live values of each key at `since`.

        Raises:
            UsageError: it is not such a condition, or ranks by columns that do not exist.
        """
        self._spine.retain(lambda filters: filters.with_values(rule))

    # Reading

    def snapshot(self) -> Snapshot:
        """The contents of this moment, for several reads that must agree. Close it after use.

        Raises:
            Closed: the arrangement was closed.
            TidelakeError: a background merge failed since the last call.
        """
        batches, rules = self._spine.held()
        try:
            return Snapshot(self.layout, batches, rules.retention, rules.since)
        finally:
            release_all(batches)

    @property
    def byte_size(self) -> int:
        """Bytes of all batches, in memory and on disk."""
        report = self._spine.report()
        return report.bytes_in_memory + report.bytes_on_disk

    # Merging

    def pause(self) -> None:
        """Stop merging; returns when no step is running. Appends do not wait while merging is paused."""
        self._spine.pause()

    def resume(self) -> None:
        """Merge again after `pause`."""
        self._spine.resume()

    def merge_nowait(self) -> None:
        """Ask for all batches to be merged into one; returns at once. Requests coalesce.

        Raises:
            TidelakeError: a background merge failed since the last call. The request was not made.
        """
        self._spine.merge_nowait()

    @property
    def is_merged(self) -> bool:
        """Whether there is at most one batch, no merge is running, and no `merge_nowait` request is pending.

        Raises:
            StoreUnavailable: the disk has no room for the merge that was requested.
            TidelakeError: a background merge failed since the last call; it is tried again.
        """
        return self._spine.is_merged

    def merge(self) -> None:
        """Merge all batches into one, and wait until it is done.

        Raises:
            UsageError: merging is paused, or was paused before it was done.
            StoreUnavailable: the disk has no room for it.
            TidelakeError: a merge failed.
        """
        self._spine.merge()

    def report(self) -> SpineReport:
        """Batches, merges, memory and waits; also adds what happened since the last call to the recorder.

        `tidelake.arrangement.overview` turns a report into plain rows.
        """
        report = self._spine.report()
        self._metrics.tell(report)
        return report

    # Life

    def fork(self) -> "Arrangement":
        """A second arrangement with the same contents, `since` and filters, independent from now on.

        The batches are shared, in memory and on disk, so no rows are copied.
        """
        captured, retention = self._captured_with_filters()
        spine = AsyncSpine(
            self.layout,
            self._spine.config,
            directory=self._home.path,
            env=self._env,
            machine=self._spine.room.machine,
            cache=self._spine.cache,
            since=captured.since,
            retention=retention,
        )
        try:
            spine.adopt(captured.batches)
        except BaseException:
            release_all(captured.batches)
            spine.close()
            raise
        return Arrangement(spine, self._home.acquire(), self._env, captured.content, self._env.ids.fresh())

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Save a checkpoint, atomically. The directory keeps the last two.

        Batch files are hard-linked, or copied where the file system has no links; batches in memory are
        written. Updates appended while it saves are not part of it. If the newest checkpoint there has the
        same contents, nothing is written.

        Args:
            path: a directory for the checkpoints of this arrangement only; created if it does not exist. An
                arrangement that was restored from there may save there too, a fork may not.

        Raises:
            UsageError: the directory has checkpoints of another arrangement, which are left as they are.
            StoreUnavailable: it was not saved; the checkpoints that were there are as they were.
            OutcomeUnknown: it may be saved; saving again decides.
            CorruptionError: a list there is damaged, or all lists are missing and batch files are there.
            IncompatibleSchema: the directory has checkpoints with other columns.
        """
        return self._save(path, self._captured)

    def close(self) -> None:
        """Stop merging, and release all rows and files. May be repeated."""
        with self._lock:
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
        """The id of the current contents; it changes only when they change."""
        with self._lock:
            contents = self._spine.contents
            if self._content[0] != contents:
                self._content = (contents, self._env.ids.fresh())
            return self._content[1]

    def _captured(self) -> Captured:
        """The parts of a checkpoint of this moment; the caller releases its batches."""
        return self._captured_with_filters()[0]

    def _captured_with_filters(self) -> tuple[Captured, RetentionFilters]:
        while True:
            content = self._content_id()
            batches, rules = self._spine.held()
            if content == self._content_id():
                return Captured(batches, rules.since, content, arrangement=self._id), rules.retention
            release_all(batches)

    def _save(self, path: str | os.PathLike[str], capture: Callable[[], Captured]) -> Saved:
        # Checked first: nothing may be captured if the path is wrong.
        folder = arguments.directory(path, "path")
        saved = save(capture(), folder, self._spine, self._env)
        self._env.recorder.count("arrangement.saved" if saved.is_new else "arrangement.unchanged")
        return saved

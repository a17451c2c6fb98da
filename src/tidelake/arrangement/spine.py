"""The spine: an indexed multiset of updates, merged in the background while it is written and read.

Owns how updates become batches, the frontier and the filters, and errors raised to callers. Must not know
where updates come from, nor how merges are chosen and carried out.

INVARIANT: the batches of a snapshot are, in sum, all updates inserted before it, with times before the
frontier folded into it and without the rows that filters dropped, whatever merges or spills meanwhile.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidelake.arrangement.batch import Batch, Builder, FilterPlan
from tidelake.arrangement.cache import BlockCache
from tidelake.arrangement.dispatch import Dispatcher
from tidelake.arrangement.filebuilder import FileBuilder
from tidelake.arrangement.layout import Layout
from tidelake.arrangement.memory import MemoryBuilder
from tidelake.arrangement.merger import Merger
from tidelake.arrangement.merging import Rules
from tidelake.arrangement.report import SpineReport
from tidelake.arrangement.retention import Ranked, Retention
from tidelake.arrangement.room import SYSTEM_MACHINE, Machine, Room
from tidelake.arrangement.settings import ArrangementConfig
from tidelake.data.consolidate import consolidate
from tidelake.env import Env
from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier

# Temporary directories of closed spines whose files are still read; removed at exit.
_IN_USE: list[tempfile.TemporaryDirectory[str]] = []


class Spine:
    """Batches by level, merged in the background. Thread-safe; to be closed.

    Attributes:
        layout: layout of the rows.
        config: the settings.
        directory: directory of batch files.
        cache: cache of their blocks.
        machine: measures memory and disk.
    """

    def __init__(
        self,
        layout: Layout,
        config: ArrangementConfig | None = None,
        *,
        directory: str | None = None,
        env: Env | None = None,
        machine: Machine | None = None,
        cache: BlockCache | None = None,
        frontier: Frontier | None = None,
        retention: Retention | None = None,
    ) -> None:
        """An empty spine; threads start with the first merge that is due.

        Args:
            layout: layout of the rows.
            config: the settings.
            directory: an existing directory for batch files. None: a temporary one, removed by `close`.
            env: clock, ids of batches, and spawner of threads.
            machine: measures memory and disk.
            cache: a cache of blocks to share with another spine; None for a new one.
            frontier: initial frontier; None for the least time.
            retention: initial filters; None for none.
        """
        self.layout = layout
        self.config = config if config is not None else ArrangementConfig()
        if not isinstance(self.config, ArrangementConfig):
            raise UsageError(f"config={config!r} must be a tidelake.ArrangementConfig")
        self._env = env if env is not None else Env()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tidelake-")
            directory = self._temporary.name
        self.directory: str = directory
        self.cache = cache if cache is not None else BlockCache(self.config.cache_bytes_held)
        rules = Rules(
            layout,
            frontier if frontier is not None else Frontier.of(layout.domain.minimum),
            retention if retention is not None else Retention(layout),
        )
        self.machine = machine if machine is not None else SYSTEM_MACHINE
        room = Room(self.config, self.machine, self.directory)
        dispatcher = Dispatcher(self.config, room, rules, self._make, lambda: self.cache.bytes)
        self._merger = Merger(dispatcher, self._env)

    # Writing

    def insert(self, updates: pa.Table | pa.RecordBatch) -> None:
        """Insert updates, and wait if there are too many batches or memory runs out.

        Args:
            updates: canonical rows of `layout.arrow`, in any order, with duplicates.

        Raises:
            InvalidUpdates: a sum of diffs overflows int64. Nothing was inserted.
            StoreUnavailable: the disk refused the write. Nothing was inserted.
            TidelakeError: a background merge failed before. Nothing was inserted.
        """
        if self.insert_nowait(updates):
            self._merger.wait()

    def insert_nowait(self, updates: pa.Table | pa.RecordBatch) -> bool:
        """Insert without waiting; returns whether the caller should `wait` before the next insert."""
        table = updates if isinstance(updates, pa.Table) else pa.Table.from_batches([updates])
        rows = consolidate(table, self.layout.schema, self.layout.domain).to_batches()
        rows = [batch for batch in rows if batch.num_rows]
        if not rows:
            self._merger.check()
            return False
        lower, upper = (
            self.layout.encoded_at(rows[0], 0),
            self.layout.encoded_at(rows[-1], rows[-1].num_rows - 1),
        )
        plan = FilterPlan(sum(batch.num_rows for batch in rows), lower, upper)
        return self.load(rows, plan)

    def load(self, rows: Iterable[pa.RecordBatch], plan: FilterPlan) -> bool:
        """Insert updates that are sorted and consolidated already, as one batch, in bounded memory.

        The batch begins in memory, and moves to disk when it becomes too large.

        Args:
            rows: record batches of `layout.arrow`, each greater than the one before.
            plan: what is known about all rows.

        Returns:
            Whether the caller should `wait` before the next insert.

        Raises:
            InternalError: rows are not in order. Nothing was inserted.
            StoreUnavailable: as `insert`.
            TidelakeError: as `insert`.
        """
        self._merger.check()
        builder, size_bytes = self._make(plan, False), 0
        try:
            for batch in rows:
                size_bytes += batch.nbytes
                if isinstance(builder, MemoryBuilder) and self._merger.on_disk(size_bytes):
                    held = builder.taken()
                    builder = self._make(plan, True)
                    for earlier in held:
                        builder.add(earlier)
                    del held
                builder.add(batch)
            built = builder.finish()
        except BaseException:
            builder.abandon()
            raise
        if built is None:
            return False
        try:
            return self._merger.put([built])
        except BaseException:
            built.release()
            raise

    def adopt(self, batches: Sequence[Batch]) -> None:
        """Add batches of another spine or of a checkpoint, taking over the caller's use of each."""
        self._merger.put(batches)

    def wait(self) -> None:
        """Wait until there are few enough batches and enough memory for the next insert; merges meanwhile."""
        self._merger.wait()

    # Frontier and filters

    @property
    def frontier(self) -> Frontier:
        """Reads as of times at or after the frontier are exact."""
        return self._merger.rules.frontier

    def set_frontier(self, frontier: Frontier) -> None:
        """Let merges that begin from now on fold times before a frontier into it.

        Raises:
            UsageError: it is before the current frontier.
        """

        def moved(rules: Rules) -> Rules:
            if not rules.frontier <= frontier:
                raise UsageError(f"the frontier is at {rules.frontier} and cannot go back to {frontier}")
            return replace(rules, frontier=frontier)

        self._merger.follow(moved)

    @property
    def retention(self) -> Retention:
        """The filters."""
        return self._merger.rules.retention

    def retain_keys(self, predicate: pc.Expression) -> None:
        """Keep only keys that satisfy a condition; see `Arrangement.retain_keys`.

        Raises:
            UsageError: it is not a condition over key columns.
        """
        self._retain(lambda retention: retention.with_keys(predicate))

    def retain_values(self, rule: pc.Expression | Ranked) -> None:
        """Keep only values that satisfy a condition or rank; see `Arrangement.retain_values`.

        Args:
            rule: a condition over key and value columns, `last_n`, `top_n` or `bottom_n`.

        Raises:
            UsageError: it is not such a condition, or ranks by columns that do not exist.
        """
        self._retain(lambda retention: retention.with_values(rule))

    def _retain(self, change: Callable[[Retention], Retention]) -> None:
        self._merger.follow(lambda rules: replace(rules, retention=change(rules.retention)), changes=False)

    # Reading

    def held(self) -> tuple[list[Batch], Rules]:
        """All batches, which the caller must release, and the frontier and filters of the same moment.

        Raises:
            Closed: the spine was closed.
            TidelakeError: a background merge failed before.
        """
        self._merger.check()
        return self._merger.held()

    @property
    def contents(self) -> int:
        """A number that changes with every insert and with the frontier, but not with merges."""
        return self._merger.contents

    # Merging

    def step(self) -> bool:
        """Do one step of one merge in the calling thread; returns whether a merge was due."""
        return self._merger.step()

    def pause(self) -> None:
        """Stop merging; returns when no step is running. Inserts do not wait while merging is paused."""
        self._merger.pause()

    def resume(self) -> None:
        """Merge again after `pause`."""
        self._merger.resume()

    def compact(self) -> None:
        """Ask for all batches to be merged into one; returns at once. Requests coalesce.

        Raises:
            TidelakeError: a background merge failed before. The request was not made.
        """
        self._merger.check()
        self._merger.sweep()

    @property
    def is_compact(self) -> bool:
        """Whether there is at most one batch, no merge is running, and no `compact` request is pending.

        Raises:
            StoreUnavailable: the disk has no room for the compaction that was requested.
            TidelakeError: a background merge failed before; it is tried again.
        """
        self._merger.check()
        return self._merger.compact

    def consolidate(self) -> None:
        """Merge all batches into one, and wait until it is done; the calling thread merges too.

        Raises:
            UsageError: merging is paused, or was paused before it was done.
            StoreUnavailable: the disk has no room for it.
            TidelakeError: a merge failed.
        """
        if self._merger.paused:
            raise UsageError("merging is paused: resume it before you consolidate")
        self._merger.sweep_now()

    @property
    def at_rest(self) -> bool:
        """Whether no merge is due or running."""
        return self._merger.at_rest

    def report(self) -> SpineReport:
        """Batches, merges, memory and waits at this moment."""
        merger = self._merger
        used, pressure = merger.measured()
        batches, _ = merger.held()
        try:
            memory = sum(batch.size_bytes for batch in batches if not batch.on_disk)
            disk = sum(batch.size_bytes for batch in batches if batch.on_disk)
        finally:
            for batch in batches:
                batch.release()
        return SpineReport(
            levels=merger.levels(),
            bytes_in_memory=memory,
            bytes_on_disk=disk,
            used_bytes=used,
            pressure=pressure.name.lower(),
            waits=merger.waits.count,
            waited_s=merger.waits.seconds,
            sweeping=merger.sweeping,
            paused=merger.paused,
            reads=self.cache.counts,
        )

    # Life

    def close(self) -> None:
        """Stop merging and release everything. May be repeated."""
        self._merger.close()
        temporary, self._temporary = self._temporary, None
        if temporary is not None and os.listdir(temporary.name):
            _IN_USE.append(temporary)
        elif temporary is not None:
            temporary.cleanup()

    def __enter__(self) -> "Spine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, plan: FilterPlan, on_disk: bool) -> Builder:
        id_ = self._env.ids.fresh()
        if on_disk:
            return FileBuilder(self.layout, self.directory, id_, plan, self.cache)
        return MemoryBuilder(self.layout, id_, plan, self.cache.counts)

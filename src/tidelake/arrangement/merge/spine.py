"""The spine: an indexed multiset of updates, merged in the background while it is written and read.

Owns how updates become batches, `since` and the filters; `Merger`, the class below it, owns the batches
and their merges. Must not know where updates come from.

INVARIANT: the batches of a snapshot are, in sum, all updates appended before it, with times before
`since` folded into it and without the rows that filters dropped, whatever merges or spills meanwhile.
"""

import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa

from tidelake.arrangement.batch.batch import Builder, FilterPlan
from tidelake.arrangement.batch.cache import BlockCache
from tidelake.arrangement.batch.filebuilder import FileBuilder
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.batch.memory import MemoryBuilder
from tidelake.arrangement.merge.memorybudget import SYSTEM_MACHINE, MemoryBudget, SystemResources
from tidelake.arrangement.merge.merger import Merger
from tidelake.arrangement.merge.merging import MergeRules
from tidelake.arrangement.merge.report import SpineReport
from tidelake.arrangement.merge.schedule import Schedule
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.arrangement.read.retention import RetentionFilters
from tidelake.data.kernel.consolidate import consolidate
from tidelake.env import Env
from tidelake.errors import UsageError
from tidelake.model.frontier import Frontier

# Temporary directories of closed spines whose files are still read; removed at exit.
_IN_USE: list[tempfile.TemporaryDirectory[str]] = []


class AsyncSpine(Merger):
    """Batches by level, merged in the background. Thread-safe; to be closed."""

    def __init__(
        self,
        layout: Layout,
        config: ArrangementConfig | None = None,
        *,
        directory: str | None = None,
        env: Env,
        machine: SystemResources | None = None,
        cache: BlockCache | None = None,
        since: Frontier | None = None,
        retention: RetentionFilters | None = None,
    ) -> None:
        """An empty spine.

        Threads start with the first merge that is due, or with the first batch in memory that other use of
        memory may drive out: that of the cache, or of the process if it has a budget.
        """
        config = config if config is not None else ArrangementConfig()
        if not isinstance(config, ArrangementConfig):
            raise UsageError(f"config={config!r} must be a tidelake.ArrangementConfig")
        self.layout = layout
        self._ids = env.ids
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tidelake-")
            directory = self._temporary.name
        self.directory = directory
        self.cache = cache if cache is not None else BlockCache(config.cache_bytes_held)
        rules = MergeRules(
            layout,
            since if since is not None else Frontier.of(layout.domain.minimum),
            retention if retention is not None else RetentionFilters(layout),
        )
        room = MemoryBudget(config, machine if machine is not None else SYSTEM_MACHINE, directory)
        super().__init__(Schedule(config, room, rules, self._make, self.cache), env)

    # Writing

    def append(self, updates: pa.Table | pa.RecordBatch) -> None:
        """As `Arrangement.append`, of canonical rows of `layout.arrow`, in any order, with duplicates."""
        if self.append_nowait(updates):
            self.wait()

    def append_nowait(self, updates: pa.Table | pa.RecordBatch) -> bool:
        """As `append`, without waiting; returns whether the caller should `wait` before the next append."""
        table = updates if isinstance(updates, pa.Table) else pa.Table.from_batches([updates])
        rows = consolidate(table, self.layout.schema, self.layout.domain).to_batches()
        rows = [batch for batch in rows if batch.num_rows]
        if not rows:
            self.check()
            return False
        lower, upper = (
            self.layout.encoded_at(rows[0], 0),
            self.layout.encoded_at(rows[-1], rows[-1].num_rows - 1),
        )
        plan = FilterPlan(sum(batch.num_rows for batch in rows), lower, upper)
        return self.load(rows, plan)

    def load(self, rows: Iterable[pa.RecordBatch], plan: FilterPlan) -> bool:
        """Append sorted, consolidated updates as one batch; whether to `wait` before the next append."""
        self.check()
        builder, size_bytes = self._make(plan, False), 0
        try:
            for batch in rows:
                size_bytes += batch.nbytes
                if isinstance(builder, MemoryBuilder) and self._on_disk(size_bytes):
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
            return self.adopt([built])
        except BaseException:
            built.release()
            raise

    # Frontier and filters

    @property
    def since(self) -> Frontier:
        """Reads as of times at or after `since` are exact."""
        return self.rules.since

    def advance_since(self, since: Frontier) -> None:
        """Let merges that begin from now on fold times before `since` into it."""

        def moved(rules: MergeRules) -> MergeRules:
            if not rules.since <= since:
                raise UsageError(f"since is at {rules.since} and cannot go back to {since}")
            return replace(rules, since=since)

        self.change_rules(moved)

    @property
    def retention(self) -> RetentionFilters:
        """The filters."""
        return self.rules.retention

    def retain(self, change: Callable[[RetentionFilters], RetentionFilters]) -> None:
        """Change the filters. Reads apply them at once, merges delete the rows later."""
        self.change_rules(lambda rules: replace(rules, retention=change(rules.retention)))

    # Life

    def report(self) -> SpineReport:
        """Batches, merges, memory and waits at this moment; merges use the new pressure."""
        schedule = self._schedule
        with self._changed:
            self._check_open()
            used = self._measure()
            batches = schedule.batches
            return SpineReport(
                levels=schedule.levels(),
                bytes_in_memory=sum(batch.size_bytes for batch in batches if not batch.on_disk),
                bytes_on_disk=sum(batch.size_bytes for batch in batches if batch.on_disk),
                used_bytes=used,
                pressure=self.room.level.name.lower(),
                waits=self._waits,
                waited_s=self._waited_s,
                sweeping=schedule.sweeping,
                paused=self.paused,
                reads=self.cache.counts,
            )

    def close(self) -> None:
        """Stop merging and release everything. May be repeated."""
        super().close()
        temporary, self._temporary = self._temporary, None
        if temporary is not None and os.listdir(temporary.name):
            _IN_USE.append(temporary)
        elif temporary is not None:
            temporary.cleanup()

    def __enter__(self) -> "AsyncSpine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, plan: FilterPlan, on_disk: bool) -> Builder:
        id_ = self._ids.fresh()
        if on_disk:
            return FileBuilder(self.layout, self.directory, id_, plan, self.cache)
        return MemoryBuilder(self.layout, id_, plan, self.cache.counts)

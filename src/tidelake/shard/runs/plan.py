"""Cuts a read or a merge into tasks by key range.

A task is bytes: a spec of the shard, the runs that it needs, a query and a key range. The tasks of a plan
have disjoint key ranges in ascending order, so their answers, concatenated, are the whole answer: sorted and
consolidated, without a shuffle. `tidelake.shard.runs.shares` chooses the cuts.

A caller that reads Parquet files faster than a task does can ask which parts it may read as they are stored.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from tidelake.data.kernel.types import update_schema
from tidelake.env import Env
from tidelake.errors import BlobNotFound, CorruptionError
from tidelake.model.batch import Run
from tidelake.model.query import AsOf, Changes, Fold, Query, Updates
from tidelake.model.selection import Selection
from tidelake.shard.engine.allocator import lean_memory
from tidelake.shard.engine.lease import explained_by
from tidelake.shard.engine.overlap import mapped, prefetch
from tidelake.shard.engine.spec import ShardSpec, decoded, env_here, stores_of
from tidelake.shard.runs.far import readers
from tidelake.shard.runs.read import held_source, rows, shown
from tidelake.shard.runs.scope import KeyRange, Scope, Source
from tidelake.shard.runs.shares import group_keys, group_sizes, quantiles
from tidelake.shard.runs.stored import AsStored, divided
from tidelake.shard.runs.upload import write_run
from tidelake.state.core.codec import encode_record, is_of
from tidelake.store.protocols import BlobStore

_TASK_BYTES_MIN = 1024 * 1024
# A part is at most this fraction of a merge's memory: it is held whole while written, beside the chunks.
_PART_SHARE = 12
_ALL = Selection()
_SELECTED = "selected"
# The rows that a task may hold itself: it goes to a worker as a message.
_HELD_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Task:
    """One key range of a query, for any process to carry out.

    Attributes:
        spec: the shard.
        needed: its runs, reduced to the parts that overlap the key range.
        keys: the key range.
        as_of, changes, updates, fold: the query. Exactly one of them is set, so that a decoder knows the
            kind of query.
    """

    spec: ShardSpec
    needed: tuple[Source, ...]
    keys: KeyRange
    as_of: AsOf | None = None
    changes: Changes | None = None
    updates: Updates | None = None
    fold: Fold | None = None

    @classmethod
    def of(cls, spec: ShardSpec, needed: Iterable[Source], keys: KeyRange, query: Query) -> "Task":
        """A task for a query."""
        task = cls(spec, tuple(needed), keys)
        match query:
            case AsOf():
                return replace(task, as_of=query)
            case Changes():
                return replace(task, changes=query)
            case Updates():
                return replace(task, updates=query)
            case Fold():
                return replace(task, fold=query)

    def rows(self, blobs: BlobStore, selection: Selection = _ALL) -> Generator[pa.RecordBatch]:
        """The answer of this task."""
        query = self.as_of or self.changes or self.updates or self.fold
        if query is None:
            raise CorruptionError("task", "it holds no query")
        return rows(self.spec, blobs, list(self.needed), query, self.keys, selection=selection)


@dataclass(frozen=True)
class SelectedTask:
    """A task of a read that selects rows or columns."""

    task: Task
    selection: Selection


@dataclass(frozen=True)
class TaskOptions:
    """How a read is cut into tasks.

    Attributes:
        parallelism: the largest number of tasks, unless `bytes_max` needs more.
        bytes_max: make more tasks, so that none reads much more stored bytes than this; None: do not.
        as_stored: leave parts that the caller may read as they are stored out of the tasks.
    """

    parallelism: int
    bytes_max: int | None = None
    as_stored: bool = False


@dataclass(frozen=True)
class ReadPlan:
    """A read, cut into tasks.

    Attributes:
        schema: schema of the rows that the tasks yield: key and value columns, times and `_diff`.
        tasks: encoded tasks, in ascending order of key ranges; at least one, unless all is `as_stored`.
        rows: number of stored updates that are read, an upper bound on the answer.
        size_bytes: size of the parts that are read.
        seqno: seqno of the state that the tasks read; None if they hold all rows themselves.
        as_stored: parts that the tasks leave to the caller, who asked for it; None: there are none.
        version: equal for states that name the same stored parts; empty without a seqno.
        query: what it answers.
    """

    schema: pa.Schema
    tasks: tuple[bytes, ...]
    rows: int
    size_bytes: int
    query: Query
    seqno: int | None = None
    as_stored: AsStored | None = None
    version: str = ""


def plan_read(
    spec: ShardSpec,
    blobs: BlobStore,
    needed: list[Source],
    query: Query,
    options: TaskOptions,
    *,
    selection: Selection = _ALL,
) -> ReadPlan:
    """Cut a read into tasks. Reads the index of every part, unless it is small.

    Args:
        spec: the spec to read with.
        blobs: the store that holds the parts.
        needed: the runs.
        query: the query to answer.
        options: how many tasks, and what is left out of them.
        selection: the rows and columns to return.
    """
    size_bytes = sum(source.run.size_bytes for source in needed)
    rows_ = sum(source.run.rows for source in needed)
    stored, left = _as_stored(spec, blobs, needed, query, selection) if options.as_stored else (None, needed)
    parallelism = options.parallelism
    if options.bytes_max is not None:
        parallelism = max(parallelism, -(-sum(source.run.size_bytes for source in left) // options.bytes_max))
    within = Scope(spec, where=selection.where).keys
    tasks = cut(spec, blobs, left, query, parallelism, within=within) if left or stored is None else []
    encoded = tuple(_encoded(task, selection) for task in tasks)
    return ReadPlan(shown(spec, selection), encoded, rows_, size_bytes, query, as_stored=stored)


def plan_held(
    spec: ShardSpec, batches: list[pa.RecordBatch], query: Query, *, selection: Selection = _ALL
) -> ReadPlan | None:
    """A plan of one task that holds the rows themselves; None if they take more than `_HELD_BYTES`.

    Args:
        spec: the spec to read with.
        batches: the answer with all columns, before rows and columns are selected.
        query: the query that they answer.
        selection: as for `plan_read`.
    """
    if not batches:
        return ReadPlan(shown(spec, selection), (), 0, 0, query)
    source = held_source(spec, [batches], _HELD_BYTES)
    if source is None:
        return None
    task = _encoded(Task.of(spec, [source], KeyRange(), query), selection)
    return ReadPlan(shown(spec, selection), (task,), source.run.rows, source.run.size_bytes, query)


def _as_stored(
    spec: ShardSpec, blobs: BlobStore, needed: list[Source], query: Query, selection: Selection
) -> tuple[AsStored | None, list[Source]]:
    # Only tasks skip rows by a predicate.
    if selection.where is not None or not isinstance(query, AsOf) or blobs.url is None:
        return None, needed
    parts, left = divided(spec, needed, query)
    if not parts:
        return None, needed
    # Check size and footer here: other readers do not know Tidelake's checksum of the footer.
    with closing(mapped(partial(group_sizes, spec, blobs), parts, readers(blobs, 1))) as checked:
        deque(checked, maxlen=0)
    files = tuple(f"{blobs.url}/{part.name}" for part in parts)
    return AsStored(tuple(parts), files, update_schema(spec.schema, spec.domain), query.time), left


def _encoded(task: Task, selection: Selection) -> bytes:
    if selection == _ALL:
        return encode_record("task", task)
    return encode_record(_SELECTED, SelectedTask(task, selection))


def run_task(task: bytes) -> Iterator[pa.RecordBatch]:
    """Carry out one task of a `ReadPlan`, in any process.

    Raises:
        LeaseExpired: a part was collected meanwhile, as nothing held it, or the hold expired.
    """
    if is_of(_SELECTED, task):
        selected = decoded(_SELECTED, task, SelectedTask, "task")
        todo, selection = selected.task, selected.selection
    else:
        todo, selection = decoded("task", task, Task, "task"), _ALL
    return _explained(todo, todo.rows(stores_of(todo.spec).blobs, selection))


def _explained(task: Task, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except BlobNotFound as error:
        raise explained_by(task.spec, error.name) from error


def run_merge_task(task: bytes, blobs: BlobStore | None = None, env: Env | None = None) -> bytes:
    """Carry out one task of a merge: store its rows as parts, and return an encoded run; `b""` without rows.

    Without `blobs`, as in another process, the store is opened from the task's URL.
    """
    todo = decoded("task", task, Task, "task")
    store = stores_of(todo.spec).blobs if blobs is None else blobs
    part_bytes = todo.spec.config.merge_memory_bytes // _PART_SHARE
    # A thread merges and computes statistics ahead, while this one encodes and writes.
    ahead = partial(prefetch, depth=1)
    with lean_memory(), closing(todo.rows(store)) as merged:
        run = write_run(todo.spec, store, env or env_here(), merged, part_bytes=part_bytes, ahead=ahead)
    return b"" if run is None else encode_record("run", run)


def decode_run(data: bytes) -> Run:
    """The run that `run_merge_task` returned; `data` is not `b""`."""
    return decoded("run", data, Run, "run")


def cut(
    spec: ShardSpec,
    blobs: BlobStore,
    needed: list[Source],
    query: Query,
    parallelism: int,
    *,
    within: KeyRange | None = None,
) -> list[Task]:
    """At most `parallelism` tasks of about equal size, none much smaller than 1 MiB or a part."""
    return between(spec, needed, query, cut_keys(spec, blobs, needed, parallelism, within))


def between(spec: ShardSpec, needed: list[Source], query: Query, cuts: Iterable[bytes]) -> list[Task]:
    """The tasks of the key ranges that `cuts` separate: one more than there are cuts."""
    edges: list[bytes | None] = [None, *cuts, None]
    ranges = [KeyRange(edges[i], edges[i + 1]) for i in range(len(edges) - 1)]
    return [Task.of(spec, _within(needed, keys), keys, query) for keys in ranges]


def cut_keys(
    spec: ShardSpec, blobs: BlobStore, needed: list[Source], parallelism: int, within: KeyRange | None = None
) -> tuple[bytes, ...]:
    """Encoded keys, ascending, that separate at most `parallelism` tasks. Reads the index of every part.

    With `within`, cut that range only, so that the tasks read about equal shares of its bytes.
    """
    total = sum(source.run.size_bytes for source in needed)
    count = max(1, min(parallelism, total // min(_TASK_BYTES_MIN, spec.config.part_target_bytes)))
    return tuple(quantiles(group_keys(spec, blobs, needed, within or KeyRange()), count)) if count > 1 else ()


def _within(needed: list[Source], keys: KeyRange) -> Iterator[Source]:
    for source in needed:
        parts = tuple(part for part in source.run.parts if keys.may_hold(part))
        if parts:
            yield replace(source, run=Run(parts, source.run.truncated))

"""What DataFrames read is held: by whom, for how long, and who lets go of it.

Owns the holds of this process' DataFrames, those that the format's planner opens for the whole Spark
application, and their signs of life. The planner runs in a process that the driver does not know and that is
gone soon: so its holds are named after the application, and where the driver has asked for it (`follow`) the
planner notes in a folder of the driver's which collections it holds.

INVARIANT: only the driver's own process releases, never a fork of it and never a worker.
"""

import atexit
import contextlib
import contextvars
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext, SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelake.env import Env
from tidelake.errors import (
    Closed,
    CollectionNotFound,
    NotALake,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
)
from tidelake.lake.collection import Collection
from tidelake.lake.spans import duration_s
from tidelake.shard.lease import extend_states, release_owned, shard_by_id
from tidelake.shard.runs.plan import ReadPlan
from tidelake.shard.shard import Shard
from tidelake.state.holds import close_hold

HOLD_FOR = timedelta(days=1)
# Of the time that a hold lasts: how old it may get before a task that still reads extends it.
_SHARE = 8


@dataclass(frozen=True)
class _Held:
    """What is held for a DataFrame of this process."""

    collection: Collection
    hold: str
    pid: int


@dataclass(frozen=True)
class Lasting:
    """A hold that goes along with the tasks that need it.

    Attributes:
        url: of the lake.
        shard_id: of the collection, whose name may change.
        hold: its name.
        seconds: how long it lasts without a sign of life.
        taken_ms: wall clock of the last one that is known.
    """

    url: str
    shard_id: str
    hold: str
    seconds: float
    taken_ms: int


_held: list[_Held] = []
# Of those, what the innermost `released_afterwards` of a thread is to release.
_passing: contextvars.ContextVar[list[_Held]] = contextvars.ContextVar("_passing")
# By application and driver's process: where its planners note what they hold.
_followed: dict[tuple[str, int], Path] = {}


def hold_plans(
    collection: Collection, plans: Sequence[ReadPlan], hold_for: timedelta | float | None
) -> Lasting | None:
    """Hold what a DataFrame of this process reads, until `release`. At most one log write."""
    hold = None if hold_for is None else collection.hold(plans, hold_for, "a DataFrame")
    if hold is None or hold_for is None:
        return None
    held = _Held(collection, hold, os.getpid())
    _held.append(held)
    _passing.get([]).append(held)
    return _lasting(collection, hold, duration_s(hold_for, "hold_for"))


def _lasting(collection: Collection, hold: str, seconds: float) -> Lasting:
    return Lasting(collection.lake_url, collection.id, hold, seconds, Env().clock.now_ms())


@contextlib.contextmanager
def released_afterwards() -> Iterator[None]:
    """Release at the end of the block what this thread's helpers hold inside: their frames are used there."""
    mine: list[_Held] = []
    token = _passing.set(mine)
    try:
        yield
    finally:
        _passing.reset(token)
        for held in mine:
            # Somebody may have released all meanwhile.
            if held in _held:
                _held.remove(held)
                _let_go(held)


def hold_for_application(collection: Collection, plan: ReadPlan, hold_for_s: float) -> Lasting | None:
    """Hold what a plan reads for the Spark application whose planner this process is.

    At most one log write, and none if it was done for the same version less than a minute ago.
    """
    owner = _application()
    hold = collection.hold([plan], hold_for_s, f"DataFrames of Spark application {owner}", owner=owner)
    if hold is None:
        return None
    folder = _folder(owner)
    if _is_own(folder):
        (folder / collection.id).write_text(json.dumps(collection.lake_url), encoding="utf-8")
    return _lasting(collection, hold, hold_for_s)


def kept(batches: Iterator[pa.RecordBatch], held: Lasting | None) -> Iterator[pa.RecordBatch]:
    """The same batches, while the hold is extended whenever it has grown old. Short reads write nothing."""
    if held is None:
        yield from batches
        return
    clock, beat_s = Env().clock, held.seconds / _SHARE
    due_s = clock.monotonic_s() + beat_s - max(0, clock.now_ms() - held.taken_ms) / 1000
    for batch in batches:
        if clock.monotonic_s() >= due_s:
            due_s = clock.monotonic_s() + beat_s if _extended(held, beat_s / 2) else float("inf")
        yield batch


def _extended(held: Lasting, slack_s: float) -> bool:
    """Give a sign of life; whether another one makes sense."""
    try:
        with shard_by_id(held.url, held.shard_id) as shard:
            return extend_states(shard, held.hold, slack_s)
    except CollectionNotFound:
        # The read finds that out by itself.
        return False
    except (NotALake, StoreUnavailable, OutcomeUnknown):
        # There is time for several more.
        return True


def follow(spark: SparkSession) -> None:
    """Release what the format holds for this application when this process ends. May be repeated.

    Does nothing under Spark Connect, whose planner is on another machine: there holds expire.
    """
    try:
        spark.sparkContext  # noqa: B018  # raises where there is none
    except PySparkException:
        return
    owner = _application()
    if (owner, os.getpid()) not in _followed:
        folder = _folder(owner)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        # In the place of another user nothing is noted: then the holds expire.
        if _is_own(folder):
            _followed[owner, os.getpid()] = folder


def release(collection: Collection | None = None) -> int:
    """Keep what this driver's DataFrames (of a collection; default: all) read no longer; how many holds end.

    Those that are used afterwards fail with `LeaseExpired` once their parts are collected. One log write
    each. Of reads by the format without a collection only if the session was given to `register`; none under
    Spark Connect. Called when the process ends, as far as its lakes are still open.
    """
    count = _released_frames(collection)
    followed = {owner: folder for (owner, pid), folder in _followed.items() if pid == os.getpid()}
    if collection is None:
        return count + sum(_released_all(owner, folder) for owner, folder in followed.items())
    owners = {*followed, *([_application()] if SparkContext._active_spark_context else [])}
    return count + sum(collection.release_owned(owner) for owner in owners)


def _released_frames(collection: Collection | None) -> int:
    """Release what this process' own DataFrames hold; how many there were."""
    wanted = [held for held in _held if collection is None or held.collection.id == collection.id]
    for held in wanted:
        # A fork has a copy of the list; the holds are its parent's.
        if held.pid == os.getpid():
            _let_go(held)
        if held in _held:
            _held.remove(held)
    return len(wanted)


def _let_go(held: _Held) -> None:
    try:
        held.collection.release(held.hold)
    except Closed:
        # The DataFrame can be read after its lake was closed, and so it is still held.
        _in_shard(held.collection.lake_url, held.collection.id, partial(_close, hold=held.hold))


def _close(shard: Shard, hold: str) -> int:
    shard.run(partial(close_hold, hold_id=hold))
    return 1


def _in_shard(url: str, shard_id: str, release: Callable[[Shard], int]) -> int:
    """What a release in a shard of a lake answers; 0 if either is gone, and what was held with it."""
    try:
        with shard_by_id(url, shard_id) as shard:
            return release(shard)
    except (CollectionNotFound, NotALake):
        return 0


def _released_all(owner: str, folder: Path) -> int:
    """Release what an application holds in all collections that its planners have noted."""
    count = 0
    # Whoever tidies up temporary files may have taken the folder: then the holds expire.
    for note in sorted(folder.iterdir()) if _is_own(folder) else ():
        url = json.loads(note.read_text(encoding="utf-8"))
        count += _in_shard(url, note.name, partial(release_owned, owner=owner))
        note.unlink()
    return count


def _application() -> str:
    """A word for the Spark application whose driver, or whose driver's planner, this process is.

    Both know the folder of the application's files on the driver, which has a name that no other has.
    """
    return "spark-" + hashlib.sha256(SparkFiles.getRootDirectory().encode()).hexdigest()[:16]


def _folder(owner: str) -> Path:
    return Path(tempfile.gettempdir()) / f"tidelake-{owner}"


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of this user; others may write where temporary files are."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _release_at_exit() -> None:
    for held in _held:
        # Best effort: the lake may be out of reach. The hold expires.
        with contextlib.suppress(TidelakeError):
            if held.pid == os.getpid():
                _let_go(held)
    _held.clear()
    while _followed:
        (owner, pid), folder = _followed.popitem()
        if pid != os.getpid():
            continue
        with contextlib.suppress(TidelakeError, OSError):
            _released_all(owner, folder)
        shutil.rmtree(folder, ignore_errors=True)


atexit.register(_release_at_exit)

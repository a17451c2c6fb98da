"""Holds on what DataFrames read: who opens them, who renews them, and who releases them.

Owns the holds of this process' DataFrames, the holds that the format's planner opens for the whole Spark
application, and their renewal. The planner runs in a short-lived process that the driver does not know. So
its holds are named after the application, and if the driver has asked for it (`follow`), the planner notes in
a folder of the driver which collections it holds.

INVARIANT: only the driver's own process releases holds, never a fork of it and never a worker.
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

from tidelake.errors import (
    Closed,
    CollectionNotFound,
    NotALake,
    OutcomeUnknown,
    StoreUnavailable,
    TidelakeError,
)
from tidelake.lake.api.collection import Collection
from tidelake.lake.arguments.spans import DurationLike, duration_s
from tidelake.process import PerProcess
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import env_here
from tidelake.shard.reading.planholds import (
    extend_plan_hold,
    release_owned,
    release_plan_hold,
    shard_by_id,
)
from tidelake.shard.runs.plan import ReadPlan

HOLD_FOR = timedelta(days=1)
# A task that still reads extends its hold after this fraction (1/8) of the time that the hold lasts.
_SHARE = 8


@dataclass(frozen=True)
class _Held:
    """A hold for a DataFrame of this process."""

    collection: Collection
    hold: str


@dataclass(frozen=True)
class Lasting:
    """A hold as the tasks that need it get it, to renew it.

    Attributes:
        url: URL of the lake.
        shard_id: id of the collection, whose name may change.
        hold: id of the hold.
        seconds: how long it lasts without a renewal.
        taken_ms: wall clock of the last known renewal.
    """

    url: str
    shard_id: str
    hold: str
    seconds: float
    taken_ms: int


_HELD: PerProcess[list[_Held]] = PerProcess(list)
# Those of `_HELD` that the innermost `released_afterwards` of a thread will release.
_passing: contextvars.ContextVar[list[_Held]] = contextvars.ContextVar("_passing")
# By application: the folder where its planners note their holds.
_FOLLOWED: PerProcess[dict[str, Path]] = PerProcess(dict)


def hold_plans(
    collection: Collection, plans: Sequence[ReadPlan], hold_for: DurationLike | None
) -> Lasting | None:
    """Hold the parts that a DataFrame of this process reads, until `release`. At most one log write."""
    hold = None if hold_for is None else collection.distributed.hold(plans, hold_for, "a DataFrame")
    if hold is None or hold_for is None:
        return None
    held = _Held(collection, hold)
    _HELD.get().append(held)
    _passing.get([]).append(held)
    return _lasting(collection, hold, duration_s(hold_for, "hold_for"))


def _lasting(collection: Collection, hold: str, seconds: float) -> Lasting:
    return Lasting(
        collection.distributed.lake_url,
        collection.id,
        hold,
        seconds,
        collection.distributed.env.clock.now_ms(),
    )


@contextlib.contextmanager
def released_afterwards() -> Iterator[None]:
    """At the end of the block release the holds that this thread opened in it for DataFrames."""
    mine: list[_Held] = []
    token = _passing.set(mine)
    try:
        yield
    finally:
        _passing.reset(token)
        for held in mine:
            # `release` may have released it already.
            if held in _HELD.get():
                _HELD.get().remove(held)
                _let_go(held)


def hold_for_application(collection: Collection, plan: ReadPlan, hold_for_s: float) -> Lasting | None:
    """Hold the parts of a plan for the Spark application whose planner this process is.

    At most one log write; none if the same version was held less than a minute ago.
    """
    owner = application()
    hold = collection.distributed.hold(
        [plan], hold_for_s, f"DataFrames of Spark application {owner}", owner=owner
    )
    if hold is None:
        return None
    folder = _folder(owner)
    if _is_own(folder):
        (folder / collection.id).write_text(json.dumps(collection.distributed.lake_url), encoding="utf-8")
    return _lasting(collection, hold, hold_for_s)


def kept(batches: Iterator[pa.RecordBatch], held: Lasting | None) -> Iterator[pa.RecordBatch]:
    """Pass batches through, and renew the hold from time to time. Short reads write nothing."""
    if held is None:
        yield from batches
        return
    clock, beat_s = env_here().clock, held.seconds / _SHARE
    due_s = clock.monotonic_s() + beat_s - max(0, clock.now_ms() - held.taken_ms) / 1000
    for batch in batches:
        if clock.monotonic_s() >= due_s:
            due_s = clock.monotonic_s() + beat_s if _extended(held, beat_s / 2) else float("inf")
        yield batch


def _extended(held: Lasting, slack_s: float) -> bool:
    """Renew the hold. Returns whether later renewals make sense."""
    try:
        with shard_by_id(held.url, held.shard_id) as shard:
            return extend_plan_hold(shard, held.hold, slack_s)
    except CollectionNotFound:
        # The collection is gone: the read itself will fail with that.
        return False
    except (NotALake, StoreUnavailable, OutcomeUnknown):
        # There is time for several more attempts before the hold expires.
        return True


def follow(spark: SparkSession) -> None:
    """When this process ends, release the holds of the format for this application. May be repeated.

    Does nothing under Spark Connect, whose planner is on another machine: there the holds expire.
    """
    try:
        spark.sparkContext  # noqa: B018  # raises where there is none
    except PySparkException:
        return
    owner = application()
    if owner not in _FOLLOWED.get():
        folder = _folder(owner)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        # If the folder belongs to another user, nothing is noted: then the holds expire.
        if _is_own(folder):
            _FOLLOWED.get()[owner] = folder


def release(collection: Collection | None = None) -> int:
    """Release the holds of this driver's DataFrames (of a collection; default: all). Returns how many.

    DataFrames that are used afterwards fail with `LeaseExpired` once their parts are collected. One log write
    for each hold. Without a collection, holds of reads by the format are released only if the session was
    given to `register`; under Spark Connect none are. Called when the process ends.
    """
    count = _released_frames(collection)
    followed = _FOLLOWED.get()
    if collection is None:
        return count + sum(_released_all(owner, folder) for owner, folder in followed.items())
    owners = {*followed, *([application()] if SparkContext._active_spark_context else [])}
    return count + sum(collection.distributed.release_owned(owner) for owner in owners)


def _released_frames(collection: Collection | None) -> int:
    """Release the holds of this process' own DataFrames. Returns how many."""
    # A fork has none of these: the holds belong to its parent.
    here = _HELD.get()
    wanted = [held for held in here if collection is None or held.collection.id == collection.id]
    for held in wanted:
        _let_go(held)
        if held in here:
            here.remove(held)
    return len(wanted)


def _let_go(held: _Held) -> None:
    try:
        held.collection.distributed.release(held.hold)
    except Closed:
        # A DataFrame outlives its lake's handle, and so does its hold: open the shard again.
        _in_shard(held.collection.distributed.lake_url, held.collection.id, partial(_close, hold=held.hold))


def _close(shard: Shard, hold: str) -> int:
    release_plan_hold(shard, hold)
    return 1


def _in_shard(url: str, shard_id: str, release: Callable[[Shard], int]) -> int:
    """Release holds in a shard of a lake. Returns how many; 0 if the shard or the lake is gone."""
    try:
        with shard_by_id(url, shard_id) as shard:
            return release(shard)
    except (CollectionNotFound, NotALake):
        return 0


def _released_all(owner: str, folder: Path) -> int:
    """Release the holds of an application in all collections that its planners have noted."""
    count = 0
    # A cleaner of temporary files may have removed the folder: then the holds expire.
    for note in sorted(folder.iterdir()) if _is_own(folder) else ():
        url = json.loads(note.read_text(encoding="utf-8"))
        count += _in_shard(url, note.name, partial(release_owned, owner=owner))
        note.unlink()
    return count


def application() -> str:
    """A word that identifies this process' Spark application, in the driver and in its planner.

    Both know the folder of the application's files on the driver, whose name is unique.
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
    here, followed = _HELD.get(), _FOLLOWED.get()
    for held in here:
        # Best effort: if the lake cannot be reached, the hold expires.
        with contextlib.suppress(TidelakeError):
            _let_go(held)
    here.clear()
    while followed:
        owner, folder = followed.popitem()
        with contextlib.suppress(TidelakeError, OSError):
            _released_all(owner, folder)
        shutil.rmtree(folder, ignore_errors=True)


atexit.register(_release_at_exit)

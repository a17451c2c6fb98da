"""An arrangement of a collection: its contents, indexed in this process and kept up to date.

Owns how rows of a collection become rows of an arrangement, and what a checkpoint records about following.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import pyarrow as pa

from tidelake.arrangement import arguments
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.batch.batch import FilterPlan
from tidelake.arrangement.batch.layout import Layout
from tidelake.arrangement.checkpoint.checkpoint import CheckpointDirectory, Saved
from tidelake.arrangement.checkpoint.home import Home
from tidelake.arrangement.checkpoint.saved import Checkpoint, Followed
from tidelake.arrangement.checkpoint.saving import Captured, restored
from tidelake.arrangement.follow.following import Follower, UpdateSink, last_before
from tidelake.arrangement.merge.settings import ArrangementConfig
from tidelake.arrangement.merge.spine import AsyncSpine
from tidelake.arrangement.read.snapshot import Snapshot
from tidelake.data.answer.rows import Rows
from tidelake.data.query.selection import bind
from tidelake.errors import HistoryCompacted, StoreUnavailable, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.predicate import Predicate
from tidelake.model.query import AsOf
from tidelake.model.schema import Schema
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time
from tidelake.shard.engine.shard import Shard
from tidelake.shard.engine.spec import ShardPlace, ShardSpec
from tidelake.shard.engine.version import Version
from tidelake.shard.reading.tail import Tail
from tidelake.state.life.holds import close_hold
from tidelake.state.spine.bases import needed


@dataclass(frozen=True)
class FollowOptions:
    """How a collection is arranged and followed.

    Attributes:
        directory: batches on disk are kept in a folder below it; None: the system's temporary directory.
        config: settings of the arrangement; None: the defaults.
        hold_for_s: how long history is kept for a checkpoint while no process follows.
    """

    directory: str | os.PathLike[str] | None
    config: ArrangementConfig | None
    hold_for_s: float
    poll_s: float
    follow: bool


class FollowedArrangement(Arrangement):
    """An arrangement of a collection; `collection.arrange(...)` makes it.

    Reads see the contents at `last_time`, or at a later time whose updates just came in. Times before the
    since are folded; unless history is kept, since follows the last time.
    """

    def __init__(
        self,
        spine: AsyncSpine,
        home: Home,
        shard: Shard,
        content: str,
        *,
        followed: Followed,
        follower: Callable[[UpdateSink], Follower],
    ) -> None:
        """Take ownership of a spine, as `Arrangement`; `follower` makes what keeps it up to date."""
        # A saved content id has the position after a space; see `_captured_at`.
        super().__init__(spine, home, shard.env, content.partition(" ")[0], "")
        self._shard, self._followed = shard, followed
        self._before: str | None = None
        # The follower must not refer to this object, or it would never be garbage collected.
        self._follower = follower(_Rows(spine, shard, followed))
        self._holdings.title = f"an arrangement of {followed.name!r}"
        self._holdings.give_up.insert(0, self._follower.close)

    @property
    def last_time(self) -> Time:
        """The last time whose updates are applied; the least time if there is none yet. No store call."""
        return last_before(self._follower.position)

    def catch_up(self, through: TimeLike | None = None, *, timeout_s: float | None = None) -> Time:
        """Apply new updates up to a time; returns the last time that is applied.

        One log scan for each step, and reads of the new parts. Also raises an error that the background
        thread met since the last call.

        Args:
            through: the time; default: the last time that is closed now.
            timeout_s: how long to wait for it to be closed; default: the lake's `wait_timeout_s`.

        Raises:
            NotYetClosed: the time is still open after that.
            HistoryCompacted: this process did not follow for longer than its hold lasts: arrange anew.
            IncompatibleSchema: a column was dropped or widened: arrange anew.
            RowsErased: rows were erased since it was loaded: arrange anew. Reads raise it, too, from then on.
            CollectionDropped: the collection was dropped.
            Closed: this arrangement or its lake was closed.
        """
        at = None if through is None else self.layout.domain.check(through, "through")
        return self._follower.catch_up(at, self._patience_s(timeout_s))

    def follow(self) -> None:
        """Apply new updates in a background thread, until `stop_following`. May be repeated."""
        self._follower.start()

    def stop_following(self) -> None:
        """Stop the background thread; only `catch_up` applies new updates then. May be repeated."""
        self._follower.stop()

    def snapshot(self) -> Snapshot:
        """As `Arrangement.snapshot`."""
        self._follower.check()
        return super().snapshot()

    def snapshot_at(self) -> tuple[Time, Snapshot]:
        """A snapshot, and the time for which it has exactly the collection's contents; pass it as `as_of`."""

        def look(time: Time) -> tuple[Time, Snapshot]:
            return time, Arrangement.snapshot(self)

        return self._follower.seen(look)

    def append(self, updates: object) -> NoReturn:  # noqa: ARG002 - the signature of `Arrangement.append`
        """Refused: updates come from the collection."""
        raise UsageError(f"this arrangement follows {self._followed.name!r}: append to the collection")

    def append_nowait(self, updates: object) -> NoReturn:
        """Refused, as `append`."""
        self.append(updates)

    def advance_since(self, since: Frontier | TimeLike) -> None:
        """Give up the history before `since`; see `Arrangement.advance_since`.

        Raises:
            UsageError: it is past the last applied time, or before the current `since`.
        """

        def move(last: Time) -> None:
            domain = self.layout.domain
            wanted = since if isinstance(since, Frontier) else Frontier.of(domain.check(since))
            if not wanted <= Frontier.of(last):
                raise UsageError(
                    f"since {domain.text(wanted)} is past the last applied time, {domain.text(last)}"
                )
            Arrangement.advance_since(self, wanted)

        self._follower.seen(move)

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Save a checkpoint, as `Arrangement.save`; `collection.arrange(restore=path)` goes on from it.

        All arrangements of the same rows of the same collection may save in one directory. The collection
        keeps its history from the checkpoint on, until `hold_for` has passed without a process that follows.
        """
        saved = self._save(path, lambda: self._follower.between_steps(self._captured_at))
        _discard_erased(path, self._follower.erased)
        kept = [c.followed for c in CheckpointDirectory(path).checkpoints() if c.followed is not None]
        self._follower.keep_from(min((f.position for f in kept), key=last_before))
        # Release the hold of the process that this one was restored from: our own began at the same position.
        before, self._before = self._before, None
        if before is not None:
            self._shard.run(partial(close_hold, hold_id=before))
        return saved

    def why_not_all_of(self, spec: ShardSpec | ShardPlace) -> str:
        """Why this is not an arrangement of all rows and columns of a shard, or a version; empty if it is."""
        followed = self._followed
        if followed.collection_id != spec.shard_id:
            return f"it is an arrangement of {followed.name!r}"
        if followed.where is not None or not self._retains_all():
            return "it has only some of the rows"
        if followed.columns is not None:
            return "it has only some of the columns"
        if isinstance(spec, ShardSpec) and followed.schema_id != spec.schema_id:
            return "the columns have changed since it was made: arrange anew"
        return ""

    def close(self) -> None:
        """Stop following, and release all rows and files. One log write, for the hold."""
        if not self._closed:
            try:
                self._follower.close()
            finally:
                super().close()

    def _begin(self, as_of: Time | None, timeout_s: float | None) -> None:
        self._follower.begin(as_of, self._patience_s(timeout_s))

    def _resume(self, followed: Followed) -> None:
        self._follower.resume(followed.position, followed.erased)
        self._before = followed.hold

    def _retains_all(self) -> bool:
        return self._spine.retention.empty

    def _captured_at(self, position: Frontier) -> Captured:
        captured = self._captured()
        follower = self._follower
        followed = replace(self._followed, position=position, hold=follower.hold, erased=follower.erased)
        return replace(captured, content=f"{captured.content} {position}", followed=followed)

    def _patience_s(self, timeout_s: float | None) -> float:
        return self._shard.spec.config.wait_timeout_s if timeout_s is None else timeout_s


@dataclass(frozen=True)
class _Rows:
    """Brings rows of a shard into a spine; see `following.UpdateSink`."""

    spine: AsyncSpine
    shard: Shard
    followed: Followed

    def load(self, contents: Rows, asked: AsOf) -> None:
        """See `UpdateSink.load`."""
        if self.followed.columns is not None:
            # Without some columns, rows may be in another order and no longer distinct.
            for batch in contents:
                self.spine.append(self._of(batch))
            return
        # An upper bound: it counts staged parts of later times too, which are not loaded.
        plan = FilterPlan(needed(self.shard.last_version().state, asked).rows)
        if self.spine.load(map(self._of, contents), plan):
            self.spine.wait()

    def take(self, updates: Rows) -> None:
        """See `UpdateSink.take`."""
        self.spine.append_nowait(pa.Table.from_batches(map(self._of, updates), self.spine.layout.arrow))

    def wait(self) -> None:
        """See `UpdateSink.wait`."""
        self.spine.wait()

    def fold(self, since: Frontier) -> None:
        """See `UpdateSink.fold`."""
        self.spine.advance_since(since)

    def _of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.spine.layout.arrow)


def arranged(
    shard: Shard,
    name: str,
    wanted: ReadOptions,
    options: FollowOptions,
    *,
    as_of: Time | None = None,
    restore: str | os.PathLike[str] | None = None,
) -> FollowedArrangement:
    """Load the contents of a shard or restore them from a checkpoint, catch up, and follow."""
    version = shard.version()
    arguments.directory_or_none(options.directory, "directory")
    restore = arguments.directory_or_none(restore, "restore")
    followed = _followed(version.spec, name, wanted, keeps_history=as_of is not None)
    schema = _schema(version.spec, followed)
    found = None if restore is None else _restored(shard, version, followed, restore, options)
    if found is None:
        home = Home(options.directory, shard.env.ids.fresh())
        layout = Layout(schema, shard.spec.domain)
        spine = AsyncSpine(layout, options.config, directory=home.path, env=shard.env)
        found = FollowedArrangement(
            spine,
            home,
            shard,
            shard.env.ids.fresh(),
            followed=followed,
            follower=_follower(shard, schema, followed, options),
        )
        try:
            found._begin(as_of, wanted.timeout_s)
        except BaseException:
            found.close()
            raise
    try:
        found.catch_up()
    except BaseException:
        found.close()
        raise
    if options.follow:
        found.follow()
    return found


def _followed(spec: ShardSpec, name: str, wanted: ReadOptions, *, keeps_history: bool) -> Followed:
    """What to follow, checked; its position and hold are not known yet."""
    bind(wanted, spec.schema)
    columns = None
    if wanted.columns is not None:
        columns = tuple(column.name for column in spec.schema.value if column.name in wanted.columns)
    return Followed(
        lake_url=spec.url,
        collection_id=spec.shard_id,
        name=name,
        schema_id=spec.schema_id,
        columns=columns,
        where=wanted.where,
        position=Frontier(),
        hold="",
        keeps_history=keeps_history,
        erased=0,
    )


def _schema(spec: ShardSpec, followed: Followed) -> Schema:
    """The schema of the arrangement: the key, and the wanted value columns in the collection's order."""
    schema = spec.schemas[followed.schema_id]
    if followed.columns is None:
        return schema
    return Schema(schema.key, tuple(column for column in schema.value if column.name in followed.columns))


def _condition(spec: ShardSpec, followed: Followed) -> Predicate | None:
    """The condition on rows, on columns by their ids."""
    return bind(ReadOptions(where=followed.where), spec.schemas[followed.schema_id]).where


def _follower(
    shard: Shard, schema: Schema, followed: Followed, options: FollowOptions
) -> Callable[[UpdateSink], Follower]:
    columns = None
    if followed.columns is not None:
        columns = tuple(column.name for column in schema.columns)
    tail = Tail(
        shard,
        shard.env.ids.fresh(),
        f"arrangement of {followed.name}",
        hold_for_s=options.hold_for_s,
        poll_s=0,
        options=ReadOptions(columns, followed.where, schema_id=followed.schema_id),
    )

    def make(sink: UpdateSink) -> Follower:
        return Follower(
            tail, sink, shard.env, shard.renewer, poll_s=options.poll_s, keeps_history=followed.keeps_history
        )

    return make


def _restored(
    shard: Shard, version: Version, followed: Followed, path: str | os.PathLike[str], options: FollowOptions
) -> FollowedArrangement | None:
    """The arrangement of the newest checkpoint; None if there is none, or following cannot resume from it."""
    there = CheckpointDirectory(path).checkpoints()
    if not there:
        return None
    before = _same(there[-1], followed, path)
    spec, erased = version.spec, version.state.erased
    if before.erased != erased:
        shard.env.recorder.count("arrangement.restore.erased")
        _discard_erased(path, erased)
        return None
    schema = _schema(spec, before)
    if schema != _schema(spec, followed) or _condition(spec, before) != _condition(spec, followed):
        # It has other columns than the collection has by these names.
        shard.env.recorder.count("arrangement.restore.outgrown")
        return None
    before = replace(before, schema_id=followed.schema_id)
    spine, home, found = restored(
        path, there[-1].number, directory=options.directory, config=options.config, env=shard.env
    )
    follower = _follower(shard, schema, before, options)
    restored_ = FollowedArrangement(spine, home, shard, found.content, followed=before, follower=follower)
    try:
        restored_._resume(before)
    except HistoryCompacted:
        shard.env.recorder.count("arrangement.restore.too_late")
        restored_.close()
        return None
    except BaseException:
        restored_.close()
        raise
    return restored_


def _discard_erased(path: str | os.PathLike[str], erased: int) -> None:
    """Remove the checkpoints of before an erasure; if another process saves there, a later call does."""

    def is_old(one: Checkpoint) -> bool:
        return one.followed is not None and one.followed.erased < erased

    with suppress(StoreUnavailable):
        CheckpointDirectory(path).discard(is_old)


def _same(found: Checkpoint, wanted: Followed, path: str | os.PathLike[str]) -> Followed:
    """What a checkpoint follows; refused if it differs from what is wanted now."""
    before = found.followed
    if before is None:
        raise UsageError(f"{os.fspath(path)!r} has checkpoints of an arrangement that follows no collection")
    for what, was, now in before.differences(wanted):
        raise UsageError(
            f"the checkpoint in {os.fspath(path)!r} was saved with {what}={was!r}, not with {now!r}: restore "
            "it with the same arguments, or save in another directory"
        )
    return before

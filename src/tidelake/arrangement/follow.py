"""An arrangement of a collection: its contents, indexed in this process and kept up to date.

Owns how a collection's rows become those of an arrangement, and what of following goes into a checkpoint.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import pyarrow as pa

from tidelake.arrangement import given
from tidelake.arrangement.arrangement import Arrangement
from tidelake.arrangement.batch import FilterPlan
from tidelake.arrangement.checkpoint import CheckpointDirectory, Saved
from tidelake.arrangement.following import Follower, Sink, last_before
from tidelake.arrangement.home import Home
from tidelake.arrangement.layout import Layout
from tidelake.arrangement.saved import Checkpoint, Followed
from tidelake.arrangement.saving import Captured, restored
from tidelake.arrangement.settings import ArrangementConfig
from tidelake.arrangement.snapshot import Snapshot
from tidelake.arrangement.spine import Spine
from tidelake.data.selection import bind
from tidelake.errors import HistoryCompacted, UsageError
from tidelake.model.frontier import Frontier
from tidelake.model.schema import Schema
from tidelake.model.selection import Wanted
from tidelake.model.time import Time
from tidelake.shard.reading.tail import Tail, outgrown
from tidelake.shard.shard import Shard
from tidelake.shard.spec import ShardSpec
from tidelake.state.holds import close_hold


@dataclass(frozen=True)
class FollowOptions:
    """How a collection is arranged and followed.

    Attributes:
        directory: below which batches on disk are kept; None: that of temporary files.
        config: settings of the arrangement; None: the usual ones.
        hold_for_s: how long history is kept for a checkpoint while no process follows.
        poll_s: pause between two looks for news.
        timeout_s: how long to wait for a time to be closed; None: the lake's `wait_timeout_s`.
        follow: whether to follow beside the caller.
    """

    directory: str | os.PathLike[str] | None
    config: ArrangementConfig | None
    hold_for_s: float
    poll_s: float
    timeout_s: float | None
    follow: bool


class FollowedArrangement(Arrangement):
    """An arrangement of a collection; `collection.arrange(...)` makes it.

    What is looked up are the contents at `last_time`, or a later time whose updates came in just now. Times
    before the frontier are folded: unless history is kept, the frontier follows the last time.
    """

    def __init__(
        self,
        spine: Spine,
        home: Home,
        shard: Shard,
        content: str,
        *,
        followed: Followed,
        follower: Callable[[Sink], Follower],
    ) -> None:
        """Take over a spine, as `Arrangement`; `follower` keeps it up to date."""
        # The position is added when it is saved.
        super().__init__(spine, home, shard.env, content.partition(" ")[0], "")
        self._shard, self._followed = shard, followed
        self._before: str | None = None
        # Not to this itself, which nobody would find forgotten then.
        self._follower = follower(_Rows(spine, shard, followed))
        self._holdings.title = f"an arrangement of {followed.name!r}"
        self._holdings.give_up.insert(0, self._follower.close)

    @property
    def last_time(self) -> Time:
        """The last time whose updates are in; the least time if there is none yet. No store call."""
        return last_before(self._follower.position)

    def catch_up(self, through: Time | None = None, *, timeout_s: float | None = None) -> Time:
        """Take in what is new, until a time is in; the last time that is in then.

        One log scan a step, and reads of what came in. Raises what went wrong beside the caller before.

        Args:
            through: the time; default: the last one that is closed now.
            timeout_s: how long to wait for it to be closed; default: the lake's `wait_timeout_s`.

        Raises:
            NotYetClosed: it is still open then.
            HistoryCompacted: this process was away for longer than its hold lasts: arrange anew.
            IncompatibleSchema: a column was dropped or widened: arrange anew.
            CollectionDropped: nothing new will come.
            Closed: this arrangement was closed, or its lake.
        """
        at = None if through is None else self.layout.domain.check(through, "through")
        return self._follower.catch_up(at, self._patience_s(timeout_s))

    def follow(self) -> None:
        """Take in beside the caller what is new, until `stop_following`. May be repeated."""
        self._follower.start()

    def stop_following(self) -> None:
        """Take in what is new by `catch_up` only. May be repeated."""
        self._follower.stop()

    def snapshot(self) -> Snapshot:
        """As `Arrangement.snapshot`."""
        self._follower.check()
        return super().snapshot()

    def snapshot_at(self) -> tuple[Time, Snapshot]:
        """A snapshot, and the time as of which (`as_of=`) it has the collection's exact contents."""

        def look(time: Time) -> tuple[Time, Snapshot]:
            return time, Arrangement.snapshot(self)

        return self._follower.seen(look)

    def insert(self, updates: object) -> NoReturn:  # noqa: ARG002 - as others have it
        """Refused: updates come from the collection."""
        raise UsageError(f"this arrangement follows {self._followed.name!r}: append to the collection")

    def insert_nowait(self, updates: object) -> NoReturn:
        """Refused, as `insert`."""
        self.insert(updates)

    def set_frontier(self, frontier: Frontier | Time) -> None:
        """Give up the history before a frontier; see `Arrangement.set_frontier`.

        Raises:
            UsageError: it is past the last time that is in, or goes back.
        """

        def move(last: Time) -> None:
            domain = self.layout.domain
            wanted = frontier if isinstance(frontier, Frontier) else Frontier.of(domain.check(frontier))
            if not wanted <= Frontier.of(last):
                raise UsageError(f"the last time that is in is {last}: the frontier cannot be {wanted}")
            Arrangement.set_frontier(self, wanted)

        self._follower.seen(move)

    def save(self, path: str | os.PathLike[str]) -> Saved:
        """Save a checkpoint, as `Arrangement.save`; `collection.arrange(restore=path)` goes on from it.

        What arranges the same rows of the same collection is this arrangement as well.

        History is kept for whoever does, for as long as `hold_for` says after the last process followed.
        """
        saved = self._save(path, lambda: self._follower.between_steps(self._captured_at))
        kept = [c.followed for c in CheckpointDirectory(path).checkpoints() if c.followed is not None]
        self._follower.keep_from(min((f.position for f in kept), key=last_before))
        # The hold of the process that this one took over from. Ours begins where it did.
        before, self._before = self._before, None
        if before is not None:
            self._shard.run(partial(close_hold, hold_id=before))
        return saved

    def why_not_all_of(self, spec: ShardSpec) -> str:
        """Why this has not just the rows of a shard, under the schema of the spec; empty: it has."""
        followed = self._followed
        if followed.collection_id != spec.shard_id:
            return f"it is an arrangement of {followed.name!r}"
        if followed.where is not None or not self._retains_all():
            return "it has some of the rows only"
        if followed.columns is not None:
            return "it has some of the columns only"
        if followed.schema_id != spec.schema_id:
            return "the columns have changed since it was made: arrange anew"
        return ""

    def close(self) -> None:
        """Follow no more, and let go of everything. One log write, for the hold."""
        if not self._closed:
            try:
                self._follower.close()
            finally:
                super().close()

    def _begin(self, as_of: Time | None, options: FollowOptions) -> None:
        self._follower.begin(as_of, self._patience_s(options.timeout_s))

    def _resume(self, followed: Followed) -> None:
        self._follower.resume(followed.position)
        self._before = followed.hold

    def _retains_all(self) -> bool:
        return self._spine.retention.empty

    def _captured_at(self, position: Frontier) -> Captured:
        captured = self._captured()
        followed = replace(self._followed, position=position, hold=self._follower.hold)
        return replace(captured, content=f"{captured.content} {position}", followed=followed)

    def _patience_s(self, timeout_s: float | None) -> float:
        return self._shard.spec.config.wait_timeout_s if timeout_s is None else timeout_s


@dataclass(frozen=True)
class _Rows:
    """What a follower keeps up to date; see `following.Sink`."""

    spine: Spine
    shard: Shard
    followed: Followed

    def load(self, contents: pa.RecordBatchReader) -> None:
        """See `Sink.load`."""
        if self.followed.columns is not None:
            # In the order of other columns, and perhaps no longer distinct.
            for batch in contents:
                self.spine.insert(self._of(batch))
            return
        # With what is staged for later times, as long as nobody has moved it: more than there is to load.
        plan = FilterPlan(sum(batch.rows for batch in self.shard.last_version().state.batches()))
        if self.spine.load(map(self._of, contents), plan):
            self.spine.wait()

    def take(self, updates: pa.RecordBatchReader) -> None:
        """See `Sink.take`."""
        self.spine.insert_nowait(pa.Table.from_batches(map(self._of, updates), self.spine.layout.arrow))

    def wait(self) -> None:
        """See `Sink.wait`."""
        self.spine.wait()

    def fold(self, frontier: Frontier) -> None:
        """See `Sink.fold`."""
        self.spine.set_frontier(frontier)

    def _of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.spine.layout.arrow)


def arranged(
    shard: Shard,
    name: str,
    wanted: Wanted,
    options: FollowOptions,
    *,
    as_of: Time | None = None,
    restore: str | os.PathLike[str] | None = None,
) -> FollowedArrangement:
    """Load the contents of a shard, or restore them, take in what came after, and follow.

    Args:
        shard: to follow.
        name: of the collection, for messages.
        wanted: which rows, and which value columns beside the key.
        options: how.
        as_of: from when on history is kept; None: none is.
        restore: a directory of checkpoints of the same rows; loaded anew if there is none, if what came
            after it is no longer known, or if a column of it was dropped or widened since.

    Raises:
        UsageError: times are tuples, a column or condition is wrong, or the checkpoint is of other rows.
        HistoryCompacted: `as_of` is before `since`.
        NotYetClosed: `as_of` is not closed in time.
    """
    shard.alive()
    given.directory_or_none(options.directory, "directory")
    restore = given.directory_or_none(restore, "restore")
    followed = _followed(shard, name, wanted, keeps_history=as_of is not None)
    found = None if restore is None else _restored(shard, followed, restore, options)
    if found is None:
        home = Home(options.directory, shard.env.ids.fresh())
        layout = Layout(_schema(shard, followed), shard.spec.domain)
        spine = Spine(layout, options.config, directory=home.path, env=shard.env)
        found = FollowedArrangement(
            spine,
            home,
            shard,
            shard.env.ids.fresh(),
            followed=followed,
            follower=_follower(shard, followed, options),
        )
        try:
            found._begin(as_of, options)
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


def _followed(shard: Shard, name: str, wanted: Wanted, *, keeps_history: bool) -> Followed:
    """What is to be followed, checked; its position and hold are not known yet."""
    spec = shard.spec
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
    )


def _schema(shard: Shard, followed: Followed) -> Schema:
    """Of the rows of the arrangement: the value columns that are wanted, in the collection's order."""
    schema = shard.spec.schemas[followed.schema_id]
    if followed.columns is None:
        return schema
    return Schema(schema.key, tuple(column for column in schema.value if column.name in followed.columns))


def _follower(shard: Shard, followed: Followed, options: FollowOptions) -> Callable[[Sink], Follower]:
    columns = None
    if followed.columns is not None:
        columns = tuple(column.name for column in _schema(shard, followed).columns)
    tail = Tail(
        shard,
        shard.env.ids.fresh(),
        f"arrangement of {followed.name}",
        hold_for_s=options.hold_for_s,
        poll_s=0,
        wanted=Wanted(columns, followed.where),
        schema_id=followed.schema_id,
    )

    def make(sink: Sink) -> Follower:
        return Follower(
            tail,
            sink,
            shard.env,
            shard.keeper,
            poll_s=options.poll_s,
            keeps_history=followed.keeps_history,
        )

    return make


def _restored(
    shard: Shard, followed: Followed, path: str | os.PathLike[str], options: FollowOptions
) -> FollowedArrangement | None:
    """The arrangement of the newest checkpoint; None if there is none, or it cannot be gone on from."""
    there = CheckpointDirectory(path).checkpoints()
    if not there:
        return None
    before = _same(there[-1], followed, path)
    if outgrown(shard.spec, before.schema_id, Wanted(before.columns, before.where)):
        shard.env.recorder.count("arrangement.restore.outgrown")
        return None
    spine, home, found = restored(
        path, there[-1].number, directory=options.directory, config=options.config, env=shard.env
    )
    follower = _follower(shard, before, options)
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


def _same(found: Checkpoint, wanted: Followed, path: str | os.PathLike[str]) -> Followed:
    """What a checkpoint follows, which must be what is wanted now."""
    before = found.followed
    if before is None:
        raise UsageError(f"{os.fspath(path)!r} has checkpoints of an arrangement that follows no collection")
    for what, was, now in before.differences(wanted):
        raise UsageError(
            f"the checkpoint in {os.fspath(path)!r} was saved with {what}={was!r}, and is to be restored "
            f"with {now!r}: restore it with the same arguments, or save in another directory"
        )
    return before

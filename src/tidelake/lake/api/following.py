"""Following a collection: its contents, then every update, one step for each interval of closed times.

Owns the arguments, and where a subscription begins. `tidelake.shard.reading.reader` makes the steps,
`tidelake.shard.reading.tail` makes steps that can be repeated, and `tidelake.arrangement` indexes them.

INVARIANT: a step holds all updates of its interval of times, and the intervals follow each other without gap
or overlap.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from tidelake.data.kernel.timestamps import check_clock
from tidelake.errors import HistoryCompacted, UsageError
from tidelake.lake.api.handle import CollectionHandle
from tidelake.lake.arguments.spans import DurationLike, duration_s
from tidelake.lake.arguments.times import FrontierLike, Times
from tidelake.model.frontier import Frontier
from tidelake.model.instants import TimeLike
from tidelake.model.query import AsOf
from tidelake.model.selection import ReadOptions, TimesAs
from tidelake.shard.reading import query

if TYPE_CHECKING:
    from tidelake.arrangement.follow.follow import FollowedArrangement
    from tidelake.arrangement.merge.settings import ArrangementConfig
    from tidelake.shard.reading.reader import ListenOptions, Reader, Step
    from tidelake.shard.reading.tail import Tail
    from tidelake.shard.reading.unsealed import Records, Sealed


S = TypeVar("S")


def following(times: Times, until: FrontierLike | None, options: ReadOptions) -> "ListenOptions":
    """The arguments of `listen` and `subscribe`, checked. Without a timeout they wait without limit."""
    if options.timeout_s is None:
        options = replace(options, timeout_s=float("inf"))
    if options.times == "timestamp":
        check_clock(times.domain)
    from tidelake.shard.reading.reader import ListenOptions

    return ListenOptions(options, Frontier() if until is None else times.bound(until, "until"))


class Following(CollectionHandle):
    """Methods of a collection that go on giving what changes, until their caller stops them."""

    @overload
    def listen(
        self,
        as_of: TimeLike | None = None,
        *,
        lower: FrontierLike | None = None,
        until: FrontierLike | None = None,
        staged: Literal[False] = False,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        times: TimesAs = "int64",
    ) -> "Iterator[Step]": ...

    @overload
    def listen(
        self,
        as_of: TimeLike | None = None,
        *,
        lower: FrontierLike | None = None,
        until: FrontierLike | None = None,
        staged: Literal[True],
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        times: TimesAs = "int64",
    ) -> "Iterator[Records | Sealed]": ...

    def listen(
        self,
        as_of: TimeLike | None = None,
        *,
        lower: FrontierLike | None = None,
        until: FrontierLike | None = None,
        staged: bool = False,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        times: TimesAs = "int64",
    ) -> "Iterator[Step] | Iterator[Records | Sealed]":
        """Yield the updates after `as_of`, or from `lower` on, each once, in steps; see `Reader.listen`.

        Keeps a hold from the first step to the last. Stops after `timeout_s` without a step (default: never).

        Args:
            as_of: begin after this time: neither the contents at it nor the updates at it are yielded.
            lower: begin at this frontier, with the updates at it; instead of `as_of`.
            until: end at this frontier: all updates before it are yielded. Default: when the collection is
                closed.
            staged: yield updates as soon as they are staged or appended, as `Records`, and a `Sealed` when
                times are closed: no update before its frontier comes any more. Each update is yielded once,
                whatever is combined, drained or merged meanwhile. A listener that begins again at the last
                such frontier gets what was staged and not sealed again. Rows that are erased before their
                times are closed come once more, with the opposite `_diff`.
            columns: as for `Collection.snapshot`.
            where: as for `Collection.snapshot`.
            timeout_s: how long to wait for each step.
            times: as for `Collection.snapshot`.

        Raises:
            HistoryCompacted: the times of updates after `as_of` are no longer known. Nothing was written.
        """
        how = following(self._times, until, ReadOptions(columns, where, timeout_s, times=times))
        told: object = None
        if lower is not None and as_of is None:
            told = start = self._frontier(lower, "lower")
        elif as_of is not None and lower is None:
            told = at = self._times.read(as_of, "as_of")
            start = Frontier.past(at)
        else:
            raise UsageError("say where to begin: give either as_of=... or lower=...")
        since = self._shard.alive().since
        if since != Frontier.of(self.domain.minimum) and not since.keeps_times_from(start):
            error = HistoryCompacted(told, since) if lower is None else query.updates_folded(start, since)
            raise error.of(self.domain.unit)
        from tidelake.shard.reading.reader import Reader

        if staged:
            return self._listened(start, how, told, Reader.follow_staged)
        return self._listened(start, how, told, Reader.follow)

    def _listened(
        self,
        start: Frontier,
        how: "ListenOptions",
        told: object,
        follow: "Callable[[Reader, Frontier, ListenOptions, object], Iterator[S]]",
    ) -> Iterator[S]:
        from tidelake.shard.reading.reader import Reader

        hold = start.just_before().join(self.since)
        with Reader(self._shard, f"listen to {self.name}", hold) as reader:
            yield from follow(reader, start, how, told)

    def subscribe(
        self,
        as_of: TimeLike | None = None,
        *,
        until: FrontierLike | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        timeout_s: float | None = None,
        times: TimesAs = "int64",
    ) -> "Iterator[Step]":
        """Yield the contents at `as_of` as a first step, then every later update once, as `listen` does.

        The updates of all steps so far add up to the contents at the last time that they closed. No update
        between the contents and the following steps is lost or repeated, because one hold covers both. It is
        opened with the first step.

        Args:
            as_of: time of the contents; default: the last closed time. If no time is closed yet, there are no
                contents, and the steps begin with the first time.
            until: as for `listen`.
            columns: as for `listen`.
            where: as for `listen`.
            timeout_s: how long to wait for each step, and for `as_of` to be closed; default: for each step
                without limit, and for `as_of` the setting `wait_timeout_s`, which is not at all.
            times: as for `listen`.

        Returns:
            Steps. The first one covers all times up to `as_of`; its rows are at time `as_of`.

        Raises:
            HistoryCompacted: `as_of` is before `since`. Nothing was written.
            NotYetClosed: it is still open after `timeout_s`.
            UsageError: no `as_of` is given, and times are tuples or all are closed.
        """
        asked = ReadOptions(columns, where, timeout_s, times=times)
        how = following(self._times, until, asked)
        if as_of is None:
            return self._subscribed(None, how, asked)
        at = AsOf(self._times.read(as_of, "as_of"))
        if timeout_s is None:
            query.ready(self._shard, at, asked)
        else:
            query.check_since(at, self._shard.alive())
        return self._subscribed(at, how, asked)

    def _subscribed(self, given: AsOf | None, how: "ListenOptions", asked: ReadOptions) -> "Iterator[Step]":
        from tidelake.shard.reading.reader import Reader, Step

        purpose = f"subscription to {self.name}"
        while True:
            at = self._last() if given is None else given
            lower = Frontier.of(self.domain.minimum) if at is None else Frontier.past(at.time)
            # With tuples, telling later times apart needs more history than the contents do.
            hold = lower.just_before() if at is None else lower.just_before().meet(Frontier.of(at.time))
            try:
                reader = Reader(self._shard, purpose, hold)
                break
            except HistoryCompacted:
                # Others appended and moved `since` in between: the last closed time is a later one now.
                if given is not None:
                    raise
        with reader:
            if at is not None:
                contents = reader.stream(at, asked)
                yield Step(Frontier.of(self.domain.minimum), lower, contents)
            yield from reader.follow(lower, how)

    def _last(self) -> AsOf | None:
        """The query for the contents at the last closed time; None while no time is closed."""
        if self.domain.total_order and self._shard.alive().upper == Frontier.of(self.domain.minimum):
            return None
        return AsOf(self.last_time())

    def tail(
        self,
        hold: str | None = None,
        *,
        hold_for: DurationLike = timedelta(days=1),
        poll_s: float = 0.5,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        schema_id: int | None = None,
    ) -> "Tail":
        """Follow the collection in steps that can be repeated, across processes; for stream processors.

        No store call. See `tidelake.shard.reading.tail`.

        Args:
            hold: the id of its hold, to resume an earlier tail; default: a fresh one.
            hold_for: how long history is kept for it while no process follows; a timedelta, or seconds.
            poll_s: shortest pause between two reads of the log.
            columns: as for `Collection.snapshot`.
            where: as for `Collection.snapshot`.
            schema_id: as for `Collection.snapshot`.

        Raises:
            UsageError: times are tuples, or an argument is not valid.
        """
        from tidelake.shard.reading.tail import Tail

        return Tail(
            self._shard,
            hold or self._shard.env.ids.fresh(),
            f"stream of {self.name}",
            hold_for_s=_lasting_s(hold_for),
            poll_s=duration_s(poll_s, "poll_s"),
            options=ReadOptions(columns, where, schema_id=schema_id),
        )

    def arrange(
        self,
        as_of: TimeLike | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        restore: str | os.PathLike[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        config: "ArrangementConfig | None" = None,
        follow: bool = True,
        hold_for: DurationLike = timedelta(days=1),
        poll_s: float = 0.5,
        timeout_s: float | None = None,
    ) -> "FollowedArrangement":
        """Index the contents in this process, in memory and on local disk, for look-ups and joins.

        Loads a snapshot, then takes in every later update in the order of times. Close it before the lake.
        See docs/arrangement.md.

        Args:
            as_of: keep history from this time on: answers as of this or any later time are exact, until
                `advance_since` gives history up. Default: start at the last closed time, and keep only the
                newest contents.
            columns: value columns to keep; rows that are equal in them are one. Key columns are always kept.
            where: an SQL condition on the rows to keep, as for `snapshot`.
            restore: a directory that was given to `save`: continue from its newest checkpoint. The contents
                are loaded anew if there is no checkpoint, if history since then is gone, or if one of its
                columns was dropped or widened.
            directory: where batches on disk are kept; default: the directory of temporary files.
            config: settings of the arrangement.
            follow: follow in the background; False: only `catch_up` takes in new updates.
            hold_for: how long history is kept for a checkpoint while no process follows.
            poll_s: pause between two checks for new updates.
            timeout_s: how long to wait for `as_of` to be closed; default: the setting `wait_timeout_s`.

        Returns:
            The arrangement, with all rows at that time. Reads the contents once; one log write, for a hold.

        Raises:
            UsageError: times are tuples; a column, a condition or another argument is wrong; or the
                checkpoint holds other rows.
            HistoryCompacted: `as_of` is before `since`.
            NotYetClosed: `as_of` is still open after `timeout_s`.
            CorruptionError: a file of the checkpoint is damaged; names it.
        """
        # Imported here: most users of a lake arrange nothing, and the import takes time.
        from tidelake.arrangement.follow.follow import FollowOptions, arranged

        at = None if as_of is None else self._times.read(as_of, "as_of")
        if not self.domain.total_order:
            raise UsageError(
                f"times of {self.name!r} are of unit {self.domain}: an arrangement that follows needs times "
                "of a total order; make one with Arrangement.create, and append what you read"
            )
        options = FollowOptions(
            directory=directory,
            config=config,
            hold_for_s=_lasting_s(hold_for),
            poll_s=duration_s(poll_s, "poll_s"),
            follow=follow,
        )
        wanted = ReadOptions(columns, where, timeout_s)
        return arranged(self._shard, self.name, wanted, options, as_of=at, restore=restore)


def _lasting_s(hold_for: DurationLike) -> float:
    """How long a hold lasts while no process follows, in seconds, checked."""
    lasts_s = duration_s(hold_for, "hold_for")
    if lasts_s < 1:
        raise UsageError(f"hold_for={hold_for!r} must be at least a second")
    return lasts_s

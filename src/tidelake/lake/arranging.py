"""Arrangements of a collection: owns the arguments; the rest is `tidelake.arrangement`."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from tidelake.errors import UsageError
from tidelake.lake.handle import Handle
from tidelake.lake.spans import duration_s, patience
from tidelake.lake.wanted import wanted
from tidelake.model.time import Time

if TYPE_CHECKING:
    from tidelake.arrangement.follow import FollowedArrangement
    from tidelake.arrangement.settings import ArrangementConfig


class Arranging(Handle):
    """A handle whose contents can be indexed in this process."""

    def arrange(
        self,
        as_of: Time | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        restore: str | os.PathLike[str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        config: "ArrangementConfig | None" = None,
        follow: bool = True,
        hold_for: timedelta | float = timedelta(days=1),
        poll_s: float = 0.5,
        timeout_s: float | None = None,
    ) -> "FollowedArrangement":
        """Index the contents in this process, in memory and on local disk, for look-ups and joins now.

        Loads a snapshot, and takes in every update that follows, in the order of their times. To be closed,
        before the lake. See docs/arrangement.md.

        Args:
            as_of: keep history from this time on: answers as of any time from then on are exact, until
                `set_frontier` gives it up. Default: the last closed time, and no history but the newest.
            columns: value columns to keep; rows that are equal in them are one. Key columns are always kept.
            where: SQL that is true of the rows to keep, as for `snapshot`.
            restore: a directory that `save` was given: go on from its newest checkpoint. If there is none, or
                if history since then is gone, or a column of it was dropped or widened, the contents are
                loaded anew.
            directory: below which batches on disk are kept; default: that of temporary files.
            config: settings of the arrangement.
            follow: whether to follow beside the caller; else only `catch_up` takes in what is new.
            hold_for: how long history is kept for a checkpoint while no process follows.
            poll_s: pause between two looks for news.
            timeout_s: how long to wait for `as_of` to be closed; default: the setting `wait_timeout_s`.

        Returns:
            The arrangement, with all rows of the time. Reads the contents once; one log write, for a hold.

        Raises:
            UsageError: times are tuples; a column, a condition or another argument is wrong; or the
                checkpoint is of other rows.
            HistoryCompacted: `as_of` is before `since`.
            NotYetClosed: `as_of` is not closed in time.
            CorruptionError: a file of the checkpoint is damaged; names it.
        """
        # Most of those who open a lake arrange nothing, and need not wait for what that takes.
        from tidelake.arrangement.follow import FollowOptions, arranged

        at = None if as_of is None else self.domain.check(as_of, "as_of")
        if not self.domain.total_order:
            raise UsageError(
                f"times of {self.name!r} are of unit {self.domain}: an arrangement that follows needs times "
                "of a total order; make one with Arrangement.create, and insert what you read"
            )
        lasts_s = duration_s(hold_for, "hold_for")
        if lasts_s < 1:
            raise UsageError(f"hold_for={hold_for!r} must be at least a second")
        options = FollowOptions(
            directory=directory,
            config=config,
            hold_for_s=lasts_s,
            poll_s=duration_s(poll_s, "poll_s"),
            timeout_s=patience(timeout_s),
            follow=follow,
        )
        return arranged(self._shard, self.name, wanted(columns, where), options, as_of=at, restore=restore)

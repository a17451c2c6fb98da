"""Arrangements of a collection. Owns the arguments; `tidelake.arrangement` does the work."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from tidelake.errors import UsageError
from tidelake.lake.api.handle import CollectionHandle
from tidelake.lake.arguments.spans import duration_s
from tidelake.model.selection import ReadOptions
from tidelake.model.time import Time

if TYPE_CHECKING:
    from tidelake.arrangement.follow.follow import FollowedArrangement
    from tidelake.arrangement.merge.settings import ArrangementConfig


class Arranging(CollectionHandle):
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

        at = None if as_of is None else self.domain.check(as_of, "as_of")
        if not self.domain.total_order:
            raise UsageError(
                f"times of {self.name!r} are of unit {self.domain}: an arrangement that follows needs times "
                "of a total order; make one with Arrangement.create, and append what you read"
            )
        lasts_s = duration_s(hold_for, "hold_for")
        if lasts_s < 1:
            raise UsageError(f"hold_for={hold_for!r} must be at least a second")
        options = FollowOptions(
            directory=directory,
            config=config,
            hold_for_s=lasts_s,
            poll_s=duration_s(poll_s, "poll_s"),
            follow=follow,
        )
        wanted = ReadOptions(columns, where, timeout_s)
        return arranged(self._shard, self.name, wanted, options, as_of=at, restore=restore)

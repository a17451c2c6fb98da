"""Views: queries whose answers are collections. Owns the methods; `tidelake.views` does the work."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidelake.errors import TidelakeError
from tidelake.lake.api.collection import Collection
from tidelake.lake.api.naming import Naming
from tidelake.lake.arguments.names import check_name
from tidelake.lake.arguments.spans import WindowLike
from tidelake.model.instants import TimeLike

if TYPE_CHECKING:
    from tidelake.views.explaining import Explained
    from tidelake.views.refreshed import Refreshed
    from tidelake.views.verifying import Verified


class Viewing(Naming):
    """Methods of a lake about views (they need the extra `sql`)."""

    def view(
        self,
        name: str,
        sql: str,
        *,
        key: Sequence[str] | None = None,
        every: WindowLike | None = None,
        max_lag: WindowLike | None = None,
        together: str = "",
        replace: bool = False,
        allow_recreate: bool = False,
    ) -> Collection:
        """Make a view: a collection that is, at every closed time, the answer of a query at that time.

        Its first refresh computes the history that all inputs still have, and is part of this call. Later
        ones (`refresh`) compute what the changes of the inputs change. Nothing else writes to it. It keeps
        the history of its inputs from its last time on, by a critical hold on each.

        Args:
            name: of the view.
            sql: one query in DuckDB's SQL. Tables are collections. docs/views.md says what it may hold.
            key: the key columns of the view; default: its first column.
            every: a grid of times, such as `"1h"` or a number: the view is exact at its multiples, and shows
                between them what it showed at the last one. So it has fewer updates. Default: all times.
            max_lag: if the view is further behind an input than this, it holds its history no longer; if that
                goes, the view needs `rebuild`. Default: it holds it until it is refreshed or dropped.
            together: a name: all views that are given it change by one commit, so that what reads several of
                them at their last times, as `sql` does, reads all of them at the same one.
            replace: if the name has a view of another query, make the new one beside it, and give it the name
                when it is as far: in one commit. The old one and its history are dropped.
            allow_recreate: if a collection of this name was dropped or renamed, take the name.

        Returns:
            The view. If it is there with this query, it is opened, and not refreshed.

        Raises:
            UsageError: a view cannot have a part of the query; names it, and what to write instead. Or an
                input is closed less far than the view that is to be replaced.
            CollectionExists: the name is taken by something else, or was taken once.
            RefreshFailed: the query has no answer at some time. The view is dropped: to take its name
                again needs `allow_recreate`. A view that was to be replaced stays.
        """
        self._guard.check()
        check_name(name, "name of a view")
        # Views stand above the lake, and `import tidelake` needs neither DuckDB nor the parser.
        from tidelake.views.making import make
        from tidelake.views.request import ViewRequest

        return make(self, name, ViewRequest(sql, key, every, max_lag, together, replace, allow_recreate))

    def index(self, collection: str, by: Sequence[str]) -> Collection:
        """Make an index: all rows of a collection by another key, for look-ups by these columns.

        It is a view, called such as `orders by customer`: `refresh` keeps it, `drop` ends it. Views look rows
        up in it, and then keep none of their own for that; a drop names those that do.

        Args:
            collection: the name of the collection.
            by: the columns of its key.

        Returns:
            The index: its `lookup` takes these columns. If it is there, it is opened, and not refreshed.

        Raises:
            UsageError: the collection has no such column, or has these in its key.
            CollectionExists: the name is taken by something else.
        """
        self._guard.check()
        from tidelake.views.making import make_index

        return make_index(self, collection, by)

    def refresh(self, name: str | None = None) -> "list[Refreshed]":
        """Bring views up to their inputs: all, or one with the views that it stands on.

        The upper of a view becomes the least upper of its inputs. Any number of processes may refresh at
        once, and may die: a refresh is one commit, or none.

        Returns:
            What was done for each view, each behind those that it stands on.

        Raises:
            RefreshFailed: a query has no answer at one of the next times; names the view and the stage. All
                others are refreshed.
            RebuildNeeded: a view can no longer be refreshed: see `rebuild`.
            ViewsFailed: there are several such errors; has each of them.
        """
        self._guard.check()
        from tidelake.views.life import refresh

        return refresh(self, None if name is None else [name])

    def _refreshes(self, name: str | None) -> "Iterator[tuple[str, Refreshed | TidelakeError]]":
        """As `refresh`; tells what was done with each view, or its error."""
        from tidelake.views.life import refreshes

        return refreshes(self, None if name is None else [name])

    def _fresh(
        self, among: Sequence[Collection], due: Callable[[str], bool] = lambda _: True
    ) -> "Iterator[tuple[str, Refreshed | TidelakeError]]":
        """Refresh the views among collections that are due, with what they stand on; tell each error."""
        from tidelake.views.life import fresh
        from tidelake.views.shared import Shared

        return fresh(Shared(self), among, due)

    def _release_gone(self) -> None:
        """Drop the holds that views have left whose drop did not come to its end."""
        from tidelake.views.life import release

        release(self)

    def verify(self, name: str, at: TimeLike | None = None) -> "Verified":
        """Compute the query of a view over the contents of its inputs, and compare.

        Sums of floats are taken for equal if they differ in their last digits only. Rows that are there less
        than no times cannot be compared.

        Args:
            name: of the view.
            at: the time; default: its last closed one. The inputs must still have it.

        Raises:
            HistoryCompacted: an input no longer has this time.
        """
        self._guard.check()
        from tidelake.views.life import verify

        return verify(self, name, at)

    def explain(self, name: str) -> "Explained":
        """The stages of a view, which of them compute all again, what it waits for, and what it keeps.

        `print` shows tables.
        """
        self._guard.check()
        from tidelake.views.life import explain

        return explain(self, name)

    def rebuild(self, name: str) -> Collection:
        """Make a view again from what its inputs have now, and give it the name when it has caught up.

        Until then readers see the old one. The names in its query mean what they mean now.
        """
        self._guard.check()
        from tidelake.views.making import rebuild

        return rebuild(self, name)
